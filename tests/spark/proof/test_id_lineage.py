"""Ids that another job may give to other rows: refused by the lineage of the id column, and exact by each way out."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.internal import InternalFunction

from acker_redis import InexactPipelineError, PipelineError, RowFailedError
from acker_redis.spark import MessageIds, ReplayFrom, Tracker, check_pipeline, run_tracked
from acker_redis.spark.proof.id_lineage import check_id_lineage
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import MakeCase

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:WARN WindowExpression")]

COUNT = 2000

Change: TypeAlias = Callable[[DataFrame], DataFrame]


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> DataFrame:
    """A scan of four files with the columns `v`, which tells rows apart, `k` and `pad`."""
    path = str(tmp_path / "files")
    rows = spark.range(0, COUNT, 1, 4).selectExpr("id AS v", "id % 7 AS k", "repeat('x', cast(id % 50 AS int)) AS pad")
    rows.write.parquet(path)
    found: DataFrame = spark.read.parquet(path)
    return found


def mono() -> Column:
    return F.monotonically_increasing_id()


def row_number(*order: str) -> Column:
    return F.row_number().over(Window.orderBy(*order))


def numbered(rows: DataFrame) -> DataFrame:
    return rows.withColumn("id", mono())


def with_index(rows: DataFrame) -> DataFrame:
    """The index that pandas on Spark gives its frames. That itself needs pandas 2, which newer environments don't have."""
    return rows.select(InternalFunction.distributed_sequence_id().alias("id"), "*")


def in_buckets(rows: DataFrame) -> DataFrame:
    """Spark reads them by bucket where that spares a shuffle, and by the sizes of files elsewhere."""
    rows.write.mode("overwrite").bucketBy(2, "k").sortBy("v").saveAsTable("numbered_in_buckets")
    return rows.sparkSession.table("numbered_in_buckets")


AMONG = "k IN (SELECT k FROM numbered_rows WHERE v < 100)"


def folder_of(rows: DataFrame) -> str:
    return rows.inputFiles()[0].rpartition("/")[0]


def in_view(rows: DataFrame, query: str) -> DataFrame:
    rows.createOrReplaceTempView("numbered_rows")
    return rows.sparkSession.sql(query)


def dropping(rows: DataFrame) -> DataFrame:
    """Spark parses the columns that a job reads, and drops the lines in which one of those is damaged."""
    path = f"{folder_of(rows)}-csv"
    rows.selectExpr("v", "IF(v = 5, 'bad', cast(k AS string)) AS k").write.mode("overwrite").csv(path)
    return rows.sparkSession.read.schema("v long, k long").option("mode", "DROPMALFORMED").csv(path)


def parquet_of(rows: DataFrame) -> DataFrame:
    path = f"{folder_of(rows)}-parquet"
    rows.write.mode("overwrite").parquet(path)
    return rows.sparkSession.read.parquet(path)


def corrupt(rows: DataFrame) -> DataFrame:
    """A line is corrupt for a job that reads the column which can't be parsed."""
    path = f"{folder_of(rows)}-json"
    rows.selectExpr("v", "IF(v = 5, 'bad', cast(k AS string)) AS k").write.mode("overwrite").json(path)
    return rows.sparkSession.read.schema("v string, k string, _corrupt_record string").json(path)


UNSTABLE: dict[str, Change] = {
    "repartition": lambda rows: numbered(rows.repartition(4)),
    "repartition by a column": lambda rows: numbered(rows.repartition(4, "k")),
    "coalesce": lambda rows: numbered(rows.coalesce(2)),
    "join": lambda rows: numbered(rows.join(rows.sparkSession.range(7).toDF("k"), "k")),
    "orderBy": lambda rows: numbered(rows.orderBy("v")),
    "distinct": lambda rows: numbered(rows.distinct()),
    "dropDuplicates": lambda rows: numbered(rows.dropDuplicates(["v"])),
    "limit": lambda rows: numbered(rows.limit(COUNT)),
    "group": lambda rows: numbered(rows.groupBy("v").count()),
    "union with shuffled rows": lambda rows: numbered(rows.where("v > 9").union(rows.where("v <= 9").repartition(2))),
    "a cache": lambda rows: numbered(rows.repartition(4).cache()),
    "in an expression": lambda rows: rows.repartition(4).withColumn("id", mono() * 2 + 1),
    "by select": lambda rows: rows.repartition(4).select("*", mono().alias("id")),
    "by text": lambda rows: rows.repartition(4).selectExpr("*", "monotonically_increasing_id() AS id"),
    "by other columns": lambda rows: (
        rows.repartition(4)
        .withColumn("n", mono())
        .withColumnRenamed("n", "m")
        .selectExpr("v", "k", "pad", "m + 1 AS id")
    ),
    "below other steps": lambda rows: (
        numbered(rows.repartition(4)).where("v >= 0").join(rows.sparkSession.range(7).toDF("k"), "k")
    ),
    "through a function": lambda rows: numbered(rows.repartition(4)).mapInPandas(
        lambda batches: batches, "v bigint, k bigint, pad string, id bigint"
    ),
    "row_number": lambda rows: rows.repartition(4).withColumn("id", row_number("k")),
    "ntile": lambda rows: rows.repartition(4).withColumn("id", F.ntile(COUNT).over(Window.orderBy("k"))),
    "a running count": lambda rows: rows.repartition(4).withColumn(
        "id", F.count("*").over(Window.orderBy("k").rowsBetween(Window.unboundedPreceding, 0))
    ),
    "places in a collected list": lambda rows: (
        rows.groupBy("k")
        .agg(F.collect_list("v").alias("all"), F.max("pad"))
        .select("k", F.posexplode("all").alias("place", "v"))
        .withColumn("id", F.col("k") * 10_000 + F.col("place"))
    ),
    "places in a collected set, kept in a struct": lambda rows: (
        rows.groupBy("k")
        .agg(F.collect_set("v").alias("all"))
        .select("k", F.posexplode("all").alias("place", "v"))
        .select("v", F.struct("k", "place").alias("s"))
        .select("v", F.expr("s.k * 10000 + s.place AS id"))
    ),
    "places in a collected list, under Spark's own names": lambda rows: (
        rows.groupBy("k")
        .agg(F.collect_list("v").alias("all"))
        .select("k", F.posexplode("all"))
        .withColumn("id", F.col("k") * 10_000 + F.col("pos"))
    ),
    "array_position": lambda rows: rows.join(rows.groupBy("k").agg(F.collect_list("v").alias("all")), "k").withColumn(
        "id", F.col("k") * 10_000 + F.array_position("all", F.col("v"))
    ),
    "a list of a window": lambda rows: rows.repartition(4).withColumn(
        "id", F.col("k") * 10_000 + F.array_position(F.collect_list("v").over(Window.partitionBy("k")), F.col("v"))
    ),
    "a table with buckets": lambda rows: numbered(in_buckets(rows)),
    "lines that a reader drops": lambda rows: numbered(dropping(rows)),
    "unpivot": lambda rows: (
        rows.repartition(4).select("v", mono().alias("a"), "k").unpivot("v", ["a", "k"], "what", "id")
    ),
    "renamed by a function": lambda rows: (
        rows.repartition(4)
        .withColumn("a", mono())
        .mapInPandas(
            lambda frames: (pd.DataFrame(frame).rename(columns={"a": "id"}) for frame in frames),
            "v long, k long, pad string, id long",
        )
    ),
    "the hash of a collected list": lambda rows: rows.groupBy("k").agg(F.xxhash64(F.collect_list("v")).alias("id")),
    "the hash of a joined text": lambda rows: rows.groupBy("k").agg(F.xxhash64(F.expr("listagg(pad)")).alias("id")),
    "numbered below a window": lambda rows: numbered(rows.repartition(4)).withColumn(
        "rank", F.rank().over(Window.partitionBy("k").orderBy("v"))
    ),
    "an index of pandas": lambda rows: with_index(rows.repartition(4)),
    "a condition on other rows": lambda rows: numbered(in_view(rows, f"SELECT * FROM numbered_rows WHERE {AMONG}")),
    "a condition on the clock": lambda rows: numbered(rows.where("v < unix_timestamp(current_timestamp())")),
    "files that a reader skips": lambda rows: numbered(
        rows.sparkSession.read.option("ignoreCorruptFiles", True).parquet(folder_of(rows))
    ),
    "a condition on the clock in a column": lambda rows: numbered(
        rows.withColumn("age", F.unix_timestamp() - F.col("v")).select("*", F.expr("age + 1 AS more")).where("more > 9")
    ),
    "a condition on the clock in a column of a query": lambda rows: numbered(
        in_view(rows, "SELECT * FROM (SELECT v, unix_timestamp() - v AS age, k FROM numbered_rows) WHERE age > 9")
    ),
    "a condition on corrupt lines": lambda rows: numbered(
        corrupt(rows).where("_corrupt_record IS NULL AND k IS NOT NULL")
    ),
    "a function that isn't deterministic": lambda rows: rows.withColumn(
        "id", F.udf(lambda value: value, "long").asNondeterministic()(F.col("v"))
    ),
    "rows by the clock": lambda rows: numbered(
        rows.select("v", F.explode(F.sequence(F.lit(0), F.unix_timestamp() % 5)).alias("n"))
    ),
    "a condition of a function that isn't deterministic": lambda rows: numbered(
        rows.where(F.udf(lambda value: True, "boolean").asNondeterministic()(F.col("v")))
    ),
    "the time in the id": lambda rows: rows.withColumn("id", F.unix_timestamp() * 10_000 + F.col("v")),
    "row_number in no order": lambda rows: rows.withColumn("id", F.row_number().over(Window.orderBy(F.lit(1)))),
    "row_number over rows numbered before": lambda rows: numbered(rows.repartition(4)).withColumn(
        "id", row_number("id")
    ),
}
"""Steps of a user's own between a scan of files and the ids."""

STABLE: dict[str, Change] = {
    "the time beside": lambda rows: numbered(rows.withColumn("at", F.current_timestamp())),
    "the time beside a condition": lambda rows: numbered(rows.withColumn("at", F.current_timestamp()).where("v > 9")),
    "a text with words of the clock": lambda rows: rows.withColumn("id", F.xxhash64(F.concat(F.lit("now (x"), "v"))),
    "a column called as that of corrupt lines": lambda rows: numbered(
        parquet_of(rows.withColumn("_corrupt_record", F.col("pad"))).where("_corrupt_record IS NOT NULL")
    ),
    "corrupt lines beside a condition": lambda rows: numbered(corrupt(rows).where("k IS NOT NULL")),
    "an index of pandas above a scan": with_index,
    "elements of collected lists in one": lambda rows: (
        rows.groupBy("k")
        .agg(F.array_distinct(F.flatten(F.collect_list(F.array("v")))).alias("all"))
        .select("k", F.explode("all").alias("id"))
    ),
    "above a scan": numbered,
    "above a scan, through columns and conditions": lambda rows: numbered(
        rows.where("v < 1500").withColumn("w", F.col("v") * 2).select("v", "w", "k", "pad")
    ),
    "row_number above a scan": lambda rows: rows.withColumn("id", row_number("v")),
    "above a union of scans": lambda rows: numbered(rows.where("v > 9").union(rows.where("v <= 9"))),
    "below a shuffle": lambda rows: numbered(rows).repartition(4).join(rows.sparkSession.range(7).toDF("k"), "k"),
    "from the data": lambda rows: rows.repartition(4).dropDuplicates(["v"]).withColumnRenamed("v", "id"),
    "from the data through a group": lambda rows: (
        rows.groupBy("k").agg(F.collect_list("v").alias("all")).select("k", F.explode("all").alias("id"))
    ),
    "elements of a collected list, in an expression": lambda rows: (
        rows.groupBy("k")
        .agg(F.collect_list("v").alias("all"))
        .select("k", F.posexplode("all").alias("place", "v"))
        .withColumn("id", F.col("v") * 2)
    ),
    "places in a sorted list": lambda rows: (
        rows.groupBy("k")
        .agg(F.sort_array(F.collect_list("v")).alias("all"))
        .select("k", F.posexplode("all").alias("place", "v"))
        .withColumn("id", F.col("k") * 10_000 + F.col("place"))
    ),
    "places in a list that was sorted later": lambda rows: (
        rows.groupBy("k")
        .agg(F.collect_list("v").alias("all"))
        .select("k", F.posexplode(F.sort_array("all")).alias("place", "v"))
        .withColumn("id", F.col("k") * 10_000 + F.col("place"))
    ),
    "places in an array of the data": lambda rows: (
        rows.repartition(4)
        .select("v", F.posexplode(F.sequence(F.lit(0), F.col("k"))).alias("place", "n"))
        .withColumn("id", F.col("v") * 10 + F.col("place"))
    ),
    "values of columns that become rows": lambda rows: (
        rows.repartition(4).withColumn("m", mono()).withColumnRenamed("v", "a").unpivot("m", ["a", "k"], "what", "id")
    ),
    "by a function, under its name": lambda rows: (
        rows.repartition(4)
        .withColumn("m", mono())
        .withColumnRenamed("v", "id")
        .mapInPandas(lambda frames: frames, "id long, k long, pad string, m long")
    ),
    "the hash of a text with an order": lambda rows: rows.groupBy("k").agg(
        F.xxhash64(F.expr("listagg(pad) WITHIN GROUP (ORDER BY pad)")).alias("id")
    ),
    "an aggregate": lambda rows: rows.groupBy("k").agg(F.max("v").alias("id"), F.collect_list("v")),
    "a column that a window passes on": lambda rows: (
        rows.repartition(4)
        .withColumn("rank", F.rank().over(Window.partitionBy("k").orderBy("v")))
        .withColumnRenamed("v", "id")
    ),
    "from a range": lambda rows: rows.sparkSession.range(COUNT),
    "rand beside": lambda rows: rows.repartition(4).withColumnRenamed("v", "id").withColumn("r", F.rand(3)),
    "a number beside": lambda rows: rows.repartition(4).withColumn("m", mono()).withColumnRenamed("v", "id"),
    "a rank": lambda rows: rows.repartition(4).withColumn("id", F.rank().over(Window.orderBy("v"))),
    "shuffled, then localCheckpoint, then ids": lambda rows: numbered(rows.repartition(4).localCheckpoint()),
    "ids, then localCheckpoint": lambda rows: numbered(rows.repartition(4)).localCheckpoint(),
    "rows of the program": lambda rows: numbered(rows.sparkSession.createDataFrame([(1,), (2,)], "v int")),
}


@pytest.mark.parametrize("kind", UNSTABLE)
def test_ids_that_another_job_may_give_to_other_rows_are_refused(files: DataFrame, kind: str) -> None:
    with pytest.raises(PipelineError, match=r"other rows.*localCheckpoint\(\).*derive the ids from the data"):
        check_id_lineage(UNSTABLE[kind](files), "id", "run_tracked")


@pytest.mark.parametrize("kind", STABLE)
def test_ids_of_the_same_rows_in_each_job_are_accepted(files: DataFrame, kind: str) -> None:
    check_id_lineage(STABLE[kind](files), "id", "run_tracked")


def fails_four(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    if row["v"] in (3, 700, 1200, 1999):
        raise RowFailedError("at first")
    yield (row["id"], row["v"])


def writing(out: Any) -> Callable[[Tracker, DataFrame], None]:
    """A pipeline that uses two of the columns, in which four rows fail at first."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        used = messages.select("id", "v", "_share", "_roots")
        if tracker.emission == 0:
            used = tracker.flat_map(used, fails_four, "id bigint, v bigint")
        tracker.write(used, out)

    return pipeline


REPLAYS = {"the source": ReplayFrom.source(), "redis": ReplayFrom.redis(max_bytes=1000)}


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_run_refuses_ids_above_a_shuffle_before_it_emits(case: MakeCase, files: DataFrame, replay: ReplayFrom) -> None:
    """The ids are the same in each job, and only their rows differ: four rows were missing and four twice, all acked."""
    run = case(n=1)
    messages = numbered(files.repartition(4))
    text = run.refused(writing(run.append()), PipelineError, messages, replay=replay)
    assert text.startswith("run_tracked: the ids in column 'id' depend on monotonically_increasing_id() above ")
    assert run.written() == []


OUT: dict[str, Change] = {
    "localCheckpoint": lambda rows: numbered(rows.repartition(4)).localCheckpoint(),
    "ids from the data": lambda rows: rows.repartition(4).withColumn("id", F.col("v")),
    "no shuffle": numbered,
}


@pytest.mark.parametrize("way", OUT)
def test_replays_hold_the_failed_rows_by_each_way_out(case: MakeCase, files: DataFrame, way: str) -> None:
    run = case(n=1)
    ended = run.done(writing(run.append()), OUT[way](files), replay=ReplayFrom.redis(max_bytes=1000))
    assert len(ended.acked) == COUNT
    assert sorted(row[1] for row in run.written("id", "v")) == list(range(COUNT))


@pytest.mark.classic("a client doesn't know the cores of its server")
def test_files_are_split_as_before_when_executors_have_come(case: MakeCase, spark: Any) -> None:
    """Four rows were missing and four twice, all acked. The setting stands for the cores that there are."""
    run, folder, key = case(n=1), str(case(n=1).folder / "ten"), "spark.sql.leafNodeDefaultParallelism"
    spark.range(0, COUNT, 1, 10).selectExpr("id AS v", "id % 7 AS k").write.parquet(folder)
    messages = numbered(spark.read.parquet(folder))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        writing(run.append())(tracker, messages)
        spark.conf.set(key, "3")

    spark.conf.set(key, "2")
    try:
        run.done(pipeline, messages)
        assert spark.conf.get("spark.sql.files.minPartitionNum", None) is None
    finally:
        spark.conf.unset(key)
    assert sorted(row[1] for row in run.written("id", "v")) == list(range(COUNT))


def test_ids_of_offsets_that_a_shuffle_numbers_are_refused(case: MakeCase, files: DataFrame) -> None:
    messages = files.repartition(4).selectExpr("'all' AS file", "monotonically_increasing_id() AS row", "v")
    with pytest.raises(PipelineError, match=r"column 'message_id' depend on monotonically_increasing_id\(\)"):
        run_tracked(messages, lambda t, m: t.discard(m), acker=case(n=1).acker, ids=MessageIds.offsets())


def test_check_pipeline_refuses_ids_above_a_shuffle(files: DataFrame) -> None:
    with pytest.raises(PipelineError, match=r"^check_pipeline: the ids in column 'id'"):
        check_pipeline(numbered(files.repartition(4)), lambda t, m: t.discard(m), ids="id")


SQL: dict[str, Change] = {
    "a view of shuffled rows": lambda rows: in_view(rows.repartition(4), "SELECT * FROM numbered_rows").withColumn(
        "id", mono()
    ),
    "a query": lambda rows: in_view(rows, "SELECT k, max(v) AS v FROM numbered_rows GROUP BY k").withColumn(
        "id", mono()
    ),
}

IN_SQL: dict[str, Change] = {
    "numbered in a query": lambda rows: in_view(
        rows.repartition(4), "SELECT *, monotonically_increasing_id() AS id FROM numbered_rows"
    ),
    "numbered in a named query": lambda rows: in_view(
        rows.repartition(4),
        "WITH q AS (SELECT *, monotonically_increasing_id() AS id FROM numbered_rows) SELECT a.* FROM q a JOIN q b USING (id)",
    ),
    "numbered in a subquery of a column": lambda rows: in_view(
        rows.repartition(4),
        "SELECT *, (SELECT max(n) FROM (SELECT v, monotonically_increasing_id() AS n FROM numbered_rows) x WHERE x.v = t.v) "
        "AS id FROM numbered_rows t",
    ),
    "numbered in a lateral subquery": lambda rows: in_view(
        rows.repartition(4),
        "SELECT x.v, x.id FROM (SELECT DISTINCT k FROM numbered_rows) a, LATERAL (SELECT v, row_number() OVER (ORDER BY pad) "
        "* 10 + a.k AS id FROM numbered_rows n WHERE n.k = a.k) x",
    ),
}


@pytest.mark.parametrize("kind", SQL)
def test_ids_above_a_shuffle_in_sql_are_refused(files: DataFrame, kind: str) -> None:
    with pytest.raises(PipelineError, match="other rows"):
        check_id_lineage(SQL[kind](files), "id", "run_tracked")


def test_ids_above_a_view_of_files_are_accepted(files: DataFrame) -> None:
    check_id_lineage(numbered(in_view(files, "SELECT v, k FROM numbered_rows WHERE v > 3")), "id", "run_tracked")


@pytest.mark.classic("a client sees nothing of what SQL text defines")
@pytest.mark.parametrize("kind", IN_SQL)
def test_ids_that_sql_defines_above_a_shuffle_are_refused(files: DataFrame, kind: str) -> None:
    with pytest.raises(PipelineError, match="other rows"):
        check_id_lineage(IN_SQL[kind](files), "id", "run_tracked")


@pytest.mark.classic("a client sees no keys of rows")
def test_row_number_in_the_order_of_a_key_is_accepted_above_its_group(files: DataFrame) -> None:
    assert not is_connect(files.sparkSession)
    totals = files.groupBy("k").agg(F.sum("v").alias("total"))
    check_id_lineage(totals.withColumn("id", row_number("k")), "id", "run_tracked")
    with pytest.raises(PipelineError, match=r"row_number\(\)"):
        check_id_lineage(totals.withColumn("id", row_number("total")), "id", "run_tracked")


@pytest.mark.classic("a client sees no keys of rows")
@pytest.mark.parametrize(
    "distinct", [lambda rows: rows.dropDuplicates(["k"]), lambda rows: rows.select("k").distinct()]
)
def test_row_number_in_the_order_of_distinct_values_is_accepted(files: DataFrame, distinct: Change) -> None:
    check_id_lineage(distinct(files).withColumn("id", row_number("k")), "id", "run_tracked")
    chosen = files.dropDuplicates(["k"])
    for other in (files.dropDuplicates(["v"]), chosen.where("v > 9")):  # which row of a key is kept is open
        with pytest.raises(PipelineError, match=r"row_number\(\)"):
            check_id_lineage(other.withColumn("id", row_number("k")), "id", "run_tracked")


def test_ids_with_names_of_files_number_nothing(files: DataFrame) -> None:
    named = files.withColumn("id", F.xxhash64(F.input_file_name(), "v"))
    assert not check_id_lineage(named, "id", "run_tracked")
    assert check_id_lineage(numbered(files), "id", "run_tracked")


def test_ids_above_files_that_are_read_by_their_newer_source_are_accepted(files: DataFrame) -> None:
    key = "spark.sql.sources.useV1SourceList"
    session = files.sparkSession
    before = str(session.conf.get(key))
    session.conf.set(key, "")
    try:
        check_id_lineage(numbered(session.read.parquet(folder_of(files))), "id", "run_tracked")
        with pytest.raises(PipelineError, match="other rows"):
            dropped = session.read.option("ignoreCorruptFiles", True).parquet(folder_of(files))
            check_id_lineage(numbered(dropped), "id", "run_tracked")
    finally:
        session.conf.set(key, before)


def test_table_that_grows_during_the_run_ends_it_before_rows_get_the_ids_of_others(case: MakeCase, spark: Any) -> None:
    """Spark lists a table of the catalog for each job. Four rows were missing, and strangers acked in their place."""
    run, table = case(n=1), f"grows_{uuid.uuid4().hex}"
    rows = spark.range(0, COUNT, 1, 4).selectExpr("id AS v", "id % 7 AS k", "'mon' AS day")
    rows.write.partitionBy("day").saveAsTable(table)
    write = writing(run.append())

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        write(tracker, messages)
        more = spark.range(5000, 5010).selectExpr("id AS v", "id % 7 AS k", "'tue' AS day")
        more.write.mode("append").partitionBy("day").saveAsTable(table)

    try:
        ended = run.run(pipeline, numbered(spark.table(table)))
        assert isinstance(ended.error, InexactPipelineError)
        assert "files when the run began" in str(ended.error) and ended.acked == set()
        yesterday = numbered(spark.table(table).where("day = 'mon'"))  # another partition may grow
        other = case(n=1)
        write = writing(other.append())
        assert len(other.done(pipeline, yesterday).acked) == COUNT
        assert sorted(row[1] for row in other.written("id", "v")) == list(range(COUNT))
    finally:
        spark.sql(f"DROP TABLE {table}")


@pytest.mark.classic("a client takes every aggregate in SQL text for one of the rows")
def test_ids_above_a_condition_on_a_constant_of_other_rows_are_accepted(files: DataFrame) -> None:
    rows = in_view(files, "SELECT * FROM numbered_rows WHERE v <= (SELECT max(v) FROM numbered_rows)")
    check_id_lineage(numbered(rows), "id", "run_tracked")


@pytest.mark.classic("Spark Connect has no RDDs")
def test_ids_above_a_shuffled_rdd_are_refused(spark: Any) -> None:
    rows = spark.sparkContext.parallelize([(1,), (2,)], 2)
    check_id_lineage(numbered(rows.toDF(["v"])), "id", "run_tracked")
    with pytest.raises(PipelineError, match="other rows"):
        check_id_lineage(numbered(rows.repartition(2).toDF(["v"])), "id", "run_tracked")
