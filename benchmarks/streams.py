"""Effect of failing and forgotten messages on a stream's micro-batches: one in a hundred fails, one in a thousand hangs.

Files of 10 000 rows are read, one per batch, and written to parquet. The few rows that hang are exported and never consumed.
The same stream without such rows runs beside it, query by query in turn. The measured time is that of the handler, per batch.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import TrackedBatches, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row
from benchmarks.micro_batches import timed, write_files

_BATCH_ROWS = 10_000
_BATCHES = 20
_ROUNDS = 3
_WARM = 5
_TARGET = 1.3
_BAD = {"all well": ("false", "false"), "some fail or hang": ("id % 100 = 7", "id % 1000 = 50")}


@harness.benchmark("streams")
def run(bench: Bench) -> Iterator[Row]:
    """Run queries over the same files, in turn."""
    warm = _WARM if bench.scale >= 1 else 1
    batches = bench.size(_BATCHES, least=warm + 1)
    rows = bench.size(_BATCH_ROWS, least=1000)
    times: dict[str, list[float]] = {name: [] for name in _BAD}
    parked = 0
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = Path(name)
        write_files(folder / "in", batches, rows)
        with Acker.connect(bench.url, app="streams", message_timeout_secs=3600) as acker:
            for number in range(_ROUNDS if bench.scale >= 1 else 1):
                for side, (fails, hangs) in _BAD.items():
                    out = folder / f"{side}-{number}"
                    with TrackedBatches(
                        partial(_pipeline, out, fails, hangs), acker=acker, ids="id", parking_location=f"{out}-parked",
                        retry=RetryPolicy(max_attempts=3, first_delay_secs=0),
                    ) as handler:  # fmt: skip
                        times[side] += timed(spark, folder / "in", out, handler)[warm:]
                        parked = max(parked, sum(handler.status().parked.values()))
    well, bad = (np.array(times[side]) * 1000 for side in _BAD)
    for share in (50, 99):
        values = [float(np.percentile(millis, share)) for millis in (bad, well)]
        measure = f"micro-batches of {rows:,} rows, 1 % failing, 0.1 % hanging, p{share}: against none"
        context = f"{values[0]:.0f} ms / {values[1]:.0f} ms, {parked} parked at the end"
        yield bench.row(measure, [values[0] / values[1]], "x", target=_TARGET if share == 50 else None, context=context)


def _pipeline(out: Path, fails: str, hangs: str, tracker: Tracker, messages: DataFrame) -> None:
    kept = tracker.fail_where(messages, fails, "on purpose")
    tracker.write(tracker.filter(kept, f"NOT ({hangs})"), _to(out / "rows"))
    tracker.export(tracker.filter(kept, hangs), _to(out / "hung"))


def _to(folder: Path) -> Callable[..., None]:
    return lambda writer: writer.mode("append").parquet(str(folder))
