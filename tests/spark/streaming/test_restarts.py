"""Micro-batches that run again: the query died, or the whole process was killed and came back."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker
from acker_redis.model.roots import root_ids
from acker_redis.spark import TrackedBatches, Tracker
from acker_redis.testing import wait_until
from tests.support.jobs import stream_job
from tests.support.spark.cases import CONFIG
from tests.support.spark.cluster import kill, start_python
from tests.support.spark.faults import WAIT_SECS
from tests.support.spark.files_source import RowsToFiles

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def run_stream(spark: Any, folder: Path, handle: Any) -> None:
    query = (
        spark.readStream.schema("id bigint").parquet(str(folder / "in")).writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


def test_driver_error_is_recovered_by_the_next_start(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The query ends, and no message counts an attempt; another start, whose rows are spread otherwise, goes on."""
    spark.range(40).write.parquet(str(tmp_path / "in"))
    seen: list[tuple[int | None, int]] = []

    def pipeline(partitions: int, tracker: Tracker, messages: DataFrame) -> None:
        seen.append((tracker.batch_id, tracker.emission))
        derived = tracker.explode(messages, "transform(array(0, 1), i -> struct(id, i AS child))")
        spread = tracker.filter(derived.repartition(partitions, "id", "child"), "id < 100")
        if partitions == 3:
            raise LookupError("the driver finds no store")
        tracker.write_data_source(spread, RowsToFiles, options={"folder": str(tmp_path)})

    def handler(partitions: int) -> TrackedBatches:
        return TrackedBatches(
            partial(pipeline, partitions),
            acker=acker,
            ids="id",
            parking_location=str(tmp_path / "parked"),
            batch_wait_secs=600,
        )

    with handler(3) as first, pytest.raises(StreamingQueryException, match="the driver finds no store"):
        run_stream(spark, tmp_path, first)
    assert (acker.stats().acked, acker.dead_letters.count()) == (0, 0)
    with handler(5) as second:
        run_stream(spark, tmp_path, second)
        assert second.drain(180).parked == {}
    assert (tmp_path / "committed").read_text() == "80"
    stats = acker.stats()
    assert seen == [(0, 0), (0, 0)]
    assert (stats.acked, stats.pending, stats.unowned, stats.duplicate_inits) == (40, 0, 0, 0)


def test_repeated_micro_batch_is_a_new_emission(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Written and closed, then the query died: everything is written again, and every root has one outcome."""
    spark.range(40).write.parquet(str(tmp_path / "in"))
    batches: list[int | None] = []
    roots: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        batches.append(tracker.batch_id)
        roots.extend(row[0] for row in messages.select(F.explode("_roots")).collect())
        rows = messages.repartition(len(batches) + 2, "id").withColumn("batch", F.lit(tracker.batch_id))
        options = {"partitionOverwriteMode": "dynamic"}
        tracker.write(
            rows,
            lambda writer: (
                writer.options(**options).partitionBy("batch").mode("overwrite").parquet(str(tmp_path / "out"))
            ),
            allow_overwrite=True,
        )

    handler = TrackedBatches(pipeline, acker=acker, ids="id", parking_location=str(tmp_path / "parked"))

    def handle(batch: DataFrame, batch_id: int) -> None:
        handler(batch, batch_id)
        if len(batches) == 1:
            raise OSError("on purpose")

    with pytest.raises(StreamingQueryException, match="on purpose"):
        run_stream(spark, tmp_path, handle)
    run_stream(spark, tmp_path, handle)
    assert batches == [0, 0]
    assert len(set(roots)) == 80
    stats = acker.stats()
    assert (stats.acked, stats.pending, stats.unowned, stats.duplicate_inits) == (80, 0, 0, 0)
    assert sorted(row["id"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(40))


def give_messages(folder: Path) -> None:
    """One file per micro-batch."""
    for part in ("in", "out"):
        (folder / part).mkdir(parents=True)
    for number in range(stream_job.BATCHES):
        ids = pa.array(range(number * stream_job.BATCH, (number + 1) * stream_job.BATCH), pa.int64())
        path = folder / "in" / f"{number}.parquet"
        pq.write_table(pa.table({"id": ids}), path)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))  # Spark reads the oldest first


def acked_messages(folder: Path, acker: Acker) -> dict[str, set[int]]:
    """Which messages were told to be complete, by run; every root must be one of a message of a run."""
    runs = set((folder / "runs").read_text().split())
    ids = np.array(stream_job.ALL, np.int64)
    known = {
        root: (run, message)
        for run in runs
        for number in range(5)
        for message, root in enumerate(root_ids(stream_job.CONFIG.app, run, ids, number).tolist())
    }
    roots = [int(line) for line in (folder / "acked").read_text().split()]
    while outcomes := acker.poll(consumer="spout-0"):
        roots += [outcome.root for outcome in outcomes if outcome.kind == "ack"]
        acker.confirm(outcomes)
    found: dict[str, set[int]] = {run: set() for run in runs}
    for root in roots:
        run, message = known[root]
        found[run].add(message)
    return found


def whole_messages(folder: Path, run: str) -> set[int]:
    """Messages all of whose children a run has written."""
    rows = {
        (row["id"], row["child"])
        for path in (folder / "out").glob(f"{run}-*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    children = range(stream_job.CHILDREN)
    return {
        message for message in stream_job.ALL if message == 0 or all((message, child) in rows for child in children)
    }


@pytest.mark.parametrize("where", [pytest.param("middle", marks=pytest.mark.chaos), "written"])
def test_killed_stream_resumes_in_a_process_with_other_settings(
    spark: Any, url: str, tmp_path: Path, where: str
) -> None:
    """No message is acked whose rows are not in the sink, at any time; in the end all are acked, and nothing is left."""
    give_messages(tmp_path)
    (tmp_path / ("written" if where == "middle" else "middle")).touch()
    module = "tests.support.jobs.stream_job"
    spark = spark.newSession()
    for name, value in stream_job.settings("7", "true").items():
        spark.conf.set(name, value)
    with Acker.connect(url, stream_job.CONFIG) as acker:
        killed = start_python(tmp_path, module, url, str(tmp_path), "3", "false")

        def holds_still() -> bool:  # its roots are initialised beside the job
            return (tmp_path / where).exists() and acker.stats().pending == stream_job.BATCH

        try:
            wait_until(
                lambda: killed.poll() is not None or holds_still(), "the second micro-batch holds still", 2 * WAIT_SECS
            )
        finally:
            kill(killed)
        assert killed.returncode < 0, (tmp_path / f"{module}.log").read_text()[-3000:]
        before = acker.stats()
        assert (before.acked, before.pending) == (stream_job.BATCH, stream_job.BATCH)
        stream_job.run(spark, url, tmp_path)

        acked = acked_messages(tmp_path, acker)
        for run, messages in acked.items():
            assert messages <= whole_messages(tmp_path, run)
        assert set().union(*acked.values()) == set(stream_job.ALL)
        after = acker.stats()
        assert (after.acked, after.pending) == (len(stream_job.ALL), 0), "the next run failed what the killed one left"
        for _ in range(stream_job.CONFIG.num_buckets):
            acker.admin.rotate(force=True)
        end = acker.stats()
        assert (end.acked, end.timed_out, end.pending, end.unowned) == (after.acked, 0, 0, 0)
