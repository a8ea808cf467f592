"""Files that were replaced under their name beside an offset file, and files that only grew."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, BadConfigError, OffsetFile, PipelineError
from acker_redis.spark import MessageIds, Tracker, read_files, run_tracked
from acker_redis.spark.sources.file_formats import Format
from tests.support.spark.cases import CONFIG

pytestmark = pytest.mark.spark


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def lines(path: Path, prefix: str, count: int) -> None:
    path.write_text("".join(f"{prefix}{number}\n" for number in range(count)))


def write(out: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write(messages, lambda writer: writer.mode("append").parquet(str(out)))


@pytest.fixture
def run(spark: Any, acker: Acker, tmp_path: Path) -> Callable[..., int]:
    """A run over the folder `in` that keeps its progress. It returns the number of acked messages."""
    (tmp_path / "in").mkdir()

    def start(
        kind: Format = "text",
        schema: str | None = None,
        *,
        on_replaced: Literal["raise", "read_again"] = "raise",
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        pipeline: Callable[[Tracker, DataFrame], None] | None = None,
    ) -> int:
        ids = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "progress.json", on_replaced=on_replaced))
        frame = change(read_files(spark, str(tmp_path / "in"), kind, schema))
        result = run_tracked(frame, pipeline or partial(write, tmp_path / "out"), acker=acker, ids=ids)
        return result.counts.acked

    return start


def progress(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "progress.json").read_text())
    return found


def test_file_with_fewer_records_than_done_is_refused(run: Callable[..., int], tmp_path: Path) -> None:
    lines(tmp_path / "in" / "app.log", "monday-", 60)
    assert run() == 60
    lines(tmp_path / "in" / "app.log", "monday-", 20)
    before = (tmp_path / "progress.json").read_bytes()
    with pytest.raises(BadConfigError, match=r"app\.log was replaced .*60 records are done, and it has 20 now"):
        run()
    assert (tmp_path / "progress.json").read_bytes() == before


@pytest.mark.parametrize("changed", [0, 59])
def test_file_with_another_first_or_last_record_is_refused(
    run: Callable[..., int], tmp_path: Path, changed: int
) -> None:
    path = tmp_path / "in" / "app.log"
    lines(path, "monday-", 60)
    assert run() == 60
    rows = [*path.read_text().splitlines(), "more"]
    rows[changed] = "tuesday"
    path.write_text("\n".join(rows))
    with pytest.raises(BadConfigError, match=f"its record {changed} is another one now") as caught:
        run()
    assert 'on_replaced="read_again"' in str(caught.value)


def test_last_line_that_was_unfinished_is_named(run: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "in" / "app.log"
    path.write_text("monday-0\nmonday-1\nmond")
    assert run() == 3
    path.write_text("monday-0\nmonday-1\nmonday-2\nmonday-3\n")
    with pytest.raises(BadConfigError, match="record 2 is another one now, or was an unfinished line when it was read"):
        run()
    path.write_text("tuesday-0\nmonday-1\nmond\n")
    with pytest.raises(BadConfigError, match=r"record 0 is another one now\. Its first"):
        run()


def test_replaced_file_is_read_from_its_first_record_on_request(run: Callable[..., int], tmp_path: Path) -> None:
    lines(tmp_path / "in" / "app.log", "monday-", 60)
    lines(tmp_path / "in" / "other.log", "other-", 5)
    assert run() == 65
    lines(tmp_path / "in" / "app.log", "tuesday-", 20)
    assert run(on_replaced="read_again") == 20
    assert run(on_replaced="read_again") == 0
    assert run() == 0


@pytest.mark.parametrize("kind", ["text", "json", "csv", "parquet"])
def test_file_that_grew_continues_after_its_last_record(run: Callable[..., int], tmp_path: Path, kind: Format) -> None:
    """The second program reads other columns, which doesn't make it another file."""
    table = pa.table({"n": list(range(9)), "t": [f"text {n}" for n in range(9)]})
    path = tmp_path / "in" / "a"

    def fill(count: int) -> None:
        part = table.slice(0, count)
        if kind == "parquet":
            pq.write_table(part, path)
        elif kind == "csv":
            pa.csv.write_csv(part, path)
        else:
            path.write_text("\n".join(json.dumps(row) for row in part.to_pylist()))

    fill(4)
    assert run(kind) == 4
    fill(9)
    assert run(kind, None if kind == "text" else "n bigint") == 5
    assert run(kind) == 0


def test_file_without_hashes_gets_them(run: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "in" / "app.log"
    lines(path, "monday-", 60)
    run()
    kept = progress(tmp_path)
    hashes = kept.pop("hashes")
    (tmp_path / "progress.json").write_text(json.dumps(kept))
    assert run() == 0
    assert progress(tmp_path)["hashes"] == hashes
    kept["begin"] = dict.fromkeys(kept["begin"], 61)
    (tmp_path / "progress.json").write_text(json.dumps(kept))
    with pytest.raises(BadConfigError, match="61 records are done, and it has 60 now"):
        run()


def test_file_replaced_after_a_run_that_broke_off_is_refused(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program died after a save, with records done beyond a gap."""
    monkeypatch.setattr("acker_redis.spark.runs.dataframe.SAVE_SECS", 0)
    path = tmp_path / "in" / "app.log"
    lines(path, "monday-", 60)

    def breaks(tracker: Tracker, messages: DataFrame) -> None:
        if (tmp_path / "progress.json").exists():
            raise PipelineError("on purpose")
        write(tmp_path / "out", tracker, tracker.fail_where(messages, "value = 'monday-3'", "not now"))

    with pytest.raises(PipelineError, match="on purpose"):
        run(pipeline=breaks)
    assert list(progress(tmp_path)["begin"].values()) == [3]
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:59], "tuesday"]))
    with pytest.raises(BadConfigError, match="its record 59 is another one now"):
        run()
    path.write_text("\n".join(rows))
    assert run() == 1


def test_replaced_file_that_the_run_does_not_read_is_no_error(run: Callable[..., int], tmp_path: Path) -> None:
    lines(tmp_path / "in" / "old.log", "old-", 60)
    lines(tmp_path / "in" / "new.log", "new-", 5)
    assert run() == 65
    lines(tmp_path / "in" / "old.log", "other-", 20)
    lines(tmp_path / "in" / "new.log", "new-", 8)
    assert run(change=lambda frame: frame.where("file NOT LIKE '%old.log'")) == 3
    with pytest.raises(BadConfigError, match=r"old\.log was replaced"):
        run()


def test_deleted_file_is_no_error(run: Callable[..., int], tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.log", "a-", 3)
    lines(tmp_path / "in" / "b.log", "b-", 3)
    assert run() == 6
    (tmp_path / "in" / "a.log").unlink()
    assert run() == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda frame: frame.withColumn("row", F.expr("row + 0")), "column 'row' isn't that of read_files"),
        (
            lambda frame: frame.withColumn("file", F.element_at(F.split("file", "/"), -1)),
            "column 'file' has other names",
        ),
    ],
    ids=["row", "file"],
)
def test_changed_columns_that_hide_replaced_files_are_logged(
    run: Callable[..., int], tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, told: str
) -> None:
    lines(tmp_path / "in" / "app.log", "monday-", 60)
    assert run(change=change) == 60
    assert "go unnoticed" not in caplog.text
    lines(tmp_path / "in" / "app.log", "tuesday-", 20)
    assert run(change=change) == 0
    assert "replaced files would go unnoticed" in caplog.text and told in caplog.text


def test_union_that_hides_replaced_files_is_logged(
    run: Callable[..., int], spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only files of the first source are compared."""
    second = tmp_path / "of-second"
    second.mkdir()
    lines(tmp_path / "in" / "app.log", "monday-", 5)
    lines(second / "app.log", "monday-", 60)
    lines(second / "more.log", "monday-", 5)

    def union(frame: DataFrame) -> DataFrame:
        return frame.union(read_files(spark, str(second)))

    assert run(change=union) == 70
    assert "go unnoticed" not in caplog.text
    lines(second / "app.log", "tuesday-", 20)
    assert run(change=union) == 0
    (warning,) = (record.message for record in caplog.records if "go unnoticed" in record.message)
    assert f"2 files aren't from {tmp_path / 'in'}, such as {second / 'app.log'}" in warning
    lines(tmp_path / "in" / "app.log", "tuesday-", 5)
    with pytest.raises(BadConfigError, match=r"in/app\.log was replaced"):
        run(change=union)


def test_filtered_rows_do_not_hide_a_replaced_file(run: Callable[..., int], tmp_path: Path) -> None:
    """Rows that the run never gets count as done where later ones are."""
    path = tmp_path / "in" / "app.log"
    lines(path, "line-", 10)

    def some(frame: DataFrame) -> DataFrame:
        return frame.where("row BETWEEN 2 AND 6").withColumnRenamed("value", "text")

    assert run(change=some) == 5
    lines(path, "line-", 20)
    assert run(change=some) == 0
    rows = path.read_text().splitlines()
    path.write_text("\n".join(["other", *rows[1:]]))
    with pytest.raises(BadConfigError, match="its record 0 is another one now"):
        run(change=some)
