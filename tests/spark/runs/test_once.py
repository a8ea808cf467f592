"""Output once: the tables hold each message's rows of one attempt, whatever happened before."""

import errno
import os
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from acker_redis import AckerError, BadConfigError, DamagedDataError, InexactPipelineError, PipelineError, RetryPolicy
from acker_redis.errors import FencedError, FilesNotMovedError, LogLostError
from acker_redis.model import keys
from acker_redis.publishing.files import LocalFiles
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Accepted, Owner
from acker_redis.spark import Once, Tracker, read_files, run_tracked
from acker_redis.spark.emission.messages import RunMessages
from acker_redis.spark.emission.once_letters import OnceLetters
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.runtime import jobs
from acker_redis.spark.sinks import staging
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_tables import Stage
from acker_redis.store.dead_letter import DeadLetterFilter
from tests.support.spark.cases import Case, MakeCase, consume
from tests.support.spark.versions import SPARK

pytestmark = [pytest.mark.spark, pytest.mark.classic("output once needs a classic session")]


class Killed(Exception):
    """The driver ended here."""


def once(run: Case) -> Once:
    """Let the runs of a case write once, by a log of the case."""
    run.once = Once(str(run.folder / "log"), "monday")
    return run.once


def folder_of(once: Once) -> Path:
    return Path(once.location, once.data or "")


def log_of(once: Once) -> PublishLog:
    log = PublishLog(LocalLogFolder(folder_of(once)))
    log.read()
    return log


def failing(bad: set[int], one: Any) -> Iterator[Any]:
    if one["id"] in bad:
        raise ValueError("bad")
    for child in range(one["id"] % 3):
        yield {"id": one["id"], "child": child}


def into_two(run: Case, bad: set[int]) -> Any:
    """A sink with some rows of each message, and one with the message itself."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, bad), "id bigint, child int")
        tracker.write(items, run.append("items"))
        tracker.write(messages, run.append("orders"))

    return pipeline


def in_stages(once: Once) -> list[Path]:
    """Files that wait in stages of a log."""
    return list(Path(folder_of(once), "stage").rglob("*.parquet"))


def check_exact(run: Case, messages: set[int]) -> None:
    items = Counter((message, child) for message in messages for child in range(message % 3))
    assert Counter(run.written("id", "child", name="items")) == items
    assert Counter(run.written("id", name="orders")) == Counter((message,) for message in messages)


def test_rows_of_failed_messages_are_in_no_table(case: MakeCase) -> None:
    run, bad = case(n=100), {7, 50}
    log = once(run)
    ended = run.done(into_two(run, bad))
    assert ended.acked == set(range(100)) - bad
    assert ended.letters.keys() == bad
    check_exact(run, ended.acked)
    state = log_of(log).state
    assert (state.is_finished, state.is_settled, set(state.dead[""])) == (True, True, bad)
    assert not in_stages(log)


def test_frame_that_the_program_has_cached_shows_the_rows(case: MakeCase) -> None:
    """As behind any other write, Spark reads the table anew."""
    run = case(n=20)
    once(run)
    folder = str(run.folder / "orders")
    run.spark.range(1).write.parquet(folder)
    cached = run.spark.read.parquet(folder).cache()
    assert cached.count() == 1
    run.done(lambda tracker, messages: tracker.write(messages, run.append("orders")))
    assert run.spark.read.parquet(folder).count() == 21
    cached.unpersist()


def test_stages_of_emissions_that_broke_are_removed(case: MakeCase) -> None:
    """The first sink has staged its rows when the second one fails."""
    run, seen = case(n=20), list[int]()
    log = once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        seen.append(len(in_stages(log)))
        tracker.write(messages, run.append("orders"))
        seen.append(len(in_stages(log)))
        if tracker.emission < 2:
            messages.selectExpr(f"raise_error('{tracker.emission}')").collect()
        items = tracker.flat_map(messages, partial(failing, set()), "id bigint, child int")
        tracker.write(items, run.append("items"))

    run.done(pipeline, stop_if_broken=False, retry=RetryPolicy(max_attempts=9, first_delay_secs=0))
    assert len(seen) > 4
    assert set(seen[::2]) == {0}
    assert 0 not in seen[1::2]
    assert not in_stages(log)
    check_exact(run, set(range(20)))


@pytest.mark.parametrize("is_cached", [False, True])
def test_pipeline_that_drops_rows_itself_is_named(case: MakeCase, *, is_cached: bool) -> None:
    """The tracker caches rows itself, which is no reason to try again. A cache of the user's may be one."""
    run, calls = case(n=20), list[int]()
    log = once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        calls.append(tracker.emission)
        rows = messages.cache() if is_cached else messages
        tracker.write(rows.where("id < 7"), run.append("orders"))

    ended = run.run(pipeline)
    assert isinstance(ended.error, AckerError)
    assert "tracker.filter for where" in str(ended.error)
    assert (ended.acked, ended.letters, in_stages(log)) == (set(), {}, [])
    assert (len(calls) == 1) is not is_cached
    assert isinstance(ended.error, InexactPipelineError) is not is_cached


def test_first_run_reads_its_source_once(case: MakeCase) -> None:
    """As long as the log has done nothing, the job that stages the rows tells which messages there are."""
    run, ids = case(n=30), RunMessages.read_all_ids
    once(run)
    with patch.object(RunMessages, "read_all_ids", autospec=True, side_effect=ids) as reads:
        ended = run.done(into_two(run, {7}))
        before = reads.call_count
        assert before == (SPARK < (4, 3)), "before 4.3 Spark may count a source twice"
        assert (ended.acked, set(ended.letters)) == (set(range(30)) - {7}, {7})
        assert run.done(into_two(run, set()), run.spark.range(0, 40, 1, 2), ids="id").acked == set(range(30, 40))
        assert reads.call_count == before + 1
    check_exact(run, set(range(40)) - {7})


@pytest.mark.parametrize("bad", ["CASE WHEN id < 29 THEN id END AS id", "id % 29 AS id"])
def test_ids_that_are_null_or_repeat_accept_nothing(case: MakeCase, bad: str) -> None:
    """They show after the rows are staged."""
    run = case(n=30)
    log = once(run)
    text = run.refused(into_two(run, set()), PipelineError, run.spark.range(30).selectExpr(bad))
    assert "Give each message" in text or "give each message" in text
    assert not in_stages(log)
    run.done(into_two(run, set()))
    check_exact(run, set(range(30)))


def test_message_that_a_later_branch_fails_is_left_out_of_rows_that_are_not_cached(case: MakeCase) -> None:
    """No operator above the first sink can fail a row, so its rows are computed again."""
    run, cached = case(n=30), list[str]()
    once(run)

    def cache(sink: Sink) -> Sink:
        cached.append(sink.node.name)
        return with_cached_rows(sink)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.filter(messages, "id <> 3"), run.append("orders"), name="orders")
        items = tracker.flat_map(messages, partial(failing, {7}), "id bigint, child int")
        tracker.write(items, run.append("items"), name="items")

    with_cached_rows = Sink.with_cached_rows
    with patch.object(Sink, "with_cached_rows", cache):
        run.done(pipeline, retry=ONE_ATTEMPT)
    assert cached == ["items"]
    good = set(range(30)) - {7}
    assert Counter(run.written("id", name="orders")) == Counter((message,) for message in good - {3})
    assert Counter(run.written("id", name="items")) == Counter({(message,): message % 3 for message in good})


def test_rows_that_are_not_deterministic_are_the_same_in_each_table(case: MakeCase) -> None:
    """The pipeline has released its own cache when the rows of the first sink are written again without the failed message."""
    run = case(n=30)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        drawn = F.udf(lambda: uuid.uuid4().hex, "string").asNondeterministic()
        kept = messages.withColumn("attempt", drawn()).cache()
        kept.count()
        tracker.write(kept, run.append("orders"), name="orders")
        items = tracker.flat_map(kept, only(7), "id bigint, attempt string")
        tracker.write(items, run.append("items"), name="items")
        kept.unpersist()

    run.done(pipeline, retry=ONE_ATTEMPT)
    assert sorted(run.written("id", "attempt", name="orders")) == sorted(run.written("id", "attempt", name="items"))
    assert {number for (number,) in run.written("id", name="items")} == set(range(30)) - {7}


def only(bad: int) -> Callable[[Any], Iterator[Any]]:
    def fail(one: Any) -> Iterator[Any]:
        if one["id"] == bad:
            raise ValueError("bad")
        yield {"id": one["id"], "attempt": one["attempt"]}

    return fail


def test_rows_whose_source_is_gone_when_the_pipeline_returns_are_cached_in_the_next_emission(case: MakeCase) -> None:
    run, emissions = case(n=30), list[int]()
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        path = run.folder / f"lookup-{tracker.emission}"
        run.spark.range(30).withColumnRenamed("id", "n").write.parquet(str(path))
        lookup = run.spark.read.parquet(str(path))
        tracker.write(messages.join(lookup, F.expr("id = n")).drop("n"), run.append("orders"), name="orders")
        items = tracker.flat_map(messages, partial(failing, {7}), "id bigint, child int")
        tracker.write(items, run.append("items"), name="items")
        shutil.rmtree(path)

    ended = run.done(pipeline, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    assert (len(emissions), set(ended.letters)) == (2, {7})
    check_exact(run, set(range(30)) - {7})


def test_finished_data_is_not_written_again_and_counted_apart(case: MakeCase) -> None:
    run = case(n=30)
    once(run)
    run.done(into_two(run, {7}))
    ended = run.done(into_two(run, set()), run.spark.range(0, 40, 1, 2), ids="id")
    check_exact(run, set(range(40)) - {7})
    result = ended.result
    assert result is not None
    assert (result.accepted_before, result.dead_before, result.counts.acked, result.counts.emitted) == (29, 1, 10, 10)
    again = run.done(into_two(run, set())).result
    assert again is not None
    assert (again.accepted_before, again.dead_before, again.counts.acked, again.counts.emitted) == (29, 1, 0, 0)
    check_exact(run, set(range(40)) - {7})


def test_user_learns_what_a_killed_run_had_done(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended behind the record, before it could call the function."""
    run = case(n=20)
    once(run)
    with monkeypatch.context() as patch:
        end_at("accepted", patch)
        ended = run.run(into_two(run, {7}))
    assert ended.error is not None
    assert ended.notified == []
    ended = run.done(into_two(run, {7}))
    assert set(ended.notified) == set(range(20))
    assert set(run.done(into_two(run, {7})).notified) == set(range(20))


def test_table_among_logs_of_other_data_is_refused(case: MakeCase) -> None:
    """Another data= of its name would have its log in the table."""
    run = case(n=3)
    log = once(run)
    ended = run.run(lambda tracker, rows: tracker.write(rows, run.append("log/tuesday")))
    assert isinstance(ended.error, BadConfigError)
    assert "in each other" in str(ended.error)
    assert log_of(log).state.number == 1


def test_log_with_a_hole_is_refused_and_stays_as_it_is(case: MakeCase) -> None:
    run = case(n=30)
    log = once(run)
    run.done(into_two(run, set()), run.spark.range(0, 5, 1, 2), ids="id")
    run.done(into_two(run, set()))
    (folder_of(log) / f"{2:010}.json").unlink()
    files = sorted(path.name for path in folder_of(log).iterdir())
    for _ in range(2):
        ended = run.run(into_two(run, set()))
        assert isinstance(ended.error, DamagedDataError)
        assert "lacks record 2" in str(ended.error)
        assert sorted(path.name for path in folder_of(log).iterdir()) == files
    check_exact(run, set(range(30)))


def test_messages_that_came_later_are_processed(case: MakeCase) -> None:
    run = case(n=30)
    once(run)
    run.done(into_two(run, set()))
    ended = run.done(into_two(run, set()), run.spark.range(0, 40, 1, 2), ids="id")
    assert ended.acked == set(range(30, 40))
    check_exact(run, set(range(40)))


@pytest.mark.parametrize("point", ["staged", "accepted", "one file moved", "published"])
def test_run_that_ended_anywhere_is_completed(case: MakeCase, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    run = case(n=30)
    log = once(run)
    with monkeypatch.context() as patch:
        end_at(point, patch)
        ended = run.run(into_two(run, set()))
    assert "Killed" in repr(ended.error)
    assert not ended.acked
    with monkeypatch.context() as patch:
        again = run.done(into_two(run, set()))
    assert again.result is not None
    assert again.result.counts.emitted == (30 if point == "staged" else 0)
    check_exact(run, set(range(30)))
    assert log_of(log).state.is_settled


def end_at(point: str, patch: pytest.MonkeyPatch) -> None:
    """Let a driver end at a point of an emission."""

    def end(*args: Any, **options: Any) -> None:
        raise Killed

    if point == "staged":
        patch.setattr(PublishLog, "accept", end)
    elif point == "accepted":
        patch.setattr(LocalFiles, "publish", end)
    elif point == "published":
        patch.setattr(EmissionRoots, "complete", end)
    else:
        moved: list[Path] = []
        rename = LocalFiles._rename  # noqa: SLF001

        def move_one(self: Any, source: Path, place: Path) -> None:
            if moved:
                raise Killed
            moved.append(place)
            rename(self, source, place)

        patch.setattr(LocalFiles, "_rename", move_one)


def test_rows_are_on_the_disk_before_their_record(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run, synced, missing = case(n=30), set[Path](), list[Path]()
    log, accept, sync = once(run), PublishLog.accept, os.fsync

    def note(file: int) -> None:
        synced.add(Path(f"/proc/self/fd/{file}").readlink())
        sync(file)

    def check(self: PublishLog, accepted: Accepted) -> int | None:
        for staged in accepted.staged:
            for file in staged.files:
                path = Path(staged.stage, file)
                expected = [path, *takewhile(lambda folder: folder != folder_of(log), path.parents)]
                missing.extend(path for path in expected if path not in synced)
        return accept(self, accepted)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(PublishLog, "accept", check)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("day", F.col("id") % 2)
        tracker.write(rows, lambda writer: writer.mode("append").partitionBy("day").parquet(run.out))

    run.done(pipeline)
    assert not missing
    assert folder_of(log) in synced


def test_messages_whose_roots_timed_out_after_acceptance_are_not_written_again(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lost = case(n=30), list[int]()
    once(run)
    complete = EmissionRoots.complete

    def lose_first(self: Any, failed: Any) -> None:
        if not lost:
            lost.append(len(self.emission.roots))
            run.acker.fail_many(self.emission.roots)
        complete(self, failed)

    monkeypatch.setattr(EmissionRoots, "complete", lose_first)
    ended = run.done(into_two(run, set()))
    assert (lost, ended.letters) == ([30], {})
    check_exact(run, set(range(30)))


def test_accepted_message_without_an_attempt_left_is_no_dead_letter(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = case(n=30)
    log = once(run)
    complete = EmissionRoots.complete

    def fail_all(self: Any, failed: Any) -> None:
        run.acker.fail_many(self.emission.roots, reason="stolen")
        complete(self, failed)

    monkeypatch.setattr(EmissionRoots, "complete", fail_all)
    monkeypatch.setattr("acker_redis.spout.emission_marks.Marks.exempt", lambda self, roots: None)
    ended = run.run(into_two(run, set()), retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    assert ended.error is None
    assert ended.letters == {}
    assert ended.result is not None
    assert (ended.result.counts.dead_lettered, ended.result.counts.acked) == (0, 30)
    assert log_of(log).state.dead == {}
    check_exact(run, set(range(30)))


def test_run_that_a_newer_one_has_fenced_acks_nothing(case: MakeCase) -> None:
    run = case(n=30)
    log = once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        into_two(run, set())(tracker, messages)
        log_of(log).begin("newer", Owner(run.acker.config.app, 0, ("id",)), "orders")

    ended = run.run(pipeline)
    assert isinstance(ended.error, FencedError)
    assert (ended.acked, ended.letters) == (set(), {})
    assert run.written(name="items") == run.written(name="orders") == []
    run.done(into_two(run, set()))
    check_exact(run, set(range(30)))


def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the time of the jobs of an emission be over soon, without cancelling them. Return what tells that it is."""
    is_late = threading.Event()
    monkeypatch.setattr(jobs, "cancel", lambda spark, tag: is_late.set())
    return is_late


def test_timeout_of_the_jobs_hides_no_fence(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run, is_late = case(n=30), late(monkeypatch)
    log = once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        into_two(run, set())(tracker, messages)
        log_of(log).begin("newer", Owner(run.acker.config.app, 0, ("id",)), "orders")
        assert is_late.wait(60)

    ended = run.run(pipeline, emit_timeout_secs=0.01)
    assert isinstance(ended.error, FencedError)
    assert (ended.acked, ended.letters, ended.emissions) == (set(), {}, 1)


@pytest.mark.parametrize(
    ("error", "kind"), [(RuntimeError("broken"), AckerError), (FilesNotMovedError("gone"), FilesNotMovedError)]
)
def test_error_behind_the_record_names_it_and_blames_no_message(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type
) -> None:
    run = case(n=10)
    once(run)

    def fail(self: LocalFiles, source: Path, place: Path) -> None:
        if "write-2" in place.name:
            raise error

    with monkeypatch.context() as patch:
        is_late = late(patch)

        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            into_two(run, set())(tracker, messages)
            assert is_late.wait(60)

        patch.setattr(LocalFiles, "_move", fail)
        ended = run.run(pipeline, emit_timeout_secs=0.01)
    assert type(ended.error) is kind
    assert re.search(r"ecord 2 .*'write-2'.*(broken|gone)", str(ended.error))
    assert (ended.acked, ended.letters, ended.emissions) == (set(), {}, 1)
    run.done(into_two(run, set()))
    check_exact(run, set(range(10)))


def test_log_that_was_lost_is_noticed(case: MakeCase) -> None:
    run = case(n=30)
    log = once(run)
    run.done(into_two(run, set()))
    shutil.rmtree(log.location)
    for _ in range(4):  # each start writes a record
        assert isinstance(run.run(into_two(run, set())).error, LogLostError)
    check_exact(run, set(range(30)))


def test_letters_of_a_log_that_was_made_anew_are_stored(case: MakeCase) -> None:
    """The log and its tables were removed, to begin again from nothing."""
    run = case(n=30)
    log = once(run)
    for count in (1, 2):
        run.done(into_two(run, {7}))
        assert [letter.message_id for letter in run.acker.dead_letters.read()] == [7] * count
        check_exact(run, set(range(30)) - {7})
        for folder in (log.location, run.folder / "items", run.folder / "orders"):
            shutil.rmtree(folder)


def test_log_that_was_set_back_is_noticed_at_every_start(case: MakeCase) -> None:
    run = case(n=30)
    log = once(run)
    run.done(into_two(run, set()))
    shutil.copytree(log.location, run.folder / "copy")
    run.done(into_two(run, {31}), run.spark.range(0, 40, 1, 2), ids="id")
    shutil.rmtree(log.location)
    shutil.copytree(run.folder / "copy", log.location)
    for _ in range(4):
        ended = run.run(into_two(run, set()), run.spark.range(0, 40, 1, 2), ids="id")
        assert isinstance(ended.error, LogLostError)
        assert (ended.acked, ended.letters) == (set(), {})
    check_exact(run, set(range(40)) - {31})


def test_rows_that_could_not_be_published_are_before_their_messages_are_acked(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the tables is full behind the record, for longer than the run waits."""
    run = case(n=10)
    log = once(run)

    def full(self: LocalFiles, source: Path, place: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "_rename", full)
        ended = run.run(into_two(run, set()), retry=RetryPolicy(max_attempts=2, first_delay_secs=0, outage_secs=1))
    assert type(ended.error) is AckerError
    assert (ended.acked, ended.letters) == (set(), {})
    assert not log_of(log).state.is_finished
    run.done(into_two(run, set()))
    check_exact(run, set(range(10)))


def letters_in(run: Case) -> list[int]:
    return sorted(letter.message_id for letter in run.acker.dead_letters.read())


def test_dead_messages_run_again_where_they_are_asked_to(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run, every = case(n=30), set(range(30))
    log = once(run)
    run.done(into_two(run, {7, 8, 9}))
    run.done(into_two(run, set()))
    assert letters_in(run) == [7, 8, 9]
    run.once = replace(log, reopen_dead=True)
    part = run.spark.range(0, 9, 1, 2)
    ended = run.done(into_two(run, {7}), part, ids="id")
    assert ended.acked == {8}
    assert ended.result is not None
    assert (ended.result.accepted_before, ended.result.dead_before) == (7, 0), "7 and 8 ran again"
    assert letters_in(run) == [7, 9], "the source lacked 9, and 7 has a new letter"
    assert {letter.run_id for letter in run.acker.dead_letters.read() if letter.message_id == 7} == {
        ended.letters[7].run_id
    }
    check_exact(run, every - {7, 9})
    run.done(into_two(run, set()))
    check_exact(run, every)
    assert (letters_in(run), log_of(log).state.dead[""]) == ([], {})


ONE_ATTEMPT = RetryPolicy(max_attempts=1, first_delay_secs=0)
POINTS = ["reopened", "staged", "accepted", "one file moved", "published", "dead", "stored", "done", "deleted"]


@pytest.mark.parametrize("point", POINTS)
def test_dead_messages_that_run_again_are_written_once_or_letters(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    run = case(n=30)
    log = once(run)
    run.done(into_two(run, {7, 8, 9}))
    with monkeypatch.context() as patch:
        end_reopening_at(point, patch)
        with pytest.raises((Killed, AckerError), match=r"Killed|^(\n|$)"):
            run_tracked(
                run.messages, into_two(run, {7}), acker=run.acker, ids="id", retry=ONE_ATTEMPT,
                once=replace(log, reopen_dead=True),
            )  # fmt: skip
    while outcomes := run.acker.poll_batches():  # that it had no time to confirm
        run.acker.confirm_batches(outcomes)
    run.acker.outcomes.clear()
    run.done(into_two(run, {7}))
    check_exact(run, set(range(30)) - {7})
    assert (letters_in(run), set(log_of(log).state.dead[""])) == ([7], {7})


def end_reopening_at(point: str, patch: pytest.MonkeyPatch) -> None:
    """Let a run end at a point behind which dead messages run again."""

    def end(*args: Any, **options: Any) -> None:
        raise Killed

    def end_behind(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def call(*args: Any, **options: Any) -> None:
            method(*args, **options)
            end()

        patch.setattr(owner, name, call)

    if point == "reopened":
        end_behind(PublishLog, "reopen")
    elif point == "dead":
        end_behind(PublishLog, "bury")
    elif point == "stored":
        patch.setattr(PublishLog, "stored", end)
    elif point == "done":
        patch.setattr(OnceLetters, "delete_old", end)
    elif point == "deleted":
        end_behind(OnceLetters, "delete_old")
    else:
        end_at(point, patch)


def lose_letters(run: Case) -> None:
    """Let the server forget the letters, as if it had lost its memory."""
    with redis.Redis.from_url(run.url) as raw:
        raw.delete(keys.dead_letters(run.acker.config.app), keys.letter_logs(run.acker.config.app))


def test_letters_that_the_server_lost_are_stored_again(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case(n=40)
    log = once(run)
    run.done(into_two(run, {7, 8}), run.spark.range(0, 20, 1, 2), ids="id", dead_letter_bytes=100)
    before = run.acker.dead_letters.read()
    lose_letters(run)
    run.done(into_two(run, {27}), dead_letter_bytes=100)  # whose letter is newer
    assert [letter._replace(entry_id="") for letter in run.acker.dead_letters.read()[:2]] == [
        letter._replace(entry_id="") for letter in before
    ]
    assert letters_in(run) == [7, 8, 27]
    run.done(into_two(run, {8, 27}), once=replace(log, reopen_dead=True))
    for _ in range(2):
        lose_letters(run)
        run.done(into_two(run, set()))
        assert letters_in(run) == [8, 27], "7 is accepted"
    run.acker.dead_letters.delete(letter.entry_id for letter in run.acker.dead_letters.read())
    run.done(into_two(run, set()))
    assert letters_in(run) == [], "that somebody deleted stay away"
    check_exact(run, {*range(40)} - {8, 27})


def test_letters_that_are_lost_during_a_run_are_stored_before_newer_ones(case: MakeCase) -> None:
    run = case(n=30)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if run.acker.dead_letters.count() == 1:
            lose_letters(run)
        into_two(run, {7, 17, 27})(tracker, messages)

    run.done(pipeline, retry=ONE_ATTEMPT, max_spout_pending=10)
    assert letters_in(run) == [7, 17, 27]


def test_lost_letters_that_only_a_snapshot_knew_are_counted(case: MakeCase, caplog: pytest.LogCaptureFixture) -> None:
    run = case(n=30)
    log = once(run)
    run.done(into_two(run, {7, 8}))
    log_of(log).compact(at_once=True)
    lose_letters(run)
    for _ in range(2):
        run.done(into_two(run, set()))
    assert letters_in(run) == []
    assert caplog.text.count("restored=0 not_in_the_log_any_more=2") == 1


def test_run_over_dead_letters_alone_is_refused(case: MakeCase) -> None:
    run = case(n=3)
    log = once(run)
    ended = run.run(into_two(run, set()), only_dead_letters=DeadLetterFilter(run_id="monday"))
    assert isinstance(ended.error, BadConfigError)
    assert "reopen_dead=True" in str(ended.error)
    assert not folder_of(log).exists()


def compact(table: str | Path) -> None:
    """Give the files of a table other names, as a compaction does."""
    for file in list(Path(table).rglob("acker-*")):
        file.rename(file.with_name(f"compacted-{uuid.uuid4().hex}.parquet"))


def test_table_may_be_compacted_behind_a_run_that_ended_with_an_error(case: MakeCase) -> None:
    run = case(n=30)
    once(run)

    def fails_later(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission:
            raise Killed
        into_two(run, set())(tracker, messages)

    assert isinstance(run.run(fails_later, max_spout_pending=10).error, Killed)
    for sink in ("items", "orders"):
        compact(run.folder / sink)
    run.done(into_two(run, set()))
    check_exact(run, set(range(30)))


def test_messages_of_files_are_named_by_file_and_row(case: MakeCase) -> None:
    run = case(n=0)
    log = once(run)
    folder = run.folder / "in"

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages.drop("file", "row"), run.append())

    for name, count in (("a", 3), ("b", 2)):
        (folder / name).mkdir(parents=True)
        (folder / name / "lines").write_text("".join(f"{name}{number}\n" for number in range(count)))
        lines = read_files(run.spark, str(folder), "text")
        result = run_tracked(lines, pipeline, acker=run.acker, once=log)
        assert result.counts.acked == count
    assert sorted(run.written("value")) == [(text,) for text in ("a0", "a1", "a2", "b0", "b1")]
    accepted = {Path(name).parent.name: ranges.tolist() for name, ranges in log_of(log).state.accepted.ranges().items()}
    assert accepted == {"a": [[0, 2]], "b": [[0, 1]]}


def test_run_needs_a_name_of_its_messages_or_a_promise(case: MakeCase) -> None:
    run = case(n=10)
    folder = str(run.folder / "log")
    ended = run.run(into_two(run, set()), once=Once(folder))
    assert isinstance(ended.error, BadConfigError)
    assert "Set data=" in str(ended.error)
    assert not Path(folder).exists()
    run.done(into_two(run, set()), once=Once(folder, ids_never_repeat=True))
    check_exact(run, set(range(10)))


@pytest.mark.parametrize("data", ["", "a/b", "..", ".a", "-a", "stage", 7])
def test_name_of_data_that_is_no_folder_is_refused(data: Any) -> None:
    with pytest.raises(BadConfigError, match="log's folder"):
        Once("/logs", data)


def test_other_sinks_are_refused_until_the_data_is_done(case: MakeCase) -> None:
    run = case(n=30)
    log = once(run)

    def fails_later(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.emission:
            raise Killed
        into_two(run, set())(tracker, messages)

    def into_one(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append("orders"))

    assert isinstance(run.run(fails_later, max_spout_pending=10).error, Killed)
    ended = run.run(into_one)
    assert isinstance(ended.error, BadConfigError)
    assert "'write', 'write-2'" in str(ended.error)
    check_exact(run, set(range(10)))
    run.done(into_two(run, set()))
    check_exact(run, set(range(30)))
    run.done(into_one, run.spark.range(0, 31, 1, 2), ids="id")
    assert log_of(log).state.is_finished


@pytest.mark.parametrize("is_named", [True, False])
def test_sinks_in_threads_need_names(case: MakeCase, *, is_named: bool) -> None:
    """Without names, the order of their calls would name them, which differs from emission to emission."""
    run = case(n=30)
    log = once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, set()), "id bigint, child int")
        sinks = [("items", items), ("orders", messages)]
        with ThreadPoolExecutor(1) as pool:
            for name, rows in reversed(sinks) if tracker.emission % 2 else sinks:
                pool.submit(tracker.write, rows, run.append(name), name=name if is_named else None).result()

    ended = run.run(pipeline, max_spout_pending=10)
    if is_named:
        assert ended.error is None
        check_exact(run, set(range(30)))
    else:
        assert isinstance(ended.error, PipelineError)
        assert "Pass name=" in str(ended.error)
        assert (ended.acked, log_of(log).state.number) == (set(), 1)


def test_log_of_another_spout_is_refused(case: MakeCase) -> None:
    run = case(n=3, lanes=2)
    once(run)
    run.done(into_two(run, set()))
    assert isinstance(run.run(into_two(run, set()), spout_id=1).error, BadConfigError)


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv", "text"])
@pytest.mark.parametrize("failed", [0, 3, 1500])
def test_files_of_each_format_are_partitioned_and_compressed(case: MakeCase, kind: str, failed: int) -> None:
    run = case(n=2000)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(failing, set(range(failed))), "id bigint, child int")
        rows = rows.withColumn("day", F.col("id") % 2)
        if kind == "text":
            rows = rows.withColumn("value", F.concat_ws(":", "id", "child")).drop("id", "child")
        tracker.write(
            rows,
            lambda writer: writer.mode("append").format(kind).partitionBy("day")
            .option("compression", "gzip" if kind != "orc" else "zlib").option("maxRecordsPerFile", 400).save(run.out),
        )  # fmt: skip

    ended = run.done(pipeline, retry=RetryPolicy(max_attempts=1, first_delay_secs=0), stop_if_broken=False)
    assert ended.result is not None
    assert ended.result.dead_letters.keys() == set(range(failed))
    columns = "value string" if kind == "text" else "id bigint, child int"
    found = run.spark.read.format(kind).schema(f"{columns}, day int").load(run.out).collect()
    expected = Counter((one, child, one % 2) for one in range(failed, 2000) for child in range(one % 3))
    assert (
        Counter((*map(int, row[0].split(":")), row[1]) if kind == "text" else tuple(row) for row in found) == expected
    )
    assert all(name.startswith("acker-") for _, _, names in os.walk(run.out) for name in names)


def test_text_without_rows_makes_a_folder_that_can_be_read(case: MakeCase) -> None:
    run = case(n=20)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.filter(messages, "id < 0")
        tracker.write(rows, run.append())
        tracker.write(rows.selectExpr("*", "cast(id AS string) AS text").drop("id"), run.append("other"))

    run.done(pipeline, max_spout_pending=5)
    assert run.spark.read.parquet(run.out).schema.names == ["id"]
    assert len(list(Path(run.out).glob("*.parquet"))) == 1


def write_twice(path: str, writer: DataFrameWriter) -> None:
    writer.mode("append").parquet(path)
    writer.mode("append").json(path)


REFUSED: dict[str, Callable[[Case, Tracker, DataFrame], object]] = {
    "write_partitions": lambda run, tracker, rows: tracker.write_partitions(rows, consume),
    "write_dataframe": lambda run, tracker, rows: tracker.write_dataframe(rows, lambda rows: rows.count()),
    "the session has no Iceberg": lambda run, tracker, rows: tracker.write_table(rows, "t", lambda w: w.append()),
    "export": lambda run, tracker, rows: tracker.export(rows, run.append()),
    "can't be staged": lambda run, tracker, rows: tracker.write(rows, lambda w: w.mode("append").saveAsTable("t")),
    "no path": lambda run, tracker, rows: tracker.write(
        rows, lambda w: w.mode("append").option("path", run.out).save()
    ),
    "mode 'overwrite'": lambda run, tracker, rows: tracker.write(rows, lambda w: w.mode("overwrite").parquet(run.out)),
    "would replace": lambda run, tracker, rows: tracker.write(
        rows,
        lambda w: w.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("id").parquet(run.out),
        allow_overwrite=True,
    ),
    "writes twice": lambda run, tracker, rows: tracker.write(rows, partial(write_twice, run.out)),
    "on_error": lambda run, tracker, rows: tracker.write(rows, run.append(), on_error="fail"),
    "algorithm": lambda run, tracker, rows: tracker.write(
        rows,
        lambda w: w.mode("append").option("mapreduce.fileoutputcommitter.algorithm.version", "2").parquet(run.out),
    ),
    "local disk": lambda run, tracker, rows: tracker.write(rows, lambda w: w.mode("append").parquet("s3a://a/b")),
    "partial=True": lambda run, tracker, rows: tracker.write(
        tracker.group_by(rows, [], F.count("id").alias("n"), partial=True), run.append()
    ),
    "in each other": lambda run, tracker, rows: tracker.write(rows, run.append("log")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cant_be_staged_is_refused(case: MakeCase, what: str) -> None:
    run = case(n=3)
    log = once(run)
    ended = run.run(lambda tracker, rows: REFUSED[what](run, tracker, rows))
    assert isinstance(ended.error, PipelineError | BadConfigError), ended.error
    assert what in str(ended.error)
    assert (ended.acked, ended.letters, log_of(log).state.number) == (set(), {}, 1)
    assert not Path(run.out).exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mapreduce.fileoutputcommitter.algorithm.version", "2"),
        ("spark.sql.sources.commitProtocolClass", "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol"),
    ],
)
def test_committer_that_the_session_sets_is_refused(case: MakeCase, setting: str, value: str) -> None:
    run = case(n=3)
    log = once(run)
    run.spark.conf.set(setting, value)
    try:
        ended = run.run(lambda tracker, rows: tracker.write(rows, run.append()))
    finally:
        run.spark.conf.unset(setting)
    assert isinstance(ended.error, PipelineError)
    assert value in str(ended.error) and setting in str(ended.error)
    assert (ended.acked, ended.letters, log_of(log).state.number) == (set(), {}, 1)
    assert not Path(run.out).exists()


def test_table_into_which_nothing_can_be_renamed_is_refused_before_a_record(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log and table are two mounts of one device."""
    run = case(n=3)
    log = once(run)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "rename", refuse)
    ended = run.run(into_two(run, set()))
    assert isinstance(ended.error, BadConfigError)
    assert "file system of the table" in str(ended.error)
    assert (ended.acked, log_of(log).state.number) == (set(), 1)


def test_relative_path_of_a_table_is_where_spark_has_it(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case(n=20)
    folder = run.spark.sparkContext._jvm.java.lang.System.getProperty("user.dir")  # noqa: SLF001
    path, elsewhere = os.path.relpath(run.out, folder), run.folder / "a" / "b" / "c"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    once(run)
    run.done(lambda tracker, rows: tracker.write(rows, lambda writer: writer.mode("append").parquet(path)))
    assert sorted(run.written("id")) == [(number,) for number in range(20)]


def test_relative_path_of_a_log_is_where_the_program_had_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    once = Once("log", "monday")
    monkeypatch.chdir("/")
    assert once.location == str(tmp_path / "log")


@pytest.mark.parametrize("failed", [1, 1500])
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_rows_of_no_message_are_refused(case: MakeCase, failed: int, ansi: str) -> None:
    run = case(n=2000)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, set(range(failed))), "id bigint, child int")
        others = run.spark.sql(f"SELECT 0L AS id, 0 AS child, 0L AS {SHARE}, cast(array() AS array<bigint>) AS {ROOTS}")
        tracker.write(items.unionByName(others), run.append())

    before = run.spark.conf.get("spark.sql.ansi.enabled")
    run.spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        ended = run.run(pipeline, stop_if_broken=False)
    finally:
        run.spark.conf.set("spark.sql.ansi.enabled", before)
    assert isinstance(ended.error, PipelineError), ended.error
    assert "belong to no message" in str(ended.error)
    assert (ended.acked, ended.emissions) == (set(), 1)


def test_table_that_is_partitioned_otherwise_is_refused(case: MakeCase) -> None:
    run = case(n=30)
    once(run)
    run.messages.write.parquet(run.out)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("day", F.lit("monday"))
        tracker.write(rows, lambda writer: writer.mode("append").partitionBy("day").parquet(run.out))

    ended = run.run(pipeline)
    assert isinstance(ended.error, PipelineError)
    assert "partitioned by nothing" in str(ended.error)
    assert not ended.acked


@pytest.mark.parametrize(("bad", "number"), [(set(), 0), ({7}, 2)])
def test_file_with_rows_that_were_written_twice_is_not_accepted(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch, bad: set[int], number: int
) -> None:
    """A file is doubled in the stage of all rows, or in that of the rows of messages that haven't failed."""
    run, stages = case(n=30), list[Path]()
    once(run)
    stage = staging._stage  # noqa: SLF001

    def double_one(sink: Any, kind: str, write: Callable[[DataFrame, Stage], object], to: Stage, failed: Any) -> Any:
        def write_and_double(rows: DataFrame, to: Stage) -> None:
            write(rows, to)
            if len(stages) == number:
                file = next(to.folder.glob("*.parquet"))
                shutil.copy(file, file.with_name(f"again-{file.name}"))
            stages.append(to.folder)

        return stage(sink, kind, write_and_double, to, failed)

    monkeypatch.setattr(staging, "_stage", double_one)
    ended = run.done(into_two(run, bad), retry=ONE_ATTEMPT)
    assert ended.letters.keys() == bad
    assert not any(folder.exists() for folder in stages)
    check_exact(run, set(range(30)) - bad)


def test_random_pipeline_is_exact_in_each_sink(case: MakeCase) -> None:
    run = case(n=40)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, random_children, "id bigint, attempt string, count int")
        tracker.write(rows, run.append("a"))

    ended = run.run(pipeline, retry=RetryPolicy(max_attempts=8, first_delay_secs=0), max_spout_pending=15)
    assert ended.error is None
    rows = run.written("id", "attempt", "count", name="a")
    by_message: dict[int, set[str]] = {}
    for message, attempt, _ in rows:
        by_message.setdefault(message, set()).add(attempt)
    assert all(len(attempts) == 1 for attempts in by_message.values())
    assert all(Counter(row[0] for row in rows)[message] == count for message, _, count in rows)
    assert by_message.keys() == ended.acked


def random_children(one: Any) -> Iterator[Any]:
    import random

    if random.random() < 0.2:
        raise ValueError("by chance")
    count, attempt = random.randint(1, 3), uuid.uuid4().hex
    for _ in range(count):
        yield {"id": one["id"], "attempt": attempt, "count": count}


def test_full_disk_of_the_log_is_waited_for(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = case(n=10), list[str]()
    once(run)
    create = LocalLogFolder.create

    def full_twice(self: LocalLogFolder, name: str, data: bytes) -> bool:
        asked.append(name)
        if 2 <= len(asked) <= 3:
            raise OSError(28, "No space left on device")
        return create(self, name, data)

    monkeypatch.setattr(LocalLogFolder, "create", full_twice)
    run.done(into_two(run, set()))
    check_exact(run, set(range(10)))
    assert len(asked) > 3


def test_log_that_stays_away_ends_the_run_and_nothing_is_acked(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = case(n=10), list[str]()
    log = once(run)
    create = LocalLogFolder.create

    def away(self: LocalLogFolder, name: str, data: bytes) -> bool:
        asked.append(name)
        if len(asked) > 1:
            raise OSError(5, "Input/output error")
        return create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalLogFolder, "create", away)
        ended = run.run(into_two(run, set()), retry=RetryPolicy(max_attempts=2, first_delay_secs=0, outage_secs=1))
    assert type(ended.error) is AckerError
    assert "publish log" in str(ended.error)
    assert (ended.acked, ended.letters) == (set(), {})
    assert in_stages(log), "the record may be there after all"
    run.done(into_two(run, set()))
    check_exact(run, set(range(10)))
    assert not in_stages(log)
