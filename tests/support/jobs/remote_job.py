"""A client of a remote server of Spark Connect, in an environment with pyspark-client alone: remote_job SERVER REDIS FOLDER.

It is given to Python as a file, so the server can import neither it nor the tests. Prints what happened as JSON.
"""

import importlib.util
import json
import sys

from pyspark.sql import SparkSession

from acker_redis import Acker, RetryPolicy, RowFailedError
from acker_redis.spark import run_tracked, ship


def halves(row):
    if row["id"] == 7:
        raise RowFailedError("seven")
    return [(row["id"], part) for part in range(2)]


def swallow(batches, partition):
    for _ in batches:
        pass


def main() -> None:
    server, redis_url, folder = sys.argv[1:]
    assert not any(map(importlib.util.find_spec, ("py4j", "pyspark.core"))), "this is no client alone"
    spark = SparkSession.builder.remote(server).getOrCreate()
    ship(spark)

    def pipeline(tracker, messages):
        rows = tracker.flat_map(tracker.filter(messages, "id < 150"), halves, "id bigint, part int")
        tracker.write(rows.repartition(3, "part"), lambda writer: writer.mode("append").parquet(folder))
        tracker.write_partitions(rows, swallow)

    with Acker.connect(redis_url, app="remote", message_timeout_secs=600) as acker:
        retry = RetryPolicy(max_attempts=2, first_delay_secs=0)
        result = run_tracked(spark.range(0, 200, 1, 4), pipeline, acker=acker, ids="id", retry=retry)
        sys.stdout.write(
            json.dumps(
                {
                    "acked": result.counts.acked,
                    "letters": {number: letter.detail for number, letter in result.dead_letters.items()},
                    "pending": acker.stats().pending,
                    "written": spark.read.parquet(folder).distinct().count(),
                }
            )
            + "\n"
        )
    spark.stop()


if __name__ == "__main__":
    main()
