"""Pipeline over orders: a flat_map function checks each, and valid ones go to both sinks."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from acker_redis import RowFailedError
from acker_redis.spark import Tracker
from spark.applications.order_stream.orders import HASTY_SECS, kind_of
from spark.applications.order_stream.store import Store

ORDER = "id bigint, item string, price string, made_ms bigint"
CHECKED = "id bigint, item string, cents bigint"


def pipeline(store: Store, tracker: Tracker, orders: DataFrame) -> None:
    """Run one emission."""
    checked = orders.transform(tracker.flat_map, partial(check, store.kill), CHECKED)
    tracker.write(checked, lambda writer: writer.mode("append").parquet(str(store.parquet)), name="parquet")
    tracker.write_dataframe(checked, lambda rows: store.insert(rows.collect()), name="sqlite")


def check(kill: Path, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check an order, and convert its price to cents."""
    _die_if_asked(kill)
    if kind_of(row["id"]) == "hasty" and time.time() < row["made_ms"] / 1000 + HASTY_SECS:
        raise RowFailedError("the customer is still choosing")
    if kind_of(row["id"]) == "hopeless":
        raise RuntimeError("out of stock")
    try:
        cents = round(float(row["price"]) * 100)
    except ValueError:
        raise RowFailedError(f"no price: {row['price']}", retry=False) from None
    yield {"id": row["id"], "item": row["item"], "cents": cents}


def _die_if_asked(kill: Path) -> None:
    """Remove the kill file and die, if it exists. Spark then retries the task."""
    if kill.exists():
        try:
            kill.unlink()
        except FileNotFoundError:  # another worker removed it
            return
        os.kill(os.getpid(), signal.SIGKILL)
