"""Rows that SQL fails."""

from inspect import signature
from typing import Any, get_type_hints

import pyarrow as pa
from pyspark.sql.pandas.functions import ArrowUDFType
from pyspark.sql.pandas.typehints import infer_eval_type

from acker_redis.spark.worker.fail_where import failing
from acker_redis.spark.worker.failures import PAYLOAD_BYTES
from tests.support.batches import received, roots_of


def batch(*rows: tuple[int | None, str | None, str | None]) -> tuple[pa.Array, ...]:
    columns = zip(*rows, strict=True)
    return tuple(pa.array(one, kind) for one, kind in zip(columns, (pa.int64(), pa.string(), pa.string()), strict=True))


def test_rows_that_fail_get_the_number_of_the_report_that_names_them() -> None:
    reports = received()
    made = failing("check", "check-1", reports, retry=True)(
        iter(
            [
                batch((None, None, None), (5, "1", "bad"), (6, "2,-3", "")),
                batch((None, None, None)),
                batch((7, "1", "bad")),
            ]
        )
    )
    outs = [array.to_pylist() for array in (next(made), next(made), next(made))]
    assert reports == []  # not before the input has ended
    assert list(made) == []
    (report,) = reports
    assert outs == [[0, report.number, report.number], [0], [report.number]]
    assert (report.parts, report.rows, report.operator, report.stage) == (18, 3, "check-1", "check")
    assert roots_of(report) == {"bad": [1], "": [-3, 2]}


def test_where_no_row_fails_there_is_no_report() -> None:
    reports = received()
    assert [
        array.to_pylist()
        for array in failing("check", "check-1", reports, retry=True)(iter([batch((None, None, None))]))
    ] == [[0]]
    assert list(failing("check", "check-1", reports, retry=True)(iter([]))) == []
    assert reports == []


def test_rows_that_name_no_message_are_counted() -> None:
    reports = received()
    list(
        failing("check", "check-1", reports, retry=True)(
            iter([batch((5, "", "bad"), (6, None, "bad"), (7, "0", "bad"))])
        )
    )
    assert (reports[0].rootless, reports[0].rows, roots_of(reports[0])) == (2, 3, {"bad": [0]})


def test_payloads_come_along_as_far_as_they_fit() -> None:
    reports = received()
    payloads = [None, b"x" * PAYLOAD_BYTES, b"too much", None, b""]
    rows = batch((None, None, None), *((5, str(root), "bad") for root in (1, 2, 3, 4)))
    list(failing("check", "check-1", reports, retry=False)(iter([(*rows, pa.array(payloads, pa.binary()))])))
    assert reports[0].payloads == {1: payloads[1], 4: b""}


def test_a_row_without_edge_fails_too() -> None:
    reports = received()
    list(failing("check", "check-1", reports, retry=True)(iter([batch((None, None, "bad"))])))
    assert (reports[0].parts, reports[0].rows) == (0, 1)


def test_spark_takes_it_for_a_function_of_iterators() -> None:
    function: Any = failing("check", "check-1", received(), retry=True)
    assert infer_eval_type(signature(function), get_type_hints(function), "arrow") == ArrowUDFType.SCALAR_ITER
