"""Overhead of tracking for micro-batches of 1 000 rows in `foreachBatch`, and for the smallest possible batch.

Files of 1 000 rows are read, one per batch, and the handler writes them to parquet, with and without `TrackedBatches`. The
measured time is that of the handler, batch by batch. The two sides take turns, query by query. Calls of Java are counted over
all micro-batches of a query, with its start.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker
from acker_redis.spark import TrackedBatches, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row
from benchmarks.java_calls import counted_calls

_BATCH_ROWS = 1000
_BATCHES = 30
_ROUNDS = 3
_WARM = 5
_TARGET = 1.2
_TARGET_MS = 50
_TARGET_CALLS = 100

Handler = Callable[[DataFrame, int], None]


@harness.benchmark("micro_batches")
def run(bench: Bench) -> Iterator[Row]:
    """Run queries over the same files, in turn."""
    warm = _WARM if bench.scale >= 1 else 1
    batches = bench.size(_BATCHES, least=warm + 1)
    rounds = _ROUNDS if bench.scale >= 1 else 1
    times: dict[str, list[float]] = {"plain": [], "tracked": []}
    calls: dict[str, list[float]] = {side: [] for side in times}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = Path(name)
        write_files(folder / "in", batches, _BATCH_ROWS)
        with Acker.connect(bench.url, app="micro-batches", message_timeout_secs=3600) as acker:
            for number in range(rounds):
                for side in times:
                    out = folder / f"{side}-{number}"
                    with counted_calls() as counted:
                        if side == "plain":
                            secs = timed(spark, folder / "in", out, _plain(out))
                        else:
                            with TrackedBatches(
                                pipeline(out), acker=acker, ids="id", parking_location=f"{out}-parked"
                            ) as handler:
                                secs = timed(spark, folder / "in", out, handler)
                    times[side] += secs[warm:]
                    calls[side].append(counted.count / len(secs))
    for share in (50, 99):
        plain, tracked = (float(np.percentile(times[side], share)) * 1000 for side in ("plain", "tracked"))
        measure = f"micro-batches of {_BATCH_ROWS:,} rows, p{share}"
        context = f"{tracked:.0f} ms / {plain:.0f} ms"
        yield bench.row(f"{measure}: tracked / untracked", [tracked / plain], "x", target=_TARGET, context=context)
        target_ms = _TARGET_MS if share == 50 else None
        yield bench.row(f"{measure}: added by tracking", [tracked - plain], "ms", target=target_ms)
    context = f"{np.median(calls['plain']):.0f} untracked"
    measure = f"micro-batches of {_BATCH_ROWS:,} rows: calls of Java, tracked"
    yield bench.row(measure, calls["tracked"], "calls", target=_TARGET_CALLS, context=context)


def _plain(out: Path) -> Handler:
    def handle(batch: DataFrame, batch_id: int) -> None:
        batch.where("id % 10 <> 3").write.mode("append").parquet(str(out))

    return handle


def pipeline(out: Path) -> Callable[[Tracker, DataFrame], None]:
    """Return a pipeline that writes nine in ten messages."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id % 10 <> 3")
        tracker.write(kept, lambda writer: writer.mode("append").parquet(str(out)))

    return pipeline


def timed(spark: SparkSession, files: Path, out: Path, handler: Handler) -> list[float]:
    """Return the seconds of the handler per batch, for a query over files of messages."""
    secs: list[float] = []

    def handle(batch: DataFrame, batch_id: int) -> None:
        started = time.perf_counter()
        handler(batch, batch_id)
        secs.append(time.perf_counter() - started)

    stream = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1).parquet(str(files))
    query = (
        stream.writeStream.foreachBatch(handle)
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return secs


def write_files(folder: Path, batches: int, rows: int) -> None:
    """Write one file per micro-batch."""
    folder.mkdir()
    for number in range(batches):
        ids = np.arange(number * rows, (number + 1) * rows)
        table = pa.table({"id": ids, "text": [f"message {i}" for i in ids.tolist()]})
        pq.write_table(table, folder / f"{number:05}.parquet")
