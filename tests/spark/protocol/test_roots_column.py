"""The column that says which messages a row came from: who changes it is refused, or nothing is acked where it counts."""

from collections.abc import Callable

import pytest
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from acker_redis import InexactPipelineError, PipelineError
from acker_redis.spark import Tracker
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import Case, MakeCase

pytestmark = pytest.mark.spark

NONE, EMPTY, FOREIGN = (f"CAST({array} AS array<bigint>)" for array in ("NULL", "array()", "array(7)"))


def swapped(rows: DataFrame) -> Column:
    return F.coalesce(F.lag("_roots").over(Window.partitionBy(F.lit(0)).orderBy("id")), "_roots")


def grouped(tracker: Tracker, rows: DataFrame) -> DataFrame:
    """Rows of a group, with the roots of one of its members."""
    total = tracker.group_by(rows, (F.col("id") % 5).alias("key"), F.max("id").alias("id"), partial=True)
    return total.drop("_roots").join(rows.where("id < 5").selectExpr("id AS key", "_roots"), "key").drop("key")


REFUSED: dict[str, Callable[[Tracker, DataFrame], DataFrame]] = {
    "null": lambda t, rows: rows.withColumn("_roots", F.expr(NONE)),
    "empty": lambda t, rows: rows.withColumn("_roots", F.expr(EMPTY)),
    "foreign": lambda t, rows: rows.withColumn("_roots", F.expr(FOREIGN)),
    "in SQL": lambda t, rows: rows.selectExpr("id", "_share", "array(7L) AS _roots"),
    "swapped": lambda t, rows: rows.withColumn("_roots", swapped(rows)),
    "cast": lambda t, rows: rows.withColumn("_roots", F.col("_roots").cast("array<string>").cast("array<bigint>")),
    "renamed": lambda t, rows: (
        rows.drop("_roots").withColumn("mine", F.expr(FOREIGN)).withColumnRenamed("mine", "_roots")
    ),
    "dropped and added": lambda t, rows: rows.drop("_roots").withColumn("_roots", F.expr(EMPTY)),
    "metadata": lambda t, rows: rows.withMetadata("_roots", {"a": 1}),
    "another frame's": grouped,
    "filled": lambda t, rows: rows.withColumn("_roots", F.coalesce("_roots", F.expr(EMPTY))),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_roots_column_computed_by_the_user_is_refused(case: MakeCase, kind: str) -> None:
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        changed = REFUSED[kind](tracker, messages)
        tracker.write(tracker.fail_where(changed, "id = 7", "seven"), run.append())

    assert "_roots was not computed by the tracker" in run.refused(pipeline, InexactPipelineError)


@pytest.mark.parametrize("own", TRACKING)
def test_tracking_column_renamed_in_case_is_refused(case: MakeCase, own: str) -> None:
    run = case(n=3)
    other = own.upper()
    text = run.refused(
        lambda tracker, rows: tracker.write(rows.withColumnRenamed(own, other), run.append()), PipelineError
    )
    assert f"Rename it to {own}" in text


def test_case_sensitive_spark_keeps_similar_user_column_names(case: MakeCase) -> None:
    run = case(n=20)
    run.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        table = run.spark.range(30).select("id", F.col("id").alias("Id"))

        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            own = messages.withColumn("ID", -F.col("id")).withColumn("_Roots", F.lit("mine"))
            kept = tracker.filter(own, "ID <> -7", name="keep")
            tracker.write(kept.drop("_Roots"), run.append())
            tracker.write(tracker.join(messages, table, "id", name="meet"), run.append("met"))
            tracker.write_partitions(kept, run.partition_files(tracker))

        run.complete(pipeline)
        assert set(run.written("id", "ID")) == {(id, -id) for id in range(20) if id != 7}
        assert set(run.written("id", "Id", name="met")) == {(id, id) for id in range(20)}
        assert len(run.written(name="rows")) == 19
    finally:
        run.spark.conf.unset("spark.sql.caseSensitive")


def lossy(rows: DataFrame, roots: str | None) -> DataFrame:
    """A union of Spark's, which takes the metadata of its first: the rows from 7 on have other roots."""
    rest = rows.where("id >= 7").drop("_roots")
    given = rest if roots is None else rest.withColumn("_roots", F.expr(roots))
    return rows.where("id < 7").unionByName(given, allowMissingColumns=True)


def fails_where(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    tracker.write(tracker.fail_where(rows, "id = 7", "seven"), run.append())


def fails_in_a_flat_map(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    tracker.write(tracker.flat_map(rows, lambda row: [(1 // (row["id"] - 7),)], "id bigint"), run.append())


def fails_in_a_group(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    total = tracker.group_by(rows, (F.col("id") % 5).alias("key"), F.max("id").alias("id"), partial=True)
    tracker.write(tracker.fail_where(total, "key = 2", "two"), run.append())


def fails_in_a_join(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    other = tracker.filter(rows, "id > 3").select("id", (F.col("id") + 1).alias("next"), *TRACKING)
    fails_where(run, tracker, tracker.join(tracker.filter(rows, "id < 30"), other, "id", "left"))


def fails_in_partitions(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    tracker.write_partitions(rows, run.partition_files(tracker, lambda row: row[0] == 7), on_error="fail")


def fails_as_a_sink(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    tracker.write_dataframe(rows, lambda found: found.selectExpr("raise_error('full')").collect(), on_error="fail")


def leaves(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    tracker.export(rows, run.append())


FAILS = (
    fails_where,
    fails_in_a_flat_map,
    fails_in_a_group,
    fails_in_a_join,
    fails_in_partitions,
    fails_as_a_sink,
)


@pytest.mark.parametrize("fails", [*FAILS, leaves])
@pytest.mark.parametrize("roots", [None, NONE, EMPTY, FOREIGN], ids=["missing", "null", "empty", "foreign"])
def test_failed_rows_without_valid_roots_column_ack_nothing(
    case: MakeCase, fails: Callable[[Case, Tracker, DataFrame], None], roots: str | None
) -> None:
    if fails is leaves and roots is FOREIGN:
        return  # what leaves is not compared with the emission, as nothing of it comes back to the driver
    run = case(n=20)
    text = run.refused(lambda tracker, rows: fails(run, tracker, lossy(rows, roots)), InexactPipelineError)
    assert "Keep the column _roots as it is" in text


@pytest.mark.parametrize("fails", FAILS)
def test_failed_rows_of_no_message_leave_all_messages_acked(
    case: MakeCase, fails: Callable[[Case, Tracker, DataFrame], None]
) -> None:
    """A group of no rows is one row, of nobody's; so is one that an outer join of Spark's adds."""
    run = case(n=20)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        last = F.coalesce(F.max("id"), F.lit(7)).alias("id")
        none = tracker.group_by(tracker.filter(messages, "false"), [], last, partial=True)
        fails(run, tracker, none)

    ended = run.done(pipeline, retry=RetryPolicy(max_attempts=1))
    assert ended.acked == set(range(20))
