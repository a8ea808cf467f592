"""What of failed rows reaches the driver."""

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis.errors import RowFailedError
from acker_redis.model.roots import root_ids
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker import failures as module
from acker_redis.spark.worker.failures import (
    OTHER_REASONS,
    DistinctRoots,
    Failure,
    FailureCollector,
    Reason,
    read_failure,
    reason_of,
)
from tests.support.batches import MAX_BYTES, roots_of


def add(collector: FailureCollector, shares: list[int], roots: list[Any], reasons: list[str]) -> None:
    collector.add_rows(
        np.array(shares, np.int64), pa.array(roots, pa.list_(pa.int64())), [Reason(text) for text in reasons]
    )


def reported(collector: FailureCollector) -> Failure:
    """The failure as the driver reads it from its text."""
    failed = collector.failed_rows()
    assert failed is not None
    return read_failure("split", json.loads(failed.failure))


def by_reason(failure: Failure) -> dict[tuple[str, bool], list[int]]:
    return {
        (reason.text, reason.retry): np.frombuffer(packed, np.int64).tolist()
        for reason, packed in failure.reasons.items()
    }


def test_failures_hold_distinct_roots_per_reason_and_sum_of_shares() -> None:
    collector = FailureCollector(MAX_BYTES)
    add(collector, [MASK, 5], [[3, -1], None], ["bad", "worse"])
    add(collector, [7, 1], [[3], [4]], ["bad", "bad"])
    failed = collector.failed_rows()
    assert failed is not None
    assert (failed.share_sum, failed.rows) == (12, 4)
    failure = reported(collector)
    assert (failure.component, failure.rows, failure.rootless, failure.unreported) == ("split", 4, 1, 0)
    assert roots_of(failure) == {"bad": [-1, 3, 4], "worse": []}


def test_no_retry_rows_are_kept_apart_from_retried_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 2)
    collector = FailureCollector(MAX_BYTES)
    reasons = [Reason("a"), Reason("a", retry=False), Reason("b", retry=False), Reason("c")]
    collector.add_rows(np.zeros(4, np.int64), pa.array([[1], [2], [3], [4]]), reasons)
    assert by_reason(reported(collector)) == {
        ("a", True): [1], ("a", False): [2], (OTHER_REASONS, False): [3], (OTHER_REASONS, True): [4],
    }  # fmt: skip


def test_a_task_without_failed_rows_adds_no_row() -> None:
    assert FailureCollector(MAX_BYTES).failed_rows() is None


def test_failure_reasons_are_cut_and_made_encodable() -> None:
    collector = FailureCollector(MAX_BYTES)
    add(
        collector,
        [1, 2, 3, 4],
        [[1], [2], [3], [4]],
        ["half \ud800 a pair", "x" * 400, "x" * 500, 'a "quoted", text\n'],
    )
    assert roots_of(reported(collector)) == {"half ? a pair": [1], "x" * 300: [2, 3], 'a "quoted", text\n': [4]}


def test_reasons_above_the_limit_share_a_common_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REASONS", 3)
    collector = FailureCollector(MAX_BYTES)
    add(collector, [0] * 6, [[root] for root in range(6)], ["a", "b", "a", "c", "d", "e"])
    add(collector, [0] * 2, [[6], [7]], ["b", "f"])
    assert roots_of(reported(collector)) == {"a": [0, 2], "b": [1, 6], "c": [3], OTHER_REASONS: [4, 5, 7]}


@pytest.mark.parametrize("dense", [True, False])
def test_failure_stays_below_its_limit_and_counts_what_it_leaves_out(dense: bool) -> None:
    count = 100_000
    roots = root_ids("app", "run", np.arange(count) if dense else np.arange(count) * 1000, 1)
    collector = FailureCollector(10_000)
    for at, reason in ((0, "odd"), (1, "even")):
        own = roots[at::2]
        collector.add_rows(np.ones(len(own), np.int64), pa.array(own[:, None].tolist()), [Reason(reason)] * len(own))
    failed = collector.failed_rows()
    assert failed is not None
    assert len(failed.failure) < 10_200
    assert (failed.rows, failed.share_sum) == (count, count)  # the sum has them all
    failure = reported(collector)
    kept = [root for of_reason in roots_of(failure).values() for root in of_reason]
    assert len(kept) + failure.unreported == count
    assert set(kept) <= set(roots.tolist())
    assert len(kept) > (8_000 if dense else 600)  # 16 of a block, or one, take 16 characters


def test_failure_within_its_limit_leaves_nothing_out() -> None:
    roots = root_ids("app", "run", np.arange(5000), 1)
    collector = FailureCollector(10_000)
    collector.add_rows(np.ones(5000, np.int64), pa.array(roots[:, None].tolist()), [Reason("bad")] * 5000)
    failure = reported(collector)
    assert (failure.unreported, roots_of(failure)) == (0, {"bad": np.sort(roots).tolist()})


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


def test_failure_reason_follows_type_of_error() -> None:
    assert reason_of(RowFailedError("no such customer")) == Reason("no such customer")
    assert reason_of(RowFailedError("no such customer", retry=False)) == Reason("no such customer", retry=False)
    assert reason_of(pickle.loads(pickle.dumps(RowFailedError("none", retry=False)))) == Reason("none", retry=False)
    assert reason_of(KeyError("x")) == Reason("KeyError: 'x'", is_expected=False)
    assert reason_of(KeyError("x"), (KeyError,)) == Reason("KeyError: 'x'", retry=False)
    assert reason_of(ConnectionResetError("gone")) == Reason("ConnectionResetError: gone", is_outage=True)
