"""A stream in a process of its own, to be killed in the middle of a micro-batch; it goes on with other settings.

    python -m tests.support.jobs.stream_job redis://127.0.0.1:6379/0 FOLDER SHUFFLE_PARTITIONS AQE

In FOLDER, `in` has the messages; `out` gets a file per (run, emission, partition), `runs` the run ids, `acked` every root
that was told to be complete. The second micro-batch holds still once: when `middle` appears, a partition of it is not
written; when `written` appears, all are, and nothing is closed. A file that is there before is passed by.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig
from acker_redis.ledger.outcomes.outcome import OutcomeBatch
from acker_redis.spark import TrackedBatches, Tracker
from tests.support.spark.cases import CHILD
from tests.support.spark.cluster import session
from tests.support.spark.faults import fan_out, once, wait_for

CONFIG = AckerConfig(app="stream", shards=2)
BATCH, BATCHES = 60, 3
ALL = range(BATCH * BATCHES)
CHILDREN = 3
STILL = 90
"""A message of the second micro-batch; whoever writes it first holds still."""

OUTPUT = pa.schema([("id", pa.int64()), ("child", pa.int32())])


class Telling(Acker):
    """Writes down every root whose ack it gets, before it is used."""

    folder: Path

    def poll_batches(self, *args: Any, **options: Any) -> list[OutcomeBatch]:
        packed = super().poll_batches(*args, **options)
        with (self.folder / "acked").open("a") as acked:
            for outcomes in packed:
                if outcomes.kind == "ack":
                    acked.writelines(f"{root}\n" for root in outcomes.roots.tolist())
        return packed


def write(folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """A whole file or none; the first time, hold still before the file of one message is there."""
    rows = pa.Table.from_batches(batches, OUTPUT)
    if STILL in rows["id"].to_pylist():
        once(folder / "middle", partial(wait_for, folder / "never"))
    written = folder / f"{emission}-{partition}"
    pq.write_table(rows, written)
    written.rename(folder / "out" / f"{emission}-{partition}.parquet")


def settings(shuffle_partitions: str, adaptive: str) -> dict[str, str]:
    """Of the session."""
    return {"spark.sql.adaptive.enabled": adaptive, "spark.sql.shuffle.partitions": shuffle_partitions}


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    """Children, a shuffle whose partitions are those of the settings, and files."""
    with (folder / "runs").open("a") as runs:
        runs.write(f"{tracker.run_id}\n")
    held = messages.where(f"id = {STILL}").count()
    spread = messages.transform(tracker.flat_map_arrow, partial(fan_out, CHILDREN), CHILD).repartition("id", "child")
    tracker.write_partitions(spread, partial(write, folder, f"{tracker.run_id}-{tracker.emission}"))
    if held:
        once(folder / "written", partial(wait_for, folder / "never"))


def run(spark: Any, url: str, folder: Path) -> None:
    """To the end of what is there."""
    with Telling.connect(url, CONFIG) as acker:
        acker.folder = folder
        handle = TrackedBatches(
            partial(pipeline, folder), acker=acker, ids="id", parking_location=str(folder / "parked")
        )
        query = (
            spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in")).writeStream
            .foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()


if __name__ == "__main__":
    url, folder = sys.argv[1], Path(sys.argv[2])
    spark = session(folder, settings(*sys.argv[3:]))
    run(spark, url, folder)
    spark.stop()
    print("{}")  # noqa: T201
