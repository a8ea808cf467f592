"""One start of a streaming query: its spout, which works during and between micro-batches.

The holder of the lock steps the spout: the thread of a micro-batch while one runs, else this module's worker thread. So
outcomes are processed, and parked messages are emitted again, even if the source is quiet. `query_states` defines the
states.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, BadConfigError, ClosedError, ServerUnavailableError, StoppedError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import MessageNames
from acker_redis.spark import sql
from acker_redis.spark.emission.messages import MESSAGE_ID, Places, read_ids, read_places, with_message_ids
from acker_redis.spark.emission.once_output import OnceOutput
from acker_redis.spark.emission.operator_health import OperatorHealth
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.emission.runner import EmissionRunner
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runs.once import open_output
from acker_redis.spark.runs.options import StreamSettings
from acker_redis.spark.runtime.jobs import described, inherited
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.replaced_sources import WrittenTables
from acker_redis.spark.streaming.batch_reads import BatchReads
from acker_redis.spark.streaming.batch_session import BatchSession
from acker_redis.spark.streaming.completed_offsets import CompletedOffsets
from acker_redis.spark.streaming.group_offsets import GroupOffsets
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.parked_rows import ParkedRows
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation
from acker_redis.spark.streaming.parking.snapshot import Snapshot
from acker_redis.spark.streaming.parking.snapshot_writer import SnapshotWriter
from acker_redis.spark.streaming.query_states import QueryState, QueryStates
from acker_redis.spark.streaming.rows_without_ids import RowsWithoutIds
from acker_redis.spark.streaming.spark_queries import SparkQueries
from acker_redis.spark.streaming.stream_status import StreamStatus
from acker_redis.spout.dead_letter_replay import LoadedReplays
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import SpoutLoop
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetter

log = logging.getLogger("acker_redis.spark")

FEW, QUIET_SECS = 0.01, 0.1
"""Share of a micro-batch that is no longer waited for, once no outcome has arrived for so many seconds."""

PAUSE_SECS = 0.1
"""Interval at which outcomes are processed between micro-batches."""

LOOK_SECS = 1.0
"""Interval at which it is checked that Spark still runs the query."""

LETTERS = 1000
"""Number of dead letters that the spout of a stream keeps in memory."""


class TrackedQuery:
    """Run the micro-batches of one start of a query. `QueryStates` has its states, which change under the lock.

    Attributes:
        run: Spark's id of this start; None: unknown until the first micro-batch.
        error: error that ended the query; None: no error.
    """

    def __init__(
        self,
        spark: SparkSession,
        queries: SparkQueries,
        pipeline: Pipeline,
        acker: Acker,
        url: str | None,
        options: StreamSettings,
        store: ParkingLocation,
        publish: Callable[[StreamStatus], object],
    ) -> None:
        """Prepare the query. `resume` starts it.

        Args:
            spark: session for work between micro-batches.
            queries: queries that Spark runs.
            pipeline: see `TrackedBatches`.
            acker: acker of this process.
            url: URL of the acker's server for executors.
            options: settings.
            store: parking location.
            publish: function that is called with the status after each micro-batch, every second, and at the end.
        """
        self.run: str | None = None
        self.error: BaseException | None = None
        self._spark, self._queries = spark, queries
        self._pipeline, self._acker, self._url = pipeline, acker, url
        self._options, self._store, self._publish = options, store, publish
        self._spout = Spout(
            acker, uuid.uuid4().hex, options.spout_id, options.retry, options.max_spout_pending,
            payload=self._payloads if options.dead_letter_bytes else None, on_done=self._on_done, keep_letters=LETTERS,
            place=None if options.kafka_group is None else self._places,
            replay=self._load_replays, is_exact=self._is_exact,
            on_letters=self._on_letters, goes_on=True,
        )  # fmt: skip
        self._group = (
            None if options.kafka_group is None else GroupOffsets(options.kafka_group, acker, store, self._spout)
        )
        self._messages = ParkedMessages(self._spout.state, lambda: self._spout.replaying)
        self._reads = BatchReads(lambda: queries.is_repeatable(store.query, self.run))
        self._rows = ParkedRows(self._messages, options.dead_letter_bytes, self._reads.keep, options.parked_columns)
        before_saves = (lambda: None) if self._group is None else self._group.keep_letters
        self._writer = SnapshotWriter(store, self._messages, self._rows.snapshot, before_saves)
        self._loop = SpoutLoop(self._spout, self._emit)
        max_open = min(
            options.max_parked + 1, options.max_spout_pending or options.max_parked + 1
        )  # then a micro-batch waits
        self._health = OperatorHealth(
            everything_counts=not options.stop_if_broken, goes_on=True, max_open=max_open,
            max_attempts=options.retry.max_attempts,
        )  # fmt: skip
        self._without_ids = RowsWithoutIds(
            acker, dead_letter_bytes=options.dead_letter_bytes, stop_if_broken=options.stop_if_broken
        )
        self._states = QueryStates()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._run_emission = inherited(spark, self._emit_in_session)
        self._batch_spark, self._batch_id = spark, -1
        self._session = BatchSession()
        self._batches = 0
        self._quiet_since = self._looked_at = self._published_at = time.monotonic()
        self._has_other_columns = False
        self._offsets = CompletedOffsets({})
        self._once_output: OnceOutput | None = None
        self._noted_number, self._note_after = -1, 0.0
        self._tables = WrittenTables()

    # -- calls of TrackedBatches

    def resume(self, before: int) -> None:
        """Restore the messages parked before a micro-batch, and start to work between micro-batches.

        Raises:
            BadConfigError: the parking location is damaged.
        """
        self._loop.start()
        try:
            snapshot = self._store.load(before)
            must_save = self._store.start_saving(before)
            self._check_number(before)
            self._open_log()
            self._offsets = CompletedOffsets(self._acker.completed_offsets(self._options.spout_id))
            self._rows.stream = self._queries.columns(self._store.query, self.run)
            if snapshot is not None:
                self._restore(snapshot)
            if self._group is not None:
                self._group.resume(before, self._offsets.open.values())
        except BaseException as exc:  # release the lane for another start
            self._close(QueryState.ENDED, exc)
            raise
        self._batch_id = before - 1
        if not must_save:
            self._writer.mark_saved()
        self._work_between_batches()

    def process_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch: emit its messages, and park those without an outcome.

        Raises:
            AckerError: the micro-batch failed, and the query can't continue.
        """
        with self._lock:
            self._raise_error()
            self._raise_stopped()
            try:
                self._wake()
                self._states.move_to(QueryState.IN_BATCH)
                batch = self._session.adopt(batch)
                self._reads.begin(batch)
                try:
                    self._run_batch(batch, batch_id)
                finally:
                    self._reads.end()
            except BaseException as exc:
                error = StoppedError(f"The query was stopped. Error: {exc}") if self._was_stopped() else exc
                self._break_off(error, QueryState.ENDED)
                raise
            self._work_between_batches()

    def drain(self, timeout_secs: float) -> None:
        """Work until nothing is left or the time is over, and save the rest.

        Raises:
            AckerError: the query failed; or a micro-batch was running all that time, so nothing was done here.
        """
        deadline = time.monotonic() + timeout_secs
        # Between micro-batches the lock is held only briefly.
        if not self._lock.acquire(timeout=min(max(timeout_secs, LOOK_SECS), threading.TIMEOUT_MAX)):
            raise AckerError(
                f"drain(timeout_secs={timeout_secs}) could not start, because a micro-batch or an emission was running all "
                "that time. Nothing is lost, and nothing more was done or saved. Stop the query first, or set a longer "
                "timeout_secs."
            )
        try:
            self._raise_error()
            if self._states.is_over:
                return
            try:
                self._wake()
                self._states.move_to(QueryState.DRAINING)
                self._drain_until(deadline)
                self._note_number()
                is_active = self.is_active
                if not is_active:
                    self._rest()
            except BaseException as exc:
                self._break_off(exc, QueryState.ENDED)
                raise
            if is_active:
                self._work_between_batches()
            else:
                self._states.move_to(QueryState.RESTING)
                self._publish_status()
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Request that a running micro-batch or `drain` stops, without waiting for it."""
        self._states.request_stop()

    def end(self) -> None:
        """Save and end, so that another start of the query can take over."""
        self.stop()  # a micro-batch with the lock may wait for outcomes forever
        with self._lock:
            if not self._states.is_over:
                try:
                    self._finish_emission()
                    self._save_at_last()
                    self._note_number()
                finally:
                    self._close(QueryState.ENDED, None)

    @property
    def is_over(self) -> bool:
        """Whether the query has ended, and its caller was notified."""
        return self._states.state is QueryState.ENDED

    @property
    def is_active(self) -> bool:
        """Whether Spark runs the query and isn't stopping it."""
        return self._queries.find(self._store.query, self.run) is not None

    def status(self) -> StreamStatus:
        """Return the status of the stream. Thread-safe."""
        oldest_ms = min((row.since_ms for row in self._messages.rows()), default=None)
        return StreamStatus(
            batch_id=self._batch_id if self._batch_id >= 0 else None,
            batches=self._batches,
            counts=replace(self._spout.counts),
            in_flight=self._spout.pending,
            parked=self._messages.counts(),
            oldest_secs=0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000),
            completed_offsets=dict(self._offsets.values),
            is_full=self._states.state is QueryState.BATCH_FULL,
            commit_problem=None if self._group is None else self._group.problem,
            outages=tuple(self._loop.outages),
            set_aside=tuple(self._spout.state.set_aside()),
            error=None if self.error is None else f"{type(self.error).__name__}: {line_of(self.error)}",
        )

    # -- start and end

    def _check_number(self, before: int) -> None:
        """Refuse a parking location that is older than the newest one. Redis gets the number of another one later."""
        noted = app_of(self._acker).snapshot_number(str(self._store.query))
        self._store.check_number(noted, before)
        self._noted_number = -1 if noted is None else noted

    def _open_log(self) -> None:
        """Complete what earlier runs have accepted, if a log decides which rows are written."""
        options = self._options
        if options.once is None:
            return
        if options.ids.id_column is not None:
            columns, names = [options.ids.id_column], MessageNames.of_ids
        else:
            columns = [options.ids.partition, options.ids.offset]
            names = self._names_of
        self._once_output = open_output(options.once, self._spark, self._spout, columns, names)

    def _names_of(self, ids: Int64Array) -> MessageNames:
        return self._offsets.names_of(ids)

    def _rest(self) -> None:
        """Release the lane until a `drain`. Another run may have it, and the log, meanwhile."""
        if self._once_output is not None:
            self._once_output.note_published()
        self._loop.rest()

    def _wake(self) -> None:
        """Begin again in the log behind a rest, in which another run may have had the lane and the log."""
        if self._once_output is not None and self._states.state is QueryState.RESTING:
            self._loop.start()
            self._once_output.begin()

    def _restore(self, snapshot: Snapshot) -> None:
        options = self._options
        fresh = self._rows.restore(snapshot)
        self._rows.use_session(self._spark, options.ids.id_column or MESSAGE_ID)
        if options.ids.id_column is None:
            places = self._rows.places(options.ids.partition, options.ids.offset)
            if places is not None:
                self._offsets.add(places[0], *places[1])
                self._offsets.update(places[0])
            elif self._group is not None and len(self._messages):
                raise BadConfigError(
                    f"{len(self._messages)} parked messages have no columns topic, partition and offset. So it isn't known "
                    "which offsets they hold back. Start without kafka_group, and drain() them first."
                )
            elif self._once_output is not None and len(self._messages):
                raise BadConfigError(
                    f"{len(self._messages)} parked messages have no columns {options.ids.partition!r} and "
                    f"{options.ids.offset!r}. So the log of once= can't tell which messages they are. Start the previous "
                    "version of the program without once=, and drain() them first."
                )
        self._spout.add(np.array(fresh, np.int64))
        self._health.add_parked(snapshot.attempts.message_ids.tolist())
        self._rows.stream = self._rows.stream or snapshot.stream
        if snapshot.stream != self._rows.stream and len(snapshot.attempts):
            self._has_other_columns = True
            log.info(
                "columns of the stream changed, so parked messages wait for the first micro-batch app=%s",
                self._acker.config.app,
            )  # fmt: skip

    def _raise_error(self) -> None:
        """Raise the error that ended the query between micro-batches."""
        if self.error is not None:
            if self._states.state is QueryState.FAILED:
                self._states.move_to(QueryState.ENDED)
            raise AckerError(
                "The stream failed between micro-batches. Nothing was lost. Fix the cause and restart the query. "
                f"Error: {line_of(self.error)}"
            ) from self.error

    def _raise_stopped(self) -> None:
        if self._states.stop_requested:
            raise StoppedError(
                "TrackedBatches was closed during a micro-batch. Spark will run it again at the next start."
            )

    def _was_stopped(self) -> bool:
        """Return True if Spark stopped the query during a micro-batch, so its error is only a consequence."""
        try:
            return not self.is_active
        except Exception:  # the session is gone
            return False

    def _break_off(self, error: BaseException, state: QueryState) -> None:
        """End with an error. The caller raises it, or, in the state FAILED, the next call does."""
        self.error = error
        self._rows.discard_batch()
        if isinstance(error, ServerUnavailableError):
            self._writer.forget_letters()
        else:
            self._writer.delete_unsaved_letters(self._acker)
        self._close(state, error)

    def _close(self, state: QueryState, error: BaseException | None) -> None:
        try:
            self._loop.stop(error)
        except AckerError as exc:
            if self.error is None and error is None:
                self.error, state = exc, QueryState.FAILED
        finally:
            if self._once_output is not None:
                self._once_output.note_published()
            self._session.close()
            self._states.move_to(state)
            self._publish_status()
            if self._group is not None:
                self._group.close()

    # -- a micro-batch

    def _run_batch(self, batch: DataFrame, batch_id: int) -> None:
        options, messages = self._options, self._messages
        key = f"{self._acker.config.app}:{self._spout.run_id}"
        if self._group is not None:
            self._group.check_columns(batch, options.ids.partition, options.ids.offset)
        frame, column = with_message_ids(batch, options.ids.id_column, options.ids.partition, options.ids.offset)
        with own_errors(), described(batch.sparkSession, f"message ids of {key}, batch {batch_id}"):
            if options.ids.id_column is None:
                ids, places = read_places(frame, column, options.ids.partition, options.ids.offset)
                self._offsets.add(ids, *places)
            else:
                ids, without = read_ids(frame, column, are_few=self._reads.reads_few)
                self._without_ids.check(column, len(ids), without)
                if without:
                    self._note_corrupt(self._without_ids.write_letters(frame, column, self._spout))
                    frame = frame.where(F.col(sql.quoted(column)).isNotNull())
        self._reads.note_size(len(ids))
        if self._group is not None:
            self._check_ranges(self._group, batch_id, places)
        before = messages.left_ids()
        fresh = self._rows.start_batch(frame, column, ids)
        self._batch_spark, self._batch_id = batch.sparkSession, batch_id
        self._run_emission = inherited(batch.sparkSession, self._emit_in_session)
        self._spout.add(fresh)
        self._loop.hurry()
        if (
            not len(ids) and not messages.in_spout
        ):  # an empty micro-batch still runs the pipeline, which must be correct
            self._runner(column).run(self._spout.state.empty_emission(), self._rows, frame.sparkSession, self._batch_id)
        self._wait_for_outcomes(ids, before)
        parking = f"rows to park of {key}, batch {batch_id}"
        with own_errors(), described(batch.sparkSession, parking) if self._rows.has_to_read else nullcontext():
            self._rows.finish_batch()
        self._publish_completed_offsets()
        self._save()
        if is_connect(self._spark):  # else the properties are those of the session's thread, whichever session it is
            self._run_emission = inherited(self._spark, self._emit_in_session)
        self._batches += 1
        self._quiet_since = time.monotonic()
        self._publish_status()

    def _note_corrupt(self, letters: list[DeadLetter]) -> None:
        """Record the dead letters of rows without an id."""
        self._writer.note_letters(letters)
        self._spout.counts.dead_lettered += len(letters)

    def _check_ranges(self, group: GroupOffsets, batch_id: int, places: Places) -> None:
        """Compare the micro-batch with its topics. During an outage of the brokers, process outcomes until they answer."""
        while (letters := group.try_to_check(batch_id, places)) is None:
            self._step(may_emit=False)
        self._writer.note_letters(letters)

    def _wait_for_outcomes(self, ids: Int64Array, before: Int64Array) -> None:
        """Emit new and due messages, and wait for outcomes of the new ones while that is worthwhile."""
        options, messages = self._options, self._messages
        began = emitted_at = outcome_at = time.monotonic()
        while True:
            # Failed messages wait for a later batch. A poison message is searched for in this one.
            is_too_much = self._loop.emission is None and messages.left > options.max_parked
            self._step(only_due_by=None if is_too_much else began)
            now = time.monotonic()
            if self._loop.taken or self._loop.was_emitting:
                outcome_at = now
            if self._loop.was_emitting:  # its last outcomes may have come after the step's poll
                emitted_at = now
            if messages.has_fresh and self._loop.emission is None and self._has_no_room:
                self._note_full()
            if messages.has_to_emit(began) or self._loop.emission is not None:
                emitted_at = outcome_at = now
                continue
            if messages.left > options.max_parked:
                self._note_full()
                continue
            waited_for = messages.in_flight_without(before)
            is_few = len(waited_for) <= max(1, FEW * len(ids)) and now - outcome_at >= QUIET_SECS
            if not len(waited_for) or is_few or now - emitted_at >= options.batch_wait_secs:
                break
        if self._states.state is QueryState.BATCH_FULL:
            self._states.move_to(QueryState.IN_BATCH)

    @property
    def _has_no_room(self) -> bool:
        max_open = self._options.max_spout_pending
        return max_open is not None and self._spout.pending >= max_open

    def _note_full(self) -> None:
        if self._states.state is QueryState.BATCH_FULL:
            return
        self._states.move_to(QueryState.BATCH_FULL)
        log.warning(
            "micro-batch waits, as too many messages are not done or in flight app=%s batch=%d not_done=%d in_flight=%d "
            "max_parked=%d max_spout_pending=%s parked=%s",
            self._acker.config.app, self._batch_id, self._messages.left, self._spout.pending, self._options.max_parked,
            self._options.max_spout_pending, self._messages.counts(),
        )  # fmt: skip

    # -- between micro-batches

    def _work_between_batches(self) -> None:
        """Start or continue to work between micro-batches. Needs the lock, except at the start."""
        self._states.move_to(QueryState.BETWEEN_BATCHES)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="acker-stream", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Run the worker thread, which ends with the query."""
        while not self._states.wait_until_over(PAUSE_SECS):
            self._note_number()  # without the lock, so that no micro-batch waits for Redis
            with self._lock:
                if self._states.state is QueryState.BETWEEN_BATCHES:
                    try:
                        self._step_between_batches()
                    except BaseException as exc:
                        if not isinstance(exc, ClosedError):  # else the program closed the acker on purpose
                            log.exception("stream failed between micro-batches app=%s", self._acker.config.app)
                        self._break_off(exc, QueryState.FAILED)
                if self._states.state is not QueryState.BETWEEN_BATCHES:
                    self._worker = None
                    return

    def _step_between_batches(self) -> None:
        """Process outcomes, emit due messages, and save. Rest if Spark no longer runs the query."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECS:
            self._looked_at = now
            if not self.is_active:
                self._finish_emission()
                self._save_at_last()
                self._note_number()
                self._rest()
                self._states.move_to(QueryState.RESTING)
                self._publish_status()
                return
        is_fit = self._batches > 0 or not self._has_other_columns
        self._step(0, may_emit=is_fit and now - self._quiet_since > self._options.batch_wait_secs)
        if self._writer.is_due() and self._loop.emission is None:
            self._publish_completed_offsets()
            self._try_to_save()

    def _drain_until(self, deadline: float) -> None:
        self._spout.claim_replays()
        while self._messages.left and time.monotonic() < deadline and not self._states.stop_requested:
            if self._loop.emission is None and self._spout.state.aside is not None:
                break  # nothing else is left that could bring them back
            self._step()
            if not self._messages.left:
                self._spout.claim_replays()
        self._finish_emission()
        self._publish_completed_offsets()
        self._save()

    # -- steps of the spout

    def _step(self, block_ms: int = 100, *, may_emit: bool = True, only_due_by: float | None = None) -> None:
        if self._states.in_batch:
            self._raise_stopped()
        self._loop.step(block_ms, may_emit=may_emit, only_due_by=only_due_by)
        now = time.monotonic()
        if now - self._published_at > LOOK_SECS:
            self._publish_status()
        if self._states.in_batch and now - self._looked_at > LOOK_SECS:
            self._looked_at = now
            if not self.is_active:
                raise StoppedError(
                    "The query was stopped during a micro-batch. Spark will run it again at the next start."
                )

    def _finish_emission(self) -> None:
        while self._loop.emission is not None:
            self._loop.step(may_emit=False)

    def _emit(self, emission: Emission) -> None:
        """Run an emission in the emitter's thread."""
        try:
            self._run_emission(emission)
        except Exception:
            if (
                self._states.in_batch and not self.is_active
            ):  # Spark cancelled its jobs, so their traceback is of no use
                raise StoppedError("The query was stopped during an emission.") from None
            raise

    def _emit_in_session(self, emission: Emission) -> None:
        batch_id = self._batch_id if self._states.in_batch else None
        self._runner(self._rows.column).run(emission, self._rows, self._batch_spark, batch_id)

    def _runner(self, column: str) -> EmissionRunner:
        return EmissionRunner(
            self._spout, self._pipeline, column, self._health, self._url, self._options.emit_timeout_secs,
            once_output=self._once_output, tables=self._tables,
        )  # fmt: skip

    # -- calls of the spout

    def _payloads(self, ids: list[int]) -> list[bytes | None]:
        """Return payloads for dead letters. If Spark stops the query meanwhile, the next start writes the letters."""
        try:
            return self._rows.payloads(ids)
        except Exception:
            if self._states.in_batch and not self.is_active:
                raise StoppedError("The query was stopped while messages of dead letters were read.") from None
            raise

    def _load_replays(self, letters: list[DeadLetter]) -> LoadedReplays | None:
        return self._rows.load_replays(letters)

    def _is_exact(self, letter: DeadLetter) -> bool:
        return self._rows.is_exact(letter)

    def _on_done(self, ids: Int64Array) -> None:
        """Remove messages that were acked or are kept as dead letters."""
        if self._options.on_messages_done is not None:
            self._options.on_messages_done(ids)
        if self._group is not None:
            self._group.done(ids)
        following = self._messages.done(ids)
        if following:
            self._spout.add(np.array(following, np.int64))

    def _on_letters(self, letters: list[DeadLetter]) -> None:
        """Record dead letters that were written, except replayed ones: nothing else has a replayed message."""
        replaying = set(self._spout.replaying)
        fresh = [letter for letter in letters if letter.message_id not in replaying]
        self._writer.note_letters(fresh)
        if self._group is not None:
            self._group.wait_for(letters, self._offsets.places_of([letter.message_id for letter in fresh]))

    def _places(self, message_ids: list[int]) -> list[str | None]:
        """Return where records of Kafka are, for dead letters. Those of replayed letters aren't known."""
        places = self._offsets.places_of(message_ids)
        return [
            self._group.place_of(*places[message_id]) if self._group is not None and message_id in places else None
            for message_id in message_ids
        ]

    # -- status, completed offsets and snapshots

    def _publish_status(self) -> None:
        """Publish the status. During an outage, the next call publishes it."""
        self._published_at = time.monotonic()
        try:
            self._publish(self.status())
            if self._group is not None:
                is_idle = self._states.state in (QueryState.RESTING, QueryState.ENDED)
                self._group.publish(has_ended=is_idle and isinstance(self.error, StoppedError | None))
        except (ServerUnavailableError, ClosedError) as exc:
            log.debug("could not publish the status app=%s error=%s", self._acker.config.app, exc)

    def _publish_completed_offsets(self) -> None:
        """Publish completed offsets for other programs. After an outage, the next call publishes them."""
        if self._options.ids.id_column is not None:
            return
        gone = self._offsets.update(self._messages.left_ids())
        changed = self._offsets.unpublished
        try:
            app_of(self._acker).write_completed_offsets(changed, gone, spout_id=self._options.spout_id)
        except ServerUnavailableError as exc:
            log.warning("could not publish completed offsets, will retry app=%s error=%s", self._acker.config.app, exc)
            return
        self._offsets.mark_published(changed)

    def _note_number(self) -> None:
        """Note the number of the newest snapshot in Redis. After an error, a later call does."""
        number, now = self._store.number, time.monotonic()
        if number == self._noted_number or now < self._note_after:
            return
        try:
            app_of(self._acker).write_snapshot_number(str(self._store.query), number)
            self._noted_number = number
        except ClosedError:
            return
        except AckerError as exc:
            self._note_after = now + LOOK_SECS
            log.warning(
                "could not note the newest snapshot, will retry app=%s number=%d error=%s",
                self._acker.config.app, number, exc,
            )  # fmt: skip

    def _save(self) -> None:
        """Save parked messages if they changed. During an outage, process outcomes until saving works.

        Raises:
            AckerError: saving has failed for ten minutes.
        """
        while not self._try_to_save():
            self._step(may_emit=False)

    def _save_at_last(self) -> None:
        """Save parked messages without waiting.

        If that fails, the last snapshot still has all of them, and those that were done since.
        """
        if not self._try_to_save():
            log.warning(
                "could not save parked messages, so the next start repeats the work since the last micro-batch app=%s",
                self._acker.config.app,
            )

    def _try_to_save(self) -> bool:
        is_saved = self._writer.try_to_save(self._batch_id, in_batch=self._states.in_batch)
        if is_saved and self._group is not None:
            self._group.commit(self._offsets)
        return is_saved
