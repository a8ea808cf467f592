"""Generators, such as explode(), in the arguments of operators. They make rows with whole shares."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from tests.support.spark.cases import MakeCase

pytestmark = pytest.mark.spark

Operator = Callable[[Tracker, DataFrame], DataFrame]

NESTED = "array(array(id, id), array(id))"

GENERATORS: dict[str, tuple[Operator, str]] = {
    "a column of explode": (lambda tracker, rows: tracker.explode(rows, F.explode(F.expr(NESTED))), "children has explode"),
    "a text of explode": (lambda tracker, rows: tracker.explode(rows, f"EXPLODE ({NESTED})"), "children has EXPLODE"),
    "a condition": (lambda tracker, rows: tracker.filter(rows, "explode(array(true, false))"), "condition has explode"),
    "a failing condition": (
        lambda tracker, rows: tracker.fail_where(rows, F.explode(F.array(F.lit(True))), "no"), "condition has explode",
    ),
    "a reason": (
        lambda tracker, rows: tracker.fail_where(rows, "id = 1", F.explode_outer(F.array(F.lit("a"), F.lit("b")))),
        "reason has explode_outer",
    ),
    "a key": (
        lambda tracker, rows: tracker.group_by(
            rows, [F.col("id"), F.explode(F.array("id", "id")).alias("again")], F.count("id").alias("n")
        ),
        "keys has explode",
    ),
    "an aggregate": (
        lambda tracker, rows: tracker.group_by(rows, "id", F.explode(F.collect_list("id")).alias("again")),
        "aggregates has explode",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", GENERATORS)
def test_generator_in_an_argument_is_refused_before_anything_runs(case: MakeCase, place: str) -> None:
    operator, text = GENERATORS[place]
    written: list[object] = []

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_dataframe(operator(tracker, rows), lambda frame: written.extend(frame.collect()))

    assert text in case(n=3).refused(pipeline, PipelineError)
    assert written == []


def test_name_of_a_generator_in_a_text_is_accepted(case: MakeCase) -> None:
    run = case(n=3)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        kept = tracker.filter(rows, "'explode(id)' <> cast(id AS string)")
        named = kept.withColumn("generate", F.col("id").cast("string"))
        named = tracker.filter(named, F.concat(F.lit("explode(x)"), F.col("generate")) != F.lit("y"))
        tracker.write(tracker.filter(named, F.lit("inline(x)") != F.lit("y")), run.append())

    assert run.complete(pipeline).acked == {0, 1, 2}
