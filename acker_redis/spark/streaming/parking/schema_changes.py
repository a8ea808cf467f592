"""Conversion of parked rows to the stream's current columns: by name, with nulls for new columns.

A column that the stream no longer has may have been renamed. So its values are lost only if the user says so.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from acker_redis.errors import BadConfigError

Converter: TypeAlias = Callable[[Any], Any]
"""Function that converts a value, as `row_codec` packs it, to its current type."""

_WAY_OUT = "Start the previous version of the program and drain() it first."


@dataclass(frozen=True)
class SchemaChange:
    """Change from the columns of parked rows to those of the stream now.

    Attributes:
        case_sensitive: whether names that differ in case only are different.
        names: path of a column or nested field of parked rows -> its present path; None: its values may be lost.
        lost: paths that the stream no longer has, with the number of values that were converted to nothing.
    """

    case_sensitive: bool
    names: Mapping[str, str | None] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)

    def converter(self, old: StructType, new: StructType) -> Converter | None:
        """Build the converter from rows of `old` to `new`, whose columns are all nullable; None: no change.

        Raises:
            BadConfigError: a column changed its type, or its old name is ambiguous.
        """
        return self._struct(old, new, "", "")

    def check_lost(self) -> None:
        """Check that no value was lost by the rows that were converted.

        Raises:
            BadConfigError: values were lost.
        """
        if self.lost:
            name, count = min(self.lost.items())
            others = [other for other in sorted(self.lost) if other != name]
            more = f" The same holds for {others}." if others else ""
            raise BadConfigError(
                f"Parked rows have {count} values in column {name!r}, which the stream has no more. They would be lost.{more} "
                f"If the column was renamed, pass parked_columns={{{name!r}: 'NEW_NAME'}} to TrackedBatches. To accept the "
                f"loss, pass parked_columns={{{name!r}: None}}."
            )

    def _struct(self, old: StructType, new: StructType, within: str, old_within: str) -> Converter | None:
        parts: list[tuple[int | None, Converter | None]] = []
        for column, at in zip(new, self._old_positions(old, new, within, old_within), strict=True):
            name = within + column.name
            if within and not column.nullable and (at is None or old[at].nullable):
                raise _null(name)
            part = (
                None if at is None else self._value(old[at].dataType, column.dataType, name, old_within + old[at].name)
            )
            parts.append((at, part))
        if parts == [(at, None) for at in range(len(old))]:
            return None
        left = set(range(len(old))) - {at for at, _ in parts}
        dropped = [(at, old_within + old.names[at]) for at in sorted(left)]
        dropped = [(at, name) for at, name in dropped if self._target(name) is not None or not self._has(name)]
        lost = self.lost

        def convert(row: Any) -> Any:
            for at, name in dropped:
                if row[at] is not None:
                    lost[name] += 1
            return tuple(None if at is None else _converted(row[at], part) for at, part in parts)

        return convert

    def _value(self, old: DataType, new: DataType, name: str, old_name: str) -> Converter | None:
        if isinstance(old, StructType) and isinstance(new, StructType):
            return self._struct(old, new, f"{name}.", f"{old_name}.")
        if isinstance(old, ArrayType) and isinstance(new, ArrayType):
            if old.containsNull and not new.containsNull:
                raise _null(f"{name}.element")
            convert_element = self._value(old.elementType, new.elementType, f"{name}.element", f"{old_name}.element")
            return (
                None
                if convert_element is None
                else lambda value: [_converted(element, convert_element) for element in value]
            )
        if isinstance(old, MapType) and isinstance(new, MapType):
            if old.valueContainsNull and not new.valueContainsNull:
                raise _null(f"{name}.value")
            convert_key = self._value(old.keyType, new.keyType, f"{name}.key", f"{old_name}.key")
            convert_value = self._value(old.valueType, new.valueType, f"{name}.value", f"{old_name}.value")
            if convert_key is None and convert_value is None:
                return None
            return lambda value: [
                (_converted(key, convert_key), _converted(item, convert_value)) for key, item in value
            ]
        # a string is one in any collation
        if old == new or (isinstance(old, StringType) and isinstance(new, StringType)):
            return None
        raise BadConfigError(
            f"Column {name!r} is {old.simpleString()} in parked rows, but {new.simpleString()} in the stream now. {_WAY_OUT}"
        )

    def _old_positions(self, old: StructType, new: StructType, within: str, old_within: str) -> list[int | None]:
        """Find the old position of each field: by `names`, else by the same spelling, else by the name in another case.

        A field that parked rows have under its present name wasn't renamed for them, so `names` may stay in a program.
        """
        here = {self._spelled(name) for name in old.names}
        targets = {self._target(old_within + name): at for at, name in enumerate(old.names)}
        renamed = [
            None if self._spelled(name) in here else targets.get(self._spelled(within + name)) for name in new.names
        ]
        exact = {name: at for at, name in enumerate(old.names) if at not in renamed}
        others = [at for at, name in enumerate(old.names) if name not in new.names and at not in renamed]
        places = [at if at is not None else exact.get(name) for at, name in zip(renamed, new.names, strict=True)]
        if self.case_sensitive:
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

    def _spelled(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    def _has(self, name: str) -> bool:
        return any(self._spelled(key) == self._spelled(name) for key in self.names)

    def _target(self, name: str) -> str | None:
        """Find the present path of a column, spelled for comparison."""
        found = [value for key, value in self.names.items() if self._spelled(key) == self._spelled(name)]
        return None if not found or found[0] is None else self._spelled(found[0])


def _converted(value: Any, convert: Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _null(name: str) -> BadConfigError:
    return BadConfigError(f"Column {name!r} is not nullable now, but may be null in parked rows. {_WAY_OUT}")
