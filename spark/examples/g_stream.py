"""Park a bad message while a streaming query continues; `drain` makes its remaining attempts.

Prints:
    2 acked, parked: {('failed', 'fail_where'): 1}
    1 dead letter
"""

from tempfile import TemporaryDirectory

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import TrackedBatches
from spark.examples import URL
from spark.support.session import quiet_session


def pipeline(tracker, rows):
    tracker.write(tracker.fail_where(rows, "id = 1", "odd"), lambda writer: writer.format("noop").mode("append").save())


with quiet_session("local[2,4]", "stream") as spark, Acker.connect(URL, app="example-stream") as acker:
    with TemporaryDirectory() as folder:
        spark.range(3).write.parquet(f"{folder}/in")
        batches = TrackedBatches(
            pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=2),
            parking_location=f"{folder}/parked", checkpoint_location=f"{folder}/c",
        )  # fmt: skip
        stream = spark.readStream.schema("id bigint").parquet(f"{folder}/in").writeStream.foreachBatch(batches)
        stream.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start().awaitTermination()
        print(f"{batches.status().counts.acked} acked, parked: {batches.status().parked}")
        print(f"{batches.drain(timeout_secs=60).counts.dead_lettered} dead letter")
