"""Tracked DataFrames on real Spark and a real server: outcomes are counted and compared with the truth."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from acker_redis import Acker, AckerConfig, BadBatchError
from acker_redis.spark import Emitted, Tracker
from acker_redis.spark.anchors import COLUMN
from acker_redis.spout import Spout, root_ids

pytestmark = pytest.mark.spark

CONFIG = AckerConfig(app="spark", shards=2)
CHILD = "id bigint, child int"


class Case:
    """One emission of messages 0 ... n-1, and what became of them."""

    def __init__(self, spark: Any, url: str, n: int = 400, partitions: int = 2) -> None:
        self.acker = Acker.connect(url, CONFIG)
        self.spout = Spout(self.acker, run="run")
        self.spout.add(np.arange(n, dtype=np.int64))
        emission = self.spout.next_emission()
        assert emission is not None
        self.tracker = Tracker(url, CONFIG, "run", emission.number)
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


@pytest.fixture
def case(spark: Any, url: str) -> Iterator[Callable[..., Case]]:
    made: list[Case] = []

    def make(**options: Any) -> Case:
        made.append(Case(spark, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.acker.close()


def fan_out(children: int, batch: pa.RecordBatch) -> Emitted:
    """So many children per row; row 0 of the messages has none."""
    ids = batch.column("id").to_numpy()
    counts = np.where(ids == 0, 0, children)
    parents = np.repeat(np.arange(len(ids)), counts)
    ordinal = np.concatenate([np.arange(count) for count in counts]) if len(parents) else np.array([], int)
    return Emitted(pa.record_batch({"id": ids[parents], "child": pa.array(ordinal, pa.int32())}), parents)


def consume(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for _ in batches:
        pass


def once(mark: Path, act: Callable[[], None]) -> None:
    """Do something the first time only, however many processes come by."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    act()


def raise_error() -> None:
    raise RuntimeError("on purpose")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_every_root_completes_when_every_child_was_written(case) -> None:
    run = case()
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 3), CHILD, name="fan-out")
    written = run.tracker.sink(derived.repartition(3, "child"), consume, name="sink")
    assert written.rows == 399 * 3
    assert run.outcomes() == {"ack": 400}
    assert run.acker.stats().pending == 0


def test_bolts_chain_and_a_row_without_children_is_acked(case) -> None:
    run = case(n=50)
    first = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="first")
    second = run.tracker.bolt(first, partial(fan_out, 4), CHILD, name="second")
    run.tracker.sink(second, consume, name="sink")
    assert run.outcomes() == {"ack": 50}


def test_what_a_plain_filter_drops_is_never_acked(case) -> None:
    run = case(n=100)
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="fan-out")
    run.tracker.sink(derived.where("NOT (id < 10 AND child = 1)"), consume, name="sink")
    assert run.outcomes() == {"ack": 91}  # message 0 has no children to lose
    assert run.after_timeout() == {"timeout": 9}


def test_a_failed_row_fails_its_root_at_once_with_the_reason(case) -> None:
    run = case(n=20)

    def fail_two(batch: pa.RecordBatch) -> Emitted:
        ids = batch.column("id").to_numpy()
        bad = {int(i): "odd one" for i in np.flatnonzero(np.isin(ids, [3, 15]))}
        return Emitted(pa.record_batch({"id": ids}), np.arange(len(ids)), bad)

    run.tracker.sink(run.tracker.bolt(run.tracked, fail_two, "id bigint", name="check"), consume, name="sink")
    outcomes = run.acker.poll()
    assert Counter(outcome.kind for outcome in outcomes) == {"ack": 18, "fail": 2}
    failed = {outcome.root: outcome for outcome in outcomes if outcome.kind == "fail"}
    roots = root_ids(CONFIG.app, "run", np.array([3, 15]), np.zeros(2, np.int64))
    assert set(failed) == set(roots.tolist())
    assert {(o.reason, o.detail, o.last_stage) for o in failed.values()} == {("failed", "odd one", "check")}


@pytest.mark.parametrize("act", [raise_error, kill_self])
@pytest.mark.parametrize("where", ["bolt", "sink"])
def test_a_task_that_dies_half_way_and_runs_again_counts_once(case, tmp_path, act, where) -> None:
    run = case(n=1000)
    mark = tmp_path / "died"

    def bolt(batch: pa.RecordBatch) -> Emitted:
        if where == "bolt" and 300 in batch.column("id").to_pylist():
            once(mark, act)
        return fan_out(3, batch)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        for i, _ in enumerate(batches):
            if where == "sink" and i == 1:
                once(mark, act)

    derived = run.tracker.bolt(run.tracked, bolt, CHILD, name="fan-out")
    run.tracker.sink(derived.repartition(2, "child"), write, name="sink")
    assert mark.exists()
    assert run.outcomes() == {"ack": 1000}
    assert run.acker.stats().unowned == 0


def test_a_task_that_fails_after_its_updates_went_out_counts_once(case, tmp_path) -> None:
    """The worst moment: sent, then dead. The second attempt meets its own token."""
    run = case(n=300)
    mark = tmp_path / "died"

    def die_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if TaskContext.get().partitionId() == 0:  # the bolts before have sent theirs: this comes after their last row
            once(mark, raise_error)

    derived = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="fan-out")
    fragile = derived.mapInArrow(die_at_the_end, derived.schema)
    run.tracker.sink(fragile, consume, name="sink")
    assert run.acker.stats().fenced > 0
    assert run.outcomes() == {"ack": 300}


def test_two_actions_on_one_tracked_dataframe_count_once(case) -> None:
    run = case(n=200)
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="fan-out")
    assert derived.count() == 199 * 2
    run.tracker.sink(derived, consume, name="sink")
    assert run.outcomes() == {"ack": 200}


def test_a_partition_abandoned_by_limit_sends_nothing(case) -> None:
    """Spark reads far ahead of a limit, so it takes many rows to be left before the end."""
    run = case(n=600_000, partitions=1)

    def same(batch: pa.RecordBatch) -> Emitted:
        return Emitted(batch.select(["id"]), np.arange(batch.num_rows))

    derived = run.tracker.bolt(run.tracked, same, "id bigint", name="same")
    assert len(derived.limit(5).collect()) == 5
    assert (run.acker.stats().inits, run.acker.stats().acks) == (0, 0)


def test_a_function_that_gives_other_rows_when_run_again_never_completes_falsely(case, tmp_path) -> None:
    run = case(n=200)
    mark = tmp_path / "died"

    def undecided(batch: pa.RecordBatch) -> Emitted:
        return fan_out(3 if mark.exists() else 2, batch)

    def die_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        once(mark, raise_error)

    derived = run.tracker.bolt(run.tracked, undecided, CHILD, name="undecided")
    run.tracker.sink(derived.mapInArrow(die_at_the_end, derived.schema), consume, name="sink")
    settled = run.outcomes()
    assert settled["ack"] < 200
    assert settled + run.after_timeout() == {"ack": settled["ack"], "timeout": 200 - settled["ack"]}


def test_rows_without_message_id_stay_untracked(case) -> None:
    run = case(n=10)
    messages = run.messages.withColumn("id", F.when(F.col("id") >= 4, F.col("id")))
    tracked = run.tracker.spout(messages, "id", "attempt")
    run.tracker.sink(tracked, consume, name="sink")
    assert run.outcomes() == {"ack": 6}
    assert tracked.where(F.size(COLUMN) == 0).count() == 4


def test_a_sink_that_raises_acks_nothing(case) -> None:
    run = case(n=10)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        list(batches)
        raise OSError("disk full")

    with pytest.raises(PySparkException, match="disk full"):
        run.tracker.sink(run.tracked, write, name="sink")
    assert run.outcomes() == {}
    assert run.acker.stats().acks == 0


def test_a_sink_that_leaves_rows_behind_is_an_error(case) -> None:
    run = case(n=10)
    with pytest.raises(PySparkException, match="before it had consumed"):
        run.tracker.sink(run.tracked, lambda batches, partition: None, name="sink")


def test_a_bolt_has_to_say_where_every_row_came_from(case) -> None:
    run = case(n=10)

    def careless(batch: pa.RecordBatch) -> Emitted:
        return Emitted(batch.select(["id"]), np.zeros(1, np.int64))

    derived = run.tracker.bolt(run.tracked, careless, "id bigint", name="careless")
    with pytest.raises(PySparkException, match="give one parent per row"):
        run.tracker.sink(derived, consume, name="sink")


def test_an_untracked_dataframe_is_refused_before_anything_runs(case) -> None:
    run = case(n=10)
    with pytest.raises(BadBatchError, match="spout"):
        run.tracker.sink(run.messages, consume, name="sink")
    with pytest.raises(BadBatchError, match="spout"):
        run.tracker.bolt(run.messages, partial(fan_out, 1), CHILD, name="x")


def test_a_ledger_lost_in_the_middle_is_replayed(case, spark, url, raw) -> None:
    """The spout learns of the loss, emits everything again under fresh roots, and everything completes."""
    run = case(n=100)
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="fan-out")
    assert derived.count() > 0
    raw.flushall()
    run.tracker.sink(derived, consume, name="sink")  # workers go on with the new generation
    run.spout.poll()
    assert run.spout.counts.lost == 100
    emission = run.spout.next_emission()
    assert emission is not None
    assert emission.attempts.tolist() == [1] * 100
    tracker = Tracker(url, CONFIG, "run", emission.number)
    again = tracker.spout(run.messages.withColumn("attempt", F.lit(1).cast("bigint")), "id", "attempt")
    tracker.sink(again, consume, name="sink")
    while run.spout.poll():
        pass
    assert (run.spout.counts.acked, run.spout.done) == (100, True)
