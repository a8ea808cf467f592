"""Encode rows as bytes, and decode them exactly, to keep them in Redis for replays.

A row is encoded from Arrow's buffers: numbers, dates, times and intervals as integers of their width, floats by their bits,
texts as bytes. Nothing is printed and parsed, so no calendar, time zone or text encoding is involved. The values of a row are
pickled, because that is the fastest way in Python. The unpickler that reads them creates plain values only.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import Any, NoReturn

import pyarrow as pa

_INTEGERS = {32: pa.int32(), 64: pa.int64()}


def to_bytes(rows: pa.StructArray, longest: int) -> list[bytes | None]:
    """Encode each row, or return None for a null row and one longer than `longest` bytes."""
    encoded = (None if row is None else pickle.dumps(row, pickle.HIGHEST_PROTOCOL) for row in _values(rows))
    return [row if row is not None and len(row) <= longest else None for row in encoded]


def from_bytes(payloads: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Decode rows. `schema` has the columns they were encoded from; time zones may differ."""
    rows = [_Unpickler(io.BytesIO(payload)).load() for payload in payloads]
    columns = [_array(field.type, [row[at] for row in rows]) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def are_equal(first: bytes, second: bytes) -> bool:
    """Return True if two rows of one schema have the same values, bit by bit.

    Their encoded bytes may differ.
    """
    return first == second or bool(_Unpickler(io.BytesIO(first)).load() == _Unpickler(io.BytesIO(second)).load())


def refit(payload: bytes, convert: Callable[[Any], Any]) -> bytes:
    """Encode a row again after a function has converted its values."""
    return pickle.dumps(convert(_Unpickler(io.BytesIO(payload)).load()), pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class Rows:
    """Function for `mapInArrow` that decodes a column of encoded rows."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition."""
        for batch in batches:
            yield from_bytes(batch.column(0).to_pylist(), self.schema)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as integers, bytes and booleans.

    Structs become tuples, arrays become lists, and maps become lists of pairs.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [_values(part) for part in column.flatten()]
        rows: Iterable[Any] = zip(*parts, strict=True) if parts else repeat((), len(column))
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = _values(column.values)
        ends = column.offsets.to_pylist()
        rows = (inner[begin:end] for begin, end in pairwise(ends))
    else:
        return column.view(_plain(kind)).to_pylist()  # type: ignore[no-any-return]
    if not column.null_count:
        return list(rows)
    return [row if is_valid else None for row, is_valid in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Rebuild the column whose values `_values` returned."""
    if not ((pa.types.is_struct(kind) and len(kind)) or pa.types.is_list(kind) or pa.types.is_map(kind)):
        return pa.array([{} if value == () else value for value in values], _plain(kind)).view(kind)
    null = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        parts = ([None if value is None else value[at] for value in values] for at in range(len(kind)))
        children = [_array(field.type, part) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=null)
    ends = pa.array(accumulate((len(value or ()) for value in values), initial=0), pa.int32())
    inner = [item for value in values for item in value or ()]
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(ends, _array(kind.value_type, inner), kind, mask=null)
    keys, items = (
        _array(part, [pair[at] for pair in inner]) for at, part in enumerate((kind.key_type, kind.item_type))
    )
    return pa.MapArray.from_arrays(ends, keys, items, kind, mask=null)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same layout whose values are integers, bytes or booleans."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if pa.types.is_temporal(kind) or pa.types.is_floating(kind):
        return _INTEGERS[kind.bit_width]
    return kind


class _Unpickler(pickle.Unpickler):
    """Unpickler of plain values only: a program that can write to the server must not run code here."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(
            f"A kept row contains {module_name}.{global_name}, so no spout wrote it. Find out which program did."
        )
