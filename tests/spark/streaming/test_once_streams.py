"""Streams that write once: restarts, repeated micro-batches and lost checkpoints double no row."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis import Acker, AckerError, BadConfigError, DeadLetter, RetryPolicy
from acker_redis.model import keys
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.spark import MessageIds, Once, TrackedBatches, Tracker
from acker_redis.spark.streaming.parking.snapshot_writer import SnapshotWriter
from acker_redis.spout.dead_letter_replay import DeadLetterReplay
from tests.spark.runs.test_once import Killed, compact, end_at, failing
from tests.spark.streaming.test_streams import QUICK, give, start, written
from tests.support.spark.cases import CONFIG

pytestmark = [pytest.mark.spark, pytest.mark.classic("output once needs a classic session")]

BAD = {7, 47}


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def append(path: Path, writer: DataFrameWriter) -> None:
    writer.mode("append").parquet(str(path))


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    items = tracker.flat_map(messages, partial(failing, BAD), "id bigint, child int")
    tracker.write(items, partial(append, folder / "items"))
    tracker.write(messages, partial(append, folder / "out"))


def handler_of(
    acker: Acker, folder: Path, run: Any = None, *, once: Once | None = None, **options: Any
) -> TrackedBatches:
    given = {"ids": "id", "retry": QUICK, "parking_location": str(folder / "parked"), "batch_wait_secs": 600}
    once = once or Once(str(folder / "log"), "clicks", ids_never_repeat=True)
    return TrackedBatches(run or partial(pipeline, folder), acker=acker, once=once, **{**given, **options})


def run_through(spark: Any, folder: Path, handler: TrackedBatches, **options: Any) -> None:
    with handler:
        start(spark, folder, handler, availableNow=True, **options).awaitTermination()
        assert handler.drain(180).parked == {}


def check_exact(folder: Path, messages: set[int]) -> None:
    expected = Counter(message for message in messages for _ in range(message % 3))
    assert Counter(written(folder, "items")) == expected
    assert written(folder) == sorted(messages)


def test_each_message_is_written_once_and_failed_ones_never(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, *(range(at, at + 20) for at in (0, 20, 40)))
    run_through(spark, tmp_path, handler_of(acker, tmp_path))
    check_exact(tmp_path, set(range(60)) - BAD)
    assert sorted(letter.message_id for letter in acker.dead_letters.read()) == sorted(BAD)


@pytest.mark.parametrize("point", ["staged", "accepted", "one file moved", "published"])
def test_query_that_ended_anywhere_goes_on(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    give(tmp_path, *(range(at, at + 20) for at in (0, 20, 40)))
    batches: list[int | None] = []

    def dying(patch: pytest.MonkeyPatch, tracker: Tracker, messages: DataFrame) -> None:
        batches.append(tracker.batch_id)
        if tracker.batch_id == 1:
            end_at(point, patch)
        pipeline(tmp_path, tracker, messages)

    with (
        monkeypatch.context() as patch,
        handler_of(acker, tmp_path, partial(dying, patch)) as handler,
        pytest.raises(StreamingQueryException),
    ):
        start(spark, tmp_path, handler, availableNow=True).awaitTermination()
    assert 1 in batches
    run_through(spark, tmp_path, handler_of(acker, tmp_path))
    check_exact(tmp_path, set(range(60)) - BAD)
    assert sorted(letter.message_id for letter in acker.dead_letters.read()) == sorted(BAD)


def test_table_may_be_compacted_behind_a_stream_that_rests_or_has_ended(
    spark: Any, acker: Acker, tmp_path: Path
) -> None:
    messages = set(range(10, 40))
    for ids in (range(10, 20), range(20, 30), range(30, 40)):
        give(tmp_path, ids)
        with handler_of(acker, tmp_path) as handler:
            start(spark, tmp_path, handler, availableNow=True).awaitTermination()
            for _ in range(2):
                assert handler.drain(180).parked == {}
                if 20 in ids:
                    compact(tmp_path / "items")
        compact(tmp_path / "out")
    check_exact(tmp_path, messages)


def test_sinks_may_be_others_from_a_start_on(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def changing(names: list[str], tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, partial(append, tmp_path / names[0]), name=names.pop(0))

    for number, sink in enumerate(("a", "b")):
        give(tmp_path, range(number * 10, number * 10 + 10), range(20, 20))
        run_through(spark, tmp_path, handler_of(acker, tmp_path, partial(changing, [sink] * 9)))
    give(tmp_path, range(20, 30), range(30, 40))
    with (
        handler_of(acker, tmp_path, partial(changing, ["b", "c"])) as handler,
        pytest.raises(StreamingQueryException, match="'b', 'c': these sinks are new"),
    ):
        start(spark, tmp_path, handler, availableNow=True).awaitTermination()
    assert [written(tmp_path, sink) for sink in ("a", "b")] == [[*range(10)], [*range(10, 30)]]


def test_parked_messages_without_places_are_refused_at_the_start(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """They were parked when ids came from a column, which had the name of the ids that are derived from places."""
    slow = RetryPolicy(first_delay_secs=600, max_delay_secs=600)

    def run(tracker: Tracker, messages: DataFrame) -> None:
        pipeline(tmp_path, tracker, messages.select("_share", "_roots", "id"))

    def fails_all(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.flat_map(messages, partial(failing, {1, 2}), "id bigint, child int")
        tracker.write(items, partial(append, tmp_path / "out"))

    give(tmp_path, pa.table({"message_id": [1, 2], "id": [1, 2]}))
    with handler_of(acker, tmp_path, fails_all, ids="message_id", retry=slow) as handler:
        handler._settings = replace(handler._settings, once=None)  # noqa: SLF001
        start(spark, tmp_path, handler, "message_id bigint, id bigint", availableNow=True).awaitTermination()
        assert handler.drain(0).parked
    give(tmp_path, pa.table({"place": ["a"], "at": [0], "id": [3]}))
    ids, schema = MessageIds.offsets("place", "at"), "place string, at bigint, id bigint"
    with (
        handler_of(acker, tmp_path, run, ids=ids, retry=slow, once=Once(str(tmp_path / "log"))) as handler,
        pytest.raises(
            StreamingQueryException, match=r"2 parked messages have no columns 'place' and 'at'.*without once="
        ),
    ):
        start(spark, tmp_path, handler, schema, availableNow=True).awaitTermination()


def test_lost_checkpoint_doubles_nothing(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, *(range(at, at + 20) for at in (0, 20)))
    run_through(spark, tmp_path, handler_of(acker, tmp_path))
    for folder in ("checkpoint", "parked"):
        shutil.rmtree(tmp_path / folder)
    give(tmp_path, range(40, 60))
    run_through(spark, tmp_path, handler_of(acker, tmp_path))
    check_exact(tmp_path, set(range(60)) - BAD)
    assert sorted(letter.message_id for letter in acker.dead_letters.read()) == sorted(BAD)


def failing_until_repaired(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    repaired = (folder / "repaired").exists()
    kept = tracker.fail_where(messages, "id = 7" if repaired else "id IN (7, 8, 9)", "bad")
    tracker.write(kept, partial(append, folder / "out"))


ONCE_TRIED: dict[str, Any] = {"retry": RetryPolicy(max_attempts=1, first_delay_secs=0), "dead_letter_bytes": 1000}


def letters_of(acker: Acker) -> list[int]:
    return sorted(letter.message_id for letter in acker.dead_letters.read())


def log_in(folder: Path) -> PublishLog:
    log = PublishLog(LocalLogFolder(folder))
    log.read()
    return log


def make_letters(spark: Any, acker: Acker, folder: Path, run: Any) -> None:
    """Let messages 7, 8 and 9 be dead letters, repair the cause for 8 and 9, and ask for replays."""
    give(folder, range(20))
    run_through(spark, folder, handler_of(acker, folder, run, **ONCE_TRIED))
    assert letters_of(acker) == [7, 8, 9]
    (folder / "repaired").touch()
    assert acker.dead_letters.replay() == 3
    give(folder, range(20, 30))


def check_replayed(acker: Acker, folder: Path) -> None:
    """Each message has its rows once, or a letter, and nothing is left to do."""
    assert written(folder) == sorted({*range(30)} - {7})
    assert (letters_of(acker), acker.dead_letters.replaying()) == ([7], 0)
    state = log_in(folder / "log" / "clicks").state
    assert (set(state.dead[""]), state.is_settled) == ({7}, True)


def test_replayed_letters_are_written_once(spark: Any, acker: Acker, tmp_path: Path) -> None:
    run = partial(failing_until_repaired, tmp_path)
    make_letters(spark, acker, tmp_path, run)
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, **ONCE_TRIED))
    check_replayed(acker, tmp_path)


@pytest.mark.parametrize(
    "point",
    ["loaded", "reopened", "staged", "accepted", "one file moved", "published", "dead", "stored", "done", "forgotten"],
)
def test_replay_that_ended_anywhere_goes_on(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    run = partial(failing_until_repaired, tmp_path)
    make_letters(spark, acker, tmp_path, run)
    with (
        monkeypatch.context() as patch,
        handler_of(acker, tmp_path, run, **ONCE_TRIED) as handler,
        pytest.raises((AckerError, StreamingQueryException), match="Killed"),
    ):
        end_replay_at(point, patch)
        start(spark, tmp_path, handler, availableNow=True).awaitTermination()
        handler.drain(180)
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, **ONCE_TRIED))
    check_replayed(acker, tmp_path)


def test_reopened_message_whose_letter_the_server_lost_gets_it_again(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    """Nothing else brings it back."""
    run = partial(failing_until_repaired, tmp_path)
    make_letters(spark, acker, tmp_path, run)
    with (
        monkeypatch.context() as patch,
        handler_of(acker, tmp_path, run, **ONCE_TRIED) as handler,
        pytest.raises((AckerError, StreamingQueryException), match="Killed"),
    ):
        end_replay_at("reopened", patch)
        start(spark, tmp_path, handler, availableNow=True).awaitTermination()
        handler.drain(180)
    app = acker.config.app
    raw.delete(keys.dead_letters(app), keys.letter_logs(app), keys.replays(app, 0))
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, **ONCE_TRIED))
    assert letters_of(acker) == [7, 8, 9]
    assert acker.dead_letters.replay() == 3
    give(tmp_path, range(30, 30))
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, **ONCE_TRIED))
    check_replayed(acker, tmp_path)


def test_letters_stay_when_a_stream_ends_with_an_error(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated micro-batch gives no other letters, because the log has done its messages."""

    def fail(*args: Any, **options: Any) -> None:
        raise Killed("Killed")

    give(tmp_path, range(10), range(10, 20))
    run = partial(failing_until_repaired, tmp_path)
    with (
        monkeypatch.context() as patch,
        handler_of(acker, tmp_path, run, **ONCE_TRIED) as handler,
        pytest.raises(StreamingQueryException, match="Killed"),
    ):
        patch.setattr(SnapshotWriter, "try_to_save", fail)
        start(spark, tmp_path, handler, availableNow=True).awaitTermination()
    assert letters_of(acker) == [7, 8, 9]
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, **ONCE_TRIED))
    assert letters_of(acker) == [7, 8, 9]
    assert written(tmp_path) == sorted({*range(20)} - {7, 8, 9})


def end_replay_at(point: str, patch: pytest.MonkeyPatch) -> None:
    """Let a driver end at a point of a replay."""

    def end(*args: Any, **options: Any) -> None:
        raise Killed("Killed")

    def end_behind(method: Any) -> Any:
        def call(*args: Any, **options: Any) -> None:
            method(*args, **options)
            end()

        return call

    def claim(*args: Any) -> list[int]:
        claimed = original(*args)
        if not claimed:
            return claimed
        if point == "dead":
            patch.setattr(PublishLog, "bury", end_behind(PublishLog.bury))
        elif point == "stored":
            patch.setattr(PublishLog, "stored", end)
        elif point == "done":
            patch.setattr(DeadLetterReplay, "done", end)
        elif point == "forgotten":
            patch.setattr(DeadLetterReplay, "done", end_behind(DeadLetterReplay.done))
        else:
            end_at(point, patch)
        return claimed

    original = DeadLetterReplay.claim
    if point == "loaded":
        patch.setattr(PublishLog, "reopen", end)
    elif point == "reopened":
        patch.setattr(PublishLog, "reopen", end_behind(PublishLog.reopen))
    else:
        patch.setattr(DeadLetterReplay, "claim", claim)


def test_replayed_letter_has_the_place_of_its_message(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Its micro-batch is gone, so only the letter knows it."""
    ids, once = MessageIds.offsets("place", "at"), Once(str(tmp_path / "log"))
    options: dict[str, Any] = {"schema": "id bigint, place string, at bigint"}

    def run(tracker: Tracker, messages: DataFrame) -> None:
        failing_until_repaired(tmp_path, tracker, messages.drop("place", "at", "message_id"))

    def handler() -> TrackedBatches:
        return handler_of(acker, tmp_path, run, ids=ids, once=once, **ONCE_TRIED)

    def give_places(numbers: range) -> None:
        places = {"place": [f"p{one % 2}" for one in numbers], "at": [one // 2 for one in numbers]}
        give(tmp_path, pa.table({"id": [*numbers], **places}))

    give_places(range(20))
    run_through(spark, tmp_path, handler(), **options)
    (tmp_path / "repaired").touch()
    assert acker.dead_letters.replay() == 3
    give_places(range(20, 30))
    run_through(spark, tmp_path, handler(), **options)
    assert written(tmp_path) == sorted({*range(30)} - {7})
    assert acker.dead_letters.replaying() == 0
    assert len(acker.dead_letters.read()) == 1
    state = log_in(tmp_path / "log").state
    assert {name: set(dead) for name, dead in state.dead.items() if dead} == {"p1": {3}}
    assert {name: ranges.tolist() for name, ranges in state.accepted.ranges().items()} == {
        "p0": [[0, 14]],
        "p1": [[0, 2], [4, 14]],
    }


def test_letter_that_the_log_has_not_decided_stays(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is of a time without a log, or of another log, so the same name may be that of another message."""
    run = partial(failing_until_repaired, tmp_path)
    make_letters(spark, acker, tmp_path, run)
    acker.dead_letters.add([DeadLetter(70, "run", 1, "failed", payload=b'{"id":70}', replay="payload")])
    assert acker.dead_letters.replay() == 4
    once = Once(str(tmp_path / "log"), "others", ids_never_repeat=True)
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, once=once, **ONCE_TRIED))
    assert "hasn't decided them; they stay count=4" in caplog.text
    assert (letters_of(acker), acker.dead_letters.replaying()) == ([7, 8, 9, 70], 0)
    assert not {7, 8, 9, 70} & {*written(tmp_path)}


def test_ids_of_a_column_need_a_promise(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """A parked 7 of batch 3 and a fresh 7 of batch 5 would be one message, and the second one never written."""
    for once in (Once(str(tmp_path / "log")), Once(str(tmp_path / "log"), "clicks")):
        with pytest.raises(BadConfigError, match=r"MessageIds\.offsets.* ids_never_repeat=True"):
            handler_of(acker, tmp_path, once=once)
    assert not any(tmp_path.iterdir())
    give(tmp_path, range(10))
    once = Once(str(tmp_path / "log"), ids_never_repeat=True)
    with pytest.raises(BadConfigError, match=r"for runs.*dead_letters\.replay"):
        handler_of(acker, tmp_path, once=replace(once, reopen_dead=True))
    run_through(spark, tmp_path, handler_of(acker, tmp_path, once=once))
    check_exact(tmp_path, set(range(10)) - BAD)


def test_offsets_name_messages(spark: Any, acker: Acker, tmp_path: Path) -> None:
    parts = [
        pa.table({"id": ids, "place": ["a", "b"] * 10, "at": [one // 2 for one in ids]})
        for ids in (list(range(at, at + 20)) for at in (0, 20, 40))
    ]
    give(tmp_path, *parts)
    options: dict[str, Any] = {"schema": "id bigint, place string, at bigint"}
    ids = MessageIds.offsets("place", "at")

    def run(tracker: Tracker, messages: DataFrame) -> None:
        pipeline(tmp_path, tracker, messages.drop("place", "at", "message_id"))

    once = Once(str(tmp_path / "log"))
    run_through(spark, tmp_path, handler_of(acker, tmp_path, run, ids=ids, once=once), **options)
    check_exact(tmp_path, set(range(60)) - BAD)
    log = PublishLog(LocalLogFolder(tmp_path / "log"))
    log.read()
    accepted = {name: ranges.tolist() for name, ranges in log.state.accepted.ranges().items()}
    assert accepted == {"a": [[0, 29]], "b": [[0, 2], [4, 22], [24, 29]]}
    assert {name: set(dead) for name, dead in log.state.dead.items()} == {"b": {3, 23}}
