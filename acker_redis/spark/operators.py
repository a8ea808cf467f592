"""What runs in the Python workers: spout, bolt and sink as steps over (rows, anchors).

Steps that follow each other without a shuffle run in one Python worker, one after the other on the same batches; between
them no anchors are written out. Each step keeps its own updates and its own token, so it makes no difference to the ledger
which steps ran together.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from acker_redis import ids
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, BadBatchError, FailedError
from acker_redis.ids import UInt64Array
from acker_redis.pending import root_ids
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark import kept_rows, worker
from acker_redis.spark.anchors import Anchors
from acker_redis.spark.worker import Updates

log = logging.getLogger("acker_redis.spark")

REASON_CHARS = 300

EXPLODED_ROWS = 20_000
"""An array from SQL is short in bytes and may be long in rows: so many are taken apart at a time."""


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


DROPPED = "_acker_dropped"
"""Column that names the SQL operator which left a row without children: to be acked and left out; else null."""

VALUE = "value"
"""Column that an array of simple values is exploded to."""

CHILDREN = "_acker_children"
"""Column of the rows that SQL derives from a row, as an array, until they are taken apart."""

ATTEMPT = "_acker_attempt"
"""Column of attempts that `run_tracked` adds: a spout leaves it out of its rows."""

Execute: TypeAlias = Callable[[pa.RecordBatch], Emitted]
Write: TypeAlias = Callable[[Iterator[pa.RecordBatch], int], None]
OnWriteError: TypeAlias = Literal["timeout", "fail"]
Stream: TypeAlias = Iterator[tuple[pa.RecordBatch, Anchors]]


@dataclass(frozen=True)
class Origin:
    """What a worker has to know of the tracker: where the acker is, and what this emission is called."""

    url: str = field(repr=False)
    config: AckerConfig
    run_id: str
    emission: int

    def updates(self, name: str, *, folds: bool) -> Updates:
        """The updates of the running task under `name`; the token is the same over every kind of retry."""
        token = f"{self.run_id}:{self.emission}:{name}:{_context().partitionId()}"
        return Updates(self.url, self.config, name, token, folds)


@dataclass(frozen=True)
class SpoutStep:
    """Makes rows roots, and initialises them."""

    name: str
    task: int
    message_id: str
    attempt: str
    payload: str | None = None
    payload_bytes: int = 0

    @property
    def columns(self) -> list[str]:
        """Columns that it reads."""
        columns = dict.fromkeys((self.message_id, self.attempt, self.payload))
        return [column for column in columns if column is not None]

    @property
    def left_out(self) -> list[str]:
        """Columns that are for the spout only."""
        return [c for c in (self.payload, ATTEMPT if self.attempt == ATTEMPT else None) if c is not None]

    def run(self, origin: Origin, updates: Updates, batches: Iterator[pa.RecordBatch]) -> Stream:
        """Rows with their first edge; a row without message id has no anchor."""
        target = ids.derive("spout", self.name)
        for batch in batches:
            column = batch.column(self.message_id)
            tracked = column.is_valid().to_numpy(zero_copy_only=False)
            messages = _int64(column.drop_null(), self.message_id)
            attempts = _int64(batch.column(self.attempt).filter(column.is_valid()), self.attempt)
            roots = root_ids(origin.config.app, origin.run_id, messages, attempts).view(np.uint64)
            edges = ids.derive_many(target, roots)
            updates.init(self.task, roots, edges)
            if self.payload is not None:
                kept = kept_rows.to_bytes(batch.column(self.payload).filter(column.is_valid()), self.payload_bytes)
                pairs = [
                    (message, one) for message, one in zip(messages.tolist(), kept, strict=True) if one is not None
                ]
                worker.acker_of_worker(origin.url, origin.config).payloads(origin.run_id).put(pairs)
            yield batch.drop_columns(self.left_out), Anchors.single(roots, edges, tracked)


@dataclass(frozen=True)
class BoltStep:
    """Turns rows into derived rows, and acks each with its children folded in."""

    name: str
    execute: Execute
    schema: pa.Schema

    def run(self, updates: Updates, stream: Stream) -> Stream:
        """Derived rows with the edges of their parents."""
        for batch, anchors in stream:
            emitted = self.execute(batch)
            rows, parents = emitted.rows, np.asarray(emitted.parents, np.int64)
            self._check(batch.num_rows, rows.num_rows, parents, emitted.failed or {})
            rows = self._conform(rows)
            if emitted.failed:
                rows, parents = _without_failed(rows, parents, emitted.failed)
            children, vals = anchors.children(self.name, parents)
            if emitted.failed:
                _fail_rows(updates, anchors, vals, emitted.failed)
            else:
                updates.ack(anchors.roots, vals)
            yield rows, children

    def _conform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.names != self.schema.names:
            raise BadBatchError(
                f"bolt {self.name!r}: rows have columns {rows.schema.names}, its schema says {self.schema.names}"
            )
        return rows if rows.schema.types == self.schema.types else rows.cast(self.schema)

    def _check(self, inputs: int, outputs: int, parents: npt.NDArray[np.int64], failed: dict[int, str]) -> None:
        if any(not 0 <= row < inputs for row in failed):
            raise BadBatchError(f"bolt {self.name!r}: failed names a row outside the {inputs} rows of its input batch")
        if len(parents) != outputs:
            raise BadBatchError(
                f"bolt {self.name!r}: {outputs} output rows but {len(parents)} parents: give one parent per row"
            )
        if len(parents) and (int(parents.min()) < 0 or int(parents.max()) >= inputs):
            raise BadBatchError(f"bolt {self.name!r}: a parent is outside the {inputs} rows of its input batch")


@dataclass(frozen=True)
class ExplodeStep:
    """A bolt whose children SQL has made, as arrays in `CHILDREN`, and which are taken apart here."""

    name: str
    schema: pa.Schema

    def run(self, updates: Updates, stream: Stream) -> Stream:
        """Derived rows with the edges of their parents."""
        return BoltStep(self.name, self._children, self.schema).run(updates, _cut_by_children(stream))

    def _children(self, batch: pa.RecordBatch) -> Emitted:
        arrays = batch.column(CHILDREN)
        rows = pc.list_flatten(arrays)
        columns = rows.flatten() if pa.types.is_struct(rows.type) else [rows]
        return Emitted(
            pa.RecordBatch.from_arrays(columns, names=self.schema.names), pc.list_parent_indices(arrays).to_numpy()
        )


@dataclass(frozen=True)
class DropStep:
    """Acks the rows that an operator in SQL dropped, and leaves them out; the last such step takes the mark off.

    With a reason they are failed instead.
    """

    name: str
    last: bool
    reason: str | None = None

    def run(self, updates: Updates, stream: Stream) -> Stream:
        """The rows that stay."""
        for batch, anchors in stream:
            rows = batch
            mine = pc.equal(rows.column(DROPPED), self.name).fill_null(False)
            gone = mine.to_numpy(zero_copy_only=False)
            if gone.any():
                dropped = anchors.rows(np.flatnonzero(gone))
                if self.reason is None:
                    updates.ack(dropped.roots, dropped.edges)
                else:
                    updates.fail(dropped.roots, self.reason)
                rows, anchors = rows.filter(pc.invert(mine)), anchors.rows(np.flatnonzero(~gone))
            yield rows.drop_columns([DROPPED]) if self.last else rows, anchors


@dataclass(frozen=True)
class FanOutStep:
    """Gives every branch an edge of its own, and passes the rows of one branch on.

    Each branch is a DataFrame of its own and may run in a job of its own. All of them send the same updates under the same
    token, so they count once.
    """

    name: str
    branches: tuple[str, ...]
    branch: str

    def run(self, updates: Updates, stream: Stream) -> Stream:
        """The same rows, with the edges of this branch."""
        for batch, anchors in stream:
            every_row = np.arange(batch.num_rows)
            vals = anchors.edges
            for branch in self.branches:
                children, acks = anchors.children(f"{self.name}/{branch}", every_row)
                vals = vals ^ acks ^ anchors.edges
                if branch == self.branch:
                    mine = children
            updates.ack(anchors.roots, vals)
            yield batch, mine


@dataclass(frozen=True)
class SinkStep:
    """Writes rows, and acks them after the write returned. If it raises, they are failed or left to time out, as told."""

    name: str
    write: Write
    on_error: OnWriteError = "timeout"

    def run(self, updates: Updates, stream: Stream) -> int:
        """Number of rows written."""
        rows = 0
        finished = upstream_failed = False

        def without_anchors() -> Iterator[pa.RecordBatch]:
            nonlocal rows, finished, upstream_failed
            try:
                for batch, anchors in stream:
                    updates.ack(anchors.roots, anchors.edges)
                    rows += len(anchors.starts) - 1
                    yield batch
            except Exception:
                upstream_failed = True
                raise
            finished = True

        try:
            self.write(without_anchors(), _context().partitionId())
        except Exception as exc:
            if self.on_error == "timeout" or upstream_failed:
                raise
            reason = str(exc) if isinstance(exc, FailedError) else f"{type(exc).__name__}: {exc}"
            reason = reason[:REASON_CHARS]
            for _, anchors in stream:
                updates.ack(anchors.roots, anchors.edges)
            updates.fail_instead(reason)
            log.warning("sink %r failed its rows: %s", self.name, reason)
            return 0
        if not finished:
            raise AckerError(
                f"sink {self.name!r}: write returned before it had consumed its partition, so nothing was acked"
            )
        return rows


Step: TypeAlias = SpoutStep | BoltStep | ExplodeStep | DropStep | FanOutStep | SinkStep


@dataclass(frozen=True)
class Chain:
    """Steps that run together on the batches of a partition: the function that is given to mapInArrow.

    Updates go out after the partition was consumed to its end, and only then: a task that fails or is abandoned sends
    nothing.
    """

    origin: Origin
    steps: tuple[Step, ...]
    columns: tuple[str, ...] = ()
    """Names that the columns have here, where Spark gives them others."""

    @property
    def spout(self) -> SpoutStep | None:
        """The spout, if the rows are its own messages still, but for some that were dropped."""
        first = self.steps[0] if self.steps else None
        if isinstance(first, SpoutStep) and all(isinstance(step, DropStep) for step in self.steps[1:]):
            return first
        return None

    def then(self, step: Step) -> "Chain":
        """This chain with one more step."""
        return Chain(self.origin, (*self.steps, step))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition."""
        worker.acker_of_worker(
            self.origin.url, self.origin.config
        )  # what is wrong with it shows before anything is written
        if self.columns:
            batches = (batch.rename_columns(list(self.columns)) for batch in batches)
        sent: list[Updates] = []
        handed = worker.Handed()
        stream: Stream | None = None
        written: int | None = None
        for step in self.steps:
            updates = self.origin.updates(step.name, folds=not isinstance(step, DropStep))
            sent.append(updates)
            if isinstance(step, SpoutStep):
                stream = step.run(self.origin, updates, batches)
                continue
            source = _read(batches) if stream is None else stream
            if isinstance(step, SinkStep):
                written = step.run(updates, source)
            else:
                stream = step.run(updates, source)
        if written is None:
            for rows, anchors in stream or ():
                handed.add(anchors.roots)
                yield anchor_column.attach(rows, anchors)
        applied = worker.send(sent, handed)
        if written is not None:
            yield pa.RecordBatch.from_pydict({"rows": [written], "updates": [applied]})


def _read(batches: Iterator[pa.RecordBatch]) -> Stream:
    for batch in batches:
        yield anchor_column.detach(batch), Anchors.of(batch).combined()


def _cut_by_children(stream: Stream) -> Stream:
    """Batches whose arrays have EXPLODED_ROWS elements in all at most, or a single row."""
    for batch, anchors in stream:
        ends = np.cumsum(pc.list_value_length(batch.column(CHILDREN)).fill_null(0).to_numpy(zero_copy_only=False))
        begin = 0
        while begin < batch.num_rows:
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + EXPLODED_ROWS, "right")))
            rows = np.arange(begin, end)
            whole = end - begin == batch.num_rows
            yield (batch, anchors) if whole else (batch.slice(begin, end - begin), anchors.rows(rows))
            begin = end


def _without_failed(
    rows: pa.RecordBatch, parents: npt.NDArray[np.int64], failed: dict[int, str]
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    keep = ~np.isin(parents, list(failed))
    return rows.filter(pa.array(keep)), parents[keep]


def _fail_rows(updates: Updates, anchors: Anchors, vals: UInt64Array, failed: dict[int, str]) -> None:
    """Fail rows by reason, and ack the others."""
    by_reason: dict[str, list[int]] = {}
    for row, reason in failed.items():
        by_reason.setdefault(reason, []).append(row)
    for reason, members in by_reason.items():
        updates.fail(anchors.rows(np.array(members, np.int64)).roots, reason)
    alive = np.ones(len(anchors.starts) - 1, np.bool_)
    alive[list(failed)] = False
    alive_anchors = np.repeat(alive, np.diff(anchors.starts))
    updates.ack(anchors.roots[alive_anchors], vals[alive_anchors])


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise AckerError("this runs inside Spark tasks only")
    return context


def _int64(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    if not pa.types.is_integer(column.type) or column.null_count:
        raise BadBatchError(f"column {name!r}: expected bigint without nulls, got {column.type}")
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)
