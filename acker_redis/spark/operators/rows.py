"""Operators in SQL that work row by row.

Each child has a part of its parent's share. Removed rows are metered.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.protocol import arguments, shares
from acker_redis.spark.protocol.arguments import quoted
from acker_redis.spark.protocol.columns import OUT, ROOTS, SHARE, STAYS, VALUE

CHILDREN, CHILD = "_acker_children", "_acker_child"
"""An array column, and the column of its elements once each has its own row."""

_MEETS, _REMOVED, _COUNT, _PLACE = (f"_acker_{name}" for name in ("meets", "removed", "count", "place"))


def filtered(frame: DataFrame, condition: str | Column, meter: str, equation: Equation) -> DataFrame:
    """Keep rows that meet a condition. The others are metered before they are dropped."""
    marked = frame.withColumns({_MEETS: _column(condition), SHARE: equation.share_column(SHARE)})
    return without_removed(marked, _MEETS, f"NOT coalesce({_MEETS}, false)", meter)


def without_failed(frame: DataFrame, meter: str) -> DataFrame:
    """Keep rows that `worker.fail_where` has not failed.

    The others are metered. Their `OUT` is the number of a failure.
    """
    return metrics.meter_removed_in_python(frame, meter, "1").where(f"{OUT} = {STAYS}").drop(OUT)


def without_removed_in_python(frame: DataFrame, meter: str) -> DataFrame:
    """Keep the output rows of a step in Python. Rows that represent removed ones are metered.

    Their roots column holds the number of rows that they represent.
    """
    root = f"get({ROOTS}, 0)"
    return metrics.meter_removed_in_python(frame, meter, root, root=root).where(f"{OUT} = {STAYS}").drop(OUT)


def exploded(frame: DataFrame, children: str | Column, name: str, meter: str, equation: Equation) -> DataFrame:
    """Return one row per element of the array `children`.

    Rows with an empty or null array are metered and dropped.

    Raises:
        PipelineError: `children` is not an array, or its structs have a field with a name reserved for the tracker.
    """
    marked = frame.withColumn(CHILDREN, _column(children))
    kind = marked.schema[CHILDREN].dataType
    if not isinstance(kind, ArrayType):
        raise PipelineError(
            f"{name!r}: children is {kind.simpleString()}, not an array. Pass an array of the rows to derive."
        )
    if isinstance(kind.elementType, StructType):
        arguments.check_column_names(kind.elementType.names, name)
        output = [F.col(f"{CHILD}.{quoted(column)}") for column in kind.elementType.names]
    else:
        output = [F.col(CHILD).alias(VALUE)]
    return one_row_per_child(marked, [], output, name, meter, equation)


def without_removed(frame: DataFrame, column: str, is_removed: str, meter: str, rows: str = "1") -> DataFrame:
    """Meter and drop the rows that `is_removed` selects.

    `is_removed` is SQL over `column`, which is dropped, too.
    """
    return metrics.meter_removed(frame, is_removed, meter, rows).where(f"NOT ({is_removed})").drop(column)


def one_row_per_child(
    frame: DataFrame, own: Sequence[str], output: Sequence[Column], name: str, meter: str, equation: Equation
) -> DataFrame:
    """Return a row for each element of `CHILDREN`, with a part of its parent's share."""
    counted = frame.withColumn(_COUNT, F.expr(f"cast(greatest(coalesce(size({CHILDREN}), 0), 0) AS bigint)"))
    kept = without_removed(counted.withColumn(_REMOVED, F.expr(f"{_COUNT} = 0")), _REMOVED, _REMOVED, meter)
    rows = kept.select(*own, SHARE, ROOTS, _COUNT, F.posexplode(CHILDREN).alias(_PLACE, CHILD))
    part = shares.split_in_sql(SHARE, shares.salt_of(name), f"cast({_PLACE} AS bigint)", _COUNT)
    return rows.select(*own, *output, equation.share_column(part), ROOTS)


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
