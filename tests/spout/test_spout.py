"""The spout's bookkeeping, on an acker in memory."""

import gc
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest

from acker_redis import (
    AckerConfig,
    AckerError,
    BadConfigError,
    ServerOutOfMemoryError,
)
from acker_redis.acker import app_of
from acker_redis.errors import InvalidTopologyError
from acker_redis.ledger.outcomes.outcome import OutcomeBatch, Receipt
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.retry import LOST_LIMIT, RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import fake_acker
from tests.support.spouts import emit, expire, letters, new_spout


def steps(work: Callable[[], object]) -> int:
    """How many instructions of Python code a piece of work takes: what numpy does in one is one, however long the array."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # finalizers of what earlier tests left would count, too
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_spout_is_done_when_every_message_was_acked() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emission = emit(spout)
    assert (spout.pending, spout.done) == (3, False)
    acker.ack_many(emission.roots, [7, 7, 7])
    assert spout.poll() == 3
    assert (spout.counts.acked, spout.pending, spout.done) == (3, 0, True)
    assert acker.stats().unconfirmed_outcomes == 0


def test_failed_and_timed_out_messages_get_fresh_roots_at_replay() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    first = emit(spout)
    acker.fail(int(first.roots[0]))
    acker.ack(int(first.roots[1]), 7)
    expire(acker)
    spout.poll()
    assert (spout.counts.failed, spout.counts.timed_out, spout.counts.acked) == (1, 1, 1)
    again = emit(spout)
    assert sorted(again.message_ids.tolist()) == [0, 2]
    assert again.attempts.tolist() == [1, 1]
    assert not set(again.roots.tolist()) & set(first.roots.tolist())
    assert again.number == first.number + 1


def test_cause_of_a_message_is_that_of_its_last_attempt() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    first = emit(spout)
    assert spout.state.causes_of(first.message_ids) == {}
    acker.fail(int(first.roots[0]), reason="broken", component="parse")
    spout.poll()
    wanted = {int(first.message_ids[0]): ("failed", "parse")}
    assert spout.state.causes_of(first.message_ids) == wanted
    again = emit(spout)
    assert spout.state.causes_of(first.message_ids) == wanted  # while the next attempt runs
    acker.ack(int(again.roots[0]), 7)
    spout.poll()
    assert spout.state.causes_of(first.message_ids) == {}


def test_late_ack_of_old_attempt_does_not_settle_new_attempt() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1)
    first = emit(spout)
    expire(acker)
    spout.poll()
    emit(spout)
    acker.ack(int(first.roots[0]), 7)
    assert spout.poll() == 0
    assert spout.pending == 1


def test_message_becomes_dead_letter_after_its_last_attempt() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    for _ in range(2):
        acker.fail(int(emit(spout).roots[0]), component="parse")
        spout.poll()
    assert letters(spout) == {0: DeadLetter(0, "run", 2, "failed", "parse")}
    assert (spout.counts.dead_lettered, spout.counts.acked, spout.done) == (1, 0, True)
    assert spout.next_emission() is None


def test_max_spout_pending_bounds_messages_in_flight() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=10, max_spout_pending=4)
    first = emit(spout)
    assert len(first.roots) == 4
    assert spout.next_emission() is None
    acker.ack(int(first.roots[0]), 7)
    spout.poll()
    assert len(emit(spout).roots) == 1


def test_a_replay_waits_for_its_delay() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(first_delay_secs=3600))
    acker.fail(int(emit(spout).roots[0]))
    spout.poll()
    assert spout.next_emission() is None
    assert not spout.done


def test_failing_message_is_visible_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `TrackedBatches.status` does, from any thread: it is neither in flight nor waiting while the policy judges it."""
    acker = fake_acker()
    spout = new_spout(acker, messages=1)
    with ThreadPoolExecutor(1) as other:
        asked: list[Future[Any]] = []
        judge = RetryPolicy.after_failure

        def judge_while_asked(policy: RetryPolicy, attempts: Any) -> Any:
            asked.append(other.submit(spout.state.attempts_left, 0.0))
            wait(asked, timeout=0.2)  # who asks has to wait
            return judge(policy, attempts)

        monkeypatch.setattr(RetryPolicy, "after_failure", judge_while_asked)
        acker.fail(int(emit(spout).roots[0]))
        spout.poll()
        attempts, _ = asked[0].result(60)
    assert attempts.message_ids.tolist() == [0]


@pytest.mark.parametrize(("failures", "secs"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0)])
def test_retry_delays_grow_up_to_max_delay(failures: int, secs: float) -> None:
    assert RetryPolicy(max_delay_secs=5, jitter=0).delay_secs(np.array([failures])) == [secs]


def test_default_retry_policy_spreads_attempts_over_two_minutes() -> None:
    policy = RetryPolicy()
    waits = replace(policy, jitter=0).delay_secs(np.arange(1, policy.max_attempts))
    assert waits.tolist() == [1, 2, 4, 8, 16, 32, 60]
    drawn = policy.delay_secs(np.full(1000, 4))
    assert 6.4 <= drawn.min() < 7 < 9 < drawn.max() <= 9.6


def test_bad_retry_policies_are_refused() -> None:
    bad: dict[str, tuple[Any, ...]] = {
        "max_attempts": (0, 2.5, True, float("nan")),
        "first_delay_secs": (-1, float("nan"), float("inf"), "1"),
        "max_delay_secs": (-1, float("nan")),
        "multiplier": (0.5, float("inf"), float("nan")),
    }
    for name, values in bad.items():
        for value in values:
            with pytest.raises(BadConfigError, match=name):
                RetryPolicy(**{name: value})


@pytest.mark.parametrize("bound", [0, -1, 2.0, True, "3", float("nan")])
def test_bad_max_spout_pending_is_refused(bound: Any) -> None:
    with pytest.raises(
        BadConfigError,
        match=r"max_spout_pending=.*( lets no message through, so the run would wait| is not an integer)",
    ):
        new_spout(fake_acker(), max_spout_pending=bound)


def test_lost_ledger_is_recovered_and_messages_emitted_again() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emit(spout)
    app_of(acker).client.redis.flushall()
    assert spout.poll() == 0
    assert spout.counts.lost == 3
    acker.ack_many(emit(spout).roots, [7, 7, 7])
    spout.poll()
    assert spout.done


def test_losses_of_the_whole_ledger_do_not_exhaust_a_message() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    for _ in range(2 * LOST_LIMIT):
        emit(spout)
        app_of(acker).client.redis.flushall()
        assert spout.poll() == 0
    assert spout.next_emission() is not None
    assert spout.reconcile() == 1  # the first loss that counts
    acker.ack_many(emit(spout).roots, [7])
    spout.poll()
    assert (spout.counts.lost, spout.counts.acked, spout.counts.dead_lettered) == (2 * LOST_LIMIT + 1, 1, 0)


def test_message_whose_init_never_arrived_is_emitted_again() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emission = spout.next_emission()
    assert emission is not None
    acker.init(int(emission.roots[0]), 7, 0)
    assert spout.reconcile() == 2
    assert spout.pending == 1
    assert sorted(emit(spout).message_ids.tolist()) == sorted(emission.message_ids[1:].tolist())


def test_outcomes_of_earlier_run_count_as_late_and_are_confirmed() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    emit(spout)
    acker.init(123, 0, 0)
    assert spout.poll() == 1
    assert (spout.counts.late, spout.pending) == (1, 3)
    assert acker.stats().unconfirmed_outcomes == 0


def test_spouts_with_different_ids_take_their_own_outcomes_only() -> None:
    acker = fake_acker(AckerConfig(app="test", shards=2, lanes=2))
    spouts = [new_spout(acker, spout_id=spout_id, run_id=f"run-{spout_id}") for spout_id in (0, 1)]
    for spout in spouts:
        acker.ack_many(emit(spout).roots, [7, 7, 7])
    for spout in spouts:
        spout.poll()
        assert (spout.counts.acked, spout.counts.late, spout.done) == (3, 0, True)


def test_lane_shared_by_two_spout_ids_raises_and_loses_nothing() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    acker.ack_many(emit(spout).roots, [7, 7, 7])
    acker.init(123, 0, spout_id=1)
    with pytest.raises(BadConfigError, match="more lanes"):
        spout.poll()
    assert spout.counts.acked == 3
    assert acker.stats().unconfirmed_outcomes == 1
    acker.confirm_batches(acker.poll_batches(consumer="spout-0", lane=0, again=True))
    assert spout.poll() == 0


def test_lost_root_consumes_no_attempt() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    for lost in (1, 2, 3):
        assert spout.next_emission() is not None
        assert spout.reconcile() == 1
        assert (spout.counts.lost, spout.counts.dead_lettered) == (lost, 0)
    acker.fail(int(emit(spout).roots[0]))
    spout.poll()
    assert letters(spout) == {0: DeadLetter(0, "run", 1, "failed")}


def test_outcomes_whose_reply_was_lost_do_not_count_as_lost() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    spout.poll()
    acker.ack_many(emit(spout).roots, [7, 7, 7])
    for shard in range(acker.config.shards):
        app_of(acker).client.redis.xreadgroup(
            "spout", "spout-0", {f"acker:{{{acker.config.app}:{shard}}}:acked:0": ">"}
        )
    assert spout.reconcile() == 0
    assert (spout.counts.acked, spout.done) == (3, True)


def test_failed_root_still_in_ledger_does_not_count_as_lost() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    acker.fail_many(emit(spout).roots)
    assert spout.reconcile() == 0
    assert (spout.counts.failed, spout.counts.lost, spout.pending) == (3, 0, 0)


def test_a_failed_root_whose_outcome_is_gone_counts_as_lost() -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    acker.fail_many(emit(spout).roots)
    for shard in range(acker.config.shards):
        app_of(acker).client.redis.xtrim(f"acker:{{{acker.config.app}:{shard}}}:failed:0", maxlen=0)
    assert spout.reconcile() == 3
    assert (spout.counts.failed, spout.counts.lost, len(emit(spout).roots)) == (0, 3, 3)


def test_dead_letters_are_stored_before_outcomes_are_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acker = fake_acker()
    payloads = {0: b"zero", 1: None}
    spout = new_spout(
        acker,
        messages=3,
        retry=RetryPolicy(max_attempts=1, first_delay_secs=0),
        payload=lambda ids: [payloads[i] for i in ids],
    )
    emission = emit(spout)
    confirm = acker.confirm_batches
    kept: list[int] = []

    def confirm_batches(packed: Iterable[OutcomeBatch]) -> int:
        kept.append(acker.dead_letters.count())
        return confirm(packed)

    monkeypatch.setattr(acker, "confirm_batches", confirm_batches)
    acker.fail_many(emission.roots[:2], reason="broken", component="parse")
    spout.poll()
    assert kept == [2]
    letters = acker.dead_letters.read()
    assert {letter.message_id: letter.payload for letter in letters} == payloads
    assert {(e.run_id, e.attempts, e.reason, e.last_component, e.detail) for e in letters} == {
        ("run", 1, "failed", "parse", "broken")
    }
    assert [letter.message_id for letter in acker.dead_letters.read(after=letters[0].entry_id)] == [
        letters[1].message_id
    ]
    assert len(acker.dead_letters.read(count=1)) == 1
    assert acker.dead_letters.delete(letter.entry_id for letter in letters) == 2
    assert acker.dead_letters.count() == 0
    with pytest.raises(AckerError, match="entry_id"):
        acker.dead_letters.delete([""])


@pytest.mark.parametrize(
    ("messages", "failing", "warned"), [(100, 20, [20]), (100, 19, []), (500, 25, []), (60, 60, [20, 40])]
)
def test_a_share_of_dead_letters_that_is_too_large_is_logged(
    messages: int, failing: int, warned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=messages, retry=RetryPolicy(max_attempts=1))
    emission = emit(spout)
    for begin in range(0, failing, 20):
        acker.fail_many(emission.roots[begin : min(begin + 20, failing)], reason="no items", component="parse")
        spout.poll()
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [f"dead_letters={count} messages={messages}" in text for count, text in zip(warned, found, strict=True)] == [
        True for _ in warned
    ]
    assert all("last_component=parse last_detail=no items" in text for text in found)


def test_dead_letter_with_too_long_payload_is_stored_without_it() -> None:
    acker = fake_acker()
    payloads = {0: b"x" * MAX_PAYLOAD_BYTES, 1: b"x" * (MAX_PAYLOAD_BYTES + 1)}
    spout = new_spout(
        acker,
        messages=2,
        retry=RetryPolicy(max_attempts=1, first_delay_secs=0),
        payload=lambda ids: [payloads[i] for i in ids],
    )
    acker.fail_many(emit(spout).roots)
    spout.poll()
    kept = {letter.message_id: letter.payload for letter in acker.dead_letters.read()}
    assert kept == {0: payloads[0], 1: None}
    assert spout.done


def test_dead_letter_with_unreadable_payload_is_stored_without_it() -> None:
    acker = fake_acker()

    def gone(ids: list[int]) -> list[bytes | None]:
        raise OSError("no such file")

    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0), payload=gone)
    acker.fail_many(emit(spout).roots)
    spout.poll()
    assert [letter.payload for letter in acker.dead_letters.read()] == [None]
    assert spout.done


def test_acks_are_confirmed_though_server_takes_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=2, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    roots = emit(spout).roots
    acker.ack(int(roots[0]), 7)
    acker.fail(int(roots[1]))

    def full(letters: object) -> None:
        raise ServerOutOfMemoryError("full")

    with monkeypatch.context() as patch, pytest.raises(ServerOutOfMemoryError):
        patch.setattr(acker.dead_letters, "add", full)
        spout.poll()
    assert acker.stats().unconfirmed_outcomes == 1
    assert not spout.done
    spout.poll()
    assert (spout.done, acker.dead_letters.count(), spout.counts.dead_lettered) == (True, 1, 1)


def test_on_done_gets_each_message_once() -> None:
    acker = fake_acker()
    done: list[int] = []
    spout = new_spout(
        acker,
        messages=4,
        retry=RetryPolicy(max_attempts=1, first_delay_secs=0),
        on_done=lambda ids: done.extend(ids.tolist()),
    )
    emission = emit(spout)
    of = {int(message): int(root) for message, root in zip(emission.message_ids, emission.roots, strict=True)}
    acker.ack(of[2], 7)
    spout.poll()
    assert done == [2]
    acker.fail(of[0])
    acker.ack(of[3], 7)
    spout.poll()
    assert sorted(done) == [0, 2, 3]
    expire(acker)
    spout.poll()
    assert sorted(done) == [0, 1, 2, 3]


def test_messages_whose_source_is_gone_are_dead_letters_at_once() -> None:
    done: list[int] = []
    spout = new_spout(fake_acker(), messages=3, on_done=lambda ids: done.extend(ids.tolist()))
    emit(spout)
    spout.exhaust(np.array([0, 2, 99]))
    assert spout.poll() == 0
    assert {message: letter.reason for message, letter in spout.dead_letters.items()} == {0: "lost", 2: "lost"}
    assert (spout.counts.lost, spout.pending, sorted(done), spout.done) == (2, 1, [0, 2], False)


def exempt_and_end(spout: Spout, end: str) -> None:
    """One emission of one message, exempt before it fails, times out or gets lost."""
    emission = emit_nothing(spout) if end == "lost" else emit(spout)
    spout.marks.exempt(np.concatenate([emission.roots, [12345]]))
    if end == "failed":
        spout.acker.fail_many(emission.roots)
    elif end == "timed out":
        expire(spout.acker)
    else:
        spout.reconcile()
    spout.poll()


@pytest.mark.parametrize("end", ["failed", "timed out", "lost"])
def test_exempt_roots_do_not_consume_attempts(end: str) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    acker.fail_many(emit(spout).roots)  # this one counts
    spout.poll()
    for _ in range(LOST_LIMIT + 1):
        exempt_and_end(spout, end)
    assert (spout.counts.dead_lettered, spout.pending, spout.done) == (0, 0, False)
    acker.fail_many(emit(spout).roots)
    spout.poll()
    assert letters(spout) == {0: DeadLetter(0, "run", 2, "failed")}


def test_an_exemption_is_for_its_roots_only() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=3, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    emission = emit(spout)
    spout.marks.exempt(emission.roots[:1])
    acker.fail_many(emission.roots)
    spout.poll()
    assert sorted(spout.dead_letters) == emission.message_ids[1:].tolist()
    assert emit(spout).message_ids.tolist() == emission.message_ids[:1].tolist()


@pytest.mark.parametrize("end", ["failed", "timed out"])
def test_no_retry_message_becomes_dead_letter_at_once(end: str) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=3, retry=RetryPolicy(max_attempts=4, first_delay_secs=0))
    emission = emit(spout)
    spout.marks.non_retryable(np.concatenate([emission.roots[:2], [12345]]))
    acker.ack(int(emission.roots[1]), 7)
    if end == "failed":
        acker.fail_many(emission.roots[[0, 2]])
    else:
        expire(acker)
    spout.poll()
    reason = "failed" if end == "failed" else "timeout"
    assert letters(spout) == {0: DeadLetter(0, "run", 1, reason)}
    assert (spout.counts.acked, spout.pending) == (1, 0)
    assert emit(spout).message_ids.tolist() == [2]


def test_lost_no_retry_message_is_emitted_again() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=4, first_delay_secs=0))
    spout.marks.non_retryable(emit_nothing(spout).roots)
    assert spout.reconcile() == 1
    acker.fail_many(emit(spout).roots)  # that of another attempt was not marked
    spout.poll()
    assert (spout.dead_letters, emit(spout).attempts.tolist()) == ({}, [2])


def test_jitter_makes_delays_shorter_and_longer_at_random() -> None:
    delays = set(RetryPolicy(first_delay_secs=8, jitter=0.5).delay_secs(np.ones(100, np.int64)).tolist())
    assert len(delays) > 50
    assert 4 <= min(delays) < 6 < 10 < max(delays) <= 12
    with pytest.raises(BadConfigError, match="jitter"):
        RetryPolicy(jitter=1.5)


def timed_out(emission: Emission, rows: slice = slice(None)) -> OutcomeBatch:
    return OutcomeBatch(
        "fail", 0, emission.roots[rows], "timeout", "parse", False, None, Receipt("acker:{test:0}:failed:0", [])
    )


def test_settling_and_replaying_take_no_python_per_message() -> None:
    def settle_and_replay(messages: int) -> int:
        spout = new_spout(fake_acker(), messages)
        emission = emit_nothing(spout)
        packed = [timed_out(emission, slice(0, -10)), timed_out(emission, slice(-10, -5))]
        acked = [timed_out(emission, slice(-5, None))._replace(kind="ack", reason=None)]

        def work() -> None:
            spout.state.apply_outcomes(packed + acked, 0.0)
            emit_nothing(spout)

        count = steps(work)
        assert (spout.counts.timed_out, spout.counts.replayed, spout.counts.acked) == (messages - 5, messages - 5, 5)
        return count

    settle_and_replay(20)
    assert settle_and_replay(20_000) <= 1.1 * settle_and_replay(20)


def emit_nothing(spout: Spout) -> Emission:
    emission = spout.next_emission()
    assert emission is not None
    return emission


def test_losing_everything_takes_no_python_per_message() -> None:
    def lose(messages: int) -> int:
        spout = new_spout(fake_acker(), messages)
        emit_nothing(spout)
        count = steps(lambda: spout.state.lose_all(0.0))
        assert spout.counts.lost == messages
        return count

    lose(20)
    assert lose(20_000) <= 1.1 * lose(20)


def test_outcome_batch_with_late_part_counts_both_parts() -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1))
    spout = new_spout(acker)
    emit(spout)
    acker.init_many([1001, 1002], [7, 7], 0)  # of an earlier run
    expire(acker)
    assert spout.poll() == 5
    assert (spout.counts.timed_out, spout.counts.late, spout.pending) == (3, 2, 0)
    assert acker.stats().unconfirmed_outcomes == 0
    assert sorted(emit(spout).message_ids.tolist()) == [0, 1, 2]


def test_an_outcome_that_comes_twice_counts_once() -> None:
    spout = new_spout(fake_acker(), messages=4)
    emission = emit_nothing(spout)
    twice = timed_out(emission)._replace(roots=np.repeat(emission.roots[:2], 2))
    spout.state.apply_outcomes([twice, timed_out(emission, slice(0, 3))], 0.0)
    assert (spout.counts.timed_out, spout.counts.late, spout.pending) == (3, 4, 1)
    spout.state.apply_outcomes([timed_out(emission)._replace(redelivered=True, reason="failed")], 0.0)
    assert (spout.counts.timed_out, spout.counts.failed, spout.counts.late, spout.pending) == (3, 1, 7, 0)
    assert sorted(emit_nothing(spout).message_ids.tolist()) == [0, 1, 2, 3]


def test_dead_letter_has_reason_of_its_own_outcome_batch() -> None:
    spout = new_spout(fake_acker(), messages=3, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    emission = emit_nothing(spout)
    packs = [
        timed_out(emission, slice(0, 2)),
        timed_out(emission, slice(2, 3))._replace(reason="failed", last_component="write", detail="full"),
    ]
    spout.state.apply_outcomes(packs, 0.0)
    assert letters(spout) == {
        **{m: DeadLetter(m, "run", 1, "timeout", "parse") for m in emission.message_ids[:2].tolist()},
        int(emission.message_ids[2]): DeadLetter(int(emission.message_ids[2]), "run", 1, "failed", "write", "full"),
    }


def test_resumed_spout_continues_attempts_of_its_predecessor() -> None:
    """Attempts and causes count on; what was in flight comes again as if that emission had not been counted."""
    spout = new_spout(fake_acker(), messages=6)
    emission = emit_nothing(spout)
    spout.state.apply_outcomes([timed_out(emission, slice(0, 2))], 0.0)
    spout.add(np.array([10, 11]))
    assert sorted(spout.state.left_ids().tolist()) == [0, 1, 2, 3, 4, 5, 10, 11]
    assert (spout.state.left, spout.state.fresh, spout.state.pending) == (8, 2, 4)
    attempts, delays = spout.state.attempts_left(0.0)
    assert len(delays) == 6

    other = Spout(fake_acker(), "other", retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    other.state.resume(attempts, spout.state.causes, delays, 0.0)
    again = emit_nothing(other)
    assert sorted(again.message_ids.tolist()) == [0, 1, 2, 3, 4, 5]
    assert set(again.attempts.tolist()) == {1}
    other.state.apply_outcomes([timed_out(again)], 0.0)
    assert sorted(other.dead_letters) == [0, 1]  # their second; the others' first
    assert {letter.attempts for letter in other.dead_letters.values()} == {2}
    left, _ = other.state.attempts_left(0.0)
    assert [other.state.causes[why] for why in left.cause_numbers.tolist()] == [("timeout", "parse")] * 4


def test_a_spout_of_a_stream_remembers_its_last_dead_letters() -> None:
    spout = Spout(fake_acker(), "run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0), keep_letters=2)
    spout.add(np.arange(5))
    spout.state.apply_outcomes([timed_out(emit_nothing(spout))], 0.0)
    assert len(spout.dead_letters) == 2
    assert spout.counts.dead_lettered == 5


def test_arrays_of_an_emission_are_read_only_copies() -> None:
    acker = fake_acker()
    message_ids = np.array([1, 2, 3])
    spout = Spout(acker, "run")
    spout.add(message_ids)
    emission = spout.next_emission()
    message_ids[:] = 9
    assert emission is not None
    assert emission.message_ids.tolist() == [1, 2, 3]
    for column in (emission.message_ids, emission.attempts, emission.roots):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 7


def test_messages_of_an_emission_are_in_order_of_their_ids() -> None:
    spout = Spout(fake_acker(), "run", max_spout_pending=4)
    spout.add(np.array([8, 3, 5, 1, 0, 9]))
    emission = spout.next_emission()
    assert emission is not None
    assert emission.message_ids.tolist() == [1, 3, 5, 8]  # those that came first


def test_held_messages_go_out_together_when_no_others_are_left() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=6, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    spout.state.one_by_one = True
    first = emit(spout)
    assert spout.state.is_whole(first)
    spout.marks.hold(first.roots[:4])
    acker.fail_many(first.roots[:5])
    spout.poll()
    assert spout.next_emission() is None  # as one of them is in flight
    acker.fail_many(first.roots[5:])
    spout.poll()
    alone = emit(spout)
    assert (alone.message_ids.tolist(), spout.state.is_whole(alone), spout.state.accept(alone)) == (
        [4, 5],
        False,
        False,
    )
    assert (spout.state.left, sorted(spout.state.left_ids().tolist())) == (6, list(range(6)))
    spout.marks.hold(alone.roots[:1])
    acker.fail_many(alone.roots)  # the other for the second time
    spout.poll()
    assert sorted(spout.dead_letters) == [5]
    spout.max_spout_pending = 2  # a part of them could not be written
    together = emit(spout)
    spout.max_spout_pending = None
    assert sorted(together.message_ids.tolist()) == [0, 1, 2, 3, 4]
    assert spout.state.accept(together)
    acker.fail_many(together.roots)  # is nobody's attempt any more
    spout.poll()
    again = emit(spout)
    assert len(again.roots) == 5
    acker.ack_many(again.roots, np.full(5, 7))
    spout.poll()
    counts = spout.counts
    assert (counts.acked, counts.failed, counts.released, counts.dead_lettered) == (5, 2 + 1 + 5, 5, 1)
    assert counts.emitted == counts.acked + counts.failed + counts.timed_out + counts.lost + counts.released
    assert spout.done


def test_held_messages_wait_for_their_delay_unless_lost() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=2, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    first = emit(spout)
    spout.marks.hold(first.roots, delay_secs=60)
    acker.fail_many(first.roots[:1])
    spout.poll()
    assert spout.next_emission() is None
    spout.state.lose_all(0.0)
    assert emit(spout).message_ids.tolist() == first.message_ids[1:].tolist()


def test_spout_of_a_topology_that_derives_from_the_wrong_class_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match=r"Derive it from acker_redis\.storm\.Spout"):
        type("Lines", (Spout,), {"outputs": ["line"]})
