"""Message ids that are learned from the job that processes the messages, without reading the source for them.

The job meters the source: rows, least id, greatest id, and the sum of their shares, which are salted per emission. If the sum
is that of a range of as many ids, these are the ids. Otherwise they are read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from acker_redis.spark.proof import meters
from acker_redis.spark.proof.draining import drains
from acker_redis.spark.proof.executions import Execution


class Messages(NamedTuple):
    """What a proof has to know of the messages of an emission.

    Attributes:
        total: sum of their shares.
        size: number of messages.
    """

    total: int
    size: int


@dataclass
class LateIds:
    """The messages of an emission whose ids aren't known before its job.

    Attributes:
        meter: name of the meter at the source.
        read: function that reads the ids with a job of its own.
        try_range: function of the least id, the greatest id and the sum of shares. It returns None if the ids from least to
            greatest have another sum.
    """

    meter: str
    read: Callable[[], Messages]
    try_range: Callable[[int, int, int], Messages | None]

    def learn(self, executions: Iterable[Execution]) -> Messages:
        """Return the messages that one of the executions has processed. Read them if none has read a whole range."""
        for execution in executions:
            if self.meter in execution.metrics and (messages := self._metered(execution)) is not None:
                return messages
        return self.read()

    def _metered(self, execution: Execution) -> Messages | None:
        source = meters.read_source(execution.metrics, self.meter)
        if source.least is None or source.greatest is None:
            return None
        if source.rows != source.greatest - source.least + 1 or not drains(execution.query, self.meter):
            return None
        return self.try_range(source.least, source.greatest, source.shares)
