"""Run micro-batches of Structured Streaming: what does not settle leaves its batch, and is parked until it does."""

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
"""Properties that Spark sets in the thread of a query: its id, which it keeps over restarts, and that of this start."""


class TrackedBatches:
    """The function for `DataStreamWriter.foreachBatch`: every message of the stream goes through the pipeline.

        batches = TrackedBatches(pipeline, acker=acker, ids="id", parking_location="orders/parked")
        stream.writeStream.foreachBatch(batches).option("checkpointLocation", "orders/checkpoint").start()

    A micro-batch runs the pipeline over its messages, waits a little for their outcomes, and returns, so that Spark commits
    it. What failed, or has no outcome yet, is parked: its rows are kept in the driver's memory and in the parking location,
    and go out again with a later micro-batch, or by themselves when none comes for `batch_wait_secs`. So a message that
    hangs or fails holds up no other. An object serves one query at a time, and another when that has ended.

    Guarantee: every message of a batch that Spark commits was acked, is a dead letter, or is parked, whenever the
    driver dies; a start of the query under the same checkpoint and parking location goes on with what is parked. A
    message that is not done when another one of its id comes goes first; the other waits behind it. Not guaranteed:
    that work is done once; sinks have to be idempotent by message. What a micro-batch writes is not what Spark gave
    under its number alone: don't overwrite by `Tracker.batch_id`.
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
        """Check the settings, and the parking location, before the query starts.

        Args:
            pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it
                returns.
            acker: of this process, which takes the outcomes.
            parking_location: folder for what is parked, on any file system that Spark writes to; of this query alone,
                and kept like its checkpoint. Made if the query is new.
            ids: integer column of message ids, not null; or `MessageIds.offsets(...)`, without progress, as Spark's
                checkpoint has it. None: made of columns `file` and `row`.
            retry: when to emit again; see `RetryPolicy`. Messages that kill their workers while nothing else gets
                through are parked, and no attempt counts, until something has.
            stop_if_all_fail: end with `OperatorBrokenError` where 20 messages failed by an exception that the pipeline does
                not declare, in an operator that has processed none. A micro-batch whose first 20 messages are bad ends the
                query at every start; False lets them become dead letters.
            dead_letter_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
            max_spout_pending: at most so many messages in flight.
            max_parked: at most so many messages are not done when a micro-batch ends. It waits for that, and says so in the
                log and in `status`.
            batch_wait_secs: a micro-batch waits so long for outcomes at most.
            emit_timeout_secs: the jobs of an emission are cancelled after so long, and it goes out again in parts, until a
                message whose work never ends is alone. Has to be longer than the jobs of a micro-batch take. None: never.
            spout_id: owner of the roots; see `Spout`.
            executor_url: the acker's server as executors reach it, where that is not as this process does.
            on_messages_done: called with the ids of messages that were acked or are kept as dead letters. Where it raises it
                is called again with the same ids, twice; then the query ends.

        Raises:
            BadConfigError: a setting is out of range or of another type; there is no SparkSession; the parking location is
                another app's, or damaged; an executor does not find the acker by `executor_url`.
        """
        settings = run_settings(
            "TrackedBatches", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
            stop_if_all_fail=stop_if_all_fail, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
            dead_letter_bytes=dead_letter_bytes, on_messages_done=on_messages_done,
        )  # fmt: skip
        checked_ids = message_ids("TrackedBatches", ids)
        if checked_ids.progress is not None:
            raise BadConfigError(
                "TrackedBatches: ids have a progress file, and the progress of a stream is in its checkpoint. Leave progress= "
                "out"
            )
        if not isinstance(parking_location, str) or not parking_location:
            raise BadConfigError(f"TrackedBatches: parking_location={parking_location!r} is no folder. Give its path")
        check_finite("batch_wait_secs", batch_wait_secs)
        if isinstance(max_parked, bool) or not isinstance(max_parked, int) or max_parked < 0:
            raise BadConfigError(f"max_parked={max_parked!r}: use an integer of 0 or more")
        try:
            spark = SparkSession.active()
        except PySparkRuntimeError as exc:
            raise BadConfigError("TrackedBatches needs a SparkSession: make it first") from exc
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
            store.load(committed + 1)  # a parking location that the query can't go on with is refused here
        if store.has_snapshots:
            threading.Thread(target=self._wait_for_query, name="acker-stream-wait", daemon=True).start()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch; Spark calls this.

        Raises:
            BadConfigError: the parking location is another query's, or missing; nothing was emitted.
            NotExactError: the pipeline ran no sink, or drops or copies rows otherwise than by the tracker's operators.
            OperatorBrokenError: see `stop_if_all_fail`.
            AckerError: the server can't be reached for too long; or the stream broke off before this micro-batch.
            Exception: what the pipeline function raised in the driver.
        """
        self._query_of_batch(batch.sparkSession, batch_id).process_batch(batch, batch_id)

    def drain(self, timeout_secs: float) -> StreamStatus:
        """Work on what is parked, and on dead letters to replay, until all is done, or for so long.

        After `trigger(availableNow=True)`, or for shutting down. What is left stays parked for the next start.

        Raises:
            AckerError: as in a micro-batch; or a micro-batch was under way for so long, and nothing was done here.

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
        """Tell how the stream stands; any thread may ask.

        >>> batches.status().in_flight
        0
        """
        query = self._query
        return StreamStatus() if query is None else query.status()

    def close(self) -> None:
        """Stop the work between micro-batches; what is parked stays so.

            with TrackedBatches(pipeline, acker=acker, parking_location="orders/parked") as batches:
                orders.writeStream.foreachBatch(batches).start().awaitTermination()

        The end of a `with` block does so, too. An emission under way is brought to its end first. A micro-batch under way
        breaks off, and its query ends with a `StoppedError`; Spark gives that batch again at the next start.
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
        """Give what runs the micro-batches of this start of the query; make it for its first."""
        context = spark.sparkContext
        query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
        with self._lock:
            now = self._query
            if now is not None and now.run is not None and now.run == run:
                return now
            java = active_query(spark, query, run)
            if query is None or java is None:
                raise BadConfigError("give TrackedBatches to foreachBatch: it takes batches of a query only")
            if now is not None and now.run is not None and now.is_active:
                raise BadConfigError("two queries run with one TrackedBatches object: make one for each of them")
            store = self._open_store()
            checkpoint = str(java.resolvedCheckpointRoot())
            is_same = (store.query, store.checkpoint) == (query, checkpoint)
            if now is not None and now.run is None and now.error is None and is_same:
                now.run = run  # it began with what was parked
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
        """Start without a micro-batch: a silent source gives none, and yet parked messages have to go out."""
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
                except ClosedError:  # the program closed the acker, and is done with this object, too
                    return
                except AckerError as exc:  # the first micro-batch will tell, but there may be none for long
                    log.error(
                        "the parked messages of the stream of app %r do not go out: %s", self._acker.config.app, exc
                    )
                return
