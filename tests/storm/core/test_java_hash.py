"""Java's hashes. Expected values were computed by Java 17, or are recorded choices of Storm 2.8.2."""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from acker_redis.storm.core.java_hash import hash_all, task_index, two_choices


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("k1", 3366),
        ("", 0),
        ("ä€", 31 * 0xE4 + 0x20AC),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
        (None, 0),
        (True, 1231),
        (False, 1237),
        (1, 1),
        (-1, 0),
        (1 << 32, 1),
        ((1 << 63) - 1, -(1 << 31)),
        (1 << 64, 31 * 31),
        (1.0, 1072693248),
        (0.0, 0),
        (-0.0, -(1 << 31)),
        (float("nan"), 2146959360),
        (b"\x01\xff", 31 * (31 + 1) - 1),
        ([1, "a"], 31 * (31 + 1) + 97),
        ((1, "a"), 31 * (31 + 1) + 97),
        ({"k": 6}, 107 ^ 6),
        (frozenset({1, 2}), 3),
        (np.int64(-1), 0),
        (np.float64(1.0), 1072693248),
    ],
)
def test_values_hash_as_in_java(value: Any, code: int) -> None:
    assert (hash_all([value]) - 31) & 0xFFFFFFFF == code & 0xFFFFFFFF


def test_recorded_choices_of_fields_grouping() -> None:
    assert [task_index([f"k{n}"], 4) for n in range(5)] == [0, 1, 2, 3, 0]


def test_recorded_choices_of_partial_key_grouping() -> None:
    """Each key went to one of these tasks in the recording; see there."""
    recorded = {"k0": 2, "k1": 3, "k2": 0, "k3": 2, "k4": 3}
    assert all(task in two_choices([key], 4) for key, task in recorded.items())


def test_candidates_of_partial_key_grouping_are_those_of_java() -> None:
    keys = ["k0", "k1", "k2", "k3", "k4"]
    assert [two_choices([key], 4) for key in keys] == [(2, 3), (2, 3), (2, 0), (2, 3), (2, 3)]
    assert [two_choices([key], 3) for key in keys] == [(1, 2), (2, 0), (2, 1), (2, 0), (0, 2)]
    assert [two_choices([key], 7) for key in keys] == [(1, 4), (2, 3), (1, 3), (6, 0), (6, 4)]


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 7, 1000])
def test_two_choices_are_distinct_tasks(tasks: int) -> None:
    for key in range(200):
        first, second = two_choices([key], tasks)
        assert 0 <= first < tasks and 0 <= second < tasks and (first != second or tasks == 1)


@dataclass(frozen=True)
class Point:
    x: str
    y: str


class Color(enum.Enum):
    RED = 1


def test_other_types_hash_by_value_and_not_by_the_identity_of_their_parts() -> None:
    text = "".join(["a", "b"])
    assert hash_all([Point(text, text)]) == hash_all([Point("".join(["a", "b"]), "".join(["a", "b"]))])
    assert hash_all([Point("a", "b")]) != hash_all([Point("b", "a")])
    assert hash_all([Color.RED]) == hash_all([Color.RED])
