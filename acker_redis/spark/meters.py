"""Sums that Spark takes while rows pass: CollectMetrics nodes, by the name of which the listener finds them again."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.spark.columns import CHILDLESS, EDGE, OUT
from acker_redis.spark.edges import LOW_BITS, joined

PREFIX = "acker:"
"""Of the names of all meters."""

Metrics = Mapping[str, tuple[Any, ...]]
"""Name of a meter -> its row."""


class Passed(NamedTuple):
    """What passed a meter.

    Attributes:
        edges: their sum.
        rows: how many.
    """

    edges: int
    rows: int


class Left(NamedTuple):
    """What left a step in Python.

    Attributes:
        dropped: rows without children.
        failed: rows that failed.
        reports: numbers of the reports that name the failed ones, of the tasks whose rows passed.
    """

    dropped: Passed
    failed: Passed
    reports: frozenset[int]

    @property
    def edges(self) -> int:
        """The sum of all that left."""
        return self.dropped.edges + self.failed.edges


def passing(frame: DataFrame, meter: str, rows: Column | None = None) -> DataFrame:
    """Meter all rows. `rows`: how many a row stands for, if not for itself."""
    count = F.count(F.lit(1)) if rows is None else F.sum(rows)
    return frame.observe(meter, *_sums(F.col(EDGE)), count.alias("rows"))


def passed(metrics: Metrics, meter: str) -> Passed:
    """What `passing` metered, or one of `leaving_sql`."""
    low, high, rows = metrics[meter]
    return Passed(joined(low, high), rows or 0)


def leaving(frame: DataFrame, gone: Column, meter: str, rows: Column | None = None) -> DataFrame:
    """Meter the rows for which `gone` is true; they stay. `rows`: how many a row stands for, if not for itself."""
    lost = F.when(gone, F.col(EDGE))
    count = F.count(F.when(gone, 1)) if rows is None else F.sum(F.when(gone, rows))
    return frame.observe(meter, *_sums(lost), count.alias("rows"))


def leaving_python(frame: DataFrame, meter: str, rows: Column) -> DataFrame:
    """Meter the residue rows of a step in Python, by `OUT`; they stay.

    Args:
        frame: with a column `OUT`.
        meter: name.
        rows: how many rows a residue row stands for.
    """
    out = F.col(OUT)
    dropped, failed = out == CHILDLESS, out > CHILDLESS
    return frame.observe(
        meter,
        *_sums(F.when(dropped, F.col(EDGE))), F.sum(F.when(dropped, rows)).alias("rows"),
        *_sums(F.when(failed, F.col(EDGE)), "failed_"), F.sum(F.when(failed, rows)).alias("failed_rows"),
        F.collect_set(F.when(failed, out)).alias("reports"),
    )  # fmt: skip


def left_python(metrics: Metrics, meter: str) -> Left:
    """What `leaving_python` metered."""
    low, high, rows, failed_low, failed_high, failed_rows, reports = metrics[meter]
    return Left(
        Passed(joined(low, high), rows or 0),
        Passed(joined(failed_low, failed_high), failed_rows or 0),
        frozenset(reports),
    )


def _sums(edge: Column, prefix: str = "") -> tuple[Column, Column]:
    low = F.sum(edge.bitwiseAND(F.lit((1 << LOW_BITS) - 1)))
    return low.alias(f"{prefix}low"), F.sum(F.shiftright(edge, LOW_BITS)).alias(f"{prefix}high")
