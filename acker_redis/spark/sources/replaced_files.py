"""Recognition of files that were replaced under their name since a run noted its progress in an `OffsetFile`.

The offset file holds hashes of records as they are stored, so another schema or other columns of the frame don't matter. A
file that was replaced has fewer records than are done, or other ones at the same places.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark import sql
from acker_redis.spark.runtime.file_systems import file_system
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.sources import file_formats
from acker_redis.spark.sources.file_formats import Format
from acker_redis.spark.sources.files import FILE, READ_AS, ROW, ROW_OF
from acker_redis.spout.offset_file import OffsetFile

log = logging.getLogger("acker_redis.spark")

_INPUT = pa.schema([("file", pa.string()), ("rows", pa.list_(pa.int64())), ("begin", pa.int64())])
_OUTPUT = pa.schema([("file", pa.string()), ("kind", pa.string()), ("row", pa.int64()), ("hashes", pa.binary())])
_SINGLE, _TAIL, _END = "single", "tail", "end"
_NONE = np.array([], np.int64)

_UNFINISHED = ", or was an unfinished line when it was read"
"""What else may have happened to the last record of a file that is still written."""

_MOST_NAMED = 5
"""Most files that an error lists."""


def refuse_replaced(frame: DataFrame, partition: str, offset: str, offsets: OffsetFile) -> None:
    """Compare the files of `read_files` with the hashes of the offset file, in one job that reads up to the last record done.

    Files without hashes get theirs. Files that can't be read are left to the job that reads their rows.

    Raises:
        BadConfigError: rows of a replaced file would be skipped, unless the offset file says `read_again`.
    """
    source, done = _source_of(frame, offset), offsets.known()
    if source is None:
        if done and (partition, offset) == (FILE, ROW):
            _warn_unknown(offsets, f"column {ROW!r} isn't that of read_files")
        return
    outside = [name for name in done if not source.has(name)]
    if done and len(outside) == len(done):
        _warn_unknown(offsets, f"column {partition!r} has other names than the files that are done")
    elif outside:  # as in a union, which has the mark of its first frame alone
        _warn_unknown(offsets, f"{len(outside)} files aren't from {source.path}, such as {min(outside)}")
    marks = {name: rows for name, rows in offsets.marks().items() if source.has(name)}
    if not marks:
        return
    replaced: dict[str, str] = {}
    for name, records in _read(
        frame, source, {name: _Wanted(list(rows), None) for name, rows in marks.items()}
    ).items():
        last = max(marks[name])
        changed = [row for row, value in records.hashes.items() if marks[name][row] not in (None, value)]
        if last not in records.hashes:
            replaced[name] = f"{last + 1} records are done, and it has {records.length} now"
        elif changed:
            replaced[name] = f"its record {changed[0]} is another one now{_UNFINISHED if changed == [last] else ''}"
        else:
            offsets.add_marks(name, records.hashes)
    if not replaced:
        return
    file = F.col(sql.quoted(partition))
    rows = frame.where(file.isin(list(replaced))).select(file).distinct().toArrow().column(0).to_pylist()
    is_read = sorted(set(rows))
    if is_read and offsets.on_replaced == "raise":
        more = "" if len(is_read) == 1 else f" Replaced files: {len(is_read)}, such as {is_read[:_MOST_NAMED]}."
        raise BadConfigError(
            f"The file {is_read[0]} was replaced since a run read it: {replaced[is_read[0]]}.{more} Its first records "
            f"would be skipped, because they are done according to {offsets.path}. Write new data under new names, or pass "
            'OffsetFile(..., on_replaced="read_again") to read such files from their first record.'
        )
    for name in is_read:
        log.warning("file was replaced, will read it again file=%s reason=%s", name, replaced[name])
    offsets.forget(is_read)


def _warn_unknown(offsets: OffsetFile, why: str) -> None:
    log.warning("replaced files would go unnoticed offset_file=%s reason=%s", offsets.path, why)


def note_hashes(frame: DataFrame, offset: str, offsets: OffsetFile) -> None:
    """Read the hashes of the records that are to be done, in a job of its own, so that later runs can compare them."""
    source = _source_of(frame, offset)
    known = offsets.known()
    begins = {name: known.get(name, 0) for name in offsets.open_partitions() if source is not None and source.has(name)}
    if source is not None and begins:
        read = _read(frame, source, {name: _Wanted([], begin) for name, begin in begins.items()})
        offsets.add_hashes({name: (begins[name], records.tail) for name, records in read.items()})


class _Source(NamedTuple):
    path: str
    file_format: Format
    place: str

    def has(self, name: str) -> bool:
        return name == self.place or name.startswith(f"{self.place.rstrip('/')}/")


def _source_of(frame: DataFrame, offset: str) -> _Source | None:
    """Find what `read_files` read, if the column of offsets is its own."""
    metadata = frame.schema[offset].metadata if offset in frame.columns else {}
    if ROW_OF not in metadata:
        return None
    return _Source(metadata[ROW_OF], metadata[READ_AS], file_system(metadata[ROW_OF])[1])


class _Wanted(NamedTuple):
    """Records of a file whose hashes are wanted: single ones, and all from a row on."""

    rows: list[int]
    begin: int | None


class _Records(NamedTuple):
    """Hashes of single records by row, hashes of all from a row on, and the number of records read."""

    hashes: dict[int, int]
    tail: Int64Array
    length: int


def _read(frame: DataFrame, source: _Source, wanted: Mapping[str, _Wanted]) -> dict[str, _Records]:
    """Read hashes of records. Files that can't be read are left out, if only single records are wanted."""
    columns = [list(wanted), [one.rows for one in wanted.values()], [one.begin for one in wanted.values()]]
    given = pa.table(
        [pa.array(values, kind) for values, kind in zip(columns, _INPUT.types, strict=True)], schema=_INPUT
    )
    names = frame.sparkSession.createDataFrame(given)
    with described(frame.sparkSession, f"hashes of records in {source.path}"):
        rows = (
            names.mapInArrow(_Hashing(source.path, source.file_format), from_arrow_schema(_OUTPUT))
            .toArrow()
            .to_pylist()
        )
    read = {row["file"]: _Records({}, _NONE, row["row"]) for row in rows if row["kind"] == _END}
    tails: dict[str, list[bytes]] = {name: [] for name in read}
    for row in rows:
        if row["file"] in read and row["kind"] == _SINGLE:
            read[row["file"]].hashes[row["row"]] = int.from_bytes(row["hashes"], "little", signed=True)
        elif row["file"] in read and row["kind"] == _TAIL:
            tails[row["file"]].append(row["hashes"])
    return {name: one._replace(tail=np.frombuffer(b"".join(tails[name]), "<i8")) for name, one in read.items()}


@dataclass(frozen=True)
class _Hashing:
    base: str
    file_format: Format

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, _ = file_system(self.base)
        for batch in batches:
            for path, rows, begin in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    yield from self._hashes(system, path, set(rows), begin)
                except BadConfigError:
                    if begin is not None:
                        raise

    def _hashes(
        self, system: pa.fs.FileSystem, path: str, rows: set[int], begin: int | None
    ) -> Iterator[pa.RecordBatch]:
        count = 0
        for records in file_formats.record_bytes(system, path, self.file_format):
            until = count + len(records)
            for row in sorted(row for row in rows if count <= row < until):
                yield _output(path, _SINGLE, row, _hash(records[row - count]))
            if begin is not None and begin < until:
                tail = records[max(0, begin - count) :]
                yield _output(path, _TAIL, max(begin, count), b"".join(map(_hash, tail)))
            count = until
            if begin is None and count > max(rows):
                break
        yield _output(path, _END, count, b"")


def _output(path: str, kind: str, row: int, hashes: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"file": path, "kind": kind, "row": row, "hashes": hashes}], schema=_OUTPUT)


def _hash(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=8).digest()
