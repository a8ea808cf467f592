"""Delta: every way to write it, whole outputs, and MERGE."""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.jars import SPARK
from tests.support.spark.cases import Case, MakeCase, Row
from tests.support.targets import N, Scenario, Write, check_proven, check_refused, check_released, run_section

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",  # else each look at a table's log takes 50 tasks
}


def created(run: Case, name: str, *clauses: str) -> str:
    run.spark.sql(f"CREATE TABLE {name}(id bigint, child int) USING delta {' '.join(clauses)}")
    return name


def creates_unseen(run: Case) -> bool:
    """Whether Spark doesn't report the rows of a table that the write creates."""
    return is_connect(run.spark) and SPARK == "4.1"


def table(run: Case, name: str) -> Callable[[], Iterable[Row]]:
    return lambda: run.spark.table(name).select("id", "child").collect()


def save(tracker: Tracker, rows: DataFrame, path: str, **options: str) -> None:
    tracker.write(rows, lambda writer: writer.format("delta").mode("append").options(**options).save(path))


def saved(make: MakeCase) -> None:
    run = make(n=N)
    check_proven(
        run,
        lambda tracker, rows: save(tracker, rows, run.out),
        lambda: run.spark.read.format("delta").load(run.out).collect(),
    )
    check_refused(make(n=N), lambda tracker, rows: save(tracker, rows, run.out))


def partitioned(make: MakeCase) -> None:
    run = make(n=N)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows, lambda writer: writer.format("delta").partitionBy("child").mode("append").saveAsTable("d_parts")
        )

    if creates_unseen(run):
        assert "that the write creates or replaces ('d_parts')" in run.refused(write, PipelineError)
        assert not run.spark.catalog.tableExists("d_parts")
        created(run, "d_parts", "PARTITIONED BY (child)")
    check_proven(run, write, table(run, "d_parts"))


def inserted(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_insert", "TBLPROPERTIES('delta.enableChangeDataFeed'='true')")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.mode("append").insertInto(name))

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def appended(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_append")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.append())

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def partitions_overwritten(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_overwrite", "PARTITIONED BY (id)")
    check_proven(
        run,
        lambda tracker, rows: tracker.write_table(
            rows, name, lambda writer: writer.overwritePartitions(), allow_overwrite=True
        ),
        table(run, name),
    )


def whole_replaced(make: MakeCase) -> None:
    """A whole output by `save`, by `replaceWhere` with a change data feed, and by `createOrReplace`."""
    run = make(n=N)
    name = created(run, "d_where", "TBLPROPERTIES('delta.enableChangeDataFeed'='true')")
    run.spark.sql(f"INSERT INTO {name} VALUES (3, 9), (4, 9)")

    def save_whole(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.format("delta").mode("overwrite").save(run.out))

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows,
            lambda writer: (
                writer.format("delta")
                .mode("overwrite")
                .option("replaceWhere", "id >= 0 AND child < 10")
                .saveAsTable(name)
            ),
        )
        replace(tracker, rows)

    def replace(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, "d_new", lambda writer: writer.using("delta").createOrReplace())

    check_proven(run, save_whole, lambda: run.spark.read.format("delta").load(run.out).collect(), output="whole")
    if creates_unseen(run):
        for kind in (write, replace):
            assert "that the write creates or replaces" in make(n=N).refused(kind, PipelineError, output="whole")
        assert run.spark.table(name).count() == 2
        return
    check_proven(run, write, table(run, name), output="whole")
    assert run.spark.table("d_new").count() == 2 * (N - 1)
    check_released(run)


def source_replaced(make: MakeCase) -> None:
    """A whole output may read what it replaces only as a fixed version."""
    run = make(n=N)
    path = run.out
    run.spark.range(2).withColumn("before", F.lit(1)).write.format("delta").save(path)

    def over(**version: str) -> Write:
        def write(tracker: Tracker, rows: DataFrame) -> None:
            before = run.spark.read.format("delta").options(**version).load(path)
            joined = tracker.join(rows, before, "id", "left").drop("before")
            overwriting = {"overwriteSchema": "true"}
            tracker.write(joined, lambda w: w.format("delta").options(**overwriting).mode("overwrite").save(path))

        return write

    assert "the output replaces" in run.refused(over(), PipelineError, output="whole")
    written = run.spark.read.format("delta")
    check_proven(make(n=N), over(versionAsOf="0"), lambda: written.load(path).collect(), output="whole")


def merged(make: MakeCase) -> None:
    """Twice: the second run finds every row there."""
    run = make(n=N)
    name = created(run, "d_merge")

    def merge(rows: DataFrame) -> None:
        same = F.expr(f"new.id = {name}.id AND new.child = {name}.child")
        merge: Any = rows.alias("new").mergeInto(name, same)
        merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_dataframe(rows, merge)

    for _ in range(2):
        check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)
    check_released(run)


def documented(make: MakeCase) -> None:
    run_section(make(n=N), "Delta")


SCENARIOS: tuple[Scenario, ...] = (
    saved, partitioned, inserted, appended, partitions_overwritten, whole_replaced, source_replaced, merged, documented,
)  # fmt: skip
