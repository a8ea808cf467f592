"""What a spout does again and again: emit, take outcomes, ask the ledger for what may be lost. One step at a time."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NoReturn, Protocol, Self

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.client.backoff import Outages, is_outage
from acker_redis.errors import AckerError, NotExactError, StoppedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spout.emitter import Emitted, Emitter, raise_error
from acker_redis.spout.in_flight import Emission, Mask
from acker_redis.spout.leftover_roots import Leaving, LeftoverRoots
from acker_redis.spout.state import SpoutState
from acker_redis.spout.watchdog import Watch
from acker_redis.store.run_ends import End

log = logging.getLogger("acker_redis.spout")

LOST_AFTER_TIMEOUTS = 4
"""The ledger is asked for what is in flight after so many message timeouts without any outcome."""

POLL_MS = 100

PAUSE_SECS = 1.0
"""Whether the app is paused is looked at so often."""

LIMIT_SECS = 1.0
"""The app's limit of pending roots is looked at so often; where there is one, what is pending before each emission."""

HELD_SECS = 60.0
"""That the limit leaves no room is said so often at most; several spouts may be in each other's way many times a second."""

LETTERS_SECS = 1.0
"""Dead letters that are to be replayed are looked for so often."""

TELL_SECS = 1.0
"""A run that ends with an error says what it waits for after so long."""


class Steps(Protocol):
    """A spout, as the loop needs it."""

    acker: Acker
    run_id: str
    state: SpoutState

    @property
    def task(self) -> int:
        """Owner of its roots."""

    @property
    def lane(self) -> int:
        """Where its outcomes come."""

    def next_emission(self, most: int | None = None) -> Emission | None:
        """See `Spout`."""

    def poll(self, *, block_ms: int) -> int:
        """See `Spout`."""

    def take_letters(self) -> None:
        """See `Spout`."""

    def reconcile(self, under_way: Emission | None) -> int:
        """See `Spout`."""


class SpoutLoop:
    """Steps of one spout; use it as a context, which waits for the emission under way when it is left.

    One thread at a time may step.

    Attributes:
        taken: outcomes that the last step took.
    """

    def __init__(self, spout: Steps, emit: Callable[[Emission], object]) -> None:
        """Nothing is emitted yet; `emit` is as for `Spout.run`."""
        self.taken = 0
        self._spout, self._state = spout, spout.state
        self._emitter = Emitter(emit)
        self._outages = Outages(log)
        self._lease = app_of(spout.acker).lease(lane=spout.lane, run_id=spout.run_id)
        self._left = LeftoverRoots(spout.acker, self._is_in_flight)
        self._left.tasks.add(spout.task)
        self._watch = Watch(spout.acker, spout.lane)
        self._leaving = Leaving(self._lease, self._state, self._left, self._watch, spout.acker, spout.lane)
        self._has_begun = False
        self._quiet_secs = LOST_AFTER_TIMEOUTS * spout.acker.config.message_timeout_secs
        self._quiet_since = time.monotonic()
        self._letters_at = self._pause_at = self._limit_at = self._held_at = float("-inf")
        self._is_paused = False
        self._limit: int | None = None
        self._ask_now = self._vanished = False
        self._state.sent.clear()

    def __enter__(self) -> Self:
        """Begin, as the only one on the lane.

        Raises:
            BadConfigError: another run is.
        """
        try:
            self._outages.wait_for(self._take)
        except BaseException:
            with suppress(AckerError):
                self._lease.release()
            raise
        self._emitter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the emission under way; see `Emitter`. Then nothing of this run stays pending, or waits for a spout."""
        ended_with = error
        try:
            self._end_emission(kind, error, trace)
        except BaseException as exc:
            ended_with = exc
            raise
        finally:
            self._leaving.leave(self._spout.run_id, self._spout.task, ended_with)

    def _end_emission(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._emitter.wait(TELL_SECS)
                if self._emitter.is_running:
                    log.warning(
                        "%s: waiting for the emission under way; in Spark, another Ctrl-C ends its jobs", kind.__name__
                    )
            self._emitter.wait()
            ended = self._emitter.collect()
            if ended is not None and kind is None:
                self._take_note(ended)
        finally:
            self._emitter.__exit__(kind, error, trace)

    @property
    def emission(self) -> Emission | None:
        """The emission under way, or one whose end was not looked at yet."""
        return self._emitter.emission

    def hurry(self) -> None:
        """Pause no longer before the next emission: there is something new to emit."""
        self._emitter.hurry()

    def rest(self) -> None:
        """Let another run have the lane until the next step; what is in flight stays that."""
        self._has_begun = False
        self._leaving.leave(self._spout.run_id, self._spout.task, None, keep=True)

    def step(self, block_ms: int = POLL_MS, *, may_emit: bool = True) -> None:
        """Begin an emission if there is one to make, take outcomes, and look for what is lost.

        Args:
            block_ms: wait so long for outcomes.
            may_emit: whether an emission may begin.

        Raises:
            AckerError: as `Spout.run`.
        """
        emitter, state = self._emitter, self._state
        self._outages.wait_for(self._take)
        self._collect()
        may_emit = may_emit and not self._paused()
        if may_emit and time.monotonic() - self._letters_at > LETTERS_SECS:
            self._letters_at = time.monotonic()
            self._outages.wait_for(self._spout.take_letters)
        if may_emit and emitter.is_free and (emission := self._spout.next_emission(self._room())) is not None:
            state.follow(emission)
            emitter.start(emission)
        if not state.pending and emitter.emission is not None:  # all outcomes came before the emission has ended
            emitter.wait(block_ms / 1000)
            block_ms = 0
        self.taken = taken = self._outages.wait_for(lambda: self._spout.poll(block_ms=block_ms))
        if taken or emitter.emission is not None:
            self._quiet_since = time.monotonic()
        idle_for = None if taken or emitter.emission is not None else state.pending
        missing = self._outages.wait_for(partial(self._watch.something_is_missing, idle_for, state.emissions))
        self._ask_now = self._ask_now or missing or self._outages.seen
        if not taken and (self._ask_now or time.monotonic() - self._quiet_since > self._quiet_secs):
            if self._outages.seen or self._watch.replaced:
                state.excuse_losses()
                self._left.look()  # a server that went back in time has roots that are done
            self._outages.wait_for(lambda: self._spout.reconcile(emitter.emission))
            self._ask_now = self._outages.seen = self._watch.replaced = False
            self._quiet_since = time.monotonic()
        if not taken and self._left.is_wanted:
            self._outages.wait_for(self._left.step)
        self._collect()  # here, too: the next step may have nothing to wait for
        self._look_at_sent()

    def _take(self) -> None:
        """The lane, if this run has let go of it or has not had it; and find what the run before left there."""
        self._lease.take()
        if self._has_begun:
            return
        spout = self._spout
        before = app_of(spout.acker).ends().get(spout.lane)
        if before is None or (before.run_id != spout.run_id and not before.is_settled):
            if before is not None and before.task % spout.acker.config.lanes == spout.lane:
                self._left.tasks.add(before.task)
                self._state.gone_tasks.add(before.task)
            self._left.look()
        app_of(spout.acker).note_end(End(spout.run_id, spout.task, "begun"), lane=spout.lane)
        self._has_begun = True

    def _is_in_flight(self, roots: Int64Array) -> Mask:
        found = np.zeros(len(roots), np.bool_)
        found[self._state.find(roots)[0]] = True
        return found

    def _paused(self) -> bool:
        now = time.monotonic()
        if now - self._pause_at < PAUSE_SECS:
            return self._is_paused
        self._pause_at = now
        found = self._outages.wait_for(self._spout.acker.admin.paused)
        if (found is not None) != self._is_paused:
            app = self._spout.acker.config.app
            if found is None:
                log.info("app %r is resumed", app)
            else:
                log.warning(
                    "app %r is paused (%s): nothing is emitted until it is resumed", app, found.reason or "no reason"
                )
        self._is_paused = found is not None
        return self._is_paused

    def _room(self) -> int | None:
        """How many messages the app's limit lets be in flight. To be asked where no emission is under way.

        All that is in flight here stands in the ledger then; the rest of what is pending there is others'.
        """
        acker, now = self._spout.acker, time.monotonic()
        if now - self._limit_at >= LIMIT_SECS:
            self._limit_at = now
            self._limit = self._outages.wait_for(acker.admin.limits).max_pending
        own = self._state.pending
        if self._limit is None or self._state.left == own:  # there is none, or nothing to be emitted
            return self._limit
        others = max(0, self._outages.wait_for(acker.pending) - own)
        if others >= self._limit and now - self._held_at >= HELD_SECS:
            self._held_at = now
            log.warning(
                "app %r has %d pending roots, as many as its operator allows: nothing is emitted until some settle",
                acker.config.app, self._limit,
            )  # fmt: skip
        return max(0, self._limit - others)

    def _collect(self) -> None:
        ended = self._emitter.collect()
        if ended is not None:
            self._ask_now = self._ask_now or ended.failed
            self._take_note(ended)

    def _take_note(self, ended: Emitted) -> None:
        state, number, error = self._state, ended.emission.number, ended.error
        state.apply_marks()
        broke, sent = state.has_broken(number), state.sent[number]
        sent.ended, sent.proven, sent.error = True, error is None, None if ended.by_outage or broke else error
        if ended.by_outage or (error is not None and not broke):  # what that broke off is not the messages' fault
            state.excuse_emission(number)
        if error is None:
            self._emitter.succeeded()
            state.isolation.succeeded()
        elif broke and not ended.by_outage and not isinstance(error, StoppedError):
            if state.isolation.is_hopeless and not is_outage(error):
                _raise_systematic(state.isolation.in_a_row, error)
            self._emitter.broke(error, state.isolation.in_a_row, waits=state.isolation.is_stuck)
        else:
            self._emitter.failed(error)

    def _look_at_sent(self) -> None:
        """Raise what waiting can't change: an error that no replay will show again, and messages that never become roots."""
        for sent in self._state.take_finished():
            count = len(sent.emission.roots)
            if sent.error is not None and sent.acked == count:
                raise_error(sent.error)
            vanished = sent.error is None and sent.lost == count
            if vanished and self._vanished:
                raise NotExactError(
                    f"none of the {count} messages of an emission became a root, and of those before neither: read again, "
                    "they have other ids or are gone (monotonically_increasing_id, uuid, rand, the time; a source that "
                    "changed), or only a part of the rows is read (limit, take). Take ids from the data, persist() or write "
                    "the messages before the run"
                )
            self._vanished = vanished and not sent.emission.attempts.any()  # one message of many may be lost for good


def _raise_systematic(in_a_row: int, error: BaseException) -> NoReturn:
    """Raise what breaks every emission.

    Raises:
        AckerError: always.
    """
    raise AckerError(
        f"{in_a_row} emissions failed in a row, at last with different messages alone, so none of these is to blame: {error}"
    ) from error
