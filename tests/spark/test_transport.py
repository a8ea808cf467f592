"""Anchors handed over to another application and picked up there."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from acker_redis import BadBatchError, NotExactError
from acker_redis.spark import Tracker
from acker_redis.spark.anchors import COLUMN
from tests.spark.cases import Case, MakeCase, consume

pytestmark = pytest.mark.spark


def other_app(run: Case, emission: int = 0) -> Tracker:
    return Tracker(run.url, run.acker.config, f"other-{uuid.uuid4().hex}", emission)


@pytest.mark.parametrize("form", ["binary", "json", "array"])
def test_a_tree_is_carried_on_behind_parquet_files(case: MakeCase, tmp_path: Path, form: Any) -> None:
    run = case(n=30)
    derived = run.tracker.explode(run.tracked, "transform(array(0, 1, 2), i -> struct(id, i AS child))", name="three")
    run.tracker.hand_over(derived, name="out", form=form).write.parquet(str(tmp_path / "rows"))
    assert run.outcomes() == {}

    rows = run.spark.read.parquet(str(tmp_path / "rows"))
    assert rows.columns == ["id", "child", "anchors"]
    tracker = other_app(run)
    taken = tracker.take_over(rows, name="in")
    kept = tracker.filter(taken, "child < 2", name="some")
    assert tracker.sink(kept.repartition(2, "child"), consume, name="sink").rows == 60
    assert run.outcomes() == {"ack": 30}
    assert run.acker.stats().unowned == 0


@pytest.mark.parametrize("form", ["binary", "json", "array"])
def test_anchors_come_out_as_they_went_in(case: MakeCase, tmp_path: Path, form: Any) -> None:
    run = case(n=40)
    groups = run.tracker.group(run.tracked, F.col("id") % 3, [F.min("id").alias("first")], name="group")
    before = {row["first"]: list(row[COLUMN]) for row in groups.collect()}
    run.tracker.hand_over(groups, name="out", form=form).write.parquet(str(tmp_path / "rows"))
    rows = run.spark.read.parquet(str(tmp_path / "rows")).unionByName(
        run.spark.range(1).selectExpr("0L AS `(id % 3)`", "-1L AS first", "NULL AS anchors")
    )
    after = {row["first"]: list(row[COLUMN]) for row in other_app(run).take_over(rows, name="in").collect()}
    assert after == {**before, -1: []}
    assert min(edge for anchors in before.values() for edge in anchors) < 0


def test_the_forms_are_readable_by_others(case: MakeCase) -> None:
    run = case(n=1, partitions=1)
    (root, edge) = run.tracked.collect()[0][COLUMN]
    packed = run.tracker.hand_over(run.tracked, name="out", column="key").collect()[0]["key"]
    assert bytes(packed) == root.to_bytes(8, "big", signed=True) + edge.to_bytes(8, "big", signed=True)
    other = case(n=1, partitions=1)
    (root, edge) = other.tracked.collect()[0][COLUMN]
    text = other.tracker.hand_over(other.tracked, name="out", form="json").collect()[0]["anchors"]
    assert text == f'[["{root % 2**64:016x}","{edge % 2**64:016x}"]]'


@pytest.mark.parametrize("damaged", ["X'0102'", "'[[\"00\"]]'", "'nonsense'", "array(1L)"])
def test_damaged_anchors_are_an_error(case: MakeCase, damaged: str) -> None:
    run = case(n=1)
    rows = run.spark.range(1).selectExpr(f"{damaged} AS anchors")
    tracker = other_app(run)
    with pytest.raises(PySparkException, match="holds no anchors"):
        tracker.sink(tracker.take_over(rows, name="in"), consume, name="sink")


def test_what_is_refused(case: MakeCase) -> None:
    run = case(n=1)
    tracker = other_app(run)
    with pytest.raises(BadBatchError, match="no column 'anchors'"):
        tracker.take_over(run.spark.range(1), name="in")
    with pytest.raises(BadBatchError, match="expected binary"):
        tracker.take_over(run.spark.range(1), name="in", column="id")
    with pytest.raises(BadBatchError, match="form='xml'"):
        run.tracker.hand_over(run.tracked, name="out", form="xml")  # type: ignore[arg-type]
    run.tracker.hand_over(run.tracked, name="out")
    with pytest.raises(NotExactError, match="consumed by 'out'"):
        run.tracker.sink(run.tracked, consume, name="sink")
