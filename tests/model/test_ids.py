"""Ids: what is accepted, how it is packed, what is derived from what."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_redis import BadBatchError, BadIdError
from acker_redis.model import ids

MIN, MAX, TOP = -(2**63), 2**63 - 1, 2**64 - 1
int64s = st.integers(MIN, MAX)

DERIVED, SHARDS = -8215614802911745389, [7, 1, 6, 5, 2, 2, 0, 7]
PROFILE = settings(deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0, 0),
        (1, 1),
        (-1, TOP),
        (MIN, 2**63),
        (MAX, MAX),
        (2**63, 2**63),
        (TOP, TOP),
        (np.int64(-1), TOP),
        (np.uint8(7), 7),
    ],
)
def test_signed_and_unsigned_spellings_are_the_same_bits(value: Any, bits: int) -> None:
    assert ids.to_uint64(value, "root") == bits
    assert ids.to_uint64(ids.to_int64(bits), "root") == bits


@pytest.mark.parametrize("value", [MIN - 1, 2**64, 10**30])
def test_an_id_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(BadIdError, match=r"root=.*outside the 64-bit range"):
        ids.to_uint64(value, "root")
    with pytest.raises(BadIdError, match=r"roots\[1\]"):
        ids.to_uint64_array([1, value], "roots")


@pytest.mark.parametrize("value", [1.0, "1", None, b"12345678", True, np.bool_(True), float("nan"), [1]])
def test_an_id_that_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(BadIdError, match="not a 64-bit integer"):
        ids.to_uint64(value, "root")
    with pytest.raises(BadIdError, match=r"roots\[1\]"):
        ids.to_uint64_array([1, value], "roots")


@pytest.mark.parametrize("spout_id", [0, 1, 2**32 - 1, np.int32(5)])
def test_spout_id_is_an_unsigned_32_bit_integer(spout_id: Any) -> None:
    assert ids.to_spout_id(spout_id) == int(spout_id)


@pytest.mark.parametrize("spout_id", [-1, 2**32, 1.5, "1", None, True, np.bool_(True)])
def test_spout_id_out_of_range_or_of_other_type_is_refused(spout_id: Any) -> None:
    with pytest.raises(BadIdError, match="spout_id="):
        ids.to_spout_id(spout_id)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([-1, MIN], np.int64), [TOP, 2**63]),
        (np.array([TOP, 0], np.uint64), [TOP, 0]),
        (np.array([-1, 3], np.int8), [TOP, 3]),
        (np.array([255], np.uint8), [255]),
        (np.array([1, 2, 3, 4], np.int64)[::2], [1, 3]),
        (np.array([1, TOP], dtype=object), [1, TOP]),
        ([-1, TOP, MIN], [TOP, TOP, 2**63]),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        ([], []),
        (np.array([], np.int64), []),
    ],
)
def test_arrays_and_sequences_become_uint64_arrays(values: Any, expected: list[int]) -> None:
    array = ids.to_uint64_array(values, "roots")
    assert array.dtype == np.uint64
    assert array.tolist() == expected


def test_an_int64_array_is_not_copied() -> None:
    values = np.arange(4, dtype=np.int64)
    assert np.shares_memory(ids.to_uint64_array(values, "roots"), values)


@pytest.mark.parametrize("values", [np.zeros((2, 2), np.int64), "12", b"12", 5, None, iter([1])])
def test_value_that_is_no_sequence_of_ids_is_refused(values: Any) -> None:
    with pytest.raises(BadBatchError, match="roots "):
        ids.to_uint64_array(values, "roots")


@pytest.mark.parametrize("values", [np.array([1.0, 2.0]), np.array(["1"]), np.array([True]), [1, 2.5]])
def test_arrays_of_other_types_are_refused(values: Any) -> None:
    with pytest.raises(BadIdError):
        ids.to_uint64_array(values, "roots")


def test_derived_ids_equal_recorded_values() -> None:
    """Numbers written down: ids stand in running ledgers and in other programs."""
    assert ids.derive("edge", 1) == DERIVED
    assert ids.derive("edge", 1) == ids.derive(b"edge", "1")
    assert ids.mix64(np.array([0, 1], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert ids.shard_of(np.arange(8, dtype=np.uint64), 8).tolist() == SHARDS
    program = "from acker_redis.model import ids; print(ids.derive('edge', 1))"
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(again.stdout) == DERIVED


@pytest.mark.parametrize("other", [("ab", "c"), ("a", "bc", ""), ("abc",), ("a", "b", "c")])
def test_derived_id_depends_on_boundaries_of_its_parts(other: tuple[str, ...]) -> None:
    assert ids.derive("a", "bc") != ids.derive(*other)


def test_derived_columns_do_not_collide() -> None:
    rows = np.arange(20_000, dtype=np.uint64)
    found = np.concatenate(
        [ids.derive_many(seed, rows // np.uint64(100), rows % np.uint64(100)) for seed in (1, 2, -1)]
    )
    assert len(np.unique(found)) == 60_000
    assert ids.derive_many(-1, rows).tolist() == ids.derive_many(TOP, rows).tolist()


@PROFILE
@given(st.lists(int64s, max_size=50), st.integers(1, 4096))
def test_every_root_has_one_shard(roots: list[int], shards: int) -> None:
    array = ids.to_uint64_array(roots, "roots")
    found = ids.shard_of(array, shards).tolist()
    assert all(0 <= shard < shards for shard in found)
    assert found == [int(ids.shard_of(array[i : i + 1], shards)[0]) for i in range(len(roots))]


def test_consecutive_roots_spread_over_the_shards() -> None:
    counts = np.bincount(ids.shard_of(np.arange(80_000, dtype=np.uint64), 8), minlength=8)
    assert counts.min() > 9_500 and counts.max() < 10_500


@PROFILE
@given(st.lists(st.tuples(st.integers(0, 5), int64s), max_size=30), st.randoms())
def test_xor_by_root_is_the_xor_of_each_root_in_any_order(rows: list[tuple[int, int]], random: Any) -> None:
    expected: dict[int, int] = {}
    for root, val in rows:
        expected[root] = expected.get(root, 0) ^ (val % 2**64)
    random.shuffle(rows)
    roots, vals = ids.xor_by_root(
        ids.to_uint64_array([root for root, _ in rows], "roots"), ids.to_uint64_array([val for _, val in rows], "vals")
    )
    assert list(zip(roots.tolist(), vals.tolist(), strict=True)) == sorted(expected.items())


def test_roots_of_a_block_have_the_same_shard() -> None:
    block = np.full(32, 0x123456789ABCDEF, np.uint64)
    roots = ids.mint(block, np.arange(32, dtype=np.uint64))
    assert len(set(ids.shard_of(roots, 64).tolist())) == 1
    assert set((roots & np.uint64(2**59 - 1)).tolist()) == {0x123456789ABCDEF}
    assert (roots >> np.uint64(59)).tolist() == list(range(32))


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100_000])
def test_new_roots_are_distinct_and_fill_blocks_in_order(count: int) -> None:
    roots = ids.new_roots(count)
    assert roots.dtype == np.int64
    assert len(np.unique(roots)) == count
    bits = roots.view(np.uint64)
    assert (bits >> np.uint64(59)).tolist() == [number % 32 for number in range(count)]
    blocks = (bits & np.uint64(2**59 - 1)).tolist()
    assert len(set(blocks)) == -(-count // 32)
    assert all(blocks[at] == blocks[at - at % 32] for at in range(0, count, 7))
    assert not set(roots.tolist()) & set(ids.new_roots(count).tolist())
