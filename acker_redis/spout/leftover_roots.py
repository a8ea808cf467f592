"""Cleanup of roots that this run and earlier runs left pending: fail them at once, and confirm their outcomes.

A lane has one spout at a time. So roots that are pending in the lane, but not in flight in its spout, belong to runs that
are over. No spout would consume their outcomes after this run either, and the app would look unhealthy forever.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, ClosedError, LedgerLostError
from acker_redis.model.arrays import Int64Array
from acker_redis.spout.in_flight import Mask
from acker_redis.spout.state import SpoutState
from acker_redis.spout.watchdog import Watchdog
from acker_redis.store import run_ends
from acker_redis.store.lane_leases import Lease

log = logging.getLogger("acker_redis.spout")

_ENDED, _LEFT = "its run ended", "left by a run that is over"
"""Reasons with which these roots fail."""

ERROR_SECS, _DONE_SECS = 5.0, 60.0
"""Time limits for ending a run: after an error or Ctrl-C, and otherwise."""

STEP_SECS = 0.02
"""Longest time that a step may block the spout."""

_ROOTS_PER_STEP = 5000


class LeftoverRoots:
    """Fail roots that earlier runs left pending in a lane, step by step, while the lane's current run continues.

    Attributes:
        spout_ids: owners of these roots.
        failed: number of roots failed so far.
    """

    def __init__(self, acker: Acker, in_flight: Callable[[Int64Array], Mask]) -> None:
        """Prepare the search. `in_flight` returns the mask of roots that belong to this run."""
        self.spout_ids: set[int] = set()
        self.failed = 0
        self._acker, self._in_flight = acker, in_flight
        self._is_wanted = False
        self._steps: Iterator[tuple[int, Int64Array, Int64Array]] | None = None

    @property
    def is_wanted(self) -> bool:
        """Return True if such roots may be left."""
        return self._is_wanted

    def look(self) -> None:
        """Scan the ledgers once more."""
        self._is_wanted, self._steps = True, None

    def step(self, secs: float = STEP_SECS) -> None:
        """Continue the scan for `secs`.

        Raises:
            ServerUnavailableError: if the server fails. The next step starts from the beginning.
        """
        deadline = time.monotonic() + secs
        while self._is_wanted and time.monotonic() < deadline:
            try:
                self._steps = self._steps or app_of(self._acker).inspection.each_pending()
                step = next(self._steps, None)
                if step is None:
                    self._is_wanted, self._steps = False, None
                    return
                _, roots, spout_ids = step
                self._fail(roots, spout_ids)
            except LedgerLostError:
                self._is_wanted = False  # all roots are gone
            except AckerError:
                self._steps = None
                raise

    def _fail(self, roots: Int64Array, of_spout_ids: Int64Array) -> None:
        roots = roots[np.isin(of_spout_ids, list(self.spout_ids))]
        roots = roots[~self._in_flight(roots)]
        if len(roots):
            self.failed += app_of(self._acker).ledger.release(roots, _LEFT).applied


@contextmanager
def noting_error(
    acker: Acker, lane: int, run_id: str, spout_id: int, line_of: Callable[[BaseException], str]
) -> Iterator[None]:
    """Record an error of a run that doesn't hold its lane yet, as in reading its messages, unless another run holds it.

    `line_of` describes an error that isn't the library's in a line.
    """
    try:
        yield
    except BaseException as exc:
        thread = threading.Thread(
            target=_note_error, args=(acker, lane, run_id, spout_id, exc, line_of), name="acker-leave", daemon=True
        )
        thread.start()
        thread.join(ERROR_SECS)
        raise


def _note_error(
    acker: Acker, lane: int, run_id: str, spout_id: int, error: BaseException, line_of: Callable[[BaseException], str]
) -> None:
    try:
        lease = app_of(acker).lease(lane=lane, run_id=run_id)
        if lease.acquire_if_free():
            before = app_of(acker).last_run_ends().get(lane)
            is_settled = before is not None and before.is_settled
            line = None if isinstance(error, AckerError) else line_of(error)
            app_of(acker).note_end(
                run_ends.end_of(run_id, spout_id, error, is_settled=is_settled, line=line), lane=lane
            )
            lease.release()
    except AckerError as exc:
        log.warning("end of the run not recorded run_id=%r error=%s", run_id, exc)


class Leaving:
    """End a run: settle its roots, confirm its outcomes, and record how it ended."""

    def __init__(
        self, lease: Lease, state: SpoutState, left: LeftoverRoots, watch: Watchdog, acker: Acker, lane: int
    ) -> None:
        self._lease, self._state, self._left, self._watch = lease, state, left, watch
        self._acker, self._lane = acker, lane
        self._is_late = threading.Event()

    def leave(self, run_id: str, spout_id: int, error: BaseException | None, *, keep: bool = False) -> None:
        """End the run in bounded time, whatever the server does. With `keep`, roots in flight stay in flight.

        It runs in a thread, because a server that doesn't answer would block a program that was interrupted.
        """
        thread = threading.Thread(
            target=self._leave, args=(run_id, spout_id, error, keep), name="acker-leave", daemon=True
        )
        thread.start()
        thread.join(_DONE_SECS if error is None else ERROR_SECS)
        if thread.is_alive():
            self._is_late.set()
            log.warning(
                "server not answering, pending roots time out or fail when the lane's next run starts run_id=%r lane=%d",
                run_id, self._lane,
            )  # fmt: skip

    def _leave(self, run_id: str, spout_id: int, error: BaseException | None, keep: bool) -> None:
        is_settled = False
        try:
            is_settled = not keep and self._settle(spout_id)
            if self._lease.holds():
                app_of(self._acker).note_end(
                    run_ends.end_of(run_id, spout_id, error, is_settled=is_settled), lane=self._lane
                )
        except AckerError as exc:
            self._warn("pending roots time out or fail when the lane's next run starts", exc)
        try:
            self._lease.release()
        except AckerError as exc:
            self._warn("the lane stays held for some seconds", exc)

    def _warn(self, consequence: str, error: AckerError) -> None:
        if isinstance(error, ClosedError):  # the program closed it, and is over
            log.debug("acker closed consequence=%r lane=%d", consequence, self._lane)
        elif not self._is_late.is_set():
            log.warning(
                "end of the run not recorded on the server consequence=%r lane=%d error=%s",
                consequence,
                self._lane,
                error,
            )

    def _settle(self, spout_id: int) -> bool:
        """Fail roots in flight and confirm waiting outcomes. Return True if nothing is left."""
        in_flight = [roots for roots in self._state.waiting(None) if len(roots)]
        has_lane = self._lease.acquire_if_free() if in_flight else self._lease.holds()
        try:
            for roots in in_flight:
                for at in range(0, len(roots), _ROOTS_PER_STEP):
                    self._release(roots[at : at + _ROOTS_PER_STEP])
            if not has_lane:  # its new holder consumes the outcomes
                return False
            if self._watch.sees_another_server():
                self._left.look()  # it may have lost its latest writes, and have roots that are done
            while self._left.is_wanted and not self._is_late.is_set():
                self._left.step()
            spout_ids = {spout_id, *self._left.spout_ids}
            for owner in spout_ids:
                self._drain(owner, spout_ids)
        except LedgerLostError:
            return False
        return not self._left.is_wanted and not self._is_late.is_set()

    def _release(self, roots: Int64Array) -> None:
        if self._is_late.is_set():
            return
        in_ledger = self._acker.inspect_many(roots)
        owned = roots[[root is not None and root.state == "owned" for root in in_ledger]]
        if len(owned):
            app_of(self._acker).ledger.release(owned, _ENDED)

    def _drain(self, spout_id: int, spout_ids: set[int]) -> None:
        """Confirm outcomes that wait for a spout, and those that it received but did not confirm."""
        again = True
        while not self._is_late.is_set():
            batches = self._acker.poll_batches(10_000, consumer=f"spout-{spout_id}", lane=self._lane, again=again)
            self._acker.confirm_batches([batch for batch in batches if batch.spout_id in spout_ids])
            again = False
            if not batches:
                return
