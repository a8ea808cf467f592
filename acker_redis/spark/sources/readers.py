"""What is in a file, as record batches. One record that can't be read is that record's matter; a damaged file is an error.

JSON and CSV are cut into records here and parsed by pyarrow, many at a time. Where a block of them can't be parsed it is
halved until the bad records stand alone. They come as rows of nulls with their text in `CORRUPT`, so that every record keeps
its number.
"""

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Literal, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq

from acker_redis.errors import BadConfigError

Format: TypeAlias = Literal["text", "json", "csv", "parquet"]

CORRUPT = "_corrupt_record"
"""Column of JSON and CSV, last: the text of a record that can't be read; null for all others. The name is Spark's."""

TEXT = pa.schema([("value", pa.string())])

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_ROWS_PER_BATCH = 10_000
_BLOCK_BYTES = 1 << 20
_SEEN_BYTES = 16 << 20
"""So much of a JSON file is looked at for its columns."""

_LONGEST_VALUE = 1 << 30
_QUOTED_LINES, _QUOTED_BYTES = 100, 1 << 20
"""A quote that is not closed within so many lines with quotes, or bytes, is taken for a mistake of its line."""

_NULLS = ["", "null", "NULL", "NA", "N/A"]
_BOM = b"\xef\xbb\xbf"

_Parse: TypeAlias = Callable[[Sequence[bytes]], pa.RecordBatch]
_Records: TypeAlias = Iterator[tuple[bytes, bool]]
"""Records, and whether they are sound, so that a parser can take many of them as one text."""


def has_corrupt(file_format: Format) -> bool:
    """Whether rows of a format have the column CORRUPT."""
    return file_format in ("json", "csv")


def read(system: pa.fs.FileSystem, path: str, file_format: Format, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a file with the columns of `schema`, and CORRUPT where the format has it.

    Raises:
        BadConfigError: the file is damaged, or has other columns.
    """
    readers = {"text": _text, "json": _json, "csv": _csv, "parquet": _parquet}
    try:
        for batch in readers[file_format](system, path, schema):
            missing = [name for name in schema.names if name not in batch.schema.names]
            if missing:
                raise BadConfigError(
                    f"{path} has no columns {missing}, only {batch.schema.names}: name columns that all the files have"
                )
            wanted = _with_corrupt(schema) if has_corrupt(file_format) else schema
            yield batch.select(wanted.names).cast(wanted)
    except (OSError, EOFError, pa.ArrowException) as exc:
        raise _damaged(path, file_format, exc) from exc


def schema_of(system: pa.fs.FileSystem, path: str, file_format: Format) -> pa.Schema | None:
    """The columns of a file; None if it is empty. Texts are texts: CSV has nothing else, JSON no times.

    Raises:
        BadConfigError: the file is damaged, or its records have columns of different types.
    """
    try:
        if file_format == "text":
            return TEXT
        if file_format == "parquet":
            with pq.ParquetFile(path, filesystem=system) as file:
                return file.schema_arrow
        with _open(system, path) as stream:
            if file_format == "csv":
                header = _header(_lines(stream))
                return None if header is None else pa.schema([(name, pa.string()) for name in header])
            lines = [line for line in _some_lines(stream) if line.strip()]
    except (OSError, EOFError, pa.ArrowException) as exc:
        raise _damaged(path, file_format, exc) from exc
    if not lines:
        return None
    records = [line for line in lines if _is_object(line)]
    try:
        found = _parse_json(records, None).schema if records else pa.schema([])
    except pa.ArrowInvalid as exc:
        raise BadConfigError(
            f"{path}: its records differ in the types of their values: give the schema ({exc})"
        ) from exc
    if not len(found):
        raise BadConfigError(
            f"{path} has no line with an object of JSON to see columns in: give the schema, or such lines"
        )
    return pa.schema([field.with_type(_plain(field.type)) for field in found])


def check(file_format: Format, schema: pa.Schema) -> None:
    """Refuse types that a format has no values of.

    Raises:
        BadConfigError: there is one.
    """
    for field in schema if has_corrupt(file_format) else ():
        try:
            if file_format == "json":
                _parse_json([b"{}"], pa.schema([field]))
            else:
                _parse_csv([b"x,\n"], ["x", field.name], pa.schema([field]))
        except pa.ArrowNotImplementedError as exc:
            raise BadConfigError(
                f"column {field.name!r}: {file_format} files are not read as {field.type}: take string, and parse it"
            ) from exc


def _damaged(path: str, file_format: Format, exc: Exception) -> BadConfigError:
    return BadConfigError(
        f"{path} can't be read to its end as {file_format}: {exc}. It is damaged, of another format, has values of other "
        "types, or was not complete: put a whole copy in its place, or take it out of the folder"
    )


def _open(system: pa.fs.FileSystem, path: str) -> io.BufferedReader:
    """Decompressed by the end of the file's name. pyarrow's own stream can't give lines of a compressed file."""
    compression = next((kind for end, kind in _COMPRESSIONS.items() if path.lower().endswith(end)), None)
    return io.BufferedReader(system.open_input_stream(path, compression=compression))


def _text(system: pa.fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _open(system, path) as stream:
        while lines := stream.readlines(_BLOCK_BYTES):
            values = [line.rstrip(b"\r\n").decode(errors="replace") for line in lines]
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=TEXT)


def _parquet(system: pa.fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, filesystem=system) as file:
        yield from file.iter_batches(_ROWS_PER_BATCH)


def _json(system: pa.fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """An object per line; lines of white space are none."""
    with _open(system, path) as stream:
        records = ((line, _is_object(line)) for line in _lines(stream) if line.strip())
        yield from _parsed(records, lambda some: _parse_json(some, schema), schema)


def _csv(system: pa.fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A header, then a record per line, or over several lines where quotes are open; empty lines are none."""
    with _open(system, path) as stream:
        lines = _lines(stream)
        header = _header(lines)
        if header is None:
            return
        repeated = sorted({name for name in schema.names if header.count(name) > 1})
        if repeated:
            raise BadConfigError(f"{path} has columns {repeated} more than once: rename them there")
        missing = [name for name in schema.names if name not in header]
        if missing:
            raise BadConfigError(
                f"{path} has no columns {missing}, only {header}: name columns that all the files have"
            )
        yield from _parsed(_csv_records(lines, len(header)), lambda some: _parse_csv(some, header, schema), schema)


def _lines(stream: io.BufferedReader) -> Iterator[bytes]:
    first = next(stream, b"")
    yield from chain([first.removeprefix(_BOM)] if first else [], stream)


def _some_lines(stream: io.BufferedReader) -> Iterator[bytes]:
    size = 0
    for line in _lines(stream):
        yield line
        size += len(line)
        if size > _SEEN_BYTES:
            return


def _parsed(records: _Records, parse: _Parse, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    block: list[tuple[bytes, bool]] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record[0])
        if size >= _BLOCK_BYTES:
            yield from _block(block, parse, schema)
            block, size = [], 0
    yield from _block(block, parse, schema)


def _block(records: list[tuple[bytes, bool]], parse: _Parse, schema: pa.Schema) -> list[pa.RecordBatch]:
    parts: list[pa.RecordBatch] = []
    for sound, run in groupby(records, itemgetter(1)):
        texts = [text for text, _ in run]
        parts += _halved(texts, parse, schema) if sound else [_corrupt(texts, schema)]
    whole: list[pa.RecordBatch] = pa.Table.from_batches(parts, _with_corrupt(schema)).combine_chunks().to_batches()
    return whole


def _halved(texts: list[bytes], parse: _Parse, schema: pa.Schema) -> list[pa.RecordBatch]:
    try:
        rows = parse(texts)
    except pa.ArrowInvalid:
        rows = None
    if rows is not None and rows.num_rows == len(texts):
        nothing = pa.nulls(len(texts), pa.string())
        return [pa.RecordBatch.from_arrays([*rows.columns, nothing], schema=_with_corrupt(schema))]
    if len(texts) == 1:
        return [_corrupt(texts, schema)]
    half = len(texts) // 2
    return _halved(texts[:half], parse, schema) + _halved(texts[half:], parse, schema)


def _corrupt(texts: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    shown = pa.array([text.rstrip(b"\r\n").decode(errors="replace") for text in texts], pa.string())
    nothing = [pa.nulls(len(texts), field.type) for field in schema]
    return pa.RecordBatch.from_arrays([*nothing, shown], schema=_with_corrupt(schema))


def _with_corrupt(schema: pa.Schema) -> pa.Schema:
    """Every column may be null: the rows of bad records are."""
    return pa.schema([*(field.with_nullable(True) for field in schema), (CORRUPT, pa.string())])


def _is_object(line: bytes) -> bool:
    """Pyarrow takes two objects in a line for two records, does not look at UTF-8, and crashes on a bare `null`."""
    try:
        return isinstance(_DECODER.decode(line.decode()), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _parse_json(texts: Sequence[bytes], schema: pa.Schema | None) -> pa.RecordBatch:
    asked = schema
    if schema is not None:  # pyarrow takes dates and times as numbers only
        by_cast = [
            f.with_type(pa.string()) if pa.types.is_date(f.type) or pa.types.is_time(f.type) else f for f in schema
        ]
        asked = pa.schema([field.with_nullable(True) for field in by_cast])
    data = b"\n".join(texts)
    read = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    unexpected = "infer" if schema is None else "ignore"
    rows = pa.json.read_json(pa.BufferReader(data), read, pa.json.ParseOptions(asked, False, unexpected))
    if schema is not None:
        rows = rows.select(schema.names).cast(pa.schema([field.with_nullable(True) for field in schema]))
    return rows.combine_chunks().to_batches()[0]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Text where pyarrow saw a time in a text, or nothing yet."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


def _header(lines: Iterator[bytes]) -> list[str] | None:
    for line in lines:
        if line.strip(b"\r\n"):
            return next(csv.reader([line.decode(errors="replace")]))
    return None


def _csv_records(lines: Iterator[bytes], width: int) -> _Records:
    csv.field_size_limit(_LONGEST_VALUE)
    back: deque[bytes] = deque()  # lines that were looked at, and don't belong to the one before
    while (line := back.popleft() if back else next(lines, None)) is not None:
        if not line.strip(b"\r\n"):
            continue
        if b'"' not in line or _is_record(line):
            yield line, True
            continue
        more: list[bytes] = []
        quoted, size, found = 0, 0, False
        while not found and quoted < _QUOTED_LINES and size < _QUOTED_BYTES:
            added = back.popleft() if back else next(lines, None)
            if added is None:
                break
            more.append(added)
            size += len(added)
            if b'"' in added:
                quoted += 1
                found = _is_record(line + b"".join(more), width)
        if not found:
            back.extendleft(reversed(more))
        yield (line + b"".join(more), True) if found else (line, False)


def _is_record(text: bytes, width: int | None = None) -> bool:
    """Whether all quotes are closed, and nothing stands behind them; the bytes need not be UTF-8 for that."""
    try:
        rows = list(csv.reader([text.decode("latin-1")], strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and width in (None, len(rows[0]))


def _parse_csv(texts: Sequence[bytes], header: list[str], schema: pa.Schema) -> pa.RecordBatch:
    """Times without a zone are UTC, as in JSON."""
    data = b"".join(text if text.endswith((b"\n", b"\r")) else text + b"\n" for text in texts)
    read = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=header)
    quotes = pa.csv.ParseOptions(newlines_in_values=True)

    def parse(types: pa.Schema) -> pa.Table:
        convert = pa.csv.ConvertOptions(column_types=types, include_columns=schema.names, null_values=_NULLS)
        return pa.csv.read_csv(pa.BufferReader(data), read, quotes, convert)

    try:
        rows = parse(schema)
    except pa.ArrowInvalid:
        local = [f.with_type(pa.timestamp(f.type.unit)) if pa.types.is_timestamp(f.type) else f for f in schema]
        if local == list(schema):
            raise
        rows = parse(pa.schema(local))
    return rows.cast(pa.schema([field.with_nullable(True) for field in schema])).combine_chunks().to_batches()[0]
