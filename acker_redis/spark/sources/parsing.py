"""Parsing of JSON and CSV records into columns, in SQL. A record that can't be read exactly is corrupt as a whole.

Spark's parsers are lenient: they ignore text after a record, read '2026' or '12:30' as times, and wrap or round numbers
that don't fit. So a record is read inside another one that shows where it ends. Times and some numbers are read as texts or
as wider types, checked, and cast.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)  # fmt: skip

from acker_redis.errors import BadConfigError
from acker_redis.spark.sources.file_formats import CORRUPT, RECORD, Format
from acker_redis.spark.sql import literal, quoted

_LEAVES = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, StringType, DecimalType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip

_TIMES = DateType, TimestampType, TimestampNTZType

_ROOT, _FOUND, _BAD = "acker_root", "acker_found", "acker_bad"

_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_CSV = {"escape": '"', "charToEscapeQuoteEscaping": '"', "multiLine": "true", "lineSep": "\n"}
"""Options of `from_csv`: quotes are escaped by quotes, and line ends in values are kept."""

_NULLS = "'', 'null', 'NULL', 'NA', 'N/A'"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_NUMBER = r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"
_NAMED = "[+-]?(?i:nan|inf|infinity)"


@dataclass(frozen=True)
class _Sql:
    """A value as SQL.

    Attributes:
        value: SQL of the value, from the column that Spark has read.
        bad: function of the value's SQL that returns SQL for whether it differs from the record; None: it never does.
    """

    value: str
    bad: Callable[[str], str] | None = None


def check(file_format: Format, columns: StructType) -> None:
    """Check that a format can hold values of every column's type.

    Raises:
        BadConfigError: it can't.
    """
    for field in columns:
        if not _is_read(field.dataType, nested=file_format == "json"):
            raise BadConfigError(
                f"Column {field.name!r} has type {field.dataType.simpleString()}, which read_files can't read from "
                f"{file_format}. Use string, and parse it yourself."
            )


def parsed(records: DataFrame, file_format: Format, columns: StructType, header: Sequence[str]) -> DataFrame:
    """Replace the text of records by the columns and CORRUPT, which is null if the record was read.

    Args:
        records: rows with the columns RECORD and CORRUPT. Other columns are kept.
        file_format: format of the records.
        columns: wanted columns.
        header: names of all values of a CSV record.
    """
    if file_format == "json":
        read, values = _from_json(records, columns)
    else:
        read, values = _from_csv(records, columns, header)
    names = [f"acker_{number}" for number in range(len(columns))]
    # Each step has its own column: Spark doesn't merge steps whose results are used more than once.
    made = read.selectExpr("*", *(f"{value.value} AS {name}" for value, name in zip(values, names, strict=True)))
    bad = [
        f"{_FOUND} IS NULL",
        *(value.bad(name) for value, name in zip(values, names, strict=True) if value.bad is not None),
    ]
    judged = made.withColumn(_BAD, F.expr(f"coalesce({' OR '.join(bad)}, true)"))
    others = [F.col(quoted(name)) for name in records.columns if name not in (RECORD, CORRUPT)]
    output = [
        F.expr(f"IF({_BAD}, NULL, {name})").cast(_nullable(field.dataType)).alias(field.name, metadata=field.metadata)
        for field, name in zip(columns, names, strict=True)
    ]
    return judged.select(*others, *output, F.expr(f"IF({_BAD}, coalesce({CORRUPT}, {RECORD}), NULL)").alias(CORRUPT))


def _from_json(records: DataFrame, columns: StructType) -> tuple[DataFrame, list[_Sql]]:
    """Wrap each record in an array with a mark after it, and parse the array.

    If a record has more than one object, the second element isn't the mark. The mark's name is random, so no record can
    contain it.
    """
    mark = f"end_{secrets.token_hex(8)}"
    read = [StructField(f.name, _as_read(f.dataType)) for f in columns]
    both = StructType([*read, StructField(mark, LongType())])
    outer = StructType([StructField("both", ArrayType(both)), StructField("corrupt", StringType())])
    text = F.concat(F.lit('{"both":['), RECORD, F.lit(f',{{"{mark}":1}}]}}'))
    root = records.withColumn(_ROOT, F.from_json(text, outer, _JSON | {"columnNameOfCorruptRecord": "corrupt"}))
    whole = f"{_ROOT}.corrupt IS NULL AND size({_ROOT}.both) = 2 AND get({_ROOT}.both, 1).{mark} = 1"
    rows = root.withColumn(_FOUND, F.expr(f"IF({whole}, get({_ROOT}.both, 0), NULL)")).drop(_ROOT)
    return rows, [_json_value(f"{_FOUND}.{quoted(field.name)}", field.dataType) for field in columns]


def _from_csv(records: DataFrame, columns: StructType, header: Sequence[str]) -> tuple[DataFrame, list[_Sql]]:
    """Read all values as texts, and cast them. Only empty values without quotes are null to the parser."""
    options = _CSV | {"columnNameOfCorruptRecord": "corrupt", "nullValue": secrets.token_hex(16)}
    texts = ", ".join(f"v{place} string" for place in range(len(header)))
    read = F.from_csv(F.col(RECORD), f"{texts}, corrupt string", options)
    root = records.withColumn(_ROOT, read)
    rows = root.withColumn(_FOUND, F.expr(f"IF({_ROOT}.corrupt IS NULL, {_ROOT}, NULL)")).drop(_ROOT)
    places = {name: place for place, name in enumerate(header)}
    steps = [(f"t{number}", f"{_FOUND}.v{places[field.name]}", field.dataType) for number, field in enumerate(columns)]
    rows = rows.selectExpr("*", *(f"{_csv_text(read, kind)} AS {name}" for name, read, kind in steps))
    return rows, [_csv_value(name, kind) for name, _, kind in steps]


def _is_read(kind: DataType, *, nested: bool) -> bool:
    if nested and isinstance(kind, ArrayType):
        return _is_read(kind.elementType, nested=True)
    if nested and isinstance(kind, StructType):
        return all(_is_read(field.dataType, nested=True) for field in kind)
    return type(kind) in _LEAVES


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in kind])
    return kind


def _as_read(kind: DataType) -> DataType:
    """Return the type with which `from_json` reads a value."""
    if isinstance(kind, ArrayType):
        return ArrayType(_as_read(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _as_read(field.dataType)) for field in kind])
    if isinstance(kind, _TIMES):
        return StringType()
    return ShortType() if isinstance(kind, ByteType) else kind


def _json_value(read: str, kind: DataType, depth: int = 0) -> _Sql:
    if isinstance(kind, _TIMES):
        return _checked(read, _time(read, kind))
    if isinstance(kind, ByteType):
        return _checked(read, f"try_cast({read} AS tinyint)")
    if isinstance(kind, (FloatType, DoubleType)):
        return _Sql(read, lambda value: f"coalesce(abs({value}) = double('infinity'), false)")
    if isinstance(kind, ArrayType):
        return _json_array(read, kind, depth)
    return _json_struct(read, kind, depth) if isinstance(kind, StructType) else _Sql(read)


def _json_array(read: str, kind: ArrayType, depth: int) -> _Sql:
    element = f"e{depth}"
    inner = _json_value(element, kind.elementType, depth + 1)
    value = read if inner.value == element else f"transform({read}, {element} -> {inner.value})"
    if inner.bad is None:
        return _Sql(value)
    is_bad = inner.bad(inner.value)
    return _Sql(value, lambda _: f"coalesce(exists({read}, {element} -> {is_bad}), false)")


def _json_struct(read: str, kind: StructType, depth: int) -> _Sql:
    insides = [f"{read}.{quoted(field.name)}" for field in kind]
    inners = [_json_value(inside, field.dataType, depth) for inside, field in zip(insides, kind, strict=True)]
    bads = [inner.bad(inner.value) for inner in inners if inner.bad is not None]
    bad = (lambda _: f"({' OR '.join(bads)})") if bads else None
    if [inner.value for inner in inners] == insides:
        return _Sql(read, bad)
    parts = ", ".join(f"{literal(field.name)}, {inner.value}" for field, inner in zip(kind, inners, strict=True))
    return _Sql(f"IF({read} IS NULL, NULL, named_struct({parts}))", bad)


def _csv_text(read: str, kind: DataType) -> str:
    if isinstance(kind, StringType):
        return f"coalesce({read}, '')"
    return f"IF(trim({read}) IN ({_NULLS}), NULL, trim({read}))"


def _csv_value(text: str, kind: DataType) -> _Sql:
    if isinstance(kind, StringType):
        return _Sql(text)
    if isinstance(kind, _TIMES):
        return _checked(text, _time(text, kind))
    cast = f"try_cast({text} AS {kind.simpleString()})"
    if isinstance(kind, BooleanType):
        return _checked(text, f"IF(lower({text}) IN ('true', 'false', '1', '0'), {cast}, NULL)")
    if isinstance(kind, (FloatType, DoubleType)):
        is_finite = f"{_is(text, _NUMBER)} AND abs({cast}) <> double('infinity')"
        return _checked(text, f"IF({is_finite} OR {_is(text, _NAMED)}, {cast}, NULL)")
    if isinstance(kind, DecimalType):
        return _checked(text, f"IF({_is(text, _NUMBER)} AND {_scale(text)} <= {kind.scale}, {cast}, NULL)")
    return _checked(text, f"IF({_is(text, '[+-]?[0-9]+')}, {cast}, NULL)")


def _checked(read: str, value: str) -> _Sql:
    """Build a value that is bad if it is null although a text was read."""
    return _Sql(value, lambda value: f"({read} IS NOT NULL AND {value} IS NULL)")


def _is(text: str, pattern: str) -> str:
    return f"{text} RLIKE {literal(f'^({pattern})$')}"


def _scale(text: str) -> str:
    """Count digits after the decimal point, without trailing zeros; null if the exponent is too long."""
    digits = f"length(trim(TRAILING '0' FROM regexp_extract({text}, '[.]([0-9]*)', 1)))"
    exponent = f"regexp_extract({text}, '[eE][+]?(-?[0-9]+)$', 1)"
    return f"({digits} - IF({exponent} = '', 0, try_cast({exponent} AS int)))"


def _time(text: str, kind: DataType) -> str:
    """Parse ISO 8601. A time without a zone is UTC."""
    if isinstance(kind, DateType):
        return f"IF({_is(text, _DAY)}, try_cast({text} AS date), NULL)"
    # Spark wants seconds before a zone.
    rest = f"IF(substring({text}, 17, 1) = ':', '', ':00'), substring({text}, 17)"
    full = f"IF(length({text}) = 10, concat({text}, 'T00:00:00'), concat(left({text}, 16), {rest}))"
    if isinstance(kind, TimestampNTZType):
        return f"IF({_is(text, f'{_DAY}([T ]{_CLOCK})?')}, try_cast({full} AS timestamp_ntz), NULL)"
    zone = f"IF(substring({text}, 11) RLIKE '[Z+-]', '', 'Z')"
    is_time = _is(text, f"{_DAY}([T ]{_CLOCK}{_ZONE}?)?")
    return f"IF({is_time}, try_cast(concat({full}, {zone}) AS timestamp), NULL)"
