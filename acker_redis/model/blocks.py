"""Blocks of roots: a block packs up to 32 neighbouring roots, stored and sent together (lua/lib/block.lua).

A root's top five bits are its slot, the other 59 its block's number. A mask has one bit per slot of a block.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.ids import BLOCK_BITS, BLOCK_MASK, SLOTS

UInt32Array = npt.NDArray[np.uint32]

ROOTS_PER_CALL = 500
"""Roots per call if each is alone in its block. With full blocks a call takes 3 600. It blocks the server about 1 ms."""

_BLOCK, _MASK = np.uint64(BLOCK_MASK), (1 << SLOTS) - 1
_SHIFT, _BACK = np.uint64(BLOCK_BITS), np.uint64(64 - BLOCK_BITS)
_NO_SLOT = np.uint64(SLOTS)
"""Number of a slot behind the last, whose bit no mask has."""

_ONES = np.unpackbits(np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2), axis=1).sum(axis=1, dtype=np.int64)
"""Number of bits set in each 16-bit number."""


class Cut(NamedTuple):
    """Blocks of one call, cut from a batch that is sorted by shard.

    Attributes:
        shard: number of the shard.
        chunk: number of the call, counted per shard. So a call sent again has the same idempotency key, regardless of the
            batch's other shards.
        start: first block.
        stop: index after the last block.
    """

    shard: int
    chunk: int
    start: int
    stop: int


@dataclass(frozen=True)
class Blocks:
    """Distinct roots grouped by block, all with a value or all without.

    Attributes:
        numbers: block numbers, distinct.
        masks: slots of each block that have a root here.
        sizes: number of roots of each block here.
        roots: all roots, grouped by block and sorted by slot.
        vals: values of the roots; None for roots without values.
    """

    numbers: UInt64Array
    masks: UInt32Array
    sizes: Int64Array
    roots: UInt64Array
    vals: UInt64Array | None = None

    @classmethod
    def from_roots(
        cls, roots: UInt64Array, vals: UInt64Array | None = None, merge: Literal["xor", "first"] = "first"
    ) -> Self:
        """Sort roots by block. The result does not depend on their order.

        If the roots of each block are adjacent already, as for consecutive ids, only the blocks are sorted.

        Args:
            roots: roots in any order, with repeats.
            vals: values, one per root.
            merge: rule that combines the values of equal roots: XOR, or keep the first.
        """
        if len(roots) == 0:
            return cls(roots, np.array([], np.uint32), np.array([], np.int64), roots, vals)
        numbers, slots, starts, in_blocks = _runs(roots)
        order = None
        if in_blocks:
            heads = numbers[starts]
            order = None if (heads[1:] > heads[:-1]).all() else np.argsort(heads)
        if not in_blocks or (order is not None and (heads[order][1:] == heads[order][:-1]).any()):
            order = None
            roots, vals = _sorted(roots, vals, merge)
            numbers, slots, starts, _ = _runs(roots)
        batch = cls(numbers[starts], _masks(slots, starts), np.diff(starts, append=len(roots)), roots, vals)
        return batch if order is None else batch.reordered(order)

    def reordered(self, order: Int64Array) -> Self:
        """Return the blocks in another order."""
        ends = np.cumsum(self.sizes)
        sizes = self.sizes[order]
        begins = np.cumsum(sizes) - sizes
        rows = np.repeat((ends - self.sizes)[order] - begins, sizes) + np.arange(len(self.roots))
        vals = None if self.vals is None else self.vals[rows]
        return type(self)(self.numbers[order], self.masks[order], sizes, self.roots[rows], vals)

    def packed(self) -> tuple[bytes, list[int]]:
        """Pack number, mask and values of each block for the scripts. Returns them with each begin and the last end."""
        words = 3 if self.vals is None else 3 + 2 * self.sizes
        ends = np.cumsum(np.broadcast_to(words, len(self.numbers)))
        begins = ends - words
        out = np.empty(int(ends[-1]) if len(ends) else 0, ">u4")
        out[begins], out[begins + 1], out[begins + 2] = (
            self.numbers >> np.uint64(32),
            self.numbers & np.uint64(_MASK),
            self.masks,
        )
        if self.vals is not None:
            firsts = np.cumsum(self.sizes) - self.sizes
            places = np.repeat(begins + 3 - 2 * firsts, self.sizes) + 2 * np.arange(len(self.vals))
            out[places], out[places + 1] = self.vals >> np.uint64(32), self.vals & np.uint64(_MASK)
        return out.tobytes(), [0, *(4 * ends).tolist()]

    def open_sizes(self) -> Int64Array:
        """Count the roots of each block whose value isn't 0."""
        if self.vals is None or not len(self.vals) or not self.vals.any():
            return np.zeros(len(self.numbers), np.int64)
        return np.asarray(np.add.reduceat(self.vals != 0, np.cumsum(self.sizes) - self.sizes, dtype=np.int64))

    def packed_open(self) -> tuple[bytes, list[int]]:
        """Pack number, mask, mask of the roots with a value other than 0, and these values. Returns as `packed`."""
        vals = np.zeros(len(self.roots), np.uint64) if self.vals is None else self.vals
        firsts = np.cumsum(self.sizes) - self.sizes
        is_open = vals != 0
        opens = np.zeros(len(self.numbers), np.uint32)
        if is_open.any():
            opens = _masks(np.where(is_open, self.roots >> _SHIFT, _NO_SLOT), firsts)
        words = 4 + 2 * counts_of(opens)
        ends = np.cumsum(words)
        begins = ends - words
        out = np.empty(int(ends[-1]) if len(ends) else 0, ">u4")
        out[begins], out[begins + 1] = self.numbers >> np.uint64(32), self.numbers & np.uint64(_MASK)
        out[begins + 2], out[begins + 3] = self.masks, opens
        if is_open.any():
            before = np.cumsum(is_open) - is_open
            places = (np.repeat(begins + 4 - 2 * before[firsts], self.sizes) + 2 * before)[is_open]
            out[places], out[places + 1] = vals[is_open] >> np.uint64(32), vals[is_open] & np.uint64(_MASK)
        return out.tobytes(), [0, *(4 * ends).tolist()]


class Index:
    """Finds the rows of roots: first the block, then the slot. Roots of a block may be adjacent or scattered."""

    def __init__(self, roots: UInt64Array) -> None:
        """Index distinct roots. If the roots of each block are adjacent, only the blocks are sorted."""
        self._order: Int64Array | None = None
        numbers, slots, starts, in_blocks = _runs(roots)
        heads = numbers[starts]
        by_head = np.argsort(heads)
        self._heads = heads[by_head]
        if not in_blocks or (self._heads[1:] == self._heads[:-1]).any():
            self._order = np.argsort(_by_block(roots))
            numbers, slots, starts, _ = _runs(roots[self._order])
            self._heads, by_head = numbers[starts], np.arange(len(starts))
        self._masks, self._starts = _masks(slots, starts)[by_head], starts[by_head]

    def rows_of(self, roots: UInt64Array) -> Int64Array:
        """Find the row of each root, or -1 for a missing root. Fast if the roots of each block are adjacent."""
        if not len(roots) or not len(self._heads):
            return np.full(len(roots), -1)
        numbers, slots, starts, _ = _runs(roots)
        heads = numbers[starts]
        place = np.minimum(np.searchsorted(self._heads, heads), len(self._heads) - 1)
        masks, first = np.where(self._heads[place] == heads, self._masks[place], np.uint32(0)), self._starts[place]
        if len(starts) < len(roots):
            sizes = np.diff(starts, append=len(roots))
            masks, first = np.repeat(masks, sizes), np.repeat(first, sizes)
        own = np.uint32(1) << slots.astype(np.uint32)
        places = first + counts_of(masks & (own - np.uint32(1)))
        if self._order is not None:
            places = self._order[np.minimum(places, len(self._order) - 1)]  # a missing root may lie behind the end
        return np.where(masks & own, places, -1)


def distinct(roots: UInt64Array) -> UInt64Array:
    """Drop repeated roots. Fast if the roots of each block are adjacent."""
    if not len(roots):
        return roots
    numbers, _, starts, in_blocks = _runs(roots)
    heads = np.sort(numbers[starts])
    return roots if in_blocks and (heads[1:] != heads[:-1]).all() else np.unique(roots)


def roots_of(numbers: UInt64Array, masks: UInt32Array) -> UInt64Array:
    """List all roots of some blocks, grouped by block and sorted by slot."""
    if len(masks) and int(masks[0]).bit_count() == 1 and (masks == masks[0]).all():  # each root alone, in one slot
        slot = np.uint64(int(masks[0]).bit_length() - 1)
        return np.asarray(numbers | slot << _SHIFT)
    rows, slots = np.nonzero(
        np.unpackbits(masks.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    )
    return np.asarray(numbers[rows] | slots.astype(np.uint64) << _SHIFT)


def counts_of(masks: UInt32Array) -> Int64Array:
    """Count the roots in each mask."""
    return np.asarray(_ONES[masks & np.uint32(0xFFFF)] + _ONES[masks >> np.uint32(16)])


def _runs(roots: UInt64Array) -> tuple[UInt64Array, UInt64Array, Int64Array, bool]:
    """Split roots into runs of one block.

    Returns the block number and slot of each root, the start of each run, and True if slots increase in every run.
    """
    numbers, slots = roots & _BLOCK, roots >> _SHIFT
    new = numbers[1:] != numbers[:-1]
    starts = np.flatnonzero(np.concatenate(([len(roots) > 0], new)))
    return numbers, slots, starts, bool((new | (slots[1:] > slots[:-1])).all())


def _masks(slots: UInt64Array, starts: Int64Array) -> UInt32Array:
    if not len(starts):
        return np.array([], np.uint32)
    return np.bitwise_or.reduceat(np.uint64(1) << slots, starts).astype(np.uint32)


def _by_block(roots: UInt64Array) -> UInt64Array:
    """Compute numbers that sort the roots by block and slot."""
    return np.asarray(roots << _BACK | roots >> _SHIFT)


def _sorted(
    roots: UInt64Array, vals: UInt64Array | None, merge: Literal["xor", "first"]
) -> tuple[UInt64Array, UInt64Array | None]:
    """Sort roots by block and slot, and merge repeated roots."""
    order = np.argsort(_by_block(roots), kind="stable" if merge == "first" else None)
    roots, vals = roots[order], None if vals is None else vals[order]
    starts = np.concatenate(([0], np.flatnonzero(roots[1:] != roots[:-1]) + 1))
    if len(starts) == len(roots):
        return roots, vals
    if vals is not None:
        vals = np.bitwise_xor.reduceat(vals, starts) if merge == "xor" else vals[starts]
    return roots[starts], vals
