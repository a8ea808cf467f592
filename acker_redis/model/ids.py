"""64-bit ids: validation, derivation, minting of roots, XOR by root and shard choice.

Ids are signed 64-bit integers, as Spark's bigint. Unsigned ids (0 <= x < 2**64) are accepted as the same bits. Inside the
library they are numpy uint64 arrays.
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
"""Ids accepted by the `*_many` calls: a numpy integer array or any sequence of integers."""

BLOCK_BITS = 59
"""Number of bits of a root that are its block's number. The five bits above are its slot in the block."""

BLOCK_MASK = (1 << BLOCK_BITS) - 1
"""Mask of the bits of a root that are its block's number."""

SLOTS = 32
"""Slots of a block: the maximum number of roots that it packs."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def to_uint64(value: SupportsIndex, name: str) -> int:
    """Convert one id to its unsigned 64-bit value.

    Raises:
        BadIdError: the value is not an integer, or is outside -2**63 ... 2**64 - 1.
    """
    if isinstance(value, (bool, np.bool_)):
        raise BadIdError(f"{name}={value!r} is a bool, not a 64-bit integer. Pass an integer.")
    try:
        number = operator.index(value)
    except TypeError:
        raise BadIdError(
            f"{name}={value!r} ({type(value).__name__}) is not a 64-bit integer. Hash other keys to an integer first, for "
            "example with acker_redis.model.ids.derive()."
        ) from None
    if not -(1 << 63) <= number < 1 << 64:
        raise BadIdError(f"{name}={number} is outside the 64-bit range. Use an integer from -2**63 to 2**64-1.")
    return number & _MASK


def to_int64(number: int) -> int:
    """Convert an unsigned 64-bit value to the signed integer with the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_spout_id(spout_id: SupportsIndex) -> int:
    """Validate a spout_id.

    Raises:
        BadIdError: the spout_id is not an integer with 0 <= spout_id < 2**32.
    """
    try:
        number = -1 if isinstance(spout_id, (bool, np.bool_)) else operator.index(spout_id)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 32:
        raise BadIdError(f"spout_id={spout_id!r} is not a spout_id. Use an integer from 0 to 2**32-1.")
    return number


def to_uint64_array(values: Ids, name: str) -> UInt64Array:
    """Convert many ids to a one-dimensional uint64 array, without a copy for int64 and uint64 arrays.

    Raises:
        BadIdError: an element is not an integer in range. The text names the first one.
        BadBatchError: the values are not one-dimensional.
    """
    array = values if isinstance(values, np.ndarray) else _as_array(values, name)
    if array.ndim != 1:
        raise BadBatchError(f"{name} has {array.ndim} dimensions. Pass a one-dimensional array.")
    if array.dtype == np.int64 or array.dtype == np.uint64:
        return np.ascontiguousarray(array).view(np.uint64)
    if array.dtype.kind in "iu":
        return array.astype(np.int64).view(np.uint64)
    return np.fromiter((to_uint64(v, f"{name}[{i}]") for i, v in enumerate(values)), np.uint64, len(array))


def to_pairs(roots: Ids, vals: Ids) -> tuple[UInt64Array, UInt64Array]:
    """Convert roots and their values.

    Raises:
        BadIdError, BadBatchError: as `to_uint64_array`, or the lengths differ.
    """
    root_ids, values = to_uint64_array(roots, "roots"), to_uint64_array(vals, "vals")
    if len(root_ids) != len(values):
        raise BadBatchError(f"roots has {len(root_ids)} elements, but vals has {len(values)}. Pass one val per root.")
    return root_ids, values


def to_triples(roots: Ids, vals: Ids, record_keys: Ids) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
    """Convert roots, their values, and the keys of their records.

    Raises:
        BadIdError, BadBatchError: as `to_pairs`.
    """
    root_ids, values = to_pairs(roots, vals)
    keys = to_uint64_array(record_keys, "record_keys")
    if len(keys) != len(root_ids):
        raise BadBatchError(
            f"roots has {len(root_ids)} elements, but record_keys has {len(keys)}. Pass one key per root."
        )
    return root_ids, values, keys


def _as_array(values: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise BadBatchError(f"{name} is a {type(values).__name__}. Pass a numpy array or a sequence of integers.")
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
    """Mix 64 bits by a bijection (the splitmix64 finalizer)."""
    x = values + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def derive(*parts: str | bytes | int) -> int:
    """Derive a signed 64-bit id from text, bytes or integers. Equal parts always give equal ids, in every process."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(digest.digest(), "big", signed=True)


def derive_salt(*parts: str | bytes | int) -> str:
    """Derive an id as `derive` does, as 16 hexadecimal digits."""
    return f"{derive(*parts) & _MASK:016x}"


def derive_many(seed: int, *columns: UInt64Array) -> UInt64Array:
    """Derive ids from a seed (see `derive`) and integer columns of equal length, by a hash chain per element."""
    value = np.full(len(columns[0]), np.uint64(seed & _MASK), np.uint64)
    for column in columns:
        value = mix64(value ^ mix64(column))
    return value


def mint(numbers: UInt64Array, slots: UInt64Array) -> UInt64Array:
    """Make roots from block numbers (59 bits; higher bits are dropped) and slots (0 to 31).

    Distinct pairs make distinct roots. Roots that share a block need one spout_id.
    """
    return np.asarray(slots << np.uint64(BLOCK_BITS) | numbers & np.uint64(BLOCK_MASK))


def new_roots(count: int) -> Int64Array:
    """Generate distinct random roots that fill whole blocks. Two calls share a root with a chance of 1 in 2**59."""
    start, step = (int.from_bytes(os.urandom(8), "big") for _ in range(2))
    places = np.arange(count, dtype=np.uint64)
    numbers = np.uint64(start) + places // np.uint64(SLOTS) * np.uint64(step | 1)  # odd: a bijection of 59 bits
    return mint(numbers, places % np.uint64(SLOTS)).view(np.int64)


def shard_of(roots: UInt64Array, shards: int) -> Int64Array:
    """Compute the shard of each root: hash of its block number modulo shards (Storm's fields grouping on the root)."""
    return (mix64(roots & np.uint64(BLOCK_MASK)) % np.uint64(shards)).astype(np.int64)


def xor_by_root(roots: UInt64Array, vals: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Combine the values of equal roots by XOR. The result is sorted by root, regardless of the input order.

    An ack is an XOR, so any number of acks of one root becomes one ack.
    """
    if len(roots) == 0:
        return roots, vals
    order = np.argsort(roots)  # not stable, which XOR does not need, and six times as fast
    return xor_runs(roots[order], vals[order])


def xor_runs(roots: UInt64Array, vals: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Combine the values of adjacent equal roots by XOR. Rows derived from one row have such roots.

    This costs far less than sorting, and leaves fewer roots to sort.
    """
    if len(roots) == 0:
        return roots, vals
    starts = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
    if len(starts) == len(roots):
        return roots, vals
    return roots[starts], np.bitwise_xor.reduceat(vals, starts)
