"""lua/scripts/ack.lua: one ack value folded into each root's tree."""

from dataclasses import replace

import pytest

from tests.support.seeding import CLOSED, FAILED, OWNED, TICK, WAITING, AloneBlock, Done, blocks_of

APPLIED = 0
MIN, MAX = -(2**63), 2**63 - 1


def test_an_ack_before_its_init_waits_in_the_nursery(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.ack((1, 5), (-1, MIN), component=255) == [APPLIED, 2]
    assert shard.state() == replace(
        before,
        ledger={
            1: AloneBlock(5, spout_id=0, flags=WAITING, component=255, start=shard.now),
            -1: AloneBlock(MIN, spout_id=0, flags=WAITING, component=255, start=shard.now),
        },
        buckets={shard.nursery: {blocks_of(1, -1): shard.now}},
        dedup=shard.deduplicated(),
        stats={"acks": 2},
    )


@pytest.mark.parametrize(
    ("val", "ack"),
    [(5, 3), (MIN, MAX), (-1, 1), (2**32, 1), (0x0123456789ABCDEF, -0x7EDCBA9876543210), (2**31, 2**31 - 1), (5, 0)],
)
def test_an_ack_is_an_xor_of_64_bits(lab, val: int, ack: int) -> None:
    shard = lab()
    owned = shard.put(1, val)
    before = shard.state()
    assert shard.ack((1, ack)) == [APPLIED, 1]
    assert shard.state() == replace(
        before, ledger={1: owned._replace(val=val ^ ack)}, dedup=shard.deduplicated(), stats={"acks": 1}
    )


@pytest.mark.parametrize("val", [1, -1, MIN, MAX, 2**32, 2**31])
def test_a_tree_that_reaches_zero_completes(lab, val: int) -> None:
    shard = lab()
    owned = shard.put(1, val, component=2, tick=TICK - 2)
    before = shard.state()
    assert shard.ack((1, val)) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={},
        acked={0: [(7, [Done(1, shard.age(owned), 2)])]},
        dedup=shard.deduplicated(),
        stats={"acks": 1, "acked": 1},
    )


@pytest.mark.parametrize("flags", [WAITING, FAILED], ids=["without owner", "failed before its init"])
def test_unowned_root_whose_value_reaches_zero_is_not_acked(lab, flags: int) -> None:
    shard = lab()
    waiting = shard.put(1, 5, flags=flags)
    before = shard.state()
    shard.ack((1, 5))
    assert shard.state() == replace(
        before, ledger={1: waiting._replace(val=0)}, dedup=shard.deduplicated(), stats={"acks": 1}
    )


@pytest.mark.parametrize("ack", [5, 4], ids=["would be zero", "other"])
@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
def test_an_ack_of_a_closed_root_is_late(lab, clock: str, ack: int) -> None:
    shard = lab(clock=clock)
    closed = shard.put(1, 5, flags=CLOSED, component=2, tick=TICK - 1)
    owned = shard.put(2, 5)
    shard.put(3, 5, flags=CLOSED, component=2, tick=TICK - 1)
    before = shard.state()
    assert shard.ack((1, ack), (2, 4), (3, ack), component=4) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={1: closed, 2: owned._replace(val=1, component=4), 3: closed},
        dedup=shard.deduplicated(),
        stats={"acks": 1, "late_updates": 2},
    )


@pytest.mark.parametrize(("old", "given", "kept"), [(0, 4, 4), (3, 4, 4), (3, 1, 1), (3, 0, 3)])
def test_ack_keeps_last_named_component(lab, old: int, given: int, kept: int) -> None:
    shard = lab()
    open_tree, completes = shard.put(1, 5, component=old), shard.put(2, 5, component=old)
    shard.ack((1, 4), (2, 5), component=given)
    after = shard.state()
    assert after.ledger == {1: open_tree._replace(val=1, component=kept)}
    assert after.acked == {0: [(7, [Done(2, shard.age(completes), kept)])]}


@pytest.mark.parametrize("flags", [WAITING, OWNED, FAILED], ids=["waiting", "owned", "failed"])
@pytest.mark.parametrize("tick", [TICK - 3, TICK - 1, TICK], ids=["on death row", "between", "in the nursery"])
@pytest.mark.parametrize(
    ("clock", "ago_ms"), [("first_seen", 5000), ("last_update", 5000), ("last_update", 60_000)],
    ids=["first_seen", "last_update", "last_update beyond max_age_ms"],
)  # fmt: skip
def test_ack_moves_young_root_to_nursery_only_under_last_update(
    lab, clock: str, ago_ms: int, tick: int, flags: int
) -> None:
    shard = lab(clock=clock, max_age_ms=60_000)
    old = shard.put(1, 5, flags=flags, tick=tick, ago_ms=ago_ms)
    before = shard.state()
    shard.ack((1, 4))
    moved = clock == "last_update" and ago_ms < 60_000 and tick != TICK
    buckets = {**before.buckets, shard.nursery: {(1,): shard.now}} if moved else before.buckets
    assert shard.state() == replace(
        before,
        ledger={1: old._replace(val=1, stamp=TICK if moved else tick)},
        buckets=buckets,
        dedup=shard.deduplicated(),
        stats={"acks": 1},
    )


def test_ack_without_max_age_moves_root_of_any_age(lab) -> None:
    shard = lab(clock="last_update")
    shard.put(1, 5, tick=TICK - 1, ago_ms=10**11)
    shard.ack((1, 4))
    assert shard.state().ledger[1].stamp == TICK


def test_ack_outcomes_are_packed_by_spout_id_into_its_lane(lab) -> None:
    shard = lab(lanes=2)
    spout_ids = {1: 4, 2: 5, 3: 4, 4: 6, 5: 2**32 - 1}
    blocks = {
        root: shard.put(root, root, spout_id=spout_id, ago_ms=1000 * root) for root, spout_id in spout_ids.items()
    }
    before = shard.state()
    assert shard.ack(*((root, root) for root in spout_ids)) == [APPLIED, 5]
    done = {root: Done(root, shard.age(block)) for root, block in blocks.items()}
    assert shard.state() == replace(
        before,
        ledger={},
        acked={0: [(4, [done[1], done[3]]), (6, [done[4]])], 1: [(5, [done[2]]), (2**32 - 1, [done[5]])]},
        dedup=shard.deduplicated(),
        stats={"acks": 5, "acked": 5},
    )


def test_ack_of_roots_in_every_state_handles_each_in_one_call(lab) -> None:
    shard = lab(clock="last_update")
    open_tree = shard.put(2, 5, tick=TICK - 1)
    completes = shard.put(3, 5, tick=TICK - 1)
    fresh = shard.put(4, 5)
    before = shard.state()
    assert shard.ack((1, 9), (2, 4), (3, 5), (4, 4), component=2) == [APPLIED, 4]
    assert shard.state() == replace(
        before,
        ledger={
            1: AloneBlock(9, spout_id=0, flags=WAITING, component=2, start=shard.now),
            2: open_tree._replace(val=1, component=2, stamp=TICK),
            4: fresh._replace(val=1, component=2),
        },
        buckets={**before.buckets, shard.nursery: {(4,): 1, (1, 2): shard.now}},
        acked={0: [(7, [Done(3, shard.age(completes), 2)])]},
        dedup=shard.deduplicated(),
        stats={"acks": 4, "acked": 1},
    )


@pytest.mark.parametrize(("ago_ms", "age"), [(-5000, 0), (2**32 + 1000, 2**32 - 1)], ids=["set back", "too long"])
def test_an_age_is_never_negative_and_fits_four_bytes(lab, ago_ms: int, age: int) -> None:
    shard = lab()
    shard.put(1, 5, ago_ms=ago_ms)
    shard.ack((1, 5))
    assert shard.state().acked == {0: [(7, [Done(1, age)])]}


def test_ack_call_takes_a_thousand_roots(lab) -> None:
    shard = lab()
    shard.raw.hset(
        shard.keys["ledger"],
        mapping={root.to_bytes(8, "big"): AloneBlock(root, start=shard.seeded_ms).packed(0) for root in range(1, 1001)},
    )
    assert shard.ack(*((root, root) for root in range(1, 1001))) == [APPLIED, 1000]
    after = shard.state()
    assert after.ledger == {}
    ((spout_id, rows),) = after.acked[0]
    assert spout_id == 7 and [row.root for row in rows] == list(range(1, 1001))
