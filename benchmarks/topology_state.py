"""State of bolts on Spark: a word count with its counts in Redis, beside the same topology without state, and Storm's.

Turns have 100 000 sentences of six words. The words are drawn from 2 000, or from 1 000 000. The measured turns are the last
ones of a run: the keys exist, and workers have copies of them. A turn is the time from its first emit to that of the next
one. Storm's word count keeps its counts in memory, and is tracked.
"""

from collections.abc import Generator, Iterator
from shutil import which

import numpy as np
from pyspark.sql import SparkSession

from acker_redis import AckerError
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.store import topology_sizes
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row
from benchmarks.topologies.counted import WORDS, counted
from benchmarks.topologies.storm import rates_of_storm
from benchmarks.topologies.word_count import WORDS_IN_FIVE

_TURN = 100_000
_FEW, _MANY = 2_000, 1_000_000
_WARM = {_FEW: 2, _MANY: 5}
"""Turns before the measured ones, by the number of keys."""

_MEASURED = 4


@harness.benchmark("topology_state")
def run(bench: Bench) -> Iterator[Row]:
    """Measure both topologies in turn, with few keys and with many, then a restart, then Storm."""
    with jobs.session() as spark:
        for keys, target in ((_FEW, 1.5), (_MANY, 2.5)) if bench.scale >= 1 else ((_FEW, 1.5),):
            rate = yield from _turns(bench, spark, keys, target)
            yield from _left(bench, spark, keys)
    if which("mvn") is not None and bench.scale >= 1:
        found = rates_of_storm()
        for bolts in ("multilang", "java"):
            words = [one / 5 * WORDS_IN_FIVE for one in found[f"{bolts}-tracked"]]
            yield bench.row(
                f"words per s, {_MANY:,} keys in state, on Spark / Storm, {bolts}", [rate / one for one in words], "x",
                at_least=True, context=f"{rate:,.0f} / {np.median(words):,.0f}",
            )  # fmt: skip


def _turns(bench: Bench, spark: SparkSession, keys: int, target: float) -> Generator[Row, None, float]:
    """Measure warm turns of both topologies. Returns words per second with state."""
    plain = _run(bench, spark, keys, has_state=False)
    kept = _run(bench, spark, keys, has_state=True)
    per_second = [WORDS * bench.size(_TURN) / float(np.median(secs)) for secs in (kept, plain)]
    yield bench.row(
        f"a turn with state / without, {keys:,} keys", [one / float(np.median(plain)) for one in kept], "x", target=target,
        context=f"{per_second[0]:,.0f} words per s with state, {per_second[1]:,.0f} without",
    )  # fmt: skip
    return per_second[0]


def _run(bench: Bench, spark: SparkSession, keys: int, *, has_state: bool) -> list[float]:
    """Run a topology, and return the seconds of its warm turns."""
    warm, measured, turn = (
        (_WARM[keys], _MEASURED, bench.size(_TURN)) if bench.scale >= 1 else (0, 1, bench.size(_TURN))
    )
    began: list[float] = []
    sentences = turn * (warm + measured + 1)
    with bench.acker("counted", empty=has_state) as acker:
        topology = counted(sentences, turn=turn, keys=keys, began=began, has_state=has_state)
        result = topology.run(spark, acker=acker, turn_tuples=turn, turn_secs=600)
        if result.acked != sentences or len(began) != warm + measured + 1:
            raise AckerError(f"{sentences} sentences in {len(began)} turns: {result}.")
    return [float(secs) for secs in np.diff(began)[warm:]]


def _left(bench: Bench, spark: SparkSession, keys: int) -> Iterator[Row]:
    """Measure the state that the run has left, and a run that begins with it."""
    turn, began = bench.size(_TURN), list[float]()
    with bench.acker("counted") as acker:
        client, names = app_of(acker).client, StateKeys("counted", "Counted")
        topology = counted(2 * turn, turn=turn, keys=keys, began=began, first=turn * 100)
        result = topology.run(spark, acker=acker, turn_tuples=turn, turn_secs=600)
        sizes = topology_sizes.read(client, "counted", "Counted")
    count = sum(size.keys or 0 for size in sizes)
    plain = bench.redis()
    memory = sum(plain.memory_usage(names.values(names.task("count", index)), samples=1000) for index in range(2))
    plain.close()
    if result.acked != 2 * turn or not keys // 2 < count <= keys:
        raise AckerError(f"{count} keys of {keys} are in the state: {result}.")
    yield bench.row(
        f"bytes per key, {keys:,} keys", [memory / count], "B",
        context=f"{sum(size.bytes for size in sizes) / count:.0f} B of key and value",
    )  # fmt: skip
    yield bench.row(
        f"first turn of a run over {keys:,} keys", [began[1] - began[0]], "s", context=f"{turn:,} sentences"
    )
