"""The word count over 2 000 000 lines on local[2]: with every line tracked, against the same functions untracked.

Both sides read the same parquet files, split with the same function, shuffle by word and write the same parquet files.
The tracked side also initialises a root per line, acks every line and word, and takes and confirms every outcome; its time
ends when the last outcome was confirmed. The two take turns, after a warm-up of both.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, AckerConfig
from acker_redis.retry import RetryPolicy
from acker_redis.spark import prepare_environment, run_tracked
from benchmarks import harness
from benchmarks.harness import Bench, Row
from spark import word_count

_LINES = 2_000_000
_ROUNDS = 3
_PARTITIONS = 2


@harness.benchmark("word_count")
def run(bench: Bench) -> Iterator[Row]:
    """Interleaved rounds of both."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        rows = bench.size(_LINES)
        texts = islice(chain.from_iterable(cycle([list(word_count.read_lines([]))])), rows * 2)
        word_count.write_lines(texts, folder / "lines", rows, rows_per_file=100_000)
        session = spark_session()
        try:
            lines = session.read.parquet(str(folder / "lines"))
            words = _untracked(lines, folder / "warm-up")
            _tracked(bench.url, lines, rows, folder / "warm-up-tracked")
            ratios, tracked_secs, plain_secs = [], [], []
            for number in range(1, _ROUNDS + 1):
                plain_secs.append(_timed(partial(_untracked, lines, folder / f"plain-{number}")))
                tracked_secs.append(_timed(partial(_tracked, bench.url, lines, rows, folder / f"tracked-{number}")))
                ratios.append(tracked_secs[-1] / plain_secs[-1])
        finally:
            session.stop()
    yield bench.row(
        f"word count on local[2], tracked / untracked wall, {rows:,} lines, {words:,} words", ratios, "x", target=1.5,
        context=f"{min(tracked_secs):.1f} s / {min(plain_secs):.1f} s",
    )  # fmt: skip


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _untracked(lines: DataFrame, folder: Path) -> int:
    folder.mkdir()
    words = lines.mapInArrow(_split_only, word_count.OCCURRENCE).where("NOT forgotten").drop("forgotten")
    shuffled = words.repartition(_PARTITIONS, "word")
    done = shuffled.mapInArrow(partial(_write_only, folder), "rows bigint").toArrow()
    return int(sum(done["rows"].to_pylist()))


def _tracked(url: str, lines: DataFrame, rows: int, folder: Path) -> None:
    folder.mkdir()
    config = AckerConfig(app="bench", message_timeout_secs=3600)
    with Acker.connect(url, config) as acker:
        pipeline = partial(word_count.count_words, word_count.Operators.PYTHON, word_count.NO_FAULTS, folder)
        spout = run_tracked(lines, pipeline, acker=acker, url=url, message_id="line", retry=RetryPolicy(max_attempts=1))
        if spout.counts.acked != rows:
            raise RuntimeError(f"{spout.counts} of {rows} lines")


def _split_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield word_count.split(word_count.NO_FAULTS, batch).rows


def _write_only(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    partition = context.partitionId() if context else 0
    word_count.write_occurrences(word_count.NO_FAULTS, folder, 0, counted(), partition)
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


def spark_session() -> SparkSession:
    prepare_environment()
    # Workers import the functions above by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    return word_count.spark_session("local[2]", arrow_rows=10_000)
