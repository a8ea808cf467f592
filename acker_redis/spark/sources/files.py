"""Files as a tracked source: every row has its file and its number in the file, which is its offset.

Spark's own readers don't number the rows of text, CSV and JSON. Here one task numbers the lines of a file, in Python, and
Spark parses them. If only the numbers are needed, as for message ids, nothing is parsed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis.errors import BadConfigError
from acker_redis.spark import checks
from acker_redis.spark.runtime.file_systems import file_system
from acker_redis.spark.sources import file_formats, parsing
from acker_redis.spark.sources.ambiguous_json import AmbiguityCheck, ambiguity_check
from acker_redis.spark.sources.file_formats import CORRUPT, Format

FILE, ROW = "file", "row"
"""Columns added to every row: the path of its file, and its number in the file, from 0."""

READ_FROM = "acker_read_from"
"""Metadata key of the columns `file` and CORRUPT. Metadata stays with a column that is renamed or selected."""

READ_AS = "acker_read_as"
"""Metadata key of the column `file`, with the format."""

_FILES_OF = "acker_files_of_"
"""Beginning of the name of the column that has the files to read, and of the function that reads them. The path follows."""

ROW_OF = "acker_row_of"
"""Metadata key of the column `row`, with the path that was read. READ_AS stands beside it."""


def read_files(
    spark: SparkSession, path: str, file_format: Format = "text", schema: str | StructType | None = None
) -> DataFrame:
    """Read files as rows, with the columns `file` and `row` before their own.

        orders = read_files(spark, "s3://bucket/orders", "json", "order bigint, items string")
        run_tracked(orders, pipeline, acker=acker)

    A file is identified by its path. It must be complete when it is read, and must not change until the run has ended. Later
    it may grow. With `OffsetFile`, a file that replaced another under its name ends the run before anything is emitted, or is
    read from its first record (`on_replaced="read_again"`). It is recognised by the number of its records, and by the first
    and the last record that was done, as long as the columns `file` and `row` are passed on unchanged.

    A line that isn't UTF-8 becomes a row of nulls, and so does a JSON or CSV record that can't be read exactly, or has a value
    that doesn't fit its column. Its text is in the last column, `_corrupt_record`, which is null in all other rows.
    `run_tracked` fails such rows before the pipeline gets them, so they are dead letters at once. If 20 records can't be read,
    and none could in this run, the schema is probably wrong, or the files aren't UTF-8. The run then ends with
    `OperatorBrokenError` and dead-letters none (see its `stop_if_broken`). Rename the column to handle such rows yourself.
    Keep the column in every `select` before `run_tracked`, which otherwise refuses the frame: such rows would pass for rows
    of nulls. The pipeline may drop it.

    Args:
        spark: session.
        path: path of a file or folder, or a URI that pyarrow knows, such as `s3://`. A folder is read at any depth, without
            names that start with `.` or `_`. Files whose names end in `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.
        file_format: `text` (a column `value` per line), `json` (an object per line), `csv` (with a header; empty, `null`,
            `NULL`, `NA` and `N/A` are nulls except in string columns), or `parquet`. Times without a zone are UTC.
        schema: schema of the rows, as DDL or StructType. None: that of the first file, in which all columns of CSV are
            strings, and times in JSON are strings.

    Raises:
        BadConfigError: the file doesn't exist, or the format is unknown or can't hold values of a type. If a file is damaged,
            the action that reads its rows raises a Spark error that quotes this one.
    """
    if file_format not in get_args(Format):
        raise BadConfigError(f"file_format={file_format!r} is unknown. Use one of {', '.join(get_args(Format))}.")
    paths = list_files(path)
    if not paths:
        raise BadConfigError(f"No files in {path}. Pass a file, or a folder with files.")
    if schema is None:
        schema = from_arrow_schema(_schema_of(path, paths, file_format), prefer_timestamp_ntz=True)
    output = checks.struct(schema, "read_files")
    given = {FILE, ROW, CORRUPT} if file_formats.marks_corrupt(file_format) else {FILE, ROW}
    taken = given & {name.lower() for name in output.names}
    if taken:
        raise BadConfigError(
            f"The files have the columns {sorted(taken)}, which read_files adds. Rename them in the files, or set a schema "
            "without them."
        )
    names = spark.createDataFrame(pa.table({_mark_of(path): paths}))
    of_file = {READ_FROM: path, READ_AS: file_format}
    file = StructField(FILE, StringType(), metadata=of_file)
    of_row = {ROW_OF: path, READ_AS: file_format}
    place = [file, StructField(ROW, LongType(), metadata=of_row)]
    if not file_formats.is_parsed(file_format):
        fields = list(output.fields)
        if file_formats.marks_corrupt(file_format):
            fields = [StructField(field.name, field.dataType, metadata=field.metadata) for field in fields]
            fields.append(StructField(CORRUPT, StringType(), metadata={READ_FROM: path}))
        reading = _Reading(path, file_format, checks.arrow_schema(StructType(fields)))
        return names.mapInArrow(reading, StructType([*place, *fields]))
    parsing.check(file_format, output)
    header = _header_of(path, paths, output.names) if file_format == "csv" else ()
    details = ambiguity_check(output) if file_format == "json" else _Csv(header, output.names)
    text = StructField(file_formats.RECORD, StringType())
    corrupt = StructField(CORRUPT, StringType())
    records = names.mapInArrow(_Reading(path, file_format, details), StructType([*place, text, corrupt]))
    rows = parsing.parsed(records, file_format, output, header)
    marked = rows.withMetadata(FILE, of_file).withMetadata(ROW, of_row)
    return marked.withMetadata(CORRUPT, {READ_FROM: path})


def list_files(path: str) -> list[str]:
    """List the files below a path, sorted.

    Raises:
        BadConfigError: the path doesn't exist.
    """
    system, place = file_system(path)
    info = system.get_file_info(place)
    if info.type == pa.fs.FileType.NotFound:
        raise BadConfigError(f"{path} does not exist. Pass the path of a file or folder.")
    if info.type == pa.fs.FileType.File:
        return [place]
    inside = system.get_file_info(pa.fs.FileSelector(place, recursive=True))
    return sorted(
        info.path for info in inside if info.type == pa.fs.FileType.File and not _is_hidden(info.path[len(place) :])
    )


def check_outside(frame: DataFrame, partition: str, place: Path) -> None:
    """Check that a file of the program is not among those that `read_files` reads.

    Raises:
        BadConfigError: `place` is read, or will be once it exists.
    """
    read_from = frame.schema[partition].metadata.get(READ_FROM) if partition in frame.columns else None
    if read_from is None:
        return
    system, base = file_system(read_from)
    if isinstance(system, pa.fs.LocalFileSystem) and place.is_relative_to(Path(base).resolve()):
        inner = place.relative_to(Path(base).resolve())
        if not _is_hidden(inner.as_posix()):
            raise BadConfigError(
                f"{place} is inside {base}, which this run reads, so it would be read as a source file. Move it elsewhere, or "
                "rename it to begin with _."
            )


def _mark_of(path: str) -> str:
    """Return a name that tells what is read. Paths of this machine are made absolute."""
    system, place = file_system(path)
    full = str(Path(place).absolute()) if isinstance(system, pa.fs.LocalFileSystem) else path
    return _FILES_OF + quote(full).replace(".", "%2E")  # names of columns have no dots


def files_of(name: str) -> str | None:
    """Return the path that `read_files` reads, from the name of its column of files or of its function.

    None: it is another name.
    """
    return unquote(name.removeprefix(_FILES_OF)) if name.startswith(_FILES_OF) else None


def _schema_of(path: str, paths: list[str], file_format: Format) -> pa.Schema:
    """Infer the columns from the first file that isn't empty."""
    system, _ = file_system(path)
    for place in paths:
        schema = file_formats.schema_of(system, place, file_format)
        if schema is not None:
            return schema
    raise BadConfigError(f"All files in {path} are empty, so their columns are unknown. Set the schema.")


def _header_of(path: str, paths: list[str], wanted: list[str]) -> list[str]:
    """Read the header of the first file that isn't empty. Files that lack a column are refused when they are read."""
    system, _ = file_system(path)
    for place in paths:
        header = file_formats.header_of(system, place)
        if header is not None:
            return header if set(wanted) <= set(header) else wanted
    return wanted


def _is_hidden(inner: str) -> bool:
    return any(part.startswith((".", "_")) for part in inner.split("/") if part)


@dataclass(frozen=True)
class _Csv:
    """Names of the columns of the first file, and of the wanted ones."""

    header: Sequence[str]
    wanted: Sequence[str]


@dataclass(frozen=True)
class _Reading:
    base: str
    file_format: Format
    details: pa.Schema | AmbiguityCheck | _Csv

    @property
    def __name__(self) -> str:
        return _mark_of(self.base)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, _ = file_system(self.base)
        for names in batches:
            for path in names.column(0).to_pylist():
                row = 0
                for batch in self._rows(system, path):
                    places = [pa.repeat(path, len(batch)), pa.array(np.arange(row, row + len(batch)))]
                    row += len(batch)
                    with_place = pa.schema([(FILE, pa.string()), (ROW, pa.int64()), *batch.schema])
                    yield pa.RecordBatch.from_arrays([*places, *batch.columns], schema=with_place)

    def _rows(self, system: pa.fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
        if isinstance(self.details, AmbiguityCheck):
            return file_formats.read_json(system, path, self.details)
        if isinstance(self.details, _Csv):
            return file_formats.read_csv(system, path, self.details.header, self.details.wanted)
        return file_formats.read(system, path, self.file_format, self.details)
