"""The word count over 2 000 000 lines: split, grouped by word and written, with and without tracking."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.spark import Pipeline, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row

_LINES = 2_000_000
_WORDS = 6
_FILES = 8
_VOCABULARY = 20_000


def _times() -> Column:
    return F.count(F.lit(1)).alias("times")


def _plain(lines: DataFrame, folder: Path) -> None:
    words = lines.select(F.explode(F.split("text", " ")).alias("word"))
    words.groupBy("word").agg(_times()).write.parquet(str(folder))


def _tracked(folder: Path) -> Pipeline:
    def pipeline(tracker: Tracker, lines: DataFrame) -> None:
        words = tracker.explode(lines, "split(text, ' ')").withColumnRenamed("value", "word")
        counts = tracker.group_by(words, "word", _times(), partial=True)
        tracker.write(counts, lambda writer: writer.mode("append").parquet(str(folder)))

    return pipeline


@harness.benchmark("word_count")
def run(bench: Bench) -> Iterator[Row]:
    """Measure both sides in turn."""
    count = bench.size(_LINES)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = Path(name) / "lines"
        write_lines(folder, count)

        def lines() -> DataFrame:
            return spark.read.parquet(str(folder))

        yield from jobs.measure(bench, [jobs.Job(f"word count, {count:,} lines", lines, _plain, _tracked, "line", 1.5)])


def write_lines(folder: Path, count: int) -> None:
    """Write lines of words, some of them much more frequent than others, the same in every run."""
    folder.mkdir()
    random = np.random.default_rng(9)
    for number, part in enumerate(np.array_split(np.arange(count), _FILES)):
        drawn = np.minimum(random.zipf(1.3, (len(part), _WORDS)), _VOCABULARY)
        texts = [" ".join(f"w{word}" for word in row) for row in drawn.tolist()]
        pq.write_table(pa.table({"line": part, "text": texts}), folder / f"{number}.parquet")
