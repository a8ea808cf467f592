"""lua/scripts/rotate.lua: one guarded tick."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.seeding import TICK, TICK_MS, Between, Lab, State, pack_updates

NOT_DUE, TICKED, DRAINING = 0, 1, 2
GUARDED, FORCED = 0, 1


def ticked(shard: Lab, before: State, **others: Any) -> State:
    """The state after a tick: everything as before, except the ring's position and what is given."""
    later = Between(shard.now.low + TICK_MS, shard.now.high + TICK_MS)
    meta = {**before.meta, "tick": shard.tick + 1, "last_rotation_ms": shard.now, "next_rotation_ms": later}
    return replace(before, meta=meta, **others)


@pytest.mark.parametrize("late_ms", [0, 1, 10 * TICK_MS], ids=["just due", "due", "long due"])
def test_due_tick_happens_once_and_next_counts_from_now(lab, late_ms: int) -> None:
    shard = lab(due_in_ms=-late_ms)
    shard.put(1, 5)
    before = shard.state()
    assert shard.run("rotate", GUARDED) == [TICKED, TICK_MS, 0]
    assert shard.state() == ticked(shard, before)
    status, due_in_ms, dead = shard.run("rotate", GUARDED)
    assert (status, dead) == (NOT_DUE, 0)
    assert 0 < due_in_ms <= TICK_MS


def test_a_tick_that_is_not_due_changes_nothing(lab) -> None:
    shard = lab(due_in_ms=TICK_MS)
    shard.put(1, 5)
    before = shard.state()
    status, due_in_ms, dead = shard.run("rotate", GUARDED)
    assert (status, dead) == (NOT_DUE, 0)
    assert due_in_ms == Between(TICK_MS + shard.seeded_ms - shard.now.high, TICK_MS)
    assert shard.state() == before


def test_a_forced_tick_does_not_wait_for_the_clock(lab) -> None:
    shard = lab(due_in_ms=TICK_MS)
    before = shard.state()
    assert shard.run("rotate", FORCED) == [TICKED, TICK_MS, 0]
    assert shard.state() == ticked(shard, before)


@pytest.mark.parametrize("num_buckets", [2, 3, 4])
def test_tick_retires_oldest_bucket_and_oldest_dedup_set(lab, num_buckets: int) -> None:
    shard = lab(num_buckets=num_buckets)
    for back in range(num_buckets):
        shard.put(back, 5, tick=TICK - back)
    shard.cohort(TICK - num_buckets + 1, 100)
    for slot in range(shard.slots):
        shard.raw.sadd(shard.keys["dedup"][slot], b"key-%d" % slot)
    before = shard.state()
    assert shard.run("rotate", FORCED) == [TICKED, TICK_MS, 2]
    dedup = {slot: idempotency_keys for slot, idempotency_keys in before.dedup.items() if slot != shard.death_row}
    assert shard.state() == ticked(shard, before, dedup=dedup)
    death_row = (shard.tick + 2) % shard.slots  # of the tick that was just made
    assert before.buckets[death_row] == {(num_buckets - 1,): 1, (100,): 1}


@pytest.mark.parametrize("force", [GUARDED, FORCED], ids=["due", "forced"])
@pytest.mark.parametrize("dead", [1, 2])
def test_a_tick_waits_while_death_row_is_drained(lab, dead: int, force: int) -> None:
    shard = lab(due_in_ms=0)
    for root in range(dead):
        shard.cohort(TICK - 3, root)
    shard.raw.sadd(shard.keys["dedup"][shard.death_row], b"idempotency_key")
    before = shard.state()
    assert shard.run("rotate", force) == [DRAINING, 0, dead]
    assert shard.state() == before
    shard.raw.delete(shard.keys["bucket"][shard.death_row])
    assert shard.run("rotate", force)[0] == TICKED


def test_tick_that_is_not_due_reports_size_of_death_row(lab) -> None:
    shard = lab(due_in_ms=TICK_MS)
    shard.cohort(TICK - 3, 1, 2)
    status, _, dead = shard.run("rotate", GUARDED)
    assert (status, dead) == (NOT_DUE, 1)


def test_clock_set_back_delays_tick_by_at_most_a_tick_time(lab) -> None:
    shard = lab(due_in_ms=3600_000)
    before = shard.state()
    assert shard.run("rotate", GUARDED) == [NOT_DUE, TICK_MS, 0]
    later = Between(shard.now.low + TICK_MS, shard.now.high + TICK_MS)
    assert shard.state() == replace(before, meta={**before.meta, "next_rotation_ms": later})


def test_clock_set_back_does_not_delay_forced_tick(lab) -> None:
    shard = lab(due_in_ms=3600_000)
    before = shard.state()
    assert shard.run("rotate", FORCED) == [TICKED, TICK_MS, 0]
    assert shard.state() == ticked(shard, before)


@pytest.mark.parametrize("tick", [0, 65_535, 131_072], ids=["first tick", "stamp wraps", "stamp wrapped"])
@pytest.mark.parametrize("num_buckets", [2, 3])
def test_root_put_at_any_tick_expires_after_num_buckets_ticks(lab, num_buckets: int, tick: int) -> None:
    """More than two turns of the ring: a root is put at every tick, and each expires at the n-th tick after."""
    shard = lab(num_buckets=num_buckets, tick=tick)
    for step in range(2 * shard.slots + 3):
        shard.init((step, 5), idempotency_key=b"%012d" % step)
        assert shard.run("rotate", FORCED)[0] == TICKED
        expired = step + 1 >= num_buckets
        assert shard.run("expire", 500) == [int(expired), 0, 0]
        oldest = max(0, step + 1 - num_buckets + (1 if expired else 0))
        assert sorted(shard.state().ledger) == list(range(oldest, step + 1))
        assert [row.root for row in shard.state().failed.get(0, [])] == list(range(oldest))


@pytest.mark.parametrize("tick", [TICK, 65_534], ids=["", "stamps wrap"])
def test_idempotency_key_lives_as_long_as_roots_of_its_batch(lab, tick: int) -> None:
    shard = lab(num_buckets=2, tick=tick)
    shard.init((1, 5))
    for _ in range(2):
        assert shard.init((1, 5)) == [1, 0]
        assert shard.run("rotate", FORCED)[0] == TICKED
        shard.run("expire", 500)
    assert shard.state().ledger == {}
    assert shard.init((1, 5)) == [1, 0]
    assert shard.run("rotate", FORCED)[0] == TICKED
    assert shard.state().dedup == {}


def test_reset_root_lives_num_buckets_more_ticks(lab) -> None:
    shard = lab(num_buckets=2, tick=65_535)
    shard.init((1, 5))
    for _ in range(2 * shard.slots):
        assert shard.run("rotate", FORCED)[0] == TICKED
        assert shard.run("expire", 500) == [0, 0, 0]
        assert shard.run("reset_timeout", pack_updates(1)) == [1]
    shard.run("rotate", FORCED)
    assert shard.run("expire", 500) == [0, 0, 0]
    shard.run("rotate", FORCED)
    assert shard.run("expire", 500) == [1, 0, 0]


def samples(shard: Lab) -> dict[int, list[int]]:
    found = shard.raw.hgetall(shard.keys["samples"])
    return {int(place): [int(part) for part in text.split()] for place, text in found.items()}


def test_a_tick_leaves_a_sample_of_the_counters(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["stats"], mapping={"inits": 40, "acked": 20, "failed": 3, "acks": 99})
    shard.run("rotate", FORCED)
    ((place, (at, *counters)),) = samples(shard).items()
    assert (at, counters) == (shard.now, [40, 20, 3, 0])
    assert place == at // max(TICK_MS, 10_000) % 60


def test_sample_replaces_older_sample_at_same_ring_position(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["samples"], mapping={str(place): "1 1 1 1 1" for place in range(60)})
    shard.run("rotate", FORCED)
    found = samples(shard)
    assert len(found) == 60
    assert [one for one in found.values() if one != [1, 1, 1, 1, 1]] == [[shard.now, 0, 0, 0, 0]]


@pytest.mark.parametrize("damaged", ["stats", "samples"])
def test_damaged_counters_do_not_stop_a_tick(lab, damaged: str) -> None:
    shard = lab()
    shard.raw.set(shard.keys[damaged], "no hash")
    assert shard.run("rotate", FORCED) == [TICKED, TICK_MS, 0]
    assert int(shard.raw.hget(shard.keys["meta"], "tick")) == TICK + 1
