"""What of failed rows reaches the driver."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis.errors import FailedError
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker import failures as module
from acker_redis.spark.worker.failures import OTHER_REASONS, Failures, Reason, Reports, Roots, reason_of
from tests.support.batches import received, roots_of


def add(failures: Failures, edges: list[int], anchors: list[Any], reasons: list[str]) -> None:
    failures.add(np.array(edges, np.int64), pa.array(anchors, pa.list_(pa.int64())), [Reason(one) for one in reasons])


def test_a_report_has_the_distinct_roots_of_each_reason_and_the_sum_of_the_edges() -> None:
    reports = received()
    failures = Failures("split-1", "split", reports)
    add(failures, [MASK, 5], [[3, -1], None], ["bad", "worse"])
    add(failures, [7, 1], [[3], [4]], ["bad", "bad"])
    assert reports == []
    residue = failures.residue()
    assert residue == (failures.number, 12, 4)
    (report,) = reports
    assert (report.number, report.operator, report.stage) == (failures.number, "split-1", "split")
    assert (report.parts, report.rows) == (12, 4)
    assert roots_of(report) == {"bad": [-1, 3, 4], "worse": []}


def test_rows_that_are_not_to_be_tried_again_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 2)
    reports = received()
    failures = Failures("", "", reports)
    reasons = [Reason("a"), Reason("a", retry=False), Reason("b", retry=False), Reason("c")]
    failures.add(np.zeros(4, np.int64), pa.array([[1], [2], [3], [4]]), reasons)
    failures.residue()
    found = {
        (reason.text, reason.retry): np.frombuffer(packed, np.int64).tolist()
        for reason, packed in reports[0].reasons.items()
    }
    assert found == {("a", True): [1], ("a", False): [2], (OTHER_REASONS, False): [3], (OTHER_REASONS, True): [4]}


def test_no_failed_row_no_report() -> None:
    reports = received()
    assert Failures("split-1", "split", reports).residue() is None
    assert reports == []


def test_numbers_are_drawn_apart_from_what_out_means_otherwise() -> None:
    numbers = {Failures("", "", received()).number for _ in range(100)}
    assert len(numbers) == 100
    assert all(2 <= number < 1 << 42 for number in numbers)


def test_reasons_are_cut_and_can_be_encoded() -> None:
    reports = received()
    failures = Failures("", "", reports)
    add(failures, [1, 2, 3], [[1], [2], [3]], ["half \ud800 a pair", "x" * 400, "x" * 500])
    failures.residue()
    assert roots_of(reports[0]) == {"half ? a pair": [1], "x" * 300: [2, 3]}


def test_too_many_reasons_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 3)
    reports = received()
    failures = Failures("", "", reports)
    add(failures, [0] * 6, [[root] for root in range(6)], ["a", "b", "a", "c", "d", "e"])
    add(failures, [0] * 2, [[6], [7]], ["b", "f"])
    failures.residue()
    assert roots_of(reports[0]) == {"a": [0, 2], "b": [1, 6], "c": [3], OTHER_REASONS: [4, 5, 7]}


def test_roots_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPACT_ROOTS", 100)
    roots = Roots()
    drawn = np.random.default_rng(1).integers(-30, 30, (500, 7))
    for part in drawn:
        roots.add(part)
        assert sum(map(len, roots._parts)) <= 200
    roots.add(np.array([], np.int64))
    assert roots.distinct().tolist() == np.unique(drawn).tolist()
    assert Roots().distinct().tolist() == []


def test_an_accumulator_of_reports_adds_them_up() -> None:
    param = pickle.loads(pickle.dumps(Reports()))
    a, b = (module.Report(number, "", "", 0, 1, {}) for number in (2, 3))
    assert param.zero([a]) == []
    assert param.addInPlace(param.addInPlace(param.zero([]), [a]), [b]) == [a, b]


def test_reasons_of_errors() -> None:
    assert reason_of(FailedError("no such customer")) == Reason("no such customer")
    assert reason_of(FailedError("no such customer", retry=False)) == Reason("no such customer", retry=False)
    assert reason_of(pickle.loads(pickle.dumps(FailedError("none", retry=False)))) == Reason("none", retry=False)
    assert reason_of(KeyError("x")) == Reason("KeyError: 'x'", is_expected=False)
    assert reason_of(KeyError("x"), (KeyError,)) == Reason("KeyError: 'x'", retry=False)
    assert reason_of(ConnectionResetError("gone")) == Reason("ConnectionResetError: gone")
