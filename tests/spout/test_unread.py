"""An emission that begins before the ids of its messages are known."""

import time
from itertools import chain
from typing import Any

import numpy as np
import pytest
from redis.backoff import NoBackoff

from acker_redis import OutageError, UnprovenEmissionError
from acker_redis.acker import app_of
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.roots import root_ids
from acker_redis.spout import state
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import run_spout
from acker_redis.spout.spout import Spout
from acker_redis.testing import fake_acker


@pytest.fixture
def spout() -> Spout:
    spout = Spout(fake_acker(), "run")
    spout.state.unread = True
    return spout


def settle(spout: Spout, emission: Emission, ids: list[int]) -> UInt64Array:
    begun = spout.state.begin_unread(emission.number, np.array(ids, np.int64), time.monotonic())
    roots = begun.roots.view(np.uint64)
    return app_of(spout.acker).ledger.settle(roots, np.zeros_like(roots), 0, 5, f"settle {emission.number}")


def test_messages_that_an_emission_tells_are_acked_in_it(spout: Spout) -> None:
    assert not spout.done
    counts = run_spout(spout, lambda emission: settle(spout, emission, [7, 5, 6]))
    assert (counts.emitted, counts.acked, counts.late, spout.done) == (3, 3, 0, True)
    stats = spout.acker.stats()
    assert (stats.inits, stats.acks, stats.acked, stats.pending) == (3, 3, 3, 0)


def test_run_does_not_end_while_its_messages_become_known(spout: Spout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run looks whether it is done in another thread. With millions of ids, that may be at any time."""
    done: list[bool] = []

    def ids(*of: Any) -> Int64Array:
        done.append(spout.done)
        return root_ids(*of)

    monkeypatch.setattr(state, "root_ids", ids)
    assert run_spout(spout, lambda emission: settle(spout, emission, [7, 5, 6])).acked == 3
    assert done == [False]


def test_emission_keeps_that_its_messages_are_unread(spout: Spout) -> None:
    """Its thread may look only after the run has ended."""
    emission = spout.next_emission()
    assert emission is not None and emission.is_unread
    spout.state.begin_unread(emission.number, np.array([7]), time.monotonic())
    spout.add(np.array([8]))
    following = spout.next_emission()
    assert following is not None and not following.is_unread and following.message_ids.tolist() == [8]


def test_source_may_turn_out_to_be_empty(spout: Spout) -> None:
    counts = run_spout(spout, lambda emission: spout.state.begin_unread(emission.number, np.array([], np.int64), 0.0))
    assert (counts.emitted, spout.done) == (0, True)


def test_emission_that_tells_nothing_during_an_outage_begins_again(
    spout: Spout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.Backoff", lambda **options: NoBackoff())
    numbers: list[int] = []

    def emit(emission: Emission) -> None:
        numbers.append(emission.number)
        if len(numbers) < 4:
            raise OutageError("the source can't be reached")
        settle(spout, emission, [1, 2])

    assert run_spout(spout, emit).acked == 2
    assert numbers == [0, 1, 2, 3]


def test_unproven_messages_are_emitted_again_with_their_ids(spout: Spout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.Backoff", lambda **options: NoBackoff())
    emitted: list[list[int]] = []

    def emit(emission: Emission) -> None:
        emitted.append(emission.message_ids.tolist())
        if spout.state.unread:
            begun = spout.state.begin_unread(emission.number, np.array([3, 4]), time.monotonic())
            spout.marks.exempt(begun.roots)
            spout.acker.init_many(begun.roots, np.ones(2, np.int64), 0)
            spout.acker.fail_many(begun.roots)
            raise UnprovenEmissionError("Spark ran a task twice")
        spout.acker.init_many(emission.roots, np.zeros_like(emission.roots), 0)

    counts = run_spout(spout, emit)
    assert emitted[0] == [] and sorted(chain.from_iterable(emitted[1:])) == [3, 4]
    assert (counts.acked, counts.failed, counts.dead_lettered) == (2, 2, 0)
