"""Fail messages from `read_files` that could not be read, before the pipeline gets them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError
from acker_redis.spark.sources import file_formats
from acker_redis.spark.sources.file_formats import CORRUPT
from acker_redis.spark.sources.files import FILE, READ_AS, READ_FROM, ROW
from acker_redis.spark.tracker import Tracker
from acker_redis.spark.worker.failures import REASON_CHARS

_PATH_CHARS = 120
"""Of a path only the end is named with a record that can't be read, so that there is room for the record."""


def has_corrupt_records(messages: DataFrame) -> bool:
    """Return True if messages come from `read_files` and still have its column of records that can't be read."""
    return any(field.name == CORRUPT and READ_FROM in field.metadata for field in messages.schema.fields)


def check_corrupt_records(messages: DataFrame) -> None:
    """Refuse messages from `read_files` without its column of records that can't be read, under any name.

    Raises:
        PipelineError: the column was left out.
    """
    marks = [field.metadata for field in messages.schema.fields if READ_FROM in field.metadata]
    formats = [mark[READ_AS] for mark in marks if file_formats.is_parsed(mark.get(READ_AS))]
    if formats and all(READ_AS in mark for mark in marks):
        raise PipelineError(
            f"the messages come from read_files of {formats[0]}, without its column {CORRUPT!r}. Records that can't be read "
            "would be acked as rows of nulls. Keep the column in the select, or rename it to handle such rows yourself; if "
            f'you have left them out already, declare it with .withMetadata("{FILE}", {{}})'
        )


def fail_corrupt_records(tracker: Tracker, tracked: DataFrame, payload: Column | None = None) -> DataFrame:
    """Fail messages that could not be read, without retry; their dead letters say where they are, and how they begin.

    A letter's message id is a hash, so that alone would not lead to the record. `payload` is what letters keep of them.
    """
    place = (
        f"'row ', {ROW}, ' of ', right({FILE}, {_PATH_CHARS}), ': ', " if {FILE, ROW} <= set(tracked.columns) else ""
    )
    reason = f"concat('the record can''t be read with these columns: ', {place}left({CORRUPT}, {REASON_CHARS}))"
    return tracker._fail_where(  # noqa: SLF001
        tracked, f"{CORRUPT} IS NOT NULL", F.expr(reason), retry=False, name="read_files", payload=payload
    )
