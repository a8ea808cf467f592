"""lua/scripts/settle.lua: roots whose work is done before anyone initialised them."""

from dataclasses import replace

import pytest

from tests.support.seeding import (
    OWNED,
    TICK,
    WAITING,
    AloneBlock,
    Between,
    Done,
    Failure,
    SharedBlock,
    Slot,
    blocks_of,
    joined,
)

APPLIED, SEEN, REUSED, TOUCHED = 0, 1, 2, 3


def roots(number: int, *slots: int) -> list[int]:
    return [joined(number, slot) for slot in slots]


def since(shard, age_ms: int) -> Between:
    """The time at which roots of this age began."""
    return Between(shard.now.low - age_ms, shard.now.high - age_ms)


def test_roots_that_are_done_settle_with_their_age_and_leave_nothing(lab) -> None:
    shard = lab(lanes=2)
    before = shard.state()
    done = [*roots(5, *range(32)), *roots(6, 0, 31), *roots(7, 3)]
    assert shard.settle(*done, age_ms=60_000) == [APPLIED, 35]
    assert shard.state() == replace(
        before,
        acked={1: [(7, [Done(root, 60_000) for root in done])]},
        dedup=shard.deduplicated(),
        stats={"inits": 35, "acks": 35, "acked": 35},
    )


def test_roots_that_stay_open_are_pending_since_their_work_began(lab) -> None:
    shard = lab()
    before = shard.state()
    (alone,), (first, second, third) = roots(4, 9), roots(5, 0, 7, 31)
    assert shard.settle(second, still_open=[(alone, 3), (first, -1), (third, 2**40)], age_ms=3000) == [APPLIED, 4]
    start = since(shard, 3000)
    assert shard.state() == replace(
        before,
        ledger={alone: AloneBlock(3, start=start)},
        blocks={5: SharedBlock({0: Slot(-1), 7: Slot(0, OWNED, settled=True), 31: Slot(2**40)}, start=start)},
        buckets={shard.nursery: {blocks_of(second, alone): shard.now}},
        acked={0: [(7, [Done(second, 3000)])]},
        dedup=shard.deduplicated(),
        stats={"inits": 4, "acks": 1, "acked": 1},
    )
    failed = shard.state().failed
    assert not failed and shard.fail(first, idempotency_key=b"key-of-fails") == [APPLIED, 1]
    age = Between(shard.now.low - start.high, shard.now.high - start.low)
    assert shard.state().failed == {0: [Failure(first, 7, "failed", age)]}


def test_an_open_root_completes_by_its_ack(lab) -> None:
    shard = lab()
    settled, still_open = roots(5, 0, 1)
    assert shard.settle(settled, still_open=[(still_open, 6)]) == [APPLIED, 2]
    assert shard.ack((still_open, 6), idempotency_key=b"key-of-acks.") == [APPLIED, 1]
    state = shard.state()
    assert not state.ledger and not state.blocks
    assert [done.root for _, entry in state.acked[0] for done in entry] == [settled, still_open]
    assert state.stats == {"inits": 2, "acks": 2, "acked": 2}


@pytest.mark.parametrize("flags", [WAITING, OWNED])
def test_one_block_that_exists_refuses_the_whole_call(lab, flags: int) -> None:
    shard = lab()
    shard.put(roots(5, 3)[0], 8, flags=flags, tick=TICK - 1)
    before = shard.state()
    assert shard.settle(*roots(4, 1, 2), *roots(5, 4)) == [TOUCHED, 0]
    assert shard.state() == before


def test_a_call_is_applied_once(lab) -> None:
    shard = lab()
    assert shard.settle(1, 2, still_open=[(3, 1)]) == [APPLIED, 3]
    before = shard.state()
    assert shard.settle(1, 2, still_open=[(3, 1)]) == [SEEN, 0]
    assert shard.state() == replace(before, stats={**before.stats, "deduplicated": 1})


def test_the_limit_of_pending_roots_does_not_refuse_work_that_is_done(lab) -> None:
    shard = lab(max_pending=1)
    shard.init((1, 5))
    assert shard.settle(*roots(9, 0, 1), idempotency_key=b"key-settling") == [APPLIED, 2]


def test_an_age_before_the_epoch_counts_from_it(lab) -> None:
    shard = lab()
    assert shard.settle(1, still_open=[(2, 1)], age_ms=2**53) == [APPLIED, 2]
    assert shard.state().ledger[2].start == 0


def test_a_full_call_settles_sixteen_thousand_roots(lab) -> None:
    shard = lab()
    done = [root for number in range(1, 501) for root in roots(number, *range(32))]
    assert shard.settle(*done) == [APPLIED, 16_000]
    assert shard.state().stats == {"inits": 16_000, "acks": 16_000, "acked": 16_000}
