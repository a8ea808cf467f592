"""Bolts in SQL: no Python per row, and no update to send for the rows they derive.

An edge is split: the children's edges are derived as ever, but for the last one, which is chosen so that all of them XOR
to the parent's edge. Then acking the parent with its children folded in would XOR by zero, and need not be sent. The tree
is complete when all leaves were acked, as before; any part of the children XORs to the parent by chance only.

Input rows without children have to be acked. They stay in the result as rows with `DROPPED` set, until the next step in a
Python worker acks them under the token of the operator that dropped them, and leaves them out.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from acker_redis.errors import BadBatchError
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark.operators import DROPPED

_CHILDREN, _CHILD, _POSITION, _COUNT = "_acker_children", "_acker_child", "_acker_position", "_acker_count"


def filtered(frame: DataFrame, condition: str | Column, name: str) -> DataFrame:
    """The same rows, those that don't meet the condition marked as dropped by `name`."""
    wanted = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
    return frame.withColumn(DROPPED, F.coalesce(_dropped_by(frame), F.when(~wanted, F.lit(name))))


def exploded(frame: DataFrame, children: str | Column, name: str) -> DataFrame:
    """One row per element of the array `children`; one marked as dropped where it is empty or null.

    Raises:
        BadBatchError: `children` is not an array.
    """
    value = F.expr(children) if isinstance(children, str) else children
    marked = frame.withColumn(_CHILDREN, value)
    kind = marked.schema[_CHILDREN].dataType
    if not isinstance(kind, ArrayType):
        raise BadBatchError(f"{name!r}: expected an array of the rows to derive, got {kind.simpleString()}")
    if DROPPED in frame.columns:
        marked = marked.withColumn(_CHILDREN, F.when(F.col(DROPPED).isNull(), F.col(_CHILDREN)))
    rows = marked.select(
        anchor_column.COLUMN,
        _dropped_by(frame).alias(DROPPED),
        F.coalesce(F.size(_CHILDREN), F.lit(0)).alias(_COUNT),
        F.posexplode_outer(_CHILDREN).alias(_POSITION, _CHILD),
    )
    element = kind.elementType
    columns = [f"{_CHILD}.`{field.name}`" for field in element.fields] if isinstance(element, StructType) else []
    output = [F.col(column) for column in columns] or [F.col(_CHILD).alias("value")]
    return rows.select(
        *output,
        F.expr(_split_edges(name)).alias(anchor_column.COLUMN),
        F.coalesce(DROPPED, F.when(F.col(_POSITION).isNull(), F.lit(name))).alias(DROPPED),
    )


def _split_edges(name: str) -> str:
    """The anchors of the child at `_POSITION` of `_COUNT`, as an SQL expression over the parent's."""
    operator = "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
    column = anchor_column.COLUMN

    def edge(parent: str) -> str:
        others = f"sequence(0, {_COUNT} - 2)"
        last = f"aggregate({others}, {parent}, (acc, i) -> acc ^ xxhash64({parent}, {operator}, i))"
        return (
            f"CASE WHEN {_COUNT} < 2 THEN {parent} WHEN {_POSITION} < {_COUNT} - 1 "
            f"THEN xxhash64({parent}, {operator}, {_POSITION}) ELSE {last} END"
        )

    # One root is the common case, and compiled; the general one walks the array.
    general = f"transform({column}, (value, place) -> IF(place % 2 = 0, value, {edge('value')}))"
    return f"IF(size({column}) = 2, array({column}[0], {edge(column + '[1]')}), {general})"


def _dropped_by(frame: DataFrame) -> Column:
    return F.col(DROPPED) if DROPPED in frame.columns else F.lit(None).cast("string")
