"""Memory per pending root, everything included, in bytes.

This is the growth of INFO's used_memory since the app was opened and empty. It includes blocks, cohorts, dedup windows,
counters, and the overhead of hash tables. It is measured for roots that the library generates, 32 to a block, and for single
roots.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from acker_redis import Acker
from acker_redis.model.arrays import UInt64Array
from benchmarks import harness
from benchmarks.harness import BATCH, SHARDS, Bench, Row

_PENDING, _MANY = 1_000_000, 10_000_000
_TARGET, _TARGET_REDIS, _TARGET_VALKEY = 14.0, 96.0, 64.0


@harness.benchmark("memory")
def run(bench: Bench) -> Iterator[Row]:
    """Send batches that fill script calls, like a steady stream of batches."""
    client = bench.redis()
    for full in (_PENDING, _MANY):
        count = bench.size(full)
        with bench.acker("minted", empty=True) as acker:
            grown = _grown(client, acker, acker.new_roots(count).view(np.uint64), 4 * BATCH * SHARDS)
        yield _row(bench, f"32 to a block, {full // 10**6} M", count, grown, _TARGET)
    count = bench.size(_PENDING)
    with bench.acker("alone", empty=True) as acker:
        grown = _grown(client, acker, harness.random_ids(count, seed=5), BATCH * SHARDS)
    yield _row(bench, "alone, 1 M", count, grown, _TARGET_VALKEY if bench.is_valkey else _TARGET_REDIS)
    client.close()


def _row(bench: Bench, which: str, count: int, grown: int, target: float) -> Row:
    return bench.row(
        f"bytes per pending root, {which}", [grown / count], "B", target=target,
        context=f"{grown / 2**20:.1f} MiB for {count:,} roots",
    )  # fmt: skip


def _grown(client: Any, acker: Acker, roots: UInt64Array, at_once: int) -> int:
    before = _used_memory(client)
    for start in range(0, len(roots), at_once):
        batch = roots[start : start + at_once]
        acker.init_many(batch, batch, 0)
    return _used_memory(client) - before


def _used_memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])
