"""Source of a Kafka spout: a thread that is a member of the group, and reads ahead of the spout."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from acker_redis.acker import Acker, app_of
from acker_redis.errors import OutageError, ServerUnavailableError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.record_budget import RecordBudget
from acker_redis.kafka.record_reader import Place
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_letters import KafkaLetters, check_recreated, letter_of_lost
from acker_redis.store.kafka_progress import GoneTopics, KafkaProgress, numbers_of
from acker_redis.storm.components.source import Source

log = logging.getLogger("acker_redis.storm")

_WAIT_SECS = 0.05
"""Longest time until the thread notices that a record is done."""

_PUBLISH_SECS = 1.0
_AWAY_SECS = 1.0
"""Pause of the calls of Redis while it is away."""

_CLOSE_SECS = 60.0


@dataclass(frozen=True)
class KafkaOptions:
    """Checked attributes of a `KafkaSpout`, which describes them."""

    kafka: Mapping[str, object] = field(repr=False)  # may hold a password
    names: Sequence[str]
    group: str
    start: Literal["earliest", "latest"]
    on_lost: Literal["letter", "raise"]
    on_recreated: Literal["raise", "restart"]
    commit_secs: float
    max_pending_bytes: int
    max_pending: int


@dataclass(slots=True, eq=False)
class OpenRecord:
    """Record that was read and isn't done.

    Attributes:
        place: where it is.
        owned: its partition.
        record: the client's message.
        failed: reason and last component of its last attempt; None: it had none.
    """

    place: Place
    owned: Owned
    record: Any
    failed: tuple[str, str | None] | None = None

    def values(self) -> list[Any]:
        """Return the values of the tuple, in the order of `KafkaSpout.outputs`."""
        kind, ms = self.record.timestamp()
        key, value, headers = self.record.key(), self.record.value(), self.record.headers()
        return [*self.place[:3], self.place.offset, ms if kind else None, key, value, headers]


class KafkaSource(Source):
    """Member of a group, in a thread of its own. A `group_member.Listener`.

    The membership needs calls at least every `max.poll.interval.ms`. The run may be busy for longer, as with a job of Spark,
    or must not call the spout, as at the bound on pending messages. So the thread makes them.

    Guarantee: an offset is done once its record was acked, or its dead letter is safe. A record whose partition was withdrawn
    is neither emitted nor replayed any more.
    """

    def __init__(self, options: KafkaOptions, acker: Acker, run_id: str, spout_id: int) -> None:
        """Prepare. The first `take` joins the group."""
        self.is_active = True
        self._options, self._acker, self._run_id, self._spout_id = options, acker, run_id, spout_id
        self._lock = threading.Lock()
        self._open: dict[Place, OpenRecord] = {}
        self._fresh: deque[OpenRecord] = deque()
        self._ended: deque[tuple[Place, OpenRecord | None, DeadLetter | None]] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._member: GroupMember
        # Of the thread alone:
        self._budget = RecordBudget(options.max_pending_bytes)
        self._lost: deque[tuple[DeadLetter, Owned, int]] = deque()
        self._publish_at = self._ask_at = float("-inf")
        self._progress = KafkaProgress(app_of(acker).client, acker.config.app, options.group)
        self._gone: GoneTopics | None = None
        self._letters = KafkaLetters(self._progress, acker.dead_letters.add, log)

    # Calls of the run

    def take(self) -> OpenRecord | None:
        """Return the next record, or None if there is none yet.

        Raises:
            AckerError: what ended the membership.
        """
        if self._thread is None:
            self._start()
        if self._error is not None:
            raise self._error
        with self._lock:
            while self._fresh:
                taken = self._fresh.popleft()
                if self._open.get(taken.place) is taken:
                    return taken
        return None

    def done(self, tup_id: Any) -> None:
        """Note that a record was acked."""
        self._end(tup_id, None)

    def failed(self, tup_id: Any, reason: str, component: str | None) -> None:
        """Note why the last attempt of a record failed, for people on call."""
        with self._lock:
            if isinstance(tup_id, Place) and (found := self._open.get(tup_id)) is not None and found.place is tup_id:
                found.failed = reason, component

    def buried(self, tup_id: Any, letter: DeadLetter) -> None:
        """Note that the dead letter of a record was written. Its offset waits until the letter is safe."""
        self._end(tup_id, letter)

    def is_wanted(self, tup_id: Any) -> bool:
        """Return True unless the record's partition was withdrawn."""
        return not isinstance(tup_id, Place) or self._is_open(tup_id)

    def place(self, tup_id: Any) -> str | None:
        """Return where a record is, as JSON."""
        if not isinstance(tup_id, Place):
            return None
        return json.dumps({"group": self._options.group, **tup_id._asdict()})

    def close(self, *, is_orderly: bool) -> None:
        """Commit what is done, and leave the group."""
        if self._thread is None:
            return
        self._has_ended = is_orderly
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECS)
        if self._thread.is_alive():
            log.warning("group not left yet, the brokers don't answer group=%r", self._options.group)

    def _start(self) -> None:
        options = self._options
        settings = consumer_settings(options.kafka, options.group)
        self._member = GroupMember(settings, options.names, options.start, self, options.commit_secs, self._known_id)
        self._thread = threading.Thread(target=self._run, name="acker-kafka", daemon=True)
        self._thread.start()

    def _is_open(self, place: Place) -> bool:
        """Return True if this very object was emitted. An equal one may be of an earlier assignment, or of a letter."""
        with self._lock:
            found = self._open.get(place)
            return found is not None and found.place is place

    def _end(self, tup_id: Any, letter: DeadLetter | None) -> None:
        if not isinstance(tup_id, Place):
            return
        with self._lock:
            found = self._open.get(tup_id)
            ended = self._open.pop(tup_id) if found is not None and found.place is tup_id else None
            self._ended.append((tup_id, ended, letter))
        self._wake.set()

    # The thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._step()
            self._apply()
            self._ask_server()
        except BaseException as exc:  # noqa: BLE001  # the next `take` raises it
            log.error("membership ended group=%r error=%s", self._options.group, exc)
            self._error = exc
        finally:
            try:
                self._member.close()
            except Exception as exc:  # noqa: BLE001  # of the client; the session ends by itself
                log.warning("group not left group=%r error=%s", self._options.group, exc)

    def _step(self) -> None:
        self._wake.clear()
        self._apply()
        room = self._room()
        read = self._member.read(room, _WAIT_SECS)
        if read:
            with self._lock:
                for owned, record in read:
                    self._keep(owned, record)
        elif room <= 0:
            self._wake.wait(_WAIT_SECS)
        self._member.commit()
        self._ask_server()

    def _room(self) -> int:
        if not self.is_active:
            return 0
        return min(self._options.max_pending - len(self._open), self._budget.room())

    def _keep(self, owned: Owned, record: Any) -> None:
        place = Place(owned.topic, owned.topic_id, owned.number, record.offset())
        kept = OpenRecord(place, owned, record)
        self._budget.add([record])
        self._open[place] = kept
        self._fresh.append(kept)

    def _apply(self) -> None:
        """Note in the progress of partitions what has ended."""
        while self._ended:
            place, ended, letter = self._ended.popleft()
            if ended is not None:
                owned: Owned | None = ended.owned
                self._budget.remove([ended.record])
            else:  # of a partition that was withdrawn, or a letter's replay
                owned = self._letters.release(str(self.place(place)))
            if owned is None:
                continue
            if letter is None:
                owned.progress.done(place.offset)
            else:
                self._letters.wait(letter, owned, place.offset)

    def _ask_server(self) -> None:
        """Look after dead letters, and publish the progress. While the server is away, offsets of letters wait."""
        now = time.monotonic()
        if now < self._ask_at:
            return
        try:
            while self._lost:
                self._letters.write(*self._lost[0])
                self._lost.popleft()
            self._letters.secure()
            if now >= self._publish_at:
                self._publish_at = now + _PUBLISH_SECS
                self._publish()
        except ServerUnavailableError as exc:  # the run says so
            log.debug("progress not written group=%r error=%s", self._options.group, exc)
            self._ask_at = time.monotonic() + _AWAY_SECS

    def _publish(self) -> None:
        self._progress.write({str(owned): self._numbers(owned) for owned in self._member.owned})
        self._gone = self._gone or GoneTopics(self._progress, self._member.topics)
        self._gone.look()

    def _numbers(self, owned: Owned) -> dict[str, object]:
        earliest, end, unsafe = self._member.earliest_of(owned), self._member.end_of(owned), self._letters.count(owned)
        oldest = None
        for offset in owned.progress.open[:1]:
            found = self._open.get(Place(owned.topic, owned.topic_id, owned.number, offset))
            oldest = None if found is None else found.failed
        return numbers_of(owned, earliest, end, unsafe, oldest, spout_id=self._spout_id, run_id=self._run_id)

    # Events of the member, in its calls

    def withdrawn(self, owned: Owned) -> None:
        """Give up the open records of a partition."""
        with self._lock:
            gone = [kept for kept in self._open.values() if kept.owned is owned]
            for kept in gone:
                del self._open[kept.place]
        for kept in gone:
            self._budget.remove([kept.record])
        if self._has_ended:  # nobody else has it
            try:
                self._progress.write({str(owned): self._numbers(owned) | {"ended": True}})
            except ServerUnavailableError:
                self._has_ended = False  # else each further partition would wait as long for the server

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        """Write a dead letter for records that are gone, as soon as the server is there.

        Raises:
            AckerError: the run is to end instead.
        """
        letter = letter_of_lost(
            owned, begin, end, on_lost=self._options.on_lost, group=self._options.group, run_id=self._run_id,
            spout_id=self._spout_id, log=log,
        )  # fmt: skip
        self._lost.append((letter, owned, begin))

    def _known_id(self, topic: str) -> str | None:
        try:
            return self._progress.topic_id(topic)
        except ServerUnavailableError as exc:
            raise OutageError(str(exc)) from exc  # the member joins again later

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        """Log that a topic was made again.

        Raises:
            AckerError: the run is to end instead.
        """
        check_recreated(topic, topic_id, new_id, on_recreated=self._options.on_recreated, log=log)
