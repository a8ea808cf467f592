"""Rows that are read in few calls of Java are those that Spark's own actions return."""

from typing import Any

import pytest

from acker_redis.spark.runtime import frames

pytestmark = [pytest.mark.spark, pytest.mark.versions]

EDGES = [0, 1, -1, 31, -(1 << 62), (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("values", [EDGES, [7, None, -7, None], [None], [5], []])
def test_few_integers_are_those_that_arrow_reads(spark: Any, values: list[int | None], partitions: int) -> None:
    rows = spark.createDataFrame([(value, "text") for value in values], "`an id` bigint, text string")
    rows = rows.repartition(partitions).localCheckpoint()
    read = frames.read_few_integers(rows, "cast(`an id` AS bigint)").column(0).to_pylist()
    assert read == rows.select("an id").toArrow().column(0).to_pylist()
    assert sorted(read, key=str) == sorted(values, key=str)


def test_few_integers_are_cast_and_filtered(spark: Any) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id AS int) AS id").where("id % 3 = 1")
    assert frames.read_few_integers(rows, "cast(`id` AS bigint)").column(0).to_pylist() == [1, 4, 7]


@pytest.mark.classic("a client of Spark Connect reads Arrow")
def test_many_integers_become_no_text(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.clientserver import ClientServerConnection

    answers, send = [0], ClientServerConnection.send_command

    def measuring(*args: Any, **options: Any) -> Any:
        answer = send(*args, **options)
        answers.append(len(str(answer)))
        return answer

    monkeypatch.setattr(ClientServerConnection, "send_command", measuring)
    for count, is_text in (20_000, True), (20_001, False), (100_000, False):
        answers.clear()
        read = frames.read_few_integers(spark.range(0, count, 1, 2), "id").column(0).to_pylist()
        assert sorted(read) == list(range(count))
        assert (max(answers) > count) is is_text


@pytest.mark.classic("a client of Spark Connect reads Arrow")
def test_error_of_a_row_names_its_cause(spark: Any) -> None:
    rows = spark.range(3).selectExpr("raise_error('no id') AS id")
    with pytest.raises(Exception, match="no id"):
        frames.read_few_integers(rows, "cast(`id` AS bigint)")
