"""flat_map in a Python worker: functions of one row, on top of those of record batches.

A call of Python and a dict per row is what it costs.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from acker_redis.errors import PipelineError, RowFailedError
from acker_redis.spark.worker.arrow_function import FlatMapOutput
from acker_redis.spark.worker.failures import NoRetry, OnError, Reason, UnexpectedError, reason_of

Row: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""An output row: a mapping by column name, or values in the order of the schema."""


@runtime_checkable
class RowFunctionStep(Protocol):
    """An object that emits by calling a collector (Storm: IBasicBolt)."""

    def execute(self, row: dict[str, Any], collector: "Collector") -> None:
        """Work on one row."""


RowFunction: TypeAlias = Callable[[dict[str, Any]], Iterable[Row] | None]
"""A function, usually a generator, that gives the rows derived from one row."""


@dataclass
class Collector:
    """Takes what a `RowFunctionStep` emits (Storm: BasicOutputCollector). Every row belongs to the input row's messages.

        class Split:
            def execute(self, row, collector):
                for item in row["items"].split(","):
                    collector.emit({"order": row["order"], "item": item})

    Attributes:
        rows: emitted so far.
    """

    rows: list[Row] = field(default_factory=list)

    def emit(self, row: Row) -> None:
        """Emit a derived row.

            collector.emit({"order": 7, "item": "tea"})
            collector.emit((7, "tea"))

        Args:
            row: a dict, or values in the order of the schema.
        """
        self.rows.append(row)

    def fail(self, reason: str, *, retry: bool = True) -> None:
        """Fail the input row; what was emitted from it is left out.

            if row["customer"] is None:
                collector.fail("no customer", retry=False)

        Raises:
            RowFailedError: always; it has the same arguments.
        """
        raise RowFailedError(reason, retry=retry)


@dataclass(frozen=True)
class RowByRow:
    """Makes a function of record batches of one of rows. An input row is done when its function returned without raising.

    Attributes:
        function: or object.
        schema: of the output rows.
        on_error: `fail`: a row whose function raises, or gives rows that don't fit the schema, fails with a text that says
            why, the others go on; `raise`: the task fails, and Spark tries it again. `RowFailedError` fails the row in both
            cases, and so do those of `no_retry`.
        no_retry: exceptions after which the row's message is not emitted again.
    """

    function: RowFunction | RowFunctionStep
    schema: pa.Schema
    on_error: OnError
    no_retry: NoRetry = ()

    def __call__(self, batch: pa.RecordBatch) -> FlatMapOutput:
        """Work on one record batch."""
        derive = self._derive_with_collector if isinstance(self.function, RowFunctionStep) else self.function
        rows: list[Row] = []
        ends = [0]
        failed: dict[int, str | RowFailedError] = {}
        for number, row in enumerate(batch.to_pylist()):
            try:
                rows.extend(_check_rows(derive(row)))
            except Exception as exc:
                if self.on_error == "raise" and not isinstance(exc, (RowFailedError, *self.no_retry)):
                    raise
                reason = reason_of(exc, self.no_retry)
                kind = RowFailedError if reason.is_expected else UnexpectedError
                failed[number] = reason.text if reason == Reason(reason.text) else kind(reason.text, retry=reason.retry)
                del rows[ends[-1] :]
            ends.append(len(rows))
        try:
            output = self._batch(rows)
        except Exception:  # Arrow doesn't say which row is to blame
            rows, ends = self._drop_misfits(rows, ends, failed)
            output = self._batch(rows)
        return FlatMapOutput(output, np.repeat(np.arange(batch.num_rows), np.diff(ends)), failed or None)

    def _derive_with_collector(self, row: dict[str, Any]) -> list[Row]:
        collector = Collector()
        self.function.execute(row, collector)  # type: ignore[union-attr]
        return collector.rows

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        arrays = [_array(values, column) for values, column in zip(self._columns(rows), self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns(self, rows: list[Row]) -> Iterable[Sequence[Any]]:
        if all(type(row) is dict for row in rows):  # the common case, a column at a time: a third of the time
            return [[row[name] for row in rows] for name in self.schema.names]
        width = len(self.schema)
        fitting = all(type(row) is tuple and len(row) == width for row in rows)
        return zip(*(rows if fitting else map(self._values, rows)), strict=True)

    def _values(self, row: Row) -> Sequence[Any]:
        """Order the values of a row as the schema does."""
        names = self.schema.names
        if isinstance(row, Mapping) or hasattr(row, "__fields__"):  # the latter: Spark's Row with names
            columns: Container[str] = row if isinstance(row, Mapping) else row.__fields__
            missing = [name for name in names if name not in columns]
            if missing:
                raise PipelineError(f"a derived row lacks the columns {missing}")
            return [row[name] for name in names]
        if isinstance(row, (str, bytes, bytearray)) or not isinstance(row, (Sequence, np.ndarray)):
            raise PipelineError(
                f"a derived row is a {type(row).__name__}: give dicts, or tuples in the order of the columns {names}"
            )
        if len(row) != len(names):
            raise PipelineError(f"a derived row has {len(row)} values, the schema {len(names)} columns: {names}")
        return row

    def _drop_misfits(
        self, rows: list[Row], ends: list[int], failed: dict[int, str | RowFailedError]
    ) -> tuple[list[Row], list[int]]:
        """Keep the rows of those inputs whose rows all fit the schema; the other inputs fail, with the reason.

        Raises:
            PipelineError: one does not fit, and errors are to be raised.
        """
        kept: list[Row] = []
        kept_ends = [0]
        for number, (begin, end) in enumerate(pairwise(ends)):
            reason = self._misfit(rows[begin:end])
            if reason is None:
                kept += rows[begin:end]
            elif self.on_error == "raise":
                raise PipelineError(reason)
            else:
                failed[number] = UnexpectedError(reason)
            kept_ends.append(len(kept))
        return kept, kept_ends

    def _misfit(self, rows: list[Row]) -> str | None:
        """Say what is wrong with the first row that does not fit the schema; None: all fit."""
        for row in rows:
            try:
                values = self._values(row)
            except PipelineError as exc:
                return str(exc)
            for value, column in zip(values, self.schema, strict=True):
                try:
                    _array([value], column)
                except Exception as exc:
                    kind = from_arrow_type(column.type).simpleString() + ("" if column.nullable else " not null")
                    return f"column {column.name!r} is {kind} and can't hold {value!r:.100}: {exc}"
        return None


def _check_rows(rows: Iterable[Row] | None) -> Iterable[Row]:
    """Refuse what a row function returned where it is no collection of rows."""
    if isinstance(rows, (str, bytes, bytearray, Mapping)):  # can be iterated over, and is no collection of rows
        raise PipelineError(f"the function returned a {type(rows).__name__}: return or yield rows, such as [(1, 'a')]")
    return rows or ()


def _array(values: Sequence[Any], column: pa.Field) -> pa.Array:
    array = pa.array(values, column.type)
    if _has_required(column) and _lacks_required(array, column):
        raise ValueError("it, or something in it, is null and must not be")
    return array


def _has_required(column: pa.Field) -> bool:
    """Whether a column, or anything in it, is not nullable."""
    kind = column.type
    inner = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return not column.nullable or any(_has_required(field) for field in inner)


def _lacks_required(array: pa.Array, column: pa.Field) -> bool:
    """Whether there is a null where the schema has none; Arrow itself does not mind."""
    kind = column.type
    if array.null_count and not column.nullable:
        return True
    if pa.types.is_struct(kind):
        structs = array.drop_null()  # of a struct that is null, the fields are null too
        return any(_lacks_required(structs.field(i), kind.field(i)) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _lacks_required(array.flatten(), kind.value_field)
    if pa.types.is_map(kind):
        return _lacks_required(array.items, kind.item_field)  # keys are never null
    return False
