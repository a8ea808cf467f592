"""Runs of the messages of dead letters alone, after their program was repaired."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame

from acker_redis import BadConfigError, DeadLetter, DeadLetterFilter, OffsetFile, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.spark import MessageIds, ReplayFrom, Tracker, read_files, run_tracked
from acker_redis.store import lane_leases
from acker_redis.testing import wait_until
from tests.support.spark.cases import Case, MakeCase

pytestmark = pytest.mark.spark

MONDAY = DeadLetterFilter(run_id="monday")
ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


def store(run: Case, *messages: int, run_id: str = "monday") -> None:
    run.acker.dead_letters.add([DeadLetter(number, run_id, 3, "failed", replay="run") for number in messages])


def left(run: Case) -> list[tuple[int, str]]:
    return [(letter.message_id, letter.run_id) for letter in run.acker.dead_letters.read()]


def write(run: Case, bad: str = "false") -> Any:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.fail_where(messages, bad, "still bad"), run.append())

    return pipeline


@pytest.mark.versions
def test_only_messages_of_matching_letters_are_run(case: MakeCase) -> None:
    run = case(n=200)
    store(run, 3, 5, 3, 7, 999)
    store(run, 8, 3, run_id="tuesday")
    ended = run.done(write(run, "id = 5"), only_dead_letters=MONDAY, run_id="again", retry=ONCE)
    assert sorted(run.written("id")) == [(3,), (7,)]
    assert (ended.acked, sorted(ended.letters), sorted(ended.notified)) == ({3, 7}, [5], [3, 5, 7])
    assert left(run) == [(999, "monday"), (8, "tuesday"), (3, "tuesday"), (5, "again")]
    assert ended.result is not None
    assert (ended.result.counts.emitted, ended.result.letters_left) == (3, 1)


def test_letters_stay_if_the_run_ends_with_an_error(case: MakeCase) -> None:
    run = case(n=10, partitions=1)
    store(run, 3, 4)

    def breaks_at_the_second(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission:
            raise OSError("disk is gone")
        write(run)(tracker, messages)

    options: dict[str, Any] = {"only_dead_letters": MONDAY, "retry": ONCE}
    ended = run.run(breaks_at_the_second, max_spout_pending=1, **options)
    assert "disk is gone" in str(ended.error)
    (done,) = run.written("id")
    assert left(run) == [(number, "monday") for number in (3, 4) if (number,) != done]
    assert run.done(write(run), **options).acked == {3, 4} - {done[0]}
    assert left(run) == []


def test_run_without_letters_emits_nothing(case: MakeCase, caplog: pytest.LogCaptureFixture) -> None:
    run = case(n=10)
    store(run, 3)
    store(run, 999, run_id="tuesday")
    for run_id, letters_left in (("mondya", 0), ("tuesday", 1)):
        ended = run.done(write(run), only_dead_letters=DeadLetterFilter(run_id=run_id))
        assert ended.result is not None
        assert (ended.emissions, ended.result.counts.emitted, ended.result.letters_left) == (0, 0, letters_left)
    assert "mondya" in caplog.text
    assert left(run) == [(3, "monday"), (999, "tuesday")]


def test_ids_of_places_select_records_of_files(case: MakeCase, tmp_path: Path) -> None:
    """The offset file of the run before has the letters as done, and isn't used."""
    run = case()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.txt").write_text("the cat\n\nthe dog\n")

    def pipeline(tracker: Tracker, lines: DataFrame) -> None:
        good = tracker.fail_where(lines, "value = '' AND NOT " + is_repaired, "empty")
        tracker.write(good.drop("_corrupt_record"), run.append())

    is_repaired = "false"
    ids = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json"))
    lines = read_files(run.spark, str(tmp_path / "lines"))
    first = run_tracked(lines, pipeline, acker=run.acker, ids=ids, retry=ONCE)
    assert first.counts.dead_lettered == 1
    is_repaired = "true"
    wanted, in_redis = DeadLetterFilter(run_id=first.run_id), ReplayFrom.redis(max_bytes=1000)
    again = run_tracked(lines, pipeline, acker=run.acker, only_dead_letters=wanted, replay=in_redis)
    assert (again.counts.emitted, again.counts.acked, again.letters_left) == (1, 1, 0)
    assert sorted(run.written("value")) == [("",), ("the cat",), ("the dog",)]
    assert left(run) == []


def test_whole_output_of_letters_alone_is_refused(case: MakeCase) -> None:
    run = case(n=1)
    store(run, 0)
    told = run.refused(write(run), BadConfigError, only_dead_letters=MONDAY, output="whole")
    assert "would replace the whole output" in told
    assert left(run) == [(0, "monday")]


def test_letters_that_another_run_completes_first_are_not_run(
    case: MakeCase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people may repair a night at once."""
    monkeypatch.setattr(lane_leases, "LEASE_SECS", 600.0)
    caplog.set_level("INFO")
    run = case(n=10)
    store(run, 3, 4)
    other = app_of(run.acker).lease(lane=0, run_id="theirs")
    other.acquire()

    def complete_one() -> None:
        wait_until(lambda: "waiting for a lane" in caplog.text, "the run waits for its lane")
        app_of(run.acker).selected_letters(0, DeadLetterFilter(message_ids=frozenset({3}))).done(np.array([3]))
        other.release()

    thread = threading.Thread(target=complete_one)
    thread.start()
    try:
        ended = run.done(write(run), only_dead_letters=MONDAY)
    finally:
        thread.join()
    assert (ended.acked, left(run)) == ({4}, [])
