"""Offsets of a stream in a consumer group of Kafka: what its micro-batches have read, and what of that is done."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, BadConfigError, OutageError, ServerUnavailableError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent, without_secrets
from acker_redis.kafka.group_commits import GroupCommits
from acker_redis.kafka.log_ends import LogEnds, Partition
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import NEW_SECS, Topic, Topics
from acker_redis.model.arrays import Int64Array
from acker_redis.outages import Outages
from acker_redis.spark.emission.messages import Places
from acker_redis.spark.emission.place_columns import OFFSET, PARTITION, has_columns_of_kafka, place_columns
from acker_redis.spark.runs.options import GroupSettings
from acker_redis.spark.streaming.completed_offsets import CompletedOffsets
from acker_redis.spark.streaming.kafka_ranges import Gap, gap_of, read_ends, read_ranges
from acker_redis.spark.streaming.kept_letters import KeptLetter
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingOutageError
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_letters import KafkaLetters, letter_of_lost
from acker_redis.store.kafka_progress import GoneTopics, KafkaProgress, numbers_of

log = logging.getLogger("acker_redis.spark")

_VERIFY_SECS = 10.0
"""Interval between two looks for topics that the brokers didn't describe. Their offsets aren't committed meanwhile."""

_WAIT_SECS = 5.0
"""Longest wait for the first look. Once an answer has not come in time, none is waited for until one has come."""

_TRY_SECS, _OUTAGE_SECS = 5.0, 600.0
"""Time for which a micro-batch asks the brokers at a time, and longest outage of theirs that it waits for."""

_MAYBE_READ = "The stream's own query may have read and dropped some of them, or the log had no records there."
"""What a letter says of lost records if the micro-batch lacks others, too, or has some that are gone now."""


class GroupOffsets:
    """Commit the completed offsets of a stream to a consumer group. One thread at a time uses the object.

    Guarantee: a record below a committed offset was acked, is a dead letter that is safe, was dropped by the stream's own
    query, or never existed. Records that were deleted before they were read have a dead letter. Letters that weren't safe
    when the stream ended hold their offsets back after its next start, too.

    Attributes:
        problem: why the last commit failed; None: it didn't.
    """

    def __init__(self, settings: GroupSettings, acker: Acker, store: ParkingLocation, spout: Spout) -> None:
        """Prepare. It doesn't wait for a broker."""
        self._group, self._acker, self._store, self._spout = settings.name, acker, store, spout
        self._topics = Topics(settings.client)
        self._log_ends = LogEnds(self._topics)
        self._commits = GroupCommits(settings.client, settings.name)
        self._progress = KafkaProgress(app_of(acker).client, acker.config.app, settings.name)
        self._gone = GoneTopics(self._progress, self._topics)
        self._letters = KafkaLetters(self._progress, acker.dead_letters.add, log)
        self._owned: dict[Partition, Owned] = {}
        self._ends: dict[Partition, int] = {}
        self._oldest: dict[Partition, int] = {}
        self._kept = store.topic_ids()
        self._seen: set[str] = set()
        self._verify_at = float("-inf")
        self._asked: dict[str, Any] = {}
        self._is_patient = True
        self._out_since: float | None = None
        self._earlier: list[KeptLetter] = []  # letters of earlier starts that don't wait yet
        self._kept_ids: list[str] | None = None  # entry ids of the letters that are kept; None: unknown
        self._lettered: set[int] = set()  # messages whose letters were written, and that aren't done yet

    @property
    def problem(self) -> str | None:
        """Why the last commit failed; None: it didn't."""
        return self._commits.problem

    def resume(self, before: int, opened: Iterable[tuple[str, int]]) -> None:
        """Go on behind the micro-batches before this one.

        Args:
            before: number of the micro-batch.
            opened: partition and offset of the open messages of earlier ones. They are processed again.

        Raises:
            BadConfigError: the letters that were kept are damaged.
            ParkingOutageError: they are unreadable.
        """
        places = {(*_partition(name), offset) for name, offset in opened}
        kept = self._store.kafka_letters()
        self._earlier = [one for one in kept if (one.topic, one.number, one.offset) not in places]
        self._kept_ids = None if kept else []
        try:
            self._ends = read_ends(self._store.checkpoint, before - 1)
        except OSError as exc:
            log.warning("ranges of earlier micro-batches not read, nothing committed before the next one error=%s", exc)
            return
        self._wait_again(self._ends)

    def check_columns(self, batch: DataFrame, partition: str, offset: str) -> None:
        """Check that a micro-batch has the columns of Kafka, and that message ids are made of them.

        Raises:
            BadConfigError: they aren't.
        """
        wanted, given = (PARTITION, OFFSET), place_columns(batch.schema, partition, offset)
        if has_columns_of_kafka(batch.schema) and given != wanted:
            raise BadConfigError(
                f"TrackedBatches: kafka_group={self._group!r} needs message ids that are made of the columns topic, partition "
                f"and offset, but they are made of {given}. Offsets are completed record by record. Omit ids, and drop the "
                "columns file and row."
            )
        if not has_columns_of_kafka(batch.schema):
            raise BadConfigError(
                f"TrackedBatches: kafka_group={self._group!r} needs the columns topic, partition and offset of Spark's source "
                f"of Kafka, but the stream has {batch.columns}. Without them, it isn't known which offsets are done. Keep "
                "these columns in the stream, or omit kafka_group."
            )

    def try_to_check(self, batch_id: int, places: Places) -> list[DeadLetter] | None:
        """Compare the ranges of a micro-batch with the topics. Return the letters of records that are gone.

        Call it once the micro-batch was read, and before it is emitted. The letters were written. During an outage of the
        brokers it returns None. Call it again then.

        Raises:
            AckerError: a topic was deleted and created again; or the brokers haven't answered for ten minutes.
        """
        try:
            letters = self._check_batch(batch_id, places)
        except OutageError as exc:
            now = time.monotonic()
            if self._out_since is None:
                self._out_since = now
                log.warning("micro-batch waits for the brokers batch=%d error=%s", batch_id, exc)
            if now - self._out_since > _OUTAGE_SECS:
                raise
            return None
        if self._out_since is not None:
            log.warning("brokers are back after_secs=%.1f", time.monotonic() - self._out_since)
            self._out_since = None
        return letters

    def _check_batch(self, batch_id: int, places: Places) -> list[DeadLetter]:
        try:
            ranges = read_ranges(self._store.checkpoint, batch_id)
        except OSError as exc:
            raise AckerError(
                f"The checkpoint {self._store.checkpoint!r} has no readable ranges of batch {batch_id} ({exc}). Without them, "
                "lost records would go unnoticed. Nothing was emitted. Check its permissions, and restart the query."
            ) from exc
        self._wait_again(ranges.begins)
        read = {at: (begin, ranges.ends[at]) for at, begin in ranges.begins.items() if begin < ranges.ends.get(at, 0)}
        self._check_topics({topic for topic, _ in ranges.ends}, {topic for topic, _ in read})
        earliest = self._log_ends.read_earliest((at for at in read if at[0] in self._kept), outage_secs=_TRY_SECS)
        letters = []
        for at, (begin, end) in read.items():
            first = min(end, earliest.get(at, end))  # a partition that is gone has no record
            if first <= begin:
                continue
            offsets = _offsets_of(places, at)
            if (gap := gap_of(offsets, begin, first)) is not None:
                is_certain = gap_of(offsets, first, end) is None and gap.missing == first - begin
                letters.append(self._write_letter(self._own(at), gap, is_certain=is_certain))
        self._ends = ranges.ends
        return letters

    def wait_for(self, letters: Iterable[DeadLetter], places: Mapping[int, tuple[str, int]]) -> None:
        """Let the offsets of records wait until their dead letters, which were written, are safe.

        If a replay of a letter failed, the new letter takes the place of the old one, which is deleted. Call `done` then.

        Args:
            letters: the letters.
            places: message id -> partition and offset, of records that were open until now.
        """
        for letter in letters:
            self._lettered.add(letter.message_id)
            replaced = self._letters.release_message(letter.message_id)
            if (place := places.get(letter.message_id)) is not None:
                self._letters.wait(letter, self._own(_partition(place[0])), place[1])
            elif replaced is not None:
                self._letters.wait(letter, replaced.owned, replaced.offset)

    def done(self, message_ids: Int64Array) -> None:
        """Give up the wait for letters of messages that a replay has acked, because these letters are deleted."""
        waiting = self._letters.waiting
        if not waiting and not self._lettered:
            return
        ended = set(message_ids.tolist())
        acked = ended - self._lettered
        self._lettered -= ended
        for unsafe in waiting:
            if unsafe.letter.message_id in acked:
                self._letters.release_message(unsafe.letter.message_id)

    def keep_letters(self) -> None:
        """Let offsets pass letters that are safe, and keep the others for a restart.

        Call it before a snapshot is saved that lacks the messages of these letters.

        Raises:
            ParkingOutageError: the parking location is not writable.
        """
        try:
            self._letters.secure()
        except ServerUnavailableError as exc:
            log.debug("dead letters not secured yet error=%s", exc)
        waiting = [
            KeptLetter(one.letter, one.owned.topic, one.owned.number, one.offset) for one in self._letters.waiting
        ]
        kept = [*self._earlier, *waiting]
        entry_ids = [one.letter.entry_id for one in kept]
        if entry_ids != self._kept_ids:
            self._store.keep_kafka_letters(kept)
            self._kept_ids = entry_ids

    def place_of(self, name: str, offset: int) -> str:
        """Return where a record is, as JSON, for its dead letter."""
        topic, number = _partition(name)
        place = {"topic": topic, "topic_id": self._kept.get(topic), "partition": number, "offset": offset}
        return json.dumps({"group": self._group, **place})

    def commit(self, offsets: CompletedOffsets) -> None:
        """Commit what is done, after the parked messages were saved. Whatever fails is tried again by the next call."""
        self._look_at_topics()
        if not self._seen:
            return
        opened: dict[Partition, dict[int, int]] = defaultdict(dict)
        for message_id, (name, offset) in offsets.open.items():
            opened[_partition(name)][offset] = message_id
        for at, end in self._ends.items():
            if at[0] not in self._seen:
                continue
            owned, own = self._own(at), opened.get(at, {})
            owned.topic_id = self._kept[at[0]]
            owned.progress.replace_open({*own, *self._letters.offsets(owned)}, end)
            if own:
                self._oldest[at] = own[min(own)]
            else:
                self._oldest.pop(at, None)
        self._commits.commit(owned for owned in self._owned.values() if owned.topic in self._seen)

    def publish(self, *, has_ended: bool = False) -> None:
        """Write the progress of the partitions to Redis, for people and metrics.

        Args:
            has_ended: True if nobody works on the stream now, and it was stopped or is done, so no fault ended it.

        Raises:
            AckerError: the server is unavailable.
        """
        there = {at: owned for at, owned in self._owned.items() if at[0] in self._seen}
        self._log_ends.look(there)
        causes = self._spout.state.causes_of(np.array(list(self._oldest.values()), np.int64))
        shown = {}
        for at, owned in there.items():
            ends = [self._ends.get(at), self._log_ends.end(*at)]
            shown[str(owned)] = numbers_of(
                owned, self._log_ends.earliest(*at), max((end for end in ends if end is not None), default=None),
                self._letters.count(owned), causes.get(self._oldest.get(at, -1)), spout_id=self._spout.spout_id,
                run_id=self._spout.run_id,
            ) | {"problem": self.problem, **({"ended": True} if has_ended else {})}  # fmt: skip
        self._progress.write(shown)
        self._gone.look()

    def close(self) -> None:
        """Close the connections."""
        self._commits.close()

    def _own(self, at: Partition) -> Owned:
        if at not in self._owned:
            self._owned[at] = Owned(*at, self._kept.get(at[0], ""), PartitionProgress(0), 0)
        return self._owned[at]

    def _wait_again(self, ends: Mapping[Partition, int]) -> None:
        """Wait for letters of earlier starts, too. Records at `ends` or behind them are read again, and are left out."""
        earlier, self._earlier = self._earlier, []
        for letter, topic, number, offset in earlier:
            if offset < ends.get((topic, number), 0):
                self._letters.wait(letter, self._own((topic, number)), offset)

    def _check_topics(self, names: set[str], needed: set[str]) -> None:
        """Compare the ids of topics with those of earlier micro-batches, and keep those of new ones.

        Raises:
            AckerError: one was created again.
        """
        found = self._topics.describe(needed, max_wait_secs=NEW_SECS, outage_secs=_TRY_SECS)
        found |= self._topics.describe(names - needed, outage_secs=_TRY_SECS)
        self._compare(found, names, needed)

    def _compare(self, found: Mapping[str, Topic], names: set[str], needed: set[str]) -> None:
        for name, topic in found.items():
            if (earlier := self._kept.get(name, topic.topic_id)) != topic.topic_id:
                raise AckerError(
                    f"Topic {name!r} was deleted and created again (id {earlier}, now {topic.topic_id}). Spark goes on at the "
                    "offsets of the old one, and would skip records of the new one. Nothing of this micro-batch was emitted. "
                    "Call drain() for the parked messages, then start with a new checkpoint and a new parking location."
                )
        for name in needed - found.keys():
            log.error("topic deleted topic=%s", name)
        kept = {**self._kept, **{name: topic.topic_id for name, topic in found.items()}}
        if kept != self._kept:
            self._store.keep_topic_ids(kept)
            self._kept = kept
        self._seen = (self._seen - names) | found.keys()

    def _look_at_topics(self) -> None:
        """Look, until the first micro-batch does, whether the topics are those of the earlier start.

        Brokers that are away delay it once, briefly, because a micro-batch may wait for this call.
        """
        now, unseen = time.monotonic(), {topic for topic, _ in self._ends} - self._seen
        if not unseen:
            self._asked = {}
            return
        if not self._asked:
            if now < self._verify_at:
                return
            self._verify_at = now + _VERIFY_SECS
            self._asked = self._topics.ask(unseen)
        left = wait(self._asked.values(), timeout=_WAIT_SECS if self._is_patient else 0).not_done
        self._is_patient = not left
        if left:
            return
        asked, self._asked = self._asked, {}
        try:
            self._compare(self._topics.answers(asked), set(asked), set())
        except confluent().KafkaException as exc:
            log.warning("offsets not committed yet error=%s", without_secrets(exc.args[0].str(), self._topics.kafka))
        except ParkingOutageError as exc:  # a later look may keep the ids
            log.warning("offsets not committed yet error=%s", exc)
        except AckerError as exc:  # the next micro-batch raises it
            self._verify_at = float("inf")
            log.error("offsets not committed error=%s", exc)

    def _write_letter(self, owned: Owned, gap: Gap, *, is_certain: bool) -> DeadLetter:
        letter = letter_of_lost(
            owned, gap.begin, gap.end, on_lost="letter", group=self._group, run_id=self._spout.run_id,
            spout_id=self._spout.spout_id, log=log,
        )  # fmt: skip
        if gap.missing < gap.end - gap.begin:
            letter = letter._replace(detail=f"{letter.detail} {gap.missing} of these offsets were not read.")
        if not is_certain:
            letter = letter._replace(detail=f"{letter.detail} {_MAYBE_READ}")
        (entry_id,) = Outages(log).wait_for(lambda: self._acker.dead_letters.add([letter]))
        letter = letter._replace(entry_id=entry_id)
        self._letters.wait(letter, owned, gap.begin)
        return letter


def _partition(name: str) -> Partition:
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def _offsets_of(places: Places, at: Partition) -> Int64Array:
    name = f"{at[0]}/{at[1]}"
    number = places.names.index(name) if name in places.names else -1
    return np.array(places.offsets[places.of_message == number], np.int64)
