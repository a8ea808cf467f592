"""A store that is away costs no message, and one message that nothing answers ends as a dead letter."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from urllib.error import URLError

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from acker_redis import AckerError, RetryPolicy
from acker_redis.spark import Tracker, run_tracked
from tests.support.spark.cases import IDS, Case, MakeCase
from tests.support.stores import Store, ask

pytestmark = pytest.mark.spark

README = RetryPolicy(max_attempts=3)
SHORT = RetryPolicy(max_attempts=3, outage_secs=0.2)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays grow from a fiftieth of a second."""
    monkeypatch.setattr("acker_redis.spout.retry._OUTAGE_DELAY_SECS", 0.02)
    monkeypatch.setattr("acker_redis.spout.retry.RetryPolicy.delay_secs", lambda self, failures: failures * 0.0)
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.02)


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store()) as store:
        yield store


def look_up(port: int, row: dict[str, Any]) -> list[tuple[int]]:
    ask(port)
    return [(row["id"],)]


def look_up_odd(port: int, row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 2:
        ask(port)
    return [(row["id"],)]


def dead_url(bad: int, row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] == bad:
        raise TimeoutError("no answer")
    return [(row["id"],)]


def bad_note(bad: int, row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] == bad:
        raise json.JSONDecodeError("connection refused", "", 0)  # a ValueError, of a class with a module
    return [(row["id"],)]


def bad_address(bad: int, row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] == bad:
        raise URLError("connection refused")
    return [(row["id"],)]


def insert(port: int, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for _ in batches:
        ask(port)


def by_function(run: Case, store: Store, function: Callable[..., Any], back_at: int) -> Callable[..., None]:
    """Look up each row in a store that is back at an emission."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission == back_at:
            store.open()
        rows = tracker.flat_map(messages, partial(function, store.port), IDS, name="look up")
        tracker.write(rows, run.append())

    return pipeline


def test_store_that_is_away_from_the_start_costs_a_row_function_no_message(case: MakeCase, store: Store) -> None:
    run = case(n=40)
    ended = run.done(by_function(run, store, look_up, 5), retry=README)
    assert (ended.letters, len(ended.acked)) == ({}, 40)
    assert sorted(set(run.written())) == [(n,) for n in range(40)]


def test_store_that_is_lost_in_an_emission_costs_a_row_function_no_message(case: MakeCase, store: Store) -> None:
    run = case(n=100)
    store.open(answers=30)
    ended = run.done(by_function(run, store, look_up, 5), retry=README)
    assert (ended.letters, len(ended.acked)) == ({}, 100)


def test_outage_secs_of_zero_dead_letters_as_any_error(case: MakeCase, store: Store) -> None:
    run = case(n=40)
    ended = run.done(by_function(run, store, look_up, 99), retry=RetryPolicy(max_attempts=3, outage_secs=0))
    assert len(ended.letters) == 40


@pytest.mark.parametrize("on_error", ["fail", "raise"])
@pytest.mark.parametrize("answers", [0, 1], ids=["from the start", "in an emission"])
def test_store_that_is_away_costs_write_partitions_no_message(
    case: MakeCase, store: Store, on_error: Any, answers: int
) -> None:
    run = case(n=4)
    if answers:
        store.open(answers)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission == 6:
            store.open()
        tracker.write_partitions(messages, partial(insert, store.port), on_error=on_error)

    ended = run.done(pipeline, retry=README)
    assert (ended.letters, len(ended.acked)) == ({}, 4)


@pytest.mark.parametrize("on_error", ["fail", "raise"])
def test_store_that_stays_away_ends_the_run_without_dead_letters(case: MakeCase, store: Store, on_error: Any) -> None:
    run = case(n=4)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, partial(insert, store.port), on_error=on_error, name="store")

    ended = run.run(pipeline, retry=SHORT)
    assert isinstance(ended.error, AckerError)
    assert "unreachable" in str(ended.error)
    assert "Connection refused" in str(ended.error)
    assert "'store'" in str(ended.error)
    assert (ended.letters, ended.acked) == ({}, set())


def test_run_completes_messages_that_do_not_need_the_store_that_stays_away(case: MakeCase, store: Store) -> None:
    run = case(n=60)
    ended = run.run(by_function(run, store, look_up_odd, 999), retry=SHORT)
    assert ended.letters == {}
    assert len(ended.acked) == 30
    assert "30 messages waiting for 'look up'" in str(ended.error)
    assert "No row of another message has got through there since" in str(ended.error)


def test_message_whose_url_never_answers_is_a_dead_letter_alone_at_the_end(case: MakeCase) -> None:
    run = case(n=1000)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(dead_url, 700), IDS)
        tracker.write(rows, run.append())

    ended = run.done(pipeline, retry=SHORT)
    assert [*ended.letters] == [700]
    assert ended.letters[700].attempts >= 3
    assert len(ended.acked) == 999


def test_message_whose_url_never_answers_is_a_dead_letter_among_others(case: MakeCase) -> None:
    run = case(n=100)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(dead_url, 0), IDS)
        tracker.write(rows, run.append())

    ended = run.done(pipeline, retry=SHORT, max_spout_pending=20)
    assert [*ended.letters] == [0]
    assert len(ended.acked) == 99


def test_message_whose_job_finds_no_answer_is_a_dead_letter(case: MakeCase) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(dead_url, 7), IDS, on_error="raise")
        tracker.write(rows, run.append())

    ended = run.done(pipeline, retry=SHORT)
    assert [*ended.letters] == [7]
    assert len(ended.acked) == 39


@pytest.mark.parametrize("on_error", ["fail", "raise"])
def test_mistake_whose_text_quotes_an_outage_is_none(case: MakeCase, on_error: Any) -> None:
    run = case(n=4)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(bad_note, 2), IDS, on_error=on_error)
        tracker.write(rows, run.append())

    ended = run.done(pipeline, retry=README)
    assert [(*letter,) for letter in ended.letters.items()] == [(2, ended.letters[2])]
    assert ended.letters[2].attempts == 3
    assert str(ended.letters[2].detail).startswith("JSONDecodeError: connection refused")


@pytest.mark.parametrize("on_error", ["fail", "raise"])
def test_error_that_by_reason_names_is_not_waited_for(case: MakeCase, on_error: Any) -> None:
    run = case(n=4)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(bad_address, 2), IDS, on_error=on_error)
        tracker.write(rows, run.append())

    ended = run.done(pipeline, retry=RetryPolicy(max_attempts=9, by_reason={"URLError": RetryPolicy(max_attempts=2)}))
    assert {message: letter.attempts for message, letter in ended.letters.items()} == {2: 2}


def test_whole_output_that_is_refused_for_outages_alone_is_tried_again(case: MakeCase, store: Store) -> None:
    """Each emission of all messages meets another short outage, and there are more than the limit of refused ones."""
    run, wholes = case(n=40), list[int]()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if messages.count() == 40:
            wholes.append(tracker.emission)
        store.open(answers=39 if len(wholes) <= 6 and messages.count() == 40 else None)
        rows = tracker.flat_map(messages, partial(look_up, store.port), IDS)
        tracker.write(rows, lambda writer: writer.mode("overwrite").parquet(run.out))

    ended = run.done(pipeline, retry=README, output="whole")
    assert (ended.letters, len(wholes)) == ({}, 7)
    assert sorted(run.written()) == [(n,) for n in range(40)]


def behind(port: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ask(port)
        yield batch


@pytest.mark.parametrize("back", [True, False])
def test_source_that_is_away_while_ids_are_read_is_waited_for(
    case: MakeCase, store: Store, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, waits = case(n=4), []

    def note(error: Exception) -> str:
        waits.append(str(error))
        if back and len(waits) == 3:
            store.open()
        return "away"

    monkeypatch.setattr("acker_redis.spark.emission.outages.PAUSE_SECS", 0.01)
    monkeypatch.setattr("acker_redis.spark.emission.outages.line_of", note)
    messages = run.messages.mapInArrow(partial(behind, store.port), "id bigint")
    policy = RetryPolicy(max_attempts=1, outage_secs=600 if back else 0)
    start = partial(
        run_tracked,
        messages,
        lambda tracker, rows: tracker.write(rows, lambda writer: writer.mode("overwrite").parquet(run.out)),
        acker=run.acker,
        ids="id",
        retry=policy,
        output="whole",
    )
    if back:
        assert (start().counts.acked, len(waits)) == (4, 3)
    else:
        with pytest.raises(PythonException, match="Connection refused"):
            start()
        (end,) = run.acker.admin.last_run_ends().values()
        assert end.error == "ConnectionRefusedError: [Errno 111] Connection refused", "one line, without the traceback"
    assert run.acker.dead_letters.count() == 0
