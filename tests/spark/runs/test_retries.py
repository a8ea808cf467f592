"""What Spark runs again by itself, and what it leaves unfinished: outcomes are compared with what is in the sinks."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.testing import wait_until
from tests.support.spark import drawing
from tests.support.spark.cases import CHILD, IDS, MakeCase, by_message, consume
from tests.support.spark.faults import (
    attempts,
    context,
    fan_out,
    kill_self,
    note_attempt,
    once,
    raise_error,
    wait_for,
)
from tests.support.spark.versions import COUNTS_ONCE

pytestmark = pytest.mark.spark


def children(n: int, each: int) -> list[tuple[int, int]]:
    """Rows that `fan_out` makes of messages 0 ... n-1."""
    return [(id, child) for id in range(1, n) for child in range(each)]


@pytest.mark.parametrize("act", [raise_error, kill_self])
@pytest.mark.parametrize("where", ["operator", "sink", "behind the sink"])
def test_dying_task_that_runs_again_counts_once(case: MakeCase, act: Callable[[], None], where: str) -> None:
    run = case(n=1000)
    mark = run.folder / "died"

    def operator(batch: pa.RecordBatch) -> FlatMapOutput:
        if where == "operator" and 300 in batch.column("id").to_pylist():
            once(mark, act)
        return fan_out(3, batch)

    def write(into: Callable[..., None], batches: Iterator[pa.RecordBatch], partition: int) -> None:
        rows = list(batches)
        if where == "sink":
            once(mark, act)
        into(rows, partition)
        if where == "behind the sink":
            once(mark, act)  # the file is there, and nobody knows

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, operator, CHILD)
        files = run.partition_files(tracker)
        tracker.write_partitions(derived.repartition(2, "child"), partial(write, files))

    run.complete(pipeline)
    assert mark.exists()
    assert sorted(run.written(name="rows")) == children(1000, 3)


@pytest.mark.usefixtures("loses_executor")
def test_stage_rerun_after_lost_shuffle_files_counts_once(case: MakeCase) -> None:
    """Three of four partitions are written when the map output is lost; the fourth needs it again."""
    run = case(n=400)
    local = Path(str(run.spark.conf.get("spark.local.dir")))
    mapped, written, done = (run.folder / name for name in ("mapped", "written", "done"))
    lost = run.folder / "lost"
    for folder in (mapped, written, done):
        folder.mkdir()

    def operator(batch: pa.RecordBatch) -> FlatMapOutput:
        note_attempt(mapped)
        return fan_out(3, batch)

    def lose_shuffle_files() -> None:
        for partition in range(3):
            wait_for(done / str(partition))
        for path in local.rglob("shuffle_*"):
            path.unlink(missing_ok=True)  # Spark cleans up by itself, too
        raise_error()

    def write(into: Callable[..., None], batches: Iterator[pa.RecordBatch], partition: int) -> None:
        into(batches, partition)
        note_attempt(written)  # an attempt that misses the files does not come so far
        if partition == 3:
            once(lost, lose_shuffle_files)
        (done / str(partition)).touch()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        some = tracker.filter(tracker.flat_map_arrow(messages, operator, CHILD), "child < 2")
        checked = tracker.fail_where(some, "id = 7 AND child = 1", "seven")
        files = run.partition_files(tracker)
        tracker.write_partitions(checked.repartition(4, "id"), partial(write, files))

    ended = run.done(pipeline)
    assert attempts(mapped)[0] >= 2
    assert attempts(written)[3] >= 2
    assert set(ended.letters) == {7}
    ended.check({id: [(id, 0), (id, 1)] if id else [] for id in range(400)}, run.written(name="rows"))


Killing = Callable[[str, DataFrame], DataFrame]
"""A operator of a given name, one of whose workers dies half-way."""


def sorted_rows(tracker: Tracker, messages: DataFrame, operator: Killing) -> DataFrame:
    before = operator("before", messages)
    return operator("after", before.orderBy(F.desc("id"), "child") if COUNTS_ONCE else before.repartition("id"))


def self_join(tracker: Tracker, messages: DataFrame, operator: Killing) -> DataFrame:
    renamed = operator("right", messages).withColumnRenamed("child", "other")
    return operator("after", tracker.join(operator("left", messages), renamed, "id"))


def union(tracker: Tracker, messages: DataFrame, operator: Killing) -> DataFrame:
    low, high = tracker.filter(messages, "id < 200"), tracker.filter(messages, "id >= 200")
    return operator("after", tracker.union_by_name(operator("low", low), operator("high", high.repartition(3, "id"))))


@pytest.mark.parametrize(("shape", "rows", "operators"), [(sorted_rows, 4, 2), (self_join, 8, 3), (union, 4, 3)])
def test_workers_killed_around_a_shuffle_keep_outcomes_exact(
    case: MakeCase, shape: Callable[[Tracker, DataFrame, Killing], DataFrame], rows: int, operators: int
) -> None:
    """Two children per operator; a worker of each operator and of the sink is killed once, in the middle of its partition."""
    run = case(n=400)
    marks = run.folder / "marks"
    marks.mkdir()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        def operator(name: str, frame: DataFrame) -> DataFrame:
            def double(batch: pa.RecordBatch) -> FlatMapOutput:
                if 333 in batch.column("id").to_pylist() or 133 in batch.column("id").to_pylist():
                    once(marks / name, kill_self)
                return fan_out(2, batch)

            return tracker.flat_map_arrow(frame, double, CHILD, name=name)

        def write(into: Callable[..., None], batches: Iterator[pa.RecordBatch], partition: int) -> None:
            kept = list(batches)
            if any(333 in batch.column("id").to_pylist() for batch in kept):
                once(marks / "sink", kill_self)
            into(kept, partition)

        derived = shape(tracker, messages, operator).repartition(3, "id")
        tracker.write_partitions(derived, partial(write, run.partition_files(tracker)))

    ended = run.done(pipeline)
    assert len(list(marks.iterdir())) == operators + 1
    assert ended.acked == set(range(400))
    found = by_message(run.written(name="rows"))
    assert {id: len(each) // ended.emissions for id, each in found.items()} == dict.fromkeys(range(1, 400), rows)


@pytest.mark.parametrize("shuffled", [False, True])
def test_partition_abandoned_by_take_is_exact_when_written(case: MakeCase, shuffled: bool) -> None:
    """`take` has its rows while the operator still is in the middle; then everything is written."""
    run = case(n=1000)
    taken, abandoned = run.folder / "taken", run.folder / "abandoned"
    seen: list[int] = []  # of one task: it is unpickled anew for each

    def wide(batch: pa.RecordBatch) -> FlatMapOutput:
        seen.append(batch.num_rows)
        if len(seen) == 3 and context().partitionId() == 0:
            abandoned.touch()
            wait_for(taken)
        text = pa.array(["x" * 4000] * batch.num_rows)  # more than the pipes between Python and Java hold
        failed = {row: "five" for row, id in enumerate(batch.column("id").to_pylist()) if id == 5}
        return FlatMapOutput(
            pa.record_batch({"id": batch.column("id"), "text": text}), np.arange(batch.num_rows), failed
        )

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracked = messages.repartition(2, "id") if shuffled else messages
        derived = tracker.flat_map_arrow(tracked, wide, "id bigint, text string")
        if not taken.exists():
            # A worker that is late notices that its rows aren't wanted any more before it gets so far.
            wait_until(lambda: len(derived.take(5)) == 5 and abandoned.exists(), "a partition is abandoned", 120)
            taken.touch()
        tracker.write(derived.select("id", "_share", "_roots").repartition(3, "id"), run.append())

    ended = run.done(pipeline)
    assert set(ended.letters) == {5}
    ended.check({id: [(id,)] for id in range(1000)}, run.written())


def test_random_flat_map_under_killed_workers_is_exact(case: MakeCase) -> None:
    """Random children; a message is acked when all of one drawing was written. What the successful tasks wrote counts."""
    run = case(n=200)
    out = run.folder / "drawn"
    out.mkdir()

    def draw(batch: pa.RecordBatch) -> FlatMapOutput:
        ids = batch.column("id").to_numpy()
        if 60 in ids:
            once(out / "killed-in-operator", kill_self)
        return drawing.drawn(ids, random=True)

    def write(name: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        drawing.write(pa.Table.from_batches(batches, drawing.SCHEMA), out, f"{name}-{partition}")
        once(out / "killed-in-sink", kill_self)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, draw, drawing.DDL)
        derived.count()  # another drawing
        tracker.write_partitions(derived.repartition(3, "draw", "child"), partial(write, f"{tracker.emission}"))

    ended = run.done(pipeline)
    assert len(list(out.glob("killed-*"))) == 2
    assert ended.acked == set(range(200))
    assert drawing.whole(out) == set(range(200))


def test_emission_aborted_by_spark_is_emitted_again(case: MakeCase) -> None:
    """Four attempts of a task die, which ends the job: a failed attempt of every message."""
    run = case(n=40, partitions=1)
    ran = run.folder / "ran"

    def die(batch: pa.RecordBatch) -> FlatMapOutput:
        note_attempt(ran)
        if attempts(ran)[0] <= 4:
            raise_error()
        return FlatMapOutput(batch.select(["id"]), np.arange(batch.num_rows))

    ran.mkdir()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.flat_map_arrow(messages, die, IDS), run.append())
        tracker.write_partitions(messages, consume)

    ended = run.done(pipeline)
    assert ended.kinds == {id: ["fail", "ack"] for id in range(40)}
    assert sorted(run.written()) == [(id,) for id in range(40)]
