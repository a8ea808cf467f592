"""Cached frames of which Spark loses a part: it computes it again, and what the meters in it counted is not known."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import InexactPipelineError, RowFailedError, UnprovenEmissionError
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import MakeCase
from tests.support.spark.faults import evict
from tests.support.spark.versions import SPARK

pytestmark = pytest.mark.spark


def some(row: dict[str, Any]) -> Iterator[tuple[int]]:
    """None of every tenth row; every other tenth fails."""
    if row["id"] % 10 == 3:
        raise RowFailedError("three", retry=False)
    if row["id"] % 10 != 4:
        yield (row["id"],)


KEPT: dict[str, tuple[Callable[[Tracker, DataFrame], DataFrame], set[int], set[int]]] = {
    "filter": (lambda tracker, rows: tracker.filter(rows, "id % 10 <> 3"), {3}, set()),
    "flat_map": (lambda tracker, rows: tracker.flat_map(rows, some, "id bigint"), {3, 4}, {3}),
    "fail_where": (lambda tracker, rows: tracker.fail_where(rows, "id % 10 = 3", "three", retry=False), {3}, {3}),
    "explode": (lambda tracker, rows: tracker.explode(rows, "IF(id % 10 = 3, array(), array(struct(id)))"), {3}, set()),
}
"""Operators that drop or fail rows; last digits of the ids that are not written, and of those that fail."""


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.classic("only a JVM drops single blocks")
def test_lost_part_of_a_cache_is_emitted_again(case: MakeCase, kind: str) -> None:
    run = case(n=60)
    operator, gone, failing = KEPT[kind]
    calls: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = operator(tracker, messages).cache()
        kept.count()
        if not calls:
            evict(run.spark.sparkContext)
        calls.append(tracker.emission)
        tracker.write(kept, run.append())

    ended = run.done(pipeline)
    assert ended.emissions == 2
    assert set(ended.letters) == {id for id in range(60) if id % 10 in failing}
    assert {letter.attempts for letter in ended.letters.values()} <= {1}
    assert set(run.written()) == {(id,) for id in range(60) if id % 10 not in gone}
    ended.check({id: [(id,)] for id in range(60) if id % 10 not in gone - failing}, run.written())


def test_partly_filled_cache_is_emitted_again(case: MakeCase) -> None:
    """Before Spark 4.3 its sums agree at once, and rightly: every row is written.

    A client of Spark Connect can't see the cache, and takes it for a mistake.
    """
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id % 10 > 3").cache()
        kept.show(1)
        tracker.write(kept, run.append())

    if is_connect(run.spark) and SPARK >= (4, 3):
        assert "Fill a cached frame as a whole" in run.refused(pipeline, InexactPipelineError)
        return
    ended = run.done(pipeline)
    assert (ended.acked, ended.letters) == (set(range(60)), {})
    assert set(run.written()) == {(id,) for id in range(60) if id % 10 > 3}
    assert (ended.emissions > 1) is (SPARK >= (4, 3))


@pytest.mark.parametrize("above", ["filter", "spout"])
def test_untracked_filter_above_a_cache_names_both_causes(case: MakeCase, above: str) -> None:
    """Messages have a meter of their own at the top, if their ids become known meanwhile."""
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = (tracker.filter(messages, "id % 10 > 3") if above == "filter" else messages).cache()
        kept.count()
        tracker.write(kept.where("id <> 7"), run.append(), name="save")

    if is_connect(run.spark):
        text = run.refused(pipeline, InexactPipelineError)
        assert "reached 'save'" in text and "Fill a cached frame as a whole" in text and "such as where" in text
        return
    ended = run.run(pipeline)
    assert ended.error is not None
    assert isinstance(ended.error.__cause__ or ended.error, UnprovenEmissionError)
    assert (ended.acked, ended.letters, ended.emissions) == (set(), {}, 3)
    assert "Spark lost or evicted a part" in str(ended.error)
    assert f"Filter (NOT (id = 7)), between '{above}' and 'save'" in str(ended.error)
    assert "Use tracker.filter for where" in str(ended.error)


def test_cached_untracked_table_does_not_hide_lost_rows(case: MakeCase) -> None:
    """Its rows aren't tracked, and have no meters."""
    run = case(n=20)
    table = run.spark.range(30).withColumn("x", F.lit(1)).cache()
    table.count()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.join(messages, table, "id").where("id <> 7"), run.append())

    try:
        text = run.refused(pipeline, InexactPipelineError)
        assert ("such as where" if is_connect(run.spark) else "Filter (NOT (id = 7))") in text
    finally:
        table.unpersist()
