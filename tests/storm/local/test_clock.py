"""Timers: periods that were missed are made up for, or skipped."""

import random

import pytest

from acker_redis.storm.local.clock import SimulatedClock, Timers


@pytest.mark.parametrize(("skips_missed", "calls"), [(False, 30), (True, 1)])
def test_missed_periods(skips_missed: bool, calls: int) -> None:
    clock, fired = SimulatedClock(), []
    timers = Timers(clock, random.Random(1))
    timers.every(2.0, lambda: fired.append(clock.secs), skips_missed=skips_missed)
    clock.secs = 61.0
    assert timers.fire_due() == len(fired) == calls
    assert timers.next_secs() == 62.0
