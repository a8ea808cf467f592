"""Fail unreadable records from `read_files` before the pipeline sees them."""

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError
from acker_redis.spark.operators import rows
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.sources import file_formats
from acker_redis.spark.sources.file_formats import CORRUPT
from acker_redis.spark.sources.files import FILE, READ_AS, READ_FROM, ROW
from acker_redis.spark.worker.failures import REASON_CHARS

READ_FILES = "read_files"
"""Name of the operator."""

_PATH_CHARS = 120
"""Longest part of a path in a failure reason. Only its end is quoted, which leaves room for the record."""


def has_corrupt_records(messages: DataFrame) -> bool:
    """Return True if `messages` come from `read_files` and still have its `_corrupt_record` column."""
    return any(field.name == CORRUPT and READ_FROM in field.metadata for field in messages.schema.fields)


def check_corrupt_records(messages: DataFrame) -> None:
    """Check that messages from `read_files` still have its `_corrupt_record` column, under any name.

    Raises:
        PipelineError: the column is missing.
    """
    marks = [field.metadata for field in messages.schema.fields if READ_FROM in field.metadata]
    formats = [mark[READ_AS] for mark in marks if file_formats.marks_corrupt(mark.get(READ_AS))]
    if formats and all(READ_AS in mark for mark in marks):
        raise PipelineError(
            f"Messages from read_files ({formats[0]}) are missing the column {CORRUPT!r}. Without it, unreadable records "
            "would be acked as rows of nulls. Keep the column in your select, or rename it to handle such rows yourself. "
            f'If you have already filtered them out, say so with .withMetadata("{FILE}", {{"checked": True}}).'
        )


def fail_corrupt_records(proof: Proof, tracked: DataFrame) -> DataFrame:
    """Fail unreadable messages without retry, once another one has shown that records can be read.

    The dead letter's detail names the file, the row and the beginning of the record: the message id is a hash and would
    not lead to the record.
    """
    reads = partial(meters.read_failed, retry=False, is_expected=False)
    equation = proof.equation_of(tracked, READ_FILES)
    node = proof.add_operator(READ_FILES, READ_FILES, [equation.node])
    meter = proof.add_meter(node, reads)
    reason, remaining = F.expr(reason_in_sql(tracked.columns)), equation.without(meter, node.name)
    return rows.without_failed(tracked, f"{CORRUPT} IS NOT NULL", reason, meter, remaining, proof.know_ids())


def reason_in_sql(columns: Sequence[str]) -> str:
    """Return SQL for the reason why an unreadable record fails; null for one that was read."""
    place = f"'row ', {ROW}, ' of ', right({FILE}, {_PATH_CHARS}), ': ', " if {FILE, ROW} <= set(columns) else ""
    return f"concat('The record can''t be read with these columns: ', {place}left({CORRUPT}, {REASON_CHARS}))"
