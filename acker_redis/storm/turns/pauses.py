"""Pauses between turns that broke: short ones for their search, long ones while a service is away."""

import logging
import time

from acker_redis.errors import OutageError
from acker_redis.outages import Backoff
from acker_redis.spark.proof.blame import line_of

log = logging.getLogger("acker_redis.storm")

_OUTAGE_SECS = 600.0
"""Longest wait for the end of an outage, over the pauses between turns."""


class Pauses:
    """Time of the next turn. It moves away with each turn that breaks, until one succeeds."""

    def __init__(self) -> None:
        self._not_before = 0.0
        self._short, self._long = Backoff(base=0.1, cap=5.0), Backoff(base=0.5, cap=30.0)
        self._waits, self._waited_secs = 0, 0.0

    @property
    def is_over(self) -> bool:
        """True if the next turn may begin."""
        return time.monotonic() >= self._not_before

    def pause(self, breaks: int) -> None:
        """Pause after a number of turns that broke in a row."""
        self._pause(self._short.compute(breaks))

    def wait_for_outage(self, exc: Exception) -> None:
        """Pause because of an outage.

        Raises:
            OutageError: the pauses since the last turn that succeeded are too long.
        """
        if self._waited_secs > _OUTAGE_SECS:
            raise OutageError(
                f"No turn succeeded for {_OUTAGE_SECS:.0f} s, because a service that the topology needs is unreachable. No "
                f"message is to blame. Repair the service and run again. The last error was: {line_of(exc)}"
            ) from exc
        if not self._waits:
            log.warning("outage, topology is waiting max_wait_secs=%.0f error=%s", _OUTAGE_SECS, line_of(exc))
        self._waits += 1
        secs = self._long.compute(self._waits)
        self._waited_secs += secs
        self._pause(secs)

    def succeeded(self) -> None:
        """Note that a turn succeeded, which ends an outage."""
        self._waits, self._waited_secs = 0, 0.0

    def _pause(self, secs: float) -> None:
        self._not_before = max(self._not_before, time.monotonic() + secs)
