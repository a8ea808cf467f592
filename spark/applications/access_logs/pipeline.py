"""Pipeline that parses, enriches and aggregates access logs, tracked line by line.

files -> lines (roots) -> flat_map `parse` -> join `sections` with a reference table -> flat_map `enrich`. Its rows go to two
sinks: every hit to `parquet`, and sums through group_by `per-minute` to `sqlite`. A line that `parse` or `enrich` can't
process is retried according to the retry policy, and becomes a dead letter with its text.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis import RowFailedError
from acker_redis.spark import Tracker
from spark.applications.access_logs.store import Store

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


def lines_of(spark: SparkSession, logs: Path, files: int) -> DataFrame:
    """Read a row per line with the columns `file` and `row`, from which `TrackedBatches` derives message ids.

    A message id must be the same whenever a micro-batch is read again, and distinct for each line. The text can't serve as
    id: two requests within a second may have equal lines, and junk has no request id. The place can: a rotated log file
    doesn't change. Spark's text source doesn't number lines, so each file is read as one row and split here. It must fit
    into the memory of a task. Latin-1 maps every byte to a character, so junk reaches its dead letter unchanged.
    """
    whole = spark.readStream.option("maxFilesPerTrigger", files).text(str(logs), wholetext=True)
    lines = F.split(F.decode(F.col("value").cast("binary"), "ISO-8859-1"), "\n")
    numbered = whole.select(F.col("_metadata.file_path").alias("file"), F.posexplode(lines).alias("row", "line"))
    return numbered.where("trim(line) != ''")


def pipeline(store: Store, sections: DataFrame, tracker: Tracker, lines: DataFrame) -> None:
    """Run one emission: the lines of a micro-batch, or lines to retry."""
    hits = lines.transform(tracker.flat_map, parse, HIT)
    known = tracker.join(hits, sections, on="prefix", how="left", name="sections")
    enriched = known.transform(tracker.flat_map, enrich, ENRICHED)
    # A replay writes another file, so readers must deduplicate by message id.
    tracker.write(enriched, lambda writer: writer.mode("append").parquet(str(store.hits)), name="parquet")
    # Pass ids instead of sums: some lines of a group may be replayed in another emission.
    hits_of_group = F.collect_list(F.struct(*COUNTED)).alias("hits")
    groups = tracker.group_by(enriched, ["minute", "section"], hits_of_group, partial=True, name="per-minute")
    tracker.write_dataframe(groups, lambda rows: store.count(tracker.batch_id, rows.collect()), name="sqlite")


def parse(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a line in combined log format into its parts. Other lines fail at every attempt."""
    match = LINE.fullmatch(row["line"])
    if match is None:
        raise RowFailedError("not in combined log format")
    try:
        at = datetime.strptime(match["time"], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
    except ValueError:
        raise RowFailedError(f"no such time: {match['time']}") from None
    if not 100 <= int(match["status"]) <= 599:
        raise RowFailedError(f"no such status: {match['status']}")
    yield {
        **{name: row[name] for name in ("message_id", "file", "row")},
        **{name: match[name] for name in ("ip", "method", "path", "referer", "agent")},
        "prefix": "/" + match["path"].partition("?")[0].split("/")[1],
        "time": at,
        "minute": f"{at:%Y-%m-%d %H:%M}",
        "status": int(match["status"]),
        "bytes": 0 if match["bytes"] == "-" else int(match["bytes"]),
    }


def enrich(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Add the section's data from the reference table. A non-numeric budget raises, which fails the line."""
    budget = row["budget_bytes"]
    over_budget = budget is not None and row["bytes"] > int(budget)
    yield {**row, "section": row["section"] or "other", "over_budget": over_budget}
