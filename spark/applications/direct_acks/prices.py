"""Second application: its executors price and write items, and ack each one directly with the bare acker.

It has no tracker and no pipeline: rows carry their roots and edges in the column `anchors`, and `foreachPartition` does the
rest. Any program that has the edges can ack them, with or without Spark.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from acker_redis import Acker
from spark.applications.direct_acks.orders import OVER

PRICES = {"tea": 300, "milk": 120, "bread": 250, "salt": 90}
COMPONENT = "price"


@cache
def acker_of_worker(url: str, app: str) -> Acker:
    """Open one acker per Python worker, which Spark reuses for its tasks. The server has the app's settings."""
    return Acker.open_existing(url, app)


def price_partition(url: str, app: str, name: str, target: Path, rows: Iterable[Row]) -> None:
    """Price the rows of a partition, then ack them.

    The acks are sent after the rows are written, never before. A task that runs again writes the same file and sends the same
    batch with the same idempotency key, so it counts once: `name` and the partition number are the same in each run.
    """
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    with acker_of_worker(url, app).batch(idempotency_key=f"{name}:{partition}") as batch:
        priced = []
        for row in rows:
            roots, edges = row.anchors[::2], row.anchors[1::2]
            if row.item in PRICES:
                priced.append({"order": row.order, "item": row.item, "price": PRICES[row.item] * row["count"]})
                batch.ack_many(roots, edges, component=COMPONENT)
            else:  # the order fails upstream, and is exported again or becomes a dead letter there
                batch.fail_many(roots, reason=f"no price of {row.item!r}", component=COMPONENT)
        draft = target / f".{name}-{partition}"
        draft.write_text("".join(json.dumps(row) + "\n" for row in priced), encoding="utf-8")
        draft.rename(target / f"{name}-{partition}.jsonl")


def run(spark: SparkSession, url: str, app: str, folder: Path, target: Path, pause: Callable[[], object]) -> int:
    """Process exported folders as they appear, until all orders are done. Return the number of folders."""
    target.mkdir(parents=True, exist_ok=True)
    done: set[str] = set()
    while not (folder / OVER).exists():
        for exported in sorted(path for path in folder.glob("[!.]*") if path.is_dir() and path.name not in done):
            items = spark.read.parquet(str(exported))
            items.foreachPartition(partial(price_partition, url, app, exported.name, target))
            done.add(exported.name)
        pause()
    return len(done)
