"""Runs of a pipeline over rows that another program exported, with outcomes passed back upstream."""

import time

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.spark import sql
from acker_redis.spark.emission.messages import MESSAGE_ID
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.protocol import anchor_codec
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.runs.dataframe import run_dataframe
from acker_redis.spark.runs.options import MessageIds, ReplayFrom, replay_from, run_settings
from acker_redis.spark.runs.run_result import OnProgress, Progress, RunResult
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.lane_leases import is_of_held_lane


def run_exported(
    rows: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    spout_id: int,
    column: str = "anchors",
    replay: ReplayFrom | None = None,
    retry: RetryPolicy | None = None,
    stop_if_broken: bool = True,
    dead_letter_bytes: int = 0,
    max_spout_pending: int | None = None,
    emit_timeout_secs: float | None = None,
    run_id: str | None = None,
    executor_url: str | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Run a pipeline over rows that `Tracker.export` wrote in another program.

        run_exported(spark.read.parquet(path), pipeline, acker=acker, spout_id=1)

    Both programs need the same app of the same server. Every row is a message of this run. If it fails, it is retried here,
    and its upstream messages are renewed meanwhile. Once it is done, its edges are acked upstream. If it becomes a dead
    letter, the upstream messages it came from fail. Message ids are derived from the anchors. The output belongs to the
    messages of one emission.

    Guarantee: an upstream message is acked only when all of its rows are done here. Not guaranteed: that rows read again
    after a crash are known to be done. Their edges are then acked twice, so the upstream messages time out and are emitted
    again.

    Args:
        rows: rows as they were exported. They must be the same each time they are read.
        pipeline: function that is called once per emission with a tracker and the tracked messages, which have a column
            `message_id` in place of the anchors. It must run its sinks before it returns.
        acker: acker for the app of the program that exported the rows.
        spout_id: owner of this run's messages. It must differ from that of the run that exported the rows, and be in
            another lane.
        column: name of the column with the anchors, in any encoding of `Tracker.export`.
        replay: source from which failed messages are read again; see `ReplayFrom`. None: `rows`.
        retry: policy for emitting again; see `RetryPolicy`. An attempt counts only against a message that can be to blame.
        stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
            pipeline doesn't declare, in an operator that has processed none. The run completes all other messages first if
            a sink has got rows. False: such exceptions count as attempts from the first one. It is also whether to end with
            an error, and to dead-letter no message for failed jobs, if no message has come through in this run.
        dead_letter_bytes: longest message that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its id.
        max_spout_pending: limit on messages in flight. None: no limit.
        emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds. The emission is then retried
            in parts until a message whose work never ends is alone. Must be longer than the jobs of all messages together
            take. None: no timeout.
        run_id: id of the run. The id of an earlier run is refused. None: a random one.
        executor_url: URL of the acker's server for executors, if theirs differs from this process's.
        progress: function that is called several times a second with a `Progress`.

    Raises:
        PipelineError: the column is missing, or rows have no anchors or those of another row. Nothing was emitted.
        BadConfigError: a setting is out of range or of the wrong type; the app has only one lane; an executor can't reach
            the acker with `executor_url`; or `run_id` belongs to an earlier run. Nothing was emitted.
        InexactPipelineError: the pipeline ran no sink, or rows were dropped or copied by other means than the tracker's
            operators.
        OperatorBrokenError: see `stop_if_broken`. Nothing was dead-lettered because of it.
        AckerError: the server was unreachable for too long, or lost its data.
        Exception: the pipeline function raised it in the driver.
    """
    settings = run_settings(
        "run_exported", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
        stop_if_broken=stop_if_broken, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, progress=progress,
    )  # fmt: skip
    source = replay_from("run_exported", replay)
    if acker.config.lanes == 1:
        raise BadConfigError(
            f"run_exported: app {acker.config.app!r} has only one lane. This run and the run that exported the rows would "
            "consume each other's outcomes. Give the app lanes=2 or more, and this run its own spout_id."
        )
    if MESSAGE_ID in rows.columns:
        raise PipelineError(
            f"run_exported: the rows already have a column {MESSAGE_ID!r}, which this run adds. Rename it."
        )
    pairs = anchor_codec.decode(rows, column, "run_exported")
    plain = [F.col(sql.quoted(name)) for name in rows.columns if name != column]
    messages = rows.select(*plain, pairs.alias(ANCHORS)).withColumn(MESSAGE_ID, F.xxhash64(ANCHORS))
    upstream = _UpstreamMessages(acker, messages.select(MESSAGE_ID, ANCHORS).toArrow())

    def renewing(now: Progress) -> None:
        upstream.renew()
        if progress is not None:
            progress(now)

    try:
        return run_dataframe(
            messages.drop(ANCHORS), pipeline, settings, MessageIds.column(MESSAGE_ID), source, run_id, "by_message",
            upstream.done, renewing,
        )  # fmt: skip
    except BadConfigError as exc:
        if is_of_held_lane(exc):
            raise exc.with_traceback(None) from None
        raise


class _UpstreamMessages:
    """Ack, fail and renew the upstream roots of messages that are not done yet."""

    def __init__(self, acker: Acker, table: pa.Table) -> None:
        """Read the messages of a run and their anchors.

        Raises:
            PipelineError: rows have no anchors.
        """
        self._acker = acker
        pairs = table.column(ANCHORS).combine_chunks()
        pairs = pa.concat_arrays(pairs.chunks) if isinstance(pairs, pa.ChunkedArray) else pairs
        lengths = pairs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) // 2
        if len(lengths) and not lengths.min():
            raise PipelineError(
                f"{int((lengths == 0).sum())} rows have no anchors, so no upstream message waits for them. Filter them out."
            )
        messages = table.column(MESSAGE_ID).to_numpy()
        flat = pairs.flatten().to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, 2)
        message_of_pair = np.repeat(messages, lengths)
        order = np.argsort(message_of_pair, kind="stable")
        self._message_of_pair, self._roots, self._edges = message_of_pair[order], flat[order, 0], flat[order, 1]
        self._open = np.ones(len(order), np.bool_)
        self._renew_at = self._next_renewal()

    def done(self, message_ids: Int64Array, spout: Spout) -> None:
        """Ack the upstream roots of completed messages, and fail those of dead letters."""
        dead = np.array([message for message in message_ids.tolist() if message in spout.dead_letters], np.int64)
        rows = self._rows(np.setdiff1d(message_ids, dead))
        if len(rows):
            self._acker.ack_many(
                self._roots[rows], self._edges[rows], idempotency_key=self._idempotency_key(spout, rows)
            )
        for message in dead.tolist():
            letter, rows = spout.dead_letters[message], self._rows(np.array([message]))
            reason = letter.detail or letter.reason
            self._acker.fail_many(
                self._roots[rows],
                idempotency_key=self._idempotency_key(spout, rows),
                reason=reason,
                component=letter.last_component,
            )
        self._open[self._rows(message_ids)] = False

    def renew(self) -> None:
        """Renew the open upstream roots every half message timeout."""
        if time.monotonic() >= self._renew_at:
            if self._open.any():  # else the run is over, but for the end of its last emission
                self._acker.reset_timeout_many(np.unique(self._roots[self._open]))
            self._renew_at = self._next_renewal()

    def _rows(self, message_ids: Int64Array) -> Int64Array:
        begins, ends = (
            np.searchsorted(self._message_of_pair, np.sort(message_ids), side) for side in ("left", "right")
        )
        counts = ends - begins
        rows: Int64Array = (
            np.repeat(begins, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        )
        return rows

    def _idempotency_key(self, spout: Spout, rows: Int64Array) -> str:
        return f"{spout.run_id}:upstream:{ids.derive(rows.tobytes()):x}"

    def _next_renewal(self) -> float:
        return time.monotonic() + self._acker.config.message_timeout_secs / 2
