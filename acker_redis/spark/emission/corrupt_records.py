"""Messages from `read_files` that could not be read: they fail before the pipeline gets them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError
from acker_redis.spark.sources import file_formats
from acker_redis.spark.sources.file_formats import CORRUPT
from acker_redis.spark.sources.files import FILE, READ_AS, READ_FROM, ROW
from acker_redis.spark.tracker import Tracker
from acker_redis.spark.worker.failures import REASON_CHARS

_PATH_CHARS = 120
"""So much of a path's end is told with a record that can't be read, so that there is room for the record."""


def has_corrupt(messages: DataFrame) -> bool:
    """Whether messages come from `read_files` and still have its column of records that can't be read."""
    return any(field.name == CORRUPT and READ_FROM in field.metadata for field in messages.schema.fields)


def check_corrupt(messages: DataFrame) -> None:
    """Messages from `read_files` have its column of records that can't be read, under whatever name.

    Raises:
        PipelineError: it was left out.
    """
    marks = [field.metadata for field in messages.schema.fields if READ_FROM in field.metadata]
    formats = [mark[READ_AS] for mark in marks if file_formats.is_parsed(mark.get(READ_AS))]
    if formats and all(READ_AS in mark for mark in marks):
        raise PipelineError(
            f"the messages come from read_files of {formats[0]}, without its column {CORRUPT!r}. Records that can't be read "
            "would be acked as rows of nulls. Keep the column in the select, or rename it to handle such rows yourself; if "
            f'you have left them out already, say so with .withMetadata("{FILE}", {{}})'
        )


def without_corrupt(tracker: Tracker, tracked: DataFrame, payload: Column | None = None) -> DataFrame:
    """Fail messages that could not be read, for good: their letters say where they stand, and how they begin.

    So nobody has to read the source for that; a letter's message id is a hash. `payload` is what letters keep of them.
    """
    place = (
        f"'row ', {ROW}, ' of ', right({FILE}, {_PATH_CHARS}), ': ', " if {FILE, ROW} <= set(tracked.columns) else ""
    )
    reason = f"concat('the record can''t be read with these columns: ', {place}left({CORRUPT}, {REASON_CHARS}))"
    return tracker._fail_where(  # noqa: SLF001
        tracked, f"{CORRUPT} IS NOT NULL", F.expr(reason), retry=False, name="read_files", payload=payload
    )
