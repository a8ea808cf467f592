"""Which values fit the declared type of a field, and how they get into a column.

pyarrow converts some values without a word: a struct loses keys that it doesn't declare, a date the time of day, and a naive
datetime becomes one of UTC. A value that would change so doesn't fit.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

_EXACT = {pa.float64(): 1 << 53, pa.float32(): 1 << 24}
"""Integers up to these are floats of the type, too."""


def fit(kind: Any) -> Callable[[Any], bool]:
    """Return the function that tells whether a value other than None fits an Arrow type.

    >>> fit(pa.date32())(datetime(2026, 1, 1, 12))
    False
    """
    if types.is_signed_integer(kind):
        end = 1 << (kind.bit_width - 1)
        return lambda value: (
            -end <= value < end
            if type(value) is int  # most are, and this is called for each value
            else isinstance(value, np.integer) and -end <= int(value) < end
        )
    if kind in _EXACT:
        most = _EXACT[kind]
        return lambda value: (
            isinstance(value, (float, np.floating))
            or (isinstance(value, (int, np.integer)) and type(value) is not bool and -most <= int(value) <= most)
        )
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value: isinstance(value, str) and (value.isascii() or _is_utf8(value))
    if types.is_boolean(kind):
        return lambda value: isinstance(value, (bool, np.bool_))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: isinstance(value, (bytes, bytearray))
    if types.is_date(kind):
        return lambda value: isinstance(value, date) and not isinstance(value, datetime)
    if types.is_timestamp(kind):
        has_zone = kind.tz is not None
        return lambda value: isinstance(value, datetime) and (value.utcoffset() is not None) == has_zone
    return _fit_nested(kind)


def column_of(values: Iterable[Any], kind: Any) -> pa.Array:
    """Return a column of values that fit.

    >>> column_of([{"a": 1}, (2,)], pa.struct([("a", pa.int64())])).to_pylist()
    [{'a': 1}, {'a': 2}]
    """
    convert = _with_dicts(kind)
    return pa.array(
        list(values) if convert is None else [None if one is None else convert(one) for one in values], kind
    )


def _with_dicts(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes dicts of a value's structs, because pyarrow mixes none with tuples. None: it has none."""
    if types.is_struct(kind):
        names, inner = [field.name for field in kind], [_with_dicts(field.type) for field in kind]
        functions = dict(zip(names, inner, strict=True))

        def convert(value: Any) -> dict[str, Any]:
            pairs = value.items() if isinstance(value, Mapping) else zip(names, value, strict=True)
            return {name: _converted(functions[name], one) for name, one in pairs}

        return convert
    if types.is_list(kind) or types.is_large_list(kind):
        item = _with_dicts(kind.value_type)
        return None if item is None else lambda value: [_converted(item, one) for one in value]
    if types.is_map(kind):
        item = _with_dicts(kind.item_type)
        return None if item is None else lambda value: {key: _converted(item, one) for key, one in value.items()}
    return None


def _converted(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def advice(kind: Any) -> str:
    """Say what to emit for a type, as a sentence without its full stop."""
    if types.is_timestamp(kind):
        return f"Emit a datetime {'with' if kind.tz is not None else 'without'} a time zone"
    if types.is_date(kind):
        return "Emit a date, and no datetime"
    if types.is_struct(kind):
        return f"Emit a dict with these keys, or a tuple in this order: {', '.join(field.name for field in kind)}"
    return "Emit a value of this type"


def _fit_nested(kind: Any) -> Callable[[Any], bool]:
    if types.is_list(kind) or types.is_large_list(kind):
        item = _fit_or_none(kind.value_type)
        return lambda value: isinstance(value, (list, tuple, np.ndarray)) and all(map(item, value))
    if types.is_map(kind):
        key, item = fit(kind.key_type), _fit_or_none(kind.item_type)
        return lambda value: (
            isinstance(value, Mapping)
            and all(one is not None and key(one) for one in value)
            and all(map(item, value.values()))
        )
    if types.is_struct(kind):
        fields = {field.name: _fit_or_none(field.type) for field in kind}
        return lambda value: (
            value.keys() <= fields.keys() and all(fields[name](one) for name, one in value.items())
            if isinstance(value, Mapping)
            else isinstance(value, tuple)  # such as a row of Spark, or a header of Kafka
            and len(value) == len(fields)
            and all(fits(one) for fits, one in zip(fields.values(), value, strict=True))
        )
    return lambda value: not isinstance(value, (bool, str)) and _converts(value, kind)


def _fit_or_none(kind: Any) -> Callable[[Any], bool]:
    fits = fit(kind)
    return lambda value: value is None or fits(value)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _converts(value: Any, kind: Any) -> bool:
    try:
        pa.array([value], kind)
    except Exception:  # of many kinds, by type
        return False
    return True
