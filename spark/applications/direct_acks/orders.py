"""First application: orders are messages, and their items are exported to another program, which acks them.

An order is done here once all its items are acked there. This application doesn't need to know which program acks them.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import RunResult, Tracker, run_tracked
from spark.support.session import parallelism

APP = "direct-acks"
ITEM = "order bigint, item string, count int"
BASKET = ("tea", "milk", "bread", "salt")
UNKNOWN_EVERY = 100
"""One order in this many has an item without a price."""

OVER = "over"
"""Name of the file that appears in the folder once all orders are done."""


def run(spark: SparkSession, acker: Acker, executor_url: str | None, orders: int, folder: Path) -> RunResult:
    """Export the items of orders, one folder of Parquet files per emission, until every order is done."""
    folder.mkdir(parents=True, exist_ok=True)
    spark.conf.set("spark.sql.shuffle.partitions", parallelism(spark))
    messages = spark.range(orders).select(F.col("id").alias("order"))
    result = run_tracked(
        messages, partial(export, folder), acker=acker, executor_url=executor_url, ids="order",
        retry=RetryPolicy(max_attempts=2, first_delay_secs=0.1),
    )  # fmt: skip
    (folder / OVER).touch()
    return result


def export(folder: Path, tracker: Tracker, orders: DataFrame) -> None:
    """Run one emission: all orders, or orders to retry."""
    items = tracker.flat_map(orders, items_of, ITEM, name="items")
    name = f"{tracker.run_id}-{tracker.emission}"
    draft = folder / f".{name}"
    tracker.export(items, lambda writer: writer.parquet(str(draft)), encoding="array", name="export")
    draft.rename(folder / name)  # it is complete when it appears


def items_of(row: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
    """Derive a row per item."""
    order = row["order"]
    for place, item in enumerate(BASKET[: 1 + order % len(BASKET)]):
        yield order, item, 1 + (order + place) % 3
    if order % UNKNOWN_EVERY == UNKNOWN_EVERY - 1:
        yield order, "unicorn", 1
