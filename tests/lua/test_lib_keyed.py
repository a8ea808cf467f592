"""lua/lib/keyed.lua: acks with a key each, of which those that were seen change nothing."""

import random
import struct
from collections import defaultdict
from dataclasses import replace

import pytest

from tests.support.seeding import CLOSED, FAILED, WAITING, Done, Slot, joined

APPLIED, SEEN, PARTLY = 0, 1, 4


def member(root: int, key: int) -> bytes:
    """What the dedup window has of an ack."""
    return struct.pack(">qq", root, key)


def test_acks_with_new_keys_apply_and_leave_root_and_key_in_the_window(lab) -> None:
    shard = lab()
    first, second = shard.put(1, 5), shard.put(-7, 9)
    before = shard.state()
    assert shard.ack_keyed((1, 70, 1), (1, 71, 2), (-7, 70, 9), component=3) == [APPLIED, 2]
    assert shard.state() == replace(
        before,
        ledger={1: first._replace(val=5 ^ 1 ^ 2, component=3)},
        acked={0: [(7, [Done(-7, shard.age(second), 3)])]},
        dedup={shard.nursery: {member(1, 70), member(1, 71), member(-7, 70)}},
        stats={"acks": 2, "acked": 1},
    )


def test_call_whose_keys_were_all_seen_changes_nothing(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    shard.ack_keyed((1, 70, 1), (1, 71, 2))
    before = shard.state()
    assert shard.ack_keyed((1, 71, 2), (1, 70, 1)) == [SEEN, 0]
    assert shard.state() == replace(before, stats={**before.stats, "deduplicated": 2})


@pytest.mark.parametrize("ago", range(4))
def test_key_is_found_in_every_slot_of_the_window(lab, ago: int) -> None:
    shard = lab()
    root = shard.put(1, 5)
    shard.raw.sadd(shard.keys["dedup"][(shard.nursery - ago) % shard.slots], member(1, 70))
    assert shard.ack_keyed((1, 70, 1), (1, 71, 2)) == [PARTLY, 1]
    assert shard.state().ledger == {1: root._replace(val=5 ^ 2)}
    assert shard.state().stats == {"acks": 1, "deduplicated": 1}


def test_key_belongs_to_its_root(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    other = shard.put(2, 5)
    shard.ack_keyed((1, 70, 1))
    assert shard.ack_keyed((2, 70, 1)) == [APPLIED, 1]
    assert shard.state().ledger[2] == other._replace(val=4)


def test_idempotency_key_of_another_call_is_no_key_of_a_record(lab) -> None:
    """Members of both kinds have other lengths, whatever their bytes."""
    shard = lab()
    shard.put(1, 5)
    shard.ack((1, 1), idempotency_key=member(1, 70)[:12])
    assert shard.ack_keyed((1, 70, 2)) == [APPLIED, 1]


@pytest.mark.parametrize("flags", [WAITING, FAILED, CLOSED], ids=["waiting", "failed", "closed"])
def test_keys_are_noted_for_roots_in_any_state(lab, flags: int) -> None:
    shard = lab()
    shard.put(1, 5, flags=flags)
    shard.ack_keyed((1, 70, 1), (2, 70, 4))
    assert shard.state().dedup == {shard.nursery: {member(1, 70), member(2, 70)}}
    assert shard.ack_keyed((1, 70, 1), (2, 70, 4)) == [SEEN, 0]


def test_damaged_ledger_leaves_no_key_behind(lab) -> None:
    """An error must not note a key whose ack wasn't applied."""
    shard = lab()
    shard.raw.set(shard.keys["ledger"], "no hash")
    with pytest.raises(Exception, match="WRONGTYPE"):
        shard.ack_keyed((1, 70, 1))
    assert not any(shard.raw.smembers(key) for key in shard.keys["dedup"])


@pytest.mark.parametrize("seed", range(3))
def test_any_grouping_of_records_into_calls_gives_the_same_values(lab, seed: int) -> None:
    """Roots of shared and of alone blocks, records that come twice, and calls that overlap."""
    luck = random.Random(seed)
    shard = lab()
    roots = [joined(99, slot) for slot in range(32)] + [
        joined(number, luck.randrange(32)) for number in range(200, 220)
    ]
    shard.put_shared(99, {slot: Slot(1 << 62) for slot in range(32)})
    for root in roots[32:]:
        shard.put(root, 1 << 62)
    records = [(luck.choice(roots), luck.randrange(-(2**63), 2**63), luck.randrange(2**40)) for _ in range(300)]
    sums: dict[int, int] = defaultdict(int)
    for root, _, val in records:
        sums[root] ^= val
    while records:
        call = luck.sample(records, min(len(records), luck.randrange(1, 120)))
        shard.ack_keyed(*call)
        records = [record for record in records if record not in call or luck.random() < 0.3]
    found = shard.state()
    values = {joined(99, slot): one.val for slot, one in found.blocks[99].slots.items()}
    values |= {root: block.val for root, block in found.ledger.items()}
    assert values == {root: (1 << 62) ^ sums[root] for root in roots}
