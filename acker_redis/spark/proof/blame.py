"""Find the cause of a broken emission.

The cause is one of its rows, an unreachable service, or the pipeline itself. An error belongs to a job only if a job with the
emission's tag failed. Any other error in the driver (a typo, a missing library or class, a path that doesn't exist) would
occur with any message.
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
"""How long to wait for Spark's listener bus, which reports the results of jobs."""

_CAUSES = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)(?:: .*)?)$", re.MULTILINE)
"""The lines of a Java error that name it and its causes."""


_MISTAKES = (NameError, AttributeError, TypeError, LookupError, ImportError, SyntaxError)
"""Python errors that are always mistakes in the program."""


_handled: dict[str, set[int]] = {}
"""Tag of an emission's jobs -> failed jobs whose rows were failed for that reason."""


class Blame(Enum):
    """The cause of a broken emission."""

    ROWS = auto()
    OUTAGE_IN_A_JOB = auto()
    OUTAGE = auto()
    PIPELINE = auto()

    @property
    def in_a_job(self) -> bool:
        """True if a job failed, so that a poison-message search starts."""
        return self in (Blame.ROWS, Blame.OUTAGE_IN_A_JOB)


def blame_of(error: Exception, session: SparkSession, tag: str) -> Blame:
    """Return the cause of a pipeline's error; `tag` is the tag of the emission's jobs."""
    chain = chain_of(error)
    if failed_in_a_job(error, session, tag):
        job_error = next((cause for cause in chain if is_of_java(cause)), error)
        return Blame.OUTAGE_IN_A_JOB if describes_outage(line_of(job_error)) else Blame.ROWS
    if isinstance(error, _MISTAKES) or is_gone(session):
        return Blame.PIPELINE
    return Blame.OUTAGE if any(map(_is_outage, chain_of(error, explicit=True))) else Blame.PIPELINE


def failed_in_a_job(error: Exception, session: SparkSession, tag: str) -> bool:
    """Return True if an error comes from a job with this tag, so that one of its rows may be to blame."""
    return broke_in_a_job(error) and _any_job_failed(session, tag)


def mark_handled(session: SparkSession, tag: str) -> None:
    """Mark the failed jobs with this tag as handled, so that a later error isn't attributed to them."""
    with suppress(Py4JError):
        _handled.setdefault(tag, set()).update(_failed_jobs(session, tag))


def forget(tag: str) -> None:
    """Drop the state of an emission that has ended."""
    _handled.pop(tag, None)


def is_gone(session: SparkSession) -> bool:
    """Return True if Spark's JVM is gone or its context has stopped. Waiting can't help then."""
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001
    except (Py4JError, OSError, AttributeError):
        return True


def line_of(error: BaseException) -> str:
    """Return an error as one line.

    For a job's error, that is the error in the worker, or the one that ended the task.
    """
    if isinstance(error, AckerError):
        text = str(error)
    else:
        text = cause_of(error).text if is_of_java(error) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def _is_outage(error: BaseException) -> bool:
    if not is_of_java(error):
        return is_outage(error)
    if isinstance(error, (AnalysisException, ParseException)):
        return False  # it quotes the user's names
    text = text_of(error)
    return text is not None and any(describes_outage(line) for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    yield text.partition("\n")[0]
    yield from _CAUSES.findall(text)


def _any_job_failed(session: SparkSession, tag: str) -> bool:
    try:
        return bool(_failed_jobs(session, tag) - _handled.get(tag, set()))
    except Py4JError:  # Java is gone, or can't answer: assume that one failed
        return True


def _failed_jobs(session: SparkSession, tag: str) -> set[int]:
    spark = session.sparkContext._jsc.sc()  # noqa: SLF001
    spark.listenerBus().waitUntilEmpty(_BUS_MS)
    tracker = spark.statusTracker()
    jobs = [(job, tracker.getJobInfo(job)) for job in tracker.getJobIdsForTag(tag)]
    return {job for job, info in jobs if info.isDefined() and info.get().status().toString() == "FAILED"}
