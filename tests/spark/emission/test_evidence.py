"""Whether an exception that nobody declared counts: only once its operator has processed a row of another message."""

import numpy as np
import pytest

from acker_redis import OperatorBrokenError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.evidence import MANY, Evidence, Verdict
from acker_redis.spark.proof.metrics import Processed
from acker_redis.spark.worker.failures import Reason, Report, report_of
from acker_redis.spout.in_flight import Emission

TYPO = Reason("AttributeError: 'dict' object has no attribute 'order'", is_expected=False)
DECLARED = Reason("no such customer")


def emission(*messages: int, number: int = 0) -> Emission:
    ids = np.array(messages, np.int64)
    return Emission(number, ids, np.zeros_like(ids), ids * 1000 - number)


def report(of: Emission, *messages: int, operator: str = "split", reason: Reason = TYPO) -> Report:
    return report_of(operator, reason, of.roots[np.isin(of.message_ids, messages)])


def processed(of: Emission, *messages: int, rows: int = 7) -> dict[str, Processed]:
    roots = of.roots[np.isin(of.message_ids, messages)].tolist()
    return {"split": Processed(rows, frozenset((min(roots), max(roots)) if roots else ()))}


def exempt(of: Emission, verdict: Verdict) -> list[int]:
    assert verdict.broken is None
    return sorted(of.message_ids[np.isin(of.roots, verdict.exempt)].tolist())


@pytest.fixture
def evidence() -> Evidence:
    return Evidence(everything_counts=False)


def test_what_fails_where_nothing_was_processed_yet_does_not_count(evidence: Evidence) -> None:
    one = emission(*range(100))
    assert exempt(one, evidence.judge(one, [report(one, 3, 5)], {}, is_last=False)) == [3, 5]


def test_it_counts_once_others_were_processed(evidence: Evidence) -> None:
    one, two = emission(*range(100)), emission(3, 5, 200, number=1)
    assert exempt(one, evidence.judge(one, [report(one, 3, 5)], processed(one, 7, 90), is_last=False)) == []
    assert exempt(two, evidence.judge(two, [report(two, 3, 5)], {}, is_last=False)) == []
    other = report(two, 3, operator="enrich")
    assert exempt(two, evidence.judge(two, [other], {}, is_last=False)) == [3], "of an operator each"


def test_rows_of_the_same_message_tell_nothing(evidence: Evidence) -> None:
    one, two = emission(3, 5), emission(3, 5, number=1)
    assert exempt(one, evidence.judge(one, [report(one, 3, 5)], processed(one, 3), is_last=False)) == [3]
    assert exempt(two, evidence.judge(two, [report(two, 3, 5)], processed(two, 3), is_last=False)) == [3]
    assert exempt(two, evidence.judge(two, [report(two, 3, 5)], processed(two, 5), is_last=False)) == []


def test_rows_that_were_dropped_or_written_are_some_messages(evidence: Evidence) -> None:
    one = emission(3, 5)
    assert exempt(one, evidence.judge(one, [report(one, 3)], processed(one), is_last=False)) == []


def test_what_the_pipeline_declares_counts_and_decides(evidence: Evidence) -> None:
    one = emission(*range(100))
    both = [report(one, 3, 5), report(one, 5, 6, reason=DECLARED)]
    assert exempt(one, evidence.judge(one, both, {}, is_last=False)) == [3]


@pytest.mark.parametrize("is_last", [False, True])
def test_many_that_failed_where_nothing_was_processed_end_the_run(evidence: Evidence, is_last: bool) -> None:
    one = emission(*range(100))
    verdict = evidence.judge(one, [report(one, *range(MANY))], {}, is_last=is_last)
    assert verdict.exempt.tolist() == one.roots.tolist()
    assert isinstance(verdict.broken, OperatorBrokenError)
    for said in ("20 messages failed in 'split'", "has processed none", TYPO.text, "stop_if_all_fail=False"):
        assert said in str(verdict.broken)


def test_many_are_counted_over_emissions_each_once(evidence: Evidence) -> None:
    for number in range(3):
        one = emission(*range(15), number=number)
        assert evidence.judge(one, [report(one, *range(15))], {}, is_last=False).broken is None
    two = emission(*range(15, 20), number=3)
    assert evidence.judge(two, [report(two, *range(15, 20))], {}, is_last=False).broken is not None


def test_few_count_where_no_others_will_come(evidence: Evidence) -> None:
    one = emission(*range(100))
    assert exempt(one, evidence.judge(one, [report(one, 3)], {}, is_last=True)) == []


def test_in_a_stream_others_may_always_come() -> None:
    one = emission(*range(100))
    evidence = Evidence(everything_counts=False, goes_on=True)
    assert exempt(one, evidence.judge(one, [report(one, 3)], {}, is_last=True)) == [3]


def test_where_few_may_be_open_few_are_many() -> None:
    one = emission(*range(10))
    evidence = Evidence(everything_counts=False, goes_on=True, most=10)
    assert evidence.judge(one, [report(one, *range(10))], {}, is_last=True).broken is not None


def test_everything_counts_where_the_user_says_so() -> None:
    one = emission(*range(100))
    verdict = Evidence(everything_counts=True).judge(one, [report(one, *range(100))], {}, is_last=False)
    assert exempt(one, verdict) == []


def test_roots_of_nobody_are_no_message(evidence: Evidence) -> None:
    none: Int64Array = np.array([], np.int64)
    assert evidence.judge(Emission(0, none, none, none), [], processed(emission(1), 1), is_last=True).broken is None
