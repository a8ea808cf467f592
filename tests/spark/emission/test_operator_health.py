"""Whether an exception that nobody declared counts: only once its operator has processed a row of another message."""

import numpy as np
import pytest

from acker_redis import OperatorBrokenError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.operator_health import MANY_FAILED, OperatorHealth, Verdict
from acker_redis.spark.proof.meters import Processed
from acker_redis.spark.worker.failures import Failure, Reason, failure_of
from acker_redis.spout.in_flight import Emission

TYPO = Reason("AttributeError: 'dict' object has no attribute 'order'", is_expected=False)
DECLARED = Reason("no such customer")


def emission(*messages: int, number: int = 0) -> Emission:
    ids = np.array(messages, np.int64)
    return Emission(number, ids, np.zeros_like(ids), ids * 1000 - number)


def failure(of: Emission, *messages: int, operator: str = "split", reason: Reason = TYPO) -> Failure:
    return failure_of(operator, reason, of.roots[np.isin(of.message_ids, messages)])


def processed(of: Emission, *messages: int, rows: int = 7) -> dict[str, Processed]:
    roots = of.roots[np.isin(of.message_ids, messages)].tolist()
    return {"split": Processed(rows, frozenset((min(roots), max(roots)) if roots else ()))}


def exempt(of: Emission, verdict: Verdict) -> list[int]:
    assert verdict.broken is None
    return sorted(of.message_ids[np.isin(of.roots, verdict.exempt)].tolist())


@pytest.fixture
def health() -> OperatorHealth:
    return OperatorHealth(everything_counts=False)


def test_failures_before_any_processed_row_are_exempt(health: OperatorHealth) -> None:
    one = emission(*range(100))
    assert exempt(one, health.judge(one, [failure(one, 3, 5)], {}, is_last=False)) == [3, 5]


def test_failures_count_once_other_messages_were_processed(health: OperatorHealth) -> None:
    one, two = emission(*range(100)), emission(3, 5, 200, number=1)
    assert exempt(one, health.judge(one, [failure(one, 3, 5)], processed(one, 7, 90), is_last=False)) == []
    assert exempt(two, health.judge(two, [failure(two, 3, 5)], {}, is_last=False)) == []
    other = failure(two, 3, operator="enrich")
    assert exempt(two, health.judge(two, [other], {}, is_last=False)) == [3], "of an operator each"


def test_processed_rows_of_the_failed_message_are_no_evidence(health: OperatorHealth) -> None:
    one, two = emission(3, 5), emission(3, 5, number=1)
    assert exempt(one, health.judge(one, [failure(one, 3, 5)], processed(one, 3), is_last=False)) == [3]
    assert exempt(two, health.judge(two, [failure(two, 3, 5)], processed(two, 3), is_last=False)) == [3]
    assert exempt(two, health.judge(two, [failure(two, 3, 5)], processed(two, 5), is_last=False)) == []


def test_processed_rows_without_roots_count_as_evidence(health: OperatorHealth) -> None:
    one = emission(3, 5)
    assert exempt(one, health.judge(one, [failure(one, 3)], processed(one), is_last=False)) == []


def test_declared_failures_count_without_evidence(health: OperatorHealth) -> None:
    one = emission(*range(100))
    both = [failure(one, 3, 5), failure(one, 5, 6, reason=DECLARED)]
    assert exempt(one, health.judge(one, both, {}, is_last=False)) == [3]


@pytest.mark.parametrize("is_last", [False, True])
def test_many_failures_without_processed_rows_end_the_run(health: OperatorHealth, is_last: bool) -> None:
    one = emission(*range(100))
    verdict = health.judge(one, [failure(one, *range(MANY_FAILED))], {}, is_last=is_last)
    assert verdict.exempt.tolist() == one.roots.tolist()
    assert isinstance(verdict.broken, OperatorBrokenError)
    for said in ("20 messages failed in 'split'", "has not processed any message", TYPO.text, "stop_if_broken=False"):
        assert said in str(verdict.broken)


def test_failed_messages_are_counted_once_over_emissions(health: OperatorHealth) -> None:
    for number in range(3):
        one = emission(*range(15), number=number)
        assert health.judge(one, [failure(one, *range(15))], {}, is_last=False).broken is None
    two = emission(*range(15, 20), number=3)
    assert health.judge(two, [failure(two, *range(15, 20))], {}, is_last=False).broken is not None


def test_few_failures_count_in_the_last_emission(health: OperatorHealth) -> None:
    one = emission(*range(100))
    assert exempt(one, health.judge(one, [failure(one, 3)], {}, is_last=True)) == []


def test_few_failures_of_a_stream_stay_exempt() -> None:
    one = emission(*range(100))
    health = OperatorHealth(everything_counts=False, goes_on=True)
    assert exempt(one, health.judge(one, [failure(one, 3)], {}, is_last=True)) == [3]


def test_limit_of_failures_is_lower_with_few_open_messages() -> None:
    one = emission(*range(10))
    health = OperatorHealth(everything_counts=False, goes_on=True, max_open=10)
    assert health.judge(one, [failure(one, *range(10))], {}, is_last=True).broken is not None


def test_all_failures_count_with_everything_counts() -> None:
    one = emission(*range(100))
    verdict = OperatorHealth(everything_counts=True).judge(one, [failure(one, *range(100))], {}, is_last=False)
    assert exempt(one, verdict) == []


def test_processed_roots_of_no_message_are_ignored(health: OperatorHealth) -> None:
    none: Int64Array = np.array([], np.int64)
    assert health.judge(Emission(0, none, none, none), [], processed(emission(1), 1), is_last=True).broken is None


def test_messages_parked_by_an_earlier_start_do_not_end_the_run() -> None:
    parked, fresh = emission(*range(40)), emission(*range(100, 100 + MANY_FAILED))
    health = OperatorHealth(everything_counts=False, goes_on=True, max_open=100)
    health.add_parked(list(range(40)))
    verdict = health.judge(parked, [failure(parked, *range(40))], {}, is_last=True)
    assert verdict.broken is None
    assert exempt(parked, verdict) == list(range(40))
    broken = health.judge(fresh, [failure(fresh, *range(100, 100 + MANY_FAILED))], {}, is_last=False)
    assert broken.broken is not None, "all others fail, too"


def test_parked_messages_that_leave_no_room_for_others_end_the_run() -> None:
    parked = emission(*range(40))
    health = OperatorHealth(everything_counts=False, goes_on=True, max_open=40)
    health.add_parked(list(range(40)))
    assert health.judge(parked, [failure(parked, *range(40))], {}, is_last=True).broken is not None


@pytest.fixture
def of_run() -> OperatorHealth:
    return OperatorHealth(everything_counts=False, completes_others=True)


def test_broken_operator_of_a_run_that_has_written_is_a_broken_branch(of_run: OperatorHealth) -> None:
    one = emission(*range(100))
    verdict = of_run.judge(one, [failure(one, 3), failure(one, *range(30))], {}, is_last=True, has_written=True)
    assert exempt(one, verdict) == list(range(30))
    [branch] = verdict.branches
    assert (branch.operator, len(branch.roots)) == ("split", 30)
    assert "completed other messages first" in str(branch.error)


def test_broken_operator_without_a_written_row_ends_the_run(of_run: OperatorHealth) -> None:
    one = emission(*range(100))
    assert of_run.judge(one, [failure(one, *range(30))], {}, is_last=False).broken is not None


def test_rows_written_in_an_earlier_emission_leave_a_broken_branch(of_run: OperatorHealth) -> None:
    one, two = emission(1), emission(*range(10, 40), number=1)
    of_run.judge(one, [], {}, is_last=False, has_written=True)
    assert of_run.judge(two, [failure(two, *range(10, 40))], {}, is_last=False).broken is None


def test_broken_branch_works_once_its_operator_has_processed_a_message(of_run: OperatorHealth) -> None:
    one, two = emission(*range(30)), emission(*range(30, 40), number=1)
    of_run.judge(one, [failure(one, *range(30))], {}, is_last=False, has_written=True)
    verdict = of_run.judge(two, [failure(two, 31)], processed(two, 35, 36), is_last=False)
    assert (verdict.working, verdict.branches, exempt(two, verdict)) == (["split"], [], [])
    assert of_run.judge(two, [], processed(two, 35), is_last=False).working == []


def test_declared_failures_of_a_broken_branch_count(of_run: OperatorHealth) -> None:
    one = emission(*range(30))
    both = [failure(one, *range(30)), failure(one, 5, reason=DECLARED, operator="check")]
    verdict = of_run.judge(one, both, {}, is_last=False, has_written=True)
    assert exempt(one, verdict) == [n for n in range(30) if n != 5]
    assert len(verdict.branches[0].roots) == 29


@pytest.fixture
def stream_health(monkeypatch: pytest.MonkeyPatch) -> OperatorHealth:
    """Of a stream that sets messages aside after three attempts, as the hour is over at once."""
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.SET_ASIDE_SECS", 0.0)
    return OperatorHealth(everything_counts=False, goes_on=True, max_attempts=3)


def judged(health: OperatorHealth, of: Emission, failed: list[int], worked: dict[str, Processed]) -> Verdict:
    return health.judge(of, [failure(of, *failed)] if failed else [], worked, is_last=True)


def set_aside(of: Emission, verdict: Verdict) -> list[int]:
    roots = np.concatenate([np.array([], np.int64), *(branch.roots for branch in verdict.branches)])
    return sorted(of.message_ids[np.isin(of.roots, roots)].tolist())


def test_stream_sets_a_message_aside_after_its_attempts(stream_health: OperatorHealth) -> None:
    one = emission(3, 5)
    for _ in range(2):
        verdict = judged(stream_health, one, [3], {})
        assert (exempt(one, verdict), set_aside(one, verdict)) == ([3], [])
    verdict = judged(stream_health, one, [3, 5], {})
    assert (exempt(one, verdict), set_aside(one, verdict)) == ([3, 5], [3])
    (branch,) = verdict.branches
    assert (branch.operator, str(branch.error)) == ("split", TYPO.text)


def test_stream_tries_a_message_for_an_hour(stream_health: OperatorHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.SET_ASIDE_SECS", 3600.0)
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.time.monotonic", lambda: now[0])
    one = emission(3)
    for _ in range(50):
        assert set_aside(one, judged(stream_health, one, [3], {})) == []
    now[0] += 3600
    assert set_aside(one, judged(stream_health, one, [3], {})) == [3]


def test_messages_that_were_set_aside_come_back_once_their_operator_works(stream_health: OperatorHealth) -> None:
    one = emission(3, 5)
    for _ in range(3):
        verdict = judged(stream_health, one, [3], {})
    assert set_aside(one, verdict) == [3]
    verdict = judged(stream_health, one, [], processed(one, 3))
    assert list(verdict.working) == [], "a row of the message itself shows nothing"
    verdict = judged(stream_health, one, [], processed(one, 5))
    assert list(verdict.working) == ["split"]
    assert judged(stream_health, one, [], processed(one, 5)).working == []
    verdict = judged(stream_health, one, [3], {})
    assert (exempt(one, verdict), set_aside(one, verdict)) == ([], []), "it counts now"


def test_stream_sets_at_most_19_messages_of_an_operator_aside(stream_health: OperatorHealth) -> None:
    parked = emission(*range(40))
    stream_health.add_parked(parked.message_ids.tolist())
    for _ in range(5):
        verdict = judged(stream_health, parked, list(range(40)), {})
    assert set_aside(parked, verdict) == list(range(MANY_FAILED - 1))
    assert exempt(parked, verdict) == list(range(40))


def test_many_failed_messages_of_a_stream_are_a_broken_operator(stream_health: OperatorHealth) -> None:
    one = emission(*range(MANY_FAILED))
    for _ in range(3):
        judged(stream_health, one, list(range(MANY_FAILED - 1)), {})
    assert isinstance(judged(stream_health, one, [MANY_FAILED - 1], {}).broken, OperatorBrokenError)


def test_run_sets_no_message_aside_that_may_be_bad(health: OperatorHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.SET_ASIDE_SECS", 0.0)
    one = emission(3, 5)
    for _ in range(50):
        verdict = health.judge(one, [failure(one, 3)], {}, is_last=False)
        assert (exempt(one, verdict), set_aside(one, verdict)) == ([3], [])
