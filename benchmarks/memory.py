"""Bytes per pending root at 1 000 000 pending, everything included.

The growth of INFO's used_memory from the server with the app opened and nothing in it: records, cohorts, fences,
counters, and the hash tables' own overhead.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks import harness
from benchmarks.harness import BATCH, SHARDS, Bench, Row

_PENDING = 1_000_000
_TARGET_REDIS, _TARGET_VALKEY = 96.0, 64.0


@harness.benchmark("memory")
def run(bench: Bench) -> Iterator[Row]:
    """Batches of 8 000 roots, so that script calls hold about 1 000 each, as a steady stream of batches would."""
    count = bench.size(_PENDING)
    roots = harness.random_ids(count, seed=5)
    client = bench.redis()
    with bench.acker("memory", empty=True) as acker:
        before = _used_memory(client)
        for start in range(0, count, BATCH * SHARDS):
            batch = roots[start : start + BATCH * SHARDS]
            acker.init_many(batch, batch, 0)
        grown = _used_memory(client) - before
    client.close()
    target = _TARGET_VALKEY if bench.is_valkey else _TARGET_REDIS
    yield bench.row(
        "bytes per pending root", [grown / count], "B", target=target,
        context=f"{grown / 2**20:.1f} MiB for {count:,} roots",
    )  # fmt: skip


def _used_memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])
