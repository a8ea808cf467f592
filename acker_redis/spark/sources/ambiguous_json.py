"""Checks for lines of JSON that Spark would change while it reads them.

`from_json` accepts any value as a string (a number by way of a double, so 1.10 becomes '1.1'), rounds decimals, reads the
text '1,5' as 15, and replaces half of a surrogate pair by a question mark. A regular expression selects the few lines in
which this may happen, and Python checks them.
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
"""Halves of surrogate pairs, and names spelled with escapes."""

_LONGEST_PATTERN = 20_000


class _Decimal(NamedTuple):
    scale: int


class _Array(NamedTuple):
    element: "_Kind"


_Kind: TypeAlias = "str | _Decimal | _Array | dict[str, _Kind] | None"
"""Kind of value to check: a text (''), a decimal, or an array or struct with such values inside; None: no check."""


@dataclass(frozen=True)
class AmbiguityCheck:
    """Check lines of JSON against the columns they are read as.

    Attributes:
        kinds: column name -> kind of value to check.
        pattern: regular expression of the lines that are checked.
    """

    kinds: Mapping[str, _Kind]
    pattern: str

    def find_wrong(self, lines: pa.StringArray) -> pa.BooleanArray:
        """Find lines that are not an object, or have a value that Spark would change."""
        is_wrong = pc.match_substring_regex(lines, self.pattern).to_numpy(zero_copy_only=False)
        for number in np.flatnonzero(is_wrong):
            is_wrong[number] = not self._is_right(lines[number].as_py())
        return pa.array(is_wrong)

    def _is_right(self, line: str) -> bool:
        try:
            value = _DECODER.decode(line)
            json.dumps(value, ensure_ascii=False, default=str).encode()
            return isinstance(value, dict) and _fits(value, dict(self.kinds))
        except (ValueError, RecursionError):
            return False


def ambiguity_check(columns: StructType) -> AmbiguityCheck:
    """Build the check for lines with these columns."""
    kinds = {field.name: _kind(field.dataType) for field in columns}
    patterns = [*_ESCAPES, *_patterns(columns)]
    pattern = "|".join(patterns)
    return AmbiguityCheck(kinds, _ALWAYS if _ALWAYS in patterns or len(pattern) > _LONGEST_PATTERN else pattern)


def is_object(line: bytes) -> bool:
    """Return True if a line is a JSON object. pyarrow doesn't check UTF-8, and crashes on a bare `null`."""
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
        return fields if any(field is not None for field in fields.values()) else None
    return None


def _patterns(columns: StructType) -> list[str]:
    """Build patterns for RE2. A name matches at any depth, so more lines match than are wrong."""
    patterns: list[str] = []
    texts = [re.escape(field.name) for field in columns if isinstance(field.dataType, StringType)]
    if texts:
        patterns.append(rf'"(?:{"|".join(texts)})"\s*:\s*[^"\sn]')
    for field in columns:
        before, kind = rf'"{re.escape(field.name)}"\s*:\s*', field.dataType
        while isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            kind = kind.elementType
        if isinstance(kind, StructType):
            patterns += _patterns(kind)
        elif isinstance(kind, DecimalType):
            patterns.append(rf"{before}(?:[^-\dn\s]|-?\d+(?:\.\d{{{kind.scale}}}\d|(?:\.\d+)?[eE]))")
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType):
            patterns.append(rf'{before}(?:[^\[n\s]|\[\s*(?:(?:"(?:[^"\\]|\\.)*"|null)\s*,\s*)*[^"\]n\s])')
        elif isinstance(kind, ArrayType) and _kind(kind) is not None:
            patterns.append(_ALWAYS)
    return patterns


def _fits(value: Any, kind: _Kind) -> bool:
    """Return True if Spark would read a value unchanged, or reject it because it doesn't fit the column."""
    if value is None or kind is None:
        return True
    if isinstance(kind, str):
        return isinstance(value, str)
    if isinstance(kind, _Decimal):
        exact = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        return exact and _scale(Decimal(value)) <= kind.scale
    if isinstance(kind, _Array):
        return not isinstance(value, list) or all(_fits(element, kind.element) for element in value)
    return not isinstance(value, dict) or all(_fits(value.get(name), field) for name, field in kind.items())


def _scale(value: Decimal) -> int:
    """Count the digits after the decimal point, without trailing zeros."""
    _, digits, exponent = value.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(int(exponent) + zeros) if any(digits) else 0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=Decimal)
