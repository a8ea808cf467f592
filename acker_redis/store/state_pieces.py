"""Values of a topology's state as fields of the server, cut so that no call moves many bytes.

A short value is one field. Of a longer one, the field has its length, a checksum and its first piece, and fields of their own
have the other pieces. A value that lacks a piece, or has one of another value after a loss, isn't there.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

PIECE_BYTES = 60 << 10
"""Longest piece. Two of them fit into a part, and one with the longest key."""

MAX_FIELDS, PART_BYTES = 250, 1 << 17
"""Most fields and bytes of a part."""

_MARK = b"\0"
"""First byte of the first piece, and of the names of the others. No value or key begins so. fold_state.lua spells it, too."""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">II")
"""Length of a value, and its checksum."""


def cut(field: bytes, value: bytes, length_before: int) -> Iterator[tuple[bytes, bytes]]:
    """Cut a value into fields. Those that only the value before has become empty, and so does the field of a deleted value.

    Args:
        field: its field.
        value: the value; empty if it is deleted.
        length_before: length of the value until now.

    >>> [(name[-3:], len(piece)) for name, piece in cut(b"key", b"x" * 70_000, 150_000)]
    [(b'key', 61449), (b'key', 8560), (b'key', 0)]
    """
    is_long = len(value) > PIECE_BYTES
    yield field, _MARK + _HEAD.pack(len(value), zlib.crc32(value)) + value[:PIECE_BYTES] if is_long else value
    for number in range(1, _count(max(len(value), length_before))):
        yield _name(field, number), value[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


def is_long(value: bytes) -> bool:
    """Return True if this is the first piece of a value that has others."""
    return value.startswith(_MARK)


def length_of(first: bytes) -> int:
    """Read the length of a value from its first piece."""
    return int(_HEAD.unpack_from(first, 1)[0]) if is_long(first) else len(first)


def others(field: bytes, first: bytes) -> list[bytes]:
    """List the names of the other pieces of a value."""
    return [_name(field, number) for number in range(1, _count(length_of(first)))]


def joined(first: bytes, rest: Iterable[bytes]) -> bytes:
    """Join the pieces of a value. Empty: one is missing, or is of another value."""
    value = first[1 + _HEAD.size :] + b"".join(rest)
    return value if _HEAD.unpack_from(first, 1) == (len(value), zlib.crc32(value)) else b""


def whole(scanned: Iterable[Mapping[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Read all values from all fields, which come in any order: the short ones as they come, and then the long ones."""
    firsts: dict[bytes, bytes] = {}
    rest: dict[bytes, bytes] = {}
    for part in scanned:
        short: dict[bytes, bytes] = {}
        for field, value in part.items():
            to = rest if field.startswith(_MARK) else firsts if is_long(value) else short
            to[field] = value
        yield short
    for field, first in firsts.items():
        value = joined(first, (rest.pop(one, b"") for one in others(field, first)))
        if value:
            yield {field: value}


def parts(fields: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Pack fields, cut by number and bytes."""
    words: list[bytes] = []
    size = 0
    for field, value in fields:
        more = len(field) + len(value)
        if words and (len(words) == 4 * MAX_FIELDS or size + more > PART_BYTES):
            yield b"".join(words)
            words, size = [], 0
        words += (_LENGTH.pack(len(field)), field, _LENGTH.pack(len(value)), value)
        size += more
    if words:
        yield b"".join(words)


def _count(length: int) -> int:
    return -(-length // PIECE_BYTES)


def _name(field: bytes, number: int) -> bytes:
    return _MARK + bytes([number]) + field
