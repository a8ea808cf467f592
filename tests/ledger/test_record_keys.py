"""Acks with a key per record: each counts once, however a consumer groups its records into calls."""

from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import Acker, AckerConfig, Applied, BadBatchError, BadIdError
from acker_redis.acker import app_of
from acker_redis.client import function_library
from acker_redis.ledger.keyed_acks import KeyedAcks
from acker_redis.model.blocks import ROOTS_PER_CALL
from acker_redis.testing import fake_acker
from tests.docs.test_readme import blocks


@pytest.fixture
def acker() -> Acker:
    return fake_acker(shards=3)


def exported(acker: Acker, count: int, per_root: int) -> tuple[np.ndarray, np.ndarray]:
    """Anchors of records, shuffled, whose roots wait for all of them."""
    luck = np.random.default_rng(count)
    roots, edges = acker.new_roots(count), luck.integers(1, 2**62, count * per_root)
    acker.init_many(roots, np.bitwise_xor.reduce(edges.reshape(count, per_root), axis=1), 0)
    order = luck.permutation(count * per_root)
    return np.repeat(roots, per_root)[order], edges[order]


def test_records_of_overlapping_calls_count_once(acker: Acker) -> None:
    roots, edges = exported(acker, 700, 4)
    for begin, end in [(0, 1500), (1000, 2000), (0, 2500), (500, 2800), (0, 2800)]:
        acker.ack_many(roots[begin:end], edges[begin:end], record_keys=edges[begin:end])
    assert acker.pending() == 0
    assert acker.stats().acked == 700


def test_record_twice_in_one_call_counts_once(acker: Acker) -> None:
    roots, edges = exported(acker, 40, 2)
    twice = np.concatenate([roots, roots]), np.concatenate([edges, edges])
    assert acker.ack_many(*twice, record_keys=twice[1]) == Applied(applied=40, duplicate=False)
    assert acker.pending() == 0


def test_keys_of_one_root_fill_many_calls(acker: Acker) -> None:
    roots, edges = exported(acker, 1, 5 * ROOTS_PER_CALL + 7)
    acker.ack_many(roots[:1000], edges[:1000], record_keys=edges[:1000])
    result = acker.ack_many(roots, edges, record_keys=edges)
    assert (result.duplicate, acker.pending()) == (True, 0)


def test_batch_acks_and_fails_with_keys(acker: Acker) -> None:
    roots, edges = exported(acker, 10, 1)
    for _ in range(2):
        with acker.batch() as batch:
            batch.ack_many(roots[:8], edges[:8], record_keys=edges[:8], component="price")
            batch.fail_many(roots[8:], reason="no price", component="price")
            batch.ack_many([], [], record_keys=[])
    stats = acker.stats()
    assert (stats.acked, stats.failed, stats.pending) == (8, 2, 0)
    assert batch.result == Applied(applied=0, duplicate=True)


def test_key_of_a_batch_does_not_cover_acks_with_keys(acker: Acker) -> None:
    acker.init_many([1, 2, 3], [5, 6, 7], 0)
    for _ in range(2):
        with acker.batch(idempotency_key="partition-7") as batch:
            batch.ack_many([1], [5])
            batch.ack_many([2], [6], record_keys=[6])
    with acker.batch(idempotency_key="partition-8") as batch:
        batch.ack_many([2, 3], [6, 7], record_keys=[6, 7])
    assert (acker.pending(), batch.result) == (0, Applied(applied=1, duplicate=True))


def test_keys_that_can_not_be_used_are_refused_before_anything_is_sent(acker: Acker) -> None:
    with pytest.raises(BadBatchError, match="record_keys has 1"):
        acker.ack_many([1, 2], [5, 6], record_keys=[5])
    with pytest.raises(BadBatchError, match="both given"):
        acker.ack_many([1], [5], record_keys=[5], idempotency_key="partition-7")
    with pytest.raises(BadIdError, match="record_keys"):
        acker.ack_many([1], [5], record_keys=["items-0-17"])
    with pytest.raises(BadBatchError, match="empty"):
        acker.ack_many([], [], record_keys=[])
    with acker.batch() as batch, pytest.raises(BadBatchError, match="record_keys has 2"):
        batch.ack_many([1], [5], record_keys=[5, 6])
    assert acker.stats().acks == 0


@pytest.mark.parametrize("num_buckets", [2, 3, 1000])
def test_calls_are_bounded_by_lookups(num_buckets: int) -> None:
    none = np.arange(1, 3001, dtype=np.uint64)
    shards = app_of(fake_acker(num_buckets=num_buckets)).shards
    pieces = list(KeyedAcks.distinct(none, none, none, None).pieces(shards))
    sizes = [len(piece.keyed) // 24 for piece in pieces]
    assert sum(sizes) == 3000
    assert max(sizes) * (num_buckets + 1) <= 26_000
    assert max(sizes) <= ROOTS_PER_CALL


def test_only_roots_with_an_owner_and_no_outcome_are_pending() -> None:
    acker = fake_acker(config=AckerConfig(app="states", shards=2))
    shared = acker.new_roots(3)
    acker.init_many([1, 2, 3, 4], [5, 6, 7, 8], 0)
    acker.init_many(shared, [5, 6, 7], 0)
    acker.ack_many([1, shared[0]], [5, 5])
    acker.fail_many([2, shared[1]])
    acker.ack_many([9], [1])
    asked = np.array([1, 2, 3, 4, 9, 10, *shared, 3], np.int64)
    found = app_of(acker).inspection.are_pending(asked.view(np.uint64))
    assert found.tolist() == [False, False, True, True, False, False, False, False, True, True]


@pytest.mark.server
def test_documented_bytes_ack_a_record_from_any_language(url: str) -> None:
    """Those of bare.md, sent with a plain client."""
    program: dict[str, Any] = {}
    exec(next(block for block in blocks("python", "docs/guides/bare.md") if "def ack_record" in block), program)
    library = function_library.library()
    with (
        redis.Redis.from_url(url) as client,
        Acker.connect(url, app="other", shards=4, lanes=3, num_buckets=5) as acker,
    ):
        client.function_load(library.text, replace=True)
        roots, edges = exported(acker, 60, 2)
        packed = list(zip(roots.view(np.uint64).tolist(), edges.tolist(), strict=True))
        found = [program["ack_record"](client, library.functions["ack"], "other", *anchor) for anchor in packed * 2]
        client.function_flush()
        assert found == [[0, 1]] * 120 + [[1, 0]] * 120
        assert (acker.pending(), acker.stats().acked, acker.stats().deduplicated) == (0, 60, 120)
