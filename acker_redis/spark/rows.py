"""Bolts that work row by row in Python, on top of the vectorised kind.

For what is easier said per row than per column. It costs a Python call and a dict per row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from acker_redis.errors import BadBatchError, FailedError
from acker_redis.spark.operators import REASON_CHARS, Emitted

Row: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""An output row: a mapping by column name, or values in the order of the schema."""

OnError: TypeAlias = Literal["fail", "raise"]


@runtime_checkable
class RowBolt(Protocol):
    """An object that emits by calling a collector (Storm: IBasicBolt)."""

    def execute(self, row: dict[str, Any], collector: "Collector") -> None:
        """Work on one row."""


RowFunction: TypeAlias = Callable[[dict[str, Any]], Iterable[Row] | None]
"""A function, usually a generator, that gives the rows derived from one row."""


@dataclass
class Collector:
    """What a `RowBolt` emits through (Storm: BasicOutputCollector). Every row is anchored to the input row."""

    rows: list[Row] = field(default_factory=list)

    def emit(self, row: Row) -> None:
        """Hand on a derived row."""
        self.rows.append(row)

    def fail(self, reason: str) -> None:
        """Fail the input row; what was emitted from it is left out."""
        raise FailedError(reason)


@dataclass(frozen=True)
class RowByRow:
    """Makes a vectorised bolt of a row bolt. An input row is acked when its function returned without raising.

    Attributes:
        bolt: function or object.
        schema: of the output rows.
        on_error: `fail`: a row whose function raises fails with the exception's text, the others go on; `raise`: the task
            fails, and Spark tries it again. `FailedError` fails the row in both cases.
    """

    bolt: RowFunction | RowBolt
    schema: pa.Schema
    on_error: OnError

    def __call__(self, batch: pa.RecordBatch) -> Emitted:
        """Work on one record batch."""
        derive = self._derive_with_collector if isinstance(self.bolt, RowBolt) else self.bolt
        rows: list[Row] = []
        ends = [0]
        failed: dict[int, str] = {}
        for number, row in enumerate(batch.to_pylist()):
            try:
                rows.extend(derive(row) or ())
            except Exception as exc:
                known = isinstance(exc, FailedError)
                if self.on_error == "raise" and not known:
                    raise
                failed[number] = (str(exc) if known else f"{type(exc).__name__}: {exc}")[:REASON_CHARS]
                del rows[ends[-1] :]
            ends.append(len(rows))
        return Emitted(self._batch(rows), np.repeat(np.arange(batch.num_rows), np.diff(ends)), failed or None)

    def _derive_with_collector(self, row: dict[str, Any]) -> list[Row]:
        collector = Collector()
        self.bolt.execute(row, collector)  # type: ignore[union-attr]
        return collector.rows

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        columns = self._columns(rows)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns(self, rows: list[Row]) -> Iterable[Sequence[Any]]:
        names = self.schema.names
        if all(type(row) is dict for row in rows):  # the common case, a column at a time: a third of the time
            return [[row[name] for row in rows] for name in names]
        values = [[row[name] for name in names] if isinstance(row, Mapping) else row for row in rows]
        for row in values:
            if len(row) != len(names):
                raise BadBatchError(f"a row has {len(row)} values, the schema {len(names)} columns: {names}")
        return zip(*values, strict=True)
