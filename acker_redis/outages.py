"""Outages of the server: waited for, and said once when they begin and once when they end, not once per attempt."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from acker_redis.errors import ServerUnavailableError

OUTAGE_TRIES = 40
"""A server is tried so often, each time with the client's own patience: three to twelve minutes."""

BACKOFF_BASE_SECS, BACKOFF_CAP_SECS = 0.5, 5.0

_MAX_EXPONENT = 64
_T = TypeVar("_T")


class Backoff(ExponentialWithJitterBackoff):
    """Exponential, with jitter, up to a cap, after any number of failures; redis-py's overflows after 1 023 in a row."""

    def compute(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return super().compute(min(failures, _MAX_EXPONENT))


class Outages:
    """The state of a server as one process sees it; a line is logged when the kind of trouble changes.

    Attributes:
        seen: whether there was one since this was last set to False; then updates may be missing.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Log here."""
        self.seen = False
        self._log = log
        self._state: type[Exception] | None = None
        self._since = 0.0

    def down(self, error: Exception) -> None:
        """An attempt failed."""
        self.seen = True
        if self._state is None:
            self._since = time.monotonic()
        if type(error) is not self._state:
            self._state = type(error)
            self._log.warning("waiting for the server: %s", error)

    def up(self) -> None:
        """An attempt succeeded."""
        if self._state is not None:
            self._state = None
            self._log.warning("the server is back after %.1f s", time.monotonic() - self._since)

    def wait_for(self, do: Callable[[], _T]) -> _T:
        """Do it, again while the server can't.

        Raises:
            ServerUnavailableError: the last of OUTAGE_TRIES.
        """
        backoff = Backoff(base=BACKOFF_BASE_SECS, cap=BACKOFF_CAP_SECS)
        retry: Retry = Retry(backoff, OUTAGE_TRIES - 1, supported_errors=(ServerUnavailableError,))
        result = retry.call_with_retry(do, self.down)
        self.up()
        return result
