"""The rotator: the one long-running process of an acker. Ticks every app, drains death row, survives bad days.

Any number of copies may run: a tick is guarded by the server's clock and happens once, and every copy may drain.
"""

import logging
import threading
import time
from collections.abc import Sequence

from redis.backoff import ExponentialWithJitterBackoff

from acker_redis.acker import Acker
from acker_redis.apps import apps, stored_config
from acker_redis.client import Client
from acker_redis.errors import (
    AckerError,
    BadConfigError,
    ConnectionLostError,
    LedgerLostError,
    SettingsConflictError,
)

log = logging.getLogger("acker_redis.rotator")

DISCOVERY_SECS = 5.0
"""How often apps that are new on the server, or not there yet, are looked for."""

DRAIN_CALLS_PER_TURN = 16
"""Expire calls per shard before the other apps get their turn: a death row of millions must not hold up their ticks."""


class Rotator:
    """Rotates several apps of one server until it is told to stop.

    Args:
        url: server.
        names: apps to rotate; empty: every app found on the server, looked for again and again.
    """

    def __init__(self, url: str, names: Sequence[str] = ()) -> None:
        """Connects at the first `run_once`, so that a server that is down is only waited for."""
        self._url = url
        self._names = tuple(names)
        self._client: Client | None = None
        self._ackers: dict[str, Acker] = {}
        self._missing: set[str] = set()
        self._due: dict[str, float] = {}
        self._turns: dict[str, tuple[int, int, int]] = {}
        self._discovered_at = float("-inf")
        self._backoff = ExponentialWithJitterBackoff(base=0.2, cap=10.0)

    def run(self, stop: threading.Event) -> None:
        """Rotate until `stop` is set. A lost server is waited for with exponential back-off, and logged.

        Raises:
            BadConfigError: the URL is malformed, which waiting can't mend.
        """
        failures = 0
        while not stop.is_set():
            try:
                pause = self.run_once()
                if failures:
                    log.info("server is back after %d failed attempts", failures)
                failures = 0
            except BadConfigError:
                raise
            except AckerError as exc:
                failures += 1
                pause = self._backoff.compute(failures)
                log.warning("attempt %d failed, next in %.1f s: %s", failures, pause, exc)
            stop.wait(pause)

    def run_once(self) -> float:
        """Do what is due on every app; returns seconds until something is due again.

        Raises:
            ConnectionLostError: the server can't be reached.
        """
        if self._client is None:
            self._client = Client(self._url)
        if time.monotonic() - self._discovered_at >= DISCOVERY_SECS:
            self._discover(self._client)
            self._discovered_at = time.monotonic()
        for app, acker in list(self._ackers.items()):
            if self._due[app] <= time.monotonic():
                self._rotate(app, acker)
        next_due = min(self._due.values(), default=float("inf"))
        return max(0.0, min(next_due, self._discovered_at + DISCOVERY_SECS) - time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _discover(self, client: Client) -> None:
        for app in self._names or apps(client):
            if app in self._ackers:
                continue
            try:
                self._ackers[app] = Acker(client, stored_config(client, app))
            except ConnectionLostError:
                raise
            except AckerError as exc:  # one app that can't be opened doesn't keep the others from being rotated
                if app not in self._missing:
                    self._missing.add(app)
                    log.warning("app %s: %s", app, exc)
                continue
            self._missing.discard(app)
            self._due[app] = 0.0
            log.info(
                "app %s: rotating %d shards every %d ms",
                app,
                self._ackers[app].config.shards,
                self._ackers[app].config.tick_ms,
            )

    def _rotate(self, app: str, acker: Acker) -> None:
        try:
            done = acker.rotate(drain_calls=DRAIN_CALLS_PER_TURN)
        except LedgerLostError as exc:
            # Only a client creates an app: its spout has to learn of the loss first, and what its settings are.
            log.error("app %s: ledger lost, looking for it anew: %s", app, exc)
            self._forget(app)
            return
        except SettingsConflictError as exc:
            log.error("app %s: %s", app, exc)
            self._forget(app)
            return
        except ConnectionLostError:
            raise
        except AckerError as exc:
            log.error("app %s: %s", app, exc)
            self._due[app] = time.monotonic() + 1.0
            return
        before = self._turns.pop(app, (0, 0, 0))
        ticked, timed_out, orphaned = before[0] + done.ticked, before[1] + done.timed_out, before[2] + done.orphaned
        if done.draining:
            self._turns[app] = ticked, timed_out, orphaned
        elif timed_out or orphaned:
            log.info("app %s: %d shards ticked, %d timed out, %d orphaned", app, ticked, timed_out, orphaned)
        self._due[app] = time.monotonic() + (0.0 if done.draining else max(done.due_in_ms, 1) / 1000)

    def _forget(self, app: str) -> None:
        del self._ackers[app]
        del self._due[app]
        self._turns.pop(app, None)
        self._discovered_at = float("-inf")  # a client may have created it anew already
