"""Tracked record batches, and a stand-in for the accumulator."""

from typing import Any

import numpy as np
import pyarrow as pa

from acker_redis.spark.protocol.columns import ANCHORS, EDGE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker.failures import Report


class Received(list[Report]):
    """Takes reports as an accumulator does."""

    def add(self, reports: list[Report]) -> None:
        self.extend(reports)


def received() -> Any:
    return Received()


def tracked(
    edges: list[int | None],
    anchors: list[list[int] | None] | None = None,
    columns: dict[str, list[Any]] | None = None,
) -> Any:
    """A batch with a column `id` (0, 1, ...), further columns, edge and anchors; none given: each row has one root, 100 up."""
    roots = [[100 + at] for at in range(len(edges))] if anchors is None else anchors
    given = {"id": list(range(len(edges))), **(columns or {}), EDGE: edges, ANCHORS: roots}
    types = {"id": pa.int64(), EDGE: pa.int64(), ANCHORS: pa.list_(pa.int64())}
    return pa.RecordBatch.from_arrays([pa.array(given[name], types.get(name)) for name in given], names=list(given))


def some_edges(count: int, seed: int = 0) -> list[int | None]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, MASK, count, endpoint=True)]


def roots_of(report: Report) -> dict[str, list[int]]:
    return {reason.text: np.frombuffer(packed, np.int64).tolist() for reason, packed in report.reasons.items()}
