"""Micro-batches of Structured Streaming, in which messages that aren't done are parked."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.errors import AckerError, BadConfigError, ClosedError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_finite
from acker_redis.spark.emission.runner import Pipeline
from acker_redis.spark.runs.callbacks import with_retries
from acker_redis.spark.runs.options import MessageIds, StreamSettings, message_ids, run_settings
from acker_redis.spark.streaming.parking_location import ParkingLocation
from acker_redis.spark.streaming.query import LOOK_SECS, StreamStatus, TrackedQuery, active_query
from acker_redis.spout.retry import RetryPolicy

__all__ = ["StreamStatus", "TrackedBatches"]

log = logging.getLogger("acker_redis.spark")

_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"
"""Properties that Spark sets in a query's thread: the query id, which survives restarts, and the id of this start."""


class TrackedBatches:
    """Function for `DataStreamWriter.foreachBatch` that runs a pipeline over every message of a stream.

        batches = TrackedBatches(pipeline, acker=acker, ids="id", parking_location="orders/parked")
        stream.writeStream.foreachBatch(batches).option("checkpointLocation", "orders/checkpoint").start()

    A micro-batch runs the pipeline over its messages, waits briefly for their outcomes, and returns, so that Spark commits
    it. Messages that failed or have no outcome yet are parked: their rows are kept in the driver's memory and in the parking
    location. They are emitted again with a later micro-batch, or on their own if none arrives for `batch_wait_secs`. So a
    message that hangs or fails never blocks others. An object serves one query at a time, and may serve another once that
    has ended.

    Guarantee: every message of a batch that Spark commits was acked, is a dead letter, or is parked, no matter when the
    driver dies. A start of the query with the same checkpoint and parking location resumes with the parked messages.
    Messages with the same id are processed one at a time, in arrival order. Not guaranteed: that work is done only once.
    Sinks have to be idempotent by message. A micro-batch also writes messages of earlier ones, so don't overwrite by
    `Tracker.batch_id`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        acker: Acker,
        parking_location: str,
        ids: str | MessageIds | None = None,
        retry: RetryPolicy | None = None,
        stop_if_all_fail: bool = True,
        dead_letter_bytes: int = 0,
        max_spout_pending: int | None = None,
        max_parked: int = 10_000,
        batch_wait_secs: float = 2.0,
        emit_timeout_secs: float | None = None,
        spout_id: int = 0,
        executor_url: str | None = None,
        on_messages_done: Callable[[Int64Array], object] | None = None,
    ) -> None:
        """Check the settings and the parking location before the query starts.

        Args:
            pipeline: function that is called once per emission with a tracker and the tracked messages. It must run its
                sinks before it returns.
            acker: acker of this process, which receives the outcomes.
            parking_location: folder for parked messages, on any file system that Spark writes to. Use it for this query
                only, and keep it like its checkpoint. It is created if the query is new.
            ids: name of an integer column with message ids, not null; or `MessageIds.offsets(...)`, without progress, which
                is in Spark's checkpoint. None: ids are derived from the columns `file` and `row`.
            retry: policy for emitting again; see `RetryPolicy`. Messages that kill their workers while no other message
                succeeds are parked. Their attempts don't count until some message succeeds.
            stop_if_all_fail: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
                pipeline doesn't declare, in an operator that has processed none. A micro-batch whose first 20 messages are
                bad then ends the query at every start. False: they become dead letters.
            dead_letter_bytes: longest message that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its id.
            max_spout_pending: limit on messages in flight. None: no limit.
            max_parked: limit on messages that are not done when a micro-batch ends. The micro-batch waits until they are
                few enough, and reports that in the log and in `status`.
            batch_wait_secs: longest time that a micro-batch waits for outcomes, in seconds.
            emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds. The emission is then
                retried in parts until a message whose work never ends is alone. Must be longer than the jobs of a
                micro-batch take. None: no timeout.
            spout_id: owner of the roots; see `Spout`.
            executor_url: URL of the acker's server for executors, if theirs differs from this process's.
            on_messages_done: function that is called with the ids of messages that were acked or are kept as dead letters.
                If it raises, it is called again with the same ids, up to twice; then the query ends.

        Raises:
            BadConfigError: a setting is out of range or of the wrong type; there is no SparkSession; the parking location
                belongs to another app or is damaged; or an executor can't reach the acker with `executor_url`.
        """
        settings = run_settings(
            "TrackedBatches", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
            stop_if_all_fail=stop_if_all_fail, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
            dead_letter_bytes=dead_letter_bytes, on_messages_done=on_messages_done,
        )  # fmt: skip
        checked_ids = message_ids("TrackedBatches", ids)
        if checked_ids.progress is not None:
            raise BadConfigError(
                "TrackedBatches: ids have a progress file, but the checkpoint keeps the progress of a stream. Use "
                "MessageIds.offsets() without progress."
            )
        if not isinstance(parking_location, str) or not parking_location:
            raise BadConfigError(
                f"TrackedBatches: parking_location={parking_location!r} is not a path. Pass the path of a folder."
            )
        check_finite("batch_wait_secs", batch_wait_secs)
        if isinstance(max_parked, bool) or not isinstance(max_parked, int) or max_parked < 0:
            raise BadConfigError(f"max_parked={max_parked!r} is not valid. Use an integer of 0 or more.")
        try:
            spark = SparkSession.active()
        except PySparkRuntimeError as exc:
            raise BadConfigError("TrackedBatches needs an active SparkSession. Create one first.") from exc
        self._spark, self._pipeline, self._acker, self._url = spark, pipeline, acker, settings.url(spark)
        self._settings = StreamSettings(
            **vars(settings), ids=checked_ids, max_parked=max_parked, batch_wait_secs=batch_wait_secs,
            on_messages_done=None if on_messages_done is None else with_retries(on_messages_done, "on_messages_done"),
        )  # fmt: skip
        self._path = parking_location
        self._query: TrackedQuery | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        store = self._open_store()
        committed = None if store.query is None else store.committed()
        if committed is not None:
            store.load(committed + 1)  # refuse an unusable parking location here
        if store.has_snapshots:
            threading.Thread(target=self._wait_for_query, name="acker-stream-wait", daemon=True).start()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch. Spark calls this.

        Raises:
            BadConfigError: the parking location belongs to another query, or is missing. Nothing was emitted.
            NotExactError: the pipeline ran no sink, or rows were dropped or copied by other means than the tracker's
                operators.
            OperatorBrokenError: see `stop_if_all_fail`.
            AckerError: the server was unreachable for too long, or the stream failed before this micro-batch.
            Exception: the pipeline function raised it in the driver.
        """
        self._query_of_batch(batch.sparkSession, batch_id).process_batch(batch, batch_id)

    def drain(self, timeout_secs: float) -> StreamStatus:
        """Process parked messages, and dead letters to replay, until all are done or the time is over.

        Call it after `trigger(availableNow=True)`, or to shut down. Messages that are left stay parked for the next start.

        Args:
            timeout_secs: longest time to work, in seconds.

        Raises:
            AckerError: same as in a micro-batch; or a micro-batch was running all that time, so nothing was done here.

        >>> batches.drain(timeout_secs=60).parked
        {}
        """
        with self._lock:
            if self._query is None or self._query.is_over:
                store = self._open_store()
                self._query = None if store.query is None else self._start_query(store, store.next_batch())
            query = self._query
        if query is not None:
            query.drain(timeout_secs)
        return self.status()

    def status(self) -> StreamStatus:
        """Return the status of the stream. Thread-safe.

        >>> batches.status().in_flight
        0
        """
        query = self._query
        return StreamStatus() if query is None else query.status()

    def close(self) -> None:
        """Stop the work between micro-batches. Parked messages stay parked.

            with TrackedBatches(pipeline, acker=acker, parking_location="orders/parked") as batches:
                orders.writeStream.foreachBatch(batches).start().awaitTermination()

        Leaving a `with` block calls it. A running emission is finished first. A running micro-batch is aborted, and its query
        ends with a `StoppedError`. Spark runs that batch again at the next start.
        """
        self._closed.set()
        query = self._query
        if query is not None:
            query.stop()
        with self._lock:
            if self._query is not None:
                self._query.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_store(self) -> ParkingLocation:
        return ParkingLocation(self._spark, self._path, self._acker.config.app)

    def _query_of_batch(self, spark: SparkSession, batch_id: int) -> TrackedQuery:
        """Return the object for this start of the query; create it for its first micro-batch."""
        context = spark.sparkContext
        query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
        with self._lock:
            now = self._query
            if now is not None and now.run is not None and now.run == run:
                return now
            java = active_query(spark, query, run)
            if query is None or java is None:
                raise BadConfigError(
                    "TrackedBatches was called outside a streaming query. Pass it to DataStreamWriter.foreachBatch."
                )
            if now is not None and now.run is not None and now.is_active:
                raise BadConfigError(
                    "Two queries run with the same TrackedBatches object. Create one object per query."
                )
            store = self._open_store()
            checkpoint = str(java.resolvedCheckpointRoot())
            is_same = (store.query, store.checkpoint) == (query, checkpoint)
            if now is not None and now.run is None and now.error is None and is_same:
                now.run = run  # it started with the parked messages
                return now
            if now is not None:
                now.end()
                store = self._open_store()  # it may have saved
            store.claim(query, checkpoint, batch_id)
            self._query = self._start_query(store, batch_id, run)
            return self._query

    def _start_query(self, store: ParkingLocation, before: int, run: str | None = None) -> TrackedQuery:
        query = TrackedQuery(self._spark, self._pipeline, self._acker, self._url, self._settings, store)
        query.run = run
        query.resume(before)
        return query

    def _wait_for_query(self) -> None:
        """Start before the first micro-batch, so that parked messages are emitted even if the source is silent."""
        while not self._closed.wait(LOOK_SECS):
            with self._lock:
                if self._query is not None:
                    return
                try:
                    store = self._open_store()
                    java = active_query(self._spark, store.query)
                    if java is None:
                        continue
                    store.checkpoint = str(java.resolvedCheckpointRoot())  # it may have been moved
                    self._query = self._start_query(store, store.next_batch())
                except ClosedError:  # the program closed the acker, so this object is done too
                    return
                except AckerError as exc:  # the first micro-batch raises it, but may be far off
                    log.error("could not start to emit parked messages app=%s error=%s", self._acker.config.app, exc)
                return
