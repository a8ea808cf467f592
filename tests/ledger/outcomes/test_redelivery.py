"""Outcomes that were not confirmed come again: after a crash, a lost reply, a message timeout; and those that were don't."""

import time

import numpy as np
import pytest

from acker_redis import Acker, ConnectionLostError, Outcome, OutcomeBatch
from acker_redis.acker import app_of
from acker_redis.ledger.outcomes.consumer import Consumer
from acker_redis.testing import wait_until
from tests.support.outcomes import complete, roots_of, streams, time_out, unconfirmed
from tests.support.rounds import take


def test_restarted_consumer_gets_unconfirmed_outcomes_at_once(source, connect) -> None:
    config = {"shards": 2}
    crashed: Acker = connect(**config)
    roots = complete(crashed, 20)
    crashed.init_many([101, 102], [1, 1], 0)
    crashed.fail_many([101, 102], reason="malformed")
    first = crashed.poll(consumer="spout-a")
    assert {outcome.redelivered for outcome in first} == {False}
    crashed.confirm([outcome for outcome in first if outcome.root == 101])

    restarted: Acker = connect(**config)
    assert restarted.poll(consumer="spout-b") == []
    again = restarted.poll(consumer="spout-a")
    assert {outcome.root for outcome in again} == roots | {102}
    assert {outcome.redelivered for outcome in again} == {True}
    assert [outcome.detail for outcome in again if outcome.root == 102] == ["malformed"]
    restarted.confirm(again)
    assert connect(**config).poll(consumer="spout-a") == []


def test_another_consumer_claims_outcomes_after_message_timeout(source, raw, connect) -> None:
    config = {"shards": 2, "message_timeout_secs": 0.4}
    crashed: Acker = connect(**config)
    roots = complete(crashed, 20)
    began = time.monotonic()
    assert len(crashed.poll(consumer="spout-a")) == 20
    other: Acker = connect(**config)
    found: list[Outcome] = []

    def claimed() -> bool:
        found.extend(other.poll(consumer="spout-b"))
        return len({outcome.root for outcome in found}) == 20

    wait_until(claimed, "claimed outcomes")
    assert time.monotonic() - began >= 0.4
    assert {outcome.root for outcome in found} == roots
    assert {outcome.redelivered for outcome in found} == {True}
    assert other.confirm(found) > 0
    assert unconfirmed(raw) == 0


def test_dead_consumers_outcomes_are_taken_over_by_small_polls(source, raw, connect) -> None:
    """Small polls must get past entries that a living consumer holds."""
    config = {"shards": 1, "message_timeout_secs": 0.4}
    dead: Acker = connect(**config)
    dead.init_many(np.arange(1, 41), np.ones(40, np.int64), 0)
    dead.fail_many(np.arange(1, 41))
    assert len(dead.poll(consumer="dead")) == 40
    living: Acker = connect(**config)
    found: set[int] = set()

    def taken() -> bool:
        outcomes = living.poll(max_outcomes=2, consumer="living")
        living.confirm(outcomes)
        found.update(outcome.root for outcome in outcomes)
        return len(found) == 40

    wait_until(taken, "all outcomes of the dead consumer")
    assert unconfirmed(raw) == 0


def test_shared_entry_is_confirmed_with_its_last_outcome(source, raw, connect) -> None:
    config = {"shards": 1}
    acker: Acker = connect(**config)
    roots = complete(acker, 10)
    (stream,) = [key for key in streams(raw) if raw.xlen(key)]
    assert raw.xlen(stream) == 1
    outcomes = acker.poll()
    assert acker.confirm(outcomes[:9]) == 0
    assert raw.xlen(stream) == 1
    assert {outcome.root for outcome in connect(**config).poll()} == roots
    assert acker.confirm(outcomes[9:]) == 1
    assert unconfirmed(raw) == 0
    assert connect(**config).poll() == []


def test_an_outcome_given_twice_confirms_its_entry_once(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    complete(acker, 3)
    outcomes = acker.poll()
    assert acker.confirm([*outcomes[:2], *outcomes[:2]]) == 0
    assert acker.confirm([outcomes[2], outcomes[2]]) == 1
    assert unconfirmed(raw) == 0


def test_outcomes_whose_stage_could_not_be_read_come_with_the_next_poll(source, raw, connect, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    acker.init_many([1, 2], [5, 6], 0)
    acker.ack_many([1, 2], [5, 6], component="parse")

    def cut(commands: object) -> None:
        raise ConnectionLostError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(app_of(acker).client, "pipeline", cut)
        with pytest.raises(ConnectionLostError):
            acker.poll()
    outcomes = acker.poll()
    assert {(outcome.root, outcome.last_component) for outcome in outcomes} == {(1, "parse"), (2, "parse")}
    acker.confirm(outcomes)
    assert unconfirmed(raw) == 0


def test_second_confirm_of_outcomes_changes_nothing(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    complete(acker, 10)
    outcomes = acker.poll()
    assert acker.confirm(outcomes) == 1
    assert acker.confirm(outcomes) == 0
    assert acker.confirm([]) == 0
    complete(acker, 5)
    assert acker.confirm(outcomes) == 0
    assert len(acker.poll()) == 5


def test_confirmed_outcomes_leave_no_memory_behind(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=2, lanes=2)

    def round_trip(first: int) -> int:
        roots = np.arange(first, first + 2_000)
        acker.init_many(roots, roots, 1)
        acker.ack_many(roots[:1_000], roots[:1_000])
        acker.fail_many(roots[1_000:])
        take(acker, 2_000)
        acker.admin.rotate(force=True)
        assert unconfirmed(raw) == 0
        return sum(raw.memory_usage(key) for key in raw.scan_iter())

    sizes = [round_trip(1 + number * 2_000) for number in range(12)]
    assert sizes[-1] <= sizes[3] * 1.1


def test_outcomes_already_read_survive_a_flush_of_the_server(url, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    acker.init_many(np.arange(1, 11), np.zeros(10, np.int64), 0)
    assert len(acker.poll(max_outcomes=4)) == 4
    raw.flushall()
    assert len(acker.poll()) == 6


def test_unconfirmed_outcomes_return_after_message_timeout(source, raw, connect) -> None:
    """Without a restart: whoever took outcomes and did not confirm them gets them again after a message timeout."""
    acker: Acker = connect(shards=2, message_timeout_secs=0.2)
    roots = complete(acker, 20)
    assert {outcome.root for outcome in acker.poll() if not outcome.redelivered} == roots
    found: list[Outcome] = []

    def again() -> bool:
        found.extend(acker.poll())
        return len({outcome.root for outcome in found}) == 20

    wait_until(again, "the outcomes again")
    assert {outcome.root for outcome in found} == roots
    assert {outcome.redelivered for outcome in found} == {True}
    acker.confirm(found)
    assert unconfirmed(raw) == 0


def test_poll_that_takes_longer_than_message_timeout_returns_each_outcome_once(source, connect, monkeypatch) -> None:
    """What it has taken stays unconfirmed meanwhile, so a server would let it claim that from itself."""
    acker: Acker = connect(shards=2, message_timeout_secs=0.05)
    roots, claim = complete(acker, 20), Consumer._claim

    def claim_late(self: Consumer, wanted: int) -> bool:
        begun_ms = acker.dead_letters.now_ms()
        wait_until(lambda: acker.dead_letters.now_ms() - begun_ms > 100, "the message timeout is over")
        return claim(self, wanted)

    monkeypatch.setattr(Consumer, "_claim", claim_late)
    assert sorted(outcome.root for outcome in acker.poll()) == sorted(roots)


def test_outcomes_still_buffered_are_not_claimed_again(source, connect) -> None:
    acker: Acker = connect(shards=1, message_timeout_secs=0.05)
    complete(acker, 30)
    found = acker.poll(max_outcomes=10)

    def one_by_one() -> bool:
        found.extend(acker.poll(max_outcomes=1))
        return len(found) >= 30

    wait_until(one_by_one, "the others, after more than a message timeout")  # which looks 50 times a second
    assert sorted(outcome.root for outcome in found) == list(range(1, 31))
    assert not any(outcome.redelivered for outcome in found)


def test_failed_confirm_can_be_repeated(real_url, raw, connect, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    complete(acker, 10)
    outcomes = acker.poll()
    with monkeypatch.context() as patch:
        patch.setattr(app_of(acker).client, "run_each", lambda calls: [ConnectionLostError("cut")] * len(calls))
        with pytest.raises(ConnectionLostError):
            acker.confirm(outcomes)
    assert acker.confirm(outcomes) == 1
    assert unconfirmed(raw) == 0


def test_outcomes_of_a_lost_reply_return_with_again(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    acker.poll_batches()
    roots = complete(acker, 10)
    raw.xreadgroup("spout", "spout", {"acker:{test:0}:acked:0": ">"})  # the reply of the same consumer, lost
    assert acker.poll_batches() == []
    (packed,) = acker.poll_batches(again=True)
    assert set(packed.roots.tolist()) == roots
    assert packed.redelivered
    acker.confirm_batches([packed])
    assert acker.poll_batches(again=True) == []


@pytest.mark.parametrize("consumer", ["spout", "another"])
def test_deleted_entries_are_dropped_from_the_consumer_group(source, raw, connect, consumer) -> None:
    """By hand, or by a server that lost its last writes: there is nothing to deliver any more."""
    config = {"shards": 1, "message_timeout_secs": 0.05}
    acker: Acker = connect(**config)
    time_out(acker, np.arange(6))
    polled = roots_of(acker.poll_batches(consumer="spout"))
    assert set(polled) == set(range(6))  # some twice, where this poll takes a message timeout
    failed = "acker:{test:0}:failed:0"
    raw.xdel(failed, *(entry_id for entry_id, _ in raw.xrange(failed)[1:4]))
    found: list[OutcomeBatch] = []
    other: Acker = connect(**config)

    def taken() -> bool:
        found.extend(other.poll_batches(consumer=consumer))
        return len(set(roots_of(found))) == 3  # some more than once, where a poll takes a message timeout

    wait_until(taken, "what is left")
    other.confirm_batches(found)
    assert other.poll_batches(consumer=consumer, again=True) == []  # Redis 6.2 names those claimed only now
    assert unconfirmed(raw) == 0


def test_partly_polled_entry_returns_whole_with_again(source, raw, connect) -> None:
    """An entry of many acks can be handed out in part; asked for again it comes whole, and its rest not once more."""
    acker: Acker = connect(shards=1)
    roots = complete(acker, 10)
    assert len(acker.poll(max_outcomes=4)) == 4
    assert acker.poll_batches() == []
    (again,) = acker.poll_batches(again=True)
    assert set(again.roots.tolist()) == roots
    assert again.redelivered
    assert acker.poll() == []
    assert acker.confirm_batches([again]) == 1
    assert unconfirmed(raw) == 0
