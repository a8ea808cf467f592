"""Who is to blame for an emission that broke: one of its rows, something that can't be reached, or the pipeline itself.

A failure is a job's only if a job with the emission's tag failed. What goes wrong in the driver without one (a typo, a
missing library or class, a path that isn't there) would go wrong with any message.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from acker_redis.client.backoff import describes_outage, is_outage
from acker_redis.errors import AckerError
from acker_redis.spark.proof.received_failures import cause_of
from acker_redis.spark.runtime.worker_errors import broke_in_a_job, chain_of, is_of_java, text_of

_BUS_MS = 10_000
"""How long to wait for Spark's listener bus, which reports what became of jobs."""

_CAUSES = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)(?:: .*)?)$", re.MULTILINE)
"""The lines of an error of Java's that name it and its causes."""


_MISTAKES = (NameError, AttributeError, TypeError, LookupError, ImportError, SyntaxError)
"""Errors of Python's that are a program's own mistakes, whatever it was doing."""


_handled: dict[str, set[int]] = {}
"""Tag of an emission's jobs -> those that failed and whose rows were failed for it."""


class Blame(Enum):
    """Who is to blame for an emission that broke."""

    ROWS = auto()
    OUTAGE_IN_A_JOB = auto()
    OUTAGE = auto()
    PIPELINE = auto()

    @property
    def in_a_job(self) -> bool:
        """Whether a job failed, so that the messages are searched for one that is to blame."""
        return self in (Blame.ROWS, Blame.OUTAGE_IN_A_JOB)


def blame_of(error: Exception, session: SparkSession, tag: str) -> Blame:
    """Find who is to blame for an error that the pipeline function raised; `tag` is that of the emission's jobs."""
    chain = chain_of(error)
    if failed_in_a_job(error, session, tag):
        job_error = next((cause for cause in chain if is_of_java(cause)), error)
        return Blame.OUTAGE_IN_A_JOB if describes_outage(line_of(job_error)) else Blame.ROWS
    if isinstance(error, _MISTAKES) or is_gone(session):
        return Blame.PIPELINE
    return Blame.OUTAGE if any(map(_is_outage, chain_of(error, explicit=True))) else Blame.PIPELINE


def failed_in_a_job(error: Exception, session: SparkSession, tag: str) -> bool:
    """Tell whether an error comes out of a job with this tag, so that one of its rows may be to blame."""
    return broke_in_a_job(error) and _any_job_failed(session, tag)


def mark_handled(session: SparkSession, tag: str) -> None:
    """Note that the failures of jobs with this tag so far were dealt with: a later error is not theirs."""
    with suppress(Py4JError):
        _handled.setdefault(tag, set()).update(_failed_jobs(session, tag))


def forget(tag: str) -> None:
    """Drop what is known of an emission that is over."""
    _handled.pop(tag, None)


def is_gone(session: SparkSession) -> bool:
    """Tell whether Spark's JVM is gone, or its context stopped, which no waiting mends."""
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001
    except (Py4JError, OSError, AttributeError):
        return True


def line_of(error: BaseException) -> str:
    """Write an error in one line; of a job's, what was raised in a worker, or ended its task."""
    if isinstance(error, AckerError):
        text = str(error)
    else:
        text = cause_of(error).text if is_of_java(error) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def _is_outage(error: BaseException) -> bool:
    if not is_of_java(error):
        return is_outage(error)
    if isinstance(error, (AnalysisException, ParseException)):
        return False  # it quotes names of the user's
    text = text_of(error)
    return text is not None and any(describes_outage(line) for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    yield text.partition("\n")[0]
    yield from _CAUSES.findall(text)


def _any_job_failed(session: SparkSession, tag: str) -> bool:
    try:
        return bool(_failed_jobs(session, tag) - _handled.get(tag, set()))
    except Py4JError:  # Java is gone, or can't tell: as if one had
        return True


def _failed_jobs(session: SparkSession, tag: str) -> set[int]:
    spark = session.sparkContext._jsc.sc()  # noqa: SLF001
    spark.listenerBus().waitUntilEmpty(_BUS_MS)
    tracker = spark.statusTracker()
    jobs = [(job, tracker.getJobInfo(job)) for job in tracker.getJobIdsForTag(tag)]
    return {job for job, info in jobs if info.isDefined() and info.get().status().toString() == "FAILED"}
