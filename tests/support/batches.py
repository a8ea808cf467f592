"""Tracked record batches, and a stand-in for the accumulator."""

from typing import Any

import numpy as np
import pyarrow as pa

from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker.failures import Failure


class ReceivedFailures(list[Failure]):
    """Takes failures as an accumulator does."""

    def add(self, failures: list[Failure]) -> None:
        self.extend(failures)


def received() -> Any:
    return ReceivedFailures()


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
