"""Failures by an outage are no attempts, and only evidence that others get through makes one the message's own fault."""

import time
from collections.abc import Iterable

import numpy as np
import pytest

from acker_redis import BadConfigError
from acker_redis.ledger.outcomes.outcome import OutcomeBatch, Receipt
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.outage_table import FEW, OutageTable
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.state import SpoutState

STORE = "store"
REFUSED = "ConnectionRefusedError: store:5432"


class Play:
    """A run on a clock that is moved by hand."""

    def __init__(self, messages: int, *, goes_on: bool = False, **policy: object) -> None:
        given = {"max_attempts": 3, "first_delay_secs": 0, **policy}
        self.state = SpoutState("app", "run", RetryPolicy(**given), goes_on=goes_on)  # type: ignore[arg-type]
        self.state.add(np.arange(messages, dtype=np.int64))
        self.begun = self.now = time.monotonic()

    def emission(self, after_secs: float = 0.0) -> Emission:
        self.now += after_secs
        emission = self.state.next_emission(self.now, None)
        assert emission is not None
        return emission

    def end(self, emission: Emission, failing: Iterable[int] = (), *, is_passed: bool = True, **fail: str) -> None:
        """End an emission: some messages fail in the store, the others get through, or as many as `is_passed` says."""
        fails = np.isin(emission.message_ids, list(failing))
        if is_passed and not fails.all():
            others = emission.message_ids[~fails].tolist()
            self.state.marks.passed(STORE, emission.number, others[0] if len(others) == 1 else None)
        self.state.marks.outage(emission.roots[fails], STORE)
        self.outcome("ack", emission.roots[~fails])
        self.outcome("fail", emission.roots[fails], **fail)

    def outcome(self, kind: str, roots: object, **fail: str) -> None:
        if kind == "fail":
            fail = {"reason": "failed", "detail": REFUSED, **fail}
        self.state.apply_outcomes([batch(kind, roots, **fail)], self.now)

    def fail_until_over(self, failing: Iterable[int], times: int = 40) -> None:
        """Emit and fail messages again, for more than ten minutes."""
        for _ in range(times):
            if not self.state.left:
                return
            self.end(self.emission(31.0), failing)

    @property
    def dead(self) -> list[int]:
        return sorted(self.state.dead_letters)


def batch(kind: str, roots: object, **fail: str) -> OutcomeBatch:
    reason, detail = fail.get("reason"), fail.get("detail")
    return OutcomeBatch(kind, 0, np.asarray(roots), reason, None, False, detail, Receipt("stream", []))  # type: ignore[arg-type]


def test_outage_counts_no_attempt() -> None:
    play = Play(messages=500)
    for _ in range(10):
        play.end(play.emission(31.0), range(500))
    assert (play.dead, play.state.left) == ([], 500)
    play.end(play.emission(31.0))
    assert play.state.counts.acked == 500


def test_outage_secs_of_zero_counts_attempts() -> None:
    assert not RetryPolicy(outage_secs=0).waits_for(REFUSED)


def test_error_named_by_reason_is_not_waited_for() -> None:
    named = RetryPolicy(by_reason={"ConnectionRefusedError": RetryPolicy(max_attempts=1)})
    assert not named.waits_for(REFUSED)
    assert named.waits_for("TimeoutError: no answer")


def test_negative_outage_secs_is_refused() -> None:
    with pytest.raises(BadConfigError, match="outage_secs"):
        RetryPolicy(outage_secs=-1)


def test_message_that_fails_while_others_get_through_later_is_dead_after_the_time() -> None:
    play = Play(messages=100)
    play.end(play.emission(), range(100))
    play.end(play.emission(31.0), [7])
    play.fail_until_over([7])
    assert (play.dead, play.state.counts.acked) == ([7], 99)


def test_message_is_not_dead_before_the_time() -> None:
    play = Play(messages=100)
    play.end(play.emission(), [7])
    for _ in range(19):
        play.end(play.emission(31.0), [7])
    assert play.dead == []


def test_message_is_not_dead_before_max_attempts_failures() -> None:
    play = Play(messages=100)
    play.end(play.emission(), [7])
    play.end(play.emission(700.0), [7])
    assert play.dead == []
    play.end(play.emission(31.0), [7])
    assert play.dead == [7]


def test_few_messages_that_fail_at_the_end_are_dead_by_evidence_of_their_first_emission() -> None:
    play = Play(messages=1000)
    play.end(play.emission(), range(FEW - 1))
    play.fail_until_over(range(FEW - 1))
    assert (play.dead, play.state.left) == (list(range(FEW - 1)), 0)


def test_store_that_is_lost_in_the_middle_of_an_emission_makes_no_dead_letters() -> None:
    play = Play(messages=1000)
    play.end(play.emission(), range(FEW))
    play.fail_until_over(range(FEW))
    assert (play.dead, play.state.left) == ([], FEW)


def test_message_alone_without_evidence_is_no_dead_letter() -> None:
    play = Play(messages=1)
    play.end(play.emission(), [0])
    play.fail_until_over([0])
    assert (play.dead, play.state.left) == ([], 1)


def test_own_rows_that_get_through_are_no_evidence() -> None:
    play = Play(messages=1)
    for _ in range(40):
        emission = play.emission(31.0)
        play.state.marks.passed(STORE, emission.number, 0)
        play.end(emission, [0])
    assert play.dead == []


def test_success_in_another_operator_is_no_evidence() -> None:
    play = Play(messages=100)
    play.end(play.emission(), range(50), is_passed=False)
    play.state.marks.passed("other", 1, None)
    play.fail_until_over(range(50))
    assert play.dead == []


def test_run_ends_once_only_an_outage_is_left() -> None:
    play = Play(messages=100)
    play.end(play.emission(), range(50))
    assert play.state.lasting_outages() == []
    play.fail_until_over(range(50))
    [outage] = play.state.lasting_outages()
    assert (outage.operator, outage.messages, outage.error) == (STORE, 50, REFUSED)
    assert outage.last_secs - outage.since_secs >= 600


def test_run_does_not_end_while_another_message_may_succeed() -> None:
    play = Play(messages=60)
    emission = play.emission()
    play.end(emission, range(50))
    play.fail_until_over(range(50))
    play.state.add(np.array([99]))
    assert play.state.lasting_outages() == []


def test_stream_never_ends_for_an_outage() -> None:
    play = Play(messages=100, goes_on=True)
    play.end(play.emission(), range(100))
    play.fail_until_over(range(100))
    assert play.state.lasting_outages() == []
    assert play.state.left == 100


def test_delays_grow_up_to_thirty_seconds() -> None:
    play = Play(messages=1, jitter=0)
    delays = []
    for _ in range(8):
        play.end(play.emission(31.0), [0])
        delays.append(float(play.state.attempts_left(play.now)[1][0]))
    assert delays == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30])  # times are floats, large if a machine is up for long


def test_timeout_of_a_root_counts_in_spite_of_the_mark() -> None:
    play = Play(messages=1)
    for _ in range(3):
        emission = play.emission(31.0)
        play.state.follow(emission)
        play.state.sent[emission.number].proven = True
        play.end(emission, [0], reason="timeout")
    assert play.dead == [0]


def test_another_failure_counts_between_outages() -> None:
    play = Play(messages=1)
    for _ in range(3):
        play.end(play.emission(31.0), [0])
        play.outcome("fail", play.emission(31.0).roots, detail="KeyError: 'v'")
    assert play.dead == [0]


def test_time_of_an_outage_ends_where_the_message_gets_to_another_failure() -> None:
    """It failed at the store ten minutes before, got through, and failed elsewhere: its next failure there is a first one."""
    play = Play(messages=100)
    play.end(play.emission(), [7])
    play.outcome("fail", play.emission(31.0).roots, detail="KeyError: 'v'")
    for _ in range(3):
        play.end(play.emission(301.0), [7])
        assert play.dead == []


def test_failed_jobs_tell_the_time_and_the_error_of_their_outage() -> None:
    play = Play(messages=4, goes_on=True)
    for pause, error in ((0.0, "refused"), (300.0, "timed out"), (300.0, "reset")):
        emission = play.emission(pause)
        play.state.marks.search_for_poison(emission, by_outage=True, waits_for=STORE, error=error)
        play.outcome("fail", emission.roots)
    (outage,) = play.state.outages.outages()
    assert (outage.operator, outage.messages, outage.error) == (STORE, 4, "reset")


def test_evidence_and_time_survive_a_restart() -> None:
    play = Play(messages=100, goes_on=True)
    play.end(play.emission(), range(100))
    again = Play(messages=0, goes_on=True)
    attempts, delays = play.state.attempts_left(play.now)
    again.now = play.now + 1000
    again.state.resume(attempts, play.state.causes, delays, again.now)
    again.state.outages.resume(play.state.outages.rows, play.state.outages.operators)
    for _ in range(2):
        again.end(again.emission(31.0), [7])
    assert (again.dead, again.state.counts.acked) == ([7], 99)


def test_outage_of_a_job_counts_no_attempt_of_a_message_alone() -> None:
    play = Play(messages=1)
    for _ in range(10):
        emission = play.emission(31.0)
        play.state.marks.search_for_poison(emission, by_outage=True, waits_for=STORE)
        play.outcome("fail", emission.roots)
    assert (play.dead, play.state.left) == ([], 1)


def test_message_whose_job_fails_alone_while_others_succeed_is_dead_after_the_time() -> None:
    play = Play(messages=64)
    emissions = 0
    while play.state.left and emissions < 200:
        emission = play.emission(31.0)
        emissions += 1
        if 7 in emission.message_ids:
            play.state.marks.search_for_poison(emission, by_outage=True, waits_for=STORE)
            play.outcome("fail", emission.roots)
        else:
            play.state.poison_search.succeeded()
            play.end(emission)
    assert (play.dead, play.state.counts.acked) == ([7], 63)
    assert play.now - play.begun >= 600


def test_evidence_of_one_message_is_none_for_itself() -> None:
    table = OutageTable()
    ids = np.array([3, 5])
    table.fail(ids, np.full(2, table.operator_number(STORE), np.int16), np.zeros(2, np.int64), 0.0)
    table.note_passed(STORE, 1, 3)
    table.note_evidence()
    assert table.rows.is_proven.tolist() == [False, True]
    table.note_passed(STORE, 2, 5)
    table.note_evidence()
    assert table.rows.is_proven.tolist() == [True, True]
