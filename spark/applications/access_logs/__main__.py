"""Streaming query over access logs, tracked line by line: `python -m spark.applications.access_logs`.

You can kill it at any moment and start it again with the same --out. It resumes with the interrupted micro-batch and the
parked messages. Some work is then done twice but counts once, because both sinks identify messages by id.
"""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from acker_redis import Acker, AckerError, RetryPolicy, Spout
from acker_redis.spark import StreamStatus, TrackedBatches
from acker_redis.spout.spout import SpoutCounts
from spark.applications.access_logs import report
from spark.applications.access_logs.pipeline import REFERENCE, lines_of, pipeline
from spark.applications.access_logs.store import Store
from spark.support.session import quiet_session

LONGEST_LINE = 1_000_000
LOOK_SECS = 1
DRAIN_SECS = 120.0


def main(
    logs: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of log files.")],
    reference: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="CSV: path prefix -> section.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for results and checkpoint; reuse it to resume.")],
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "access-logs",
    master: Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")] = "local[*,4]",
    max_files_per_trigger: Annotated[int, typer.Option(min=1, help="Files per micro-batch.")] = 2,
    message_timeout_secs: Annotated[float, typer.Option(min=0.5, help="Message timeout.")] = 30.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Attempts per line before it is a dead letter.")] = 3,
    truth: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File to check the results against.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run access logs through a tracked pipeline. With --truth, exit 0 only if every line is accounted for."""
    console = Console(stderr=True)
    try:
        with Acker.connect(redis, app=app, message_timeout_secs=message_timeout_secs) as acker:
            store = Store(out.resolve())
            with quiet_session(master, "access-logs") as spark, console.status("starting") as status:
                spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
                started = time.monotonic()
                retry = RetryPolicy(max_attempts, first_delay_secs=0.2, multiplier=2, max_delay_secs=2)
                stream = read(spark, logs, reference, store, status.update, acker, retry, max_files_per_trigger)
                status.update("waiting for messages left by an earlier run")
                pending = settle(acker, stream.counts)
            duration_secs = time.monotonic() - started
            result = report.result(stream, duration_secs, store, acker, logs.resolve(), pending, max_attempts, truth)
    except (AckerError, OSError, PySparkException) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        Console().print(report.as_table(result))
    raise typer.Exit(0 if all(result.checks.values()) else 1)


def read(
    spark: SparkSession,
    logs: Path,
    reference: Path,
    store: Store,
    show: Callable[[str], object],
    acker: Acker,
    retry: RetryPolicy,
    files: int,
) -> StreamStatus:
    """Run the streaming query over all unread files, a few per micro-batch; then drain parked messages."""
    sections = spark.read.csv(str(reference), schema=REFERENCE, header=True).coalesce(
        1
    )  # small, so it needs no shuffle
    batches = TrackedBatches(
        partial(pipeline, store, sections),
        acker=acker, retry=retry, dead_letter_bytes=LONGEST_LINE, parking_location=str(store.parking_location),
    )  # fmt: skip
    query = (
        lines_of(spark, logs, files)
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(store.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(LOOK_SECS):
        show(report.progress(batches.status()))
    return batches.drain(DRAIN_SECS)


def settle(acker: Acker, counts: SpoutCounts) -> int:
    """Process the outcomes of a killed run as its messages time out. Return how many are still pending."""
    spout = Spout(acker, run_id=uuid.uuid4().hex)
    deadline = time.monotonic() + 4 * acker.config.message_timeout_secs
    while (
        stats := acker.stats(with_oldest_age=False)
    ).pending + stats.unconfirmed_outcomes and time.monotonic() < deadline:
        spout.poll(block_ms=100)
    counts.late += spout.counts.late
    return stats.pending


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
