"""The roots of an emission as the driver sends them: those of a record together; and what is said where ids are sparse."""

import logging
import time
import uuid
from typing import Any

import numpy as np
import pytest

from acker_redis import (
    ConnectionLostError,
    InexactPipelineError,
    LedgerLostError,
    Limits,
    PendingLimitError,
    RetryPolicy,
)
from acker_redis.model.ids import shard_of
from acker_redis.model.roots import root_ids
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.worker.failures import Reason, failure_of
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.testing import fake_acker
from tests.support.spouts import expire


def emission(message_ids: Any) -> Emission:
    none = np.zeros(len(message_ids), np.int64)
    return Emission(0, message_ids, none, root_ids("app", "run", message_ids, 0))


def roots_of(message_ids: Any, app: str) -> EmissionRoots:
    return EmissionRoots(Spout(fake_acker(app=app), "run"), emission(message_ids), np.arange(1, len(message_ids) + 1))


def test_roots_are_sent_block_by_block_for_any_order_of_ids() -> None:
    message_ids = np.random.default_rng(1).permutation(np.arange(-320, 320))
    roots = roots_of(message_ids, "order")
    blocks = (roots._roots.view(np.uint64) & np.uint64(2**59 - 1)).tolist()
    assert all(len(set(blocks[at : at + 32])) == 1 for at in range(0, len(blocks), 32))
    vals = dict(zip(root_ids("app", "run", message_ids, 0).tolist(), range(1, 641), strict=True))
    assert [vals[root] for root in roots._roots.tolist()] == roots._own.tolist()


@pytest.mark.parametrize(
    ("message_ids", "said"),
    [
        (np.arange(1000), False),
        (np.arange(1000) * 4, False),
        (np.arange(1000) * 5, True),
        (np.arange(1000) * 32, True),
        (np.arange(999) * 32, False),
    ],
    ids=["counting", "eight to a record", "fewer", "alone", "too few to tell"],
)
def test_sparse_ids_are_warned_about_once(message_ids: Any, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = uuid.uuid4().hex
    with caplog.at_level(logging.WARNING, "acker_redis.spark"):
        for _ in range(2):
            roots_of(message_ids, app)
    warned = [record.getMessage() for record in caplog.records]
    assert ["message ids are sparse" in text and f"app={app}" in text for text in warned] == [True] * said


def test_roots_accepted_before_pending_limit_consume_no_attempt() -> None:
    """One shard takes its part of them, the other is full."""
    acker = fake_acker(shards=2)
    acker.admin.set_limits(Limits(max_pending=10))
    others = np.arange(1, 200, dtype=np.uint64)
    others = others[shard_of(others, 2) == 1]
    acker.init_many(others, others, 1)
    spout = Spout(acker, "run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    spout.add(np.arange(640))
    sent = spout.next_emission()
    assert sent is not None
    roots = EmissionRoots(spout, sent, np.arange(1, 641))
    with pytest.raises(PendingLimitError), roots:
        roots.complete([])
    assert acker.pending() == len(others)
    while spout.poll():
        pass
    assert 0 < spout.counts.failed < 640
    assert spout.counts.dead_lettered == 0


@pytest.mark.parametrize(("foreign", "without"), [([7], 0), ([], 1), ([0], 0)])
def test_failed_rows_of_unknown_messages_prevent_all_acks(foreign: list[int], without: int) -> None:
    spout = Spout(fake_acker(), "run", retry=RetryPolicy(max_attempts=1))
    spout.add(np.arange(40))
    sent = spout.next_emission()
    assert sent is not None
    named = np.array([*sent.roots[:3].tolist(), *foreign], np.int64)
    good = failure_of("first", Reason("bad"), sent.roots[3:5])
    with (
        pytest.raises(InexactPipelineError, match="in 'second'"),
        EmissionRoots(spout, sent, np.arange(1, 41)) as roots,
    ):
        roots.complete([good, failure_of("second", Reason("bad"), named, without)])
    while spout.poll():
        pass
    assert (spout.counts.acked, spout.counts.failed) == (0, 40)


def test_dead_letter_of_a_row_that_failed_while_the_server_hung_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root has timed out by the time at which the server gets the fail."""
    acker = fake_acker()
    spout = Spout(acker, "run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    spout.add(np.arange(3))
    sent = spout.next_emission()
    assert sent is not None
    spout.state.follow(sent)
    fail_many = acker.fail_many

    def hang(*args: Any, **options: Any) -> Any:
        expire(acker)
        return fail_many(*args, **options)

    monkeypatch.setattr(acker, "fail_many", hang)
    with EmissionRoots(spout, sent, np.arange(1, 4)) as roots:
        roots.complete([
            failure_of("parse", Reason("no items"), sent.roots[:1]), failure_of("count", Reason("odd"), sent.roots[2:]),
        ])  # fmt: skip
    spout.state.sent[sent.number].proven = True
    spout.poll()
    assert {one.message_id: one[3:6] for one in spout.dead_letters.values()} == {
        0: ("failed", "parse", "no items"), 1: ("timeout", None, None), 2: ("failed", "count", "odd"),
    }  # fmt: skip
    assert spout.counts.timed_out == 3


def test_parts_after_a_failed_send_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait for the server as long as the first."""
    monkeypatch.setattr("acker_redis.spark.emission.roots.PART", 32)
    roots = roots_of(np.arange(32 * 50), "broken")
    tried: list[str] = []

    def do(_: Any, token: str) -> None:
        tried.append(token)
        raise ConnectionLostError("gone")

    with pytest.raises(ConnectionLostError):
        roots._send("init", do)
    assert len(tried) <= 2


def test_all_parts_of_roots_are_sent_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spark.emission.roots.PART", 32)
    roots = roots_of(np.arange(32 * 50 + 7), "parts")
    sent: dict[str, list[int]] = {}
    roots._send("ack", lambda rows, token: sent.setdefault(token, []).extend(roots._roots[rows].tolist()))
    assert len(sent) == 51
    assert sorted(root for part in sent.values() for root in part) == sorted(roots._roots.tolist())


def late_roots(count: int) -> tuple[Spout, EmissionRoots]:
    """Roots that a job has told, ten seconds after its emission began."""
    spout = Spout(
        fake_acker(shards=2, lanes=2), "run", spout_id=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0)
    )
    begun = spout.state.begin_unread(0, np.arange(count), 0.0)
    own = np.arange(1, count + 1)
    return spout, EmissionRoots(spout, begun, own, begun_at=time.monotonic() - 10, known_from_job=True)


def outcomes(spout: Spout) -> dict[str, list[tuple[int, int]]]:
    """Root and age of each outcome by its kind."""
    found: dict[str, list[tuple[int, int]]] = {"ack": [], "fail": []}
    for one in spout.acker.poll(10_000):
        found[one.kind].append((one.root, one.age_ms))
    return found


def test_roots_that_a_job_told_are_acked_with_their_age() -> None:
    spout, roots = late_roots(100)
    with roots:
        assert spout.acker.pending() == 0
        roots.complete([])
    found = outcomes(spout)
    assert sorted(root for root, _ in found["ack"]) == sorted(roots.emission.roots.tolist())
    assert all(10_000 <= age < 200_000 for _, age in found["ack"])
    stats = spout.acker.stats()
    assert (stats.inits, stats.acks, stats.acked, stats.fails, stats.pending) == (100, 100, 100, 0, 0)


def test_failed_roots_that_a_job_told_fail_alone() -> None:
    spout, roots = late_roots(70)
    bad = roots.emission.roots[[3, 40]]
    with roots:
        roots.complete([failure_of("parse", Reason("no such row", retry=False), bad, 0)])
    found = outcomes(spout)
    assert sorted(root for root, _ in found["fail"]) == sorted(bad.tolist())
    assert len(found["ack"]) == 68 and all(age >= 10_000 for _, age in found["fail"])
    stats = spout.acker.stats()
    assert (stats.inits, stats.acks, stats.fails, stats.pending) == (70, 68, 2, 0)


def test_roots_that_a_job_told_fail_if_the_pipeline_raises_then() -> None:
    spout, roots = late_roots(40)
    with pytest.raises(ValueError, match="afterwards"), roots:
        raise ValueError("afterwards")
    found = outcomes(spout)
    assert (len(found["ack"]), len(found["fail"])) == (0, 40)
    assert spout.acker.stats().inits == 40


@pytest.mark.parametrize("known_from_job", [True, False])
def test_roots_of_a_block_that_exists_are_initialised_and_acked(known_from_job: bool) -> None:
    spout, roots = late_roots(40)
    roots._known_from_job = known_from_job
    other = np.array([roots.emission.roots[-1] ^ np.int64(1 << 62)])  # a slot of that block without a message
    spout.acker.ack_many(other, [5])
    with roots:
        roots.complete([])
    assert sorted(root for root, _ in outcomes(spout)["ack"]) == sorted(roots.emission.roots.tolist())
    stats = spout.acker.stats()
    assert (stats.inits, stats.acked, stats.unowned, stats.pending) == (40, 40, 1, 0)


def test_lost_shard_does_not_change_which_roots_are_acked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger has roots in two blocks. When the driver repeats its calls, it no longer has one of these blocks."""
    monkeypatch.setattr("acker_redis.ledger.ledger.ROOTS_PER_CALL", 1)
    spout = Spout(fake_acker(shards=1), "run", spout_id=1)
    message_ids = np.array([number for number in range(96) if number % 32 != 31])
    begun = spout.state.begin_unread(0, message_ids, 0.0)
    roots = EmissionRoots(spout, begun, np.arange(1, 94), begun_at=time.monotonic(), known_from_job=True)
    others = begun.roots[[0, 31]] | np.int64(31 << 59 ^ -(1 << 64))  # slot 31 of their blocks, without a message
    spout.acker.init_many(others, [5, 5], 1)
    ack_many, calls = spout.acker.ack_many, []

    def ack(*args: Any, **options: Any) -> Any:
        applied = ack_many(*args, **options)
        calls.append(options["idempotency_key"])
        if len(calls) == 1:
            ack_many(others[:1], [5])
            raise LedgerLostError("another shard")
        return applied

    monkeypatch.setattr(spout.acker, "ack_many", ack)
    with roots:
        roots.complete([])
    assert len(calls) == 2 and len(set(calls)) == 1
    assert sorted(root for root, _ in outcomes(spout)["ack"]) == sorted([*begun.roots.tolist(), others[0]])
    stats = spout.acker.stats()
    assert (stats.inits, stats.acked, stats.pending) == (95, 94, 1)
