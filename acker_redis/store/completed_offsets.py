"""Up to where all messages of a partition are done, for those who read what a stream wrote."""

from collections.abc import Mapping, Sequence

import numpy as np

from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array

MOST_PARTITIONS = 10_000
"""So many are kept, those that were seen last; where each file is a partition there would be no end of them."""

_PART = 1000


def read(client: Client, app: str, task: int) -> dict[str, int]:
    """What was written last."""
    (reply,) = client.pipeline([("HGETALL", keys.done_until(app, task))])
    return {name.decode(): int(value) for name, value in as_dict(reply).items()}


def write(client: Client, app: str, task: int, values: Mapping[str, int], gone: Sequence[str]) -> None:
    """Values that changed, and partitions that are not kept any more."""
    key, pairs = keys.done_until(app, task), list(values.items())
    commands: list[tuple[str | int, ...]] = [("HDEL", key, *gone[at : at + _PART]) for at in range(0, len(gone), _PART)]
    commands += [
        ("HSET", key, *(word for pair in pairs[at : at + _PART] for word in pair)) for at in range(0, len(pairs), _PART)
    ]
    if commands:
        client.pipeline(commands)


class DoneUntil:
    """The first offset of each partition that is not known to be done, from the micro-batches of a stream.

    Offsets of a partition have to come in their order; one that comes after a larger one is not waited for.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        self.values = dict(known)
        self._ends = dict(known)
        self._open: dict[int, tuple[str, int]] = {}
        self.take(np.array([], np.int64), (), np.array([], np.int64), np.array([], np.int64))

    def take(self, ids: Int64Array, names: Sequence[str], of_message: Int64Array, offsets: Int64Array) -> None:
        """A micro-batch, or what a restart found open: of each message the number of its partition, and its offset."""
        self._ids, self._names, self._of_message, self._offsets = ids, names, of_message, offsets

    def update(self, left: Int64Array) -> list[str]:
        """The micro-batch is over, and only `left` are not done, of all so far; gives partitions that are forgotten."""
        still = set(left.tolist())
        self._open = {message: place for message, place in self._open.items() if message in still}
        for row in np.flatnonzero(np.isin(self._ids, left)).tolist():
            self._open[int(self._ids[row])] = self._names[self._of_message[row]], int(self._offsets[row])
        highest = np.full(len(self._names), -1, np.int64)
        np.maximum.at(highest, self._of_message, self._offsets)
        for name, last in zip(self._names, highest.tolist(), strict=True):
            self._ends[name] = max(self._ends.pop(name, 0), last + 1)  # the last one seen stands last
        self.take(self._ids[:0], (), self._of_message[:0], self._offsets[:0])
        first: dict[str, int] = {}
        for name, offset in self._open.values():
            first[name] = min(offset, first.get(name, offset))
        spare = max(0, len(self._ends) - MOST_PARTITIONS)
        gone = [name for name in self._ends if name not in first][:spare]
        for name in gone:
            del self._ends[name]
            self.values.pop(name, None)
        for name, end in self._ends.items():
            self.values[name] = max(self.values.get(name, 0), first.get(name, end))
        return gone
