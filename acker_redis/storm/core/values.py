"""Serialised values of tuples: what reaches other processes, and what edges depend on."""

import marshal
import pickle
from collections.abc import Sequence
from typing import Any

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_VERSION = 0
"""Version of marshal whose bytes depend on the values alone, not on whether a text is interned or is here twice."""

_PICKLED = 0x80
"""First byte of a pickle, which no marshalled tuple has."""


def dump_values(values: Sequence[Any]) -> bytes:
    """Serialise values. The bytes belong to one version of Python.

    Plain values take a quarter of pickle's time.

    Raises:
        Exception: what the code of a value raised.
    """
    for value in values:
        if type(value) not in _PLAIN:
            return pickle.dumps(tuple(values), 5)
    return marshal.dumps(tuple(values), _VERSION)


def load_all(data: Sequence[bytes]) -> list[Any]:
    """Read the serialised values of several tuples; see `load_values`."""
    is_plain = _PICKLED not in {of[0] for of in data}
    return list(map(marshal.loads if is_plain else load_values, data))


def load_values(data: bytes) -> Any:
    """Read serialised values, made by `dump_values` in another process of the run.

    >>> load_values(dump_values(["a", 1]))
    ('a', 1)
    """
    return pickle.loads(data) if data[0] == _PICKLED else marshal.loads(data)  # noqa: S301, S302
