"""Jobs that fail before any message has come through show a broken program, however few messages the source has."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import AckerError, OffsetFile, RetryPolicy
from acker_redis.spark import MessageIds, Tracker, run_tracked
from tests.support.spark.cases import Case, MakeCase, consume

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_attempt")]

TWICE = RetryPolicy(max_attempts=2, first_delay_secs=0)


def refuse(bad: set[int], batches: Iterator[Any], partition: int) -> None:
    for batch in batches:
        if bad & set(batch["id"].to_pylist()):
            raise KeyError("no such table")


def write_below(folder: Path, batches: Iterator[Any], partition: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    consume(batches, partition)


def into_folder_that_cannot_be_made(run: Case, tracker: Tracker, messages: DataFrame) -> None:
    (run.folder / "file").write_text("")
    tracker.write_partitions(messages, partial(write_below, run.folder / "file" / "out"))


def with_broken_reference(run: Case, tracker: Tracker, messages: DataFrame) -> None:
    folder = run.folder / "prices"
    folder.mkdir(exist_ok=True)
    (folder / "part.parquet").write_bytes(b"PAR1 no parquet PAR1")
    prices = messages.sparkSession.read.schema("id bigint, price int").parquet(str(folder))
    tracker.write(tracker.join(messages, prices, "id"), run.append())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("pipeline", [with_broken_reference, into_folder_that_cannot_be_made])
def test_broken_program_dead_letters_no_message_of_a_small_source(case: MakeCase, count: int, pipeline: Any) -> None:
    run = case(n=count)
    ended = run.run(partial(pipeline, run), retry=TWICE)
    assert type(ended.error) is AckerError
    assert "no message has come through in this run" in str(ended.error)
    assert "stop_if_broken=False" in str(ended.error)
    assert (ended.letters, ended.notified, run.acker.stats().pending) == ({}, [], 0)


def test_messages_are_attempted_max_attempts_times_before_the_run_ends(case: MakeCase) -> None:
    ended = case(n=1).run(refusing({0}), retry=RetryPolicy(max_attempts=3, first_delay_secs=0))
    assert ended.error is not None
    assert "KeyError: 'no such table'" in str(ended.error)
    assert ended.emissions == 3


def test_failed_jobs_count_by_option_and_the_run_returns(case: MakeCase) -> None:
    ended = case(n=3).done(refusing({0, 1, 2}), retry=TWICE, stop_if_broken=False)
    assert ended.letters.keys() == {0, 1, 2}


def refusing(bad: set[int]) -> Any:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, partial(refuse, bad))

    return pipeline


@pytest.mark.parametrize("options", [{}, {"max_spout_pending": 1}])
def test_bad_message_is_a_dead_letter_once_another_has_come_through(case: MakeCase, options: Any) -> None:
    ended = case(n=3, partitions=1).done(refusing({0}), retry=TWICE, **options)
    assert {letter.message_id: letter.attempts for letter in ended.letters.values()} == {0: 2}
    assert ended.acked == {1, 2}


def test_message_that_fails_by_its_row_shows_no_working_job(case: MakeCase) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.fail_where(messages, "id = 0", "no")
        tracker.write_partitions(kept, partial(refuse, {1, 2}))

    ended = case(n=3, partitions=1).run(pipeline, retry=TWICE)
    assert ended.letters.keys() == {0}
    assert "Each of the 2 messages that is left" in str(ended.error)


def test_whole_output_dead_letters_no_message_of_a_small_source(case: MakeCase) -> None:
    run = case(n=1)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(dying), "id bigint")
        tracker.write(rows, lambda writer: writer.mode("overwrite").parquet(run.out))

    ended = run.run(pipeline, retry=TWICE, output="whole")
    assert "no message has come through in this run" in str(ended.error)
    assert ended.letters == {}


def dying(row: dict[str, Any]) -> list[tuple[int]]:
    raise SystemExit(4)


def test_repaired_program_completes_a_small_source(case: MakeCase, tmp_path: Path) -> None:
    run = case(n=3)
    messages = run.messages.selectExpr("id", "'all' AS file", "id AS row")
    given: dict[str, Any] = {
        "ids": MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json")), "acker": run.acker, "retry": TWICE,
    }  # fmt: skip
    with pytest.raises(AckerError, match="no such table"):
        run_tracked(messages, refusing({0, 1, 2}), **given)

    def repaired(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)

    result = run_tracked(messages, repaired, **given)
    assert (result.counts.emitted, result.counts.acked, result.dead_letters) == (3, 3, {})
