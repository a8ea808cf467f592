"""lua/scripts/init.lua: the owner and first ack value of each root."""

from dataclasses import replace

import pytest

from acker_redis import PendingLimitError
from tests.support.seeding import CLOSED, FAILED, OWNED, TICK, WAITING, AloneBlock, Done, Failure, blocks_of

APPLIED, SEEN = 0, 1
MIN, MAX = -(2**63), 2**63 - 1


def test_new_roots_are_recorded_in_one_cohort(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.init((1, 5), (MIN, -1), (MAX, MIN), spout_id=2**32 - 1) == [APPLIED, 3]
    assert shard.state() == replace(
        before,
        ledger={root: AloneBlock(val, 2**32 - 1, start=shard.now) for root, val in ((1, 5), (MIN, -1), (MAX, MIN))},
        buckets={shard.nursery: {blocks_of(1, MIN, MAX): shard.now}},
        dedup=shard.deduplicated(),
        stats={"inits": 3},
    )


def test_a_tree_without_edges_completes_at_once(lab) -> None:
    shard = lab()
    before = shard.state()
    assert shard.init((1, 0), (2, 0)) == [APPLIED, 2]
    assert shard.state() == replace(
        before,
        acked={0: [(7, [Done(1), Done(2)])]},
        dedup=shard.deduplicated(),
        stats={"inits": 2, "acked": 2},
    )


def test_unowned_root_whose_value_reaches_zero_at_init_is_acked(lab) -> None:
    shard = lab()
    waiting = shard.put(1, MIN + 5, flags=WAITING, component=3, tick=TICK - 1)
    before = shard.state()
    assert shard.init((1, MIN + 5)) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={},  # its cohort stays and is skipped when death row is drained
        acked={0: [(7, [Done(1, shard.age(waiting), 3)])]},
        dedup=shard.deduplicated(),
        stats={"inits": 1, "acked": 1},
    )


def test_unowned_root_gets_owner_at_init_and_keeps_its_bucket(lab) -> None:
    shard = lab()
    waiting = shard.put(1, 2**32 + 1, flags=WAITING, component=3, tick=TICK - 2)
    before = shard.state()
    assert shard.init((1, 2**32 + 6), spout_id=9) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={1: waiting._replace(val=7, spout_id=9, flags=OWNED)},
        dedup=shard.deduplicated(),
        stats={"inits": 1},
    )


@pytest.mark.parametrize(
    ("ago_ms", "tick", "moved"),
    [
        pytest.param(5000, TICK - 1, True, id="moved to the nursery"),
        pytest.param(5000, TICK, False, id="in the nursery already"),
        pytest.param(60_000, TICK - 1, False, id="older than max_age_ms"),
    ],
)
def test_init_under_last_update_moves_unowned_root_to_nursery(lab, ago_ms: int, tick: int, moved: bool) -> None:
    shard = lab(clock="last_update", max_age_ms=60_000)
    waiting = shard.put(1, 5, flags=WAITING, tick=tick, ago_ms=ago_ms)
    before = shard.state()
    shard.init((1, 6))
    buckets = dict(before.buckets)
    if moved:
        buckets[shard.nursery] = {(1,): shard.now}
    assert shard.state() == replace(
        before,
        ledger={1: waiting._replace(val=3, spout_id=7, flags=OWNED, stamp=TICK if moved else tick)},
        buckets=buckets,
        dedup=shard.deduplicated(),
        stats={"inits": 1},
    )


def test_max_age_holds_for_ages_beyond_four_bytes(lab) -> None:
    shard = lab(clock="last_update", max_age_ms=2**32 + 1000)
    waiting = shard.put(1, 5, flags=WAITING, tick=TICK - 1, ago_ms=2**32 + 2000)
    before = shard.state()
    shard.init((1, 6))
    assert shard.state() == replace(
        before,
        ledger={1: waiting._replace(val=3, spout_id=7, flags=OWNED)},
        dedup=shard.deduplicated(),
        stats={"inits": 1},
    )


@pytest.mark.parametrize("val", [5, 0], ids=["edges", "no edges"])
@pytest.mark.parametrize("component_name", ["split", None], ids=["component known", "component unknown"])
def test_root_failed_before_its_init_fails_at_init(lab, val: int, component_name: str | None) -> None:
    shard = lab(lanes=2)
    if component_name:
        shard.raw.hset(shard.keys["meta"], "component:3", component_name)
    failed = shard.put(-1, 5, flags=FAILED, component=3, tick=TICK - 1)  # failed beats zero
    before = shard.state()
    assert shard.init((-1, val), spout_id=7) == [APPLIED, 1]
    assert shard.state() == replace(
        before,
        ledger={-1: failed._replace(val=5 ^ val, spout_id=7, flags=CLOSED, stamp=TICK)},
        buckets={**before.buckets, shard.nursery: {blocks_of(-1): shard.now}},
        failed={1: [Failure(-1, 7, "failed", shard.age(failed), component_name or "3")]},
        dedup=shard.deduplicated(),
        stats={"inits": 1, "failed": 1, "closed": 1},
    )
    assert shard.state().by_component == {"failed:3": 1}


@pytest.mark.parametrize(
    ("tick", "ago_ms", "moved"), [(TICK - 3, 5000, True), (TICK, 5000, False), (TICK - 1, 60_000, True)]
)
def test_a_root_that_fails_at_its_init_is_closed_in_the_nursery(lab, tick: int, ago_ms: int, moved: bool) -> None:
    shard = lab(max_age_ms=60_000)
    failed = shard.put(1, 5, flags=FAILED, tick=tick, ago_ms=ago_ms)
    before = shard.state()
    shard.init((1, 6))
    after = shard.state()
    assert after.ledger == {1: failed._replace(val=3, spout_id=7, flags=CLOSED, stamp=TICK)}
    assert after.buckets == ({**before.buckets, shard.nursery: {(1,): shard.now}} if moved else before.buckets)


@pytest.mark.parametrize("flags", [OWNED, CLOSED], ids=["owned", "closed"])
@pytest.mark.parametrize("val", [5, 6, 0], ids=["the same value", "another value", "no edges"])
def test_a_second_init_is_ignored_and_counted(lab, val: int, flags: int) -> None:
    shard = lab(clock="last_update")
    shard.put(1, 5, spout_id=7, tick=TICK - 1, flags=flags)
    before = shard.state()
    assert shard.init((1, val), spout_id=8) == [APPLIED, 0]
    assert shard.state() == replace(before, dedup=shard.deduplicated(), stats={"inits": 0, "duplicate_inits": 1})


def test_repeats_of_the_batch_are_counted_as_duplicates(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    assert shard.init((1, 5), (2, 5), repeats=3) == [APPLIED, 1]
    assert shard.state().stats == {"inits": 1, "duplicate_inits": 4}


@pytest.mark.parametrize("spout_id", [0, 1, 2, 2**32 - 1])
def test_init_outcomes_go_to_lane_of_spout_id(lab, spout_id: int) -> None:
    shard = lab(lanes=3)
    failed = shard.put(2, 0, flags=FAILED)
    shard.init((1, 0), (2, 0), spout_id=spout_id)
    after = shard.state()
    assert after.acked == {spout_id % 3: [(spout_id, [Done(1)])]}
    assert after.failed == {spout_id % 3: [Failure(2, spout_id, "failed", shard.age(failed))]}


def test_init_of_roots_in_every_state_handles_each_in_one_call(lab) -> None:
    shard = lab()
    completes = shard.put(2, 5, flags=WAITING, component=2)
    waits = shard.put(3, 5, flags=WAITING)
    failed = shard.put(4, 5, flags=FAILED)
    owned = shard.put(5, 5, spout_id=1)
    closed = shard.put(7, 5, flags=CLOSED, spout_id=1)
    before = shard.state()
    assert shard.init((1, 9), (2, 5), (3, 4), (4, 4), (5, 4), (6, 0), (7, 5)) == [APPLIED, 5]
    assert shard.state() == replace(
        before,
        ledger={
            1: AloneBlock(9, start=shard.now),
            3: waits._replace(val=1, spout_id=7, flags=OWNED),
            4: failed._replace(val=1, spout_id=7, flags=CLOSED),
            5: owned,
            7: closed,
        },
        buckets={shard.nursery: {(2,): 1, (3,): 1, (4,): 1, (5,): 1, (7,): 1, (1,): shard.now}},
        acked={0: [(7, [Done(2, shard.age(completes), 2), Done(6)])]},
        failed={0: [Failure(4, 7, "failed", shard.age(failed))]},
        dedup=shard.deduplicated(),
        stats={"inits": 5, "duplicate_inits": 2, "acked": 2, "failed": 1, "closed": 1},
    )


def test_init_call_takes_a_thousand_roots(lab) -> None:
    shard = lab()
    assert shard.init(*((root, root + 1) for root in range(1000))) == [APPLIED, 1000]
    after = shard.state()
    assert after.ledger == {root: AloneBlock(root + 1, start=shard.now) for root in range(1000)}
    assert after.buckets == {shard.nursery: {tuple(range(1000)): shard.now}}


COUNTED = {"inits": 20, "acked": 9, "failed": 4, "timed_out": 2}
"""Five roots are pending."""


def test_init_at_max_pending_is_refused_and_changes_nothing(lab) -> None:
    shard = lab(max_pending=5)
    shard.raw.hset(shard.keys["stats"], mapping=COUNTED)
    shard.put(1, 5, flags=WAITING)
    before = shard.state()
    with pytest.raises(PendingLimitError, match="--max-pending"):
        shard.init((1, 5), (2, 0), (3, 7))
    assert shard.state() == before


def test_init_begun_below_max_pending_is_applied_whole(lab) -> None:
    shard = lab(max_pending=6)
    shard.raw.hset(shard.keys["stats"], mapping=COUNTED)
    assert shard.init((1, 5), (2, 5), (3, 5)) == [APPLIED, 3]
    with pytest.raises(PendingLimitError):
        shard.init((4, 5), idempotency_key=b"another-one-")


def test_batch_resent_to_full_shard_is_reported_as_duplicate(lab) -> None:
    shard = lab(max_pending=1)
    assert shard.init((1, 5)) == [APPLIED, 1]
    assert shard.init((1, 5)) == [SEEN, 0]
    assert shard.ack((1, 5), idempotency_key=b"another-one-") == [APPLIED, 1]
    assert shard.init((2, 5), idempotency_key=b"a-third-one-") == [APPLIED, 1]
