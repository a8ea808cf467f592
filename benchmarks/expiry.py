"""Expiry of 1 000 000 roots: how fast death row is drained, and the longest single script call on the way.

Calls are timed by the server itself, in its slow log, with a threshold of 100 µs. That is wall time: on a machine that
is busy with other work it holds the time in which the server was not running, so the 99.9 % quantile stands beside it.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Bench, Row

_ROOTS = 1_000_000
_TARGET_MS = 5.0
_SLOW_MICROS = 100
_LOG_ENTRIES = 1_000_000
_FAILS = 100_000


@harness.benchmark("expiry")
def run(bench: Bench) -> Iterator[Row]:
    """All roots expire at once, at one rotation: the worst case; then the longest calls of the other operations."""
    count = bench.size(_ROOTS)
    roots = harness.random_ids(count, seed=6)
    client = bench.redis()
    client.config_set("slowlog-log-slower-than", _SLOW_MICROS)
    client.config_set("slowlog-max-len", _LOG_ENTRIES)
    with bench.acker("expiry", empty=True) as acker:
        yield _longest(bench, client, "init", lambda: acker.init_many(roots, roots, 0))
        yield _longest(bench, client, "ack", lambda: acker.ack_many(roots, roots >> np.uint64(1)))
        failing = roots[: bench.size(_FAILS) // 2]
        yield _longest(bench, client, "fail", lambda: acker.fail_many(failing))
        for _ in range(acker.config.num_buckets - 1):
            acker.rotate(force=True)
        client.slowlog_reset()
        start = time.perf_counter()
        expired = acker.rotate(force=True).timed_out
        elapsed = time.perf_counter() - start
        longest = _longest(bench, client, "expire", lambda: None)
    client.close()
    per_second = expired / elapsed
    yield bench.row("expiry through rotate()", [per_second], "roots/s", context=f"{expired:,} roots in {elapsed:.2f} s")
    yield longest


def _longest(bench: Bench, client: Any, operation: str, work: Any) -> Row:
    """Longest call in the slow log while the work ran; what is in the log already counts if there is no work."""
    work()
    millis = sorted(entry["duration"] / 1000 for entry in client.slowlog_get(_LOG_ENTRIES))
    client.slowlog_reset()
    if not millis:
        millis = [_SLOW_MICROS / 1000]
    context = (
        f"99.9 %: {millis[int(len(millis) * 0.999)]:.2f} ms, median {millis[len(millis) // 2]:.2f} ms of {len(millis)}"
    )
    return bench.row(f"longest call: {operation}", [millis[-1]], "ms", target=_TARGET_MS, context=context)
