"""Pipeline of the word count: lines -> `split`, an operator that derives a row per word -> shuffle -> `save`, a sink.

A line is done once all its words are written. The sink is Spark's own writer, and every word is written with (line,
position). Readers take each pair once, so a line that is emitted again doesn't count twice.
"""

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.model import ids
from acker_redis.spark import FlatMapOutput, Tracker
from spark.support.session import parallelism

NOT_WORD = "[^a-z0-9_']+"
OCCURRENCE = "line bigint, position int, word string"
MILLION = 1_000_000
REASON = "failed on purpose"


class Operators(StrEnum):
    """Language of the split operator."""

    PYTHON = "python"
    SQL = "sql"


@dataclass(frozen=True)
class Faults:
    """Faults on purpose, at the first attempt.

    Attributes:
        fail_rate: share of lines that fail.
        lose_rate: share of words that are lost without the tracker's knowledge, so that the sink's proof must detect it.
        kill_mark: file that the first task of `split` creates before it kills its Python worker; None: no kill.
    """

    fail_rate: float = 0
    lose_rate: float = 0
    kill_mark: Path | None = None


def count_words(operators: Operators, faults: Faults, output: Path, tracker: Tracker, lines: DataFrame) -> None:
    """Run one emission: all lines, or lines to retry."""
    if tracker.emission:
        faults = Faults()
    split = split_in_sql if operators is Operators.SQL else split_in_python
    words = split(faults, tracker, lines)
    if faults.lose_rate:  # Spark's own where, unknown to the tracker
        words = words.where(~chosen_in_sql(faults.lose_rate, "lose", "line", "position"))
    shuffled = words.repartition(parallelism(lines.sparkSession), "word")
    tracker.write(shuffled, lambda writer: writer.mode("append").parquet(str(output)), name="save")


def split_in_sql(faults: Faults, tracker: Tracker, lines: DataFrame) -> DataFrame:
    """Derive a row per word of each line, without Python."""
    good = tracker.fail_where(lines, chosen_in_sql(faults.fail_rate, "fail", "line"), REASON, name="check")

    def occurrence(word: Column, position: Column) -> Column:
        return F.struct("line", position.alias("position"), word.alias("word"))

    words = F.filter(F.split(F.lower("text"), NOT_WORD), lambda word: word != "")
    return tracker.explode(good, F.transform(words, occurrence), name="split")


def split_in_python(faults: Faults, tracker: Tracker, lines: DataFrame) -> DataFrame:
    """Derive a row per word of each line, in Arrow batches."""
    return tracker.flat_map_arrow(lines, partial(split, faults), OCCURRENCE, name="split")


def split(faults: Faults, batch: pa.RecordBatch) -> FlatMapOutput:
    """Split a batch of lines into words."""
    if faults.kill_mark is not None:
        die_once(faults.kill_mark)
    lines = batch.column("line").to_numpy()
    words = pc.split_pattern_regex(pc.utf8_lower(batch.column("text")), pattern=NOT_WORD)
    parents, flat = pc.list_parent_indices(words), pc.list_flatten(words)
    real = pc.not_equal(flat, "")
    word, parent = flat.filter(real), parents.filter(real).to_numpy().astype(np.int64)
    position = np.arange(len(parent)) - np.searchsorted(parent, parent)
    failing = np.flatnonzero(chosen(faults.fail_rate, "fail", lines))
    rows = pa.record_batch({"line": lines[parent], "position": pa.array(position, pa.int32()), "word": word})
    return FlatMapOutput(rows, parent, dict.fromkeys(failing.tolist(), REASON))


def chosen_in_sql(rate: float, salt: str, *columns: str | Column) -> Column:
    """Choose a share of rows, always the same ones."""
    return F.pmod(F.xxhash64(F.lit(salt), *columns), F.lit(MILLION)) < F.lit(round(rate * MILLION))


def chosen(rate: float, salt: str, *columns: np.ndarray) -> np.ndarray:
    """Choose a share of rows, always the same ones."""
    hashed = ids.derive_many(ids.derive(salt), *(np.ascontiguousarray(c, np.int64).view(np.uint64) for c in columns))
    return np.asarray(hashed % np.uint64(MILLION) < np.uint64(round(rate * MILLION)))


def die_once(mark: Path) -> None:
    """Kill this worker, as a crash would, in the first attempt of the first task."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
