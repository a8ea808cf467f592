"""Writes that overwrite: does the write replace the rows of other messages, or leave out some that it should replace?"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark import Pipeline, Tracker, check_pipeline
from tests.support.spark.cases import Case, MakeCase

pytestmark = pytest.mark.spark

MODE = "spark.sql.sources.partitionOverwriteMode"
OPTION = "partitionOverwriteMode"

Write: TypeAlias = Callable[[DataFrameWriter, str], object]


@pytest.fixture
def mode(spark: Any) -> Iterator[Callable[[str], None]]:
    """Sets the session's mode. Spark's own is `static`."""
    yield lambda value: spark.conf.set(MODE, value)
    spark.conf.unset(MODE)


@pytest.fixture
def tables(spark: Any) -> Iterator[None]:
    columns = "id bigint, day bigint"
    own_mode = "OPTIONS ('PARTITIONOverwriteMode' = 'static')"
    spark.sql(f"CREATE TABLE by_day({columns}) USING parquet PARTITIONED BY (day)")
    spark.sql(f"CREATE TABLE alike({columns}) USING parquet")
    spark.sql(f"CREATE TABLE says_static({columns}) USING parquet {own_mode} PARTITIONED BY (day)")
    yield
    for name in ("by_day", "alike", "says_static", "saved"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def overwriting(run: Case, write: Write) -> Pipeline:
    """Each message has a day of its own, and one message comes through in its second attempt."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("day", F.col("id"))
        good = tracker.fail_where(rows, f"id = 3 AND {tracker.emission} = 0", "once")
        tracker.write(good, lambda writer: write(writer.mode("overwrite"), run.out), allow_overwrite=True, name="save")

    return pipeline


OWN_PARTITIONS: list[tuple[str, Write]] = [
    ("static", lambda w, path: w.partitionBy("day").option(OPTION, "dynamic").parquet(path)),
    ("static", lambda w, path: w.options(partitionoverwritemode="Dynamic").save(path, "json", partitionBy=["day"])),
    ("static", lambda w, path: w.save(path, "parquet", None, "day", partitionOverwriteMode="DYNAMIC")),
    ("dynamic", lambda w, path: w.parquet(path, partitionBy="day")),
    ("Dynamic", lambda w, path: w.partitionBy("day").csv(path)),
]


@pytest.mark.parametrize(("session", "write"), OWN_PARTITIONS)
def test_dynamic_overwrite_of_partitions_keeps_those_of_other_messages(
    case: MakeCase, mode: Callable[[str], None], session: str, write: Write
) -> None:
    run = case(n=6)
    mode(session)
    run.done(overwriting(run, write))
    assert sorted(folder.name for folder in Path(run.out).glob("day=*")) == [f"day={day}" for day in range(6)]


@pytest.mark.usefixtures("tables")
def test_insert_under_a_dynamic_session_keeps_partitions_of_other_messages(
    case: MakeCase, mode: Callable[[str], None]
) -> None:
    run = case(n=6)
    mode("dynamic")
    run.done(overwriting(run, lambda writer, _: writer.insertInto("by_day", True)))
    assert sorted(map(tuple, run.spark.table("by_day").collect())) == [(id, id) for id in range(6)]


OTHERS_TOO: list[tuple[str, Write, str]] = [
    ("static", lambda w, path: w.partitionBy("day").parquet(path), "Mode is 'static'"),
    ("dynamic", lambda w, path: w.partitionBy("day").option(OPTION, "static").parquet(path), "Mode is 'static'"),
    ("static", lambda w, path: w.option(OPTION, "dynamic").parquet(path), "without partitionBy"),
    (
        "static",
        lambda w, path: (
            w.partitionBy("day")
            .option(OPTION, "static")
            .option(OPTION.lower(), "dynamic")
            .option(OPTION, "static")
            .parquet(path)
        ),
        "Mode is 'static'",
    ),
    ("dynamic", lambda w, path: w.partitionBy([]).orc(path), "without partitionBy"),
    ("static", lambda w, path: w.option(OPTION, "dynamic").insertInto("by_day"), "Mode is 'static'"),
    ("dynamic", lambda w, path: w.insertInto("alike"), "is not partitioned"),
    ("dynamic", lambda w, path: w.insertInto("says_static"), "Mode is 'static'"),
    ("dynamic", lambda w, path: w.partitionBy("day").saveAsTable("saved"), "saveAsTable() would"),
    ("dynamic", lambda w, path: w.partitionBy("day").jdbc("jdbc:none", "t"), "jdbc() would"),
    ("dynamic", lambda w, path: w.partitionBy("day").format("jdbc").save(), "the source 'jdbc'"),
    ("dynamic", lambda w, path: w.partitionBy("day").format("noop").save(), "the source 'noop'"),
]


@pytest.mark.parametrize(("session", "write", "why"), OTHERS_TOO)
@pytest.mark.usefixtures("tables")
def test_overwrite_that_reaches_other_messages_is_refused(
    case: MakeCase, mode: Callable[[str], None], session: str, write: Write, why: str
) -> None:
    """With 20 messages and one in its second attempt, 20 were acked and one was left."""
    run = case(n=6)
    mode(session)
    text = run.refused(overwriting(run, write), PipelineError)
    assert text.startswith("'save': ") and "of other messages" in text and why in text
    assert all(way in text for way in ("partitionBy", '"dynamic"', "insertInto", "write_dataframe"))
    assert not Path(run.out).exists()
    assert not run.spark.catalog.tableExists("saved")


@pytest.mark.parametrize("method", ["createOrReplace", "replace", "overwritePartitions"])
@pytest.mark.usefixtures("tables")
def test_table_writer_that_replaces_other_messages_is_refused(case: MakeCase, method: str) -> None:
    """`overwritePartitions` replaces all of a table without partitions."""
    run = case(n=6)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("day", F.col("id"))
        tracker.write_table(rows, "alike", lambda w: getattr(w.using("parquet"), method)(), allow_overwrite=True)

    text = run.refused(pipeline, PipelineError)
    assert f"{method}() " in text and "of other messages" in text and "overwritePartitions()" in text


def nightly(run: Case, write: Write) -> Callable[..., Any]:
    """Function that runs Monday with six days or Tuesday with two, as a whole."""

    def night(days: int, session: str, mode: Callable[[str], None]) -> Any:
        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            rows = messages.withColumn("day", F.col("id"))
            tracker.write(rows, lambda writer: write(writer.mode("overwrite"), run.out), name="save")

        mode(session)
        return run.run(pipeline, run.spark.range(days), output="whole").error

    return night


KEEPING: list[Write] = [
    lambda w, path: w.partitionBy("day").parquet(path),
    lambda w, path: w.format("orc").save(path, partitionBy="day"),
    lambda w, path: w.partitionBy("day").option(OPTION, None).parquet(path),
    lambda w, path: w.partitionBy("day").option(OPTION, "static").option(OPTION.upper(), None).parquet(path),
    lambda w, path: w.insertInto("by_day"),
    lambda w, path: w.option(OPTION, "static").insertInto("by_day"),
    lambda w, path: w.partitionBy("day").option("path", path).saveAsTable("saved"),
]


@pytest.mark.parametrize("write", KEEPING)
@pytest.mark.usefixtures("tables")
def test_whole_output_under_a_dynamic_session_is_refused(
    case: MakeCase, mode: Callable[[str], None], write: Write
) -> None:
    """Six partitions of Monday would stay on Tuesday. Only the user knows whether that is meant."""
    run = case(n=6)
    night = nightly(run, write)
    error = night(6, "dynamic", mode)
    assert type(error) is PipelineError, error
    assert str(error).startswith("'save': ")
    assert all(word in str(error) for word in ("Mode is 'dynamic'", '"static"', '"dynamic"', "insertInto"))
    assert not Path(run.out).exists()
    assert run.spark.table("by_day").isEmpty()


@pytest.mark.usefixtures("tables")
def test_insert_into_a_table_that_says_dynamic_is_refused_for_a_whole_output(
    case: MakeCase, mode: Callable[[str], None]
) -> None:
    run = case(n=6)
    run.spark.sql("ALTER TABLE by_day SET SERDEPROPERTIES ('partitionOverwriteMode' = 'dynamic')")
    error = nightly(run, lambda w, _: w.insertInto("by_day"))(6, "static", mode)
    assert type(error) is PipelineError and "Mode is 'dynamic'" in str(error)


def test_insert_into_a_view_of_a_partitioned_folder_is_refused_for_a_whole_output(
    case: MakeCase, mode: Callable[[str], None], tmp_path: Path
) -> None:
    """Four days of Monday stayed on Tuesday."""
    run, folder = case(n=6), tmp_path / "by day"
    run.spark.range(4).withColumn("day", F.col("id")).write.partitionBy("day").parquet(str(folder))
    run.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a_view USING parquet OPTIONS (path '{folder}')")
    error = nightly(run, lambda w, _: w.insertInto("a_view", True))(2, "dynamic", mode)
    assert type(error) is PipelineError and "Mode is 'dynamic'" in str(error)
    assert run.spark.read.parquet(str(folder)).count() == 4


REPLACING: list[tuple[Write, int]] = [
    (lambda w, path: w.partitionBy("day").option(OPTION, "static").parquet(path), 2),
    (lambda w, path: w.partitionBy("day").option(OPTION, "dynamic").parquet(path), 6),
    (lambda w, path: w.parquet(path), 2),
    (lambda w, path: w.partitionBy("day").saveAsTable("saved"), 2),
    (lambda w, path: w.partitionBy("day").options(path=path, **{OPTION: "STATIC"}).saveAsTable("saved"), 2),
    (lambda w, path: w.insertInto("alike"), 2),
]


@pytest.mark.parametrize(("write", "left"), REPLACING)
@pytest.mark.usefixtures("tables")
def test_whole_output_under_a_dynamic_session_replaces_what_its_writer_says(
    case: MakeCase, mode: Callable[[str], None], write: Write, left: int
) -> None:
    """Writers without partitions, and Spark's own tables, replace everything in each mode."""
    run = case(n=6)
    night = nightly(run, write)
    assert night(6, "dynamic", mode) is None
    assert night(2, "dynamic", mode) is None
    found = run.spark.read.parquet(run.out) if Path(run.out).exists() else None
    names = [name for name in ("saved", "alike") if found is None and run.spark.catalog.tableExists(name)]
    assert max(run.spark.table(name).count() for name in names) == left if found is None else found.count() == left


def test_check_of_a_pipeline_refuses_a_whole_output_under_a_dynamic_session(
    case: MakeCase, mode: Callable[[str], None]
) -> None:
    run = case(n=6)
    mode("dynamic")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("day", F.col("id"))
        tracker.write(rows, lambda writer: writer.partitionBy("day").mode("overwrite").parquet(run.out))

    with pytest.raises(PipelineError, match="Mode is 'dynamic'"):
        check_pipeline(run.messages, pipeline, ids="id", output="whole")
