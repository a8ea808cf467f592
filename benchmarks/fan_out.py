"""Cost of tracking if every message becomes ten tiny rows: 500 000 messages, 5 000 000 derived rows.

Messages are read from parquet, split into ten rows each, and written to parquet, either at once, which is the worst case, or
after a shuffle. There are three ways to split: in SQL, in a function of Arrow record batches, and in a Python function of
one row, a dict, that yields dicts. The untracked side runs the same functions, in `selectExpr` or `mapInArrow`. Rows in
Python are converted by `to_pylist` and `from_pylist`. With PySpark that is the shortest program that keeps dicts.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from acker_redis.spark import FlatMapOutput, Pipeline, Tracker
from benchmarks import harness, jobs
from benchmarks.harness import Bench, Row

_MESSAGES = 500_000
_FAN_OUT = 10
_FILES = 8
_VOCABULARY = 5_000
_SCHEMA = "message bigint, position int, word string"
_ARROW = pa.schema([("message", pa.int64()), ("position", pa.int32()), ("word", pa.string())])
_CHILDREN = "transform(split(text, ','), (word, position) -> struct(message, position, word))"


def split_batch(batch: pa.RecordBatch) -> FlatMapOutput:
    """Return a row for each word of each message, in Arrow."""
    words = pc.split_pattern(batch.column("text"), ",")
    parents = pc.list_parent_indices(words).to_numpy().astype(np.int64)
    position = np.arange(len(parents)) - np.searchsorted(parents, parents)
    columns = [batch.column("message").take(pa.array(parents)), pa.array(position, pa.int32()), pc.list_flatten(words)]
    return FlatMapOutput(pa.RecordBatch.from_arrays(columns, schema=_ARROW), parents)


def split_row(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a row for each word of one message, in plain Python."""
    for position, word in enumerate(row["text"].split(",")):
        yield {"message": row["message"], "position": position, "word": word}


def _split_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split_batch(batch).rows


def _split_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        derived = [child for row in batch.to_pylist() for child in split_row(row)]
        yield pa.RecordBatch.from_pylist(derived, schema=_ARROW)


_VARIANTS: tuple[
    tuple[str, Callable[[DataFrame], DataFrame], Callable[[Tracker, DataFrame], DataFrame], tuple[float, float]],
    ...,
] = (
    (
        "SQL",
        lambda messages: messages.selectExpr(f"inline({_CHILDREN})"),
        lambda tracker, messages: tracker.explode(messages, _CHILDREN),
        (1.4, 1.4),
    ),
    (
        "Arrow flat_map",
        lambda messages: messages.mapInArrow(_split_batches, _SCHEMA),
        lambda tracker, messages: tracker.flat_map_arrow(messages, split_batch, _SCHEMA),
        (1.1, 1.4),
    ),
    (
        "per-row Python",
        lambda messages: messages.mapInArrow(_split_rows, _SCHEMA),
        lambda tracker, messages: tracker.flat_map(messages, split_row, _SCHEMA),
        (1.1, 1.3),
    ),
)
"""Name, both sides, and the targets without and with a shuffle."""


@harness.benchmark("fan_out")
def run(bench: Bench) -> Iterator[Row]:
    """Measure each way to split, with and without a shuffle, in turn."""
    count = bench.size(_MESSAGES)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, jobs.session() as spark:
        folder = Path(name) / "messages"
        write_messages(folder, count)
        cases = [
            _job(f"{count:,} messages to {count * _FAN_OUT:,} rows, {variant[0]}, {label}", shuffled, *variant[1:])(
                lambda: spark.read.parquet(str(folder))
            )
            for shuffled, label in ((False, "no shuffle"), (True, "with a shuffle"))
            for variant in _VARIANTS
        ]
        yield from jobs.measure(bench, cases)


def _job(
    name: str,
    shuffled: bool,  # noqa: FBT001
    plain: Callable[[DataFrame], DataFrame],
    tracked: Callable[[Tracker, DataFrame], DataFrame],
    targets: tuple[float, float],
) -> Callable[[Callable[[], DataFrame]], jobs.Job]:
    def parted(rows: DataFrame) -> DataFrame:
        return rows.repartition(jobs.PARTITIONS, "word") if shuffled else rows

    def write(messages: DataFrame, folder: Path) -> None:
        parted(plain(messages)).write.parquet(str(folder))

    def pipeline_to(folder: Path) -> Pipeline:
        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            tracker.write(parted(tracked(tracker, messages)), lambda writer: writer.mode("append").parquet(str(folder)))

        return pipeline

    return lambda messages: jobs.Job(name, messages, write, pipeline_to, "message", targets[shuffled])


def write_messages(folder: Path, count: int) -> None:
    """Write messages of ten words, the same in every run."""
    folder.mkdir()
    words = np.array([f"word-{number}" for number in range(_VOCABULARY)])
    drawn = np.random.default_rng(8).choice(words, (count, _FAN_OUT))
    texts = [",".join(row) for row in drawn.tolist()]
    for number, part in enumerate(np.array_split(np.arange(count), _FILES)):
        table = pa.table({"message": part, "text": texts[part[0] : part[-1] + 1]})
        pq.write_table(table, folder / f"{number}.parquet")
