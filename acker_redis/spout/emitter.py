"""Emissions in a thread of their own, while the spout takes outcomes; which of their errors are raised, and which wait."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NoReturn

from acker_redis.client.backoff import BACKOFF_BASE_SECS, BACKOFF_CAP_SECS, OUTAGE_TRIES, Backoff, Outages, is_outage
from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    JobFailedError,
    LedgerLostError,
    NotProvenError,
    ServerUnavailableError,
)
from acker_redis.spout.in_flight import Emission

log = logging.getLogger("acker_redis.spout")

_REPEATED = (NotProvenError, LedgerLostError, AppNotFoundError)
"""Errors that say nothing about the next emission: Spark lost work, or the server its data."""

_MAX_REPEATS = 3
"""After so many in a row the run ends."""

BROKEN_BASE_SECS = 0.1
"""The first pause between emissions that fail; each further pause is twice as long."""

_OUTAGE_SECS = 600.0
"""How long an outage of something that the pipeline needs may last, since an emission last succeeded."""

WAIT_BASE_SECS, _WAIT_CAP_SECS = 0.5, 30.0
"""The shortest and the longest pause between emissions during an outage."""

_NOBODYS_ATTEMPT = (
    "The error comes from code that runs in the Spark driver, or from Spark before a job ran. No message is to blame: none "
    "counted an attempt, and none was dead-lettered because of it. Fix it and run again."
)


@dataclass(frozen=True)
class Emitted:
    """An emission that has ended.

    Attributes:
        emission: as it was made.
        error: that it ended with; None: it succeeded.
    """

    emission: Emission
    error: BaseException | None

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.error is not None

    @property
    def by_outage(self) -> bool:
        """Whether an outage of the server ended it."""
        return isinstance(self.error, ServerUnavailableError)


class Emitter:
    """Runs `emit` in a thread of its own, one emission at a time; pauses after one that failed.

    Attributes:
        emission: under way, or ended and not collected yet.
    """

    def __init__(self, emit: Callable[[Emission], object]) -> None:
        self.emission: Emission | None = None
        self._emit = emit
        self._outages = Outages(log)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="acker-emit")
        self._future: Future[object] | None = None
        self._failed: BaseException | None = None
        self._repeats = self._broken_off = self._waits = 0
        self._out_since: float | None = None
        self._waited = 0.0
        self._succeeded = self._stack_logged = False
        self._not_before = float("-inf")
        self._pauses = Backoff(base=BROKEN_BASE_SECS, cap=BACKOFF_CAP_SECS)
        self._backoff = Backoff(base=BACKOFF_BASE_SECS, cap=BACKOFF_CAP_SECS)
        self._long_pauses = Backoff(base=WAIT_BASE_SECS, cap=_WAIT_CAP_SECS)

    def stop(self, error: BaseException | None = None) -> None:
        """Wait for the emission under way, and end. Without an `error`, the error of the last emission is raised.

        No later emission has made up for it. An outage is the exception: an emission that it broke off has nothing left to
        do, as the run ends when every message is done.

        Raises:
            AckerError: the last emission failed.
        """
        self._pool.shutdown()
        if self._failed is None:
            self._outages.up()
        elif isinstance(self._failed, ServerUnavailableError):
            log.warning("the last emission was broken off by an outage after its messages were done: %s", self._failed)
        elif error is None:
            raise_error(self._failed)

    @property
    def is_free(self) -> bool:
        """Whether the next emission may begin."""
        return self._future is None and time.monotonic() >= self._not_before

    @property
    def is_running(self) -> bool:
        """Whether an emission goes on."""
        return self._future is not None and not self._future.done()

    def emit(self, emission: Emission) -> None:
        """Begin an emission, in the thread."""
        self.emission, self._failed = emission, None
        self._future = self._pool.submit(self._emit, emission)

    def wait(self, timeout_secs: float | None = None) -> None:
        """Wait so long for the end of the emission under way; None: as long as it takes."""
        if self._future is not None:
            wait([self._future], timeout_secs)

    def collect(self) -> Emitted | None:
        """Return an emission that has ended, once; then call `succeeded`, `job_failed` or `failed`."""
        if self._future is None or self.emission is None or not self._future.done():
            return None
        ended = Emitted(self.emission, self._future.exception())
        self._future = self.emission = None
        return ended

    def hurry(self) -> None:
        """End the pause: there is something to emit that had no part in the failure."""
        self._not_before = float("-inf")

    def succeeded(self) -> None:
        """Note that the last emission succeeded."""
        self._failed = None
        self._repeats = self._broken_off = self._waits = 0
        if self._out_since is not None:
            log.warning("the pipeline goes on, after %.0f s", time.monotonic() - self._out_since)
        self._out_since = None
        self._succeeded = True
        self._outages.up()

    def job_failed(self, error: BaseException, in_a_row: int, *, waits: bool = False) -> None:
        """Note that the job of the last emission failed, and that one of its messages may be to blame.

        If none ever succeeds, the error is raised at the end.

        Args:
            error: that it ended with.
            in_a_row: emissions whose jobs failed since one succeeded.
            waits: whether no emission seems to succeed now, so that pauses are long.

        Raises:
            AckerError: it is an outage that lasts too long.
        """
        self._failed = None if self._succeeded else error
        if is_outage(error):
            self._wait_for(error)
            return
        log.warning(
            "an emission failed; its messages are emitted again in smaller ones: %s", error,
            exc_info=None if self._stack_logged else error,
        )  # fmt: skip
        self._stack_logged = True  # once: with each smaller emission it is much the same
        if in_a_row > 1:
            pauses = self._long_pauses if waits else self._pauses
            self._not_before = time.monotonic() + pauses.compute(in_a_row - 1)

    def failed(self, error: BaseException) -> None:
        """Note that the last emission failed, through no message.

        Raises:
            AckerError: an outage lasts too long, or too many emissions in a row came to nothing.
            Exception: the error itself, if it is neither.
        """
        self._failed = error
        if isinstance(error, ServerUnavailableError):
            self._broken_off += 1
            self._outages.down(error)
            if self._broken_off == OUTAGE_TRIES:
                raise AckerError(f"{OUTAGE_TRIES} emissions failed in a row, the last with: {error}") from error
            self._not_before = time.monotonic() + self._backoff.compute(self._broken_off)
        elif isinstance(error, _REPEATED):
            self._repeats += 1
            if self._repeats == _MAX_REPEATS:
                raise AckerError(
                    f"{_MAX_REPEATS} emissions in a row came to nothing, the last with: {error}"
                ) from error
            log.warning("an emission came to nothing (%d in a row), and is repeated: %s", self._repeats, error)
            self._not_before = time.monotonic() + self._backoff.compute(self._repeats)
        elif is_outage(error):
            self._wait_for(error)
        else:
            if not isinstance(error, AckerError):
                error.add_note(_NOBODYS_ATTEMPT)
            raise error

    def _wait_for(self, error: BaseException) -> None:
        """Pause, longer each time."""
        now = time.monotonic()
        if self._out_since is None:
            self._out_since, self._waited = now, 0.0
            log.warning("the pipeline waits for what it needs, for up to %.0f s: %s", _OUTAGE_SECS, error)
        if self._waited > _OUTAGE_SECS:
            raise AckerError(
                f"nothing got through for {_OUTAGE_SECS:.0f} s, as something that the pipeline needs can't be reached. No "
                f"message is to blame. Repair it and run again: {error}"
            ) from error
        self._waits += 1
        pause = self._long_pauses.compute(self._waits)
        self._waited += pause  # pauses count, not tries that take long, nor the time in which nothing was to be emitted
        self._not_before = now + pause


def raise_error(error: BaseException) -> NoReturn:
    """Raise the error of an emission that no later one has made up for.

    Raises:
        AckerError: always.
    """
    if isinstance(error, AckerError) and not isinstance(error, JobFailedError):
        raise error
    raise AckerError(
        "an emission failed, and no message is left to try it with, as each is done or a dead letter: "
        f"{error if isinstance(error, AckerError) else f'{type(error).__name__}: {error}'}"
    ) from error
