"""Retention of dead letters in a rotator: some steps for each app, about once a minute."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from acker_redis.client.client import Client
from acker_redis.errors import ConnectionLostError, ServerUnavailableError
from acker_redis.store.letter_expiry import LetterExpiry

log = logging.getLogger("acker_redis.rotator")

PASS_SECS = 60.0
"""Time between two passes over the letters of an app."""


@dataclass
class _App:
    """Letters of one app.

    Attributes:
        due: time of the next step, by this process's monotonic clock.
        expiry: pass under way.
        failed_with: last error that was logged.
    """

    due: float = 0.0
    expiry: LetterExpiry | None = None
    failed_with: str = ""


class LetterRetention:
    """Removes dead letters that are too old, in steps so short that they delay no tick."""

    def __init__(self) -> None:
        self._apps: dict[str, _App] = {}

    def step(self, client: Client, names: Collection[str]) -> float:
        """Take one step for the app that has waited longest, if one is due.

        An error of an app is logged once, and stops no other app.

        Args:
            client: client of the server.
            names: apps under rotation.

        Returns:
            Time of the next step, by the monotonic clock. Infinite without apps.

        Raises:
            ServerUnavailableError: if the server, which isn't a cluster, is unavailable.
        """
        for name in self._apps.keys() - set(names):
            self._end_pass(name, self._apps.pop(name))
        for name in names:
            self._apps.setdefault(name, _App())
        if not self._apps:
            return float("inf")
        name, app = min(self._apps.items(), key=lambda item: item[1].due)
        if app.due <= time.monotonic():
            self._step(client, name, app)
        return min(app.due for app in self._apps.values())

    def close(self) -> None:
        """Log the letters that were removed by passes under way."""
        for name, app in self._apps.items():
            self._end_pass(name, app)

    def _step(self, client: Client, name: str, app: _App) -> None:
        try:
            app.expiry = app.expiry or LetterExpiry(client, name)
            app.expiry.step()
        except Exception as exc:  # no content of an app's keys may stop the rotation
            if isinstance(exc, ServerUnavailableError) and client.nodes is None:
                raise
            is_known = isinstance(exc, ConnectionLostError)  # the rotator logs nodes that don't answer
            if not is_known and str(exc) != app.failed_with:
                app.failed_with = str(exc)
                log.warning("dead letters not expired app=%r error=%s", name, exc)
        else:
            app.failed_with = ""
            if not app.expiry.is_over:
                app.due = time.monotonic()  # behind the apps that are due already
                return
        self._end_pass(name, app)
        app.due = time.monotonic() + PASS_SECS

    @staticmethod
    def _end_pass(name: str, app: _App) -> None:
        if app.expiry is not None and app.expiry.removed:
            log.info("dead letters expired app=%r count=%d", name, app.expiry.removed)
        app.expiry = None
