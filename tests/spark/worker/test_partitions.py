"""A sink that is a function per partition."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import AckerError, PipelineError, RowFailedError, RowsRefusedError
from acker_redis.spark.protocol.columns import FAILURE, OUT, ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker import partitions
from acker_redis.spark.worker.partitions import PartitionsStep
from tests.support.batches import MAX_BYTES, failures_in, roots_of, some_shares, tracked

OWN = some_shares(5)
SUM = sum(one or 0 for one in OWN) & MASK


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "partition_id", lambda: 3)


def batches(*, with_roots: bool = True) -> list[pa.RecordBatch]:
    inputs = [tracked(OWN[:2], [[1], [2]]), tracked(OWN[2:], [[2, 9], None, [1]])]
    return inputs if with_roots else [batch.drop_columns([ROOTS]) for batch in inputs]


def rows_of(write: Any, on_error: Any, given: Any, no_retry: Any = (), columns: Any = ()) -> list[dict[str, Any]]:
    (batch,) = PartitionsStep("save", write, on_error, MAX_BYTES, no_retry, columns)(iter(given))
    return [dict(row) for row in batch.to_pylist()]


def run(write: Any, on_error: Any, given: Any, columns: tuple[str, ...] = ()) -> dict[str, Any]:
    (row,) = rows_of(write, on_error, given, (), columns)
    return row


@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_partition_sink_reports_consumed_rows_and_share(on_error: str) -> None:
    written: list[Any] = []

    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        written.extend((partition, row) for batch in rows for row in batch.to_pylist())

    assert run(write, on_error, batches(with_roots=on_error == "fail")) == {
        SHARE: SUM, "rows": 5, OUT: 0, FAILURE: None,
    }  # fmt: skip
    assert written == [(3, {"id": one}) for one in (0, 1, 0, 1, 2)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RowFailedError("table is full"), "table is full"), (OSError("x" * 400), "OSError: " + "x" * 291)],
)
@pytest.mark.parametrize("consumes", [0, 1, 2])
def test_an_error_fails_every_row_of_the_partition(error: Exception, reason: str, consumes: int) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        for _ in range(consumes):
            next(rows)
        raise error

    row = run(write, "fail", batches())
    (failure,) = failures_in([row], "save")
    assert (row[SHARE], row["rows"], row[OUT], failure.rows, failure.component) == (SUM, 5, 2, 5, "save")
    assert roots_of(failure) == {reason: [1, 2, 9]}


def refusing(rows: Any) -> Any:
    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        list(batches)
        raise RowsRefusedError(rows)

    return write


def test_rows_that_the_store_refused_fail_alone() -> None:
    refused = refusing({4: RowFailedError("too long", retry=False), 2: "twice", 0: "twice"})
    rows = rows_of(refused, "fail", batches())
    (failure,) = failures_in(rows, "save")
    failed_sum = sum(OWN[at] or 0 for at in (0, 2, 4)) & MASK
    assert [(row[SHARE], row["rows"], row[OUT]) for row in rows] == [
        ((SUM - failed_sum) & MASK, 2, 0),
        (failed_sum, 3, 2),
    ]
    assert failure.rows == 3
    found = {
        (reason.text, reason.retry): np.frombuffer(packed, np.int64).tolist()
        for reason, packed in failure.reasons.items()
    }
    assert found == {("too long", False): [1], ("twice", True): [1, 2, 9]}


@pytest.mark.parametrize(("rows", "failed"), [({}, 0), (dict.fromkeys(range(5), "no"), 5), ({3: "has no roots"}, 1)])
def test_all_rows_or_none_may_be_refused(rows: Any, failed: int) -> None:
    outputs = rows_of(refusing(rows), "fail", batches())
    assert [row["rows"] for row in outputs] == [count for count in (5 - failed, failed) if count]
    assert sum(row[SHARE] for row in outputs) & MASK == SUM
    assert [failure.rows for failure in failures_in(outputs)] == [failed] * bool(failed)


@pytest.mark.parametrize("rows", [{5: "no"}, {-1: "no"}, {"id": "no"}])
def test_refusing_unknown_rows_is_an_error(rows: Any) -> None:
    with pytest.raises(PipelineError, match="not among the 5"):
        run(refusing(rows), "fail", batches())


def test_refusing_rows_without_on_error_fail_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"needs on_error='fail'.*: 1 row was refused.*row 1: full"):
        run(refusing({1: "full"}), "raise", batches(with_roots=False))


def test_refusing_rows_before_consuming_all_is_an_error() -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        next(rows)
        raise RowsRefusedError({0: "full"})

    with pytest.raises(AckerError, match="before it had consumed"):
        run(write, "fail", batches())


def test_rows_refused_error_survives_pickle() -> None:
    error = pickle.loads(pickle.dumps(RowsRefusedError({1: "full", 2: RowFailedError("never", retry=False)})))
    assert str(error) == "2 rows were refused. The first is row 1: full"
    assert (error.rows[1], str(error.rows[2]), error.rows[2].retry) == ("full", "never", False)


@pytest.mark.parametrize(
    ("error", "retry"), [(FileExistsError(), False), (OSError(), True), (RowFailedError("full"), True)]
)
def test_no_retry_errors_of_partition_sink_are_matched_by_type(error: Exception, retry: bool) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        raise error

    (failure,) = failures_in(rows_of(write, "fail", batches(), (FileExistsError, KeyError)))
    assert [reason.retry for reason in failure.reasons] == [retry]


@pytest.mark.parametrize("error", [RowFailedError("full"), OSError("gone")])
def test_sink_error_is_raised_with_on_error_raise(error: Exception) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        list(rows)
        raise error

    with pytest.raises(type(error), match=str(error)):
        run(write, "raise", batches(with_roots=False))


def broken() -> Iterator[pa.RecordBatch]:
    yield batches()[0]
    raise ArithmeticError("upstream")


def test_upstream_error_is_raised_despite_the_sink() -> None:
    def swallow(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        try:
            list(rows)
        except ArithmeticError:
            return

    def wrap(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        try:
            list(rows)
        except ArithmeticError as exc:
            raise RowFailedError("wrapped") from exc

    def stop_early(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        next(rows)
        raise RowFailedError("full")

    for write, kind in ((swallow, ArithmeticError), (wrap, RowFailedError), (stop_early, ArithmeticError)):
        with pytest.raises(kind):
            run(write, "fail", broken())


@pytest.mark.parametrize("consumes", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_sink_function_that_leaves_rows_unconsumed_raises(consumes: int, on_error: str) -> None:
    def write(rows: Any, partition: int) -> None:
        for _ in range(consumes):
            next(rows)
        rows.close()

    with pytest.raises(AckerError, match="sink 'save': the function returned before it had consumed"):
        run(write, on_error, batches())


def test_partition_without_rows_gives_zero_share_and_no_failure() -> None:
    nothing = {SHARE: 0, "rows": 0, OUT: 0, FAILURE: None}

    def fail(rows: Any, partition: int) -> None:
        raise OSError("gone")

    assert run(lambda rows, partition: None, "fail", []) == nothing
    assert run(lambda rows, partition: None, "raise", [tracked([])]) == nothing
    assert run(fail, "fail", []) == nothing


def test_sink_function_sees_columns_under_user_names() -> None:
    seen: list[Any] = []

    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        seen.extend(batch.schema.names for batch in rows)

    given = [one.rename_columns(["_0", "_1", "_2"]) for one in batches()]
    assert run(write, "fail", given, columns=("a.b", SHARE, ROOTS)) == {
        SHARE: SUM, "rows": 5, OUT: 0, FAILURE: None,
    }  # fmt: skip
    assert seen == [["a.b"], ["a.b"]]
