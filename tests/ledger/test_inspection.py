"""What the ledgers hold, read from outside: the age of the oldest root, of the last tick, and damaged keys."""

import struct
from typing import Any

import pytest

from acker_redis import Acker, DamagedDataError

LEDGER, META, STATS = (f"acker:{{test:0}}:{name}" for name in ("ledger", "meta", "stats"))
WAITING, OWNED, FAILED = 0, 1, 2


def pack(*roots: int) -> bytes:
    return struct.pack(f">{len(roots)}q", *roots)


class Ring:
    """One shard whose blocks and cohorts a test writes itself."""

    def __init__(self, acker: Acker, raw: Any, tick: int) -> None:
        self.acker, self.raw, self.tick = acker, raw, tick
        raw.hset(META, "tick", tick)
        raw.hset(STATS, "inits", 1)  # something is pending, so the oldest is looked for
        secs, micros = raw.time()
        self.seeded_ms = secs * 1000 + micros // 1000

    def put(self, root: int, *, tick: int, ago_ms: int, flags: int = OWNED) -> None:
        start = (self.seeded_ms - ago_ms).to_bytes(6, "big")
        self.raw.hset(LEDGER, pack(root), struct.pack(">qBBHI", 5, 0, flags, tick % 65536, 7) + start)

    def cohort(self, tick: int, *roots: int, score: int = 1) -> None:
        self.raw.zadd(f"acker:{{test:0}}:bucket:{tick % 4}", {pack(*roots): score})

    def oldest_ms(self) -> int | None:
        """How long before the seeding the oldest root began, to ten seconds: a busy machine is late with the time."""
        age_ms = self.acker.stats().oldest_age_ms
        secs, micros = self.raw.time()
        passed = secs * 1000 + micros // 1000 - self.seeded_ms
        return None if age_ms is None else round((age_ms - passed) / 10_000) * 10_000


@pytest.fixture
def ring(connect, raw):
    def make(tick: int = 10) -> Ring:
        return Ring(connect(shards=1, num_buckets=3), raw, tick)

    return make


@pytest.mark.parametrize("steps_back", [0, 1, 2, 3], ids=["nursery", "middle", "oldest", "death row"])
@pytest.mark.parametrize("tick", [10, 65_537], ids=["", "stamps wrapped"])
def test_oldest_age_is_of_the_oldest_owned_root_in_a_cohort(source, ring, tick, steps_back) -> None:
    shard_ring: Ring = ring(tick)
    put = tick - steps_back
    for root, ago_ms, flags in (
        (1, 10_000, OWNED), (2, 30_000, OWNED), (3, 20_000, OWNED), (4, 90_000, WAITING), (5, 90_000, FAILED),
    ):  # fmt: skip
        shard_ring.put(root, tick=put, ago_ms=ago_ms, flags=flags)
    shard_ring.cohort(put, 1, 2, 3, 4, 5, 6)
    assert shard_ring.oldest_ms() == 30_000


def test_oldest_age_ignores_a_root_moved_to_another_cohort(source, ring) -> None:
    shard_ring: Ring = ring()
    shard_ring.put(1, tick=10, ago_ms=90_000)
    shard_ring.put(2, tick=8, ago_ms=20_000)
    shard_ring.cohort(7, 1)
    shard_ring.cohort(8, 2)
    assert shard_ring.oldest_ms() == 20_000


@pytest.mark.parametrize("settled", [0, 3, 4, 5, 9])
def test_oldest_age_looks_past_settled_roots(source, ring, settled) -> None:
    shard_ring: Ring = ring()
    for root in range(100, 100 + settled):
        shard_ring.cohort(9, root, score=root)
    assert shard_ring.oldest_ms() is None
    shard_ring.put(1, tick=9, ago_ms=40_000)
    shard_ring.cohort(9, 1, score=1_000)
    assert shard_ring.oldest_ms() == 40_000


def test_oldest_age_search_is_bounded(source, ring) -> None:
    shard_ring: Ring = ring()
    shard_ring.raw.zadd("acker:{test:0}:bucket:1", {pack(root): root for root in range(10, 1_000)})
    shard_ring.put(1, tick=9, ago_ms=40_000)
    shard_ring.cohort(9, 1, score=1_000)
    assert shard_ring.oldest_ms() is None


@pytest.mark.parametrize("tick", [0, 1])
def test_oldest_age_before_the_first_tick_is_known(source, ring, tick) -> None:
    shard_ring: Ring = ring(tick)
    shard_ring.put(1, tick=0, ago_ms=40_000)
    shard_ring.cohort(0, 1)
    assert shard_ring.oldest_ms() == 40_000


def test_oldest_age_covers_many_shards(source, connect) -> None:
    acker: Acker = connect(shards=70)
    acker.init_many(range(1, 501), range(1, 501), 0)
    age_ms = acker.stats().oldest_age_ms
    assert age_ms is not None
    assert 0 <= age_ms < 60_000


@pytest.mark.parametrize("ago_ms", [0, 60_000, 2**32 + 5])
def test_last_rotation_age_is_of_the_least_recent_shard(source, ring, ago_ms) -> None:
    shard_ring: Ring = ring()
    shard_ring.raw.hset(META, "last_rotation_ms", shard_ring.seeded_ms - ago_ms)
    assert ago_ms <= shard_ring.acker.stats().last_rotation_ms < ago_ms + 30_000


def test_tick_in_the_future_has_age_zero(source, ring) -> None:
    shard_ring: Ring = ring()
    shard_ring.raw.hset(META, "last_rotation_ms", shard_ring.seeded_ms + 3_600_000)
    assert shard_ring.acker.stats().last_rotation_ms == 0


@pytest.mark.parametrize(
    ("key", "field", "value", "words"),
    [
        (STATS, "acked", "many", r"acker:\{test:0\}:stats holds b'many' instead of a number"),
        (META, "last_rotation_ms", "now", r"acker:\{test:0\}:meta holds b'now' instead"),
        (META, "tick", "", r"acker:\{test:0\}:meta holds b'' instead"),
        (LEDGER, pack(1), "short", r"acker:\{test:0\}:ledger has a block of 5 bytes with an unknown layout"),
    ],
)
def test_damaged_field_is_named_in_the_error(source, ring, key, field, value, words) -> None:
    shard_ring: Ring = ring()
    shard_ring.cohort(10, 1)
    shard_ring.raw.hset(key, field, value)
    with pytest.raises(DamagedDataError, match=words):
        shard_ring.acker.stats()


def test_unknown_counter_in_stats_is_ignored(source, ring, raw) -> None:
    shard_ring: Ring = ring()
    raw.hset(STATS, "theirs", "x")
    assert shard_ring.acker.stats().inits == 1


@pytest.mark.parametrize("name", ["meta", "stats", "ledger", "failed:0", "bucket:1"])
def test_key_of_another_type_raises_damaged_data(source, ring, raw, name) -> None:
    shard_ring: Ring = ring()
    shard_ring.cohort(10, 1)
    raw.set(f"acker:{{test:0}}:{name}", "theirs")
    with pytest.raises(DamagedDataError, match="has the wrong type"):
        shard_ring.acker.stats()
