"""One start of a streaming query: its spout, which goes on from micro-batch to micro-batch, and between them.

Whoever holds the lock steps the spout: the thread of a micro-batch while there is one, else a thread of this module's, so that
outcomes are taken, and parked messages go out by themselves where the source is quiet.
"""

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.errors import AckerError, BadConfigError, ClosedError, ServerUnavailableError, StoppedError
from acker_redis.spark.emission.evidence import Evidence
from acker_redis.spark.emission.messages import MESSAGE_ID, read_ids, read_places, with_message_ids
from acker_redis.spark.emission.runner import Emitting, Pipeline
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runs.options import StreamSettings
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.jvm import of
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.streaming.park_store import Park, ParkOutage, ParkOutageError, Row, Snapshot
from acker_redis.spark.streaming.parked_rows import ParkedRows
from acker_redis.spout.in_flight import Emission, FloatArray, Int64Array, Tries
from acker_redis.spout.loop import SpoutLoop
from acker_redis.spout.spout import Spout
from acker_redis.spout.state import Cause, SpoutCounts
from acker_redis.store.completed_offsets import DoneUntil
from acker_redis.store.dead_letters import DeadLetter

log = logging.getLogger("acker_redis.spark")

FEW, QUIET_SECS = 0.01, 0.1
"""A share of a micro-batch that is not waited for any more once no outcome came for so long."""

PAUSE_SECS = 0.1
"""Between micro-batches outcomes are taken so often."""

LOOK_SECS = 1.0
"""Whether the query is still there is looked at so often, and its park is saved so often between micro-batches."""

LETTERS = 1000
"""Dead letters that a stream's spout remembers."""


@dataclass(frozen=True)
class StreamStatus:
    """How a stream stands.

    Attributes:
        batch_id: the last micro-batch that was given, in this process or before; None: none yet.
        batches: micro-batches that ended since the query was started, in this process.
        counts: what became of emissions since then.
        in_flight: messages whose roots are open.
        parked: messages that left their micro-batch and are not done, by reason and last stage of what became of their last
            attempt; a reason of "" has those in flight for the first time, one of "behind" those that wait for an earlier
            message of their id.
        oldest_secs: since when the oldest of them is parked.
        done_until: by partition, the first offset that is not known to be done; see `Acker.done_until`.
        is_full: whether a micro-batch waits because more than `max_parked` messages are not done, or `max_spout_pending` are
            in flight.
        error: what ended it, in a line; the next micro-batch or `drain` raises it. None: it goes on.
    """

    batch_id: int | None = None
    batches: int = 0
    counts: SpoutCounts = field(default_factory=SpoutCounts)
    in_flight: int = 0
    parked: Mapping[Cause, int] = field(default_factory=dict)
    oldest_secs: float = 0.0
    done_until: Mapping[str, int] = field(default_factory=dict)
    is_full: bool = False
    error: str | None = None


class TrackedQuery:
    """Runs the micro-batches of one start of a query.

    Attributes:
        run: Spark's id of this start; None: unknown, as no micro-batch came yet.
        error: what ended it.
        is_told: whether that was raised to whoever runs the query.
    """

    def __init__(
        self,
        session: SparkSession,
        pipeline: Pipeline,
        acker: Acker,
        url: str | None,
        options: StreamSettings,
        park: Park,
    ) -> None:
        """Nothing is done before `take` or `resume`."""
        self.run: str | None = None
        self.error: BaseException | None = None
        self.is_told = False
        self._session, self._pipeline, self._acker, self._url = session, pipeline, acker, url
        self._options, self._park = options, park
        self._rows = ParkedRows(options.dead_letter_bytes)
        self._spout = Spout(
            acker, uuid.uuid4().hex, options.task, options.retry, options.max_spout_pending,
            payload=self._payloads if options.dead_letter_bytes else None, on_done=self._done, keep_letters=LETTERS,
            replay=self._rows.take_letters, is_exact=self._rows.is_exact, on_letters=self._letters_written, goes_on=True,
        )  # fmt: skip
        self._loop = SpoutLoop(self._spout, self._emit)
        most = min(
            options.max_parked + 1, options.max_spout_pending or options.max_parked + 1
        )  # then a micro-batch waits
        self._evidence = Evidence(everything_counts=not options.stop_if_all_fail, goes_on=True, most=most)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._stopping = threading.Event()
        self._run_emission: Callable[[Emission], object] = inheritable_thread_target(session)(self._emit_in_session)
        self._batch_session, self._batch_id = session, -1
        self._batches = 0
        self._in_batch = self._is_full = False
        self._batch_ended = self._saved_at = self._looked_at = time.monotonic()
        self._saved: Any = None
        self._unsaved: list[str] = []  # letters of messages that a start after this one would be given again
        self._outage = ParkOutage()
        self._stream: str | None = None
        self._has_other_columns = False
        self._until = DoneUntil({})
        self._said: dict[str, int] = {}
        self._thread = threading.Thread(target=self._between, name="acker-stream", daemon=True)

    def resume(self, before: int) -> None:
        """Go on with what was parked when a micro-batch begins, or would begin, and begin to work between them.

        Raises:
            BadConfigError: the park is damaged.
        """
        self._loop.__enter__()
        try:
            found = self._park.load(before)
            must_save = self._park.begin(before)
            self._until = DoneUntil(self._acker.done_until(self._options.task))
            java = active_query(self._session, self._park.query, self.run)
            self._stream = None if java is None else java.analyzedPlan().schema().json()
            if found is not None:
                self._go_on(found)
        except BaseException as exc:  # let go of the lane, for another start
            self._close(exc)
            raise
        self._batch_id = before - 1
        self._saved = None if must_save else self._fingerprint()
        self._said = dict(self._until.values)
        self._thread.start()

    def _go_on(self, found: Snapshot) -> None:
        tries, options = found.tries, self._options
        fresh = self._rows.resume(tries.message_ids.tolist(), found.rows, found.behind, found.schema, found.column)
        self._rows.use(self._session, options.ids.id_column or MESSAGE_ID)
        if options.ids.id_column is None:
            places = self._rows.places(options.ids.partition, options.ids.offset)
            if places is not None:
                self._until.take(places[0], *places[1])
                self._until.update(places[0])
        self._spout.state.resume(tries, found.causes, found.delays_secs, time.monotonic())
        self._spout.add(np.array(fresh, np.int64))
        self._stream = self._stream or found.stream
        if found.stream != self._stream and len(tries):
            self._has_other_columns = True
            log.info(
                "the columns of the stream of app %r have changed: what is parked gets them with the first micro-batch, and "
                "goes out then", self._acker.config.app,
            )  # fmt: skip

    @property
    def left(self) -> int:
        """Messages that are not done."""
        return self._spout.state.left + self._rows.waiting

    @property
    def is_active(self) -> bool:
        """Whether Spark runs the query, and does not end it just now."""
        found = active_query(self._session, self._park.query, self.run)
        return found is not None and bool(found.isActive())

    def _was_stopped(self) -> bool:
        """Whether somebody stopped the query, in the middle of a micro-batch: what broke off is not to blame."""
        try:
            return not self.is_active
        except Py4JError:
            return False

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch: emit its messages, and park what does not settle.

        Raises:
            AckerError: it broke off; the query can't go on.
        """
        with self._lock:
            self._raise_error()
            self._raise_stopped()
            try:
                batch.persist()  # read once, not for every job
                try:
                    self._take(batch, batch_id)
                finally:
                    self._in_batch = False
                    batch.unpersist()
            except BaseException as exc:
                self.is_told = True
                self._break_off(exc if not self._was_stopped() else StoppedError(f"the query was stopped: {exc}"))
                raise

    def drain(self, timeout_secs: float) -> None:
        """Work until nothing is left, or for so long, and save what is left.

        Raises:
            AckerError: it broke off; or a micro-batch was under way for so long, and nothing was done here.
        """
        deadline = time.monotonic() + timeout_secs
        # Between micro-batches others hold the lock for a moment only.
        if not self._lock.acquire(timeout=min(max(timeout_secs, LOOK_SECS), threading.TIMEOUT_MAX)):
            raise AckerError(
                f"drain(timeout_secs={timeout_secs}) has not begun: a micro-batch or an emission was under way all that time. "
                "Nothing is lost, and nothing more was done or saved. Stop the query first, or give more time"
            )
        try:
            self._raise_error()
            try:
                self._spout.take_letters()
                while self.left and time.monotonic() < deadline and not self._stopping.is_set():
                    self._step()
                    if not self.left:
                        self._spout.take_letters()
                self._finish_emission()
                self._say_done_until()
                self._save(self._batch_id)
                if not self.is_active:
                    self._loop.rest()
            except BaseException as exc:
                self.is_told = True
                self._break_off(exc)
                raise
        finally:
            self._lock.release()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and whoever runs the query knows."""
        return self._closing.is_set() if self.error is None else self.is_told

    def stop(self) -> None:
        """Let a micro-batch that is under way break off, and a `drain` end; don't wait for that."""
        self._stopping.set()

    def end(self) -> None:
        """Save, and end: another start of the query takes over."""
        self.stop()  # whoever holds the lock may wait for outcomes that never come
        with self._lock:
            if not self._closing.is_set():
                try:
                    self._finish_emission()
                    self._save_at_last()
                finally:
                    self._close(None)

    def status(self) -> StreamStatus:
        """How it stands; any thread may ask."""
        state, counts = self._spout.state, self._spout.counts
        tries, _ = state.tries_left(time.monotonic())
        parked = dict(self._rows.parked)
        causes = [state.causes[why] for one, why in zip(tries.message_ids.tolist(), tries.why.tolist(), strict=True)
                  if one in parked]  # fmt: skip
        by_cause = Counter(causes)
        if self._rows.waiting:
            by_cause["behind", None] = self._rows.waiting
        oldest = min((row.since_ms for row in parked.values()), default=None)
        return StreamStatus(
            self._batch_id if self._batch_id >= 0 else None, self._batches, replace(counts), state.pending, dict(by_cause),
            0.0 if oldest is None else max(0.0, time.time() - oldest / 1000), dict(self._until.values), self._is_full,
            None if self.error is None else f"{type(self.error).__name__}: {line_of(self.error)}",
        )  # fmt: skip

    def _raise_error(self) -> None:
        """Raise what ended it between micro-batches."""
        if self.error is not None:
            self.is_told = True
            raise AckerError(
                f"the stream broke off between micro-batches, and nothing was lost: {line_of(self.error)}"
            ) from self.error

    def _raise_stopped(self) -> None:
        if self._stopping.is_set():
            raise StoppedError("TrackedBatches was closed in the middle of a micro-batch, which Spark will give again")

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        options, state = self._options, self._spout.state
        key = f"{self._acker.config.app}:{self._spout.run_id}"
        frame, column = with_message_ids(batch, options.ids.id_column, options.ids.partition, options.ids.offset)
        with own_errors(), described(batch.sparkSession, f"message ids of {key}, batch {batch_id}"):
            if options.ids.id_column is None:
                ids, places = read_places(frame, column, options.ids.partition, options.ids.offset)
                self._until.take(ids, *places)
            else:
                ids = read_ids(frame, column)
        before = state.left_ids()
        fresh = self._rows.begin(frame, column, ids, before)
        self._batch_session, self._batch_id, self._in_batch = batch.sparkSession, batch_id, True
        self._run_emission = inheritable_thread_target(batch.sparkSession)(self._emit_in_session)
        self._spout.add(fresh)
        self._loop.hurry()
        if not len(ids) and not state.left:  # what the pipeline does of nothing is still done, and has to be right
            self._emit_nothing(frame, column)
        self._settle(ids, before)
        with own_errors(), described(batch.sparkSession, f"rows to park of {key}, batch {batch_id}"):
            self._rows.end(state.left_ids())
        self._say_done_until()
        self._save(batch_id)
        self._run_emission = inheritable_thread_target(self._session)(self._emit_in_session)
        self._batches += 1
        self._batch_ended = time.monotonic()

    def _settle(self, ids: Int64Array, before: Int64Array) -> None:
        """Emit what is new and what is due, and wait for outcomes of what is new as long as that is worth while."""
        options, state = self._options, self._spout.state
        began = emitted_at = outcome_at = time.monotonic()
        while True:
            # What failed waits for a later batch. What broke its emission is searched for in this one.
            is_too_much = self._loop.emission is None and self.left > options.max_parked
            state.only_due_by = None if is_too_much else began
            self._step()
            now = time.monotonic()
            if self._loop.taken:
                outcome_at = now
            if state.fresh and self._loop.emission is None and self._has_no_room:
                self._say_full()
            if state.fresh or state.isolation.left_by(began) or self._loop.emission is not None:
                emitted_at = outcome_at = now
                continue
            if self.left > options.max_parked:
                self._say_full()
                continue
            waited_for = np.setdiff1d(state.in_flight(), before)
            is_few = len(waited_for) <= max(1, FEW * len(ids)) and now - outcome_at >= QUIET_SECS
            if not len(waited_for) or is_few or now - emitted_at >= options.batch_wait_secs:
                break
        state.only_due_by = None
        self._is_full = False

    @property
    def _has_no_room(self) -> bool:
        most = self._options.max_spout_pending
        return most is not None and self._spout.pending >= most

    def _say_full(self) -> None:
        if not self._is_full:
            log.warning(
                "batch %d of app %r waits: %d messages are not done, of which %d are in flight, with max_parked=%d and "
                "max_spout_pending=%s; parked are %s",
                self._batch_id, self._acker.config.app, self.left, self._spout.pending, self._options.max_parked,
                self._options.max_spout_pending, self.status().parked,
            )  # fmt: skip
        self._is_full = True

    def _step(self, block_ms: int = 100, *, may_emit: bool = True) -> None:
        if self._in_batch:
            self._raise_stopped()
        self._loop.step(block_ms, may_emit=may_emit)
        now = time.monotonic()
        if self._in_batch and now - self._looked_at > LOOK_SECS:
            self._looked_at = now
            if not self.is_active:
                raise StoppedError("the query was stopped in the middle of a micro-batch, which Spark will give again")

    def _between(self) -> None:
        """The thread that works between micro-batches."""
        while not self._closing.wait(PAUSE_SECS):
            with self._lock:
                if self._closing.is_set():
                    return
                try:
                    now = time.monotonic()
                    if now - self._looked_at > LOOK_SECS:
                        self._looked_at = now
                        if not self.is_active:
                            self._finish_emission()
                            self._save_at_last()
                            self._loop.rest()  # a `drain` may come
                            return
                    is_fit = self._batches > 0 or not self._has_other_columns
                    self._step(0, may_emit=is_fit and now - self._batch_ended > self._options.batch_wait_secs)
                    if now - self._saved_at > LOOK_SECS and self._loop.emission is None:
                        self._say_done_until()
                        self._try_to_save(self._batch_id)
                except ClosedError as exc:  # whoever closed the acker is done with it
                    self._break_off(exc)
                    return
                except BaseException as exc:
                    log.exception("the stream of app %r broke off between micro-batches", self._acker.config.app)
                    self._break_off(exc)
                    return

    def _finish_emission(self) -> None:
        while self._loop.emission is not None:
            self._loop.step(may_emit=False)

    def _break_off(self, error: BaseException) -> None:
        self.error = error
        self._rows.drop()
        self._take_back_letters()
        self._close(error)

    def _letters_written(self, letters: list[DeadLetter]) -> None:
        """A message of a letter that is replayed has no other place: its new letter stays."""
        replaying = set(self._spout.replaying)
        self._unsaved += [letter.entry_id for letter in letters if letter.message_id not in replaying]

    def _take_back_letters(self) -> None:
        """The next start is given their messages again, and they would get another letter each time."""
        try:
            if self._unsaved and not isinstance(self.error, ServerUnavailableError):
                self._acker.dead_letters.delete(self._unsaved)
        except AckerError as exc:
            log.warning("%d dead letters may stand twice: %s", len(self._unsaved), exc)
        self._unsaved = []

    def _close(self, error: BaseException | None) -> None:
        self._closing.set()
        try:
            self._loop.__exit__(None if error is None else type(error), error, None)
        except AckerError as exc:
            self.error = self.error or exc

    def _emit(self, emission: Emission) -> None:
        """In the emitter's thread."""
        try:
            self._run_emission(emission)
        except Exception:
            if self._in_batch and not self.is_active:  # Spark has ended its jobs: no trace of that is of use
                raise StoppedError("the query was stopped in the middle of an emission") from None
            raise

    def _payloads(self, ids: list[int]) -> list[bytes | None]:
        """Of dead letters; where Spark ended this with the query, the next start writes the letters."""
        try:
            return self._rows.payloads(ids)
        except Exception:
            if self._in_batch and not self.is_active:
                raise StoppedError("the query was stopped while messages of dead letters were read") from None
            raise

    def _emit_in_session(self, emission: Emission) -> None:
        batch_id = self._batch_id if self._in_batch else None
        self._emitting(self._rows.column).emit(emission, self._rows, self._batch_session, batch_id)

    def _emit_nothing(self, frame: DataFrame, column: str) -> None:
        none = np.array([], np.int64)
        emission = Emission(self._spout.state.skip_number(), none, none, none)
        self._emitting(column).emit(emission, self._rows, frame.sparkSession, self._batch_id)

    def _emitting(self, column: str) -> Emitting:
        return Emitting(self._spout, self._pipeline, column, self._evidence, self._url, self._options.emit_timeout_secs)

    def _done(self, ids: Int64Array) -> None:
        """Messages were acked or are kept as dead letters."""
        if self._options.on_messages_done is not None:
            self._options.on_messages_done(ids)
        following = self._rows.done(ids)
        if following:
            self._spout.add(np.array(following, np.int64))

    def _say_done_until(self) -> None:
        """To others; what does not get through now does with the next."""
        if self._options.ids.id_column is not None:
            return
        gone = self._until.update(self._spout.state.left_ids())
        changed = {name: at for name, at in self._until.values.items() if self._said.get(name) != at}
        try:
            self._acker.say_done_until(changed, gone, task=self._options.task)
        except ServerUnavailableError as exc:
            log.warning("other programs do not learn now of what is done: %s", exc)
            return
        self._said |= changed

    def _fingerprint(self) -> Any:
        """Of what is parked; it changes when that does."""
        tries, _ = self._left()
        order = np.argsort(tries.message_ids)
        numbers = (tries.message_ids, tries.attempts, tries.why)
        return [column[order].tobytes() for column in numbers], self._kept_rows(), self._rows.behind

    def _kept_rows(self) -> frozenset[tuple[int, Row]]:
        letters = set(self._spout.replaying)
        return frozenset((message, row) for message, row in self._rows.parked.items() if message not in letters)

    def _left(self) -> tuple[Tries, FloatArray]:
        """What another process would have to go on with; without dead letters, which are wanted until they are done."""
        tries, delays = self._spout.state.tries_left(time.monotonic())
        rows = ~np.isin(tries.message_ids, self._spout.replaying)
        return tries[rows], delays[rows]

    def _without_letters(self, ids: Int64Array) -> Int64Array:
        return np.setdiff1d(ids, self._spout.replaying)

    def _save(self, batch_id: int) -> None:
        """Keep what is parked, if it changed; with no emission under way, and no message that was not emitted yet.

        Where it can't be kept now it is tried again, for ten minutes. Outcomes are taken meanwhile.

        Raises:
            AckerError: it can't be kept.
        """
        while not self._try_to_save(batch_id):
            self._step(may_emit=False)

    def _save_at_last(self) -> None:
        """Keep what is parked, and don't wait: the last micro-batch's snapshot has all of it, and what was done since."""
        if not self._try_to_save(self._batch_id):
            log.warning(
                "what was done since the last micro-batch of app %r is done again at the next start, as it can't be saved now",
                self._acker.config.app,
            )

    def _try_to_save(self, batch_id: int) -> bool:
        """Whether what is parked is kept; see `_save`."""
        now = self._saved_at = time.monotonic()
        fingerprint = self._fingerprint()
        if self._rows.schema is None or (fingerprint == self._saved and self._park.is_there()):
            self._unsaved.clear()
            return True
        if not self._outage.is_over(now):
            return False
        state = self._spout.state
        tries, delays = self._left()
        rows = [self._rows.parked[message] for message in tries.message_ids.tolist()]
        fresh = [
            (one, self._rows.parked[one]) for one in self._without_letters(state.fresh_ids()).tolist()
        ]  # they waited for an earlier one
        behind = [*fresh, *self._rows.behind]
        snapshot = Snapshot(
            tries, delays, state.causes, rows, behind, self._rows.schema, self._rows.column, self._stream
        )
        try:
            self._park.save(batch_id, snapshot, batch_id - 1 if self._in_batch else self._park.committed())
        except ParkOutageError as exc:
            self._outage.down(now, exc)
            return False
        self._outage.up(now)
        self._saved = fingerprint
        self._unsaved.clear()
        return True


def active_query(session: SparkSession, query: str | None, run: str | None = None) -> Any:
    """The query of this id that Spark runs now, of this start where one is given; None: it does not, or was told to stop.

    Raises:
        BadConfigError: the session has no JVM of its own.
    """
    if query is None:
        return None
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        raise BadConfigError("TrackedBatches needs a session with a JVM of its own, not Spark Connect")
    uuid = of(session.sparkContext, "java.util.UUID").fromString(query)
    found = java.sharedState().activeStreamingQueries().get(uuid)
    if found is None or not found.isActive():
        return None
    return found if run is None or found.runId().toString() == run else None
