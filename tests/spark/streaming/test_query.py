"""How long a micro-batch waits for outcomes, without Spark."""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acker_redis.spark.streaming import query as module
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.query import TrackedQuery
from acker_redis.spark.streaming.query_states import QueryStates
from acker_redis.spark.streaming.tracked_batches import TrackedBatches
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import SpoutLoop
from acker_redis.spout.spout import Spout
from acker_redis.testing import fake_acker


@pytest.mark.parametrize(("quiet_secs", "batch_wait_secs"), [(1e-9, 600.0), (600.0, 1e-9)])
def test_outcome_that_comes_with_the_end_of_an_emission_is_taken(
    monkeypatch: pytest.MonkeyPatch, quiet_secs: float, batch_wait_secs: float
) -> None:
    """The emission acks its only message and ends, both between a poll and the look whether it has ended."""
    monkeypatch.setattr(module, "QUIET_SECS", quiet_secs)
    acker, polled = fake_acker(), threading.Event()
    spout = Spout(acker, "run")

    def emit(emission: Emission) -> None:
        assert polled.wait(60)
        acker.init_many(emission.roots, np.zeros_like(emission.roots), spout_id=0)

    loop, poll = SpoutLoop(spout, emit), spout.poll

    def poll_before_the_end(**options: Any) -> int:
        taken = poll(**options)
        polled.set()
        loop._emitter.wait(60)
        return taken

    monkeypatch.setattr(spout, "poll", poll_before_the_end)
    query = TrackedQuery.__new__(TrackedQuery)
    query._options = SimpleNamespace(  # type: ignore[assignment]
        max_parked=10, batch_wait_secs=batch_wait_secs, max_spout_pending=None
    )
    query._messages = ParkedMessages(spout.state, lambda: [])
    query._loop, query._states = loop, QueryStates()
    monkeypatch.setattr(query, "_step", lambda only_due_by: loop.step(10, only_due_by=only_due_by))
    spout.add(np.array([7]))
    with loop:
        query._wait_for_outcomes(np.array([7]), np.array([], np.int64))
        assert (spout.pending, spout.counts.acked) == (0, 1)


def test_object_that_was_closed_starts_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread waits for the query, and its wait is over just before `close`, which the thread learns too late."""
    batches = TrackedBatches.__new__(TrackedBatches)
    batches._query, batches._is_sent, batches._lock = None, False, threading.Lock()
    batches._closed = threading.Event()
    batches._closed.set()
    monkeypatch.setattr(batches._closed, "wait", lambda timeout: False)

    def opens() -> Any:
        raise AssertionError("it looks for the query")

    monkeypatch.setattr(batches, "_open_store", opens)
    batches._wait_for_query()
    assert batches._query is None
