"""Timeouts with real ticks: never before T, and about T * N / (N - 1) with a rotator running."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from acker_redis import Acker, Outcome
from acker_redis.ops.rotator import Rotator
from acker_redis.testing import wait_until

TIMEOUT_SECS = 0.6
TIMEOUT_MS = 600
ROUNDED_MS = 100
"""Ages are those of the server's clock, in whole milliseconds."""


class Rotating:
    """A rotator that gets its turns from the test. In a thread of its own, one of the two might wait for the other.

    Attributes:
        longest_ms: longest time from one turn to the next. A tick comes so much too late at most.
    """

    def __init__(self, url: str) -> None:
        self.longest_ms = 0.0
        self.rotator = Rotator(url, ["test"])
        self._turned_at = time.monotonic()

    def turn(self) -> None:
        self.rotator.run_once()
        now = time.monotonic()
        self.longest_ms = max(self.longest_ms, (now - self._turned_at) * 1000)
        self._turned_at = now

    def bound_ms(self, num_buckets: int) -> float:
        """The age by which a root has expired that nothing touches."""
        return TIMEOUT_MS * num_buckets / (num_buckets - 1) + num_buckets * self.longest_ms + ROUNDED_MS

    def take(self, acker: Acker, wanted: int) -> list[Outcome]:
        """Let the rotator go on until so many outcomes have come."""
        taken: list[Outcome] = []

        def has_all() -> bool:
            self.turn()
            outcomes = acker.poll()
            acker.confirm(outcomes)
            taken.extend(outcomes)
            return len(taken) >= wanted

        wait_until(has_all, f"{wanted} outcomes")
        assert len({outcome.root for outcome in taken}) == len(taken) == wanted
        return taken


@pytest.fixture
def rotating(url: str) -> Iterator[Rotating]:
    rotating = Rotating(url)
    yield rotating
    rotating.rotator.close()


@pytest.mark.parametrize("num_buckets", [2, 3, 5])
def test_root_expires_between_its_timeout_and_the_bound(connect, rotating: Rotating, num_buckets: int) -> None:
    acker: Acker = connect(num_buckets=num_buckets, message_timeout_secs=TIMEOUT_SECS)
    for first in range(1, 401, 20):
        acker.init_many(np.arange(first, first + 20), np.ones(20, np.int64), 0)
        rotating.turn()
    ages = [outcome.age_ms for outcome in rotating.take(acker, 400)]
    assert min(ages) >= TIMEOUT_MS
    assert max(ages) <= rotating.bound_ms(num_buckets)


def test_first_seen_clock_expires_a_root_updated_all_the_time(connect, rotating: Rotating) -> None:
    acker: Acker = connect(clock="first_seen", message_timeout_secs=TIMEOUT_SECS)
    acker.init(1, 1, 0)

    def expired() -> bool:
        acker.ack(1, 2)
        rotating.turn()
        return acker.stats().timed_out == 1

    wait_until(expired, "the root expires although it is updated all the time")
    (outcome,) = rotating.take(acker, 1)
    assert TIMEOUT_MS <= outcome.age_ms <= rotating.bound_ms(acker.config.num_buckets)


@pytest.mark.parametrize("clock", ["first_seen", "last_update"])
def test_touched_root_does_not_expire(connect, rotating: Rotating, clock: str) -> None:
    acker: Acker = connect(clock=clock, message_timeout_secs=TIMEOUT_SECS)
    acker.init_many([1, 2], [1, 1], 0)

    def touched() -> bool:
        if clock == "last_update":
            acker.ack(1, 2)
        else:
            acker.reset_timeout(1)
        rotating.turn()
        held = acker.inspect(1)
        assert held is not None
        return held.age_ms > 3 * TIMEOUT_MS

    wait_until(touched, "the root is three timeouts old")
    acker.reset_timeout(1)
    by_root = {outcome.root: outcome.age_ms for outcome in rotating.take(acker, 2)}
    assert TIMEOUT_MS <= by_root[2] <= rotating.bound_ms(acker.config.num_buckets)
    assert by_root[1] >= 4 * TIMEOUT_MS


def test_max_age_expires_a_root_touched_all_the_time(connect, rotating: Rotating) -> None:
    acker: Acker = connect(clock="last_update", message_timeout_secs=TIMEOUT_SECS, max_age_secs=1.0)
    acker.init(1, 1, 0)

    def expired() -> bool:
        if acker.inspect(1) is not None:
            acker.ack(1, 2)
        rotating.turn()
        return acker.stats().timed_out == 1

    wait_until(expired, "the root expires at its ceiling")
    (outcome,) = rotating.take(acker, 1)
    assert 1_000 <= outcome.age_ms <= 1_000 + rotating.bound_ms(acker.config.num_buckets)
