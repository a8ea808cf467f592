"""Roots that come to an end, and outcomes that are still in the streams."""

from typing import Any

import numpy as np

from acker_redis import Acker, OutcomeBatch


def streams(raw: Any, app: str = "test") -> list[bytes]:
    return [key for key in raw.scan_iter(f"acker:{{{app}:*") if b":acked:" in key or b":failed:" in key]


def unconfirmed(raw: Any) -> int:
    """Entries in the streams, and delivered ones without confirmation."""
    return sum(raw.xlen(key) + raw.xinfo_groups(key)[0]["pending"] for key in streams(raw))


def complete(acker: Acker, count: int, first: int = 1, spout_id: int = 0) -> set[int]:
    """Roots that complete at once, packed into as few entries as the batch allows."""
    acker.init_many(np.arange(first, first + count), np.zeros(count, np.int64), spout_id)
    return set(range(first, first + count))


def time_out(acker: Acker, roots: Any, spout_id: int = 0) -> None:
    acker.init_many(roots, np.ones(len(roots), np.int64), spout_id)
    expire(acker)


def expire(acker: Acker) -> None:
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)


def roots_of(batches: list[OutcomeBatch]) -> list[int]:
    return sorted(root for batch in batches for root in batch.roots.tolist())
