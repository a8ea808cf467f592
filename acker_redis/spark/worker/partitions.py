"""A sink that is a function per partition."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from pyspark.accumulators import Accumulator

from acker_redis.errors import AckerError
from acker_redis.spark import edges
from acker_redis.spark.columns import ANCHORS, ARROW_EDGE, ARROW_OUT, ARROW_ROWS, EDGE, STAYS
from acker_redis.spark.worker.client import partition_id
from acker_redis.spark.worker.failed import REASON_CHARS, Failures, OnError, Reason, Report, Roots, reason_of

log = logging.getLogger("acker_redis.spark")

Write: TypeAlias = Callable[[Iterator[pa.RecordBatch], int], None]
"""Called with the batches of a partition and its number."""

_SCHEMA = pa.schema([ARROW_EDGE, ARROW_ROWS, ARROW_OUT])


@dataclass
class _Consumed:
    """What of the partition was handed to the function, or drained after it had failed."""

    parts: int = 0
    rows: int = 0
    roots: Roots = field(default_factory=Roots)

    def add(self, batch: pa.RecordBatch, *, with_roots: bool) -> None:
        self.parts = (self.parts + edges.total(edges.from_arrow(batch.column(EDGE)))) & edges.MASK
        self.rows += batch.num_rows
        if with_roots:
            flat = batch.column(ANCHORS).flatten().drop_null()
            self.roots.add(flat.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class PartitionsStep:
    """The function for `mapInArrow`: one row (`EDGE`, `ROWS`, `OUT`) per partition says what was consumed.

    Attributes:
        stage: name of the sink.
        operator: its tag in reports.
        write: the function; it gets the user's columns.
        on_error: `raise`: what it raises ends the task, and Spark tries it again. `fail`: every row of the partition fails,
            with the error as reason; the anchors are among the input columns for it. What goes wrong before the sink, in
            the rows' making, is raised in both cases.
        reports: where failed rows are reported.
        columns: see `BoltStep`.
    """

    stage: str
    operator: str
    write: Write
    on_error: OnError
    reports: Accumulator[list[Report]] = field(repr=False)
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            AckerError: the function returned before it had consumed its rows.
        """
        consumed = _Consumed()
        broken: list[Exception] = []
        stream = self._watched(batches, consumed, broken)
        reason: Reason | None = None
        try:
            self.write((batch.drop_columns(self._own) for batch in stream), partition_id())
        except Exception as exc:
            if self.on_error == "raise" or broken:
                raise
            reason = reason_of(exc)
            log.warning("sink %r failed the rows of a partition: %s", self.stage, reason.text[:REASON_CHARS])
        out = STAYS
        if reason is not None:
            for batch in self._renamed(batches):
                consumed.add(batch, with_roots=True)
            failures = Failures(self.operator, self.stage, self.reports)
            failures.add_all(consumed.parts, consumed.rows, consumed.roots, reason)
            residue = failures.residue()
            out = residue.number if residue is not None else STAYS  # it failed before its first row, and had none
        elif broken:  # the function swallowed it
            raise broken[0]
        elif any(batch.num_rows for batch in batches):
            raise AckerError(
                f"sink {self.stage!r}: the function returned before it had consumed its partition: nothing is acked. Have it "
                "iterate over all of its batches, and drop rows with tracker.filter before"
            )
        values = [[consumed.parts], [consumed.rows], [out]]
        yield pa.RecordBatch.from_arrays([pa.array(value, pa.int64()) for value in values], schema=_SCHEMA)

    @property
    def _own(self) -> list[str]:
        return [EDGE, ANCHORS] if self.on_error == "fail" else [EDGE]

    def _renamed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.rename_columns(list(self.columns)) for batch in batches) if self.columns else batches

    def _watched(
        self, batches: Iterator[pa.RecordBatch], consumed: _Consumed, broken: list[Exception]
    ) -> Iterator[pa.RecordBatch]:
        """The batches, counted; an error in their making is kept apart from the function's own."""
        try:
            for batch in self._renamed(batches):
                consumed.add(batch, with_roots=self.on_error == "fail")
                yield batch
        except Exception as exc:
            broken.append(exc)
            raise
