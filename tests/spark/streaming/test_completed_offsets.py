"""Up to where all messages of a partition are done: never too far, never back, and as far as can be known."""

import random

import numpy as np
import pytest

from acker_redis.spark.streaming import completed_offsets
from acker_redis.spark.streaming.completed_offsets import CompletedOffsets


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_completed_offsets_stop_at_open_messages() -> None:
    offsets = CompletedOffsets({})
    offsets.add(array(1, 2, 3, 4), ("p", "q"), array(0, 0, 0, 1), array(10, 11, 12, 5))
    offsets.update(array(2))
    assert offsets.values == {"p": 11, "q": 6}
    offsets.add(array(5), ("p",), array(0), array(13))
    offsets.update(array(2))
    assert offsets.values == {"p": 11, "q": 6}
    offsets.update(array())
    assert offsets.values == {"p": 14, "q": 6}


def test_repeated_batch_does_not_lower_completed_offsets() -> None:
    offsets = CompletedOffsets({"p": 20})
    offsets.add(array(1, 2), ("p",), array(0, 0), array(10, 11))
    offsets.update(array(1))
    assert offsets.values == {"p": 20}


def test_open_messages_bound_completed_offsets_after_restart() -> None:
    offsets = CompletedOffsets({"p": 3, "q": 7})
    offsets.add(array(1, 2), ("p",), array(0, 0), array(3, 9))
    offsets.update(array(1, 2))
    assert offsets.values == {"p": 3, "q": 7}
    offsets.update(array(2))
    assert offsets.values == {"p": 9, "q": 7}
    offsets.update(array())
    assert offsets.values == {"p": 10, "q": 7}


def test_completed_offset_equals_the_first_open_offset() -> None:
    draw = random.Random(7)
    for _ in range(200):
        offsets, done, at, left = CompletedOffsets({}), set[int](), 0, set[int]()
        for _ in range(draw.randrange(1, 8)):
            batch = list(range(at, at := at + draw.randrange(0, 6)))
            left |= set(batch)
            gone = {one for one in left if draw.random() < 0.6}
            left -= gone
            done |= gone
            offsets.add(array(*batch), ("p",) if batch else (), array(*([0] * len(batch))), array(*batch))
            offsets.update(array(*left))
            truth = next(one for one in range(at + 1) if one not in done)
            assert offsets.values.get("p", 0) == truth


def test_oldest_completed_partitions_are_dropped_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completed_offsets, "MAX_PARTITIONS", 2)
    offsets = CompletedOffsets({})
    gone = []
    for number, name in enumerate("abcd"):
        offsets.add(array(number), (name,), array(0), array(0))
        gone += offsets.update(array(0))  # the first is open
    assert offsets.values == {"a": 0, "d": 1}
    assert gone == ["b", "c"]


def test_places_are_those_of_the_batch_and_of_open_messages() -> None:
    offsets = CompletedOffsets({})
    offsets.add(array(1, 2), ("p", "q"), array(0, 1), array(10, 5))
    assert offsets.places_of([2, 1, 3]) == {1: ("p", 10), 2: ("q", 5)}
    assert offsets.open == {}
    offsets.update(array(2))
    assert offsets.open == offsets.places_of([1, 2]) == {2: ("q", 5)}
    offsets.add(array(4), ("p",), array(0), array(11))
    assert offsets.places_of([4, 2]) == {2: ("q", 5), 4: ("p", 11)}
    offsets.update(array())
    assert offsets.open == offsets.places_of([2, 4]) == {}


def test_only_changes_are_published_and_again_until_they_were() -> None:
    offsets = CompletedOffsets({"p": 10, "q": 5})
    assert offsets.unpublished == {}
    offsets.add(array(1), ("p",), array(0), array(10))
    offsets.update(array())
    assert offsets.unpublished == offsets.unpublished == {"p": 11}
    offsets.mark_published({"p": 11})
    assert offsets.unpublished == {}
