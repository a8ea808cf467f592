"""A whole output that reads what it replaces: yesterday's totals and today's orders, written over yesterday's totals."""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from acker_redis import PipelineError
from acker_redis.spark import Once, Pipeline, Tracker, check_pipeline, read_files
from acker_redis.spark.sinks.folders import plain
from acker_redis.spark.sinks.stored import Stored
from acker_redis.spark.sinks.stored_reads import _BRANCH
from tests.support.spark.cases import Case, MakeCase

pytestmark = pytest.mark.spark

Read: TypeAlias = Callable[[Any, str], DataFrame]
Write: TypeAlias = Callable[[DataFrameWriter, str], object]

N = 6


@pytest.fixture
def totals(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A folder that is the table `totals`, too, and has a view and a temporary view."""
    folder = str(tmp_path / "totals")
    rows = spark.range(N).selectExpr("100 AS total", "id AS key")
    rows.write.option("path", folder).partitionBy("key").saveAsTable("totals")
    spark.sql("CREATE VIEW totals_by_name AS SELECT * FROM totals")
    spark.read.parquet(folder).createOrReplaceTempView("totals_by_folder")
    yield folder
    spark.sql("DROP VIEW totals_by_name")
    spark.catalog.dropTempView("totals_by_folder")
    spark.sql("DROP TABLE totals")


def adding(read: Read, write: Write, folder: str) -> Pipeline:
    """Each message adds 20 to the total of its key."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        before = read(messages.sparkSession, folder).select(F.col("key").cast("bigint").alias("id"), "total")
        rows = tracker.join(messages, before.groupBy("id").agg(F.sum("total").alias("total")), "id", "left")
        added = rows.withColumn("total", F.expr("total + 20")).withColumnRenamed("id", "key")
        tracker.write(added, lambda writer: write(writer.mode("overwrite"), folder), name="write")

    return pipeline


def to_folder(writer: DataFrameWriter, folder: str) -> None:
    writer.partitionBy("key").parquet(folder)


def refused(run: Case, pipeline: Pipeline) -> str:
    return run.refused(pipeline, PipelineError, output="whole")


def refuses_its_source(run: Case, pipeline: Pipeline) -> bool:
    """Return True if the error names the sink with its target, the reader with its source, and the way out."""
    words = r"'write': the output replaces '(.+)', and the rows of '.+' are read from '(.+)'\. .+ Write to another target\b.*"
    return re.fullmatch(words, refused(run, pipeline)) is not None


def test_retry_would_count_the_replaced_table_again(case: MakeCase, totals: str) -> None:
    """Without the refusal, the totals were 140 after a second sink had failed once."""
    run = case(n=N)
    tried: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        adding(lambda spark, folder: spark.read.parquet(folder), to_folder, totals)(tracker, messages)
        tracker.write_dataframe(messages, second)

    def second(rows: DataFrame) -> None:
        tried.append(1)
        if len(tried) == 1:
            rows.select(F.raise_error(F.lit("the store is away"))).collect()
        rows.collect()

    text = refused(run, pipeline)
    assert text.startswith("'write': the output replaces ") and "of 'write' are read from" in text
    assert text.endswith("Write to another target.")  # files have no versions
    assert tried == []
    assert {row["total"] for row in run.spark.read.parquet(totals).collect()} == {100}


READS: list[Read] = [
    lambda spark, folder: spark.read.parquet(folder),
    lambda spark, folder: spark.read.parquet(f"file:{folder}/"),
    lambda spark, folder: spark.read.option("basePath", folder).parquet(f"{folder}/key=1"),
    lambda spark, folder: spark.read.option("basePath", folder).parquet(f"{folder}/key=[1-3]"),
    lambda spark, folder: spark.read.format("parquet").option("path", folder).load(),
    lambda spark, _: spark.read.table("totals"),
    lambda spark, _: spark.table("TOTALS_by_name"),
    lambda spark, _: spark.table("totals_by_folder"),
    lambda spark, folder: spark.sql(f"SELECT * FROM parquet.`{folder}`"),
    lambda spark, _: spark.range(N).selectExpr("id AS key", "(SELECT max(total) FROM totals) AS total"),
    lambda spark, _: spark.sql("WITH t AS (SELECT * FROM totals) SELECT * FROM t WHERE key IN (SELECT key FROM t)"),
    lambda spark, _: spark.range(N).where("id IN (SELECT key FROM totals)").selectExpr("id AS key", "1 AS total"),
    lambda spark, folder: spark.read.parquet(folder).persist(),
    lambda spark, folder: spark.read.parquet(relative(folder)),
    lambda spark, folder: spark.read.parquet(link_to(folder)),
    lambda spark, folder: spark.read.parquet(f"{link_to(str(Path(folder).parent))}/totals"),
    lambda spark, folder: spark.read.parquet(f"{link_to(str(Path(folder).parent))}/total[s]"),
    lambda spark, folder: spark.read.option("versionAsOf", "1").parquet(folder),
    lambda spark, folder: spark.read.option("versionAsOf", "1").table(f"parquet.`{folder}`"),
    lambda spark, folder: read_files(spark, folder, "parquet", "total int").selectExpr("row AS key", "total"),
    lambda spark, folder: read_files(spark, relative_here(folder), "parquet", "total int").selectExpr(
        "row AS key", "*"
    ),
    lambda spark, folder: read_files(spark, f"file://{folder}", "text").selectExpr("row AS key", "1 AS total"),
]

WRITES: list[Write] = [
    to_folder,
    lambda w, folder: w.format("parquet").option("path", folder).save(),
    lambda w, folder: w.format("parquet").option("PATH", folder).save(),
    lambda w, folder: w.format("parquet").save(**{"PATH": folder}),
    lambda w, folder: w.option("Path", folder).saveAsTable("another"),
    lambda w, folder: w.json(str(Path(folder).parent)),
    lambda w, folder: w.parquet(f"{folder}/key=1"),
    lambda w, folder: w.insertInto("totals"),
    lambda w, folder: w.option("path", folder).saveAsTable("another"),
    lambda w, _: w.saveAsTable("totals"),
    lambda w, folder: to_folder(w, relative(folder)),
    lambda w, folder: to_folder(w, link_to(folder)),
    lambda w, folder: to_folder(w, f"{link_to(str(Path(folder).parent))}/totals/key=1/new/er"),
]


def relative(folder: str) -> str:
    """Return the folder's name below the working directory, which is another one in a server."""
    return "../" * 20 + folder.lstrip("/")


def relative_here(folder: str) -> str:
    """Return the folder's name below the working directory of this process."""
    return os.path.relpath(folder)


def link_to(folder: str) -> str:
    """Another name of a folder."""
    link = Path(f"{folder}-link")
    if not link.exists():
        link.symlink_to(folder)
    return str(link)


@pytest.mark.parametrize("read", READS)
def test_output_over_its_source_is_refused_however_it_is_read(case: MakeCase, totals: str, read: Read) -> None:
    run = case(n=N)
    assert refuses_its_source(run, adding(read, to_folder, totals))
    assert run.spark.read.parquet(totals).count() == N


@pytest.mark.classic("a client learns the folders of a table and its files, and not those that are to be")
def test_partition_in_another_folder_is_part_of_its_table(case: MakeCase, totals: str, tmp_path: Path) -> None:
    run, other = case(n=N), str(tmp_path / "elsewhere")
    run.spark.read.parquet(totals).drop("key").withColumn("key", F.lit(7).cast("bigint")).write.parquet(other)
    run.spark.sql(f"ALTER TABLE totals ADD PARTITION (key=7) LOCATION '{other}'")
    run.spark.catalog.refreshTable("totals")
    read: Read = lambda spark, _: spark.table("totals")  # noqa: E731
    text = refused(run, adding(read, lambda w, _: w.parquet(f"{other}/new"), totals))
    assert "elsewhere/new" in text and "totals" in text


@pytest.mark.classic("a client asks its server for a table by its name, which has it from the view")
def test_temporary_view_does_not_hide_the_table_of_its_name(case: MakeCase, totals: str) -> None:
    run = case(n=N)
    run.spark.range(N).createOrReplaceTempView("totals")
    try:
        read: Read = lambda spark, _: spark.table("default.totals")  # noqa: E731
        text = refused(run, adding(read, lambda w, _: w.saveAsTable("totals"), totals))
    finally:
        run.spark.catalog.dropTempView("totals")
    assert "the output replaces" in text


@pytest.mark.classic("a client doesn't know where links of its server lead to")
def test_folder_by_another_file_system_is_recognised(case: MakeCase, totals: str) -> None:
    run, mount = case(n=N), "fs.viewfs.mounttable.c.link./data"
    conf = run.spark._jsc.hadoopConfiguration()  # noqa: SLF001
    conf.set(mount, f"file:{Path(totals).parent}")
    try:
        read: Read = lambda spark, _: spark.read.parquet("viewfs://c/data/totals")  # noqa: E731
        assert refuses_its_source(run, adding(read, to_folder, totals))
        read = lambda spark, folder: spark.read.parquet(folder)  # noqa: E731
        write: Write = lambda w, _: to_folder(w, "viewfs://c/data/totals/new/er")  # noqa: E731
        assert refuses_its_source(run, adding(read, write, totals))
    finally:
        conf.unset(mount)


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("s3://b/t", "s3a://b/t", True),
        ("s3n://b/t/x", "s3://b/t", True),
        ("hdfs://nn/t", "hdfs://nn:8020/t", True),
        ("hdfs://nn/t", "hdfs://nn:9000/t", False),
        ("s3://b/t", "gs://b/t", False),
    ],
)
def test_folders_of_one_store_by_two_names(one: str, other: str, *, are_same: bool) -> None:
    stored = [Stored(folders=frozenset([plain(path)])) for path in (one, other)]
    assert stored[0].overlaps(stored[1]) is stored[1].overlaps(stored[0]) is are_same


@pytest.fixture
def settings(spark: Any) -> Iterator[Callable[[dict[str, str]], None]]:
    """Sets settings of the session for one test."""
    before: dict[str, str | None] = {}

    def change(values: dict[str, str]) -> None:
        for name, value in values.items():
            before[name] = spark.conf.get(name, None)
            spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def test_files_have_no_versions(case: MakeCase, totals: str, settings: Callable[[dict[str, str]], None]) -> None:
    """Not in sources of Spark's newer interface either, which keep options that nobody reads."""
    settings({"spark.sql.sources.useV1SourceList": ""})
    run = case(n=N)
    read: Read = lambda spark, folder: spark.read.option("versionAsOf", "1").parquet(folder)  # noqa: E731
    assert "versionAsOf" not in refused(run, adding(read, to_folder, totals))
    assert run.spark.read.parquet(totals).count() == N


@pytest.mark.parametrize("write", WRITES)
def test_output_over_its_source_is_refused_however_it_is_written(case: MakeCase, totals: str, write: Write) -> None:
    run = case(n=N)
    assert refuses_its_source(run, adding(lambda spark, _: spark.table("totals"), write, totals))
    assert run.spark.read.parquet(totals).count() == N
    assert not run.spark.catalog.tableExists("another")


def test_messages_over_their_source_are_refused(case: MakeCase, totals: str) -> None:
    run = case(n=N)
    messages = run.spark.table("totals").selectExpr("CAST(key AS bigint) AS id", "total")

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: to_folder(writer.mode("overwrite"), totals))

    with pytest.raises(PipelineError, match="the output replaces"):
        check_pipeline(messages, pipeline, ids="id", output="whole")
    assert "the output replaces" in run.refused(pipeline, PipelineError, messages, output="whole")


@pytest.mark.parametrize("replaces_first", [True, False])
def test_sink_reading_the_target_of_another_is_refused(case: MakeCase, totals: str, replaces_first: bool) -> None:
    run = case(n=N)

    def compare(tracker: Tracker, messages: DataFrame) -> None:
        before = messages.sparkSession.table("totals").selectExpr("CAST(key AS bigint) AS id", "total")
        rows = tracker.join(messages, before, "id", "left")
        tracker.write_dataframe(rows, lambda found: found.collect(), name="compare")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if not replaces_first:
            compare(tracker, messages)
        rows = messages.selectExpr("*", "1 AS total", "id AS key")
        tracker.write(rows, lambda writer: to_folder(writer.mode("overwrite"), totals), name="totals")
        if replaces_first:
            compare(tracker, messages)

    text = refused(run, pipeline)
    assert text.startswith("'totals': the output replaces ") and "of 'compare' are read from" in text


def test_checkpoint_does_not_hide_the_replaced_table(case: MakeCase, totals: str) -> None:
    run = case(n=N)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        before = messages.sparkSession.table("totals").selectExpr("CAST(key AS bigint) AS id", "total")
        rows = tracker.local_checkpoint(tracker.join(messages, before, "id", "left"), name="kept")
        tracker.write(rows.selectExpr("*", "id AS key"), lambda writer: to_folder(writer.mode("overwrite"), totals))

    assert "of 'kept' are read from" in refused(run, pipeline)


def test_output_beside_its_source_is_written(case: MakeCase, totals: str) -> None:
    """The name of the other folder begins like that of the source."""
    run = case(n=N)
    beside = f"{totals}-of-today"
    pipeline = adding(lambda spark, _: spark.table("totals"), lambda w, _: w.partitionBy("key").parquet(beside), totals)
    run.complete(pipeline, output="whole")
    assert {row["total"] for row in run.spark.read.parquet(beside).collect()} == {120}


def test_output_by_message_may_read_its_target(case: MakeCase, totals: str) -> None:
    """It appends, and a replay has no messages that were acked."""
    run = case(n=N)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        before = messages.sparkSession.read.parquet(totals).selectExpr("CAST(key AS bigint) AS id", "total").distinct()
        rows = tracker.join(messages, before, "id", "left").withColumnRenamed("id", "key")
        tracker.write(rows, lambda writer: to_folder(writer.mode("append"), totals))

    run.complete(pipeline)
    assert run.spark.read.parquet(totals).count() == 2 * N


def rejects(writer: DataFrameWriter, folder: str) -> None:
    writer.parquet(f"{folder}/rejects")


def overwriting(write: Write, folder: str, writer: DataFrameWriter) -> None:
    write(writer.mode("overwrite"), folder)


TWO_SINKS: dict[str, tuple[Write, Write]] = {
    "a folder in the other": (rejects, lambda w, folder: w.parquet(folder)),
    "one folder": (lambda w, folder: w.parquet(folder), lambda w, folder: w.parquet(folder)),
    "one table": (lambda w, _: w.saveAsTable("regions"), lambda w, _: w.saveAsTable("regions")),
    "partitions, and everything": (
        lambda w, folder: w.option("partitionOverwriteMode", "dynamic").partitionBy("part").parquet(folder),
        lambda w, folder: w.partitionBy("part").parquet(folder),
    ),
}


@pytest.mark.parametrize("kind", TWO_SINKS)
def test_sinks_of_a_whole_output_that_replace_each_other_are_refused(case: MakeCase, tmp_path: Path, kind: str) -> None:
    """Six of nine rows were missing, without a failure, and all were acked."""
    run, folder = case(n=9), str(tmp_path / "report")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        for part, write in enumerate(TWO_SINKS[kind]):
            rows = tracker.filter(messages, f"id % 2 = {part}").withColumn("part", F.lit(part))
            tracker.write(rows, partial(overwriting, write, folder), name=f"part {part}")

    text = refused(run, pipeline)
    assert text.startswith("'part 1': the output replaces ") and "so does that of 'part 0': " in text
    assert not Path(folder).exists() and not run.spark.catalog.tableExists("regions")


def test_sinks_that_replace_partitions_of_their_own_are_written(case: MakeCase, tmp_path: Path) -> None:
    run, folder = case(n=9), str(tmp_path / "report")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        for part in range(2):
            rows = tracker.filter(messages, f"id % 2 = {part}").withColumn("part", F.lit(part))
            tracker.write(
                rows,
                lambda w: (
                    w.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("part").parquet(folder)
                ),
                name=f"part {part}",
            )

    run.complete(pipeline, output="whole")
    assert run.spark.read.parquet(folder).count() == 9


def new_in(tracker: Tracker, messages: DataFrame) -> DataFrame:
    """Leave out what the target has already."""
    return tracker.filter(messages, "id NOT IN (SELECT key FROM totals)")


def to_totals(writer: DataFrameWriter) -> None:
    writer.mode("append").insertInto("totals")


@pytest.mark.parametrize("first", ["totals", "events"])
def test_sink_that_reads_what_another_appends_to_is_refused(case: MakeCase, totals: str, first: str) -> None:
    """The second sink computed the rows again, when the first had them. So it was empty, and all were acked."""
    run = case(n=9)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        new = new_in(tracker, messages)
        sinks: dict[str, Any] = {"totals": to_totals, "events": run.append()}
        for name in sorted(sinks, key=lambda name: name != first):
            rows = new.selectExpr("100 AS total", "id AS key", "_share", "_roots") if name == "totals" else new
            tracker.write(rows, sinks[name], name=name)

    with pytest.raises(PipelineError, match=r"'events': its rows are read from .* to which 'totals' writes"):
        check_pipeline(run.messages, pipeline, ids="id")
    assert run.spark.table("totals").count() == N
    ended = run.run(pipeline)
    assert isinstance(ended.error, PipelineError) and "to which 'totals' writes in the same run" in str(ended.error)
    assert ended.acked == set() and ended.letters == {}


def test_sink_may_leave_out_what_its_own_target_has(case: MakeCase, totals: str) -> None:
    run = case(n=9)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = new_in(tracker, messages).selectExpr("100 AS total", "id AS key", "_share", "_roots")
        tracker.write(rows, to_totals)

    run.complete(pipeline)
    assert run.spark.table("totals").count() == 9


SOURCES: dict[str, Read] = {
    "without what is there": lambda spark, _: spark.range(9).join(
        spark.table("totals").selectExpr("CAST(key AS bigint) AS id"), "id", "left_anti"
    ),
    "numbered behind what is there": lambda spark, _: spark.sql(
        "SELECT (SELECT max(CAST(key AS bigint)) FROM totals) + id AS id FROM range(1, 9)"
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_messages_read_from_the_target_of_a_sink_are_refused(case: MakeCase, totals: str, source: str) -> None:
    """Each emission reads them again. A thousand of two thousand rows were missing, and a thousand there twice."""
    run = case(n=9)
    messages = SOURCES[source](run.spark, totals)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows.selectExpr("100 AS total", "id AS key", "_share", "_roots"), to_totals)

    text = run.refused(pipeline, PipelineError, messages)
    assert text.startswith("'write': the messages are read from ") and "localCheckpoint()" in text
    assert run.spark.table("totals").count() == N
    kept = messages.localCheckpoint()
    count = kept.count()
    assert len(run.done(pipeline, kept).acked) == count
    run.spark.catalog.refreshTable("totals")
    assert run.spark.table("totals").count() == N + count


@pytest.mark.classic("a client's server lists the files for each request")
def test_files_that_were_listed_before_the_run_may_get_others_beside_them(case: MakeCase, tmp_path: Path) -> None:
    run, folder = case(n=9), str(tmp_path / "orders")
    run.spark.range(9).write.parquet(folder)
    messages = run.spark.read.parquet(folder)
    run.done(lambda t, m: t.write(m, lambda w: w.mode("append").parquet(folder)), messages, max_spout_pending=2)
    assert run.spark.read.parquet(folder).count() == 18


def test_file_whose_name_looks_like_a_partition_is_none(case: MakeCase, tmp_path: Path) -> None:
    run, inbox = case(n=9), tmp_path / "inbox"
    run.spark.range(9).coalesce(1).write.parquet(str(tmp_path / "one"))
    inbox.mkdir()
    (file,) = (tmp_path / "one").glob("*.parquet")
    file.rename(inbox / "day=2024-01-01.parquet")
    messages = run.spark.read.parquet(str(inbox / "day=2024-01-01.parquet"))

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda w: w.mode("append").parquet(str(inbox)), name="inbox")
        tracker.write(rows, run.append(), name="out")

    run.done(pipeline, messages)
    assert run.spark.read.parquet(str(inbox)).count() == 18


def test_sinks_of_another_emission_are_not_taken_for_those_of_the_same_name(case: MakeCase, tmp_path: Path) -> None:
    """Sinks without names are numbered, and each emission may have others."""
    run = case(n=6)
    for part in range(2):
        run.spark.createDataFrame([], "id bigint").write.parquet(str(tmp_path / f"part{part}"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        for part in sorted({row["id"] // 4 for row in messages.select("id").collect()}, reverse=True):
            folder = str(tmp_path / f"part{part}")
            new = tracker.filter(messages, f"id div 4 = {part} AND id NOT IN (SELECT id FROM parquet.`{folder}`)")
            tracker.write(new, lambda w, folder=folder: w.mode("append").parquet(folder))  # type: ignore[misc]

    run.done(pipeline, max_spout_pending=3)
    assert [run.spark.read.parquet(str(tmp_path / f"part{part}")).count() for part in range(2)] == [4, 2]


@pytest.mark.classic("output once needs a classic session")
@pytest.mark.parametrize("first", ["done", "events"])
def test_output_once_may_read_what_another_sink_appends_to(case: MakeCase, tmp_path: Path, first: str) -> None:
    run, done, events = case(n=9), str(tmp_path / "done"), str(tmp_path / "events")
    run.spark.range(2).write.parquet(done)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        new = tracker.filter(messages, f"id NOT IN (SELECT id FROM parquet.`{done}`)")
        for folder in sorted((done, events), key=lambda folder: not folder.endswith(first)):
            tracker.write(new, lambda w, folder=folder: w.mode("append").parquet(folder), name=Path(folder).name)  # type: ignore[misc]

    run.done(pipeline, once=Once(str(tmp_path / "log"), data="monday"))
    assert [run.spark.read.parquet(folder).count() for folder in (done, events)] == [9, 7]


def test_source_with_paths_of_its_own_is_no_error(case: MakeCase) -> None:
    run = case(n=3)
    run.done(lambda t, m: t.write(m, lambda w: w.mode("append").format("noop").save("project:data.table")))


def test_sink_in_a_subfolder_of_its_source_is_written(case: MakeCase, tmp_path: Path) -> None:
    """Spark doesn't read it, because it is no partition."""
    run, folder = case(n=9), str(tmp_path / "orders")
    run.spark.range(9).write.json(folder)
    messages = run.spark.read.schema("id bigint").json(folder)
    run.done(lambda t, m: t.write(m, lambda w: w.mode("append").json(f"{folder}/out")), messages)
    assert run.spark.read.json(f"{folder}/out").count() == 9


def test_partition_that_is_read_and_overwritten_by_message_is_refused(case: MakeCase, totals: str) -> None:
    """An emission that was repeated counted 140 for 120."""
    run = case(n=N)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        before = messages.sparkSession.read.parquet(totals).selectExpr("CAST(key AS bigint) AS id", "total").distinct()
        rows = tracker.join(messages, before, "id", "left").withColumn("total", F.expr("CAST(total + 20 AS int)"))
        tracker.write(
            rows.withColumnRenamed("id", "key"),
            lambda w: to_folder(w.mode("overwrite").option("partitionOverwriteMode", "dynamic"), totals),
            allow_overwrite=True,
        )

    text = run.refused(pipeline, PipelineError)
    assert text.startswith("'write': its rows are read from ") and "which it overwrites" in text


def test_temporary_view_with_the_name_of_a_new_table_is_not_what_is_replaced(case: MakeCase, tmp_path: Path) -> None:
    run, raw = case(n=9), str(tmp_path / "raw")
    run.spark.range(9).write.json(raw)
    run.spark.read.schema("id bigint").json(raw).createOrReplaceTempView("new_orders")
    messages = run.spark.table("new_orders")
    try:
        run.done(
            lambda t, m: t.write(m, lambda w: w.mode("overwrite").saveAsTable("new_orders")), messages, output="whole"
        )
        assert run.spark.table("default.new_orders").count() == 9
    finally:
        run.spark.catalog.dropTempView("new_orders")
        run.spark.sql("DROP TABLE IF EXISTS default.new_orders")


class Store(DataSource):
    """A source in Python, which keeps its rows in a folder."""

    @classmethod
    def name(cls) -> str:
        return "store_of_totals"

    def schema(self) -> str:
        return "key bigint, total int"

    def reader(self, schema: StructType) -> DataSourceReader:
        pytest.fail("it was read")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        pytest.fail("it was written")


def test_source_in_python_is_compared_by_its_path(case: MakeCase, tmp_path: Path) -> None:
    run, place = case(n=N), str(tmp_path / "store")
    run.spark.dataSource.register(Store)
    read: Read = lambda spark, folder: spark.read.format("store_of_totals").load(folder)  # noqa: E731
    write: Write = lambda w, folder: w.format("store_of_totals").save(folder)  # noqa: E731
    assert refuses_its_source(run, adding(read, write, place))


@pytest.fixture
def database(spark: Any, tmp_path: Path) -> str:
    """URL of a database with the table `totals`. Spark brings Derby, so it is real."""
    url = f"jdbc:derby:memory:{tmp_path.name}"
    spark.range(N).selectExpr("100 AS total", "id AS key").write.jdbc(f"{url};create=true", "totals")
    return url


def queried(spark: Any, url: str, query: str) -> DataFrame:
    found: DataFrame = spark.read.format("jdbc").option("url", url).option("query", query).load()
    return found


def of_view(spark: Any, rows: DataFrame) -> DataFrame:
    """The same rows by a name."""
    rows.createOrReplaceTempView("of_database")
    found: DataFrame = spark.table("of_database")
    return found


OF_DATABASE: list[tuple[str, Read, Write]] = [
    ("names", lambda spark, url: spark.read.jdbc(url, "totals"), lambda w, url: w.jdbc(url, "totals")),
    ("case", lambda spark, url: spark.read.jdbc(url, "TOTALS"), lambda w, url: w.jdbc(url, "totals")),
    ("quotes", lambda spark, url: spark.read.jdbc(url, '"TOTALS"'), lambda w, url: w.jdbc(url, "totals")),
    ("schema", lambda spark, url: spark.read.jdbc(url, "app.totals"), lambda w, url: w.jdbc(url, "totals")),
    ("schemas", lambda spark, url: spark.read.jdbc(url, '"APP" . TOTALS'), lambda w, url: w.jdbc(url, "app.totals")),
    ("URL", lambda spark, url: spark.read.jdbc(f"{url};create=true", "totals"), lambda w, url: w.jdbc(url, "totals")),
    ("URL", lambda spark, url: spark.read.jdbc(url, "totals"), lambda w, url: w.jdbc(f"{url};x=y", "totals")),
    (
        "options",
        lambda spark, url: spark.read.jdbc(url, " totals"),
        lambda w, url: w.format("org.apache.spark.sql.jdbc").options(url=url, DBTABLE="totals").save(),
    ),
    ("query", lambda spark, url: queried(spark, url, "SELECT * FROM totals"), lambda w, url: w.jdbc(url, "totals")),
    (
        "query",
        lambda spark, url: spark.read.jdbc(url, "(SELECT * FROM totals) AS t"),
        lambda w, url: w.jdbc(f"{url};x=y", "of_today"),
    ),
    ("query", lambda spark, url: spark.read.jdbc(url, "totals AS t"), lambda w, url: w.jdbc(url, "of_today")),
    (
        "view",
        lambda spark, url: of_view(spark, spark.read.jdbc(url, "totals")),
        lambda w, url: w.jdbc(url, "totals"),
    ),
    (
        "query",
        lambda spark, url: of_view(spark, queried(spark, url, "SELECT * FROM totals")),
        lambda w, url: w.jdbc(url, "totals"),
    ),
]


@pytest.mark.parametrize(("kind", "read", "write"), OF_DATABASE)
def test_database_table_over_its_source_is_refused(
    case: MakeCase, database: str, kind: str, read: Read, write: Write
) -> None:
    run = case(n=N)
    text = refused(run, adding(read, write, database))
    assert text.startswith("'write': the output replaces '") and "at jdbc:derby" in text
    assert "versionAsOf" not in text
    assert ("can't be told which tables it reads" in text) == (kind == "query")
    assert {row["total"] for row in run.spark.read.jdbc(database, "totals").collect()} == {100}


@pytest.mark.classic("a client doesn't see which database a catalog has")
def test_database_table_of_a_catalog_is_refused(
    case: MakeCase, database: str, settings: Callable[[dict[str, str]], None]
) -> None:
    catalog = "spark.sql.catalog.derby"
    settings(
        {
            catalog: "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
            f"{catalog}.url": database,
            f"{catalog}.driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        }
    )
    pipeline = adding(lambda spark, _: spark.table("derby.APP.TOTALS"), lambda w, url: w.jdbc(url, "totals"), database)
    assert "are read from 'derby.APP.TOTALS'" in refused(case(n=N), pipeline)


def test_tables_of_one_name_in_two_schemas_and_databases_are_no_source(case: MakeCase, database: str) -> None:
    """A whole output can't be sure of them. By message, only what is surely the same table is refused."""
    run, other = case(n=N), database.replace(":memory:", ":memory:other-")
    rows = run.spark.read.jdbc(database, "totals")
    rows.write.jdbc(database, "archive.totals")
    rows.write.jdbc(f"{other};create=true", "totals")
    same = run.spark.read.jdbc(f"{database};x=y", '"TOTALS"').selectExpr("key AS id", "total")
    ended = case(n=N).run(lambda t, m: t.write(m, lambda w: w.mode("append").jdbc(database, "totals")), same)
    assert "the messages are read from" in str(ended.error)
    for url, table in ((database, "archive.totals"), (other, "totals")):
        messages = run.spark.read.jdbc(url, table).selectExpr("key AS id", "total")
        one = case(n=N)
        ended = one.run(
            lambda t, m: t.write(m.withColumnRenamed("id", "key"), lambda w: w.mode("append").jdbc(database, "totals")),
            messages,
        )
        assert ended.error is None


def test_output_beside_its_database_table_is_written(case: MakeCase, database: str) -> None:
    """So is one over a table that a query read before the run."""
    run = case(n=N)
    run.complete(
        adding(lambda spark, url: spark.read.jdbc(url, "totals"), lambda w, url: w.jdbc(url, "of_today"), database),
        output="whole",
    )
    assert {row["total"] for row in run.spark.read.jdbc(database, "of_today").collect()} == {120}
    before = queried(run.spark, database, "SELECT * FROM of_today").localCheckpoint()
    case(n=N).complete(adding(lambda *_: before, lambda w, url: w.jdbc(url, "totals"), database), output="whole")
    assert {row["total"] for row in run.spark.read.jdbc(database, "totals").collect()} == {140}


def test_version_that_is_no_number_may_be_a_branch() -> None:
    for travel in ("VERSION AS OF '7326388913488222833'", "VERSION AS OF 7", "TIMESTAMP AS OF '2026-11-29'"):
        assert _BRANCH.match(travel) is None, travel
    for travel in ("VERSION AS OF 'main'", "VERSION AS OF '7th'"):
        assert _BRANCH.match(travel) is not None, travel
