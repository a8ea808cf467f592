"""Periodic check for lost roots and for a missing rotator."""

import logging
import time

from acker_redis.acker import Acker, app_of
from acker_redis.errors import LedgerLostError
from acker_redis.model.types import Stats

log = logging.getLogger("acker_redis.spout")

LOOK_SECS = 1.0
"""Interval between two checks of servers and counters."""

_SHARDS_PER_LOOK = 64
"""Number of shards above which an app is checked less often: its counters cost five commands per shard."""


class Watchdog:
    """Check an app's servers and counters, at most once per LOOK_SECS.

    Args:
        acker: acker of the app.
        lane: lane of this spout. Outcomes that wait in other lanes belong to other spouts.

    Attributes:
        replaced: True if a server was restarted or replaced since this was last set to False.
    """

    def __init__(self, acker: Acker, lane: int) -> None:
        self.replaced = False
        self._acker = acker
        self._lane = lane
        self._servers: frozenset[tuple[str, str]] | None = None
        self._doubted: tuple[int, int, int] | None = None
        self._look_at = float("-inf")
        self._late = False
        self._rotator_at = time.monotonic() + acker.config.message_timeout_secs

    def needs_reconcile(self, pending: int | None, emissions: int) -> bool:
        """Return True if the ledger should be asked for the roots in flight.

        Args:
            pending: number of roots that the spout waits for. None if some may lack their init or have outcomes.
            emissions: number of emissions so far. The same counts raise doubt only once until there is another emission.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECS * max(1.0, self._acker.config.shards / _SHARDS_PER_LOOK)
        try:
            servers, stats = (
                app_of(self._acker).client.server_ids(),
                self._acker.stats(with_oldest_age=False, lane=self._lane),
            )
        except LedgerLostError:  # `poll` meets it, too, and recovers
            return False
        self._look_for_rotator(stats)
        replaced = self._servers is not None and servers != self._servers
        self._servers = servers
        self.replaced = self.replaced or replaced
        if replaced:
            log.warning("server restarted or replaced, reconciling messages in flight app=%r", self._acker.config.app)
        if pending is None or stats.unconfirmed_outcomes or stats.pending >= pending:
            return replaced
        doubted, self._doubted = self._doubted, (pending, stats.pending, emissions)
        return replaced or doubted != self._doubted

    def sees_another_server(self) -> bool:
        """Return True if a server was restarted or replaced since the last check."""
        before, self._servers = self._servers, app_of(self._acker).client.server_ids()
        return before is not None and before != self._servers

    def _look_for_rotator(self, stats: Stats) -> None:
        is_late = stats.rotation_is_late
        if is_late and not self._late and time.monotonic() > self._rotator_at:
            app = self._acker.config.app
            log.warning("no rotator running, so nothing times out: start acker-redis rotator app=%r", app)
            self._late = True
        self._late = self._late and is_late
