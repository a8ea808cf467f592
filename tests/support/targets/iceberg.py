"""Iceberg: tables, one with a sort order, and MERGE."""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from tests.support.jars import SPARK
from tests.support.spark.cases import Case, MakeCase, Row
from tests.support.targets import TWO, N, Scenario, Write, check_proven, check_refused, check_released, run_section

SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": "ice",
    "spark.sql.catalog.ice.cache-enabled": "false",
}


def created(run: Case, name: str, *clauses: str) -> str:
    run.spark.sql(f"CREATE TABLE ice.{name}(id bigint, child int) USING iceberg {' '.join(clauses)}")
    return f"ice.{name}"


def table(run: Case, name: str) -> Callable[[], Iterable[Row]]:
    return lambda: run.spark.table(name).collect()


def append_to(name: str, **options: str) -> Write:
    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.options(**options).append())

    return write


def save(tracker: Tracker, rows: DataFrame, path: str, **options: str) -> None:
    tracker.write(rows, lambda writer: writer.format("iceberg").options(**options).mode("append").save(path))


def saved(make: MakeCase) -> None:
    """Its path is the name of a table."""
    run = make(n=N)
    name = created(run, "save")
    check_proven(run, lambda tracker, rows: save(tracker, rows, name), table(run, name))


def saved_in_a_folder(make: MakeCase) -> None:
    """A table of no catalog. A client of Spark Connect can't ask for its sort order, but appends no rows, which shows it."""
    run = make(n=N)
    created(run, "folder")
    path = str(run.folder.parent / "ice" / "folder")
    check_proven(run, lambda tracker, rows: save(tracker, rows, path), table(run, "ice.folder"))
    if SPARK < "4.3":
        ordered = make(n=N)
        created(ordered, "ordered")
        run.spark.sql("ALTER TABLE ice.ordered WRITE ORDERED BY child")
        path = str(run.folder.parent / "ice" / "ordered")

        def by_folder(tracker: Tracker, rows: DataFrame) -> None:
            save(tracker, tracker.explode(rows, TWO), path)

        assert "has a sort order" in ordered.refused(by_folder, PipelineError)
        assert run.spark.table("ice.ordered").count() == 0
        check_proven(
            ordered,
            lambda tracker, rows: save(tracker, rows, path, **{"distribution-mode": "none"}),
            table(run, "ice.ordered"),
        )


def appended(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "append")
    check_proven(run, append_to(name), table(run, name))
    check_refused(make(n=N), append_to(name))


def inserted(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "insert")
    check_proven(
        run,
        lambda tracker, rows: tracker.write(rows, lambda writer: writer.mode("append").saveAsTable(name)),
        table(run, name),
    )


def partitions_overwritten(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "overwrite", "PARTITIONED BY (id)")
    check_proven(
        run,
        lambda tracker, rows: tracker.write_table(
            rows, name, lambda writer: writer.overwritePartitions(), allow_overwrite=True
        ),
        table(run, name),
    )


def source_replaced(make: MakeCase) -> None:
    """A whole output may read what it replaces only as a fixed snapshot."""
    run = make(n=N)
    name = created(run, "source")
    run.spark.sql(f"INSERT INTO {name} VALUES (1, 0), (2, 0)")
    snapshot = str(run.spark.table(f"{name}.snapshots").collect()[0]["snapshot_id"])

    def over(**version: str) -> Write:
        def write(tracker: Tracker, rows: DataFrame) -> None:
            before = run.spark.read.options(**version).table(name).withColumnRenamed("child", "before")
            joined = tracker.join(rows, before, "id", "left").drop("before")
            tracker.write_table(joined, name, lambda writer: writer.using("iceberg").createOrReplace())

        return write

    for version in ({}, {"versionAsOf": "main"}):  # a branch changes, too
        assert "the output replaces" in make(n=N).refused(over(**version), PipelineError, output="whole")
    check_proven(make(n=N), over(versionAsOf=snapshot), table(run, name), output="whole")


def sorted_by_range(make: MakeCase) -> None:
    """Before Spark 4.3 it would be counted twice, and is refused before a row is in the table."""
    run = make(n=N)
    name = created(run, "sorted")
    run.spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY child")
    if SPARK < "4.3":
        text = run.refused(append_to(name), PipelineError)
        assert "has a sort order" in text and "write_dataframe" in text, text
        assert run.spark.table(name).count() == 0

        def by_name(tracker, rows):
            return tracker.write(rows, lambda writer: writer.mode("append").insertInto(name))

        assert "has a sort order" in run.refused(by_name, PipelineError)
        assert "has a sort order" in run.refused(lambda tracker, rows: save(tracker, rows, name), PipelineError)
        assert run.spark.table(name).count() == 0
        check_proven(run, append_to(name, **{"distribution-mode": "none"}), table(run, name))
        run.spark.sql(f"DELETE FROM {name}")
    else:
        check_proven(run, append_to(name), table(run, name))
        run.spark.sql(f"DELETE FROM {name}")
    check_proven(
        run,
        lambda tracker, rows: tracker.write_dataframe(rows, lambda found: found.writeTo(name).append()),
        table(run, name),
    )
    check_released(run)


def merged(make: MakeCase) -> None:
    """Twice: the second run finds every row there."""
    run = make(n=N)
    name = created(run, "merge")

    def merge(rows: DataFrame) -> None:
        merge: Any = rows.alias("new").mergeInto(name, F.expr("new.id = merge.id AND new.child = merge.child"))
        merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_dataframe(rows, merge)

    for _ in range(2):
        check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def documented(make: MakeCase) -> None:
    run_section(make(n=N), "Iceberg")


SCENARIOS: tuple[Scenario, ...] = (
    appended,
    saved,
    saved_in_a_folder,
    inserted,
    partitions_overwritten,
    source_replaced,
    sorted_by_range,
    merged,
    documented,
)
