"""lua/scripts/sweep.lua: blocks that no bucket holds any more are found, a bounded part of the ledger per call."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.seeding import CLOSED, FAILED, OWNED, TICK, WAITING, Failure, Lab

DONE, MORE = 0, 1
STALE = TICK - 4
"""Tick that the ring of a shard of three buckets has turned past: death row holds those of TICK - 3."""

MANY = 2_000
"""More blocks than any server keeps as a listpack."""


def passes(shard: Lab, limit: int) -> list[list[int]]:
    """The replies of one pass."""
    replies: list[list[int]] = []
    while not replies or replies[-1][0] == MORE:
        replies.append(shard.run("sweep", limit))
        assert replies[-1][1] + replies[-1][2] <= limit
        assert len(replies) < 10_000, "the pass does not end"
    return replies


def put_many(shard: Lab, ticks: dict[int, int], **others: Any) -> None:
    for root, tick in ticks.items():
        shard.put(root, 5, tick=tick, cohort=False, **others)


def test_an_owned_root_that_is_stale_times_out(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "component:3", "count")
    owned = shard.put(-1, 5, component=3, tick=STALE, cohort=False)
    before = shard.state()
    assert shard.run("sweep", 250) == [DONE, 1, 0, 1, 0]
    assert shard.state() == replace(
        before,
        ledger={},
        failed={0: [Failure(-1, 7, "timeout", shard.age(owned), "count")]},
        stats={"timed_out": 1},
    )


@pytest.mark.parametrize("flags", [WAITING, FAILED], ids=["waiting", "failed before its init"])
def test_stale_unowned_root_is_removed_and_counted_as_orphaned(lab, flags: int) -> None:
    shard = lab()
    shard.put(1, 0, flags=flags, tick=STALE, cohort=False)
    before = shard.state()
    assert shard.run("sweep", 250) == [DONE, 0, 1, 1, 0]
    assert shard.state() == replace(before, ledger={}, stats={"orphaned": 1})


def test_stale_closed_root_is_removed_without_outcome(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["stats"], mapping={"failed": 2, "closed": 2})
    shard.put(1, 0, flags=CLOSED, tick=STALE, cohort=False)
    before = shard.state()
    assert shard.run("sweep", 250) == [DONE, 0, 0, 1, 0]
    assert shard.state() == replace(before, ledger={}, stats={"failed": 2, "closed": 1})


@pytest.mark.parametrize("num_buckets", [2, 3, 5])
@pytest.mark.parametrize("tick", [0, 3, TICK, 65_535, 65_536, 65_540], ids=lambda tick: f"tick {tick}")
@pytest.mark.parametrize("flags", [WAITING, OWNED, FAILED, CLOSED])
def test_roots_still_in_a_bucket_are_not_swept(lab, flags: int, tick: int, num_buckets: int) -> None:
    shard = lab(num_buckets=num_buckets, tick=tick)
    ages = range(min(tick, num_buckets) + 1)  # up to death row
    put_many(shard, {age: tick - age for age in ages}, flags=flags)
    before = shard.state()
    assert shard.run("sweep", 250) == [DONE, 0, 0, len(ages), len(ages)]
    assert shard.state() == before


@pytest.mark.parametrize("tick", [TICK, 65_536, 65_538, 65_540])
@pytest.mark.parametrize("ago", [4, 5, 9])
def test_only_stale_roots_are_swept_when_tick_stamps_wrap(lab, tick: int, ago: int) -> None:
    shard = lab(tick=tick)
    put_many(shard, {1: tick - ago, 2: tick - 3, 3: tick})
    assert shard.run("sweep", 250)[:3] == [DONE, 1, 0]
    assert sorted(shard.state().ledger) == [2, 3]


def test_sweep_of_empty_ledger_is_done_at_once(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.run("sweep", 250) == [DONE, 0, 0, 0, 0]
    assert shard.state() == before


def test_sweep_of_large_ledger_runs_in_bounded_steps(lab) -> None:
    shard = lab()
    stale = set(range(0, MANY, 3))
    put_many(shard, {root: STALE if root in stale else TICK for root in range(MANY)})
    replies = passes(shard, 100)
    assert len(replies) > 5
    assert max(reply[3] for reply in replies) < MANY / 4
    assert sum(reply[1] for reply in replies) == len(stale)
    after = shard.state()
    assert set(after.ledger) == set(range(MANY)) - stale
    assert sorted(row.root for row in after.failed[0]) == sorted(stale)
    assert after.stats == {"timed_out": len(stale)}
    assert after.meta["sweep_cursor"] == 0


def test_sweep_continues_at_cursor_of_previous_call(lab) -> None:
    shard = lab()
    put_many(shard, dict.fromkeys(range(MANY), TICK))
    assert shard.run("sweep", 100)[0] == MORE
    cursor = shard.state().meta["sweep_cursor"]
    assert cursor != 0
    shard.run("sweep", 100)
    assert shard.state().meta["sweep_cursor"] not in (0, cursor)


@pytest.mark.parametrize("blocks", [20, 300], ids=["listpack", "table or listpack"])
def test_sweep_call_settles_no_more_roots_than_its_limit(lab, blocks: int) -> None:
    """A hash that the server keeps as a listpack comes whole: what is over the limit is for the next call."""
    shard = lab()
    put_many(shard, dict.fromkeys(range(blocks), STALE))
    replies = passes(shard, 7)
    assert sum(reply[1] for reply in replies) == blocks
    assert max(reply[1] for reply in replies) == 7
    after = shard.state()
    assert (after.ledger, after.stats) == ({}, {"timed_out": blocks})
    assert sorted(row.root for row in after.failed[0]) == list(range(blocks))


def test_sweep_outcomes_go_to_lane_of_spout_id(lab) -> None:
    shard = lab(lanes=3)
    spout_ids = {1: 0, 2: 1, 3: 5, 4: 2**32 - 1}
    for root, spout_id in spout_ids.items():
        shard.put(root, 5, spout_id=spout_id, tick=STALE, cohort=False)
    assert shard.run("sweep", 250) == [DONE, 4, 0, 4, 0]
    found = {lane: sorted(row.root for row in rows) for lane, rows in shard.state().failed.items()}
    assert found == {0: [1, 4], 1: [2], 2: [3]}
