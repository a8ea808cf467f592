"""A pipeline over a DataFrame, or over the micro-batches of a stream, until every message was acked or is a dead letter."""

import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, NotExactError
from acker_redis.model import MAX_PAYLOAD_BYTES
from acker_redis.offsets import Offsets
from acker_redis.payloads import Payloads
from acker_redis.pending import Emission
from acker_redis.retry import RetryPolicy
from acker_redis.spark import checks
from acker_redis.spark.files import FILE, ROW, check_outside, has_corrupt, without_corrupt
from acker_redis.spark.messages import PAYLOAD, Fetch, Messages, not_done, with_message_ids
from acker_redis.spark.operators import ATTEMPT
from acker_redis.spark.reach import check_url
from acker_redis.spark.tracked import Tracker
from acker_redis.spark.worker_errors import own_errors
from acker_redis.spout import Spout

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Bolts and sinks of one emission: called with its tracker and its tracked messages."""

SAVE_SECS = 1.0
"""Offsets are written at most so often, and at the end."""


def run_tracked(
    messages: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    url: str,
    message_id: str | None = None,
    offsets: Offsets | None = None,
    partition: str = FILE,
    offset: str = ROW,
    run_id: str | None = None,
    task: int = 0,
    retry: RetryPolicy | None = None,
    max_spout_pending: int | None = None,
    payload_bytes: int = 0,
    keep_payload: bool = False,
    fetch: Fetch | None = None,
    on_done: Callable[[npt.NDArray[np.int64]], object] | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
) -> Spout:
    """Put every row of a DataFrame through a pipeline, again where it fails or times out, until none is left.

    Guarantee: when this returns, each message was acked, so that everything derived from it was written, or is in
    `Spout.dead_letters` and the app's dead-letter stream. Not guaranteed: that its work was done once; sinks have to be
    idempotent by message.

    Args:
        messages: one row per message. Has to give the same rows whenever it is computed, as files do; a failed message is
            read from it again, unless `keep_payload` or `fetch` says otherwise.
        pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it returns.
            What it writes to must not depend on how messages are spread over emissions, or carry `tracker.emission` in its
            name.
        acker: of this process, which takes the outcomes.
        url: the same server, as the executors reach it; this process need not reach it by that address. An executor is
            asked before anything is emitted.
        message_id: integer column, distinct. Rows where it is null go through once, untracked. None: a column `message_id`
            is made of partition and offset.
        offsets: where to begin, and where to note what is done. A restarted run goes on with the first message of each
            partition that is not known to be done; what was under way beyond it is repeated under fresh roots. Opened for
            the acker's app and for these columns, and closed at the end.
        partition: string column, for message ids and offsets that are made of it.
        offset: integer column, counting within a partition.
        run_id: unique per run: one that an earlier run had is refused; None: a random one.
        task: owner of the roots; see `Spout`.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight.
        payload_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
        keep_payload: keep messages of up to payload_bytes in Redis while they are not done, and replay them from there, bit
            by bit as they were.
        fetch: called with message ids, gives the DataFrame to replay them from, as where the source can be looked up by id.
            With `keep_payload` it is asked for what was too long to be kept.
        on_done: called with the ids of messages that were acked or are kept as dead letters.
        progress: called several times a second with the spout, and whether an emission is under way.

    Raises:
        BadBatchError: no such column or one of a type that Python workers can't have, or message ids are not distinct;
            nothing was emitted.
        BadConfigError: a setting is out of range; the offsets are another app's or source's, in use, or inside the source's
            folder; an executor does not find the acker by `url`; an earlier run had this run id. Nothing was emitted.
        NotExactError: the messages can't be read again, or the pipeline leaves rows without a sink.
        AckerError: as `Spout.run`. An error of the library's own in a Python worker is raised as what it was there.
    """
    if payload_bytes < 0 or (keep_payload and not payload_bytes):
        raise BadConfigError(f"payload_bytes={payload_bytes}: give the longest message to keep, in bytes")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadConfigError(f"payload_bytes={payload_bytes}: at most {MAX_PAYLOAD_BYTES} bytes of a message are kept")
    checks.column_names(messages.columns, "run_tracked")
    check_url(messages.sparkSession, url, acker)
    messages, column = with_message_ids(messages, message_id, partition, offset)
    if offsets is not None:
        check_outside(messages, partition, offsets.path)
    with nullcontext() if offsets is None else offsets.open(acker.config.app, partition, offset):
        if offsets is not None:
            messages = not_done(messages, offsets, partition, offset)
        claimed = run_id is not None  # a random one needs no claim
        run_id = uuid.uuid4().hex if run_id is None else run_id
        kept = acker.payloads(run_id) if keep_payload else None
        source = Messages(messages, column, payload_bytes, kept, fetch)
        noted = _Noted(offsets, kept, on_done)
        spout = Spout(
            acker, run_id, task, retry or RetryPolicy(), max_spout_pending,
            payload=source.payloads if payload_bytes else None, on_done=noted.done,
        )  # fmt: skip
        with own_errors():
            ids = source.read_ids(offsets, partition, offset)
        if claimed:
            acker.claim_run(run_id)

        def emit(emission: Emission) -> None:
            _activate(messages.sparkSession)
            tracker = Tracker.of(url, spout, emission)
            payload = PAYLOAD if keep_payload else None
            with own_errors():  # the spout waits for outages, and goes no further after mistakes
                rows = source.of(emission)
                made = tracker.spout(rows, column, ATTEMPT, payload=payload, payload_bytes=payload_bytes)
                pipeline(tracker, without_corrupt(tracker, made) if has_corrupt(messages) else made)
            if tracker.unconsumed and len(emission.message_ids):
                raise NotExactError(
                    f"the pipeline did nothing with the rows of {', '.join(map(repr, tracker.unconsumed))}, so their messages "
                    "can never be done: end each way through it with write, sink, save or hand_over"
                )

        if len(ids):
            spout.add(ids)
        elif source.untracked:  # nothing to wait for
            emit(Emission(0, ids, ids, ids))

        def between(busy: bool) -> None:
            while not source.gone.empty():
                spout.give_up(source.gone.get())
            if progress is not None:
                progress(spout, busy)

        spout.run(inheritable_thread_target(messages.sparkSession)(emit), between)
        noted.end()
        return spout


def each_batch(
    pipeline: Pipeline, *, done: Callable[[DataFrame, Spout], object] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch`: every micro-batch goes through `run_tracked`.

    A micro-batch ends when each of its messages was acked or is a dead letter; only then does Spark commit its offsets. If
    the query dies before, Spark reads the batch again after its restart, under fresh roots: those of the run that died time
    out and wait for no one.

    Args:
        pipeline: as for `run_tracked`.
        done: called with the micro-batch and its spout before the batch ends; the place to keep what became of it.
        options: as for `run_tracked`, except `offsets` and `run_id`: Spark's checkpoint has the offsets.
    """
    wrong = {"offsets", "run_id"} & set(options)
    if wrong:
        raise BadConfigError(f"each_batch takes no {' and '.join(sorted(wrong))}: Spark's checkpoint has the offsets")

    def handle(batch: DataFrame, batch_id: int) -> None:
        batch.persist()  # read once, not for every job
        try:
            spout = run_tracked(batch, pipeline, **options)
            if done is not None:
                done(batch, spout)
        finally:
            batch.unpersist()

    return handle


def _activate(session: SparkSession) -> None:
    """Make a session the thread's active one, where Spark looks for Python data sources; a new thread has none."""
    java = getattr(session, "_jsparkSession", None)
    if java is not None:  # else Spark Connect
        session.sparkContext._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java)  # type: ignore[union-attr]  # noqa: SLF001


class _Noted:
    """Passes on what is done."""

    def __init__(
        self,
        offsets: Offsets | None,
        kept: Payloads | None,
        on_done: Callable[[npt.NDArray[np.int64]], object] | None,
    ) -> None:
        self._offsets, self._kept, self._on_done = offsets, kept, on_done
        self._saved_at = time.monotonic()

    def done(self, message_ids: npt.NDArray[np.int64]) -> None:
        if self._on_done is not None:
            self._on_done(message_ids)
        if self._offsets is not None:
            self._offsets.complete(message_ids)
            if time.monotonic() - self._saved_at >= SAVE_SECS:
                self._offsets.save()
                self._saved_at = time.monotonic()
        if self._kept is not None:
            self._kept.remove(message_ids.tolist())

    def end(self) -> None:
        if self._offsets is not None:
            self._offsets.save()
        if self._kept is not None:
            self._kept.clear()
