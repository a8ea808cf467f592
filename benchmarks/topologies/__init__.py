"""The word count as a topology in process, beside pystorm's bolts and Java's in Apache Storm 2.8.2.

All run a spout, a bolt that splits, and one that counts, with one task each, on sentences of 6.4 words. Storm runs in one
process (LocalCluster) with 1 acker and 5 000 pending at most; pystorm's bolts are two more processes, which talk JSON with it.
Maven and pip fetch Storm and pystorm once; where Maven is missing, the rows with Storm are left out.

CPU and memory are those of the server, for a topology that only emits and acks.
"""

import time
from collections.abc import Generator, Iterator
from shutil import which

import numpy as np

from acker_redis import Acker, AckerError
from acker_redis.client.connection import RedisClient
from acker_redis.testing import fake_acker
from benchmarks import harness
from benchmarks.harness import Bench, Row
from benchmarks.ledger import hset_micros
from benchmarks.topologies.held import held
from benchmarks.topologies.storm import rates_of_storm
from benchmarks.topologies.word_count import WORDS_IN_FIVE, word_count

_SENTENCES = 40_000
_PENDING = 200_000
_ROUNDS = 3


@harness.benchmark("topologies")
def run(bench: Bench) -> Iterator[Row]:
    """Run Storm first, then both kinds of run in process in turn, then what the server spends."""
    pystorm = yield from _storm(bench)
    yield from _in_process(bench, pystorm)
    yield from _server(bench)


def _storm(bench: Bench) -> Generator[Row, None, float | None]:
    """Measure Storm, once, and return the sentences per second of pystorm's bolts, or None without Maven."""
    if which("mvn") is None or bench.scale < 1:
        return None
    found = rates_of_storm()
    for bolts in ("java", "multilang"):
        tracked, untracked = (found[f"{bolts}-{kind}"] for kind in ("tracked", "untracked"))
        yield bench.row(f"Storm, {bolts}: sentences acked per s", tracked, "/s")
        ratios = [sorted(untracked)[len(untracked) // 2] / rate for rate in tracked]
        yield bench.row(f"Storm, {bolts}: untracked / tracked", ratios, "x")
    return float(np.median(found["multilang-tracked"]))


def _in_process(bench: Bench, pystorm: float | None) -> Iterator[Row]:
    """Measure tracked and untracked runs in turn, on the server and on fakeredis."""
    count = bench.size(_SENTENCES)
    rates: dict[str, list[float]] = {"tracked": [], "untracked": [], "fake": []}
    for round_ in range(_ROUNDS + 1):
        for kind, found in rates.items():
            acker = fake_acker(message_timeout_secs=3600) if kind == "fake" else bench.acker("words", empty=True)
            with acker:
                rate = _rate(acker, count, is_tracked=kind != "untracked")
            if round_:  # the first is warm-up
                found.append(rate)
    per_second = {kind: float(np.median(found)) for kind, found in rates.items()}
    yield bench.row(
        "untracked / tracked", [u / t for u, t in zip(rates["untracked"], rates["tracked"], strict=True)], "x", target=2.0,
        context=f"{per_second['tracked']:,.0f} sentences per s tracked, {per_second['untracked']:,.0f} untracked",
    )  # fmt: skip
    for kind in ("tracked", "fake") if pystorm else ():
        where = "on the server" if kind == "tracked" else "on fakeredis"
        yield bench.row(
            f"sentences per s {where} / pystorm in Storm", [rate / float(pystorm or 1) for rate in rates[kind]], "x",
            at_least=True, context=f"{per_second[kind]:,.0f} / {pystorm:,.0f}",
        )  # fmt: skip


def _rate(acker: Acker, count: int, *, is_tracked: bool) -> float:
    began = time.perf_counter()
    result = word_count(count, is_tracked=is_tracked).run_local(acker)
    took_secs = time.perf_counter() - began
    counted = result.metrics["count"].executed.total()
    if result.acked != count or counted != count // 5 * WORDS_IN_FIVE:
        raise AckerError(f"{counted} words of {count} sentences were counted: {result}.")
    return count / took_secs


def _server(bench: Bench) -> Iterator[Row]:
    """Measure what the server spends on messages that are emitted, pending, and acked at the end."""
    client = bench.redis()
    for is_slow, name in ((False, "emitted in bursts of 32"), (True, "one to a round")):
        count = bench.size(_PENDING // (10 if is_slow else 1)) // 32 * 32
        pending: list[int] = []
        with bench.acker("pending", empty=True) as acker:
            before, cpu = _used_bytes(client), harness.cpu_micros(client)
            topology = held(count, lambda found=pending: found.append(_used_bytes(client)), is_slow=is_slow)  # type: ignore[misc]
            result = topology.run_local(acker)
            cpu = (harness.cpu_micros(client) - cpu) / count
        if result.acked != count:
            raise AckerError(f"Of {count} messages {result.acked} were acked: {result}.")
        hset = [hset_micros(client, part) for part in np.split(harness.random_ids(count, seed=3), 4)]
        yield bench.row(
            f"server memory per pending message, {name}", [(pending[0] - before) / count], "B",
            target=None if is_slow else 16.0,
        )  # fmt: skip
        yield bench.row(
            f"server CPU per message, {name}, from init to outcome / HSET", [cpu / one for one in hset], "x",
            context=f"{cpu:.2f} µs, HSET {np.median(hset):.2f} µs",
        )  # fmt: skip
    client.close()


def _used_bytes(client: RedisClient) -> int:
    return int(client.info("memory")["used_memory"])
