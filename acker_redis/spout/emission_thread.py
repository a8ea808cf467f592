"""Emissions in a separate thread, and which of their errors are raised or retried."""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NoReturn

from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    JobFailedError,
    LedgerLostError,
    ServerUnavailableError,
    UnprovenEmissionError,
)
from acker_redis.outages import BACKOFF_BASE_SECS, BACKOFF_CAP_SECS, OUTAGE_TRIES, Backoff, Outages, is_outage
from acker_redis.spout.in_flight import Emission

log = logging.getLogger("acker_redis.spout")

_REPEATED = (UnprovenEmissionError, LedgerLostError, AppNotFoundError)
"""Errors that don't affect the next emission: Spark lost work, or the server lost its data."""

_MAX_REPEATS = 3
"""Number of such errors in a row that ends the run."""

BROKEN_BASE_SECS = 0.1
"""First delay between emissions that fail. Each further delay is twice as long."""

DEFAULT_OUTAGE_SECS = 600.0
"""Longest outage of something that the pipeline needs, since an emission last succeeded, if `outage_secs` is 0."""

WAIT_BASE_SECS, _WAIT_CAP_SECS = 0.5, 30.0
"""Shortest and longest delay between emissions during an outage."""

_NOBODYS_ATTEMPT = (
    "The error comes from code that runs in the Spark driver, or from Spark before a job ran. No message is to blame: none "
    "counted an attempt or was dead-lettered because of it. Fix the error and run again."
)


@dataclass(frozen=True)
class Emitted:
    """An emission that has ended.

    Attributes:
        emission: emission as it was started.
        error: error that ended it. None if it succeeded.
    """

    emission: Emission
    error: BaseException | None

    @property
    def failed(self) -> bool:
        """Return True if it ended with an error."""
        return self.error is not None

    @property
    def by_outage(self) -> bool:
        """Return True if an outage of the server ended it."""
        return isinstance(self.error, ServerUnavailableError)


class EmissionThread:
    """Run `emit` in a separate thread, one emission at a time, with a delay after each failure.

    Attributes:
        emission: emission that is running, or that has ended and was not collected yet.
        is_overdue: True if no emission has succeeded for `outage_secs` of delays.
    """

    def __init__(self, emit: Callable[[Emission], object], outage_secs: float, *, goes_on: bool) -> None:
        """Prepare emissions.

        Args:
            emit: see `run_spout`.
            outage_secs: longest outage, in delays since an emission last succeeded.
            goes_on: True to wait for its end however long it takes, as a stream does.
        """
        self.emission: Emission | None = None
        self._outage_secs = math.inf if goes_on else outage_secs or DEFAULT_OUTAGE_SECS
        self._out_for: BaseException | None = None
        self.is_overdue = False
        self._emit = emit
        self._outages = Outages(log)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="acker-emit")
        self._future: Future[object] | None = None
        self._failed: BaseException | None = None
        self._repeats = self._broken_off = self._waits = 0
        self._out_since: float | None = None
        self._waited = self._out_last = 0.0
        self._succeeded = self._stack_logged = False
        self._not_before = float("-inf")
        self._pauses = Backoff(base=BROKEN_BASE_SECS, cap=BACKOFF_CAP_SECS)
        self._backoff = Backoff(base=BACKOFF_BASE_SECS, cap=BACKOFF_CAP_SECS)
        self._long_pauses = Backoff(base=WAIT_BASE_SECS, cap=_WAIT_CAP_SECS)

    def stop(self, error: BaseException | None = None) -> None:
        """Wait for the current emission, and stop. Without an `error`, raise the error of the last emission.

        No later emission has made up for that error. An outage is not raised: the emission that it interrupted has nothing
        left to do, because the run ends when every message is done.

        Raises:
            AckerError: if the last emission failed.
        """
        self._pool.shutdown()
        if self._failed is None:
            self._outages.up()
        elif isinstance(self._failed, ServerUnavailableError):
            log.warning("last emission interrupted by an outage, all its messages are done error=%s", self._failed)
        elif error is None:
            raise_error(self._failed)

    @property
    def is_free(self) -> bool:
        """Return True if the next emission may start."""
        return self._future is None and time.monotonic() >= self._not_before

    @property
    def is_running(self) -> bool:
        """Return True if an emission is running."""
        return self._future is not None and not self._future.done()

    def emit(self, emission: Emission) -> None:
        """Start an emission in the thread."""
        self.emission, self._failed = emission, None
        self._future = self._pool.submit(self._emit, emission)

    def wait(self, timeout_secs: float | None = None) -> None:
        """Wait until the current emission ends, or until the timeout. None waits without limit."""
        if self._future is not None:
            wait([self._future], timeout_secs)

    def collect(self) -> Emitted | None:
        """Return an emission that has ended, once. Then call `succeeded`, `job_failed` or `failed`."""
        if self._future is None or self.emission is None or not self._future.done():
            return None
        ended = Emitted(self.emission, self._future.exception())
        self._future = self.emission = None
        return ended

    def hurry(self) -> None:
        """End the delay, because there are messages to emit that had no part in the failure."""
        self._not_before = float("-inf")

    def succeeded(self) -> None:
        """Note that the last emission succeeded."""
        self._failed = None
        self._repeats = self._broken_off = self._waits = 0
        if self._out_since is not None:
            log.warning("outage over, pipeline resumed outage_secs=%.0f", time.monotonic() - self._out_since)
        self._out_since = self._out_for = None
        self.is_overdue = False
        self._succeeded = True
        self._outages.up()

    def job_failed(
        self, error: BaseException, in_a_row: int, *, waits: bool = False, raises_at_end: bool = True
    ) -> None:
        """Note that the job of the last emission failed, and that one of its messages may be to blame.

        Args:
            error: error that ended it.
            in_a_row: number of emissions whose jobs failed since one succeeded.
            waits: True if no emission is likely to succeed now, which makes delays long.
            raises_at_end: True to raise the error at the end if no emission ever succeeds.
        """
        self._failed = error if raises_at_end and not self._succeeded else None
        if is_outage(error):
            self._wait_for(error)
            return
        log.warning(
            "emission failed, retrying its messages in smaller emissions error=%s", error,
            exc_info=None if self._stack_logged else error,
        )  # fmt: skip
        self._stack_logged = True  # once: smaller emissions have much the same stack
        if in_a_row > 1:
            pauses = self._long_pauses if waits else self._pauses
            self._not_before = time.monotonic() + pauses.compute(in_a_row - 1)

    def failed(self, error: BaseException) -> None:
        """Note that the last emission failed, and that no message is to blame.

        Raises:
            AckerError: if an outage of the server lasts too long, or too many emissions in a row had no effect.
            Exception: the error itself, if it is neither.
        """
        self._failed = error
        if isinstance(error, ServerUnavailableError):
            self._broken_off += 1
            self._outages.down(error)
            if self._broken_off == OUTAGE_TRIES:
                raise AckerError(
                    f"{OUTAGE_TRIES} emissions failed in a row because of the server. No message is to blame. Repair the "
                    f"server and run again. The last error was: {error}"
                ) from error
            self._not_before = time.monotonic() + self._backoff.compute(self._broken_off)
        elif isinstance(error, _REPEATED):
            self._repeats += 1
            if self._repeats == _MAX_REPEATS:
                raise AckerError(
                    f"{_MAX_REPEATS} emissions in a row had no effect. No message is to blame. The last error was: {error}"
                ) from error
            log.warning("emission had no effect, repeating it in_a_row=%d error=%s", self._repeats, error)
            self._not_before = time.monotonic() + self._backoff.compute(self._repeats)
        elif is_outage(error):
            self._wait_for(error)
        else:
            if not isinstance(error, AckerError):
                error.add_note(_NOBODYS_ATTEMPT)
            raise error

    @property
    def outage(self) -> tuple[float, float, BaseException] | None:
        """Times of the first and the latest emission that ended for an outage, as `time.monotonic`, and its error."""
        since, error = self._out_since, self._out_for
        return None if since is None or error is None else (since, self._out_last, error)

    def raise_outage(self) -> NoReturn:
        """Raise the error of an outage that lasts too long. Call it if no message that is left is to blame.

        Raises:
            AckerError: always.
        """
        raise AckerError(
            f"No emission succeeded for {self._outage_secs:g} s, because a service that the pipeline needs is unreachable. "
            "No message is to blame, and none was dead-lettered for it. Repair the service and run again. The last error "
            f"was: {self._out_for}"
        ) from self._out_for

    def _wait_for(self, error: BaseException) -> None:
        """Delay the next emission, longer each time."""
        now = time.monotonic()
        if self._out_since is None:
            self._out_since, self._waited = now, 0.0
            log.warning("outage, pipeline is waiting max_wait_secs=%.0f error=%s", self._outage_secs, error)
        self._out_for, self._out_last = error, now
        self.is_overdue = self._waited > self._outage_secs
        self._waits += 1
        pause = self._long_pauses.compute(self._waits)
        self._waited += pause  # only delays count: neither long tries nor times without messages to emit
        self._not_before = now + pause


def raise_error(error: BaseException) -> NoReturn:
    """Raise the error of an emission that no later one has made up for.

    Raises:
        AckerError: always.
    """
    if isinstance(error, AckerError) and not isinstance(error, JobFailedError):
        raise error
    raise AckerError(
        "An emission failed, but every message is already done or dead-lettered, so nothing is left to retry. The error was: "
        f"{error if isinstance(error, AckerError) else f'{type(error).__name__}: {error}'}"
    ) from error
