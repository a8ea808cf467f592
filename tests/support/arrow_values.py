"""Arrow's types and values as Spark has them, drawn at random; values are integers where Arrow has a number of bits."""

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.support.spark.versions import SPARK

INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
OF_INTEGERS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
    pa.duration("us"), pa.float32(), pa.float64(),
    *([pa.time64("ns")] if SPARK >= (4, 1) else []),
]  # fmt: skip
IN_SPARK = [*OF_INTEGERS, pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.decimal128(38, 5), pa.decimal128(4, 2)]
"""Every simple type that Spark hands to Python."""

VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)])
"""As Arrow has it. In arrays, PySpark's `toArrow` can't take null ones."""

NAMES = ["a", "B", "a.b", 'q"`', "ü", "0", "1"]


def kinds(leaves: list[pa.DataType], names: list[str], *, twice: bool) -> st.SearchStrategy[pa.DataType]:
    """Types up to some depth; `twice`: structs have fields of one name, too, or none."""

    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        keys = st.sampled_from([kind for kind in leaves if kind != pa.null()])
        fields = st.tuples(st.sampled_from(names), inner)
        unique_by = None if twice else lambda field: field[0]
        structs = st.lists(fields, min_size=0 if twice else 1, max_size=3, unique_by=unique_by)
        return st.one_of(inner.map(pa.list_), st.builds(pa.map_, keys, inner), structs.map(pa.struct))

    return st.recursive(st.sampled_from(leaves), nested, max_leaves=4)


def is_value(value: Any) -> bool:
    return value is not None


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as Python has them, of the integers of a type's width for what has any."""
    some: st.SearchStrategy[Any]
    if kind in OF_INTEGERS:
        bits = kind.bit_width - 1
        if pa.types.is_time(kind):
            return st.none() | st.integers(0, 86_399_999_999).map(lambda micros: micros * 1000)
        some = st.integers(-(2**bits), 2**bits - 1)
    elif pa.types.is_null(kind):
        return st.none()
    elif pa.types.is_boolean(kind):
        some = st.booleans()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        some = st.text()
    elif pa.types.is_decimal(kind):
        some = st.decimals(
            -(10 ** (kind.precision - kind.scale)) + 1, 10 ** (kind.precision - kind.scale) - 1, places=kind.scale
        )
    elif pa.types.is_list(kind):
        some = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        some = st.lists(st.tuples(values(kind.key_type).filter(is_value), values(kind.item_type)), max_size=3)
    elif pa.types.is_struct(kind):
        some = st.tuples(*(values(f.type) if f.nullable else values(f.type).filter(is_value) for f in kind))
    else:
        some = st.binary()
    return st.none() | some


def array(kind: pa.DataType, rows: list[Any]) -> pa.Array:
    """Built child by child, so that names may repeat and times may lie outside of Python's calendar."""
    null = pa.array([row is None for row in rows], pa.bool_())
    if kind in OF_INTEGERS:
        return pa.array(rows, INTEGERS[kind.bit_width]).view(kind)
    if pa.types.is_struct(kind) and len(kind):
        parts = [[None if row is None else row[at] for row in rows] for at in range(len(kind))]
        children = [array(field.type, part) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=null)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = [0]
        for row in rows:
            ends.append(ends[-1] + len(row or ()))
        offsets = pa.array(ends, pa.int32())
        flat = [value for row in rows for value in row or ()]
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(offsets, array(kind.value_type, flat), type=kind, mask=null)
        keys, items = array(kind.key_type, [k for k, _ in flat]), array(kind.item_type, [v for _, v in flat])
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=null)
    return pa.array([{} if row == () else row for row in rows], kind)


def values_of(column: pa.Array) -> list[Any]:
    """What `array` was given."""
    if column.type in OF_INTEGERS:
        return column.view(INTEGERS[column.type.bit_width]).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_struct(column.type):
        parts = [values_of(column.field(at)) for at in range(len(column.type))]
        return [tuple(part[at] for part in parts) if one.is_valid else None for at, one in enumerate(column)]
    if pa.types.is_list(column.type):
        return [values_of(one.values) if one.is_valid else None for one in column]
    if pa.types.is_map(column.type):
        return [values_of(one.values) if one.is_valid else None for one in column]
    return column.to_pylist()  # type: ignore[no-any-return]
