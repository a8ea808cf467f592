"""Conversion of parked rows and dead letters to the stream's current columns: by name, with nulls for new columns.

A column that the stream no longer has may have been renamed. So its values are lost only if the user says so.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
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
        taken: paths whose present name is a column that parked rows have, too.
    """

    case_sensitive: bool
    names: Mapping[str, str | None] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    taken: set[str] = field(default_factory=set)

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
                f"{self._advice(name)}"
            )

    def letter_keys(
        self, letter: Mapping[str, object], new: StructType, within: str = "", old_within: str = ""
    ) -> list[str | None]:
        """Find the key of a dead letter's JSON object from which each column of `new` is read; None: the column is null.

        Args:
            letter: JSON object, in which columns that were null are missing.
            new: columns of the stream now, or fields of a struct.
            within: present path of the struct, with a dot at its end.
            old_within: path of the struct in the letter, with a dot at its end.

        Raises:
            BadConfigError: a value would be lost; or it isn't known which column a value is of.
        """
        names = list(letter)
        targets = self._targets(names, new.names, within, old_within)
        places = self._old_positions(names, new.names, within, targets)
        present = {self._spelled(within + name): place for name, place in zip(new.names, places, strict=True)}
        for at, name in enumerate(names):
            if letter[name] is None:
                continue
            path, here = old_within + name, self._spelled(within + name)
            if at not in places and targets.get(at, "") is not None:
                raise BadConfigError(
                    f"A value in column {path!r} would be lost, which the stream has no more. {self._advice(path)}"
                )
            if here in present and at in targets:
                # Columns that were null are unknown. With them, the letter may be of before or after the change.
                is_moved = at in places and present[here] is None
                is_kept = present[here] == at and targets[at] is None and here in self._spelled_names().values()
                if is_moved or is_kept:
                    raise BadConfigError(
                        f"It isn't known whether the value in column {path!r} is of before or after the change in "
                        f"parked_columns. If it is of after it, start without {path!r} in parked_columns, and replay again. "
                        f"Else replay with the previous version of the program."
                    )
        keys = [None if at is None else names[at] for at in places]
        for column, key in zip(new, keys, strict=True):
            if key is not None:
                self._check_within(letter[key], column.dataType, within + column.name, old_within + key)
        return keys

    def _check_within(self, value: object, kind: DataType, name: str, old_name: str) -> None:
        """Check that JSON has no value in a field of a struct that was renamed, because Spark wouldn't read it."""
        if isinstance(kind, StructType) and isinstance(value, dict):
            keys = self.letter_keys(value, kind, f"{name}.", f"{old_name}.")
            for key, present in zip(keys, kind.names, strict=True):
                if key is not None and key != present and value[key] is not None:
                    path = f"{old_name}.{key}"
                    raise BadConfigError(
                        f"A value in column {path!r} would be lost, because renamed fields of structs aren't read from dead "
                        "letters. Replay with the previous version of the program. To accept the loss, pass "
                        f"parked_columns={{{path!r}: None}} to TrackedBatches."
                    )
        elif isinstance(kind, ArrayType) and isinstance(value, list):
            for element in value:
                self._check_within(element, kind.elementType, f"{name}.element", f"{old_name}.element")
        elif isinstance(kind, MapType) and isinstance(value, dict):
            for item in value.values():
                self._check_within(item, kind.valueType, f"{name}.value", f"{old_name}.value")

    def _advice(self, name: str) -> str:
        """Say what to do about a column that the stream no longer has."""
        given = next((new for old, new in self.names.items() if self._spelled(old) == self._spelled(name)), None)
        loss = f"To accept the loss, pass parked_columns={{{name!r}: None}}"
        if given is None:
            return f"If the column was renamed, pass parked_columns={{{name!r}: 'NEW_NAME'}} to TrackedBatches. {loss}."
        if name in self.taken:
            return (
                f"parked_columns gives {given!r} as its present name, but the rows have a column of that name, too. "
                f"{_WAY_OUT} {loss} to TrackedBatches."
            )
        return (
            f"parked_columns gives {given!r} as its present name, but that isn't a column of the stream. Pass its present "
            f"name. {loss} to TrackedBatches."
        )

    def _struct(self, old: StructType, new: StructType, within: str, old_within: str) -> Converter | None:
        targets = self._targets(old.names, new.names, within, old_within)
        parts: list[tuple[int | None, Converter | None]] = []
        for column, at in zip(new, self._old_positions(old.names, new.names, within, targets), strict=True):
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
        dropped = [(at, old_within + old.names[at]) for at in sorted(left) if targets.get(at, "") is not None]
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

    def _targets(self, old: Sequence[str], new: Sequence[str], within: str, old_within: str) -> dict[int, str | None]:
        """Find the present path, spelled for comparison, of each old position that has one in `names`.

        A name that was renamed again leads to the next one, unless it is a column now, or of the old ones.
        """
        names = self._spelled_names()
        ends = {self._spelled(within + name) for name in (*old, *new)}
        targets: dict[int, str | None] = {}
        for at, name in enumerate(old):
            key = self._spelled(old_within + name)
            if key not in names:
                continue
            path, seen = names[key], {key}
            while path is not None and path not in ends and path in names and path not in seen:
                seen.add(path)
                path = names[path]
            targets[at] = path
            if path is not None and path in {self._spelled(within + present) for present in new}:
                self.taken.add(old_within + name)  # if it isn't renamed
        return targets

    def _renamed(
        self, old: Sequence[str], new: Sequence[str], within: str, targets: Mapping[int, str | None]
    ) -> dict[str, int]:
        """Find the present paths, spelled for comparison, that old positions got by a change of their name.

        A name may be passed on from column to column. That happened only if the last of them has a new name, or is lost and
        the first one is no column now. Else the rows are of after the change, so `names` may stay in a program.
        """
        here = {self._spelled(within + name): at for at, name in enumerate(old)}
        present = {self._spelled(within + name) for name in new}
        passed_on = set(targets.values())
        renamed: dict[str, int] = {}
        for first, name in enumerate(old):
            is_first = first in targets and self._spelled(within + name) not in passed_on
            at: int | None = first if is_first else None
            line: dict[str, int] = {}
            while at is not None:
                target = targets.get(at, "")
                is_over = target in present and target not in here
                is_lost = target is None and self._spelled(within + name) not in present
                if target in present:
                    line[target] = at
                if is_over or is_lost:
                    renamed |= line
                at = here.get(target) if target in present else None
        return renamed

    def _old_positions(
        self, old: Sequence[str], new: Sequence[str], within: str, targets: Mapping[int, str | None]
    ) -> list[int | None]:
        """Find the old position of each field: by `names`, else by the same spelling, else by the name in another case."""
        found = self._renamed(old, new, within, targets)
        renamed = [found.get(self._spelled(within + name)) for name in new]
        exact = {name: at for at, name in enumerate(old) if at not in renamed}
        others = [at for at, name in enumerate(old) if name not in new and at not in renamed]
        places = [at if at is not None else exact.get(name) for at, name in zip(renamed, new, strict=True)]
        if self.case_sensitive:
            return places
        for row, name in enumerate(new):
            like = [at for at in others if old[at].lower() == name.lower()]
            if places[row] is not None or not like:
                continue
            rivals = [rival for rival in new if rival not in exact and rival.lower() == name.lower()]
            if len(like) > 1 or len(rivals) > 1:
                raise BadConfigError(
                    f"Columns {[within + old[at] for at in like]} of parked rows and "
                    f"{[within + rival for rival in rivals]} of the stream now differ only in case, so it is ambiguous which "
                    f"is which. {_WAY_OUT}"
                )
            places[row] = like[0]
        return places

    def _spelled(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    def _spelled_names(self) -> dict[str, str | None]:
        names: dict[str, str | None] = {}
        for old, new in self.names.items():
            names.setdefault(self._spelled(old), None if new is None else self._spelled(new))
        return names


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return True if names that differ in case only are different in a session."""
    return spark.conf.get("spark.sql.caseSensitive") == "true"


def _converted(value: Any, convert: Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _null(name: str) -> BadConfigError:
    return BadConfigError(f"Column {name!r} is not nullable now, but may be null in parked rows. {_WAY_OUT}")
