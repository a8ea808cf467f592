"""Meters: sums that Spark computes while rows pass.

Meters are CollectMetrics nodes, which the listener finds by name. Expressions are SQL texts, because each method of a Column
costs half a dozen JVM calls. A micro-batch has no time for them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark.protocol.columns import CHILDLESS, OUT, SHARE, STAYS
from acker_redis.spark.protocol.shares import LOW_BITS, from_halves

PREFIX = "acker:"
"""Prefix of all meter names."""

Metrics = Mapping[str, tuple[Any, ...]]
"""Name of a meter -> its row."""


class Counted(NamedTuple):
    """Rows that a meter has counted.

    Attributes:
        shares: sum of their shares.
        rows: number of rows.
    """

    shares: int
    rows: int


class Processed(NamedTuple):
    """Rows that a step in Python has processed without failing.

    Attributes:
        rows: number of rows that it returned or dropped.
        roots: the least and the greatest root of these rows. Empty if there are none, or if they are unknown.
    """

    rows: int = 0
    roots: frozenset[int] = frozenset()


class Removed(NamedTuple):
    """Rows that a step in Python has removed, and rows that it has processed.

    Attributes:
        dropped: rows without children.
        failed: rows that failed.
        failures: numbers of the failures that name the failed rows, for the tasks whose rows were counted.
        processed: rows processed without failing.
    """

    dropped: Counted
    failed: Counted
    failures: frozenset[int]
    processed: Processed


def meter_all(frame: DataFrame, meter: str, rows: str = "1") -> DataFrame:
    """Meter all rows. `rows` is SQL for the number of rows that a row represents."""
    return _observed(frame, meter, *_sums(SHARE), f"sum({rows}) AS rows")


def read_counted(metrics: Metrics, meter: str) -> Counted:
    """Read the result of `meter_all` or `meter_removed`."""
    low, high, rows = metrics[meter]
    return Counted(from_halves(low, high), rows or 0)


def meter_removed(frame: DataFrame, is_removed: str, meter: str, rows: str = "1") -> DataFrame:
    """Meter the rows that are to be removed, without removing them.

    Args:
        frame: the rows.
        is_removed: SQL condition of the rows to meter.
        meter: name of the meter.
        rows: SQL for the number of rows that a row represents.
    """
    return _observed(
        frame, meter, *_sums(f"IF({is_removed}, {SHARE}, NULL)"), f"sum(IF({is_removed}, {rows}, NULL)) AS rows"
    )


def meter_removed_in_python(
    frame: DataFrame, meter: str, rows: str, stays: str = "1", root: str = "cast(NULL AS bigint)"
) -> DataFrame:
    """Meter the rows that represent removed rows of a step in Python, without dropping them.

    `OUT` says which rows these are.

    Args:
        frame: rows with a column `OUT`.
        meter: name of the meter.
        rows: SQL for the number of removed rows that such a row represents.
        stays: SQL for the number of rows that any other row represents.
        root: SQL for the root of any other row.
    """
    dropped, failed, other = f"{OUT} = {CHILDLESS}", f"{OUT} > {CHILDLESS}", f"{OUT} = {STAYS}"
    return _observed(
        frame, meter,
        *_sums(f"IF({dropped}, {SHARE}, NULL)"), f"sum(IF({dropped}, {rows}, NULL)) AS rows",
        *_sums(f"IF({failed}, {SHARE}, NULL)", "failed_"), f"sum(IF({failed}, {rows}, NULL)) AS failed_rows",
        f"collect_set(IF({failed}, {OUT}, NULL)) AS failures",
        f"sum(IF({other}, {stays}, NULL)) AS stayed",
        f"min(IF({other}, {root}, NULL)) AS first_root", f"max(IF({other}, {root}, NULL)) AS last_root",
    )  # fmt: skip


def read_removed(metrics: Metrics, meter: str) -> Removed:
    """Read the result of `meter_removed_in_python`."""
    low, high, rows, failed_low, failed_high, failed_rows, failures, stayed, first, last = metrics[meter]
    # The roots of dropped rows are unknown.
    roots = frozenset(root for root in (first, last) if root is not None) if not rows else frozenset()
    return Removed(
        Counted(from_halves(low, high), rows or 0),
        Counted(from_halves(failed_low, failed_high), failed_rows or 0),
        frozenset(failures),
        Processed((stayed or 0) + (rows or 0), roots),
    )


def _sums(share: str, prefix: str = "") -> tuple[str, str]:
    low, high = f"({share}) & {(1 << LOW_BITS) - 1}L", f"shiftright({share}, {LOW_BITS})"
    return f"sum({low}) AS {prefix}low", f"sum({high}) AS {prefix}high"


def _observed(frame: DataFrame, meter: str, *sums: str) -> DataFrame:
    return frame.observe(meter, *(F.expr(expression) for expression in sums))
