"""Write to two sinks: a message is done once the last one has its rows.

Prints:
    4 acked, 4 rows in all, 2 of them large
"""

from functools import partial
from tempfile import TemporaryDirectory

from acker_redis import Acker
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def pipeline(folder, tracker, rows):
    tracker.write(rows, lambda writer: writer.mode("append").parquet(f"{folder}/all"), name="save-all")
    large = tracker.filter(rows, "id > 1")
    tracker.write(large, lambda writer: writer.mode("append").parquet(f"{folder}/large"), name="save-large")


with quiet_session("local[2,4]", "sinks") as spark, Acker.connect(URL, app="example-sinks") as acker:
    with TemporaryDirectory() as folder:
        result = run_tracked(spark.range(4), partial(pipeline, folder), acker=acker, ids="id")
        everything, large = (spark.read.parquet(f"{folder}/{name}").count() for name in ("all", "large"))
        print(f"{result.counts.acked} acked, {everything} rows in all, {large} of them large")
