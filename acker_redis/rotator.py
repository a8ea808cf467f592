"""The rotator: the one long-running process of an acker. Ticks every app, drains death row, survives bad days.

Any number of copies may run: a tick is guarded by the server's clock and happens once, and every copy may drain. Apps take
turns, a bounded part of their shards at a time, so that none holds up the others' ticks, however large or damaged it is.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.backoff import ExponentialWithJitterBackoff

from acker_redis.acker import Acker
from acker_redis.apps import find_apps, stored_config
from acker_redis.client import Client
from acker_redis.errors import (
    AckerError,
    BadConfigError,
    LedgerLostError,
    ServerUnavailableError,
    SettingsConflictError,
    TlsError,
)
from acker_redis.model import Rotated
from acker_redis.outages import Outages

log = logging.getLogger("acker_redis.rotator")

DISCOVERY_SECS = 5.0
"""How often apps that are new on the server, or not there yet, are looked for."""

SHARDS_PER_TURN = 32
"""Shards of one app before the other apps get their turn."""

KEYS_PER_TURN = 4000
"""The same for apps with many buckets: each is a key of each call."""

DRAIN_CALLS_PER_TURN = 4
"""Expire calls per shard and turn: a death row of millions must not hold up the others."""

STRAYS_LOGGED = 10
"""Anybody who may write keys of one app may write many that look like settings of others."""

_BACKOFF_BASE_SECS, _BACKOFF_CAP_SECS = 0.2, 10.0
_NOTHING = Rotated(0, 0, 0, 0, 0)


@dataclass
class _App:
    """One app under rotation.

    Attributes:
        due: when its next turn is due, by this process's monotonic clock.
        shard: first one of its next turn; not 0 in the middle of a pass over its shards.
        round: what the pass under way has done.
        next_due: earliest of the due times that the pass under way was told.
        failures: in a row.
        failed_with: the last failure that was logged.
    """

    name: str
    acker: Acker
    due: float = 0.0
    shard: int = 0
    round: Rotated = _NOTHING
    next_due: float = float("inf")
    failures: int = 0
    failed_with: str = ""
    backoff: ExponentialWithJitterBackoff = field(
        default_factory=lambda: ExponentialWithJitterBackoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)
    )

    @property
    def turn(self) -> range:
        """Shards of the next turn."""
        config = self.acker.config
        per_turn = max(1, min(SHARDS_PER_TURN, KEYS_PER_TURN // (2 * config.num_buckets + config.lanes)))
        return range(self.shard, min(self.shard + per_turn, config.shards))


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
        self._apps: dict[str, _App] = {}
        self._skipped: dict[str, str] = {}
        self._discovered_at = float("-inf")
        self._outages = Outages(log)
        self._backoff = ExponentialWithJitterBackoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)

    def run(self, stop: threading.Event) -> None:
        """Rotate until `stop` is set; it is seen within about two seconds, whatever the server does.

        A server that is gone, busy or a replica is waited for with exponential back-off, and logged once.

        Raises:
            BadConfigError: the URL is malformed.
            TlsError: a certificate is refused.
        """
        failures = 0
        while not stop.is_set():
            try:
                pause = self.run_once()
                self._outages.up()
                failures = 0
            except (BadConfigError, TlsError):  # waiting changes nothing
                raise
            except AckerError as exc:
                failures += 1
                pause = self._backoff.compute(failures)
                self._outages.down(exc)
            stop.wait(pause)

    def run_once(self) -> float:
        """Give every app that is due one turn; returns seconds until something is due again.

        Raises:
            ServerUnavailableError: the server can't do it now.
        """
        if self._client is None:
            self._client = Client(self._url, patience_secs=0)  # `run` waits, and looks at `stop` meanwhile
        if time.monotonic() - self._discovered_at >= DISCOVERY_SECS:
            self._discover(self._client)
            self._discovered_at = time.monotonic()
        for app in list(self._apps.values()):
            if app.due <= time.monotonic():
                self._take_turn(app, self._client)
        next_due = min((app.due for app in self._apps.values()), default=float("inf"))
        return max(0.0, min(next_due, self._discovered_at + DISCOVERY_SECS) - time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _discover(self, client: Client) -> None:
        names, strays = (self._names, []) if self._names else find_apps(client)
        for key in strays[:STRAYS_LOGGED]:
            self._skip(
                ascii(key), "skipped: these are no settings of an app; names have letters, digits, '_', '.' and '-'"
            )
        for name in names:
            if name in self._apps:
                continue
            try:
                # Only a client creates an app or its shards: it has to learn of a loss first.
                acker = Acker(client, stored_config(client, name), create=False)
            except Exception as exc:  # whatever stands in its keys, the other apps go on
                if isinstance(exc, ServerUnavailableError) and not client.is_cluster:
                    raise
                self._skip(f"app {name}", str(exc))
                continue
            self._skipped.pop(f"app {name}", None)
            self._apps[name] = _App(name, acker)
            log.info("app %s: rotating %d shards every %d ms", name, acker.config.shards, acker.config.tick_ms)

    def _take_turn(self, app: _App, client: Client) -> None:
        try:
            done = app.acker.rotate(drain_calls=DRAIN_CALLS_PER_TURN, shards=app.turn)
        except (LedgerLostError, SettingsConflictError) as exc:
            self._forget(app, exc)
        except Exception as exc:  # one app's error is one app's
            if isinstance(exc, ServerUnavailableError) and not client.is_cluster:
                raise
            app.failures += 1
            app.due = time.monotonic() + app.backoff.compute(app.failures)
            if str(exc) != app.failed_with:
                app.failed_with = str(exc)
                log.error("app %s: %s", app.name, exc)
        else:
            app.failures, app.failed_with = 0, ""
            self._note(app, done)

    def _note(self, app: _App, done: Rotated) -> None:
        """Go on with the app's next shards, or, behind its last, wait for the next tick."""
        so_far = app.round
        app.round = Rotated(
            so_far.ticked + done.ticked,
            so_far.timed_out + done.timed_out,
            so_far.orphaned + done.orphaned,
            so_far.draining + done.draining,
            0,
        )
        app.next_due = min(app.next_due, time.monotonic() + max(done.due_in_ms, 1) / 1000)
        app.shard = app.turn.stop
        if app.shard < app.acker.config.shards:
            return
        whole, next_due = app.round, app.next_due
        app.shard, app.next_due = 0, float("inf")
        if whole.draining:  # more of the same tick comes with the next pass
            app.round = whole._replace(draining=0)
            return
        app.round = _NOTHING
        app.due = next_due
        if whole.timed_out or whole.orphaned:
            log.info(
                "app %s: %d shards ticked, %d timed out, %d orphaned",
                app.name, whole.ticked, whole.timed_out, whole.orphaned,
            )  # fmt: skip

    def _skip(self, what: str, why: str) -> None:
        """Say once why something is not rotated."""
        if self._skipped.get(what) != why:
            self._skipped[what] = why
            log.warning("%s: %s", what, why)

    def _forget(self, app: _App, exc: AckerError) -> None:
        log.error("app %s: not rotated until it is there again: %s", app.name, exc)
        del self._apps[app.name]
        self._discovered_at = float("-inf")  # a client may have created it anew already
