"""A run that writes once, in a process of its own, which kills itself and its JVM at a point that it is given.

    python -m tests.support.jobs.once_job redis://127.0.0.1:6379/0 FOLDER POINT TIMES [FORMAT]

The point is the one that is passed for that time. The sinks are `a` and `b`, in Parquet unless the format is `delta`. With
`store`, the second one is a database. With `iceberg`, they are tables of the catalog `ice`. Rows have the attempt that made
them. Sevens fail for ever, in both sinks, and other messages fail by chance, in the second one.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.publishing import publish_log
from acker_redis.publishing.files import LocalFiles
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.spark import Once, Tracker, run_tracked
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.sinks import staging
from acker_redis.spark.sinks.delta_tables import DeltaTables
from acker_redis.spark.sinks.iceberg_tables import IcebergTables
from acker_redis.spark.sinks.store_tables import StoreTables
from acker_redis.store import decided_letters
from tests.support.spark.cluster import session
from tests.support.spark.parts_store import PartsStore

CONFIG = AckerConfig(app="once", shards=2, message_timeout_secs=30)
MESSAGES = 60
DATA = "monday"
SINKS: dict[str, Callable[[int], int]] = {"a": lambda message: message % 3 + 1, "b": lambda message: 2}
"""Sinks, and the number of rows that each has of a message."""

POINTS: dict[str, tuple[Any, str, bool]] = {
    "before a record": (LocalLogFolder, "create", True),
    "behind a record": (LocalLogFolder, "create", False),
    "before staging": (staging, "_stage", True),
    "staged": (staging, "_stage", False),
    "before a move": (LocalFiles, "_move", True),
    "moved": (LocalFiles, "_move", False),
    "published": (LocalFiles, "publish", False),
    "before acks": (EmissionRoots, "complete", True),
    "acked": (EmissionRoots, "complete", False),
    "before letters": (decided_letters, "add", True),
    "letters": (decided_letters, "add", False),
    "before compaction": (PublishLog, "compact", True),
    "file removed": (LocalLogFolder, "remove", False),
    "finished": (PublishLog, "finish", False),
}
"""Point -> class or module and its function, and whether it is before a call of it, or behind one."""

POINTS_OF_DELTA: dict[str, tuple[Any, str, bool]] = {
    "before an append": (DeltaTables, "_append", True),
    "appended": (DeltaTables, "_append", False),
}
"""The same, of runs into Delta tables alone."""

POINTS_OF_STORE: dict[str, tuple[Any, str, bool]] = {
    "before a transaction": (StoreTables, "publish", True),
    "committed": (StoreTables, "publish", False),
}
"""The same, of runs with a store alone."""

POINTS_OF_ICEBERG: dict[str, tuple[Any, str, bool]] = {
    "before a commit": (IcebergTables, "_append", True),
    "committed into": (IcebergTables, "_append", False),
}
"""The same, of runs into Iceberg tables alone."""


def dying(method: Callable[..., Any], times: int, *, before: bool) -> Callable[..., Any]:
    """Let driver and JVM die at a call of a method, as when the machine fails."""
    passed: list[None] = []

    def die() -> None:
        passed.append(None)
        if len(passed) == times:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def call(*args: Any, **options: Any) -> Any:
        if before:
            die()
        result = method(*args, **options)
        if not before:
            die()
        return result

    return call


def rows_of(sink: str, attempt: str, message: Any) -> Iterator[dict[str, Any]]:
    """The rows of a message in a sink."""
    number = message["id"]
    if number % 10 == 7:
        raise ValueError("a seven")
    if sink == "b" and random.random() < 0.1:
        raise ValueError("by chance")
    for _ in range(SINKS[sink](number)):
        yield {"id": number, "attempt": attempt}


def pipeline(folder: Path, kind: str, tracker: Tracker, messages: DataFrame) -> None:
    """Two sinks, each with rows of the messages that come through in it."""
    for sink in SINKS:
        attempt = f"{tracker.run_id}:{tracker.emission}"
        rows = tracker.flat_map(
            messages, partial(rows_of, sink, attempt), "id bigint, attempt string", name=f"rows-{sink}"
        )
        if kind == "store" and sink == "b":
            store = store_of(folder)
            rows = rows.withColumnRenamed("attempt", "child")
            tracker.write_staged(rows, store.stage, store.publish, name=sink)
        elif kind == "iceberg":
            tracker.write_table(rows, f"ice.{sink}", lambda writer: writer.append(), name=sink)
        else:
            file_format = "delta" if kind == "delta" else "parquet"
            tracker.write(rows, partial(append, file_format, str(folder / sink)), name=sink)


def store_of(folder: Path) -> PartsStore:
    """The database of a run. Its column `child` has the attempt."""
    return PartsStore(str(folder / "store"))


def append(kind: str, path: str, writer: DataFrameWriter) -> None:
    """Write into a sink's folder."""
    writer.format(kind).mode("append").save(path)


def main(url: str, folder: Path, point: str, times: int, kind: str = "parquet") -> None:
    """Run until everything is done, or until the point."""
    spark = session(folder, {"spark.sql.shuffle.partitions": "2", **settings_of(kind, folder)})
    if kind == "iceberg":
        for sink in SINKS:
            spark.sql(f"CREATE TABLE IF NOT EXISTS ice.{sink}(id bigint, attempt string) USING iceberg")
    with ExitStack() as patched, Acker.connect(url, CONFIG) as acker:
        patched.enter_context(patch.object(publish_log, "SNAPSHOT_EVERY", 3))  # so that the log is compacted
        if point in (points := POINTS | POINTS_OF_DELTA | POINTS_OF_STORE | POINTS_OF_ICEBERG):
            owner, name, before = points[point]
            patched.enter_context(patch.object(owner, name, dying(getattr(owner, name), times, before=before)))
        work = partial(pipeline, folder, kind)
        run_tracked(
            spark.range(0, MESSAGES, 1, 2), work, acker=acker, ids="id", max_spout_pending=20,
            retry=RetryPolicy(max_attempts=4, first_delay_secs=0), once=Once(str(folder / "log"), DATA),
        )  # fmt: skip
    spark.stop()
    print(0)  # noqa: T201


def settings_of(kind: str, folder: Path) -> dict[str, str]:
    """Spark's settings for a kind of tables, with its jars if it has some. Tables of a catalog are in the folder."""
    from tests.support import jars
    from tests.support.targets import delta, iceberg

    in_folder = {"spark.sql.catalog.ice.warehouse": str(folder / "ice")}
    settings = {"delta": delta.SETTINGS, "iceberg": iceberg.SETTINGS | in_folder}
    if kind not in settings:
        return {}
    found = jars.jars_of(kind)
    assert found is not None
    return jars.settings(found) | settings[kind]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
