"""The step of a sink that stages rows in a store of the user's, by a function of each partition."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from acker_redis.errors import InexactPipelineError
from acker_redis.spark.worker.failures import note_component
from acker_redis.spark.worker.process import keep_imports, partition_id

PublishParts: TypeAlias = Callable[[str, Mapping[str, int]], object]
"""A function of a key and parts with their numbers of rows, which puts these rows into a table once. Its result is ignored."""

StagePart: TypeAlias = Callable[[Iterator[pa.RecordBatch], str], object]
"""A function of the batches of a partition and the name of its part. Its result is ignored."""

PART, ROWS = "part", "rows"
"""Columns of the parts that a step has staged: name, and number of rows."""

_SCHEMA = pa.schema([(PART, pa.string()), (ROWS, pa.int64())])


@dataclass(frozen=True)
class StagePartsStep:
    """Function for `mapInArrow` from a partition to a row with the name of its part, and the number of rows there.

    Each attempt of a task has a part of its own. Spark reports the rows of one attempt, so parts of others aren't known.

    Attributes:
        component: name of the sink.
        stage: the user's function.
        key: beginning of the names of parts.
        columns: see `FlatMapStep`.
    """

    component: str
    stage: StagePart
    key: str
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition. The function isn't called if that has no rows.

        Raises:
            InexactPipelineError: the function returned before it had consumed its rows.
        """
        keep_imports()
        rows = _Rows(batches, self.columns)
        if not rows.has_any():
            return
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        part = f"{self.key}-{partition_id()}-{attempt}"
        try:
            self.stage(rows.taken(), part)
        except Exception as exc:
            if not rows.failed:
                note_component(exc, self.component)
            raise
        if rows.failed or rows.has_any():
            raise InexactPipelineError(
                f"sink {self.component!r}: the function returned before it had consumed its partition. Nothing is accepted. "
                "Iterate over all batches in it, and drop rows with tracker.filter before the sink."
            )
        yield pa.RecordBatch.from_arrays([pa.array([part]), pa.array([rows.count], pa.int64())], schema=_SCHEMA)


class _Rows:
    """Batches of a partition, which are counted as they are taken.

    Attributes:
        count: number of rows taken.
        failed: whether an earlier step has raised.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> None:
        self._batches, self._columns = batches, columns
        self._next: pa.RecordBatch | None = None
        self.count, self.failed = 0, False

    def has_any(self) -> bool:
        """Return True if there are more rows."""
        while self._next is None:
            batch = next(self._batches, None)
            if batch is None:
                return False
            if batch.num_rows:
                self._next = batch
        return True

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        try:
            while self.has_any() and (batch := self._next) is not None:
                self._next = None
                self.count += batch.num_rows
                yield batch.rename_columns(list(self._columns)) if self._columns else batch
        except Exception:
            self.failed = True
            raise
