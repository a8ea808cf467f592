"""Messages that wait for their next emission, by the reason why they wait. Each emission has messages of one kind."""

from collections import deque
from dataclasses import replace

import numpy as np

from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.spout.in_flight import Attempts, Mask, Replays, in_order
from acker_redis.spout.poison_search import PoisonSearch

FAILED_JOBS = ""
"""Cause of messages that are set aside because each job with them has failed. Other causes are names of operators."""


class Waiting:
    """Fresh messages, replays, messages that are searched for poison, and held ones. The caller provides the time.

    Messages that are *set aside* aren't emitted until they are brought back.

    Attributes:
        poison_search: messages of emissions whose jobs failed.
        held_until: time before which held messages aren't due, as `time.monotonic`.
    """

    def __init__(self, *, goes_on: bool) -> None:
        """Start without messages. `goes_on` is as for `Spout`."""
        self.poison_search = PoisonSearch(goes_on=goes_on)
        self.held_until = float("-inf")
        self._fresh: deque[Int64Array] = deque()
        self._replays, self._held = Replays(), Replays()
        self._aside: dict[str, Replays] = {}
        self._aside_since: dict[str, float] = {}
        self._turn = 0

    @property
    def is_empty(self) -> bool:
        """Return True if no message waits."""
        return not (self._fresh or self._replays or self._held or self.poison_search or self._aside)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.fresh + len(self._replays) + len(self._held) + len(self.poison_search) + self._aside_count

    @property
    def aside(self) -> str | None:
        """Cause of messages that are set aside, if no other messages wait; else None."""
        return next(iter(self._aside), None) if self._aside_count == self.count else None

    def aside_counts(self) -> list[tuple[str, int, float]]:
        """List the causes of messages that are set aside, with their number and the time of the first. Thread-safe."""
        return [(cause, len(queue), self._aside_since[cause]) for cause, queue in list(self._aside.items())]

    @property
    def _aside_count(self) -> int:
        return sum(map(len, self._aside.values()))

    @property
    def fresh(self) -> int:
        """Number of messages that were not emitted yet."""
        return sum(len(part) for part in self._fresh)

    def fresh_ids(self) -> Int64Array:
        """Return the ids of messages that were not emitted yet."""
        return np.concatenate([np.array([], np.int64), *self._fresh])

    def attempts(self) -> tuple[Attempts, FloatArray]:
        """Return the next emissions of messages that were emitted before, and their due times."""
        aside = [queue.all() for queue in self._aside.values()]
        waiting = [self._replays.all(), self._held.all(), self.poison_search.all(), *aside]
        return Attempts.concatenate([attempts for attempts, _ in waiting]), np.concatenate([due for _, due in waiting])

    def retried(self) -> Attempts:
        """Return the next emissions of messages that failed. Held ones, and those set aside, only wait for these."""
        return Attempts.concatenate([self._replays.all()[0], self.poison_search.all()[0]])

    def add_fresh(self, message_ids: Int64Array) -> None:
        """Add messages that were not emitted yet."""
        self._fresh.append(np.array(message_ids, np.int64))  # a copy, because they stay here until they are done

    def add(self, attempts: Attempts, due: FloatArray, searched: Mask) -> None:
        """Queue attempts until they are due. `searched` marks separate ones that aren't known to be poison."""
        apart = attempts.max_group > 0
        if not apart.any():
            self._replays.add(attempts, due)
            return
        self._replays.add(attempts[~apart], due[~apart])
        searched = searched | (attempts.max_group > 1)
        for rows, counted in ((apart & searched, False), (apart & ~searched, True)):
            if rows.any():
                self.poison_search.add(attempts[rows], due[rows], counted)

    def hold(self, attempts: Attempts, now: float) -> None:
        """Queue attempts until nothing else waits."""
        due = np.full(len(attempts), max(now, self.held_until))
        self._held.add(replace(attempts, max_group=np.zeros(len(attempts), np.int32)), due)

    def set_aside(self, attempts: Attempts, cause: str, now: float) -> None:
        """Keep attempts until `bring_back` is called for their cause."""
        if len(attempts):
            if cause not in self._aside:
                self._aside_since[cause] = now
            self._aside.setdefault(cause, Replays()).add(attempts, np.zeros(len(attempts)))

    def bring_back(self, cause: str) -> None:
        """Queue the attempts that were set aside for a cause. They are due at once."""
        if cause in self._aside:
            attempts, due = self._aside.pop(cause).all()
            self.add(attempts, due, np.zeros(len(attempts), np.bool_))

    def remove(self, message_ids: Int64Array) -> None:
        """Remove messages that are no longer this spout's."""
        fresh = (part[~np.isin(part, message_ids)] for part in self._fresh)
        self._fresh = deque(part for part in fresh if len(part))
        self.poison_search.remove(message_ids)
        for queue in (self._replays, self._held, *self._aside.values()):
            queue.remove(message_ids)
        self._aside = {cause: queue for cause, queue in self._aside.items() if len(queue)}

    def take(self, now: float, room: int | None, due_by: float, number: int) -> tuple[int, Attempts]:
        """Remove and return the messages of an emission, and how many of them are replays.

        Args:
            now: current time.
            room: limit on their number.
            due_by: time by which replays must have been due.
            number: number of emissions so far.
        """
        search = self.poison_search
        for turn in range(3):
            first = 0 if search.is_stuck else 1 if search.in_doubt else self._turn  # stuck: only others can succeed
            kind = (turn + first) % 3
            if kind == 0:
                kept = 0 if room is None else self._kept_for_fresh(room, number)
                replays = self._replays.take_due(due_by, room if room is None else room - kept)
                fresh = Attempts.first(self._take_fresh(None if room is None else room - len(replays)))
                taken, count = Attempts.concatenate([replays, fresh]), len(replays)
                search.under_way = "others"
            else:
                taken = search.take_searched(now, room) if kind == 1 else search.take_known(due_by, room)
                count = len(taken)
            if len(taken):
                self._turn = kind + 1
                return count, taken
        if not (self._fresh or self._replays or search):
            # All at once, whatever room there is, because a part of them could not be written.
            held = self._held.take_due(now, None)
            if len(held):
                search.under_way = "others"
            return len(held), held
        return 0, Attempts.first(np.array([], np.int64))

    def _take_fresh(self, room: int | None) -> Int64Array:
        parts = [np.array([], np.int64)]
        while self._fresh and room != 0:
            messages = self._fresh.popleft()
            if room is not None and len(messages) > room:
                self._fresh.appendleft(messages[room:])
                messages = messages[:room]
            parts.append(messages)
            room = None if room is None else room - len(messages)
        return in_order(np.concatenate(parts))  # so that the messages of a block are adjacent

    def _kept_for_fresh(self, room: int, number: int) -> int:
        """Return the room reserved for fresh messages: half, so that repeated replays don't block them."""
        return min(self.fresh, room // 2 if room > 1 else number % 2 * room)
