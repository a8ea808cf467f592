"""Files as they come: damaged ones are errors that name them, and a bad record is that record's matter."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_redis import BadConfigError
from acker_redis.spark.sources import readers
from acker_redis.spark.sources.readers import CORRUPT, Format

SYSTEM = pa.fs.LocalFileSystem()
N_T = pa.schema([("n", pa.int64()), ("t", pa.string())])


def rows(path: Path, kind: Format, schema: pa.Schema = N_T) -> list[Any]:
    """Tuples of the values of good records; texts of bad ones."""
    found = [row for batch in readers.read(SYSTEM, str(path), kind, schema) for row in batch.to_pylist()]
    bad = [row for row in found if row.get(CORRUPT) is not None]
    assert all(row[name] is None for row in bad for name in schema.names)
    return [tuple(row[n] for n in schema.names) if row.get(CORRUPT) is None else row[CORRUPT] for row in found]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BAD_JSON = [
    b"", b"{", b"null", b"7", b'"x"', b'[{"n": 1}]', b'{"n": 1}{"n": 2}', b'{"n": 1} null', b'{"n": "1"}', b'{"n": 1.5}',
    b'{"t": 1}', b'{"t": "\xff"}', b'{"n": NaN}', b'{"n": 1, "n": 2}', b'{"t": "\\ud800"}', b'{"n": 123456789012345678901}',
    b"[" * 100_000, b'{"n": 1',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_JSON[1:])
def test_a_bad_line_of_json_is_one_row(tmp_path: Path, bad: bytes) -> None:
    good = b'{"n": 1, "t": "x", "other": [1]}\n\n  \r\n{"t": "y", "other": "2"}\r\n'
    path = written(tmp_path / "a.json", b"\xef\xbb\xbf" + good + bad + b"\n{}\n" + bad)
    text = bad.decode(errors="replace")
    assert rows(path, "json") == [(1, "x"), (None, "y"), text, (None, None), text]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b"x,y", "x,y"),
        (b"1", "1"),
        (b"1,2,3", "1,2,3"),
        (b"9223372036854775808,x", "9223372036854775808,x"),
        (b"1,\xff", "1,\ufffd"),
        (b'1,"never closed', '1,"never closed'),
        (b'1,"x"y', '1,"x"y'),
        (b'x"y,"z', 'x"y,"z'),
        (b"1,a\rb", "1,a\rb"),
    ],
)
def test_a_bad_line_of_csv_is_one_row(tmp_path: Path, bad: bytes, text: str) -> None:
    good = b'n,t\n007,007\r\n\n,"a ""b"", c"\n3,5" pipe\n'
    path = written(tmp_path / "a.csv", b"\xef\xbb\xbf" + good + bad + b"\nNULL,NULL\n" + bad)
    assert rows(path, "csv") == [(7, "007"), (None, 'a "b", c'), (3, '5" pipe'), text, (None, "NULL"), text]


def test_values_with_lines_in_them_and_quotes_that_are_not_closed(tmp_path: Path) -> None:
    lines = [f"{n},x\n" for n in range(200_000)]
    content = 'n,t\n1,"two\n""lines"""\n2,"open\n3,"x"\n4,"\n\nx"\n5,"open\n' + "".join(lines)
    found = rows(written(tmp_path / "a.csv", content.encode()), "csv")
    assert found[:6] == [(1, 'two\n"lines"'), '2,"open', (3, "x"), (4, "\n\nx"), '5,"open', (0, "x")]
    assert len(found) == 200_005


RECORDS = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8")))


@given(
    records=st.lists(RECORDS, max_size=20),
    bad=st.sets(st.integers(0, 20)),
    block=st.sampled_from([1, 50, 1 << 20]),
)  # fmt: skip
@settings(max_examples=200, deadline=None, derandomize=True)
def test_good_and_bad_records_keep_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], bad: set[int], block: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    as_json, as_csv, expected = [], ["n,t"], []
    for number, (n, t) in enumerate(records):
        if number in bad:
            as_json.append('{"n": ')
            as_csv.append("no number,")
        else:
            as_json.append(json.dumps({"n": n, "t": t}))
            as_csv.append(f'{"" if n is None else n},"{t.replace(chr(34), chr(34) * 2)}"')
        expected.append(None if number in bad else (n, t))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_BLOCK_BYTES", block)
        for kind, lines in (("json", as_json), ("csv", as_csv)):
            path = written(folder / kind, "\n".join(lines).encode())
            found = rows(path, kind)  # type: ignore[arg-type]
            assert [row if isinstance(row, tuple) else None for row in found] == expected


def test_types(tmp_path: Path) -> None:
    schema = pa.schema([
        ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("price", pa.decimal128(5, 2)), ("f", pa.float64()),
        pa.field("b", pa.bool_(), nullable=False),
    ])  # fmt: skip
    content = (
        "f,b,price,day,at\n0.5,true,1.50,2026-01-02,2026-01-02 03:04:05\n"
        "nan,false,,,2026-01-02T03:04:05Z\n1,true,1,2026-02-30,\n,,,NA,\n"
    )
    in_csv = rows(written(tmp_path / "a.csv", content.encode()), "csv", schema)
    objects = [
        {"f": 0.5, "b": True, "price": 1.5, "day": "2026-01-02", "at": "2026-01-02 03:04:05"},
        {"f": None, "b": False, "at": "2026-01-02T03:04:05Z"},
        {"day": "2026-02-30"},
        {"b": None},
    ]
    in_json = rows(written(tmp_path / "a.json", "\n".join(map(json.dumps, objects)).encode()), "json", schema)
    for found in (in_csv, in_json):
        assert repr(found[0]).count("2026, 1, 2") == 2
        assert (found[0][0], found[0][2:]) == (found[1][0], (found[0][2], 0.5, True))
        assert isinstance(found[2], str)
        assert found[3] == (None,) * 5
    assert str(in_csv[1][3]) == "nan"
    for kind in ("csv", "json"):
        with pytest.raises(BadConfigError, match=r"column 'm'.*take string, and parse it"):
            readers.check(kind, pa.schema([("n", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]))
        readers.check(kind, schema)


def test_columns_of_a_file_are_taken_with_care(tmp_path: Path) -> None:
    """A code that looks like a number, or a text like a time, would not come out as it went in."""
    path = written(tmp_path / "a.csv", b'zip,"a, b"\n007,1\n')
    assert readers.schema_of(SYSTEM, str(path), "csv") == pa.schema([("zip", pa.string()), ("a, b", pa.string())])
    assert rows(path, "csv", pa.schema([("zip", pa.string())])) == [("007",)]
    lines = b'not json\n{"at": "2026-01-02", "n": 1, "e": [], "m": {"x": null}}\n{"n": 1.5}\n'
    found = readers.schema_of(SYSTEM, str(written(tmp_path / "a.json", lines)), "json")
    assert found == pa.schema([
        ("at", pa.string()), ("n", pa.float64()), ("e", pa.list_(pa.string())), ("m", pa.struct([("x", pa.string())])),
    ])  # fmt: skip
    for content in (b"", b"\n \n"):
        assert readers.schema_of(SYSTEM, str(written(tmp_path / "none.json", content)), "json") is None
    for content in (b"[1]", b"{}"):
        with pytest.raises(BadConfigError, match="no line with an object"):
            readers.schema_of(SYSTEM, str(written(tmp_path / "odd.json", content)), "json")
    with pytest.raises(BadConfigError, match="differ in the types"):
        readers.schema_of(SYSTEM, str(written(tmp_path / "two.json", b'{"n": 1}\n{"n": "x"}')), "json")


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("a.gz", gzip.compress), ("b.GZ", gzip.compress), ("c.Bz2", bz2.compress),
]  # fmt: skip


def test_compressed_files_whatever_the_case_of_their_names(tmp_path: Path) -> None:
    for name, pack in PACKED:
        content = pack(b"n,t\n1,x\n") + pack(b"2,y\n")
        assert rows(written(tmp_path / name, content), "csv") == [(1, "x"), (2, "y")]
        assert rows(tmp_path / name, "text", readers.TEXT) == [("n,t",), ("1,x",), ("2,y",)]


@pytest.mark.parametrize("kind", ["text", "json", "csv", "parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: Format) -> None:
    whole = gzip.compress(b'n,t\n{"n": 1}\n' * 10_000)
    for name, content in [
        ("cut.gz", whole[: len(whole) // 2]),
        ("wrong.gz", whole[:-8] + b"12345678"),
        ("not.gz", b"n,t\n"),
    ]:
        path = written(tmp_path / name, content)
        with pytest.raises(
            BadConfigError, match=f"{path} can't be read to its end as {kind}: .*put a whole copy in its place"
        ):
            rows(path, kind)
    with pytest.raises(BadConfigError, match="can't be read"):
        rows(tmp_path / "gone", kind)
    if kind in ("json", "parquet"):  # of CSV only the header is looked at
        with pytest.raises(BadConfigError, match=r"cut\.gz can't be read"):
            readers.schema_of(SYSTEM, str(tmp_path / "cut.gz"), kind)


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"1,x\n2,y\n")  # no header
    with pytest.raises(BadConfigError, match=r"a\.csv has no columns \['n', 't'\], only \['1', 'x'\]"):
        rows(path, "csv")
    with pytest.raises(BadConfigError, match=r"\['n'\] more than once"):
        rows(written(tmp_path / "b.csv", b"n,t,n\n1,2,3\n"), "csv")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(BadConfigError, match=r"a\.parquet has no columns \['t'\]"):
        rows(tmp_path / "a.parquet", "parquet")
    pq.write_table(pa.table({"n": [1.5], "t": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(BadConfigError, match=r"b\.parquet can't be read.*other types"):
        rows(tmp_path / "b.parquet", "parquet")
