"""The step of a sink that is a function of each partition."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_redis.errors import InexactPipelineError, PipelineError, RowsRefusedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import (
    ARROW_FAILURE,
    ARROW_OUT,
    ARROW_ROWS,
    ARROW_SHARE,
    FAILED,
    ROOTS,
    SHARE,
    STAYS,
)
from acker_redis.spark.worker.failures import (
    REASON_CHARS,
    DistinctRoots,
    FailureCollector,
    NoRetry,
    OnError,
    Reason,
    as_reason,
    count_rootless,
    note_component,
    reason_of,
)
from acker_redis.spark.worker.process import keep_imports, partition_id

log = logging.getLogger("acker_redis.spark")

Write: TypeAlias = Callable[[Iterator[pa.RecordBatch], int], object]
"""A function of the batches of a partition and its number. Its result is ignored."""

Prepare: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function from tracked batches of a partition to those that the user's function receives."""

_SCHEMA = pa.schema([ARROW_SHARE, ARROW_ROWS, ARROW_OUT, ARROW_FAILURE])


@dataclass
class _Consumed:
    """The rows of the partition that the function received, or that were drained after it had failed."""

    share_sum: int = 0
    rows: int = 0
    _shares: list[Int64Array] = field(default_factory=list)
    _counts: list[npt.NDArray[np.int32]] = field(default_factory=list)
    _roots: list[Int64Array] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, *, with_roots: bool) -> None:
        """Count a batch.

        Args:
            batch: rows.
            with_roots: whether to keep shares and roots, about 20 bytes per row. They are copied, because a column would
                keep its whole batch in memory.
        """
        row_shares = shares.from_arrow(batch.column(SHARE))
        self.share_sum = (self.share_sum + shares.total(row_shares)) & shares.MASK
        self.rows += batch.num_rows
        if with_roots:
            roots = batch.column(ROOTS)
            self._shares.append(row_shares.copy())
            self._counts.append(roots.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).copy())
            self._roots.append(roots.flatten().fill_null(0).to_numpy(zero_copy_only=False).copy())

    @property
    def row_shares(self) -> Int64Array:
        """The share of each row."""
        return np.concatenate([np.array([], np.int64), *self._shares])

    @property
    def rootless(self) -> int:
        """Number of rows that have a share, but no root."""
        return count_rootless(self.row_shares, np.concatenate([np.array([], np.int32), *self._counts]))

    @property
    def roots(self) -> pa.ListArray:
        """The roots of each row."""
        ends = np.cumsum(np.concatenate([np.array([0], np.int32), *self._counts]), dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), np.concatenate([np.array([], np.int64), *self._roots]))


@dataclass(frozen=True)
class PartitionsStep:
    """Function for `mapInArrow` from a partition to rows that count consumed and failed rows.

    Their columns are `SHARE`, `ROWS`, `OUT` and `FAILURE`.

    Attributes:
        component: name of the sink.
        write: the user's function, which receives the user's columns.
        on_error: effect of an exception in the function. `raise` ends the task, and Spark retries it. `fail` fails every row
            of the partition, with the error as reason, or only those that a `RowsRefusedError` names. It needs the roots
            column among the input columns. An error in the steps before the sink is raised in both modes.
        max_failure_bytes: limit on the failure of a task.
        no_retry: exceptions after which the messages of the partition are not emitted again.
        columns: see `FlatMapStep`.
        only_refused: whether `fail` fails only rows that a `RowsRefusedError` names. Any other error is raised.
        prepare: function that prepares the batches for `write`. None: they lose the tracking columns. It needs `fail`.
    """

    component: str
    write: Write
    on_error: OnError
    max_failure_bytes: int
    no_retry: NoRetry = ()
    columns: tuple[str, ...] = ()
    only_refused: bool = False
    prepare: Prepare | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            InexactPipelineError: the function returned before it had consumed its rows.
            PipelineError: it refused rows that don't exist, or it refused rows while `on_error` is `raise`.
        """
        keep_imports()
        consumed = _Consumed()
        input_errors: list[Exception] = []
        stream = self._watched(batches, consumed, input_errors)
        collector = FailureCollector(self.max_failure_bytes)
        try:
            prepared = self._untracked(stream) if self.prepare is None else self.prepare(stream)
            self.write(prepared, partition_id())
            self._check_consumed(batches, input_errors)
        except InexactPipelineError:  # a mistake, and no reason to fail rows
            raise
        except RowsRefusedError as exc:
            self._check_consumed(batches, input_errors)
            self._fail_refused(collector, consumed, exc)
        except Exception as exc:
            if self.on_error == "raise" or self.only_refused or input_errors:
                if not input_errors:
                    note_component(exc, self.component)
                raise
            self._fail_all(collector, consumed, batches, reason_of(exc, self.no_retry))
        failed = collector.failed_rows()
        rows: list[tuple[int, int, int, str | None]]
        if failed is None:  # also where it failed before its first row, and had none
            rows = [(consumed.share_sum, consumed.rows, STAYS, None)]
        else:
            written = (consumed.share_sum - failed.share_sum) & shares.MASK, consumed.rows - failed.rows, STAYS, None
            rows = [row for row in (written, (failed.share_sum, failed.rows, FAILED, failed.failure)) if row[1]]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, _SCHEMA.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def _check_consumed(self, batches: Iterator[pa.RecordBatch], input_errors: list[Exception]) -> None:
        """Check that the function consumed all rows, and swallowed no error of earlier steps."""
        if input_errors:
            raise input_errors[0]
        if any(batch.num_rows for batch in batches):
            raise InexactPipelineError(
                f"sink {self.component!r}: the function returned before it had consumed its partition. Nothing is acked. "
                "Iterate over all batches in it, and drop rows with tracker.filter before the sink."
            )

    def _fail_refused(self, collector: FailureCollector, consumed: _Consumed, refused: RowsRefusedError) -> None:
        """Fail the rows that the store refused."""
        if self.on_error == "raise":
            raise PipelineError(
                f"sink {self.component!r}: the function raised RowsRefusedError, which needs on_error='fail'. Pass that, so "
                f"that only the refused rows fail. The error was: {refused}"
            )
        numbers = list(refused.rows)
        if any(not isinstance(number, (int, np.integer)) or not 0 <= number < consumed.rows for number in numbers):
            raise PipelineError(
                f"sink {self.component!r}: RowsRefusedError names rows that are not among the {consumed.rows} rows of the "
                "partition. Count rows from 0, over all batches of the partition."
            )
        if numbers:
            rows = np.array(numbers, np.int64)
            reasons = [as_reason(reason) for reason in refused.rows.values()]
            collector.add_rows(consumed.row_shares[rows], consumed.roots.take(pa.array(rows)), reasons)

    def _fail_all(
        self, collector: FailureCollector, consumed: _Consumed, batches: Iterator[pa.RecordBatch], reason: Reason
    ) -> None:
        """Fail all rows of the partition."""
        log.warning("partition failed sink=%r error=%s", self.component, reason.text[:REASON_CHARS])
        for batch in self._renamed(batches):
            consumed.add(batch, with_roots=True)
        roots = DistinctRoots()
        roots.add(consumed.roots.values.to_numpy())
        collector.add_total(consumed.share_sum, consumed.rows, roots, reason, consumed.rootless)

    def _untracked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tracking = [SHARE, ROOTS] if self.on_error == "fail" else [SHARE]
        return (batch.drop_columns(tracking) for batch in batches)

    def _renamed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.rename_columns(list(self.columns)) for batch in batches) if self.columns else batches

    def _watched(
        self, batches: Iterator[pa.RecordBatch], consumed: _Consumed, input_errors: list[Exception]
    ) -> Iterator[pa.RecordBatch]:
        """Yield and count the batches.

        Errors of earlier steps are recorded apart from the function's own.
        """
        try:
            for batch in self._renamed(batches):
                consumed.add(batch, with_roots=self.on_error == "fail")
                yield batch
        except Exception as exc:
            input_errors.append(exc)
            raise
