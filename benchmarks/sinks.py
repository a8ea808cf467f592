"""Sinks in Python, and exports, after a shuffle: 300 000 rows.

`write_partitions` is compared with the same function in `mapInArrow`. An export is compared with Spark's own parquet writer.
It adds a column of 16 bytes per row, and one ack per root and partition from the executors. Its messages stay pending until
the rows are consumed, so the measured time ends when all of them were acked here, in bulk.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from acker_redis import Acker
from acker_redis.spark import Pipeline, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row

_ROWS = 300_000


def _write(folder: Path, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    folder.mkdir(exist_ok=True)
    writer: pq.ParquetWriter | None = None
    for batch in batches:
        writer = writer or pq.ParquetWriter(folder / f"{partition}.parquet", batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def _write_all(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    _write(folder, batches, context.partitionId() if context else 0)
    yield pa.RecordBatch.from_pydict({"done": [True]})


def _parted(rows: DataFrame) -> DataFrame:
    return rows.repartition(jobs.PARTITIONS, "key")


def _plain_partitions(messages: DataFrame, folder: Path) -> None:
    _parted(messages).mapInArrow(partial(_write_all, folder), "done boolean").toArrow()


def _plain_write(messages: DataFrame, folder: Path) -> None:
    _parted(messages).write.parquet(str(folder))


def _partitions(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(_parted(messages), partial(_write, folder), name="write")

    return pipeline


def _export(url: str, folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.export(_parted(messages), lambda writer: writer.parquet(str(folder)), encoding="array")
        Thread(target=_ack_all, args=(url, folder), daemon=True).start()

    return pipeline


def _ack_all(url: str, folder: Path) -> None:
    anchors = pq.read_table(folder, columns=["anchors"]).column(0).combine_chunks()
    pairs = anchors.flatten().to_numpy().reshape(-1, 2)
    with Acker.connect(url, app="jobs", shards=harness.SHARDS, message_timeout_secs=3600) as acker:
        acker.ack_many(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))


@harness.benchmark("sinks")
def run(bench: Bench) -> Iterator[Row]:
    """Measure both, in turn."""
    count = bench.size(_ROWS)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = f"{name}/rows"
        columns = ["id", "id % 997 AS key", "sha2(cast(id AS string), 256) AS text"]
        spark.range(0, count, 1, 4).selectExpr(*columns).write.parquet(folder)

        def messages() -> DataFrame:
            return spark.read.parquet(folder)

        yield from jobs.measure(
            bench,
            [
                jobs.Job(f"{count:,} rows, shuffle, write_partitions", messages, _plain_partitions, _partitions, "id"),
                jobs.Job(f"{count:,} rows, shuffle, export", messages, _plain_write, partial(_export, bench.url), "id"),
            ],
        )
