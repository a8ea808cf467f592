"""Anchors of exported records, as the value of a header of Kafka.

An anchor is a root and one of its edges. A record has one anchor for each message that it came from. Whoever has processed
the record acks each root with its edge.

    byte 0      version of this layout: 1
    2 bytes     length of the app's name, and the name in UTF-8
    2 bytes     length of the group's name, and the name in UTF-8
    16 bytes    for each anchor: root, edge

All numbers are big-endian.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from acker_redis.errors import BadAnchorsError
from acker_redis.model.arrays import Int64Array

HEADER = "acker-anchors"
"""Name of the header."""

ANCHOR_BYTES = 16
"""Bytes of an anchor."""

_VERSION = 1
_LENGTH = struct.Struct(">H")


@dataclass(frozen=True, eq=False)
class Anchors:
    """Anchors of a record that `Tracker.export_kafka` wrote.

    Ack each root with its edge once the record is processed, and pass the edges as `record_keys`. A record that you read
    twice then counts once.

    Attributes:
        roots: roots, distinct.
        edges: edge of each root.
    """

    roots: Int64Array
    edges: Int64Array

    @classmethod
    def of_headers(cls, headers: Iterable[tuple[str, object]] | None, *, app: str, group: str) -> Self | None:
        r"""Read the anchors from the headers of a record.

        Args:
            headers: headers of the record, as (name, value).
            app: app whose roots this program acks.
            group: consumer group of this program.

        Returns:
            None if the record has no such header, because it wasn't exported.

        Raises:
            BadAnchorsError: the header is damaged, or names another app or group.

        >>> shop = b"\x01\x00\x04shop\x00\x07pricing"
        >>> header = shop + (1).to_bytes(8, "big") + (5).to_bytes(8, "big")
        >>> found = Anchors.of_headers([("acker-anchors", header)], app="shop", group="pricing")
        >>> found.roots.tolist(), found.edges.tolist()
        ([1], [5])
        """
        values = [value for name, value in headers or () if name == HEADER]
        if not values:
            return None
        if len(values) > 1:
            raise BadAnchorsError(
                f"The record has {len(values)} headers {HEADER!r}. It is unclear which of them counts. Pass on only the "
                "records' own headers."
            )
        named_app, named_group, packed = _parts(values[0])
        if named_app != app or named_group != group:
            raise BadAnchorsError(
                f"The record was exported by app {named_app!r} for the group {named_group!r}, but this is app {app!r} and "
                f"group {group!r}. Acks from here would complete messages that the other group hasn't processed. Read the "
                "topic as that group.",
                group=named_group if named_app == app else None,
            )
        pairs = np.frombuffer(packed, ">i8").astype(np.int64).reshape(-1, 2)
        roots = np.ascontiguousarray(pairs[:, 0])
        if len(roots) > 1 and len(np.unique(roots)) < len(roots):
            raise BadAnchorsError(f"{_DAMAGED} It names a root twice. {_REPAIR}")
        return cls(roots, np.ascontiguousarray(pairs[:, 1]))


_DAMAGED = f"The header {HEADER!r} of the record is damaged."
_REPAIR = "Pass it on unchanged."


def prefix(app: str, group: str) -> bytes:
    """Return the beginning of a header, before the anchors."""
    names = (name.encode() for name in (app, group))
    return bytes([_VERSION]) + b"".join(_LENGTH.pack(len(name)) + name for name in names)


def packed_anchors(roots: Int64Array, edges: Int64Array) -> bytes:
    """Return anchors as they follow the prefix."""
    return np.stack([roots, edges], axis=1).astype(">i8").tobytes()


def _parts(value: object) -> tuple[str, str, bytes]:
    """Split the value of a header into app, group and packed anchors."""
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes) or not data:
        raise BadAnchorsError(f"{_DAMAGED} It is empty. {_REPAIR}")
    if data[0] != _VERSION:
        raise BadAnchorsError(
            f"The header {HEADER!r} of the record has version {data[0]}, but this program reads version {_VERSION}. A newer "
            "version of acker-redis may have written it. Upgrade this program."
        )
    names, at = [], 1
    for _ in range(2):
        if at + _LENGTH.size > len(data):
            raise BadAnchorsError(f"{_DAMAGED} It ends within a name. {_REPAIR}")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        names.append(data[at - size : at].decode(errors="replace"))
    if at >= len(data) or (len(data) - at) % ANCHOR_BYTES:
        raise BadAnchorsError(f"{_DAMAGED} It ends within an anchor. {_REPAIR}")
    return names[0], names[1], data[at:]
