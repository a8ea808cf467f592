"""Cost of output once: tracked runs with `once=`, against the same tracked runs without it, in turn in one session.

100 000 small rows are appended, and the typical pipeline of `realistic` runs over JSON files. Each runs without failures, and
with one message in a hundred failing in the first emission. The last side is the same with `output="whole"`, which keeps its
rows, too. Micro-batches of 1 000 rows run with and without a log.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Once, Pipeline, TrackedBatches, Tracker, run_tracked
from benchmarks import harness, jobs, micro_batches, realistic
from benchmarks.harness import Bench, Row

_ROWS, _JSON_ROWS = 100_000, 600_000
_ROUNDS, _WARM = 3, 1
_BATCH_ROWS, _BATCHES, _WARM_BATCHES = 1000, 30, 5
_TARGET_MS = 150
_FAILING = "id % 100 = 0"
_RETRY = RetryPolicy(first_delay_secs=0)

Kept = Callable[[Tracker, DataFrame], DataFrame]


@dataclass(frozen=True)
class _Case:
    """A pipeline to run on each side.

    Attributes:
        name: name of the case.
        messages: rows, read again by each run.
        kept: function of the tracker and the messages that returns the rows to write.
        fails: whether one message in a hundred fails at first.
        target: target for the ratio of wall times.
    """

    name: str
    messages: Callable[[], DataFrame]
    kept: Kept
    fails: bool
    target: float
    secs: dict[str, list[float]] = field(default_factory=dict)

    def pipeline(self, folder: Path, mode: str) -> Pipeline:
        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            good = messages
            if self.fails and not tracker.emission:
                good = tracker.fail_where(messages, _FAILING, "at first")
            rows = self.kept(tracker, good)
            tracker.write(rows, lambda writer: writer.mode(mode).parquet(str(folder)))

        return pipeline


@harness.benchmark("once")
def run(bench: Bench) -> Iterator[Row]:
    """Measure runs, then micro-batches."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = Path(name)
        count, json_count = bench.size(_ROWS), bench.size(_JSON_ROWS)
        realistic.write_json(spark, json_count, f"{name}/json")
        small, typical = f"{count:,} small rows", f"{json_count:,} JSON rows, filter, shuffle, parquet"

        def rows() -> DataFrame:
            return spark.range(0, count, 1, 4)

        def json_rows() -> DataFrame:
            return realistic.read_json(spark, f"{name}/json")

        cases = [
            _Case(small, rows, lambda _, messages: messages, fails=False, target=1.4),
            _Case(f"{small}, 1 % fail at first", rows, lambda _, messages: messages, fails=True, target=1.6),
            _Case(typical, json_rows, realistic.kept, fails=False, target=1.25),
            _Case(f"{typical}, 1 % fail at first", json_rows, realistic.kept, fails=True, target=1.4),
        ]
        yield from _runs(bench, cases, folder)
        yield from _batches(bench, spark, folder)


def _runs(bench: Bench, cases: list[_Case], folder: Path) -> Iterator[Row]:
    rounds = _ROUNDS if bench.scale >= 1 else 1
    warm = _WARM if bench.scale >= 1 else 0
    for number in range(warm + rounds):
        for case in cases:
            for side in ("tracked", "once", "whole"):
                out = folder / side
                secs = _timed(bench, case, out, side)
                rows = sum(pq.read_metadata(file).num_rows for file in out.rglob("*.parquet"))
                if side == "tracked":
                    expected = rows
                elif rows != expected:
                    raise RuntimeError(f"{case.name}: {expected} rows were written by message, {rows} {side}")
                if number >= warm:
                    case.secs.setdefault(side, []).append(secs)
    for case in cases:
        for side in ("once", "whole"):
            ratios = [a / b for a, b in zip(case.secs[side], case.secs["tracked"], strict=True)]
            context = f"{np.median(case.secs[side]):.2f} s / {np.median(case.secs['tracked']):.2f} s"
            target = case.target if side == "once" else None
            yield bench.row(f"{case.name}: {side} / tracked wall", ratios, "x", target=target, context=context)


def _timed(bench: Bench, case: _Case, out: Path, side: str) -> float:
    log = out.with_name("log")
    for one in (out, log):
        shutil.rmtree(one, ignore_errors=True)
    chosen: dict[str, dict[str, Any]] = {
        "tracked": {},
        "once": {"once": Once(str(log), "bench")},
        "whole": {"output": "whole"},
    }
    pipeline = case.pipeline(out, "overwrite" if side == "whole" else "append")
    with Acker.connect(bench.url, app="once", shards=harness.SHARDS, message_timeout_secs=3600) as acker:
        started = time.perf_counter()
        result = run_tracked(case.messages(), pipeline, acker=acker, ids="id", retry=_RETRY, **chosen[side])
        secs = time.perf_counter() - started
    if result.counts.dead_lettered or bool(result.counts.replayed) != case.fails:
        raise RuntimeError(f"{case.name}: {side} had other outcomes: {result.counts}")
    return secs


def _batches(bench: Bench, spark: Any, folder: Path) -> Iterator[Row]:
    warm = _WARM_BATCHES if bench.scale >= 1 else 1
    batches = bench.size(_BATCHES, least=warm + 1)
    micro_batches.write_files(folder / "in", batches, _BATCH_ROWS)
    secs: dict[str, list[float]] = {"tracked": [], "once": []}
    with Acker.connect(bench.url, app="once-batches", message_timeout_secs=3600) as acker:
        for number in range(3 if bench.scale >= 1 else 1):
            for side in secs:
                out = folder / f"{side}-{number}"
                once = Once(f"{out}-log", ids_never_repeat=True) if side == "once" else None
                with TrackedBatches(
                    micro_batches.pipeline(out), acker=acker, ids="id", parking_location=f"{out}-parked", once=once
                ) as handler:
                    secs[side] += micro_batches.timed(spark, folder / "in", out, handler)[warm:]
    once_ms, tracked_ms = (float(np.median(secs[side])) * 1000 for side in ("once", "tracked"))
    measure = f"micro-batches of {_BATCH_ROWS:,} rows, p50: added by once"
    context = f"{once_ms:.0f} ms / {tracked_ms:.0f} ms"
    yield bench.row(measure, [once_ms - tracked_ms], "ms", target=_TARGET_MS, context=context)
