"""Sinks: acked after the write, and only then; failed or left to time out where it raises, as told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from acker_redis import BadBatchError
from acker_redis.spark.anchors import COLUMN
from tests.spark.cases import MakeCase, consume
from tests.spark.files_source import BatchesToFiles, RowsToFiles

pytestmark = pytest.mark.spark


def save_to(folder: Path) -> Any:
    return lambda frame: frame.write.parquet(str(folder))


def test_rows_are_acked_after_sparks_own_writer_returned(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=40)
    derived = run.tracker.explode(run.tracked, "array(id, id + 1000)", name="two")
    seen: list[dict[str, int]] = []

    def save(frame: DataFrame) -> None:
        assert COLUMN not in frame.columns
        save_to(tmp_path / "out")(frame)
        seen.append(dict(run.outcomes()))

    written = run.tracker.write(derived, save, name="files")
    assert seen == [{}]
    assert written.rows == 80
    assert run.outcomes() == {"ack": 40}
    values = pq.read_table(tmp_path / "out")["value"].to_pylist()
    assert sorted(values) == [*range(40), *range(1000, 1040)]
    assert not derived.is_cached


def test_a_save_that_raises_leaves_its_roots_to_time_out_or_fails_them(case: MakeCase) -> None:
    def save(frame: DataFrame) -> None:
        frame.count()
        raise OSError("disk full")

    run = case(n=10)
    with pytest.raises(OSError, match="disk full"):
        run.tracker.write(run.tracked, save, name="files")
    assert run.outcomes() == {}
    assert run.after_timeout() == {"timeout": 10}

    other = case(n=10)
    assert other.tracker.write(other.tracked, save, name="files", on_error="fail").rows == 0
    assert {outcome.detail for outcome in other.acker.poll()} == {"OSError: disk full"}


def test_a_save_tried_again_is_acked_once(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=10)
    for attempt in range(3):
        run.tracker.write(run.tracked, save_to(tmp_path / str(attempt)), name="files")
    assert run.outcomes() == {"ack": 10}
    assert run.acker.stats().unowned == 0


def test_a_partition_whose_write_raises_may_fail_its_rows_at_once(case: MakeCase) -> None:
    run = case(n=20, partitions=2)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        next(batches)
        if partition == 1:
            raise OSError("disk full")
        for _ in batches:
            pass

    written = run.tracker.sink(run.tracked, write, name="sink", on_error="fail")
    assert written.rows == 10
    outcomes = run.acker.poll()
    assert sorted(o.kind for o in outcomes) == ["ack"] * 10 + ["fail"] * 10
    assert {o.detail for o in outcomes if o.kind == "fail"} == {"OSError: disk full"}


def test_an_error_of_a_bolt_is_not_the_sinks(case: MakeCase) -> None:
    run = case(n=20)

    def broken(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise ZeroDivisionError("on purpose")

    derived = run.tracker.bolt_rows(run.tracked, broken, "id bigint, child int", name="x", on_error="raise")
    with pytest.raises(PySparkException, match="on purpose"):
        run.tracker.sink(derived, consume, name="sink", on_error="fail")
    assert run.outcomes() == {}


@pytest.mark.parametrize("source", [RowsToFiles, BatchesToFiles])
def test_a_data_sources_commit_acks(case: MakeCase, tmp_path: Path, source: type[DataSource]) -> None:
    run = case(n=40)
    derived = run.tracker.explode(run.tracked, "transform(array(0, 1), i -> struct(id, i))", name="two")
    run.tracker.save(derived, source, name="source", folder=str(tmp_path))
    assert (tmp_path / "committed").read_text() == "80"
    assert run.outcomes() == {"ack": 40}


def test_a_commit_that_fails_acks_nothing_and_the_whole_write_again_acks_once(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=40)
    tracked = run.tracked.repartition(3, "id")
    with pytest.raises(PySparkException, match="no commit"):
        run.tracker.save(tracked, RowsToFiles, name="source", folder=str(tmp_path), fail="first commit")
    assert (tmp_path / "aborted").read_text() == "40"
    assert run.outcomes() == {}
    for _ in range(2):
        run.tracker.save(tracked, RowsToFiles, name="source", folder=str(tmp_path), fail="first commit")
    assert run.outcomes() == {"ack": 40}
    assert run.acker.stats().unowned == 0


def test_a_commit_that_fails_may_fail_its_roots(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=10)
    with pytest.raises(PySparkException, match="no commit"):
        run.tracker.save(run.tracked, RowsToFiles, name="source", on_error="fail", folder=str(tmp_path), fail="commit")
    assert run.outcomes() == {"failed": 10}


def test_a_write_that_fails_in_a_data_source_acks_nothing(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=10)
    with pytest.raises(PySparkException, match="disk full"):
        run.tracker.save(run.tracked, RowsToFiles, name="source", folder=str(tmp_path), fail="write")
    assert run.outcomes() == {}
    assert run.acker.stats().acks == 0


def test_a_word_that_is_not_known_is_refused(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=1)
    with pytest.raises(BadBatchError, match="'timeout' or 'fail'"):
        run.tracker.sink(run.tracked, consume, name="sink", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(BadBatchError, match="'timeout' or 'fail'"):
        run.tracker.write(run.tracked, F.count, name="sink", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(BadBatchError, match="'timeout' or 'fail'"):
        run.tracker.save(run.tracked, RowsToFiles, name="sink", on_error="ignore")  # type: ignore[arg-type]
