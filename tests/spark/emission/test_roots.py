"""The roots of an emission as the driver sends them: those of a record together; and what is said where ids are sparse."""

import logging
import uuid
from typing import Any

import numpy as np
import pytest

from acker_redis import ConnectionLostError, Limits, NotExactError, PendingLimitError, RetryPolicy
from acker_redis.model.ids import shard_of
from acker_redis.model.roots import root_ids
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.worker.failures import Reason, failure_of
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.testing import fake_acker


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
    with pytest.raises(NotExactError, match="in 'second'"), EmissionRoots(spout, sent, np.arange(1, 41)) as roots:
        roots.complete([good, failure_of("second", Reason("bad"), named, without)])
    while spout.poll():
        pass
    assert (spout.counts.acked, spout.counts.failed) == (0, 40)


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
