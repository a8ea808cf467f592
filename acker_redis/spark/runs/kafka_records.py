"""Records of Kafka that are read and not done: their rows, their letters, and what their partitions may commit."""

import base64
import json
import logging
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import OutageError, ServerUnavailableError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.letter_topic import LetterTopic
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.record_budget import RecordBudget
from acker_redis.kafka.record_ids import RecordIds
from acker_redis.kafka.record_reader import Place, RecordReader
from acker_redis.model.anchors import HEADER as ANCHORS_HEADER
from acker_redis.model.arrays import Int64Array
from acker_redis.outages import Outages
from acker_redis.spark.runs.kafka_imports import BAD_ANCHORS, KafkaImports
from acker_redis.spark.runs.options import KafkaPolicies
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.spout.state import Cause
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_letters import KafkaLetters, check_recreated, letter_of_lost
from acker_redis.store.kafka_progress import GoneTopics, KafkaProgress, numbers_of

log = logging.getLogger("acker_redis.spark")

RECORD = "_acker_record"
"""Column with the message id, which the pipeline doesn't see."""

IDENTITY = ("topic_id", "partition", "offset")
"""Columns that identify a record."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = (
    f"{RECORD} bigint, topic string, topic_id string, partition int, offset bigint, timestamp timestamp, key binary, "
    "value binary, headers array<struct<key: string, value: binary>>"
)

_PUBLISH_SECS = 1.0


class KafkaRecords:
    """Keep the records that are read and not done, and provide them to emissions. A `group_member.Listener`.

    Attributes:
        spout: spout of the run.
        member: member of the group.
        has_ended: whether the run has ended in an orderly way, so that partitions that are withdrawn have no other owner.
    """

    spout: Spout
    member: GroupMember
    has_ended = False

    def __init__(
        self,
        spark: SparkSession,
        policies: KafkaPolicies,
        progress: KafkaProgress,
        reader: RecordReader,
        topic: LetterTopic | None,
        imports: KafkaImports | None = None,
    ) -> None:
        self._imports = imports
        self._skipped: Counter[Owned] = Counter()
        self._spark, self._policies, self._progress = spark, policies, progress
        self._gone: GoneTopics | None = None
        self._outages = Outages(log)
        self._reader = reader
        self._replayed: dict[int, tuple[Owned, Any]] = {}  # records of dead letters, whoever owns the partition
        self._letters: dict[int, DeadLetter] = {}
        self._unsafe = KafkaLetters(
            progress, self._add, log, app=progress.app, group=policies.group, topic=topic, call=self._outages.wait_for
        )
        self._publish_at = float("-inf")
        self._entries: dict[int, tuple[Owned, Any]] = {}
        self._budget = RecordBudget(policies.max_pending_bytes)

    def read(self, room: int, wait_secs: float) -> int:
        """Read records into the spout. Return the number of new messages.

        Args:
            room: number of messages that the spout has room for.
            wait_secs: time to wait if there is no record.
        """
        records = self._without_skipped(self.member.read(min(room, self._budget.room()), wait_secs))
        entries = {entry[0].first_id + entry[1].offset(): entry for entry in records}
        self._budget.remove(self._entries[message_id][1] for message_id in self._entries.keys() & entries.keys())
        self._budget.add(record for _, record in entries.values())
        self._entries |= entries
        fresh = (
            [message_id for message_id in entries if message_id not in self._replayed] if self._replayed else [*entries]
        )
        message_ids = np.array(fresh, np.int64)
        if len(message_ids):
            adopted = self.spout.adopt(message_ids)
            message_ids = message_ids[~np.isin(message_ids, adopted)]
            self.spout.add(message_ids)
        return len(message_ids)

    def _without_skipped(self, records: list[tuple[Owned, Any]]) -> list[tuple[Owned, Any]]:
        """Note the anchors of records. Those that nobody waits for are done."""
        if (imports := self._imports) is None or not records:
            return records
        by_id = {owned.first_id + record.offset(): (owned, record) for owned, record in records}
        anchored = [(message_id, record) for message_id, (_, record) in by_id.items()]
        skipped = self._outages.wait_for(lambda: imports.note(anchored))
        for owned, record in (by_id.pop(message_id) for message_id in skipped):
            owned.progress.done(record.offset())
            self._skipped[owned] += 1
        return list(by_id.values())

    @property
    def skipped(self) -> int:
        """Number of records that were skipped, because nobody waits for them."""
        return 0 if self._imports is None else self._imports.skipped

    def renew(self) -> None:
        """Renew the upstream messages of open records, at intervals."""
        if self._imports is not None:
            self._imports.renew()

    def written(self, letters: list[DeadLetter]) -> None:
        """Note letters that were written. Their offsets wait for `secure`."""
        self._letters |= {letter.message_id: letter for letter in letters}

    def done(self, message_ids: Int64Array) -> None:
        """Note that records were acked or are dead letters."""
        if self._imports is not None:
            self._imports.done(message_ids, self._letters)
        pop, gone = self._entries.pop, []
        for message_id in message_ids.tolist():
            if (entry := pop(message_id, None)) is not None:
                gone.append(entry[1])
            if not (self._letters or self._replayed):
                if entry is not None:
                    entry[0].progress.done(entry[1].offset())
                continue
            letter, replayed = self._letters.pop(message_id, None), self._replayed.pop(message_id, None)
            if (known := entry or replayed) is None:
                continue
            owned, record = known
            if replayed is not None:  # its letter is gone or replaced, and may have held back an offset until now
                waited = self._unsafe.release(self._place_text(owned, record))
                owned = owned if entry is not None or waited is None else waited
            if letter is None:
                owned.progress.done(record.offset())
            else:
                self._unsafe.wait(letter, owned, record.offset(), record)
        self._budget.remove(gone)

    def secure(self) -> None:
        """Let offsets pass dead letters that are safe. Letters that the server has lost are written again."""
        self._unsafe.secure()

    def publish(self) -> None:
        """Write the progress of the partitions to Redis, once a second."""
        now = time.monotonic()
        if now < self._publish_at:
            return
        self._publish_at = now + _PUBLISH_SECS
        oldest = {owned: owned.first_id + owned.progress.open[0] for owned in self.member.owned if owned.progress.open}
        causes = self.spout.state.causes_of(np.array(list(oldest.values()), np.int64))
        shown = {str(owned): self._numbers(owned, causes.get(oldest.get(owned, -1))) for owned in self.member.owned}
        self._outages.wait_for(lambda: self._progress.write(shown))
        self._gone = self._gone or GoneTopics(self._progress, self.member.topics)
        self._outages.wait_for(self._gone.look)

    def _numbers(self, owned: Owned, oldest: Cause | None) -> dict[str, object]:
        earliest, end, unsafe = self.member.earliest_of(owned), self.member.end_of(owned), self._unsafe.count(owned)
        numbers = numbers_of(
            owned, earliest, end, unsafe, oldest, spout_id=self.spout.spout_id, run_id=self.spout.run_id
        )
        return numbers if self._imports is None else {**numbers, "skipped": self._skipped[owned]}

    def _add(self, letters: list[DeadLetter]) -> list[str]:
        return self.spout.acker.dead_letters.add(letters)

    def withdrawn(self, owned: Owned) -> None:
        """Give up the open records of a partition."""
        here = [owned.first_id + offset for offset in owned.progress.open]
        gone = [message_id for message_id in here if message_id not in self._replayed]
        entries = (self._entries.pop(message_id, None) for message_id in here)
        self._budget.remove(entry[1] for entry in entries if entry is not None)
        self.spout.withdraw(np.array(gone, np.int64))
        if self.has_ended:
            try:
                self._progress.write({str(owned): self._numbers(owned, None) | {"ended": True}})
            except ServerUnavailableError:
                self.has_ended = False  # else each further partition would wait as long for the server
        if self._imports is not None:
            self._imports.forget(np.array(here, np.int64))
            del self._skipped[owned]

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        """Write a dead letter for records that are gone.

        Raises:
            AckerError: the run is to end instead.
        """
        letter = letter_of_lost(
            owned, begin, end, on_lost=self._policies.on_lost, group=self._policies.group, run_id=self.spout.run_id,
            spout_id=self.spout.spout_id, log=log,
        )  # fmt: skip
        self._unsafe.write(letter, owned, begin)

    def known_id(self, topic: str) -> str | None:
        """Return the id under which the group read a topic last, or None."""
        return self._outages.wait_for(lambda: self._progress.topic_id(topic))

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        """Log that a topic was made again.

        Raises:
            AckerError: the run is to end instead.
        """
        check_recreated(topic, topic_id, new_id, on_recreated=self._policies.on_recreated, log=log)

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, without records that were withdrawn. Called in the emission's thread."""
        find = self._find if self._replayed else self._entries.get
        found = list(map(find, emission.message_ids.tolist()))
        entries = [entry for entry in found if entry is not None]
        if len(entries) < len(found):
            emission = emission.only(np.array([entry is not None for entry in found], np.bool_))
        return self._frame(emission.message_ids, entries), emission

    def identify(self, letter: DeadLetter) -> int | None:
        """Return the message id that a letter's record has in this run, or None if it is no record of the group."""
        place = _place_of(letter, self._policies.group)
        return None if place is None else self.member.id_of(place.topic_id, place.partition, place.offset)

    def load_replays(self, letters: list[DeadLetter]) -> list[int] | None:
        """Read the records of letters from their topics, for `dead_letter_replay.ReplayLoader`."""
        group = self._policies.group
        places = {letter.message_id: place for letter in letters if (place := _place_of(letter, group)) is not None}
        try:
            found = self._reader.read(places.values())
        except (OutageError, confluent().KafkaException) as exc:
            log.warning("records of dead letters not read yet error=%s", type(exc).__name__)
            return None
        if found is None:
            return None
        for message_id, place in places.items():
            if place in found:
                first_id = message_id - place.offset
                nobodys = Owned(place.topic, place.partition, place.topic_id, PartitionProgress(0), first_id)
                self._replayed[message_id] = nobodys, found[place]
        return [message_id for message_id, place in places.items() if place in found]

    def keep_messages(self, emission: Emission) -> None:
        """Do nothing, as this object has all records."""

    def payloads(self, message_ids: list[int]) -> list[bytes | None]:
        """Return records as JSON for dead letters, with key, value and headers in base64; None for longer ones."""
        longest = self._policies.dead_letter_bytes
        texts = [
            None if entry is None else json.dumps(_shown(*entry)).encode() for entry in map(self._find, message_ids)
        ]
        return [None if text is None or len(text) > longest else text for text in texts]

    def places(self, message_ids: list[int]) -> list[str | None]:
        """Return where records are, as JSON."""
        found = map(self._find, message_ids)
        return [None if entry is None else self._place_text(*entry) for entry in found]

    def _place_text(self, owned: Owned, record: Any) -> str:
        return json.dumps({"group": self._policies.group} | _place(owned, record))

    def _find(self, message_id: int) -> tuple[Owned, Any] | None:
        return self._entries.get(message_id) or self._replayed.get(message_id)

    def _frame(self, message_ids: Int64Array, entries: list[tuple[Owned, Any]]) -> DataFrame:
        records = [record for _, record in entries]
        numbers, offsets = RecordIds.split(message_ids)
        _, firsts, of_record = np.unique(numbers, return_index=True, return_inverse=True)
        partitions = [entries[first][0] for first in firsts.tolist()]
        # Objects that go at once, as the garbage collector would walk all pending records because of many others.
        times = [stamp[1] * 1000 if (stamp := record.timestamp())[0] else None for record in records]
        has_headers = any(record.headers() is not None for record in records)
        headers = [self._headers(record) for record in records] if has_headers else [None] * len(records)
        table = pa.table({
            RECORD: message_ids,
            "topic": pa.array([owned.topic for owned in partitions], pa.string()).take(pa.array(of_record)),
            "topic_id": pa.array([owned.topic_id for owned in partitions], pa.string()).take(pa.array(of_record)),
            "partition": pa.array([owned.number for owned in partitions], pa.int32()).take(pa.array(of_record)),
            "offset": offsets,
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "key": pa.array([record.key() for record in records], pa.binary()),
            "value": pa.array([record.value() for record in records], pa.binary()),
            "headers": pa.array(headers, _HEADERS),
        })  # fmt: skip
        if self._imports is not None and (bad := self._imports.bad_of(message_ids)) is not None:
            table = table.append_column(BAD_ANCHORS, pa.array(bad, pa.string()))
        # Spark Connect takes no schema from an empty table, as of an emission whose records were all withdrawn.
        return self._spark.createDataFrame(table) if records else self._spark.createDataFrame([], _SCHEMA)

    def _headers(self, record: Any) -> list[dict[str, object]] | None:
        """Return the headers, without anchors that this run takes."""
        headers = record.headers()
        hidden = None if self._imports is None else ANCHORS_HEADER
        return None if headers is None else [{"key": k, "value": _bytes(v)} for k, v in headers if k != hidden]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _place(owned: Owned, record: Any) -> dict[str, object]:
    return {"topic": owned.topic, "topic_id": owned.topic_id, "partition": owned.number, "offset": record.offset()}


def _shown(owned: Owned, record: Any) -> dict[str, object]:
    return {
        **_place(owned, record),
        "timestamp": record.timestamp()[1] if record.timestamp()[0] else None,
        "key": _text(record.key()),
        "value": _text(record.value()),
        "headers": [[name, _text(value)] for name, value in record.headers() or ()],
    }


def _place_of(letter: DeadLetter, group: str) -> Place | None:
    """Read the place of one record. None if the letter is about something else, or is another group's."""
    try:
        place = json.loads(letter.place or "")
        if "until" in place or place["group"] != group:
            return None
        return Place(place["topic"], place["topic_id"], place["partition"], place["offset"])
    except (ValueError, KeyError, TypeError):
        return None


def _text(value: Any) -> str | None:
    value = _bytes(value)
    return None if value is None else base64.b64encode(value).decode()
