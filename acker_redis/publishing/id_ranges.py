"""A growing set of 64-bit ids, held as ranges. Sequential ids take a few bytes, random ones eight each."""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import Int64Array

LEAF_RANGES = 524_288
"""Ranges at which a leaf is split. Adding ids copies a leaf's ranges at most, never the whole set."""

RECENT_RANGES = 131_072
"""Ranges that are kept in front of the leaves."""

_SMALLEST = int(np.iinfo(np.int64).min)
_NONE: Int64Array = np.empty((0, 2), np.int64)


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
    """A set of ids. Adding and looking up take a time that depends on the number of ids given, and hardly on the set's size.

    New ids are in levels of ranges, the largest first. A new level is merged with those that are no larger than twice its
    size, as in a log-structured merge tree. Once they are many, they go to leaves, each of which has a part of the number
    line: a large level, and a small one that is merged into it at a quarter of its size. A level whose ranges have one id each
    is a single column.
    """

    def __init__(self) -> None:
        """Start with an empty set."""
        self._recent: list[Int64Array] = []
        self._begins = [_SMALLEST]
        self._leaves: list[list[Int64Array]] = [[]]

    def add(self, ranges: Int64Array) -> None:
        """Add ranges of ids, as `ranges_of` returns them. They may be there already."""
        if not len(ranges):
            return
        while self._recent and len(self._recent[-1]) <= 2 * len(ranges):
            ranges = _united(np.concatenate([_wide(self._recent.pop()), ranges]))
        self._recent.append(_narrow(ranges))
        if sum(map(len, self._recent)) > RECENT_RANGES:
            recent = _united(np.concatenate([*map(_wide, self._recent)]))
            self._recent = []
            if len(recent) > RECENT_RANGES // 2:
                self._add_to_leaves(recent)
            else:  # most of them were the same, or united
                self._recent = [_narrow(recent)]

    def has(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which ids are in the set."""
        order = np.argsort(ids)
        wanted = ids[order]
        found = np.zeros(len(ids), np.bool_)
        for level in self._recent:
            found |= _in_level(level, wanted)
        borders = [*np.searchsorted(wanted, np.array(self._begins), "left").tolist(), len(wanted)]
        for leaf, levels in enumerate(self._leaves):
            begin, end = borders[leaf], borders[leaf + 1]
            if begin < end:
                for level in levels:
                    found[begin:end] |= _in_level(level, wanted[begin:end])
        result = np.empty_like(found)
        result[order] = found
        return result

    def overlaps(self, ranges: Int64Array) -> bool:
        """Return True if the set has any id of these ranges."""
        if any(_overlap(level, ranges) for level in self._recent):
            return True
        return any(_overlap(level, part) for leaf, part in self._parts(ranges) for level in self._leaves[leaf])

    def pieces(self) -> Iterator[Int64Array]:
        """Yield the ranges in order, those of one leaf at a time. Two pieces may touch."""
        recent = _united(np.concatenate([_NONE, *map(_wide, self._recent)]))
        parts = dict(self._parts(recent))
        for leaf, levels in enumerate(self._leaves):
            piece = _united(np.concatenate([_NONE, *map(_wide, levels), parts.get(leaf, _NONE)]))
            if len(piece):
                yield piece

    def ranges(self) -> Int64Array:
        """Return all ranges, in order and with gaps between."""
        return _united(np.concatenate([_NONE, *self.pieces()]))

    def __len__(self) -> int:
        """Return the number of ids."""
        return sum(int((piece[:, 1] - piece[:, 0] + 1).sum()) for piece in self.pieces())

    @property
    def nbytes(self) -> int:
        """Bytes that the ranges take."""
        return sum(level.nbytes for levels in (self._recent, *self._leaves) for level in levels)

    def _add_to_leaves(self, ranges: Int64Array) -> None:
        for leaf, part in self._parts(ranges):
            levels = self._leaves[leaf]
            if len(levels) > 1:
                part = _united(np.concatenate([_wide(levels.pop()), part]))
            if levels and len(levels[0]) <= 4 * len(part):
                part = _united(np.concatenate([_wide(levels.pop()), part]))
            levels.append(_narrow(part))
        for leaf in range(len(self._leaves) - 1, -1, -1):
            if sum(map(len, self._leaves[leaf])) > LEAF_RANGES:
                self._split(leaf)

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


def _in_level(level: Int64Array, ids: Int64Array) -> npt.NDArray[np.bool_]:
    """Return which ids a level has."""
    at = np.searchsorted(level[:, 0], ids, "right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (ids <= level[np.maximum(at, 0), -1])
    return found


def _overlap(level: Int64Array, ranges: Int64Array) -> bool:
    """Return True if a level has any id of some ranges."""
    at = np.searchsorted(level[:, 0], ranges[:, 1], "right") - 1
    return bool(((at >= 0) & (level[np.maximum(at, 0), -1] >= ranges[:, 0])).any())


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
