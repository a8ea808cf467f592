"""Completed offset of each partition of a stream, computed from its micro-batches. No I/O."""

from collections.abc import Mapping, Sequence

import numpy as np

from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import MessageNames

MAX_PARTITIONS = 10_000
"""Partitions that are kept, those seen last. If each file is a partition, their number would grow without limit."""


class CompletedOffsets:
    """Keep completed offsets by partition, and which of them are not published yet.

    The offsets of a partition must arrive in order. An offset that arrives after a larger one is not waited for.

    Attributes:
        values: partition -> first offset that is not known to be done.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        """Start with the published offsets."""
        self.values = dict(known)
        self._published = dict(known)
        self._ends = dict(known)
        self._open: dict[int, tuple[str, int]] = {}
        self.add(np.array([], np.int64), (), np.array([], np.int64), np.array([], np.int64))

    @property
    def unpublished(self) -> dict[str, int]:
        """Values that changed since they were published."""
        return {name: offset for name, offset in self.values.items() if self._published.get(name) != offset}

    @property
    def open(self) -> Mapping[int, tuple[str, int]]:
        """Messages that weren't done at the last `update`: message id -> partition, offset."""
        return self._open

    def places_of(self, messages: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Find partition and offset of messages of this micro-batch, or of open ones. The others are left out."""
        found = {message: self._open[message] for message in messages if message in self._open}
        for row in np.flatnonzero(np.isin(self._ids, messages)).tolist():
            found.setdefault(int(self._ids[row]), (self._names[self._of_message[row]], int(self._offsets[row])))
        return found

    def names_of(self, messages: Int64Array) -> MessageNames:
        """Return the places of messages of this micro-batch, or of open ones, as names. Any thread may call this.

        Raises:
            KeyError: a message is none of them.
        """
        ids, names, of_message, offsets = self._batch  # before the open ones, which get those of the batch
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        partition_of, numbers = np.zeros(len(messages), np.int64), np.zeros(len(messages), np.int64)
        rows = np.searchsorted(ids, messages)
        is_of_batch = np.zeros(len(messages), np.bool_)
        is_inside = rows < len(ids)
        is_of_batch[is_inside] = ids[rows[is_inside]] == messages[is_inside]
        found = order[rows[is_of_batch]]
        partition_of[is_of_batch], numbers[is_of_batch] = of_message[found], offsets[found]
        known = {name: index for index, name in enumerate(names)}
        for row in np.flatnonzero(~is_of_batch).tolist():
            name, offset = self._open[int(messages[row])]
            partition_of[row], numbers[row] = known.setdefault(name, len(known)), offset
        return MessageNames(list(known), partition_of, numbers)

    def mark_published(self, values: Mapping[str, int]) -> None:
        """Record that `values` were published."""
        self._published |= values

    def add(self, ids: Int64Array, names: Sequence[str], of_message: Int64Array, offsets: Int64Array) -> None:
        """Add a micro-batch, or the open messages after a restart.

        Args:
            ids: message ids.
            names: names of the partitions.
            of_message: index into `names`, per message.
            offsets: offset in the partition, per message.
        """
        self._ids, self._names, self._of_message, self._offsets = ids, names, of_message, offsets
        self._batch = ids, names, of_message, offsets  # at once, because another thread may read it

    def update(self, left: Int64Array) -> list[str]:
        """End the micro-batch. Return the partitions that are no longer kept.

        Args:
            left: ids of all messages so far that are not done.
        """
        still = set(left.tolist())
        self._open = {message: place for message, place in self._open.items() if message in still}
        for row in np.flatnonzero(np.isin(self._ids, left)).tolist():
            self._open[int(self._ids[row])] = self._names[self._of_message[row]], int(self._offsets[row])
        highest = np.full(len(self._names), -1, np.int64)
        np.maximum.at(highest, self._of_message, self._offsets)
        for name, last in zip(self._names, highest.tolist(), strict=True):
            self._ends[name] = max(self._ends.pop(name, 0), last + 1)  # moved to the end: seen last
        self.add(self._ids[:0], (), self._of_message[:0], self._offsets[:0])
        first: dict[str, int] = {}
        for name, offset in self._open.values():
            first[name] = min(offset, first.get(name, offset))
        spare = max(0, len(self._ends) - MAX_PARTITIONS)
        gone = [name for name in self._ends if name not in first][:spare]
        for name in gone:
            del self._ends[name]
            self.values.pop(name, None)
            self._published.pop(name, None)
        for name, end in self._ends.items():
            self.values[name] = max(self.values.get(name, 0), first.get(name, end))
        return gone
