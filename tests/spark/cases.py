"""One emission on real Spark and a real server, and what became of it."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from acker_redis import Acker, AckerConfig
from acker_redis.spark import Tracker
from acker_redis.spout import Spout

CONFIG = AckerConfig(app="spark", shards=2)
CHILD = "id bigint, child int"


class Case:
    """One emission of messages 0 ... n-1, and what became of them.

    Each has an app of its own: a task of a job that failed may send its updates when the next test has begun.
    """

    def __init__(self, spark: Any, url: str, n: int = 400, partitions: int = 2) -> None:
        self.spark, self.url = spark, url
        run_id = uuid.uuid4().hex
        self.acker = Acker.connect(url, replace(CONFIG, app=f"spark-{run_id}"))
        self.spout = Spout(self.acker, run_id)
        self.spout.add(np.arange(n, dtype=np.int64))
        emission = self.spout.next_emission()
        assert emission is not None
        self.emission = emission
        self.tracker = Tracker.of(url, self.spout, emission)
        self.messages = spark.range(0, n, 1, partitions).withColumn("attempt", F.lit(0).cast("bigint"))
        self.tracked = self.tracker.spout(self.messages, "id", "attempt")

    def outcomes(self) -> Counter[str]:
        """What is settled now, without waiting."""
        found: Counter[str] = Counter()
        while outcomes := self.acker.poll():
            found.update(outcome.reason or "ack" for outcome in outcomes)
            self.acker.confirm(outcomes)
        return found

    def after_timeout(self) -> Counter[str]:
        """What is settled once everything pending has timed out."""
        for _ in range(CONFIG.num_buckets):
            self.acker.rotate(force=True)
        return self.outcomes()


MakeCase: TypeAlias = Callable[..., Case]


def consume(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for _ in batches:
        pass
