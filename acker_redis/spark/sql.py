"""Operators in SQL: frames in, frames out, no Python per row. Each keeps the sum of edges, or meters what it drops."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from acker_redis.errors import BadBatchError
from acker_redis.spark import checks, edges, meters
from acker_redis.spark.checks import quoted
from acker_redis.spark.columns import ANCHORS, EDGE, OUT, STAYS, VALUE
from acker_redis.spark.form import Form

_MEETS, _GONE, _CHILDREN, _COUNT, _PLACE, _CHILD = (
    f"_acker_{name}" for name in ("meets", "gone", "children", "count", "place", "child")
)
_LEFT, _RIGHT, _LEFT_PLACE, _LEFT_COUNT = (f"_acker_{name}" for name in ("left", "right", "left_place", "left_count"))
_LOW, _HIGH = "_acker_low", "_acker_high"


def spouted(messages: DataFrame, id_column: str, salts: tuple[str, str], form: Form) -> DataFrame:
    """Messages with their edge and root; `root_ids` and `emission.edges_of` derive the same in the driver."""
    root_salt, edge_salt = map(checks.literal, salts)
    message = f"cast({quoted(id_column)} AS bigint)"
    block = f"xxhash64({root_salt}, shiftright({message}, 5)) & {(1 << 59) - 1}L"
    root = f"shiftleft({message} & 31L, 59) | ({block})"
    edge = f"xxhash64({edge_salt}, {message}) & {edges.MASK}L"
    return messages.withColumns({EDGE: form.column(edge), ANCHORS: F.expr(f"array({root})")})


def filtered(frame: DataFrame, condition: str | Column, meter: str, form: Form) -> DataFrame:
    """Rows that meet a condition; the others are metered before they are dropped."""
    marked = frame.withColumns({_MEETS: _column(condition), EDGE: form.column(EDGE)})
    return _without_gone(marked, _MEETS, f"NOT coalesce({_MEETS}, false)", meter)


def without_failed(frame: DataFrame, meter: str) -> DataFrame:
    """Rows that no function in SQL's midst has failed; `OUT` has the report of the others."""
    return meters.leaving_python(frame, meter, "1").where(f"{OUT} = {STAYS}").drop(OUT)


def without_residue(frame: DataFrame, meter: str) -> DataFrame:
    """Rows that a step in Python gave, without the rows that carry its residue; those have the number of rows as anchor."""
    root = f"get({ANCHORS}, 0)"
    return meters.leaving_python(frame, meter, root, root=root).where(f"{OUT} = {STAYS}").drop(OUT)


def exploded(frame: DataFrame, children: str | Column, name: str, meter: str, form: Form) -> DataFrame:
    """One row per element of the array `children`; rows whose array is empty or null are metered and dropped.

    Raises:
        BadBatchError: it is not an array, or one of structs with a field that has a name of the tracker's own.
    """
    marked = frame.withColumn(_CHILDREN, _column(children))
    kind = marked.schema[_CHILDREN].dataType
    if not isinstance(kind, ArrayType):
        raise BadBatchError(f"{name!r}: expected an array of the rows to derive, got {kind.simpleString()}")
    if isinstance(kind.elementType, StructType):
        checks.column_names(kind.elementType.names, name)
        output = [F.col(f"{_CHILD}.{quoted(column)}") for column in kind.elementType.names]
    else:
        output = [F.col(_CHILD).alias(VALUE)]
    return _one_row_per_child(marked, [], output, name, meter, form)


def looked_up(
    frame: DataFrame, table: DataFrame, on: Sequence[str], name: str, meter: str, form: Form, *, keep_unmatched: bool
) -> DataFrame:
    """Join with a table that isn't tracked: one row per match.

    The matches of a key are one array, so that a row knows how many children it has, and which of them is which. Keys are
    compared as the type that both have in common, by which the table is grouped, too: '1' and '01' are one key to a bigint.
    """
    others = [column for column in table.columns if column not in on]
    common = _common_types(frame, table, on, name)
    keys = [f"_acker_key{i}" for i in range(len(on))]
    matches = table.groupBy(
        *(F.col(quoted(column)).cast(kind).alias(key) for key, column, kind in zip(keys, on, common, strict=True))
    ).agg(_as_array(table, others).alias(_CHILDREN))
    own = [quoted(column) for column in frame.columns if column not in (EDGE, ANCHORS)]
    wanted = {key: F.col(quoted(column)).cast(kind) for key, column, kind in zip(keys, on, common, strict=True)}
    found = frame.withColumns(wanted).join(matches, keys, "left")
    if keep_unmatched:
        nothing = F.lit(None).cast(matches.schema[_CHILDREN].dataType.elementType)  # type: ignore[attr-defined]
        found = found.withColumn(_CHILDREN, F.coalesce(_CHILDREN, F.array(nothing)))
    output = [F.col(f"{_CHILD}.{quoted(column)}") for column in others]
    return _one_row_per_child(found, own, output, name, meter, form)


def matched(
    left: DataFrame, right: DataFrame, on: Sequence[str], how: str, name: str, meter: str, form: Form
) -> DataFrame:
    """Join two tracked frames. Each row has a part of the edges of the two it was made of."""
    keys = [quoted(column) for column in on]
    common = _common_types(left, right, on, name)
    wanted = [F.col(quoted(column)).cast(kind).alias(column) for column, kind in zip(on, common, strict=True)]
    sides = [
        frame.groupBy(*wanted).agg(_as_array(frame, [c for c in frame.columns if c not in on]).alias(side))
        for frame, side in ((left, _LEFT), (right, _RIGHT))
    ]
    met = sides[0].join(sides[1], list(on), "full")
    alone = {"left": f"{_LEFT} IS NULL", "right": f"{_RIGHT} IS NULL", "full": "false"}  # without the side that is kept
    goes = alone.get(how, f"{_LEFT} IS NULL OR {_RIGHT} IS NULL")
    sums = [
        f"coalesce(aggregate({side}, 0L, (sum, row) -> (sum + row.{EDGE}) & {edges.MASK}L), 0L)"
        for side in (_LEFT, _RIGHT)
    ]
    counts = " + ".join(f"coalesce(size({side}), 0)" for side in (_LEFT, _RIGHT))
    marked = met.withColumn(_GONE, F.expr(goes)).withColumn(
        EDGE, F.expr(f"IF({_GONE}, ({sums[0]} + {sums[1]}) & {edges.MASK}L, NULL)")
    )
    rows = _without_gone(marked, _GONE, _GONE, meter, counts).drop(EDGE)
    for side in (_LEFT, _RIGHT):
        nothing = F.lit(None).cast(met.schema[side].dataType.elementType)  # type: ignore[attr-defined]
        rows = rows.withColumn(side, F.coalesce(side, F.array(nothing)))
    rows = rows.select(*keys, _RIGHT, F.size(_LEFT).alias(_LEFT_COUNT), F.posexplode(_LEFT).alias(_LEFT_PLACE, _LEFT))
    rows = rows.select(
        *keys, _LEFT, _LEFT_COUNT, _LEFT_PLACE, F.size(_RIGHT).alias(_COUNT), F.posexplode(_RIGHT).alias(_PLACE, _RIGHT)
    )
    salt = edges.salt_of(name)
    own = [  # of a side that a row lacks, the edge is null, of which a hash would be a number
        f"IF({side}.{EDGE} IS NULL, 0L, "
        f"{edges.split_in_sql(f'{side}.{EDGE}', salt, f'cast({place} AS bigint)', f'cast({count} AS bigint)')})"
        for side, place, count in ((_LEFT, _PLACE, _COUNT), (_RIGHT, _LEFT_PLACE, _LEFT_COUNT))
    ]
    output = [
        F.col(f"{side}.{quoted(column)}")
        for frame, side in ((left, _LEFT), (right, _RIGHT))
        for column in frame.columns
        if column not in (*on, EDGE, ANCHORS)
    ]
    none = "cast(array() AS array<bigint>)"
    return rows.select(
        *keys,
        *output,
        form.column(f"({own[0]} + {own[1]}) & {edges.MASK}L"),
        F.expr(f"array_union(coalesce({_LEFT}.{ANCHORS}, {none}), coalesce({_RIGHT}.{ANCHORS}, {none}))").alias(
            ANCHORS
        ),
    )


def grouped(frame: DataFrame, keys: Sequence[str | Column], aggregates: Sequence[Column], form: Form) -> DataFrame:
    """One row per group, with the sum of its rows' edges, and their roots."""
    made = frame.groupBy(*keys).agg(
        *aggregates,
        F.sum(F.expr(f"{EDGE} & {(1 << edges.LOW_BITS) - 1}L")).alias(_LOW),
        F.sum(F.shiftright(EDGE, edges.LOW_BITS)).alias(_HIGH),
        F.array_distinct(F.flatten(F.collect_set(ANCHORS))).alias(ANCHORS),
    )
    high = f"shiftleft({_HIGH} & {(1 << (edges.BITS - edges.LOW_BITS)) - 1}L, {edges.LOW_BITS})"
    both = form.column(f"(({_LOW} & {edges.MASK}L) + {high}) & {edges.MASK}L")
    return made.withColumn(EDGE, both).drop(_LOW, _HIGH)


def weighed(frame: DataFrame, shift: int) -> DataFrame:
    """The same rows, their edges multiplied by `edges.weight(shift)`."""
    return frame.withColumn(EDGE, F.expr(edges.weighed_in_sql(EDGE, shift)))


def _without_gone(frame: DataFrame, column: str, gone: str, meter: str, rows: str = "1") -> DataFrame:
    """Without the rows for which `gone`, SQL over the column, is true, and without the column."""
    return meters.leaving(frame, gone, meter, rows).where(f"NOT ({gone})").drop(column)


def _one_row_per_child(
    frame: DataFrame, own: Sequence[str], output: Sequence[Column], name: str, meter: str, form: Form
) -> DataFrame:
    """Rows for the elements of `_CHILDREN`, with parts of their parent's edge."""
    counted = frame.withColumn(_COUNT, F.expr(f"cast(greatest(coalesce(size({_CHILDREN}), 0), 0) AS bigint)"))
    kept = _without_gone(counted.withColumn(_GONE, F.expr(f"{_COUNT} = 0")), _GONE, _GONE, meter)
    rows = kept.select(*own, EDGE, ANCHORS, _COUNT, F.posexplode(_CHILDREN).alias(_PLACE, _CHILD))
    part = edges.split_in_sql(EDGE, edges.salt_of(name), f"cast({_PLACE} AS bigint)", _COUNT)
    return rows.select(*own, *output, form.column(part), ANCHORS)


def _common_types(left: DataFrame, right: DataFrame, on: Sequence[str], name: str) -> list[DataType]:
    """The types as which Spark compares the columns that both sides have."""
    kinds = []
    for column in on:
        sides = [frame.schema[column].dataType for frame in (left, right)]
        if sides[0] == sides[1]:
            kinds.append(sides[0])
            continue
        try:
            nulls = [F.lit(None).cast(kind) for kind in sides]
            kinds.append(left.sparkSession.range(0).select(F.coalesce(*nulls).alias("key")).schema["key"].dataType)
        except AnalysisException as exc:
            told = " and ".join(kind.simpleString() for kind in sides)
            raise BadBatchError(
                f"join {name!r}: {column!r} is {told}: cast one side, so that they can be compared"
            ) from exc
    return kinds


def _as_array(frame: DataFrame, columns: Sequence[str]) -> Column:
    """The rows of a group, sorted where their type has an order, so that a task that runs again gives them in it."""
    row = (
        F.struct(*(F.col(quoted(column)) for column in columns)) if columns else F.struct(F.lit(0).alias("_acker_none"))
    )
    rows = F.collect_list(row)
    return F.sort_array(rows) if all(_has_order(frame.schema[column].dataType) for column in columns) else rows


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(found.dataType) for found in kind.fields)
    return not isinstance(kind, (MapType, VariantType))


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
