"""64-bit ids: validation, derivation, minting of roots, XOR by root and shard choice.

Ids are signed 64-bit integers, as Spark's bigint; 0 <= x < 2**64 is accepted as the same bits. Inside the library they
are numpy uint64 arrays.
"""

import hashlib
import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from acker_redis.errors import BadBatchError, BadIdError
from acker_redis.model.arrays import Int64Array, UInt64Array

Ids: TypeAlias = Int64Array | UInt64Array | Sequence[SupportsIndex] | Any
"""What the `*_many` calls take: a numpy integer array or any sequence of integers."""

BLOCK_BITS = 59
"""Bits of a root that are its block's number; the five above are its slot in the block."""

BLOCK_MASK = (1 << BLOCK_BITS) - 1
"""The bits of a root that are its block's number."""

SLOTS = 32
"""Slots of a block, which packs so many roots at most."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def to_uint64(value: SupportsIndex, name: str) -> int:
    """Convert one id to its unsigned 64-bit value.

    Raises:
        BadIdError: not an integer, or outside -2**63 ... 2**64 - 1.
    """
    if isinstance(value, (bool, np.bool_)):
        raise BadIdError(f"{name}={value!r}: an id is a 64-bit integer, not a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise BadIdError(
            f"{name}={value!r} ({type(value).__name__}): an id is a 64-bit integer; hash other keys to one first, "
            "for example with acker_redis.model.ids.derive()"
        ) from None
    if not -(1 << 63) <= number < 1 << 64:
        raise BadIdError(f"{name}={number}: outside the 64-bit range -2**63 ... 2**64-1")
    return number & _MASK


def to_int64(number: int) -> int:
    """Convert an unsigned 64-bit value to the signed integer with the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_spout_id(spout_id: SupportsIndex) -> int:
    """Check a spout_id.

    Raises:
        BadIdError: not an integer with 0 <= spout_id < 2**32.
    """
    try:
        number = -1 if isinstance(spout_id, (bool, np.bool_)) else operator.index(spout_id)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 32:
        raise BadIdError(f"spout_id={spout_id!r}: a spout_id is an integer with 0 <= spout_id < 2**32")
    return number


def to_uint64_array(values: Ids, name: str) -> UInt64Array:
    """Convert many ids to a one-dimensional uint64 array; an int64 or uint64 array is not copied.

    Raises:
        BadIdError: an element is not an integer in range; the message names the first one.
        BadBatchError: not one-dimensional.
    """
    array = values if isinstance(values, np.ndarray) else _as_array(values, name)
    if array.ndim != 1:
        raise BadBatchError(f"{name}: expected one dimension, got {array.ndim}")
    if array.dtype == np.int64 or array.dtype == np.uint64:
        return np.ascontiguousarray(array).view(np.uint64)
    if array.dtype.kind in "iu":
        return array.astype(np.int64).view(np.uint64)
    return np.fromiter((to_uint64(v, f"{name}[{i}]") for i, v in enumerate(values)), np.uint64, len(array))


def to_pairs(roots: Ids, vals: Ids) -> tuple[UInt64Array, UInt64Array]:
    """Convert roots and their values.

    Raises:
        BadIdError, BadBatchError: as `to_uint64_array`; or there are more of one than of the other.
    """
    root_ids, values = to_uint64_array(roots, "roots"), to_uint64_array(vals, "vals")
    if len(root_ids) != len(values):
        raise BadBatchError(f"{len(root_ids)} roots but {len(values)} vals: give one val per root")
    return root_ids, values


def _as_array(values: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise BadBatchError(f"{name}: expected a numpy array or a sequence of integers, got {type(values).__name__}")
    if len(values) == 0:
        return np.empty(0, np.int64)
    objects = np.empty(len(values), dtype=object)
    if any(isinstance(v, (bool, np.bool_)) for v in values):  # numpy would take True for 1
        return objects
    try:
        return np.asarray(values)
    except ValueError:  # elements of different shapes
        return objects


def mix64(values: UInt64Array) -> UInt64Array:
    """Scramble 64 bits by a bijection (the splitmix64 finalizer)."""
    x = values + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def derive(*parts: str | bytes | int) -> int:
    """Derive a signed 64-bit id from text, bytes or integers: equal parts give the equal id in every process, for ever."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(digest.digest(), "big", signed=True)


def derive_salt(*parts: str | bytes | int) -> str:
    """Derive an id as `derive` does, in 16 hexadecimal digits."""
    return f"{derive(*parts) & _MASK:016x}"


def derive_many(seed: int, *columns: UInt64Array) -> UInt64Array:
    """Derive ids from a seed (see `derive`) and integer columns of equal length: a hash chain, element by element."""
    value = np.full(len(columns[0]), np.uint64(seed & _MASK), np.uint64)
    for column in columns:
        value = mix64(value ^ mix64(column))
    return value


def mint(numbers: UInt64Array, slots: UInt64Array) -> UInt64Array:
    """Make roots from block numbers (59 bits; higher ones are dropped) and slots (0 to 31).

    Distinct pairs are distinct roots. Roots that share a block need one spout_id.
    """
    return np.asarray(slots << np.uint64(BLOCK_BITS) | numbers & np.uint64(BLOCK_MASK))


def new_roots(count: int) -> Int64Array:
    """Draw distinct roots at random that fill blocks in order; another call gives one of them by a chance of 1 in 2**59."""
    start, step = (int.from_bytes(os.urandom(8), "big") for _ in range(2))
    places = np.arange(count, dtype=np.uint64)
    numbers = np.uint64(start) + places // np.uint64(SLOTS) * np.uint64(step | 1)  # odd: a bijection of 59 bits
    return mint(numbers, places % np.uint64(SLOTS)).view(np.int64)


def shard_of(roots: UInt64Array, shards: int) -> Int64Array:
    """Choose the shard of each root: hash of its block number modulo the shards (Storm's fields grouping on the root)."""
    return (mix64(roots & np.uint64(BLOCK_MASK)) % np.uint64(shards)).astype(np.int64)


def xor_by_root(roots: UInt64Array, vals: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Combine the values of equal roots by XOR; the result is sorted by root, so it does not depend on input order.

    An ack is an XOR, so any number of acks of one root is one ack: acks are cheap to send.
    """
    if len(roots) == 0:
        return roots, vals
    order = np.argsort(roots)  # not stable, which XOR does not need, and six times as fast
    return xor_runs(roots[order], vals[order])


def xor_runs(roots: UInt64Array, vals: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Combine the values of equal roots that stand side by side by XOR, as those of rows derived from one row do.

    Costs next to nothing beside sorting, and leaves less to sort.
    """
    if len(roots) == 0:
        return roots, vals
    starts = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
    if len(starts) == len(roots):
        return roots, vals
    return roots[starts], np.bitwise_xor.reduceat(vals, starts)
