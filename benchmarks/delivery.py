"""Delivery of outcomes from their streams to the spout, confirmed: 1 000 000 timed-out roots, and as many acked ones.

`Spout.poll` until all are received is compared with a plain redis-py consumer of the same entries that only counts them:
XREADGROUP COUNT 1000 over all streams, then XACK and XDEL per stream in a pipeline. The replays follow: one
`Spout.next_emission` of all messages. CPU is measured separately for the server and this process.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Acker, RetryPolicy, Spout
from acker_redis.client.connection import RedisClient
from acker_redis.spout.in_flight import Emission
from benchmarks import harness
from benchmarks.harness import BATCH, Bench, Row

_ROOTS = 1_000_000
_REPEATS = 3
_TARGET = 1.0
_TARGETS_SECS = {"acked": 1.0, "timed out": 10.0}


@harness.benchmark("delivery")
def run(bench: Bench) -> Iterator[Row]:
    """Measure both sides in turn."""
    count = bench.size(_ROOTS)
    client = bench.redis()
    taken: dict[str, list[_Taken]] = {}
    replayed: list[float] = []
    for repeat in range(_REPEATS):
        with bench.acker(f"plain-{repeat}", empty=True) as acker:
            _expire(acker, _emit(Spout(acker, f"run-{repeat}"), count))
            taken.setdefault("plain", []).append(_timed(client, count, lambda: _plain(client, acker)))  # noqa: B023
        with bench.acker(f"timeouts-{repeat}", empty=True) as acker:
            spout = Spout(acker, f"run-{repeat}", retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
            _expire(acker, _emit(spout, count))
            taken.setdefault("timed out", []).append(_timed(client, count, lambda: _poll(spout)))  # noqa: B023
            start = time.perf_counter()
            spout.next_emission()
            replayed.append(count / (time.perf_counter() - start))
            if (spout.counts.timed_out, spout.counts.replayed) != (count, count):
                raise RuntimeError(f"{spout.counts} of {count} roots")
        with bench.acker(f"acks-{repeat}", empty=True) as acker:
            spout = Spout(acker, f"run-{repeat}")
            emission = _emit(spout, count)
            acker.ack_many(emission.roots, emission.roots)
            taken.setdefault("acked", []).append(_timed(client, count, lambda: _poll(spout)))  # noqa: B023
    client.close()
    yield bench.row(
        "timed-out roots per second: Spout.poll / plain consumer",
        [ours.rate / theirs.rate for ours, theirs in zip(taken["timed out"], taken["plain"], strict=True)],
        "x", target=_TARGET, at_least=True, context=f"{count:,} roots per repeat",
    )  # fmt: skip
    for case, ways in taken.items():
        server, own = (
            np.median([getattr(taken_once, name) for taken_once in ways]) for name in ("server_micros", "own_micros")
        )
        context = f"CPU per root: server {server:.2f} µs, client {own:.2f} µs"
        yield bench.row(f"taken: {case}", [taken_once.rate for taken_once in ways], "roots/s", context=context)
        target = _TARGETS_SECS.get(case)
        yield bench.row(f"1 M {case}, taken", [10**6 / taken_once.rate for taken_once in ways], "s", target=target)
    yield bench.row("next_emission of all replays", replayed, "messages/s")


class _Taken:
    """Rate of received outcomes, and CPU per outcome."""

    def __init__(self, count: int, wall_secs: float, server_micros: float, own_secs: float) -> None:
        self.rate = count / wall_secs
        self.server_micros = server_micros / count
        self.own_micros = own_secs * 1e6 / count


def _timed(client: RedisClient, count: int, work: Callable[[], int]) -> _Taken:
    start, own, server = time.perf_counter(), time.process_time(), harness.cpu_micros(client)
    taken = work()
    spent = time.perf_counter() - start, harness.cpu_micros(client) - server, time.process_time() - own
    if taken != count:
        raise RuntimeError(f"{taken} of {count} outcomes were taken")
    return _Taken(count, *spent)


def _emit(spout: Spout, count: int) -> Emission:
    spout.add(np.arange(count))
    emission = spout.next_emission()
    if emission is None:
        raise RuntimeError("nothing to emit")
    spout.acker.init_many(emission.roots, emission.roots, spout.spout_id)
    return emission


def _expire(acker: Acker, emission: Emission) -> None:
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)
    if acker.stats(with_oldest_age=False).timed_out != len(emission.roots):
        raise RuntimeError("not all roots expired")


def _poll(spout: Spout) -> int:
    taken = 0
    while count := spout.poll():
        taken += count
    return taken


def _plain(client: RedisClient, acker: Acker) -> int:
    app = acker.config.app
    streams: dict[Any, Any] = dict.fromkeys(client.scan_iter(f"acker:{{{app}:*}}:failed:0", count=1000), ">")
    taken = 0
    while replies := client.xreadgroup("spout", "plain", streams, count=BATCH):
        for stream, rows in replies.items() if isinstance(replies, dict) else replies:
            entry_ids = [entry_id for entry_id, _ in rows]
            with client.pipeline(transaction=False) as pipe:
                pipe.xack(stream, "spout", *entry_ids)
                pipe.xdel(stream, *entry_ids)
                pipe.execute()
            taken += len(entry_ids)
    return taken
