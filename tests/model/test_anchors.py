"""The header of exported records: its layout, byte by byte, and headers that are refused."""

import random
import struct
from contextlib import suppress

import numpy as np
import pytest

from acker_redis import Anchors, BadAnchorsError
from acker_redis.model import anchors

PREFIX = b"\x01" + b"\x00\x04shop" + b"\x00\x07pricing"


def read(value: object, *, app: str = "shop", group: str = "pricing") -> Anchors | None:
    return Anchors.of_headers([("other", b"1"), ("acker-anchors", value)], app=app, group=group)


def test_header_has_the_documented_layout() -> None:
    roots, edges = np.array([1, -2], np.int64), np.array([2**63 - 1, -(2**63)], np.int64)
    packed = anchors.prefix("shop", "pricing") + anchors.packed_anchors(roots, edges)
    assert packed == PREFIX + struct.pack(">qqqq", 1, 2**63 - 1, -2, -(2**63))
    found = read(packed)
    assert found is not None
    assert (found.roots.tolist(), found.edges.tolist()) == (roots.tolist(), edges.tolist())


@pytest.mark.parametrize("headers", [None, [], [("acker-anchor", b"x")]])
def test_record_without_the_header_has_no_anchors(headers: list[tuple[str, bytes]] | None) -> None:
    assert Anchors.of_headers(headers, app="shop", group="pricing") is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "It is empty"),
        (b"", "It is empty"),
        (b"\x02" + PREFIX[1:] + bytes(16), "has version 2"),
        (b"\x01\x00", "ends within a name"),
        (b"\x01\xff\xffshop", "ends within a name"),
        (PREFIX, "ends within an anchor"),
        (PREFIX + bytes(15), "ends within an anchor"),
        (PREFIX + bytes(16) + bytes(8), "ends within an anchor"),
        (PREFIX + bytes(32), "names a root twice"),
        (PREFIX.replace(b"shop", b"\xff\xfe\xfd\xfc") + bytes(16), "exported by app"),
    ],
)
def test_damaged_header_is_refused(value: object, reason: str) -> None:
    with pytest.raises(BadAnchorsError, match=reason) as caught:
        read(value)
    assert caught.value.group is None


def test_second_header_is_refused() -> None:
    value = PREFIX + bytes(16)
    with pytest.raises(BadAnchorsError, match="2 headers"):
        Anchors.of_headers([("acker-anchors", value)] * 2, app="shop", group="pricing")


@pytest.mark.parametrize(("app", "group", "named"), [("shop", "billing", "pricing"), ("market", "pricing", None)])
def test_header_for_another_group_or_app_is_refused(app: str, group: str, named: str | None) -> None:
    with pytest.raises(BadAnchorsError, match="exported by app 'shop' for the group 'pricing'") as caught:
        read(PREFIX + bytes(16), app=app, group=group)
    assert caught.value.group == named


def test_no_bytes_raise_anything_else() -> None:
    luck = random.Random(1)
    sound = PREFIX + bytes(range(32))
    for _ in range(3000):
        value = bytearray(sound[: luck.randrange(len(sound) + 1)] + luck.randbytes(luck.randrange(20)))
        for _ in range(luck.randrange(4)):
            if value:
                value[luck.randrange(len(value))] = luck.randrange(256)
        with suppress(BadAnchorsError):
            read(bytes(value))
