"""Arrow's values as those of Python. A map is a dict, as in Spark's own functions; for Arrow it is a list of pairs."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as dicts."""
    if not any(_has_map(column.type) for column in batch.schema):
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    names = batch.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*map(values_of, batch.columns), strict=True)]


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column."""
    values: list[Any] = column.to_pylist()
    return list(map(_with_dicts(column.type), values)) if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    return types.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _with_dicts(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that turns pairs into dicts in a value of a type."""
    if not _has_map(kind):
        return lambda value: value
    if types.is_map(kind):
        key, item = _with_dicts(kind.key_type), _with_dicts(kind.item_type)
        make = list if types.is_nested(kind.key_type) else dict  # a dict can't have a list or a dict as its key
        return lambda pairs: None if pairs is None else make((key(one), item(other)) for one, other in pairs)
    if types.is_struct(kind):
        fields = {field.name: _with_dicts(field.type) for field in kind}
        return lambda value: None if value is None else {name: fields[name](one) for name, one in value.items()}
    element = _with_dicts(kind.field(0).type)
    return lambda values: None if values is None else [element(one) for one in values]
