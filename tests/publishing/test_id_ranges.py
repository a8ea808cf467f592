"""Sets of ids against Python's own sets."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_redis.publishing import id_ranges
from acker_redis.publishing.id_ranges import IdRanges, ids_of, ranges_of

SMALLEST, LARGEST = -(2**63), 2**63 - 1
IDS = st.integers(-40, 40) | st.sampled_from([SMALLEST, SMALLEST + 1, LARGEST - 1, LARGEST])


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@given(st.lists(IDS))
def test_ranges_hold_the_ids_in_order_with_gaps_between(ids: list[int]) -> None:
    ranges = ranges_of(array(ids)).tolist()
    assert [number for first, last in ranges for number in range(first, last + 1)] == sorted(set(ids))
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))


@given(st.lists(st.integers(-40, 40)))
def test_ids_come_back_from_their_ranges(ids: list[int]) -> None:
    assert ids_of(ranges_of(array(ids))).tolist() == sorted(set(ids))


@given(st.lists(st.lists(IDS, max_size=30), max_size=12), st.lists(IDS), st.integers(2, 6), st.integers(1, 9))
def test_set_has_what_was_added(parts: list[list[int]], asked: list[int], leaf: int, recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_ranges, "LEAF_RANGES", leaf)
        patch.setattr(id_ranges, "RECENT_RANGES", recent)
        ids = IdRanges()
        for part in parts:
            ids.add(ranges_of(array(part)))
        truth = {number for part in parts for number in part}
        assert ids.has(array(asked)).tolist() == [number in truth for number in asked]
        assert ids.overlaps(ranges_of(array(asked))) is bool(truth & set(asked))
        assert len(ids) == len(truth)
        assert ids.ranges().tolist() == ranges_of(array(sorted(truth))).tolist()


def test_ranges_are_not_expanded_to_be_looked_up() -> None:
    ids = IdRanges()
    ids.add(np.array([[0, 2**62], [2**62 + 5, LARGEST - 9]]))
    assert ids.overlaps(np.array([[2**62 + 1, 2**62 + 4], [LARGEST - 9, LARGEST]]))
    assert not ids.overlaps(np.array([[2**62 + 1, 2**62 + 4], [LARGEST - 8, LARGEST]]))


def test_sequential_ids_take_one_range() -> None:
    ids = IdRanges()
    for begin in range(0, 100_000, 100):
        ids.add(ranges_of(np.arange(begin, begin + 100)))
    assert ids.ranges().tolist() == [[0, 99_999]]
    assert ids.nbytes < 1000


def test_random_ids_take_eight_bytes() -> None:
    ids, random = IdRanges(), np.random.default_rng(1)
    for _ in range(100):
        ids.add(ranges_of(random.integers(SMALLEST, LARGEST, 10_000)))
    assert len(ids) == 1_000_000
    assert ids.nbytes == 8_000_000


def test_adding_copies_parts_of_the_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges that are written for an addition, on the average, are a few times as many as those that it has."""
    ids, random, written = IdRanges(), np.random.default_rng(2), 0
    unite = id_ranges._united

    def counting(ranges: np.ndarray) -> np.ndarray:
        nonlocal written
        written += len(ranges)
        return unite(ranges)

    additions = [ranges_of(random.integers(SMALLEST, LARGEST, 1000)) for _ in range(1000)]
    monkeypatch.setattr(id_ranges, "_united", counting)
    for addition in additions:
        ids.add(addition)
    assert written < 40 * 1_000_000
