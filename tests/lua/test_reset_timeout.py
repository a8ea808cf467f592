"""lua/scripts/reset_timeout.lua: a whole message timeout again, by moving roots to the nursery."""

from dataclasses import replace

import pytest

from tests.support.seeding import CLOSED, FAILED, OWNED, TICK, WAITING, pack_updates


@pytest.mark.parametrize("flags", [WAITING, OWNED, FAILED], ids=["waiting", "owned", "failed"])
@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
@pytest.mark.parametrize("tick", [TICK - 3, TICK - 2, TICK - 1], ids=["death row", "oldest", "middle"])
def test_reset_root_moves_to_nursery_with_unchanged_values(lab, tick: int, clock: str, flags: int) -> None:
    shard = lab(clock=clock)
    old = shard.put(1, -5, flags=flags, component=9, tick=tick, spout_id=2**32 - 1)
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1)) == [1]
    assert shard.state() == replace(
        before,
        ledger={1: old._replace(stamp=TICK)},
        buckets={**before.buckets, shard.nursery: {(1,): shard.now}},
    )


def test_reset_of_root_in_nursery_changes_nothing(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1)) == [1]
    assert shard.state() == before


def test_reset_of_unknown_root_is_counted_as_late(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1, 2)) == [0]
    assert shard.state() == replace(before, stats={"late_updates": 2})


@pytest.mark.parametrize("tick", [TICK - 1, TICK])
def test_reset_of_closed_root_is_counted_as_late(lab, tick: int) -> None:
    shard = lab()
    shard.put(1, 5, flags=CLOSED, tick=tick)
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1)) == [0]
    assert shard.state() == replace(before, stats={"late_updates": 1})


@pytest.mark.parametrize("tick", [TICK - 1, TICK - 3])
def test_root_older_than_max_age_is_not_moved_by_reset(lab, tick: int) -> None:
    shard = lab(max_age_ms=60_000)
    shard.put(1, 5, tick=tick, ago_ms=60_000)
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1)) == [0]
    assert shard.state() == before


def test_reset_of_roots_in_every_state_handles_each_in_one_call(lab) -> None:
    shard = lab(max_age_ms=60_000)
    moved, also = shard.put(1, 5, tick=TICK - 1), shard.put(2, 5, tick=TICK - 2)
    here, old = shard.put(3, 5), shard.put(4, 5, tick=TICK - 1, ago_ms=99_000)
    closed = shard.put(6, 5, flags=CLOSED, tick=TICK - 1)
    before = shard.state()
    assert shard.run("reset_timeout", pack_updates(1, 2, 3, 4, 5, 6)) == [3]
    assert shard.state() == replace(
        before,
        ledger={1: moved._replace(stamp=TICK), 2: also._replace(stamp=TICK), 3: here, 4: old, 6: closed},
        buckets={**before.buckets, shard.nursery: {(3,): 1, (1, 2): shard.now}},
        stats={"late_updates": 2},
    )


def test_reset_call_takes_five_hundred_roots(lab) -> None:
    shard = lab()
    for root in range(500):
        shard.put(root, 5, tick=TICK - 1, cohort=False)
    assert shard.run("reset_timeout", pack_updates(*range(500))) == [500]
    after = shard.state()
    assert {block.stamp for block in after.ledger.values()} == {TICK}
    assert after.buckets == {shard.nursery: {tuple(range(500)): shard.now}}
