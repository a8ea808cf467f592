"""Replay of dead letters. A request is kept until its message is done, and is deleted with its letter.

A request is the letter's entry id, in a sorted set per spout id. It stays there while the message is processed, so the next
spout inherits it from a spout that dies. The letter stays, too, until the message is acked or has a new letter.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.dead_letters import DeadLetters

log = logging.getLogger("acker_redis.spout")

MOST_AT_ONCE = 1000
"""Largest number of dead letters that a spout replays at a time."""

ReplayLoader = Callable[[list[DeadLetter]], Iterable[int] | None]
"""Function that prepares the messages of letters with distinct message ids for emission.

It returns the ids of the messages it has, or None if that isn't known yet.
"""


class DeadLetterReplay:
    """Claim and finish the dead letters that a spout replays."""

    def __init__(
        self, client: Client, app: str, spout_id: int, load: ReplayLoader, only_run: str | None = None
    ) -> None:
        """Prepare the replay. With `only_run`, letters of other runs are left to other spouts."""
        self._only_run = only_run
        self._client, self._letters, self._load = client, DeadLetters(client, app), load
        self._key, self._dead = keys.replays(app, spout_id), keys.dead_letters(app)
        self._under_way: dict[int, list[str]] = {}

    @property
    def under_way(self) -> list[int]:
        """Messages that were claimed and aren't done."""
        return list(self._under_way)

    def claim(self, unfinished: Callable[[], Int64Array]) -> list[int]:
        """Claim requested letters. Return the messages to emit. Letters of `unfinished` messages wait."""
        if len(self._under_way) >= MOST_AT_ONCE:
            return []
        (requested,) = self._client.pipeline([("ZRANGE", self._key, 0, 2 * MOST_AT_ONCE - 1)])
        known = {entry_id for entry_ids in self._under_way.values() for entry_id in entry_ids}
        fresh = [entry_id for entry_id in map(bytes.decode, requested) if entry_id not in known]
        if not fresh:
            return []
        letters = self._letters.get(fresh)
        gone = [entry_id for entry_id, letter in zip(fresh, letters, strict=True) if letter is None]
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
        taken = set(loaded)
        refused = [letter.entry_id for message, letter in by_message.items() if message not in taken]
        if refused:
            log.warning(
                "dead letters not replayed, their source no longer has the messages count=%d entry_ids=%s", len(refused),
                ",".join(refused[:10]),
            )  # fmt: skip
        self._forget([*gone, *refused])
        self._under_way |= {message: [by_message[message].entry_id] for message in taken}
        return sorted(taken)

    def done(self, message_ids: Int64Array) -> None:
        """Delete the letters of messages that were acked or have a new letter."""
        if not self._under_way:
            return
        entry_ids = [entry_id for message in message_ids.tolist() for entry_id in self._under_way.get(message, ())]
        if entry_ids:
            self._client.pipeline([("XDEL", self._dead, *entry_ids), ("ZREM", self._key, *entry_ids)])
        for message in message_ids.tolist():
            self._under_way.pop(message, None)

    def _forget(self, entry_ids: Sequence[str]) -> None:
        if entry_ids:
            self._client.pipeline([("ZREM", self._key, *entry_ids)])
