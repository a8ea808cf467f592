"""Files as they come: a record that can't be read exactly is corrupt as a whole, and is that record's matter."""

import csv
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from acker_redis import BadConfigError
from acker_redis.spark import read_files
from acker_redis.spark.sources.ambiguous_json import ambiguity_check
from acker_redis.spark.sources.file_formats import CORRUPT, Format
from acker_redis.spark.sources.parsing import check, parsed

pytestmark = pytest.mark.spark

N_T = "n bigint, t string"


def rows(spark: Any, path: Path, kind: Format, schema: str = N_T) -> list[Any]:
    """Tuples of the values of good records; texts of bad ones."""
    found = read_files(spark, str(path), kind, schema).orderBy("file", "row").collect()
    names = struct(schema).names
    assert all(row[name] is None for row in found if row[CORRUPT] is not None for name in names)
    return [tuple(row[n] for n in names) if row[CORRUPT] is None else row[CORRUPT] for row in found]


def struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BAD_JSON = [
    b"{", b"null", b"7", b'"x"', b'[{"n": 1}]', b'{"n": 1}{"n": 2}', b'{"n": 1},{"n": 2}', b'{"n": 1} null',
    b'{"n": 1}], "x": [{}', b'{"n": 1}]} {}', b'{"n": 1}, {"end": 1}]} {}', b'{"n": 1}, null',
    b'{"n": "1"}', b'{"n": ""}', b'{"n": 1.5}',
    b'{"n": 1.0}', b'{"n": 01}', b'{"t": 1}', b'{"t": true}', b'{"t": {"a": 1.10}}', b'{"t": ["x"]}',
    b'{"t": "\xff"}', b'{"n": NaN}', b'{"t": "\\ud800"}', b'{"n": 123456789012345678901}', b"[" * 100_000,
    b'{"n": 1', b"{'n': 1}", b'{"n": 1,}', b'{"n": 1} // no', b'{n: 1}', b'{"t": "a\tb"}',
    b'{"\\u0074": 1}', b'{"other": {"t": "x"}, "t": 5}',
]  # fmt: skip


def test_bad_json_line_is_a_single_corrupt_row(spark: Any, tmp_path: Path) -> None:
    good = b'{"n": 1, "t": "x", "other": [1]}\n\n  \r\n{"t": "y", "other": "2"}\r\n'
    content = good + b"".join(bad + b"\n{}\n" for bad in BAD_JSON) + BAD_JSON[0]
    path = written(tmp_path / "a.json", b"\xef\xbb\xbf" + content)
    expected: list[Any] = [(1, "x"), (None, "y")]
    for bad in BAD_JSON:
        expected += [bad.decode(errors="replace"), (None, None)]
    assert rows(spark, path, "json") == [*expected, "{"]


def test_unusual_valid_json_lines_are_read_exactly(spark: Any, tmp_path: Path) -> None:
    """A name that stands in two places of a value, escapes, and of a name that comes twice the last value."""
    path = written(
        tmp_path / "a.json",
        b'{"other": {"t": 5, "n": "x"}, "t": "in", "n": 1}\n{"t": "\\ud83d\\ude00 \\"t\\": 1"}\n{"\\u006e": 2}\n'
        b'{"n": 3, "t": null, "other\\"": 1}\n{"n": "x", "n": 4}\n{"n": 1, "n": 5}\n'
        b'{"t": "\\\\ud800", "n": -9223372036854775808}\n'
        b'{"t":"NaN"}\n',
    )  # fmt: skip
    assert rows(spark, path, "json") == [
        (1, "in"), (None, '\U0001f600 "t": 1'), (2, None), (3, None), '{"n": "x", "n": 4}', (5, None),
        (-(2**63), "\\ud800"), (None, "NaN"),
    ]  # fmt: skip


BAD_CSV = [
    (b"x,y", "x,y"), (b"1", "1"), (b"1,2,3", "1,2,3"), (b"9223372036854775808,x", "9223372036854775808,x"),
    (b"1,\xff", "1,\ufffd"), (b'1,"never closed', '1,"never closed'), (b'1,"x"y', '1,"x"y'), (b'x"y,"z', 'x"y,"z'),
    (b"1,a\rb", "1,a\rb"), (b"1.0,x", "1.0,x"), (b"1e3,x", "1e3,x"), (b"0x1F,x", "0x1F,x"), (b"1 2,x", "1 2,x"),
    (b'1,"x" ', '1,"x" '),
]  # fmt: skip


def test_bad_csv_line_is_a_single_corrupt_row(spark: Any, tmp_path: Path) -> None:
    good = b'n,t\n007,007\r\n\n,"a ""b"", c"\n3,5" pipe\n'
    content = good + b"".join(bad + b"\nNULL,NULL\n" for bad, _ in BAD_CSV) + BAD_CSV[5][0]
    path = written(tmp_path / "a.csv", b"\xef\xbb\xbf" + content)
    expected: list[Any] = [(7, "007"), (None, 'a "b", c'), (3, '5" pipe')]
    for _, text in BAD_CSV:
        expected += [text, (None, "NULL")]
    assert rows(spark, path, "csv") == [*expected, BAD_CSV[5][1]]
    one = read_files(spark, str(path), "csv", N_T).select("t")  # nothing is left out of what is parsed
    assert one.where("t = 'y'").count() == 0


def test_csv_line_breaks_in_quotes_and_open_quotes_are_separated(spark: Any, tmp_path: Path) -> None:
    lines = [f"{n},x\n" for n in range(200_000)]
    content = 'n,t\n1,"two\r\n""lines"""\n2,"open\n3,"x"\n4,"\n\nx"\n5,"open\n' + "".join(lines)
    found = rows(spark, written(tmp_path / "a.csv", content.encode()), "csv")
    assert found[:6] == [(1, 'two\r\n"lines"'), '2,"open', (3, "x"), (4, "\n\nx"), '5,"open', (0, "x")]
    assert len(found) == 200_005


def test_csv_columns_are_matched_by_each_files_header(spark: Any, tmp_path: Path) -> None:
    written(tmp_path / "a", b"")
    written(tmp_path / "b", b"n,more,t\n1,2,x\n")
    written(tmp_path / "c", b't,n\n"a ""b"",\r\nc",2\nx,y\n1\n\xff,1\n')
    written(tmp_path / "d", b"_corrupt_record,n,t\n,3,z\n")
    assert rows(spark, tmp_path, "csv")[:2] == [(1, "x"), (2, 'a "b",\r\nc')]
    bad = rows(spark, tmp_path, "csv")[2:5]
    assert bad[1:] == ["1", "\ufffd,1"]
    assert rows(spark, tmp_path, "csv")[5:] == [(3, "z")]
    assert bad[0] == "x,y"


def test_csv_rows_are_parsed_as_by_python(spark: Any) -> None:
    """What is handed to Spark is what Python's strict parser takes for one record."""
    some = random.Random(7)
    odd = ['"', '""', ",", "a", " ", "\r", "\n", "\0", "\\", "#", ";", "\U0001f600"]
    texts = ["".join(some.choices(odd, k=some.randint(1, 9))).strip("\r\n") for _ in range(20_000)]
    expected: dict[str, Any] = {}
    for text in filter(None, texts):
        with suppress(csv.Error, ValueError):
            (values,) = csv.reader([text], strict=True)
            expected[text] = tuple(values) if len(values) == 2 else text
    records = spark.createDataFrame([(text, None) for text in expected], f"record string, {CORRUPT} string")
    columns = struct("s string, t string")
    found = [row[:2] if row[2] is None else row[2] for row in parsed(records, "csv", columns, ["s", "t"]).collect()]
    assert len(found) > 2000
    assert found == list(expected.values())


def test_json_texts_round_trip_unchanged(spark: Any) -> None:
    some = random.Random(7)
    odd = ['"', "\\", "/", "\n", "\0", "\u2028", "\U0001f600", "\ufffd", "\ue000", "u", "{", "}", "]", "a"]
    texts = ["".join(some.choices(odd, k=some.randint(0, 9))) for _ in range(2_000)]
    lines = [json.dumps({"t": text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(texts)]
    columns = struct("t string")
    assert not any(ambiguity_check(columns).find_wrong(pa.array(lines)).to_pylist())
    records = spark.createDataFrame([(line, None) for line in lines], f"record string, {CORRUPT} string")
    assert [row[0] for row in parsed(records, "json", columns, ()).collect()] == texts


def test_typed_values_are_read_from_csv_and_json(spark: Any, tmp_path: Path) -> None:
    schema = "at timestamp, day date, price decimal(5,2), f double, b boolean"
    content = (
        "f,b,price,day,at\n0.5,true,1.50,2026-01-02,2026-01-02 03:04:05\n"
        "nan,false,,,2026-01-02T03:04:05Z\n1,true,1,2026-02-30,\n,,,NA,\n"
    )
    in_csv = rows(spark, written(tmp_path / "a.csv", content.encode()), "csv", schema)
    objects = [
        {"f": 0.5, "b": True, "price": 1.5, "day": "2026-01-02", "at": "2026-01-02 03:04:05"},
        {"f": None, "b": False, "at": "2026-01-02T03:04:05Z"},
        {"day": "2026-02-30"},
        {"b": None},
    ]
    in_json = rows(spark, written(tmp_path / "a.json", "\n".join(map(json.dumps, objects)).encode()), "json", schema)
    for found in (in_csv, in_json):
        assert repr(found[0]).count("2026, 1, 2") == 2
        assert (found[0][0], found[0][2:]) == (found[1][0], (found[0][2], 0.5, True))
        assert isinstance(found[2], str)
        assert found[3] == (None,) * 5
    assert str(in_csv[1][3]) == "nan"
    for kind in ("csv", "json"):
        for refused in ("map<string,bigint>", "binary", "variant", "interval day to second"):
            with pytest.raises(BadConfigError, match=r"Column 'm'.*Use string, and parse it"):
                check(kind, struct(f"n bigint, m {refused}"))
        check(kind, struct(schema))
    with pytest.raises(BadConfigError, match=r"Column 'a' has type array<bigint>, .* from csv"):
        check("csv", struct("a array<bigint>"))


VALUES: dict[str, tuple[dict[str, str | None], dict[str, str | None]]] = {
    # type: texts of JSON, and of CSV, and what Spark makes a text of them; None: corrupt
    "tinyint": (
        {"127": "127", "-128": "-128", "128": None, "255": None, "1.0": None},
        {"127": "127", "128": None, "+5": "5", " 5 ": "5", "5d": None, "yes": None},
    ),
    "smallint": ({"32768": None, "65535": None, "-1": "-1"}, {"32768": None, "-1": "-1"}),
    "int": ({"2147483648": None, "true": None}, {"2147483648": None, "0x10": None}),
    "float": (
        {"0.5": "0.5", "1e39": None, "1": "1.0", '"NaN"': None},
        {"0.5": "0.5", "1e39": None, "inf": "Infinity", "-Infinity": "-Infinity", "1f": None},
    ),
    "double": (
        {"0.5": "0.5", "1e999": None, '"0.5"': None, '"Infinity"': None, "-0.0": "-0.0"},
        {"5e-1": "0.5", "1e999": None, "NaN": "NaN", "1d": None, ".5": "0.5", "1_0": None, "0x1p3": None},
    ),
    "boolean": (
        {"true": "true", "1": None, '"true"': None},
        {"TRUE": "true", "0": "false", "t": None, "yes": None, "2": None},
    ),
    "decimal(5,2)": (
        {"1.5": "1.50", "1.555": None, "1000": None, "1.500": "1.50", "15e-1": "1.50", "1E2": "100.00", '"1,5"': None,
         '"1.5"': None, "1e999999999": None, "1e-999999999": None, "0e-9": "0.00", "[1]": None},
        {"1.5": "1.50", "1.555": None, "1000": None, "1.500": "1.50", "15e-1": "1.50", "1E2": "100.00", "1e-3": None,
         "1e99999999999": None, "1e-99999999999": None, "-.5": "-0.50", "1d": None},
    ),
    "decimal(38,2)": (
        {"123456789012345678901234567890123456.78": "123456789012345678901234567890123456.78"},
        {"123456789012345678901234567890123456.78": "123456789012345678901234567890123456.78"},
    ),
    "date": (
        {'"2026-01-02"': "2026-01-02", '"2026-1-2"': None, '"2026"': None, '"2026-02-30"': None, "20260102": None,
         '"2026-01-02T03:04:05"': None, '"today"': None},
        {"2026-01-02": "2026-01-02", "2026-1-2": None, "2026": None, "02/01/2026": None, "epoch": None},
    ),
    "timestamp": (
        {'"2026-01-02T03:04:05.678901Z"': "2026-01-02 03:04:05.678901", '"2026-01-02 03:04"': "2026-01-02 03:04:00",
         '"2026-01-02"': "2026-01-02 00:00:00", '"2026-01-02T03:04:05+01:00"': "2026-01-02 02:04:05",
         '"2026-01-02T03:04:05-0130"': "2026-01-02 04:34:05", '"2026-01-02T03:04:05+01"': "2026-01-02 02:04:05",
         '"2026-01-02T03:04:05.1234567"': None, '"2026-01-02T03:04:05.1230000000"': "2026-01-02 03:04:05.123",
         '"12:30"': None, '"T12:30"': None, '"2026"': None, "1767322245": None, "2026": None,
         '"2026-01-02 03:04:05 Europe/Berlin"': None, '"2026-01-02T24:00:00"': None, '"now"': None},
        {"2026-01-02 03:04:05": "2026-01-02 03:04:05", "12:30": None, "2026-01": None, "1767322245": None},
    ),
    "timestamp_ntz": (
        {'"2026-01-02T03:04:05.5"': "2026-01-02 03:04:05.5", '"2026-01-02T03:04:05Z"': None},
        {"2026-01-02T03:04:05.5": "2026-01-02 03:04:05.5", "2026-01-02T03:04:05Z": None,
         "2026-01-02 03:04": "2026-01-02 03:04:00"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_every_value_is_exact_or_its_line_corrupt(spark: Any, tmp_path: Path, zone: str) -> None:
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")}
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", str(zone == "UTC").lower())
    try:
        for number, (kind, cases) in enumerate(VALUES.items()):
            for form, texts in zip(("json", "csv"), cases, strict=True):
                lines = [f'{{"v": {text}}}' if form == "json" else f"{text},x" for text in texts]
                head = ["v,other"] if form == "csv" else []
                path = written(tmp_path / f"{number}.{form}", "\n".join([*head, *lines]).encode())
                found = read_files(spark, str(path), form, f"v {kind}")  # type: ignore[arg-type]
                shown = "to_utc_timestamp(v, current_timezone())" if kind == "timestamp" else "v"
                told = {
                    row["row"]: (row["v"], row[CORRUPT])
                    for row in found.selectExpr("row", f"string({shown}) v", CORRUPT).collect()
                }
                for place, (text, expected) in enumerate(texts.items()):
                    assert told[place] == (expected, lines[place] if expected is None else None), (kind, form, text)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_nested_json_values_are_exact_or_their_line_corrupt(spark: Any, tmp_path: Path) -> None:
    schema = (
        "tags array<string>, prices array<decimal(4,1)>, at struct<d: date, n: tinyint, t: string>, "
        "items array<struct<sku: string, price: decimal(4,1), f: double, days: array<date>>>, deep array<array<string>>"
    )
    good = {
        "tags": ["a", None, "b\"]"], "prices": [1.5, 2], "at": {"d": "2026-01-02", "n": 1, "t": "x"},
        "items": [{"sku": "s", "price": 1.5, "f": 2, "days": ["2026-01-02", None]}, None], "deep": [["x"], []],
    }  # fmt: skip
    bad: list[dict[str, Any]] = [
        {"tags": ["a", 1]}, {"tags": ["a", {"b": 1}]}, {"tags": "a"}, {"prices": [1.55]}, {"prices": ["1,5"]},
        {"at": {"d": "2026"}}, {"at": {"n": 255}}, {"at": {"t": 1}}, {"at": [1]}, {"items": [{"sku": 1}]},
        {"items": [{"price": 1.55}]}, {"items": [{"days": ["2026-01-02", "12:30"]}]}, {"deep": [["x"], [1]]}, {"items": {}},
    ]  # fmt: skip
    lines = [json.dumps(one) for one in (good, *bad, {})]
    lines.append('{"items": [{"f": 1e999}]}')
    path = written(tmp_path / "a.json", "\n".join(lines).encode())
    found = rows(spark, path, "json", schema)
    assert found[1 : len(bad) + 1] == lines[1 : len(bad) + 1]
    assert found[-2:] == [(None,) * 5, lines[-1]]
    told = read_files(spark, str(path), "json", schema).where("row = 0").selectExpr("to_json(struct(* except (file)))")
    ((told_row,),) = told.collect()
    assert json.loads(told_row) == {
        "row": 0, **good, "prices": [1.5, 2.0],
        "items": [{"sku": "s", "price": 1.5, "f": 2.0, "days": ["2026-01-02", None]}, None],
    }  # fmt: skip
