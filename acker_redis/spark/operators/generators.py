"""Refuse generators, such as explode(), in the arguments of operators. Each row that they make would have the whole share."""

import re
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import plans

_NAME = re.compile(r"\b(explode|posexplode|inline)(_outer)?\s*\(|\b(stack|json_tuple)\s*\(", re.IGNORECASE)
"""A call of a generator of Spark's, perhaps. The name may also be that of a user's function, or stand in a text."""


def refuse(frame: DataFrame, operator: str, argument: str, values: Iterable[str | Column]) -> None:
    """Check that no expression of an argument makes rows.

    Only an expression that looks as if it did costs an analysis by Spark.

    Raises:
        PipelineError: one makes rows. Nothing has run.
    """
    for value in values:
        found = _NAME.search(value if isinstance(value, str) else str(value))
        if found and _makes_rows(frame, value):
            raise PipelineError(
                f"{operator!r}: {argument} has {found[0].rstrip('( ')}(). The tracker can't account for rows that it makes. "
                "Pass an array to tracker.explode, which makes one row per element, and use its columns here."
            )


def _makes_rows(frame: DataFrame, value: str | Column) -> bool:
    made = frame.selectExpr(value) if isinstance(value, str) else frame.select(value)
    return _generators_in(made) > _generators_in(frame)


def _generators_in(frame: DataFrame) -> int:
    return plans.kinds_in(plans.analyzed_text(frame))["Generate"]
