"""Whole runs on the standalone cluster, one after the other, until the time is up; somebody else kills meanwhile.

python -m tests.support.jobs.kills_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER SECS SEED
"""

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, AckerConfig
from acker_redis.spark import FlatMapOutput, Progress, Tracker, run_tracked
from acker_redis.spout.retry import RetryPolicy
from tests.support.jobs.cluster_job import SPECULATION, session
from tests.support.spark import drawing
from tests.support.spark.faults import context, kill_self

CONFIG = AckerConfig(app="chaos", shards=4)
MESSAGES, PARTITIONS = 2000, 6
BATCH_SECS = 0.03
"""What the work on one batch takes, so that kills meet tasks half-way."""

DIE_AFTER_WRITING = 0.15
"""Share of the tasks whose worker dies between its file and its end."""


def draw(random: bool, batch: pa.RecordBatch) -> FlatMapOutput:
    time.sleep(BATCH_SECS)
    return drawing.drawn(batch.column("id").to_numpy(), random=random)


def write(seed: str, folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """Idempotent by (run, emission, partition)."""
    taken = []
    for batch in batches:
        time.sleep(BATCH_SECS)
        taken.append(batch)
    drawing.write(pa.Table.from_batches(taken, drawing.SCHEMA), folder, f"{emission}-{partition}")
    if Random(f"{seed} {context().taskAttemptId()}").random() < DIE_AFTER_WRITING:
        kill_self()


def one_run(spark: SparkSession, acker: Acker, folder: Path, seed: str, random: bool) -> dict[str, Any]:
    """A run, and the truth: what of it is in the files."""
    folder.mkdir()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, partial(draw, random), drawing.DDL)
        name = f"{tracker.run_id}-{tracker.emission}"
        tracker.write_partitions(derived.repartition(4, "draw", "child"), partial(write, seed, folder, name))

    def time_out(progress: Progress) -> None:
        if not progress.is_emitting and progress.in_flight:
            acker.admin.rotate(force=True)

    result = run_tracked(
        spark.range(0, MESSAGES, 1, PARTITIONS), pipeline, acker=acker, ids="id",
        retry=RetryPolicy(max_attempts=5, first_delay_secs=0), progress=time_out,
    )  # fmt: skip
    missing = set(range(MESSAGES)) - drawing.whole(folder)
    return {
        "random": random,
        "acked": result.counts.acked,
        "replayed": result.counts.replayed,
        "dead": len(result.dead_letters),
        "acked_and_missing": sorted(missing - set(result.dead_letters)),
        "pending": acker.stats().pending,
    }


def main(master: str, url: str, root: Path, secs: float, seed: str) -> None:
    """Runs with the same children each time, and with random ones, in turn."""
    spark = session(master, root, **SPECULATION, **{"spark.task.maxFailures": "12"})
    until = time.monotonic() + secs
    runs: list[dict[str, Any]] = []
    with Acker.connect(url, CONFIG) as acker:
        while time.monotonic() < until or len(runs) < 2:
            runs.append(one_run(spark, acker, root / str(len(runs)), seed, random=len(runs) % 2 == 1))
        print(json.dumps({"runs": runs}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
