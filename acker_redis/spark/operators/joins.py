"""Joins in SQL.

Each joined row has parts of the shares of the rows it was made from. Rows that the join leaves out are metered.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from acker_redis.errors import PipelineError
from acker_redis.spark.operators.rows import CHILD, CHILDREN, one_row_per_child, without_removed
from acker_redis.spark.operators.tracking import roots_in_sql
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.proof.plans import analyzed_text
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.sql import quoted

_REMOVED, _COUNT, _PLACE = (f"_acker_{name}" for name in ("removed", "count", "place"))
_LEFT, _RIGHT, _LEFT_PLACE, _LEFT_COUNT = (f"_acker_{name}" for name in ("left", "right", "left_place", "left_count"))

_CONDITION = re.compile(r"^Filter (.*?)$", re.MULTILINE)
_EQUALITY = re.compile(r"\((.*) = (.*)\)")
_CAST_TO = re.compile(r"cast\((.*) as (.*)\)")
_ATTRIBUTE = re.compile(r"(_acker_\w+)#\d+L?")
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of char and varchar columns, which Spark pads in comparisons."""

_PLAIN = (BinaryType, BooleanType, DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType)


def looked_up(
    frame: DataFrame,
    table: DataFrame,
    on: Sequence[str],
    name: str,
    meter: str,
    equation: Equation,
    *,
    keep_unmatched: bool,
) -> DataFrame:
    """Join with an untracked table. Each match becomes one row.

    The matches of a key form one array, so that a row knows the number and the order of its children. Keys are compared as in
    Spark. The table is grouped by the values that are compared: '1' and '01' are the same key to a bigint.
    """
    others = [column for column in table.columns if column not in on]
    compared = _compared(frame, table, on, name)
    keys = [f"_acker_key{i}" for i in range(len(on))]
    matches = table.groupBy(
        *(_cast(column, kinds.right).alias(key) for key, column, kinds in zip(keys, on, compared, strict=True))
    ).agg(_as_array(table, others).alias(CHILDREN))
    own = [quoted(column) for column in frame.columns if column not in (SHARE, ROOTS)]
    key_columns = {key: _cast(column, kinds.left) for key, column, kinds in zip(keys, on, compared, strict=True)}
    rows = frame.withColumns(key_columns).join(matches, keys, "left")
    if keep_unmatched:
        no_match = F.lit(None).cast(matches.schema[CHILDREN].dataType.elementType)  # type: ignore[attr-defined]
        rows = rows.withColumn(CHILDREN, F.coalesce(CHILDREN, F.array(no_match)))
    output = [F.col(f"{CHILD}.{quoted(column)}") for column in others]
    return one_row_per_child(rows, own, output, name, meter, equation)


def matched(
    left: DataFrame, right: DataFrame, on: Sequence[str], how: str, name: str, meter: str, equation: Equation
) -> DataFrame:
    """Join two tracked frames. Each row has parts of the shares of the two rows it was made from.

    Its keys are those of Spark's own join: the keys of the side that is kept. If equal keys may differ, such as 1 and '01',
    rows carry their own.
    """
    compared = _compared(left, right, on, name, how)
    keys = [f"_acker_key{i}" for i in range(len(on))]
    own_keys = {column: f"_acker_own{i}" for i, column in enumerate(on) if not compared[i].is_plain}
    sides = [
        frame.groupBy(
            *(_cast(column, kinds).alias(key) for key, column, kinds in zip(keys, on, casts, strict=True))
        ).agg(_as_array(frame, [c for c in frame.columns if c not in on], own_keys).alias(side))
        for frame, side, casts in (
            (left, _LEFT, [kinds.left for kinds in compared]),
            (right, _RIGHT, [kinds.right for kinds in compared]),
        )
    ]
    both = sides[0].join(sides[1], keys, "full")
    alone = {
        "left": f"{_LEFT} IS NULL",
        "right": f"{_RIGHT} IS NULL",
        "full": "false",
    }  # rows that lack the side that is kept
    is_removed = alone.get(how, f"{_LEFT} IS NULL OR {_RIGHT} IS NULL")
    sums = [
        f"coalesce(aggregate({side}, 0L, (sum, row) -> (sum + row.{SHARE}) & {shares.MASK}L), 0L)"
        for side in (_LEFT, _RIGHT)
    ]
    counts = " + ".join(f"IF({side} IS NULL, 0, size({side}))" for side in (_LEFT, _RIGHT))
    marked = both.withColumn(_REMOVED, F.expr(is_removed)).withColumn(
        SHARE, F.expr(f"IF({_REMOVED}, ({sums[0]} + {sums[1]}) & {shares.MASK}L, NULL)")
    )
    rows = without_removed(marked, _REMOVED, _REMOVED, meter, counts).drop(SHARE)
    for side in (_LEFT, _RIGHT):
        no_row = F.lit(None).cast(both.schema[side].dataType.elementType)  # type: ignore[attr-defined]
        rows = rows.withColumn(side, F.coalesce(side, F.array(no_row)))
    rows = rows.select(*keys, _RIGHT, F.size(_LEFT).alias(_LEFT_COUNT), F.posexplode(_LEFT).alias(_LEFT_PLACE, _LEFT))
    rows = rows.select(
        *keys, _LEFT, _LEFT_COUNT, _LEFT_PLACE, F.size(_RIGHT).alias(_COUNT), F.posexplode(_RIGHT).alias(_PLACE, _RIGHT)
    )
    salt = shares.salt_of(name)
    key_values = [
        _own_key(own_keys[column], how) if column in own_keys else F.col(key)
        for key, column in zip(keys, on, strict=True)
    ]
    parts = [  # the share of a missing side is null, but its hash would be a number
        f"IF({side}.{SHARE} IS NULL, 0L, "
        f"{shares.split_in_sql(f'{side}.{SHARE}', salt, f'cast({place} AS bigint)', f'cast({count} AS bigint)')})"
        for side, place, count in ((_LEFT, _PLACE, _COUNT), (_RIGHT, _LEFT_PLACE, _LEFT_COUNT))
    ]
    output = [
        F.col(f"{side}.{quoted(column)}")
        for frame, side in ((left, _LEFT), (right, _RIGHT))
        for column in frame.columns
        if column not in (*on, SHARE, ROOTS)
    ]
    return rows.select(
        *(key.alias(column) for key, column in zip(key_values, on, strict=True)),
        *output,
        equation.share_column(f"({parts[0]} + {parts[1]}) & {shares.MASK}L"),
        equation.roots_column(f"array_union({roots_in_sql(f'{_LEFT}.')}, {roots_in_sql(f'{_RIGHT}.')})"),
    )


_Casts: TypeAlias = Sequence[str]


class _Key(NamedTuple):
    """The casts that Spark applies, in order, to compare the columns of one name on both sides.

    Attributes:
        left: types that the left column is cast to, or their names. Empty if it is compared unchanged.
        right: the same for the right column.
        is_plain: whether equal values are identical, so that a row may have either.
    """

    left: _Casts = ()
    right: _Casts = ()
    is_plain: bool = False


def _compared(left: DataFrame, right: DataFrame, on: Sequence[str], name: str, how: str = "inner") -> list[_Key]:
    """Return how Spark compares the join columns of both sides with the session's settings.

    Equal values of the type that it casts to also form one group, because Spark groups and joins by the same keys.

    Raises:
        PipelineError: Spark can't compare them, or compares them by more than casts.
    """
    keys = []
    for column in on:
        sides = [frame.schema[column] for frame in (left, right)]
        kind = sides[0].dataType
        if kind == sides[1].dataType and _is_plain(kind) and not any(_CHAR in side.metadata for side in sides):
            keys.append(_Key(is_plain=True))
            continue
        nulls = [
            F.lit(None).cast(side.dataType).alias(alias, metadata=side.metadata)
            for side, alias in zip(sides, (_LEFT, _RIGHT), strict=True)
        ]
        columns = f"join {name!r}: {column!r} is {' and '.join(side.dataType.simpleString() for side in sides)}"
        try:
            both = left.sparkSession.range(0).select(*nulls)
            if how == "full":
                _ = both.select(F.coalesce(_LEFT, _RIGHT)).schema  # the key of the joined rows
            compared = both.where(f"{_LEFT} = {_RIGHT}")
            condition, casts = _condition_and_casts(compared, sides)
        except AnalysisException as exc:
            raise PipelineError(
                f"{columns}, which Spark can't compare. Cast one side, or both, so that it can."
            ) from exc
        if casts[0] is None or casts[1] is None:
            raise PipelineError(
                f"{columns}, which Spark compares by more than casts ({condition}). Convert both sides to one type, for "
                "example with rtrim, lpad or cast."
            )
        keys.append(_Key(casts[0], casts[1]))
    return keys


def _condition_and_casts(compared: DataFrame, sides: Sequence[StructField]) -> tuple[str, Sequence[_Casts | None]]:
    """Return the condition of a filter, and the casts of either side."""
    found = _CONDITION.search(analyzed_text(compared))
    condition = _ATTRIBUTE.sub(r"\1", found[1]) if found else "unknown"
    equality = _EQUALITY.fullmatch(condition)
    if equality is None:
        return condition, (None, None)
    casts = [_casts(text) for text in equality.groups()]
    for at, text in enumerate(equality.groups()):
        if text == "null":  # of a column that is void; the text lacks its type, which is that of the other side
            casts[at] = (casts[1 - at] or [sides[1 - at].dataType.simpleString()])[-1:]
    return condition, casts


def _casts(text: str) -> list[str] | None:
    """Return the casts of one side of an equality, in order, or None if it is more than that."""
    kinds: list[str] = []
    while cast := _CAST_TO.fullmatch(text):
        text = cast[1]
        kinds.insert(0, cast[2])
    return kinds if text in (_LEFT, _RIGHT, "null") else None


def _cast(column: str, kinds: _Casts) -> Column:
    value = F.col(quoted(column))
    for kind in kinds:
        value = value.cast(kind)
    return value


def _is_plain(kind: DataType) -> bool:
    """Return True if equal values of a type are identical.

    That is not so for 0.0 and -0.0, nor for texts in most collations.
    """
    if isinstance(kind, StringType):
        return kind == StringType()
    return isinstance(kind, _PLAIN)


def _own_key(field: str, how: str) -> Column:
    """Return the key of a row, chosen as in Spark's own join."""
    left, right = (F.col(f"{side}.{field}") for side in (_LEFT, _RIGHT))
    return F.coalesce(left, right) if how == "full" else right if how == "right" else left


def _as_array(frame: DataFrame, columns: Sequence[str], renamed: Mapping[str, str] = MappingProxyType({})) -> Column:
    """Collect the rows of a group, sorted if their type has an order.

    A task that runs again then returns them in the same order.

    Args:
        frame: the rows.
        columns: columns to collect.
        renamed: further columns -> their names in the array.
    """
    fields = [
        *(F.col(quoted(column)) for column in columns),
        *(F.col(quoted(column)).alias(name) for column, name in renamed.items()),
    ]
    rows = F.collect_list(F.struct(*(fields or [F.lit(0).alias("_acker_none")])))
    return F.sort_array(rows) if all(_has_order(frame.schema[column].dataType) for column in columns) else rows


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    return not isinstance(kind, (MapType, VariantType))
