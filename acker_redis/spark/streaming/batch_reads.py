"""Whether Spark keeps a micro-batch for its jobs, or each job reads the source again.

Two jobs read a micro-batch: one for the message ids, and the pipeline. To keep a thousand rows takes longer than to read them
twice. But only a plan that gives the same rows each time may be read twice.
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from acker_redis.spark.proof.plans import each

FEW_IDS = 5000
"""Largest micro-batch after which the next one is expected to have few rows."""

_REPEATABLE = frozenset(("Project", "Filter", "SubqueryAlias"))
"""Nodes of a stream's plan whose rows are the same each time, if their expressions are deterministic."""

_SOURCES_AND_SINKS = ("Streaming", "WriteToMicroBatch")
"""Beginnings of the names of nodes for sources, which return the same rows for the same offsets, and for `foreachBatch`."""


class BatchReads:
    """Decide how the micro-batches of one start of a query are read."""

    def __init__(self, is_repeatable: Callable[[], bool]) -> None:
        """Expect a large micro-batch first, because it may have all that has waited.

        Args:
            is_repeatable: function that returns True if each job that reads a micro-batch gets the same rows.
        """
        self._ask = is_repeatable
        self._last_size = FEW_IDS + 1
        self._is_repeatable: bool | None = None
        self._batch: DataFrame | None = None
        self._is_kept = False

    @property
    def expects_few(self) -> bool:
        """Return True if the micro-batch is expected to have few rows."""
        return self._last_size <= FEW_IDS

    @property
    def reads_few(self) -> bool:
        """Return True if few rows are expected, and Spark reads them from the source each time."""
        return self.expects_few and not self._is_kept

    def begin(self, batch: DataFrame) -> None:
        """Begin a micro-batch. Spark keeps it unless it is expected to have few rows, and may be read again."""
        self._batch, self._is_kept = batch, False
        if self._is_repeatable is None:
            self._is_repeatable = self._ask()
        if not (self.expects_few and self._is_repeatable):
            self.keep()

    def note_size(self, size: int) -> None:
        """Note how many rows the micro-batch has."""
        self._last_size = size
        if not self.expects_few:
            self.keep()

    def keep(self) -> None:
        """Let Spark keep the micro-batch, because many jobs may read it. The emission's thread may call this."""
        if self._batch is not None and not self._is_kept:
            self._is_kept = True
            self._batch.cache()

    def end(self) -> None:
        """End the micro-batch."""
        batch, self._batch = self._batch, None
        if batch is not None and self._is_kept:
            batch.unpersist()


def is_repeatable(plan: Any) -> bool:
    """Return True if each job that reads a micro-batch of a stream with this analyzed plan gets the same rows."""
    return bool(plan.deterministic()) and _has_only_repeatable(plan)


def _has_only_repeatable(plan: Any) -> bool:
    kind = str(plan.nodeName())
    if not (kind in _REPEATABLE or kind.startswith(_SOURCES_AND_SINKS)):
        return False
    return all(_has_only_repeatable(child) for child in each(plan.children()))
