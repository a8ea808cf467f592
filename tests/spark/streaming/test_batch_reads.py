"""Which micro-batches Spark keeps for their jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, AckerConfig
from acker_redis.spark import TrackedBatches, Tracker
from acker_redis.spark.streaming.batch_reads import FEW_IDS, BatchReads
from acker_redis.spark.streaming.spark_queries import spark_queries


class Batch:
    """Notes what Spark is told to keep."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cache(self) -> None:
        self.calls.append("cache")

    def unpersist(self) -> None:
        self.calls.append("unpersist")


def calls_of(reads: BatchReads, size: int, *, parts: int = 0) -> list[str]:
    """Run a micro-batch of so many rows, and read so many parts of it."""
    batch: Any = Batch()
    reads.begin(batch)
    reads.note_size(size)
    for _ in range(parts):
        reads.keep()
    reads.end()
    return list(batch.calls)


KEPT = ["cache", "unpersist"]


def test_small_micro_batch_after_a_small_one_is_not_kept() -> None:
    reads = BatchReads(lambda: True)
    assert calls_of(reads, FEW_IDS) == KEPT  # the first may be large
    assert calls_of(reads, 7) == []
    assert calls_of(reads, FEW_IDS + 1) == KEPT  # its pipeline would read it again
    assert calls_of(reads, 7) == KEPT
    assert calls_of(reads, 7, parts=3) == KEPT
    assert calls_of(reads, 7) == []


def test_micro_batch_whose_rows_may_change_is_kept() -> None:
    reads = BatchReads(lambda: False)
    assert [calls_of(reads, 7) for _ in range(3)] == [KEPT] * 3


def test_nothing_is_kept_between_micro_batches() -> None:
    BatchReads(lambda: True).keep()


PLANS: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "source": (lambda rows: rows, True),
    "columns and rows": (lambda rows: rows.where("id > 3").selectExpr("id", "id + 1 AS more").alias("a"), True),
    "random column": (lambda rows: rows.withColumn("more", F.rand()), False),
    "random filter": (lambda rows: rows.where(F.rand() < 0.5), False),
    "distinct rows": (lambda rows: rows.dropDuplicates(), False),
    "Python": (lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema), False),
}


@pytest.mark.spark
@pytest.mark.versions
@pytest.mark.classic("a client of Spark Connect doesn't see the plan")
def test_streams_whose_rows_are_the_same_each_time_are_told_by_their_plan(spark: Any, url: str, tmp_path: Path) -> None:
    spark.range(0, 10, 1, 1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
    queries = spark_queries(spark, None)
    found: dict[str, bool] = {}
    for name, (change, _) in PLANS.items():

        def note(batch: DataFrame, batch_id: int, name: str = name) -> None:
            running = queries.of_batch(batch.sparkSession)
            assert running is not None
            found[name] = queries.is_repeatable(running.query, running.run)
            batch.count()  # a stream with a state must be read

        writer = change(stream).writeStream.foreachBatch(note).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()
    assert found == {name: expected for name, (_, expected) in PLANS.items()}


@pytest.mark.spark
@pytest.mark.classic("a client of Spark Connect doesn't see the plan")
def test_small_micro_batches_are_read_again_and_complete(
    spark: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        part = spark.range(number * 10, number * 10 + 10, 1, 1)
        part.write.mode("append").parquet(str(tmp_path / "in"))
    kept: list[BatchReads] = []
    keep = BatchReads.keep

    def noted(self: BatchReads) -> None:
        kept.append(self)
        keep(self)

    monkeypatch.setattr(BatchReads, "keep", noted)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail_where(messages, "id % 10 = 3", "three", retry=False)
        tracker.write(good, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    with (
        Acker.connect(url, AckerConfig(app="reads", shards=2)) as acker,
        TrackedBatches(pipeline, acker=acker, ids="id", parking_location=str(tmp_path / "parked")) as batches,
    ):
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        query = stream.writeStream.foreachBatch(batches).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        counts = batches.status().counts
    assert (counts.acked, counts.dead_lettered) == (36, 4)
    assert len(kept) == 1  # the first
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in written.collect()) == [number for number in range(40) if number % 10 != 3]
