"""Files in a stage, against what the proof has counted. No Spark runs."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker_redis.errors import UnprovenEmissionError
from acker_redis.spark.proof.plans import Written
from acker_redis.spark.sinks.delta_tables import DeltaTables
from acker_redis.spark.sinks.staged_tables import StageContents
from acker_redis.spark.sinks.staging import check_contents

ROWS = 5
TABLES = DeltaTables(None, "0123456789ab")  # type: ignore[arg-type] # a stage is read without Spark


def stage_of(folder: Path, *rows: int) -> Path:
    """A stage of Delta with files of so many rows, and one that its log doesn't name, as a task that ran twice leaves it."""
    (folder / "_delta_log").mkdir()
    actions = []
    for number, count in enumerate(rows):
        name = f"part={number}/file {number}.parquet"
        (folder / name).parent.mkdir()
        pq.write_table(pa.table({"id": range(count)}), folder / name)
        actions.append({"add": {"path": name.replace(" ", "%20")}})
    pq.write_table(pa.table({"id": range(99)}), folder / "twice.parquet")
    (folder / "_delta_log" / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    return folder


def check(stage: Path) -> tuple[str, ...]:
    contents = TABLES.contents(stage, "delta")
    check_contents("sink", ROWS, None, contents)
    return contents.files


def test_files_that_the_log_of_a_delta_stage_names_are_counted(tmp_path: Path) -> None:
    assert check(stage_of(tmp_path, 2, 3)) == ("part=0/file 0.parquet", "part=1/file 1.parquet")


@pytest.mark.parametrize("rows", [(2, 3, 1), (2,), (2, 4), ()])
def test_delta_stage_with_other_rows_is_refused(tmp_path: Path, rows: tuple[int, ...]) -> None:
    with pytest.raises(UnprovenEmissionError, match=f"5 rows were to be staged. .* the stage has {sum(rows)} in"):
        check(stage_of(tmp_path, *rows))


@pytest.mark.parametrize(
    ("told", "count", "counted"),
    [
        (Written(4, 2), 2, 5),
        (Written(5, 1), 2, 5),
        (Written(5, 2), 3, 5),
        (Written(5, 2), 2, 6),
        (Written(4, 2), 2, None),
    ],
)
def test_stage_that_differs_from_what_spark_tells_is_refused(told: Written, count: int, counted: int | None) -> None:
    check_contents("sink", ROWS, Written(ROWS, 2), StageContents(("a", "b"), ROWS))
    check_contents("sink", ROWS, Written(ROWS, 2), StageContents(("a", "b"), None))
    with pytest.raises(UnprovenEmissionError):
        check_contents("sink", ROWS, told, StageContents(("a",) * count, counted))
