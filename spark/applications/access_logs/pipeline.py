"""The pipeline over access logs: parses, enriches and aggregates files of them, tracked line by line.

files -> lines (roots) -> flat_map `parse` -> join `sections` with a reference table -> flat_map `enrich`, whose rows go two
ways: to `parquet`, a sink of every hit, and through group_by `per-minute` to `sqlite`, a sink of the sums. A line that
can't be parsed, or that `enrich` can't work on, is tried again as often as the retry policy says, and ends as a dead
letter with its text.
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
    """Read a row per line with the columns `file` and `row`, of which `TrackedBatches` makes message ids.

    A message id has to be the same whenever a micro-batch is read again, and another for each line. The text does not do:
    two requests within a second give equal lines, and junk has no request id. The place does: a log file that was rotated
    doesn't change. Spark's text source numbers no lines, so each file is taken as one row and cut here; it has to fit into
    the memory of a task. Latin-1 makes a character of every byte, so that junk gets to its dead letter as it was.
    """
    whole = spark.readStream.option("maxFilesPerTrigger", files).text(str(logs), wholetext=True)
    lines = F.split(F.decode(F.col("value").cast("binary"), "ISO-8859-1"), "\n")
    numbered = whole.select(F.col("_metadata.file_path").alias("file"), F.posexplode(lines).alias("row", "line"))
    return numbered.where("trim(line) != ''")


def pipeline(store: Store, sections: DataFrame, tracker: Tracker, lines: DataFrame) -> None:
    """Run one emission: all lines of a micro-batch, or those of them to be tried again."""
    hits = lines.transform(tracker.flat_map, parse, HIT)
    known = tracker.join(hits, sections, on="prefix", how="left", name="sections")
    enriched = known.transform(tracker.flat_map, enrich, ENRICHED)
    # A replay writes another file: readers take each message id once.
    tracker.write(enriched, lambda writer: writer.mode("append").parquet(str(store.hits)), name="parquet")
    # Not sums: of the lines of a group some may come again, in a group of another emission. So the ids go along.
    hits_of_group = F.collect_list(F.struct(*COUNTED)).alias("hits")
    groups = tracker.group_by(enriched, ["minute", "section"], hits_of_group, partial=True, name="per-minute")
    tracker.write_dataframe(groups, lambda rows: store.count(tracker.batch_id, rows.collect()), name="sqlite")


def parse(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a line in combined log format into its parts; a line in another one fails at every attempt."""
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
    """Add what the reference table has of the section. A budget that is no number raises, which fails the line."""
    budget = row["budget_bytes"]
    over_budget = budget is not None and row["bytes"] > int(budget)
    yield {**row, "section": row["section"] or "other", "over_budget": over_budget}
