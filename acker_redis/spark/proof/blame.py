"""Find the cause of a broken emission.

The cause is one of its rows, an unreachable service, or the pipeline itself. An error of an action belongs to a job only if a
job with the action's tag failed, and an error of the user's own jobs only if one with the emission's tag did. Spark Connect
doesn't report jobs; there the server's error tells. Any other error in the driver (a typo, a missing library or class, a path
that doesn't exist) would occur with any message.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from acker_redis.errors import AckerError
from acker_redis.model.interrupts import interrupt_behind
from acker_redis.outages import describes_outage, is_outage
from acker_redis.spark.runtime.jvm import java_errors
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.runtime.worker_errors import acker_error_in, broke_in_a_job, chain_of, is_of_java, text_of
from acker_redis.spark.worker.failures import Reason, component_in, is_outage_in, reason_of

_BUS_MS = 60_000
"""How long to wait for Spark's listener bus, which reports the results of jobs."""

_LOOK_EVERY_SECS = 0.01
"""Interval between two looks whether a job still runs."""

_MOST_LOOKS = 1000
"""Number of looks for the report that a job has ended. Time is no measure, because a busy machine may stop this process."""

_CAUSES = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)(?:: .*)?)$", re.MULTILINE)
"""The lines of a Java error that name it and its causes."""


_TASK_ERROR = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)(?: \([^)]*\))?: ([^\n]+)")
"""The error of the task that ended a job, in the text of a Java error."""

_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's name of the error of a task that reads a lost block of a local checkpoint."""

_TRACEBACK = "Traceback (most recent call last):\n"

_MODULES = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*(?::|$))")
"""The modules in front of the class of a traceback's error. Failures of rows have the class alone."""

_OF_PY4J = "An error occurred while calling "
"""The first line of an error of Java's that PySpark doesn't know. It names a call, and the next line the error."""

_PYTHON_RUNNER = "org.apache.spark.api.python."
"""Part of a Java error of a task that talks to a Python worker."""

_MISTAKES = (NameError, AttributeError, TypeError, LookupError, ImportError, SyntaxError)
"""Python errors that are always mistakes in the program."""


_GONE: tuple[type[Exception], ...] = (*java_errors(), OSError, AttributeError)
"""Errors of a call of a JVM that is gone."""

_handled: dict[str, set[int]] = {}
"""Tag of an emission's jobs -> failed jobs whose rows were failed for that reason."""

_actions: "WeakKeyDictionary[BaseException, tuple[str, str]]" = WeakKeyDictionary()
"""Error of Java's that an action has raised -> tag of its jobs, and name of the action."""


_SINK = "_acker_sink"
"""Attribute of an error that left a sink's action in the driver: the name of the sink."""


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
        noted = is_outage_in(_traceback_of(job_error))
        is_unreachable = describes_outage(line_of(job_error)) if noted is None else noted
        return Blame.OUTAGE_IN_A_JOB if is_unreachable else Blame.ROWS
    if isinstance(error, _MISTAKES) or is_gone(session):
        return Blame.PIPELINE
    return Blame.OUTAGE if any(map(_is_outage, chain_of(error, explicit=True))) else Blame.PIPELINE


def is_mistake(error: Exception, session: SparkSession) -> bool:
    """Return True if an error that the driver raised while a sink wrote would occur again.

    It is a mistake in the program, an error of this library, or an interrupt, or Spark has stopped.
    """
    if isinstance(error, (*_MISTAKES, AnalysisException)) or acker_error_in(error) is not None:
        return True
    return interrupt_behind(error) is not None or is_gone(session)


def failed_in_a_job(error: Exception, session: SparkSession, tag: str) -> bool:
    """Return True if an error comes from a job, so that one of its rows may be to blame.

    It is looked up among the jobs of the action that raised it, else among those with this tag.
    """
    if not broke_in_a_job(error):
        return False
    if is_connect(session):
        return True  # the error itself says so
    of_java = next(filter(is_of_java, chain_of(error)))
    return _any_job_failed(session, _actions.get(of_java, (tag, ""))[0])


def note_action(error: BaseException, tag: str, name: str) -> None:
    """Note the tag and the name of the action that has raised an error, unless an action within it has done so."""
    of_java = next(filter(is_of_java, chain_of(error)), None)
    if of_java is not None:
        _actions.setdefault(of_java, (tag, name))
    vars(error).setdefault(_SINK, name)  # the driver's own errors can't be keys there


def outage_of(error: BaseException) -> Reason | None:
    """Return the reason of a failed job if something was unreachable for it, and no worker has died."""
    reason = cause_of(next(filter(is_of_java, chain_of(error)), error))
    return reason if reason.is_outage else None


def sink_of(error: BaseException) -> str | None:
    """Return the name of the sink whose job or function failed; None if it is unknown."""
    chain = chain_of(error)
    of_java = next(filter(is_of_java, chain), None)
    action = None if of_java is None else _actions.get(of_java)
    return next((vars(cause)[_SINK] for cause in chain if _SINK in vars(cause)), None) if action is None else action[1]


def is_lost_block(error: Exception) -> bool:
    """Return True if a task read a block of a local checkpoint that Spark has lost, with an executor or for lack of memory."""
    return _LOST_BLOCK in (text_of(error) or "")


def mark_handled(session: SparkSession, tag: str, action: str) -> None:
    """Mark the failed jobs of an action as handled, so that a later error isn't attributed to them.

    Args:
        session: Spark session.
        tag: tag of the emission's jobs.
        action: tag of the action's jobs.
    """
    if is_connect(session):
        return  # each error there is the error of its own request
    with suppress(*java_errors()):
        _handled.setdefault(tag, set()).update(_failed(_status_of_jobs(session, action)))


def forget(tag: str) -> None:
    """Drop the state of an emission that has ended."""
    _handled.pop(tag, None)


def is_gone(session: SparkSession) -> bool:
    """Return True if Spark's JVM is gone, or its context or session has stopped. Waiting can't help then."""
    if is_connect(session):
        return bool(session.is_stopped)  # type: ignore[attr-defined]
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001
    except _GONE:
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


def place_of(exc: BaseException) -> str | None:
    """Return the operator or sink whose Python function has raised an error in a job, or else the sink that failed.

    A failed sink is one whose job or function has raised the error. None: it is no sink's error.
    """
    return component_in(_traceback_of(next(filter(is_of_java, chain_of(exc)), exc))) or sink_of(exc)


def cause_of(exc: BaseException) -> Reason:
    """Return the reason why rows failed together, as one line.

    It is the error in the worker, or the one that ended its task, if the text has either.
    """
    text = text_of(exc)
    if text is None:
        return Reason(type(exc).__name__, is_expected=False)
    _, traceback, last = text.rpartition(_TRACEBACK)
    raised = next((line for line in last.splitlines() if line.strip() and not line.startswith(" ")), None)
    task_error = _TASK_ERROR.search(text)
    if traceback:
        line = _MODULES.sub("", raised or "")
    else:
        line = task_error[1].removeprefix("org.apache.spark.SparkException: ") if task_error else ""
        if not line and text.startswith(_OF_PY4J):
            line = next(iter(_CAUSES.findall(text)), "")
    if not line:
        return reason_of(exc)
    noted = is_outage_in(last) if traceback else None
    is_unreachable = describes_outage(line) if noted is None else noted
    is_of_worker = not traceback and _PYTHON_RUNNER in text  # it has died, and its socket is closed
    return Reason(line, is_expected=is_unreachable, is_outage=is_unreachable and not is_of_worker)


def _traceback_of(error: BaseException) -> str:
    """Return the end of the last Python traceback in an error's text; empty: it has none."""
    _, traceback, last = (text_of(error) or "").rpartition(_TRACEBACK)
    return last if traceback else ""


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
    """Return True if a job failed.

    Spark tells a job's caller of a failure before it tells its listeners (`failJobAndIndependentStages`). So wait while one of
    the jobs still seems to run.
    """
    for _ in range(_MOST_LOOKS):
        try:
            status = _status_of_jobs(session, tag)
        except java_errors():  # Java is gone, or can't answer: assume that one failed
            return True
        if _failed(status) - _handled.get(tag, set()):
            return True
        if "RUNNING" not in status.values():
            return False
        time.sleep(_LOOK_EVERY_SECS)
    return False


def _status_of_jobs(session: SparkSession, tag: str) -> dict[int, str]:
    spark = session.sparkContext._jsc.sc()  # noqa: SLF001
    spark.listenerBus().waitUntilEmpty(_BUS_MS)
    tracker = spark.statusTracker()
    jobs = [(job, tracker.getJobInfo(job)) for job in tracker.getJobIdsForTag(tag)]
    return {job: info.get().status().toString() for job, info in jobs if info.isDefined()}


def _failed(status: dict[int, str]) -> set[int]:
    return {job for job, of_job in status.items() if of_job == "FAILED"}
