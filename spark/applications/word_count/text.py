"""Text of the word count: lines in Parquet files, and two counts of their words to compare."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

WORD = re.compile(r"[a-z0-9_']+")
ROWS_PER_FILE = 4_000


def read_lines(paths: list[Path]) -> Iterator[str]:
    """Read the lines of text files, or of Python's own documentation."""
    if not paths:
        from pydoc_data.topics import topics

        for topic in sorted(topics):
            yield from topics[topic].splitlines()
        return
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as text:
            yield from text


def write_lines(lines: Iterator[str], folder: Path, limit: int | None, rows_per_file: int = ROWS_PER_FILE) -> int:
    """Write the non-blank lines, numbered, as Parquet files, so that every read returns the same rows."""
    folder.mkdir()
    texts: list[str] = []
    total = 0

    def flush() -> None:
        nonlocal total
        if texts:
            numbers = pa.array(range(total, total + len(texts)), pa.int64())
            pq.write_table(pa.table({"line": numbers, "text": texts}), folder / f"lines-{total:012d}.parquet")
            total += len(texts)
            texts.clear()

    for line in lines:
        if line.strip():
            texts.append(line.rstrip("\r\n"))
        if limit is not None and total + len(texts) >= limit:
            break
        if len(texts) == rows_per_file:
            flush()
    flush()
    return total


def counts_of(written: DataFrame, dead: set[int]) -> Counter[str]:
    """Count the words in the sink. An occurrence counts once, even if it was written several times."""
    if dead:
        written = written.where(~F.col("line").isin(sorted(dead)))
    rows = written.dropDuplicates(["line", "position"]).groupBy("word").count().toArrow()
    return Counter(dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True)))


def true_counts(folder: Path, dead: set[int]) -> Counter[str]:
    """Count the words of the same lines, without Spark, acker or replays."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        for line, text in zip(table["line"].to_pylist(), table["text"].to_pylist(), strict=True):
            if line not in dead:
                counts.update(WORD.findall(text.lower()))
    return counts
