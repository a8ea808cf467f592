"""Expiry of 1 000 000 roots, 32 to a block: speed of draining death row, and the longest single script call.

First all roots are settled, so none is found. Then all are pending and expire at once, at one rotation: the worst case. The
server itself times the calls, in its slow log. That is wall time: on a busy machine it includes time in which the server was
not running. Three figures show the difference: the median over the repeats of each one's longest call, the 99.9 % quantile
of all calls, and a control. The control is a Lua loop without any data that takes about as long, called 2 000 times.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Acker
from acker_redis.model.arrays import UInt64Array
from benchmarks import harness
from benchmarks.harness import Bench, Row

_ROOTS = 1_000_000
_FAILS = 100_000
_REPEATS = 3
_TARGET_MS = 5.0
_TARGET_SETTLED = 5e6
_LOG_OVER_MICROS = 100
_LOG_ENTRIES = 1_000_000
_CONTROL = "local x = 0 for i = 1, 200000 do x = x + i end return x"
_CONTROL_CALLS = 2000


@harness.benchmark("expiry")
def run(bench: Bench) -> Iterator[Row]:
    """Measure init, ack, fail and expire, then the control, in several repeats."""
    count = bench.size(_ROOTS)
    client = bench.redis()
    client.config_set("slowlog-log-slower-than", _LOG_OVER_MICROS)
    client.config_set("slowlog-max-len", _LOG_ENTRIES)
    calls: dict[str, list[list[float]]] = {}
    rates: list[float] = []
    settled: list[float] = []
    for repeat in range(_REPEATS):
        with bench.acker(f"settled-{repeat}", empty=True) as acker:
            settled.append(count / _drain_settled(acker, acker.new_roots(count).view(np.uint64)))
        with bench.acker(f"expiry-{repeat}", empty=True) as acker:
            roots = acker.new_roots(count).view(np.uint64)
            for operation, work in _operations(acker, roots, bench.size(_FAILS)):
                calls.setdefault(operation, []).append(_timed(client, work))
            for _ in range(acker.config.num_buckets - 1):
                acker.admin.rotate(force=True)
            start = time.perf_counter()
            calls.setdefault("expire", []).append(_timed(client, lambda: _rotate(acker, len(roots))))  # noqa: B023
            rates.append(len(roots) / (time.perf_counter() - start))
        calls.setdefault("control", []).append(_timed(client, lambda: _control(client, bench.size(_CONTROL_CALLS, 10))))
    client.close()
    yield bench.row(
        "settled roots drained through rotate()", settled, "roots/s", target=_TARGET_SETTLED, at_least=True,
        context=f"{count:,} roots per repeat",
    )  # fmt: skip
    yield bench.row("expiry through rotate()", rates, "roots/s", context=f"{count:,} roots per repeat")
    for operation, repeats in calls.items():
        yield _longest(bench, operation, repeats)


def _operations(acker: Acker, roots: UInt64Array, fails: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "init", lambda: acker.init_many(roots, roots, 0)
    yield "ack", lambda: acker.ack_many(roots, roots >> np.uint64(1))
    others = harness.random_ids(fails, seed=7)  # roots that fail are closed, and don't time out
    acker.init_many(others, others, 0)
    yield "fail", lambda: acker.fail_many(others)


def _drain_settled(acker: Acker, roots: UInt64Array) -> float:
    """Return the seconds of a rotation that finds all roots settled."""
    acker.init_many(roots, roots, 0)
    acker.ack_many(roots, roots)
    for _ in range(acker.config.num_buckets - 1):
        acker.admin.rotate(force=True)
    start = time.perf_counter()
    _rotate(acker, 0)
    return time.perf_counter() - start


def _rotate(acker: Acker, expected: int) -> None:
    expired = acker.admin.rotate(force=True).timed_out
    if expired != expected:
        raise RuntimeError(f"{expired} of {expected} roots expired")


def _control(client: Any, calls: int) -> None:
    pipe = client.pipeline(transaction=False)
    for _ in range(calls):
        pipe.eval(_CONTROL, 0)
    pipe.execute()


def _timed(client: Any, work: Callable[[], Any]) -> list[float]:
    """Return the milliseconds of every logged script call during the work, sorted."""
    client.slowlog_reset()
    work()
    logged = client.slowlog_get(_LOG_ENTRIES)
    millis = sorted(entry["duration"] / 1000 for entry in logged if entry["command"].upper().startswith(b"EVAL"))
    return millis or [_LOG_OVER_MICROS / 1000]


def _longest(bench: Bench, operation: str, repeats: list[list[float]]) -> Row:
    every = sorted(millis for repeat in repeats for millis in repeat)
    context = (
        f"99.9 %: {every[int(len(every) * 0.999)]:.2f} ms, median {every[len(every) // 2]:.2f} ms of {len(every):,}"
    )
    target = None if operation == "control" else _TARGET_MS
    return bench.row(f"longest call: {operation}", [r[-1] for r in repeats], "ms", target=target, context=context)
