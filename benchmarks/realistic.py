"""Cost of tracking for a typical pipeline: 600 000 JSON rows of 330 bytes, parsed, filtered, shuffled, written.

It runs once in SQL only, and once with a Python function of one row in the middle. Untracked, that function runs in
`mapInArrow`. The rows are read as JSON files, of which every byte is read for the ids, too. They are also read as from a
topic or table: a text beside its offset, with ids in a separate column.

All of it runs in a classic session, and then over Spark Connect, in a process of its own. Each ratio is of two runs in one
session.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis.spark import Pipeline, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row

_ROWS = 600_000
_FILES = 8
_JSON = "id bigint, payload string, customer bigint, price double, at timestamp, note string"
_WANTED = "price > 3"
_CONNECT_TARGET = 1.3
_ENRICHED = "id bigint, customer bigint, payload string, total double"
_ARROW = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("payload", pa.string()), ("total", pa.float64())])


def enrich(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return one row for one row, in plain Python."""
    yield {
        "id": row["id"],
        "customer": row["customer"],
        "payload": row["payload"].upper(),
        "total": row["price"] * 1.19,
    }


def _enrich_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist([made for row in batch.to_pylist() for made in enrich(row)], schema=_ARROW)


def _parsed(rows: DataFrame) -> DataFrame:
    return rows.withColumn("row", F.from_json("value", _JSON)).select("*", "row.*").drop("row", "value")


def _shuffled(rows: DataFrame) -> DataFrame:
    return rows.repartition(jobs.PARTITIONS, "customer")


def _plain(messages: DataFrame, folder: Path) -> None:
    _shuffled(messages.where(_WANTED)).write.parquet(str(folder))


def kept(tracker: Tracker, messages: DataFrame) -> DataFrame:
    """Return the rows that the pipeline in SQL writes."""
    return _shuffled(tracker.filter(messages, _WANTED))


def _tracked(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(kept(tracker, messages), lambda writer: writer.mode("append").parquet(str(folder)))

    return pipeline


def _plain_rows(messages: DataFrame, folder: Path) -> None:
    _shuffled(messages.where(_WANTED).mapInArrow(_enrich_batches, _ENRICHED)).write.parquet(str(folder))


def _tracked_rows(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        enriched = tracker.flat_map(tracker.filter(messages, _WANTED), enrich, _ENRICHED)
        tracker.write(_shuffled(enriched), lambda writer: writer.mode("append").parquet(str(folder)))

    return pipeline


def _plain_topic(messages: DataFrame, folder: Path) -> None:
    _plain(_parsed(messages), folder)


def _tracked_topic(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        _tracked(folder)(tracker, _parsed(messages))

    return pipeline


def _plain_topic_rows(messages: DataFrame, folder: Path) -> None:
    _plain_rows(_parsed(messages), folder)


def _tracked_topic_rows(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        _tracked_rows(folder)(tracker, _parsed(messages))

    return pipeline


@harness.benchmark("realistic")
def run(bench: Bench) -> Iterator[Row]:
    """Measure both pipelines, in turn, on both kinds of sessions."""
    with jobs.session() as spark:
        yield from _measured(bench, spark, "", sql=1.1, python=1.2)
    yield from _in_another_process(bench)


def run_over_connect(bench: Bench) -> Iterator[Row]:
    """Measure both pipelines over Spark Connect."""
    with jobs.connect_session() as spark:
        yield from _measured(bench, spark, ", over Spark Connect", sql=_CONNECT_TARGET, python=_CONNECT_TARGET)


def _in_another_process(bench: Bench) -> Iterator[Row]:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(bench))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for row in json.loads(done.stdout.splitlines()[-1]):
        yield Row(**row)


def _measured(bench: Bench, spark: SparkSession, kind: str, *, sql: float, python: float) -> Iterator[Row]:
    """Measure all jobs in a session, with a target for those in SQL and one for those with a Python function."""
    count = bench.size(_ROWS)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        files, topic = f"{name}/json", f"{name}/topic"
        write_json(spark, count, files)
        values = read_json(spark, files)
        values.select(F.col("id").alias("offset"), F.to_json(F.struct("*")).alias("value")).write.parquet(topic)

        def rows() -> DataFrame:
            return read_json(spark, files)

        def topic_rows() -> DataFrame:
            return spark.read.parquet(topic)

        label = f"{count:,} JSON rows of 330 bytes, filter, shuffle, parquet{kind}"
        in_python = "with a Python function per row"
        yield from jobs.measure(
            bench,
            [
                jobs.Job(f"{label}, from a topic", topic_rows, _plain_topic, _tracked_topic, "offset", sql),
                jobs.Job(
                    f"{label}, from a topic, {in_python}",
                    topic_rows,
                    _plain_topic_rows,
                    _tracked_topic_rows,
                    "offset",
                    python,
                ),
                jobs.Job(f"{label}, from files", rows, _plain, _tracked, "id", sql),
                jobs.Job(f"{label}, from files, {in_python}", rows, _plain_rows, _tracked_rows, "id", python),
            ],
        )


def read_json(spark: SparkSession, folder: str) -> DataFrame:
    """Read what `write_json` wrote."""
    return spark.read.schema(_JSON).json(folder)


def write_json(spark: SparkSession, count: int, folder: str) -> None:
    """Write rows of about 330 bytes, the same in every run."""
    columns = {
        "payload": F.sha2(F.col("id").cast("string"), 512),
        "customer": F.col("id") % 1000,
        "price": F.expr("cast(id % 97 AS double) / 3"),
        "at": F.lit("2026-01-01T00:00:00"),
        "note": F.repeat(F.lit("x"), 60),
    }
    spark.range(0, count, 1, _FILES).withColumns(columns).write.json(folder)


if __name__ == "__main__":
    from benchmarks import realistic  # workers find its functions by that name

    found = realistic.run_over_connect(Bench(**json.loads(sys.argv[1])))
    print(json.dumps([asdict(row) for row in found]))
