"""Names of messages that hold for ever: a number, or an offset within a partition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.id_ranges import IdRanges, ids_of, ranges_of

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MessageNames:
    """Names of some messages.

    Attributes:
        partitions: names of the partitions. Messages that have an id and no place are all in the partition `""`.
        partition_of: index into `partitions`, per message.
        numbers: offset in the partition, or the id, per message.
    """

    partitions: list[str]
    partition_of: Int64Array
    numbers: Int64Array

    @classmethod
    def of_ids(cls, ids: Int64Array) -> Self:
        """Return the names of messages that have ids."""
        return cls([""], np.zeros(len(ids), np.int64), ids)

    @classmethod
    def one(cls, partition: str, number: int) -> Self:
        """Return the name of one message."""
        return cls([partition], np.zeros(1, np.int64), np.array([number], np.int64))

    @classmethod
    def of_places(cls, places: Sequence[tuple[str, int]]) -> Self:
        """Return the names of messages in partitions, by partition and number."""
        indexes: dict[str, int] = {}
        partition_of = [indexes.setdefault(partition, len(indexes)) for partition, _ in places]
        numbers = [number for _, number in places]
        return cls(list(indexes), np.array(partition_of, np.int64), np.array(numbers, np.int64))

    def joined(self, others: "MessageNames", where: Mask) -> Self:
        """Return these names, with others in the positions that the mask has."""
        indexes = {partition: index for index, partition in enumerate(self.partitions)}
        of_others = [indexes.setdefault(partition, len(indexes)) for partition in others.partitions]
        partition_of, numbers = np.empty(len(where), np.int64), np.empty(len(where), np.int64)
        partition_of[~where], numbers[~where] = self.partition_of, self.numbers
        partition_of[where] = np.array(of_others, np.int64)[others.partition_of]
        numbers[where] = others.numbers
        return replace(self, partitions=list(indexes), partition_of=partition_of, numbers=numbers)

    def only(self, which: Mask | Int64Array) -> Self:
        """Return the names of some of the messages, by a mask or by their positions."""
        return replace(self, partition_of=self.partition_of[which], numbers=self.numbers[which])

    def ranges(self) -> dict[str, Int64Array]:
        """Return the ranges of numbers per partition that has any."""
        return {self.partitions[index]: ranges_of(self.numbers[rows]) for index, rows in self.by_partition()}

    def by_partition(self) -> Iterator[tuple[int, Int64Array]]:
        """Yield the partitions that have messages, as an index into `partitions`, with the positions of their messages."""
        order = np.argsort(self.partition_of, kind="stable")
        indexes, begins = np.unique(self.partition_of[order], return_index=True)
        yield from zip(indexes.tolist(), np.split(order, begins[1:]) if len(order) else [], strict=True)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.numbers)


class NamesById:
    """Names of messages whose ids are derived from partition and offset, and mean nothing elsewhere."""

    def __init__(self, ids: Int64Array, names: MessageNames) -> None:
        """Set the names. `ids` are distinct."""
        order = np.argsort(ids)
        self._ids, self._names = ids[order], names.only(order)

    def __call__(self, ids: Int64Array) -> MessageNames:
        """Return the names of messages with these ids, all of which are known."""
        return self._names.only(np.searchsorted(self._ids, ids))


class MessageSet:
    """A growing set of messages."""

    def __init__(self) -> None:
        """Start with an empty set."""
        self._of: dict[str, IdRanges] = {}

    def add(self, ranges: Mapping[str, Int64Array]) -> None:
        """Add ranges of numbers per partition."""
        for partition, part in ranges.items():
            self._of.setdefault(partition, IdRanges()).add(part)

    def has(self, names: MessageNames) -> Mask:
        """Return which messages are in the set."""
        found = np.zeros(len(names), np.bool_)
        for index, rows in names.by_partition():
            if (ids := self._of.get(names.partitions[index])) is not None:
                found[rows] = ids.has(names.numbers[rows])
        return found

    def overlaps(self, ranges: Mapping[str, Int64Array]) -> bool:
        """Return True if the set has any message of these ranges of numbers per partition."""
        return any(partition in self._of and self._of[partition].overlaps(part) for partition, part in ranges.items())

    def __len__(self) -> int:
        """Return the number of messages."""
        return sum(map(len, self._of.values()))

    def pieces(self) -> Iterator[tuple[str, Int64Array]]:
        """Yield partitions with some of their ranges, in order."""
        for partition in sorted(self._of):
            for piece in self._of[partition].pieces():
                yield partition, piece

    def ranges(self) -> dict[str, Int64Array]:
        """Return the ranges of numbers per partition."""
        return {partition: self._of[partition].ranges() for partition in sorted(self._of)}


def names_of(ranges: Mapping[str, Int64Array]) -> MessageNames:
    """Return the names of all messages in some ranges."""
    numbers = [ids_of(part) for part in ranges.values()]
    counts = np.array([len(part) for part in numbers], np.int64)
    return MessageNames(
        list(ranges),
        np.repeat(np.arange(len(counts)), counts),
        np.concatenate([np.array([], np.int64), *numbers]),
    )
