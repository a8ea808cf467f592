"""lua/scripts/expire.lua: a bounded part of death row times out."""

from dataclasses import replace

import pytest

from tests.support.seeding import CLOSED, FAILED, OWNED, TICK, WAITING, Failure

DEAD = TICK - 3
"""Tick of death row in a shard of three buckets."""


def test_owned_root_on_death_row_times_out(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "component:3", "count")
    owned = shard.put(-1, 5, component=3, tick=DEAD)
    before = shard.state()
    assert shard.run("expire", 500) == [1, 0, 0]
    assert shard.state() == replace(
        before,
        ledger={},
        buckets={},
        failed={0: [Failure(-1, 7, "timeout", shard.age(owned), "count")]},
        stats={"timed_out": 1},
    )
    assert shard.state().by_component == {"timed_out:3": 1}


@pytest.mark.parametrize("flags", [WAITING, FAILED], ids=["waiting", "failed before its init"])
def test_unowned_root_on_death_row_is_counted_as_orphaned(lab, flags: int) -> None:
    shard = lab()
    shard.put(1, 0, flags=flags, tick=DEAD)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 1, 0]
    assert shard.state() == replace(before, ledger={}, buckets={}, stats={"orphaned": 1})


def test_closed_root_on_death_row_is_removed_without_outcome(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["stats"], mapping={"failed": 5, "closed": 3})
    shard.put(1, 5, flags=CLOSED, tick=DEAD)
    shard.put(2, 0, flags=CLOSED, tick=DEAD)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 0, 0]
    assert shard.state() == replace(before, ledger={}, buckets={}, stats={"failed": 5, "closed": 1})


@pytest.mark.parametrize("tick", [TICK, TICK - 1, TICK - 2])
def test_roots_in_younger_buckets_do_not_expire(lab, tick: int) -> None:
    shard = lab()
    shard.put(1, 5, tick=tick)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 0, 0]
    assert shard.state() == before


@pytest.mark.parametrize("flags", [WAITING, OWNED, FAILED, CLOSED])
@pytest.mark.parametrize("tick", [TICK, TICK - 1, TICK - 2])
def test_root_moved_to_younger_bucket_does_not_expire(lab, tick: int, flags: int) -> None:
    shard = lab()
    shard.put(1, 5, tick=tick, flags=flags)
    shard.cohort(DEAD, 1)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 0, 0]
    buckets = {slot: cohorts for slot, cohorts in before.buckets.items() if slot != shard.death_row}
    assert shard.state() == replace(before, buckets=buckets)


def test_settled_root_in_death_row_cohort_is_skipped(lab) -> None:
    shard = lab()
    shard.cohort(DEAD, 1, 2)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 0, 0]
    assert shard.state() == replace(before, buckets={})


def test_a_root_in_two_cohorts_of_death_row_times_out_once(lab) -> None:
    shard = lab()
    owned = shard.put(1, 5, tick=DEAD, cohort=False)
    shard.cohort(DEAD, 1, 2)
    shard.cohort(DEAD, 3, 1)
    assert shard.run("expire", 500) == [1, 0, 0]
    assert shard.state().failed == {0: [Failure(1, 7, "timeout", shard.age(owned))]}


def test_a_root_in_two_cohorts_times_out_once_over_two_calls(lab) -> None:
    shard = lab()
    owned = shard.put(1, 5, tick=DEAD, cohort=False)
    shard.cohort(DEAD, 1)
    shard.cohort(DEAD, 2, 1, score=2)
    assert shard.run("expire", 1) == [1, 0, 1]
    age = shard.age(owned)
    assert shard.run("expire", 500) == [0, 0, 0]
    assert shard.state().failed == {0: [Failure(1, 7, "timeout", age)]}


def test_cohort_cut_by_limit_is_put_back_without_expired_roots(lab) -> None:
    shard = lab()
    for root in (1, 2, 3, 4, 5):
        shard.put(root, 5, tick=DEAD, cohort=False)
    shard.cohort(DEAD, 1, 2, score=1)
    shard.cohort(DEAD, 3, 4, 5, score=2)
    before = shard.state()
    assert shard.run("expire", 3) == [3, 0, 1]
    after = shard.state()
    assert sorted(after.ledger) == [4, 5]
    assert [row.root for row in after.failed[0]] == [1, 2, 3]
    assert replace(after, ledger={}, failed={}) == replace(
        before, ledger={}, buckets={shard.death_row: {(4, 5): 2}}, stats={"timed_out": 3}
    )
    assert shard.run("expire", 3) == [2, 0, 0]
    assert shard.state().buckets == {}


def test_cohort_rest_equal_to_another_cohort_is_still_drained(lab) -> None:
    shard = lab()
    for root in (1, 2, 3):
        shard.put(root, 5, tick=DEAD, cohort=False)
    shard.cohort(DEAD, 1, 2, 3, score=1)
    shard.cohort(DEAD, 2, 3, score=2)
    assert shard.run("expire", 1) == [1, 0, 1]
    assert shard.run("expire", 500) == [2, 0, 0]
    assert [row.root for row in shard.state().failed[0]] == [1, 2, 3]


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_death_row_empties_in_bounded_calls(lab, limit: int) -> None:
    shard = lab()
    for start in range(0, 40, 2):  # more cohorts than are read at once
        shard.put(start, 5, tick=DEAD, cohort=False)
        shard.put(start + 1, 5, flags=WAITING, tick=DEAD, cohort=False)
        shard.cohort(DEAD, start, start + 1, score=start)
    calls = timed_out = orphaned = 0
    dead = 20
    while dead:
        before = len(shard.state().ledger)
        expired, lost, dead = shard.run("expire", limit)
        assert expired + lost == before - len(shard.state().ledger) <= limit
        timed_out, orphaned, calls = timed_out + expired, orphaned + lost, calls + 1
    assert (timed_out, orphaned) == (20, 20)
    assert calls == -(-40 // limit)
    after = shard.state()
    assert [row.root for row in after.failed[0]] == list(range(0, 40, 2))
    assert (after.ledger, after.buckets, after.stats) == ({}, {}, {"timed_out": 20, "orphaned": 20})


def test_expire_outcomes_go_to_lane_of_spout_id(lab) -> None:
    shard = lab(lanes=3)
    spout_ids = {1: 0, 2: 1, 3: 5, 4: 2**32 - 1}
    blocks = {
        root: shard.put(root, 5, spout_id=spout_id, tick=DEAD, cohort=False) for root, spout_id in spout_ids.items()
    }
    shard.cohort(DEAD, *spout_ids)
    assert shard.run("expire", 500) == [4, 0, 0]
    rows = {root: Failure(root, spout_ids[root], "timeout", shard.age(block)) for root, block in blocks.items()}
    assert shard.state().failed == {0: [rows[1], rows[4]], 1: [rows[2]], 2: [rows[3]]}


def test_age_of_timed_out_root_is_never_negative(lab) -> None:
    shard = lab()
    shard.put(1, 5, tick=DEAD, ago_ms=-3600_000)
    shard.run("expire", 500)
    assert shard.state().failed == {0: [Failure(1, 7, "timeout", 0)]}


@pytest.mark.parametrize("tick", [65_536, 65_537, 65_538, 65_539])
def test_only_dead_roots_expire_when_tick_stamps_wrap(lab, tick: int) -> None:
    shard = lab(tick=tick)
    dead, alive = shard.put(1, 5, tick=tick - 3, cohort=False), shard.put(2, 5, tick=tick, cohort=False)
    shard.cohort(tick - 3, 1, 2)
    assert shard.run("expire", 500) == [1, 0, 0]
    after = shard.state()
    assert after.ledger == {2: alive}
    assert after.failed == {0: [Failure(1, 7, "timeout", shard.age(dead))]}


@pytest.mark.parametrize("tick", [0, 1, 2])
def test_roots_before_first_turn_of_ring_do_not_expire(lab, tick: int) -> None:
    shard = lab(tick=tick)
    for back in range(tick + 1):
        shard.put(back, 5, tick=tick - back)
    before = shard.state()
    assert shard.run("expire", 500) == [0, 0, 0]
    assert shard.state() == before
