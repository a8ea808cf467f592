"""Sinks in threads of the pipeline: their jobs, their failures, and the end of their emission."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from acker_redis import PipelineError, RetryPolicy
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import MakeCase, consume

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_attempt")]

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)

Submit = Callable[..., "Future[Any]"]


def breaking(rows: DataFrame, bad: int) -> DataFrame:
    """A job over these rows fails if it meets message `bad`."""
    return rows.withColumn("id", F.expr(f"IF(id = {bad}, raise_error('bad row'), id)"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def at_once(function: Callable[..., object], *args: Any, **options: Any) -> "Future[Any]":
    """Call a function in this thread, as an executor does in another one."""
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **options))
    except Exception as exc:
        done.set_exception(exc)
    return done


@pytest.fixture(params=["threads", "one thread"])
def submit(request: pytest.FixtureRequest, pool: ThreadPoolExecutor) -> Submit:
    return pool.submit if request.param == "threads" else at_once


def test_bad_row_of_a_sink_in_a_thread_is_a_dead_letter_alone(case: MakeCase, pool: ThreadPoolExecutor) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        frames = {"good": messages, "bad": breaking(messages, 7)}
        sinks = [pool.submit(tracker.write, frame, run.append(name), name=name) for name, frame in frames.items()]
        for sink in sinks:
            sink.result()

    ended = run.done(pipeline, retry=ONCE)
    assert {message: letter.attempts for message, letter in ended.letters.items()} == {7: 1}
    assert ended.acked == {*range(10)} - {7}
    assert {row[0] for row in run.written(name="bad")} == ended.acked


def test_bad_row_is_a_dead_letter_though_nobody_asks_its_thread(case: MakeCase) -> None:
    """`map` raises nothing unless its results are read."""
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        frames = {"good": messages, "bad": breaking(messages, 7)}
        with ThreadPoolExecutor() as pool:
            pool.map(lambda name: tracker.write(frames[name], run.append(name), name=name), frames)

    ended = run.done(pipeline, retry=ONCE)
    assert ended.letters.keys() == {7}
    assert {row[0] for row in run.written(name="bad")} == ended.acked == {*range(20)} - {7}


def test_handled_failure_of_a_sink_hides_no_failed_job_of_another(case: MakeCase, submit: Submit) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        bad = submit(tracker.write, breaking(messages, 7), run.append("bad"), name="bad")
        wait([bad])
        third = breaking(tracker.filter(messages, "id = 3"), 3)
        submit(tracker.write, third, run.append("third"), on_error="fail", name="third").result()
        bad.result()

    ended = run.done(pipeline, retry=ONCE)
    assert {message: letter.last_component for message, letter in ended.letters.items()} == {7: "bad", 3: "third"}
    assert ended.acked == {*range(20)} - {3, 7}


@pytest.mark.classic("the error of a request says itself whether it comes from a job")
def test_error_of_a_sink_in_the_driver_is_not_taken_for_the_failed_job_of_another(
    case: MakeCase, submit: Submit
) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        wait([submit(tracker.write, breaking(messages, 7), run.append("bad"), name="bad")])
        driver = {"driver": "no.such.Driver"}
        missing = submit(
            tracker.write,
            messages,
            lambda writer: writer.mode("append").jdbc("jdbc:nosuch://x/y", "t", properties=driver),
        )
        missing.result()

    ended = run.run(pipeline, retry=ONCE)
    assert "no.such.Driver" in str(ended.error)
    assert (ended.emissions, ended.letters) == (1, {})


def test_emission_waits_for_a_sink_that_outlasts_its_pipeline(case: MakeCase, pool: ThreadPoolExecutor) -> None:
    run = case(n=20)
    has_begun, is_over = Event(), Event()
    seen: list[int] = []

    def save(rows: DataFrame) -> None:
        has_begun.set()
        is_over.wait()
        seen.extend(row[0] for row in rows.collect())

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        pool.submit(tracker.write_dataframe, messages, save)
        has_begun.wait()
        is_over.set()

    run.complete(pipeline)
    assert sorted(seen) == [*range(20)]


def test_sink_that_is_called_after_its_pipeline_is_refused(case: MakeCase) -> None:
    run = case(n=20)
    kept: list[Any] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept.extend((tracker, messages))
        tracker.write_partitions(messages, consume)

    run.complete(pipeline)
    tracker, messages = kept
    with pytest.raises(PipelineError, match=r"after the pipeline had returned.*Wait for your threads"):
        tracker.write(messages, run.append())
    assert run.written() == []


def test_action_has_tags_on_its_thread_while_it_runs(case: MakeCase, pool: ThreadPoolExecutor) -> None:
    run = case(n=20)
    owner = run.spark if is_connect(run.spark) else run.spark.sparkContext
    tags_of_thread: Callable[[], Iterable[str]] = owner.getTags if is_connect(run.spark) else owner.getJobTags
    seen: dict[str, list[set[str]]] = {"first": [], "second": []}

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        def action(name: str) -> None:
            def save(rows: DataFrame) -> None:
                seen[name].append(set(tags_of_thread()))
                rows.collect()

            tracker.write_dataframe(messages, save, name=name)
            seen[name].append(set(tags_of_thread()))

        for name in seen:
            pool.submit(action, name).result()

    run.complete(pipeline)
    (first, after_first), (second, after_second) = seen.values()
    assert (after_first, after_second) == (set(), set())
    (emission,) = first & second
    assert (first, second) == ({emission, f"{emission}:first"}, {emission, f"{emission}:second"})


class Rows(DataSource):
    """Consumes rows."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return _Consumer()


class _Consumer(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@pytest.mark.classic("a client has one session here")
def test_data_source_of_another_session_is_found_in_a_thread(case: MakeCase, pool: ThreadPoolExecutor) -> None:
    run = case(n=20)
    run.messages = run.spark.newSession().range(20)
    run.complete(lambda tracker, messages: pool.submit(tracker.write_data_source, messages, Rows).result())


def endless(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for batch in batches:
        while 7 in batch.column("id").to_pylist():
            pass


def test_timeout_cancels_the_jobs_of_threads(case: MakeCase, pool: ThreadPoolExecutor) -> None:
    run = case(n=2)
    messages = run.spark.range(6, 9).coalesce(1)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        pool.submit(tracker.write_partitions, messages, endless).result()

    ended = run.done(pipeline, messages, retry=ONCE, emit_timeout_secs=6)
    assert ended.acked == {6, 8}
    assert "took longer than emit_timeout_secs=6 and were cancelled" in str(ended.letters[7].detail)


def test_error_that_the_pipeline_handles_in_its_thread_is_refused(case: MakeCase) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        with suppress(PySparkException):
            tracker.write(breaking(messages, 7), run.append("bad"), name="bad")

    assert "ended with an error that the pipeline caught" in str(run.run(pipeline, retry=ONCE).error)
