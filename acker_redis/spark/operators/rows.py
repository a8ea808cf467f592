"""Operators in SQL that work row by row.

Each child has a part of its parent's share. Removed rows are metered.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark import checks
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.equation import Equation, note, with_columns
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import FAILURE, OUT, ROOTS, SHARE, STAYS, VALUE
from acker_redis.spark.runtime import frames
from acker_redis.spark.sql import quoted

CHILDREN, CHILD = "_acker_children", "_acker_child"
"""An array column, and the column of its elements once each has its own row."""

_REMOVED, _COUNT, _PLACE = (f"_acker_{name}" for name in ("removed", "count", "place"))
_FAILS, _REASON = "_acker_fails", "_acker_reason"

MAX_TEXT_CHARS = 200
"""Longest reason of a row that SQL fails, in characters."""

MAX_TEXTS = 100_000
"""Messages of an emission up to which every reason has its text.

Above, only a share of the reasons has, chosen by hash. It is also the number of texts, of whatever rows, that are reported.
A hundred thousand are 25 MB, which every session can collect.
"""


def filtered(frame: DataFrame, condition: str | Column, meter: str, equation: Equation) -> DataFrame:
    """Keep rows that meet a condition. The others are metered before they are dropped.

    Shares aren't negative, so a row that doesn't meet the condition is marked by its negated share: the condition is evaluated
    once, and Spark has no further column to add and to drop, each of which takes milliseconds.
    """
    negated = f"~coalesce({SHARE}, 0L)"
    if isinstance(condition, str) and frames.is_checked_expression(frame, condition):
        # It may end in a comment. `NOT` takes no `*`.
        marked: str | Column = f"IF(coalesce(NOT (\n{condition}\n), true), {negated}, {SHARE})"
    else:
        marked = F.when(_is_unmet(condition), F.expr(negated)).otherwise(F.col(SHARE))
    is_removed = f"coalesce({SHARE}, 0L) < 0L"
    metered = meters.meter_removed(with_columns(frame, {SHARE: marked}, equation), is_removed, meter, share=f"~{SHARE}")
    return note(metered.where(f"NOT ({is_removed})"), equation)


def without_failed(
    frame: DataFrame, condition: str | Column, reason: Column, meter: str, equation: Equation, messages: int
) -> DataFrame:
    """Meter and drop rows that meet a condition, with the reason of each.

    Args:
        frame: tracked rows.
        condition: the condition.
        reason: text of each row.
        meter: name of the meter.
        equation: equation of the rows that remain.
        messages: number of messages of the emission, which limits the reasons whose text is collected.
    """
    fails = ~_is_unmet(condition)
    text = F.when(F.col(_FAILS), F.substring(F.coalesce(reason.cast("string"), F.lit("")), 1, MAX_TEXT_CHARS))
    marked = with_columns(frame.withColumn(_FAILS, fails), {_REASON: text, SHARE: SHARE}, equation)
    part = max(1, -(-messages // MAX_TEXTS))
    texts = f"pmod(xxhash64({_REASON}), {part}) = 0"
    metered = meters.meter_failed(marked, _FAILS, _REASON, meter, texts=texts, most_texts=MAX_TEXTS)
    return note(frames.without(metered.where(f"NOT {_FAILS}"), _FAILS, _REASON), equation)


def without_removed_in_python(frame: DataFrame, meter: str) -> DataFrame:
    """Keep the output rows of a step in Python. Rows that represent removed ones are metered.

    Their roots column holds the number of rows that they represent.
    """
    root = f"get({ROOTS}, 0)"
    metered = meters.meter_removed_in_python(frame, meter, root, root=root)
    return frames.without(metered.where(f"{OUT} = {STAYS}"), OUT, FAILURE)


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
        checks.check_column_names(kind.elementType.names, name)
        output = [F.col(f"{CHILD}.{quoted(column)}") for column in kind.elementType.names]
    else:
        output = [F.col(CHILD).alias(VALUE)]
    return one_row_per_child(marked, [], output, name, meter, equation)


def without_removed(frame: DataFrame, column: str, is_removed: str, meter: str, rows: str = "1") -> DataFrame:
    """Meter and drop the rows that `is_removed` selects.

    `is_removed` is SQL over `column`, which is dropped, too.
    """
    return frames.without(meters.meter_removed(frame, is_removed, meter, rows).where(f"NOT ({is_removed})"), column)


def one_row_per_child(
    frame: DataFrame, own: Sequence[str], output: Sequence[Column], name: str, meter: str, equation: Equation
) -> DataFrame:
    """Return a row for each element of `CHILDREN`, with a part of its parent's share."""
    counted = frame.withColumn(_COUNT, F.expr(f"cast(greatest(coalesce(size({CHILDREN}), 0), 0) AS bigint)"))
    kept = without_removed(counted.withColumn(_REMOVED, F.expr(f"{_COUNT} = 0")), _REMOVED, _REMOVED, meter)
    rows = kept.select(*own, SHARE, ROOTS, _COUNT, F.posexplode(CHILDREN).alias(_PLACE, CHILD))
    part = shares.split_in_sql(SHARE, shares.salt_of(name), f"cast({_PLACE} AS bigint)", _COUNT)
    return rows.select(*own, *output, equation.share_column(part), ROOTS)


def _is_unmet(condition: str | Column) -> Column:
    """Build a column that is true for rows that don't meet a condition, also where it is null."""
    return F.coalesce(~_column(condition), F.lit(True))


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
