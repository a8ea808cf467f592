"""Whose fault a failure is: it counts only against a message that can be guilty, and a broken pipeline loses nothing."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis import Acker, AckerError, OffsetFile, OperatorBrokenError, RetryPolicy
from acker_redis.spark import MessageIds, Pipeline, Tracker, run_tracked
from acker_redis.spark.proof.blame import _any_job_failed, failed_in_a_job
from acker_redis.spark.runtime.jobs import tagged
from acker_redis.testing import wait_until
from tests.spark.streaming.test_streams import give, handler_of, parked, start
from tests.support.spark.cases import CONFIG, MakeCase, consume

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def wait_for_end(query: Any) -> None:
    wait_until(lambda: not query.isActive, "the end of the query", 120)


def typo(tracker: Tracker, messages: DataFrame) -> None:
    raise NameError("name 'mesages' is not defined")


def missing_column(tracker: Tracker, messages: DataFrame) -> None:
    tracker.write_partitions(messages.select("price", "id", "_share", "_roots"), consume)


def missing_path(tracker: Tracker, messages: DataFrame) -> None:
    prices = messages.sparkSession.read.parquet("/no/such/folder")
    tracker.write_partitions(tracker.join(messages, prices, "id"), consume)


def missing_class(writer: DataFrameWriter, **options: Any) -> None:
    writer.mode("append").jdbc("jdbc:nosuch://127.0.0.1/orders", "orders", properties={"driver": "no.such.Driver"})


def jdbc(on_error: Any, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write(messages, missing_class, on_error=on_error)


def written_before(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write(messages, lambda writer: writer.mode("append").parquet(str(folder / "out")))
    raise RuntimeError("behind the sink")


def behind_an_outage(tracker: Tracker, messages: DataFrame) -> None:
    try:
        raise ConnectionRefusedError("the metastore")
    except ConnectionRefusedError:
        raise NameError("name 'mesages' is not defined")  # noqa: B904  # as a typo in a handler does


DRIVER: dict[str, tuple[Pipeline, Any]] = {
    "a typo": (typo, NameError),
    "a typo where an outage is handled": (behind_an_outage, NameError),
    "a column that isn't there": (missing_column, AnalysisException),
    "a path that isn't there": (missing_path, AnalysisException),
    "a JDBC driver that isn't there": (partial(jdbc, "raise"), (Py4JJavaError, PySparkException)),
    "a JDBC driver that isn't there, rows may fail": (partial(jdbc, "fail"), (Py4JJavaError, PySparkException)),
}


@pytest.mark.parametrize("what", DRIVER)
def test_driver_error_ends_the_run_without_counting_attempts(case: MakeCase, what: str) -> None:
    pipeline, kind = DRIVER[what]
    run = case(n=20)
    ended = run.run(pipeline, retry=ONCE)
    assert isinstance(ended.error, kind)
    assert ended.error is not None
    assert any("No message is to blame" in note for note in ended.error.__notes__)
    assert (ended.emissions, ended.letters, ended.acked) == (1, {}, set())
    assert run.acker.stats().pending == 0


def test_error_after_a_sink_counts_no_attempt(case: MakeCase) -> None:
    run = case(n=20)
    ended = run.run(partial(written_before, run.folder), retry=ONCE)
    assert isinstance(ended.error, RuntimeError)
    assert (ended.emissions, ended.letters) == (1, {})


@pytest.mark.parametrize("broken", [typo, jdbc])
def test_repaired_program_completes_every_message(case: MakeCase, tmp_path: Path, broken: Any) -> None:
    run = case(n=20)
    messages = run.messages.selectExpr("id", "'all' AS file", "id AS row")
    ids = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json"))
    given: dict[str, Any] = {"ids": ids, "acker": run.acker, "retry": ONCE}
    pipeline = partial(jdbc, "raise") if broken is jdbc else broken
    with pytest.raises(Exception, match=r"mesages|no\.such\.Driver"):
        run_tracked(messages, pipeline, **given)

    def repaired(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)

    result = run_tracked(messages, repaired, **given)
    assert (result.counts.emitted, result.counts.acked, result.counts.dead_lettered) == (20, 20, 0)
    assert run.acker.dead_letters.count() == 0


def test_store_unreachable_from_the_driver_is_waited_for(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.01)
    run, tries = case(n=20), []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tries.append(tracker.emission)
        if len(tries) < 4:
            raise ConnectionRefusedError("the metastore")
        tracker.write_partitions(messages, consume)

    ended = run.done(pipeline, retry=ONCE)
    assert (len(ended.acked), ended.letters, len(tries)) == (20, {}, 4)


@pytest.mark.usefixtures("one_attempt")
def test_unreachable_sink_is_waited_for(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.01)
    run = case(n=20)
    down = run.folder / "down"
    down.touch()
    tries: list[int] = []

    def store(path: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        if os.path.exists(path):  # noqa: PTH110
            raise ConnectionResetError("the store is gone")
        consume(batches, partition)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tries.append(tracker.emission)
        if len(tries) == 9:
            down.unlink()
        tracker.write_partitions(messages, partial(store, str(down)))

    ended = run.done(pipeline, retry=ONCE)
    assert (len(ended.acked), ended.letters) == (20, {})


def test_handled_job_failure_is_not_blamed_for_a_later_error(case: MakeCase) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        few = tracker.filter(messages, "id < 2")
        tracker.write_dataframe(few, lambda rows: rows.selectExpr("assert_true(id < 0)").collect(), on_error="fail")
        jdbc("fail", tracker, messages)

    ended = case(n=20).run(pipeline, retry=ONCE)
    assert "no.such.Driver" in str(ended.error)
    assert (ended.emissions, ended.letters) == (1, {})


def test_dead_jvm_ends_the_run_at_once(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spark.proof.blame.is_gone", lambda session: True)
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        raise ConnectionRefusedError("py4j")

    ended = run.run(pipeline, retry=ONCE)
    assert ("Spark's JVM exited" in str(ended.error), ended.emissions) == (True, 1)


def failing_once_there(path: str, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wait_until(lambda: os.path.exists(path), "the end of the wait", 120)  # noqa: PTH110
    raise ValueError("on purpose")


@pytest.mark.classic("a server of Spark Connect doesn't report jobs")
def test_job_that_spark_has_not_reported_as_failed_yet_is_to_blame(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark raises a job's error before it reports the end of the job."""
    with pytest.raises(PySparkException) as raised:
        spark.range(1).selectExpr("assert_true(id < 0)").collect()
    release, context = tmp_path / "release", spark.sparkContext

    def run() -> None:
        with tagged(spark, "late"), suppress(PySparkException):
            spark.range(1).mapInArrow(partial(failing_once_there, str(release)), "id bigint").collect()

    def sleep(secs: float) -> None:
        release.touch()
        time.sleep(secs)

    monkeypatch.setattr("acker_redis.spark.proof.blame._MOST_LOOKS", 10_000)  # its four tries may take long
    monkeypatch.setattr("acker_redis.spark.proof.blame.time", SimpleNamespace(sleep=sleep))
    thread = InheritableThread(run)
    thread.start()
    try:
        wait_until(lambda: context._jsc.sc().statusTracker().getJobIdsForTag("late"), "the job", 120)
        assert failed_in_a_job(raised.value, spark, "late")
    finally:
        release.touch()
        thread.join()


def test_job_is_reported_as_failed_after_a_pause_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute goes by whenever it looks at the clock."""
    found, clock = iter([{1: "RUNNING"}, {1: "FAILED"}]), itertools.count(step=60)
    paused = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda secs: None)
    monkeypatch.setattr("acker_redis.spark.proof.blame.time", paused)
    monkeypatch.setattr("acker_redis.spark.proof.blame._status_of_jobs", lambda session, tag: next(found))
    assert _any_job_failed(Mock(), "late")


def attribute(bad: Callable[[int], bool], row: Any) -> list[tuple[int]]:
    return [(row.id if bad(row["id"]) else row["id"],)]


def every(message: int) -> bool:
    return True


def third(message: int) -> bool:
    return message == 3


def below_20(message: int) -> bool:
    return message < 20


def with_flat_map(bad: Callable[[int], bool]) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map(messages, partial(attribute, bad), "id bigint", name="split")
        tracker.write_partitions(derived, consume)

    return pipeline


@pytest.mark.parametrize("options", [{}, {"max_spout_pending": 7}])
def test_operator_failing_every_row_ends_the_run_as_broken(case: MakeCase, options: Any) -> None:
    run = case(n=200)
    ended = run.run(with_flat_map(every), retry=ONCE, **options)
    assert isinstance(ended.error, OperatorBrokenError)
    for text in (
        "'split'",
        "has not processed any message",
        "'dict' object has no attribute 'id'",
        "stop_if_broken=False",
    ):
        assert text in str(ended.error)
    assert (ended.letters, ended.acked) == ({}, set())
    assert run.acker.stats().pending == 0


def test_exception_of_a_working_operator_fails_its_rows_only(case: MakeCase) -> None:
    ended = case(n=200).done(with_flat_map(third), retry=ONCE)
    assert (set(ended.letters), len(ended.acked)) == ({3}, 199)
    ended = case(n=200).done(with_flat_map(below_20), retry=ONCE)
    assert (set(ended.letters), len(ended.acked)) == (set(range(20)), 180)


def test_all_failures_count_in_a_small_source_or_by_option(case: MakeCase) -> None:
    assert case(n=19).done(with_flat_map(every), retry=ONCE).letters.keys() == set(range(19))
    assert case(n=40).done(with_flat_map(every), retry=ONCE, stop_if_broken=False).letters.keys() == set(range(40))


def test_declared_failures_count_even_if_every_row_fails(case: MakeCase) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(tracker.fail_where(messages, "true", "all of them"), consume)

    assert len(case(n=40).done(pipeline, retry=ONCE).letters) == 40

    def raising(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map(messages, partial(attribute, every), "id bigint", no_retry=(AttributeError,))
        tracker.write_partitions(derived, consume)

    assert len(case(n=40).done(raising, retry=ONCE).letters) == 40


def refuse_all(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    raise KeyError("table")


def test_sink_failing_every_row_ends_the_run_as_broken(case: MakeCase) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, refuse_all, on_error="fail", name="store")

    ended = case(n=40).run(pipeline, retry=ONCE)
    assert isinstance(ended.error, OperatorBrokenError)
    assert "'store'" in str(ended.error)


@pytest.mark.usefixtures("one_attempt")
def test_failing_sink_logs_a_line_per_emission_and_a_stack_once(
    case: MakeCase, caplog: pytest.LogCaptureFixture
) -> None:
    run = case(n=3)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, refuse_all)

    with caplog.at_level(logging.WARNING, "acker_redis"):
        ended = run.run(pipeline, retry=RetryPolicy(max_attempts=3, first_delay_secs=0))
    assert (ended.letters, ended.acked) == ({}, set())
    records = [record for record in caplog.records if record.message.startswith("emission failed")]
    assert len(records) > 5
    assert {record.message.count("\n") for record in records} == {0}
    assert all("KeyError: 'table'" in record.message for record in records)
    assert [bool(record.exc_info) for record in records] == [True] + [False] * (len(records) - 1)


@pytest.mark.classic("foreachBatch runs in the server")
def test_driver_error_ends_a_query_and_its_repair_resumes_it(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, range(30), range(30, 60))
    with handler_of(acker, tmp_path, typo, retry=ONCE) as handler:
        query = start(spark, tmp_path, handler)
        wait_for_end(query)
        assert "mesages" in str(query.exception())
        assert "NameError: name 'mesages' is not defined" in str(handler.status().error)
    assert acker.dead_letters.count() == 0

    def repaired(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)

    with handler_of(acker, tmp_path, repaired, retry=ONCE) as handler:
        query = start(spark, tmp_path, handler)
        wait_for_end(query)
        assert query.exception() is None
        status = handler.status()
    assert (status.counts.acked, status.error, acker.dead_letters.count()) == (60, None, 0)


@pytest.mark.classic("foreachBatch runs in the server")
def test_error_between_micro_batches_shows_in_status_and_drain(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def breaks_later(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.batch_id is None:
            raise NameError("a typo")
        tracker.write_partitions(tracker.fail_where(messages, "id = 3", "not yet"), consume)

    give(tmp_path, range(30))
    retry = RetryPolicy(max_attempts=5, first_delay_secs=0)
    with handler_of(acker, tmp_path, breaks_later, retry=retry, batch_wait_secs=0.1) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 hour")
        try:
            wait_until(lambda: handler.status().error is not None, "the error", 120)
        finally:
            query.stop()
        assert "NameError: a typo" in str(handler.status().error)
        with pytest.raises(
            AckerError, match=r"failed between micro-batches\. Nothing was lost\..*Error: NameError: a typo"
        ):
            handler.drain(60)
    assert (acker.dead_letters.count(), parked(tmp_path)) == (0, [3])


@pytest.mark.classic("foreachBatch runs in the server")
def test_operator_failing_the_first_micro_batch_ends_the_query(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, range(30))
    for _ in range(2):  # at every start
        with handler_of(acker, tmp_path, with_flat_map(every), retry=ONCE) as handler:
            query = start(spark, tmp_path, handler)
            wait_for_end(query)
            assert "stop_if_broken=False" in str(query.exception())
    assert acker.dead_letters.count() == 0
    with handler_of(acker, tmp_path, with_flat_map(every), retry=ONCE, stop_if_broken=False) as handler:
        query = start(spark, tmp_path, handler)
        wait_for_end(query)
        assert query.exception() is None
    assert acker.dead_letters.count() == 30


def killing(bad: Callable[[int], bool], row: Any) -> list[tuple[int]]:
    if bad(row["id"]):
        os._exit(3)
    return [(row["id"],)]


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.classic("foreachBatch runs in the server")
def test_first_batch_killing_workers_is_parked_until_others_pass(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def run(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map(messages, partial(killing, third), "id bigint", name="work")
        tracker.write_partitions(derived, consume)

    give(tmp_path, [3])
    for _ in range(2):  # a restart goes on
        with handler_of(acker, tmp_path, run, retry=ONCE) as handler:
            query = start(spark, tmp_path, handler)
            wait_for_end(query)
            assert query.exception() is None
        assert (acker.dead_letters.count(), parked(tmp_path)) == (0, [3])
    give(tmp_path, range(10, 20))
    with handler_of(acker, tmp_path, run, retry=ONCE) as handler:
        query = start(spark, tmp_path, handler)
        wait_for_end(query)
        handler.drain(60)
        assert (handler.status().counts.acked, handler.status().parked) == (10, {})
    assert [(one.message_id, one.attempts) for one in acker.dead_letters.read()] == [(3, 1)]
