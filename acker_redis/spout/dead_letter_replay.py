"""Dead letters that are to be replayed: requested until their messages are done, then gone with their letters.

A request is the letter's entry id in a sorted set of the spout_id. It stays there while the message is worked on, so a
spout that dies leaves it to the next; the letter stays, too, until the message is acked or has a new one.
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
"""So many messages of letters are in a spout at a time."""

ReplayLoader = Callable[[list[DeadLetter]], Iterable[int] | None]
"""Given letters with different message ids, gets their messages ready to be emitted; gives the ids of those it has.

None: it can't say yet.
"""


class Replaying:
    """The letters that a spout of one spout_id replays."""

    def __init__(
        self, client: Client, app: str, spout_id: int, load: ReplayLoader, only_run: str | None = None
    ) -> None:
        """Nothing is taken yet. `only_run`: letters of other runs are left to other spouts."""
        self._only_run = only_run
        self._client, self._letters, self._load = client, DeadLetters(client, app), load
        self._key, self._dead = keys.replays(app, spout_id), keys.dead_letters(app)
        self._under_way: dict[int, list[str]] = {}

    @property
    def under_way(self) -> list[int]:
        """Messages that were taken and are not done."""
        return list(self._under_way)

    def look(self, left: Callable[[], Int64Array]) -> list[int]:
        """Take letters that are wanted; gives the messages to emit. Those of `left`, which are not done, wait for that."""
        if len(self._under_way) >= MOST_AT_ONCE:
            return []
        (wanted,) = self._client.pipeline([("ZRANGE", self._key, 0, 2 * MOST_AT_ONCE - 1)])
        known = {entry_id for entry_ids in self._under_way.values() for entry_id in entry_ids}
        fresh = [entry_id for entry_id in map(bytes.decode, wanted) if entry_id not in known]
        if not fresh:
            return []
        letters = self._letters.get(fresh)
        gone = [entry_id for entry_id, letter in zip(fresh, letters, strict=True) if letter is None]
        busy = set(left().tolist())
        by_message: dict[int, DeadLetter] = {}
        for letter in letters[:MOST_AT_ONCE]:
            if letter is None or (self._only_run is not None and letter.run_id != self._only_run):
                continue
            if letter.message_id in self._under_way:  # a letter that stands twice
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
                "%d dead letters can't be replayed, as their messages are not to be had any more: %s", len(refused),
                ", ".join(refused[:10]),
            )  # fmt: skip
        self._forget([*gone, *refused])
        self._under_way |= {message: [by_message[message].entry_id] for message in taken}
        return sorted(taken)

    def done(self, message_ids: Int64Array) -> None:
        """Messages were acked, or have a new letter: their old ones go."""
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
