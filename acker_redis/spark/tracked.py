"""Tracked DataFrames: spout, bolt and sink over Spark's own operators.

A tracked DataFrame is an ordinary one with a column of anchors (see `anchors`). Acks go out from the Python workers, once
per partition, under tokens that a task retry, a stage retry and a speculative copy share, so none of them counts twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_redis import ids
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, BadBatchError
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark.anchors import Anchors
from acker_redis.spark.worker import Updates
from acker_redis.spout import root_ids


class Emitted(NamedTuple):
    """What a bolt made of one record batch.

    Attributes:
        rows: output rows, without anchors.
        parents: for each output row the index of the input row it came from.
        failed: input rows that failed, with the reason; their output rows are left out. The others are acked, those
            without output too.
    """

    rows: pa.RecordBatch
    parents: npt.NDArray[np.int64]
    failed: dict[int, str] | None = None


class Written(NamedTuple):
    """What a sink did, over all partitions of one run of it."""

    rows: int
    updates: int


Execute = Callable[[pa.RecordBatch], Emitted]
Write = Callable[[Iterator[pa.RecordBatch], int], None]


@dataclass(frozen=True)
class Tracker:
    """Makes DataFrames tracked by one acker.

    A tracked DataFrame has one consumer, and its rows may be dropped, reordered and moved, but not copied: two operators
    on it, `explode`, or a join that repeats rows ack one edge several times, and the root may complete too early. Only
    `bolt` makes edges. Rows dropped outside a bolt are never acked: their roots time out.

    Attributes:
        url: Redis, as the executors reach it.
        config: the app.
        run: unique per run of the program; part of every root and token.
        emission: number of the emission the DataFrame is made of (`Spout.next_emission`); part of every token. A batch
            that is computed again must have the number it had, another batch must have another.
    """

    url: str
    config: AckerConfig
    run: str
    emission: int

    def spout(
        self, messages: DataFrame, message_id: str, attempt: str, name: str = "spout", task: int = 0
    ) -> DataFrame:
        """Make every row a tracked root, initialised by the executors.

        Args:
            messages: one row per message. Must give the same rows in the same partitions when a task runs again, as
                files do; after an unordered shuffle of something random they would not.
            message_id: bigint column; a row where it is null stays untracked.
            attempt: bigint column: 0 for a first emission.
            name: of the spout, unique among the operators of the emission.
            task: the spout task that will be told the outcomes.
        """
        schema = _with_anchors(messages.schema)
        return messages.mapInArrow(partial(_spout, self, name, task, message_id, attempt), schema)

    def bolt(self, tracked: DataFrame, execute: Execute, schema: str | StructType, name: str) -> DataFrame:
        """Turn rows into derived rows, vectorised: `execute` gets record batches and says which row each came from.

        The input rows are acked with their children folded in. `execute` should be deterministic: where it isn't, a task
        that runs again can leave trees that time out and are replayed; none completes falsely.

        Args:
            tracked: a tracked DataFrame.
            execute: called with each record batch, without the anchors; runs in the Python workers.
            schema: of its output rows, without anchors; DDL or StructType.
            name: of the bolt, unique among the operators of the emission; shows as `last_stage`.
        """
        _check_tracked(tracked)
        output = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(output, StructType):
            raise BadBatchError(f"bolt {name!r}: schema {schema!r} is not a list of columns")
        return tracked.mapInArrow(partial(_bolt, self, name, execute), _with_anchors(output))

    def sink(self, tracked: DataFrame, write: Write, name: str) -> Written:
        """Write every partition, and ack its rows after `write` returned. Runs the job.

        Args:
            tracked: a tracked DataFrame.
            write: called with the record batches of one partition, without anchors, and the partition's number; has to
                consume them all, and to be idempotent: a partition may be written again. If it raises, nothing of the
                partition is acked and the task fails.
            name: of the sink, unique among the operators of the emission; shows as `last_stage`.
        """
        _check_tracked(tracked)
        done = tracked.mapInArrow(partial(_sink, self, name, write), "rows bigint, updates bigint").toArrow()
        return Written(sum(done["rows"].to_pylist()), sum(done["updates"].to_pylist()))

    def updates(self, name: str) -> Updates:
        """The updates of the running task, for operators of one's own; stable token over every kind of retry."""
        context = TaskContext.get()
        if context is None:
            raise AckerError("this runs inside Spark tasks only")
        token = f"{self.run}:{self.emission}:{name}:{context.partitionId()}"
        return Updates(self.url, self.config, name, token)


def _spout(
    tracker: Tracker, name: str, task: int, message_id: str, attempt: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    updates = tracker.updates(name)
    target = ids.derive("spout", name)
    for batch in batches:
        column = batch.column(message_id)
        tracked = column.is_valid().to_numpy(zero_copy_only=False)
        messages = _int64(column.drop_null(), message_id)
        attempts = _int64(batch.column(attempt).filter(column.is_valid()), attempt)
        roots = root_ids(tracker.config.app, tracker.run, messages, attempts).view(np.uint64)
        edges = ids.derive_many(target, roots)
        updates.init(task, roots, edges)
        yield anchor_column.attach(batch, Anchors.single(roots, edges, tracked))
    updates.send()


def _bolt(tracker: Tracker, name: str, execute: Execute, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    updates = tracker.updates(name)
    for batch in batches:
        anchors = Anchors.of(batch)
        emitted = execute(anchor_column.detach(batch))
        rows, parents = emitted.rows, np.asarray(emitted.parents, np.int64)
        _check_emitted(name, batch.num_rows, rows.num_rows, parents)
        if emitted.failed:
            anchors_done, rows, parents = _fail_rows(updates, anchors, emitted.failed, rows, parents)
        else:
            anchors_done = anchors
        children = anchors.children(name, parents)
        updates.ack(anchors_done.roots, anchors_done.edges)
        updates.ack(children.roots, children.edges)
        yield anchor_column.attach(rows, children)
    updates.send()


def _sink(tracker: Tracker, name: str, write: Write, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    updates = tracker.updates(name)
    rows = 0
    finished = False

    def without_anchors() -> Iterator[pa.RecordBatch]:
        nonlocal rows, finished
        for batch in batches:
            anchors = Anchors.of(batch)
            updates.ack(anchors.roots, anchors.edges)
            rows += batch.num_rows
            yield anchor_column.detach(batch)
        finished = True

    context = TaskContext.get()
    write(without_anchors(), context.partitionId() if context else 0)
    if not finished:
        raise AckerError(f"sink {name!r}: write returned before it had consumed its partition, so nothing was acked")
    yield pa.RecordBatch.from_pydict({"rows": [rows], "updates": [updates.send()]})


def _fail_rows(
    updates: Updates, anchors: Anchors, failed: dict[int, str], rows: pa.RecordBatch, parents: npt.NDArray[np.int64]
) -> tuple[Anchors, pa.RecordBatch, npt.NDArray[np.int64]]:
    """Fail rows by reason; returns the anchors of the others and the output rows that are theirs."""
    by_reason: dict[str, list[int]] = {}
    for row, reason in failed.items():
        by_reason.setdefault(reason, []).append(row)
    for reason, members in by_reason.items():
        updates.fail(anchors.rows(np.array(members, np.int64)).roots, reason)
    alive = np.ones(len(anchors.starts) - 1, np.bool_)
    alive[list(failed)] = False
    keep = alive[parents]
    return anchors.rows(np.flatnonzero(alive)), rows.filter(pa.array(keep)), parents[keep]


def _check_emitted(name: str, inputs: int, outputs: int, parents: npt.NDArray[np.int64]) -> None:
    if len(parents) != outputs:
        raise BadBatchError(f"bolt {name!r}: {outputs} output rows but {len(parents)} parents: give one parent per row")
    if len(parents) and (int(parents.min()) < 0 or int(parents.max()) >= inputs):
        raise BadBatchError(f"bolt {name!r}: a parent is outside the {inputs} rows of its input batch")


def _check_tracked(frame: DataFrame) -> None:
    if anchor_column.COLUMN not in frame.columns:
        raise BadBatchError(
            f"the DataFrame has no column {anchor_column.COLUMN!r}: make it tracked with spout(), and keep the column in "
            "every select"
        )


def _with_anchors(schema: StructType) -> StructType:
    return StructType([*schema.fields, anchor_column.FIELD])


def _int64(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    if not pa.types.is_integer(column.type) or column.null_count:
        raise BadBatchError(f"column {name!r}: expected bigint without nulls, got {column.type}")
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)
