"""Edges of the tuples of a row, derived together, because one function over arrays takes less time than a hash per tuple.

    edge = hash(root, run, turn, emitting task, target task, sequence, values)

A sequence occurs once in a task and turn, so no two tuples have one edge. Tuples with other values have other edges.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np

from acker_redis.model.arrays import UInt64Array
from acker_redis.model.ids import mix64

_WORD = 8
_LONG = 128
"""Bytes from which a digest takes the place of serialised values, because it takes less time than the words."""


def edges_of_row(
    key: bytes, target: int, roots: UInt64Array, seqs: Sequence[int], values: Sequence[bytes]
) -> UInt64Array:
    """Derive the edges of tuples with one root each.

    Args:
        key: digest of run, turn and emitting task; see `core.edges.task_key`.
        target: id of the target task.
        roots: root of each tuple.
        seqs: sequence of each.
        values: serialised values of each.
    """
    first, second = np.frombuffer(key, np.uint64)
    of_target = mix64(np.array([second ^ np.uint64(target)], np.uint64))
    places = mix64(np.array(seqs, np.uint64) + of_target)
    return mix64(mix64(mix64(roots ^ first) + places) ^ hashes_of(values, of_target))


def hashes_of(values: Sequence[bytes], key: UInt64Array) -> UInt64Array:
    """Hash texts of bytes under a key: each word is mixed with its place in its text, and the words of a text are added up."""
    whole = lengths = np.fromiter(map(len, values), np.int64, len(values))
    if lengths.max() >= _LONG:
        values = [blake2b(of).digest() if len(of) >= _LONG else of for of in values]
        lengths = np.fromiter(map(len, values), np.int64, len(values))
    words = lengths // _WORD + 1  # the last one has 0 to 7 bytes
    ends = np.cumsum(words)
    begins = ends - words
    places = np.arange(ends[-1]) - np.repeat(begins, words)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(chain(values, (bytes(_WORD),))), np.uint8)
    at_each_byte = np.ndarray((len(data) - _WORD + 1,), np.uint64, data, 0, (1,))
    found = at_each_byte[np.repeat(starts, words) + places * _WORD]
    rest = (lengths % _WORD * _WORD).astype(np.uint64)
    found[ends - 1] &= (np.uint64(1) << rest) - np.uint64(1)
    mixed = mix64(found ^ mix64(places.astype(np.uint64) ^ key))
    sums: UInt64Array = np.add.reduceat(mixed, begins)
    return mix64(sums ^ whole.astype(np.uint64))
