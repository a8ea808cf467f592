"""Emissions in a thread of their own, while the spout takes outcomes; which errors of them are waited for, which raised."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from acker_redis.errors import AckerError, BadBatchError, BadConfigError, NotExactError, ServerUnavailableError
from acker_redis.outages import BACKOFF_BASE_SECS, BACKOFF_CAP_SECS, OUTAGE_TRIES, Backoff, Outages
from acker_redis.pending import Emission

log = logging.getLogger("acker_redis.spout")

MAX_EMIT_FAILURES = 3

BROKEN_BASE_SECS = 0.1
"""The first pause between emissions that break; each further one is twice as long."""

HOPELESS = (BadBatchError, BadConfigError, NotExactError)


@dataclass(frozen=True)
class Emitted:
    """An emission that has ended.

    Attributes:
        emission: the one.
        error: what it ended with.
    """

    emission: Emission
    error: BaseException | None

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.error is not None

    @property
    def by_outage(self) -> bool:
        """Whether the server broke it off."""
        return isinstance(self.error, ServerUnavailableError)


class Emitter:
    """Runs `emit` in a thread of its own, one emission at a time; pauses after one that failed.

    Attributes:
        emission: the one under way.
    """

    def __init__(self, emit: Callable[[Emission], object]) -> None:
        """Nothing is emitted yet."""
        self.emission: Emission | None = None
        self._emit = emit
        self._outages = Outages(log)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="acker-emit")
        self._future: Future[object] | None = None
        self._failed: BaseException | None = None
        self._failures = self._broken_off = 0
        self._succeeded = False
        self._not_before = float("-inf")
        self._pauses = Backoff(base=BROKEN_BASE_SECS, cap=BACKOFF_CAP_SECS)
        self._backoff = Backoff(base=BACKOFF_BASE_SECS, cap=BACKOFF_CAP_SECS)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the emission under way. An error of the last one is raised: no later one has made up for it.

        But for an outage: what it broke off has nothing left to do, as the run ends when every message is done.
        """
        self._pool.shutdown()
        if self._failed is None:
            self._outages.up()
        elif isinstance(self._failed, ServerUnavailableError):
            log.warning("the last emission was broken off by an outage after its messages were done: %s", self._failed)
        elif kind is None:
            raise_error(self._failed)

    @property
    def is_free(self) -> bool:
        """Whether the next emission may begin."""
        return self._future is None and time.monotonic() >= self._not_before

    @property
    def is_running(self) -> bool:
        """Whether an emission goes on."""
        return self._future is not None and not self._future.done()

    def start(self, emission: Emission) -> None:
        """Begin."""
        self.emission, self._failed = emission, None
        self._future = self._pool.submit(self._emit, emission)

    def wait(self, timeout_secs: float | None = None) -> None:
        """Wait so long for the end of the emission under way; None: as long as it takes."""
        if self._future is not None:
            wait([self._future], timeout_secs)

    def collect(self) -> Emitted | None:
        """An emission that has ended, once; say then what to think of it: `succeeded`, `broke` or `failed`."""
        if self._future is None or self.emission is None or not self._future.done():
            return None
        ended = Emitted(self.emission, self._future.exception())
        self._future = self.emission = None
        return ended

    def succeeded(self) -> None:
        """The last emission did."""
        self._failed = None
        self._failures = self._broken_off = 0
        self._succeeded = True
        self._outages.up()

    def broke(self, error: BaseException, in_a_row: int) -> None:
        """The last emission did, and one of its messages may be to blame; as did so many in a row.

        If none ever succeeds, the error is raised at the end.
        """
        self._failed = None if self._succeeded else error
        log.warning("emission failed; its messages are emitted again in smaller emissions: %s", error)
        if in_a_row > 1:
            self._not_before = time.monotonic() + self._pauses.compute(in_a_row - 1)

    def failed(self, error: BaseException) -> None:
        """The last emission did, through no message.

        Raises:
            AckerError: too many did in a row, or this one will fail whenever it is tried.
        """
        self._failed = error
        if isinstance(error, ServerUnavailableError):
            self._broken_off += 1
            self._outages.down(error)
            tries, limit = self._broken_off, OUTAGE_TRIES
        else:
            if isinstance(error, HOPELESS):
                raise error
            self._failures += 1
            tries, limit = self._failures, MAX_EMIT_FAILURES
            log.warning("emission failed (%d in a row); messages without outcome are replayed: %s", tries, error)
        if tries == limit:
            raise AckerError(f"{limit} emissions failed in a row, the last with: {error}") from error
        self._not_before = time.monotonic() + self._backoff.compute(tries)


def raise_error(error: BaseException) -> NoReturn:
    """Raise the error of an emission that no later one has made up for.

    Raises:
        AckerError: always.
    """
    if isinstance(error, AckerError):
        raise error
    raise AckerError(
        "an emission failed, and no message is left to try it with, as each is done or a dead letter: "
        f"{type(error).__name__}: {error}"
    ) from error
