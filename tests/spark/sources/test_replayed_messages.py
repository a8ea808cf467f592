"""Where messages come from, and where they come from again: files with offsets, payloads in Redis, the user's fetch."""

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from acker_redis import Acker, AckerConfig, BadConfigError, Limits, PipelineError, RowFailedError
from acker_redis.spark import MessageIds, ReplayFrom, Tracker, check_pipeline, read_files, run_tracked
from acker_redis.spark.emission.corrupt_records import check_corrupt_records
from acker_redis.spark.emission.messages import RunMessages, with_message_ids
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until
from tests.support.arrow_values import IN_SPARK, NAMES, array, kinds, values, values_of
from tests.support.spark.cases import CONFIG, consume

pytestmark = pytest.mark.spark


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Rows with the name of their file instead of its path."""
    return sorted((Path(row["file"]).name, *row[1:]) for row in frame.collect())


def test_text_files_are_read_line_by_line(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntw\xffo\nlast")
    with gzip.open(tmp_path / "sub" / "b.gz", "wb") as file:
        file.write(b"packed\n")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "empty.txt").write_text("")
    expected = [
        ("a.txt", 0, "one", None),
        ("a.txt", 1, "", None),
        ("a.txt", 2, None, "tw�o"),
        ("a.txt", 3, "last", None),
        ("b.gz", 0, "packed", None),
    ]
    assert rows_of(read_files(spark, str(tmp_path))) == expected
    assert rows_of(read_files(spark, (tmp_path / "a.txt").as_uri())) == expected[:4]


def test_json_csv_and_parquet_files_are_read_row_by_row(spark: Any, tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3]), "t": ["x", "y", "z, w"]})
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    pa.csv.write_csv(table, tmp_path / "a.csv")
    pq.write_table(table, tmp_path / "a.parquet")
    expected = [(number, row["n"], row["t"]) for number, row in enumerate(table.to_pylist())]
    for place, kind in [("json", "json"), ("a.csv", "csv"), ("a.parquet", "parquet")]:
        for schema in (None, "n bigint, t string"):
            found = read_files(spark, str(tmp_path / place), kind, schema)  # type: ignore[arg-type]
            texts = kind == "csv" and schema is None  # nothing is guessed from a text
            n = "CAST(NULLIF(n, '') AS bigint) AS n" if texts else "n"
            assert [row[1:] for row in rows_of(found.selectExpr("file", "row", n, "t"))] == expected
            assert found.columns == ["file", "row", "n", "t", *([] if kind == "parquet" else ["_corrupt_record"])]


def test_unusual_file_names_and_empty_files_are_read(spark: Any, tmp_path: Path) -> None:
    """Names that mean something in a URI, files without rows, without columns, and with a very long record."""
    odd, csv, parquet = tmp_path / "odd", tmp_path / "csv", tmp_path / "parquet"
    for folder in (odd, csv, parquet):
        folder.mkdir()
    names = ["a", "a#b", "a%20b", "a b", "a?b", "ü%"]
    for name in names:
        (odd / name).write_text(f"of {name}\n")
    expected = sorted((name, 0, f"of {name}", None) for name in names)
    assert rows_of(read_files(spark, str(odd))) == rows_of(read_files(spark, odd.as_uri())) == expected
    (csv / "0").write_text("")
    (csv / "1").write_text("n,t\n")
    (csv / "2").write_text("n,t\n1,\n")
    (csv / "3").write_text(f"n,t\n2,{'x' * 3_000_000}\n")
    found = read_files(spark, str(csv), "csv", "n bigint, t string")
    assert sorted((row["n"], len(row["t"])) for row in found.collect()) == [(1, 0), (2, 3_000_000)]
    assert read_files(spark, str(csv), "csv").columns == ["file", "row", "n", "t", "_corrupt_record"]
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), parquet / "0")
    pq.write_table(pa.table({"n": [7]}), parquet / "1")
    assert rows_of(read_files(spark, str(parquet), "parquet")) == [("1", 0, 7)]
    (tmp_path / "none").write_text("")
    with pytest.raises(BadConfigError, match="Set the schema"):
        read_files(spark, str(tmp_path / "none"), "json")


def test_unreadable_path_or_format_is_refused_at_once(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1]}), tmp_path / "a.parquet")
    with pytest.raises(BadConfigError, match="does not exist"):
        read_files(spark, str(tmp_path / "none"))
    with pytest.raises(BadConfigError, match="Use one of text, json, csv, parquet"):
        read_files(spark, str(tmp_path), "xml")  # type: ignore[arg-type]
    with pytest.raises(BadConfigError, match="Rename them"):
        read_files(spark, str(tmp_path), "parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadConfigError, match="No files"):
        read_files(spark, str(tmp_path / "empty"))


def test_letters_of_corrupt_rows_are_read_from_the_source_once(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"n": 1}\n{"n": "x"}\n{"n": 3}\n' + '{"n": "long' + "y" * 300 + '"}\n')
    read: list[list[int]] = []
    source = RunMessages._source_rows

    def reading(self: RunMessages, ids: list[int]) -> DataFrame:
        read.append(ids)
        return source(self, ids)

    monkeypatch.setattr(RunMessages, "_source_rows", reading)
    out = tmp_path / "out"
    out.mkdir()

    def pipeline(tracker: Tracker, messages: Any) -> None:
        tracker.write(messages, lambda writer: writer.mode("append").parquet(str(out / "rows")))

    messages = read_files(spark, str(path), "json", "n bigint")
    run_tracked(messages, pipeline, acker=acker, dead_letter_bytes=500)
    letters = {json.loads(letter.payload or b"")["row"]: letter for letter in acker.dead_letters.read()}
    assert sorted(letters) == [1, 3]
    assert json.loads(letters[1].payload or b"") == {
        "file": str(path), "row": 1, "_corrupt_record": '{"n": "x"}', "message_id": letters[1].message_id,
    }  # fmt: skip
    # Two outcomes may be polled apart.
    assert sorted(one for ids in read for one in ids) == sorted(letter.message_id for letter in letters.values())


def test_corrupt_row_is_a_dead_letter_and_damaged_file_an_error(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n,value\n1,x\nno number,y\n3,z\n")
    out = tmp_path / "out"
    out.mkdir()
    messages = read_files(spark, str(tmp_path / "a.csv"), "csv", "n bigint, value string")
    result = run_tracked(
        messages, partial(save, out), acker=acker, dead_letter_bytes=300, replay=ReplayFrom.redis(max_bytes=300),
        ids=MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets.json")),
        retry=RetryPolicy(max_attempts=3, first_delay_secs=0),
    )  # fmt: skip
    assert saved(out) == ["x", "z"]
    (letter,) = acker.dead_letters.read()
    assert (letter.attempts, letter.last_component, result.counts.replayed) == (1, "read_files", 0)
    assert letter.detail is not None
    assert letter.detail.startswith("The record can't be read with these columns: row 1 of ")
    assert letter.detail.endswith("/a.csv: no number,y")
    assert json.loads(letter.payload or b"")["_corrupt_record"] == "no number,y"
    assert noted_in(tmp_path / "offsets.json") == {"a.csv": 3}
    mine = messages.withColumnRenamed("_corrupt_record", "text")
    result = run_tracked(mine.where("text IS NOT NULL"), partial(save, out), acker=acker)
    assert result.counts.acked == 1
    whole = gzip.compress(b"n,value\n1,x\n" * 10_000)
    (tmp_path / "b.csv.GZ").write_bytes(whole[:-100])
    with pytest.raises(
        Exception, match=r"b\.csv\.GZ could not be read to its end as csv.*Replace it with a complete copy"
    ):
        read_files(spark, str(tmp_path / "b.csv.GZ"), "csv", "n bigint, value string")
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 1_000_000)[:-100])
    damaged = read_files(spark, str(tmp_path / "c.json.gz"), "json", "n bigint, value string")
    with pytest.raises(
        Exception, match=r"c\.json\.gz could not be read to its end as json.*Replace it with a complete copy"
    ):
        run_tracked(damaged, partial(save, out), acker=acker)


def test_line_that_is_not_utf8_is_a_dead_letter_with_its_place(spark: Any, acker: Acker, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntw\xffo\nthree\n")
    out = tmp_path / "out"
    out.mkdir()
    result = run_tracked(read_files(spark, str(tmp_path / "a.txt")), partial(save, out), acker=acker)
    assert saved(out) == ["one", "three"]
    (letter,) = result.dead_letters.values()
    assert (letter.attempts, letter.last_component) == (1, "read_files")
    assert str(letter.detail).startswith("The record can't be read with these columns: row 1 of ")
    assert str(letter.detail).endswith("/a.txt: tw\ufffdo")


def test_messages_without_their_corrupt_column_are_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\nnot json\n')
    parquet = tmp_path / "a.parquet"
    messages = read_files(spark, str(tmp_path), "json", "n bigint")
    lines = read_files(spark, str(tmp_path))
    pq.write_table(pa.table({"n": [1]}), parquet)
    by_path = MessageIds.offsets("path")
    runs: tuple[Callable[..., Any], ...] = (partial(run_tracked, acker=acker), check_pipeline)
    for run, (kind, frame) in product(runs, [("json", messages), ("text", lines)]):
        left_out = frame.select("row", F.col("file").alias("path"))
        with pytest.raises(PipelineError, match=rf"\({kind}\) are missing the column '_corrupt_record'.* or rename it"):
            run(left_out, partial(save, tmp_path), ids=by_path)
    assert acker.admin.last_run_ends() == {}
    for kept in (
        messages.select("_corrupt_record", "file", "row"),
        messages.withColumnRenamed("_corrupt_record", "text"),
        messages.where("n = 1").select("file", "row").withMetadata("file", {"checked": True}),
        read_files(spark, str(tmp_path)).withColumnRenamed("_corrupt_record", "text"),
        read_files(spark, str(parquet), "parquet").select("file", "row"),
    ):
        check_corrupt_records(kept)


@pytest.mark.classic("only a JVM shows optimised plans")
def test_message_ids_are_read_without_parsing_json(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n' * 100)
    messages, column = with_message_ids(read_files(spark, str(tmp_path), "json", "n bigint"), None, "file", "row")
    of_all, of_ids = (
        frame._jdf.queryExecution().optimizedPlan().toString() for frame in (messages, messages.select(column))
    )
    assert of_all.count("from_json") == 1  # and once only, however many columns there are
    assert "from_json" not in of_ids


SCHEMA = pa.schema([("value", pa.string())])


def write_values(folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    with pq.ParquetWriter(folder / f"{emission}-{partition}.parquet", SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch.select(["value"]).cast(SCHEMA))


def save(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write_partitions(
        messages, partial(write_values, folder, f"{tracker.run_id}-{tracker.emission}"), name="save"
    )


def saved(folder: Path) -> list[str]:
    return sorted(v for path in folder.glob("*.parquet") for v in pq.read_table(path)["value"].to_pylist())


def test_restarted_run_skips_completed_messages_without_waiting(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    """The first run ends with messages undone, which fail at once: no bucket is rotated for the second to go on."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    for name in "ab":
        (source / name).write_text("".join(f"{name}{n}\n" for n in range(30)))
    noted = tmp_path / "offsets.json"

    def has_gaps() -> bool:
        progress = json.loads(noted.read_text()) if noted.exists() else {"begin": {}, "beyond": {}}
        return any(progress["begin"].values()) and any(progress["beyond"].values())

    def breaks_down(tracker: Tracker, messages: DataFrame) -> None:
        if has_gaps():
            raise PipelineError("on purpose")
        save(out, tracker, tracker.fail_where(messages, "value = 'a7'", "not now"))

    messages = read_files(spark, str(source))
    with pytest.raises(PipelineError, match="on purpose"):
        run_tracked(
            messages, breaks_down, acker=acker, ids=MessageIds.offsets(offset_file=OffsetFile(noted)), max_spout_pending=15,
        )  # fmt: skip
    begin = noted_in(noted)
    assert 0 <= begin["a"] <= 7
    assert sum(begin.values()) > 0
    beyond = sum(end - at for runs in json.loads(noted.read_text())["beyond"].values() for at, end in runs)
    assert beyond > 0
    first = set(saved(out))
    assert acker.stats().pending == 0
    result = run_tracked(
        messages, partial(save, out), acker=acker, ids=MessageIds.offsets(offset_file=OffsetFile(noted))
    )
    assert result.counts.acked == 60 - sum(begin.values()) - beyond
    assert set(saved(out)) == {f"{name}{n}" for name in "ab" for n in range(30)}
    assert "a7" not in first
    assert noted_in(noted) == {"a": 30, "b": 30}
    assert acker.stats().timed_out == 0
    again = run_tracked(
        messages, partial(save, out), acker=acker, ids=MessageIds.offsets(offset_file=OffsetFile(noted))
    )
    assert again.counts.emitted == 0
    with (
        Acker.connect(url, AckerConfig(app="another")) as another,
        pytest.raises(BadConfigError, match="written for app 'spark', but this run has app 'another'"),
    ):
        run_tracked(messages, partial(save, out), acker=another, ids=MessageIds.offsets(offset_file=OffsetFile(noted)))
    derived = messages.withColumn("value", F.upper("value")).where("row > 3")
    for inside in (source / "offsets.json", source / "sub" / "offsets.json"):
        with pytest.raises(BadConfigError, match="would be read as a source file"):
            run_tracked(
                derived, partial(save, out), acker=acker, ids=MessageIds.offsets(offset_file=OffsetFile(inside))
            )
    assert sorted(path.name for path in source.iterdir()) == ["a", "b"]


def noted_in(path: Path) -> dict[str, int]:
    return {Path(file).name: offset for file, offset in json.loads(path.read_text())["begin"].items()}


def fails_first(folder: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Every message fails once; `never` fails always."""
    mark = folder / str(row["id"])
    if row["value"] == "never" or not mark.exists():
        mark.touch()
        raise RowFailedError("on purpose")
    return [row]


def replayed(marks: Path, out: Path, tracker: Tracker, messages: DataFrame) -> None:
    marks.mkdir(exist_ok=True)
    own = messages.drop(*TRACKING)
    derived = tracker.flat_map(messages, partial(fails_first, marks), own.schema, name="once")
    rows = f"{tracker.run_id}-{tracker.emission}"
    told = derived.select(F.to_json(F.struct(*own.columns)).alias("value"), *TRACKING)
    tracker.write_partitions(told, partial(write_values, out, rows), name="save")


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_messages_replayed_from_redis_are_unchanged(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    """The source is gone after the first emission, so what is replayed can have come from Redis only."""
    folder, out = tmp_path / "in", tmp_path / "out"
    out.mkdir()
    rows = [
        Row(id=1, value="short", at=WHEN, price=Decimal("1.50"), raw=bytearray(b"\x00\xff"), tags=["a", None], n=0.1),
        Row(id=2, value="x" * 500, at=WHEN, price=None, raw=None, tags=None, n=float("inf")),
        Row(id=3, value="never", at=None, price=None, raw=None, tags=[], n=None),
    ]
    schema = "id long, value string, at timestamp, price decimal(5,2), raw binary, tags array<string>, n double"
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(folder))
    lengths: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        replayed(tmp_path / "marks", out, tracker, messages)
        lengths.append(sum(raw.hlen(key) for key in raw.scan_iter("acker:{spark}:payloads:*")))
        for file in folder.glob("*.parquet"):
            file.unlink()

    asked: list[list[int]] = []

    def fetch(ids: list[int]) -> Any:
        asked.append(ids)
        return spark.createDataFrame([row for row in rows if row["id"] in ids], schema)

    result = run_tracked(
        spark.read.parquet(str(folder)), pipeline, acker=acker, ids="id",
        replay=ReplayFrom.redis(max_bytes=300, else_fetch=fetch), dead_letter_bytes=300,
        retry=RetryPolicy(max_attempts=3, first_delay_secs=0),
    )  # fmt: skip
    assert (result.counts.acked, sorted(result.dead_letters)) == (2, [3])
    found = {row["id"]: row for row in map(json.loads, saved(out))}
    again = {row["id"]: row for row in map(json.loads, [r[0] for r in spark.createDataFrame(rows, schema).select(
        F.to_json(F.struct("*"))).collect()])}  # fmt: skip
    assert found == {1: again[1], 2: again[2]}
    assert {one for ids in asked for one in ids} == {2}
    assert max(lengths) == 2
    assert not list(raw.scan_iter("acker:{spark}:payloads:*"))
    (letter,) = acker.dead_letters.read()
    assert (letter.message_id, letter.reason, letter.detail, letter.attempts) == (3, "failed", "on purpose", 3)
    assert json.loads(letter.payload or b"") == {"id": 3, "value": "never", "tags": []}


ROWS = 20
KINDS = kinds([kind for kind in IN_SPARK if kind != pa.null()], NAMES, twice=False)
"""`createDataFrame` breaks lists of lists of nothing but null (pyarrow's cast does), so null stands by itself only."""

EDGES = {
    pa.timestamp("us", "UTC"): [-2_514_113_608_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999],
    pa.float64(): np.array([np.nan, -0.0, np.inf]).view(np.int64).tolist(),
    pa.string(): ["", "\x00\U0010ffff\ud7ff", '{"'],
}
"""1890-05-01 12:00:00 in Berlin, whose time zone had seconds then; the years 1 and 9999."""


@st.composite
def messages_of_any_type(draw: st.DrawFn) -> pa.Table:
    """Messages with types of every kind in each draw, and some drawn at random."""
    types = [*IN_SPARK, *draw(st.lists(KINDS, min_size=6, max_size=6))]
    columns = {"the id": pa.array(range(ROWS), pa.int64())}
    for number, kind in enumerate(types):
        some = draw(st.lists(values(kind), min_size=2, max_size=4))
        some = (EDGES.get(kind, []) + some) * ROWS
        columns[f'{number} ü"'] = array(kind, some[:ROWS])
    return pa.table(columns)


@given(table=messages_of_any_type(), zone=st.sampled_from(["Europe/Berlin", "America/St_Johns", "UTC"]))
@settings(
    max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
def test_kept_messages_of_any_type_are_unchanged(
    spark: Any, url: str, acker: Acker, table: pa.Table, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    seen: list[pa.Table] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        seen.append(messages.drop(*TRACKING).orderBy("`the id`").toArrow())
        first = "true" if tracker.emission == 0 else "false"
        tracker.write_partitions(tracker.fail_where(messages, first, "again"), consume)

    def fetch(ids: list[int]) -> DataFrame:
        raise AssertionError(f"{ids} were not kept")

    try:
        frame = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True)).selectExpr(
            "*",
            "parse_json(concat('[1.50, ', `the id`, ']')) AS v",
            "array(parse_json('{}')) AS vs",
        )
        run_tracked(
            frame,
            pipeline,
            acker=acker,
            ids="the id",
            replay=ReplayFrom.redis(max_bytes=1 << 20, else_fetch=fetch),
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    first, *later = seen
    again = pa.concat_tables(later).sort_by("the id")  # several emissions, where the outcomes came in several polls
    assert first.column_names == again.column_names
    for name in first.column_names:
        found = values_of(first[name].combine_chunks())
        assert values_of(again[name].combine_chunks()) == found, name
        if name in table.column_names:
            assert found == values_of(table[name].combine_chunks()), name


def test_messages_of_types_unknown_to_python_are_refused_at_once(spark: Any, url: str, acker: Acker) -> None:
    for value, kind in [
        ("interval '1-2' year to month", "year to month"),
        ("array(make_interval(1))", "array<interval>"),
    ]:
        frame = spark.range(1).selectExpr("id", f"{value} AS `the value`")
        with pytest.raises(PipelineError, match=f"Column 'the value' is .*{kind}.*cast it, for example to string"):
            run_tracked(frame, lambda *_: None, acker=acker, ids="id")
    assert acker.stats().inits == 0


def test_dead_letter_payload_not_kept_is_read_from_the_source(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    messages = spark.createDataFrame([(1, "never"), (2, "never" * 100)], "id long, value string")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        def fail(row: dict[str, Any]) -> list[Any]:
            raise RowFailedError("bad")

        tracker.write_partitions(tracker.flat_map(messages, fail, "id long"), consume)

    result = run_tracked(
        messages,
        pipeline,
        acker=acker,
        ids="id",
        dead_letter_bytes=100,
        retry=RetryPolicy(max_attempts=1, first_delay_secs=0),
    )
    assert sorted(result.dead_letters) == [1, 2]
    letters = {letter.message_id: letter for letter in acker.dead_letters.read()}
    assert letters[1].payload == b'{"id":1,"value":"never"}'
    assert letters[2].payload is None
    assert {letter.last_component for letter in letters.values()} == {"fail"}


def test_messages_missing_from_fetch_become_dead_letters(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    messages = spark.createDataFrame([(1, "x"), (2, "x")], "id long, value string")
    out = tmp_path / "out"
    out.mkdir()
    result = run_tracked(
        messages, partial(replayed, tmp_path / "marks", out), acker=acker, ids="id",
        replay=ReplayFrom.fetch(lambda ids: messages.where(F.col("id").isin(ids)).where("id = 1")),  # each by itself
    )  # fmt: skip
    assert (result.counts.acked, result.dead_letters[2].reason) == (1, "lost")


def test_ids_from_partition_and_offset_are_unique_and_stable(spark: Any) -> None:
    places = spark.range(0, 3000).selectExpr("concat('file-', id % 3) AS file", "id - 100 AS row")
    frame, column = with_message_ids(places, None, "file", "row")
    rows = frame.collect()
    assert len({row[column] for row in rows}) == 3000
    assert all(row[column] % 32 == row["row"] % 32 for row in rows)
    assert len({row[column] >> 5 for row in rows}) == len({(row["file"], row["row"] >> 5) for row in rows})
    again, _ = with_message_ids(places.where("row = 7"), None, "file", "row")
    assert {row[column] for row in again.collect()} <= {row[column] for row in rows}


def test_equal_offsets_of_two_topics_are_different_messages(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """In rows of Kafka, whether the columns are named or not."""
    records = spark.range(0, 400).selectExpr(
        "concat('topic-', id % 2) AS topic", "int(id div 2 % 2) AS partition", "id div 4 AS offset"
    )
    frames = [with_message_ids(records, None, *columns)[0] for columns in (("file", "row"), ("partition", "offset"))]
    ids = [sorted(row.message_id for row in frame.collect()) for frame in frames]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 400
    noted = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    for count in (400, 0):  # the second run finds everything done
        assert run_tracked(records, pipeline, acker=acker, ids=noted).counts.acked == count
    others = records.selectExpr("topic", "string(partition) AS partition", "offset")  # not Kafka's types
    assert len({row.message_id for row in with_message_ids(others, None, "partition", "offset")[0].collect()}) == 200
    with pytest.raises(PipelineError, match="Columns 'file' and 'row' not found"):
        with_message_ids(others, None, "file", "row")


def gives_nothing(ids: list[int]) -> Any:
    return None


def test_fetch_and_offset_arguments_are_checked(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    messages = spark.createDataFrame([(1, "x")], "id long, value string")
    noted = MessageIds.offsets(offset_file=OffsetFile(tmp_path / "offsets"))
    with pytest.raises(PipelineError, match=r"without the columns \['value'\]"):
        run_tracked(
            messages, partial(replayed, tmp_path / "marks", tmp_path), acker=acker, ids="id",
            replay=ReplayFrom.fetch(lambda ids: messages.select("id")),
        )  # fmt: skip
    with pytest.raises(PipelineError, match=r"Columns 'file' and 'row' not found in .* MessageIds\.offsets"):
        run_tracked(messages, lambda *_: None, acker=acker, ids=noted)
    places = spark.createDataFrame([(1, None, 3)], "id long, file string, row long")
    with pytest.raises(PipelineError, match="1 message has a null in column 'file' or 'row'"):
        run_tracked(places, lambda *_: None, acker=acker, ids=noted)
    with pytest.raises(PipelineError, match="fetch returned null or repeated message ids"):
        run_tracked(
            messages, partial(replayed, tmp_path / "twice", tmp_path), acker=acker, ids="id",
            replay=ReplayFrom.fetch(lambda ids: messages.union(messages)),
        )  # fmt: skip
    with pytest.raises(PipelineError, match="fetch returned None, not a DataFrame"):
        run_tracked(
            messages, partial(replayed, tmp_path / "nothing", tmp_path), acker=acker, ids="id",
            replay=ReplayFrom.fetch(gives_nothing),
        )  # fmt: skip


def test_redis_flushed_during_a_run_loses_no_message(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    """Everything is flushed while rows are on their way, twice, payloads too: each message is processed or dead-lettered."""
    out = tmp_path / "out"
    out.mkdir()
    messages = spark.range(200).withColumn("value", F.concat(F.lit("m"), "id"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        def check(row: dict[str, Any]) -> list[dict[str, Any]]:
            if row["id"] == 13:
                raise RowFailedError("poison")
            return [row]

        derived = tracker.flat_map(messages, check, "id long, value string").repartition(2, "id")
        if tracker.emission in (0, 1):
            count = derived.cache().count()
            wait_until(lambda: acker.stats().pending >= max(count, 1), "all roots are there", 60)
            raw.flushall()
        save(out, tracker, derived)

    result = run_tracked(
        messages, pipeline, acker=acker, ids="id", dead_letter_bytes=100, replay=ReplayFrom.redis(max_bytes=100),
        retry=RetryPolicy(max_attempts=2, first_delay_secs=0),
    )  # fmt: skip
    assert sorted(result.dead_letters) == [13]
    assert result.counts.lost >= 199
    assert set(saved(out)) == {f"m{n}" for n in range(200) if n != 13}
    assert acker.dead_letters.count() == 1


def test_smaller_of_two_payload_limits_applies(spark: Any, url: str, raw: Any, acker: Acker, tmp_path: Path) -> None:
    """The operator's: what is longer is read again from the source, and its letter has its id only."""
    out = tmp_path / "out"
    out.mkdir()
    acker.admin.set_limits(Limits(max_payload_bytes=300))
    messages = spark.range(10).withColumn("value", F.expr("concat(id, repeat('x', IF(id < 4, 10, 1000)))"))
    kept: list[list[int]] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        key = f"acker:{{{acker.config.app}}}:payloads:{tracker.run_id}"
        if tracker.emission:  # it may begin before the acks of the first are taken
            wait_until(lambda: not any(raw.hexists(key, message) for message in (0, 2, 3)), "what was acked is gone")
        kept.append(sorted(int(name) for name in raw.hkeys(key)))
        save(out, tracker, tracker.fail_where(messages, "id IN (1, 9)", "poison"))

    result = run_tracked(
        messages, pipeline, acker=acker, ids="id", dead_letter_bytes=10_000,
        replay=ReplayFrom.redis(max_bytes=10_000),
        retry=RetryPolicy(max_attempts=2, first_delay_secs=0),
    )  # fmt: skip
    first, *again = kept
    assert (first, [one for ids in again for one in ids]) == ([0, 1, 2, 3], [1])  # may go out one after the other
    assert (result.counts.acked, sorted(result.dead_letters)) == (8, [1, 9])
    found = {letter.message_id: letter.payload for letter in acker.dead_letters.read()}
    assert json.loads(found[1] or b"")["value"] == "1xxxxxxxxxx"
    assert found[9] is None
