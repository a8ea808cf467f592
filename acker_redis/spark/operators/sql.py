"""Operators in SQL: frames in, frames out, no Python per row. Each keeps the sum of shares, or meters what it drops."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from py4j.java_gateway import JavaObject
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
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    _parse_datatype_json_string,
)

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.protocol import arguments, shares
from acker_redis.spark.protocol.arguments import quoted
from acker_redis.spark.protocol.columns import OUT, ROOTS, SHARE, STAYS, VALUE

_MEETS, _GONE, _CHILDREN, _COUNT, _PLACE, _CHILD = (
    f"_acker_{name}" for name in ("meets", "gone", "children", "count", "place", "child")
)
_LEFT, _RIGHT, _LEFT_PLACE, _LEFT_COUNT = (f"_acker_{name}" for name in ("left", "right", "left_place", "left_count"))
_LOW, _HIGH = "_acker_low", "_acker_high"
_LEAST, _GREATEST = "_acker_least", "_acker_greatest"

_EQUAL = "EqualTo"
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a column of texts that is char or varchar: Spark pads these where it compares them."""

_PLAIN = (BinaryType, BooleanType, DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType)


def spouted(messages: DataFrame, id_column: str, salts: tuple[str, str], equation: Equation) -> DataFrame:
    """Messages with their share and root; `root_ids` and `emission.shares_of` derive the same in the driver."""
    root_salt, share_salt = map(arguments.literal, salts)
    message = f"cast({quoted(id_column)} AS bigint)"
    block = f"xxhash64({root_salt}, shiftright({message}, 5)) & {(1 << 59) - 1}L"
    root = f"shiftleft({message} & 31L, 59) | ({block})"
    share = f"xxhash64({share_salt}, {message}) & {shares.MASK}L"
    return messages.withColumns({SHARE: equation.column(share), ROOTS: equation.roots(f"array({root})")})


def filtered(frame: DataFrame, condition: str | Column, meter: str, equation: Equation) -> DataFrame:
    """Rows that meet a condition; the others are metered before they are dropped."""
    marked = frame.withColumns({_MEETS: _column(condition), SHARE: equation.column(SHARE)})
    return _without_gone(marked, _MEETS, f"NOT coalesce({_MEETS}, false)", meter)


def without_failed(frame: DataFrame, meter: str) -> DataFrame:
    """Rows that no function in SQL's midst has failed; `OUT` has the failure of the others."""
    return metrics.leaving_python(frame, meter, "1").where(f"{OUT} = {STAYS}").drop(OUT)


def without_residue(frame: DataFrame, meter: str) -> DataFrame:
    """Rows that a step in Python gave, without the rows that carry its residue; those have the number of rows as anchor."""
    root = f"get({ROOTS}, 0)"
    return metrics.leaving_python(frame, meter, root, root=root).where(f"{OUT} = {STAYS}").drop(OUT)


def exploded(frame: DataFrame, children: str | Column, name: str, meter: str, equation: Equation) -> DataFrame:
    """One row per element of the array `children`; rows whose array is empty or null are metered and dropped.

    Raises:
        PipelineError: it is not an array, or one of structs with a field that has a name of the tracker's own.
    """
    marked = frame.withColumn(_CHILDREN, _column(children))
    kind = marked.schema[_CHILDREN].dataType
    if not isinstance(kind, ArrayType):
        raise PipelineError(f"{name!r}: expected an array of the rows to derive, got {kind.simpleString()}")
    if isinstance(kind.elementType, StructType):
        arguments.column_names(kind.elementType.names, name)
        output = [F.col(f"{_CHILD}.{quoted(column)}") for column in kind.elementType.names]
    else:
        output = [F.col(_CHILD).alias(VALUE)]
    return _one_row_per_child(marked, [], output, name, meter, equation)


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
    """Join with a table that isn't tracked: one row per match.

    The matches of a key are one array, so that a row knows how many children it has, and which of them is which. Keys are
    compared as Spark does, and the table is grouped by what they are then: '1' and '01' are one key to a bigint.
    """
    others = [column for column in table.columns if column not in on]
    compared = _compared(frame, table, on, name)
    keys = [f"_acker_key{i}" for i in range(len(on))]
    matches = table.groupBy(
        *(_cast(column, one.right).alias(key) for key, column, one in zip(keys, on, compared, strict=True))
    ).agg(_as_array(table, others).alias(_CHILDREN))
    own = [quoted(column) for column in frame.columns if column not in (SHARE, ROOTS)]
    wanted = {key: _cast(column, one.left) for key, column, one in zip(keys, on, compared, strict=True)}
    found = frame.withColumns(wanted).join(matches, keys, "left")
    if keep_unmatched:
        nothing = F.lit(None).cast(matches.schema[_CHILDREN].dataType.elementType)  # type: ignore[attr-defined]
        found = found.withColumn(_CHILDREN, F.coalesce(_CHILDREN, F.array(nothing)))
    output = [F.col(f"{_CHILD}.{quoted(column)}") for column in others]
    return _one_row_per_child(found, own, output, name, meter, equation)


def matched(
    left: DataFrame, right: DataFrame, on: Sequence[str], how: str, name: str, meter: str, equation: Equation
) -> DataFrame:
    """Join two tracked frames. Each row has a part of the shares of the two it was made of.

    It has the keys that Spark's own join gives it: those of the side that is kept. Where equal ones may differ, as 1
    and '01' do, rows carry their own.
    """
    compared = _compared(left, right, on, name, how)
    keys = [f"_acker_key{i}" for i in range(len(on))]
    own_keys = {column: f"_acker_own{i}" for i, column in enumerate(on) if not compared[i].is_plain}
    sides = [
        frame.groupBy(
            *(_cast(column, kinds).alias(key) for key, column, kinds in zip(keys, on, casts, strict=True))
        ).agg(_as_array(frame, [c for c in frame.columns if c not in on], own_keys).alias(side))
        for frame, side, casts in (
            (left, _LEFT, [one.left for one in compared]),
            (right, _RIGHT, [one.right for one in compared]),
        )
    ]
    met = sides[0].join(sides[1], keys, "full")
    alone = {"left": f"{_LEFT} IS NULL", "right": f"{_RIGHT} IS NULL", "full": "false"}  # without the side that is kept
    goes = alone.get(how, f"{_LEFT} IS NULL OR {_RIGHT} IS NULL")
    sums = [
        f"coalesce(aggregate({side}, 0L, (sum, row) -> (sum + row.{SHARE}) & {shares.MASK}L), 0L)"
        for side in (_LEFT, _RIGHT)
    ]
    counts = " + ".join(f"IF({side} IS NULL, 0, size({side}))" for side in (_LEFT, _RIGHT))
    marked = met.withColumn(_GONE, F.expr(goes)).withColumn(
        SHARE, F.expr(f"IF({_GONE}, ({sums[0]} + {sums[1]}) & {shares.MASK}L, NULL)")
    )
    rows = _without_gone(marked, _GONE, _GONE, meter, counts).drop(SHARE)
    for side in (_LEFT, _RIGHT):
        nothing = F.lit(None).cast(met.schema[side].dataType.elementType)  # type: ignore[attr-defined]
        rows = rows.withColumn(side, F.coalesce(side, F.array(nothing)))
    rows = rows.select(*keys, _RIGHT, F.size(_LEFT).alias(_LEFT_COUNT), F.posexplode(_LEFT).alias(_LEFT_PLACE, _LEFT))
    rows = rows.select(
        *keys, _LEFT, _LEFT_COUNT, _LEFT_PLACE, F.size(_RIGHT).alias(_COUNT), F.posexplode(_RIGHT).alias(_PLACE, _RIGHT)
    )
    salt = shares.salt_of(name)
    given = [
        _own_key(own_keys[column], how) if column in own_keys else F.col(key)
        for key, column in zip(keys, on, strict=True)
    ]
    own = [  # of a side that a row lacks, the share is null, of which a hash would be a number
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
        *(key.alias(column) for key, column in zip(given, on, strict=True)),
        *output,
        equation.column(f"({own[0]} + {own[1]}) & {shares.MASK}L"),
        equation.roots(f"array_union({_roots_of(f'{_LEFT}.')}, {_roots_of(f'{_RIGHT}.')})"),
    )


def grouped(
    frame: DataFrame, keys: Sequence[str | Column], aggregates: Sequence[Column], equation: Equation
) -> DataFrame:
    """One row per group, with the sum of its rows' shares, and their roots."""
    made = frame.groupBy(*keys).agg(
        *aggregates,
        F.sum(F.expr(f"{SHARE} & {(1 << shares.LOW_BITS) - 1}L")).alias(_LOW),
        F.sum(F.shiftright(SHARE, shares.LOW_BITS)).alias(_HIGH),
        equation.roots(f"array_distinct(flatten(collect_set({_roots_of()})))"),
    )
    high = f"shiftleft({_HIGH} & {(1 << (shares.BITS - shares.LOW_BITS)) - 1}L, {shares.LOW_BITS})"
    both = equation.column(f"(({_LOW} & {shares.MASK}L) + {high}) & {shares.MASK}L")
    return made.withColumn(SHARE, both).drop(_LOW, _HIGH)


def grouped_by_message(
    frame: DataFrame, keys: Sequence[str | Column], aggregates: Sequence[Column], name: str, equation: Equation
) -> DataFrame:
    """As `grouped`, by keys that have the message id: a group with rows of several messages fails the job."""
    roots = [F.expr(f"{of}(get({ROOTS}, 0))").alias(column) for of, column in (("min", _LEAST), ("max", _GREATEST))]
    most = F.expr(f"max(size({ROOTS}))").alias(_COUNT)
    made = grouped(frame, keys, [*aggregates, *roots, most], equation)
    return _of_one(made, f"{_LEAST} <> {_GREATEST} OR {_COUNT} > 1", name, equation).drop(_LEAST, _GREATEST, _COUNT)


def of_one_message(frame: DataFrame, name: str, equation: Equation) -> DataFrame:
    """Rows of which each comes from one message, or from none: another fails the job."""
    return _of_one(frame, f"size({ROOTS}) > 1", name, equation)


def _of_one(frame: DataFrame, several: str, name: str, equation: Equation) -> DataFrame:
    text = (  # on a line of its own, as `worker_errors` reads it
        f"\nacker_redis.errors.NotExactError: {name!r}: rows of several messages came together, though a key is called like "
        "the column of message ids: does the column hold something else by now? Give it another name, and partial=True where "
        "rows of this emission's messages may come together\n"
    )
    return frame.withColumn(SHARE, equation.column(f"IF({several}, raise_error({arguments.literal(text)}), {SHARE})"))


def weighed(frame: DataFrame, shift: int) -> DataFrame:
    """The same rows, their shares multiplied by `shares.weight(shift)`."""
    return frame.withColumn(SHARE, F.expr(shares.weighed_in_sql(SHARE, shift)))


def _without_gone(frame: DataFrame, column: str, gone: str, meter: str, rows: str = "1") -> DataFrame:
    """Without the rows for which `gone`, SQL over the column, is true, and without the column."""
    return metrics.leaving(frame, gone, meter, rows).where(f"NOT ({gone})").drop(column)


def _one_row_per_child(
    frame: DataFrame, own: Sequence[str], output: Sequence[Column], name: str, meter: str, equation: Equation
) -> DataFrame:
    """Rows for the elements of `_CHILDREN`, with parts of their parent's share."""
    counted = frame.withColumn(_COUNT, F.expr(f"cast(greatest(coalesce(size({_CHILDREN}), 0), 0) AS bigint)"))
    kept = _without_gone(counted.withColumn(_GONE, F.expr(f"{_COUNT} = 0")), _GONE, _GONE, meter)
    rows = kept.select(*own, SHARE, ROOTS, _COUNT, F.posexplode(_CHILDREN).alias(_PLACE, _CHILD))
    part = shares.split_in_sql(SHARE, shares.salt_of(name), f"cast({_PLACE} AS bigint)", _COUNT)
    return rows.select(*own, *output, equation.column(part), ROOTS)


class _Key(NamedTuple):
    """How the columns of one name on both sides are compared: the casts that Spark makes of each, one after another.

    Attributes:
        left: the types that the left one is cast to; none: as it is.
        right: the same of the other.
        is_plain: whether equal values are the same value, so that it makes no difference which of them a row has.
    """

    left: Sequence[DataType] = ()
    right: Sequence[DataType] = ()
    is_plain: bool = False


def _compared(left: DataFrame, right: DataFrame, on: Sequence[str], name: str, how: str = "inner") -> list[_Key]:
    """How Spark compares the columns that both sides have, with the session's settings.

    Equal values of the type that it comes to are one group, too: Spark groups and joins by the same keys.

    Raises:
        PipelineError: it can't compare them, or by more than casts.
    """
    keys = []
    for column in on:
        sides = [frame.schema[column] for frame in (left, right)]
        kind = sides[0].dataType
        if kind == sides[1].dataType and _is_plain(kind) and not any(_CHAR in side.metadata for side in sides):
            keys.append(_Key(is_plain=True))
            continue
        given = [
            F.lit(None).cast(side.dataType).alias(alias, metadata=side.metadata)
            for side, alias in zip(sides, (_LEFT, _RIGHT), strict=True)
        ]
        told = f"join {name!r}: {column!r} is {' and '.join(side.dataType.simpleString() for side in sides)}"
        try:
            both = left.sparkSession.range(0).select(*given)
            if how == "full":
                both.select(F.coalesce(_LEFT, _RIGHT))  # which is what the rows are given
            asked = both.where(f"{_LEFT} = {_RIGHT}")
        except AnalysisException as exc:
            raise PipelineError(f"{told}: cast one side, so that they can be compared") from exc
        condition = asked._jdf.queryExecution().analyzed().condition()  # noqa: SLF001
        is_equality = condition.nodeName() == _EQUAL
        casts = [_casts(condition.left()), _casts(condition.right())] if is_equality else [None, None]
        if casts[0] is None or casts[1] is None:
            raise PipelineError(
                f"{told}, which Spark compares by more than casts, {condition.sql()}: give both sides one type, such as by "
                "rtrim, lpad or cast"
            )
        keys.append(_Key(casts[0], casts[1]))
    return keys


def _casts(expression: JavaObject) -> list[DataType] | None:
    """The types that a side of an equality is cast to, in order; None: something else is done to it."""
    kinds: list[DataType] = []
    while expression.nodeName() == "Cast":
        kinds.insert(0, _parse_datatype_json_string(expression.dataType().json()))
        expression = expression.child()
    if expression.nodeName() == "Literal":  # null of any type, of a column that is void
        kinds.insert(0, _parse_datatype_json_string(expression.dataType().json()))
    elif expression.nodeName() != "AttributeReference":
        return None
    return kinds


def _cast(column: str, kinds: Sequence[DataType]) -> Column:
    found = F.col(quoted(column))
    for kind in kinds:
        found = found.cast(kind)
    return found


def _is_plain(kind: DataType) -> bool:
    """Whether values of a type that are equal are the same: not 0.0 and -0.0, nor texts of most collations."""
    if isinstance(kind, StringType):
        return kind == StringType()
    return isinstance(kind, _PLAIN)


def _roots_of(row: str = "") -> str:
    """The roots of a row, in SQL; of one that has lost them, 0, which is nobody's: if what is made of it fails, that shows."""
    lost = f"coalesce(size({row}{ROOTS}), 0) < 1 AND coalesce({row}{SHARE}, 0L) <> 0L"
    return f"IF({lost}, array(0L), coalesce({row}{ROOTS}, cast(array() AS array<bigint>)))"


def _own_key(field: str, how: str) -> Column:
    """The key of a row as Spark's own join gives it."""
    left, right = (F.col(f"{side}.{field}") for side in (_LEFT, _RIGHT))
    return F.coalesce(left, right) if how == "full" else right if how == "right" else left


def _as_array(frame: DataFrame, columns: Sequence[str], renamed: Mapping[str, str] = MappingProxyType({})) -> Column:
    """The rows of a group, sorted where their type has an order, so that a task that runs again gives them in it.

    Args:
        frame: the rows.
        columns: those that are kept.
        renamed: further ones, and their names there.
    """
    kept = [
        *(F.col(quoted(column)) for column in columns),
        *(F.col(quoted(column)).alias(name) for column, name in renamed.items()),
    ]
    rows = F.collect_list(F.struct(*(kept or [F.lit(0).alias("_acker_none")])))
    return F.sort_array(rows) if all(_has_order(frame.schema[column].dataType) for column in columns) else rows


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(found.dataType) for found in kind.fields)
    return not isinstance(kind, (MapType, VariantType))


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
