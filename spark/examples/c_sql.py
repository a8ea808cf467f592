"""Split rows in SQL: only failed rows go through Python.

Prints:
    2 orders acked
    order 3: no items
"""

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def pipeline(tracker, orders):
    good = tracker.fail_where(orders, "items = ''", "no items", retry=False)
    items = tracker.explode(good, "transform(split(items, ' '), item -> struct(id, item))")
    wanted = tracker.filter(items, "item <> 'milk'")
    tracker.write(wanted, lambda writer: writer.format("noop").mode("append").save())


with quiet_session("local[2,4]", "sql") as spark, Acker.connect(URL, app="example-sql") as acker:
    orders = spark.createDataFrame([(1, "tea milk"), (2, "bread"), (3, "")], "id bigint, items string")
    result = run_tracked(orders, pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=2))
    print(f"{result.counts.acked} orders acked")
    for letter in result.dead_letters.values():
        print(f"order {letter.message_id}: {letter.detail}")
