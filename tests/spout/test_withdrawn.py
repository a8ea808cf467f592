"""Messages that a spout gives up to another one, and takes back."""

import numpy as np
import pytest

from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.state import SpoutCounts
from acker_redis.testing import fake_acker
from tests.support.spouts import emit, spout


def ids(*message_ids: int) -> np.ndarray:
    return np.array(message_ids, np.int64)


@pytest.mark.parametrize("outcome", ["ack", "fail", "timeout"])
def test_outcome_of_a_withdrawn_message_is_ignored(outcome: str) -> None:
    acker = fake_acker()
    done: list[int] = []
    made = spout(acker, retry=RetryPolicy(max_attempts=1), on_done=lambda ids: done.extend(ids.tolist()))
    emission = emit(made)
    made.withdraw(emission.message_ids[:2])
    assert made.pending == 1
    if outcome == "ack":
        acker.ack_many(emission.roots, [7, 7, 7])
    else:
        acker.fail_many(emission.roots, reason=outcome)
    assert made.poll() == 3
    assert done == emission.message_ids[2:].tolist()
    assert made.done
    assert made.counts.withdrawn == 2
    assert made.counts.late == 0
    assert made.state.waiting(None) == []
    assert set(made.dead_letters) <= set(done)
    assert acker.stats().unconfirmed_outcomes == 0


def test_withdrawn_messages_are_not_emitted_again() -> None:
    acker = fake_acker()
    made = spout(acker, retry=RetryPolicy(first_delay_secs=0))
    emission = emit(made)
    acker.fail_many(emission.roots)
    made.poll()
    made.add(ids(100, 101))
    made.withdraw(ids(100, *emission.message_ids[1:].tolist()))
    following = made.next_emission()
    assert following is not None
    assert sorted(following.message_ids.tolist()) == [emission.message_ids[0], 101]


def test_searched_messages_are_withdrawn() -> None:
    acker = fake_acker()
    made = spout(acker)
    emission = emit(made)
    made.marks.search_for_poison(emission)
    acker.fail_many(emission.roots)
    made.poll()
    made.withdraw(emission.message_ids)
    assert (made.done, made.next_emission()) == (True, None)


def test_message_that_comes_back_in_flight_is_adopted() -> None:
    acker = fake_acker()
    done: list[int] = []
    made = spout(acker, on_done=lambda ids: done.extend(ids.tolist()))
    emission = emit(made)
    made.state.follow(emission)
    made.state.sent[emission.number].ended = True
    made.withdraw(emission.message_ids[:2])
    assert made.adopt(ids(int(emission.message_ids[0]), 500)).tolist() == [emission.message_ids[0]]
    assert made.pending == 2
    acker.ack_many(emission.roots, [7, 7, 7])
    made.poll()
    assert sorted(done) == sorted(emission.message_ids[[0, 2]].tolist())
    assert made.counts == SpoutCounts(emitted=3, acked=2, withdrawn=1)
    assert len(made.state.take_finished()) == 1
    assert made.adopt(emission.message_ids).tolist() == []


def test_adopted_message_keeps_its_marks_and_is_replayed() -> None:
    acker = fake_acker()
    made = spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    emission = emit(made)
    made.withdraw(emission.message_ids)
    made.marks.exempt(emission.roots)
    acker.fail_many(emission.roots)
    made.state.apply_marks()
    assert len(made.adopt(emission.message_ids)) == 3
    made.poll()
    assert (made.counts.failed, made.counts.dead_lettered, made.state.left) == (3, 0, 3)


def test_message_withdrawn_twice_is_adopted_with_its_last_attempt() -> None:
    acker = fake_acker()
    made = spout(acker)
    first = emit(made)
    made.withdraw(first.message_ids)
    made.add(first.message_ids)
    second = emit(made)
    made.withdraw(second.message_ids)
    assert sorted(made.adopt(first.message_ids)) == sorted(first.message_ids)
    acker.ack_many(second.roots, [7, 7, 7])
    made.poll()
    assert made.counts.acked == 3


def test_withdrawn_roots_that_the_ledger_lost_are_forgotten() -> None:
    acker = fake_acker()
    made = spout(acker)
    emission = made.next_emission()  # and nothing of it gets to the ledger
    assert emission is not None
    made.withdraw(emission.message_ids)
    made.reconcile()
    assert made.state.waiting(None) == []
    assert made.counts.lost == 0
