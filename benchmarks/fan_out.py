"""What tracking costs on local[2] where every message becomes ten rows: 500 000 messages, 5 000 000 derived rows.

Messages are read from parquet, split into ten rows each, and written to parquet again, either at once or behind a shuffle by
a derived column, which parts each message's rows among the tasks behind it. Split in three ways: in SQL (behind a filter that
all meet), in a function of Arrow record batches, and in a Python function of one row, a dict, that yields dicts.

The untracked side runs the same operators: the split, in `selectExpr` or `mapInArrow`, then the write in `mapInArrow`, the
same function of a partition's record batches on both sides. Rows in Python go over `to_pylist` and back with `from_pylist`:
of what PySpark offers that is the shortest program that keeps dicts, and several times as fast as an RDD's `flatMap`.

Without a shuffle the tracker runs spout, bolt and sink in one worker, while Spark hands all rows back between two
`mapInArrow`. So there is a second untracked side, where split and write are made one function by hand.

Tracked time begins before the roots are made and ends when the last outcome was confirmed. Both sides take turns, after a
warm-up of both. A run where anything failed, timed out or was replayed is an error.

Beside wall time stands the CPU of all processes: Spark, its Python workers, this program and the server. The tracked side
has more processes, so a machine that is busy with other work gives it the larger share, and wall time flatters it.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, AckerConfig
from acker_redis.pending import Emission
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Emitted, Tracker
from acker_redis.spout import Spout
from benchmarks import harness
from benchmarks.harness import Bench, Row
from benchmarks.word_count import spark_session

_MESSAGES = 500_000
_FAN_OUT = 10
_FILES = 8
_PARTITIONS = 2
_VOCABULARY = 5_000
_ROW_GROUP = 10_000
_ROUNDS = 3
_SCHEMA = "message bigint, position int, word string"
_ARROW = pa.schema([("message", pa.int64()), ("position", pa.int32()), ("word", pa.string())])
_CHILDREN = "transform(split(text, ','), (word, position) -> struct(message, position, word))"
_WANTED = "length(text) > 0"

Batches: TypeAlias = Iterator[pa.RecordBatch]
SplitBatches: TypeAlias = Callable[[Batches], Batches]


def split_batch(batch: pa.RecordBatch) -> Emitted:
    """A row for each word of each message, in Arrow."""
    words = pc.split_pattern(batch.column("text"), ",")
    parents = pc.list_parent_indices(words).to_numpy().astype(np.int64)
    position = np.arange(len(parents)) - np.searchsorted(parents, parents)
    columns = [batch.column("message").take(pa.array(parents)), pa.array(position, pa.int32()), pc.list_flatten(words)]
    return Emitted(pa.RecordBatch.from_arrays(columns, schema=_ARROW), parents)


def split_row(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same for one message in plain Python."""
    for position, word in enumerate(row["text"].split(",")):
        yield {"message": row["message"], "position": position, "word": word}


def _split_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split_batch(batch).rows


def _split_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        derived = [child for row in batch.to_pylist() for child in split_row(row)]
        yield pa.RecordBatch.from_pylist(derived, schema=_ARROW)


def write_partition(folder: Path, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """One parquet file, whose row groups do not depend on how long the batches are."""
    with pq.ParquetWriter(folder / f"{partition}.parquet", _ARROW) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(_ARROW), row_group_size=_ROW_GROUP)


def _write(folder: Path, split: SplitBatches | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    rows = batches if split is None else split(batches)
    write_partition(folder, rows, context.partitionId() if context else 0)
    yield pa.RecordBatch.from_pydict({"done": [True]})


def _plain_sql(messages: DataFrame) -> DataFrame:
    return messages.where(_WANTED).selectExpr(f"inline({_CHILDREN})")


def _tracked_sql(tracker: Tracker, messages: DataFrame) -> DataFrame:
    return tracker.explode(tracker.filter(messages, _WANTED, name="wanted"), _CHILDREN, name="split")


@dataclass(frozen=True)
class Variant:
    """A way to split messages, on both sides; `split`: the untracked one as a function, where it is one."""

    name: str
    target: float
    plain: Callable[[DataFrame], DataFrame]
    tracked: Callable[[Tracker, DataFrame], DataFrame]
    split: SplitBatches | None = None


VARIANTS = (
    Variant("SQL", 1.2, _plain_sql, _tracked_sql),
    Variant(
        "Arrow bolt",
        1.3,
        lambda messages: messages.mapInArrow(_split_batches, _SCHEMA),
        lambda tracker, messages: tracker.bolt(messages, split_batch, _SCHEMA, name="split"),
        _split_batches,
    ),
    Variant(
        "per-row Python",
        1.5,
        lambda messages: messages.mapInArrow(_split_rows, _SCHEMA),
        lambda tracker, messages: tracker.bolt_rows(messages, split_row, _SCHEMA, name="split"),
        _split_rows,
    ),
)


@dataclass(frozen=True)
class _Case:
    """A variant, with or without a shuffle between split and write."""

    variant: Variant
    is_shuffled: bool

    def shuffled(self, rows: DataFrame) -> DataFrame:
        return rows.repartition(_PARTITIONS, "word") if self.is_shuffled else rows

    def __str__(self) -> str:
        return f"{self.variant.name}, {'with a shuffle' if self.is_shuffled else 'no shuffle'}"


CASES = tuple(_Case(variant, is_shuffled) for is_shuffled in (False, True) for variant in VARIANTS)


@dataclass
class _Measured:
    plain_secs: list[float] = field(default_factory=list)
    tracked_secs: list[float] = field(default_factory=list)
    by_hand_secs: list[float] = field(default_factory=list)
    plain_cpu: list[float] = field(default_factory=list)
    tracked_cpu: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)


@harness.benchmark("fan_out")
def run(bench: Bench) -> Iterator[Row]:
    """Interleaved rounds of every case, both ways."""
    count = bench.size(_MESSAGES)
    measured = {case: _Measured() for case in CASES}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        write_messages(folder / "messages", count)
        session = spark_session()
        try:
            messages = session.read.parquet(str(folder / "messages"))
            is_short = bench.scale < 1
            for number in range(1 if is_short else 1 + _ROUNDS):
                for case in CASES:
                    result = measured[case] if number or is_short else _Measured()  # the first is the warm-up
                    _plain(case, messages, folder / "plain", result)
                    _tracked(bench, case, messages, count, folder / "tracked", result)
                    _check_same(folder)
        finally:
            session.stop()
    for case in CASES:
        result = measured[case]
        what = f"fan-out {_FAN_OUT} on local[2], {count * _FAN_OUT:,} derived rows, {case}: tracked / untracked"
        yield _ratio(bench, f"{what} wall", result.tracked_secs, result.plain_secs, case.variant.target)
        if min(result.plain_cpu) > 0:
            yield _ratio(bench, f"{what} CPU", result.tracked_cpu, result.plain_cpu, None)
        if result.by_hand_secs:
            yield _ratio(bench, f"{what} in one function by hand, wall", result.tracked_secs, result.by_hand_secs, None)
        yield bench.row(f"fan-out {_FAN_OUT}, {case}: ledger updates per tuple acked", result.updates, "")


def _ratio(bench: Bench, what: str, tracked: list[float], plain: list[float], target: float | None) -> Row:
    ratios = [a / b for a, b in zip(tracked, plain, strict=True)]
    context = f"{np.median(tracked):.1f} s / {np.median(plain):.1f} s, no replays"
    return bench.row(what, ratios, "x", target=target, context=context)


def write_messages(folder: Path, count: int) -> None:
    """Messages of ten words, the same in every run."""
    folder.mkdir()
    words = np.array([f"word-{number}" for number in range(_VOCABULARY)])
    drawn = np.random.default_rng(8).choice(words, (count, _FAN_OUT))
    texts = [",".join(row) for row in drawn.tolist()]
    for number, part in enumerate(np.array_split(np.arange(count), _FILES)):
        table = pa.table({"message": part, "text": texts[part[0] : part[-1] + 1]})
        pq.write_table(table, folder / f"{number}.parquet")


def _plain(case: _Case, messages: DataFrame, folder: Path, result: _Measured) -> None:
    if case.variant.split is not None and not case.is_shuffled:
        _empty(folder)
        started = time.perf_counter()
        _run(messages, partial(_write, folder, case.variant.split))
        result.by_hand_secs.append(time.perf_counter() - started)
    _empty(folder)
    started, cpu = time.perf_counter(), harness.cpu_secs()
    _run(case.shuffled(case.variant.plain(messages)), partial(_write, folder, None))
    result.plain_secs.append(time.perf_counter() - started)
    result.plain_cpu.append(harness.cpu_secs() - cpu)


def _run(rows: DataFrame, write: SplitBatches) -> None:
    rows.mapInArrow(write, "done boolean").toArrow()


def _tracked(bench: Bench, case: _Case, messages: DataFrame, count: int, folder: Path, result: _Measured) -> None:
    _empty(folder)
    with Acker.connect(bench.url, AckerConfig(app="fan-out", message_timeout_secs=3600)) as acker:
        before = acker.stats(oldest=False)
        spout = Spout(acker, run_id=uuid.uuid4().hex, retry=RetryPolicy(first_delay_secs=0))
        started, cpu = time.perf_counter(), harness.cpu_secs()
        spout.add(np.arange(count, dtype=np.int64))

        def emit(emission: Emission) -> None:
            tracker = Tracker.of(bench.url, spout, emission)
            roots = tracker.spout(messages.withColumn("attempt", F.lit(0).cast("bigint")), "message", "attempt")
            rows = case.shuffled(case.variant.tracked(tracker, roots))
            tracker.sink(rows, partial(write_partition, folder), name="write")

        counts = spout.run(emit)
        result.tracked_secs.append(time.perf_counter() - started)
        result.tracked_cpu.append(harness.cpu_secs() - cpu)
        after = acker.stats(oldest=False)
    if (counts.emitted, counts.acked, counts.replayed) != (count, count, 0):
        raise RuntimeError(f"{case}: not every message was acked at its first attempt: {counts}")
    updates = after.inits + after.acks - before.inits - before.acks
    result.updates.append(updates / (count * (1 + _FAN_OUT)))


def _check_same(folder: Path) -> None:
    plain, tracked = (sum(_rows(path) for path in (folder / side).glob("*.parquet")) for side in ("plain", "tracked"))
    if plain != tracked:
        raise RuntimeError(f"{plain} rows were written untracked, {tracked} tracked")


def _rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
