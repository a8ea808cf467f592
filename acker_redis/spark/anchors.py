"""The anchors of a tracked DataFrame: one column, `array<bigint>`: root, edge, root, edge ...

A row has one anchor (a root and an edge) per root it came from, several after a join; none, so an empty array, if it is
untracked. Flat, because a nested column costs twice as much in a shuffle.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType

from acker_redis import ids
from acker_redis.errors import BadBatchError
from acker_redis.ids import UInt64Array

COLUMN = "_anchors"
"""Name of the column."""

TYPE = ArrayType(LongType(), False)
"""Its type as Spark knows it."""

ARROW_FIELD = pa.field(COLUMN, pa.list_(pa.field("element", pa.int64(), nullable=False)))


@dataclass(frozen=True)
class Anchors:
    """The anchors of a batch of rows: row i has roots[starts[i]:starts[i + 1]] and the edges at the same places."""

    starts: npt.NDArray[np.int64]
    roots: UInt64Array
    edges: UInt64Array

    @classmethod
    def single(cls, roots: UInt64Array, edges: UInt64Array, tracked: npt.NDArray[np.bool_]) -> "Anchors":
        """One anchor per tracked row; roots and edges hold the tracked rows only."""
        return cls(np.concatenate(([0], np.cumsum(tracked))).astype(np.int64), roots, edges)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Anchors":
        """Read the column of a batch.

        Raises:
            BadBatchError: the batch has no such column: the DataFrame isn't tracked, or the column was dropped.
        """
        index = batch.schema.get_field_index(COLUMN)
        if index < 0:
            raise BadBatchError(
                f"the DataFrame has no column {COLUMN!r}: make it tracked with spout(), and keep the column in every select"
            )
        column = batch.column(index)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        if bool((lengths % 2).any()):
            raise BadBatchError(f"column {COLUMN!r} is damaged: a row has a root without an edge")
        pairs = column.flatten().to_numpy(zero_copy_only=False).view(np.uint64).reshape(-1, 2)
        starts = np.concatenate(([0], np.cumsum(lengths // 2))).astype(np.int64)
        return cls(starts, np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))

    def to_arrow(self) -> pa.Array:
        """The column."""
        values = pa.array(np.stack([self.roots, self.edges], axis=1).reshape(-1).view(np.int64))
        return pa.ListArray.from_arrays(pa.array(self.starts * 2, pa.int32()), values, type=ARROW_FIELD.type)

    def rows(self, rows: npt.NDArray[np.int64]) -> "Anchors":
        """The anchors of some rows, in their order; a row may stand there several times."""
        starts, places = self._places(rows)
        return Anchors(starts, self.roots[places], self.edges[places])

    def combined(self) -> "Anchors":
        """Each root once per row, with the XOR of its edges (Storm: Utils.putXor, MessageId.makeId)."""
        count = len(self.starts) - 1
        if len(self.roots) <= count and bool((np.diff(self.starts) <= 1).all()):
            return self
        rows = np.repeat(np.arange(count), np.diff(self.starts))
        order = np.lexsort((self.roots, rows))
        rows, roots, edges = rows[order], self.roots[order], self.edges[order]
        first = np.concatenate(([True], (rows[1:] != rows[:-1]) | (roots[1:] != roots[:-1])))
        begins = np.flatnonzero(first)
        starts = np.concatenate(([0], np.cumsum(np.bincount(rows[begins], minlength=count)))).astype(np.int64)
        return Anchors(starts, roots[begins], np.bitwise_xor.reduceat(edges, begins))

    def children(self, operator: str, parents: npt.NDArray[np.int64]) -> tuple["Anchors", UInt64Array]:
        """The anchors of output rows, and what each anchor of the input has to be acked with.

        Each new edge is derived from (parent edge, operator, ordinal among its siblings). Derived, not drawn: a task that
        runs again makes the same edges (Storm draws them; it never runs a task again). An input is acked with its own edge
        and, by XOR, those of its children (Storm: BoltOutputCollectorImpl, outAckVal).
        """
        starts, places = self._places(parents)
        ordinals = np.repeat(_ordinals(parents), np.diff(starts)).view(np.uint64)
        seeds = ids.derive_many(ids.derive("bolt", operator), self.edges)  # once per parent, not per child
        edges = ids.mix64(seeds[places] ^ ids.mix64(ordinals))
        return Anchors(starts, self.roots[places], edges), self.edges ^ _xor_at(len(self.edges), places, edges)

    def _places(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the anchors of some rows stand: the starts of each row's, and their places."""
        count = len(self.starts) - 1
        if len(self.roots) == count and bool((np.diff(self.starts) == 1).all()):
            return np.arange(len(rows) + 1), rows
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        return starts, np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])


def attach(rows: pa.RecordBatch, anchors: Anchors) -> pa.RecordBatch:
    """Rows with their anchors as last column."""
    return pa.RecordBatch.from_arrays(
        [*rows.columns, anchors.to_arrow()], schema=pa.schema([*rows.schema, ARROW_FIELD])
    )


def detach(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without the column."""
    return batch.drop_columns([COLUMN])


def _xor_at(count: int, places: npt.NDArray[np.int64], vals: UInt64Array) -> UInt64Array:
    """XOR of the values of each place."""
    total = np.zeros(count, np.uint64)
    if len(places) and bool((places[1:] >= places[:-1]).all()):
        starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
        total[places[starts]] = np.bitwise_xor.reduceat(vals, starts)
    else:
        np.bitwise_xor.at(total, places, vals)
    return total


def _ordinals(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2 ... within the rows of one parent."""
    if len(parents) == 0:
        return parents
    if bool((parents[1:] >= parents[:-1]).all()):
        first = np.concatenate(([True], parents[1:] != parents[:-1]))
        starts = np.flatnonzero(first)
        return np.arange(len(parents)) - np.repeat(starts, np.diff(np.append(starts, len(parents))))
    order = np.argsort(parents, kind="stable")
    ordinals = np.empty_like(parents)
    ordinals[order] = _ordinals(parents[order])
    return ordinals
