"""Rows exported with anchors, and carried on: by another run in Spark, or by a program with a bare acker."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from acker_redis import Acker, BadConfigError, InexactPipelineError, PipelineError
from acker_redis.spark import Progress, RunResult, Tracker, run_exported
from acker_redis.spark.protocol.anchor_codec import Encoding
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import Case, Ended, MakeCase

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
THREE = "transform(array(0, 1, 2), i -> struct(id, i AS child))"


def exporting(run: Case, then: Callable[[], object], export: Callable[[Tracker, DataFrame], object]) -> Ended:
    """Export, and when the emission has ended let somebody else carry the rows on."""
    carried_on: list[object] = []

    def progress(now: Progress) -> None:
        if not now.is_emitting and now.in_flight and not carried_on:
            carried_on.append(then())

    ended = run.done(export, progress=progress, retry=ONCE)
    assert carried_on
    return ended


def importing(run: Case, pipeline: Callable[[Tracker, DataFrame], object], **options: Any) -> RunResult:
    with Acker.connect(run.url, run.acker.config) as acker:
        rows = run.spark.read.parquet(run.out)
        return run_exported(rows, pipeline, acker=acker, spout_id=1, retry=ONCE, **options)


@pytest.mark.parametrize("encoding", ["binary", "json", "array"])
def test_exported_messages_complete_after_run_exported(case: MakeCase, encoding: Encoding) -> None:
    run = case(n=30, lanes=2)

    def export(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(tracker.filter(messages, "id <> 4"), THREE)
        tracker.export(rows.repartition(3, "child"), lambda writer: writer.parquet(run.out), encoding=encoding)

    def carry_on(tracker: Tracker, rows: DataFrame) -> None:
        assert rows.columns == ["id", "child", "message_id", "_share", "_roots"]
        kept = tracker.fail_where(tracker.filter(rows, "child < 2"), "id = 7 AND child = 1", "seven", name="check")
        tracker.write(kept.select("id", "child", "_share", "_roots"), run.append("carried-on"))

    ended = exporting(run, partial(importing, run, carry_on), export)
    assert run.acker.stats().inits == 30 + 87
    ended.check({id: [(id, 0), (id, 1)] for id in range(30) if id != 4}, run.written(name="carried-on"))
    assert ended.reasons == {("seven", "check"): 1}
    assert (len(ended.acked), run.acker.stats().unowned) == (29, 0)


def test_exported_groups_complete_after_run_exported(case: MakeCase) -> None:
    """Groups: when one fails, all of its messages do."""
    run = case(n=40, lanes=2)

    def export(tracker: Tracker, messages: DataFrame) -> None:
        groups = tracker.group_by(messages, (F.col("id") % 4).alias("key"), F.count("*").alias("n"), partial=True)
        tracker.export(groups, lambda writer: writer.parquet(run.out))

    def carry_on(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(tracker.fail_where(rows, "key = 3", "three"), run.append("carried-on"))

    ended = exporting(run, partial(importing, run, carry_on), export)
    assert set(ended.letters) == set(range(3, 40, 4))
    assert sorted(run.written("key", "n", name="carried-on")) == [(0, 10), (1, 10), (2, 10)]


def pairs_of(run: Case) -> dict[tuple[Any, ...], list[tuple[int, int]]]:
    """Row -> roots and edges, read from JSON by a program without Spark."""
    table = pq.read_table(run.out).to_pylist()
    return {
        (row["id"], row["child"]): [(int(root, 16), int(edge, 16)) for root, edge in json.loads(row["anchors"])]
        for row in table
    }


def test_exported_messages_complete_by_acks_of_a_bare_acker(case: MakeCase) -> None:
    run = case(n=10)
    acked: list[int] = []

    def export(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, THREE)
        tracker.export(rows, lambda writer: writer.parquet(run.out), encoding="json")
        tracker.write(rows, run.append("other"))

    def ack_each() -> None:
        with Acker.connect(run.url, run.acker.config) as acker:
            pairs = pairs_of(run)
            assert len(pairs) == 30
            for child in range(3):
                acked.append(acker.stats().acked)
                for (id, place), ((root, edge),) in pairs.items():
                    if place == child and id == 5 and child == 2:
                        acker.fail(root, reason="five")
                    elif place == child:
                        acker.ack(root, edge)

    ended = exporting(run, ack_each, export)
    assert acked == [0, 0, 0]
    assert set(ended.letters) == {5}
    assert ended.acked == set(range(10)) - {5}


def test_export_task_rerun_registers_each_row_once(case: MakeCase) -> None:
    """A count and a second look at the rows before, a worker that dies: the edges that left are those in the files."""
    run = case(n=60)

    def counted_and_written(writer: DataFrameWriter) -> None:
        writer._rows.count()  # type: ignore[attr-defined]  # of the tracker's own writer
        writer.parquet(run.out)

    def export(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages.repartition(3, "id"), THREE)
        rows.count()
        tracker.export(rows, counted_and_written, encoding="json")

    def ack_all() -> None:
        with Acker.connect(run.url, run.acker.config) as acker:
            found = [pair for pairs in pairs_of(run).values() for pair in pairs]
            roots, edges = (np.array(part, np.uint64) for part in zip(*found, strict=True))
            acker.ack_many(roots, edges, idempotency_key="all")

    assert len(exporting(run, ack_all, export).acked) == 60


def test_rows_lost_before_an_export_ack_nothing(case: MakeCase) -> None:
    run = case(n=10)

    def export(tracker: Tracker, messages: DataFrame) -> None:
        tracker.export(tracker.explode(messages, THREE).where("child < 2"), run.append())

    assert "missing or duplicated" in run.refused(export, InexactPipelineError)


@pytest.mark.parametrize("damaged", ["X'0102'", "'[[\"00\"]]'", "'nonsense'", "array(1L)"])
def test_run_exported_of_damaged_roots_column_is_an_error(case: MakeCase, damaged: str) -> None:
    run = case(n=1, lanes=2)
    rows = run.spark.range(1).selectExpr(f"{damaged} AS anchors")
    with pytest.raises(Exception, match="not a list of anchors"):
        run_exported(rows, lambda tracker, rows: None, acker=run.acker, spout_id=1)


@pytest.mark.parametrize(
    ("select", "column", "text"),
    [
        ("id", "anchors", "column 'anchors' not found"),
        ("id", "id", "Use binary"),
        ("cast(NULL AS binary) AS anchors", "anchors", "1 rows have no anchors"),
        ("X'' AS anchors", "anchors", "1 rows have no anchors"),
        ("X'' AS anchors, 1 AS message_id", "anchors", "Rename it"),
    ],
)
def test_run_exported_refuses_unusable_rows(case: MakeCase, select: str, column: str, text: str) -> None:
    run = case(n=1, lanes=2)
    with pytest.raises(PipelineError, match=text):
        run_exported(
            run.messages.selectExpr(*select.split(", ")),
            lambda tracker, rows: None,
            acker=run.acker,
            spout_id=1,
            column=column,
        )


def test_run_exported_on_a_single_lane_app_is_refused(case: MakeCase) -> None:
    run = case(n=1)
    with pytest.raises(BadConfigError, match=r"has only one lane.*lanes=2"):
        run_exported(run.messages, lambda tracker, rows: None, acker=run.acker, spout_id=1)


@pytest.mark.parametrize("options", [{"encoding": "xml"}, {"column": "Id"}, {"column": "_share"}])
def test_export_refuses_invalid_options(case: MakeCase, options: dict[str, Any]) -> None:
    run = case(n=1)
    run.refused(
        lambda tracker, rows: tracker.export(rows, lambda writer: writer.parquet(run.out), **options), PipelineError
    )
