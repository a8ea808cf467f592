"""A wrong schema, with which no record can be read, ends a run. Bad records among good ones become dead letters at once."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import OffsetFile, OperatorBrokenError
from acker_redis.spark import MessageIds, ReplayFrom, RunResult, Tracker, read_files, run_tracked
from tests.support.spark.cases import Case, MakeCase

pytestmark = pytest.mark.spark

WRONG, RIGHT = "n bigint", "n string"


@pytest.fixture
def run(case: MakeCase) -> Case:
    return case(n=1)


def lines(run: Case, values: Iterable[object]) -> str:
    """A file of lines that have only this one field."""
    path = run.folder / "in" / "a.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(json.dumps({"n": value}) for value in values))
    return str(path.parent)


def texts(count: int) -> list[object]:
    return [f"text {n}" for n in range(count)]


def tracked(run: Case, path: str, schema: str, mode: str = "append", **options: Any) -> RunResult:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr("string(n) AS n", "_share", "_roots")
        tracker.write(rows, lambda writer: writer.mode(mode).parquet(run.out))

    return run_tracked(read_files(run.spark, path, "json", schema), pipeline, acker=run.acker, **options)


@pytest.mark.parametrize("options", [{}, {"max_spout_pending": 6}, {"output": "whole", "mode": "overwrite"}])
def test_schema_with_which_no_record_can_be_read_ends_the_run_without_letters(run: Case, options: Any) -> None:
    with pytest.raises(OperatorBrokenError) as caught:
        tracked(run, lines(run, texts(40)), WRONG, **options)
    for said in ("records of read_files can't be read", "schema is probably wrong", "stop_if_broken=False", "a.json"):
        assert said in str(caught.value)
    assert (run.acker.dead_letters.count(), run.acker.stats().pending, run.written()) == (0, 0, [])


def test_repaired_schema_reads_every_record(run: Case, tmp_path: Path) -> None:
    ids = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json"))
    path = lines(run, texts(40))
    with pytest.raises(OperatorBrokenError):
        tracked(run, path, WRONG, ids=ids)
    assert tracked(run, path, RIGHT, ids=ids).counts.acked == 40
    assert sorted(run.written()) == sorted((text,) for text in texts(40))


def test_unreadable_records_count_by_option(run: Case) -> None:
    result = tracked(run, lines(run, texts(40)), WRONG, stop_if_broken=False)
    assert {letter.attempts for letter in result.dead_letters.values()} == {1}
    assert len(result.dead_letters) == 40


def test_unreadable_records_count_in_a_small_source(run: Case) -> None:
    assert len(tracked(run, lines(run, texts(19)), WRONG).dead_letters) == 19


def test_unreadable_records_beside_one_good_record_are_dead_letters_at_once(run: Case) -> None:
    result = tracked(run, lines(run, [7, *texts(40)]), WRONG)
    assert (len(result.dead_letters), result.counts.acked, result.counts.replayed) == (40, 1, 0)


def test_text_in_another_encoding_ends_the_run_until_it_is_converted(run: Case, tmp_path: Path) -> None:
    ids, path = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json")), run.folder / "latin.txt"

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages.select("value", "_share", "_roots"), run.append())

    path.write_bytes(b"caf\xe9\n" * 40)
    with pytest.raises(OperatorBrokenError, match=r"aren't UTF-8, so nothing was dead-lettered.*convert the files"):
        run_tracked(read_files(run.spark, str(path)), pipeline, acker=run.acker, ids=ids)
    assert run.acker.dead_letters.count() == 0
    path.write_text("caf\xe9\n" * 40, "utf-8")
    assert run_tracked(read_files(run.spark, str(path)), pipeline, acker=run.acker, ids=ids).counts.acked == 40
    assert run.written() == [("caf\xe9",)] * 40


@pytest.mark.parametrize("replay", [None, ReplayFrom.redis(max_bytes=1000)])
def test_unreadable_records_wait_for_the_first_good_one(run: Case, replay: Any) -> None:
    result = tracked(run, lines(run, [*texts(8), *range(16)]), WRONG, max_spout_pending=8, replay=replay)
    assert (len(result.dead_letters), result.counts.acked) == (8, 16)
    assert result.counts.replayed >= 4
    assert sorted(run.written()) == sorted((str(n),) for n in range(16))


@pytest.mark.parametrize("kind", ["source", "fetch", "redis"])
def test_unreadable_records_that_are_emitted_again_are_not_rows_of_nulls(
    run: Case, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.01)
    frame = read_files(run.spark, lines(run, [*texts(10), *range(30)]), "json", WRONG).selectExpr("*", "row AS id")

    def fetch(ids: list[int]) -> DataFrame:
        """As from a store that keeps only the values."""
        fetched: DataFrame = run.spark.createDataFrame(frame.where(frame["id"].isin(ids)).toArrow())
        return fetched

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission == 0:
            raise ConnectionRefusedError("the metastore")
        tracker.write(messages.select("n", "_share", "_roots"), run.append())

    kinds = {"fetch": ReplayFrom.fetch(fetch), "redis": ReplayFrom.redis(max_bytes=1000)}
    result = run_tracked(frame, pipeline, acker=run.acker, ids="id", replay=kinds.get(kind))
    assert (len(result.dead_letters), result.counts.acked) == (10, 30)
    assert sorted(run.written()) == [(n,) for n in range(30)]
