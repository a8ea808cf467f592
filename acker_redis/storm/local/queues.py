"""Queues of a run: one per pair of tasks, so that the tuples of a pair keep their order."""

import time
from collections import deque
from collections.abc import Mapping

from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.local.bolts import BoltTask


class Queues:
    """Tuples on their way from task to task.

    Attributes:
        pairs: pairs of sender and target whose queue has tuples, in no order.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._queues: dict[tuple[int, int], deque[Tuple]] = {}
        self._places: dict[tuple[int, int], int] = {}
        self._cursor = 0

    def put(self, sender: int, target: int, tup: Tuple) -> None:
        """Put a tuple into the queue of two tasks."""
        pair = (sender, target)
        queue = self._queues.get(pair)
        if queue is None:
            queue = self._queues[pair] = deque()
        if pair not in self._places:
            self._places[pair] = len(self.pairs)
            self.pairs.append(pair)
        queue.append(tup)

    def take(self, place: int) -> tuple[int, Tuple]:
        """Take the first tuple of a pair, by the pair's place in `pairs`. Returns its target, too."""
        pair = self.pairs[place]
        queue = self._queues[pair]
        tup = queue.popleft()
        if not queue:
            self._close(place)
        return pair[1], tup

    def drain(self, tasks: Mapping[int, BoltTask], deadline: float) -> int:
        """Execute tuples, all of a pair's in a row, until none is left or the time is up. Returns their number."""
        count, now = 0, time.monotonic
        while self.pairs:
            self._cursor = (self._cursor + 1) % len(self.pairs)
            pair = self.pairs[self._cursor]
            queue = self._queues[pair]
            execute = tasks[pair[1]].execute
            for _ in range(len(queue)):
                count += 1
                execute(queue.popleft())
                if now() > deadline:
                    return count
            if not queue:
                self._close(self._places[pair])
        return count

    def _close(self, place: int) -> None:
        last = self.pairs.pop()
        if place < len(self.pairs):
            del self._places[self.pairs[place]]
            self.pairs[place] = last
            self._places[last] = place
        else:
            del self._places[last]
