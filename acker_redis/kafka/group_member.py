"""The member of a consumer group: partitions that come and go, records, and commits of what is done."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from acker_redis.errors import OutageError
from acker_redis.kafka.assignment import Listener, Owned, Starts, position
from acker_redis.kafka.client import ClientLog, confluent, connected, lacks_token, without_secrets
from acker_redis.kafka.commit_metadata import MOST_BYTES
from acker_redis.kafka.cut_logs import before, cut_at
from acker_redis.kafka.log_ends import LogEnds
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import Topic, Topics, passes, refused

log = logging.getLogger("acker_redis.kafka")

_LOOK_SECS = 2.0
"""Interval between two looks at the ids of the topics."""

_AGAIN_SECS = 24 * 3600.0
"""Interval after which an unchanged offset is committed again, because brokers forget old ones."""

_COMMIT_SECS = 60.0
"""Time after which a commit without an answer is sent again."""

_OUTAGE_SECS = 600.0
"""Longest time without a membership, after which the run ends."""

_CLOSE_SECS = 5.0
"""Longest wait for the last commit, and for the group to be left after it."""

_LEAVE_SECS = 60.0
"""Longest wait for a client that leaves the group, before another one joins it."""

_SAID_SECS = 60.0
"""Interval between two log lines about the same kind of error."""

_MOST_AT_ONCE = 10_000


class GroupMember:
    """Read the records of a group's partitions, and commit what is done.

    One thread uses the object. Its callbacks run within `read` and `close`.

    Guarantee: the offset of a commit is at most the first open one, and the commit's text names done records only. A start
    is committed for every partition before its first record is read.

    Attributes:
        topics: client for questions about topics.
        refused_commits: number of commits that the broker refused for a partition.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Sequence[str],
        start: Literal["earliest", "latest"],
        listener: Listener,
        commit_secs: float,
        known_id: Callable[[str], str | None] = lambda topic: None,
    ) -> None:
        """Prepare the membership. The first `read` joins the group.

        Args:
            settings: of `consumer.consumer_settings`.
            topics: names of topics, or patterns that begin with `^`.
            start: where to begin in a topic of which the group has committed nothing, and that `known_id` doesn't know.
            listener: receiver of events.
            commit_secs: interval between commits.
            known_id: function that returns the id under which the group read a topic last, or None. It is asked for topics
                without commits, because Kafka deletes these with the topic.
        """
        self.refused_commits = 0
        self._settings, self._names, self._listener = settings, list(topics), listener
        self._commit_secs = commit_secs
        self.topics = Topics(settings)
        self._log_ends = LogEnds(self.topics)
        self._starts = Starts(settings, self.topics, start, listener, known_id)
        self._owned: dict[tuple[str, int], Owned] = {}
        self._seen: set[str] = set()  # topics that had partitions
        self._consumer: Any = None
        self._is_paused = False
        self._commit_at = self._look_at = self._join_at = float("-inf")
        self._commit_sent_at: float | None = None
        self._asked: dict[str, Any] = {}
        self._leaving: threading.Thread | None = None
        self._left_at = float("-inf")
        self._client_number = 0
        self._failed: BaseException | None = None
        self._out_since: float | None = None
        self._said: dict[object, float] = {}

    @property
    def owned(self) -> list[Owned]:
        """Partitions that this member owns."""
        return list(self._owned.values())

    def id_of(self, topic_id: str, partition: int, offset: int) -> int:
        """Return the message id of a record."""
        return self._starts.id_of(topic_id, partition, offset)

    def read(self, count: int, wait_secs: float) -> list[tuple[Owned, Any]]:
        """Read up to `count` records that are to be processed. With 0, the partitions are paused, and polling goes on.

        Call it often. A member that isn't heard of for `max.poll.interval.ms` loses its partitions.

        Args:
            count: number of records that there is room for.
            wait_secs: time to wait if there is none.

        Raises:
            AckerError: the brokers refuse the member, or couldn't be reached for ten minutes.
        """
        try:
            if self._consumer is None and not self._join(wait_secs):
                return []
            self._pause(count <= 0)
            first = self._consumer.poll(0 if count <= 0 else wait_secs)
            self._raise_kept()
            fresh = self._sorted_out([] if first is None else [first])
            if first is not None and count > 1:
                others = self._consumer.consume(min(count - 1, _MOST_AT_ONCE), 0)
                self._raise_kept()
                fresh += self._sorted_out(others)
            self._look_at_topics()
            self._log_ends.look(self._owned)
        except OutageError as exc:
            self._give_up(exc)
            return []
        here = set(map(id, self._owned.values()))  # a partition may have gone since its record was read
        return [(owned, record) for owned, record in fresh if id(owned) in here]

    def end_of(self, owned: Owned) -> int | None:
        """Return the offset behind the last record of a partition, as the last fetch reported it. None if none has."""
        asked = self._log_ends.end(owned.topic, owned.number) or 0  # a paused partition isn't fetched
        if self._consumer is None:
            return max(asked, owned.progress.next) if asked else None
        try:
            at = confluent().TopicPartition(owned.topic, owned.number)
            end = int(self._consumer.get_watermark_offsets(at, cached=True)[1])
        except confluent().KafkaException:
            return None
        return None if end < 0 else max(end, asked, owned.progress.next)

    def earliest_of(self, owned: Owned) -> int | None:
        """Return the first offset of a partition, as the brokers said last. None if they haven't."""
        return self._log_ends.earliest(owned.topic, owned.number)

    def commit(self) -> None:
        """Commit what is done, at intervals. The broker's answer arrives in a later `read`."""
        now = time.monotonic()
        is_answered = self._commit_sent_at is None or now - self._commit_sent_at > _COMMIT_SECS
        if self._consumer is None or now < self._commit_at or not is_answered:
            return
        self._commit_at = now + self._commit_secs
        if offsets := self._changed(self._owned.values()):
            self._commit_sent_at = now
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except confluent().KafkaException as exc:
                self._answered(exc.args[0], offsets)

    def close(self) -> None:
        """Commit what is done, and leave the group.

        Without an answer of the brokers it returns after some seconds, and logs what wasn't committed. The client goes on
        trying in the background, for as long as it keeps a commit.
        """
        if self._consumer is None:
            return
        consumer, owned = self._consumer, self.owned
        committing = _in_background(lambda: self._commit_now(consumer, owned))
        committing.join(_CLOSE_SECS)
        if left := {str(one): _unanswered(one) for one in owned if one.commit() != one.committed}:
            log.warning(
                "offsets not committed at the end, so the next start repeats records that are done partitions=%s", left
            )
        is_answered = not committing.is_alive()
        if not is_answered:
            self._consumer = None  # any other call of the client would wait for the end of this one
        self._withdraw(list(self._owned))
        self._take_client()
        closing = _in_background(lambda: _close(consumer, committing))
        if is_answered:
            closing.join(_CLOSE_SECS)

    def _join(self, wait_secs: float) -> bool:
        left = self._join_at - time.monotonic()
        if left > 0:
            time.sleep(min(left, wait_secs))
            return False
        if self._leaving is not None:
            self._leaving.join(wait_secs)
            if self._leaving.is_alive():
                if time.monotonic() - self._left_at < _LEAVE_SECS:
                    return False
                log.warning("client not closed yet, joining with another one waited_secs=%.0f", _LEAVE_SECS)
            self._leaving = None
        own = {
            "on_commit": self._while_current(self._answered), "error_cb": self._while_current(self._complain),
        }  # fmt: skip
        consumer = connected(confluent().Consumer, {"logger": ClientLog(self._settings), **self._settings, **own})
        calls = {"on_assign": self._assign, "on_revoke": self._revoke, "on_lost": self._lose}
        callbacks = {name: self._while_current(self._kept(call)) for name, call in calls.items()}
        consumer.subscribe(self._names, **callbacks)
        self._consumer, self._is_paused, self._commit_sent_at = consumer, False, None
        return True

    def _while_current(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback so that it is ignored once its client was given up, which may still be closing.

        It would meet partitions of the next membership. The client itself then does what assignments need.
        """
        number = self._client_number

        def guarded(*args: Any) -> None:
            if number == self._client_number:
                call(*args)

        return guarded

    def _kept(self, call: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
        """Wrap a callback so that its error is raised after the call of the client, which can't pass it on."""

        def guarded(consumer: Any, partitions: list[Any]) -> None:
            try:
                call(consumer, partitions)
            except BaseException as exc:
                self._failed = self._failed or exc

        return guarded

    def _take_client(self) -> Any:
        """Return the client, and have its later callbacks ignored."""
        consumer, self._consumer = self._consumer, None
        self._client_number += 1
        return consumer

    def _raise_kept(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _give_up(self, error: OutageError) -> None:
        """Leave after an outage, and join again later.

        Raises:
            OutageError: it has lasted too long.
        """
        now = time.monotonic()
        if self._out_since is None:
            self._out_since = now
        if now - self._out_since > _OUTAGE_SECS:
            raise error
        log.warning("membership given up, joining again error=%s", error)
        self._join_at = now + min(10.0, 0.5 + (now - self._out_since) / 2)
        self._leave()

    def _leave(self) -> None:
        """Leave without waiting, because the client tries to reach the brokers for a while."""
        self._withdraw(list(self._owned))
        consumer, self._left_at = self._take_client(), time.monotonic()
        if consumer is not None:
            self._leaving = _in_background(lambda: _close(consumer))

    def _withdraw(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            if (owned := self._owned.pop(key, None)) is not None:
                self._starts.note_withdrawn(owned)
                self._listener.withdrawn(owned)

    def _pause(self, should: bool) -> None:  # noqa: FBT001
        if should != self._is_paused:
            (self._consumer.pause if should else self._consumer.resume)(self._consumer.assignment())
            self._is_paused = should

    def _sorted_out(self, messages: list[Any]) -> list[tuple[Owned, Any]]:
        fresh = []
        for message in messages:
            owned = self._owned.get((message.topic(), message.partition()))
            if (error := message.error()) is not None:
                self._take_event(owned, message, error)
            elif owned is not None and owned.progress.read(message.offset(), message.leader_epoch()):
                fresh.append((owned, message))
        if messages:
            self._out_since = None
        return fresh

    def _take_event(self, owned: Owned | None, message: Any, error: Any) -> None:
        kafka = confluent().KafkaError
        code = error.code()
        if code == kafka._PARTITION_EOF:  # noqa: SLF001
            if owned is not None:
                owned.progress.reached(message.offset())
        elif code in (kafka._AUTO_OFFSET_RESET, kafka.OFFSET_OUT_OF_RANGE, kafka._LOG_TRUNCATION):  # noqa: SLF001
            if owned is not None:
                self._find_again(owned)
        elif code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):  # noqa: SLF001
            name = message.topic()
            was = "deleted, waiting for another one of its name" if name in self._seen else "not found, waiting for it"
            self._say(("missing", name), f"topic {was} topic=%s", name)
        elif error.fatal() or not (passes(error) or code == kafka._MAX_POLL_EXCEEDED):  # noqa: SLF001
            raise refused(error, self._settings)
        else:
            self._say(code, "brokers not answering error=%s", without_secrets(error.str(), self._settings))

    def _complain(self, error: Any) -> None:
        """Take an error that belongs to no partition. The user's callback hears of it, too."""
        if lacks_token(error):
            self._say(
                "token", "no token for the brokers, asking again error=%s", without_secrets(error.str(), self._settings)
            )
        elif error.code() == confluent().KafkaError._AUTHENTICATION:  # noqa: SLF001
            self._failed = self._failed or refused(error, self._settings)
        else:
            self._say(error.code(), "brokers not answering error=%s", without_secrets(error.str(), self._settings))
        if (heard := self._settings.get("error_cb")) is not None:  # last, because it may raise
            heard(error)

    def _say(self, kind: object, line: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._said.get(kind, float("-inf")) > _SAID_SECS:
            self._said[kind] = now
            log.warning(line, *values)

    # Assignments

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        keys = [(one.topic, one.partition) for one in partitions]
        begins = self._starts.begins(consumer, keys)
        self._asked = {}  # an answer from before may be about an earlier topic of the same name
        self._begin(consumer, begins)
        log.info("partitions assigned partitions=%s", sorted(self._owned))

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        keys = [(one.topic, one.partition) for one in partitions]
        gone = [self._owned[key] for key in keys if key in self._owned]
        self._commit_now(consumer, gone)
        committed = [owned for owned in gone if owned.committed == owned.commit()]
        self._lose(consumer, partitions)
        for owned in committed:
            self._starts.forget_withdrawn(owned)

    def _lose(self, consumer: Any, partitions: list[Any]) -> None:
        self._withdraw([(one.topic, one.partition) for one in partitions])
        consumer.incremental_unassign(partitions)
        log.info("partitions gone partitions=%s", sorted((one.topic, one.partition) for one in partitions))

    def _begin(self, consumer: Any, begins: list[Owned]) -> None:
        """Read partitions from where they stand."""
        at = [position(owned, owned.progress.next) for owned in begins]
        for owned in begins:
            self._owned[owned.topic, owned.number] = owned
            self._seen.add(owned.topic)
        consumer.incremental_assign(at)
        if at:  # the client keeps a partition paused that left and comes back
            (consumer.pause if self._is_paused else consumer.resume)(at)

    # Logs that were cut off, and topics that were made again

    def _find_again(self, owned: Owned) -> None:
        """Go on where the log of a partition has lost the position, because records were deleted or cut off."""
        topic = self.topics.describe([owned.topic]).get(owned.topic)
        if topic is None or topic.topic_id != owned.topic_id:
            self._made_again(owned.topic, topic)
            return
        progress = owned.progress
        low, high = self._starts.watermarks(self._consumer, owned.topic, owned.number)
        at = confluent().TopicPartition(owned.topic, owned.number)
        self._consumer.incremental_unassign([at])
        if progress.next < low:
            for begin, end in progress.lost(low):
                progress.hold(begin, end)
                self._listener.lost(owned, begin, end)
            progress.reached(low)
            self._begin(self._consumer, [owned])
            return
        # An unclean election: other records may stand at the offsets of those that were read.
        end = cut_at(self._settings, owned.topic, owned.number, progress, low, high)
        if end < progress.next:
            self._listener.lost(owned, end, progress.next)
        self._withdraw([(owned.topic, owned.number)])
        cut = f" cut off at {end} {time.monotonic_ns()}"
        begins = self._starts.owned(owned.topic, owned.number, owned.topic_id, before(progress, end), log=cut)
        self._begin(self._consumer, [begins])

    def _look_at_topics(self) -> None:
        """Compare the topics' ids with those of the assignment, at intervals, without waiting for the brokers."""
        now = time.monotonic()
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            try:
                found = self.topics.answers(asked)
            except confluent().KafkaException as exc:
                log.debug("topics not described error=%s", exc.args[0].name())
                return
            for name in asked:
                ids = {owned.topic_id for owned in self._owned.values() if owned.topic == name}
                if ids - {found[name].topic_id if name in found else None}:
                    self._made_again(name, found.get(name))
        elif not self._asked and now >= self._look_at and self._owned:
            self._look_at = now + _LOOK_SECS
            self._asked = self.topics.ask({name for name, _ in self._owned})

    def _made_again(self, name: str, topic: Topic | None) -> None:
        """Give up the records of a topic that is gone. If there is another one of this name, begin with it."""
        keys = [key for key in self._owned if key[0] == name]
        old = {self._owned[key].topic_id for key in keys}
        self._asked = {}  # an answer from before may be about the old topic
        self._withdraw(keys)
        if topic is None:
            log.warning("topic deleted topic=%s", name)
            return  # the client revokes its partitions
        kept = [key for key in keys if key[1] < topic.partitions]
        at = [confluent().TopicPartition(*key) for key in keys]
        self._consumer.incremental_unassign(at)
        for topic_id in old - {topic.topic_id}:
            self._listener.recreated(name, topic_id, topic.topic_id)
        begins = []
        for _, number in kept:
            low, _ = self._starts.watermarks(self._consumer, name, number)
            begins.append(self._starts.owned(name, number, topic.topic_id, PartitionProgress(low)))
        self._starts.commit(self._consumer, begins)
        self._begin(self._consumer, begins)

    # Commits

    def _changed(self, partitions: Iterable[Owned]) -> list[Any]:
        now = time.monotonic()
        commits = [(owned, owned.commit()) for owned in partitions]
        return [
            position(owned, *commit)
            for owned, commit in commits
            if commit != owned.committed or now - owned.committed_at > _AGAIN_SECS
        ]

    def _commit_now(self, consumer: Any, partitions: list[Owned]) -> None:
        """Commit, and wait for the answer. A refusal is logged, because all it costs is repeats."""
        kafka = confluent()
        for _ in range(MOST_BYTES.bit_length()):  # each time with half as much text
            offsets = self._changed(partitions)
            if not offsets:
                return
            try:
                answered = consumer.commit(offsets=offsets, asynchronous=False)
                error = next((at.error for at in answered if at.error is not None), None)
            except kafka.KafkaException as exc:
                answered, error = offsets, exc.args[0]
            self._answered(error, answered)
            if error is None or error.code() != kafka.KafkaError.OFFSET_METADATA_TOO_LARGE:
                return

    def _answered(self, error: Any, partitions: list[Any]) -> None:
        """Take the broker's answer to a commit. The client repeats an error of one partition for the others, too."""
        kafka = confluent().KafkaError
        self._commit_sent_at = None
        if error is not None and error.code() == kafka._NO_OFFSET:  # noqa: SLF001
            return
        for at in partitions:
            owned = self._owned.get((at.topic, at.partition))
            failed = at.error if at.error is not None else error
            if owned is None:
                continue
            if failed is None:
                owned.committed, owned.committed_at = (at.offset, at.metadata or ""), time.monotonic()
                continue
            self.refused_commits += 1
            owned.committed = None
            if failed.code() == kafka.OFFSET_METADATA_TOO_LARGE:
                owned.most_bytes = len((at.metadata or "").encode()) // 2
                self._commit_at = float("-inf")
            self._say(("commit", failed.code()), "commit refused partition=%s error=%s", owned, failed.name())


def _unanswered(owned: Owned) -> str:
    """Return what a commit would say, and what the last one said, if it is known."""
    return f"{owned.commit()[0]}" + ("" if owned.committed is None else f", committed {owned.committed[0]}")


def _in_background(do: Callable[[], None]) -> threading.Thread:
    """Start a thread for calls of the client that last until brokers answer. The end of the process ends it, too."""
    thread = threading.Thread(target=do, name="acker-kafka-close", daemon=True)
    thread.start()
    return thread


def _close(consumer: Any, after: threading.Thread | None = None) -> None:
    """Leave the group. The client must not be closed within another call of it, so that is waited for."""
    if after is not None:
        after.join()
    with suppress(confluent().KafkaException, RuntimeError):
        consumer.close()
