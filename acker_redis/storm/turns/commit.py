"""Executions whose state a turn commits: the driver chooses them, between the levels and the sinks."""

import pickle
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.state.execution import Executed
from acker_redis.storm.turns.rows import REPORT, STATE


class HeldTooLongError(InvalidTopologyError):
    """Bolts hold tuples that their state can't keep. Nothing of the turn counts. The messages of these tuples fail.

    Attributes:
        refused: root -> bolt, and the reason.
    """

    def __init__(self, refused: Mapping[int, tuple[str, str]]) -> None:
        super().__init__(next(reason for _, reason in refused.values()))
        self.refused = refused


def executions(kept: DataFrame) -> list[Executed]:
    """Choose executions so that each task has one, from the rows of a turn whose levels are complete.

    Partitions of the rows are filtered where they are. Only the names of executions and the reports reach the driver.

    Returns:
        Executions. Empty: no task had state, or a bolt made a mistake, which ends the run. Then nothing is committed.

    Raises:
        HeldTooLongError: a tuple that a bolt holds can't be kept.
    """
    rows = kept.where(F.col("to").isin(STATE, REPORT)).select("to", "data").toArrow().to_pydict()
    found: list[Executed] = []
    refused: dict[int, tuple[str, str]] = {}
    for to, data in zip(rows["to"], rows["data"], strict=True):
        if to == STATE:
            found.append(Executed.from_bytes(data))
            continue
        report = pickle.loads(data)  # noqa: S301  # the run's own
        if report.mistake is not None:
            return []
        refused |= report.too_long
    if refused:
        raise HeldTooLongError(refused)
    return _chosen(found)


def _chosen(found: list[Executed]) -> list[Executed]:
    """Choose one execution per task. Spark keeps one per task; the choice is the same in each try."""
    chosen: list[Executed] = []
    tasks: set[int] = set()
    for one in sorted(found):
        if tasks.isdisjoint(one.tasks):
            chosen.append(one)
            tasks.update(one.tasks)
    return chosen
