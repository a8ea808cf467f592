"""A stream with parked messages in a process of its own, which kills itself and its JVM at a point that it is given.

    python -m tests.support.jobs.parking_job redis://127.0.0.1:6379/0 FOLDER POINT SHUFFLE_PARTITIONS

FOLDER has `in`; `out`, `checkpoint` and `parked` are made. Sevens fail for ever; fifties are exported to nobody the first
time.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.spark import TrackedBatches, Tracker
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation
from tests.support.spark.cluster import session

CONFIG = AckerConfig(app="parking", shards=2, message_timeout_secs=4)
RETRY = RetryPolicy(max_attempts=8, first_delay_secs=0)
POINTS = ("before-snapshot", "after-snapshot", "committed", "re-emitting", "written", "draining")


FROZEN = "frozen "
"""In front of a point: there it stands still, as a machine that is swapping, until somebody lets it go on."""


def die_at(point: str, here: str) -> None:
    """Driver and JVM at once, as when the machine fails."""
    if point == here:
        os.killpg(os.getpgid(0), signal.SIGKILL)
    if point == FROZEN + here:
        os.killpg(os.getpgid(0), signal.SIGSTOP)


def pipeline(folder: Path, point: str, draining: list[bool], tracker: Tracker, messages: DataFrame) -> None:
    """Shuffled, written, failed; a point to die at for each."""
    ids = {row["id"] for row in messages.select("id").collect()}
    batch = {message // 40 for message in ids}
    if len(batch) > 1:
        die_at(point, "re-emitting")
    if draining:
        die_at(point, "draining")
    kept = tracker.fail_where(messages.repartition("id"), "id % 10 = 7", "a seven")
    hangs = "id % 40 = 20" if tracker.emission == 0 else "false"
    tracker.export(tracker.filter(kept, hangs), lambda writer: writer.mode("append").parquet(str(folder / "hung")))
    tracker.write(
        tracker.filter(kept, f"NOT ({hangs})"), lambda writer: writer.mode("append").parquet(str(folder / "out"))
    )
    die_at(point, "written")


def main(url: str, folder: Path, point: str, shuffle_partitions: str) -> None:
    """Go on with the query until all files are read and nothing is parked, or until the point."""
    save = ParkingLocation.save

    def dying_save(store: ParkingLocation, *args: Any) -> None:
        die_at(point, "before-snapshot")
        save(store, *args)
        die_at(point, "after-snapshot")

    with patch.object(ParkingLocation, "save", dying_save):  # what runs behind this in its process is to be spared
        spark = session(folder, {"spark.sql.shuffle.partitions": shuffle_partitions})
        draining: list[bool] = []
        with Acker.connect(url, CONFIG) as acker:
            handler = TrackedBatches(
                partial(pipeline, folder, point, draining),
                acker=acker,
                ids="id",
                parking_location=str(folder / "parked"),
                retry=RETRY,
            )

            def handle(batch: DataFrame, batch_id: int) -> None:
                if batch_id:
                    die_at(point, "committed")
                handler(batch, batch_id)

            query = (
                spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
                .writeStream.foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()
            draining.append(True)
            left = handler.drain(timeout_secs=200).parked
            handler.close()
        spark.stop()
        print(sum(left.values()))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
