"""Lines of JSON that Spark would read as something else than what is there.

`from_json` takes any value for a string (a number by way of a double, so that 1.10 becomes '1.1'), rounds decimals, takes
the text '1,5' for 15, and puts a question mark for half of a surrogate pair. Lines in which a regular expression sees that
this may be are looked at in Python; they are few.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, DecimalType, StringType, StructType

_ALWAYS = "^"
_ESCAPES = r"\\u[dD][89a-fA-F]", r'\\[^"\\]*"\s*:'
"""Halves of surrogate pairs, and names that are not spelled as they are."""

_LONGEST_PATTERN = 20_000


class _Decimal(NamedTuple):
    scale: int


class _Array(NamedTuple):
    element: "_Kind"


_Kind: TypeAlias = "str | _Decimal | _Array | dict[str, _Kind] | None"
"""What is to be looked at: texts (''), decimals, and what has them inside; None: nothing."""


@dataclass(frozen=True)
class Doubts:
    """What is to be looked at in lines of JSON.

    Attributes:
        kinds: of the columns.
        pattern: lines that have it are looked at.
    """

    kinds: Mapping[str, _Kind]
    pattern: str

    def are_wrong(self, lines: pa.StringArray) -> pa.BooleanArray:
        """Which lines are no object, or have a value that Spark would change."""
        doubted = pc.match_substring_regex(lines, self.pattern).to_numpy(zero_copy_only=False)
        for number in np.flatnonzero(doubted):
            doubted[number] = not self._is_right(lines[number].as_py())
        return pa.array(doubted)

    def _is_right(self, line: str) -> bool:
        try:
            found = _DECODER.decode(line)
            json.dumps(found, ensure_ascii=False, default=str).encode()
            return isinstance(found, dict) and _fits(found, dict(self.kinds))
        except (ValueError, RecursionError):
            return False


def doubts_about(columns: StructType) -> Doubts:
    """For the lines of files with these columns."""
    kinds = {field.name: _kind(field.dataType) for field in columns}
    patterns = [*_ESCAPES, *_patterns(columns)]
    pattern = "|".join(patterns)
    return Doubts(kinds, _ALWAYS if _ALWAYS in patterns or len(pattern) > _LONGEST_PATTERN else pattern)


def is_object(line: bytes) -> bool:
    """Whether a line is an object of JSON. pyarrow does not look at UTF-8, and crashes on a bare `null`."""
    try:
        return isinstance(_DECODER.decode(line.decode()), dict)
    except (ValueError, RecursionError):
        return False


def _kind(kind: DataType) -> _Kind:
    if isinstance(kind, StringType):
        return ""
    if isinstance(kind, DecimalType):
        return _Decimal(kind.scale)
    if isinstance(kind, ArrayType):
        element = _kind(kind.elementType)
        return None if element is None else _Array(element)
    if isinstance(kind, StructType):
        fields = {field.name: _kind(field.dataType) for field in kind}
        return fields if any(found is not None for found in fields.values()) else None
    return None


def _patterns(columns: StructType) -> list[str]:
    """For RE2. A name at any depth is looked for, so more lines are found than are wrong."""
    found: list[str] = []
    texts = [re.escape(field.name) for field in columns if isinstance(field.dataType, StringType)]
    if texts:
        found.append(rf'"(?:{"|".join(texts)})"\s*:\s*[^"\sn]')
    for field in columns:
        before, kind = rf'"{re.escape(field.name)}"\s*:\s*', field.dataType
        while isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            kind = kind.elementType
        if isinstance(kind, StructType):
            found += _patterns(kind)
        elif isinstance(kind, DecimalType):
            found.append(rf"{before}(?:[^-\dn\s]|-?\d+(?:\.\d{{{kind.scale}}}\d|(?:\.\d+)?[eE]))")
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType):
            found.append(rf'{before}(?:[^\[n\s]|\[\s*(?:(?:"(?:[^"\\]|\\.)*"|null)\s*,\s*)*[^"\]n\s])')
        elif isinstance(kind, ArrayType) and _kind(kind) is not None:
            found.append(_ALWAYS)
    return found


def _fits(value: Any, kind: _Kind) -> bool:
    """Values of another form than the column's are left to Spark, which refuses them."""
    if value is None or kind is None:
        return True
    if isinstance(kind, str):
        return isinstance(value, str)
    if isinstance(kind, _Decimal):
        exact = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        return exact and _scale(Decimal(value)) <= kind.scale
    if isinstance(kind, _Array):
        return not isinstance(value, list) or all(_fits(one, kind.element) for one in value)
    return not isinstance(value, dict) or all(_fits(value.get(name), found) for name, found in kind.items())


def _scale(value: Decimal) -> int:
    """Digits behind the point without zeros at the end."""
    _, digits, exponent = value.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(int(exponent) + zeros) if any(digits) else 0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=Decimal)
