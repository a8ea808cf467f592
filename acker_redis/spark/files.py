"""Files as a tracked source: every row knows its file and its place in it, which is its offset.

Spark's own readers don't number the rows of text, CSV and JSON. Here a file is read as a whole by one task, with pyarrow.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

_ROWS_PER_BATCH = 10_000
_TEXT = pa.schema([("value", pa.string())])


def read_files(
    session: SparkSession, path: str, file_format: Format = "text", schema: str | StructType | None = None
) -> DataFrame:
    """Rows of files, with the columns `file` and `row` before their own; compressed files are read too.

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
    if schema is None:
        first = _TEXT if file_format == "text" else next(_READERS[file_format](paths[0], None)).schema
        output = from_arrow_schema(first)
    else:
        output = checks.struct(schema, "read_files")
    taken = {FILE, ROW} & set(output.names)
    if taken:
        raise BadConfigError(f"the files have columns {sorted(taken)}, which this source gives: rename them there")
    names = session.createDataFrame(pa.table({FILE: paths}))
    with_place = StructType([StructField(FILE, StringType()), StructField(ROW, LongType()), *output.fields])
    return names.mapInArrow(_Reading(file_format, checks.arrow_schema(output)), with_place)


def list_files(path: str) -> list[str]:
    """Files below a path, sorted.

    Raises:
        BadConfigError: there is no such path.
    """
    system, place = pa.fs.FileSystem.from_uri(path) if "://" in path else (pa.fs.LocalFileSystem(), path)
    scheme = path.partition("://")[0] + "://" if "://" in path else ""
    found = system.get_file_info(place)
    if found.type == pa.fs.FileType.NotFound:
        raise BadConfigError(f"there is no {path}")
    if found.type == pa.fs.FileType.File:
        return [path]
    inside = system.get_file_info(pa.fs.FileSelector(place, recursive=True))
    files = [
        info.path for info in inside if info.type == pa.fs.FileType.File and not _is_hidden(info.path[len(place) :])
    ]
    return sorted(scheme + file for file in files)


def _is_hidden(inner: str) -> bool:
    return any(part.startswith((".", "_")) for part in inner.split("/") if part)


@dataclass(frozen=True)
class _Reading:
    file_format: Format
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for names in batches:
            for path in names.column(0).to_pylist():
                row = 0
                for batch in _READERS[self.file_format](path, self.schema):
                    rows = batch.select(self.schema.names).cast(self.schema)
                    places = [pa.array([path] * len(rows)), pa.array(np.arange(row, row + len(rows)))]
                    row += len(rows)
                    with_place = pa.schema([(FILE, pa.string()), (ROW, pa.int64()), *self.schema])
                    yield pa.RecordBatch.from_arrays([*places, *rows.columns], schema=with_place)


def _open(path: str) -> pa.NativeFile:
    system, place = pa.fs.FileSystem.from_uri(path) if "://" in path else (pa.fs.LocalFileSystem(), path)
    return system.open_input_stream(place)  # decompresses by the file's name


def _text(path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    lines: list[str] = []
    with _open(path) as stream:
        for line in io.BufferedReader(stream):  # pyarrow's own can't give lines of a compressed file
            lines.append(line.rstrip(b"\r\n").decode(errors="replace"))
            if len(lines) == _ROWS_PER_BATCH:
                yield pa.RecordBatch.from_arrays([pa.array(lines)], schema=_TEXT)
                lines = []
    yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=_TEXT)


def _json(path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with _open(path) as stream:
        options = pa.json.ParseOptions(explicit_schema=schema)
        yield from pa.json.read_json(stream, parse_options=options).to_batches(_ROWS_PER_BATCH)


def _csv(path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with _open(path) as stream:
        yield from pa.csv.open_csv(stream, convert_options=pa.csv.ConvertOptions(column_types=schema))


def _parquet(path: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    system, place = pa.fs.FileSystem.from_uri(path) if "://" in path else (pa.fs.LocalFileSystem(), path)
    with pq.ParquetFile(place, filesystem=system) as file:
        yield from file.iter_batches(_ROWS_PER_BATCH)


_READERS: dict[str, Callable[[str, pa.Schema | None], Iterator[pa.RecordBatch]]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
}
