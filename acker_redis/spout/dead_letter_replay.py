"""Replay of dead letters. A request is kept until its message is done, and is deleted with its letter.

A request is the letter's entry id, in a sorted set per spout id. It stays there while the message is processed, so the next
spout inherits it from a spout that dies. The letter stays, too, until the message is acked or has a new letter.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array
from acker_redis.spout.state import LetterLog
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.dead_letters import DeadLetters

log = logging.getLogger("acker_redis.spout")

MOST_AT_ONCE = 1000
"""Largest number of dead letters that a spout replays at a time."""


@dataclass(frozen=True)
class LoadedReplays:
    """Messages that a loader has, if it logs itself why it refuses the others.

    Attributes:
        message_ids: 64-bit ids.
    """

    message_ids: Iterable[int]


ReplayLoader = Callable[[list[DeadLetter]], Iterable[int] | LoadedReplays | None]
"""Function that prepares the messages of letters with distinct message ids for emission.

It returns the ids of the messages it has, or None if that isn't known yet.
"""


class DeadLetterReplay:
    """Claim and finish the dead letters that a spout replays."""

    def __init__(
        self,
        client: Client,
        app: str,
        spout_id: int,
        load: ReplayLoader,
        only_run: str | None = None,
        identify: Callable[[DeadLetter], int | None] | None = None,
    ) -> None:
        """Prepare the replay.

        Args:
            client: client of the server.
            app: name of the app.
            spout_id: number of the spout.
            load: loader of the messages.
            only_run: run whose letters are replayed. Those of other runs are left to other spouts. None: all.
            identify: function that returns the message id in this run. It returns None for letters that are left to others.
                None: a letter's own id.
        """
        self._only_run, self._identify, self._spout_id = only_run, identify, spout_id
        self._client, self._app, self._letters, self._load = client, app, DeadLetters(client, app), load
        self._key, self._dead = keys.replays(app, spout_id), keys.dead_letters(app)
        self._under_way: dict[int, list[str]] = {}

    @property
    def under_way(self) -> list[int]:
        """Messages that were claimed and aren't done."""
        return list(self._under_way)

    def claim(self, unfinished: Callable[[], Int64Array], letter_log: LetterLog | None = None) -> list[int]:
        """Claim requested letters. Return the messages to emit. Letters of `unfinished` messages wait.

        A `letter_log` decides that messages run again, before they do. Letters that it doesn't need any more are deleted.
        """
        if len(self._under_way) >= MOST_AT_ONCE:
            return []
        (requested,) = self._client.pipeline([("ZRANGE", self._key, 0, 2 * MOST_AT_ONCE - 1)])
        known = {entry_id for entry_ids in self._under_way.values() for entry_id in entry_ids}
        fresh = [entry_id for entry_id in map(bytes.decode, requested) if entry_id not in known]
        if not fresh:
            return []
        letters = self._letters.get(fresh)
        gone = [entry_id for entry_id, letter in zip(fresh, letters, strict=True) if letter is None]
        if self._identify is not None:
            letters = [_identified(letter, self._identify) for letter in letters]
        if letter_log is not None:
            letters = self._needed([letter for letter in letters if letter is not None], letter_log)
        busy = set(unfinished().tolist())
        by_message: dict[int, DeadLetter] = {}
        for letter in letters[:MOST_AT_ONCE]:
            if letter is None or (self._only_run is not None and letter.run_id != self._only_run):
                continue
            if letter.message_id in self._under_way:  # a letter that was written twice
                self._under_way[letter.message_id].append(letter.entry_id)
            elif letter.message_id not in busy:
                by_message.setdefault(letter.message_id, letter)
        loaded = self._load(list(by_message.values())) if by_message else []
        if loaded is None:
            return []
        taken = set(loaded.message_ids if isinstance(loaded, LoadedReplays) else loaded)
        refused = [letter.entry_id for message, letter in by_message.items() if message not in taken]
        if refused and not isinstance(loaded, LoadedReplays):
            log.warning(
                "dead letters not replayed, their source no longer has the messages count=%d entry_ids=%s", len(refused),
                ",".join(refused[:10]),
            )  # fmt: skip
        self._forget([*refused, *gone])
        if letter_log is not None and taken:
            taken = letter_log.reopen([by_message[message] for message in taken])
        self._under_way |= {message: [by_message[message].entry_id] for message in taken}
        return sorted(taken)

    def take_over(self, spout_ids: Iterable[int]) -> None:
        """Take over the requests of spouts that don't run, for letters that `identify` knows."""
        for spout_id in spout_ids:
            key = keys.replays(self._app, spout_id)
            (requested,) = self._client.pipeline([("ZRANGE", key, 0, MOST_AT_ONCE - 1, "WITHSCORES")])
            scores = {entry_id.decode(): score for entry_id, score in _pairs(requested)}
            own = [
                letter.entry_id for letter in self._letters.get(list(scores))
                if letter is not None and self._identify is not None and self._identify(letter) is not None
            ]  # fmt: skip
            if own:
                # First here, then gone there: a crash in between repeats a replay, and loses none. Before both, the rotator
                # learns where requests are, so that it keeps their letters. One pipeline would go on behind a refusal.
                added = [value for entry_id in own for value in (scores[entry_id], entry_id)]
                self._client.pipeline([("SADD", keys.replay_takers(self._app), self._spout_id)])
                self._client.pipeline([("ZADD", self._key, "NX", *added)])
                self._client.pipeline([("ZREM", key, *own)])

    def done(self, message_ids: Int64Array) -> None:
        """Delete the letters of messages that were acked or have a new letter."""
        if not self._under_way:
            return
        entry_ids = [entry_id for message in message_ids.tolist() for entry_id in self._under_way.get(message, ())]
        if entry_ids:
            self._client.pipeline([("XDEL", self._dead, *entry_ids), ("ZREM", self._key, *entry_ids)])
        for message in message_ids.tolist():
            self._under_way.pop(message, None)

    def _needed(self, letters: list[DeadLetter], letter_log: LetterLog) -> list[DeadLetter | None]:
        """Delete letters that nobody needs, and forget requests for those that something else decided. Return the others."""
        outdated, foreign = letter_log.judge(letters)
        if outdated:
            self._client.pipeline([("XDEL", self._dead, *outdated), ("ZREM", self._key, *outdated)])
        if foreign:
            log.warning(
                "dead letters not replayed, as the publish log of once= hasn't decided them; they stay count=%d entry_ids=%s",
                len(foreign), ",".join(sorted(foreign)[:10]),
            )  # fmt: skip
            self._forget(sorted(foreign))
        return [letter for letter in letters if letter.entry_id not in outdated | foreign]

    def _forget(self, entry_ids: Sequence[str]) -> None:
        if entry_ids:
            self._client.pipeline([("ZREM", self._key, *entry_ids)])


def _identified(letter: DeadLetter | None, identify: Callable[[DeadLetter], int | None]) -> DeadLetter | None:
    """Give a letter the message id of this run. None if it has none."""
    message_id = None if letter is None else identify(letter)
    return None if letter is None or message_id is None else letter._replace(message_id=message_id)


def _pairs(reply: Sequence[Any]) -> list[tuple[bytes, bytes]]:
    """Return the members and scores of a reply, which has them in pairs or one behind the other."""
    if reply and isinstance(reply[0], (tuple, list)):
        return [(bytes(member), str(score).encode()) for member, score in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))
