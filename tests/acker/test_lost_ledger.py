"""A server that lost its data: every call says so, and none hides it from another client."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acker_redis import Acker, LedgerLostError, Outcome
from acker_redis.model import ids
from acker_redis.spout.spout import Spout
from acker_redis.testing import wait_until
from tests.support.leaks import assert_no_leaks, run_out
from tests.support.rounds import full_round, take


def calls(acker: Acker, outcomes: list[Outcome]) -> dict[str, Callable[[], object]]:
    """Every public call that touches a ledger."""

    def send_batch() -> None:
        with acker.batch() as batch:
            batch.ack(1, 1)

    return {
        "init": lambda: acker.init(1, 1, 0),
        "ack": lambda: acker.ack(1, 1),
        "ack of a new component": lambda: acker.ack(1, 1, component="new"),
        "fail": lambda: acker.fail(1),
        "reset_timeout": lambda: acker.reset_timeout(1),
        "batch": send_batch,
        "poll": lambda: acker.poll(),
        "blocking poll": lambda: acker.poll(block_ms=5_000),
        "confirm": lambda: acker.confirm(outcomes),
        "rotate": lambda: acker.admin.rotate(),
        "forced rotate": lambda: acker.admin.rotate(force=True),
        "stats": lambda: acker.stats(),
        "inspect": lambda: acker.inspect(1),
    }


def pending_and_polled(acker: Acker) -> list[Outcome]:
    """One root pending, one outcome handed out and not confirmed."""
    acker.init_many([1, 2], [5, 0], 0)
    outcomes = acker.poll()
    assert [outcome.root for outcome in outcomes] == [2]
    return outcomes


def test_every_call_raises_ledger_lost_until_recover(source, raw, connect) -> None:
    acker: Acker = connect(shards=2, lanes=2)
    every = calls(acker, pending_and_polled(acker))
    raw.flushall()
    for name, call in every.items():
        try:
            call()
        except LedgerLostError as exc:
            assert "Call Acker.reopen() and replay every root" in str(exc), name
        else:
            pytest.fail(f"{name} did not tell of the lost ledger")
    assert acker.reopen() == [0, 1]
    full_round(acker)


def test_recover_by_a_client_does_not_hide_the_loss_from_another(source, raw, connect) -> None:
    first: Acker = connect(shards=2)
    every = calls(first, pending_and_polled(first))
    second: Acker = connect(shards=2)
    raw.flushall()
    with pytest.raises(LedgerLostError):
        second.poll()
    assert second.reopen() == [0, 1]
    second.init_many([3, 4], [7, 0], 0)
    for name, call in every.items():
        try:
            call()
        except LedgerLostError:
            continue
        pytest.fail(f"{name} did not tell of the lost ledger")
    assert first.reopen() == []
    assert second.stats().pending == 1
    assert [outcome.root for outcome in take(first, 1)] == [4]


def test_component_names_are_registered_again_after_recover(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    acker.init_many([1, 2], [5, 5], 0)
    acker.ack(1, 5, component="split")
    assert [outcome.last_component for outcome in take(acker, 1)] == ["split"]
    raw.flushall()
    acker.reopen()
    acker.init_many([3, 4], [5, 5], 0)
    acker.ack(3, 5, component="count")
    acker.fail(4, component="split")
    assert {outcome.root: outcome.last_component for outcome in take(acker, 2)} == {3: "count", 4: "split"}


def test_blocking_poll_raises_ledger_lost(real_url, raw, connect) -> None:
    acker: Acker = connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acker.poll, block_ms=240_000)
        wait_until(lambda: raw.info("clients")["blocked_clients"] == 1, "the poll waits")
        raw.flushall()
        with pytest.raises(LedgerLostError):
            waiting.result(timeout=120)


def test_single_lost_shard_raises_ledger_lost(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    acker.init_many([1, 2, 3, 4], [5, 5, 5, 5], 0)
    raw.delete("acker:{test:1}:meta", "acker:{test:1}:ledger")
    with pytest.raises(LedgerLostError):
        acker.admin.rotate(force=True)
    assert acker.reopen() == [1]
    assert acker.admin.rotate(force=True).ticked == 2


def test_shard_without_meta_is_emptied_and_its_messages_replayed(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    acker.admin.rotate(force=True)  # so that the ring is not where a new one begins
    spout = Spout(acker, run_id="run")
    spout.add(np.arange(5_000))
    first = spout.next_emission()
    assert first is not None
    acker.init_many(first.roots, first.roots, spout.spout_id)
    acker.ack_many(first.roots[:100], first.roots[:100])  # outcomes that wait in the streams
    kept = int((ids.shard_of(first.roots[100:].view(np.uint64), 2) == 0).sum())
    raw.delete("acker:{test:1}:meta")

    assert spout.poll() == 0
    assert (spout.counts.lost, spout.counts.acked) == (5_000, 0)
    assert acker.stats().pending == kept
    again = spout.next_emission()
    assert again is not None
    acker.init_many(again.roots, again.roots, spout.spout_id)
    assert acker.stats().pending == kept + 5_000
    acker.ack_many(again.roots, again.roots)
    while spout.poll():
        pass
    assert (spout.done, spout.counts.acked) == (True, 5_000)

    run_out(acker)
    stats = acker.stats()
    assert (stats.timed_out, stats.pending, stats.unowned, stats.orphaned) == (kept, 0, 0, 0)
    assert_no_leaks(raw, "test")
