"""Micro-batches that run again: the sink's commit failed, or the whole process was killed and came back."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker
from acker_redis.pending import root_ids
from acker_redis.spark import Tracker, each_batch
from acker_redis.spark.operators import OnWriteError
from acker_redis.spout import Spout
from acker_redis.testing import wait_until
from tests.spark import stream_job
from tests.spark.cases import CONFIG
from tests.spark.cluster import kill, run_python, start_python
from tests.spark.faults import WAIT_SECS, raise_error, wait_for
from tests.spark.files_source import RowsToFiles

pytestmark = pytest.mark.spark


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


def test_a_micro_batch_under_its_old_number_after_its_commit_failed(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    """The query dies with the commit; started again, it meets its own tokens, though its rows are spread otherwise."""
    spark.range(40).write.parquet(str(tmp_path / "in"))

    def handle(partitions: int, batch: DataFrame, batch_id: int) -> None:
        tracker = Tracker(url, CONFIG, "stream", batch_id)
        tracked = tracker.spout(batch.withColumn("attempt", F.lit(0).cast("bigint")), "id", "attempt")
        derived = tracker.explode(tracked, "transform(array(0, 1), i -> struct(id, i AS child))", name="two")
        spread = derived.repartition(partitions, "id", "child")
        tracker.save(spread, RowsToFiles, name="files", folder=str(tmp_path), fail="first commit")

    with pytest.raises(PySparkException, match="no commit"):
        run_stream(spark, tmp_path, partial(handle, 3))
    assert (acker.stats().pending, acker.poll()) == (40, [])
    run_stream(spark, tmp_path, partial(handle, 5))
    assert (tmp_path / "committed").read_text() == "80"
    assert sorted(outcome.kind for outcome in acker.poll()) == ["ack"] * 40
    stats = acker.stats()
    assert (stats.inits, stats.pending, stats.unowned, stats.duplicate_inits) == (40, 0, 0, 0)


def test_a_micro_batch_under_its_old_number_whose_sink_had_acked_some_of_it(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    """Spread otherwise, its partitions meet the tokens of other rows: what was acked twice or not at all never completes."""
    spark.range(200).write.parquet(str(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    second = tmp_path / "second"

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        if partition and not second.exists():
            with Acker.connect(url, CONFIG) as other:
                wait_until(lambda: other.stats().acks > 0, "another partition is acked", WAIT_SECS)
            raise_error()
        rows = [row for batch in batches for row in batch.to_pylist()]
        (tmp_path / "out" / f"{second.exists()}-{partition}").write_text(json.dumps(rows))

    def handle(partitions: int, batch: DataFrame, batch_id: int) -> None:
        tracker = Tracker(url, CONFIG, "partly", batch_id)
        tracked = tracker.spout(batch.withColumn("attempt", F.lit(0).cast("bigint")), "id", "attempt")
        derived = tracker.explode(tracked, "transform(array(0, 1), i -> struct(id, i AS child))", name="two")
        tracker.sink(derived.repartition(partitions, "id", "child"), write, name="sink")

    def written() -> set[tuple[int, int]]:
        rows = [row for path in (tmp_path / "out").iterdir() for row in json.loads(path.read_text())]
        return {(row["id"], row["child"]) for row in rows}

    messages = np.arange(200)
    message_of = dict(
        zip(root_ids(CONFIG.app, "partly", messages, 0 * messages).tolist(), messages.tolist(), strict=True)
    )
    kinds: dict[int, str] = {}

    def take_outcomes() -> None:
        while outcomes := acker.poll():
            for outcome in outcomes:
                message = message_of[outcome.root]
                assert outcome.kind == "fail" or {(message, 0), (message, 1)} <= written()
                assert kinds.setdefault(message, outcome.kind) == outcome.kind
            acker.confirm(outcomes)

    with pytest.raises(PySparkException, match="on purpose"):
        run_stream(spark, tmp_path, partial(handle, 2))
    take_outcomes()
    second.touch()
    run_stream(spark, tmp_path, partial(handle, 5))
    assert len(written()) == 400
    take_outcomes()
    for _ in range(CONFIG.num_buckets):
        acker.rotate(force=True)
    take_outcomes()
    assert sorted(kinds) == messages.tolist()
    assert set(kinds.values()) == {"ack", "fail"}
    stats = acker.stats()
    assert (stats.pending, stats.unowned) == (0, 0)


@pytest.mark.parametrize("on_error", ["fail", "timeout"])
def test_a_commit_that_fails_within_a_micro_batch_is_made_up_for(
    spark: Any, url: str, acker: Acker, tmp_path: Path, on_error: OnWriteError
) -> None:
    """The query lives on: what the commit did not ack fails or times out, and is emitted again."""
    spark.range(40).write.parquet(str(tmp_path / "in"))
    counts: list[Spout] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        spread = messages.repartition(3, "id")
        tracker.save(spread, RowsToFiles, name="files", on_error=on_error, folder=str(tmp_path), fail="first commit")

    def time_out() -> None:
        wait_for(tmp_path / "aborted")
        with Acker.connect(url, CONFIG) as other:
            for _ in range(CONFIG.num_buckets):
                other.rotate(force=True)

    handle = each_batch(pipeline, acker=acker, url=url, message_id="id", done=lambda batch, spout: counts.append(spout))
    clock = Thread(target=time_out)
    if on_error == "timeout":
        clock.start()
    run_stream(spark, tmp_path, handle)
    if on_error == "timeout":
        clock.join()
    (spout,) = counts
    assert (spout.counts.acked, spout.counts.failed + spout.counts.timed_out, spout.dead_letters) == (40, 40, {})
    assert (tmp_path / "committed").read_text() == "40"
    stats = acker.stats()
    assert (stats.acked, stats.pending, stats.unowned) == (40, 0, 0)


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
        for attempt in range(5)
        for message, root in enumerate(root_ids(stream_job.CONFIG.app, run, ids, np.full(len(ids), attempt)).tolist())
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


def test_a_stream_killed_in_a_micro_batch_goes_on_in_a_new_process_with_other_settings(
    url: str, tmp_path: Path
) -> None:
    """No message is acked whose rows are not in the sink, at any time; in the end all are acked, and nothing is left."""
    give_messages(tmp_path)
    module = "tests.spark.stream_job"
    with Acker.connect(url, stream_job.CONFIG) as acker:
        killed = start_python(tmp_path, module, url, str(tmp_path), "3", "false")
        try:
            wait_until(
                lambda: killed.poll() is not None or acker.stats().acked > stream_job.BATCH,
                "some messages of the second micro-batch are acked",
                2 * WAIT_SECS,
            )
            wait_for(tmp_path / "middle")
        finally:
            kill(killed)
        assert killed.returncode < 0, (tmp_path / f"{module}.log").read_text()[-3000:]
        assert acker.stats().acked < 2 * stream_job.BATCH
        run_python(tmp_path, module, url, str(tmp_path), "7", "true")

        for run, messages in acked_messages(tmp_path, acker).items():
            assert messages <= whole_messages(tmp_path, run)
        acked = set().union(*acked_messages(tmp_path, acker).values())
        assert acked == set(stream_job.ALL)
        before = acker.stats()
        assert 0 < before.pending < stream_job.BATCH  # of the run that was killed
        for _ in range(stream_job.CONFIG.num_buckets):
            acker.rotate(force=True)
        after = acker.stats()
        assert (after.acked, after.pending, after.unowned) == (before.acked, 0, 0)
        assert after.timed_out == before.pending
