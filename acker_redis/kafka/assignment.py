"""Partitions that a member gets: where they begin, by the group's commits."""

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from acker_redis.errors import OutageError
from acker_redis.kafka.client import confluent
from acker_redis.kafka.commit_metadata import MOST_BYTES, NO_EPOCH, decode, encode, start_of
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.record_ids import RecordIds
from acker_redis.kafka.topics import ASK_SECS, NEW_SECS, Topic, Topics, patiently

log = logging.getLogger("acker_redis.kafka")

_NOTED_SECS = 24 * 3600.0
"""Time for which a member remembers what it could commit when a partition went."""


class Owned:
    """A partition that this member owns, since it was assigned.

    Attributes:
        topic: name of the topic.
        number: number of the partition.
        topic_id: id of the topic.
        progress: what was read, and what is done.
        first_id: message id of offset 0.
        committed: offset and text of the last commit that the broker confirmed; None: there is none.
        is_start: whether nothing is known of the partition but a start, which a commit then says.
    """

    def __init__(self, topic: str, number: int, topic_id: str, progress: PartitionProgress, first_id: int) -> None:
        self.topic, self.number, self.topic_id = topic, number, topic_id
        self.progress, self.first_id = progress, first_id
        self.committed: tuple[int, str] | None = None
        self.is_start = False
        self.most_bytes = MOST_BYTES
        self.committed_at = time.monotonic()

    def commit(self) -> tuple[int, str]:
        """Return offset and text of a commit."""
        until = self.progress.until()
        if self.is_start:
            return until, start_of(self.topic_id)
        return until, encode(self.topic_id, until, self.progress.epoch, self.progress.runs(), self.most_bytes)

    def __repr__(self) -> str:
        return f"{self.topic}/{self.number}"


class Listener(Protocol):
    """Receiver of events of a member. An exception ends the membership."""

    def withdrawn(self, owned: Owned) -> None:
        """Give up the open records of a partition. Another member owns them, or they are gone."""

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        """Account for records from `begin` to before `end`, which were deleted before they were read.

        `begin` stays open until `owned.progress.done(begin)` is called.
        """

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        """Account for a topic that was deleted and made again under another id."""


class _Note(NamedTuple):
    """What a partition could commit when it went."""

    topic_id: str
    offset: int
    text: str
    time: float


class Starts:
    """Find and commit the offsets at which partitions begin."""

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Topics,
        start: Literal["earliest", "latest"],
        listener: Listener,
        known_id: Callable[[str], str | None],
    ) -> None:
        """Prepare. The arguments are those of `GroupMember`."""
        self._settings, self._topics, self._start, self._listener = settings, topics, start, listener
        self._known_id = known_id
        self._ids = RecordIds()
        self._withdrawn: dict[tuple[str, int], _Note] = {}

    def note_withdrawn(self, owned: Owned) -> None:
        """Note what a partition that goes could commit, because a group without members may be deleted meanwhile."""
        self._withdrawn[owned.topic, owned.number] = _Note(owned.topic_id, *owned.commit(), time.monotonic())

    def forget_withdrawn(self, owned: Owned) -> None:
        """Forget it, because another member goes on from a commit, and what this one knows gets old."""
        self._withdrawn.pop((owned.topic, owned.number), None)

    def owned(self, topic: str, number: int, topic_id: str, progress: PartitionProgress, *, log: str = "") -> Owned:
        """Return a partition with its message ids.

        Args:
            topic: name of the topic.
            number: number of the partition.
            topic_id: id of the topic.
            progress: progress in the partition.
            log: name of the log, if an earlier one of the same topic had other records at the same offsets.
        """
        return Owned(topic, number, topic_id, progress, self._ids.first_of(topic_id + log, number))

    def id_of(self, topic_id: str, partition: int, offset: int) -> int:
        """Return the message id of a record."""
        return self._ids.first_of(topic_id, partition) + offset

    def begins(self, consumer: Any, keys: list[tuple[str, int]]) -> list[Owned]:
        """Find where partitions begin, and commit the start of those that have no commit."""
        topics = self._topics.describe({name for name, _ in keys}, max_wait_secs=NEW_SECS)
        keys = [(name, number) for name, number in keys if name in topics]  # the others were deleted meanwhile
        found = self._commits(consumer, topics, set(keys))
        begins, is_new = [], []
        for name, number in keys:
            topic_id, at = topics[name].topic_id, found.get((name, number))
            at = None if at is None or at.offset < 0 else at
            text = None if at is None else decode(at.metadata, at.offset)
            if text is not None and text.topic_id != topic_id:
                self._listener.recreated(name, text.topic_id, topic_id)
                at = text = None
            known = None
            if at is None or (text is not None and text.is_start):
                known = self._withdrawn_progress(name, number, topic_id)
            if at is not None and known is None:
                begins.append(self.owned(name, number, topic_id, _progress_of(at.offset, at.metadata)))
            else:
                progress = known or PartitionProgress(self.watermarks(consumer, name, number)[0])
                begins.append(self.owned(name, number, topic_id, progress))
                is_new.append(begins[-1])
        self.commit(consumer, is_new)
        return begins

    def _commits(
        self, consumer: Any, topics: dict[str, Topic], mine: set[tuple[str, int]]
    ) -> dict[tuple[str, int], Any]:
        """Read the group's commits for topics.

        In a topic without any, the member that owns partition 0 commits the start of all partitions, and the others wait for
        it. Otherwise a partition without a commit would look like one that was added later.
        """
        deadline = time.monotonic() + ASK_SECS
        while True:
            found = self._committed(consumer, topics)
            unknown = {name for name in topics if not any(at.offset >= 0 for at in found.values() if at.topic == name)}
            own = {name for name in unknown if (name, 0) in mine}
            if not unknown:
                return found
            if own:
                for name in own:
                    self._commit_start(consumer, name, topics[name])
            elif time.monotonic() > deadline:
                raise OutageError(
                    f"No start was committed for the topics {sorted(unknown)}. The member that owns their partition 0 has to "
                    "do it. It is probably gone."
                )
            else:
                time.sleep(0.05)

    def _committed(self, consumer: Any, topics: dict[str, Topic]) -> dict[tuple[str, int], Any]:
        kafka = confluent()
        wanted = [kafka.TopicPartition(name, n) for name, topic in topics.items() for n in range(topic.partitions)]

        def ask() -> list[Any]:
            found: list[Any] = consumer.committed(wanted, timeout=ASK_SECS)
            for at in found:
                if at.error is not None:
                    raise kafka.KafkaException(at.error)
            return found

        return {(at.topic, at.partition): at for at in (patiently(ask, self._settings) if wanted else [])}

    def _commit_start(self, consumer: Any, name: str, topic: Topic) -> None:
        """Commit the start of all partitions of a topic, those of other members, too."""
        known_id = self._known_id(name)
        is_another = known_id is not None and known_id != topic.topic_id
        if is_another:
            self._listener.recreated(name, str(known_id), topic.topic_id)
        numbers = range(topic.partitions)
        found = {n: self._withdrawn_progress(name, n, topic.topic_id) for n in numbers}
        known = {n: progress for n, progress in found.items() if progress is not None}
        if known:
            log.warning("commits of the group were deleted, repeating them topic=%s partitions=%s", name, list(known))
        elif known_id == topic.topic_id:
            log.warning("commits of the group were deleted, beginning at the first records topic=%s", name)
        # Partitions that members had may have records that nobody read, so they don't begin at their ends.
        side = 0 if known_id is not None or known or self._start == "earliest" else 1
        begins = {n: known.get(n) or PartitionProgress(self.watermarks(consumer, name, n)[side]) for n in numbers}
        starts = [Owned(name, n, topic.topic_id, progress, 0) for n, progress in begins.items()]
        for start in starts:
            start.is_start = start.number not in known
        self.commit(consumer, starts)

    def _withdrawn_progress(self, name: str, number: int, topic_id: str) -> PartitionProgress | None:
        """Return the progress in a partition when it went. None: this member didn't have it, or that was long ago."""
        note = self._withdrawn.get((name, number))
        if note is None or note.topic_id != topic_id or time.monotonic() - note.time > _NOTED_SECS:
            return None
        return _progress_of(note.offset, note.text)

    def watermarks(self, consumer: Any, name: str, number: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the one behind its last."""
        at = confluent().TopicPartition(name, number)

        def ask() -> tuple[int, int]:
            low, high = consumer.get_watermark_offsets(at, timeout=ASK_SECS, cached=False)
            return int(low), int(high)

        return patiently(ask, self._settings)

    def commit(self, consumer: Any, begins: list[Owned]) -> None:
        """Commit where partitions begin."""
        if not begins:
            return
        kafka = confluent()
        commits = {(owned.topic, owned.number): owned.commit() for owned in begins}
        offsets = [position(owned, *commits[owned.topic, owned.number]) for owned in begins]

        def ask() -> None:
            for at in consumer.commit(offsets=offsets, asynchronous=False):
                if at.error is not None:
                    raise kafka.KafkaException(at.error)

        patiently(ask, self._settings)
        for owned in begins:
            owned.committed = commits[owned.topic, owned.number]


def _progress_of(offset: int, text: str | None) -> PartitionProgress:
    """Return the progress that a commit tells."""
    found = decode(text, offset)
    return PartitionProgress(offset) if found is None else PartitionProgress(offset, found.runs, found.epoch)


def position(owned: Owned, offset: int, text: str = "") -> Any:
    """Return the client's object for an offset of a partition, with the leader epoch so that it is validated."""
    epoch = owned.progress.epoch
    return confluent().TopicPartition(
        owned.topic, owned.number, offset, text, **({} if epoch == NO_EPOCH else {"leader_epoch": epoch})
    )
