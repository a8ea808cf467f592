"""A growing set of 64-bit ids, held as ranges. Sequential ids take a few bytes, random ones eight each."""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import Int64Array

LEAF_RANGES = 262_144
"""Ranges at which a leaf is split. Adding ids copies a leaf's ranges at most, never the whole set."""

_SMALLEST = int(np.iinfo(np.int64).min)


def ranges_of(ids: Int64Array) -> Int64Array:
    """Return the ranges of some ids as rows of (first, last), in order and with gaps between. Ids may repeat.

    >>> ranges_of(np.array([3, 1, 2, 9])).tolist()
    [[1, 3], [9, 9]]
    """
    return _united(np.stack([ids, ids], axis=1))


def ids_of(ranges: Int64Array) -> Int64Array:
    """Return all ids of some ranges that don't overlap."""
    counts = ranges[:, 1] - ranges[:, 0] + 1
    behind = np.cumsum(counts) - counts
    ids: Int64Array = np.arange(counts.sum()) + np.repeat(ranges[:, 0] - behind, counts)
    return ids


class IdRanges:
    """A set of ids. Adding and looking up take a time that depends on the number of ids given, not on the set's size.

    The ids are split over leaves, each of which has a part of the number line. A leaf has levels of ranges, the largest
    first. A new level is merged with those that are no larger than twice its size, as in a log-structured merge tree. A level
    whose ranges have one id each is a single column.
    """

    def __init__(self) -> None:
        """Start with an empty set."""
        self._begins = [_SMALLEST]
        self._leaves: list[list[Int64Array]] = [[]]

    def add(self, ranges: Int64Array) -> None:
        """Add ranges of ids, as `ranges_of` returns them. They may be there already."""
        for leaf, part in self._parts(ranges):
            levels = self._leaves[leaf]
            while levels and len(levels[-1]) <= 2 * len(part):
                part = _united(np.concatenate([_wide(levels.pop()), part]))
            levels.append(_narrow(part))
        for leaf in range(len(self._leaves) - 1, -1, -1):
            if sum(map(len, self._leaves[leaf])) > LEAF_RANGES:
                self._split(leaf)

    def has(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which ids are in the set."""
        found = np.zeros(len(ids), np.bool_)
        leaf_of = np.searchsorted(np.array(self._begins), ids, "right") - 1
        for leaf in np.unique(leaf_of):
            rows = np.flatnonzero(leaf_of == leaf)
            for level in self._leaves[leaf]:
                at = np.searchsorted(level[:, 0], ids[rows], "right") - 1
                found[rows] |= (at >= 0) & (ids[rows] <= level[np.maximum(at, 0), -1])
        return found

    def overlaps(self, ranges: Int64Array) -> bool:
        """Return True if the set has any id of these ranges."""
        for leaf, part in self._parts(ranges):
            for level in self._leaves[leaf]:
                at = np.searchsorted(level[:, 0], part[:, 1], "right") - 1
                if ((at >= 0) & (level[np.maximum(at, 0), -1] >= part[:, 0])).any():
                    return True
        return False

    def pieces(self) -> Iterator[Int64Array]:
        """Yield the ranges in order, those of one leaf at a time. Two pieces may touch."""
        for levels in self._leaves:
            if levels:
                yield _wide(levels[0]) if len(levels) == 1 else _united(np.concatenate([*map(_wide, levels)]))

    def ranges(self) -> Int64Array:
        """Return all ranges, in order and with gaps between."""
        return _united(np.concatenate([np.empty((0, 2), np.int64), *self.pieces()]))

    def __len__(self) -> int:
        """Return the number of ids."""
        return sum(int((piece[:, 1] - piece[:, 0] + 1).sum()) for piece in self.pieces())

    @property
    def nbytes(self) -> int:
        """Bytes that the ranges take."""
        return sum(level.nbytes for levels in self._leaves for level in levels)

    def _parts(self, ranges: Int64Array) -> Iterator[tuple[int, Int64Array]]:
        """Split ranges at the leaves' borders."""
        while len(ranges):
            leaf = bisect_right(self._begins, int(ranges[0, 0])) - 1
            if leaf + 1 == len(self._begins):
                yield leaf, ranges
                return
            border = self._begins[leaf + 1]
            count = int(np.searchsorted(ranges[:, 0], border, "left"))
            part, ranges = ranges[:count], ranges[count:]
            if part[-1, 1] >= border:
                ranges = np.concatenate([[[border, part[-1, 1]]], ranges])
                part = np.concatenate([part[:-1], [[part[-1, 0], border - 1]]])
            yield leaf, part

    def _split(self, leaf: int) -> None:
        ranges = _united(np.concatenate([*map(_wide, self._leaves[leaf])]))
        if len(ranges) <= LEAF_RANGES:
            self._leaves[leaf] = [_narrow(ranges)]
            return
        parts = np.array_split(ranges, -(-len(ranges) // (LEAF_RANGES // 2)))
        self._leaves[leaf : leaf + 1] = [[_narrow(part.copy())] for part in parts]
        self._begins[leaf + 1 : leaf + 1] = [int(part[0, 0]) for part in parts[1:]]


def _narrow(ranges: Int64Array) -> Int64Array:
    """Return a level of these ranges."""
    return ranges[:, :1].copy() if (ranges[:, 0] == ranges[:, 1]).all() else ranges


def _wide(level: Int64Array) -> Int64Array:
    """Return the ranges of a level."""
    return level if level.shape[1] > 1 else np.repeat(level, 2, axis=1)


def _united(ranges: Int64Array) -> Int64Array:
    """Return ranges in order. Those that overlap or touch become one."""
    if len(ranges) < 2:
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    last = np.maximum.accumulate(ranges[:, 1])
    begins = np.empty(len(ranges), np.bool_)
    begins[0] = True
    # The smallest number has no predecessor, but isn't above any last one either.
    begins[1:] = (ranges[1:, 0] > last[:-1]) & (ranges[1:, 0] - 1 > last[:-1])
    firsts = np.flatnonzero(begins)
    return np.stack([ranges[firsts, 0], last[np.append(firsts[1:], len(ranges)) - 1]], axis=1)
