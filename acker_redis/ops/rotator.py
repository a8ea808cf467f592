"""The rotator: a long-running process that ticks every app, drains death row, removes old letters, and survives outages.

It is the only long-running process of an acker. Any number of copies may run: the server's clock guards each tick, so it
happens once, and every copy may drain. Apps take turns, with a bounded part of their shards each, so a large or damaged app
never delays the ticks of others. On a cluster, a node that doesn't answer delays only its own shards.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from acker_redis.client.client import Client
from acker_redis.errors import (
    AckerError,
    BadConfigError,
    ConnectionLostError,
    LedgerLostError,
    ServerUnavailableError,
    SettingsConflictError,
    TlsError,
)
from acker_redis.ledger.rotation import Rotation
from acker_redis.ledger.shards import Shards
from acker_redis.model.types import Rotated
from acker_redis.ops.letter_retention import LetterRetention
from acker_redis.outages import Backoff, Outages
from acker_redis.store.apps import AppScan, stored_config

log = logging.getLogger("acker_redis.rotator")

_DISCOVERY_SECS = 5.0
"""Interval between two searches for apps that are new on the server, or don't exist yet."""

SCAN_SECS_PER_PASS = 0.2
"""Time that a pass searches for apps. A server with very many keys takes several passes."""

_SHARDS_PER_TURN = 32
"""Number of an app's shards per turn, before the other apps get their turn."""

_KEYS_PER_TURN = 4000
"""Number of keys per turn, for apps with many buckets: each bucket is a key of each call."""

DRAIN_CALLS_PER_TURN = 4
"""Number of expire calls per shard and turn: a death row of millions must not delay other apps."""

_STRAYS_LOGGED = 10
"""Number of invalid settings keys to log. Any user who may write an app's keys may write many of them."""

_BACKOFF_BASE_SECS, _BACKOFF_CAP_SECS = 0.2, 10.0
_NOTHING = Rotated(0, 0, 0, 0, 0)


@dataclass
class _App:
    """App under rotation.

    Attributes:
        due: due time of its next turn, by this process's monotonic clock.
        shard: first shard of its next turn. Not 0 in the middle of a pass over its shards.
        round: sum of the current pass.
        next_due: earliest due time that the current pass received.
        failed: first error of the current pass.
        failures: number of passes in a row with an error.
        failed_with: last error that was logged.
    """

    name: str
    shards: Shards
    rotation: Rotation
    due: float = 0.0
    shard: int = 0
    round: Rotated = _NOTHING
    next_due: float = float("inf")
    failed: Exception | None = None
    failures: int = 0
    failed_with: str = ""
    backoff: Backoff = field(default_factory=lambda: Backoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS))

    @property
    def turn(self) -> range:
        """Shards of the next turn."""
        config = self.shards.config
        per_turn = max(1, min(_SHARDS_PER_TURN, _KEYS_PER_TURN // (2 * config.num_buckets + config.lanes)))
        return range(self.shard, min(self.shard + per_turn, config.shards))

    def is_whole(self) -> bool:
        """Return True if the generation of every shard is known."""
        return all(self.shards.generations)


class Rotator:
    """Rotate apps of a server until stopped.

    Args:
        url: URL of the server.
        names: names of the apps to rotate. Empty means every app on the server, with a new search every few seconds.
    """

    def __init__(self, url: str, names: Sequence[str] = ()) -> None:
        """Store the settings. The first `run_once` connects, so a server that is down is waited for."""
        self._url = url
        self._names = tuple(names)
        self._client: Client | None = None
        self._apps: dict[str, _App] = {}
        self._skipped: dict[str, str] = {}
        self._scan: AppScan | None = None
        self._discovered_at = float("-inf")
        self._outages = Outages(log)
        self._nodes_down: set[str] = set()
        self._retention = LetterRetention()
        self._backoff = Backoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)

    def run(self, stop: threading.Event) -> None:
        """Rotate until `stop` is set. The loop notices it within about two seconds, whatever the server does.

        If the server is unreachable, busy or a replica, log that once and retry with exponential backoff. On a cluster, only
        the shards of such a node wait.

        Raises:
            BadConfigError: if the URL is malformed.
            TlsError: if a certificate is refused.
        """
        failures = 0
        while not stop.is_set():
            try:
                pause = self.run_once(stop)
                self._outages.up()
                failures = 0
            except (BadConfigError, TlsError):  # no retry can fix these
                raise
            except AckerError as exc:
                failures += 1
                pause = self._backoff.compute(failures)
                self._outages.down(exc)
            stop.wait(pause)

    def run_once(self, stop: threading.Event | None = None) -> float:
        """Run one turn of every app that is due, and one step of the retention of letters.

        Return the seconds until the next call is due.

        Args:
            stop: event that ends the pass. Once it is set, no other app gets its turn, and the search for apps ends.

        Raises:
            ServerUnavailableError: if the server is unavailable.
        """
        stop = stop or threading.Event()
        if self._client is None:
            self._client = Client(self._url, outage_timeout_secs=0)  # `run` waits, and checks `stop` meanwhile
        client = self._client
        if self._scan is not None or time.monotonic() - self._discovered_at >= _DISCOVERY_SECS:
            self._discover(client, stop)
        now = time.monotonic()
        for app in [app for app in self._apps.values() if app.due <= now]:
            if stop.is_set():
                break
            self._take_turn(app, client)
        letters_due = float("inf") if stop.is_set() else self._retention.step(client, self._apps)
        self._look_at_nodes(client)
        if self._scan is not None:
            return 0.0
        next_due = min((app.due for app in self._apps.values()), default=float("inf"))
        return max(0.0, min(next_due, letters_due, self._discovered_at + _DISCOVERY_SECS) - time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        self._retention.close()
        if self._client is not None:
            self._client.close()

    def _discover(self, client: Client, stop: threading.Event) -> None:
        """Search for apps for a while, and retry those that could not be opened, or only in part."""
        if self._names:
            self._open_all(client, self._names, stop)
        else:
            self._scan = self._scan or AppScan(client)
            until = time.monotonic() + SCAN_SECS_PER_PASS
            while not self._scan.done:
                names, strays = self._scan.step()
                for key in strays[:_STRAYS_LOGGED]:
                    self._skip(
                        f"key={key!a}",
                        "Not the settings of an app. App names have letters, digits, '_', '.' and '-' only.",
                    )
                self._open_all(client, names, stop)
                if stop.is_set() or time.monotonic() >= until:
                    break
            if not self._scan.done:
                return
            self._scan = None
        self._open_all(client, [app.name for app in self._apps.values() if not app.is_whole()], stop)
        self._discovered_at = time.monotonic()

    def _open_all(self, client: Client, names: Sequence[str], stop: threading.Event) -> None:
        for name in names:
            if stop.is_set():
                return
            app = self._apps.get(name)
            if app is not None and app.is_whole():
                continue
            try:
                # Only a client creates an app or its shards, because it must notice a loss first.
                if app is None:
                    partly = client.nodes is not None
                    shards = Shards(client, stored_config(client, name), create=False, partly=partly)
                    self._apps[name] = _App(name, shards, Rotation(shards))
                    log.info("rotating app=%r shards=%d tick_ms=%d", name, shards.config.shards, shards.config.tick_ms)
                else:
                    app.shards.adopt(partly=True)
            except Exception as exc:  # no content of its keys may stop the other apps
                if isinstance(exc, ServerUnavailableError) and client.nodes is None:
                    raise
                if not self._is_known(exc, client):
                    self._skip(f"app={name!r}", str(exc))
                continue
            self._skipped.pop(f"app={name!r}", None)

    def _take_turn(self, app: _App, client: Client) -> None:
        turn = app.turn
        known = [shard for shard in turn if app.shards.generations[shard]]
        done, failed = _NOTHING, list[Exception]()
        try:
            done, unable = app.rotation.try_rotate(drain_calls=DRAIN_CALLS_PER_TURN, shards=known)
            failed += unable
        except Exception as exc:  # an app's error stops no other app
            failed.append(exc)
        for error in failed:
            if isinstance(error, (LedgerLostError, SettingsConflictError)):
                self._forget(app, error)
                return
            if isinstance(error, ServerUnavailableError) and client.nodes is None:
                raise error
            if not self._is_known(error, client) and (app.failed is None or self._is_known(app.failed, client)):
                app.failed = error
        if failed or len(known) < len(turn):
            app.failed = app.failed or (failed[0] if failed else ConnectionLostError("A node does not answer."))
        self._note(app, done, has_due=bool(done.due_in_ms or not app.failed))
        if app.shard == 0:
            self._note_failure(app, client)

    def _note(self, app: _App, done: Rotated, *, has_due: bool) -> None:
        """Continue with the app's next shards, or after its last wait for the next tick, if its time is known."""
        so_far = app.round
        app.round = Rotated(
            so_far.ticked + done.ticked,
            so_far.timed_out + done.timed_out,
            so_far.orphaned + done.orphaned,
            so_far.draining + done.draining,
            0,
        )
        if has_due:
            app.next_due = min(app.next_due, time.monotonic() + max(done.due_in_ms, 1) / 1000)
        app.shard = app.turn.stop
        if app.shard < app.shards.config.shards:
            return
        whole, next_due = app.round, app.next_due
        app.shard, app.next_due = 0, float("inf")
        if whole.draining:  # the next pass drains more of the same tick
            app.round = whole._replace(draining=0)
            return
        app.round = _NOTHING
        app.due = next_due
        if whole.timed_out or whole.orphaned:
            log.info(
                "roots expired app=%r shards_ticked=%d timed_out=%d orphaned=%d",
                app.name, whole.ticked, whole.timed_out, whole.orphaned,
            )  # fmt: skip

    def _note_failure(self, app: _App, client: Client) -> None:
        """After a pass, log the error of some of the app's shards once, and schedule a retry."""
        exc, app.failed = app.failed, None
        if exc is None:
            app.failures, app.failed_with = 0, ""
            return
        app.failures += 1
        app.due = min(app.due, time.monotonic() + app.backoff.compute(app.failures))
        if str(exc) != app.failed_with and not self._is_known(exc, client):
            app.failed_with = str(exc)
            log.error("rotation failed app=%r error=%s", app.name, exc)

    def _is_known(self, exc: Exception, client: Client) -> bool:
        """Return True if the error comes from a node that doesn't answer, which is logged once for all apps."""
        return isinstance(exc, ConnectionLostError) and client.nodes is not None and bool(client.nodes.down)

    def _look_at_nodes(self, client: Client) -> None:
        if client.nodes is None:
            return
        down = client.nodes.down
        for name in down.keys() - self._nodes_down:
            log.warning("node not answering, its shards are not rotated node=%s error=%s", name, down[name])
        for name in self._nodes_down - down.keys():
            log.warning("node back or replaced node=%s", name)
        self._nodes_down = set(down)

    def _skip(self, name: str, reason: str) -> None:
        """Log once why an app or a key is skipped. `name` is the log line's `app=…` or `key=…`."""
        if self._skipped.get(name) != reason:
            self._skipped[name] = reason
            log.warning("skipped %s reason=%s", name, reason)

    def _forget(self, app: _App, exc: Exception) -> None:
        log.error("app lost, not rotated until it exists again app=%r error=%s", app.name, exc)
        del self._apps[app.name]
        self._discovered_at = float("-inf")  # a client may have created it again already
