"""Export rows with their own edges; another program acks them with the bare acker, with or without Spark.

Prints:
    3 acked
"""

from tempfile import TemporaryDirectory
from threading import Thread

from acker_redis import Acker
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def take(rows):  # the other application
    with Acker.open_existing(URL, "example-direct-ack") as other, other.batch(idempotency_key="all items") as batch:
        for row in rows:
            batch.ack_many(row.anchors[::2], row.anchors[1::2], component="taken")


def pipeline(tracker, rows):
    with TemporaryDirectory() as folder:
        tracker.export(rows, lambda writer: writer.mode("append").parquet(folder), encoding="array")
        Thread(target=take, args=[rows.sparkSession.read.parquet(folder).collect()]).start()


with quiet_session("local[2,4]", "export") as spark, Acker.connect(URL, app="example-direct-ack") as acker:
    print(f"{run_tracked(spark.range(3), pipeline, acker=acker, ids='id').counts.acked} acked")
