"""Topologies on Spark: three levels without state, beside the same topology in Apache Storm 2.8.2.

Lines are split into words, the words become lower case, and a sink takes them: a parquet writer on Spark, a bolt that does
nothing in Storm. Bolts are Python, in Storm pystorm's; Storm's Java bolts are measured, too. Small turns are compared with an
untracked Spark job of the same stages, which materialises nothing.
"""

import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from shutil import which

import numpy as np
from pyspark.sql import SparkSession

from acker_redis import AckerError
from acker_redis.client.connection import RedisClient
from acker_redis.storm import RunResult
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row
from benchmarks.ledger import hset_micros
from benchmarks.topologies.lower_case import lower_case, plain_job
from benchmarks.topologies.storm import rates_of_storm
from benchmarks.topologies.word_count import WORDS_IN_FIVE

_SENTENCES = 300_000
_PENDING = 100_000
_SMALL = (1, 1000)
_TURNS = 10
_ROUNDS = 3


@harness.benchmark("turns")
def run(bench: Bench) -> Iterator[Row]:
    """Run Storm first, then tracked and untracked runs on Spark in turn, then small turns."""
    pystorm = yield from _storm(bench)
    with jobs.session() as spark, tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield from _whole(bench, spark, Path(name) / "words", pystorm)
        for messages in _SMALL if bench.scale >= 1 else _SMALL[:1]:
            yield from _small(bench, spark, Path(name) / "words", messages)


def _storm(bench: Bench) -> Generator[Row, None, dict[str, float]]:
    """Measure Storm, once, and return words per second of tracked runs by kind of bolts; empty without Maven."""
    if which("mvn") is None or bench.scale < 1:
        return {}
    found = rates_of_storm("lower-")
    for bolts in ("java", "multilang"):
        tracked, untracked = (found[f"{bolts}-{kind}"] for kind in ("tracked", "untracked"))
        yield bench.row(f"Storm, {bolts}: words per s, tracked", [_words(rate) for rate in tracked], "/s")
        yield bench.row(f"Storm, {bolts}: untracked / tracked", [np.median(untracked) / rate for rate in tracked], "x")
    return {bolts: _words(float(np.median(found[f"{bolts}-tracked"]))) for bolts in ("java", "multilang")}


def _words(sentences: float) -> float:
    return sentences / 5 * WORDS_IN_FIVE


def _whole(bench: Bench, spark: SparkSession, folder: Path, storm: dict[str, float]) -> Iterator[Row]:
    """Measure runs of many large turns, tracked and untracked in turn."""
    count = bench.size(_SENTENCES)
    secs: dict[bool, list[float]] = {True: [], False: []}
    cpu: list[float] = []
    client = bench.redis()
    for round_ in range(_ROUNDS + 1 if bench.scale >= 1 else 1):
        for is_tracked, found in secs.items():
            before = harness.cpu_micros(client)
            took = _run(bench, spark, folder, count, is_tracked=is_tracked, max_pending=_PENDING).duration_secs
            if round_ or bench.scale < 1:  # the first is warm-up
                found.append(took)
                if is_tracked:
                    cpu.append((harness.cpu_micros(client) - before) / count)
    per_second = {is_tracked: _words(count) / float(np.median(found)) for is_tracked, found in secs.items()}
    yield bench.row(
        "tracked / untracked", [t / u for t, u in zip(secs[True], secs[False], strict=True)], "x", target=1.3,
        context=f"{per_second[True]:,.0f} words per s tracked, {per_second[False]:,.0f} untracked",
    )  # fmt: skip
    for bolts, rate in storm.items():
        yield bench.row(
            f"words per s, tracked, on Spark / Storm, {bolts}", [_words(count) / one / rate for one in secs[True]], "x",
            target=5.0 if bolts == "multilang" else None, at_least=True, context=f"{per_second[True]:,.0f} / {rate:,.0f}",
        )  # fmt: skip
    yield _cpu_row(bench, client, cpu)
    client.close()


def _cpu_row(bench: Bench, client: RedisClient, cpu: list[float]) -> Row:
    hset = np.median([hset_micros(client, part) for part in np.split(harness.random_ids(2**17, seed=3), 4)])
    return bench.row(
        "server CPU per message, from init to outcome / HSET", [one / hset for one in cpu], "x", target=0.5,
        context=f"{np.median(cpu):.2f} µs, HSET {hset:.2f} µs",
    )  # fmt: skip


def _small(bench: Bench, spark: SparkSession, folder: Path, messages: int) -> Iterator[Row]:
    """Measure a turn of so many messages, as the difference of a long and a short run, beside the untracked job."""
    turns, plain = [], []
    count = _TURNS if bench.scale >= 1 else 1
    for round_ in range(_ROUNDS + 1 if bench.scale >= 1 else 1):
        short, long = (
            _run(bench, spark, folder, messages * number, is_tracked=True, max_pending=messages).duration_secs
            for number in (count, 3 * count)
        )
        began = time.perf_counter()
        for _ in range(count):
            plain_job(spark, messages)().write.mode("append").parquet(str(folder))
        took = (time.perf_counter() - began) / count
        if round_ or bench.scale < 1:
            turns.append((long - short) / (2 * count))
            plain.append(took)
    yield bench.row(
        f"a turn of {messages:,} messages / untracked job", [t / p for t, p in zip(turns, plain, strict=True)], "x",
        target=1.5, context=f"{np.median(turns) * 1e3:.0f} ms / {np.median(plain) * 1e3:.0f} ms",
    )  # fmt: skip


def _run(
    bench: Bench, spark: SparkSession, folder: Path, count: int, *, is_tracked: bool, max_pending: int
) -> RunResult:
    shutil.rmtree(folder, ignore_errors=True)
    topology = lower_case(count, is_tracked=is_tracked, max_pending=max_pending)
    with bench.acker("lower", empty=True) as acker:
        result = topology.run(
            spark, acker=acker, sinks={"lower": lambda writer: writer.mode("append").parquet(str(folder))}
        )
    written = spark.read.parquet(str(folder)).count()
    if written != sum(result.metrics["lower"].emitted.values()) or (is_tracked and result.acked != count):
        raise AckerError(f"{written} words of {count} sentences were written: {result}.")
    return result
