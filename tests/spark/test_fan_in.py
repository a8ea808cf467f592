"""Joins, groups and unions of tracked DataFrames: rows made of several are anchored to all of them."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import BadBatchError, NotExactError
from acker_redis.spark import Emitted
from acker_redis.spark.anchors import COLUMN
from tests.spark.cases import Case, MakeCase, consume

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.drop(COLUMN).collect())


def two_spouts(run: Case, keys: int = 7) -> tuple[DataFrame, DataFrame]:
    """Messages below and above 30, with a key that some have in common, some haven't, and some lack."""
    key = F.when(F.col("id") % 11 != 10, F.col("id") % keys + F.when(F.col("id") < 30, 0).otherwise(3)).alias("key")
    left = run.messages.where("id < 30").select("id", "attempt", key)
    right = run.messages.where("id >= 30").select(F.col("id").alias("other"), F.col("attempt").alias("again"), key)
    tracked = (
        run.tracker.spout(left, "id", "attempt", name="left"),
        run.tracker.spout(right, "other", "again", name="right"),
    )
    return tracked[0].drop("attempt"), tracked[1].drop("again")


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_with_a_table_that_is_not_tracked(case: MakeCase, how: str) -> None:
    run = case(n=20)
    table = run.spark.createDataFrame(
        [(1, "a", 0.5), (1, "b", 1.5), (2, "c", None), (2, "c", None)], "key int, x string, y double"
    )
    left = run.tracked.withColumn("key", (F.col("id") % 4).cast("int"))
    joined = run.tracker.join(left, table, "key", name="enrich", how=how)
    truth = run.messages.withColumn("key", (F.col("id") % 4).cast("int")).join(table, "key", how)
    assert rows(joined.select("key", "id", "x", "y")) == rows(truth.select("key", "id", "x", "y"))
    run.tracker.sink(joined.repartition(3, "x"), consume, name="sink")
    assert run.outcomes() == {"ack": 20}
    assert run.acker.stats().unowned == 0


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_a_join_of_two_tracked_dataframes(case: MakeCase, how: str) -> None:
    run = case(n=60)
    left, right = two_spouts(run)
    joined = run.tracker.join(left, right, "key", name="join", how=how)
    truth = left.drop(COLUMN).join(right.drop(COLUMN), "key", how)
    assert rows(joined.select("key", "id", "other")) == rows(truth.select("key", "id", "other"))
    run.tracker.sink(joined.repartition(3, "id", "other"), consume, name="sink")
    assert run.outcomes() == {"ack": 60}
    assert run.acker.stats().unowned == 0


def test_a_joined_row_holds_up_the_roots_of_both_sides(case: MakeCase) -> None:
    run = case(n=60)
    left, right = two_spouts(run)
    joined = run.tracker.join(left, right, "key", name="join")
    (lost,) = joined.drop(COLUMN).orderBy("id", "other").limit(1).collect()
    run.tracker.sink(joined.where(f"NOT (id = {lost['id']} AND other = {lost['other']})"), consume, name="sink")
    assert run.outcomes() == {"ack": 58}
    assert run.after_timeout() == {"timeout": 2}


def test_a_group_is_anchored_to_all_its_rows(case: MakeCase) -> None:
    run = case(n=50)
    many = run.tracker.explode(
        run.tracked, "transform(sequence(0, cast(id % 3 AS int)), i -> struct(id, i))", name="many"
    )
    grouped = run.tracker.group(many, [(F.col("id") % 5).alias("key")], [F.count("*").alias("rows")], name="group")
    truth = {(key, sum(n % 3 + 1 for n in range(50) if n % 5 == key)) for key in range(5)}
    assert set(rows(grouped)) == truth
    run.tracker.sink(grouped.where("key <> 3"), consume, name="sink")
    assert run.outcomes() == {"ack": 40}
    assert run.after_timeout() == {"timeout": 10}


def test_a_group_that_a_bolt_goes_on_from(case: MakeCase) -> None:
    run = case(n=50)
    grouped = run.tracker.group(run.tracked, F.col("id") % 5, [F.sum("id").alias("total")], name="group")

    def twice(batch: pa.RecordBatch) -> Emitted:
        parents = np.repeat(np.arange(batch.num_rows), 2)
        return Emitted(batch.select(["total"]).take(pa.array(parents)), parents)

    derived = run.tracker.bolt(grouped, twice, "total bigint", name="twice")
    again = run.tracker.group(derived, [], [F.sum("total").alias("total")], name="all")
    assert run.tracker.sink(again, consume, name="sink").rows == 1
    assert run.outcomes() == {"ack": 50}


def test_a_root_that_is_reached_twice(case: MakeCase) -> None:
    """A self-join behind a fan-out: rows whose two anchors are of one root."""
    run = case(n=30)
    one, other = run.tracker.fan_out(run.tracked.select("id", COLUMN), "one", "other")
    joined = run.tracker.join(one, other.withColumn("half", F.col("id") % 2), "id", name="self")
    grouped = run.tracker.group(joined, "half", [F.max("id").alias("last")], name="halves")
    run.tracker.sink(grouped, consume, name="sink")
    assert run.outcomes() == {"ack": 30}


def test_a_union(case: MakeCase) -> None:
    run = case(n=60)
    left, right = two_spouts(run)
    both = run.tracker.union(left, right.withColumnRenamed("other", "id"), name="both")
    assert run.tracker.sink(both.repartition(3, "id"), consume, name="sink").rows == 60
    assert run.outcomes() == {"ack": 60}


def test_filter_explode_join_and_group_in_a_row(case: MakeCase) -> None:
    run = case(n=40)
    table = run.spark.createDataFrame([(i, chr(97 + i % 3)) for i in range(6)], "item int, letter string")
    kept = run.tracker.filter(run.tracked, "id % 4 > 0", name="kept")
    items = run.tracker.explode(
        kept, "transform(sequence(0, cast(id % 8 AS int)), i -> struct(id, i AS item))", name="items"
    )
    letters = run.tracker.join(items, table, ["item"], name="letters")
    some = run.tracker.filter(letters, "letter <> 'c'", name="some")
    totals = run.tracker.group(some, "letter", [F.count("*").alias("n")], name="totals")
    items_of = [i for n in range(40) if n % 4 for i in range(n % 8 + 1) if i < 6]
    truth = Counter(chr(97 + i % 3) for i in items_of if i % 3 != 2)
    assert set(rows(totals)) == set(truth.items())
    run.tracker.sink(totals, consume, name="sink")
    assert run.outcomes() == {"ack": 40}
    assert run.acker.stats().unowned == 0


def test_a_task_that_dies_half_way_behind_a_join_counts_once(case: MakeCase, tmp_path: Any) -> None:
    run = case(n=60)
    left, right = two_spouts(run)
    joined = run.tracker.join(left, right, "key", name="join", how="full")
    mark = tmp_path / "died"

    def write(batches: Any, partition: int) -> None:
        for _ in batches:
            if not mark.exists():
                mark.touch()
                raise RuntimeError("on purpose")

    run.tracker.sink(joined, write, name="sink")
    assert mark.exists()
    assert run.outcomes() == {"ack": 60}


def test_what_is_refused(case: MakeCase) -> None:
    run = case(n=3)
    table = run.spark.createDataFrame([(1, 2)], "id bigint, attempt bigint")
    with pytest.raises(BadBatchError, match="how='outer'"):
        run.tracker.join(run.tracked, table, "id", name="x", how="outer")
    with pytest.raises(BadBatchError, match="missing"):
        run.tracker.join(run.tracked, table, "key", name="x")
    with pytest.raises(BadBatchError, match="rename"):
        run.tracker.join(run.tracked, table, "id", name="x")
    with pytest.raises(BadBatchError, match="two or more"):
        run.tracker.union(run.tracked, name="x")
    renamed = run.tracked.withColumnRenamed("attempt", "again")
    with pytest.raises(NotExactError, match="fan_out"):
        run.tracker.join(run.tracked, renamed, "id", name="x")
