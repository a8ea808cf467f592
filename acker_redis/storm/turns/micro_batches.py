"""Micro-batches of a `BatchSpout`: the thread of a streaming query hands them to the run, and waits until they are done.

The run's thread emits, decides and ends. The query's thread reads the ids of a batch, and waits in `foreachBatch`. Whoever
stops the query waits for that thread, so the run always lets it go: when the batch is done, or when the run ends.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import DataFrame

from acker_redis.errors import AckerError, BadConfigError, JobFailedError, StoppedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.messages import RunMessages
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.jvm import java_errors
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.runtime.worker_errors import acker_error_in, own_errors
from acker_redis.spark.sinks.folders import qualified, resolved
from acker_redis.storm.components.batch_spout import BatchSpout
from acker_redis.storm.components.dataframe import DataFrameSpout
from acker_redis.storm.definition import settings
from acker_redis.storm.turns.frames import FrameSource

if TYPE_CHECKING:  # it needs py4j, and pyspark-client has none
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("acker_redis.storm")

LOOK_SECS = 0.2
"""Interval at which it is checked that Spark still runs the query."""

_COMMIT_SECS = 10.0
"""Longest wait at the end of a run for Spark's commit of a batch that is done."""


class _Batch:
    """Micro-batch that the query's thread waits for.

    Attributes:
        number: Spark's id of the batch.
        messages: its rows.
        ids: their ids.
        left: number of messages that aren't done.
        error: what the query's thread raises; None: the batch is done.
        ended: set once the query's thread may go on.
    """

    def __init__(self, number: int, messages: RunMessages, ids: Int64Array) -> None:
        self.number, self.messages, self.ids = number, messages, ids
        self.left = len(ids)
        self.error: AckerError | None = None
        self.ended = threading.Event()

    def end(self, error: AckerError | None = None) -> None:
        """Let the query's thread go on."""
        self.error = error
        self.ended.set()


class BatchSource(FrameSource):
    """Micro-batches of a stream, one at a time. Its query starts with the first call of `next_id`.

    Attributes:
        checkpoint: path of the query's checkpoint, as Spark understands it, and without links.
    """

    def _check(self, spout: DataFrameSpout, *, is_tracking: bool) -> None:
        assert isinstance(spout, BatchSpout)  # noqa: S101  # the kind says so
        if is_connect(spout.frame.sparkSession):
            raise BadConfigError(
                f"The BatchSpout {self.name!r} needs a classic session. Over Spark Connect, foreachBatch runs in a process "
                "beside the server, which can't hand a batch to this run. Use TrackedBatches, or a classic session."
            )
        if not is_tracking:
            raise BadConfigError(
                f"The BatchSpout {self.name!r} needs ackers, but {settings.ACKER_EXECUTORS} is 0, so that nothing tells when "
                "a batch is done. Omit the setting."
            )
        if self._ids_from.offset_file is not None:
            raise BadConfigError(
                f"The ids of BatchSpout {self.name!r} have an offset_file, but the checkpoint keeps the progress of a "
                "stream. Use MessageIds.offsets() without offset_file."
            )
        self._stream, self._checkpoint = spout.frame, spout.checkpoint_location
        self.checkpoint = resolved(qualified(spout.frame.sparkSession, spout.checkpoint_location))
        self._trigger: dict[str, Any] | None = spout.trigger
        if self._trigger is not None:
            try:
                spout.frame.writeStream.trigger(**self._trigger)
            except Exception as exc:  # of PySpark, by the argument
                raise BadConfigError(
                    f"The trigger {self._trigger!r} of BatchSpout {self.name!r} is invalid ({exc}). Pass arguments of "
                    'DataStreamWriter.trigger, such as {"availableNow": True}.'
                ) from exc
        self.is_live = True
        self._query: StreamingQuery | None = None
        self._batch: _Batch | None = None
        self._done = -1
        self._looked_at = 0.0
        self._lock = threading.Lock()  # guards what follows, which the query's thread writes
        self._offered: _Batch | None = None
        self._is_closed = False
        self._is_in_batch = False
        self._error: Exception | None = None

    @contextmanager
    def opened(self, app: str) -> Iterator[None]:  # noqa: ARG002  # Spark's checkpoint names no app
        """End the query with the run. A batch that isn't done is not committed."""
        try:
            yield
        finally:
            self._close()

    # -- calls of the run's thread

    def next_id(self) -> int | None:
        """Return the id of the next row; None if there is none now."""
        if self._query is None:
            self._start()
        if self._batch is None:
            self._begin_batch()
        return super().next_id()

    def has(self, message_id: object) -> bool:  # noqa: ARG002
        """Return False: the row of a dead letter is gone with its batch."""
        return False

    def note_done(self, message_id: int) -> None:  # noqa: ARG002  # each message of a batch ends once
        """Note that a row's message was acked, or that its dead letter was written."""
        assert self._batch is not None  # noqa: S101  # it isn't over before its messages
        self._batch.left -= 1

    def settle(self) -> int:
        """Let Spark commit the batch if it is done, and look after the query.

        Raises:
            Exception: the query has failed.
        """
        did = 0
        if self._batch is not None and not self._batch.left:
            self._batch.end()
            self._done, self._batch, did = self._batch.number, None, 1
        now = time.monotonic()
        if self._error is not None or (self._query is not None and now - self._looked_at >= LOOK_SECS):
            self._looked_at = now
            self._look()
        return did

    def _start(self) -> None:
        writer = self._stream.writeStream.foreachBatch(self._process)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if self._trigger is not None:
            writer = writer.trigger(**self._trigger)
        try:
            self._query = writer.start()
        except Exception as exc:
            raise self._failed(exc) from exc
        log.info("query started spout=%r query=%s checkpoint=%s", self.name, self._query.id, self._checkpoint)

    def _begin_batch(self) -> None:
        with self._lock:
            self._batch, self._offered = self._offered, None
        if self._batch is not None:
            self._messages, self._ids, self._at = self._batch.messages, self._batch.ids, 0

    def _look(self) -> None:
        """Look whether the query has ended.

        Raises:
            Exception: it has failed.
        """
        if self._error is not None:
            raise self._failed(self._error) from self._error
        if self._query is None or not self.is_live or self._query.isActive:
            return
        self.is_live = False
        failed = self._query.exception()
        if failed is not None:
            cause = self._error or failed
            raise self._failed(cause) from cause
        if self._batch is not None or self._offered is not None or self._is_in_batch:
            self.was_stopped = True
            log.warning("query stopped during a batch, draining spout=%r query=%s", self.name, self._query.id)

    def _failed(self, error: Exception) -> AckerError:
        """Return the error of the run for one of the query."""
        return acker_error_in(error) or JobFailedError(
            f"The query of BatchSpout {self.name!r} failed: {line_of(error)}. Its batch isn't committed, so the next run "
            "emits it again. Correct the stream or its checkpoint, and run the topology again."
        )

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            offered = self._offered
        for batch in (self._batch, offered):
            if batch is not None and batch.left:
                batch.end(self._stopped())
            elif batch is not None:  # the last exchange was its end
                batch.end()
                self._done = batch.number
        if self._query is None:
            return
        try:
            self._await_commit(self._query)
            self._query.stop()
        except java_errors():  # Spark is gone, and the query with it
            log.debug("query not stopped spout=%r", self.name, exc_info=True)

    def _await_commit(self, query: "StreamingQuery") -> None:
        """Wait until Spark has committed the last batch that is done, because a stop would interrupt that."""
        until = time.monotonic() + _COMMIT_SECS
        while query.isActive and time.monotonic() < until:
            progress = query.lastProgress
            if self._done < 0 or (progress is not None and progress["batchId"] >= self._done):
                return
            time.sleep(0.02)

    def _stopped(self) -> StoppedError:
        return StoppedError(
            f"The topology's run ended before the batch of spout {self.name!r} was done. Spark will run it again at the next "
            "start."
        )

    # -- calls of the query's thread

    def _process(self, frame: DataFrame, number: int) -> None:
        """Hand a batch to the run, and wait until it is done. Spark calls this.

        Raises:
            StoppedError: the run has ended before.
            Exception: the ids can't be read.
        """
        frame.persist()  # it is read for its ids, and in each turn
        self._is_in_batch = True
        try:
            batch = self._read(frame, number)
            if not len(batch.ids):
                self._is_in_batch = False
                return
            with self._lock:
                if self._is_closed:
                    raise self._stopped()
                self._offered = batch
            batch.ended.wait()
            if batch.error is not None:
                raise batch.error
            self._is_in_batch = False
        finally:
            frame.unpersist()

    def _read(self, frame: DataFrame, number: int) -> _Batch:
        try:
            messages = self._messages_in(frame)
            text = f"message ids of spout {self.name!r}, batch {number}"
            with own_errors(), described(frame.sparkSession, text):
                return _Batch(number, messages, np.array(messages.read_ids(None, "", "")))
        except Exception as exc:
            if self._query is None or self._query.isActive:  # else it was stopped, and its jobs with it
                self._error = exc
            raise
