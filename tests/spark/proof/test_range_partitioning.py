"""Operators that partition by range. Before Spark 4.3 their sampling job counts the rows below, too."""

import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import MakeCase
from tests.support.spark.versions import SPARK, VIEWS_OVER_CONNECT

pytestmark = pytest.mark.spark

Change: TypeAlias = Callable[[DataFrame], DataFrame]


def view_of(rows: DataFrame) -> str:
    name = f"view_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    return name


def in_view(rows: DataFrame, query: str) -> DataFrame:
    return rows.sparkSession.sql(query.replace("{view}", view_of(rows)))


BY_RANGE: dict[str, Change] = {
    "orderBy": lambda rows: rows.orderBy(F.desc("id")),
    "sort": lambda rows: rows.where("true").sort("id"),
    "repartitionByRange": lambda rows: rows.repartitionByRange(3, "id"),
    "below others": lambda rows: rows.orderBy("id").withColumn("more", F.lit(1)).drop("more"),
    "in SQL": lambda rows: rows.sparkSession.sql("SELECT * FROM {rows} ORDER BY id", rows=rows),
    "in SQL over a view": lambda rows: in_view(rows, "SELECT * FROM {view} WHERE id >= 0 ORDER BY id"),
    "in SQL with a name": lambda rows: in_view(
        rows, "WITH good AS (SELECT * FROM {view}) SELECT * FROM good ORDER BY id"
    ),
    "below a name": lambda rows: in_view(rows, "WITH good AS (SELECT * FROM {view} ORDER BY id) SELECT * FROM good"),
    "in a view": lambda rows: in_view(rows.orderBy("id"), "SELECT * FROM {view}"),
    "in a view by name": lambda rows: rows.sparkSession.table(view_of(rows.orderBy("id"))),
    "on a side": lambda rows: rows.sort("id").join(rows.sparkSession.range(20), "id"),
}
OTHERS: dict[str, Change] = {
    "sortWithinPartitions": lambda rows: rows.sortWithinPartitions("id"),
    "repartition": lambda rows: rows.repartition(3, "id"),
    "a window": lambda rows: rows.withColumn("n", F.expr("row_number() OVER (PARTITION BY id % 3 ORDER BY id)")).drop(
        "n"
    ),
    "of another frame": lambda rows: rows.join(rows.sparkSession.range(20).orderBy("id"), "id"),
}


@pytest.mark.parametrize("change", BY_RANGE.values(), ids=BY_RANGE)
@pytest.mark.parametrize("python", [False, True])
def test_range_partitioning_above_a_meter_is_exact_or_refused(case: MakeCase, change: Change, python: bool) -> None:
    run = case(n=20)

    def pipeline(tracker: Any, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id <> 3")
        if python:
            kept = tracker.flat_map(kept, lambda row: [row], "id bigint")
        tracker.write(change(kept), run.append())

    if SPARK < (4, 3):
        assert "Call tracker.local_checkpoint or checkpoint before the step" in run.refused(pipeline, PipelineError)
        assert run.written() == []
    else:
        run.complete(pipeline)
        assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_other_exchanges_are_exact_on_every_version(case: MakeCase, change: Change) -> None:
    run = case(n=20)
    run.complete(lambda t, m: t.write(change(t.filter(m, "id <> 3")), run.append()))
    assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]


@pytest.mark.parametrize("change", BY_RANGE.values(), ids=BY_RANGE)
def test_range_partitioning_is_exact_behind_a_checkpoint_and_before_the_first_operator(
    case: MakeCase, change: Change
) -> None:
    run = case(n=20)

    def pipeline(tracker: Any, messages: DataFrame) -> None:
        kept = tracker.local_checkpoint(tracker.filter(change(messages), "id <> 3"))
        tracker.write(change(kept), run.append())

    run.complete(pipeline)
    assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]


IN_SQL: dict[str, Change] = {
    "a view": lambda rows: in_view(rows, "SELECT * FROM {view}"),
    "a view by name": lambda rows: rows.sparkSession.table(view_of(rows)),
    "a frame in SQL": lambda rows: rows.sparkSession.sql("SELECT * FROM {rows}", rows=rows),
}


@pytest.mark.parametrize("kind", IN_SQL)
def test_sql_above_an_operator_is_exact_or_refused_before_anything_is_written(case: MakeCase, kind: str) -> None:
    run = case(n=20)

    def pipeline(tracker: Any, messages: DataFrame) -> None:
        tracker.write(IN_SQL[kind](tracker.filter(messages, "id <> 3")), run.append())

    if is_connect(run.spark) and not VIEWS_OVER_CONNECT and "view" in kind:
        text = run.refused(pipeline, PipelineError)
        assert "come through a temporary view" in text and "with {rows} in the query" in text
        assert run.written() == []
    else:
        run.complete(pipeline)
        assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]


@pytest.mark.parametrize("change", IN_SQL.values(), ids=IN_SQL)
def test_sql_is_exact_behind_a_checkpoint_and_before_the_first_operator(case: MakeCase, change: Change) -> None:
    run = case(n=20)

    def pipeline(tracker: Any, messages: DataFrame) -> None:
        kept = tracker.local_checkpoint(tracker.filter(change(messages), "id <> 3"))
        tracker.write(change(kept), run.append())

    run.complete(pipeline)
    assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]


def test_view_of_a_frame_does_not_change_what_is_known_of_the_frame(case: MakeCase) -> None:
    """On Spark Connect 4.0, a view that has a frame's meters would keep their sums from all later requests."""
    run = case(n=20)

    def pipeline(tracker: Any, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id <> 3")
        view_of(kept)
        tracker.write(kept.unionByName(kept.where("false")), run.append())

    run.complete(pipeline)
    assert sorted(run.written()) == [(id,) for id in range(20) if id != 3]
