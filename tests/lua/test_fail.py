"""lua/scripts/fail.lua: a tree fails at once when it has its owner, else when its init comes."""

from dataclasses import replace

import pytest

from tests.support.seeding import CLOSED, FAILED, TICK, WAITING, AloneBlock, Failure, blocks_of

APPLIED = 0


@pytest.mark.parametrize(
    ("tick", "ago_ms", "moved"),
    [
        pytest.param(TICK - 3, 5000, True, id="death row"),
        pytest.param(TICK - 1, 5000, True, id="between"),
        pytest.param(TICK, 5000, False, id="nursery"),
        pytest.param(TICK - 1, 60_000, True, id="older than max_age_ms"),
    ],
)
def test_an_owned_root_fails_at_once_and_is_closed_in_the_nursery(lab, tick: int, ago_ms: int, moved: bool) -> None:
    shard = lab(max_age_ms=60_000)
    owned = shard.put(-2, 5, tick=tick, ago_ms=ago_ms)
    before = shard.state()
    assert shard.fail(-2) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={-2: owned._replace(flags=CLOSED, stamp=TICK)},
        buckets={**before.buckets, shard.nursery: {blocks_of(-2): shard.now}} if moved else before.buckets,
        failed={0: [Failure(-2, 7, "failed", shard.age(owned))]},
        dedup=shard.deduplicated(),
        stats={"fails": 1, "failed": 1, "closed": 1},
    )


def test_failed_roots_are_counted_by_their_last_component(lab) -> None:
    shard = lab()
    for root in (1, 2, 4):
        shard.put(root, 5, component=2)
    shard.put(3, 5)
    shard.fail(1, 4, component=4)
    shard.fail(2, idempotency_key=b"2")
    shard.fail(3, idempotency_key=b"3")
    shard.fail(9, component=4, idempotency_key=b"4")  # waits for its init
    assert shard.state().by_component == {"failed:4": 2, "failed:2": 1, "failed:0": 1}


def test_roots_that_are_released_are_counted_apart_once_they_settle(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    assert shard.fail(1, 2, detail="held back", released=True) == [APPLIED, 2]
    assert shard.state().stats == {"fails": 2, "failed": 1, "closed": 1, "released": 1}
    assert shard.state().by_component == {}, "nothing failed"


@pytest.mark.parametrize("tick", [TICK - 3, TICK - 1, TICK])
def test_a_fail_of_a_closed_root_is_late(lab, tick: int) -> None:
    shard = lab()
    shard.put(1, 5, flags=CLOSED, component=2, tick=tick)
    before = shard.state()
    assert shard.fail(1, component=3, detail="again") == [APPLIED, 0]
    assert shard.state() == replace(before, dedup=shard.deduplicated(), stats={"fails": 0, "late_updates": 1})


def test_fail_stream_entry_has_human_readable_fields(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "component:4", "parse")
    shard.put(0x0123456789ABCDEF, 5)
    shard.fail(0x0123456789ABCDEF, component=4, detail="line 3: not a number")
    ((_, fields),) = shard.raw.xrange(shard.keys["failed"][0])
    assert 5000 <= int(fields.pop(b"age_ms")) < 60_000
    assert fields == {
        b"root": b"0123456789abcdef",
        b"spout_id": b"7",
        b"reason": b"failed",
        b"last_component": b"parse",
        b"detail": b"line 3: not a number",
    }


def test_a_fail_before_its_init_waits_in_the_nursery(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.fail(1, 2, component=3, detail="not kept") == [APPLIED, 2]
    failed = AloneBlock(0, spout_id=0, flags=FAILED, component=3, start=shard.now)
    assert shard.state() == replace(
        before,
        ledger={1: failed, 2: failed},
        buckets={shard.nursery: {(1, 2): shard.now}},
        dedup=shard.deduplicated(),
        stats={"fails": 2},
    )


@pytest.mark.parametrize("flags", [WAITING, FAILED], ids=["waiting", "failed already"])
@pytest.mark.parametrize(
    ("tick", "ago_ms", "moved"),
    [
        pytest.param(TICK - 3, 5000, True, id="death row"),
        pytest.param(TICK - 1, 5000, True, id="between"),
        pytest.param(TICK, 5000, False, id="nursery"),
        pytest.param(TICK - 1, 60_000, False, id="older than max_age_ms"),
    ],
)
def test_fail_moves_young_unowned_root_to_nursery(lab, tick: int, ago_ms: int, moved: bool, flags: int) -> None:
    shard = lab(max_age_ms=60_000)
    waiting = shard.put(1, 5, flags=flags, tick=tick, ago_ms=ago_ms)
    before = shard.state()
    assert shard.fail(1) == [APPLIED, 1]
    buckets = {**before.buckets, shard.nursery: {(1,): shard.now}} if moved else before.buckets
    assert shard.state() == replace(
        before,
        ledger={1: waiting._replace(flags=FAILED, stamp=TICK if moved else tick)},
        buckets=buckets,
        dedup=shard.deduplicated(),
        stats={"fails": 1},
    )


def test_fail_keeps_value_and_start_of_unowned_root(lab) -> None:
    shard = lab()
    waiting = shard.put(1, -(2**63) + 5, flags=WAITING, component=2)
    shard.fail(1)
    assert shard.state().ledger == {1: waiting._replace(flags=FAILED)}


@pytest.mark.parametrize(("old", "given", "kept"), [(0, 4, 4), (3, 4, 4), (3, 1, 1), (3, 0, 3)])
def test_fail_keeps_last_named_component(lab, old: int, given: int, kept: int) -> None:
    shard = lab()
    owned, waiting = shard.put(1, 5, component=old), shard.put(2, 5, flags=WAITING, component=old)
    shard.fail(1, 2, component=given)
    after = shard.state()
    assert after.ledger == {
        1: owned._replace(flags=CLOSED, component=kept),
        2: waiting._replace(flags=FAILED, component=kept),
    }
    assert after.failed == {0: [Failure(1, 7, "failed", shard.age(owned), str(kept))]}


def test_fail_outcomes_go_to_lane_of_spout_id(lab) -> None:
    shard = lab(lanes=2)
    blocks = {root: shard.put(root, root, spout_id=spout_id) for root, spout_id in {1: 4, 2: 5, 3: 2**32 - 1}.items()}
    assert shard.fail(1, 2, 3, detail="why") == [APPLIED, 3]
    rows = {r: Failure(r, block.spout_id, "failed", shard.age(block), "", "why") for r, block in blocks.items()}
    assert shard.state().failed == {0: [rows[1]], 1: [rows[2], rows[3]]}


def test_fail_of_roots_in_every_state_handles_each_in_one_call(lab) -> None:
    shard = lab()
    owned = shard.put(2, 5, spout_id=1, tick=TICK - 1)
    waiting = shard.put(3, 5, flags=WAITING, tick=TICK - 2)
    closed = shard.put(4, 5, flags=CLOSED, tick=TICK - 1)
    before = shard.state()
    assert shard.fail(1, 2, 3, 4) == [APPLIED, 3]
    assert shard.state() == replace(
        before,
        ledger={
            1: AloneBlock(0, spout_id=0, flags=FAILED, start=shard.now),
            2: owned._replace(flags=CLOSED, stamp=TICK),
            3: waiting._replace(flags=FAILED, stamp=TICK),
            4: closed,
        },
        buckets={**before.buckets, shard.nursery: {(1, 2, 3): shard.now}},
        failed={0: [Failure(2, 1, "failed", shard.age(owned))]},
        dedup=shard.deduplicated(),
        stats={"fails": 3, "failed": 1, "closed": 1, "late_updates": 1},
    )


def test_fail_call_takes_five_hundred_roots(lab) -> None:
    shard = lab()
    for root in range(500):
        shard.put(root, 5, tick=TICK - 1, cohort=False)
    assert shard.fail(*range(500)) == [APPLIED, 500]
    after = shard.state()
    assert {(block.flags, block.stamp) for block in after.ledger.values()} == {(CLOSED, TICK)}
    assert after.buckets == {shard.nursery: {tuple(range(500)): shard.now}}
    assert [row.root for row in after.failed[0]] == list(range(500))
