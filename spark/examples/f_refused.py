"""Fail only the rows of a partition that a store refused, with its reasons. The others are acked.

Prints:
    4 acked
    message 3: too long
"""

from acker_redis import Acker, RetryPolicy, RowsRefusedError
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def to_store(batches, partition):
    names = [name for batch in batches for name in batch.column("name").to_pylist()]
    refused = {number: "too long" for number, name in enumerate(names) if len(name) > 5}
    if refused:
        raise RowsRefusedError(refused)


def pipeline(tracker, rows):
    tracker.write_partitions(rows, to_store, on_error="fail")


with quiet_session("local[2,4]", "refused") as spark, Acker.connect(URL, app="example-refused") as acker:
    rows = spark.createDataFrame(enumerate(["tea", "milk", "bread", "unicorn", "salt"]), "id bigint, name string")
    result = run_tracked(rows, pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=1))
    print(f"{result.counts.acked} acked")
    print(*(f"message {letter.message_id}: {letter.detail}" for letter in result.dead_letters.values()), sep="\n")
