"""Split rows with a Python function: one order fails, and the others complete.

Prints:
    2 orders acked
    order 3: no items, after 2 attempts
"""

from acker_redis import Acker, RetryPolicy, RowFailedError
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def split(order):
    if not order["items"]:
        raise RowFailedError("no items")
    return [(order["id"], item) for item in order["items"].split()]


def pipeline(tracker, orders):
    items = orders.transform(tracker.flat_map, split, "id bigint, item string")
    tracker.write(items, lambda writer: writer.format("noop").mode("append").save())


with quiet_session("local[2,4]", "flat-map") as spark, Acker.connect(URL, app="example-flat-map") as acker:
    orders = spark.createDataFrame([(1, "tea milk"), (2, "bread"), (3, "")], "id bigint, items string")
    result = run_tracked(orders, pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=2))
    print(f"{result.counts.acked} orders acked")
    for letter in result.dead_letters.values():
        print(f"order {letter.message_id}: {letter.detail}, after {letter.attempts} attempts")
