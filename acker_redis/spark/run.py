"""A pipeline over a DataFrame, or over the micro-batches of a stream, until every message was acked or is a dead letter."""

import uuid
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from acker_redis.acker import Acker
from acker_redis.errors import BadBatchError
from acker_redis.spark.checks import integer_column
from acker_redis.spark.operators import ATTEMPT
from acker_redis.spark.tracked import Tracker
from acker_redis.spout import Emission, RetryPolicy, Spout

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Bolts and sinks of one emission: called with its tracker and its tracked messages."""


def run_tracked(
    messages: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    url: str,
    message_id: str,
    run_id: str | None = None,
    task: int = 0,
    retry: RetryPolicy | None = None,
    max_spout_pending: int | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
) -> Spout:
    """Put every row of a DataFrame through a pipeline, again where it fails or times out, until none is left.

    Guarantee: when this returns, each message was acked, so that everything derived from it was written, or is in
    `Spout.dead_letters`. Not guaranteed: that its work was done once; sinks have to be idempotent by message.

    Args:
        messages: one row per message. Has to give the same rows whenever it is computed, as files do; a failed message is
            read from it again.
        pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it returns.
            What it writes to must not depend on how messages are spread over emissions, or carry `tracker.emission` in its
            name.
        acker: of this process, which takes the outcomes.
        url: the same server, as the executors reach it.
        message_id: integer column, distinct. Rows where it is null go through once, untracked.
        run_id: unique per run; None: a random one.
        task: owner of the roots; see `Spout`.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight.
        progress: called several times a second with the spout, and whether an emission is under way.

    Raises:
        BadBatchError: no such column, or its values are not distinct; nothing was emitted.
        AckerError: as `Spout.run`.
    """
    spout = Spout(acker, run_id or uuid.uuid4().hex, task, retry or RetryPolicy(), max_spout_pending=max_spout_pending)
    column = integer_column(messages, message_id, "run_tracked")
    ids, untracked = _ids(messages, column)
    if len(ids):
        spout.add(ids)

    def emit(emission: Emission) -> None:
        tracker = Tracker.of(url, spout, emission)
        if emission.number == 0 and len(emission.message_ids) == len(ids):
            due = messages.withColumn(ATTEMPT, F.lit(0).cast(LongType()))
        else:
            wanted = pa.table({column: emission.message_ids, ATTEMPT: emission.attempts})
            due = messages.join(F.broadcast(messages.sparkSession.createDataFrame(wanted)), column)
            if emission.number == 0 and untracked:
                null = messages.where(F.col(f"`{column}`").isNull())
                due = due.unionByName(null.withColumn(ATTEMPT, F.lit(0).cast(LongType())))
        pipeline(tracker, tracker.spout(due, column, ATTEMPT))

    if not len(ids) and untracked:  # nothing to wait for
        tracker = Tracker(url, acker.config, spout.run_id, 0, task)
        due = messages.withColumn(ATTEMPT, F.lit(0).cast(LongType()))
        pipeline(tracker, tracker.spout(due, column, ATTEMPT))
    show = None if progress is None else (lambda busy: progress(spout, busy))
    spout.run(inheritable_thread_target(messages.sparkSession)(emit), show)
    return spout


def each_batch(
    pipeline: Pipeline,
    *,
    acker: Acker,
    url: str,
    message_id: str,
    done: Callable[[DataFrame, Spout], object] | None = None,
    task: int = 0,
    retry: RetryPolicy | None = None,
    max_spout_pending: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch`: every micro-batch goes through `run_tracked`.

    A micro-batch ends when each of its messages was acked or is a dead letter; only then does Spark commit its offsets. If
    the query dies before, Spark reads the batch again after its restart, under fresh roots: those of the run that died time
    out and wait for no one.

    Args:
        pipeline: as for `run_tracked`.
        acker: of this process.
        url: the same server, as the executors reach it.
        message_id: integer column, distinct within a micro-batch.
        done: called with the micro-batch and its spout before the batch ends; the place to keep dead letters.
        task: owner of the roots.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight.
    """

    def handle(batch: DataFrame, batch_id: int) -> None:
        batch.persist()  # read once, not for every job
        try:
            spout = run_tracked(
                batch, pipeline, acker=acker, url=url, message_id=message_id, task=task, retry=retry,
                max_spout_pending=max_spout_pending,
            )  # fmt: skip
            if done is not None:
                done(batch, spout)
        finally:
            batch.unpersist()

    return handle


def _ids(messages: DataFrame, column: str) -> tuple[np.ndarray, int]:
    """The message ids, and how many rows have none."""
    found = messages.select(F.col(f"`{column}`").cast(LongType())).toArrow().column(0)
    ids = found.drop_null().to_numpy().astype(np.int64)
    repeated = len(ids) - len(np.unique(ids))
    if repeated:
        raise BadBatchError(
            f"column {column!r}: {repeated} message ids stand more than once: each message needs an id of its own"
        )
    return ids, found.null_count
