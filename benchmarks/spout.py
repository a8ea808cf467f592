"""Work of one driver for 1 000 000 messages besides their job: emit, init, close, and receive the outcomes.

The figure is the wall time of one process beside one server, in seconds. It is also given as a multiple of the server CPU of
as many pipelined HSETs (a million of a microsecond each is a second), so that machines can be compared.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Spout
from benchmarks import harness
from benchmarks.harness import BATCH, Bench, Row
from benchmarks.ledger import hset_micros

_MESSAGES = 1_000_000
_PART = 65_536
_REPEATS = 3
_TARGET = 0.6


@harness.benchmark("spout")
def run(bench: Bench) -> Iterator[Row]:
    """Measure sequential ids, sent in parts, as the Spark layer sends them."""
    count = bench.size(_MESSAGES)
    client = bench.redis()
    hset = hset_micros(client, harness.random_ids(min(count, 100 * BATCH), seed=8))
    secs: dict[str, list[float]] = {}
    for repeat in range(_REPEATS):
        with bench.acker(f"spout-{repeat}", empty=True) as acker:
            spout = Spout(acker, f"run-{repeat}")
            spout.add(np.arange(count))
            spent = {}
            emission, spent["next_emission"] = _timed(spout.next_emission)
            parts = np.split(emission.roots, range(_PART, count, _PART))
            _, spent["init"] = _timed(lambda: [acker.init_many(part, part, 0) for part in parts])  # noqa: B023
            _, spent["close"] = _timed(lambda: [acker.ack_many(part, part) for part in parts])  # noqa: B023
            _, spent["take the outcomes"] = _timed(lambda: _poll(spout))  # noqa: B023
            if spout.counts.acked != count:
                raise RuntimeError(f"{spout.counts} of {count} messages")
        spent["init and close"] = spent["init"] + spent["close"]
        for step, step_secs in spent.items():
            secs.setdefault(step, []).append(step_secs * _MESSAGES / count)
    client.close()
    for step, repeats in secs.items():
        yield bench.row(f"1 M messages: {step}", repeats, "s")
    ratios = [step_secs / hset for step_secs in secs["init and close"]]
    yield bench.row(
        "1 M messages: init and close / 1 M HSET", ratios, "x", target=_TARGET, context=f"HSET {hset:.2f} µs"
    )


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _poll(spout: Spout) -> None:
    while spout.poll():
        pass
