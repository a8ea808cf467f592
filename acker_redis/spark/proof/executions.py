"""What Spark tells of the executions that had a meter, on either kind of session.

A classic session has a listener in its JVM. A session of Spark Connect learns the same from the responses to its own requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pyspark.sql import SparkSession

from acker_redis.spark.proof.meters import Metrics


@dataclass(frozen=True)
class Execution:
    """One successful execution.

    Attributes:
        metrics: name of one of the tracker's meters -> its sums. A meter without sums is missing: they are unknown, not zero.
        written: meters whose rows a command consumed, with nothing but projections in between.
        query: Spark's QueryExecution, with its plans; None on Spark Connect.
    """

    metrics: Metrics
    written: frozenset[str]
    query: Any = None


HasMeter: TypeAlias = Callable[[Execution], bool]


class Executions(Protocol):
    """The executions of a session."""

    def expect(self, meter: str) -> None:
        """Note the name of a meter, before an execution has it."""

    def find(self, has_meter: HasMeter, session: SparkSession, *, every: bool = False) -> list[Execution]:
        """Return the executions that `has_meter` selects.

        Wait until Spark reports the first. The list is empty if there was none. `every` waits until Spark can't report
        another one.

        Raises:
            AckerError: Spark reports nothing.
        """

    def forget(self, meters: str) -> None:
        """Drop the executions with meters whose names begin with `meters`."""
