"""Set Spark's properties during an emission, and cancel its jobs after a timeout."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.errors import AckerError
from acker_redis.spark.runtime.jvm import java_context, java_errors, java_static
from acker_redis.spark.runtime.sessions import is_connect, key_of, set_required

log = logging.getLogger("acker_redis.spark")

_RULES = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_RELATION_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
"""This rule removes stages that turn out to be empty, and their metrics with them."""

GONE: tuple[type[Exception], ...] = (*java_errors(), PySparkException)
"""Errors of a session that is gone."""

_DESCRIPTION = "spark.job.description"

CANCEL_EVERY_SECS = 1.0
"""Interval of cancellations after the first one, because other jobs may start."""

_thread = threading.local()
"""Its `properties` are those that `inherited` has given to this thread, while a function runs. Its `tags` are those of its
jobs, while `tagged` runs.
"""

_lock = threading.Lock()
_running: dict[str, tuple[int, bool]] = {}
"""Session -> number of running actions, and whether the rule was excluded for them."""


@contextmanager
def metrics_kept(spark: SparkSession) -> Iterator[None]:
    """Keep all metrics of the plans executed meanwhile. Several threads of one session may nest this."""
    key = key_of(spark)
    with _lock:
        count, is_ours = _running.get(key, (0, False))
        if _EMPTY_RELATION_RULE not in (rules := _rules(spark)):  # the program may have set other rules meanwhile
            _exclude(spark, [*rules, _EMPTY_RELATION_RULE])
            is_ours = True
        _running[key] = count + 1, is_ours
    try:
        yield
    finally:
        with _lock:
            count, is_ours = _running.pop(key)
            if count > 1:
                _running[key] = count - 1, is_ours
            elif is_ours:
                _restore(spark)


def _restore(spark: SparkSession) -> None:
    """Take the rule out again. The session may be gone, for example if a program drops a handler without ending it."""
    try:
        _exclude(spark, [rule for rule in _rules(spark) if rule != _EMPTY_RELATION_RULE])
    except GONE:
        log.debug("settings of a session not restored, it may be gone", exc_info=True)


def _rules(spark: SparkSession) -> list[str]:
    return [rule for rule in (spark.conf.get(_RULES, "") or "").split(",") if rule]


def _exclude(spark: SparkSession, rules: list[str]) -> None:
    if rules:
        set_required(spark, _RULES, ",".join(rules))
    else:
        spark.conf.unset(_RULES)


@contextmanager
def running(spark: SparkSession, tag: str) -> Iterator[None]:
    """Keep all metrics of a pipeline's plans, and tag the jobs of this thread.

    The user's own actions are included.
    """
    with (
        tagged(spark, tag, inherited=frozenset()),
        metrics_kept(spark),
    ):  # no other thread has had the tag of this emission
        yield


@contextmanager
def tagged(spark: SparkSession, *tags: str, inherited: frozenset[str] | None = None) -> Iterator[None]:
    """Tag the jobs of this thread. Tags that it has already stay on it afterwards.

    Args:
        spark: Spark session.
        tags: the tags.
        inherited: those of `tags` that the program may have passed on to this thread. None: Spark is asked, by a dozen calls
            of Java.
    """
    owner: Any = spark if is_connect(spark) else spark.sparkContext
    add, remove = (owner.addTag, owner.removeTag) if is_connect(spark) else (owner.addJobTag, owner.removeJobTag)
    outer: frozenset[str] | None = getattr(_thread, "tags", None)
    before = inherited if outer is None else outer
    if before is None:
        before = frozenset(owner.getTags() if is_connect(spark) else owner.getJobTags())
    fresh = [tag for tag in tags if tag not in before]
    for tag in fresh:
        add(tag)
    _thread.tags = before.union(fresh)
    try:
        yield
    finally:
        _thread.tags = outer
        for tag in fresh:
            remove(tag)


@contextmanager
def untagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Leave the tag away from jobs of this thread that belong to no pipeline. The session must be a classic one."""
    context = spark.sparkContext
    had = tag in context.getJobTags()
    context.removeJobTag(tag)
    try:
        yield
    finally:
        if had:
            context.addJobTag(tag)


@contextmanager
def reading_ids(spark: SparkSession, key: str, timeout_secs: float | None) -> Iterator[None]:
    """Describe the jobs of this thread that read the message ids of a run, and cancel them after a timeout.

    Args:
        spark: Spark session.
        key: app and run.
        timeout_secs: the timeout of an emission, whose jobs would read the same messages; None: there is none.

    Raises:
        AckerError: jobs were cancelled.
    """
    tag = f"acker:{key}:ids".replace(",", "_")
    with (
        nullcontext() if timeout_secs is None else tagged(spark, tag),
        ended_after(spark, tag, timeout_secs, what="the read of message ids"),
        described(spark, f"message ids of {key}"),
    ):
        yield


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's UI, in front of any description they already have.

    Spark Connect has no descriptions.
    """
    if is_connect(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text if before is None else f"{text}; {before}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None takes it away


@contextmanager
def counted(spark: SparkSession, counts: Mapping[str, int]) -> Iterator[None]:
    """Pass counts to Spark's listeners as properties `acker.<name>` of each job of this thread.

    Spark Connect has no such properties.
    """
    if is_connect(spark):
        yield
        return
    text = "\n".join(f"acker.{name}={value}" for name, value in counts.items())
    reader = java_static(spark.sparkContext, "java.io.StringReader")(text)  # one call instead of one for each
    properties = getattr(_thread, "properties", None)
    if properties is not None:
        properties.load(reader)
        yield
        return
    context = java_context(spark.sparkContext)
    before = context.getLocalProperties()
    own = before.clone()
    own.load(reader)
    context.setLocalProperties(own)
    try:
        yield
    finally:
        context.setLocalProperties(before)


class JobLimit:
    """Time limit of the jobs with a tag, including those that start later."""

    def __init__(self, spark: SparkSession, tag: str, timeout_secs: float | None) -> None:
        """Set the limit, without beginning. None: there is none."""
        self._spark, self._tag, self._timeout_secs = spark, tag, timeout_secs
        self._thread: threading.Thread | None = None
        self._ended, self._late = threading.Event(), threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether jobs were cancelled since it began, unless it has ended."""
        return self._late.is_set()

    def begin(self) -> None:
        """Begin to count the time."""
        if self._timeout_secs is not None:
            self._ended, self._late = threading.Event(), threading.Event()
            self._thread = threading.Thread(target=self._watch, name="acker-emit-timeout", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Cancel nothing any more. What follows doesn't fail for what was cancelled before."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._late.clear()

    def _watch(self) -> None:
        wait_secs = self._timeout_secs
        while not self._ended.wait(wait_secs):
            self._late.set()
            cancel(self._spark, self._tag)
            wait_secs = CANCEL_EVERY_SECS


@contextmanager
def ended_after(
    spark: SparkSession,
    tag: str,
    timeout_secs: float | None,
    setting: str = "emit_timeout_secs",
    what: str = "an emission",
) -> Iterator[JobLimit]:
    """Cancel the jobs with this tag after a timeout, including those that start later.

    Spark ends the Python workers of their tasks, two seconds later if they don't stop by themselves.

    Args:
        spark: Spark session.
        tag: tag of the jobs.
        timeout_secs: the timeout; None: there is none.
        setting: name of the setting that has it.
        what: what the jobs belong to.

    Yields:
        The limit, which may be ended earlier.

    Raises:
        AckerError: jobs were cancelled.
    """
    limit = JobLimit(spark, tag, timeout_secs)
    limit.begin()
    try:
        yield limit
    except Exception as exc:
        if not limit.is_over:
            raise
        raise AckerError(f"The jobs of {what} took longer than {setting}={timeout_secs:g} and were cancelled.") from exc
    finally:
        limit.end()


def cancel(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with this tag that run now."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def jobs_started(spark: SparkSession) -> int:
    """Return the number of jobs that the application has started."""
    return int(java_context(spark.sparkContext).dagScheduler().numTotalJobs())


def inherited(spark: SparkSession, function: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function for another thread, which gets this thread's properties and tags.

    It does the same as PySpark's `inheritable_thread_target`, which takes twice as many calls of Java. All functions of that
    thread must be wrapped so, because properties that they set stay until the next one.
    """
    if is_connect(spark) or not _is_pinned(spark):
        wrapped: Callable[..., object] = inheritable_thread_target(spark)(function)
        return wrapped
    context = java_context(spark.sparkContext)
    properties = context.getLocalProperties().clone()
    tags = () if spark._jsparkSession.getTags().isEmpty() else tuple(spark.getTags())  # noqa: SLF001

    @wraps(function)
    def call(*args: object) -> object:
        context.setLocalProperties(properties)
        for tag in tags:
            spark.addTag(tag)
        _thread.properties = properties
        try:
            return function(*args)
        finally:
            _thread.properties = None

    return call


def _is_pinned(spark: SparkSession) -> bool:
    """Return True if each thread has a thread of Java's, as by default."""
    from py4j.clientserver import ClientServer

    return isinstance(spark.sparkContext._gateway, ClientServer)  # noqa: SLF001
