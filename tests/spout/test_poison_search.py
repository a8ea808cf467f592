"""Emissions that fail as a whole: poison messages are found, the others go on, and errors common to all are no poison."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff

from acker_redis import AckerError, BadConfigError, JobFailedError, OutageError
from acker_redis.spout.in_flight import Attempts, Emission
from acker_redis.spout.loop import SpoutLoop, run_spout
from acker_redis.spout.poison_search import DOUBT_AFTER, MOST_ALONE, MOST_ALONE_LATER, PARTS
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.spout.state import SpoutState
from acker_redis.testing import fake_acker
from tests.support.spouts import new_spout


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.Backoff", lambda **options: NoBackoff())


class Job:
    """Acks what it is given, but breaks with one of these messages, or while nothing works."""

    def __init__(self, spout: Spout, poison: set[int], down: int = 0, *, by_outage: bool = False) -> None:
        self.spout, self.poison, self.down, self.by_outage = spout, poison, down, by_outage
        self.emitted: list[list[int]] = []

    def __call__(self, emission: Emission) -> None:
        acker, roots = self.spout.acker, emission.roots
        messages = emission.message_ids.tolist()
        self.emitted.append(sorted(messages))
        acker.init_many(roots, np.full(len(roots), 7), 0)
        self.down -= 1
        if self.down >= 0 or self.poison & set(messages):
            self.spout.marks.search_for_poison(emission, by_outage=self.by_outage)
            acker.fail_many(roots, reason="broke")
            raise (OutageError if self.by_outage else JobFailedError)("the job failed")
        acker.ack_many(roots, np.full(len(roots), 7))

    def broken(self) -> int:
        return sum(bool(self.poison & set(messages)) for messages in self.emitted)


def settle(spout: Spout, emission: Emission, bad: set[int]) -> None:
    spout.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
    for message, root in zip(emission.message_ids.tolist(), emission.roots.tolist(), strict=True):
        if message in bad:
            spout.acker.fail(root, reason="no")
        else:
            spout.acker.ack(root, 7)


def run(messages: int, poison: set[int], max_attempts: int = 3, **options: object) -> tuple[Spout, Job]:
    retry = RetryPolicy(max_attempts=max_attempts, first_delay_secs=0, **options)  # type: ignore[arg-type]
    spout = new_spout(fake_acker(), messages, retry=retry)
    job = Job(spout, poison)
    run_spout(spout, job)
    return spout, job


def test_poison_message_becomes_dead_letter_and_others_are_acked() -> None:
    spout, job = run(1000, {617})
    assert spout.dead_letters.keys() == {617}
    letter = spout.dead_letters[617]
    assert (letter.attempts, letter.reason, letter.detail) == (3, "failed", "broke")
    assert spout.counts.acked == 999
    assert job.broken() <= 4 + 3 + 1  # 1000, 125, 16, 2, attempts alone, and one alone while nothing was known
    assert len(job.emitted) <= 4 * PARTS + 5


@settings(max_examples=5, deadline=None)
@given(st.integers(MOST_ALONE, 300), st.data())
def test_all_but_random_poison_messages_are_acked(messages: int, data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, messages - 1), max_size=MOST_ALONE - 1))
    attempts = data.draw(st.integers(1, 3))
    spout, _ = run(messages, poison, attempts)
    assert spout.dead_letters.keys() == poison
    assert {letter.attempts for letter in spout.dead_letters.values()} <= {attempts}
    assert spout.counts.acked == messages - len(poison)


def test_poison_search_for_a_percent_of_messages_stays_short() -> None:
    poison = set(range(0, 1200, 100))
    spout, job = run(1200, poison, 2)
    assert spout.dead_letters.keys() == poison
    assert spout.counts.acked == 1200 - len(poison)
    assert len(job.emitted) < 20 * len(poison)


def test_run_ends_without_dead_letters_if_every_emission_breaks() -> None:
    spout = new_spout(fake_acker(), 1000, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    job = Job(spout, set(range(1000)))
    with pytest.raises(AckerError, match=r"The cause is not a particular message.*: the job failed"):
        run_spout(spout, job)
    assert len(job.emitted) == DOUBT_AFTER + MOST_ALONE
    assert not spout.dead_letters


def test_many_known_poison_messages_do_not_end_the_run() -> None:
    poison = set(range(0, 300, 6))
    assert len(poison) > MOST_ALONE_LATER
    spout, _ = run(300, poison, 3)
    assert spout.dead_letters.keys() == poison
    assert {letter.attempts for letter in spout.dead_letters.values()} == {3}
    assert spout.counts.acked == 300 - len(poison)


@pytest.mark.parametrize("down", range(1, DOUBT_AFTER + MOST_ALONE))
def test_short_outage_of_sinks_blames_no_message(down: int) -> None:
    spout = new_spout(fake_acker(), 1000, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    job = Job(spout, set(), down)
    run_spout(spout, job)
    assert spout.counts.acked == 1000


def test_messages_broken_by_an_outage_wait_until_it_ends() -> None:
    spout = new_spout(fake_acker(), 3, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    job = Job(spout, set(), 50, by_outage=True)
    run_spout(spout, job)
    assert (spout.counts.acked, spout.counts.dead_lettered, len(job.emitted) > 50) == (3, 0, True)


def test_poison_message_that_looks_like_outage_is_dead_lettered() -> None:
    spout = new_spout(fake_acker(), 50, retry=RetryPolicy(max_attempts=3, first_delay_secs=0))
    run_spout(spout, Job(spout, {31}, by_outage=True))
    assert (spout.counts.acked, {letter.attempts for letter in spout.dead_letters.values()}) == (49, {3})


def test_last_messages_that_look_like_outage_are_dead_lettered() -> None:
    spout = new_spout(fake_acker(), 3, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    run_spout(spout, Job(spout, {0, 1}, by_outage=True))
    assert (spout.counts.acked, set(spout.dead_letters)) == (1, {0, 1})


def careful(messages: int, poison: set[int], max_pending: int | None = None) -> tuple[Spout, Job]:
    """A spout that ends if all fail."""
    retry = RetryPolicy(max_attempts=2, first_delay_secs=0)
    spout = new_spout(fake_acker(), messages, retry=retry, max_spout_pending=max_pending)
    spout.state.stops_if_broken = True
    return spout, Job(spout, poison)


@pytest.mark.parametrize("count", range(1, MOST_ALONE))
def test_few_messages_that_all_break_their_jobs_are_not_dead_lettered(count: int) -> None:
    spout, job = careful(count, set(range(count)))
    with pytest.raises(AckerError, match=r"no message has come through in this run.*: the job failed"):
        run_spout(spout, job)
    assert (spout.dead_letters, spout.state.left) == ({}, count)
    assert len(job.emitted) >= 2 * count


def test_run_that_counts_every_failed_job_returns_with_dead_letters_alone() -> None:
    spout, job = careful(3, {0, 1, 2})
    spout.state.stops_if_broken = False
    run_spout(spout, job)
    assert (set(spout.dead_letters), spout.done) == ({0, 1, 2}, True)


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 60), st.data())
def test_poison_messages_are_dead_lettered_once_others_were_acked(messages: int, data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, messages - 1), max_size=min(messages, MOST_ALONE) - 1))
    spout, job = careful(messages, poison, data.draw(st.sampled_from([None, 1, 3])))
    run_spout(spout, job)
    assert (set(spout.dead_letters), spout.counts.acked) == (poison, messages - len(poison))
    assert {letter.attempts for letter in spout.dead_letters.values()} <= {2}


def is_stuck(spout: Spout) -> bool:
    return spout.state.poison_search.is_stuck


@pytest.mark.parametrize("count", [1, 3, MOST_ALONE + 3])
def test_poison_messages_of_stream_wait_for_others_to_succeed(count: int) -> None:
    """Nothing else has succeeded yet, so it may be the pipeline; others that succeed tell."""
    spout = new_spout(fake_acker(), count, retry=RetryPolicy(max_attempts=2, first_delay_secs=0), goes_on=True)
    poison = set(range(count))
    job = Job(spout, poison)
    with SpoutLoop(spout, job) as loop:
        while len(job.emitted) < 2 * count or not is_stuck(spout):
            loop.step(0)
        assert not spout.state.poison_search.left_by(1e12), "a micro-batch waits for them"
        for _ in range(20):
            loop.step(0)
        while loop.emission is not None:
            loop.step(0, may_emit=False)
        assert (spout.counts.dead_lettered, spout.state.left) == (0, count)
        others = 0
        while not spout.done:  # one after another: each lets some of them be tried
            if loop.emission is None and is_stuck(spout):
                spout.add(np.array([1000 + others]))
                others += 1
            loop.step(0)
    assert spout.counts.acked == others > 0
    assert spout.dead_letters.keys() == poison
    assert {letter.attempts for letter in spout.dead_letters.values()} == {2}


@pytest.mark.parametrize("messages", [1, 2, MOST_ALONE - 1])
def test_few_poison_messages_alone_are_dead_lettered_and_raise(
    messages: int,
) -> None:
    spout = new_spout(fake_acker(), messages, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    with pytest.raises(AckerError, match="the job failed"):
        run_spout(spout, Job(spout, set(range(messages))))
    assert spout.done
    assert spout.dead_letters.keys() == set(range(messages))
    assert {letter.attempts for letter in spout.dead_letters.values()} == {2}


def test_message_that_broke_its_emission_is_emitted_alone() -> None:
    _, job = run(100, {31}, 4)
    broke = [messages for messages in job.emitted if 31 in messages]
    alone = broke.index([31])
    assert broke[alone:] == [[31]] * (len(broke) - alone)


def test_message_failing_during_poison_search_uses_an_attempt() -> None:
    spout = new_spout(fake_acker(), 100, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    job = Job(spout, {31})

    def emit(emission: Emission) -> None:
        if job.poison & set(emission.message_ids.tolist()):
            job(emission)
        settle(spout, emission, {4})

    run_spout(spout, emit)
    assert {letter.message_id: (letter.attempts, letter.detail) for letter in spout.dead_letters.values()} == {
        31: (2, "broke"), 4: (2, "no"),
    }  # fmt: skip
    assert spout.counts.acked == 98


def test_resumed_spout_continues_poison_search() -> None:
    state = SpoutState("app", "run", RetryPolicy(max_attempts=9, first_delay_secs=0))
    state.add(np.arange(32))
    emission = state.next_emission(0.0, None)
    assert emission is not None
    state.marks.search_for_poison(emission)
    state.lose_all(0.0)
    attempts, delays = state.attempts_left(0.0)
    other = SpoutState("app", "other", RetryPolicy(max_attempts=9, first_delay_secs=0))
    other.resume(attempts, state.causes, delays, 0.0)
    again = other.next_emission(0.0, None)
    assert again is not None
    assert len(again.roots) == 4
    assert other.poison_search.searching == 28


def test_poison_search_continues_while_only_due_messages_go_out() -> None:
    state = SpoutState("app", "run", RetryPolicy(max_attempts=9, first_delay_secs=0))
    state.add(np.arange(8))
    emission = state.next_emission(1.0, None)
    assert emission is not None
    state.marks.search_for_poison(emission)
    state.lose_all(1.0)
    assert state.next_emission(2.0, None, only_due_by=0.5) is not None
    known = Attempts.first(np.array([9]))
    known.max_group[:] = 1
    state.resume(known, state.causes, np.array([0.0]), 1.0)
    while state.next_emission(2.0, None, only_due_by=0.5) is not None:
        pass
    assert state.left_ids().tolist().count(9) == 1
    assert 9 not in state.in_flight()
    assert state.next_emission(2.0, None) is not None
    assert 9 in state.in_flight()


def test_last_attempt_goes_out_alone_with_last_alone_policy() -> None:
    spout = new_spout(fake_acker(), 6, retry=RetryPolicy(max_attempts=3, first_delay_secs=0, last_alone=True))
    emitted: list[list[int]] = []

    def emit(emission: Emission) -> None:
        emitted.append(sorted(emission.message_ids.tolist()))
        settle(spout, emission, {1, 4})

    run_spout(spout, emit)
    assert spout.dead_letters.keys() == {1, 4}
    for message in (1, 4):  # whichever of them fails first
        attempts = [ids for ids in emitted if message in ids]
        assert (len(attempts), attempts[-1]) == (3, [message])
    assert sorted(chain.from_iterable(emitted[1:])) == [1, 1, 4, 4]


def test_retry_policy_by_reason_sets_attempts_per_reason() -> None:
    policy = RetryPolicy(
        max_attempts=3,
        by_reason={
            "failed": RetryPolicy(max_attempts=2, first_delay_secs=0),
            "OSError": RetryPolicy(max_attempts=4, first_delay_secs=0),
            "OSError: full": RetryPolicy(max_attempts=1, first_delay_secs=0),
            "timeout": RetryPolicy(max_attempts=5, first_delay_secs=0),
        },
    )
    spout = new_spout(fake_acker(), 5, retry=policy)
    reasons = ["no", "OSError: gone", "OSError: full", "timeout", "OSErrorLike"]

    def emit(emission: Emission) -> None:
        spout.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        for message, root in zip(emission.message_ids.tolist(), emission.roots.tolist(), strict=True):
            if message != 3:
                spout.acker.fail(root, reason=reasons[message])

    def rotate(busy: bool) -> None:
        if not busy:
            spout.acker.admin.rotate(force=True)

    run_spout(spout, emit, rotate)
    assert {message: letter.attempts for message, letter in spout.dead_letters.items()} == {
        0: 2,
        1: 4,
        2: 1,
        3: 5,
        4: 4,
    }


def test_retry_policy_with_reasons_is_hashable() -> None:
    assert len({RetryPolicy(by_reason={"timeout": RetryPolicy()}), RetryPolicy()}) == 2


@pytest.mark.parametrize(
    "policies", [{"": RetryPolicy()}, {"timeout": RetryPolicy(by_reason={"failed": RetryPolicy()})}, {"timeout": 3}]
)
def test_bad_policies_per_reason_are_refused(policies: dict[str, RetryPolicy]) -> None:
    with pytest.raises(BadConfigError, match="by_reason"):
        RetryPolicy(by_reason=policies)
