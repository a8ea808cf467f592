"""Letters of messages of `read_files` say in which file and row their message is."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, RowFailedError
from acker_redis.spark import MessageIds, Tracker, read_files, run_tracked, with_message_id
from acker_redis.spark.sources import file_places
from acker_redis.spark.sources.file_places import FilePlaces
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.store.dead_letter import DeadLetterFilter

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    (found / "tief").mkdir(parents=True)
    (found / "a.txt").write_text("".join(f"a {row}\n" for row in range(5000)))
    (found / "tief" / "ä.txt").write_text("".join(f"b {row}\n" for row in range(33)))
    (found / "empty.txt").write_text("")
    return found


def place(folder: Path, name: str, row: int) -> str:
    return json.dumps({"file": str(folder / name), "row": row})


def test_every_row_is_found_by_its_id(spark: Any, folder: Path) -> None:
    frame = with_message_id(read_files(spark, str(folder)))
    rows = frame.select("message_id", "file", "row").collect()
    places = FilePlaces.of(frame, "file", "row")
    assert places is not None
    found = places([row.message_id for row in rows])
    assert found == [json.dumps({"file": row.file, "row": row.row}) for row in rows]
    assert len(set(found)) == 5033


def test_ids_of_nothing_have_no_place_and_cost_a_bounded_search(
    spark: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_places, "_MOST_BLOCKS", 3 * 3300)
    frame = with_message_id(read_files(spark, str(folder)))
    places = FilePlaces.of(frame, "file", "row")
    assert places is not None
    (first,) = (row.message_id for row in frame.where("row = 4321").collect())
    assert places([1, first]) == [None, place(folder, "a.txt", 4321)]
    assert places([first]) == [None], "the run has looked long enough"


@pytest.mark.parametrize(
    "changed",
    [
        lambda frame: frame.selectExpr("concat(file, '') AS file", "row"),
        lambda frame: frame.selectExpr("file", "row + 1 AS row"),
        lambda frame: frame.drop("row"),
    ],
)
def test_columns_that_were_changed_give_no_places(spark: Any, folder: Path, changed: Any) -> None:
    frame = read_files(spark, str(folder))
    assert FilePlaces.of(frame, "file", "row") is not None
    assert FilePlaces.of(changed(frame), "file", "row") is None


def fails(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if row["value"] in ("a 4999", "b 32"):
        raise RowFailedError("bad line")
    yield {"value": row["value"]}


def pipeline(out: Path, failing: Any, tracker: Tracker, messages: DataFrame) -> None:
    rows = tracker.flat_map(messages, failing, "value string", name="parse")
    tracker.write(rows, lambda writer: writer.mode("append").text(str(out)))


def test_letters_show_file_and_row_and_their_messages_can_be_run_again(
    spark: Any, acker: Acker, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lines = read_files(spark, str(folder))
    result = run_tracked(lines, partial(pipeline, out, fails), acker=acker, retry=ONCE)
    expected = {place(folder, "a.txt", 4999), place(folder, "tief/ä.txt", 32)}
    assert {letter.place for letter in acker.dead_letters.read()} == expected
    assert {letter.place for letter in result.dead_letters.values()} == expected
    again = run_tracked(
        lines, partial(pipeline, out, lambda row: [{"value": row["value"]}]), acker=acker,
        only_dead_letters=DeadLetterFilter(run_id=result.run_id),
    )  # fmt: skip
    assert (again.counts.acked, again.letters_left, acker.dead_letters.count()) == (2, 0, 0)


def test_ids_of_a_column_give_no_places(spark: Any, acker: Acker, folder: Path, tmp_path: Path) -> None:
    lines = with_message_id(read_files(spark, str(folder))).withColumnRenamed("message_id", "id")
    run_tracked(lines, partial(pipeline, tmp_path / "out", fails), acker=acker, ids="id", retry=ONCE)
    assert {letter.place for letter in acker.dead_letters.read()} == {None}


def test_a_folder_that_is_gone_costs_the_letters_their_places_only(spark: Any, folder: Path) -> None:
    frame = read_files(spark, str(folder))
    places = FilePlaces.of(frame, "file", "row")
    assert places is not None
    folder.rename(folder.parent / "moved")
    assert places(np.arange(3).tolist()) == [None] * 3


def test_an_offset_file_changes_nothing(spark: Any, acker: Acker, folder: Path, tmp_path: Path) -> None:
    ids = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json"))
    run_tracked(
        read_files(spark, str(folder)), partial(pipeline, tmp_path / "out", fails), acker=acker, ids=ids, retry=ONCE
    )
    assert {letter.place for letter in acker.dead_letters.read()} == {
        place(folder, "a.txt", 4999),
        place(folder, "tief/ä.txt", 32),
    }
