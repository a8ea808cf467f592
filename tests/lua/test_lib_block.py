"""lua/lib/block.lua and lib/fold.lua: blocks of several roots, and what the scripts make of them."""

from dataclasses import replace

import pytest
import redis

from acker_redis import AckerError
from acker_redis.client.client import Client
from acker_redis.model import ids
from tests.support.seeding import (
    CLOSED,
    FAILED,
    OWNED,
    TICK,
    WAITING,
    AloneBlock,
    Done,
    Failure,
    Lab,
    SharedBlock,
    Slot,
    joined,
    mask_of,
    pack_updates,
    slots_of,
)

APPLIED, OTHER_SPOUT_ID = 0, 3
BLOCK = 2**58 + 5
DEAD = TICK - 3
ALL = range(32)
CHOICES = [(0,), (31,), (7, 31), (0, 1, 2, 3), (1, 5, 9, 13, 17), tuple(range(0, 32, 2)), tuple(ALL)]
"""Slots that a call touches: few, which are XORed one by one, and many, which are laid out for BITOP."""


def roots(*slots: int) -> list[int]:
    return [joined(BLOCK, slot) for slot in slots]


def val_of(slot: int) -> int:
    return ids.derive("value", slot)


def pairs(*slots: int) -> list[tuple[int, int]]:
    return [(joined(BLOCK, slot), val_of(slot)) for slot in slots]


def owned(*slots: int) -> dict[int, Slot]:
    return {slot: Slot(val_of(slot)) for slot in slots}


def test_slot_of_single_root_is_kept_in_its_ledger_entry(lab) -> None:
    shard = lab()
    for slot in ALL:
        root, other = joined(1000 + slot, slot), joined(1000 + slot, (slot + 1) % 32)
        assert shard.init((root, 5), idempotency_key=f"init-{slot}".encode()) == [APPLIED, 1]
        assert shard.state().ledger == {root: AloneBlock(5, start=shard.now)}
        assert shard.run("reset_timeout", pack_updates(other)) == [0]
        assert shard.ack((root, 5), idempotency_key=f"ack-{slot}".encode()) == [APPLIED, 1]
        assert shard.state().ledger == {}
    assert [done.root for _, (done,) in shard.state().acked[0]] == sorted(joined(1000 + slot, slot) for slot in ALL)


@pytest.mark.parametrize("slots", CHOICES, ids=len)
def test_roots_of_same_block_share_a_ledger_entry(lab, slots: tuple[int, ...]) -> None:
    shard = lab()
    before = shard.state()
    assert shard.init(*pairs(*slots)) == [APPLIED, len(slots)]
    alone = {roots(*slots)[0]: AloneBlock(val_of(slots[0]), start=shard.now)} if len(slots) == 1 else {}
    shared = {} if alone else {BLOCK: SharedBlock(owned(*slots), start=shard.now)}
    assert shard.state() == replace(
        before,
        ledger=alone,
        blocks=shared,
        buckets={shard.nursery: {(BLOCK,): shard.now}},
        dedup=shard.deduplicated(),
        stats={"inits": len(slots)},
    )


@pytest.mark.parametrize("more", CHOICES, ids=len)
@pytest.mark.parametrize("there", CHOICES, ids=len)
def test_later_inits_join_their_block_and_renew_its_timeout(lab, there: tuple[int, ...], more: tuple[int, ...]) -> None:
    shard = lab()
    before = shard.put_shared(BLOCK, owned(*there), tick=TICK - 2)
    new = set(more) - set(there)
    assert shard.init(*pairs(*more)) == [APPLIED, len(new)]
    after = shard.state()
    assert after.blocks == {BLOCK: before._replace(slots=owned(*there, *more), stamp=TICK if new else TICK - 2)}
    assert ((BLOCK,) in after.buckets.get(shard.nursery, {})) == bool(new)
    counts = {"inits": len(new), "duplicate_inits": len(more) - len(new)}
    assert after.stats == {name: count for name, count in counts.items() if count or name == "inits"}


@pytest.mark.parametrize("slots", CHOICES, ids=len)
@pytest.mark.parametrize("component", [0, 9])
def test_acks_change_values_of_their_own_slots_only(lab, slots: tuple[int, ...], component: int) -> None:
    shard = lab()
    before = shard.put_shared(BLOCK, owned(*ALL), tick=TICK - 1)
    assert shard.ack(*((root, 5) for root in roots(*slots)), component=component) == [APPLIED, len(slots)]
    changed = {slot: Slot(val_of(slot) ^ 5, component=component) for slot in slots}
    assert shard.state().blocks == {BLOCK: before._replace(slots={**owned(*ALL), **changed})}


@pytest.mark.parametrize("slots", CHOICES, ids=len)
@pytest.mark.parametrize("component", [0, 9])
def test_roots_at_zero_are_acked_and_rest_of_block_stays(lab, slots: tuple[int, ...], component: int) -> None:
    shard = lab()
    components = {slot: slot % 3 for slot in ALL}
    there = {slot: Slot(val_of(slot), component=components[slot]) for slot in ALL}
    before = shard.put_shared(BLOCK, there, tick=TICK - 1)
    assert shard.ack(*pairs(*slots), component=component) == [APPLIED, len(slots)]
    after = shard.state()
    ended = {slot: Slot(0, component=component or components[slot], settled=True) for slot in slots}
    left = {} if len(slots) == 32 else {BLOCK: before._replace(slots={**there, **ended})}
    assert after.blocks == left
    ((spout_id, found),) = after.acked[0]
    expected = [Done(joined(BLOCK, slot), shard.age(before), component or components[slot]) for slot in slots]
    assert (spout_id, sorted(found)) == (7, sorted(expected))
    assert after.stats == {"acks": len(slots), "acked": len(slots)}


@pytest.mark.parametrize("slots", CHOICES, ids=len)
def test_updates_of_settled_or_failed_roots_count_as_late(lab, slots: tuple[int, ...]) -> None:
    shard = lab()
    there = {slot: Slot(0, settled=True) if slot % 2 else Slot(5, CLOSED) for slot in range(31)} | owned(31)
    before = shard.put_shared(BLOCK, there)
    late = len(set(slots) - {31})
    assert shard.ack(*((root, 3) for root in roots(*slots)), idempotency_key=b"one") == [APPLIED, len(slots) - late]
    known = before if late == len(slots) else before._replace(slots={**there, 31: Slot(val_of(31) ^ 3)})
    assert shard.state().blocks == {BLOCK: known}
    assert shard.state().stats == {"acks": len(slots) - late, **({"late_updates": late} if late else {})}
    assert shard.fail(*roots(*slots), idempotency_key=b"two") == [APPLIED, len(slots) - late]
    assert shard.state().stats.get("late_updates", 0) == 2 * late
    assert shard.run("reset_timeout", pack_updates(*roots(*slots))) == [0]
    assert shard.init(*pairs(*slots), idempotency_key=b"three") == [APPLIED, 0]
    assert shard.state().stats["duplicate_inits"] == len(slots)
    assert shard.state().acked == {}


@pytest.mark.parametrize("slots", CHOICES, ids=len)
@pytest.mark.parametrize("there", [(), (3,), tuple(ALL)], ids=len)
def test_acks_before_their_inits_wait_in_the_block(lab, there: tuple[int, ...], slots: tuple[int, ...]) -> None:
    shard = lab()
    if there:
        shard.put_shared(BLOCK, {slot: Slot(val_of(slot), WAITING) for slot in there}, tick=TICK - 2)
    assert shard.ack(*pairs(*slots), component=4, idempotency_key=b"one") == [APPLIED, len(slots)]
    state = shard.state()
    new = set(slots) - set(there)
    assert state.acked == {}
    assert ((BLOCK,) in state.buckets.get(shard.nursery, {})) == bool(new)
    assert shard.init(*pairs(*slots), idempotency_key=b"two") == [APPLIED, len(slots)]
    done = {done.root for _, rows in shard.state().acked.get(0, []) for done in rows}
    assert done == set(roots(*new))
    left = {slot: (val_of(slot), OWNED if slot in slots else WAITING) for slot in there}
    (block,) = shard.state().blocks.values() or [SharedBlock({})]
    assert {slot: one[:2] for slot, one in block.slots.items() if not one.settled} == left


@pytest.mark.parametrize("slots", CHOICES, ids=len)
def test_fails_close_their_slots_and_write_one_entry_each(lab, slots: tuple[int, ...]) -> None:
    shard = lab()
    before = shard.put_shared(BLOCK, owned(*ALL), tick=TICK - 1)
    assert shard.fail(*roots(*slots), component=2, detail="no") == [APPLIED, len(slots)]
    after = shard.state()
    closed = {slot: Slot(val_of(slot), CLOSED, 2) for slot in slots}
    moved = len(slots) == 32  # else the others keep their timeout
    left = before._replace(slots={**owned(*ALL), **closed}, stamp=TICK if moved else TICK - 1)
    assert after.blocks == {BLOCK: left}
    assert after.failed == {0: [Failure(root, 7, "failed", shard.age(before), "2", "no") for root in roots(*slots)]}
    assert after.stats == {"fails": len(slots), "failed": len(slots), "closed": len(slots)}
    assert ((BLOCK,) in after.buckets.get(shard.nursery, {})) == moved


@pytest.mark.parametrize("slots", CHOICES, ids=len)
def test_roots_failed_before_their_inits_fail_at_init(lab, slots: tuple[int, ...]) -> None:
    shard = lab()
    assert shard.fail(*roots(*slots), component=2, idempotency_key=b"one") == [APPLIED, len(slots)]
    assert shard.state().failed == {}
    assert shard.init(*pairs(*ALL), idempotency_key=b"two") == [APPLIED, 32]
    after = shard.state()
    assert [row[:3] for row in after.failed[0]] == [(root, 7, "failed") for root in roots(*slots)]
    (block,) = after.blocks.values()
    assert {slot for slot, one in block.slots.items() if one.flags == CLOSED} == set(slots)
    assert after.stats["closed"] == len(slots)


def test_block_acked_as_a_whole_keeps_early_failed_slots(lab) -> None:
    shard = lab()
    there = owned(0, 1, 2) | {3: Slot(5, FAILED)}
    before = shard.put_shared(BLOCK, there)
    shard.ack(*pairs(0), *((root, 5) for root in roots(1, 2, 3)))
    left = {1: Slot(val_of(1) ^ 5), 2: Slot(val_of(2) ^ 5), 3: Slot(0, FAILED)}
    assert shard.state().blocks == {BLOCK: before._replace(slots={0: Slot(0, settled=True), **left})}


def test_block_of_failed_and_acked_roots_stays_until_timeout(lab) -> None:
    shard = lab()
    shard.put_shared(BLOCK, owned(1, 2), tick=TICK - 1)
    shard.fail(*roots(1), idempotency_key=b"one")
    shard.ack(*pairs(2), idempotency_key=b"two")
    (block,) = shard.state().blocks.values()
    assert {slot: (one.flags, one.settled) for slot, one in block.slots.items()} == {
        1: (CLOSED, False),
        2: (OWNED, True),
    }


@pytest.mark.parametrize("there", [(3,), (3, 4)], ids=["alone", "shared"])
def test_init_of_block_with_another_spout_id_is_refused(lab, there: tuple[int, ...]) -> None:
    shard = lab()
    shard.init(*pairs(*there), idempotency_key=b"one", spout_id=7)
    before = shard.state()
    assert shard.init(*pairs(8, 9), (99, 5), idempotency_key=b"two", spout_id=8) == [OTHER_SPOUT_ID, 0]
    assert shard.state() == before
    assert shard.init(*pairs(*there), idempotency_key=b"three", spout_id=8) == [
        APPLIED,
        0,
    ]  # duplicates, whoever sends them
    assert shard.state().stats["duplicate_inits"] == len(there)


def test_first_init_of_unowned_block_sets_its_spout_id(lab) -> None:
    shard = lab()
    shard.ack(*pairs(1, 2, 3), idempotency_key=b"one")
    assert shard.init(*pairs(2), spout_id=8, idempotency_key=b"two") == [APPLIED, 1]
    assert shard.init(*pairs(3), spout_id=9, idempotency_key=b"three") == [OTHER_SPOUT_ID, 0]
    ((spout_id, (done,)),) = shard.state().acked[0]
    assert (spout_id, done.root) == (8, roots(2)[0])


@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
@pytest.mark.parametrize("slots", CHOICES, ids=len)
def test_renewed_root_moves_its_whole_block_to_nursery(lab, clock: str, slots: tuple[int, ...]) -> None:
    shard = lab(clock=clock)
    before = shard.put_shared(BLOCK, owned(*ALL), tick=TICK - 2)
    shard.ack(*((root, 5) for root in roots(*slots)))
    moved = clock == "last_update"
    assert shard.state().blocks[BLOCK].stamp == (TICK if moved else TICK - 2)
    assert shard.run("reset_timeout", pack_updates(*roots(*slots))) == [len(slots)]
    assert shard.state().blocks[BLOCK].stamp == TICK
    assert shard.state().blocks[BLOCK].start == before.start


@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
def test_block_older_than_max_age_is_renewed_only_by_new_roots(lab, clock: str) -> None:
    shard = lab(clock=clock, max_age_ms=1000)
    shard.put_shared(BLOCK, owned(*range(30)), tick=TICK - 2, ago_ms=2000)
    shard.ack(*((root, 5) for root in roots(*range(30))), idempotency_key=b"one")
    assert shard.run("reset_timeout", pack_updates(*roots(*range(30)))) == [0]
    assert shard.state().blocks[BLOCK].stamp == TICK - 2
    shard.ack(*pairs(30), idempotency_key=b"two")
    assert shard.state().blocks[BLOCK].stamp == TICK


def test_all_pending_roots_of_expired_block_time_out(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["stats"], mapping={"closed": 8, "failed": 8})
    kinds = [Slot(5, OWNED, 1), Slot(5, WAITING), Slot(5, FAILED), Slot(5, CLOSED), Slot(0, OWNED, settled=True)]
    there = {slot: kinds[slot % 5] for slot in ALL}
    before = shard.put_shared(BLOCK, there, tick=DEAD)
    pending = [slot for slot in ALL if slot % 5 == 0]
    unowned = [slot for slot in ALL if slot % 5 in (1, 2)]
    closed = [slot for slot in ALL if slot % 5 == 3]
    assert shard.run("expire", 500) == [len(pending), len(unowned), 0]
    after = shard.state()
    assert (after.blocks, after.buckets) == ({}, {})
    assert after.failed == {0: [Failure(root, 7, "timeout", shard.age(before), "1") for root in roots(*pending)]}
    assert after.stats == {
        "closed": 8 - len(closed), "failed": 8, "timed_out": len(pending), "orphaned": len(unowned),
    }  # fmt: skip


def test_a_stale_block_is_swept(lab) -> None:
    shard = lab()
    shard.put_shared(BLOCK, owned(*ALL), tick=TICK - 4)
    shard.put_shared(BLOCK + 1, owned(*ALL), tick=DEAD)
    assert shard.run("sweep", 250)[1:3] == [32, 0]
    assert list(shard.state().blocks) == [BLOCK + 1]


@pytest.mark.parametrize("limit", [1, 31, 32, 33, 100])
def test_expire_of_blocks_exceeds_its_limit_by_less_than_a_block(lab, limit: int) -> None:
    shard = lab()
    blocks = range(10)
    for block in blocks:
        shard.put_shared(block, {slot: Slot(5) for slot in ALL}, tick=DEAD)
    shard.raw.delete(shard.keys["bucket"][shard.death_row])
    shard.cohort(DEAD, *blocks[:7], score=1)
    shard.cohort(DEAD, *blocks[7:], score=2)
    total, dead = 0, 1
    while dead:
        timed_out, _, dead = shard.run("expire", limit)
        assert 0 < timed_out < limit + 32
        total += timed_out
    assert total == 320
    assert [row.root for row in shard.state().failed[0]] == [joined(block, slot) for block in blocks for slot in ALL]


@pytest.mark.parametrize("mask", [mask_of(CHOICES[i]) for i in range(len(CHOICES))])
def test_ack_call_with_many_blocks_settles_each_correctly(lab, mask: int) -> None:
    """Dense and sparse ones, roots alone and unknown blocks in one call, more than a group of them."""
    shard = lab()
    numbers = range(100, 190)
    for number in numbers:
        shard.put_shared(number, {slot: Slot(number * 32 + slot) for slot in ALL})
    touched = [(number, mask if number % 2 else mask_of(ALL)) for number in numbers]
    acks = [(joined(number, slot), number * 32 + slot) for number, slots in touched for slot in slots_of(slots)]
    shard.put(7, 3)
    assert shard.ack(*acks, (7, 3), (9, 4)) == [APPLIED, len(acks) + 2]
    after = shard.state()
    ((_, done),) = after.acked[0]
    assert sorted(one.root for one in done) == sorted([root for root, _ in acks] + [7])
    assert set(after.ledger) == {9}
    assert after.blocks.keys() == {number for number, slots in touched if slots != mask_of(ALL)}
    for number, block in after.blocks.items():
        pending = {slot: one.val for slot, one in block.slots.items() if not one.settled}
        assert pending == {slot: number * 32 + slot for slot in ALL if not mask >> slot & 1}


def test_scratch_keys_are_deleted_when_a_command_fails(real_url: str) -> None:
    raw, client = redis.Redis.from_url(real_url), Client(real_url)
    shard = Lab(raw, client)
    shard.put_shared(BLOCK, owned(*ALL))
    before = shard.state()
    raw.execute_command("ACL", "SETUSER", "default", "-bitop")  # type: ignore[no-untyped-call]
    try:
        with pytest.raises(AckerError, match=r"(?i)bitop|permission"):
            shard.ack(*pairs(*ALL))
    finally:
        raw.execute_command("ACL", "SETUSER", "default", "+bitop")  # type: ignore[no-untyped-call]
    assert shard.state() == before
    assert shard.ack(*pairs(*ALL)) == [APPLIED, 32]
    assert shard.state().others == set()
    client.close()
    raw.close()
