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


def test_failing_rows_get_the_number_of_their_failures() -> None:
    failures = received()
    made = failing("check", "check-1", failures, retry=True)(
        iter(
            [
                batch((None, None, None), (5, "1", "bad"), (6, "2,-3", "")),
                batch((None, None, None)),
                batch((7, "1", "bad")),
            ]
        )
    )
    outs = [array.to_pylist() for array in (next(made), next(made), next(made))]
    assert failures == []  # not before the input has ended
    assert list(made) == []
    (failure,) = failures
    assert outs == [[0, failure.number, failure.number], [0], [failure.number]]
    assert (failure.share_sum, failure.rows, failure.operator, failure.component) == (18, 3, "check-1", "check")
    assert roots_of(failure) == {"bad": [1], "": [-3, 2]}


def test_rows_that_do_not_fail_send_no_failures() -> None:
    failures = received()
    assert [
        array.to_pylist()
        for array in failing("check", "check-1", failures, retry=True)(iter([batch((None, None, None))]))
    ] == [[0]]
    assert list(failing("check", "check-1", failures, retry=True)(iter([]))) == []
    assert failures == []


def test_failing_rows_without_roots_are_counted() -> None:
    failures = received()
    list(
        failing("check", "check-1", failures, retry=True)(
            iter([batch((5, "", "bad"), (6, None, "bad"), (7, "0", "bad"))])
        )
    )
    assert (failures[0].rootless, failures[0].rows, roots_of(failures[0])) == (2, 3, {"bad": [0]})


def test_payloads_of_failing_rows_are_sent_up_to_the_limit() -> None:
    failures = received()
    payloads = [None, b"x" * PAYLOAD_BYTES, b"too much", None, b""]
    rows = batch((None, None, None), *((5, str(root), "bad") for root in (1, 2, 3, 4)))
    list(failing("check", "check-1", failures, retry=False)(iter([(*rows, pa.array(payloads, pa.binary()))])))
    assert failures[0].payloads == {1: payloads[1], 4: b""}


def test_failing_row_without_share_counts_with_share_zero() -> None:
    failures = received()
    list(failing("check", "check-1", failures, retry=True)(iter([batch((None, None, "bad"))])))
    assert (failures[0].share_sum, failures[0].rows) == (0, 1)


def test_fail_where_function_is_a_scalar_iterator_udf() -> None:
    function: Any = failing("check", "check-1", received(), retry=True)
    assert infer_eval_type(signature(function), get_type_hints(function), "arrow") == ArrowUDFType.SCALAR_ITER
