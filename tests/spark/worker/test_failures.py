"""What of failed rows reaches the driver."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis.errors import RowFailedError
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker import failures as module
from acker_redis.spark.worker.failures import (
    OTHER_REASONS,
    DistinctRoots,
    FailureCollector,
    FailuresParam,
    Reason,
    reason_of,
)
from tests.support.batches import received, roots_of


def add(collector: FailureCollector, shares: list[int], roots: list[Any], reasons: list[str]) -> None:
    collector.add_rows(
        np.array(shares, np.int64), pa.array(roots, pa.list_(pa.int64())), [Reason(text) for text in reasons]
    )


def test_failures_hold_distinct_roots_per_reason_and_sum_of_shares() -> None:
    failures = received()
    collector = FailureCollector("split-1", "split", failures)
    add(collector, [MASK, 5], [[3, -1], None], ["bad", "worse"])
    add(collector, [7, 1], [[3], [4]], ["bad", "bad"])
    assert failures == []
    failed = collector.send()
    assert failed == (collector.number, 12, 4)
    (failure,) = failures
    assert (failure.number, failure.operator, failure.component) == (collector.number, "split-1", "split")
    assert (failure.share_sum, failure.rows) == (12, 4)
    assert roots_of(failure) == {"bad": [-1, 3, 4], "worse": []}


def test_no_retry_rows_are_kept_apart_from_retried_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 2)
    failures = received()
    collector = FailureCollector("", "", failures)
    reasons = [Reason("a"), Reason("a", retry=False), Reason("b", retry=False), Reason("c")]
    collector.add_rows(np.zeros(4, np.int64), pa.array([[1], [2], [3], [4]]), reasons)
    collector.send()
    found = {
        (reason.text, reason.retry): np.frombuffer(packed, np.int64).tolist()
        for reason, packed in failures[0].reasons.items()
    }
    assert found == {("a", True): [1], ("a", False): [2], (OTHER_REASONS, False): [3], (OTHER_REASONS, True): [4]}


def test_failures_without_failed_rows_are_not_sent() -> None:
    failures = received()
    assert FailureCollector("split-1", "split", failures).send() is None
    assert failures == []


def test_failure_numbers_avoid_reserved_out_values() -> None:
    numbers = {FailureCollector("", "", received()).number for _ in range(100)}
    assert len(numbers) == 100
    assert all(2 <= number < 1 << 42 for number in numbers)


def test_failure_reasons_are_cut_and_made_encodable() -> None:
    failures = received()
    collector = FailureCollector("", "", failures)
    add(collector, [1, 2, 3], [[1], [2], [3]], ["half \ud800 a pair", "x" * 400, "x" * 500])
    collector.send()
    assert roots_of(failures[0]) == {"half ? a pair": [1], "x" * 300: [2, 3]}


def test_reasons_above_the_limit_share_a_common_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 3)
    failures = received()
    collector = FailureCollector("", "", failures)
    add(collector, [0] * 6, [[root] for root in range(6)], ["a", "b", "a", "c", "d", "e"])
    add(collector, [0] * 2, [[6], [7]], ["b", "f"])
    collector.send()
    assert roots_of(failures[0]) == {"a": [0, 2], "b": [1, 6], "c": [3], OTHER_REASONS: [4, 5, 7]}


def test_roots_of_failures_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPACT_ROOTS", 100)
    roots = DistinctRoots()
    drawn = np.random.default_rng(1).integers(-30, 30, (500, 7))
    for part in drawn:
        roots.add(part)
        assert sum(map(len, roots._arrays)) <= 200
    roots.add(np.array([], np.int64))
    assert roots.distinct().tolist() == np.unique(drawn).tolist()
    assert DistinctRoots().distinct().tolist() == []


def test_failures_accumulator_collects_added_failures() -> None:
    param = pickle.loads(pickle.dumps(FailuresParam()))
    a, b = (module.Failure(number, "", "", 0, 1, {}) for number in (2, 3))
    assert param.zero([a]) == []
    assert param.addInPlace(param.addInPlace(param.zero([]), [a]), [b]) == [a, b]


def test_failure_reason_follows_type_of_error() -> None:
    assert reason_of(RowFailedError("no such customer")) == Reason("no such customer")
    assert reason_of(RowFailedError("no such customer", retry=False)) == Reason("no such customer", retry=False)
    assert reason_of(pickle.loads(pickle.dumps(RowFailedError("none", retry=False)))) == Reason("none", retry=False)
    assert reason_of(KeyError("x")) == Reason("KeyError: 'x'", is_expected=False)
    assert reason_of(KeyError("x"), (KeyError,)) == Reason("KeyError: 'x'", retry=False)
    assert reason_of(ConnectionResetError("gone")) == Reason("ConnectionResetError: gone")
