"""Rows of a stream's messages that are not done, as far as they need no Spark."""

import numpy as np
from pyspark.sql.types import LongType, StructField, StructType

from acker_redis.spark.park import Row
from acker_redis.spark.parked import ParkedRows

SCHEMA = StructType([StructField("id", LongType())])


def row(name: str) -> Row:
    return Row(0, name.encode())


def test_messages_of_one_id_come_one_after_another_in_their_order() -> None:
    rows = ParkedRows(0)
    behind = [(1, row("second")), (1, row("third")), (2, row("alone"))]
    assert rows.resume([1], [row("first")], behind, SCHEMA, "id") == [2]  # nobody is before it
    assert rows.waiting == 2
    assert rows.done(np.array([7])) == []
    assert (rows.done(np.array([1])), rows.parked[1]) == ([1], row("second"))
    assert (rows.done(np.array([1])), rows.parked[1]) == ([1], row("third"))
    assert rows.done(np.array([1, 2])) == []
    assert (rows.parked, rows.waiting) == ({}, 0)
