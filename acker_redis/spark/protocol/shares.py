"""The shares of rows: 61-bit numbers whose sum mod 2^61 no operator changes.

Each message has a share, and the rows derived from it hold parts that sum to it. The children of a row split its share. A
row made from several rows has the sum of their shares. Shares are not edges: edges belong to the ledger, have 64 bits and are
XORed. Shares are summed, so that a duplicated row shows. They have 61 bits, so that SQL can subtract two of them without
overflow.
"""

from typing import Any

import numpy as np

from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.xxhash64 import hash_longs

BITS = 61
MASK = (1 << BITS) - 1

LOW_BITS = 31
"""Sums are metered in two halves, so that no sum of fewer than 2^32 halves overflows."""

_CACHED = 32768
"""Children made at a time. Arrays of this length stay in the processor's cache, which is faster for many children."""


def from_arrow(column: Any) -> Int64Array:
    """Read a column of shares. Null, which an outer join makes, counts as 0."""
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def total(shares: Int64Array) -> int:
    """Sum shares mod 2^61."""
    return int(shares.view(np.uint64).sum(dtype=np.uint64)) & MASK


def from_halves(low: int | None, high: int | None) -> int:
    """Combine the two halves of a sum. Null halves are those of no rows."""
    return ((low or 0) + ((high or 0) << LOW_BITS)) & MASK


def split(shares: Int64Array, counts: Int64Array, salt: int) -> Int64Array:
    """Split the shares of rows among their children.

    Returns the children's shares, grouped by parent, in the order of the parents. The shares of one parent's children sum to
    the parent's share, and are the same whenever and wherever they are computed. Child p has cut(p) - cut(p + 1). Here
    cut(0) is the parent's share, cut(p) = xxhash64(share, salt, p) of 61 bits, and the cut after the last child is 0. SQL
    computes the same.

    Args:
        shares: shares of the parents.
        counts: number of children of each parent. If it is 0, no child has a part of that share.
        salt: salt of the operator, see `salt_of`.
    """
    children = int(counts.sum())
    rows = max(1, _CACHED * len(shares) // max(1, children))
    if rows < len(shares):
        begins = range(0, len(shares), rows)
        return np.concatenate([_split(shares[at : at + rows], counts[at : at + rows], salt) for at in begins])
    return _split(shares, counts, salt)


def _split(shares: Int64Array, counts: Int64Array, salt: int) -> Int64Array:
    parents = shares[counts > 0].view(np.uint64)
    ends = np.cumsum(counts)
    positions = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    first, last = np.flatnonzero(positions == 0), ends[counts > 0] - 1
    begins = parents
    if len(positions) > len(parents):
        seeds = np.repeat(np.asarray(hash_longs(shares.view(np.uint64), salt)), counts)
        begins = np.asarray(hash_longs(positions.view(np.uint64), seed=seeds), np.uint64)
        begins[first] = parents
    cuts = np.append(begins[1:], np.uint64(0))
    cuts[last] = 0
    return ((begins - cuts) & np.uint64(MASK)).view(np.int64)


def salt_of(name: str) -> int:
    """Derive 63 bits from an operator's name.

    With them, the children of two operators have different shares.
    """
    return ids.derive("operator", name) & ((1 << 63) - 1)


def cut_in_sql(share: str, salt: int, place: str) -> str:
    """Return SQL for the cut before a child; `place` is a bigint."""
    return f"(xxhash64({share}, {salt}L, {place}) & {MASK}L)"


def split_in_sql(share: str, salt: int, place: str, count: str) -> str:
    """Return SQL for the share of the child at `place` of `count`; both are bigints."""
    before = f"IF({place} = 0L, {share}, {cut_in_sql(share, salt, place)})"
    behind = f"IF({place} = {count} - 1L, 0L, {cut_in_sql(share, salt, f'({place} + 1L)')})"
    return f"IF({count} < 2L, {share}, ({before} - {behind}) & {MASK}L)"


def scale_in_sql(share: str, exponent: int) -> str:
    """Return SQL that multiplies a share by `weight(exponent)` modulo 2^61, without overflow."""
    return f"(({share} + shiftleft({share} & {(1 << (BITS - exponent)) - 1}L, {exponent})) & {MASK}L)"


def weight(exponent: int) -> int:
    """Return the factor 2^exponent + 1."""
    return (1 << exponent) + 1
