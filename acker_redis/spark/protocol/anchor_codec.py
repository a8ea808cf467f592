"""Encode anchors as a column of exported rows, and decode them.

An anchor is a root and one of its edges, of 64 bits each, as in the ledger. The application that reads the anchors continues
the same trees on the same acker, and acks the edges. The encoding itself sends nothing.

Encodings: `binary`: root and edge, 8 bytes each, big-endian, for each anchor of the row (for the key, value or headers of a
message broker); `json`: a text, `[["<root>", "<edge>"], ...]` in 16 hex digits each; `array`: `array<bigint>`, root, edge,
root, edge ... (for parquet).
"""

from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType

from acker_redis.errors import PipelineError
from acker_redis.spark import sql

Encoding: TypeAlias = Literal["binary", "json", "array"]
ENCODINGS: tuple[Encoding, ...] = ("binary", "json", "array")


def check_encoding(encoding: str) -> None:
    """Check that an encoding is a known one."""
    if encoding not in ENCODINGS:
        raise PipelineError(f"encoding={encoding!r} is unknown. Use one of {', '.join(ENCODINGS)}.")


def encode(encoding: Encoding, column: str) -> Column:
    """Encode a column of anchors, given as an array of roots and edges."""
    if encoding == "array":
        return F.coalesce(column, F.expr("cast(array() AS array<bigint>)"))
    digits = f"transform({column}, id -> lpad(hex(id), 16, '0'))"
    if encoding == "binary":
        return F.expr(f"unhex(coalesce(array_join({digits}, ''), ''))")
    pairs = f"transform(sequence(0, size({column}) div 2 - 1), i -> slice(transform({digits}, d -> lower(d)), 2 * i + 1, 2))"
    return F.expr(f"IF(coalesce(size({column}), 0) = 0, '[]', to_json({pairs}))")


def decode(frame: DataFrame, column: str, name: str) -> Column:
    """Decode a column of anchors in any encoding to an array.

    The array of a null or empty value is empty. A damaged value fails the job.

    Raises:
        PipelineError: the column is missing, or its type is none of the encodings'.
    """
    if column not in frame.columns:
        raise PipelineError(
            f"{name}: column {column!r} not found in {frame.columns}. Set `column` to the one that holds the anchors."
        )
    kind, value = frame.schema[column].dataType, sql.quoted(column)
    damaged = f"raise_error({sql.literal(f'Column {column} holds a value that is not a list of anchors.')})"
    if isinstance(kind, ArrayType):
        return F.expr(f"IF(size({value}) % 2 = 1, {damaged}, coalesce(cast({value} AS array<bigint>), array()))")
    if isinstance(kind, BinaryType):
        ids = f"transform(sequence(0, length({value}) div 8 - 1), i -> {_id(f'hex(substring({value}, i * 8 + 1, 8))')})"
        return F.expr(
            f"CASE WHEN coalesce(length({value}), 0) = 0 THEN cast(array() AS array<bigint>) "
            f"WHEN length({value}) % 16 <> 0 THEN {damaged} ELSE {ids} END"
        )
    if isinstance(kind, StringType):
        pairs = f"from_json({value}, 'array<array<string>>')"
        ids = f"transform(flatten({pairs}), digits -> {_id('digits')})"
        is_damaged = f"{pairs} IS NULL OR exists({pairs}, pair -> coalesce(size(pair), 0) <> 2)"
        return F.expr(
            f"CASE WHEN {value} IS NULL THEN cast(array() AS array<bigint>) WHEN {is_damaged} THEN {damaged} ELSE {ids} END"
        )
    raise PipelineError(
        f"{name}: column {column!r} is {kind.simpleString()}, not a type of anchors. Use binary, string (JSON) or array."
    )


def _id(digits: str) -> str:
    return f"cast(conv({digits}, 16, -10) AS bigint)"
