"""Offsets of a stream's group without a broker: letters that aren't safe, replays, restarts, outages, looks at topics."""

import json
import logging
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from acker_redis import BadConfigError, DeadLetter
from acker_redis.errors import OutageError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent
from acker_redis.kafka.topics import Topic
from acker_redis.spark.emission.messages import Places
from acker_redis.spark.runs.options import GroupSettings
from acker_redis.spark.streaming import group_offsets
from acker_redis.spark.streaming.completed_offsets import CompletedOffsets
from acker_redis.spark.streaming.group_offsets import GroupOffsets
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingOutageError
from acker_redis.spark.streaming.query import TrackedQuery
from acker_redis.spout.spout import Spout
from acker_redis.store import kafka_letters
from acker_redis.store.kafka_progress import KafkaProgress, Unsafe
from acker_redis.testing import fake_acker

AT = "orders/0"


class Brokers:
    """Topics, first offsets and commits, as brokers would say.

    Attributes:
        outage: error of questions; None: they are answered.
        earliest: first offset of the partition.
        asked: open questions about topics, which the test answers.
        committed: offsets and runs that were committed last.
    """

    kafka: Mapping[str, object] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.outage: Exception | None = None
        self.earliest = 0
        self.asked: list[Future[Topic]] = []
        self.committed: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        self.problem = None
        self.is_fast = True

    def describe(self, names: Iterable[str], **limits: float) -> dict[str, Topic]:
        if self.outage is not None:
            raise self.outage
        return {name: Topic("id-1", 1) for name in names}

    def ask(self, names: Iterable[str]) -> dict[str, Future[Topic]]:
        asked = {name: Future[Topic]() for name in names}
        self.asked += asked.values()
        for future in asked.values() if self.is_fast else ():
            future.set_result(Topic("id-1", 1))
        return asked

    def answers(self, asked: Mapping[str, Future[Topic]]) -> dict[str, Topic]:
        return {name: future.result(0) for name, future in asked.items()}

    def read_earliest(self, partitions: Iterable[tuple[str, int]], **limits: float) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, self.earliest)

    def commit(self, partitions: Iterable[Owned]) -> None:
        self.committed = {str(owned): (owned.progress.until(), owned.progress.runs()) for owned in partitions}

    def close(self) -> None:
        pass


class Stream:
    """A stream of one partition. Message ids are its offsets and 1000.

    Attributes:
        is_copied: whether the server's copy has all letters.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.acker, self.brokers = folder, fake_acker(), Brokers()
        self.is_copied = True
        self.offsets = CompletedOffsets({})
        for name in ("Topics", "LogEnds", "GroupCommits"):
            monkeypatch.setattr(group_offsets, name, lambda *arguments: self.brokers)
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        look = KafkaProgress.look_at_letters

        def look_at_letters(progress: KafkaProgress, entry_ids: list[str]) -> Unsafe:
            return look(progress, entry_ids)._replace(is_copied=self.is_copied)

        monkeypatch.setattr(KafkaProgress, "look_at_letters", look_at_letters)
        monkeypatch.setattr(kafka_letters, "_SECURE_SECS", 0.0)
        self.start(0)

    def start(self, before: int, *opened: int) -> None:
        """Start at a micro-batch, with messages of earlier ones that are open."""
        self.store = ParkingLocation(str(self.folder / "parked"), "app")
        self.store.claim("query", str(self.folder / "checkpoint"), before)
        spout = Spout(self.acker, uuid.uuid4().hex, 0)
        self.group = GroupOffsets(GroupSettings("billing", {}), self.acker, self.store, spout)
        self.add(range(0), opened)
        self.group.resume(before, self.offsets.open.values())

    def add(self, read: range, opened: Iterable[int] = ()) -> None:
        offsets = np.array([*read, *opened], np.int64)
        self.offsets.add(offsets + 1000, [AT], np.zeros(len(offsets), np.int64), offsets)
        if not len(read):
            self.offsets.update(offsets + 1000)

    def read(self, batch_id: int, begin: int, end: int, *missing: int) -> list[DeadLetter] | None:
        """A micro-batch. Returns letters of lost records."""
        for number, offset in [(batch_id - 1, begin), (batch_id, end)]:
            place = self.folder / "checkpoint" / "offsets" / str(number)
            place.write_text("v1\n{}\n" + json.dumps({"orders": {"0": offset}}))
        self.add(range(begin, end))
        there = np.array([offset for offset in range(begin, end) if offset not in missing], np.int64)
        return self.group.try_to_check(batch_id, Places([AT], np.zeros(len(there), np.int64), there))

    def bury(self, offset: int, detail: str = "bad", **fields: Any) -> DeadLetter:
        """Write the letter of a message, as a spout does."""
        place = self.group.place_of(AT, offset) if self.offsets.places_of([offset + 1000]) else None
        letter = DeadLetter(offset + 1000, "run", 1, "failed", detail=detail, place=place, **fields)
        (entry_id,) = self.acker.dead_letters.add([letter])
        letter = letter._replace(entry_id=entry_id)
        self.group.wait_for([letter], self.offsets.places_of([offset + 1000]))
        self.group.done(np.array([offset + 1000]))
        return letter

    def save(self, *opened: int) -> tuple[int, list[tuple[int, int]]]:
        """Save and commit. Returns what was committed."""
        self.offsets.update(np.array(opened, np.int64) + 1000)
        self.group.keep_letters()
        self.group.commit(self.offsets)
        return self.brokers.committed[AT]

    def details(self) -> list[str | None]:
        return [letter.detail for letter in self.acker.dead_letters.read(100)]


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    return Stream(tmp_path, monkeypatch)


def test_letter_that_a_replay_acks_before_it_is_safe_is_not_written_again(stream: Stream) -> None:
    stream.is_copied = False
    stream.read(1, 0, 10)
    letter = stream.bury(4)
    assert stream.save() == (4, [(5, 10)])
    stream.acker.dead_letters.delete([letter.entry_id])  # the replay is done
    stream.group.done(np.array([1004]))
    assert stream.save() == (10, [])
    assert stream.details() == []


def test_letter_of_a_failed_replay_takes_the_place_of_the_one_before(stream: Stream) -> None:
    stream.is_copied = False
    stream.read(1, 0, 10)
    first = stream.bury(4, "first")
    stream.save()
    stream.bury(4, "second")
    stream.acker.dead_letters.delete([first.entry_id])
    assert stream.save() == (4, [(5, 10)])
    stream.is_copied = True
    assert stream.save() == (10, [])
    assert stream.details() == ["second"]


def test_done_records_hold_no_letter_of_another_record_back(stream: Stream) -> None:
    stream.is_copied = False
    stream.read(1, 0, 10)
    stream.bury(4)
    stream.group.done(np.array([1000, 1001, 1009]))
    assert stream.save() == (4, [(5, 10)])


@pytest.mark.parametrize("is_lost", [False, True])
def test_next_start_waits_for_letters_that_are_not_safe(stream: Stream, *, is_lost: bool) -> None:
    """Their records are done, so nothing else would notice that a failover has lost them."""
    stream.is_copied = False
    stream.read(1, 0, 10)
    letter = stream.bury(4, payload=b"\x00\xff", replay="payload")
    assert stream.save() == (4, [(5, 10)])
    if is_lost:
        stream.acker.dead_letters.delete([letter.entry_id])
    for _ in range(2):
        stream.start(2)
        assert stream.save() == (4, [(5, 10)])
        (found,) = stream.acker.dead_letters.read(10)
        assert found._replace(entry_id=letter.entry_id) == letter
    stream.is_copied = True
    assert stream.save() == (10, [])
    stream.acker.dead_letters.delete([found.entry_id])  # by hand, once it was safe
    stream.start(2)
    assert stream.save() == (10, [])
    assert stream.details() == []


def test_letters_of_records_that_are_processed_again_do_not_wait(stream: Stream) -> None:
    """One is parked in the snapshot, and one is of a micro-batch that Spark runs again. Their letters were deleted."""
    stream.is_copied = False
    stream.read(1, 0, 10)
    stream.save(4)
    stream.read(2, 10, 20)
    stream.bury(4)
    stream.bury(12)
    stream.group.keep_letters()
    stream.acker.dead_letters.delete([letter.entry_id for letter in stream.acker.dead_letters.read(10)])
    stream.start(2, 4)
    assert stream.save(4) == (4, [(5, 10)])
    stream.read(2, 10, 20)
    assert stream.save(4, 12) == (4, [(5, 12), (13, 20)])
    assert stream.save() == (20, [])
    assert stream.details() == []


def test_letters_wait_for_the_next_micro_batch_if_the_ranges_are_unreadable(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.is_copied = False
    stream.read(1, 0, 10)
    stream.bury(4)
    stream.save()
    with monkeypatch.context() as away:
        away.setattr(group_offsets, "read_ends", Mock(side_effect=OSError("away")))
        stream.start(2)
    stream.group.keep_letters()
    stream.read(2, 10, 20)
    assert stream.save() == (4, [(5, 20)])


@pytest.mark.parametrize("damaged", ["", "{", "7", '[{"letter": {}}]', '[{"letter": {"what": 1}, "topic": "t"}]'])
def test_damaged_letters_end_the_start(stream: Stream, damaged: str) -> None:
    path = stream.folder / "parked" / "kafka_letters.json"
    path.write_text(damaged)
    with pytest.raises(BadConfigError, match=r"damaged kafka_letters\.json .* Restore the file"):
        stream.start(0)
    path.unlink()
    path.mkdir()
    with pytest.raises(ParkingOutageError):
        stream.start(0)


def test_nothing_is_kept_while_letters_are_safe_at_once(stream: Stream) -> None:
    stream.read(1, 0, 10)
    stream.bury(4)
    assert stream.save() == (10, [])
    assert not (stream.folder / "parked" / "kafka_letters.json").exists()


def test_micro_batch_waits_for_brokers_that_are_away(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream.brokers.outage, stream.brokers.earliest = OutageError("Kafka doesn't answer"), 3
    query, steps = TrackedQuery.__new__(TrackedQuery), 0
    query._writer = Mock()

    def step(**options: bool) -> None:
        nonlocal steps
        steps += 1
        assert options == {"may_emit": False}
        if steps == 3:
            stream.brokers.outage = None

    monkeypatch.setattr(query, "_step", step)
    assert stream.read(1, 0, 10, *range(3)) is None
    with caplog.at_level(logging.WARNING, "acker_redis.spark"):
        there = np.arange(3, 10)
        query._check_ranges(stream.group, 1, Places([AT], np.zeros(7, np.int64), there))
    assert steps == 3
    ((letters,), _) = query._writer.note_letters.call_args
    assert (
        [letter.detail for letter in letters]
        == ["Records 0 to 2 of orders/0 were deleted before they were read."]
        == stream.details()
    )
    assert any("brokers are back" in record.message for record in caplog.records)


def test_outage_of_the_brokers_ends_the_query_at_last(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.brokers.outage = OutageError("Kafka doesn't answer")
    assert stream.read(1, 0, 10) is None
    assert stream.read(1, 0, 10) is None
    monkeypatch.setattr(group_offsets, "_OUTAGE_SECS", 0.0)
    with pytest.raises(OutageError, match="Kafka doesn't answer"):
        stream.read(1, 0, 10)


@pytest.mark.parametrize(
    ("earliest", "missing", "detail"),
    [
        (3, (0, 1, 2), "Records 0 to 2 of orders/0 were deleted before they were read."),
        (20, range(20), "Records 0 to 19 of orders/0 were deleted before they were read."),
        (3, (0, 1, 2, 7), "Records 0 to 2 of orders/0 were deleted before they were read. MAYBE"),
        (20, (19,), "Records 19 to 19 of orders/0 were deleted before they were read. MAYBE"),
        (
            10,
            (0, 1, 5),
            "Records 0 to 5 of orders/0 were deleted before they were read. 3 of these offsets were not read. MAYBE",
        ),
        (20, (), None),
        (0, (5,), None),
    ],
)
def test_letter_of_lost_records_says_if_they_may_have_been_read(
    stream: Stream, earliest: int, missing: Iterable[int], detail: str | None
) -> None:
    """The query drops records, the end of a transaction takes an offset, and retention deletes while a batch is read."""
    stream.brokers.earliest = earliest
    maybe = "The stream's own query may have read and dropped some of them, or the log had no records there."
    letters = stream.read(1, 0, 20, *missing)
    assert letters is not None
    assert [letter.detail for letter in letters] == ([] if detail is None else [detail.replace("MAYBE", maybe)])
    assert stream.save() == (20, [])


def test_look_at_topics_holds_up_one_save_at_most(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch waits for the lock that a save holds."""
    stream.read(1, 0, 10)
    stream.start(2)
    stream.brokers.is_fast, stream.brokers.asked, stream.brokers.outage = False, [], AssertionError("it waits")
    monkeypatch.setattr(group_offsets, "_VERIFY_SECS", 0.0)
    waits: list[float] = []

    def wait_shortly(asked: Iterable[Future[Topic]], timeout: float) -> Any:
        waits.append(timeout)
        return wait(asked, 0)

    monkeypatch.setattr(group_offsets, "wait", wait_shortly)
    for _ in range(3):
        stream.group.commit(stream.offsets)
    (question,) = stream.brokers.asked
    assert (waits, stream.brokers.committed) == ([5.0, 0, 0], {})
    error = confluent().KafkaError
    question.set_exception(confluent().KafkaException(error(error._TIMED_OUT)))
    stream.group.commit(stream.offsets)
    stream.brokers.is_fast, stream.brokers.asked = True, []
    assert stream.save() == (10, [])


def test_ids_of_topics_that_could_not_be_kept_hold_commits_up_until_a_later_look(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without new records has no micro-batch that would look."""
    monkeypatch.setattr(group_offsets, "_VERIFY_SECS", 0.0)
    stream.read(1, 0, 10)
    (stream.folder / "parked" / "kafka_topics.json").unlink()
    stream.start(2)
    with monkeypatch.context() as full:
        full.setattr(stream.store, "keep_topic_ids", Mock(side_effect=ParkingOutageError("The disk is full.")))
        stream.group.commit(stream.offsets)
        assert stream.brokers.committed == {}
    assert stream.save() == (10, [])
    assert ParkingLocation(str(stream.folder / "parked"), "app").topic_ids() == {"orders": "id-1"}


def test_letter_of_an_earlier_start_that_a_replay_acks_is_not_written_again(stream: Stream) -> None:
    stream.is_copied = False
    stream.read(1, 0, 10)
    letter = stream.bury(4)
    stream.save()
    stream.start(2)
    assert stream.save() == (4, [(5, 10)])
    stream.acker.dead_letters.delete([letter.entry_id])
    stream.group.done(np.array([1004]))
    assert stream.save() == (10, [])
    stream.start(2)
    assert stream.save() == (10, [])
    assert stream.details() == []
