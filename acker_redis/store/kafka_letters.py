"""Dead letters of records of Kafka. An offset passes a letter once it is safe, so until then it waits here."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

from acker_redis.errors import AckerError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.letter_topic import Letter, LetterTopic, about
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress

_SECURE_SECS, _SAID_SECS = 1.0, 60.0
"""Intervals between looks at letters that aren't copied, and between log lines about them."""

_T = TypeVar("_T")


class UnsafeLetter(NamedTuple):
    """A letter that was written, and the offset that waits until it is safe."""

    letter: DeadLetter
    owned: Owned
    offset: int


class KafkaLetters:
    """Letters that were written and aren't safe yet. One thread uses the object."""

    def __init__(
        self,
        progress: KafkaProgress,
        add: Callable[[list[DeadLetter]], list[str]],
        log: logging.Logger,
        *,
        app: str = "",
        group: str = "",
        topic: LetterTopic | None = None,
        call: Callable[[Callable[[], Any]], Any] = lambda do: do(),
    ) -> None:
        """Prepare.

        Args:
            progress: progress of the group.
            add: call that writes letters to Redis, and returns their entry ids.
            log: logger of the run.
            app: name of the app.
            group: consumer group.
            topic: topic that gets the letters, too.
            call: call of a function that needs the server; by default once.
        """
        self._progress, self._add, self._log = progress, add, log
        self._app, self._group, self._topic, self._call = app, group, topic, call
        self._in_redis_alone: set[str] = set()
        self._unsafe: dict[str, UnsafeLetter] = {}
        self._secure_at = self._said_at = float("-inf")

    def wait(self, letter: DeadLetter, owned: Owned, offset: int, record: Any = None) -> None:
        """Let an offset wait for a letter that was written, and send the letter to the topic, if there is one."""
        self._unsafe[letter.entry_id] = UnsafeLetter(letter, owned, offset)
        if self._topic is None:
            return
        of_letter = about(
            app=self._app, group=self._group, place=json.loads(letter.place or "{}"), stage=letter.last_component,
            reason=letter.reason, detail=letter.detail, attempts=letter.attempts, run_id=letter.run_id,
        )  # fmt: skip
        headers = [] if record is None else record.headers() or []
        key, value = (None, None) if record is None else (record.key(), record.value())
        self._topic.send(letter.entry_id, Letter(key, value, headers, of_letter))

    def write(self, letter: DeadLetter, owned: Owned, offset: int) -> None:
        """Write a letter, and let the offset wait for it.

        Raises:
            AckerError: the server is unavailable. Nothing waits.
        """
        (entry_id,) = self._call(lambda: self._add([letter]))
        self.wait(letter._replace(entry_id=entry_id), owned, offset)

    def secure(self) -> None:
        """Let offsets pass dead letters that are safe. Letters that the server has lost are written again.

        Raises:
            AckerError: the server is unavailable. The offsets go on waiting.
        """
        if self._topic is not None and self._unsafe:
            delivered, given_up = self._topic.collect()
            self._pass(delivered)
            self._in_redis_alone.update(given_up)
        waiting = [entry_id for entry_id in self._unsafe if self._topic is None or entry_id in self._in_redis_alone]
        if not waiting or time.monotonic() < self._secure_at:
            return
        is_copied, missing = self._call(lambda: self._progress.look_at_letters(waiting))
        if missing:
            self._log.warning("dead letters lost by the server, written again count=%d", len(missing))
            self._write_again(missing)
        if is_copied:
            self._pass([entry_id for entry_id in waiting if entry_id not in missing])
            return
        now = time.monotonic()
        self._secure_at = now + _SECURE_SECS
        if now - self._said_at > _SAID_SECS:
            self._said_at = now
            self._log.warning("dead letters not copied yet, their offsets wait count=%d", len(waiting))

    def release(self, place: str) -> Owned | None:
        """Give up the wait for the letter of a record, whose replay is over. Return the partition that waited, or None.

        Args:
            place: place of the record, as its letters have it.
        """
        released = self._release(lambda letter: letter.place == place)
        return released[-1].owned if released else None

    def release_message(self, message_id: int) -> UnsafeLetter | None:
        """Give up the wait for the letter of a message, whose id is the same in all runs. Return what waited, or None."""
        released = self._release(lambda letter: letter.message_id == message_id)
        return released[-1] if released else None

    @property
    def waiting(self) -> list[UnsafeLetter]:
        """Letters that offsets wait for."""
        return list(self._unsafe.values())

    def count(self, owned: Owned) -> int:
        """Return the number of letters that offsets of a partition wait for."""
        return sum(unsafe.owned is owned for unsafe in self._unsafe.values())

    def offsets(self, owned: Owned) -> list[int]:
        """Return the offsets of a partition that wait for letters."""
        return [unsafe.offset for unsafe in self._unsafe.values() if unsafe.owned is owned]

    def _release(self, is_over: Callable[[DeadLetter], bool]) -> list[UnsafeLetter]:
        entry_ids = [entry_id for entry_id, unsafe in self._unsafe.items() if is_over(unsafe.letter)]
        self._in_redis_alone.difference_update(entry_ids)
        return [self._unsafe.pop(entry_id) for entry_id in entry_ids]

    def _pass(self, entry_ids: Iterable[str]) -> None:
        for entry_id in entry_ids:
            self._in_redis_alone.discard(entry_id)
            if (unsafe := self._unsafe.pop(entry_id, None)) is not None:
                unsafe.owned.progress.done(unsafe.offset)

    def _write_again(self, missing: list[str]) -> None:
        letters = [self._unsafe[entry_id].letter for entry_id in missing]
        entry_ids = self._call(lambda: self._add(letters))
        for old, entry_id in zip(missing, entry_ids, strict=True):
            unsafe = self._unsafe.pop(old)
            self._unsafe[entry_id] = unsafe._replace(letter=unsafe.letter._replace(entry_id=entry_id))
            self._in_redis_alone.discard(old)
            self._in_redis_alone.add(entry_id)


def letter_of_lost(
    owned: Owned, begin: int, end: int, *, on_lost: Literal["letter", "raise"], group: str, run_id: str, spout_id: int,
    log: logging.Logger,
) -> DeadLetter:  # fmt: skip
    """Make the dead letter of a range of records that are gone.

    Raises:
        AckerError: the run is to end instead.
    """
    text = f"Records {begin} to {end - 1} of {owned} were deleted before they were read."
    if on_lost == "raise":
        raise AckerError(
            f'{text} Retention may be too short. Nothing was committed beyond them. Pass on_lost="letter" to go on with a '
            "dead letter for them."
        )
    log.error("records lost topic=%s partition=%d begin=%d end=%d", owned.topic, owned.number, begin, end)
    place = {
        "group": group,
        "topic": owned.topic,
        "topic_id": owned.topic_id,
        "partition": owned.number,
        "offset": begin,
        "until": end,
    }
    return DeadLetter(owned.first_id + begin, run_id, 0, "lost", None, text, spout_id=spout_id, place=json.dumps(place))


def check_recreated(
    topic: str, topic_id: str, new_id: str, *, on_recreated: Literal["raise", "restart"], log: logging.Logger
) -> None:
    """Log that a topic was made again.

    Raises:
        AckerError: the run is to end instead.
    """
    if on_recreated == "raise":
        raise AckerError(
            f"Topic {topic!r} was deleted and created again (id {topic_id}, now {new_id}). Records of the old one that "
            'were not processed are gone. Pass on_recreated="restart" to read the new one from its beginning.'
        )
    log.error("topic recreated, reading it from its beginning topic=%s old_id=%s new_id=%s", topic, topic_id, new_id)
