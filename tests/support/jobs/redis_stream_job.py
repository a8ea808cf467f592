"""A Redis stream through a pipeline, in a process of its own, which kills itself and its JVM at a point that it is given.

    python -m tests.support.jobs.redis_stream_job redis://127.0.0.1:6379/0 FOLDER POINT

Ends when every entry of the stream `orders` is acknowledged. Entries whose `id` ends in seven fail for ever.
"""

import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis
from pyspark.sql import DataFrame

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Progress, Tracker, run_redis_stream
from acker_redis.spark.runs.redis_group import RedisGroup
from tests.support.jobs.parking_job import CONFIG, die_at
from tests.support.spark.cluster import session

POINTS = ("read", "written", "acknowledging")


def main(url: str, folder: Path, point: str) -> None:
    """Until all is acknowledged, or until the point."""
    read, acknowledge = RedisGroup.read, RedisGroup.acknowledge

    def dying_read(group: RedisGroup, *args: Any) -> Any:
        found = read(group, *args)
        if found:
            die_at(point, "read")
        return found

    def dying_acknowledge(group: RedisGroup, entries: Any) -> None:
        if len(entries):
            die_at(point, "acknowledging")
        acknowledge(group, entries)

    stop = threading.Event()
    raw = redis.Redis.from_url(url)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.fail_where(
            messages.selectExpr("* EXCEPT (id)", "cast(id AS bigint) AS id"), "id % 10 = 7", "a seven"
        )
        tracker.write(kept, lambda writer: writer.mode("append").parquet(str(folder / "out")))
        die_at(point, "written")

    def progress(now: Progress) -> None:
        (group,) = raw.xinfo_groups("orders")
        last = raw.xinfo_stream("orders")["last-generated-id"]
        if group["pending"] == 0 and group["last-delivered-id"] == last and not now.is_emitting:
            stop.set()

    with patch.multiple(RedisGroup, read=dying_read, acknowledge=dying_acknowledge):
        spark = session(folder, {"spark.sql.shuffle.partitions": "2"})
        with Acker.connect(url, CONFIG) as acker:
            run_redis_stream(
                spark, pipeline, acker=acker, source=url, stream="orders", fields=["id"], group="g", consumer="one", stop=stop,
                max_spout_pending=40, block_ms=100, retry=RetryPolicy(max_attempts=3, first_delay_secs=0), progress=progress,
            )  # fmt: skip
        spark.stop()
        print(0)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
