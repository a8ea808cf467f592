"""Messages that a spout gives up to another one, and takes back."""

import numpy as np
import pytest

from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.state import SpoutCounts
from acker_redis.testing import fake_acker
from tests.support.spouts import emit, new_spout


def ids(*message_ids: int) -> np.ndarray:
    return np.array(message_ids, np.int64)


@pytest.mark.parametrize("outcome", ["ack", "fail", "timeout"])
def test_outcome_of_a_withdrawn_message_is_ignored(outcome: str) -> None:
    acker = fake_acker()
    done: list[int] = []
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1), on_done=lambda ids: done.extend(ids.tolist()))
    emission = emit(spout)
    spout.withdraw(emission.message_ids[:2])
    assert spout.pending == 1
    if outcome == "ack":
        acker.ack_many(emission.roots, [7, 7, 7])
    else:
        acker.fail_many(emission.roots, reason=outcome)
    assert spout.poll() == 3
    assert done == emission.message_ids[2:].tolist()
    assert spout.done
    assert spout.counts.withdrawn == 2
    assert spout.counts.late == 0
    assert spout.state.waiting(None) == []
    assert set(spout.dead_letters) <= set(done)
    assert acker.stats().unconfirmed_outcomes == 0


def test_withdrawn_messages_are_not_emitted_again() -> None:
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(first_delay_secs=0))
    emission = emit(spout)
    acker.fail_many(emission.roots)
    spout.poll()
    spout.add(ids(100, 101))
    spout.withdraw(ids(100, *emission.message_ids[1:].tolist()))
    following = spout.next_emission()
    assert following is not None
    assert sorted(following.message_ids.tolist()) == [emission.message_ids[0], 101]


def test_searched_messages_are_withdrawn() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emission = emit(spout)
    spout.marks.search_for_poison(emission)
    acker.fail_many(emission.roots)
    spout.poll()
    spout.withdraw(emission.message_ids)
    assert (spout.done, spout.next_emission()) == (True, None)


def test_message_that_comes_back_in_flight_is_adopted() -> None:
    acker = fake_acker()
    done: list[int] = []
    spout = new_spout(acker, on_done=lambda ids: done.extend(ids.tolist()))
    emission = emit(spout)
    spout.state.follow(emission)
    spout.state.sent[emission.number].ended = True
    spout.withdraw(emission.message_ids[:2])
    assert spout.adopt(ids(int(emission.message_ids[0]), 500)).tolist() == [emission.message_ids[0]]
    assert spout.pending == 2
    acker.ack_many(emission.roots, [7, 7, 7])
    spout.poll()
    assert sorted(done) == sorted(emission.message_ids[[0, 2]].tolist())
    assert spout.counts == SpoutCounts(emitted=3, acked=2, withdrawn=1)
    assert len(spout.state.take_finished()) == 1
    assert spout.adopt(emission.message_ids).tolist() == []


def test_adopted_message_keeps_its_marks_and_is_replayed() -> None:
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    emission = emit(spout)
    spout.withdraw(emission.message_ids)
    spout.marks.exempt(emission.roots)
    acker.fail_many(emission.roots)
    spout.state.apply_marks()
    assert len(spout.adopt(emission.message_ids)) == 3
    spout.poll()
    assert (spout.counts.failed, spout.counts.dead_lettered, spout.state.left) == (3, 0, 3)


def test_message_withdrawn_twice_is_adopted_with_its_last_attempt() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    first = emit(spout)
    spout.withdraw(first.message_ids)
    spout.add(first.message_ids)
    second = emit(spout)
    spout.withdraw(second.message_ids)
    assert sorted(spout.adopt(first.message_ids)) == sorted(first.message_ids)
    acker.ack_many(second.roots, [7, 7, 7])
    spout.poll()
    assert spout.counts.acked == 3


def test_withdrawn_roots_that_the_ledger_lost_are_forgotten() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emission = spout.next_emission()  # and nothing of it gets to the ledger
    assert emission is not None
    spout.withdraw(emission.message_ids)
    spout.reconcile()
    assert spout.state.waiting(None) == []
    assert spout.counts.lost == 0
