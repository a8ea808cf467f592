"""Writes rows into a stage, and counts what is there.

The rows of all messages are written by the job that computes them. So if none of them fails, nothing is computed or written
twice. The job also caches the rows. If messages fail, those of the others are written anew, from the cache.

Spark's committers may write a row twice, for example if an executor is lost between the commit of its task and the report of
it. The proof sees the task that was reported, and not the files. So the files are counted.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyarrow import orc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError, UnprovenEmissionError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.files import files_below
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.plans import Written
from acker_redis.spark.protocol.columns import ROOTS, TRACKING
from acker_redis.spark.runtime import frames
from acker_redis.spark.sinks.delta_tables import files_of_stage, rows_of_parquet
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_writes import DELTA, StagedRows, StagedTarget
from acker_redis.spark.sql import quoted

_MOST_LITERALS = 1_000
"""Failed messages up to which their roots stand in the plan."""

_FAILED_ROOT = "acker_failed_root"


@dataclass(frozen=True)
class StagingSink:
    """A sink whose rows are in a stage.

    Attributes:
        sink: the sink, over cached rows, with an equation that needs no meters.
        write: function that writes rows into a folder.
        target: where the rows belong.
        all_rows: the rows of all messages.
    """

    sink: Sink
    write: Callable[[DataFrame, str], object]
    target: StagedTarget
    all_rows: StagedRows

    @classmethod
    def of(cls, sink: Sink, write: Callable[[DataFrame, str], object], target: StagedTarget, folder: Path) -> Self:
        """Compute the rows of a sink, and write all of them into a folder that doesn't exist.

        Raises:
            Exception: as `stage`.
        """
        sink = sink.with_cached_rows()
        staged, removed = _stage(sink, target.format, write, folder, np.array([], np.int64))
        sink.proof.finish(sink.node, staged.rows)
        return cls(sink.behind(removed), write, target, staged)

    @property
    def name(self) -> str:
        """Name of the sink."""
        return self.sink.node.name

    def stage(self, folder: Path, failed: Int64Array) -> StagedRows:
        """Write the rows of all messages but those with these roots into a folder that doesn't exist.

        Blocks of the cache that Spark has lost are computed again. The proof sees it if a message fails or succeeds now that
        didn't before.

        Raises:
            PipelineError: a row belongs to no message, or to several.
            UnprovenEmissionError: the folder has other rows than it should. Try the emission again.
            Exception: a job failed.
        """
        return _stage(self.sink, self.target.format, self.write, folder, failed)[0]


def _stage(
    sink: Sink, file_format: str, write: Callable[[DataFrame, str], object], folder: Path, failed: Int64Array
) -> tuple[StagedRows, int]:
    """Stage rows. Return them, and the sum of the shares of rows that were removed before them."""
    proof, node = sink.proof, sink.node
    meter, counter = proof.add_meter(node), proof.add_staged_meter(node)
    rows = meters.meter_staged(_without(meters.meter_all(sink.rows, meter), failed), counter)
    try:
        with proof.jobs_of(node):
            write(frames.without(rows, *TRACKING), str(folder))
        removed = proof.prove(node, meter, sink.equation, written=False, final=False)
        expected, others = proof.read_staged(node, counter)
        if others:
            raise PipelineError(
                f"{node.name!r}: {others:,} of {expected:,} rows belong to no message, or to several. With once=, a row "
                "is written if its message is accepted, so each must have one. Keep the message id among the keys of "
                'joins and groups, or use output="whole".'
            )
        files = files_of_stage(folder) if file_format == DELTA else sorted(files_below(folder))
        told = Written(expected, len(files)) if file_format == DELTA else proof.read_written(node, counter)
        _check_files(node.name, file_format, expected, told, files)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return StagedRows(folder, tuple(str(file.relative_to(folder)) for file in files), expected), removed


def _check_files(sink: str, file_format: str, expected: int, told: Written, files: list[Path]) -> None:
    """Compare the files in the stage with what Spark tells of them, and with the rows that the proof has counted.

    Files of texts don't tell how many rows they have. So a file too many shows, and a row too many in a file doesn't.

    Raises:
        UnprovenEmissionError: they differ.
    """
    counted = sum(map(_COUNTING[file_format], files)) if file_format in _COUNTING else told.rows
    if (told.rows, told.files, counted) != (expected, len(files), expected):
        raise UnprovenEmissionError(
            f"{sink!r}: {expected:,} rows were to be staged. Spark wrote {told.rows:,} in {told.files:,} files, and "
            f"the stage has {counted:,} in {len(files):,}. A task may have run twice, so this is retried."
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


def _rows_of_orc(file: Path) -> int:
    return int(orc.ORCFile(file).nrows)


_COUNTING: dict[str, Callable[[Path], int]] = {
    "parquet": rows_of_parquet, "orc": _rows_of_orc, DELTA: rows_of_parquet,
}  # fmt: skip
"""Formats whose files tell their number of rows, and how to read it."""
