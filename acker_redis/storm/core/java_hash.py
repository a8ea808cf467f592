"""Hashes of values as Java computes them, so that fields grouping chooses Storm's tasks in every process.

Integers hash as Java's Long, texts as String, floats as Double, and sequences, sets and dicts as Java's collections. Values of
other types hash by their pickled bytes.
"""

import io
import pickle
import struct
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from acker_redis.errors import BadTupleError

_INT, _LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def hash_all(values: Sequence[Any]) -> int:
    """Hash values as Java's Arrays.deepHashCode. Returns a signed 32-bit integer.

    >>> hash_all(["k1"])
    3397
    """
    code = 1
    for value in values:
        code = (31 * code + _hash(value)) & _INT
    return _signed(code)


def task_index(values: Sequence[Any], tasks: int) -> int:
    """Choose a task by the values of a fields grouping (Storm: TupleUtils.chooseTaskIndex).

    >>> task_index(["k3"], 4)
    3
    """
    try:
        return hash_all(values) % tasks
    except RecursionError as exc:
        raise _nested_too_deep() from exc


def two_choices(values: Sequence[Any], tasks: int) -> tuple[int, int]:
    """Choose the two candidates of a partial key grouping (Storm: PartialKeyGrouping). They are equal only for one task.

    >>> two_choices(["k1"], 1)
    (0, 0)
    """
    try:
        key = b"".join(struct.pack(">i", _signed(_hash(value))) for value in values)
    except RecursionError as exc:
        raise _nested_too_deep() from exc
    random = _JavaRandom(_signed(_bytes_hash(key)))
    first, second = random.next_int(tasks), random.next_int(tasks)
    return first, (second + 1) % tasks if first == second else second


def _nested_too_deep() -> BadTupleError:
    return BadTupleError(
        "A value is nested too deep, so it can't choose a task. Group by fields such as texts and numbers."
    )


def _hash(value: Any) -> int:
    """Hash one value. Returns an unsigned 32-bit integer."""
    if isinstance(value, str):
        return _text_hash(value)
    if value is None:
        return 0
    if isinstance(value, (bool, np.bool_)):
        return 1231 if value else 1237
    if isinstance(value, (int, np.integer)):
        return _integer_hash(int(value))
    if isinstance(value, (float, np.floating)):
        return _double_hash(float(value))
    if isinstance(value, (bytes, bytearray)):
        return _bytes_hash(bytes(value))
    if isinstance(value, (list, tuple)):
        return hash_all(value) & _INT
    if isinstance(value, Set):
        return sum(_hash(element) for element in value) & _INT
    if isinstance(value, Mapping):
        return sum(_hash(key) ^ _hash(element) for key, element in value.items()) & _INT
    return _bytes_hash(_pickled(value))


def _text_hash(text: str) -> int:
    code = 0
    for unit in (
        memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H") if not text.isascii() else text.encode()
    ):
        code = (31 * code + unit) & _INT
    return code


def _integer_hash(number: int) -> int:
    if -(1 << 63) <= number < 1 << 63:
        bits = number & _LONG
        return (bits ^ bits >> 32) & _INT
    magnitude, code = abs(number), 0  # BigInteger
    for shift in range((magnitude.bit_length() + 31) // 32 - 1, -1, -1):
        code = (31 * code + (magnitude >> 32 * shift & _INT)) & _INT
    return code if number > 0 else -code & _INT


def _double_hash(number: float) -> int:
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    if number != number:  # every NaN is one to Java
        bits = 0x7FF8000000000000
    return int((bits ^ bits >> 32) & _INT)


def _bytes_hash(data: bytes) -> int:
    code = 1
    for byte in data:
        code = (31 * code + (byte - 256 if byte > 127 else byte)) & _INT
    return code


def _pickled(value: Any) -> bytes:
    """Pickle without a memo: with one, the bytes would tell equal values apart by the identity of their parts."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    pickler.fast = True
    try:
        pickler.dump(value)
    except Exception as exc:  # pickle raises what a value's own code raises
        raise BadTupleError(
            f"A value of type {type(value).__name__!r} can't be pickled, so it can't choose a task ({exc!r}). Group by fields "
            "such as texts and numbers."
        ) from exc
    return buffer.getvalue()


def _signed(code: int) -> int:
    return code - (1 << 32) if code >= 1 << 31 else code


class _JavaRandom:
    """Java's linear congruential generator (java.util.Random)."""

    def __init__(self, seed: int) -> None:
        self._seed = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def _next(self, bits: int) -> int:
        self._seed = (self._seed * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return self._seed >> (48 - bits)

    def next_int(self, bound: int) -> int:
        """Draw an integer below a bound."""
        if bound & -bound == bound:
            return bound * self._next(31) >> 31
        while True:
            bits = self._next(31)
            value = bits % bound
            if bits - value + (bound - 1) < 1 << 31:
                return value
