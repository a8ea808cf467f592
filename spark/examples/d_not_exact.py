"""Drop rows without the tracker: the sink's proof detects it, and nothing is acked.

Prints:
    refused, and 0 acked
"""

from acker_redis import Acker, InexactPipelineError
from acker_redis.spark import run_tracked
from spark.examples import URL
from spark.support.session import quiet_session


def pipeline(tracker, rows):
    few = rows.where("id <> 2")  # bypasses the tracker; tracker.filter would be correct
    tracker.write(few, lambda writer: writer.format("noop").mode("append").save())


with quiet_session("local[2,4]", "not-exact") as spark, Acker.connect(URL, app="example-not-exact") as acker:
    before = acker.stats().acked
    try:
        run_tracked(spark.range(5), pipeline, acker=acker, ids="id")
    except InexactPipelineError:
        print(f"refused, and {acker.stats().acked - before} acked")
