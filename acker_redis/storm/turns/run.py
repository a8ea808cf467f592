"""Run of a topology on Spark: turn after turn, until it is stopped or the spouts are done."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from acker_redis.acker import Acker, app_of
from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    BadBatchError,
    BadConfigError,
    InexactPipelineError,
    InvalidTopologyError,
    LedgerLostError,
    OutageError,
    OutputNotWrittenError,
    PipelineError,
    ServerRefusesWritesError,
    ServerUnavailableError,
    StateLostError,
    TurnOverError,
    UnprovenEmissionError,
)
from acker_redis.model.config import check_bound, check_finite
from acker_redis.spark.proof.blame import Blame, blame_of, forget, is_lost_block, line_of, sink_of
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.runtime.sessions import parallelism
from acker_redis.spout.garbage import garbage_kept
from acker_redis.store.turns import Claim
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.local.engine import Engine
from acker_redis.storm.local.interrupts import noted
from acker_redis.storm.local.pending import timeout_secs
from acker_redis.storm.local.run import spout_id_of
from acker_redis.storm.local.service import RunResult, Service, check_stop
from acker_redis.storm.local.updates import Updates
from acker_redis.storm.turns.checks import TurnSettings, check_graph, check_sinks
from acker_redis.storm.turns.commit import HeldTooLongError
from acker_redis.storm.turns.engine import Emitted, TurnEngine
from acker_redis.storm.turns.frames import FrameSource, TurnRows
from acker_redis.storm.turns.holders import check_rows_of_batches
from acker_redis.storm.turns.job import TurnJobs, TurnReport, small_batches
from acker_redis.storm.turns.keeper import Keeper
from acker_redis.storm.turns.pauses import Pauses
from acker_redis.storm.turns.plan import Plan, levels_of, make_plan
from acker_redis.storm.turns.refusals import Refusals
from acker_redis.storm.turns.rows import MAX_BYTES
from acker_redis.storm.turns.run_state import RunState, RunTurn, check_state
from acker_redis.storm.turns.search import BoltHealth, TurnSearch
from acker_redis.storm.turns.sinks import check_writes
from acker_redis.storm.turns.sources import frame_sources
from acker_redis.storm.turns.ticks import Ticks

log = logging.getLogger("acker_redis.storm")

_MISTAKES = (
    PipelineError, BadBatchError, BadConfigError, InexactPipelineError, OutputNotWrittenError, InvalidTopologyError,
    StateLostError,
)  # fmt: skip
"""Errors that no further turn can fix."""

_PASSING = (
    ServerUnavailableError,
    UnprovenEmissionError,
    LedgerLostError,
    AppNotFoundError,
    OutageError,
    TurnOverError,
)
"""Errors that pass by themselves, and are nobody's attempt."""

_TURN_BYTES = 8 * MAX_BYTES
"""Bytes of emitted tuples at which a turn begins its job."""

_RETRY_SECS = 0.2


class TurnService(Service):
    """Run of a topology on Spark, in one thread of the driver.

    A round delivers outcomes, lets the spouts emit, and runs the job of a turn.
    """

    def __init__(
        self,
        plan: Plan,
        acker: Acker,
        stop: threading.Event | None,
        make_jobs: Callable[[str], TurnJobs],
        state: RunState,
        sources: Mapping[str, FrameSource],
        turn_settings: TurnSettings,
    ) -> None:
        self._plan, self._sources = plan, sources
        super().__init__(plan.graph, acker, stop)
        self._jobs = make_jobs(self.run_id)
        self._state = state
        self._settings = turn_settings
        self._number = 0
        self._search = TurnSearch()
        self._ticks = Ticks(plan)
        self._health = BoltHealth(everything_counts=not turn_settings.stop_if_broken)
        self._again: list[Emitted] = []
        self._alone: deque[tuple[Any, Any]] = deque()
        self._was_alone = False
        self._ends_at: float | None = None
        self._pauses = Pauses()
        self._engine: TurnEngine
        self._keeper = Keeper(acker, self._engine)
        self._refusals = Refusals(self._engine, self._health, self._ticks.has_held)

    def _make_engine(self, graph: Graph, acker: Acker, spout_id: int) -> Engine:  # noqa: ARG002  # the plan has it
        return TurnEngine(self._plan, acker, self._sources, run_id=self.run_id, spout_id=spout_id)

    @property
    def turns(self) -> int:
        """Number of turns."""
        return self._number

    # -- rounds

    def _loop(self) -> int:
        with self._state.running(
            self._patiently, self._may_ask
        ):  # behind the lease: a run that is refused ends no other
            return super()._loop()

    def _round(self) -> int:
        engine = self._engine
        fired, did = self._fire_timers(), 0
        for executor in engine.executors:
            did += executor.deliver()
        did += engine.time_out_if_due(self._refusals.unjudged)  # behind the last job's outcomes, however long it took
        if self._pauses.is_over and not self._is_away:
            did += self._turn()
        with garbage_kept():
            did += self._exchange() + engine.settle_frames()
        if not did and self._drains_until is not None:
            self._ticks.flush()
        elif not did and self._stop is None:
            self._ticks.flush(timed=False, windows=self._are_spouts_idle())
        return did + fired  # a timer of the run says nothing about messages

    def _is_at_rest(self) -> bool:
        """Return True if everything is settled, and no batch or window holds tuples, which aren't tracked then."""
        return self._is_settled() and not self._ticks.flush()

    def _is_stopped(self) -> bool:
        return super()._is_stopped() or self._engine.was_stopped

    def _is_settled(self) -> bool:
        engine = self._engine
        return super()._is_settled() and not self._waits and engine.is_empty

    @property
    def _waits(self) -> bool:
        """True if messages wait for their next turn."""
        return bool(self._search or self._refusals.has_others or self._again)

    def _turn(self) -> int:
        """Run a turn, if there is something for it. Returns the number of its emits."""
        engine, ticks = self._engine, self._ticks
        if self._is_paused or (ticks.is_suspect and not self._waits):
            ticks.add(engine.emits.rows, engine.now_secs(), engine.now_ms())
        elif self._search:
            engine.emit_again(self._search.take())
        elif self._refusals.has_others:
            engine.emit_again(self._refusals.take_others())
            self._search.begin(is_known=False)
        else:
            doubtful = self._refusals.judge()
            self._again += doubtful
            if doubtful:
                self._pauses.pause(1)
                return len(doubtful)
            again, self._again = self._again, []
            engine.emit_again(again)
            with garbage_kept():
                is_known = self._collect()
            self._search.begin(is_known=is_known)
            if not is_known and not ticks.is_suspect:
                ticks.add(engine.emits.rows, engine.now_secs(), engine.now_ms())
        count = len(engine.messages) + len(engine.untracked)
        if engine.is_empty:  # messages that no task receives are done with their init
            engine.end_turn()
            return count
        rows, frames = engine.emits.rows.take(), engine.take_frames()
        self._number += 1
        turn = self._state.turn(self.run_id, self._number)
        if self._send_inits(turn):
            self._run_job(turn, rows, frames)
        return count

    def _collect(self) -> bool:
        """Let the spouts emit. Returns True if the turn has only one message, which broke a turn before."""
        engine, limits = self._engine, self._settings
        for task in engine.spout_tasks.values():
            for replay in [replay for replay in task.due if replay.history.is_alone]:
                task.due.remove(replay)
                self._alone.append((task, replay))
        if self._alone and engine.is_empty and not self._was_alone:
            task, replay = self._alone.popleft()
            engine.emit_again([Emitted(task, replay.emission, replay.history)])
            self._was_alone = True
            return True
        self._was_alone = False
        deadline = time.monotonic() + limits.turn_secs
        idle: set[int] = set()
        while len(idle) < len(engine.executors) and self._may_call():
            for number, executor in enumerate(engine.executors):
                if number in idle:
                    continue
                if not executor.may_emit() or not executor.call_tasks():
                    idle.add(number)
                emitted = len(engine.messages) + len(engine.untracked)
                is_full = emitted >= limits.turn_tuples or engine.emits.rows.nbytes >= _TURN_BYTES
                if is_full or time.monotonic() > deadline:
                    return False
        return False

    # -- the job

    def _send_inits(self, turn: RunTurn) -> bool:
        """Send the inits of a turn, and open it. Returns False if its messages were lost."""
        engine, is_refused = self._engine, False
        while True:
            try:
                if engine.is_tracking:
                    engine.updates.send()
                    turn.open()
                return True
            except LedgerLostError as exc:
                self._lose(exc)
                return False
            except ServerRefusesWritesError as exc:
                if not is_refused:
                    log.warning("inits refused, the turn waits run_id=%r error=%s", self.run_id, exc)
                is_refused = True
                self._patiently(engine.receive)
            except ServerUnavailableError as exc:
                log.warning("server unavailable, the turn waits run_id=%r error=%s", self.run_id, exc)
            self._wait()

    def _run_job(self, turn: RunTurn, rows: Sequence[pa.RecordBatch], frames: Sequence[TurnRows]) -> None:
        engine, number = self._engine, self._number
        try:
            with self._keeper.keeping(turn):
                report = self._jobs.run(
                    number, rows, frames, engine.begin_turn(number), engine.now_secs(), engine.now_ms(),
                    engine.observer.events.percents,
                )  # fmt: skip
        except BaseException as exc:
            if self._interrupts < 2 and isinstance(exc, Exception):
                self._broke(turn, exc)
                return
            with suppress(AckerError):  # a server that is away doesn't hold up the end
                turn.close()
            if isinstance(exc, Exception):  # of the job that was cancelled
                raise KeyboardInterrupt from exc
            self._jobs.cancel(number)
            raise
        else:
            self._finished(report, frames)
        finally:
            forget(self._jobs.tag(number))

    def _end_at_once(self) -> None:
        """End the run without a drain, after a second Ctrl-C.

        Raises:
            KeyboardInterrupt: no job is running. Else it follows the end of the job, which another thread cancels: py4j would
                let this one wait for the job's answer first.
        """
        if self._keeper.ended.is_set():
            raise KeyboardInterrupt
        self._interrupts += 1
        threading.Thread(target=self._jobs.cancel_until, args=(self._keeper.ended, self._number), daemon=True).start()

    def _finished(self, report: TurnReport, frames: Sequence[TurnRows]) -> None:
        """Take in the result of a turn's job.

        Raises:
            InvalidTopologyError: a bolt did what a turn can't do.
            InexactPipelineError: the DataFrame of a spout returned other rows than before.
            OperatorBrokenError: many messages failed in a bolt that has processed none.
        """
        engine = self._engine
        for level in report.levels:
            if level.mistake is not None:
                engine.withdraw()
                raise InvalidTopologyError(level.mistake)
        try:
            engine.check_frames(report, frames)
        except InexactPipelineError:
            engine.withdraw()
            raise
        self._ticks.note_held(report.holds())
        engine.take_in(report, self._number)
        if self._found_lost(report):
            return
        failed = report.failed()
        for (component, _, retry, _), roots in failed.items():
            for root in roots.view(np.uint64).tolist():
                message = engine.message_of(root)
                if message is not None:
                    message.settled_by = component
                    message.retry = message.retry and retry
        verdict = self._health.judge(
            engine.messages, failed, report.worked(), engine.message_of, is_last=engine.is_last
        )
        if verdict.broken is not None:
            engine.withdraw()
            raise verdict.broken
        exempt = list(map(engine.message_of, verdict.exempt.view(np.uint64).tolist()))
        if exempt:
            self._again += engine.take_back([message for message in exempt if message is not None])
            self._pauses.pause(1)
        if engine.messages or engine.untracked:  # ticks alone say nothing about messages
            self._search.succeeded()
        self._ticks.succeeded(report.released())
        self._pauses.succeeded()
        engine.end_turn()

    def _found_lost(self, report: TurnReport) -> bool:
        """Return True if the ledger was lost during the job. Its messages have failed then."""
        lost = self._keeper.lost
        if lost is None and any(of.claim == Claim.CLOSED for of in report.bins):  # the turn was open
            try:
                self._patiently(app_of(self._acker).shards.check_all)
            except LedgerLostError as exc:
                lost = exc
        if lost is not None:
            self._ticks.succeeded(report.released())
            self._lose(lost)
        return lost is not None

    def _broke(self, turn: RunTurn, exc: Exception) -> None:
        """Decide about the messages of a turn whose job broke.

        Raises:
            Exception: the error, if no further turn can fix it.
        """
        engine = self._engine
        refused = self._refusals.pending_of(exc.refused) if isinstance(exc, HeldTooLongError) else {}
        if isinstance(exc, _MISTAKES) and not refused:
            self._patiently(turn.close)
            engine.withdraw()
            raise exc
        lost = self._keeper.lost
        if isinstance(exc, LedgerLostError) or lost is not None:
            if not self._patiently(turn.close):
                self._ticks.succeeded_unseen()
            self._lose(lost or exc)
            return
        if refused:
            log.warning(
                "held tuples too long, the turn goes out again without them run_id=%r turn=%d messages=%d error=%s",
                self.run_id, self._number, len(refused), exc,
            )  # fmt: skip
            self._patiently(turn.close)
            self._ticks.repeat()
            self._refusals.note(refused, is_last=engine.is_last)
            return
        blame = (
            Blame.OUTAGE
            if isinstance(exc, _PASSING)
            else blame_of(exc, self._jobs.session, self._jobs.tag(self._number))
        )
        is_closed = not engine.is_tracking or self._patiently(turn.close)
        if blame is Blame.PIPELINE:
            engine.withdraw()
            sink = sink_of(exc)
            if sink is None or isinstance(exc, AckerError):
                raise exc
            raise PipelineError(
                f"{sink!r} can't be written: {line_of(exc)}. Nothing of this turn was acked. Correct the path, the table or "
                "the sink's function, and run the topology again."
            ) from exc
        line = line_of(exc)
        if not is_closed:  # some updates are in the ledger
            log.warning(
                "turn broke behind its levels, messages without an outcome time out run_id=%r turn=%d error=%s",
                self.run_id, self._number, line,
            )  # fmt: skip
            self._search.succeeded()
            self._ticks.succeeded_unseen()
            engine.end_turn()
            return
        withdrawn, is_outage = engine.withdraw(), blame is Blame.OUTAGE_IN_A_JOB
        if blame is Blame.OUTAGE:
            self._ticks.repeat()
            self._again += withdrawn
            self._pauses.wait_for_outage(exc)
            return
        by_loss = is_lost_block(exc)
        if self._ticks.broke(exc, is_alone=not withdrawn and not is_outage, by_loss=by_loss):
            self._again += withdrawn
            if is_outage:
                self._pauses.wait_for_outage(exc)
            return
        log.warning(
            "turn broke, its messages go out again in parts run_id=%r turn=%d messages=%d error=%s",
            self.run_id, self._number, len(withdrawn), line,
        )  # fmt: skip
        guilty = self._search.broke(withdrawn, exc, by_outage=is_outage, by_loss=by_loss)
        if guilty is not None:
            engine.fail_withdrawn(guilty, f"JobFailedError: {line}")
        if is_outage:
            self._pauses.wait_for_outage(exc)
        elif self._search.in_a_row > 1:
            self._pauses.pause(self._search.in_a_row - 1)

    def _lose(self, exc: Exception) -> None:
        """End the turn, and fail all pending messages, because the ledger was lost."""
        log.warning("ledger lost, pending messages fail count=%d error=%s", self._engine.pending_roots_count, exc)
        self._ticks.repeat()
        self._patiently(self._acker.reopen)
        self._engine.lose()
        self._engine.end_turn()

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Call a function until the server answers."""
        while True:
            try:
                return call()
            except ServerUnavailableError as exc:
                log.warning("server unavailable, the topology waits run_id=%r error=%s", self.run_id, exc)
                self._wait()

    def _wait(self) -> None:
        """Wait shortly.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed twice.
            OutageError: the run was stopped two message timeouts ago.
        """
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self._is_stopped():
            now = time.monotonic()
            self._ends_at = self._ends_at or now + 2 * self._engine.timeout_secs
            if now > self._ends_at:
                raise OutageError(
                    "The server is away, so the stopped run can't be drained. Its messages time out, and the next run emits "
                    "what its spouts have."
                )
        time.sleep(_RETRY_SECS)


def run_on_spark(
    graph: Graph,
    spark: SparkSession,
    acker: Acker,
    *,
    own_sinks: Mapping[Any, Any],
    sinks: Mapping[Any, Any] | None,
    stop: threading.Event | None,
    executor_url: str | None,
    turn_tuples: int,
    turn_secs: float,
    turn_timeout_secs: float | None,
    stop_if_broken: bool,
    on_start: Callable[[Any], object],
) -> RunResult:
    """Run a topology on Spark; see `Topology.run`."""
    if not callable(getattr(spark, "createDataFrame", None)):
        raise BadConfigError(f"spark={spark!r:.100} is not a SparkSession. Pass SparkSession.builder.getOrCreate().")
    if not isinstance(acker, Acker):
        raise BadConfigError(f"acker={acker!r:.100} is not an Acker. Pass Acker.connect(url, app=...).")
    check_stop(stop)
    if turn_tuples is None:
        raise BadConfigError("turn_tuples=None is no limit, and a turn would have no end. Set a number of tuples.")
    check_bound("turn_tuples", turn_tuples, may_be_none=False)
    check_finite("turn_secs", turn_secs)
    if turn_timeout_secs is not None:
        check_finite("turn_timeout_secs", turn_timeout_secs, 1.0)
    with noted() as interrupted:
        levels_of(graph)
        check_graph(graph)
        check_rows_of_batches(graph, goes_on=stop is not None)
        check_state(graph)
        state = RunState(graph, acker)
        sources = frame_sources(graph, spark)
        specs = check_sinks(graph, own_sinks, {} if sinks is None else sinks, spark)
        for spec in specs:
            check_writes(spec, spark)
        is_tracking = graph.config.get(settings.ACKER_EXECUTORS) != 0
        url = check_url(spark, acker.url if executor_url is None else executor_url, acker) if is_tracking else None
        names = {spec.stream: spec.name for spec in specs}
        plan = make_plan(graph, names, {spec.stream: spec.types for spec in specs}, parallelism(spark))
        plan = replace(plan, timeout_secs=timeout_secs(graph, acker))
        if is_tracking:
            known = Updates(acker, spout_id_of(graph))
            bolts = [component.name for component in plan.graph.bolts]
            plan = replace(plan, ledger_names={name: known.name_of(name) for name in bolts})

        def make_jobs(run_id: str) -> TurnJobs:
            return TurnJobs(
                spark,
                plan,
                specs,
                run_id=run_id,
                url=url,
                config=acker.config,
                timeout_secs=turn_timeout_secs,
                state=state,
            )

        checked = TurnSettings(turn_tuples, turn_secs, turn_timeout_secs, stop_if_broken)
        service = TurnService(plan, acker, stop, make_jobs, state, sources, checked)
        on_start(service)
        with small_batches(spark), ExitStack() as opened:
            for source in sources.values():
                opened.enter_context(source.opened(acker.config.app))
            if interrupted.is_set():
                service.interrupt()
            return service.run()
