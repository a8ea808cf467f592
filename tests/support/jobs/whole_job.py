"""A run whose output is a whole of two tables, killed between their writers the first time.

python -m tests.support.jobs.whole_job URL FOLDER
"""

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker
from acker_redis.spark import Tracker, run_tracked
from tests.support.spark.cluster import session
from tests.support.spark.faults import kill_self, once

APP = "whole"
MESSAGES = 200
BAD = {5, 6}
"""Messages that become dead letters."""


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    good = tracker.fail_where(messages, f"id IN ({', '.join(map(str, BAD))})", "bad", retry=False)
    sums = tracker.group_by(good, (F.col("id") % 4).alias("key"), F.sum("id").alias("sum"))
    tracker.write(sums, lambda writer: writer.mode("overwrite").parquet(str(folder / "first")))
    tracker.write_dataframe(sums, partial(second, folder))


def second(folder: Path, rows: DataFrame) -> None:
    once(folder / "killed", kill_self)
    rows.write.mode("overwrite").parquet(str(folder / "second"))


def main(url: str, folder: Path) -> None:
    spark = session(folder, {"spark.sql.shuffle.partitions": "2"})
    with Acker.connect(url, app=APP) as acker:
        result = run_tracked(spark.range(MESSAGES), partial(pipeline, folder), acker=acker, ids="id", output="whole")
    (folder / "acked").write_text(str(result.counts.acked))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
