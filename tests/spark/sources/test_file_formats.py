"""Files as they come: damaged ones are errors that name them, and a bad record is that record's matter."""

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from acker_redis import BadConfigError
from acker_redis.spark.sources import file_formats
from acker_redis.spark.sources.ambiguous_json import ambiguity_check
from acker_redis.spark.sources.file_formats import Format

SYSTEM = pa.fs.LocalFileSystem()
N_T = pa.schema([("n", pa.int64()), ("t", pa.string())])


def records(path: Path, kind: Format, names: Sequence[str] = ("n", "t")) -> list[tuple[str | None, str | None]]:
    """Texts of records that are to be parsed, and of bad ones."""
    if kind == "json":
        batches = file_formats.read_json(
            SYSTEM, str(path), ambiguity_check(StructType().add("n", LongType()).add("t", StringType()))
        )
    else:
        batches = file_formats.read_csv(SYSTEM, str(path), names, names)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def rows(path: Path, kind: Format, schema: pa.Schema = N_T) -> list[Any]:
    """Tuples of values, or of the texts of records."""
    if file_formats.is_parsed(kind):
        return records(path, kind)
    return [
        tuple(row.values()) for batch in file_formats.read(SYSTEM, str(path), kind, schema) for row in batch.to_pylist()
    ]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


RECORDS = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8")))


@given(
    values=st.lists(RECORDS, max_size=20),
    bad=st.sets(st.integers(0, 20)),
    block=st.sampled_from([1, 50, 1 << 20]),
)  # fmt: skip
@settings(max_examples=200, deadline=None, derandomize=True)
def test_good_and_bad_records_of_a_file_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], bad: set[int], block: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    as_json, as_csv = [], ["n,t"]
    for number, (n, t) in enumerate(values):
        text = json.dumps({"n": n, "t": t}, ensure_ascii=number % 2 == 0)
        as_json.append(text.replace(f'"n": {n}', '"t": 5, "n": 1') if number in bad else text)
        as_csv.append(f'{"" if n is None else n},"{t.replace(chr(34), chr(34) * 2)}"' + (" x" if number in bad else ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_formats, "_BLOCK_BYTES", block)
        patch.setattr(file_formats, "_ROWS_PER_BATCH", 3)
        found = records(written(folder / "json", "\n".join(as_json).encode()), "json")
        assert [record or corrupt for record, corrupt in found] == as_json
        if not any("\n" in t or "\r" in t for _, t in values):
            found_csv = records(written(folder / "csv", "\n".join(as_csv).encode()), "csv")
            assert found_csv == [(None, one) if number in bad else (one, None) for number, one in enumerate(as_csv[1:])]
        elif not bad:
            whole = records(written(folder / "csv", "\n".join(as_csv).encode()), "csv")
            assert [tuple(next(csv.reader([str(record)]))) for record, _ in whole] == [
                ("" if n is None else str(n), t) for n, t in values
            ]


def test_file_schema_keeps_ambiguous_values_as_strings(tmp_path: Path) -> None:
    """A code that looks like a number, or a text like a time, would not come out as it went in."""
    path = written(tmp_path / "a.csv", b'zip,"a, b"\n007,1\n')
    assert file_formats.schema_of(SYSTEM, str(path), "csv") == pa.schema([("zip", pa.string()), ("a, b", pa.string())])
    assert records(path, "csv", ["zip"]) == [('"007"', "007,1")]
    lines = b'not json\n{"at": "2026-01-02", "n": 1, "e": [], "m": {"x": null}}\n{"n": 1.5}\n'
    found = file_formats.schema_of(SYSTEM, str(written(tmp_path / "a.json", lines)), "json")
    assert found == pa.schema([
        ("at", pa.string()), ("n", pa.float64()), ("e", pa.list_(pa.string())), ("m", pa.struct([("x", pa.string())])),
    ])  # fmt: skip
    for content in (b"", b"\n \n"):
        assert file_formats.schema_of(SYSTEM, str(written(tmp_path / "none.json", content)), "json") is None
    for content in (b"[1]", b"{}"):
        with pytest.raises(BadConfigError, match="no line with a JSON object"):
            file_formats.schema_of(SYSTEM, str(written(tmp_path / "odd.json", content)), "json")
    with pytest.raises(BadConfigError, match="values of different types"):
        file_formats.schema_of(SYSTEM, str(written(tmp_path / "two.json", b'{"n": 1}\n{"n": "x"}')), "json")


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("a.gz", gzip.compress), ("b.GZ", gzip.compress), ("c.Bz2", bz2.compress),
]  # fmt: skip


def test_compressed_files_are_read_for_any_case_of_suffix(tmp_path: Path) -> None:
    for name, pack in PACKED:
        content = pack(b"n,t\n1,x\n") + pack(b"2,y\n")
        assert rows(written(tmp_path / name, content), "csv") == [("1,x", None), ("2,y", None)]
        assert rows(tmp_path / name, "text", file_formats.LINES) == [("n,t", None), ("1,x", None), ("2,y", None)]


@pytest.mark.parametrize("kind", ["text", "json", "csv", "parquet"])
def test_damaged_file_is_named_in_the_error(tmp_path: Path, kind: Format) -> None:
    whole = gzip.compress(b'n,t\n{"n": 1}\n' * 10_000)
    for name, content in [
        ("cut.gz", whole[: len(whole) // 2]),
        ("wrong.gz", whole[:-8] + b"12345678"),
        ("not.gz", b"n,t\n"),
    ]:
        path = written(tmp_path / name, content)
        with pytest.raises(
            BadConfigError, match=f"{path} could not be read to its end as {kind} .*Replace it with a complete copy"
        ):
            rows(path, kind)
    with pytest.raises(BadConfigError, match="could not be read"):
        rows(tmp_path / "gone", kind)
    if kind in ("json", "parquet"):  # of CSV only the header is looked at
        with pytest.raises(BadConfigError, match=r"cut\.gz could not be read"):
            file_formats.schema_of(SYSTEM, str(tmp_path / "cut.gz"), kind)


def test_files_with_other_columns_are_named_in_the_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"1,x\n2,y\n")  # no header
    with pytest.raises(BadConfigError, match=r"a\.csv lacks the columns \['n', 't'\]; it has \['1', 'x'\]"):
        rows(path, "csv")
    with pytest.raises(BadConfigError, match=r"\['n'\] more than once"):
        rows(written(tmp_path / "b.csv", b"n,t,n\n1,2,3\n"), "csv")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(BadConfigError, match=r"a\.parquet lacks the columns \['t'\]"):
        rows(tmp_path / "a.parquet", "parquet")
    pq.write_table(pa.table({"n": [1.5], "t": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(
        BadConfigError, match=r"b\.parquet could not be read.*values don't fit the schema.*correct the schema"
    ):
        rows(tmp_path / "b.parquet", "parquet")


class _Breaks(io.RawIOBase):
    """Bytes of a file, and then an error."""

    def __init__(self, data: bytes, error: Exception) -> None:
        self._data, self._error = data, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._data:
            raise self._error
        data, self._data = self._data[: len(buffer)], self._data[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Store:
    """A file system with one file, whose end can't be had."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def open_input_stream(self, path: str, compression: str | None = None) -> io.RawIOBase:
        return _Breaks(b'n,t\n{"n": 1}\n', self._error)


@pytest.mark.parametrize(
    ("error", "is_passed"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (TimeoutError("too slow"), True),
        (OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached"), True),
        (OSError("Truncated compressed stream"), False),
        (OSError("Couldn't deserialize thrift: TTransportException: No more data to read."), False),
        (EOFError("timed out"), False),
    ],
)
def test_unreachable_store_is_not_reported_as_damaged_file(error: Exception, is_passed: bool) -> None:
    store: Any = _Store(error)
    check = ambiguity_check(StructType().add("n", LongType()))
    reads: list[Callable[[], object]] = [
        lambda: list(file_formats.read_json(store, "a", check)),
        lambda: list(file_formats.read_csv(store, "a", ["n", "t"], ["n", "t"])),
        lambda: list(file_formats.read(store, "a", "text", file_formats.LINES)),
        lambda: file_formats.schema_of(store, "a", "json"),
    ]
    for read in reads:
        with pytest.raises((BadConfigError, OSError, EOFError)) as raised:
            read()
        assert (raised.value is error) is is_passed
        assert is_passed or "a could not be read to its end" in str(raised.value)
