"""Conditions of operators in SQL: each is one expression."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark.operators import rows
from acker_redis.spark.proof.equation import Equation

pytestmark = pytest.mark.spark

EQUATION = Equation("emission", "operator")

Operator = Callable[[DataFrame, str], DataFrame]


def filtered(frame: DataFrame, condition: str) -> DataFrame:
    return rows.filtered(frame, condition, "acker:rows:filter", EQUATION)


def without_failed(frame: DataFrame, condition: str) -> DataFrame:
    return rows.without_failed(frame, condition, F.lit("bad"), "acker:rows:fail", EQUATION, 5)


@pytest.fixture
def frame(spark: Any) -> DataFrame:
    frame: DataFrame = spark.range(5).selectExpr(
        "id", "named_struct('a', true, 'b', false) AS flags", "id AS _share", "array(id) AS _roots"
    )
    return frame


@pytest.mark.parametrize("operator", [filtered, without_failed])
@pytest.mark.parametrize(
    "condition",
    [
        "id > 1, true", "id > 1), (true", "id > 1), coalesce(true", "id > 1, coalesce(true", "id > 1) OR (true", "flags.*",
        "*", "", "id > 1; true", "id > 1 /* and so on", "SELECT true", "id",
    ],
)  # fmt: skip
def test_condition_that_is_not_one_expression_is_refused(frame: DataFrame, operator: Operator, condition: str) -> None:
    for _ in range(2):  # a refused text isn't remembered as a good one
        with pytest.raises(AnalysisException):
            _ = operator(frame, condition).schema


@pytest.mark.parametrize(
    "condition",
    [
        "id > 1 -- the first two", "id > 1 OR id = 0", "NOT id = 3", "id IN (2, 3)", "nullif(id > 1, id = 2)",
        "id > 1 /* the rest */", "flags.a AND id > 3", "id > 1 AS later",
    ],
)  # fmt: skip
def test_condition_means_what_it_means_to_spark(frame: DataFrame, condition: str) -> None:
    expected = {row.id for row in frame.where(condition).collect()}
    assert {row.id for row in filtered(frame, condition).collect()} == expected
    assert {row.id for row in without_failed(frame, condition).collect()} == set(range(5)) - expected
