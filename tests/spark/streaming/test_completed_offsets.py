"""Up to where all messages of a partition are done: never too far, never back, and as far as can be known."""

import random

import numpy as np
import pytest

from acker_redis.acker import app_of
from acker_redis.store import completed_offsets
from acker_redis.store.completed_offsets import DoneUntil
from acker_redis.testing import fake_acker


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_what_is_open_bounds_its_partition() -> None:
    until = DoneUntil({})
    until.take(array(1, 2, 3, 4), ("p", "q"), array(0, 0, 0, 1), array(10, 11, 12, 5))
    until.update(array(2))
    assert until.values == {"p": 11, "q": 6}
    until.take(array(5), ("p",), array(0), array(13))
    until.update(array(2))
    assert until.values == {"p": 11, "q": 6}
    until.update(array())
    assert until.values == {"p": 14, "q": 6}


def test_a_batch_that_comes_again_takes_nothing_back() -> None:
    until = DoneUntil({"p": 20})
    until.take(array(1, 2), ("p",), array(0, 0), array(10, 11))
    until.update(array(1))
    assert until.values == {"p": 20}


def test_what_was_open_before_a_restart_still_is() -> None:
    until = DoneUntil({"p": 3, "q": 7})
    until.take(array(1, 2), ("p",), array(0, 0), array(3, 9))
    until.update(array(1, 2))
    assert until.values == {"p": 3, "q": 7}
    until.update(array(2))
    assert until.values == {"p": 9, "q": 7}
    until.update(array())
    assert until.values == {"p": 10, "q": 7}


def test_never_further_than_what_is_done() -> None:
    draw = random.Random(7)
    for _ in range(200):
        until, done, at, left = DoneUntil({}), set[int](), 0, set[int]()
        for _ in range(draw.randrange(1, 8)):
            batch = list(range(at, at := at + draw.randrange(0, 6)))
            left |= set(batch)
            gone = {one for one in left if draw.random() < 0.6}
            left -= gone
            done |= gone
            until.take(array(*batch), ("p",) if batch else (), array(*([0] * len(batch))), array(*batch))
            until.update(array(*left))
            truth = next(one for one in range(at + 1) if one not in done)
            assert until.values.get("p", 0) == truth


def test_partitions_are_bounded_and_those_seen_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completed_offsets, "MOST_PARTITIONS", 2)
    until = DoneUntil({})
    gone = []
    for number, name in enumerate("abcd"):
        until.take(array(number), (name,), array(0), array(0))
        gone += until.update(array(0))  # the first is open
    assert until.values == {"a": 0, "d": 1}
    assert gone == ["b", "c"]


def test_others_read_what_was_written() -> None:
    acker = fake_acker()
    app_of(acker).write_completed_offsets({f"p{number}": number for number in range(2500)}, task=1)
    app_of(acker).write_completed_offsets({"p7": 70}, ["p8"], task=1)
    found = acker.completed_offsets(1)
    assert (len(found), found["p7"], found["p2499"], "p8" in found) == (2499, 70, 2499, False)
    assert acker.completed_offsets() == {}
