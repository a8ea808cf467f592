"""A full round of every operation, and checks: for tests of a cluster, a narrow ACL user, cut connections."""

from typing import Any

import numpy as np

from acker_redis import Acker, Applied, Limits, Outcome
from acker_redis.acker import app_of
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until


def take(acker: Acker, wanted: int, consumer: str = "spout") -> list[Outcome]:
    """Poll and confirm until so many outcomes were taken; every root once."""
    taken: list[Outcome] = []

    def polled() -> bool:
        outcomes = acker.poll(block_ms=50, consumer=consumer)
        acker.confirm(outcomes)
        taken.extend(outcomes)
        return len(taken) >= wanted

    wait_until(polled, f"{wanted} outcomes")
    assert len(taken) == wanted
    assert len({outcome.root for outcome in taken}) == wanted
    return taken


def expire_all(acker: Acker) -> int:
    """Rotate until everything pending has timed out; returns how many did."""
    return sum(acker.admin.rotate(force=True).timed_out for _ in range(acker.config.num_buckets))


def warm_up(acker: Acker) -> None:
    """Make the server know the scripts of updates, so that the next calls are answered with results."""
    acker.init_many([-1, -2], [1, 1], 0)
    acker.ack(-1, 1)
    acker.fail(-2)
    take(acker, 2)


def full_round(acker: Acker) -> None:
    """Every public operation on an app that holds nothing: 300 roots, 100 acked, 50 failed, 150 timed out; 64 more acked."""
    roots = np.arange(1, 301)
    vals = roots * 7919
    assert acker.init_many(roots, vals, 3, idempotency_key="round") == Applied(300, False)
    assert acker.init_many(roots, vals, 3, idempotency_key="round") == Applied(0, True)
    assert acker.poll(block_ms=20) == []
    acker.admin.set_limits(Limits(max_pending=1000))
    assert (acker.admin.limits(), acker.pending()) == (Limits(max_pending=1000), 300)
    acker.admin.set_limits(Limits())

    assert acker.ack_many(roots[:99], vals[:99], component="split").applied == 99
    acker.ack(100, int(vals[99]), component="count")
    with acker.batch(idempotency_key="fails") as batch:
        batch.fail_many(roots[100:149], reason="malformed", component="split")
        batch.ack(300, 12345)
    acker.fail(150, reason="malformed")
    assert acker.reset_timeout_many(roots[150:]) == 150
    assert acker.reset_timeout(299)

    held = acker.inspect(300)
    assert held is not None
    assert (held.val, held.spout_id, held.ticks_left) == (int(vals[299]) ^ 12345, 3, acker.config.num_buckets)
    assert 0 <= held.age_ms < 60_000
    assert acker.inspect_many([1, 2])[1] is None
    stats = acker.stats()
    assert (stats.pending, stats.acked, stats.failed, stats.inits) == (150, 100, 50, 300)
    assert stats.oldest_age_ms is not None
    assert 0 <= stats.last_rotation_ms < 60_000

    outcomes = take(acker, 150)
    assert {o.root for o in outcomes if o.kind == "ack"} == set(range(1, 101))
    assert {o.last_component for o in outcomes if o.kind == "ack"} == {"split", "count"}
    assert {o.detail for o in outcomes if o.kind == "fail"} == {"malformed"}

    assert expire_all(acker) == 150
    assert {o.reason for o in take(acker, 150)} == {"timeout"}
    stats = acker.stats()
    assert (stats.pending, stats.unowned, stats.unconfirmed_outcomes, stats.timed_out) == (0, 0, 0, 150)
    assert acker.reopen() == []

    minted = acker.new_roots(64)  # whole blocks: another way through the scripts
    assert acker.init_many(minted, minted, 3).applied == 64
    assert acker.ack_many(minted, np.full(64, 5), component="split").applied == 64
    exact_values(acker, minted, minted ^ 5)
    assert acker.ack_many(minted, minted ^ 5).applied == 64
    assert {o.root for o in take(acker, 64)} == set(minted.tolist())

    letter = DeadLetter(7, "run", 1, "failed", "parse", "bad", b"\xff")
    acker.dead_letters.add([letter])
    (kept,) = acker.dead_letters.read()
    assert kept._replace(entry_id="") == letter
    assert (acker.dead_letters.delete([kept.entry_id]), acker.dead_letters.count()) == (1, 0)
    payloads = app_of(acker).payloads("run")
    payloads.put([(7, b"x"), (-8, b"")])
    payloads.remove([7])
    assert payloads.get([7, -8, 9]) == [None, b"", None]
    payloads.clear()
    assert payloads.get([-8]) == [None]
    app_of(acker).claim_run("run")


def exact_values(acker: Acker, roots: Any, vals: Any) -> None:
    """Every root is pending with exactly this ack value."""
    found = [None if held is None else held.val for held in acker.inspect_many(roots)]
    assert found == np.asarray(vals).tolist()
