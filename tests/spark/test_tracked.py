"""Tracked DataFrames on real Spark and a real server: outcomes are counted and compared with the truth."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from acker_redis import BadBatchError, NotExactError
from acker_redis.pending import root_ids
from acker_redis.spark import Emitted, Tracker, run_tracked
from acker_redis.spark.anchors import COLUMN
from tests.spark.cases import CHILD, MakeCase, consume
from tests.spark.faults import die_after_sending, fan_out, kill_self, once, raise_error

pytestmark = pytest.mark.spark


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
    roots = root_ids(run.acker.config.app, run.spout.run_id, np.array([3, 15]), np.zeros(2, np.int64))
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

    def bolt(batch: pa.RecordBatch) -> Emitted:
        if not mark.exists():
            die_after_sending(mark)
        return fan_out(2, batch)

    derived = run.tracker.bolt(run.tracked, bolt, CHILD, name="derive")
    run.tracker.sink(derived, consume, name="sink")
    assert mark.exists()
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
    """The ledger knows of two children, three are handed on: two acks must not complete a root."""
    run = case(n=200)
    mark = tmp_path / "died"

    def undecided(batch: pa.RecordBatch) -> Emitted:
        if not mark.exists():
            die_after_sending(mark)
            return fan_out(2, batch)
        return fan_out(3, batch)

    derived = run.tracker.bolt(run.tracked, undecided, CHILD, name="undecided").repartition(2, "child")
    run.tracker.sink(derived, consume, name="sink")
    settled = run.outcomes()
    assert mark.exists()
    assert settled["failed"] > 0
    assert settled == {"ack": 200 - settled["failed"], "failed": settled["failed"]}


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_rows_of_a_tree_that_settled_without_them_end_the_job(case, tmp_path, before: int, after: int) -> None:
    """Nothing came of the messages at first, so they are acked; rows of theirs can't be handed on afterwards."""
    run = case(n=20)
    mark = tmp_path / "ran"

    def undecided(batch: pa.RecordBatch) -> Emitted:
        return fan_out(after if mark.exists() else before, batch)

    derived = run.tracker.bolt(run.tracked, undecided, CHILD, name="undecided").repartition(2, "child")
    derived.count()
    mark.touch()
    if after:
        with pytest.raises(PySparkException, match="had settled before their task ran again"):
            run.tracker.sink(derived, consume, name="sink")
        assert run.outcomes() == {"ack": 20}
    else:
        run.tracker.sink(derived, consume, name="sink")
        assert run.outcomes() == {"ack": 1, "failed": 19}  # message 0 had no rows either time


def test_a_source_that_gives_other_rows_when_read_again_ends_the_job(case, tmp_path) -> None:
    """Their inits would be left out under the token of the first rows, and nobody would ever hear of them."""
    run = case(n=20)
    messages = tmp_path / "messages"
    run.messages.coalesce(1).write.parquet(str(messages))
    tracked = run.tracker.spout(run.spark.read.parquet(str(messages)), "id", "attempt", name="files")
    tracked.count()
    run.messages.selectExpr("id + 100 AS id", "attempt").coalesce(1).write.parquet(str(messages), "overwrite")
    again = Tracker.of(run.url, run.spout, run.emission)
    tracked = again.spout(run.spark.read.parquet(str(messages)), "id", "attempt", name="files")
    with pytest.raises(PySparkException, match="never initialised"):
        again.sink(tracked, consume, name="sink")
    assert run.outcomes() == {}
    assert run.after_timeout() == {"timeout": 20}


def test_rows_without_message_id_stay_untracked(case) -> None:
    run = case(n=10)
    messages = run.messages.withColumn("id", F.when(F.col("id") >= 4, F.col("id")))
    tracked = run.tracker.spout(messages, "id", "attempt", name="some")
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
    tracker = Tracker.of(url, run.spout, emission)
    again = tracker.spout(run.messages.withColumn("attempt", F.lit(1).cast("bigint")), "id", "attempt")
    tracker.sink(again, consume, name="sink")
    while run.spout.poll():
        pass
    assert (run.spout.counts.acked, run.spout.done) == (100, True)


def test_branches_have_edges_of_their_own(case) -> None:
    """A root completes with the last branch, not with the first."""
    run = case(n=60)
    left, right = run.tracker.fan_out(run.tracked, "left", "right")
    derived = run.tracker.bolt(left, partial(fan_out, 2), CHILD, name="derive")
    run.tracker.sink(derived.repartition(2, "child"), consume, name="sink-left")
    assert run.outcomes() == {}
    run.tracker.sink(right.where("id >= 10"), consume, name="sink-right")
    assert run.outcomes() == {"ack": 50}
    assert run.after_timeout() == {"timeout": 10}


def test_a_second_consumer_of_the_same_rows_is_refused(case) -> None:
    run = case(n=10)
    run.tracker.sink(run.tracked, consume, name="first")
    with pytest.raises(NotExactError, match="fan_out"):
        run.tracker.sink(run.tracked.where("id > 5"), consume, name="second")
    assert run.tracker.sink(run.tracked, consume, name="first").updates == 0
    assert run.outcomes() == {"ack": 10}


def test_two_operators_of_one_name_are_refused(case) -> None:
    run = case(n=10)
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 1), CHILD, name="same")
    with pytest.raises(NotExactError, match="name of its own"):
        run.tracker.sink(derived, consume, name="same")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Generate", lambda df: df.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))),
        ("Join", lambda df: df.join(df.sparkSession.range(5).withColumnRenamed("id", "other"), F.col("id") > 0)),
        ("Union", lambda df: df.union(df)),
        ("Expand", lambda df: df.selectExpr("id", COLUMN).unpivot([COLUMN], ["id"], "a", "b")),
        ("coalesce", lambda df: df.coalesce(1)),
        ("Sample", lambda df: df.sample(True, 2.0)),
        ("MapInArrow", lambda df: df.mapInArrow(lambda batches: batches, df.schema)),
    ],
)
def test_what_would_not_be_exact_between_operators_is_refused(case, kind: str, change: Callable[[Any], Any]) -> None:
    run = case(n=10)
    with pytest.raises(NotExactError, match=kind):
        run.tracker.sink(change(run.tracked), consume, name="sink")
    assert run.acker.stats().inits == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda df: df.orderBy("id"),
        lambda df: df.repartition(3, "id").select("id", COLUMN),
        lambda df: df.withColumn("x", F.udf(lambda v: v, "bigint")("id")),
        lambda df: df.hint("broadcast").alias("a").dropDuplicates(["id"]),
        lambda df: df.join(df.sparkSession.range(100), "id", "left_semi"),
        lambda df: df.localCheckpoint(),
        lambda df: df.cache(),
    ],
)
def test_what_keeps_rows_as_they_are_is_exact(case, change: Callable[[Any], Any]) -> None:
    run = case(n=30)
    run.tracker.sink(change(run.tracked), consume, name="sink")
    assert run.outcomes() == {"ack": 30}


def test_anchors_that_were_computed_are_refused(case) -> None:
    run = case(n=10)
    grouped = run.tracked.groupBy("id").agg(F.first(COLUMN).alias(COLUMN))
    with pytest.raises(NotExactError, match="computed by something else"):
        run.tracker.sink(grouped, consume, name="sink")


def test_a_cached_dataframe_is_not_computed_again(case, tmp_path) -> None:
    run = case(n=20)

    def random_children(batch: pa.RecordBatch) -> Emitted:
        return fan_out(int.from_bytes(os.urandom(1), "big") % 5 + 1, batch)

    derived = run.tracker.bolt(run.tracked, random_children, CHILD, name="random").cache()
    assert derived.count() > 0
    run.tracker.sink(derived, consume, name="sink")
    assert run.outcomes() == {"ack": 20}


def test_a_message_id_that_stands_twice_is_an_error(case) -> None:
    run = case(n=10)
    twice = run.tracker.spout(run.messages.union(run.messages).coalesce(1), "id", "attempt", name="twice")
    with pytest.raises(PySparkException, match="more than once in one emission"):
        run.tracker.sink(twice, consume, name="sink")


def test_steps_that_ran_alone_before_count_once_when_they_run_together(case) -> None:
    """Every prefix of a chain is run by itself first: the tokens meet again, and only what is missing is applied."""
    run = case(n=300)
    first = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="first")
    second = run.tracker.bolt(first, partial(fan_out, 3), CHILD, name="second")
    for frame in (run.tracked, first, second):
        assert frame.count() > 0
    assert run.acker.stats().acked == 1  # message 0, which has no children
    run.tracker.sink(second, consume, name="sink")
    run.tracker.sink(second, consume, name="sink")
    assert run.outcomes() == {"ack": 300}


def test_a_chain_without_shuffle_settles_its_roots_in_one_update(case) -> None:
    run = case(n=300)
    derived = run.tracker.bolt(run.tracked, partial(fan_out, 2), CHILD, name="derive")
    assert run.tracker.sink(derived, consume, name="sink").updates == 300
    assert (run.acker.stats().inits, run.acker.stats().acks) == (300, 0)
    assert run.outcomes() == {"ack": 300}


@pytest.mark.parametrize("name", ["", "x" * 101, "half \ud800 a pair", None])
def test_an_operator_that_can_not_be_named_so_is_refused_when_it_is_made(case: MakeCase, name: Any) -> None:
    run = case(n=1)
    tracker, rows, table = run.tracker, run.tracked, run.spark.range(1)
    calls: list[Callable[[], object]] = [
        lambda: tracker.spout(run.messages, "id", "attempt", name=name),
        lambda: tracker.fan_out(rows, "a", "b", name=name),
        lambda: tracker.bolt(rows, partial(fan_out, 1), CHILD, name=name),
        lambda: tracker.bolt_rows(rows, lambda row: [], CHILD, name=name),
        lambda: tracker.filter(rows, "true", name=name),
        lambda: tracker.fail(rows, "true", "no", name=name),
        lambda: tracker.explode(rows, "array(1)", name=name),
        lambda: tracker.join(rows, table, on="id", name=name),
        lambda: tracker.group(rows, "id", [], name=name),
        lambda: tracker.union(rows, rows, name=name),
        lambda: tracker.hand_over(rows, name=name),
        lambda: tracker.write(rows, lambda frame: None, name=name),
        lambda: tracker.sink(rows, consume, name=name),
        lambda: tracker.take_over(table.withColumn("anchors", F.lit("")), name=name),
    ]
    for call in calls:
        with pytest.raises(BadBatchError, match="1 to 100 characters"):
            call()
    assert tracker.sink(rows, consume, name="sink").rows == 1


def test_one_stage_too_many_is_refused_when_it_is_made(case: MakeCase) -> None:
    run = case(n=1)
    for number in range(255):
        run.acker.ledger.stage_number(f"stage-{number}")
    known = run.tracker.filter(run.tracked, "true", name="stage-7")
    with pytest.raises(BadBatchError, match="'one-more': the app has 255 stages already"):
        run.tracker.filter(known, "true", name="one-more")


def test_columns_of_one_name_are_refused_when_an_operator_is_made(case: MakeCase) -> None:
    run = case(n=1)
    tracker, rows = run.tracker, run.tracked
    calls: list[Callable[[], object]] = [
        lambda: tracker.spout(run.messages.withColumns({"x": F.lit(1)}).select("*", "x"), "id", "attempt", name="x"),
        lambda: tracker.sink(rows.select("*", F.lit(1).alias("ID")), consume, name="x"),
        lambda: tracker.bolt(rows, partial(fan_out, 1), "id bigint, Id bigint", name="x"),
        lambda: tracker.explode(rows, "array(struct(id, id AS iD))", name="x"),
        lambda: tracker.hand_over(rows, name="x", column="Id"),
        lambda: run_tracked(run.messages.select("*", "id"), print, acker=run.acker, url=run.url, message_id="id"),
    ]
    other = case(n=1)
    calls.append(lambda: other.tracker.group(other.tracked, "id", [F.max("id").alias("ID")], name="total"))
    for call in calls:
        with pytest.raises(BadBatchError, match=r"(?i)('id'|'x'), ('id'|'x'): columns of one name can't be told apart"):
            call()
