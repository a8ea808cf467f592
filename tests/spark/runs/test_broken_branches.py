"""A branch of a pipeline that fails for all of its messages ends a run, whatever the size and the order of emissions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import OperatorBrokenError, RetryPolicy
from acker_redis.spark import Pipeline, Tracker
from tests.support.spark.cases import IDS, Case, MakeCase

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
UNUSUAL = set(range(4, 120, 5))


def every(message: int) -> bool:
    return True


def early(message: int) -> bool:
    return message < 110


def mistaken(bad: Callable[[int], bool], row: Any) -> list[tuple[int]]:
    return [(row.id if bad(row["id"]) else row["id"],)]


def with_branch(run: Case, bad: Callable[[int], bool], mode: str = "append") -> Pipeline:
    """Write usual messages to one folder, and unusual ones, if their operator lets them through, to another."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        unusual = tracker.flat_map(tracker.filter(messages, "id % 5 = 4"), partial(mistaken, bad), IDS, name="unusual")
        tracker.write(unusual, lambda writer: writer.mode(mode).parquet(str(run.folder / "unusual")))
        usual = tracker.filter(messages, "id % 5 <> 4")
        tracker.write(usual, lambda writer: writer.mode(mode).parquet(run.out))

    return pipeline


@pytest.mark.parametrize("options", [{}, {"max_spout_pending": 20}])
def test_run_completes_all_other_messages_before_it_ends(case: MakeCase, options: Any) -> None:
    run = case(n=120)
    ended = run.run(with_branch(run, every), retry=ONCE, **options)
    assert type(ended.error) is OperatorBrokenError
    assert "24 messages failed in 'unusual'" in str(ended.error)
    assert "completed other messages first" in str(ended.error)
    assert (ended.letters, ended.acked, run.acker.stats().pending) == ({}, set(range(120)) - UNUSUAL, 0)


def test_messages_of_a_branch_that_works_after_all_are_judged_again(case: MakeCase) -> None:
    run = case(n=120)
    ended = run.done(with_branch(run, early), retry=ONCE, max_spout_pending=20)
    assert (set(ended.letters), len(ended.acked)) == ({n for n in UNUSUAL if n < 110}, 98)
    assert {letter.attempts for letter in ended.letters.values()} == {1}


def test_broken_branch_of_a_whole_output_ends_the_run_at_once(case: MakeCase) -> None:
    run = case(n=120)
    ended = run.run(with_branch(run, every, "overwrite"), retry=ONCE, output="whole")
    assert type(ended.error) is OperatorBrokenError
    assert (ended.emissions, ended.letters, ended.acked, run.written()) == (1, {}, set(), [])
