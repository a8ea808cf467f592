"""Access logs, tracked line by line: a streaming query that parses, enriches and aggregates files of them.

files -> lines (roots) -> bolt `parse` -> join `sections` with a reference table -> bolt `enrich` -> fan-out -> `parquet`, a
sink of every hit, and group `per-minute` -> `sqlite`, a sink of the sums. A line that can't be parsed, or that `enrich` can't
work on, is tried again as often as the retry policy says, and ends as a dead letter with its text; the others go on.

Killed at any moment and started again with the same --out it goes on with the micro-batch that was under way. Work is then
done twice and counts once: both sinks know messages by their ids.
"""

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from acker_redis import Acker, AckerConfig, AckerError, FailedError
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Tracker, each_batch, prepare_environment
from acker_redis.spout import Spout
from spark import log_report
from spark.log_store import Store
from spark.word_count import spark_session

LINE = re.compile(
    r'(?P<ip>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>/\S*) [^"]*" (?P<status>\d{3}) '
    r'(?P<bytes>\d+|-) "(?P<referer>[^"]*)" "(?P<agent>[^"]*)"'
)
PLACE = "message_id bigint, file string, row int"
HIT = (
    f"{PLACE}, prefix string, time timestamp, minute string, ip string, method string, path string, status int, bytes bigint, "
    "referer string, agent string"
)
ENRICHED = f"{HIT}, section string, team string, over_budget boolean"
REFERENCE = "prefix string, section string, team string, budget_bytes string"
COUNTED = ("message_id", "bytes", "status", "over_budget")
LONGEST_LINE = 1_000_000


def main(
    logs: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of log files.")],
    reference: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="CSV: path prefix -> section.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for results and checkpoint; the same to go on.")],
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "access-logs",
    master: Annotated[str, typer.Option(help="Spark master; give retries as in local[2,4].")] = "local[*,4]",
    max_files_per_trigger: Annotated[int, typer.Option(min=1, help="Files per micro-batch.")] = 2,
    message_timeout_secs: Annotated[float, typer.Option(min=0.5, help="Message timeout.")] = 30.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Emissions of a line before it is a dead letter.")] = 3,
    truth: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Check against it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Put access logs through a tracked pipeline. With --truth, exit 0 only if every line is where it has to be."""
    console = Console(stderr=True)
    try:
        prepare_environment()
        config = AckerConfig(app=app, message_timeout_secs=message_timeout_secs)
        with Acker.connect(redis, config) as acker:
            store = Store(out.resolve())
            session = spark_session(master, app_name="log-pipeline")
            try:
                session.conf.set("spark.sql.shuffle.partitions", session.sparkContext.defaultParallelism)
                with console.status("starting") as status:
                    run = log_report.Run(status.update)
                    retry = RetryPolicy(max_attempts, first_delay_secs=0.2, multiplier=2, max_delay_secs=2)
                    read(session, logs, reference, store, run, acker, redis, retry, max_files_per_trigger)
                    status.update("waiting for what an earlier run left pending")
                    pending = settle(acker, run)
            finally:
                session.stop()
            result = log_report.result(run, store, acker, logs.resolve(), pending, max_attempts, truth)
    except (AckerError, OSError, PySparkException) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False)
        raise typer.Exit(3) from exc
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        Console().print(log_report.as_table(result))
    raise typer.Exit(0 if all(result.checks.values()) else 1)


def read(
    session: SparkSession,
    logs: Path,
    reference: Path,
    store: Store,
    run: log_report.Run,
    acker: Acker,
    url: str,
    retry: RetryPolicy,
    files: int,
) -> None:
    """The streaming query: every file that is there and was not read yet, some of them at a time."""
    sections = session.read.csv(str(reference), schema=REFERENCE, header=True).coalesce(1)  # small: no shuffle of it

    def handle(batch: DataFrame, batch_id: int) -> None:
        each_batch(
            partial(pipeline, store, sections, batch_id),
            acker=acker, url=url, retry=retry, payload_bytes=LONGEST_LINE, done=run.done, progress=run.progress,
        )(batch, batch_id)  # fmt: skip

    query = (
        lines_of(session, logs, files)
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(store.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def lines_of(session: SparkSession, logs: Path, files: int) -> DataFrame:
    """A row per line with the columns `file` and `row`, of which `run_tracked` makes message ids.

    A message id has to be the same whenever a micro-batch is read again, and another for each line. The text does not do:
    two requests within a second give equal lines, and junk has no request id. The place does: a log file that was rotated
    doesn't change. Spark's text source numbers no lines, so each file is taken as one row and cut here; it has to fit into
    the memory of a task. Latin-1 makes a character of every byte, so that junk gets to its dead letter as it was.
    """
    whole = session.readStream.option("maxFilesPerTrigger", files).text(str(logs), wholetext=True)
    lines = F.split(F.decode(F.col("value").cast("binary"), "ISO-8859-1"), "\n")
    numbered = whole.select(F.col("_metadata.file_path").alias("file"), F.posexplode(lines).alias("row", "line"))
    return numbered.where("trim(line) != ''")


def pipeline(store: Store, sections: DataFrame, batch_id: int, tracker: Tracker, lines: DataFrame) -> None:
    """One emission: all lines of a micro-batch, or those of them to be tried again."""
    hits = tracker.bolt_rows(lines, parse, HIT, name="parse")
    known = tracker.join(hits, sections, on="prefix", how="left", name="sections")
    enriched = tracker.bolt_rows(known, enrich, ENRICHED, name="enrich")
    all_hits, to_count = tracker.fan_out(enriched, "all-hits", "to-count")
    # A replay writes another file: readers take each message id once.
    prefix = f"{tracker.run_id}-{tracker.emission}"
    tracker.sink(all_hits, partial(write_parquet, str(store.hits), prefix), name="parquet")
    # Not sums: of the lines of a group some may come again, in a group of another emission. So the ids go along.
    hits_of_group = F.collect_list(F.struct(*COUNTED)).alias("hits")
    groups = tracker.group(to_count, ["minute", "section"], [hits_of_group], name="per-minute")
    tracker.write(groups, lambda rows: store.count(batch_id, rows.collect()), name="sqlite")


def parse(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Bolt: the parts of a line in combined log format; one that isn't fails, and will whenever it is tried."""
    found = LINE.fullmatch(row["line"])
    if found is None:
        raise FailedError("not in combined log format")
    try:
        at = datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
    except ValueError:
        raise FailedError(f"no such time: {found['time']}") from None
    if not 100 <= int(found["status"]) <= 599:
        raise FailedError(f"no such status: {found['status']}")
    yield {
        **{name: row[name] for name in ("message_id", "file", "row")},
        **{name: found[name] for name in ("ip", "method", "path", "referer", "agent")},
        "prefix": "/" + found["path"].partition("?")[0].split("/")[1],
        "time": at,
        "minute": f"{at:%Y-%m-%d %H:%M}",
        "status": int(found["status"]),
        "bytes": 0 if found["bytes"] == "-" else int(found["bytes"]),
    }


def enrich(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Bolt: what the reference table says of the section. A budget that is no number raises, which fails the line."""
    budget = row["budget_bytes"]
    over_budget = budget is not None and row["bytes"] > int(budget)
    yield {**row, "section": row["section"] or "other", "over_budget": over_budget}


def write_parquet(folder: str, prefix: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """Write a partition's hits as one file that appears whole, and is the same file when the task runs again."""
    target = Path(folder) / f"{prefix}-{partition}.parquet"
    draft = target.with_suffix(f".{uuid.uuid4().hex}")
    writer: pq.ParquetWriter | None = None
    for batch in batches:
        writer = writer or pq.ParquetWriter(draft, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
        draft.rename(target)


def settle(acker: Acker, run: log_report.Run) -> int:
    """Take the outcomes of a run that was killed, which nobody waits for, as they time out; gives what is left pending."""
    spout = Spout(acker, run_id=uuid.uuid4().hex)
    deadline = time.monotonic() + 4 * acker.config.message_timeout_secs
    while (stats := acker.stats(oldest=False)).pending + stats.waiting and time.monotonic() < deadline:
        spout.poll(block_ms=100)
    run.counts.late += spout.counts.late
    return stats.pending


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
