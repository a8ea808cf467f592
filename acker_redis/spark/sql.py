"""Bolts and fan-in in SQL: no Python per row, and, but right behind a spout, no update to send for the rows they derive.

An edge is split: a hash of (parent edge, operator, place) stands at each cut between two children, and a child's edge is
the XOR of the cuts at its two sides; before the first child stands the parent's edge, behind the last one zero. So all of
them XOR to the parent's edge: acking the parent with its children folded in would XOR by zero, and need not be sent. The
tree is complete when all leaves were acked, as before; some of the children XOR to the parent, or to zero, by chance only.

A row made of several has the anchors of all of them: each input's edge is split among the rows it went into, or, in an
aggregate, all edges of a root are merged by XOR.

What SQL says of a spout's own rows is evaluated before they go to Python. The arrays of rows that it derives from them are
taken apart there (`operators.ExplodeStep`), many at a time: that costs less than to have them go there again from SQL.

Input rows without children have to be acked. They stay in the result as rows with `DROPPED` set, until the next step in a
Python worker acks them under the token of the operator that dropped them, and leaves them out.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from acker_redis.errors import BadBatchError
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark import checks
from acker_redis.spark.checks import literal, quoted
from acker_redis.spark.operators import CHILDREN, DROPPED, VALUE

_CHILD, _POSITION, _COUNT = "_acker_child", "_acker_position", "_acker_count"
_LEFT, _RIGHT, _PLACE, _OTHER_COUNT = "_acker_left", "_acker_right", "_acker_place", "_acker_other_count"


_CROSSES = (
    BinaryType, BooleanType, DateType, DayTimeIntervalType, NumericType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip


def filtered(frame: DataFrame, condition: str | Column, name: str) -> DataFrame:
    """The same rows, those that don't meet the condition marked as dropped by `name`."""
    wanted = F.coalesce(_column(condition), F.lit(False))
    return frame.withColumn(DROPPED, F.coalesce(_dropped_by(frame), F.when(~wanted, F.lit(name))))


def exploded(frame: DataFrame, children: str | Column, name: str) -> DataFrame:
    """One row per element of the array `children`; one marked as dropped where it is empty or null.

    Raises:
        BadBatchError: as `child`.
    """
    marked = frame.withColumn(CHILDREN, _column(children))
    element = child(marked, name)
    columns = (
        [F.col(f"{_CHILD}.{quoted(column)}") for column in element.names] if isinstance(element, StructType) else []
    )
    return _one_row_per_child(marked, [], columns or [F.col(_CHILD).alias(VALUE)], name)


def with_children(frame: DataFrame, children: str | Column, kept: list[str], name: str) -> DataFrame:
    """Some columns and the array `children`, empty for rows that were dropped before.

    Raises:
        BadBatchError: as `child`.
    """
    dropped = [F.col(DROPPED)] if DROPPED in frame.columns else []
    made = _without_dropped(frame.withColumn(CHILDREN, _column(children)))
    child(made, name)
    return made.select(*(F.col(quoted(column)) for column in kept), *dropped, CHILDREN)


def child(frame: DataFrame, name: str) -> DataType:
    """The type of the elements of `CHILDREN`.

    Raises:
        BadBatchError: it is not an array, or one of structs with a field that has a name of the tracker's own.
    """
    kind = frame.schema[CHILDREN].dataType
    if not isinstance(kind, ArrayType):
        raise BadBatchError(f"{name!r}: expected an array of the rows to derive, got {kind.simpleString()}")
    if isinstance(kind.elementType, StructType):
        checks.column_names(kind.elementType.names, name)
    return kind.elementType


def columns_of(element: DataType) -> StructType:
    """The columns that an element of `CHILDREN` becomes; any may be null, as an element may be."""
    if not isinstance(element, StructType):
        return StructType().add(VALUE, element)
    return StructType([StructField(field.name, field.dataType, True) for field in element.fields])


def crosses_to_python(kind: DataType) -> bool:
    """Whether Arrow carries a type as what it is in Spark; others are exploded by Spark itself.

    Not so: user-defined types, variants and geometries (structs or bytes there), structs without fields or with two of one
    name.
    """
    if isinstance(kind, ArrayType):
        return crosses_to_python(kind.elementType)
    if isinstance(kind, MapType):
        return crosses_to_python(kind.keyType) and crosses_to_python(kind.valueType)
    if isinstance(kind, StructType):
        distinct = {name.lower() for name in kind.names}
        return 0 < len(kind) == len(distinct) and all(crosses_to_python(field.dataType) for field in kind.fields)
    return isinstance(kind, _CROSSES)


def is_of_one_row(frame: DataFrame, value: str | Column) -> bool:
    """Whether an expression needs nothing but the row it is evaluated for: no window, no generator."""
    plan = getattr(frame, "_jdf", None)
    if plan is None:  # Spark Connect
        return False
    project = frame.select(_column(value))._jdf.queryExecution().analyzed()  # noqa: SLF001
    return project.nodeName() == "Project" and bool(
        project.children().apply(0).sameResult(plan.queryExecution().analyzed())
    )


def looked_up(frame: DataFrame, table: DataFrame, on: list[str], name: str, *, keep_unmatched: bool) -> DataFrame:
    """Join with a table that isn't tracked: one row per match; one marked as dropped where there is none.

    The matches of a key are one array, so that a row knows how many children it has, and which of them is which.
    """
    others = [column for column in table.columns if column not in on]
    matches = table.groupBy(*map(quoted, on)).agg(_as_array(table, others).alias(CHILDREN))
    found = frame.join(matches, on, "left")
    if keep_unmatched:
        nothing = F.lit(None).cast(matches.schema[CHILDREN].dataType.elementType)  # type: ignore[attr-defined]
        found = found.withColumn(CHILDREN, F.coalesce(CHILDREN, F.array(nothing)))
    own = [quoted(column) for column in frame.columns if column not in (anchor_column.COLUMN, DROPPED)]
    return _one_row_per_child(found, own, [F.col(f"{_CHILD}.{quoted(column)}") for column in others], name)


def matched(left: DataFrame, right: DataFrame, on: list[str], how: str, name: str) -> DataFrame:
    """Join two tracked DataFrames. Each row is anchored to the two it was made of; unmatched ones are marked as dropped."""
    keys = [quoted(column) for column in on]
    sides = [
        frame.groupBy(*keys).agg(_as_array(frame, [c for c in frame.columns if c not in on]).alias(side))
        for frame, side in ((left, _LEFT), (right, _RIGHT))
    ]
    met = sides[0].join(sides[1], on, "full")
    lonely = {_LEFT: F.col(_RIGHT).isNull(), _RIGHT: F.col(_LEFT).isNull()}
    kept = (~lonely[_LEFT] & ~lonely[_RIGHT]) | (lonely[_LEFT] & F.lit(how in ("left", "full")))
    kept = kept | (lonely[_RIGHT] & F.lit(how in ("right", "full")))
    arrays = [
        F.when(kept, F.coalesce(side, F.array(F.lit(None).cast(met.schema[side].dataType.elementType)))).alias(side)  # type: ignore[attr-defined]
        for side in (_LEFT, _RIGHT)
    ]
    every = F.expr(f"flatten(transform({_LEFT}, row -> row.{anchor_column.COLUMN}))")
    every_right = F.expr(f"flatten(transform({_RIGHT}, row -> row.{anchor_column.COLUMN}))")
    rows = met.select(*keys, *arrays, F.when(~kept, F.coalesce(every, every_right)).alias(CHILDREN))
    rows = rows.select(
        *keys, _RIGHT, CHILDREN, F.size(_LEFT).alias(_COUNT), F.posexplode_outer(_LEFT).alias(_PLACE, _LEFT)
    )
    size = F.size(_RIGHT).alias(_OTHER_COUNT)
    rows = rows.select(
        *keys, _LEFT, CHILDREN, _COUNT, _PLACE, size, F.posexplode_outer(_RIGHT).alias(_POSITION, _RIGHT)
    )
    anchors = [
        f"coalesce({_split_edges(name, f'{_LEFT}.{anchor_column.COLUMN}', _POSITION, _OTHER_COUNT)}, array())",
        f"coalesce({_split_edges(name, f'{_RIGHT}.{anchor_column.COLUMN}', _PLACE, _COUNT)}, array())",
    ]
    output = [
        F.col(f"{side}.{quoted(column)}")
        for frame, side in ((left, _LEFT), (right, _RIGHT))
        for column in frame.columns
        if column not in (*on, anchor_column.COLUMN)
    ]
    return rows.select(
        *keys,
        *output,
        F.coalesce(CHILDREN, F.expr(f"concat({anchors[0]}, {anchors[1]})")).alias(anchor_column.COLUMN),
        F.when(F.col(CHILDREN).isNotNull(), F.lit(name)).alias(DROPPED),
    )


def grouped(frame: DataFrame, keys: list[str | Column], aggregates: list[Column]) -> DataFrame:
    """One row per group, with the anchors of all its rows. They are combined per root where Python reads them next.

    A group's edge of a root is the XOR of the edges it took in: acking those with the new one folded in would be XOR by
    zero, so nothing has to be sent.
    """
    every = F.flatten(F.collect_list(anchor_column.COLUMN)).alias(anchor_column.COLUMN)
    return frame.groupBy(*keys).agg(*aggregates, every)


def _one_row_per_child(frame: DataFrame, own: list[str], output: list[Column], name: str) -> DataFrame:
    """Rows for the elements of `CHILDREN`; one marked as dropped by `name` where it is empty or null."""
    rows = _without_dropped(frame).select(
        *own,
        anchor_column.COLUMN,
        _dropped_by(frame).alias(DROPPED),
        F.coalesce(F.size(CHILDREN), F.lit(0)).alias(_COUNT),
        F.posexplode_outer(CHILDREN).alias(_POSITION, _CHILD),
    )
    return rows.select(
        *own,
        *output,
        F.expr(_split_edges(name, anchor_column.COLUMN, _POSITION, _COUNT)).alias(anchor_column.COLUMN),
        F.coalesce(DROPPED, F.when(F.col(_POSITION).isNull(), F.lit(name))).alias(DROPPED),
    )


def _without_dropped(frame: DataFrame) -> DataFrame:
    """No `CHILDREN` for rows that were dropped before."""
    if DROPPED not in frame.columns:
        return frame
    return frame.withColumn(CHILDREN, F.when(F.col(DROPPED).isNull(), F.col(CHILDREN)))


def _as_array(frame: DataFrame, columns: list[str]) -> Column:
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
        return all(_has_order(field.dataType) for field in kind.fields)
    return not isinstance(kind, (MapType, VariantType))


def _split_edges(name: str, column: str, position: str, count: str) -> str:
    """The anchors of the child at `position` of `count`, as an SQL expression over the parent's in `column`."""
    operator = literal(name)

    def edge(parent: str) -> str:
        def cut(place: str) -> str:
            return f"xxhash64({parent}, {operator}, {place})"

        first, last = f"{position} = 0", f"{position} = {count} - 1"
        begin, end = f"IF({first}, {parent}, {cut(position)})", f"IF({last}, 0L, {cut(f'{position} + 1')})"
        return f"IF({count} < 2, {parent}, {begin} ^ {end})"

    # One root is the common case, and compiled; the general one walks the array.
    general = f"transform({column}, (value, place) -> IF(place % 2 = 0, value, {edge('value')}))"
    return f"IF(size({column}) = 2, array({column}[0], {edge(column + '[1]')}), {general})"


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value


def _dropped_by(frame: DataFrame) -> Column:
    return F.col(DROPPED) if DROPPED in frame.columns else F.lit(None).cast("string")
