"""Spark's `xxhash64` of bigints and short texts, in numpy. SQL in the executors computes the same hashes."""

from collections.abc import Sequence

import numpy as np

from acker_redis.model.arrays import UInt64Array

_MASK = (1 << 64) - 1
_SEED = np.uint64(42)
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def hash_longs(*values: int | UInt64Array, seed: UInt64Array | np.uint64 = _SEED) -> UInt64Array | np.uint64:
    """Compute `xxhash64(a, b, ...)` of bigints, element by element. Each hash seeds the next; the first seed is 42.

    Args:
        values: integers (signed, or unsigned with the same bits), arrays of equal length, or both.
        seed: hash of common values before these.

    Returns:
        Bits of Spark's signed result: an array if any value is an array, otherwise one number.
    """
    hashed = seed
    with np.errstate(over="ignore"):  # wrapping round is what is wanted
        for value in values:
            hashed = _hash([np.uint64(value & _MASK) if isinstance(value, int) else value], hashed)
    return hashed


def hash_salt(salt: str) -> np.uint64:
    """Compute `xxhash64(salt)` of a text of 8, 16 or 24 ASCII characters."""
    data = salt.encode("ascii")
    if len(data) not in (8, 16, 24):
        raise ValueError(f"salt={salt!r} has {len(data)} characters. Use 8, 16 or 24.")
    with np.errstate(over="ignore"):
        return np.uint64(_hash(list(np.frombuffer(data, "<u8")), _SEED))


def _hash(words: Sequence[UInt64Array | np.uint64], seed: UInt64Array | np.uint64) -> UInt64Array | np.uint64:
    mixed = seed + _PRIME_5 + np.uint64(8 * len(words))
    for word in words:
        mixed = mixed ^ (_rotated(word * _PRIME_2, 31) * _PRIME_1)
        mixed = _rotated(mixed, 27) * _PRIME_1 + _PRIME_4
    mixed = (mixed ^ (mixed >> np.uint64(33))) * _PRIME_2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _PRIME_3
    return mixed ^ (mixed >> np.uint64(32))


def _rotated(value: UInt64Array | np.uint64, bits: int) -> UInt64Array | np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
