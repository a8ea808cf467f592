"""Sinks: messages are done when everything was written, and only then; failed or emitted again where it raises, as told."""

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, Row
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from acker_redis import InexactPipelineError, PipelineError, RowFailedError, RowsRefusedError
from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.worker.failures import OnError
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import CHILD, Case, MakeCase, consume
from tests.support.spark.files_source import BatchesToFiles, Count, FileWriter, RowsToFiles
from tests.support.spark.stored_rows import stored_rdds
from tests.support.targets import N, run_section

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
CHILD_ARROW = pa.schema([("id", pa.int64()), ("child", pa.int32())])
TWO = "transform(array(0, 1), i -> struct(id, i AS child))"


def writing(sink: Callable[[Tracker, DataFrame], object]) -> Callable[[Tracker, DataFrame], None]:
    """Two rows per message, into a sink."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        sink(tracker, tracker.explode(messages, TWO))

    return pipeline


def ordered(run: Case, name: str = "out") -> list[Any]:
    return sorted(run.written(name=name))


BOTH = [(id, child) for id in range(20) for child in range(2)]


@pytest.mark.parametrize("format", ["parquet", "json", "orc", "csv"])
def test_spark_writers_of_every_format_complete(case: MakeCase, format: str) -> None:
    run = case(n=20)
    run.complete(
        writing(
            lambda tracker, rows: tracker.write(rows, lambda writer: writer.mode("append").format(format).save(run.out))
        )
    )
    found = run.spark.read.schema(CHILD).format(format).load(run.out).collect()
    assert sorted(map(tuple, found)) == BOTH


def test_writer_of_text_completes(case: MakeCase) -> None:
    run = case(n=20)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        lines = rows.selectExpr("concat(id, ' ', child) AS value", "_share", "_roots")
        tracker.write(lines, lambda writer: writer.mode("append").text(run.out))

    run.complete(writing(write))
    assert sorted(tuple(map(int, row[0].split())) for row in run.spark.read.text(run.out).collect()) == BOTH


@pytest.mark.parametrize("format", ["parquet", "json", "orc", "csv", "text"])
def test_writer_of_every_format_is_refused_rows_that_were_dropped(case: MakeCase, format: str) -> None:
    def write(tracker: Tracker, rows: DataFrame) -> None:
        lines = rows.where("id <> 7").selectExpr("concat(id, ' ', child) AS value", "_share", "_roots")
        tracker.write(lines, lambda writer: writer.mode("append").format(format).save(run.out))

    run = case(n=20)
    assert "missing or duplicated" in run.refused(writing(write), InexactPipelineError)


def test_tables_and_partitioned_folders_complete(case: MakeCase) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, TWO)
        tracker.write(rows, lambda writer: writer.mode("append").saveAsTable("test_sinks_table"))
        tracker.write(rows, lambda writer: writer.mode("append").insertInto("test_sinks_table"))
        tracker.write(rows, lambda writer: writer.partitionBy("child").parquet(run.out, mode="append"))
        tracker.write(
            rows, lambda writer: writer.bucketBy(2, "id").sortBy("id").mode("append").saveAsTable("test_sinks_b")
        )

    run.complete(pipeline)
    assert sorted(map(tuple, run.spark.table("test_sinks_table").collect())) == sorted(BOTH + BOTH)
    assert sorted(map(tuple, run.spark.table("test_sinks_b").select("id", "child").collect())) == BOTH
    assert sorted(run.written("id", "child")) == BOTH


def test_acks_are_sent_only_after_the_pipeline_returns(case: MakeCase) -> None:
    run = case(n=20)
    acked: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append())
        tracker.write_partitions(messages, consume)
        acked.append(run.acker.stats().acked)

    run.complete(pipeline)
    assert acked == [0]


def test_dataframe_function_is_a_sink(case: MakeCase) -> None:
    run = case(n=20)

    def merge(rows: DataFrame) -> None:
        assert rows.columns == ["id", "child"]
        rows.createOrReplaceTempView("merged")
        rows.sparkSession.sql("SELECT * FROM merged").write.parquet(run.out)

    run.complete(writing(lambda tracker, rows: tracker.write_dataframe(rows, merge)))
    assert ordered(run) == BOTH


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: None,
        lambda rows: rows.createOrReplaceTempView("never_read"),
        lambda rows: rows.sparkSession.sql("SELECT count(*) FROM {rows}", rows=rows),
    ],
    ids=["nothing", "view", "query"],
)
def test_dataframe_function_running_nothing_is_refused(case: MakeCase, function: Callable[[DataFrame], object]) -> None:
    run = case(n=20)
    text = run.refused(writing(lambda tracker, rows: tracker.write_dataframe(rows, function)), InexactPipelineError)
    assert "ran no Spark job" in text and "40 rows" in text


def test_dataframe_function_may_write_by_a_command_in_sql(case: MakeCase) -> None:
    run = case(n=20)
    run.spark.sql(f"CREATE TABLE IF NOT EXISTS test_sinks_sql ({CHILD}) USING parquet")

    def insert(rows: DataFrame) -> None:
        rows.sparkSession.sql("INSERT INTO test_sinks_sql SELECT * FROM {rows}", rows=rows)

    run.complete(writing(lambda tracker, rows: tracker.write_dataframe(rows, insert)))
    assert sorted(map(tuple, run.spark.table("test_sinks_sql").collect())) == BOTH


def test_dataframe_function_may_run_any_number_of_actions(case: MakeCase) -> None:
    """On rows computed once, which Spark drops afterwards; and every time the same rows."""
    run = case(n=20)
    before = stored_rdds(run.spark)
    seen: list[list[str]] = []

    def look(rows: DataFrame) -> None:
        assert rows.where("child = 0").count() == 20
        rows.foreachPartition(lambda some: None)
        seen.extend(sorted(row.uuid for row in rows.select("uuid").collect()) for _ in range(2))
        rows.join(rows.where("id < 3"), "id", "left_semi").select("id", "child").write.parquet(run.out)

    run.complete(
        writing(lambda tracker, rows: tracker.write_dataframe(rows.withColumn("uuid", F.expr("uuid()")), look))
    )
    assert seen[0] == seen[1] and len(seen[0]) == 40
    assert len(run.written()) == 6
    assert stored_rdds(run.spark) <= before


def test_dataframe_function_does_not_run_on_rows_that_are_missing(case: MakeCase) -> None:
    run = case(n=20)
    called: list[DataFrame] = []
    text = run.refused(
        writing(lambda tracker, rows: tracker.write_dataframe(rows.where("id <> 7"), called.append)),
        InexactPipelineError,
    )
    assert "missing or duplicated" in text
    assert called == []


def test_dataframe_function_that_raises_is_not_proven_by_its_rows(case: MakeCase) -> None:
    """Even where the pipeline catches the error."""
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        with pytest.raises(OSError, match="disk full"):
            tracker.write_dataframe(messages, raising, name="broken")

    assert "'broken' ended with an error" in run.refused(pipeline, InexactPipelineError)


def test_source_that_spark_reports_nothing_of_is_refused_before_it_writes(
    case: MakeCase, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark's console shows 20 of the rows, and is a source that gets a DataFrame, as Kafka's is."""
    run = case(n=30)
    for write in (
        lambda writer: writer.format("console").mode("append").save(),
        lambda writer: writer.save(mode="append", format="console"),
        lambda writer: writer.mode("append").saveAsTable("nowhere", "console"),
    ):
        text = run.refused(lambda tracker, rows: tracker.write(rows, write, name="show"), PipelineError)  # noqa: B023
        assert text.startswith("'show': Spark doesn't report which rows the source 'console' writes")
        assert "tracker.write_dataframe" in text and "tracker.write_partitions" in text
    text = run.refused(
        lambda tracker, rows: tracker.export(rows, lambda writer: writer.format("console").save()), PipelineError
    )
    assert "'console'" in text
    assert "only showing top" not in capfd.readouterr().out


SOURCES = ("org.apache.spark.sql.parquet", "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat")
"""Names that a client of Spark Connect doesn't know, so it tries them with no rows."""


@pytest.mark.parametrize("source", SOURCES)
def test_source_with_another_name_is_proven(case: MakeCase, source: str) -> None:
    run = case(n=20)
    run.complete(
        writing(
            lambda tracker, rows: tracker.write(
                rows,
                lambda writer: writer.partitionBy("child").save(run.out, source, mode="append", compression="none"),
            )
        )
    )
    assert sorted(run.written("id", "child")) == BOTH


def test_source_with_another_name_has_to_append_over_connect(case: MakeCase, spark: Any) -> None:
    if not is_connect(spark):
        pytest.skip("not in a classic session: it can look into a source")
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.export(messages, lambda writer: writer.format(SOURCES[0]).save(run.out))

    assert "is unknown over Spark Connect" in run.refused(pipeline, PipelineError)


def test_unknown_source_is_spark_s_own_error(case: MakeCase) -> None:
    ended = case(n=2).run(
        lambda tracker, rows: tracker.write(rows, lambda writer: writer.format("no.such").mode("append").save())
    )
    assert "no.such" in str(ended.error)
    assert ended.acked == set()


def raising(rows: Any) -> None:
    raise OSError("disk full")


SINKS: dict[str, Callable[[Case, Tracker, DataFrame, Any], object]] = {
    "write": lambda run, tracker, rows, on_error: tracker.write(rows, raising, on_error=on_error),
    "write_dataframe": lambda run, tracker, rows, on_error: tracker.write_dataframe(rows, raising, on_error=on_error),
    "write_data_source": lambda run, tracker, rows, on_error: tracker.write_data_source(
        rows, RowsToFiles, options={"folder": str(run.folder), "fail": "write"}, on_error=on_error
    ),
    "commit": lambda run, tracker, rows, on_error: tracker.write_data_source(
        rows, RowsToFiles, options={"folder": str(run.folder), "fail": "commit"}, on_error=on_error
    ),
    "write_partitions": lambda run, tracker, rows, on_error: tracker.write_partitions(
        rows, lambda batches, partition: raising(batches), on_error=on_error
    ),
}


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize(("on_error", "emissions"), [("raise", 1), ("fail", 2)])
def test_raising_sink_ends_the_emission_or_fails_its_rows(
    case: MakeCase, sink: str, on_error: OnError, emissions: int
) -> None:
    """Either way nothing is acked. Rows that fail end their messages; what raises in the driver is nobody's attempt."""
    run = case(n=6)  # each emission that breaks takes seconds
    ended = run.run(
        writing(lambda tracker, rows: SINKS[sink](run, tracker, rows, on_error)),
        retry=RetryPolicy(max_attempts=emissions, first_delay_secs=0),
    )
    if on_error == "raise" and sink == "write_data_source":  # which raises for one message, and is that one's alone
        assert (ended.acked, set(ended.letters)) == (set(range(1, 6)), {0})
        assert "disk full" in str(ended.letters[0].detail)
        return
    assert ended.acked == set()
    if sink in ("write", "write_dataframe", "commit"):  # no job failed
        assert (ended.emissions, ended.letters) == (1, {})
    if on_error == "raise" or not ended.letters:
        assert ("no commit" if sink == "commit" else "disk full") in str(ended.error)
    else:
        assert ended.kinds == {id: ["fail"] * emissions for id in range(6)}
        assert set(ended.letters) == set(range(6))
    assert all(("no commit" if sink == "commit" else "disk full") in (x.detail or "") for x in ended.letters.values())


@pytest.mark.usefixtures("one_attempt")
def test_failed_rows_of_a_sink_fail_only_their_messages(case: MakeCase) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, TWO)
        failing = {"folder": str(run.folder), "fail": "write"}
        tracker.write_data_source(
            tracker.filter(rows, "id < 5"), RowsToFiles, options=failing, on_error="fail", name="never"
        )
        tracker.write(tracker.filter(rows, "id >= 5"), run.append())

    ended = run.done(pipeline, retry=ONCE)
    assert set(ended.letters) == set(range(5))
    assert ended.reasons == {("OSError: disk full", "never"): 5}
    ended.check({id: [(id, 0), (id, 1)] for id in range(20)}, run.written())


def test_partition_write_raising_fails_its_rows(case: MakeCase) -> None:
    run = case(n=20, partitions=2)
    counts: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        write = run.partition_files(tracker, lambda row: row[0] == 13)
        counts.append(tracker.write_partitions(messages, write, on_error="fail", name="files"))

    ended = run.done(pipeline, retry=ONCE)
    assert counts == [20]
    assert ended.reasons == {("can't be written", "files"): 10}
    ended.check({id: [(id,)] for id in range(20)}, run.written(name="rows"))


def refusing_some(out: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    """A store that takes no child 1 of every seventh message, and no message 3 at all."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    refused: dict[int, str | RowFailedError] = {
        at: "duplicate" for at, row in enumerate(rows) if row["id"] % 7 == 0 and row["child"]
    }
    refused |= {at: RowFailedError("too long", retry=False) for at, row in enumerate(rows) if row["id"] == 3}
    taken = pa.Table.from_pylist([row for at, row in enumerate(rows) if at not in refused], CHILD_ARROW)
    pq.write_table(taken, Path(out) / f"{uuid.uuid4().hex}.parquet")
    if refused:
        raise RowsRefusedError(refused)


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_refused_by_a_store_fail_and_others_are_acked(case: MakeCase, partitions: int) -> None:
    run = case(n=20, partitions=partitions)
    Path(run.out).mkdir()
    counts: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, TWO)
        counts.append(tracker.write_partitions(rows, partial(refusing_some, run.out), on_error="fail", name="store"))

    ended = run.done(pipeline, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    assert (counts[0], sum(counts[1:])) == (40, 6)  # messages 0, 7 and 14 once more, in one emission or two
    assert {(message, one.attempts, one.detail) for message, one in ended.letters.items()} == {
        (0, 2, "duplicate"), (7, 2, "duplicate"), (14, 2, "duplicate"), (3, 1, "too long")
    }  # fmt: skip
    ended.check({id: [(id, 0), (id, 1)] for id in range(20)}, run.written())


@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_commit_failure_in_the_driver_is_recovered_by_a_rerun(case: MakeCase, on_error: OnError) -> None:
    run = case(n=20)
    options = {"folder": str(run.folder), "fail": "first commit"}

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_data_source(messages.repartition(3, "id"), RowsToFiles, options=options, on_error=on_error)

    ended = run.run(pipeline, retry=ONCE)
    assert ended.error is not None
    assert (ended.acked, ended.letters) == (set(), {})
    assert run.done(pipeline, retry=ONCE).acked == set(range(20))
    assert (run.folder / "aborted").read_text() == (run.folder / "committed").read_text() == "20"


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("sink", ["write_partitions", "write"])
def test_flat_map_error_is_not_attributed_to_the_sink(case: MakeCase, sink: str) -> None:
    """A sink that fails rows does not fail those that never reached it: the emission ends."""
    run = case(n=2)  # each emission that breaks takes seconds

    def broken(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise ZeroDivisionError("on purpose")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map(messages, broken, CHILD, on_error="raise")
        if sink == "write":
            tracker.write(derived, run.append(), on_error="fail")
        else:
            tracker.write_partitions(derived, consume, on_error="fail")

    ended = run.run(pipeline, retry=ONCE)
    assert ended.acked == set()
    assert "on purpose" in str(ended.error)
    assert all("on purpose" in (letter.detail or "") for letter in ended.letters.values())


def refuse_zero(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for batch in batches:
        if 0 in batch["id"].to_pylist():
            raise ValueError("disk full,\nof rows")


def refuse_zero_row(row: dict[str, Any]) -> list[tuple[int, int]]:
    if row["id"] == 0:
        raise ValueError("disk full")
    return [(row["id"], 0)]


def refuse_zero_id(message_id: int) -> int:
    refuse_zero_row({"id": message_id})
    return message_id


def refuse_zero_partition(rows: Iterator[Row]) -> None:
    for row in rows:
        refuse_zero_id(row["id"])


def refuse_zero_batch(batch: pa.RecordBatch) -> FlatMapOutput:
    refuse_zero(iter([batch]), 0)
    return FlatMapOutput(batch, np.arange(batch.num_rows))


RAISING: dict[str, Callable[[Case, Tracker, DataFrame], object]] = {
    "write_partitions": lambda run, tracker, rows: tracker.write_partitions(rows, refuse_zero, name="the store"),
    "write_data_source": lambda run, tracker, rows: tracker.write_data_source(
        rows, RowsToFiles, options={"folder": str(run.folder), "fail": "write"}, name="the store"
    ),
    "flat_map": lambda run, tracker, rows: tracker.write(
        tracker.flat_map(rows, refuse_zero_row, CHILD, on_error="raise", name="the store"), run.append()
    ),
    "flat_map_arrow": lambda run, tracker, rows: tracker.write(
        tracker.flat_map_arrow(rows, refuse_zero_batch, "id bigint", name="the store"), run.append()
    ),
    "expression": lambda run, tracker, rows: tracker.write(
        rows.withColumn("id", F.expr("if(id = 0, raise_error('disk full'), id)")), run.append(), name="the store"
    ),
    "udf": lambda run, tracker, rows: tracker.write(
        rows.withColumn("id", F.udf(refuse_zero_id, "bigint", useArrow=False)("id")), run.append(), name="the store"
    ),
    "write_dataframe": lambda run, tracker, rows: tracker.write_dataframe(
        rows, lambda frame: frame.foreachPartition(refuse_zero_partition), name="the store"
    ),
}


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("kind", RAISING)
def test_function_that_raises_in_a_job_or_else_its_sink_is_named_in_the_letter(case: MakeCase, kind: str) -> None:
    run = case(n=4)
    ended = run.done(partial(RAISING[kind], run), retry=ONCE)
    (letter,) = ended.letters.values()
    assert (letter.message_id, letter.last_component) == (0, "the store")
    assert letter.detail is not None and "disk full" in letter.detail


@pytest.mark.parametrize("source", [RowsToFiles, BatchesToFiles])
def test_python_data_source_sinks_complete(case: MakeCase, source: type[DataSource]) -> None:
    run = case(n=20)
    run.complete(
        writing(lambda tracker, rows: tracker.write_data_source(rows, source, options={"folder": str(run.folder)}))
    )
    assert (run.folder / "committed").read_text() == "40"


class TakingOne(FileWriter):
    def write(self, iterator: Iterator[Row]) -> Count:
        next(iterator)
        return Count(1)


class Careless(RowsToFiles):
    """Its writer takes one row of each partition."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TakingOne(Path(self.options["folder"]), "", schema.names)


def take_one(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    next(batches, None)


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("sink", ["write_partitions", "write_data_source"])
def test_sink_leaving_rows_unread_is_an_error(case: MakeCase, sink: str) -> None:
    run = case(n=1000)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if sink == "write_data_source":
            tracker.write_data_source(messages, Careless, options={"folder": str(run.folder)})
        else:
            tracker.write_partitions(messages, take_one)

    ended = run.run(pipeline, retry=ONCE)
    assert "before it had consumed" in str(ended.error)
    assert (ended.acked, run.acker.stats().acked) == (set(), 0)


def test_invalid_sink_arguments_are_refused(case: MakeCase) -> None:
    run = case(n=1)
    calls: list[Callable[[Tracker, DataFrame], object]] = [
        lambda tracker, rows: tracker.write_partitions(rows, consume, on_error="ignore"),  # type: ignore[arg-type]
        lambda tracker, rows: tracker.write(rows, raising, on_error="ignore"),  # type: ignore[arg-type]
        lambda tracker, rows: tracker.write_dataframe(rows, raising, on_error="timeout"),  # type: ignore[arg-type]
        lambda tracker, rows: tracker.write_data_source(rows, RowsToFiles, on_error="ignore"),  # type: ignore[arg-type]
    ]
    for call in calls:
        assert "Use 'fail' or 'raise'" in run.refused(call, PipelineError)
    unwritable: list[tuple[Callable[[Tracker, DataFrame], object], str]] = [
        (lambda tracker, rows: tracker.write(rows, "items"), "write: 'items' can't be called"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_dataframe(rows, None), "write_dataframe: None can't be called"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_dataframe(rows, lambda: None), "can't be called with 1 arguments"),  # type: ignore[arg-type,misc]
        (
            lambda tracker, rows: tracker.write_partitions(rows, lambda batches: None),  # type: ignore[arg-type,misc]
            "can't be called with 2 arguments (too many positional arguments)",
        ),
        (lambda tracker, rows: tracker.write_partitions(rows, "x"), "write_partitions: 'x' can't be"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_table(rows, "t", "items"), "write_table: 'items' can't be called"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_table(rows, "", print), "write_table: table='' is no name"),
        (lambda tracker, rows: tracker.export(rows, "items"), "export: 'items' can't be called"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_data_source(rows, "parquet"), "'parquet' is not a Python data"),  # type: ignore[arg-type]
        (lambda tracker, rows: tracker.write_data_source(rows, object), "is not a Python data source"),  # type: ignore[arg-type]
    ]
    for call, text in unwritable:
        assert text in run.refused(call, PipelineError)
    for types in (KeyError, (KeyError(),), ["KeyError"], (BaseException,)):
        wrong: Any = types
        for name, call in {
            "flat_map": lambda tracker, rows: tracker.flat_map(rows, list, "id bigint", no_retry=wrong),  # noqa: B023
            "write_partitions": lambda tracker, rows: tracker.write_partitions(rows, consume, no_retry=wrong),  # noqa: B023
        }.items():
            assert f"{name}: no_retry={wrong!r} is not a tuple of exceptions" in run.refused(call, PipelineError)
    assert "Pass on_error='fail'" in run.refused(
        lambda tracker, rows: tracker.write_partitions(rows, consume, no_retry=(KeyError,)), PipelineError
    )


def test_writer_writing_twice_counts_once(case: MakeCase) -> None:
    """Each of the two wrote everything."""
    run = case(n=20)

    def twice(writer: DataFrameWriter) -> None:
        writer.mode("append").parquet(run.out)
        writer.mode("append").parquet(str(run.folder / "again"))

    run.complete(writing(lambda tracker, rows: tracker.write(rows, twice)))
    assert ordered(run) == ordered(run, "again") == BOTH


def test_tracking_columns_do_not_reach_a_sink(case: MakeCase) -> None:
    run = case(n=5)
    seen: list[str] = []

    def look(rows: DataFrame) -> None:
        seen.extend(rows.columns)
        rows.count()

    run.complete(writing(lambda tracker, rows: tracker.write_dataframe(rows, look)))
    assert seen == ["id", "child"]


MODES: list[tuple[str, Callable[[DataFrameWriter, str], object]]] = [
    ("errorifexists", lambda w, path: w.parquet(path)),
    ("overwrite", lambda w, path: w.mode("Overwrite").parquet(path)),
    ("overwrite", lambda w, path: w.parquet(path, mode="overwrite")),
    ("ignore", lambda w, path: w.mode("append").save(path, "json", "ignore")),
    ("error", lambda w, path: w.mode("error").format("orc").save(path)),
    ("overwrite", lambda w, path: w.insertInto("nowhere", True)),
    ("overwrite", lambda w, path: w.mode("overwrite").insertInto("nowhere")),
    ("errorifexists", lambda w, path: w.option("path", path).saveAsTable("nowhere")),
    ("overwrite", lambda w, path: w.jdbc("jdbc:none", "t", "overwrite")),
    *(
        ("errorifexists", lambda w, path, method=method: getattr(w, method)(path))
        for method in ("json", "csv", "text", "orc", "xml")
    ),
]


@pytest.mark.parametrize("on_error", ["raise", "fail"])
@pytest.mark.parametrize(("mode", "write"), MODES)
def test_writer_that_does_not_append_is_refused(
    case: MakeCase, mode: str, write: Callable[[DataFrameWriter, str], object], on_error: OnError
) -> None:
    """Messages that failed are written again without the others."""
    run = case(n=6)
    tables = run.spark.catalog.listTables()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, lambda writer: write(writer, run.out), on_error=on_error, name="save")

    text = run.refused(pipeline, PipelineError)
    assert text.startswith(f"'save': mode '{mode}' would ")
    assert all(way in text for way in ('mode("append")', 'output="whole"', "allow_overwrite=True"))
    assert not Path(run.out).exists()
    assert run.spark.catalog.listTables() == tables


TABLE_WRITES: list[tuple[str, Callable[[DataFrameWriterV2], object]]] = [
    ("create() would fail", lambda w: w.using("parquet").create()),
    ("replace() would replace", lambda w: w.using("parquet").replace()),
    ("createOrReplace() would replace", lambda w: w.using("parquet").createOrReplace()),
    ("overwrite() would replace", lambda w: w.overwrite(F.col("id") > 3)),
    ("overwritePartitions() would replace", lambda w: w.overwritePartitions()),
]


@pytest.mark.parametrize(("harm", "write"), TABLE_WRITES)
def test_table_writer_that_does_not_append_is_refused(
    case: MakeCase, harm: str, write: Callable[[DataFrameWriterV2], object]
) -> None:
    run = case(n=6)
    tables = run.spark.catalog.listTables()
    text = run.refused(
        lambda tracker, rows: tracker.write_table(rows, "nowhere", write, name="save"),
        PipelineError,
    )
    assert text.startswith(f"'save': {harm}")
    assert all(way in text for way in ("append()", 'output="whole"', "allow_overwrite=True"))
    assert run.spark.catalog.listTables() == tables


def test_whole_output_must_replace_a_table(case: MakeCase) -> None:
    run = case(n=6)

    def replacing(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_table(
            messages, "whole_table", lambda w: w.using("parquet").partitionedBy(F.col("id")).createOrReplace()
        )

    # Both calls of the function are alike, though each makes a column of its own. Then Spark's own catalog refuses.
    assert "REPLACE TABLE" in str(run.run(replacing, output="whole").error)

    def appending(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_table(messages, "whole_table", lambda w: w.append())

    text = run.refused(appending, PipelineError, output="whole")
    assert text.startswith("'write_table': append() doesn't replace") and "createOrReplace()" in text


def test_table_writer_that_writes_nothing_is_refused(case: MakeCase) -> None:
    run = case(n=6)
    text = run.refused(
        lambda tracker, rows: tracker.write_table(rows, "nowhere", lambda w: w.option("a", "b")), InexactPipelineError
    )
    assert "called no method of the writer that writes" in text


def test_data_source_that_does_not_append_is_refused(case: MakeCase) -> None:
    run = case(n=6)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_data_source(messages, RowsToFiles, mode="overwrite", options={"folder": run.out})

    assert "mode 'overwrite' would replace" in run.refused(pipeline, PipelineError)


def test_partition_overwrite_is_accepted_with_allow_overwrite(case: MakeCase) -> None:
    """By those who say so. A mode that leaves out what is new may not be had for that."""
    run = case(n=6)
    options = {"partitionOverwriteMode": "dynamic"}

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.fail_where(messages.withColumn("day", F.col("id")), f"id = 3 AND {tracker.emission} = 0", "once")
        tracker.write(
            rows,
            lambda writer: writer.options(**options).partitionBy("day").mode("overwrite").parquet(run.out),
            allow_overwrite=True,
        )

    run.done(pipeline)
    assert sorted(run.written("id")) == [(id,) for id in range(6)]

    def ignoring(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, lambda writer: writer.mode("ignore").parquet(run.out), allow_overwrite=True)

    assert "mode 'ignore'" in case(n=6).refused(ignoring, PipelineError)


def test_documented_data_source_is_proven(case: MakeCase, tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    run_section(case(n=N), "Python data sources", lines_folder=str(folder))
