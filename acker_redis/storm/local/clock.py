"""Clock and timers of a run: simulated time in tests, real time in services."""

import heapq
import random
import time
from collections.abc import Callable


class SimulatedClock:
    """Clock that stands still until it is moved.

    Attributes:
        secs: time since the begin, in seconds.
    """

    def __init__(self) -> None:
        self.secs = 0.0

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.secs


class Timers:
    """Calls that are due at a time. Those of one time come in random order, or in order without a generator."""

    def __init__(self, clock: Callable[[], float], rng: random.Random | None) -> None:
        self._clock, self._rng = clock, rng
        self._calls: list[tuple[float, float, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, secs: float, call: Callable[[], object]) -> None:
        """Call once at a time."""
        self._count += 1
        tie = 0.0 if self._rng is None else self._rng.random()
        heapq.heappush(self._calls, (secs, tie, self._count, call))

    def every(self, secs: float, call: Callable[[], object], *, skips_missed: bool = False) -> None:
        """Call at every period from now on, first after one period. Periods that were missed are made up for, or skipped."""
        begin, number = self._clock(), 0

        def again() -> None:
            nonlocal number
            number += 1
            if skips_missed:
                number = max(number, int((self._clock() - begin) / secs))
            self.at(begin + (number + 1) * secs, again)
            call()

        self.at(begin + secs, again)

    def next_secs(self) -> float | None:
        """Return the time of the next call, or None if there is none."""
        return self._calls[0][0] if self._calls else None

    def fire(self) -> None:
        """Make the next call."""
        heapq.heappop(self._calls)[3]()

    def fire_due(self) -> int:
        """Make all calls that are due. Returns their number."""
        count, now = 0, self._clock()
        while self._calls and self._calls[0][0] <= now:
            self.fire()
            count += 1
        return count


real_clock = time.monotonic
"""Clock of a service."""


def millis_of(clock: Callable[[], float]) -> Callable[[], int]:
    """Return a call for the time in milliseconds: since 1970, or since the begin of a run with simulated time.

    >>> millis_of(SimulatedClock())()
    0
    """
    begin_secs = 0.0 if isinstance(clock, SimulatedClock) else time.time() - clock()
    return lambda: round((begin_secs + clock()) * 1000)
