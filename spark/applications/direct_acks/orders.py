"""The first application: orders are messages, their items leave for another program, which acks them.

An order is done here when all of its items are acked there. This application need not know by which program.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import RunResult, Tracker, run_tracked

APP = "direct-acks"
ITEM = "order bigint, item string, count int"
BASKET = ("tea", "milk", "bread", "salt")
UNKNOWN_EVERY = 100
"""One order in so many has an item without a price."""

OVER = "over"
"""This file appears in the folder when all orders are done."""


def run(spark: SparkSession, acker: Acker, executor_url: str | None, orders: int, folder: Path) -> RunResult:
    """Export the items of so many orders, a folder of parquet files per emission, until every order is done."""
    folder.mkdir(parents=True, exist_ok=True)
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    messages = spark.range(orders).select(F.col("id").alias("order"))
    result = run_tracked(
        messages, partial(export, folder), acker=acker, executor_url=executor_url, ids="order",
        retry=RetryPolicy(max_attempts=2, first_delay_secs=0.1),
    )  # fmt: skip
    (folder / OVER).touch()
    return result


def export(folder: Path, tracker: Tracker, orders: DataFrame) -> None:
    """Run one emission: all orders, or those that are tried again."""
    items = tracker.flat_map(orders, items_of, ITEM, name="items")
    name = f"{tracker.run_id}-{tracker.emission}"
    draft = folder / f".{name}"
    tracker.export(items, lambda writer: writer.parquet(str(draft)), encoding="array", name="export")
    draft.rename(folder / name)  # it appears whole


def items_of(row: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
    """Derive a row per item."""
    order = row["order"]
    for place, item in enumerate(BASKET[: 1 + order % len(BASKET)]):
        yield order, item, 1 + (order + place) % 3
    if order % UNKNOWN_EVERY == UNKNOWN_EVERY - 1:
        yield order, "unicorn", 1
