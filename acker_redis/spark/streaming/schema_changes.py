"""Conversion of parked rows to the stream's current columns: by name, with nulls for new columns."""

from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from acker_redis.errors import BadConfigError

Converter: TypeAlias = Callable[[Any], Any]
"""Function that converts a value, as `row_codec` packs it, to its current type."""

_WAY_OUT = "Start the previous version of the program and drain() it first."


def row_converter(old: StructType, new: StructType, *, case_sensitive: bool) -> Converter | None:
    """Build the converter from rows of `old` to `new`, whose columns are all nullable; None: no change.

    Raises:
        BadConfigError: a column changed its type, or its old name is ambiguous.
    """
    return _struct(old, new, "", case_sensitive)


def _struct(old: StructType, new: StructType, within: str, case_sensitive: bool) -> Converter | None:
    parts: list[tuple[int | None, Converter | None]] = []
    for field, at in zip(new, _old_positions(old, new, within, case_sensitive), strict=True):
        name = within + field.name
        if within and not field.nullable and (at is None or old[at].nullable):
            raise _null(name)
        part = None if at is None else _value(old[at].dataType, field.dataType, name, case_sensitive)
        parts.append((at, part))
    if parts == [(at, None) for at in range(len(old))]:
        return None
    return lambda row: tuple(None if at is None else _converted(row[at], part) for at, part in parts)


def _value(old: DataType, new: DataType, name: str, case_sensitive: bool) -> Converter | None:
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _struct(old, new, f"{name}.", case_sensitive)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        if old.containsNull and not new.containsNull:
            raise _null(f"{name}.element")
        convert_element = _value(old.elementType, new.elementType, f"{name}.element", case_sensitive)
        return (
            None
            if convert_element is None
            else lambda value: [_converted(element, convert_element) for element in value]
        )
    if isinstance(old, MapType) and isinstance(new, MapType):
        if old.valueContainsNull and not new.valueContainsNull:
            raise _null(f"{name}.value")
        convert_key = _value(old.keyType, new.keyType, f"{name}.key", case_sensitive)
        convert_value = _value(old.valueType, new.valueType, f"{name}.value", case_sensitive)
        if convert_key is None and convert_value is None:
            return None
        return lambda value: [(_converted(key, convert_key), _converted(item, convert_value)) for key, item in value]
    if old == new or (isinstance(old, StringType) and isinstance(new, StringType)):  # a string is one in any collation
        return None
    raise BadConfigError(
        f"Column {name!r} is {old.simpleString()} in parked rows, but {new.simpleString()} in the stream now. {_WAY_OUT}"
    )


def _converted(value: Any, convert: Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _old_positions(old: StructType, new: StructType, within: str, case_sensitive: bool) -> list[int | None]:
    """Find the old position of each field, by the same spelling, else by the name in another case."""
    exact = {name: at for at, name in enumerate(old.names)}
    others = [at for at, name in enumerate(old.names) if name not in new.names]
    places = [exact.get(name) for name in new.names]
    if case_sensitive:
        return places
    for row, name in enumerate(new.names):
        like = [at for at in others if old.names[at].lower() == name.lower()]
        if places[row] is not None or not like:
            continue
        rivals = [rival for rival in new.names if rival not in exact and rival.lower() == name.lower()]
        if len(like) > 1 or len(rivals) > 1:
            raise BadConfigError(
                f"Columns {[within + old.names[at] for at in like]} of parked rows and "
                f"{[within + rival for rival in rivals]} of the stream now differ only in case, so it is ambiguous which "
                f"is which. {_WAY_OUT}"
            )
        places[row] = like[0]
    return places


def _null(name: str) -> BadConfigError:
    return BadConfigError(f"Column {name!r} is not nullable now, but may be null in parked rows. {_WAY_OUT}")
