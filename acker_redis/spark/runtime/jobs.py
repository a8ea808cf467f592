"""Set Spark's properties during an emission, and cancel its jobs after a timeout."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from acker_redis.errors import AckerError

_RULES = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_RELATION_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
"""This rule removes stages that turn out to be empty, and their metrics with them."""

_DESCRIPTION = "spark.job.description"

_CANCEL_EVERY_SECS = 1.0
"""Interval of cancellations after the timeout, because other jobs may start."""

_lock = threading.Lock()
_running: dict[str, tuple[int, bool]] = {}
"""Session -> number of running actions, and whether the rule was excluded for them."""


@contextmanager
def _metrics_kept(spark: SparkSession) -> Iterator[None]:
    """Keep all metrics of the plans executed meanwhile. Several threads of one session may nest this."""
    key = str(spark._jsparkSession.sessionUUID())  # noqa: SLF001
    with _lock:
        count, is_ours = _running.get(key, (0, False))
        if not count and (is_ours := _EMPTY_RELATION_RULE not in _rules(spark)):
            _exclude(spark, [*_rules(spark), _EMPTY_RELATION_RULE])
        _running[key] = count + 1, is_ours
    try:
        yield
    finally:
        with _lock:
            count, is_ours = _running.pop(key)
            if count > 1:
                _running[key] = count - 1, is_ours
            elif is_ours:
                _exclude(spark, [rule for rule in _rules(spark) if rule != _EMPTY_RELATION_RULE])


def _rules(spark: SparkSession) -> list[str]:
    return [rule for rule in (spark.conf.get(_RULES, "") or "").split(",") if rule]


def _exclude(spark: SparkSession, rules: list[str]) -> None:
    if rules:
        spark.conf.set(_RULES, ",".join(rules))
    else:
        spark.conf.unset(_RULES)


@contextmanager
def running(spark: SparkSession, tag: str) -> Iterator[None]:
    """Keep all metrics of a pipeline's plans, and tag the jobs of this thread.

    The user's own actions are included.
    """
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        with _metrics_kept(spark):
            yield
    finally:
        context.removeJobTag(tag)


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's UI, in front of any description they already have."""
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text if before is None else f"{text}; {before}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None takes it away


@contextmanager
def counted(spark: SparkSession, counts: Mapping[str, int]) -> Iterator[None]:
    """Pass counts to Spark's listeners as properties `acker.<name>` of each job of this thread."""
    context = spark.sparkContext
    for name, value in counts.items():
        context.setLocalProperty(f"acker.{name}", str(value))
    try:
        yield
    finally:
        for name in counts:
            context.setLocalProperty(f"acker.{name}", None)  # type: ignore[arg-type]  # takes it away


@contextmanager
def ended_after(spark: SparkSession, tag: str, timeout_secs: float | None) -> Iterator[None]:
    """Cancel the jobs with this tag after a timeout, including those that start later.

    Spark ends the Python workers of their tasks, two seconds later if they don't stop by themselves.

    Raises:
        AckerError: jobs were cancelled.
    """
    if timeout_secs is None:
        yield
        return
    ended, late = threading.Event(), threading.Event()

    def watch() -> None:
        wait_secs = timeout_secs
        while not ended.wait(wait_secs):
            late.set()
            spark.sparkContext.cancelJobsWithTag(tag)
            wait_secs = _CANCEL_EVERY_SECS

    thread = threading.Thread(target=watch, name="acker-emit-timeout", daemon=True)
    thread.start()
    try:
        yield
    except Exception as exc:
        if not late.is_set():
            raise
        raise AckerError(
            f"The jobs of an emission took longer than emit_timeout_secs={timeout_secs:g} and were cancelled."
        ) from exc
    finally:
        ended.set()
        thread.join()
