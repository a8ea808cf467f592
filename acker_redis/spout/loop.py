"""The loop of a spout: emit, poll for outcomes, and reconcile with the ledger."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

import numpy as np

from acker_redis.acker import app_of
from acker_redis.errors import AckerError, BadConfigError, InexactPipelineError, OutageError, StoppedError
from acker_redis.model.arrays import Int64Array
from acker_redis.outages import Outages, is_outage
from acker_redis.spout.emission_thread import EmissionThread, Emitted, raise_error
from acker_redis.spout.in_flight import Emission, Mask
from acker_redis.spout.leftover_roots import Leaving, LeftoverRoots
from acker_redis.spout.spout import Spout
from acker_redis.spout.state import SpoutCounts
from acker_redis.spout.waiting import FAILED_JOBS
from acker_redis.spout.watchdog import Watchdog
from acker_redis.store.lane_leases import is_of_held_lane
from acker_redis.store.outages import Outage, SetAside
from acker_redis.store.run_ends import End

log = logging.getLogger("acker_redis.spout")

_LOST_AFTER_TIMEOUTS = 4
"""Number of message timeouts without any outcome after which the ledger is asked for roots in flight."""

POLL_MS = 100
"""Time that a step waits for outcomes."""

PAUSE_SECS = 1.0
"""Interval between two checks whether the app is paused."""

LIMIT_SECS = 1.0
"""Interval between two reads of the app's limit of pending roots. With a limit, these are counted before each emission."""

_HELD_SECS = 60.0
"""Shortest interval between warnings that the limit leaves no room. Several spouts may block each other often."""

_REPLAYS_SECS = 1.0
"""Interval between two searches for dead letters to replay."""

_NOTE_SECS = 5.0
"""Shortest interval between two notes of outages in Redis."""

_WARN_SECS = 1.0
"""Delay after which a run that ends with an error logs that it waits for its emission."""


class SpoutLoop:
    """Run one spout in steps, between `start` and `stop`. Also a context manager.

    Only one thread at a time may step.

    Attributes:
        taken: number of outcomes that the last step received.
        was_emitting: whether an emission was running then, so that outcomes of it may have come since.
    """

    def __init__(self, spout: Spout, emit: Callable[[Emission], object]) -> None:
        """Prepare the loop. `emit` is as for `run_spout`."""
        self.taken, self.was_emitting = 0, False
        self._spout, self._state = spout, spout.state
        self._emitter = EmissionThread(emit, spout.retry.outage_secs, goes_on=spout.goes_on)
        self._outages = Outages(log)
        self._lease = app_of(spout.acker).lease(lane=spout.lane, run_id=spout.run_id)
        self._left = LeftoverRoots(spout.acker, self._is_in_flight)
        self._left.spout_ids.add(spout.spout_id)
        self._watch = Watchdog(spout.acker, spout.lane)
        self._leaving = Leaving(self._lease, self._state, self._left, self._watch, spout.acker, spout.lane)
        self._has_begun = False
        self._quiet_secs = _LOST_AFTER_TIMEOUTS * spout.acker.config.message_timeout_secs
        self._quiet_since = time.monotonic()
        self._replays_at = self._pause_at = self._limit_at = self._held_at = self._noted_at = float("-inf")
        self._noted: tuple[list[Outage], list[SetAside]] | None = None
        self._epoch_secs = time.time() - time.monotonic()
        self._is_paused = False
        self._limit: int | None = None
        self._ask_now = self._vanished = False
        self._job_error: BaseException | None = None
        self._state.sent.clear()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop(error)

    def start(self) -> None:
        """Acquire the lane.

        Raises:
            BadConfigError: if another run holds it.
        """
        try:
            self._outages.wait_for(self._take_lane)
        except BaseException:
            with suppress(AckerError):
                self._lease.release()
            raise

    def stop(self, error: BaseException | None = None) -> None:
        """Wait for the emission under way, settle this run's roots and outcomes, and release the lane.

        Args:
            error: error that ends the run. None if the run is complete: an error of the last emission is then raised, see
                `EmissionThread.stop`.
        """
        ended_with = error
        try:
            self._end_emission(error)
        except BaseException as exc:
            ended_with = exc
            raise
        finally:
            self._leaving.leave(self._spout.run_id, self._spout.spout_id, ended_with)

    def _end_emission(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                self._state.unread = False  # nobody needs these ids any more
                self._emitter.wait(_WARN_SECS)
                if self._emitter.is_running:
                    log.warning("run ending, waiting for the current emission error=%s", type(error).__name__)
            self._emitter.wait()
            ended = self._emitter.collect()
            if ended is not None and error is None:
                self._take_note(ended)
        except BaseException as exc:
            error = exc  # it says more than the error of an emission before
            raise
        finally:
            self._emitter.stop(error)

    @property
    def emission(self) -> Emission | None:
        """Emission that is running, or that has ended and was not collected yet."""
        return self._emitter.emission

    def hurry(self) -> None:
        """End the delay before the next emission, because there is something new to emit."""
        self._emitter.hurry()

    def rest(self) -> None:
        """Release the lane to other runs until the next step. Roots in flight stay in flight."""
        self._has_begun = False
        self._noted = None  # another run may use the lane, and remove what was noted
        self._leaving.leave(self._spout.run_id, self._spout.spout_id, None, keep=True)

    def step(self, block_ms: int = POLL_MS, *, may_emit: bool = True, only_due_by: float | None = None) -> None:
        """Start an emission if there are messages to emit, poll for outcomes, and look for lost roots.

        Args:
            block_ms: longest wait for outcomes, in milliseconds.
            may_emit: False if no emission may start.
            only_due_by: time by which replays must have been due, as `time.monotonic`. None means now.

        Raises:
            AckerError: as for `run_spout`.
        """
        emitter, state = self._emitter, self._state
        self._outages.wait_for(self._take_lane)
        self._collect()
        may_emit = may_emit and not self._paused()
        if may_emit and time.monotonic() - self._replays_at > _REPLAYS_SECS:
            self._replays_at = time.monotonic()
            self._outages.wait_for(self._spout.claim_replays)
        if may_emit and emitter.is_free and (emission := self._spout.next_emission(self._room(), only_due_by)):
            state.follow(emission)
            emitter.emit(emission)
        if not state.pending and emitter.emission is not None:  # all outcomes arrived before the emission ended
            emitter.wait(block_ms / 1000)
            block_ms = 0
        self.was_emitting = emitter.emission is not None
        self.taken = taken = self._outages.wait_for(lambda: self._spout.poll(block_ms=block_ms))
        if taken or emitter.emission is not None:
            self._quiet_since = time.monotonic()
        idle_for = None if taken or emitter.emission is not None else state.pending
        missing = self._outages.wait_for(partial(self._watch.needs_reconcile, idle_for, state.emissions))
        self._ask_now = self._ask_now or missing or self._outages.seen
        if not taken and (self._ask_now or time.monotonic() - self._quiet_since > self._quiet_secs):
            if self._outages.seen or self._watch.replaced:
                state.ignore_losses()
                self._left.look()  # a server that lost its latest writes has roots that are done
            self._outages.wait_for(lambda: self._spout.reconcile(emitter.emission))
            self._ask_now = self._outages.seen = self._watch.replaced = False
            self._quiet_since = time.monotonic()
        if not taken and self._left.is_wanted:
            self._outages.wait_for(self._left.step)
        self._collect()  # again: the next step may have nothing to wait for
        self._look_at_sent()
        self._look_at_the_rest()
        self._note_outages()

    @property
    def outages(self) -> list[Outage]:
        """Outages that messages wait for, the longest first. Thread-safe."""
        outages = self._state.outages.outages()
        if not outages and (found := self._emitter.outage) is not None:
            since, last, error = found
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            place = error.place if isinstance(error, OutageError) else ""
            outages = [Outage(place, self._state.left, since + self._epoch_secs, last + self._epoch_secs, text)]
        return outages

    def _note_outages(self) -> None:
        """Note in Redis what messages wait for, once it changes, and at most every five seconds."""
        if time.monotonic() - self._noted_at < _NOTE_SECS:
            return
        self._noted_at, noted = time.monotonic(), (self.outages, self._state.set_aside())
        if noted != self._noted:
            spout = self._spout
            self._outages.wait_for(lambda: app_of(spout.acker).write_outages(spout.run_id, *noted, lane=spout.lane))
            self._noted = noted

    def _take_lane(self) -> None:
        """Acquire the lane if this run doesn't hold it, and look for roots that the previous run left there."""
        self._lease.acquire()
        if self._has_begun:
            return
        spout = self._spout
        before = app_of(spout.acker).last_run_ends().get(spout.lane)
        if before is None or (before.run_id != spout.run_id and not before.is_settled):
            if before is not None and before.spout_id % spout.acker.config.lanes == spout.lane:
                self._left.spout_ids.add(before.spout_id)
                self._state.gone_spout_ids.add(before.spout_id)
            self._left.look()
        app_of(spout.acker).note_end(End(spout.run_id, spout.spout_id, "begun"), lane=spout.lane)
        self._has_begun = True

    def _is_in_flight(self, roots: Int64Array) -> Mask:
        is_in_flight = np.zeros(len(roots), np.bool_)
        is_in_flight[self._state.look_up(roots)[0]] = True
        return is_in_flight

    def _paused(self) -> bool:
        now = time.monotonic()
        if now - self._pause_at < PAUSE_SECS:
            return self._is_paused
        self._pause_at = now
        pause = self._outages.wait_for(self._spout.acker.admin.paused)
        if (pause is not None) != self._is_paused:
            app = self._spout.acker.config.app
            if pause is None:
                log.info("app resumed app=%r", app)
            else:
                log.warning("app paused, emitting nothing app=%r reason=%r", app, pause.reason)
        self._is_paused = pause is not None
        return self._is_paused

    def _room(self) -> int | None:
        """Return how many messages may be in flight under the app's limit. Call it only while no emission runs.

        Then every message in flight has its root in the ledger, and all other pending roots belong to other spouts.
        """
        acker, now = self._spout.acker, time.monotonic()
        if now - self._limit_at >= LIMIT_SECS:
            self._limit_at = now
            self._limit = self._outages.wait_for(acker.admin.limits).max_pending
        own = self._state.pending
        if self._limit is None or self._state.left == own:  # there is no limit, or nothing to be emitted
            return self._limit
        others = max(0, self._outages.wait_for(acker.pending) - own)
        if others >= self._limit and now - self._held_at >= _HELD_SECS:
            self._held_at = now
            log.warning(
                "limit of pending roots reached, emitting nothing app=%r limit=%d", acker.config.app, self._limit
            )
        return max(0, self._limit - others)

    def _collect(self) -> None:
        ended = self._emitter.collect()
        if ended is not None:
            self._ask_now = self._ask_now or ended.failed
            self._take_note(ended)

    def _take_note(self, ended: Emitted) -> None:
        state, number, error = self._state, ended.emission.number, ended.error
        state.apply_marks()
        job_failed, sent = state.has_failed_job(number), state.sent[number]
        sent.ended, sent.proven, sent.error = True, error is None, None if ended.by_outage or job_failed else error
        if ended.by_outage or (error is not None and not job_failed):  # not the messages' fault
            state.exempt_emission(number)
        if error is None:
            self._emitter.succeeded()
            state.poison_search.succeeded()
        elif job_failed and not ended.by_outage and not isinstance(error, StoppedError):
            self._job_error = error
            if state.poison_search.is_hopeless and not is_outage(error):
                _raise_systematic(state.poison_search.in_a_row, error)
            self._emitter.job_failed(
                error, state.poison_search.in_a_row, waits=state.poison_search.is_stuck,
                raises_at_end=state.stops_if_broken is None,
            )  # fmt: skip
        else:
            self._emitter.failed(error)

    def _look_at_the_rest(self) -> None:
        """End a run in which all messages that are left were set aside, or wait for an outage that lasts too long.

        Raises:
            AckerError: they do. No message was dead-lettered for it.
        """
        state = self._state
        if state.pending or self._emitter.emission is not None or not state.left:
            return
        if (cause := state.aside) is not None and not self._spout.goes_on:
            if cause != FAILED_JOBS:
                raise state.aside_errors[cause]
            self._raise_all_failed()
        if self._emitter.is_overdue and not state.may_dead_letter:
            self._emitter.raise_outage()
        if outages := state.lasting_outages():
            places = " and ".join(
                f"{outage.count_text} waiting for {outage.operator or 'a sink'!r}, for "
                f"{outage.last_secs - outage.since_secs:.0f} s now"
                for outage in outages
            )
            raise AckerError(
                f"Something that the pipeline needs is unreachable: {places}. No row of another message has got through there "
                "since, so none of them is to blame, and none was dead-lettered. All other messages are done. Repair the "
                f"service and run again, or set RetryPolicy.outage_secs. The last error was: {outages[0].error}"
            )

    def _raise_all_failed(self) -> NoReturn:
        """Raise the error of a run whose messages all failed with their jobs.

        Raises:
            AckerError: always.
        """
        left = self._state.left
        raise AckerError(
            f"{'The only message' if left == 1 else f'Each of the {left} messages'} that is left failed with its job in every "
            "attempt, and no message has come through in this run. The cause is probably not a message, so none was "
            "dead-lettered for it. Fix the error and run again. If the messages are really bad, set stop_if_broken=False. "
            f"The last error was: {self._job_error}"
        ) from self._job_error

    def _look_at_sent(self) -> None:
        """Raise errors that no retry can fix: those that no replay shows again, and messages that never become roots."""
        for sent in self._state.take_finished():
            count = len(sent.emission.roots)
            if not count:
                continue  # the source has no messages, or didn't tell them
            if sent.error is not None and sent.acked == count:
                raise_error(sent.error)
            vanished = sent.error is None and sent.lost == count
            if vanished and self._vanished:
                raise InexactPipelineError(
                    f"None of the {count} messages of this emission became a root, nor of the emission before. The source "
                    "returned other ids or fewer rows when it was re-read. Possible causes are monotonically_increasing_id, "
                    "uuid, rand, the current time, limit, take, or a source that changed. Derive ids from the data, or "
                    "persist() or write the messages before the run."
                )
            self._vanished = vanished and not sent.emission.attempts.any()  # a single message may be permanently lost


def run_spout(
    spout: Spout, emit: Callable[[Emission], object], progress: Callable[[bool], object] | None = None
) -> SpoutCounts:
    """Run a spout until every message was acked or dead-lettered: emit, poll, replay and reconcile.

    If the server is unreachable, full, busy or a replica, retry 40 times (three to twelve minutes). Emissions that this
    interrupts don't count as failed.

    If `emit` can't reach something else, retry for up to `RetryPolicy.outage_secs` without a success, with delays of up to
    30 s. Such an error is an `OutageError`, or a connection or timeout error of Python or of a client. A spout that
    `goes_on` waits without a limit.

    Look for roots that the server lost in a restart or failover. The search starts as soon as the server was replaced, or
    reports fewer pending roots than expected.

    Args:
        spout: spout with its messages.
        emit: function that turns an emission into tuples and waits until they were sent (it runs the Spark job). It is
            called in a separate thread, one emission at a time. If it raises, the error is raised here at once and no
            message counts an attempt. There are three exceptions: a search for poison messages
            (`Marks.search_for_poison`), an emission that could not be proven (`UnprovenEmissionError`: three in a row are
            tried), and an outage. A root that times out before `emit` has returned is no attempt, up to ten times per message.
            Renew the roots of a long emission with `Acker.reset_timeout_many`.
        progress: callback, called several times a second, with True while an emission runs.

    Raises:
        AckerError: if `emit` failed repeatedly, or never succeeded; or as for `Spout.poll`.
        Exception: any error of `emit`.

    >>> spout.add(np.array([7, 8]))
    >>> run_spout(spout, lambda emission: acker.init_many(emission.roots, np.zeros_like(emission.roots), spout_id=0)).acked
    2
    """
    try:
        with SpoutLoop(spout, emit) as loop:
            while not spout.done:
                loop.step()
                if progress is not None:
                    progress(loop.emission is not None)
    except BadConfigError as exc:
        if is_of_held_lane(exc):
            raise exc.with_traceback(None) from None
        raise
    return spout.counts


def _raise_systematic(in_a_row: int, error: BaseException) -> NoReturn:
    """Raise the error that every emission fails with.

    Raises:
        AckerError: always.
    """
    raise AckerError(
        f"{in_a_row} emissions failed in a row, the last ones with different single messages. The cause is not a particular "
        f"message. Fix the error and run again. The last error was: {error}"
    ) from error
