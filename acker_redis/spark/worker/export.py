"""The last step of an export: fresh edges, introduced to the ledger.

Other applications ack these edges. An edge belongs to the ledger: 64 bits, XORed. The input is rows with their shares. The
output has one edge per root of each row. A root and the row's edge for it form an anchor.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from acker_redis.errors import IdempotencyKeyReusedError, InexactPipelineError, LedgerLostError, UnprovenEmissionError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.config import AckerConfig
from acker_redis.model.xxhash64 import hash_longs
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ARROW_ANCHORS, ARROW_SHARE, ROOTS, SHARE
from acker_redis.spark.worker.failures import count_rootless
from acker_redis.spark.worker.process import acker_of_worker, keep_imports, partition_id, while_lost

_COMPACT_ROWS = 500_000


@dataclass(frozen=True)
class ExportStep:
    """Function for `mapInArrow` from rows with roots and share to rows with anchors (`ANCHORS`) and share.

    Each row gets a fresh edge for each root it came from. The edge is derived from the root and the row's share, so it
    doesn't depend on the order of rows when a task runs again. Rows with equal shares were copied, which the proof detects.
    Fresh edges are introduced as one ack per root, after the partition was consumed to its end and before the task ends. A
    task that ends earlier introduces nothing. If a step before this one fails, Spark ends the input as if it were complete.
    The edges of a part of the rows are introduced then, and the next try of the task has others.

    Attributes:
        url: server's URL, as executors reach it.
        config: settings of the app.
        prefix: name of run, emission and action. Edges and the idempotency key of a partition's ack are derived from it.
        component: name of the operator.
        columns: see `FlatMapStep`.
    """

    url: str = field(repr=False)  # may hold a password
    config: AckerConfig
    prefix: str
    component: str
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            InexactPipelineError: rows have lost their roots.
            UnprovenEmissionError: an earlier try of the task introduced the edges of other rows.
        """
        keep_imports()
        acker_of_worker(self.url, self.config)  # any error must show before a row leaves
        introduced = IntroducedEdges()
        salt = shares.salt_of(self.prefix)
        for spark_batch in batches:
            batch = spark_batch.rename_columns(list(self.columns)) if self.columns else spark_batch
            starts, roots, edges = fresh_edges(batch, salt, self.component)
            introduced.add(roots, edges)
            plain = batch.drop_columns([ROOTS, SHARE])
            yield pa.RecordBatch.from_arrays(
                [*plain.columns, _as_anchors(starts, roots, edges), pa.array(shares.from_arrow(batch.column(SHARE)))],
                schema=pa.schema([*plain.schema, ARROW_ANCHORS, ARROW_SHARE]),
            )
        self._introduce(*introduced.ack_vals())

    def _introduce(self, roots: UInt64Array, ack_vals: UInt64Array) -> None:
        if not len(roots):
            return
        acker = acker_of_worker(self.url, self.config)
        idempotency_key = f"{self.prefix}:{partition_id()}"
        try:
            try:
                acker.ack_many(roots, ack_vals, idempotency_key=idempotency_key, component=self.component)
            except LedgerLostError:
                # The spout detects the loss by itself and replays. Nothing waits for these roots then, and they expire.
                while_lost(acker.reopen)
                acker.ack_many(roots, ack_vals, idempotency_key=idempotency_key, component=self.component)
        except IdempotencyKeyReusedError as exc:
            raise UnprovenEmissionError(
                f"export {self.component!r}: the task of a partition ran again and returned other rows, after the edges of "
                "an earlier try had been introduced. A step before the export died, or isn't deterministic, so the messages "
                "are emitted again. If no task failed before, make the functions before the export deterministic."
            ) from exc


@dataclass
class IntroducedEdges:
    """The XOR of the fresh edges per root. The number of distinct roots bounds its memory."""

    _roots: list[UInt64Array] = field(default_factory=list)
    _vals: list[UInt64Array] = field(default_factory=list)
    _size: int = 0
    _distinct: int = 0

    def add(self, roots: UInt64Array, edges: UInt64Array) -> None:
        """Add edges, with the root of each."""
        roots, vals = ids.xor_runs(roots, edges)
        self._roots.append(roots)
        self._vals.append(vals)
        self._size += len(roots)
        if self._size >= max(_COMPACT_ROWS, 2 * self._distinct):
            roots, vals = ids.xor_by_root(*self.ack_vals())
            self._roots, self._vals = [roots], [vals]
            self._size = self._distinct = len(roots)

    def ack_vals(self) -> tuple[UInt64Array, UInt64Array]:
        """Return roots and the ack val of each, for `Acker.ack_many`, which sorts them and combines those that repeat."""
        none = np.array([], np.uint64)
        return np.concatenate([none, *self._roots]), np.concatenate([none, *self._vals])


def fresh_edges(batch: pa.RecordBatch, salt: int, component: str) -> tuple[Int64Array, UInt64Array, UInt64Array]:
    """Return the index at which each row's roots begin, the roots, and a fresh edge for each.

    Args:
        batch: rows with their shares.
        salt: salt of the action, which differs from emission to emission.
        component: name of the sink.

    Raises:
        InexactPipelineError: rows have lost their roots.
    """
    starts, roots = _distinct_roots(batch.column(ROOTS))
    rows = np.repeat(np.arange(batch.num_rows), np.diff(starts))
    row_shares = shares.from_arrow(batch.column(SHARE))
    if count_rootless(row_shares, np.diff(starts)) or not roots.all():
        raise InexactPipelineError(
            f"export {component!r}: rows of a message have lost their roots, so the message would be done before "
            f"they are. Nothing is acked. Keep the column {ROOTS} as it is."
        )
    edges = np.asarray(hash_longs(row_shares[rows].view(np.uint64), salt, roots), np.uint64)
    return starts, roots, np.where(edges == 0, np.uint64(1), edges)


def _distinct_roots(column: pa.ListArray) -> tuple[Int64Array, UInt64Array]:
    """Return the index at which each row's roots begin, and the roots.

    Each root is listed once per row, because two equal edges would cancel out.
    """
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    roots = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.int64).view(np.uint64)
    if len(lengths) and int(lengths.max()) > 1:
        rows = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((roots, rows))
        rows, roots = rows[order], roots[order]
        first = np.concatenate(([True], (rows[1:] != rows[:-1]) | (roots[1:] != roots[:-1])))
        roots, lengths = roots[first], np.bincount(rows[first], minlength=len(lengths))
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), roots


def _as_anchors(starts: Int64Array, roots: UInt64Array, edges: UInt64Array) -> pa.ListArray:
    values = pa.array(np.stack([roots, edges], axis=1).reshape(-1).view(np.int64))
    return pa.ListArray.from_arrays(pa.array(starts * 2, pa.int32()), values, type=ARROW_ANCHORS.type)
