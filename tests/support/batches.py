"""Tracked record batches, and the failures in the rows that represent failed ones."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from acker_redis.spark.protocol.columns import FAILED, FAILURE, OUT, ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker.failures import Failure, read_failure

MAX_BYTES = 1 << 20
"""So much may be reported in most tests."""


def failures_in(rows: list[dict[str, Any]], component: str = "split") -> list[Failure]:
    """The failures of the rows that represent failed ones; no other row may have any."""
    assert all((row[OUT] == FAILED) == (row[FAILURE] is not None) for row in rows)
    return [read_failure(component, json.loads(row[FAILURE])) for row in rows if row[OUT] == FAILED]


def tracked(
    shares: list[int | None],
    roots: list[list[int] | None] | None = None,
    columns: dict[str, list[Any]] | None = None,
) -> Any:
    """A batch with a column `id` (0, 1, ...), further columns, share and roots; none given: one root a row, 100 up."""
    row_roots = [[100 + at] for at in range(len(shares))] if roots is None else roots
    given = {"id": list(range(len(shares))), **(columns or {}), SHARE: shares, ROOTS: row_roots}
    types = {"id": pa.int64(), SHARE: pa.int64(), ROOTS: pa.list_(pa.int64())}
    return pa.RecordBatch.from_arrays([pa.array(given[name], types.get(name)) for name in given], names=list(given))


def some_shares(count: int, seed: int = 0) -> list[int | None]:
    return [int(share) for share in np.random.default_rng(seed).integers(0, MASK, count, endpoint=True)]


def roots_of(failure: Failure) -> dict[str, list[int]]:
    return {reason.text: np.frombuffer(packed, np.int64).tolist() for reason, packed in failure.reasons.items()}
