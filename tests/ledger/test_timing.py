"""Timeouts with real ticks: never before T, and about T * N / (N - 1) with a rotator running."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from acker_redis import Acker
from acker_redis.ops.rotator import Rotator
from acker_redis.testing import wait_until
from tests.support.rounds import take

TIMEOUT_SECS = 0.6
TIMEOUT_MS = 600
SLACK_MS = 2_000
"""For a machine that is busy with other things."""


@pytest.fixture
def rotating(url) -> Iterator[Callable[[], None]]:
    """Start a rotator for the app, which must be there already."""
    stop = threading.Event()
    rotator = Rotator(url, ["test"])
    thread = threading.Thread(target=rotator.run, args=(stop,))
    yield thread.start
    stop.set()
    thread.join()
    rotator.close()


@pytest.mark.parametrize("num_buckets", [2, 3, 5])
def test_root_expires_between_its_timeout_and_the_bound(connect, url, rotating, num_buckets) -> None:
    acker: Acker = connect(num_buckets=num_buckets, message_timeout_secs=TIMEOUT_SECS)
    rotating()
    for first in range(1, 401, 20):
        acker.init_many(np.arange(first, first + 20), np.ones(20, np.int64), 0)
    outcomes = take(acker, 400)
    ages = [outcome.age_ms for outcome in outcomes]
    assert min(ages) >= TIMEOUT_MS
    assert max(ages) <= TIMEOUT_MS * num_buckets / (num_buckets - 1) + SLACK_MS


def test_first_seen_clock_expires_a_root_updated_all_the_time(connect, url, rotating) -> None:
    acker: Acker = connect(clock="first_seen", message_timeout_secs=TIMEOUT_SECS)
    acker.init(1, 1, 0)
    rotating()

    def expired() -> bool:
        acker.ack(1, 2)
        return acker.stats().timed_out == 1

    wait_until(expired, "the root expires although it is updated all the time")
    (outcome,) = take(acker, 1)
    assert TIMEOUT_MS <= outcome.age_ms <= TIMEOUT_MS * 1.5 + SLACK_MS


@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
def test_touched_root_does_not_expire(connect, url, rotating, clock) -> None:
    acker: Acker = connect(clock=clock, message_timeout_secs=TIMEOUT_SECS)
    acker.init_many([1, 2], [1, 1], 0)
    rotating()

    def touched() -> bool:
        if clock == "last_update":
            acker.ack(1, 2)
        else:
            acker.reset_timeout(1)
        held = acker.inspect(1)
        assert held is not None
        return held.age_ms > 3 * TIMEOUT_MS

    wait_until(touched, "the root is three timeouts old")
    acker.reset_timeout(1)
    by_root = {outcome.root: outcome.age_ms for outcome in take(acker, 2)}
    assert TIMEOUT_MS <= by_root[2] <= TIMEOUT_MS * 1.5 + SLACK_MS
    assert by_root[1] >= 4 * TIMEOUT_MS


def test_max_age_expires_a_root_touched_all_the_time(connect, url, rotating) -> None:
    acker: Acker = connect(clock="last_update", message_timeout_secs=TIMEOUT_SECS, max_age_secs=1.0)
    acker.init(1, 1, 0)
    rotating()

    def expired() -> bool:
        if acker.inspect(1) is not None:
            acker.ack(1, 2)
        return acker.stats().timed_out == 1

    wait_until(expired, "the root expires at its ceiling")
    (outcome,) = take(acker, 1)
    assert 1_000 <= outcome.age_ms <= 1_000 + TIMEOUT_MS * 1.5 + SLACK_MS
