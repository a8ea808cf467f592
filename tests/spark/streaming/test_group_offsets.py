"""Commits of a stream's offsets, on a real broker and without Spark: random batches, outcomes and faults, with an oracle."""

import json
import random
import re
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from acker_redis import Acker, AckerError, BadConfigError, DeadLetter
from acker_redis.errors import StoppedError
from acker_redis.kafka.commit_metadata import decode
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.spark.emission.messages import Places
from acker_redis.spark.runs.options import GroupSettings
from acker_redis.spark.streaming.completed_offsets import CompletedOffsets
from acker_redis.spark.streaming.group_offsets import GroupOffsets
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation
from acker_redis.spark.streaming.query import TrackedQuery
from acker_redis.spark.streaming.query_states import QueryState, QueryStates
from acker_redis.spout.spout import Spout
from acker_redis.store.kafka_progress import KafkaProgress, Unsafe
from acker_redis.testing import fake_acker, wait_until
from tests.support.kafka import Broker

pytestmark = pytest.mark.server

PARTITIONS, RECORDS = 3, 200


class Stream:
    """A stream whose micro-batches are played. A snapshot has the open messages of the last batch that was saved.

    Attributes:
        acked: messages that were acked.
        safe: entry ids of letters that the server has copied.
        slowness: chance that the server has not copied the letters when it is asked.
    """

    def __init__(self, node: Broker, folder: Path, luck: random.Random) -> None:
        self.node, self.folder, self.luck = node, folder, luck
        self.topic, self.group = node.topic(partitions=PARTITIONS), f"group-{uuid.uuid4().hex[:8]}"
        self.acker: Acker = fake_acker()
        self.acked: set[int] = set()
        self.safe: set[str] = set()
        self.slowness = 0.0
        self.ends: list[dict[int, int]] = []
        self.snapshots: list[dict[int, tuple[str, int]]] = []
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        self.start(0)

    def start(self, before: int) -> None:
        """A start of the query that resumes at a batch."""
        settings = {"bootstrap.servers": self.node.address, "log_level": 0}
        store = ParkingLocation(str(self.folder / "parked"), "app")
        store.claim("query", str(self.folder / "checkpoint"), before)
        spout = Spout(self.acker, uuid.uuid4().hex, 0)
        client = GroupSettings(self.group, consumer_settings(settings, self.group))
        self.offsets = CompletedOffsets({})
        self.open = dict(self.snapshots[before - 1]) if before else {}
        self.offsets.add(*self.arrays(self.open))
        self.offsets.update(np.array(list(self.open), np.int64))
        self.committer = GroupOffsets(client, self.acker, store, spout)
        self.committer._progress.look_at_letters = self.look_at_letters  # type: ignore[method-assign]
        self.committer.resume(before, self.offsets.open.values())

    def look_at_letters(self, entry_ids: Sequence[str]) -> Unsafe:
        """What the server says of letters, and whether it has copied them."""
        found = KafkaProgress.look_at_letters(self.committer._progress, entry_ids)
        found = found._replace(is_copied=self.luck.random() >= self.slowness)
        self.safe |= (set(entry_ids) - set(found.missing)) if found.is_copied else set()
        return found

    def fail_over(self) -> None:
        """The server is replaced by its copy, which lacks the other letters."""
        lost = [letter.entry_id for letter in self.acker.dead_letters.read(10_000) if letter.entry_id not in self.safe]
        if lost:
            self.acker.dead_letters.delete(lost)

    def arrays(self, messages: dict[int, tuple[str, int]]) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
        names = [f"{self.topic}/{number}" for number in range(PARTITIONS)]
        of_message = [names.index(name) for name, _ in messages.values()]
        offsets = [offset for _, offset in messages.values()]
        return np.array(list(messages), np.int64), names, np.array(of_message, np.int64), np.array(offsets, np.int64)

    def run_batch(self, batch_id: int) -> None:
        """Read a range of each partition. Spark plans it once, and reads the same again after a crash."""
        before = self.ends[batch_id - 1] if batch_id else dict.fromkeys(range(PARTITIONS), 0)
        if batch_id == len(self.ends):
            ends = {number: min(RECORDS, begin + self.luck.randrange(30)) for number, begin in before.items()}
            self.ends.append(ends)
            planned = json.dumps({self.topic: {str(number): end for number, end in ends.items()}})
            (self.folder / "checkpoint" / "offsets" / str(batch_id)).write_text("v1\n{}\n" + planned)
        ends = self.ends[batch_id]
        read = {
            number * 1000 + offset: (f"{self.topic}/{number}", offset)
            for number, begin in before.items()
            for offset in range(begin, ends[number])
        }
        ids, names, of_message, offsets = self.arrays(read)
        self.offsets.add(ids, names, of_message, offsets)
        self.check_ranges(batch_id, Places(names, of_message, offsets))
        self.open |= read
        self.settle(0.8)
        self.save(batch_id)

    def check_ranges(self, batch_id: int, places: Places) -> None:
        """No record is gone. A busy broker may answer to a later question."""
        letters: list[list[DeadLetter]] = []

        def is_answered() -> bool:
            found = self.committer.try_to_check(batch_id, places)
            letters.extend([] if found is None else [found])
            return found is not None

        wait_until(is_answered, "the broker answers")
        assert letters == [[]]

    def settle(self, share: float) -> None:
        """Some messages are acked, and some become dead letters."""
        ended = [message for message in self.open if self.luck.random() < share]
        letters = [DeadLetter(message, "run", 1, "failed") for message in ended if self.luck.random() < 0.1]
        entry_ids = self.acker.dead_letters.add(letters) if letters else []
        written = [letter._replace(entry_id=entry) for letter, entry in zip(letters, entry_ids, strict=True)]
        self.committer.wait_for(written, self.offsets.places_of([letter.message_id for letter in letters]))
        self.acked |= set(ended) - {letter.message_id for letter in letters}
        for message in ended:
            del self.open[message]
        self.offsets.update(np.array(list(self.open), np.int64))

    def save(self, batch_id: int) -> None:
        self.committer.keep_letters()
        self.snapshots[batch_id:] = [dict(self.open)]

        def is_committed() -> bool:  # a busy broker may answer to a later try
            self.committer.commit(self.offsets)
            has_looked = bool(self.committer._seen) or self.committer._verify_at == float("inf")
            return has_looked and self.committer.problem is None

        wait_until(is_committed, "the offsets are committed", timeout_secs=60)

    def check(self) -> None:
        """What is committed was acked before, or is a letter that a failover doesn't lose."""
        letters = self.acker.dead_letters.read(10_000)
        ended = self.acked | {letter.message_id for letter in letters if letter.entry_id in self.safe}
        done = {divmod(message, 1000) for message in ended}
        for number, at in self.node.committed(self.group, self.topic).items():
            text = decode(at.metadata, at.offset)
            assert text is not None
            for begin, end in [(0, at.offset), *text.runs]:
                missing = {(number, offset) for offset in range(begin, end)} - done
                assert not missing, f"committed {at.offset} {text.runs}: {missing}"

    def is_read(self) -> bool:
        return bool(self.ends) and all(end == RECORDS for end in self.ends[-1].values())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 8))])
def test_no_offset_is_committed_before_its_records_are_done(
    node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    luck = random.Random(seed)
    stream = Stream(node, tmp_path, luck)
    node.produce(stream.topic, [{"value": "x", "partition": n % PARTITIONS} for n in range(PARTITIONS * RECORDS)])
    monkeypatch.setattr("acker_redis.store.kafka_letters._SECURE_SECS", 0.0)
    stream.slowness, committed = 0.7, -1
    while not stream.is_read() or committed < len(stream.ends) - 1:
        stream.run_batch(committed + 1)
        stream.check()
        if luck.random() < 0.2:
            stream.fail_over()
        if luck.random() < 0.2:  # it dies before Spark's commit
            stream.start(committed + 1)
            continue
        committed += 1
        if luck.random() < 0.5:  # between two batches
            stream.settle(0.3)
            stream.save(committed)
            stream.check()
        if luck.random() < 0.2:
            stream.start(committed + 1)
            stream.save(committed)
            stream.check()
    stream.settle(1)
    stream.slowness = 0.0
    stream.save(committed)
    stream.save(committed)  # letters that were lost are written again first
    stream.check()
    assert {number: at.offset for number, at in node.committed(stream.group, stream.topic).items()} == dict.fromkeys(
        range(PARTITIONS), RECORDS
    )


def test_offset_waits_while_its_letter_is_not_safe(
    node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(node, tmp_path, random.Random(1))
    node.produce(stream.topic, [{"value": "x", "partition": 0}] * RECORDS)
    stream.run_batch(0)
    (message, place) = next((message, place) for message, place in stream.open.items())
    number, offset = divmod(message, 1000)
    (entry_id,) = stream.acker.dead_letters.add([DeadLetter(message, "run", 1, "failed")])
    is_copied = False
    monkeypatch.setattr(stream.committer._progress, "look_at_letters", lambda entry_ids: (is_copied, []), raising=True)
    monkeypatch.setattr("acker_redis.store.kafka_letters._SECURE_SECS", 0.0)
    stream.committer.wait_for([DeadLetter(message, "run", 1, "failed")._replace(entry_id=entry_id)], {message: place})
    stream.open.clear()
    stream.offsets.update(np.array([], np.int64))
    stream.save(0)
    assert node.committed(stream.group, stream.topic)[number].offset == offset
    is_copied = True
    stream.save(0)
    assert node.committed(stream.group, stream.topic)[number].offset == stream.ends[0][number]


@pytest.mark.parametrize(
    ("error", "has_ended"),
    [(None, True), (StoppedError("stopped within a micro-batch"), True), (AckerError("x"), False)],
)
def test_only_a_fault_leaves_partitions_without_a_driver(error: Exception | None, has_ended: bool) -> None:
    """A busy query is nearly always stopped within a micro-batch, which nobody on call should hear of."""
    query = TrackedQuery.__new__(TrackedQuery)
    query._states, query._publish, query._group = QueryStates(), Mock(), Mock()
    query.status, query.error = Mock(), error  # type: ignore[method-assign]
    query._states.move_to(QueryState.ENDED)
    query._publish_status()
    query._group.publish.assert_called_once_with(has_ended=has_ended)


def test_letters_of_replays_reach_the_group_without_a_place() -> None:
    """Only their message ids say which letters they replace. Letters that are the message's first have a place."""
    query = TrackedQuery.__new__(TrackedQuery)
    query._writer, query._group, query._messages = Mock(), Mock(), Mock(done=lambda ids: [])
    query._spout, query._options = Mock(replaying=[7]), Mock(on_messages_done=None)
    query._offsets = CompletedOffsets({})
    query._offsets.add(np.array([7, 8]), ["t/0"], np.array([0, 0]), np.array([3, 4]))
    replayed, fresh = DeadLetter(7, "run", 2, "failed"), DeadLetter(8, "run", 1, "failed")
    query._on_letters([replayed, fresh])
    query._writer.note_letters.assert_called_once_with([fresh])
    query._group.wait_for.assert_called_once_with([replayed, fresh], {8: ("t/0", 4)})
    ids = np.array([7, 8])
    query._on_done(ids)
    query._group.done.assert_called_once_with(ids)


KINDS = {"string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType()}


class Frame:
    """A micro-batch, as far as its columns are looked at."""

    def __init__(self, columns: str) -> None:
        pairs = [column.split() for column in columns.split(", ")]
        self.schema = StructType([StructField(name, KINDS[kind]) for name, kind in pairs])
        self.columns = self.schema.names


KAFKA = "topic string, partition int, offset bigint, value binary"


@pytest.mark.parametrize(
    ("columns", "ids", "error"),
    [
        (KAFKA, ("file", "row"), None),
        (KAFKA, ("partition", "offset"), None),
        (
            "topic string, partition string, offset bigint",
            ("file", "row"),
            "needs the columns topic, partition and offset",
        ),
        ("value binary", ("file", "row"), "needs the columns topic, partition and offset"),
        (f"{KAFKA}, file string, row bigint", ("file", "row"), "made of ('file', 'row')"),
        (f"{KAFKA}, place string", ("place", "offset"), "made of ('place', 'offset')"),
    ],
)
def test_ids_have_to_be_made_of_the_columns_of_kafka(
    node: Broker, tmp_path: Path, columns: str, ids: tuple[str, str], error: str | None
) -> None:
    stream = Stream(node, tmp_path, random.Random(1))
    with nullcontext() if error is None else pytest.raises(BadConfigError, match=re.escape(error)):
        stream.committer.check_columns(Frame(columns), *ids)  # type: ignore[arg-type]


def test_topic_that_was_recreated_is_noticed_by_the_next_start(node: Broker, tmp_path: Path) -> None:
    stream = Stream(node, tmp_path, random.Random(1))
    node.produce(stream.topic, [{"value": "x", "partition": n % PARTITIONS} for n in range(PARTITIONS * RECORDS)])
    stream.run_batch(0)
    admin = node.admin()  # what it was asked ends with it
    admin.delete_topics([stream.topic])[stream.topic].result(60)
    wait_until(lambda: stream.topic not in admin.list_topics(timeout=60).topics, "it is gone", timeout_secs=60)
    node.topic(stream.topic, partitions=PARTITIONS)
    wait_until(lambda: node.committed(stream.group, stream.topic) == {}, "its commits went with it", timeout_secs=60)
    stream.start(1)
    stream.save(0)
    assert node.committed(stream.group, stream.topic) == {}
    with pytest.raises(AckerError, match=rf"Topic '{stream.topic}' was deleted and created again .* new checkpoint"):
        stream.run_batch(1)
