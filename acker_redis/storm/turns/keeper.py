"""Keeper of a turn: while Spark runs the job, the driver's own thread waits, and somebody has to look after Redis."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, LedgerLostError
from acker_redis.storm.turns.engine import TurnEngine
from acker_redis.storm.turns.run_state import RunTurn

log = logging.getLogger("acker_redis.storm")

_LOOK_SECS = 0.5
"""Interval between two checks for a lost ledger while a job runs."""


class Keeper:
    """Keeps the pending roots and the turn in Redis while the job runs.

    A lost ledger is recovered at once, because tasks can't ack without it.

    Attributes:
        ended: event that is set while no job is running.
        lost: error of the ledger that was lost during the latest job; None if it wasn't.
    """

    def __init__(self, acker: Acker, engine: TurnEngine) -> None:
        self._acker, self._engine = acker, engine
        self._every_secs = max(0.05, acker.config.tick_ms / 4000)
        self.ended = threading.Event()
        self.ended.set()
        self.lost: LedgerLostError | None = None

    @contextmanager
    def keeping(self, turn: RunTurn) -> Iterator[None]:
        """Keep everything while the block runs the job of a turn."""
        self.lost = None
        self.ended.clear()
        keep = self._keep if self._engine.is_tracking else lambda _: self.ended.wait()
        thread = threading.Thread(target=keep, args=(turn,), name="acker-turn", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join()

    def _keep(self, turn: RunTurn) -> None:
        kept_at = time.monotonic()
        while not self.ended.wait(min(_LOOK_SECS, self._every_secs)):
            try:
                app_of(self._acker).shards.check_all()
                if time.monotonic() - kept_at >= self._every_secs:
                    self._engine.updates.renew(self._engine.pending_roots())
                    turn.keep()
                    kept_at = time.monotonic()
            except LedgerLostError as exc:
                self.lost = exc
                with suppress(AckerError):  # the next check finds it lost again
                    self._acker.reopen()
            except AckerError as exc:  # the next exchange meets it, too
                log.debug("roots not renewed run_id=%r error=%s", self._engine.run_id, exc)
