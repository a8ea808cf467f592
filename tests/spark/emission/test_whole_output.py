"""Output that is a whole: nothing is written before everything has come through, and then it replaces what was there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from acker_redis import (
    Acker,
    AckerError,
    BadConfigError,
    OperatorBrokenError,
    OutputNotWrittenError,
    PipelineError,
    RowFailedError,
)
from acker_redis.spark import MessageIds, Pipeline, ReplayFrom, Tracker, read_dead_letters, read_files, run_tracked
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from tests.support import java
from tests.support.jobs import whole_job
from tests.support.spark import parquet
from tests.support.spark.cases import IDS, Case, Ended, MakeCase, consume
from tests.support.spark.faults import kill_self, once, raise_error
from tests.support.spark.stored_rows import stored_rdds

pytestmark = pytest.mark.spark

SUMS = [(key, sum(range(key, 40, 4))) for key in range(4)]


def whole(run: Case, pipeline: Pipeline, attempts: int = 3, **options: Any) -> Ended:
    retry = RetryPolicy(max_attempts=attempts, first_delay_secs=0)
    return run.run(pipeline, **{"output": "whole", "retry": retry, **options})


def sums(tracker: Tracker, rows: DataFrame) -> DataFrame:
    return tracker.group_by(rows, (F.col("id") % 4).alias("key"), F.sum("id").alias("sum"))


def over(run: Case, name: str = "out") -> Callable[[DataFrameWriter], object]:
    path = str(run.folder / name)
    return lambda writer: writer.mode("overwrite").parquet(path)


def yesterday(run: Case, name: str = "out") -> None:
    run.spark.createDataFrame([(9, 9)], "key bigint, sum bigint").write.parquet(str(run.folder / name))


def fails_until(marks: Path, bad: set[int], times: int) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """A row function that some messages fail in, so often."""

    def step(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["id"] in bad:
            mark = marks / f"{row['id']}"
            with mark.open("a") as file:
                file.write(".")
            if mark.stat().st_size <= times:
                raise RowFailedError("not yet")
        return [row]

    return step


def test_whole_output_replaces_existing_output_in_its_emission(case: MakeCase) -> None:
    run = case(n=40)
    yesterday(run)
    before = stored_rdds(run.spark)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(sums(tracker, messages), over(run))
        assert run.written() == [(9, 9)]  # until the pipeline has returned

    run.complete(pipeline, output="whole")
    assert sorted(run.written()) == SUMS
    assert stored_rdds(run.spark) <= before


def test_whole_output_includes_messages_that_failed_at_first(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=40)
    yesterday(run)
    seen: list[tuple[int, list[Any]]] = []
    marks = tmp_path / "marks"
    marks.mkdir()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        seen.append((messages.count(), run.written()))
        rows = tracker.flat_map(messages, fails_until(marks, {3, 7, 11}, 1), IDS)
        tracker.write(sums(tracker, rows), over(run))

    ended = whole(run, pipeline)
    assert ended.error is None
    assert ended.result is not None
    assert [count for count, _ in seen] == [40, 3, 40], ended.reasons
    assert all(there == [(9, 9)] for _, there in seen)
    assert sorted(run.written()) == SUMS
    counts = ended.result.counts
    assert (counts.acked, counts.failed, counts.released, counts.emitted) == (40, 3, 37 + 3, 83)
    assert sorted(ended.notified) == list(range(40))


@pytest.mark.parametrize("retry", [True, False])
def test_whole_output_excludes_dead_letters(case: MakeCase, retry: bool) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail_where(messages, "id IN (1, 6)", "bad", retry=retry)
        tracker.write(sums(tracker, good), over(run))

    ended = whole(run, pipeline)
    assert ended.error is None
    assert set(ended.letters) == {1, 6}
    assert sorted(run.written()) == [(key, total - {1: 1, 2: 6}.get(key, 0)) for key, total in SUMS]
    assert ended.emissions == (4 if retry else 2)
    assert all(letter.replay is None for letter in ended.letters.values())


def test_whole_output_without_messages_is_empty(case: MakeCase) -> None:
    run = case(n=0)
    run.spark.createDataFrame([(9,)], IDS).write.parquet(run.out)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, over(run))

    assert whole(run, pipeline).error is None
    assert run.written() == []


@pytest.mark.parametrize("retry", [True, False])
def test_whole_output_of_dead_letters_only_keeps_existing_output(case: MakeCase, retry: bool) -> None:
    run = case(n=5)
    run.spark.createDataFrame([(9,)], IDS).write.parquet(run.out)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.fail_where(messages, "true", "bad", retry=retry), over(run))

    ended = whole(run, pipeline, attempts=1)
    assert type(ended.error) is OutputNotWrittenError
    assert "All 5 messages are dead letters" in str(ended.error)
    assert len(ended.letters) == 5
    assert run.written() == [(9,)]
    assert run.acker.admin.last_run_ends()[0].error.startswith("OutputNotWrittenError")


def test_whole_output_with_a_wrong_schema_keeps_existing_output(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=1)
    run.spark.createDataFrame([(9,)], IDS).write.parquet(run.out)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(f'{{"order": {n}, "price": "12 EUR"}}\n' for n in range(50)))
    orders = read_files(run.spark, str(tmp_path / "in"), "json", "order bigint, price bigint")
    retry = RetryPolicy(max_attempts=2, first_delay_secs=0)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, over(run))

    with pytest.raises(OperatorBrokenError, match="50 records of read_files can't be read"):
        run_tracked(orders, pipeline, acker=run.acker, output="whole", retry=retry)
    assert run.acker.dead_letters.count() == 0
    with pytest.raises(OutputNotWrittenError, match="All 50 messages are dead letters"):
        run_tracked(orders, pipeline, acker=run.acker, output="whole", retry=retry, stop_if_broken=False)
    assert run.written() == [(9,)]


def test_whole_output_of_mostly_unreadable_lines_keeps_existing_output(case: MakeCase, tmp_path: Path) -> None:
    """The run ends with an error, so that a job that checks nothing else doesn't exit with 0."""
    run = case(n=1)
    run.spark.createDataFrame([(9,)], IDS).write.parquet(run.out)
    (tmp_path / "in").mkdir()
    lines = [f'{{"id": {n}}}' if n % 100 == 7 else '{"id": ' for n in range(200)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    orders = read_files(run.spark, str(tmp_path / "in"), "json", IDS)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, over(run))

    with pytest.raises(OutputNotWrittenError) as caught:
        run_tracked(orders, pipeline, acker=run.acker, output="whole")
    assert "198 of 200 messages are dead letters" in str(caught.value)
    assert "the default of max_dead_letters, half of them, accepts 100" in str(caught.value)
    assert "Nothing was written" in str(caught.value)
    assert run.written() == [(9,)]
    assert run.acker.dead_letters.count() == 198


@pytest.mark.parametrize(
    ("limit", "bad", "is_accepted"),
    [
        ({}, 20, True),
        ({}, 21, False),
        ({"max_dead_letters": 3}, 3, True),
        ({"max_dead_letters": 3}, 4, False),
        ({"max_dead_letters": 0}, 1, False),
        ({"max_dead_letters": 40}, 39, True),
        ({"max_dead_letters": 0.0}, 1, False),
        ({"max_dead_letters": 0.1}, 4, True),
        ({"max_dead_letters": 0.1}, 5, False),
    ],
)
def test_whole_output_accepts_as_many_dead_letters_as_the_limit(
    case: MakeCase, limit: dict[str, Any], bad: int, is_accepted: bool
) -> None:
    run = case(n=40)
    yesterday(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail_where(messages, f"id < {bad}", "bad", retry=False)
        tracker.write(sums(tracker, good), over(run))

    ended = whole(run, pipeline, **limit)
    assert len(ended.letters) == bad
    if is_accepted:
        assert ended.error is None
        assert sum(total for _, total in run.written()) == sum(range(bad, 40))
        return
    assert type(ended.error) is OutputNotWrittenError
    assert f"{bad} of 40 messages are dead letters" in str(ended.error)
    assert (ended.acked, run.written()) == (set(), [(9, 9)])


def test_limit_of_dead_letters_of_output_by_message_is_refused(case: MakeCase) -> None:
    run = case(n=4)
    told = run.refused(lambda tracker, messages: None, BadConfigError, max_dead_letters=2)
    assert "max_dead_letters=2 has no effect with output='by_message'" in told


def test_whole_output_with_too_many_dead_letters_ends_without_further_attempts(case: MakeCase) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail_where(messages, "id < 30", "bad", retry=False)
        good = tracker.fail_where(good, "id = 35", "not yet")
        tracker.write(sums(tracker, good), over(run))

    ended = whole(run, pipeline, attempts=5)
    assert type(ended.error) is OutputNotWrittenError
    assert (ended.emissions, len(ended.letters)) == (1, 30)


def test_group_failing_only_in_whole_output_makes_dead_letters(case: MakeCase) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        totals = tracker.fail_where(sums(tracker, messages), "sum = 200 AND key = 2", "too much")
        tracker.write(totals, over(run))

    ended = whole(run, pipeline)
    assert ended.error is None
    assert set(ended.letters) == set(range(2, 40, 4))
    assert sorted(run.written()) == [row for row in SUMS if row[0] != 2]


@pytest.mark.parametrize("times", [1, 99])
def test_whole_output_with_a_failing_writer_is_retried_entirely(case: MakeCase, times: int) -> None:
    run = case(n=40)
    yesterday(run, "second")
    tried: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = sums(tracker, messages)
        tracker.write_dataframe(rows, first)
        tracker.write(rows, over(run, "second"))

    def first(rows: DataFrame) -> None:
        tried.append(1)
        if len(tried) <= times:
            rows.select(F.raise_error(F.lit("the store is away"))).collect()
        rows.write.mode("overwrite").parquet(str(run.folder / "first"))

    ended = whole(run, pipeline)
    if times == 1:
        assert ended.error is None
        assert sorted(run.written(name="first")) == sorted(run.written(name="second")) == SUMS
        assert ended.letters == {}
        return
    assert type(ended.error) is OutputNotWrittenError
    assert "5 emissions" in str(ended.error)
    assert "the store is away" in str(ended.error)
    assert (len(tried), ended.acked, ended.letters) == (5, set(), {})
    assert run.written(name="second") == [(9, 9)]


class DatabaseError(Exception):
    """An error of a database driver's own, which tells nothing by its type."""


def into_two(run: Case, second: Callable[[DataFrame], object]) -> Pipeline:
    """Write sums with Spark's writer, then with a function."""
    yesterday(run, "first")
    yesterday(run, "second")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = sums(tracker, messages)
        tracker.write(rows, over(run, "first"))
        tracker.write_dataframe(rows, second, name="database")

    return pipeline


def into_second(run: Case, errors: Sequence[Exception], tried: list[int]) -> Callable[[DataFrame], object]:
    """A function that writes once it has raised these errors."""

    def write(rows: DataFrame) -> None:
        tried.append(1)
        if len(tried) <= len(errors):
            raise errors[len(tried) - 1]
        rows.write.mode("overwrite").parquet(str(run.folder / "second"))

    return write


@pytest.mark.parametrize("error", [OSError("the disk"), DatabaseError("deadlocked"), ValueError("bad reply")])
def test_driver_error_of_a_second_writer_is_retried_entirely(case: MakeCase, error: Exception) -> None:
    """The first table is of today already, so yesterday's second must not be what is left."""
    run, tried = case(n=40), list[int]()
    ended = whole(run, into_two(run, into_second(run, [error], tried)), attempts=1)
    assert ended.error is None
    assert (len(tried), ended.letters) == (2, {})
    assert sorted(run.written(name="first")) == sorted(run.written(name="second")) == SUMS


def test_driver_error_of_the_pipeline_is_retried_once_a_table_is_replaced(case: MakeCase) -> None:
    """A second sink fails once. When the whole is tried again, the pipeline itself fails once."""
    run, tried, begun = case(n=40), list[int](), list[int]()
    write_both = into_two(run, into_second(run, [DatabaseError("deadlocked")], tried))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        begun.append(1)
        if len(begun) == 2:
            raise OSError("the reference table")
        write_both(tracker, messages)

    ended = whole(run, pipeline, attempts=1)
    assert ended.error is None
    assert (len(begun), len(tried), ended.letters) == (3, 2, {})
    assert sorted(run.written(name="first")) == sorted(run.written(name="second")) == SUMS


def test_exit_of_a_second_writer_tells_which_tables_are_replaced(case: MakeCase) -> None:
    run = case(n=40)

    def leave(rows: DataFrame) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        whole(run, into_two(run, leave))
    told = " ".join(caught.value.__notes__)
    assert f"Already replaced in this run: 'write' ('{run.folder / 'first'}')." in told


def test_lasting_driver_error_of_a_second_writer_names_replaced_tables(case: MakeCase) -> None:
    run, tried = case(n=40), list[int]()
    ended = whole(run, into_two(run, into_second(run, [OSError("the disk")] * 99, tried)))
    assert type(ended.error) is OutputNotWrittenError
    assert f"Already replaced in this run: 'write' ('{run.folder / 'first'}')." in str(ended.error)
    assert "Possibly incomplete: 'database'." in str(ended.error)
    assert "It was: OSError: the disk" in str(ended.error)
    assert (len(tried), ended.acked, ended.letters) == (5, set(), {})
    assert "Already replaced" in run.acker.admin.last_run_ends()[0].error


@pytest.mark.parametrize(
    "error",
    [KeyError("price"), TypeError("None"), NameError("rows"), ImportError("driver"), PipelineError("no column")],
)
def test_mistake_of_a_second_writer_ends_the_run_at_once(case: MakeCase, error: Exception) -> None:
    run, tried = case(n=40), list[int]()
    ended = whole(run, into_two(run, into_second(run, [error], tried)))
    assert type(ended.error) is type(error)
    assert (len(tried), ended.emissions, ended.acked, ended.letters) == (1, 1, set(), {})
    told = " ".join([str(ended.error), *getattr(ended.error, "__notes__", [])])
    assert f"Already replaced in this run: 'write' ('{run.folder / 'first'}')." in told


def test_missing_table_of_a_second_writer_ends_the_run_at_once(case: MakeCase) -> None:
    run, tried = case(n=40), list[int]()

    def second(rows: DataFrame) -> None:
        tried.append(1)
        rows.sparkSession.table("no_such_table").count()

    ended = whole(run, into_two(run, second))
    assert isinstance(ended.error, AnalysisException)
    assert len(tried) == 1


def test_error_of_a_second_writer_after_spark_stopped_ends_the_run_at_once(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tried = case(n=40), list[int]()

    def second(rows: DataFrame) -> None:
        tried.append(1)
        monkeypatch.setattr("acker_redis.spark.proof.blame.is_gone", lambda session: True)
        raise DatabaseError("closed")

    ended = whole(run, into_two(run, second))
    assert isinstance(ended.error, DatabaseError)
    assert len(tried) == 1


def test_driver_error_of_a_first_writer_ends_the_run_at_once(case: MakeCase) -> None:
    run, tried = case(n=40), list[int]()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_dataframe(sums(tracker, messages), into_second(run, [OSError("the disk")], tried))
        tracker.write(sums(tracker, messages), over(run, "first"))

    ended = whole(run, pipeline)
    assert isinstance(ended.error, OSError)
    assert (len(tried), run.written(name="first")) == (1, [])


def test_driver_error_of_a_first_writer_is_retried_after_another_has_written(case: MakeCase) -> None:
    run, tried, first = case(n=40), list[int](), list[int]()

    def fails_at_second_try(rows: DataFrame) -> None:
        first.append(1)
        if len(first) == 2:
            raise OSError("the disk")
        rows.write.mode("overwrite").parquet(str(run.folder / "first"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = sums(tracker, messages)
        tracker.write_dataframe(rows, fails_at_second_try)
        tracker.write_dataframe(rows, into_second(run, [OSError("the disk")], tried))

    ended = whole(run, pipeline)
    assert ended.error is None
    assert (len(first), len(tried)) == (3, 2)
    assert sorted(run.written(name="first")) == sorted(run.written(name="second")) == SUMS


def test_outage_of_a_second_writer_that_lasts_names_replaced_tables(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.001)
    run, tried = case(n=40), list[int]()
    retry = RetryPolicy(first_delay_secs=0, outage_secs=0.01)
    pipeline = into_two(run, into_second(run, [ConnectionRefusedError("store:5432")] * 99, tried))
    ended = whole(run, pipeline, retry=retry)
    assert type(ended.error) is AckerError
    assert "store:5432 (in 'database'). Already replaced" in str(ended.error)
    assert f"Already replaced in this run: 'write' ('{run.folder / 'first'}')." in str(ended.error)


def into_out(run: Case, bad: str) -> Pipeline:
    """Write sums of the messages that are not bad."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(sums(tracker, tracker.fail_where(messages, bad, "bad", retry=False)), over(run))

    return pipeline


def stored_letters(run: Case) -> list[tuple[int, int, bool]]:
    """Message, spout_id and mark of each dead letter of the app."""
    return sorted((letter.message_id, letter.spout_id, letter.unwritten) for letter in run.acker.dead_letters.read())


def test_dead_letters_of_a_refused_whole_output_stay_until_one_is_written(case: MakeCase) -> None:
    run = case(n=40)
    assert isinstance(whole(run, into_out(run, "id < 30")).error, OutputNotWrittenError)
    assert stored_letters(run) == [(n, 0, True) for n in range(30)]
    assert isinstance(whole(run, into_out(run, "id < 21")).error, OutputNotWrittenError)
    assert len(stored_letters(run)) == 30 + 21
    assert whole(run, into_out(run, "id < 2")).error is None
    assert stored_letters(run) == [(0, 0, False), (1, 0, False)]


def test_dead_letters_of_a_written_whole_output_stay(case: MakeCase) -> None:
    run = case(n=40)
    assert whole(run, into_out(run, "id = 3")).error is None
    assert whole(run, into_out(run, "id = 4")).error is None
    assert stored_letters(run) == [(3, 0, False), (4, 0, False)]


def test_dead_letters_of_another_spout_id_stay(case: MakeCase) -> None:
    run = case(n=40, lanes=2)
    assert isinstance(whole(run, into_out(run, "id < 30"), spout_id=1).error, OutputNotWrittenError)
    assert whole(run, into_out(run, "id = 3")).error is None
    assert stored_letters(run) == sorted([(3, 0, False), *((n, 1, True) for n in range(30))])


def test_whole_output_without_messages_removes_letters_of_unwritten_runs(case: MakeCase) -> None:
    run = case(n=40)
    assert isinstance(whole(run, into_out(run, "id < 30")).error, OutputNotWrittenError)
    assert whole(run, into_out(run, "false"), messages=run.messages.where("id < 0")).error is None
    assert stored_letters(run) == []


def test_dead_letters_of_a_run_are_unwritten_while_its_sinks_write(case: MakeCase) -> None:
    """They are stored before, so a run that is killed in between leaves them."""
    run, seen = case(n=40), list[list[tuple[int, int, bool]]]()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = sums(tracker, tracker.fail_where(messages, "id = 3", "bad", retry=False))
        tracker.write_dataframe(rows, write)

    def write(rows: DataFrame) -> None:
        seen.append(stored_letters(run))
        rows.write.mode("overwrite").parquet(run.out)

    assert whole(run, pipeline).error is None
    assert seen == [[(3, 0, True)]]
    assert stored_letters(run) == [(3, 0, False)]


@pytest.mark.usefixtures("one_attempt")
def test_poison_search_of_whole_output_writes_nothing(case: MakeCase) -> None:
    run = case(n=40)
    yesterday(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        assert run.written() == [(9, 9)]
        step = F.when(F.col("id") == 5, F.raise_error(F.lit("odd"))).otherwise(F.col("id"))
        tracker.write(sums(tracker, messages.withColumn("id", step.cast("bigint"))), over(run))

    ended = whole(run, pipeline, attempts=1)
    assert ended.error is None
    assert set(ended.letters) == {5}
    assert sorted(run.written()) == [(key, total - (5 if key == 1 else 0)) for key, total in SUMS]


def test_messages_never_passing_together_end_a_whole_output_run(case: MakeCase) -> None:
    """Rows fail in emissions of all, and never alone."""
    run = case(n=40)
    yesterday(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        alone = messages.count() < 10
        bad = "false" if alone else f"id = {tracker.emission % 40}"
        tracker.write(sums(tracker, tracker.fail_where(messages, bad, "by chance")), over(run))

    ended = whole(run, pipeline)
    assert type(ended.error) is OutputNotWrittenError
    assert "It was: by chance (in 'fail_where')" in str(ended.error)
    assert (ended.acked, ended.letters, run.written()) == (set(), {}, [(9, 9)])


def test_lost_acks_of_whole_output_are_resent_without_rewriting(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = case(n=40)
    emissions: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(messages.count())
        tracker.write(sums(tracker, messages), over(run))

    plain = EmissionRoots._ack

    def half(roots: EmissionRoots, rows: Any, token: str) -> None:
        monkeypatch.setattr(EmissionRoots, "_ack", plain)
        own = roots._roots[rows]
        run.acker.fail_many(own[::2], reason="somebody")  # of a root that was written
        plain(roots, rows, token)

    monkeypatch.setattr(EmissionRoots, "_ack", half)
    retry = RetryPolicy(max_attempts=1, first_delay_secs=0)
    result = run_tracked(run.messages, pipeline, acker=run.acker, ids="id", retry=retry, output="whole")
    assert (emissions, result.counts.acked, result.counts.failed, result.dead_letters) == ([40], 40, 20, {})
    assert sorted(run.written()) == SUMS


def test_whole_output_supports_every_sink(case: MakeCase) -> None:
    run = case(n=40)
    tries = run.folder / "tries"
    tries.mkdir()

    def put(batches: Any, partition: int) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        (tries / str(os.urandom(8).hex())).write_text(str(len(rows)))

    counted: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.fail_where(messages, f"id = 3 AND {tracker.emission} = 0", "once")
        totals = sums(tracker, rows)
        tracker.write(totals, lambda writer: writer.saveAsTable("whole_sums", mode="overwrite"))
        tracker.write_dataframe(totals, lambda given: given.write.mode("overwrite").parquet(str(run.folder / "with")))
        tracker.write_data_source(totals, Once, mode="overwrite", options={"folder": str(run.folder)})
        counted.append(tracker.write_partitions(totals, put))
        assert not any(tries.iterdir())

    assert whole(run, pipeline).error is None
    assert sorted(map(tuple, run.spark.table("whole_sums").collect())) == SUMS
    assert sorted(run.written(name="with")) == SUMS
    assert sum(int(file.read_text()) for file in tries.iterdir()) == 4
    assert sorted(map(int, (run.folder / "source").read_text().split())) == [total for _, total in SUMS]
    assert counted == [4, 1, 4]


class Once(DataSource):
    @classmethod
    def name(cls) -> str:
        return "once"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        assert overwrite
        return OnceWriter(self.options["folder"])


class Sums(WriterCommitMessage):
    def __init__(self, sums: list[int]) -> None:
        self.sums = sums


class OnceWriter(DataSourceWriter):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, iterator: Any) -> Sums:
        return Sums([row.sum for row in iterator])

    def commit(self, messages: list[Any]) -> None:
        there = Path(self.folder) / "source"
        assert not there.exists()
        there.write_text(" ".join(str(one) for message in messages for one in message.sums))


def nothing(ids: list[int]) -> Any:
    return None


@pytest.mark.parametrize(
    "options",
    [
        {"an offset_file": "offsets"},
        {"max_spout_pending": 5},
        {"ReplayFrom.redis": ReplayFrom.redis(max_bytes=100)},
        {"ReplayFrom.fetch": ReplayFrom.fetch(nothing)},
        {"output": "all"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_whole_output_refuses_incompatible_options(case: MakeCase, tmp_path: Path, options: dict[str, Any]) -> None:
    run = case(n=4)
    name, given = next(iter(options.items()))
    if name == "an offset_file":
        options = {"ids": MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets"))}
    elif isinstance(given, ReplayFrom):
        options = {"replay": given}
    assert name in run.refused(lambda tracker, messages: None, BadConfigError, **{"output": "whole", **options})


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (lambda t, rows, path: t.write(rows, lambda w: w.mode("append").parquet(path)), "mode 'append'"),
        (lambda t, rows, path: t.write(rows, lambda w: w.parquet(path)), "mode 'errorifexists'"),
        (lambda t, rows, path: t.write(rows, lambda w: w.insertInto("whole_none")), "mode 'append'"),
        (lambda t, rows, path: t.write(rows, lambda w: w.mode("overwrite").parquet(path), on_error="fail"), "on_error"),
        (lambda t, rows, path: t.write_data_source(rows, Once), "mode 'append'"),
        (lambda t, rows, path: t.write_partitions(rows, consume, on_error="fail"), "on_error"),
        (lambda t, rows, path: t.export(rows, lambda w: w.parquet(path)), "export"),
        (
            lambda t, rows, path: [
                t.write(rows, lambda w: w.mode("overwrite").parquet(f"{path}/{n}"))  # noqa: B023
                for n in "ab"
            ],
            "Bind",
        ),
        (
            lambda t, rows, path: [
                t.write_dataframe(rows, lambda f: f.write.mode("overwrite").parquet(f"{path}/{n}"))  # noqa: B023
                for n in "ab"
            ],
            "'n', which changed",
        ),
        (
            lambda t, rows, path: [
                t.write(rows, lambda w: w.mode("overwrite").format("parquet").option("path", f"{path}/{n}").save())  # noqa: B023
                for n in "ab"
            ],
            "now calls option(",
        ),
        (
            lambda t, rows, path: [
                t.write(rows, lambda w: w.options(path=f"{path}/{n}").save(format="parquet", mode="overwrite"))  # noqa: B023
                for n in "ab"
            ],
            "now calls options(",
        ),
        (lambda t, rows, path: partitions_change(t, rows, path), "now calls partitionBy(cols="),
        (lambda t, rows, path: writes_once(t, rows, path), "now makes no more calls"),
        (lambda t, rows, path: a_saver_changes(t, rows, path), "'self.table', which changed"),
        (lambda t, rows, path: a_dict_changes(t, rows, path), "'options', which changed"),
    ],
)
def test_whole_output_refuses_unsuitable_sinks(case: MakeCase, sink: Callable[..., object], told: str) -> None:
    run = case(n=4)
    found = run.refused(lambda tracker, rows: sink(tracker, rows, run.out), PipelineError, output="whole")
    assert told in found
    assert run.written() == []


def partitions_change(tracker: Tracker, rows: DataFrame, path: str) -> None:
    columns = ["id"]
    tracker.write(
        rows.withColumn("key", F.lit(1)),
        lambda w: w.partitionBy(columns).format("parquet").mode("overwrite").save(path),
    )
    columns.append("key")


def writes_once(tracker: Tracker, rows: DataFrame, path: str) -> None:
    names = ["a", "b"]

    def write(writer: DataFrameWriter) -> None:
        for name in names:
            writer.mode("overwrite").parquet(f"{path}/{name}")

    tracker.write(rows, write)
    names.clear()


class Saver:
    table = ""

    def save(self, rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(self.table)


def a_saver_changes(tracker: Tracker, rows: DataFrame, path: str) -> None:
    saver = Saver()
    for name in "ab":
        saver.table = f"{path}/{name}"
        tracker.write_dataframe(rows, saver.save)


def a_dict_changes(tracker: Tracker, rows: DataFrame, path: str) -> None:
    options: dict[str, str] = {}
    for name in "ab":
        options["path"] = f"{path}/{name}"
        tracker.write_dataframe(
            rows, lambda given: given.write.format("parquet").mode("overwrite").options(**options).save()
        )


def test_data_source_options_are_copied_when_given(case: MakeCase) -> None:
    run = case(n=4)
    (run.folder / "a").mkdir()
    (run.folder / "b").mkdir()

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        options: dict[str, str] = {}
        for name in "ab":
            options["folder"] = str(run.folder / name)
            tracker.write_data_source(sums(tracker, rows), Once, mode="overwrite", options=options)

    run.complete(pipeline, output="whole")
    assert (run.folder / "a" / "source").exists()
    assert (run.folder / "b" / "source").exists()


def test_sinks_changing_their_own_state_are_accepted(case: MakeCase) -> None:
    """Sinks of one function, which counts and calls what is defined below it; and others with many options."""
    run = case(n=4)
    saved: list[str] = []

    def with_options(writer: DataFrameWriter, name: str) -> None:
        path = str(run.folder / f"{name}2")
        writer.options(path=path, compression="none").save(format="parquet", mode="overwrite", partitionBy=["key"])

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        def save(given: DataFrame, name: str) -> None:
            saved.append(name)
            below(given, name)

        for name in "ab":
            tracker.write_dataframe(rows, partial(save, name=name))
            tracker.write(rows.withColumn("key", F.lit(1)), partial(with_options, name=name))

        def below(given: DataFrame, name: str) -> None:
            given.write.mode("overwrite").parquet(str(run.folder / name))

    run.complete(pipeline, output="whole")
    assert saved == ["a", "b"]
    assert [len(run.written(name=name)) for name in ("a", "b", "a2", "b2")] == [4] * 4


@pytest.mark.classic("it starts a program with a classic session")
def test_rerun_after_a_kill_between_two_writers_replaces_both_and_the_letters(
    spark: Any, url: str, tmp_path: Path
) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.support.jobs.whole_job", url, str(tmp_path)]
        return subprocess.run(
            command, cwd=tmp_path, env=java.preloaded(), capture_output=True, text=True, timeout=250, check=False
        )

    def there(name: str) -> list[Any]:
        return sorted(parquet.rows(tmp_path / name))

    yesterday = [(9, 9)]
    for name in ("first", "second"):
        spark.createDataFrame(yesterday, "key bigint, sum bigint").write.parquet(str(tmp_path / name))
    good = set(range(whole_job.MESSAGES)) - whole_job.BAD
    today = [(key, sum(n for n in good if n % 4 == key)) for key in range(4)]
    assert run().returncode == -signal.SIGKILL
    assert (there("first"), there("second")) == (today, yesterday)
    with Acker.open_existing(url, whole_job.APP) as acker:
        assert [(letter.message_id, letter.unwritten) for letter in acker.dead_letters.read()] == [(5, True), (6, True)]
    done = run()
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "acked").read_text() == str(len(good))
    assert (there("first"), there("second")) == (today, today)
    with Acker.open_existing(url, whole_job.APP) as acker:
        assert [(letter.message_id, letter.unwritten) for letter in acker.dead_letters.read()] == [
            (5, False),
            (6, False),
        ]


ORDERS = 3000


def test_nightly_job_under_failures_is_exact(case: MakeCase, tmp_path: Path) -> None:
    """Lines that can't be read, keys that are missing, a step that fails at first, a worker that dies, a sink that is away."""
    run = case(n=1)
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"order": n, "customer": n % 100, "cents": n % 11}) for n in range(ORDERS)]
    for bad in (7, 1000, 2999):
        lines[bad] = lines[bad][:-4]
    for file in range(3):
        (tmp_path / "in" / f"{file}.json").write_text("\n".join(lines[file::3]))
    customers = run.spark.range(98).selectExpr("id AS customer", "concat('c', id) AS name")
    marks = tmp_path / "marks"
    marks.mkdir()
    tried: list[int] = []

    def fee(row: dict[str, Any]) -> list[tuple[str, int]]:
        if row["order"] == 500:
            once(marks / "died", kill_self)
        if row["order"] % 400 == 1:
            once(marks / str(row["order"]), raise_error)
        if row["order"] == 77:
            raise ValueError("never")
        return [(row["name"], row["cents"] + 1)]

    def replace(rows: DataFrame) -> None:
        tried.append(rows.count())
        if len(tried) == 1:
            rows.select(F.raise_error(F.lit("away"))).collect()
        rows.write.mode("overwrite").parquet(str(tmp_path / "with"))

    def pipeline(tracker: Tracker, orders: DataFrame) -> None:
        assert not (tmp_path / "out").exists()
        named = tracker.join(orders, customers, "customer", "left")
        known = tracker.fail_where(named, "name IS NULL", "no such customer", retry=False)
        fees = tracker.flat_map(known, fee, "name string, cents bigint")
        sums = tracker.group_by(fees, "name", [F.count("*").alias("orders"), F.sum("cents").alias("cents")])
        tracker.write_dataframe(sums, replace)
        tracker.write(sums.orderBy("name"), lambda writer: writer.mode("overwrite").parquet(str(tmp_path / "out")))

    orders = read_files(run.spark, str(tmp_path / "in"), "json", "order bigint, customer bigint, cents bigint")
    retry = RetryPolicy(max_attempts=2, first_delay_secs=0)
    result = run_tracked(orders, pipeline, acker=run.acker, retry=retry, output="whole", dead_letter_bytes=1000)
    expected: dict[str, tuple[int, int]] = {}
    for n in range(ORDERS):
        if n % 100 < 98 and n not in (7, 1000, 77):
            count, cents = expected.get(f"c{n % 100}", (0, 0))
            expected[f"c{n % 100}"] = (count + 1, cents + n % 11 + 1)
    for name in ("out", "with"):
        rows = parquet.rows(tmp_path / name, "name", "orders", "cents")
        found = {customer: (count, cents) for customer, count, cents in rows}
        assert found == expected
    unknown = sum(n % 100 >= 98 for n in range(ORDERS)) - 1  # one of them can't be read either
    assert result.counts.dead_lettered == unknown + 4
    assert result.counts.acked == ORDERS - unknown - 4
    letters = read_dead_letters(run.spark, run.acker).where(F.col("run_id") == result.run_id)
    assert letters.count() == unknown + 4
    assert len(tried) == 2
    counts = result.counts
    assert counts.emitted == counts.acked + counts.failed + counts.timed_out + counts.lost + counts.released


@pytest.mark.parametrize("where", ["in a job", "in the driver"])
def test_unreachable_store_delays_whole_output_without_attempts(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It costs no message an attempt, and is none of the emissions after which a run gives up."""
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.001)
    run = case(n=40)
    tried: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_dataframe(sums(tracker, messages), replace)

    def replace(rows: DataFrame) -> None:
        tried.append(1)
        if len(tried) <= 4:
            if where == "in the driver":
                raise ConnectionRefusedError("store:5432")
            rows.select(F.raise_error(F.lit("java.net.ConnectException: Connection refused"))).collect()
        rows.write.mode("overwrite").parquet(run.out)

    ended = whole(run, pipeline, attempts=1)
    assert ended.error is None
    assert (len(tried), ended.letters) == (5, {})
    assert sorted(run.written()) == SUMS


def test_writer_with_a_programming_error_ends_the_run_at_once(case: MakeCase) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_dataframe(sums(tracker, messages), lambda rows: rows.no_such_method())  # type: ignore[operator]

    ended = whole(run, pipeline)
    assert isinstance(ended.error, (AttributeError, TypeError))  # over Spark Connect, each attribute is a column
    assert (ended.emissions, ended.acked, ended.letters) == (1, set(), {})
