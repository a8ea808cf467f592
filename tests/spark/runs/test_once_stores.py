"""Rows in stores of the user's, by `write_staged`: once, whatever happened before."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerError, BadConfigError, InexactPipelineError, PipelineError
from acker_redis.ops.publish_logs import LogUpkeep
from acker_redis.spark import Once, Tracker, check_pipeline
from tests.spark.runs.test_once import Killed, check_exact, failing, folder_of, once
from tests.spark.streaming.test_once_streams import BAD, handler_of, run_through
from tests.spark.streaming.test_streams import give, start
from tests.support.s3 import BUCKET, s3
from tests.support.spark.cases import CONFIG, Case, MakeCase
from tests.support.spark.parts_store import PartsStore

pytestmark = [pytest.mark.spark, pytest.mark.classic("output once needs a classic session")]

Publish = Callable[[str, Mapping[str, int]], object]


def into_store(run: Case, bad: set[int], publish: Publish | None = None, stage: Any = None, name: str = "store") -> Any:
    """A store, and tables in folders, with some rows of each message."""
    store = store_of(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, bad), "id bigint, child int")
        tracker.write_staged(items, stage or store.stage, publish or store.publish, name=name)
        tracker.write(items, run.append("items"), name="items")
        tracker.write(messages, run.append("orders"), name="orders")

    return pipeline


def store_of(run: Case) -> PartsStore:
    return PartsStore(str(run.folder / "store"))


def check_store(run: Case, messages: set[int]) -> None:
    check_exact(run, messages)
    check_items(store_of(run), messages)


def check_items(store: PartsStore, messages: set[int]) -> None:
    assert store.items() == items_of(messages)


def end_before(key: str, parts: Mapping[str, int]) -> None:
    raise Killed


def end_behind(publish: Publish, key: str, parts: Mapping[str, int]) -> None:
    publish(key, parts)
    raise Killed


def test_store_has_the_rows_of_accepted_messages_alone(case: MakeCase) -> None:
    run, bad = case(n=60), {7, 50}
    once(run)
    ended = run.done(into_store(run, bad), max_spout_pending=25)
    assert (ended.acked, set(ended.letters)) == (set(range(60)) - bad, bad)
    check_store(run, ended.acked)
    keys = [key for key, _ in store_of(run).rows_of("SELECT key, 0 FROM published ORDER BY rowid")]
    assert len(keys) > 2 and keys == sorted(keys), "a program may delete parts below a published key"
    assert run.done(into_store(run, set())).acked == set()
    check_store(run, ended.acked)


@pytest.mark.parametrize("commits", [False, True])
def test_next_run_publishes_what_was_accepted(case: MakeCase, *, commits: bool) -> None:
    """The driver ends before or behind the transaction. The next run calls the pipeline without messages, for the function."""
    run = case(n=30)
    log = once(run)
    publish = partial(end_behind, store_of(run).publish) if commits else end_before
    text = run.refused(into_store(run, set(), publish), AckerError)
    assert "can't be put into the table of the sink 'store'" in text
    waiting = LogUpkeep(str(folder_of(log))).waiting()
    assert {(one.sink, one.rows) for one in waiting} >= {("store", sum(id % 3 for id in range(30)))}
    ended = run.done(into_store(run, set()))
    assert ended.result is not None
    assert (ended.acked, ended.result.accepted_before) == (set(), 30)
    check_store(run, set(range(30)))
    assert LogUpkeep(str(folder_of(log))).waiting() == []


def test_rows_wait_until_the_pipeline_calls_their_sink(case: MakeCase) -> None:
    run = case(n=10)
    log = once(run)
    run.refused(into_store(run, set(), end_before), AckerError)
    with pytest.raises(AckerError, match="only a run can put them"):
        LogUpkeep(str(folder_of(log))).publish()
    assert [table.newest for table in LogUpkeep(str(folder_of(log))).tables() if table.target.startswith("store:")] == [
        None
    ]
    text = run.refused(into_store(run, set(), name="other"), BadConfigError)
    assert "'other', 'store': these sinks are new" in text
    assert run.written("id", name="orders") == []
    run.done(into_store(run, set()))
    check_store(run, set(range(10)))


def test_part_of_a_task_that_ran_twice_is_not_published(case: MakeCase) -> None:
    """The first attempt has staged its rows when it fails, so the store has them twice."""
    run = case(n=20)
    once(run)
    store, flag = store_of(run), run.folder / "failed"

    def stage(batches: Iterator[pa.RecordBatch], part: str) -> None:
        store.stage(batches, part)
        if not flag.exists():
            flag.touch()
            raise OSError("the connection broke behind the commit")

    ended = run.done(into_store(run, set(), stage=stage))
    assert ended.acked == set(range(20))
    check_store(run, ended.acked)
    assert len(store.rows_of("SELECT id, child FROM staged")) > len(store.items())


def test_function_that_leaves_rows_is_refused(case: MakeCase) -> None:
    run = case(n=20)
    once(run)
    text = run.refused(into_store(run, set(), stage=lambda batches, part: None), InexactPipelineError)
    assert "'store': the function returned before it had consumed its partition" in text
    assert store_of(run).items() == []


def test_calls_that_cannot_be_right_are_refused(case: MakeCase) -> None:
    run = case(n=5)
    store = store_of(run)
    assert "write_staged needs once=" in run.refused(into_store(run, set()), PipelineError)
    once(run)
    text = run.refused(into_store(run, set(), publish=lambda key: None), PipelineError)  # type: ignore[arg-type, misc]
    assert "can't be called with 2 arguments" in text

    def twice(tracker: Tracker, messages: DataFrame) -> None:
        for _ in range(2):
            rows = messages.selectExpr("*", "1 AS child")
            tracker.write_staged(rows, store.stage, store.publish, name="store")

    assert "is used by another operator" in run.refused(twice, PipelineError)
    assert store.items() == []


def test_checked_pipeline_calls_neither_function(case: MakeCase) -> None:
    run = case(n=20)
    checked = check_pipeline(run.messages, into_store(run, {7}, end_before, end_before), ids="id")
    assert checked.written["store"] == sum(id % 3 for id in range(checked.rows) if id != 7)
    assert not Path(store_of(run).path).exists()


def test_stream_publishes_what_a_query_had_accepted(spark: Any, url: str, tmp_path: Path) -> None:
    """The second query gets the messages of the first one again, which are done but not published."""
    store = PartsStore(str(tmp_path / "store"))
    give(tmp_path, range(20), range(20, 50))

    def pipeline(publish: Publish, tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, BAD), "id bigint, child int")
        tracker.write_staged(items, store.stage, publish, name="store")

    with Acker.connect(url, CONFIG) as acker:
        with (
            handler_of(acker, tmp_path, partial(pipeline, end_before)) as handler,
            pytest.raises(StreamingQueryException, match="sink 'store'"),
        ):
            start(spark, tmp_path, handler, availableNow=True).awaitTermination()
        assert store.items() == []
        run_through(spark, tmp_path, handler_of(acker, tmp_path, partial(pipeline, store.publish)))
        check_items(store, set(range(50)) - BAD)
        assert sorted(letter.message_id for letter in acker.dead_letters.read()) == sorted(BAD)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/{uuid.uuid4().hex}"  # all servers of a process have the same buckets


def into_one(run: Case, bad: set[int], publish: Publish | None = None) -> Any:
    store = store_of(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, bad), "id bigint, child int")
        tracker.write_staged(items, store.stage, publish or store.publish, name="store")

    return pipeline


def test_log_may_be_in_an_object_store(case: MakeCase, bucket: str) -> None:
    """A run that was killed behind its record is completed by one whose disk has nothing of it."""
    run, bad = case(n=30), {7}
    run.once = Once(bucket, "monday")
    run.refused(into_one(run, bad, end_before), AckerError)
    upkeep = LogUpkeep(f"{bucket}/monday")
    assert [(one.sink, one.rows) for one in upkeep.waiting()] == [("store", len(items_of(set(range(30)) - bad)))]
    assert store_of(run).items() == []
    ended = run.done(into_one(run, bad))
    assert (ended.acked, set(ended.letters)) == (set(), bad)
    assert store_of(run).items() == items_of(set(range(30)) - bad)
    more = run.spark.range(32)
    assert run.done(into_one(run, set()), more).acked == {30, 31}
    assert store_of(run).items() == items_of(set(range(32)) - bad)
    assert not Path("s3:").exists()


def test_files_are_refused_beside_a_log_in_an_object_store(case: MakeCase, bucket: str) -> None:
    run = case(n=3)
    run.once = Once(bucket, "monday")
    text = run.refused(into_store(run, set()), BadConfigError)
    assert f"can't be staged, because the publish log {bucket} is in an object store" in text
    assert not Path(run.folder, "items").exists()


def items_of(messages: set[int]) -> list[tuple[int, int]]:
    return sorted((message, child) for message in messages for child in range(message % 3))
