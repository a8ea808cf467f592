"""PostgreSQL by Spark's JDBC source."""

import os

from pyspark.sql import DataFrame

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import Case, MakeCase, Row
from tests.support.targets import N, Scenario, check_proven, check_refused, run_section

SETTINGS: dict[str, str] = {}
URL = os.environ.get("ACKER_TESTS_JDBC", "")
LOGIN = {"user": "tests", "driver": "org.postgresql.Driver"}


def rows_in(run: Case, name: str) -> list[Row]:
    return list(run.spark.read.jdbc(URL, name, properties=LOGIN).collect())


def appended(make: MakeCase) -> None:
    run = make(n=N)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.jdbc(URL, "jdbc", "append", LOGIN))

    check_proven(run, write, lambda: rows_in(run, "jdbc"))
    check_refused(make(n=N), write)


def in_few_connections(make: MakeCase) -> None:
    """`numPartitions` coalesces the rows, and asks Spark how many partitions they have.

    Spark Connect hears only of that question, so it is refused there; `coalesce` is the way out.
    """
    run = make(n=N, partitions=4)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        options = {"url": URL, "dbtable": "few", "numPartitions": "2", **LOGIN}
        tracker.write(rows, lambda writer: writer.format("jdbc").options(**options).mode("append").save())

    if is_connect(run.spark):
        assert "coalesce the rows before the sink" in run.refused(write, PipelineError)
        check_proven(
            run,
            lambda tracker, rows: tracker.write(
                rows.coalesce(2), lambda writer: writer.jdbc(URL, "few", "append", LOGIN)
            ),
            lambda: rows_in(run, "few"),
        )
        return
    check_proven(run, write, lambda: rows_in(run, "few"))


def by_its_class(make: MakeCase) -> None:
    """A source with a name that is unknown over Spark Connect. There it is tried before it gets a row."""
    source = "org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider"
    run = make(n=N, partitions=4)

    def write(tracker: Tracker, rows: DataFrame, name: str, **options: str) -> None:
        options |= {"url": URL, "dbtable": name, **LOGIN}
        tracker.write(rows, lambda writer: writer.format(source).options(**options).mode("append").save())

    check_proven(run, lambda tracker, rows: write(tracker, rows, "by_class"), lambda: rows_in(run, "by_class"))
    if is_connect(run.spark):
        few = make(n=N, partitions=4)
        text = few.refused(lambda tracker, rows: write(tracker, rows, "by_few", numPartitions="2"), PipelineError)
        assert f"doesn't report which rows the source '{source}' writes" in text, text
        assert rows_in(run, "by_few") == []


def replaced(make: MakeCase) -> None:
    run = make(n=N)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.jdbc(URL, "new", "overwrite", LOGIN))

    check_proven(run, write, lambda: rows_in(run, "new"), output="whole")
    check_refused(make(n=N), write, output="whole")


def refused_by_the_database(make: MakeCase) -> None:
    """A constraint fails the job. With on_error='fail' the rows fail, and no message is acked."""
    run = make(n=N)
    run.spark.createDataFrame([], "id bigint, child int").write.jdbc(URL, "few_ids", "append", LOGIN)
    check = {"sessionInitStatement": "ALTER TABLE few_ids ADD CHECK (id < 10)"}
    run.spark.read.jdbc(URL, "few_ids", properties={**LOGIN, **check}).collect()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        few = tracker.filter(messages.selectExpr("id", "0 AS child", "_share", "_roots"), "id < 5")
        many = messages.selectExpr("id", "0 AS child", "_share", "_roots")
        tracker.write(few, lambda writer: writer.jdbc(URL, "few_ids", "append", LOGIN))
        tracker.write(many, lambda writer: writer.jdbc(URL, "few_ids", "append", LOGIN), on_error="fail", name="all")

    ended = run.done(pipeline)
    assert ended.acked == set()
    assert set(ended.letters) == set(range(N))
    assert all("check constraint" in (letter.detail or "") for letter in ended.letters.values()), ended.reasons


def documented(make: MakeCase) -> None:
    run_section(make(n=N), "PostgreSQL", jdbc_url=URL, login=LOGIN)


SCENARIOS: tuple[Scenario, ...] = (
    appended,
    in_few_connections,
    by_its_class,
    replaced,
    refused_by_the_database,
    documented,
)
