"""Serialised values: they come back with their types, and equal plain values have equal bytes."""

import math
import sys
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from acker_redis.storm.core.values import dump_values, load_values


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        "", "a b", "ä\ud800", 0, -1, 1 << 200, True, None, b"\x80", 0.1, -0.0, math.inf, [1], {"a": [2]}, {1, 2}, (1, ("a",)),
        np.int64(5), np.float64(0.5), bytearray(b"a"), Colour.RED, Text("a"), OrderedDict(a=1),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_with_their_types(value: Any) -> None:
    for values in ([value], ["before", value, 2], (value, value)):
        found = load_values(dump_values(values))
        assert found == tuple(values) and [type(one) for one in found] == [type(one) for one in values]
        assert repr(found) == repr(tuple(values))


def test_no_values_and_nan() -> None:
    assert load_values(dump_values([])) == ()
    assert math.isnan(load_values(dump_values([math.nan]))[0])


def test_bytes_of_plain_values_depend_on_the_values_alone() -> None:
    text = "".join(["in", "terned by one task only"])
    before = dump_values([text, text])
    assert dump_values([sys.intern(text), "".join(["in", "terned by one task only"])]) == before
    assert len({dump_values([value]) for value in (1, 1.0, True, "1", b"1", None)}) == 6
