"""Files as a tracked source: every row knows its file and its place in it, which is its offset.

Spark's own readers don't number the rows of text, CSV and JSON. Here a file is read as a whole by one task, with pyarrow.
"""

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis.errors import BadConfigError
from acker_redis.spark import checks

Format: TypeAlias = Literal["text", "json", "csv", "parquet"]

FILE, ROW = "file", "row"
"""Columns that every row gets: path of its file, and its number in it from 0."""

_READ_FROM = "acker_read_from"
"""Metadata of the column `file`, which stay with it when others are added or left out."""

_ROWS_PER_BATCH = 10_000
_BLOCK_BYTES = 16 << 20
"""The longest record of JSON or CSV."""

_TEXT = pa.schema([("value", pa.string())])


def read_files(
    session: SparkSession, path: str, file_format: Format = "text", schema: str | StructType | None = None
) -> DataFrame:
    """Rows of files, with the columns `file` and `row` before their own; compressed files are read too.

    A file is known by its path. It has to be complete when it is read, and stay as it is: rows put in front of others get the
    numbers those had, and with `Offsets` a file that replaces another under its name is taken for the one it replaced.
    Write under another name and rename, as log rotation does.

    Args:
        session: Spark.
        path: a file or a folder (all files in it, at any depth; names with a leading `.` or `_` are left out), as a path or
            a URI that pyarrow knows, such as `s3://`.
        file_format: `text` (a column `value` per line), `json` (a record per line), `csv` (with a header), `parquet`.
        schema: of the rows, as DDL or StructType; None: that of the first file.

    Raises:
        BadConfigError: there is no such file, or the format is not known.
    """
    if file_format not in _READERS:
        raise BadConfigError(f"file_format={file_format!r}: use one of {', '.join(_READERS)}")
    paths = list_files(path)
    if not paths:
        raise BadConfigError(f"no files in {path}")
    found = from_arrow_schema(_schema_of(path, paths, file_format)) if schema is None else schema
    output = checks.struct(found, "read_files")
    taken = {FILE, ROW} & {name.lower() for name in output.names}
    if taken:
        raise BadConfigError(f"the files have columns {sorted(taken)}, which this source gives: rename them there")
    names = session.createDataFrame(pa.table({FILE: paths}))
    file = StructField(FILE, StringType(), metadata={_READ_FROM: path})
    with_place = StructType([file, StructField(ROW, LongType()), *output.fields])
    return names.mapInArrow(_Reading(path, file_format, checks.arrow_schema(output)), with_place)


def list_files(path: str) -> list[str]:
    """Files below a path, sorted.

    Raises:
        BadConfigError: there is no such path.
    """
    system, place = _system(path)
    found = system.get_file_info(place)
    if found.type == pa.fs.FileType.NotFound:
        raise BadConfigError(f"there is no {path}")
    if found.type == pa.fs.FileType.File:
        return [place]
    inside = system.get_file_info(pa.fs.FileSelector(place, recursive=True))
    return sorted(
        info.path for info in inside if info.type == pa.fs.FileType.File and not _is_hidden(info.path[len(place) :])
    )


def check_outside(frame: DataFrame, partition: str, place: Path) -> None:
    """A file of the program's own is not among those that `read_files` reads.

    Raises:
        BadConfigError: it is, or will be when it was made.
    """
    read_from = frame.schema[partition].metadata.get(_READ_FROM) if partition in frame.columns else None
    if read_from is None:
        return
    system, base = _system(read_from)
    if isinstance(system, pa.fs.LocalFileSystem) and place.is_relative_to(Path(base).resolve()):
        inner = place.relative_to(Path(base).resolve())
        if not _is_hidden(inner.as_posix()):
            raise BadConfigError(
                f"{place} is inside {base}, which is read: it would be taken for a source file. Keep it elsewhere, or give it "
                "a name that begins with _"
            )


def _system(path: str) -> tuple[pa.fs.FileSystem, str]:
    """The file system of a path or URI, and its path there: only whole URIs are parsed, never names of files."""
    if "://" in path:
        found: tuple[pa.fs.FileSystem, str] = pa.fs.FileSystem.from_uri(path)
        return found
    return pa.fs.LocalFileSystem(), os.path.abspath(path)  # noqa: PTH100


def _schema_of(path: str, paths: list[str], file_format: Format) -> pa.Schema:
    """Columns of the first file that has any."""
    if file_format == "text":
        return _TEXT
    system, _ = _system(path)
    for place in paths:
        if file_format == "parquet":
            with pq.ParquetFile(place, filesystem=system) as file:
                return file.schema_arrow
        for batch in _READERS[file_format](system, place, None):
            # A column without any value yet: text holds whatever comes.
            fields = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in batch.schema]
            return pa.schema(fields)
    raise BadConfigError(f"the files in {path} are empty: give their schema")


def _is_hidden(inner: str) -> bool:
    return any(part.startswith((".", "_")) for part in inner.split("/") if part)


@dataclass(frozen=True)
class _Reading:
    base: str
    file_format: Format
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, _ = _system(self.base)
        for names in batches:
            for path in names.column(0).to_pylist():
                row = 0
                for batch in _READERS[self.file_format](system, path, self.schema):
                    rows = batch.select(self.schema.names).cast(self.schema)
                    places = [pa.array([path] * len(rows)), pa.array(np.arange(row, row + len(rows)))]
                    row += len(rows)
                    with_place = pa.schema([(FILE, pa.string()), (ROW, pa.int64()), *self.schema])
                    yield pa.RecordBatch.from_arrays([*places, *rows.columns], schema=with_place)


def _open(system: pa.fs.FileSystem, path: str) -> io.BufferedReader:
    """Decompressed by the file's name. pyarrow's own stream can't give lines of a compressed file."""
    return io.BufferedReader(system.open_input_stream(path))


def _text(system: pa.fs.FileSystem, path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    lines: list[str] = []
    with _open(system, path) as stream:
        for line in stream:
            lines.append(line.rstrip(b"\r\n").decode(errors="replace"))
            if len(lines) == _ROWS_PER_BATCH:
                yield pa.RecordBatch.from_arrays([pa.array(lines)], schema=_TEXT)
                lines = []
    yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=_TEXT)


def _json(system: pa.fs.FileSystem, path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with _open(system, path) as stream:
        if stream.peek(1):
            read = pa.json.ReadOptions(block_size=_BLOCK_BYTES)
            options = pa.json.ParseOptions(explicit_schema=schema)
            yield from pa.json.read_json(stream, read, options).to_batches(_ROWS_PER_BATCH)


def _csv(system: pa.fs.FileSystem, path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with _open(system, path) as stream:
        if stream.peek(1):
            read = pa.csv.ReadOptions(block_size=_BLOCK_BYTES)
            with pa.csv.open_csv(stream, read, convert_options=pa.csv.ConvertOptions(column_types=schema)) as reader:
                if schema is None:  # a header alone has columns, too
                    yield pa.RecordBatch.from_pylist([], reader.schema)
                yield from reader


def _parquet(system: pa.fs.FileSystem, path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, filesystem=system) as file:
        yield from file.iter_batches(_ROWS_PER_BATCH)


_READERS: dict[str, Callable[[pa.fs.FileSystem, str, pa.Schema | None], Iterator[pa.RecordBatch]]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
}
