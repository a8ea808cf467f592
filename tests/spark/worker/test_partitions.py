"""A sink that is a function per partition."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import AckerError, FailedError, PipelineError, RefusedError
from acker_redis.spark.protocol.columns import ANCHORS, EDGE, OUT
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker import partitions
from acker_redis.spark.worker.partitions import PartitionsStep
from tests.support.batches import received, roots_of, some_edges, tracked

OWN = some_edges(5)
SUM = sum(one or 0 for one in OWN) & MASK


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "partition_id", lambda: 3)


def batches(*, anchors: bool = True) -> list[pa.RecordBatch]:
    made = [tracked(OWN[:2], [[1], [2]]), tracked(OWN[2:], [[2, 9], None, [1]])]
    return made if anchors else [one.drop_columns([ANCHORS]) for one in made]


def run(write: Any, on_error: Any, given: Any, reports: Any = None, columns: tuple[str, ...] = ()) -> dict[str, Any]:
    step = PartitionsStep("save", "save-1", write, on_error, received() if reports is None else reports, (), columns)
    (batch,) = step(iter(given))
    (row,) = batch.to_pylist()
    return dict(row)


@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_it_says_what_was_consumed(on_error: str) -> None:
    written: list[Any] = []

    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        written.extend((partition, row) for batch in rows for row in batch.to_pylist())

    assert run(write, on_error, batches(anchors=on_error == "fail")) == {EDGE: SUM, "rows": 5, OUT: 0}
    assert written == [(3, {"id": one}) for one in (0, 1, 0, 1, 2)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FailedError("table is full"), "table is full"), (OSError("x" * 400), "OSError: " + "x" * 291)],
)
@pytest.mark.parametrize("consumes", [0, 1, 2])
def test_an_error_fails_every_row_of_the_partition(error: Exception, reason: str, consumes: int) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        for _ in range(consumes):
            next(rows)
        raise error

    reports = received()
    row = run(write, "fail", batches(), reports)
    (report,) = reports
    assert row == {EDGE: SUM, "rows": 5, OUT: report.number}
    assert (report.parts, report.rows, report.operator, report.stage) == (SUM, 5, "save-1", "save")
    assert roots_of(report) == {reason: [1, 2, 9]}


def refusing(rows: Any) -> Any:
    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        list(batches)
        raise RefusedError(rows)

    return write


def test_rows_that_the_store_refused_fail_alone() -> None:
    reports = received()
    step = PartitionsStep("save", "save-1", refusing({4: FailedError("too long", retry=False), 2: "twice", 0: "twice"}),
                          "fail", reports)  # fmt: skip
    (batch,) = step(iter(batches()))
    (report,) = reports
    parts = sum(OWN[at] or 0 for at in (0, 2, 4)) & MASK
    assert batch.to_pylist() == [
        {EDGE: (SUM - parts) & MASK, "rows": 2, OUT: 0},
        {EDGE: parts, "rows": 3, OUT: report.number},
    ]
    assert (report.parts, report.rows) == (parts, 3)
    found = {
        (reason.text, reason.retry): np.frombuffer(packed, np.int64).tolist()
        for reason, packed in report.reasons.items()
    }
    assert found == {("too long", False): [1], ("twice", True): [1, 2, 9]}


@pytest.mark.parametrize(("rows", "failed"), [({}, 0), (dict.fromkeys(range(5), "no"), 5), ({3: "has no roots"}, 1)])
def test_all_rows_or_none_may_be_refused(rows: Any, failed: int) -> None:
    reports = received()
    (batch,) = PartitionsStep("save", "save-1", refusing(rows), "fail", reports)(iter(batches()))
    assert [row["rows"] for row in batch.to_pylist()] == [count for count in (5 - failed, failed) if count]
    assert sum(row[EDGE] for row in batch.to_pylist()) & MASK == SUM
    assert [report.rows for report in reports] == [failed] * bool(failed)


@pytest.mark.parametrize("rows", [{5: "no"}, {-1: "no"}, {"id": "no"}])
def test_rows_that_are_not_there_can_not_be_refused(rows: Any) -> None:
    with pytest.raises(PipelineError, match="not among the 5"):
        run(refusing(rows), "fail", batches())


def test_refusing_rows_needs_them_to_fail() -> None:
    with pytest.raises(PipelineError, match="1 row was refused; the first is row 1: full: give on_error='fail'"):
        run(refusing({1: "full"}), "raise", batches(anchors=False))


def test_what_was_not_consumed_was_not_written_whatever_was_refused() -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        next(rows)
        raise RefusedError({0: "full"})

    with pytest.raises(AckerError, match="before it had consumed"):
        run(write, "fail", batches())


def test_refused_rows_come_through_pickle() -> None:
    error = pickle.loads(pickle.dumps(RefusedError({1: "full", 2: FailedError("never", retry=False)})))
    assert str(error) == "2 rows were refused; the first is row 1: full"
    assert (error.rows[1], str(error.rows[2]), error.rows[2].retry) == ("full", "never", False)


@pytest.mark.parametrize(
    ("error", "retry"), [(FileExistsError(), False), (OSError(), True), (FailedError("full"), True)]
)
def test_errors_after_which_nothing_is_emitted_again_are_told_by_their_type(error: Exception, retry: bool) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        raise error

    reports = received()
    list(PartitionsStep("save", "save-1", write, "fail", reports, (FileExistsError, KeyError))(iter(batches())))
    assert [reason.retry for reason in reports[0].reasons] == [retry]


@pytest.mark.parametrize("error", [FailedError("full"), OSError("gone")])
def test_an_error_goes_on_where_it_is_to_be_raised(error: Exception) -> None:
    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        list(rows)
        raise error

    with pytest.raises(type(error), match=str(error)):
        run(write, "raise", batches(anchors=False))


def broken() -> Iterator[pa.RecordBatch]:
    yield batches()[0]
    raise ArithmeticError("upstream")


def test_what_goes_wrong_before_the_sink_is_raised() -> None:
    def swallow(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        try:
            list(rows)
        except ArithmeticError:
            return

    def wrap(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        try:
            list(rows)
        except ArithmeticError as exc:
            raise FailedError("wrapped") from exc

    def stop_early(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        next(rows)
        raise FailedError("full")

    reports = received()
    for write, kind in ((swallow, ArithmeticError), (wrap, FailedError), (stop_early, ArithmeticError)):
        with pytest.raises(kind):
            run(write, "fail", broken(), reports)
    assert reports == []


@pytest.mark.parametrize("consumes", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_a_function_that_does_not_consume_its_rows(consumes: int, on_error: str) -> None:
    def write(rows: Any, partition: int) -> None:
        for _ in range(consumes):
            next(rows)
        rows.close()

    with pytest.raises(AckerError, match="sink 'save': the function returned before it had consumed"):
        run(write, on_error, batches())


def test_without_rows_there_is_nothing_to_consume_and_nothing_to_fail() -> None:
    reports = received()
    nothing = {EDGE: 0, "rows": 0, OUT: 0}

    def fail(rows: Any, partition: int) -> None:
        raise OSError("gone")

    assert run(lambda rows, partition: None, "fail", [], reports) == nothing
    assert run(lambda rows, partition: None, "raise", [tracked([])]) == nothing
    assert run(fail, "fail", [], reports) == nothing
    assert reports == []


def test_columns_have_the_users_names() -> None:
    seen: list[Any] = []

    def write(rows: Iterator[pa.RecordBatch], partition: int) -> None:
        seen.extend(batch.schema.names for batch in rows)

    given = [one.rename_columns(["_0", "_1", "_2"]) for one in batches()]
    assert run(write, "fail", given, columns=("a.b", EDGE, ANCHORS)) == {EDGE: SUM, "rows": 5, OUT: 0}
    assert seen == [["a.b"], ["a.b"]]
