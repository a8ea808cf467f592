"""Joins, groups and unions of tracked DataFrames: rows made of several belong to the messages of all of them."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import InexactPipelineError, PipelineError
from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import MakeCase, Row
from tests.support.spark.faults import once, raise_error

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
KEY = "IF(id % 11 = 10, NULL, id % 7 + IF(id < 30, 0, 3)) AS key"


def two_sides(tracker: Tracker | None, messages: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Messages below and above 30, with a key that some have in common, some haven't, and some lack."""
    conditions = ("id < 30", "id >= 30")
    left, right = (messages.where(c) if tracker is None else tracker.filter(messages, c) for c in conditions)
    own = () if tracker is None else TRACKING
    return left.selectExpr("id", KEY, *own), right.selectExpr("id AS other", KEY, *own)


def rows(found: list[Any]) -> Counter[Row]:
    return Counter(tuple(row) for row in found)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_join_with_an_untracked_table_completes(case: MakeCase, how: str) -> None:
    run = case(n=20)
    table = run.spark.createDataFrame(
        [(1, "a", 0.5), (1, "b", 1.5), (2, "c", None), (2, "c", None)], "key int, x string, y double"
    )
    key = (F.col("id") % 4).cast("int")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        joined = tracker.join(messages.withColumn("key", key), table, "key", how)
        tracker.write(joined.repartition(3, "x"), run.append())

    run.complete(pipeline)
    truth = run.messages.withColumn("key", key).join(table, "key", how).select("key", "id", "x", "y").collect()
    assert rows(run.written("key", "id", "x", "y")) == rows(truth)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_join_of_two_tracked_dataframes_completes(case: MakeCase, how: str) -> None:
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        left, right = two_sides(tracker, messages)
        tracker.write(tracker.join(left, right, "key", how, partial=True).repartition(3, "id", "other"), run.append())

    run.complete(pipeline)
    left, right = two_sides(None, run.messages)
    truth = left.join(right, "key", how).select("key", "id", "other").collect()
    assert rows(run.written("key", "id", "other")) == rows(truth)


def test_failed_joined_row_fails_the_messages_of_both_sides(case: MakeCase) -> None:
    run = case(n=60)
    left, right = two_sides(None, run.messages)
    lost = left.join(right, "key").orderBy("id", "other").collect()[0]

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        joined = tracker.join(*two_sides(tracker, messages), "key", partial=True)
        bad = f"id = {lost['id']} AND other = {lost['other']}"
        tracker.write(tracker.fail_where(joined, bad, "lost"), run.append())

    ended = run.done(pipeline, retry=ONCE)
    assert set(ended.letters) == {lost["id"], lost["other"]}
    assert len(ended.acked) == 58


def test_failed_group_fails_the_messages_of_all_its_rows(case: MakeCase) -> None:
    run = case(n=50)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        many = tracker.explode(messages, "transform(sequence(0, cast(id % 3 AS int)), i -> struct(id, i))")
        wanted = [F.count("*").alias("n"), F.max("id").alias("m")]
        grouped = tracker.group_by(many, (F.col("id") % 5).alias("key"), wanted, partial=True)
        tracker.write(tracker.fail_where(grouped, "key = 3", "three"), run.append())

    ended = run.done(pipeline, retry=ONCE)
    truth = {(key, sum(n % 3 + 1 for n in range(50) if n % 5 == key), 45 + key) for key in range(5) if key != 3}
    assert set(run.written()) == truth
    assert set(ended.letters) == set(range(3, 50, 5))


def test_flat_map_on_grouped_rows_completes(case: MakeCase) -> None:
    run = case(n=50)

    def twice(batch: pa.RecordBatch) -> FlatMapOutput:
        parents = np.repeat(np.arange(batch.num_rows), 2)
        return FlatMapOutput(batch.select(["total"]).take(pa.array(parents)), parents)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        grouped = tracker.group_by(messages, F.col("id") % 5, F.sum("id").alias("total"), partial=True)
        derived = tracker.flat_map_arrow(grouped, twice, "total bigint")
        total = tracker.group_by(derived, [], F.sum("total").alias("total"), partial=True, name="all")
        tracker.write(total, run.append())

    run.complete(pipeline)
    assert run.written() == [(2 * sum(range(50)),)]


def test_self_join_of_a_message_completes(case: MakeCase) -> None:
    """A self-join: rows of which both sides came from one message."""
    run = case(n=30)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        joined = tracker.join(messages, messages.withColumn("half", F.col("id") % 2), "id")
        tracker.write(tracker.group_by(joined, "half", F.max("id").alias("last"), partial=True), run.append())

    run.complete(pipeline)
    assert sorted(run.written()) == [(0, 28), (1, 29)]


def test_union_by_name_with_itself_completes(case: MakeCase) -> None:
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        left, right = two_sides(tracker, messages)
        both = tracker.union_by_name(left, right.withColumnRenamed("other", "id"))
        tracker.write(tracker.union_by_name(both, both, both).repartition(3, "id"), run.append())

    run.complete(pipeline)
    assert Counter(id for id, _ in run.written()) == dict.fromkeys(range(60), 3)


@pytest.mark.parametrize(
    "broken",
    [
        lambda left, right: (left.where("id <> 3"), right.union(right.where("id = 3"))),
        lambda left, right: (left.union(left.where("id = 3")), right.where("id <> 3")),
    ],
)
def test_row_lost_in_a_branch_and_copied_in_another_is_detected(
    case: MakeCase, broken: Callable[[DataFrame, DataFrame], tuple[DataFrame, DataFrame]]
) -> None:
    """The frames of a union have other weights, so that a row lost in one can't make up for one copied in another."""
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.union_by_name(*broken(messages, messages)), run.append())

    assert "missing or duplicated" in run.refused(pipeline, InexactPipelineError)


def test_filter_explode_join_and_group_by_in_sequence_complete(case: MakeCase) -> None:
    run = case(n=40)
    table = run.spark.createDataFrame([(i, chr(97 + i % 3)) for i in range(6)], "item int, letter string")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id % 4 > 0")
        items = tracker.explode(kept, "transform(sequence(0, cast(id % 8 AS int)), i -> struct(id, i AS item))")
        some = tracker.filter(tracker.join(items, table, ["item"]), "letter <> 'c'")
        tracker.write(tracker.group_by(some, "letter", [F.count("*").alias("n")], partial=True), run.append())

    run.complete(pipeline)
    items_of = [i for n in range(40) if n % 4 for i in range(n % 8 + 1) if i < 6]
    assert set(run.written()) == set(Counter(chr(97 + i % 3) for i in items_of if i % 3 != 2).items())


def test_task_dying_behind_a_join_counts_once(case: MakeCase) -> None:
    run = case(n=60)
    died = run.folder / "died"

    def write(into: Any, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        first = next(batches, None)
        once(died, raise_error)
        into([first, *batches] if first is not None else [], partition)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        joined = tracker.join(*two_sides(tracker, messages), "key", "full", partial=True)
        tracker.write_partitions(joined.drop("key"), partial(write, run.partition_files(tracker)))

    run.complete(pipeline)
    assert died.exists()
    left, right = two_sides(None, run.messages)
    assert rows(run.written(name="rows")) == rows(left.join(right, "key", "full").select("id", "other").collect())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t, rows, table: t.join(rows, table, "id", "outer"), "how='outer'"),
        (lambda t, rows, table: t.join(rows, table, "id", "full"), "how='full'"),
        (lambda t, rows, table: t.join(rows, table, "key"), "Missing"),
        (lambda t, rows, table: t.join(rows, rows, "id", "outer"), "how='outer'"),
        (lambda t, rows, table: t.join(rows.withColumn("x", F.lit(1)), table, "id"), "Rename"),
        (lambda t, rows, table: t.join(rows.withColumn("k", F.map_from_arrays(F.array(), F.array())),
                                       table.select(F.lit(1).alias("k")), "k"), "Cast one side"),
        (lambda t, rows, table: t.union_by_name(rows), "two or more"),
        (lambda t, rows, table: t.union_by_name(rows, table), "isn't tracked"),
        (lambda t, rows, table: t.group_by(rows, "id", F.max("id").alias("ID")), "columns of one name"),
    ],
)  # fmt: skip
def test_invalid_join_group_by_and_union_calls_are_refused(
    case: MakeCase, call: Callable[[Tracker, DataFrame, DataFrame], object], text: str
) -> None:
    run = case(n=3)
    table = run.spark.createDataFrame([(1, 2)], "id bigint, x bigint")
    assert text in run.refused(lambda tracker, messages: call(tracker, messages, table), PipelineError)


def once_bad(tracker: Tracker, rows: DataFrame) -> DataFrame:
    """Some fail in the first emission."""
    return tracker.fail_where(rows, f"id % 7 = 0 AND {tracker.emission} = 0", "once")


@pytest.mark.parametrize("key", ["id", "ID", "column"])
def test_group_by_message_id_needs_no_partial_option(case: MakeCase, key: str) -> None:
    run = case(n=30)
    by = F.col("id") if key == "column" else key

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        many = tracker.explode(once_bad(tracker, messages), "transform(sequence(0, id % 3), i -> struct(id, i))")
        groups = tracker.group_by(many, [by, F.lit(1).alias("one")], F.count("*").alias("n"))
        both = groups if key == "ID" else tracker.join(groups, many, "id")
        tracker.write(both.select("id", "n", *TRACKING), run.append())

    run.done(pipeline)
    times = {id: 1 if key == "ID" else id % 3 + 1 for id in range(30)}
    assert rows(run.written("id", "n")) == Counter({(id, id % 3 + 1): times[id] for id in range(30)})


@pytest.mark.parametrize(
    "bring",
    [
        lambda t, rows, **by: t.group_by(rows, (F.col("id") % 5).alias("key"), F.count("*").alias("n"), **by),
        lambda t, rows, **by: t.group_by(rows, [], F.count("*").alias("n"), **by),
        lambda t, rows, **by: t.group_by(rows, "half", F.count("*").alias("n"), **by),
        lambda t, rows, **by: t.join(rows, rows.withColumnRenamed("id", "other"), "half", **by),
    ],
)
def test_combining_messages_requires_partial_or_whole_output(case: MakeCase, bring: Callable[..., DataFrame]) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame, **by: bool) -> None:
        tracker.write(bring(tracker, messages.withColumn("half", F.col("id") % 2), **by), run.append())

    text = run.refused(pipeline, PipelineError)
    assert all(way in text for way in ("'id'", 'output="whole"', "partial=True"))
    run.done(partial(pipeline, partial=True))
    whole = case(n=10)
    whole.done(
        lambda tracker, messages: tracker.write(
            bring(tracker, messages.withColumn("half", F.col("id") % 2)),
            lambda w: w.mode("overwrite").parquet(whole.out),
        ),
        output="whole",
    )


@pytest.mark.parametrize(
    "bring",
    [
        lambda t, rows: t.group_by(rows, "id", F.count("*").alias("n")),
        lambda t, rows: t.group_by(rows, F.lit(1).alias("id"), F.count("*").alias("n")),
        lambda t, rows: t.join(rows, rows.withColumnRenamed("half", "other"), "id"),
        lambda t, rows: t.group_by(
            t.group_by(rows, "half", F.min("id").alias("id"), partial=True), "id", F.count("*").alias("n")
        ),
    ],
)
def test_column_named_like_the_message_id_only_is_refused(case: MakeCase, bring: Callable[..., DataFrame]) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        other = messages.withColumns({"half": F.col("id") % 2, "id": F.col("id") % 3})
        tracker.write(bring(tracker, other), run.append())

    text = run.refused(pipeline, InexactPipelineError)
    assert text.startswith(("'group", "'join"))
    assert text.endswith("may come together.")
