"""Micro-batches of Structured Streaming, in which messages that aren't done are parked."""

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, BadConfigError, ClosedError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import AckerConfig, check_finite
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.runs.callback_retries import with_retries
from acker_redis.spark.runs.once import Once, check_once, check_session
from acker_redis.spark.runs.options import MessageIds, StreamSettings, group_settings, message_ids, run_settings
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation
from acker_redis.spark.streaming.parking.schema_changes import is_case_sensitive
from acker_redis.spark.streaming.query import LOOK_SECS, TrackedQuery
from acker_redis.spark.streaming.spark_queries import spark_queries
from acker_redis.spark.streaming.stream_status import StreamStatus, from_json, to_json
from acker_redis.spout.retry import RetryPolicy

log = logging.getLogger("acker_redis.spark")


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
    Sinks have to be idempotent by message, except with `once`. A micro-batch also writes messages of earlier ones, so don't
    overwrite by `Tracker.batch_id`.

    With `kafka_group`, a stream of Spark's own source of Kafka commits its completed offsets to a consumer group, so that
    tools show the lag of work. Spark still resumes from its checkpoint.

    With Spark Connect, a copy of the object runs the micro-batches, in a Python process beside Spark's server. So the
    pipeline and `on_messages_done` are pickled. That process needs acker_redis, and connects to the acker by its URL.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        acker: Acker,
        parking_location: str,
        checkpoint_location: str | None = None,
        ids: str | MessageIds | None = None,
        retry: RetryPolicy | None = None,
        stop_if_broken: bool = True,
        dead_letter_bytes: int = 0,
        max_spout_pending: int | None = None,
        max_parked: int = 10_000,
        batch_wait_secs: float = 2.0,
        emit_timeout_secs: float | None = None,
        spout_id: int = 0,
        executor_url: str | None = None,
        on_messages_done: Callable[[Int64Array], object] | None = None,
        kafka_group: str | None = None,
        kafka: Mapping[str, object] | None = None,
        parked_columns: Mapping[str, str | None] | None = None,
        once: Once | None = None,
    ) -> None:
        """Check the settings and the parking location before the query starts.

        Args:
            pipeline: function that is called once per emission with a tracker and the tracked messages. It must run its
                sinks before it returns.
            acker: acker of this process, which receives the outcomes.
            parking_location: folder for parked messages: a path, or a URI that pyarrow or fsspec knows, such as `s3://`. Use
                it for this query only, and keep it like its checkpoint. It is created if the query is new. In an
                empty folder with a file `start_empty`, a query that isn't new begins without parked messages.
            checkpoint_location: path or URI of the query's option `checkpointLocation`, which is read. Needed with Spark
                Connect. None: Spark's own word for it is used, which pyarrow may not understand.
            ids: name of an integer column with message ids, where rows without one become dead letters; or
                `MessageIds.offsets(...)`, without `offset_file`. None: ids are derived from the
                columns `file` and `row`, or from Kafka's `topic`, `partition` and `offset`.
            retry: policy for emitting again; see `RetryPolicy`. Messages that kill their workers while no other message
                succeeds are parked. Their attempts don't count until some message succeeds.
            stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
                pipeline doesn't declare, in an operator that has processed none. A micro-batch whose first 20 messages are
                bad then ends the query at every start. The same holds for 20 rows without an id, if none has one since the
                start. False: they become dead letters.
            dead_letter_bytes: longest message that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its id,
                except that a row without an id is kept up to 10,000 bytes.
            max_spout_pending: limit on messages in flight. None: no limit.
            max_parked: limit on messages that are not done when a micro-batch ends. The micro-batch waits until they are
                few enough, and reports that in the log and in `status`.
            batch_wait_secs: longest time that a micro-batch waits for outcomes, in seconds.
            emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds. The emission is then
                retried in parts until a message whose work never ends is alone. Must be longer than the jobs of a
                micro-batch take. None: no timeout.
            spout_id: owner of the roots; see `Spout`.
            executor_url: URL of the acker's server for executors, if theirs differs from this process's. With Spark Connect
                it is also that of the process beside Spark's server.
            on_messages_done: function that is called with the ids of messages that were acked or are kept as dead letters.
                If it raises, it is called again with the same ids, up to twice; then the query ends.
            kafka_group: consumer group to which completed offsets are committed after each micro-batch, if the stream is that
                of Spark's own source of Kafka. No other program may be a member of it. None: no group.
            kafka: settings of the client that commits, as librdkafka names them; see `run_kafka`. Needs `kafka_group`.
            parked_columns: columns of parked rows that the stream no longer has, and their present names; None in place of a
                name: their values may be lost. Fields of structs are named by their path, such as `order.price`, and elements
                of arrays and values of maps are named `element` and `value` in it. Names may be passed on, as in
                `{"a": "b", "b": "c"}`, but not swapped. Names that parked rows have already are unchanged, so a mapping may
                stay in the program. Dead letters are read by these names, too, except in structs. A letter that would lose a
                value isn't replayed. None: a missing column ends the query if it has values in parked rows.
            once: log that decides which messages' rows are in the tables, so that these have the rows of one attempt of each;
                see `Once`. Needs ids that never repeat. Sinks are `write` of files, in append mode. None: a replay writes the
                rows of its messages again. It can't be combined with `kafka_group`, nor with Spark Connect.

        Raises:
            BadConfigError: a setting is out of range or of the wrong type; there is no SparkSession; the parking location
                belongs to another app or is damaged; an executor can't reach the acker with `executor_url`; or with Spark
                Connect, `checkpoint_location` is missing, or the acker has no URL.
            PipelineError: `kafka_group` is set, and confluent-kafka is not installed.
        """
        self._arguments = {
            "pipeline": pipeline, "parking_location": parking_location, "checkpoint_location": checkpoint_location,
            "ids": ids, "retry": retry, "stop_if_broken": stop_if_broken, "dead_letter_bytes": dead_letter_bytes,
            "max_spout_pending": max_spout_pending, "max_parked": max_parked, "batch_wait_secs": batch_wait_secs,
            "emit_timeout_secs": emit_timeout_secs, "spout_id": spout_id, "executor_url": executor_url,
            "on_messages_done": on_messages_done, "kafka_group": kafka_group, "kafka": kafka,
            "parked_columns": parked_columns, "once": once,
        }  # fmt: skip
        settings = run_settings(
            "TrackedBatches", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
            stop_if_broken=stop_if_broken, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
            dead_letter_bytes=dead_letter_bytes, on_messages_done=on_messages_done,
        )  # fmt: skip
        checked_ids = message_ids("TrackedBatches", ids)
        if checked_ids.offset_file is not None:
            raise BadConfigError(
                "TrackedBatches: ids have an offset_file, but the checkpoint keeps the progress of a stream. Use "
                "MessageIds.offsets() without offset_file."
            )
        if not isinstance(parking_location, str) or not parking_location:
            raise BadConfigError(
                f"TrackedBatches: parking_location={parking_location!r} is not a path. Pass the path of a folder."
            )
        if checkpoint_location is not None and (not isinstance(checkpoint_location, str) or not checkpoint_location):
            raise BadConfigError(
                f"TrackedBatches: checkpoint_location={checkpoint_location!r} is not a path. Pass that of the option "
                "checkpointLocation."
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
            kafka_group=group_settings("TrackedBatches", kafka_group, kafka, checked_ids),
            parked_columns=_column_names(parked_columns, spark),
            on_messages_done=None if on_messages_done is None else with_retries(on_messages_done, "on_messages_done"),
            once=check_once("TrackedBatches", once),
        )  # fmt: skip
        if self._settings.once is not None:
            check_session(spark, {"kafka_group": kafka_group is not None})
        self._queries = spark_queries(spark, checkpoint_location)
        if is_connect(spark):
            self._url_for_copy()  # refuse an acker without one here, because PySpark replaces errors of pickling
        self._path = parking_location
        self._handler, self._is_sent, self._is_copy = uuid.uuid4().hex, False, False
        self._query: TrackedQuery | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        store = self._open_store()
        committed = None if store.query is None else store.committed()
        if committed is not None:
            store.load(committed + 1)  # refuse an unusable parking location here
        # With Connect, the columns of the stream are unknown before the first micro-batch, which thus starts the work.
        if store.has_snapshots and not is_connect(spark):
            threading.Thread(target=self._wait_for_query, name="acker-stream-wait", daemon=True).start()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch. Spark calls this.

        Raises:
            BadConfigError: the parking location belongs to another query, or is missing. Nothing was emitted.
            InexactPipelineError: the pipeline ran no sink, or rows were dropped or copied by other means than the tracker's
                operators.
            OperatorBrokenError: see `stop_if_broken`.
            AckerError: the server was unreachable for too long; the stream failed before this micro-batch; or, with
                `kafka_group`, a topic was deleted and created again, or the brokers didn't answer for ten minutes.
            FencedError, LogLostError, FilesNotMovedError: with `once`, as for `run_tracked`.
            Exception: the pipeline function raised it in the driver.
        """
        self._query_of_batch(batch.sparkSession, batch_id).process_batch(batch, batch_id)

    def drain(self, timeout_secs: float) -> StreamStatus:
        """Process parked messages, and dead letters to replay, until all are done or the time is over.

        Call it after `trigger(availableNow=True)`, or to shut down. Messages that are left stay parked for the next start,
        and so do messages whose delay isn't over by then.
        With Spark Connect it works in this process, so the query must have ended, and this process reads and writes the
        parking location.

        Args:
            timeout_secs: longest time to work, in seconds.

        Raises:
            AckerError: same as in a micro-batch; a micro-batch was running all that time, so nothing was done here; or with
                Spark Connect, the query runs.
            BadConfigError: with Spark Connect, this process doesn't see the parking location.

        >>> batches.drain(timeout_secs=60).parked
        {}
        """
        with self._lock:
            if self._query is None or self._query.is_over:
                store = self._open_store()
                if self._is_sent:
                    self._check_is_ended(store)
                self._query = None if store.query is None else self._start_query(store, store.next_batch())
            query = self._query
        if query is not None:
            query.drain(timeout_secs)
        return self.status()

    def status(self) -> StreamStatus:
        """Return the status of the stream. Thread-safe.

        With Spark Connect, it is read from Redis, and up to a second old.

        >>> batches.status().in_flight
        0
        """
        query = self._query
        if query is not None:
            return query.status()
        return (self._status_of_copy() if self._is_sent else None) or StreamStatus()

    def close(self) -> None:
        """Stop the work between micro-batches. Parked messages stay parked.

            with TrackedBatches(pipeline, acker=acker, parking_location="orders/parked") as batches:
                orders.writeStream.foreachBatch(batches).start().awaitTermination()

        Leaving a `with` block calls it. A running emission is finished first. A running micro-batch is aborted, and its query
        ends with a `StoppedError`. Spark runs that batch again at the next start. With Spark Connect, stop the query instead.
        """
        self._closed.set()
        query = self._query
        if query is not None:
            query.stop()
        with self._lock:
            if self._query is not None:
                self._query.end()
        if self._is_copy:
            self._acker.close()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Send a copy to Spark's server, which runs the query there. This object then reads its status."""
        url = self._url_for_copy()
        with self._lock:
            if self._query is not None:
                self._query.end()  # the copy takes its lane
            self._query, self._is_sent = None, True
        return _connected_copy, (url, self._acker.config, self._handler, self._arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_store(self) -> ParkingLocation:
        return ParkingLocation(self._path, self._acker.config.app)

    def _query_of_batch(self, spark: SparkSession, batch_id: int) -> TrackedQuery:
        """Return the object for this start of the query; create it for its first micro-batch."""
        now, run = self._query, self._queries.run_of_batch(spark)
        if now is not None and run is not None and now.run == run:
            return now
        running = self._queries.of_batch(spark)
        if running is None:
            raise BadConfigError(
                "TrackedBatches was called outside a streaming query. Pass it to DataStreamWriter.foreachBatch."
            )
        with self._lock:
            now = self._query
            if now is not None and now.run is not None and now.run == running.run:
                return now
            if now is not None and now.run is not None and now.is_active:
                raise BadConfigError(
                    "Two queries run with the same TrackedBatches object. Create one object per query."
                )
            store = self._open_store()
            is_same = (store.query, store.checkpoint) == (running.query, running.checkpoint)
            if now is not None and now.run is None and now.error is None and is_same:
                now.run = running.run  # it started with the parked messages
                return now
            if now is not None:
                now.end()
                store = self._open_store()  # it may have saved
            store.claim(running.query, running.checkpoint, batch_id)
            self._query = self._start_query(store, batch_id, running.run)
            return self._query

    def _start_query(self, store: ParkingLocation, before: int, run: str | None = None) -> TrackedQuery:
        query = TrackedQuery(
            self._spark, self._queries, self._pipeline, self._acker, self._url, self._settings, store, self._publish
        )
        query.run = run
        query.resume(before)
        return query

    def _url_for_copy(self) -> str:
        url = self._settings.executor_url or self._acker.url
        if url is None:
            raise BadConfigError(
                "TrackedBatches has an acker without a URL, because a redis-py client was passed to it. A process on Spark's "
                "server can't connect with that. Pass a URL to Acker.connect, or set executor_url."
            )
        return url

    def _publish(self, status: StreamStatus) -> None:
        """Publish the status for the object that this one is a copy of."""
        if self._is_copy:
            app_of(self._acker).write_stream_status(self._settings.spout_id, self._handler, to_json(status))

    def _status_of_copy(self) -> StreamStatus | None:
        text = app_of(self._acker).stream_status(self._settings.spout_id, self._handler)
        return None if text is None else from_json(text)

    def _check_is_ended(self, store: ParkingLocation) -> None:
        """Check that no copy runs the query, and that it parked its messages where this process sees them."""
        if self._queries.find(store.query) is not None:
            raise AckerError(
                "drain() was called while the query runs on Spark's server, which processes its parked messages itself. "
                "Nothing was done. Stop the query first."
            )
        if store.query is None and self._status_of_copy() is not None:
            raise BadConfigError(
                f"parking_location={self._path!r} is empty here, but a query on Spark's server parked messages under this "
                "name. So they can't be drained from here. Use a folder that both machines see, such as one in an object "
                "store."
            )

    def _wait_for_query(self) -> None:
        """Start before the first micro-batch, so that parked messages are emitted even if the source is silent."""
        while not self._closed.wait(LOOK_SECS):
            with self._lock:
                # A copy that was sent starts by itself. A `close` may have come since the wait.
                if self._query is not None or self._is_sent or self._closed.is_set():
                    return
                try:
                    store = self._open_store()
                    running = self._queries.find(store.query)
                    if running is None:
                        continue
                    store.checkpoint = running.checkpoint  # it may have been moved
                    self._query = self._start_query(store, store.next_batch())
                except ClosedError:  # the program closed the acker, so this object is done too
                    return
                except AckerError as exc:  # the first micro-batch raises it, but may be far off
                    log.error("could not start to emit parked messages app=%s error=%s", self._acker.config.app, exc)
                return


def _column_names(parked_columns: object, spark: SparkSession) -> dict[str, str | None]:
    """Check the names of columns of parked rows.

    Raises:
        BadConfigError: they are not a mapping of names to names or None, two have the same present name, or names are
            swapped.
    """
    names = {} if parked_columns is None else parked_columns
    is_valid = isinstance(names, Mapping) and all(
        isinstance(old, str) and (new is None or isinstance(new, str)) for old, new in names.items()
    )
    if not is_valid or not isinstance(names, Mapping):
        raise BadConfigError(
            f"TrackedBatches: parked_columns={parked_columns!r} is not a mapping of column names. Pass old names with their "
            "present names, or None for columns whose values may be lost."
        )
    present = [new for new in names.values() if new is not None]
    if len(present) > len(set(present)):
        raise BadConfigError(
            f"TrackedBatches: parked_columns={parked_columns!r} gives one name to several columns. Only one of them can have "
            "it. Use distinct names."
        )
    spelled = (lambda name: name) if not names or is_case_sensitive(spark) else str.lower
    following = {spelled(old): spelled(new) for old, new in names.items() if new is not None}
    for old in following:
        new, seen = following[old], {old}
        while new in following and new not in seen:
            seen.add(new)
            new = following[new]
        if new == old and len(seen) > 1:
            raise BadConfigError(
                f"TrackedBatches: parked_columns={parked_columns!r} swaps names. Rows of before and after that look alike, so "
                "values could get into wrong columns. Start the previous version of the program and drain() it first, or "
                "rename a column to a new name instead."
            )
    return dict(names)


def _connected_copy(url: str, config: AckerConfig, handler: str, arguments: Mapping[str, Any]) -> TrackedBatches:
    """Create the copy of an object in another process, with an acker of its own."""
    acker = Acker.connect(url, config)
    try:
        batches = TrackedBatches(acker=acker, **arguments)
    except BaseException:
        acker.close()
        raise
    batches._handler, batches._is_copy = handler, True  # noqa: SLF001
    return batches
