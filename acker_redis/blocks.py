"""Roots by the block: up to 32 neighbours share a record, and travel together (lua/lib/block.lua).

A root's top five bits are its slot, the other 59 its block. A mask has one bit per slot of a block.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from acker_redis.ids import BLOCK_BITS, BLOCK_MASK, SLOTS, UInt64Array

Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]

_BLOCK, _MASK = np.uint64(BLOCK_MASK), (1 << SLOTS) - 1
_SHIFT, _BACK = np.uint64(BLOCK_BITS), np.uint64(64 - BLOCK_BITS)


class Cut(NamedTuple):
    """One call's worth of a batch that is in the order of its shards.

    Attributes:
        shard: where it goes.
        chunk: counted per shard, so that a token meets itself whichever other shards a batch has.
        start: first block.
        stop: behind the last block.
    """

    shard: int
    chunk: int
    start: int
    stop: int


@dataclass(frozen=True)
class Blocks:
    """Distinct roots, block after block; and a value of each, or none.

    Attributes:
        numbers: the blocks, distinct.
        masks: which roots of each are there.
        sizes: how many those are.
        roots: all of them, those of a block together and by their slots.
        vals: of the roots; None where there are none.
    """

    numbers: UInt64Array
    masks: UInt32Array
    sizes: Int64Array
    roots: UInt64Array
    vals: UInt64Array | None = None

    @classmethod
    def of(cls, roots: UInt64Array, vals: UInt64Array | None = None, merge: Literal["xor", "first"] = "first") -> Self:
        """Bring roots into the order of their blocks; the order they come in makes no difference.

        Where those of a block stand together already, as roots of ids that count do, no more than the blocks is sorted.

        Args:
            roots: in any order, any number of times.
            vals: one of each root.
            merge: what becomes of values of one root: their XOR, or the first one.
        """
        if len(roots) == 0:
            return cls(roots, np.array([], np.uint32), np.array([], np.int64), roots, vals)
        numbers, slots = roots & _BLOCK, roots >> _SHIFT
        new = numbers[1:] != numbers[:-1]
        starts = np.concatenate(([0], np.flatnonzero(new) + 1))
        in_blocks = bool((new | (slots[1:] > slots[:-1])).all())
        heads = numbers[starts]
        order = None if (heads[1:] > heads[:-1]).all() else np.argsort(heads)
        if not in_blocks or (order is not None and (heads[order][1:] == heads[order][:-1]).any()):
            order = None
            roots, vals = _sorted(roots, vals, merge)
            numbers, slots = roots & _BLOCK, roots >> _SHIFT
            starts = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
        masks = np.bitwise_or.reduceat(np.uint64(1) << slots, starts).astype(np.uint32)
        batch = cls(numbers[starts], masks, np.diff(starts, append=len(roots)), roots, vals)
        return batch if order is None else batch.taken(order)

    def taken(self, order: Int64Array) -> Self:
        """These blocks in another order."""
        ends = np.cumsum(self.sizes)
        sizes = self.sizes[order]
        begins = np.cumsum(sizes) - sizes
        rows = np.repeat((ends - self.sizes)[order] - begins, sizes) + np.arange(len(self.roots))
        vals = None if self.vals is None else self.vals[rows]
        return type(self)(self.numbers[order], self.masks[order], sizes, self.roots[rows], vals)

    def packed(self) -> tuple[bytes, list[int]]:
        """What the scripts read: block, mask and values of each; and where each block begins, and the last one ends."""
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


def roots_of(numbers: UInt64Array, masks: UInt32Array) -> UInt64Array:
    """All roots of some blocks, block after block and by their slots."""
    if len(masks) and int(masks[0]).bit_count() == 1 and (masks == masks[0]).all():  # each root alone, in one slot
        slot = np.uint64(int(masks[0]).bit_length() - 1)
        return np.asarray(numbers | slot << _SHIFT)
    rows, slots = np.nonzero(
        np.unpackbits(masks.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    )
    return np.asarray(numbers[rows] | slots.astype(np.uint64) << _SHIFT)


def counts_of(masks: UInt32Array) -> Int64Array:
    """How many roots each mask stands for."""
    bits = np.unpackbits(masks.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1)
    return np.asarray(bits.sum(axis=1, dtype=np.int64))


def _sorted(
    roots: UInt64Array, vals: UInt64Array | None, merge: Literal["xor", "first"]
) -> tuple[UInt64Array, UInt64Array | None]:
    """By block and slot, each root once."""
    order = np.argsort(roots << _BACK | roots >> _SHIFT, kind="stable" if merge == "first" else None)
    roots, vals = roots[order], None if vals is None else vals[order]
    starts = np.concatenate(([0], np.flatnonzero(roots[1:] != roots[:-1]) + 1))
    if len(starts) == len(roots):
        return roots, vals
    if vals is not None:
        vals = np.bitwise_xor.reduceat(vals, starts) if merge == "xor" else vals[starts]
    return roots[starts], vals
