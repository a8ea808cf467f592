"""A stream with parked messages on the standalone cluster, each of whose micro-batches has a speculative copy of a task.

    python -m tests.support.jobs.speculating_stream_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER

FOLDER has `in`. Prints what became of the messages as JSON, and how many attempts ran at most.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.spark import TrackedBatches, Tracker
from tests.support.jobs.cluster_job import SPECULATION, session
from tests.support.spark.faults import attempts, context, note_attempt, wait_for

CONFIG = AckerConfig(app="speculating", shards=2)
VICTIM = 3
"""The message of each hundred whose task is slow the first time."""


def write(folder: Path, emission: int, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """The first attempt of a task writes after its copy did, although it lost."""
    rows = pa.Table.from_batches(list(batches), pa.schema([("id", pa.int64())]))
    began, wrote = (folder / f"{name}-{emission}" for name in ("began", "copy-wrote"))
    note_attempt(folder / f"emission-{emission}")
    is_victim = any(message % 100 == VICTIM for message in rows["id"].to_pylist())
    is_copy = context().attemptNumber() > 0
    if is_victim and is_copy:
        wait_for(began)
    elif is_victim:
        began.touch()
        wait_for(wrote)
    attempt = context().taskAttemptId()
    pq.write_table(rows, folder / f"draft-{attempt}")
    (folder / f"draft-{attempt}").rename(folder / "out" / f"{emission}-{partition}-{attempt}.parquet")
    if is_victim and is_copy:
        wrote.touch()


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    """Sevens fail twice, and so go out with later micro-batches."""
    (folder / f"emission-{tracker.emission}").mkdir()
    kept = tracker.fail_where(messages.repartition(2, "id"), f"id % 10 = 7 AND {tracker.emission} < 2", "a seven")
    tracker.write_partitions(kept, partial(write, folder, tracker.emission))


def main(master: str, url: str, folder: Path) -> None:
    """To the end of what is there."""
    spark = session(master, folder, **SPECULATION)
    (folder / "out").mkdir()
    done: list[int] = []
    with Acker.connect(url, CONFIG) as acker:
        with TrackedBatches(
            partial(pipeline, folder), acker=acker, ids="id", parking_location=str(folder / "parked"),
            retry=RetryPolicy(max_attempts=9), on_messages_done=done.extend,
        ) as handler:  # fmt: skip
            (
                spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in")).writeStream
                .foreachBatch(handler).option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
                .start().awaitTermination()
            )  # fmt: skip
            status = handler.drain(timeout_secs=100)
        result = {
            "done": sorted(map(int, done)), "acked": int(status.counts.acked), "parked": len(status.parked),
            "pending": acker.stats().pending, "letters": acker.dead_letters.count(),
            "attempts": [max(attempts(path).values(), default=0) for path in sorted(folder.glob("emission-*"))],
        }  # fmt: skip
    spark.stop()
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
