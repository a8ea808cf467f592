"""Properties, tags and settings of jobs."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import inheritable_thread_target

from acker_redis import AckerError
from acker_redis.spark.runtime import jobs
from acker_redis.spark.runtime.sessions import in_session, steady_splits

pytestmark = [pytest.mark.spark, pytest.mark.classic("Spark Connect has no properties")]

RULES, OURS = "spark.sql.adaptive.optimizer.excludedRules", "AQEPropagateEmptyRelation"


def in_thread(function: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_function_inherits_properties_and_tags_of_another_thread(spark: Any) -> None:
    context = spark.sparkContext
    seen: list[Any] = []

    def look() -> None:
        with jobs.counted(spark, {"left": 7}):
            seen.extend(context.getLocalProperty(name) for name in ("a.b", "acker.left"))
            seen.append(spark.getTags())

    context.setLocalProperty("a.b", "with = and: \n signs")
    spark.addTag("mine")
    try:
        function = jobs.inherited(spark, look)
    finally:
        spark.removeTag("mine")
        context.setLocalProperty("a.b", None)
    in_thread(function)
    in_thread(function)
    assert seen == ["with = and: \n signs", "7", {"mine"}] * 2
    assert context.getLocalProperty("acker.left") is None


@pytest.mark.parametrize("ends", [True, False])
def test_limit_that_has_ended_hides_no_error(spark: Any, monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(jobs, "cancel", lambda spark, tag: cancelled.set())
    error = KeyError if ends else AckerError
    with pytest.raises(error), jobs.ended_after(spark, "tag", 0.01) as limit:
        assert cancelled.wait(60)
        if ends:
            limit.end()
        raise KeyError("later")


def test_limit_that_has_begun_again_counts(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(jobs, "cancel", lambda spark, tag: cancelled.set())
    with pytest.raises(AckerError, match="took longer"), jobs.ended_after(spark, "tag", 0.01) as limit:
        limit.end()
        cancelled.clear()
        limit.begin()
        assert cancelled.wait(60)
        raise KeyError("later")


def test_counts_are_properties_only_meanwhile(spark: Any) -> None:
    context = spark.sparkContext
    context.setLocalProperty("a.b", "kept")
    try:
        with jobs.counted(spark, {"left": 7, "acked": 8}):
            assert [context.getLocalProperty(name) for name in ("a.b", "acker.left", "acker.acked")] == [
                "kept",
                "7",
                "8",
            ]
        assert [context.getLocalProperty(name) for name in ("a.b", "acker.left", "acker.acked")] == ["kept", None, None]
    finally:
        context.setLocalProperty("a.b", None)


def test_rules_that_the_program_sets_meanwhile_lose_none_of_ours(spark: Any) -> None:
    own = spark.newSession()
    with jobs.metrics_kept(own):
        assert OURS in own.conf.get(RULES)
        own.conf.set(RULES, "its.Rule")
        with jobs.metrics_kept(own):
            assert own.conf.get(RULES).split(",")[0] == "its.Rule"
            assert OURS in own.conf.get(RULES)
        assert OURS in own.conf.get(RULES)
    assert own.conf.get(RULES) == "its.Rule"


def test_frame_of_another_session_keeps_its_session(spark: Any) -> None:
    other = spark.newSession()
    frame = other.range(1)
    assert in_session(frame, spark) is frame
    same = in_session(frame, other)
    assert same.sparkSession is other
    assert same.collect() == frame.collect()


def test_tags_are_on_their_thread_only_meanwhile(spark: Any) -> None:
    context = spark.sparkContext
    seen: list[set[str]] = []

    def look() -> None:
        with jobs.tagged(spark, "emission"):
            with jobs.tagged(spark, "emission", "first"):
                seen.append(set(context.getJobTags()))
            with jobs.tagged(spark, "emission", "second"):
                seen.append(set(context.getJobTags()))
            seen.append(set(context.getJobTags()))
        seen.append(set(context.getJobTags()))

    in_thread(look)
    assert seen == [{"emission", "first"}, {"emission", "second"}, {"emission"}, set()]


def test_tag_that_a_thread_inherited_stays_on_it(spark: Any) -> None:
    context = spark.sparkContext
    seen: list[set[str]] = []

    def look() -> None:
        with jobs.tagged(spark, "emission", "first"):
            seen.append(set(context.getJobTags()))
        seen.append(set(context.getJobTags()))

    with jobs.tagged(spark, "emission"):
        function = inheritable_thread_target(spark)(look)
        in_thread(function)
    assert seen == [{"emission", "first"}, {"emission"}]


def test_splits_stay_steady_until_the_last_run_of_a_session_has_ended(spark: Any) -> None:
    """The first run took the setting away while the second one numbered rows, and the second had never set it."""
    key = "spark.sql.files.minPartitionNum"

    def parts() -> Any:
        return spark.conf.get(key, None)

    first, second = steady_splits(spark), steady_splits(spark)
    first.__enter__()
    kept = parts()
    second.__enter__()
    first.__exit__(None, None, None)
    assert parts() == kept is not None
    second.__exit__(None, None, None)
    assert parts() is None


def test_splits_that_somebody_has_set_stay_as_they_are(spark: Any) -> None:
    key = "spark.sql.files.minPartitionNum"
    spark.conf.set(key, "5")
    try:
        with steady_splits(spark):
            assert spark.conf.get(key) == "5"
        assert spark.conf.get(key) == "5"
    finally:
        spark.conf.unset(key)
