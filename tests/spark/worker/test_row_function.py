"""What becomes of rows that a row function derives and that don't fit its schema."""

from collections import UserDict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from acker_redis import PipelineError, RowFailedError
from acker_redis.spark.worker.row_function import Collector, RowByRow

SCHEMA = pa.schema([("id", pa.int64()), ("child", pa.int8())])
REQUIRED = pa.field("x", pa.int64(), nullable=False)
GIVEN = pa.record_batch({"id": [0, 1, 2]})


def run(derive: Any, schema: pa.Schema = SCHEMA, on_error: Any = "fail") -> tuple[list[Any], list[int], dict[int, Any]]:
    emitted = RowByRow(derive, schema, on_error)(GIVEN)
    emitted.rows.validate(full=True)
    return emitted.rows.to_pylist(), emitted.parents.tolist(), dict(emitted.failed or {})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([(1, "x")], r"Column 'child' is tinyint and can't hold 'x' \("),
        ([(1, 300)], r"Column 'child' is tinyint and can't hold 300 \(.*too large"),
        ([(10**30, 1)], r"Column 'id' is bigint and can't hold 10{30} \(.*too large"),
        ([(1, 1), (1, None), (1, [])], r"Column 'child' is tinyint and can't hold \[\] \("),
        ([(1, 2, 3)], r"A derived row has 3 values, but the schema has 2 columns: \['id', 'child'\]"),
        ([(1,)], "A derived row has 1 values"),
        ([{"id": 1}], r"A derived row lacks the columns \['child'\]"),
        ([UserDict(id=1)], r"A derived row lacks the columns \['child'\]"),
        ([Row(id=1, chidl=2)], r"A derived row lacks the columns \['child'\]"),
        (
            [None],
            r"A derived row is of type NoneType\. Return dicts, or tuples in the order of the columns \['id', 'child'\]",
        ),
        (["ab"], "A derived row is of type str"),
        ([{1, 2}], "A derived row is of type set"),
        ((1, 2), "A derived row is of type int"),
        ("ab", r"PipelineError: The function returned a str\. Return or yield rows"),
        (b"ab", "PipelineError: The function returned a bytes"),
        ({"id": 1, "child": 2}, "PipelineError: The function returned a dict"),
        (5, "TypeError: 'int' object is not iterable"),
    ],
)
@pytest.mark.parametrize("good", [lambda i: {"id": i, "child": i}, lambda i: (i, i), lambda i: Row(child=i, id=i)])
def test_derived_row_that_does_not_fit_schema_fails_alone(bad: Any, reason: str, good: Any) -> None:
    rows, parents, failed = run(lambda row: bad if row["id"] == 1 else [good(row["id"])])
    assert rows == [{"id": 0, "child": 0}, {"id": 2, "child": 2}]
    assert parents == [0, 2]
    assert failed.keys() == {1}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failed[1])
    with pytest.raises(
        (PipelineError, TypeError), match=reason.removeprefix("PipelineError: ").removeprefix("TypeError: ")
    ):
        run(lambda row: bad if row["id"] == 1 else [good(row["id"])], on_error="raise")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        (pa.string(), "a", "\ud800", r"'v' is string and can't hold '\\ud800'"),
        (pa.string(), "a", b"\xff", "'v' is string"),
        (pa.decimal128(5, 2), Decimal("123.45"), Decimal("1234.5"), r"'v' is decimal\(5,2\) and can't hold Decimal"),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.234"), "data loss"),
        (pa.date32(), None, "2020-01-01", "'v' is date and can't hold '2020-01-01'"),
        (pa.timestamp("us", "UTC"), None, 2**70, "'v' is timestamp"),
        (pa.list_(pa.int8()), [1, None], [1, 300], r"'v' is array<tinyint> and can't hold \[1, 300\]"),
        (pa.list_(REQUIRED), [1], [1, None], "the schema allows none there"),
        (pa.struct([REQUIRED]), {"x": 1}, {"x": None}, "the schema allows none there"),
        (pa.struct([REQUIRED]), None, {"y": 1}, r"'v' is struct<x:bigint> and can't hold \{'y': 1\} \(.*allows none there"),
        (pa.map_(pa.string(), REQUIRED), {"k": 1}, {"k": None}, "the schema allows none there"),
        (pa.list_(pa.struct([("in", pa.list_(REQUIRED))])), [{"in": None}, None], [{"in": [None]}], "allows none there"),
    ],
)  # fmt: skip
def test_value_that_its_column_can_not_hold_fails_the_row(kind: Any, good: Any, bad: Any, reason: str) -> None:
    schema = pa.schema([pa.field("v", kind)])
    rows, parents, failed = run(lambda row: [(bad,)] if row["id"] == 1 else [{"v": good}], schema)
    assert (len(rows), parents, [*failed]) == (2, [0, 2], [1])
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failed[1])


def test_null_in_required_column_fails_the_row() -> None:
    schema = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    rows, _, failed = run(lambda row: [(None if row["id"] == 1 else 7,)], schema)
    assert (rows, [*failed]) == ([{"v": 7}, {"v": 7}], [1])
    assert str(failed[1]).startswith("Column 'v' is bigint not null and can't hold None")


def test_row_that_fails_by_itself_keeps_its_own_reason() -> None:
    class Stepwise:
        def execute(self, row: dict[str, Any], collector: Collector) -> None:
            collector.emit((row["id"], 300 if row["id"] == 2 else 1))
            if row["id"] == 0:
                raise RowFailedError("no")

    rows, parents, failed = run(Stepwise())
    assert (rows, parents, failed[0]) == ([{"id": 1, "child": 1}], [1], "no")
    assert "can't hold 300" in str(failed[2])


@pytest.mark.parametrize("on_error", ["fail", "raise"])
def test_no_retry_error_fails_its_row_without_retry(on_error: Any) -> None:
    def derive(row: dict[str, Any]) -> list[Any]:
        return [(row["id"], {0: 0}[row["id"]])] if row["id"] < 2 else [(2, 2)]

    failed = RowByRow(derive, SCHEMA, on_error, (LookupError,))(GIVEN).failed
    assert failed is not None
    assert {number: (str(error), getattr(error, "retry", None)) for number, error in failed.items()} == {
        1: ("KeyError: 1", False)
    }
    with pytest.raises(KeyError):
        RowByRow(derive, SCHEMA, "raise", (OSError,))(GIVEN)
