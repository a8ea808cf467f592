"""Run a pipeline over rows that another program exported: each is a message here, and settles upstream."""

import time

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.messages import MESSAGE_ID
from acker_redis.spark.emission.runner import Pipeline
from acker_redis.spark.protocol import anchor_codec, arguments
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.runs.dataframe import run_dataframe
from acker_redis.spark.runs.options import MessageIds, ReplayFrom, replay_from, run_settings
from acker_redis.spark.runs.run_result import OnProgress, Progress, RunResult
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout


def run_exported(
    rows: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    spout_id: int,
    column: str = "anchors",
    replay: ReplayFrom | None = None,
    retry: RetryPolicy | None = None,
    stop_if_all_fail: bool = True,
    dead_letter_bytes: int = 0,
    max_spout_pending: int | None = None,
    emit_timeout_secs: float | None = None,
    run_id: str | None = None,
    executor_url: str | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Carry on the messages of rows that `Tracker.export` wrote; they need the same app of the same server.

        run_exported(spark.read.parquet(path), pipeline, acker=acker, spout_id=1)

    Every row is a message of this run, which is tried again here where it fails, and renewed upstream meanwhile. When it is
    done its edges are acked upstream; when it is a dead letter, the messages upstream that it came from fail. Message ids
    are made of the anchors, and what is written belongs to the messages of an emission.

    Guarantee: a message upstream is acked only when all of its rows were done here. Not guaranteed: that rows that are read
    again after a crash are known to have been done; their edges are then acked twice, so that the messages upstream time out
    and are emitted again.

    Args:
        rows: as they were exported; have to be the same whenever they are read.
        pipeline: called once per emission with a tracker and the tracked messages, which have a column `message_id` in place
            of the anchors; has to run its sinks before it returns.
        acker: of the app of the program that exported the rows.
        spout_id: owner of this run's messages; another than that of the run that exported the rows, in another lane.
        column: of anchors, in any of the forms of `Tracker.export`.
        replay: where failed messages are read again from; see `ReplayFrom`. None: from `rows`.
        retry: when to emit again; see `RetryPolicy`. An attempt counts only against a message that can be to blame.
        stop_if_all_fail: end with `OperatorBrokenError` where 20 messages failed by an exception that the pipeline does not
            declare, in an operator that has processed none. False: such exceptions count as an attempt from the first on.
        dead_letter_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
        max_spout_pending: at most so many messages in flight.
        emit_timeout_secs: the jobs of an emission are cancelled after so long, and it goes out again in parts, until a message
            whose work never ends is alone. Has to be longer than the jobs of all messages together take. None: never.
        run_id: unique per run: one that an earlier run had is refused; None: a random one.
        executor_url: the acker's server as executors reach it, where that is not as this process does.
        progress: called several times a second with a `Progress`.

    Raises:
        PipelineError: there is no such column, or rows have no anchors, or those of another row; nothing was emitted.
        BadConfigError: a setting is out of range or of another type; the app has one lane; an executor does not find the
            acker by `executor_url`; an earlier run had this run id. Nothing was emitted.
        NotExactError: the pipeline ran no sink, or drops or copies rows otherwise than by the tracker's operators.
        OperatorBrokenError: see `stop_if_all_fail`; nothing was dead-lettered for it.
        AckerError: the server can't be reached for too long, or lost its data.
        Exception: what the pipeline function raised in the driver.
    """
    settings = run_settings(
        "run_exported", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
        stop_if_all_fail=stop_if_all_fail, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, progress=progress,
    )  # fmt: skip
    source = replay_from("run_exported", replay)
    if acker.config.lanes == 1:
        raise BadConfigError(
            f"run_exported: app {acker.config.app!r} has one lane, in which this run and the one that exported the rows "
            "would take each other's outcomes: give the app lanes=2 or more, and this run a spout_id of its own"
        )
    if MESSAGE_ID in rows.columns:
        raise PipelineError(f"the rows have a column {MESSAGE_ID!r}, which they are given here: rename it")
    pairs = anchor_codec.decode(rows, column, "run_exported")
    plain = [F.col(arguments.quoted(name)) for name in rows.columns if name != column]
    messages = rows.select(*plain, pairs.alias(ANCHORS)).withColumn(MESSAGE_ID, F.xxhash64(ANCHORS))
    upstream = _UpstreamMessages(acker, messages.select(MESSAGE_ID, ANCHORS).toArrow())

    def renewing(now: Progress) -> None:
        upstream.renew()
        if progress is not None:
            progress(now)

    return run_dataframe(
        messages.drop(ANCHORS), pipeline, settings, MessageIds.column(MESSAGE_ID), source, run_id, "by_message",
        upstream.done, renewing,
    )  # fmt: skip


class _UpstreamMessages:
    """Ack, fail and renew the roots upstream of messages that are not done yet."""

    def __init__(self, acker: Acker, table: pa.Table) -> None:
        """Take the messages of a run, none of which is done.

        Raises:
            PipelineError: rows have no anchors.
        """
        self._acker = acker
        pairs = table.column(ANCHORS).combine_chunks()
        pairs = pa.concat_arrays(pairs.chunks) if isinstance(pairs, pa.ChunkedArray) else pairs
        lengths = pairs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) // 2
        if len(lengths) and not lengths.min():
            raise PipelineError(
                f"{int((lengths == 0).sum())} rows have no anchors, so no message upstream waits for them: leave them out"
            )
        messages = table.column(MESSAGE_ID).to_numpy()
        flat = pairs.flatten().to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, 2)
        message_of_pair = np.repeat(messages, lengths)
        order = np.argsort(message_of_pair, kind="stable")
        self._message_of_pair, self._roots, self._edges = message_of_pair[order], flat[order, 0], flat[order, 1]
        self._open = np.ones(len(order), np.bool_)
        self._renew_at = self._next_renewal()

    def done(self, message_ids: Int64Array, spout: Spout) -> None:
        """Ack upstream what was done, and fail what became of dead letters."""
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
        """Renew what is open, every half message timeout."""
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
