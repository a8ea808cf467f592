"""A sink that is a function per partition."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.accumulators import Accumulator

from acker_redis.errors import NotExactError, PipelineError, RowsRefusedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ARROW_OUT, ARROW_ROWS, ARROW_SHARE, ROOTS, SHARE, STAYS
from acker_redis.spark.worker.failures import (
    REASON_CHARS,
    Failure,
    FailureCollector,
    NoRetry,
    OnError,
    Reason,
    Roots,
    as_reason,
    reason_of,
    rootless,
)
from acker_redis.spark.worker.process import keep_imports, partition_id

log = logging.getLogger("acker_redis.spark")

Write: TypeAlias = Callable[[Iterator[pa.RecordBatch], int], object]
"""Called with the batches of a partition and its number. What it returns makes no difference."""

_SCHEMA = pa.schema([ARROW_SHARE, ARROW_ROWS, ARROW_OUT])


@dataclass
class _Consumed:
    """What of the partition was handed to the function, or drained after it had failed."""

    parts: int = 0
    rows: int = 0
    _own: list[Int64Array] = field(default_factory=list)
    _counts: list[npt.NDArray[np.int32]] = field(default_factory=list)
    _roots: list[Int64Array] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, *, with_roots: bool) -> None:
        """With roots: some 20 bytes of each row are kept, copied, as a column would hold its batch."""
        own = shares.from_arrow(batch.column(SHARE))
        self.parts = (self.parts + shares.total(own)) & shares.MASK
        self.rows += batch.num_rows
        if with_roots:
            anchors = batch.column(ROOTS)
            self._own.append(own.copy())
            self._counts.append(anchors.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).copy())
            self._roots.append(anchors.flatten().fill_null(0).to_numpy(zero_copy_only=False).copy())

    @property
    def own(self) -> Int64Array:
        """The share of each row."""
        return np.concatenate([np.array([], np.int64), *self._own])

    @property
    def rootless(self) -> int:
        """How many rows have a share, but no root."""
        return rootless(self.own, np.concatenate([np.array([], np.int32), *self._counts]))

    @property
    def anchors(self) -> pa.ListArray:
        """The roots of each row."""
        ends = np.cumsum(np.concatenate([np.array([0], np.int32), *self._counts]), dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), np.concatenate([np.array([], np.int64), *self._roots]))


@dataclass(frozen=True)
class PartitionsStep:
    """The function for `mapInArrow`: one row (`SHARE`, `ROWS`, `OUT`) per partition says what was consumed.

    Attributes:
        component: name of the sink.
        operator: its tag in failures.
        write: the function; it gets the user's columns.
        on_error: `raise`: what it raises ends the task, and Spark tries it again. `fail`: every row of the partition fails,
            with the error as reason, or those that a `RowsRefusedError` names; the anchors are among the input columns
            for it. What goes wrong before the sink, in the rows' making, is raised in both cases.
        failures: where failed rows are reported.
        no_retry: exceptions after which the messages of the partition are not emitted again.
        columns: see `FlatMapStep`.
    """

    component: str
    operator: str
    write: Write
    on_error: OnError
    failures: Accumulator[list[Failure]] = field(repr=False)
    no_retry: NoRetry = ()
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            NotExactError: the function returned before it had consumed its rows.
            PipelineError: it refused rows that are not there, or errors are to be raised.
        """
        keep_imports()
        consumed = _Consumed()
        broken: list[Exception] = []
        stream = self._watched(batches, consumed, broken)
        collector = FailureCollector(self.operator, self.component, self.failures)
        try:
            self.write((batch.drop_columns(self._own) for batch in stream), partition_id())
            self._ended(batches, broken)
        except NotExactError:  # a mistake, and no reason to fail rows
            raise
        except RowsRefusedError as exc:
            self._ended(batches, broken)
            self._refuse(collector, consumed, exc)
        except Exception as exc:
            if self.on_error == "raise" or broken:
                raise
            self._fail(collector, consumed, batches, reason_of(exc, self.no_retry))
        stays = consumed.parts, consumed.rows, STAYS
        residue = collector.residue()
        if residue is None:  # also where it failed before its first row, and had none
            made = [stays]
        else:
            rest = (consumed.parts - residue.parts) & shares.MASK, consumed.rows - residue.rows, STAYS
            made = [one for one in (rest, (residue.parts, residue.rows, residue.number)) if one[1]]
        columns = zip(*made, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.int64()) for values in columns], schema=_SCHEMA)

    def _ended(self, batches: Iterator[pa.RecordBatch], broken: list[Exception]) -> None:
        """See that the function has consumed its rows."""
        if broken:  # and the function swallowed it
            raise broken[0]
        if any(batch.num_rows for batch in batches):
            raise NotExactError(
                f"sink {self.component!r}: the function returned before it had consumed its partition: nothing is "
                "acked. Have it "
                "iterate over all of its batches, and drop rows with tracker.filter before"
            )

    def _refuse(self, collector: FailureCollector, consumed: _Consumed, refused: RowsRefusedError) -> None:
        """Fail the rows that the store refused."""
        if self.on_error == "raise":
            raise PipelineError(
                f"sink {self.component!r}: {refused}: give on_error='fail', so that rows can fail alone"
            )
        numbers = list(refused.rows)
        if any(not isinstance(one, (int, np.integer)) or not 0 <= one < consumed.rows for one in numbers):
            raise PipelineError(
                f"sink {self.component!r}: it refused rows that are not among the {consumed.rows} of its partition"
            )
        if numbers:
            rows = np.array(numbers, np.int64)
            reasons = [as_reason(reason) for reason in refused.rows.values()]
            collector.add(consumed.own[rows], consumed.anchors.take(pa.array(rows)), reasons)

    def _fail(
        self, collector: FailureCollector, consumed: _Consumed, batches: Iterator[pa.RecordBatch], reason: Reason
    ) -> None:
        """Fail all rows of the partition."""
        log.warning("sink %r failed the rows of a partition: %s", self.component, reason.text[:REASON_CHARS])
        for batch in self._renamed(batches):
            consumed.add(batch, with_roots=True)
        roots = Roots()
        roots.add(consumed.anchors.values.to_numpy())
        collector.add_all(consumed.parts, consumed.rows, roots, reason, consumed.rootless)

    @property
    def _own(self) -> list[str]:
        return [SHARE, ROOTS] if self.on_error == "fail" else [SHARE]

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
