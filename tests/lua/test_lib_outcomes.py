"""lua/lib/outcomes.lua: how old roots were when they settled is counted by bound."""

import pytest

from tests.support.seeding import TICK, Lab, Slot


def ages(shard: Lab) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in shard.raw.hgetall(shard.keys["latency"]).items()}


@pytest.mark.parametrize(
    ("ago_ms", "bound"),
    [
        (-60_000, "50"),
        (10_500, "20000"),
        (21_000, "50000"),
        (110_000, "200000"),
        (3_600_000, "5000000"),
        (6_000_000, "more"),
    ],
)
def test_age_of_outcome_is_counted_at_smallest_bound_above_it(lab, ago_ms: int, bound: str) -> None:
    shard = lab()
    for root in (1, 2, 3):
        shard.put(root, 5, ago_ms=ago_ms)
    shard.put(4, 5, ago_ms=ago_ms, tick=TICK - 3)
    shard.ack((1, 5), (2, 5))
    shard.fail(3, idempotency_key=b"another call")
    shard.run("expire", 500)
    assert ages(shard) == {f"acked:{bound}": 2, f"failed:{bound}": 1, f"timed_out:{bound}": 1}


def test_roots_of_one_call_are_counted_by_their_own_ages(lab) -> None:
    shard = lab()
    shard.put(1, 5, ago_ms=11_000)
    shard.put(2, 5, ago_ms=60_000)
    shard.put_shared(77, {0: Slot(5), 1: Slot(6), 2: Slot(7)}, ago_ms=400_000)
    shard.ack((1, 5), (2, 5), (77, 5), ((1 << 59) + 77, 6))
    assert ages(shard) == {"acked:20000": 1, "acked:100000": 1, "acked:500000": 2}


def test_tree_without_edges_is_counted_at_smallest_age_bound(lab) -> None:
    shard = lab()
    shard.init((1, 0), (2, 0))
    assert ages(shard) == {"acked:50": 2}
