"""A client of a remote server of Spark Connect that has the library installed: remote_stream_job SERVER REDIS FOLDER.

It is given to Python as a file, so the server can import neither it nor the tests. A stream parks and drains, and one run
exports rows for another. Prints what happened as JSON.
"""

import importlib.util
import json
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from pyspark.sql import SparkSession

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import TrackedBatches, run_exported, run_tracked

RETRY = RetryPolicy(max_attempts=2, first_delay_secs=0)


def append(folder: str) -> Any:
    return lambda writer: writer.mode("append").parquet(folder)


def streamed(spark: Any, acker: Acker, folder: str) -> dict[str, Any]:
    spark.range(40).write.parquet(f"{folder}/in")

    def pipeline(tracker: Any, messages: Any) -> None:
        kept = tracker.fail_where(messages, "id = 7", "seven")
        tracker.write(kept, append(f"{folder}/streamed"))

    checkpoint = f"{folder}/checkpoint"
    handler = TrackedBatches(
        pipeline,
        acker=acker,
        ids="id",
        retry=RETRY,
        parking_location=f"{folder}/parked",
        checkpoint_location=checkpoint,
    )
    with handler:
        stream = spark.readStream.schema("id bigint").parquet(f"{folder}/in").writeStream.foreachBatch(handler)
        stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        parked = handler.drain(timeout_secs=120).parked
    return {"parked": len(parked), "written": spark.read.parquet(f"{folder}/streamed").count()}


def exported(spark: Any, acker: Acker, folder: str) -> dict[str, Any]:
    def first(tracker: Any, messages: Any) -> None:
        tracker.export(messages, append(f"{folder}/exported"))

    def second(tracker: Any, rows: Any) -> None:
        tracker.write(rows, append(f"{folder}/done"))

    results: list[Any] = []  # the first run waits for the second
    first_run = Thread(
        target=lambda: results.append(run_tracked(spark.range(20), first, acker=acker, ids="id", retry=RETRY))
    )
    first_run.start()
    while first_run.is_alive() and not Path(folder, "exported", "_SUCCESS").exists():
        first_run.join(0.2)
    run_exported(spark.read.parquet(f"{folder}/exported"), second, acker=acker, spout_id=1, retry=RETRY)
    first_run.join()
    return {"acked": results[0].counts.acked, "done": spark.read.parquet(f"{folder}/done").count()}


def main() -> None:
    server, redis_url, folder = sys.argv[1:]
    assert not any(map(importlib.util.find_spec, ("py4j", "pyspark.core"))), "this is no client alone"
    spark = SparkSession.builder.remote(server).getOrCreate()
    with Acker.connect(redis_url, app="remote-stream", message_timeout_secs=600, lanes=2) as acker:
        shown = {**streamed(spark, acker, folder), **exported(spark, acker, folder)}
        shown["letters"] = [letter.message_id for letter in acker.dead_letters.read()]
    sys.stdout.write(json.dumps(shown) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
