"""Roots by the block: what travels together, in one order whatever order it comes in."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_redis.model import blocks, ids
from acker_redis.model.blocks import Blocks

PROFILE = settings(deadline=None, derandomize=True, database=None)
MASK = 2**59 - 1
int64s = st.integers(0, 2**64 - 1)
roots = (
    st.builds(lambda block, slot: slot << 59 | block, st.sampled_from([0, 1, 5, 77, MASK]), st.integers(0, 31)) | int64s
)
rows = st.lists(st.tuples(roots, int64s), min_size=1, max_size=60)


def columns(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([root for root, _ in pairs], np.uint64), np.array([val for _, val in pairs], np.uint64)


def unpacked(data: bytes, *, with_vals: bool) -> dict[int, int | None]:
    """What the scripts read."""
    found: dict[int, int | None] = {}
    at = 0
    while at < len(data):
        block, mask = struct.unpack_from(">QI", data, at)
        at += 12
        for slot in range(32):
            if mask >> slot & 1:
                root = slot << 59 | block
                assert root not in found
                (found[root],) = struct.unpack_from(">Q", data, at) if with_vals else (None,)
                at += 8 * with_vals
    return found


@PROFILE
@given(rows, st.randoms())
def test_packed_blocks_are_equal_for_any_order_of_rows(pairs: list[tuple[int, int]], random: Any) -> None:
    xor: dict[int, int] = {}
    for root, val in pairs:
        xor[root] = xor.get(root, 0) ^ val
    batch = Blocks.from_roots(*columns(pairs), "xor")
    packed, at = batch.packed()
    assert unpacked(packed, with_vals=True) == xor
    assert (at[0], at[-1], len(at)) == (0, len(packed), len(batch.numbers) + 1)
    assert batch.numbers.tolist() == sorted({root & MASK for root in xor})
    random.shuffle(pairs)
    again, _ = Blocks.from_roots(*columns(pairs), "xor").packed()
    assert again == packed


@PROFILE
@given(rows)
def test_blocks_keep_first_value_of_equal_roots(pairs: list[tuple[int, int]]) -> None:
    first: dict[int, int] = {}
    for root, val in pairs:
        first.setdefault(root, val)
    batch = Blocks.from_roots(*columns(pairs))
    assert unpacked(batch.packed()[0], with_vals=True) == first
    named = Blocks.from_roots(columns(pairs)[0])
    assert unpacked(named.packed()[0], with_vals=False).keys() == first.keys()
    assert sorted(batch.roots.tolist()) == sorted(first)


@PROFILE
@given(rows, st.randoms())
def test_reordered_blocks_keep_their_roots(pairs: list[tuple[int, int]], random: Any) -> None:
    batch = Blocks.from_roots(*columns(pairs))
    order = list(range(len(batch.numbers)))
    random.shuffle(order)
    other = batch.reordered(np.array(order))
    assert unpacked(other.packed()[0], with_vals=True) == unpacked(batch.packed()[0], with_vals=True)
    assert other.numbers.tolist() == [batch.numbers[place] for place in order]


def test_roots_of_consecutive_ids_are_packed_without_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = ids.new_roots(10_000).view(np.uint64)
    expected = Blocks.from_roots(fresh, fresh).packed()
    monkeypatch.delattr(blocks, "_sorted")
    assert Blocks.from_roots(fresh, fresh).packed() == expected


@PROFILE
@given(rows)
def test_block_numbers_and_masks_yield_their_roots(pairs: list[tuple[int, int]]) -> None:
    batch = Blocks.from_roots(columns(pairs)[0])
    assert blocks.roots_of(batch.numbers, batch.masks).tolist() == batch.roots.tolist()
    assert blocks.counts_of(batch.masks).tolist() == batch.sizes.tolist()


FOUND = st.lists(
    st.integers(0, 2**64 - 1) | st.builds(lambda block, slot: slot << 59 | block, st.integers(0, 3), st.integers(0, 31))
)


@settings(max_examples=200)
@given(FOUND, FOUND, st.booleans())
def test_index_returns_position_of_root_or_minus_one(given_roots: list[int], wanted: list[int], in_order: bool) -> None:  # noqa: FBT001
    roots = list(dict.fromkeys(given_roots))
    if in_order:
        roots.sort(key=lambda root: (root & (1 << 59) - 1, root >> 59))
    wanted += given_roots
    found = blocks.Index(np.array(roots, np.uint64)).rows_of(np.array(wanted, np.uint64))
    assert found.tolist() == [roots.index(root) if root in roots else -1 for root in wanted]


@given(FOUND)
def test_distinct_returns_each_root_once(given_roots: list[int]) -> None:
    found = blocks.distinct(np.array(given_roots, np.uint64))
    assert sorted(found.tolist()) == sorted(set(given_roots))


def test_roots_of_consecutive_ids_are_looked_up_without_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = np.concatenate(
        [ids.mint(np.full(32, block, np.uint64), np.arange(32, dtype=np.uint64)) for block in (9, 2, 5)]
    )
    monkeypatch.setattr(blocks, "_by_block", None)
    assert blocks.Index(roots).rows_of(roots[::-1]).tolist() == list(range(95, -1, -1))
    assert blocks.distinct(roots) is roots
