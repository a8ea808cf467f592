"""Writes rows into a stage, and counts what is there.

The rows of all messages are written by the job that computes them. So if none of them fails, nothing is computed or written
twice. The job also caches the rows, if an operator of the pipeline may fail some, or if they aren't deterministic. If messages
fail, those of the others are written anew, from the cache. Without one they are computed again, which happens where only a
later branch fails messages. If something is gone then, because the pipeline has returned, the emission is tried again.

Spark's committers may write a row twice, for example if an executor is lost between the commit of its task and the report of
it. The proof sees the task that was reported, and not the files. So the files are counted.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError, UnprovenEmissionError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.plans import Written, is_deterministic
from acker_redis.spark.protocol.columns import ROOTS, TRACKING
from acker_redis.spark.runtime import frames
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget
from acker_redis.spark.sql import quoted

_MOST_LITERALS = 1_000
"""Failed messages up to which their roots stand in the plan."""

_FAILED_ROOT = "acker_failed_root"


@dataclass(frozen=True)
class StagedFrame:
    """A sink of a frame whose rows are in a stage.

    Attributes:
        sink: the sink, over cached rows, with an equation that needs no meters.
        write: function that writes rows into a stage.
        target: where the rows belong.
        all_rows: the rows of all messages.
        is_cached: whether the rows are cached.
    """

    sink: Sink
    write: Callable[[DataFrame, Stage], object]
    target: StagedTarget
    all_rows: StagedRows
    is_cached: bool

    @classmethod
    def of(cls, sink: Sink, write: Callable[[DataFrame, Stage], object], target: StagedTarget, stage: Stage) -> Self:
        """Compute the rows of a sink, and write all of them into a stage.

        Raises:
            Exception: as `stage`.
        """
        is_cached = sink.outputs.caches or sink.proof.may_fail_rows or not is_deterministic(sink.rows)
        sink = sink.with_cached_rows() if is_cached else sink
        staged, removed = _stage(sink, target.format, write, stage, np.array([], np.int64))
        sink.proof.finish(sink.node, staged.rows)
        return cls(sink.behind(removed) if is_cached else sink, write, target, staged, is_cached)

    @property
    def name(self) -> str:
        """Name of the sink."""
        return self.sink.node.name

    def stage(self, stage: Stage, failed: Int64Array) -> StagedRows:
        """Write the rows of all messages but those with these roots into a stage.

        Rows that aren't cached, or were lost from the cache, are computed again. The proof sees it if a message fails or
        succeeds now that didn't before.

        Raises:
            PipelineError: a row belongs to no message, or to several.
            UnprovenEmissionError: the stage has other rows than it should. Try the emission again.
            Exception: a job failed.
        """
        return _stage(self.sink, self.target.format, self.write, stage, failed)[0]


def _stage(
    sink: Sink, file_format: str, write: Callable[[DataFrame, Stage], object], stage: Stage, failed: Int64Array
) -> tuple[StagedRows, int]:
    """Stage rows. Return them, and the sum of the shares of rows that were removed before them."""
    proof, node = sink.proof, sink.node
    meter, counter = proof.add_meter(node), proof.add_staged_meter(node)
    rows = meters.meter_staged(_without(meters.meter_all(sink.rows, meter), failed), counter)
    try:
        with proof.jobs_of(node):
            write(frames.without(rows, *TRACKING), stage)
        removed = proof.prove(node, meter, sink.equation, written=False, final=False)
        expected, others = proof.read_staged(node, counter)
        if others:
            raise PipelineError(
                f"{node.name!r}: {others:,} of {expected:,} rows belong to no message, or to several. With once=, a row "
                "is written if its message is accepted, so each must have one. Keep the message id among the keys of "
                'joins and groups, or use output="whole".'
            )
        contents = stage.tables.contents(stage.folder, file_format)
        told = proof.read_written(node, counter) if stage.tables.spark_tells else None
        check_contents(node.name, expected, told, contents)
    except BaseException:
        stage.tables.forget(stage.folder)
        shutil.rmtree(stage.folder, ignore_errors=True)
        raise
    return StagedRows(stage.folder, contents.files, expected, stage.key), removed


def check_contents(sink: str, expected: int, told: Written | None, contents: StageContents) -> None:
    """Compare what is in a stage with what Spark tells of it, and with the rows that the proof has counted.

    Files of texts don't tell how many rows they have. So a file too many shows, and a row too many in a file doesn't.

    Args:
        sink: name of the sink.
        expected: number of rows that the proof has counted.
        told: what Spark tells of the write; None: nothing.
        contents: what is there.

    Raises:
        UnprovenEmissionError: they differ.
    """
    count = len(contents.files)
    rows_told, files_told = (expected, count) if told is None else (told.rows, told.files)
    rows_there = rows_told if contents.rows is None else contents.rows
    if (rows_told, files_told, rows_there) != (expected, count, expected):
        raise UnprovenEmissionError(
            f"{sink!r}: {expected:,} rows were to be staged. Spark wrote {rows_told:,} in {files_told:,} files, and "
            f"the stage has {rows_there:,} in {count:,}. A task may have run twice, so this is retried."
        )


def _without(rows: DataFrame, failed: Int64Array) -> DataFrame:
    """Leave out the rows of messages with these roots. Rows of several messages or none stay, and are refused later."""
    if not len(failed):
        return rows
    # A row of no message has no first root, for which an index would be an error in ANSI mode.
    root, is_of_one = f"get({ROOTS}, 0)", f"size({ROOTS}) = 1"
    if len(failed) <= _MOST_LITERALS:
        roots = ", ".join(f"{value}L" for value in failed.tolist())
        return rows.where(f"NOT coalesce({is_of_one} AND {root} IN ({roots}), false)")
    table: Any = pa.table({_FAILED_ROOT: pa.array(failed)})
    left_out = rows.sparkSession.createDataFrame(table).hint("broadcast")
    return rows.join(left_out, F.expr(f"{is_of_one} AND {root} = {quoted(_FAILED_ROOT)}"), "left_anti")
