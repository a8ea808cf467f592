"""Spark applications in processes of their own, that share one acker.

    python -m tests.support.jobs.app_job alone URL FOLDER APP
    python -m tests.support.jobs.app_job first URL FOLDER TIMEOUT_SECS
    python -m tests.support.jobs.app_job second URL FOLDER TIMEOUT_SECS FOLDERS

`alone` puts messages through a pipeline of its own app. `first` and `second` share an app. `first` emits, exports the rows
to parquet files, a folder per emission, named by its number and run, that appears whole, and takes the outcomes.
`second` imports them, once there are so many folders, and carries on every one it has not noted as done, until
`FOLDER/over` is there. It holds still in the middle of its first sink until `FOLDER/go` is there.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.spark import Tracker, run_exported, run_tracked
from acker_redis.testing import wait_until
from tests.support.spark.cases import CHILD
from tests.support.spark.cluster import session
from tests.support.spark.faults import WAIT_SECS, fan_out, once, wait_for

MESSAGES, CHILDREN = 120, 3
PATIENT = RetryPolicy(max_attempts=20, first_delay_secs=0)
"""It may take a while until somebody carries on."""

SHARED = "shared"
TWO_PARTITIONS = {"spark.sql.shuffle.partitions": "2"}
OUTPUT = pa.schema([("id", pa.int64()), ("child", pa.int32())])
SETTINGS: dict[str, dict[str, Any]] = {
    "one": {"shards": 2},
    "two": {"shards": 5, "num_buckets": 4, "message_timeout_secs": 600.0, "clock": "last_update"},
}


def shared(timeout_secs: float) -> AckerConfig:
    """Of the app that both halves of a tree are in."""
    return AckerConfig(app=SHARED, shards=2, message_timeout_secs=timeout_secs, lanes=2)


def write(target: Path, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """A whole file or none."""
    draft = target.with_name(f".{target.name}-{partition}")
    pq.write_table(pa.Table.from_batches(batches, OUTPUT), draft)
    draft.rename(target.with_name(f"{target.name}-{partition}.parquet"))


def alone(url: str, folder: Path, app: str) -> Any:
    """One app's messages; its first sink task of the first emission holds still until `go` is there."""

    def save(name: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        once(folder / f"{app}-middle", partial(wait_for, folder / f"{app}-go"))
        write(folder / name, batches, partition)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, partial(fan_out, CHILDREN), CHILD, name="fan-out").repartition(
            2, "child"
        )
        tracker.write_partitions(derived, partial(save, f"{app}-{tracker.run_id}-{tracker.emission}"))

    spark = session(folder, TWO_PARTITIONS)
    with Acker.connect(url, AckerConfig(app=app, **SETTINGS[app])) as acker:
        # With a limit the ids are read first, so the messages are pending while the sink holds still.
        result = run_tracked(spark.range(MESSAGES), pipeline, acker=acker, ids="id", max_spout_pending=MESSAGES)
        stats = acker.stats()
    spark.stop()
    counts = result.counts
    return {
        "acked": counts.acked,
        "others": counts.failed + counts.timed_out + counts.lost + counts.late + counts.dead_lettered,
        "stats": {name: getattr(stats, name) for name in ("pending", "timed_out", "failed", "deduplicated", "unowned")},
    }


def first(url: str, folder: Path, timeout_secs: str) -> Any:
    """Emits, and replays what nobody carried on."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, partial(fan_out, CHILDREN), CHILD, name="fan-out")
        draft = folder / f".draft-{tracker.emission}"
        tracker.export(derived, lambda writer: writer.parquet(str(draft)))
        draft.rename(folder / "between" / f"{tracker.emission:03}-{tracker.run_id}")

    spark = session(folder, TWO_PARTITIONS)
    with Acker.connect(url, shared(float(timeout_secs))) as acker:
        result = run_tracked(spark.range(MESSAGES), pipeline, acker=acker, ids="id", retry=PATIENT)
    (folder / "over").touch()
    spark.stop()
    return {name: getattr(result.counts, name) for name in ("acked", "timed_out", "failed", "lost", "dead_lettered")}


def second(url: str, folder: Path, timeout_secs: str, folders: str) -> Any:
    """Carries on until the first is over."""
    config = shared(float(timeout_secs))

    def save(name: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        rows = pa.Table.from_batches(batches, OUTPUT)
        if partition == 1:
            wait_until((folder / f"{name}-0.parquet").exists, "the other partition to be written", WAIT_SECS)
            once(folder / "middle", partial(wait_for, folder / "go"))
        write(folder / name, iter(rows.to_batches()), partition)

    def carry_on(name: str, tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages.drop("message_id").repartition(2, "child"), partial(save, name))

    spark = session(folder, TWO_PARTITIONS)
    wait_until(lambda: len(list((folder / "between").iterdir())) >= int(folders), "rows to be handed over", WAIT_SECS)
    noted = folder / "noted"

    def work_off(acker: Acker) -> bool:
        done = noted.read_text().split() if noted.exists() else []
        for rows in sorted((folder / "between").iterdir()):
            if rows.name not in done:
                run_exported(
                    spark.read.parquet(str(rows)), partial(carry_on, f"out-{rows.name}"), acker=acker, spout_id=1
                )
                with noted.open("a") as file:
                    file.write(f"{rows.name}\n")
        return (folder / "over").exists()

    with Acker.connect(url, config) as acker:
        wait_until(partial(work_off, acker), "the first application to be over", WAIT_SECS)
    spark.stop()
    return {"folders": len(noted.read_text().split())}


if __name__ == "__main__":
    url, folder = sys.argv[2], Path(sys.argv[3])
    print(json.dumps({"alone": alone, "first": first, "second": second}[sys.argv[1]](url, folder, *sys.argv[4:])))  # type: ignore[operator]  # noqa: T201
