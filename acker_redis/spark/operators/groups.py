"""Groups in SQL. Each output row has the sum of the shares of its group."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.spark import sql
from acker_redis.spark.operators.tracking import roots_in_sql
from acker_redis.spark.proof.equation import Equation, with_columns
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ROOTS, SHARE

_LOW, _HIGH = "_acker_low", "_acker_high"
_LEAST, _GREATEST, _COUNT = "_acker_least", "_acker_greatest", "_acker_count"


def grouped(
    frame: DataFrame, keys: Sequence[str | Column], aggregates: Sequence[Column], equation: Equation
) -> DataFrame:
    """Return one row per group, with the sum of its rows' shares, and their roots."""
    groups = frame.groupBy(*keys).agg(
        *aggregates,
        F.sum(F.expr(f"{SHARE} & {(1 << shares.LOW_BITS) - 1}L")).alias(_LOW),
        F.sum(F.shiftright(SHARE, shares.LOW_BITS)).alias(_HIGH),
        equation.roots_column(f"array_distinct(flatten(collect_set({roots_in_sql()})))"),
    )
    high = f"shiftleft({_HIGH} & {(1 << (shares.BITS - shares.LOW_BITS)) - 1}L, {shares.LOW_BITS})"
    total = F.expr(f"(({_LOW} & {shares.MASK}L) + {high}) & {shares.MASK}L")
    return with_columns(groups, {SHARE: total}, equation).drop(_LOW, _HIGH)


def grouped_by_message(
    frame: DataFrame, keys: Sequence[str | Column], aggregates: Sequence[Column], name: str, equation: Equation
) -> DataFrame:
    """Group like `grouped`, by keys that include the message id.

    A group with rows of several messages fails the job.
    """
    roots = [
        F.expr(f"{function}(get({ROOTS}, 0))").alias(column)
        for function, column in (("min", _LEAST), ("max", _GREATEST))
    ]
    most = F.expr(f"max(size({ROOTS}))").alias(_COUNT)
    groups = grouped(frame, keys, [*aggregates, *roots, most], equation)
    return _refuse_several(groups, f"{_LEAST} <> {_GREATEST} OR {_COUNT} > 1", name, equation).drop(
        _LEAST, _GREATEST, _COUNT
    )


def of_one_message(frame: DataFrame, name: str, equation: Equation) -> DataFrame:
    """Check that each row comes from at most one message. A row of several messages fails the job."""
    return _refuse_several(frame, f"size({ROOTS}) > 1", name, equation)


def _refuse_several(frame: DataFrame, several: str, name: str, equation: Equation) -> DataFrame:
    text = (  # on a line of its own, as `worker_errors` reads it
        f"\nacker_redis.errors.InexactPipelineError: {name!r}: rows of several messages came together, although a key has the "
        "name of the column of message ids. The column probably holds other values now. Rename it, and pass partial=True if "
        "rows of this emission's messages may come together.\n"
    )
    checked = F.expr(f"IF({several}, raise_error({sql.literal(text)}), {SHARE})")
    return with_columns(frame, {SHARE: checked}, equation)
