"""flat_map in a Python worker: functions of one row, built on functions of record batches.

Each row costs a Python call and a dict.
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
from acker_redis.spark.worker.failures import NoRetry, OnError, Reason, UnexpectedError, UnreachableError, reason_of
from acker_redis.spark.worker.python_values import rows_of

Row: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""An output row: a mapping by column name, or values in the order of the schema."""


@runtime_checkable
class RowFunctionStep(Protocol):
    """An object that emits by calling a collector (Storm: IBasicBolt)."""

    def execute(self, row: dict[str, Any], collector: "Collector") -> None:
        """Process one row."""


RowFunction: TypeAlias = Callable[[dict[str, Any]], Iterable[Row] | None]
"""A function, usually a generator, that returns the rows derived from one row."""


@dataclass
class Collector:
    """Collector of the rows that a `RowFunctionStep` emits (Storm: BasicOutputCollector).

        class Split:
            def execute(self, row, collector):
                for item in row["items"].split(","):
                    collector.emit({"order": row["order"], "item": item})

    Every emitted row belongs to the input row's messages.

    Attributes:
        rows: rows emitted so far.
    """

    rows: list[Row] = field(default_factory=list)

    def emit(self, row: Row) -> None:
        """Emit a derived row.

            collector.emit({"order": 7, "item": "tea"})
            collector.emit((7, "tea"))

        Args:
            row: dict, or values in the order of the schema.
        """
        self.rows.append(row)

    def fail(self, reason: str, *, retry: bool = True) -> None:
        """Fail the input row. Rows already emitted from it are dropped.

            if row["customer"] is None:
                collector.fail("no customer", retry=False)

        Raises:
            RowFailedError: always, with the same arguments.
        """
        raise RowFailedError(reason, retry=retry)


@dataclass(frozen=True)
class RowByRow:
    """Adapter from a function of rows to a function of record batches.

    An input row is done when the function has returned without raising.

    Attributes:
        function: function of a row, or object with `execute`.
        schema: schema of the output rows.
        on_error: effect of an exception, or of rows that don't fit the schema. `fail` fails the row with a text that says
            why, and the others pass. `raise` fails the task, and Spark retries it. `RowFailedError` and the exceptions of
            `no_retry` fail the row in both modes.
        no_retry: exceptions after which the row's message is not emitted again.
    """

    function: RowFunction | RowFunctionStep
    schema: pa.Schema
    on_error: OnError
    no_retry: NoRetry = ()

    def __call__(self, batch: pa.RecordBatch) -> FlatMapOutput:
        """Process one record batch."""
        derive = self._derive_with_collector if isinstance(self.function, RowFunctionStep) else self.function
        rows: list[Row] = []
        ends = [0]
        failed: dict[int, str | RowFailedError] = {}
        for number, row in enumerate(rows_of(batch)):
            try:
                rows.extend(_check_rows(derive(row)))
            except Exception as exc:
                if self.on_error == "raise" and not isinstance(exc, (RowFailedError, *self.no_retry)):
                    raise
                reason = reason_of(exc, self.no_retry)
                kind = RowFailedError if reason.is_expected else UnexpectedError
                kind = UnreachableError if reason.is_outage else kind
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
        """Return the values of a row in the order of the schema."""
        names = self.schema.names
        if isinstance(row, Mapping) or hasattr(row, "__fields__"):  # the latter: Spark's Row with names
            columns: Container[str] = row if isinstance(row, Mapping) else row.__fields__
            missing = [name for name in names if name not in columns]
            if missing:
                raise PipelineError(f"A derived row lacks the columns {missing}. Set every column of the schema.")
            return [row[name] for name in names]
        if isinstance(row, (str, bytes, bytearray)) or not isinstance(row, (Sequence, np.ndarray)):
            raise PipelineError(
                f"A derived row is of type {type(row).__name__}. Return dicts, or tuples in the order of the columns {names}."
            )
        if len(row) != len(names):
            raise PipelineError(
                f"A derived row has {len(row)} values, but the schema has {len(names)} columns: {names}. Return one value per "
                "column."
            )
        return row

    def _drop_misfits(
        self, rows: list[Row], ends: list[int], failed: dict[int, str | RowFailedError]
    ) -> tuple[list[Row], list[int]]:
        """Keep the rows of inputs whose rows all fit the schema. The other inputs fail with a reason.

        Raises:
            PipelineError: a row does not fit, and `on_error` is `raise`.
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
        """Describe the first row that does not fit the schema; None if all fit."""
        for row in rows:
            try:
                values = self._values(row)
            except PipelineError as exc:
                return str(exc)
            for value, column in zip(values, self.schema, strict=True):
                try:
                    _array([value], column)
                except Exception as exc:
                    kind = from_arrow_type(column.type, prefer_timestamp_ntz=True).simpleString() + (
                        "" if column.nullable else " not null"
                    )
                    return f"Column {column.name!r} is {kind} and can't hold {value!r:.100} ({exc})."
        return None


def _check_rows(rows: Iterable[Row] | None) -> Iterable[Row]:
    """Return the rows of a row function; None counts as no rows.

    Raises:
        PipelineError: the function returned something other than a collection of rows.
    """
    if isinstance(rows, (str, bytes, bytearray, Mapping)):  # can be iterated over, and is no collection of rows
        raise PipelineError(f"The function returned a {type(rows).__name__}. Return or yield rows, such as [(1, 'a')].")
    return rows or ()


def _array(values: Sequence[Any], column: pa.Field) -> pa.Array:
    array = pa.array(values, column.type)
    if _has_required(column) and _lacks_required(array, column):
        raise ValueError("it is null or contains a null, and the schema allows none there")
    return array


def _has_required(column: pa.Field) -> bool:
    """Return True if a column, or a field inside it, is not nullable."""
    kind = column.type
    inner = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return not column.nullable or any(_has_required(field) for field in inner)


def _lacks_required(array: pa.Array, column: pa.Field) -> bool:
    """Return True if there is a null where the schema allows none. Arrow itself does not check this."""
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
