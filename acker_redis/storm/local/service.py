"""Service: a run of a topology in this process, in real time."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError, LedgerLostError, ServerRefusesWritesError, ServerUnavailableError
from acker_redis.store import pause
from acker_redis.store.lane_leases import Lease
from acker_redis.storm.components.stateful import warn_of_split_state
from acker_redis.storm.core.event_log import Event
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.observer import FailedTree
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.local.bolts import BoltTask
from acker_redis.storm.local.clock import real_clock
from acker_redis.storm.local.engine import Engine
from acker_redis.storm.local.interrupts import Interrupts
from acker_redis.storm.local.run import spout_id_of
from acker_redis.storm.local.showing import Showing

log = logging.getLogger("acker_redis.storm")

_CALLS_PER_ROUND = 1000
"""Maximum number of `next_tuple` rounds of an executor before its tuples are processed."""

_CALLS_SECS, _TUPLES_SECS = 0.02, 0.1
"""Time after which a round ends its calls of a spout's executor, and its executions, although there is more to do."""

_DRAIN_SECS = 5.0
"""Time that a stopped run has, beside two message timeouts."""

_LONGEST_NAP_SECS = 0.1
_OUTAGE_PAUSE_SECS = 0.5


@dataclass(frozen=True)
class RunResult:
    """Result of a run of a topology that has ended.

    Attributes:
        run_id: id of the run.
        acked: number of messages acked.
        failed: number of attempts that failed.
        timed_out: number of attempts that timed out.
        dead_letters: number of dead letters written.
        unfinished: number of messages that were pending, or waited for their next attempt, when the run ended.
        metrics: metrics by component.
        failed_trees: the last 1,000 trees that failed or timed out.
        duration_secs: time from the call to its end, in seconds.
        events: event log: emits of the components that `topology.debug` is set for, the newest 100,000.
    """

    run_id: str
    acked: int
    failed: int
    timed_out: int
    dead_letters: int
    unfinished: int
    metrics: Mapping[str, ComponentMetrics] = field(repr=False)
    failed_trees: list[FailedTree] = field(repr=False)
    duration_secs: float
    events: list[Event] = field(default_factory=list, repr=False)


class Service:
    """Run of a topology in real time, in one thread.

    A round delivers what is due, calls the spouts, executes what is queued, and sends all updates together.
    """

    def __init__(self, graph: Graph, acker: Acker, stop: threading.Event | None) -> None:
        self.run_id = f"{graph.name[:60]}-{secrets.token_hex(6)}"
        self._acker = acker
        self._stop = stop
        self._began = time.monotonic()
        spout_id = spout_id_of(graph)
        self._engine = self._make_engine(graph, acker, spout_id)
        self._lease = Lease(app_of(acker).client, acker.config.app, spout_id % acker.config.lanes, self.run_id)
        self._showing = Showing(graph, acker, self._engine, self.run_id)
        self._interrupts = 0
        self._drains_until: float | None = None
        self._unasked: list[BoltTask] | None = None
        self._is_away = False
        self._is_silent = False
        self._asks_again = 0.0
        self._is_paused = False
        self._polled = 0.0

    def _make_engine(self, graph: Graph, acker: Acker, spout_id: int) -> Engine:
        return Engine(
            graph, acker, run_id=self.run_id, choice_key=self.run_id, spout_id=spout_id, clock=real_clock, rng=None,
            is_recording=False,
        )  # fmt: skip

    @property
    def metrics(self) -> Mapping[str, ComponentMetrics]:
        """Metrics by component."""
        return self._engine.observer.metrics

    @property
    def turns(self) -> int | None:
        """Number of turns on Spark; None in process."""
        return None

    def run(self) -> RunResult:
        """Run until the end, and return the result."""
        if self._engine.is_tracking:
            self._acquire()
        warn_of_split_state(self._engine.graph)
        error: BaseException | None = None
        try:
            self._showing.begin()
            with (
                Interrupts(self.interrupt, self._end_at_once),
                app_of(self._acker).client.patient_while(lambda: not self._is_stopped()),
            ):
                unfinished = self._loop()
        except BaseException as exc:
            error = exc
            raise
        finally:
            if self._may_ask():
                self._showing.end(self.turns, error)
            self._release()
        metrics = self.metrics
        spouts = [metrics[component.name] for component in self._engine.graph.spouts]
        return RunResult(
            run_id=self.run_id,
            acked=sum(spout.acked.total() for spout in spouts),
            failed=sum(spout.failed.total() for spout in spouts),
            timed_out=sum(spout.timed_out.total() for spout in spouts),
            dead_letters=self._engine.replays.dead_letters,
            unfinished=unfinished,
            metrics=metrics,
            failed_trees=list(self._engine.failed_trees),
            duration_secs=time.monotonic() - self._began,
            events=list(self._engine.observer.events),
        )

    def _loop(self) -> int:
        """Work until the end. Returns the number of unfinished messages."""
        engine = self._engine
        try:
            engine.activate()
            self._set_timers()
            nap_secs = 0.0
            while not self._is_over():
                try:
                    did = self._round()
                except KeyboardInterrupt:
                    self.interrupt()
                    continue
                nap_secs = 0.0 if did else min(_LONGEST_NAP_SECS, max(0.001, nap_secs * 2))
                if nap_secs:
                    self._nap(nap_secs)
            engine.deactivate()
            engine.close()
            unfinished = engine.pending_roots_count + engine.replays.waiting + engine.replays.unwritten
        except BaseException:
            try:
                engine.close(is_orderly=False)
            except Exception:
                log.debug("component not closed after an error", exc_info=True)
            raise
        finally:
            engine.abandon()
            self._exchange(is_last=True)
        return unfinished

    def _round(self) -> int:
        """Do one round. Returns how much it did."""
        engine = self._engine
        did = self._fire_timers()
        for executor in engine.executors:
            did += executor.deliver()
            calls, deadline = 0, time.monotonic() + _CALLS_SECS
            while calls < _CALLS_PER_ROUND and self._may_call() and executor.may_emit():
                calls += 1
                if not executor.call_tasks():
                    break
                did += 1
                if time.monotonic() > deadline:
                    break
        did += engine.drain(time.monotonic() + _TUPLES_SECS)
        if not did and (self._drains_until is not None or self._stop is None):
            did += self._flush_bolts()
        return did + self._exchange()

    def _fire_timers(self) -> int:
        """Make the calls that are due, after the outcomes that came before them. Returns how much it did."""
        engine = self._engine
        due = engine.timers.next_secs()
        if due is None or due > real_clock():
            return 0
        did = self._exchange()
        for executor in engine.executors:
            did += executor.deliver()
        return did + engine.timers.fire_due()

    def _may_call(self) -> bool:
        return self._engine.is_active and not (self._is_away or self._is_paused or self._is_stopped())

    def _is_stopped(self) -> bool:
        return self._interrupts > 0 or (self._stop is not None and self._stop.is_set())

    def _flush_bolts(self) -> int:
        """Let bolts process what they hold. Before the end of the spouts, only those that no tick would reach."""
        is_draining = self._drains_until is not None
        return self._flush(
            task
            for task in self._engine.by_level()
            if is_draining or (task.is_never_flushed and (not task.has_windows or self._are_spouts_idle()))
        )

    def _flush(self, tasks: Iterable[BoltTask]) -> int:
        """Let bolts process what they hold, upstream first, until one makes work. Returns how much it did."""
        engine = self._engine
        for task in tasks:
            before = engine.updates.changes
            task.flush()
            if engine.queues.pairs or engine.updates.changes > before:
                return 1
        return 0

    def _are_spouts_idle(self) -> bool:
        return not self._is_paused and all(executor.is_idle for executor in self._engine.executors)

    def _exchange(self, *, is_last: bool = False) -> int:
        """Send updates and dead letters, and receive outcomes. While the server is away everything is kept."""
        engine, now = self._engine, time.monotonic()
        is_quiet = engine.updates.is_empty and not engine.replays.unwritten
        if not engine.is_tracking:
            self._finish_replays()
            return 0
        longest_secs = 0.05 if engine.pending_roots_count else 1.0
        if is_quiet and not is_last and now - self._polled < longest_secs:
            return 0
        if not self._may_ask():
            return 0
        self._polled = now
        try:
            engine.replays.write()
            outcomes = engine.exchange()
        except LedgerLostError as exc:
            if not is_last:
                self._recover(exc)
            return 0
        except ServerUnavailableError as exc:
            self._note_outage(exc)
            return 0
        if self._is_away:
            log.info("server available again run_id=%r", self.run_id)
            self._is_away = self._is_silent = False
        return outcomes

    def _finish_replays(self) -> None:
        """Delete the letters of replays that were acked inside of their emit. While the server is away they are kept."""
        if not self._engine.replays.unwritten or not self._may_ask():
            return
        try:
            self._engine.replays.write()
        except ServerUnavailableError as exc:
            log.debug("dead letters not deleted run_id=%r error=%s", self.run_id, exc)
            self._is_silent = True

    def _may_ask(self) -> bool:
        """Return False while the server is silent. Asks it now and then, once, because a patient call would block bolts."""
        if not self._is_silent:
            return True
        began = time.monotonic()
        if began < self._asks_again:
            return False
        if app_of(self._acker).client.answers():
            return True
        now = time.monotonic()
        self._asks_again = now + max(_OUTAGE_PAUSE_SECS, now - began)
        return False

    def _recover(self, error: LedgerLostError) -> None:
        """Reopen the app, and fail everything that is pending. While the server is away, the next exchange tries again."""
        engine = self._engine
        try:
            self._acker.reopen()
        except ServerUnavailableError as exc:
            self._note_outage(exc)
            return
        log.warning("ledger lost, pending messages fail count=%d error=%s", engine.pending_roots_count, error)
        engine.lose()

    def _note_outage(self, error: ServerUnavailableError) -> None:
        if not self._is_away:
            log.warning("server unavailable, the spouts wait run_id=%r error=%s", self.run_id, error)
        self._is_away = True
        self._is_silent = not isinstance(error, ServerRefusesWritesError)

    def _is_over(self) -> bool:
        """Return True if the run ends now. Begins to drain it if it is stopped or done: spouts may emit in `deactivate`."""
        engine = self._engine
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self._drains_until is None and (self._is_stopped() or self._is_done()):
            self._drains_until = time.monotonic() + 2 * engine.timeout_secs + _DRAIN_SECS
            self._unasked = None
            engine.deactivate()
        return self._drains_until is not None and (time.monotonic() > self._drains_until or self._is_at_rest())

    def _is_done(self) -> bool:
        is_idle = self._stop is None and self._are_spouts_idle() and not self._engine.replays.waiting
        return is_idle and self._is_at_rest()

    def _is_at_rest(self) -> bool:
        """Return True if everything is settled, and no bolt holds tuples, which aren't tracked then.

        Each bolt is asked once more, because one that emits at each flush would hold up the end.
        """
        if not self._is_settled():
            return False
        if self._unasked is None:
            self._unasked = self._engine.by_level()[::-1]
        while self._unasked:
            if self._flush([self._unasked.pop()]):
                return False
        return True

    def _is_settled(self) -> bool:
        engine = self._engine
        return not (
            engine.queues.pairs
            or engine.pending_roots_count
            or any(executor.inbox for executor in engine.executors)
            or not engine.updates.is_empty
            or engine.replays.unwritten
        )

    def _set_timers(self) -> None:
        engine = self._engine
        if engine.is_tracking:
            engine.timers.every(self._acker.config.tick_ms / 4000, self._renew, skips_missed=True)
        engine.timers.every(1.0, self._look_around, skips_missed=True)
        self._look_around()

    def _renew(self) -> None:
        """Keep pending roots in the ledger. The pending map decides when a message times out."""
        if self._is_silent:
            return
        try:
            self._engine.updates.renew(self._engine.pending_roots())
        except (ServerUnavailableError, LedgerLostError) as exc:  # the next exchange meets it, too
            log.debug("roots not renewed run_id=%r error=%s", self.run_id, exc)

    def _look_around(self) -> None:
        """Check that the lane is still held, look for a pause, claim dead letters to replay, and write counts."""
        is_tracking = self._engine.is_tracking
        if self._is_silent and (is_tracking or not self._may_ask()):
            return
        try:
            if is_tracking:
                self._lease.acquire()
            self._note_pause(pause.paused(app_of(self._acker).client, self._acker.config.app))
            if self._may_call():
                self._engine.replays.claim()
            if not is_tracking:
                self._is_silent = False
            self._showing.counts(self.turns)
        except ServerUnavailableError as exc:
            log.debug("dead letters not claimed run_id=%r error=%s", self.run_id, exc)
            if is_tracking:
                self._note_outage(exc)
            else:
                self._is_silent = True

    def _note_pause(self, paused: pause.Paused | None) -> None:
        if (paused is not None) is self._is_paused:
            return
        self._is_paused = paused is not None
        if paused is None:
            log.info("app resumed app=%r", self._acker.config.app)
            if self._drains_until is None:
                self._engine.activate()
        else:
            log.warning("app paused, emitting nothing app=%r reason=%r", self._acker.config.app, paused.reason)
            self._engine.deactivate()

    def _nap(self, secs: float) -> None:
        due = self._engine.timers.next_secs()
        if due is not None:
            secs = max(0.0, min(secs, due - real_clock()))
        if self._stop is None or self._drains_until is not None:
            time.sleep(secs)
        else:
            self._stop.wait(secs)

    def interrupt(self) -> None:
        """Drain the run, as the first Ctrl-C does. A second call ends it at once."""
        self._interrupts += 1
        if self._interrupts == 1:
            log.warning("draining, press Ctrl-C again to end at once run_id=%r", self.run_id)

    def _end_at_once(self) -> None:
        """End the run without a drain, after a second Ctrl-C."""
        raise KeyboardInterrupt

    def _acquire(self) -> None:
        try:
            self._lease.acquire()
        except BadConfigError as exc:
            config, name = self._acker.config, self._engine.graph.name
            raise BadConfigError(
                f"Topology {name!r} can't start, because its lane of app {config.app!r} is in use by another run. The two "
                "would take each other's outcomes. Stop the other run, or give each topology an app of its own."
            ) from exc

    def _release(self) -> None:
        try:
            if not self._may_ask():
                self._lease.abandon()
            self._lease.release()
        except ServerUnavailableError as exc:
            log.warning("lane stays held for some seconds run_id=%r error=%s", self.run_id, exc)


def run_service(
    graph: Graph, acker: Acker, stop: threading.Event | None, on_start: Callable[[Service], object]
) -> RunResult:
    """Run a topology in real time; see `Topology.run_local`."""
    check_stop(stop)
    service = Service(graph, acker, stop)
    on_start(service)
    return service.run()


def check_stop(stop: object) -> None:
    """Check that an event can end a run.

    Raises:
        BadConfigError: it is none.
    """
    if stop is not None and not (callable(getattr(stop, "is_set", None)) and callable(getattr(stop, "wait", None))):
        raise BadConfigError(
            f"stop={stop!r} is not an event, so it can't end the run. Pass a threading.Event, or omit it."
        )
