"""What Spark runs again by itself, and what it leaves unfinished: outcomes are counted and compared with the truth."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Emitted, Tracker, run_tracked
from acker_redis.spark.anchors import COLUMN
from acker_redis.spout import Spout
from tests.spark import drawing
from tests.spark.cases import CHILD, CONFIG, Case, MakeCase, consume
from tests.spark.faults import (
    attempts,
    context,
    die_after_sending,
    fan_out,
    kill_self,
    note_attempt,
    once,
    raise_error,
    wait_for,
)

pytestmark = pytest.mark.spark


def test_a_stage_that_runs_again_for_lost_shuffle_files_counts_once(case: MakeCase, tmp_path: Path) -> None:
    """Three of four partitions are written and acked when the map output is lost; the fourth needs it again."""
    run = case(n=400)
    local = Path(run.spark.sparkContext.getConf().get("spark.local.dir"))
    mapped, written, done = (tmp_path / name for name in ("mapped", "written", "done"))
    for folder in (mapped, written, done):
        folder.mkdir()

    def bolt(batch: pa.RecordBatch) -> Emitted:
        note_attempt(mapped)
        return fan_out(3, batch)

    def lose_shuffle_files() -> None:
        for partition in range(3):
            wait_for(done / str(partition))
        for path in local.rglob("shuffle_*"):
            path.unlink(missing_ok=True)  # Spark cleans up by itself, too
        raise_error()

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        consume(batches, partition)
        note_attempt(written)  # an attempt that misses the files does not come so far
        if partition == 3:
            once(tmp_path / "lost", lose_shuffle_files)
        (done / str(partition)).touch()

    derived = run.tracker.bolt(run.tracked, bolt, CHILD, name="fan-out")
    assert run.tracker.sink(derived.repartition(4, "id"), write, name="sink").rows == 399 * 3
    assert attempts(mapped) == {0: 2, 1: 2}
    assert attempts(written) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert run.outcomes() == {"ack": 400}
    stats = run.acker.stats()
    assert stats.fenced > 0
    assert (stats.pending, stats.unowned, stats.duplicate_inits) == (0, 0, 0)


Killing = Callable[[str, DataFrame], DataFrame]
"""A bolt of a given name, one of whose workers dies half-way."""


def sorted_rows(run: Case, bolt: Killing) -> DataFrame:
    return bolt("after", bolt("before", run.tracked).orderBy(F.desc("id"), "child"))


def self_join(run: Case, bolt: Killing) -> DataFrame:
    left, right = run.tracker.fan_out(run.tracked, "left", "right")
    renamed = bolt("right-bolt", right).withColumnRenamed("child", "other")
    return bolt("after", run.tracker.join(bolt("left-bolt", left), renamed, "id", name="join"))


def union(run: Case, bolt: Killing) -> DataFrame:
    low, high = run.tracker.fan_out(run.tracked, "low", "high")
    low, high = run.tracker.filter(low, "id < 200", name="lower"), run.tracker.filter(high, "id >= 200", name="higher")
    both = run.tracker.union(bolt("low-bolt", low), bolt("high-bolt", high.repartition(3, "id")), name="both")
    return bolt("after", both)


@pytest.mark.parametrize(("shape", "rows", "bolts"), [(sorted_rows, 4, 2), (self_join, 8, 3), (union, 4, 3)])
def test_workers_killed_on_both_sides_of_a_shuffle(
    case: MakeCase, tmp_path: Path, shape: Callable[[Case, Killing], DataFrame], rows: int, bolts: int
) -> None:
    """Two children per bolt; a worker of each bolt and of the sink is killed once, in the middle of its partition."""
    run = case(n=400)

    def bolt(name: str, frame: DataFrame) -> DataFrame:
        def double(batch: pa.RecordBatch) -> Emitted:
            if 333 in batch.column("id").to_pylist() or 133 in batch.column("id").to_pylist():
                once(tmp_path / name, kill_self)
            return fan_out(2, batch)

        return run.tracker.bolt(frame, double, CHILD, name=name)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        for batch in batches:
            if 333 in batch.column("id").to_pylist():
                once(tmp_path / "sink", kill_self)

    derived = shape(run, bolt).repartition(3, "id")
    assert run.tracker.sink(derived, write, name="sink").rows == 399 * rows
    assert len(list(tmp_path.iterdir())) == bolts + 1
    assert run.outcomes() == {"ack": 400}
    stats = run.acker.stats()
    assert (stats.pending, stats.unowned, stats.duplicate_inits) == (0, 0, 0)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_partition_that_take_abandoned_is_exact_when_it_is_written(
    case: MakeCase, tmp_path: Path, shuffled: bool
) -> None:
    """`take` has its rows while the bolt still is in the middle; then everything is written."""
    run = case(n=1000)
    taken, abandoned = tmp_path / "taken", tmp_path / "abandoned"
    seen: list[int] = []  # of one task: it is unpickled anew for each

    def wide(batch: pa.RecordBatch) -> Emitted:
        seen.append(batch.num_rows)
        if len(seen) == 3 and context().partitionId() == 0:
            abandoned.touch()
            wait_for(taken)
        text = pa.array(["x" * 4000] * batch.num_rows)  # more than the pipes between Python and Java hold
        return Emitted(pa.record_batch({"id": batch.column("id"), "text": text}), np.arange(batch.num_rows))

    tracked = run.tracked.repartition(2, "id") if shuffled else run.tracked
    derived = run.tracker.bolt(tracked, wide, "id bigint, text string", name="wide")
    assert len(derived.take(5)) == 5
    wait_for(abandoned)
    stats = run.acker.stats()
    assert (stats.inits, stats.acks) == (1000 if shuffled else 0, 0)
    taken.touch()
    assert run.tracker.sink(derived.repartition(3, "id"), consume, name="sink").rows == 1000
    assert run.outcomes() == {"ack": 1000}
    assert run.acker.stats().unowned == 0


def draw(folder: Path, batch: pa.RecordBatch) -> Emitted:
    """Random children. A worker dies here, another after its updates went out."""
    ids = batch.column("id").to_numpy()
    if 60 in ids:
        once(folder / "killed-before", kill_self)
    if 160 in ids and not (folder / "killed-after").exists():
        die_after_sending(folder / "killed-after", kill_self)
    return drawing.drawn(ids, random=True)


def write_drawn(folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """Idempotent by (run, emission, partition). A worker dies when its file is written and nothing is acked."""
    drawing.write(pa.Table.from_batches(batches, drawing.SCHEMA), folder, f"{emission}-{partition}")
    once(folder / "killed-in-sink", kill_self)


def test_random_children_under_killed_workers_through_a_whole_run(spark: Any, url: str, tmp_path: Path) -> None:
    """What the ledger was told of and what is handed on differ; a message is acked when all of one drawing was written."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.bolt(messages.select("id", COLUMN), partial(draw, tmp_path), drawing.DDL, name="draw")
        name = f"{tracker.run_id}-{tracker.emission}"
        tracker.sink(derived.repartition(3, "draw", "child"), partial(write_drawn, tmp_path, name), name="save")

    with Acker.connect(url, CONFIG) as acker:

        def time_out(spout: Spout, busy: bool) -> None:
            if not busy and spout.pending:
                acker.rotate(force=True)

        spout = run_tracked(
            spark.range(0, 200, 1, 2), pipeline, acker=acker, url=url, message_id="id", retry=RetryPolicy(max_attempts=3),
            progress=time_out,
        )  # fmt: skip
        assert acker.stats().pending == 0
    assert len(list(tmp_path.glob("killed-*"))) == 3
    assert spout.counts.failed > 0
    assert spout.counts.acked + len(spout.dead_letters) == 200
    assert drawing.whole(tmp_path) | set(spout.dead_letters) == set(range(200))
