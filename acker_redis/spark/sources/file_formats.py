"""Readers of files as record batches. A damaged file raises an error with its name.

JSON and CSV are only split into records here, and Spark parses them (see `parsing`). Records that Spark would change, or
accept although they are malformed, are in the column `CORRUPT` instead of `RECORD`. So are lines of text that aren't UTF-8,
instead of `value`.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq

from acker_redis.errors import BadConfigError
from acker_redis.outages import is_outage
from acker_redis.spark.sources.ambiguous_json import AmbiguityCheck, is_object

Format: TypeAlias = Literal["text", "json", "csv", "parquet"]

CORRUPT = "_corrupt_record"
"""Last column of text, JSON and CSV: the text of an unreadable record, null for all others. The name is Spark's."""

RECORD = "record"
"""Column with the text of a record to parse; null if it is unreadable and CORRUPT has it."""

TEXT = pa.schema([("value", pa.string())])
LINES = pa.schema([*TEXT, (CORRUPT, pa.string())])
RECORDS = pa.schema([(RECORD, pa.string()), (CORRUPT, pa.string())])

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_ROWS_PER_BATCH = 10_000
_BLOCK_BYTES = 1 << 20
_SEEN_BYTES = 16 << 20
"""Part of a JSON file that is read to infer its columns."""

_LONGEST_VALUE = 1 << 30
_QUOTED_LINES, _QUOTED_BYTES = 100, 1 << 20
"""A quote not closed within so many lines with quotes, or bytes, counts as an error in its line."""

_BOM = b"\xef\xbb\xbf"
_ENDS = "\r\n"


def is_parsed(file_format: Format | None) -> bool:
    """Return True if Spark parses the records of a format."""
    return file_format in ("json", "csv")


def marks_corrupt(file_format: Format | None) -> bool:
    """Return True if rows of a format have the column CORRUPT."""
    return file_format == "text" or is_parsed(file_format)


def read_json(system: pa.fs.FileSystem, path: str, check: AmbiguityCheck) -> Iterator[pa.RecordBatch]:
    """Read the records of a JSON file: each line except those of white space.

    Raises:
        BadConfigError: the file is damaged.
    """
    with _naming(path, "json"), _open(system, path) as stream:
        for lines in _blocks(stream):
            records = [line for line in lines if line.strip()]
            texts, is_text = _texts(records)
            yield from _records(texts, pc.or_(pc.invert(is_text), check.find_wrong(texts)))


def read_csv(
    system: pa.fs.FileSystem, path: str, order: Sequence[str], wanted: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read the records of a CSV file after its header.

    A record is a line, or several lines if a quote is open. Empty lines are skipped.

    Args:
        system: file system.
        path: path of the file.
        order: order of the columns in the returned records. Records of a file with another header are rewritten.
        wanted: names of the required columns.

    Raises:
        BadConfigError: the file is damaged, or lacks a column.
    """
    with _naming(path, "csv"), _open(system, path) as stream:
        blocks = _blocks(stream)
        header, lines = _header(blocks)
        if header is None:
            return
        _check_header(path, header, wanted)
        places = None if header == list(order) else _places(header, order)
        while lines or (lines := next(blocks, [])):
            records, lines = _csv_records(lines, blocks, len(header))
            texts, is_text = _texts([record for record, _ in records])
            is_wrong = pc.or_(pc.invert(is_text), pa.array([not is_sound for _, is_sound in records], pa.bool_()))
            for batch in _records(texts, is_wrong):
                yield batch if places is None else _in_order(batch, len(header), places)


def read(system: pa.fs.FileSystem, path: str, file_format: Format, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of a text or Parquet file, with the columns of `schema`.

    A line that isn't UTF-8 is in the column CORRUPT of text, and its `value` is null.

    Raises:
        BadConfigError: the file is damaged, or lacks a column.
    """
    with _naming(path, file_format):
        for batch in _text(system, path) if file_format == "text" else _parquet(system, path):
            missing = [name for name in schema.names if name not in batch.schema.names]
            if missing:
                raise BadConfigError(_other_columns(path, missing, batch.schema.names))
            yield batch.select(schema.names).cast(schema)


def record_bytes(system: pa.fs.FileSystem, path: str, file_format: Format) -> Iterator[list[bytes]]:
    """Read the records of a file as they are stored, in blocks. They don't depend on a schema.

    Records of CSV begin with the header of their file. Records of Parquet are JSON, with all columns of the file.

    Raises:
        BadConfigError: the file is damaged.
    """
    with _naming(path, file_format):
        if file_format == "parquet":
            for batch in _parquet(system, path):
                yield [json.dumps(row, default=str).encode() for row in _plain_times(batch).to_pylist()]
            return
        with _open(system, path) as stream:
            blocks = _blocks(stream)
            if file_format == "csv":
                header, lines = _header(blocks)
                begin = json.dumps(header).encode()
                while header is not None and (lines or (lines := next(blocks, []))):
                    records, lines = _csv_records(lines, blocks, len(header))
                    yield [begin + record.rstrip(b"\r\n") for record, _ in records]
            for lines in blocks:
                yield [line.rstrip(b"\r\n") for line in lines if file_format == "text" or line.strip()]


def header_of(system: pa.fs.FileSystem, path: str) -> list[str] | None:
    """Read the header of a CSV file; None if the file is empty.

    Raises:
        BadConfigError: the file is damaged.
    """
    with _naming(path, "csv"), _open(system, path) as stream:
        return _header(_blocks(stream))[0]


def schema_of(system: pa.fs.FileSystem, path: str, file_format: Format) -> pa.Schema | None:
    """Infer the columns of a file; None if it is empty.

    Texts stay strings: every column of CSV is a string, and times in JSON are strings.

    Raises:
        BadConfigError: the file is damaged, or a column has values of different types.
    """
    if file_format == "text":
        return TEXT
    if file_format == "csv":
        header = header_of(system, path)
        return None if header is None else pa.schema([(name, pa.string()) for name in header])
    with _naming(path, file_format):
        if file_format == "parquet":
            with pq.ParquetFile(path, filesystem=system) as file:
                return file.schema_arrow
        with _open(system, path) as stream:
            lines = [line for line in _some_lines(stream) if line.strip()]
    if not lines:
        return None
    data = b"\n".join(line for line in lines if is_object(line))
    options = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        schema = pa.json.read_json(pa.BufferReader(data), options).schema if data else pa.schema([])
    except pa.ArrowInvalid as exc:
        raise BadConfigError(
            f"{path}: records have values of different types in one column ({exc}). Set the schema."
        ) from exc
    if not len(schema):
        raise BadConfigError(f"{path} has no line with a JSON object, so its columns are unknown. Set the schema.")
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


@contextmanager
def _naming(path: str, file_format: Format) -> Iterator[None]:
    """Add the file's name to errors of a damaged file. Outages of the file system are raised unchanged, for retry."""
    try:
        yield
    except (OSError, EOFError, pa.ArrowException) as exc:
        # A damaged parquet file may be called a TTransportException.
        if isinstance(exc, OSError) and is_outage(exc) and "thrift" not in str(exc):
            raise
        cause = "damaged, incomplete, or in another format"
        remedy = "Replace it with a complete copy, or remove it from the folder."
        if file_format == "parquet":
            cause += ", or its values don't fit the schema"
            remedy = "Replace it with a complete copy, remove it from the folder, or correct the schema."
        raise BadConfigError(
            f"{path} could not be read to its end as {file_format} ({exc}). The file is {cause}. {remedy}"
        ) from exc


def _other_columns(path: str, missing: list[str], names: list[str]) -> str:
    return f"{path} lacks the columns {missing}; it has {names}. Use only columns that all files have."


def _open(system: pa.fs.FileSystem, path: str) -> io.BufferedReader:
    """Open a file, and decompress it according to its name. pyarrow's own stream can't split a compressed file into lines."""
    compression = next((kind for end, kind in _COMPRESSIONS.items() if path.lower().endswith(end)), None)
    return io.BufferedReader(system.open_input_stream(path, compression=compression), _BLOCK_BYTES)


def _blocks(stream: io.BufferedReader) -> Iterator[list[bytes]]:
    """Read lines in blocks."""
    first = True
    while lines := stream.readlines(_BLOCK_BYTES):
        if first:
            lines[0] = lines[0].removeprefix(_BOM)
        yield lines
        first = False


def _texts(lines: Sequence[bytes]) -> tuple[pa.StringArray, pa.BooleanArray]:
    """Return lines without line ends, and whether each is UTF-8. Invalid bytes are replaced."""
    binary = pa.array(lines, pa.binary())
    try:
        texts, is_text = binary.cast(pa.string()), pa.repeat(True, len(lines))
    except pa.ArrowInvalid:
        decoded = [line.decode(errors="replace") for line in lines]
        texts = pa.array(decoded, pa.string())
        is_text = pc.equal(texts.cast(pa.binary()), binary)
    return pc.ascii_rtrim(texts, characters=_ENDS), is_text


def _records(texts: pa.StringArray, is_wrong: pa.BooleanArray, schema: pa.Schema = RECORDS) -> Iterator[pa.RecordBatch]:
    nothing = pa.scalar(None, pa.string())
    columns = [pc.if_else(is_wrong, nothing, texts), pc.if_else(is_wrong, texts, nothing)]
    yield from _sliced(pa.RecordBatch.from_arrays(columns, schema=schema))


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(batch), _ROWS_PER_BATCH):
        yield batch.slice(begin, _ROWS_PER_BATCH)


def _text(system: pa.fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    with _open(system, path) as stream:
        while lines := stream.readlines(_BLOCK_BYTES):
            texts, is_text = _texts(lines)
            yield from _records(texts, pc.invert(is_text), LINES)


def _parquet(system: pa.fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, filesystem=system) as file:
        yield from file.iter_batches(_ROWS_PER_BATCH)


def _plain_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to integers, because Python's form of a zone depends on the version of pyarrow."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _some_lines(stream: io.BufferedReader) -> Iterator[bytes]:
    size = 0
    for lines in _blocks(stream):
        for line in lines:
            yield line
            size += len(line)
            if size > _SEEN_BYTES:
                return


def _plain(kind: pa.DataType) -> pa.DataType:
    """Convert inferred times, and types of columns with nulls only, to strings."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


def _header(blocks: Iterator[list[bytes]]) -> tuple[list[str] | None, list[bytes]]:
    """Find the header, and the lines after it in its block."""
    for lines in blocks:
        for number, line in enumerate(lines):
            if line.strip(b"\r\n"):
                return next(csv.reader([line.decode(errors="replace")])), lines[number + 1 :]
    return None, []


def _check_header(path: str, header: list[str], wanted: Sequence[str]) -> None:
    repeated = sorted({name for name in wanted if header.count(name) > 1})
    if repeated:
        raise BadConfigError(f"{path} has the columns {repeated} more than once. Rename them in the file.")
    missing = [name for name in wanted if name not in header]
    if missing:
        raise BadConfigError(_other_columns(path, missing, header))


def _csv_records(
    lines: list[bytes], blocks: Iterator[list[bytes]], width: int
) -> tuple[list[tuple[bytes, bool]], list[bytes]]:
    """Split a block into records, each with whether its quotes are sound. Also return the lines read beyond them."""
    csv.field_size_limit(_LONGEST_VALUE)
    records: list[tuple[bytes, bool]] = []
    number, in_block = 0, len(lines)
    while number < in_block:
        line = lines[number]
        number += 1
        if not line.strip(b"\r\n"):
            continue
        is_sound = _is_plain(line) or _is_record(line)
        quoted, size, end = 0, 0, number
        while not is_sound and b'"' in line and quoted < _QUOTED_LINES and size < _QUOTED_BYTES:
            if end == len(lines):
                lines = lines + next(blocks, [])
                if end == len(lines):
                    break
            size += len(lines[end])
            end += 1
            if b'"' in lines[end - 1]:
                quoted += 1
                is_sound = _is_record(b"".join(lines[number - 1 : end]), width)
        if is_sound and end > number:
            line = b"".join(lines[number - 1 : end])
            number = end
        records.append((line, is_sound))
    return records, lines[number:]


def _is_plain(line: bytes) -> bool:
    return b'"' not in line and b"\r" not in line.rstrip(b"\r\n")


def _is_record(text: bytes, width: int | None = None) -> bool:
    """Return True if all quotes are closed, with nothing after them. The bytes may be other than UTF-8."""
    try:
        rows = list(csv.reader([text.decode("latin-1")], strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and width in (None, len(rows[0]))


def _places(header: list[str], order: Sequence[str]) -> list[int | None]:
    """Find the positions of the columns of `order`. Columns that are not wanted may be missing."""
    return [header.index(name) if name in header else None for name in order]


def _in_order(batch: pa.RecordBatch, width: int, places: list[int | None]) -> pa.RecordBatch:
    """Reorder the values of records. The original texts stay in CORRUPT."""
    texts = pc.coalesce(batch.column(0), batch.column(1))
    records = [None if text is None else _moved(text, width, places) for text in batch.column(0).to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array(records, pa.string()), texts], schema=RECORDS)


def _moved(record: str, width: int, places: list[int | None]) -> str | None:
    values = next(csv.reader([record], strict=True))
    if len(values) != width:
        return None
    out = io.StringIO()
    row = ["" if place is None else values[place] for place in places]
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="").writerow(row)
    return out.getvalue()
