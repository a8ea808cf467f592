"""A micro-batch makes few calls of Java. Their number is the same on any machine, unlike the time that they take."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig
from acker_redis.spark import TrackedBatches, Tracker
from acker_redis.spark.proof import listener
from acker_redis.spark.streaming import query
from benchmarks.java_calls import counted_calls

pytestmark = [pytest.mark.spark, pytest.mark.versions, pytest.mark.classic("a client of Spark Connect calls no Java")]

MOST, MOST_OBJECTS = 62, 34
"""With those of the listener: 55, which return about 30 objects. PySpark's own `foreachBatch` makes 6 calls more. Each object
is released later. A look-up of the query makes 12 more. Spark 4.0 makes two more than 4.3."""

BATCHES = 6


def test_micro_batch_makes_few_calls_of_java(
    spark: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "LOOK_SECS", 3600.0)  # a slow machine would look the query up in each micro-batch
    monkeypatch.setattr(listener, "_MARK_AFTER_SECS", 600.0)  # or run a marker where the listener is late
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        pq.write_table(pa.table({"id": range(number * 100, number * 100 + 100)}), tmp_path / "in" / f"{number}.parquet")
    counts: list[tuple[int, int]] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id % 10 <> 3")
        tracker.write(kept, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    with (
        Acker.connect(url, AckerConfig(app="calls", shards=2)) as acker,
        TrackedBatches(pipeline, acker=acker, ids="id", parking_location=str(tmp_path / "parked")) as batches,
        counted_calls() as calls,
    ):

        def handle(batch: DataFrame, batch_id: int) -> None:
            batches(batch, batch_id)
            counts.append((calls.own, calls.own_objects))

        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        started = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.trigger(availableNow=True).start().awaitTermination()
        assert batches.status().counts.acked == BATCHES * 100
    each = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts)]
    most, objects = (max(numbers) for numbers in zip(*each[1:], strict=True))  # the first ones look up what is kept
    assert 0 < most <= MOST, (each, calls.by_place.most_common(10))
    assert 0 < objects <= MOST_OBJECTS, (each, calls.objects.most_common(10))
