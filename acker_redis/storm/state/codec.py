"""Keys and values of a bolt's state as bytes."""

import io
import pickle
import struct
from collections.abc import Iterable
from typing import Any

from acker_redis.errors import InvalidTopologyError
from acker_redis.store.topology_state import MAX_FIELD_BYTES, MAX_VALUE_BYTES
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.state.held import HeldTuples, Packed

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that don't change in place."""

_LENGTH = struct.Struct(">I")


def encode_key(key: Any) -> bytes:
    """Serialise a key. Keys that a dict takes for equal have equal bytes.

    Raises:
        TypeError: it is neither a text, a number, bytes, None, nor a tuple of these.

    >>> encode_key("a"), encode_key(1), encode_key(True), encode_key(1.0)
    (b'sa', b'i1', b'i1', b'i1')
    """
    data = _encoded(key)
    if len(data) > MAX_FIELD_BYTES:
        raise TypeError(f"A key of a state has {len(data):,} bytes. Use keys of at most {MAX_FIELD_BYTES:,} bytes.")
    return data


def _encoded(key: Any, *, is_exact: bool = False) -> bytes:
    """Serialise a key, or with `is_exact` its type, too: equal numbers of different types choose different tasks."""
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if key is None:
        return b"n"
    if isinstance(key, int):
        return b"o%d" % key if is_exact and isinstance(key, bool) else b"i%d" % key
    if isinstance(key, float):
        # numpy's float64 is a float, too, and its text isn't
        is_whole = key.is_integer() and not is_exact
        return b"i%d" % int(key) if is_whole else b"f" + float.__repr__(key).encode()
    if isinstance(key, tuple):
        parts = [_encoded(part, is_exact=is_exact) for part in key]
        return b"t" + b"".join(word for part in parts for word in (_LENGTH.pack(len(part)), part))
    raise TypeError(f"{key!r:.100} can't be a key of a state. Use a text, a number, bytes, None, or a tuple of these.")


def decode_key(data: bytes) -> Any:
    """Read a key.

    >>> decode_key(encode_key(("a", 1.5, None)))
    ('a', 1.5, None)
    """
    kind, rest = data[:1], data[1:]
    if kind == b"s":
        return rest.decode("utf-8", "surrogatepass")
    if kind == b"b":
        return rest
    if kind == b"n":
        return None
    if kind == b"i":
        return int(rest)
    if kind == b"o":
        return rest == b"1"
    if kind == b"f":
        return float(rest)
    parts, at = [], 0
    while at < len(rest):
        (length,) = _LENGTH.unpack_from(rest, at)
        at += _LENGTH.size
        parts.append(decode_key(rest[at : at + length]))
        at += length
    return tuple(parts)


_HOLDS = b"T"
"""First byte of a value that holds tuples, which no pickle has."""

_TYPED = b"K"
"""First byte of a value in front of which its key stands, because the field has lost the types of the key's numbers."""


def with_key(value: bytes, key: Any) -> bytes:
    """Put the key in front of a value, if it has whole floats or booleans. Its field has integers in their place."""
    if type(key) in (str, int, bytes):
        return value
    exact = _encoded(key, is_exact=True)
    return value if exact == _encoded(key) else _TYPED + _LENGTH.pack(len(exact)) + exact + value


def key_of(field: bytes, value: bytes) -> Any:
    """Read a key with the types of its numbers, from its field and its value.

    >>> key_of(encode_key(("a", 1.0)), with_key(encode_value(7, "a", "bolt"), ("a", 1.0)))
    ('a', 1.0)
    """
    if value[:1] != _TYPED:
        return decode_key(field)
    (length,) = _LENGTH.unpack_from(value, 1)
    return decode_key(value[1 + _LENGTH.size :][:length])


class TupleTooLongError(InvalidTopologyError):
    """A value is too long because of a tuple that it holds. The messages of this tuple are to blame, and no others.

    Attributes:
        roots: their roots.
    """

    def __init__(self, text: str, roots: Iterable[int]) -> None:
        super().__init__(text)
        self.roots = frozenset(roots)


class _Pickler(pickle.Pickler):
    """Pickler of a value that may hold tuples of the topology.

    Attributes:
        longest: its longest tuple, and the length of that tuple's values; None: it has no tuples.
    """

    longest: tuple[Tuple, int] | None = None

    def __init__(self, file: io.BytesIO, held: HeldTuples | None, key: Any) -> None:
        super().__init__(file, 5)
        self._held, self._key = held, key

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tuple) and self._held is not None:
            packed = self._held.packed(value, self._key)
            if self.longest is None or len(packed.values) > self.longest[1]:
                self.longest = value, len(packed.values)
            return held_tuple, tuple(packed)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Unpickler of a value that holds tuples."""

    def __init__(self, file: io.BytesIO, held: HeldTuples) -> None:
        super().__init__(file)
        self._held = held

    def _restored(self, *packed: Any) -> Tuple:
        return self._held.restored(Packed(*packed))

    def find_class(self, module: str, name: str) -> Any:
        if name == held_tuple.__name__ and module == __name__:
            return self._restored
        return super().find_class(module, name)


def held_tuple(*packed: Any) -> Tuple:
    """Make a tuple that a value holds, for a reader without a task. It has no roots, as one of an older run."""
    return Packed(*packed).loose()


def encode_value(value: Any, key: Any, component: str, held: HeldTuples | None = None) -> bytes:
    """Serialise a value.

    Args:
        value: the value.
        key: its key.
        component: name of the bolt.
        held: tuples of the task; None if the value has none.

    Raises:
        InvalidTopologyError: it can't be serialised, is too long, or holds a tuple that another value holds, too.
        TupleTooLongError: it is too long because of a tuple that came in this turn.
    """
    longest = None
    if type(value) in PLAIN:
        data = pickle.dumps(value, 5)
    else:
        file = io.BytesIO()
        pickler = _Pickler(file, held, key)
        try:
            pickler.dump(value)
        except InvalidTopologyError:
            raise
        except Exception as exc:  # pickle raises what a value's own code raises
            raise InvalidTopologyError(
                f"The state of the bolt {component!r} can't keep its value for {key!r:.100} ({exc!r:.200}). Keep plain "
                "values, or objects of classes in a module."
            ) from exc
        longest = pickler.longest
        data = file.getvalue() if longest is None else _HOLDS + file.getvalue()
    if len(data) > MAX_VALUE_BYTES:
        if held is not None and longest is not None and 2 * longest[1] > len(data) and held.is_new(longest[0]):
            raise TupleTooLongError(
                f"The state of the bolt {component!r} can't keep the tuple {longest[0].id!r}, which has {longest[1]:,} bytes, "
                f"for {key!r:.100}. Each value has at most {MAX_VALUE_BYTES:,} bytes. Ack it in the call that receives it, or "
                "keep the part of it that you need.",
                longest[0].edges,
            )
        raise InvalidTopologyError(
            f"The state of the bolt {component!r} has a value of {len(data):,} bytes for {key!r:.100}. Each turn that changes "
            f"it writes all of it. Keep values of at most {MAX_VALUE_BYTES:,} bytes, such as one key per entry."
        )
    return data


def decode_value(data: bytes, held: HeldTuples | None = None) -> Any:
    """Read a value that `encode_value` made, with or without its key in front, with the tuples of its task."""
    if data[:1] == _TYPED:
        data = data[1 + _LENGTH.size + _LENGTH.unpack_from(data, 1)[0] :]
    if held is not None and data[:1] == _HOLDS:
        return _Unpickler(io.BytesIO(data[1:]), held).load()
    return pickle.loads(data.removeprefix(_HOLDS))  # noqa: S301  # the topology's own
