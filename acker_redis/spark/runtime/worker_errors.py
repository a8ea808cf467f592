"""Recover the library's own errors from the errors that Spark wraps them in.

An error in a Python worker reaches the driver as text: a traceback inside an error of PySpark or py4j. Without recovery, an
outage of the server would look like a mistake in the program.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException

from acker_redis import errors
from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    BadBatchError,
    BadConfigError,
    InexactPipelineError,
    LedgerLostError,
    OutageError,
    OutputNotWrittenError,
    PipelineError,
    ServerUnavailableError,
    UnprovenEmissionError,
)
from acker_redis.model.interrupts import interruptible
from acker_redis.spark.runtime.jvm import java_errors, java_exceptions

_RAISED = re.compile(
    r"^(?:\S+: )?acker_redis\.errors\.(\w+)(?:: (.*?))?"
    r"(?=\n\s*SQLSTATE: |\n\s*at \S|\n\nJVM stacktrace:|\n\nThe above exception was |\n\nDuring handling of |"
    r"\n\s*=== Streaming Query ===|\s*\Z)",
    re.MULTILINE | re.DOTALL,
)
"""The error at the end of a Python traceback, with all lines of its text, up to the text that Spark appends."""


_MADE_IN_A_WORKER = re.compile(r"^(?:\S+: )?pyspark\.errors\.\S+: \[CONTEXT_ONLY_VALID_ON_DRIVER\]", re.MULTILINE)
_SESSION_IN_A_WORKER = (
    "Code in a Python worker makes or uses a SparkSession (CONTEXT_ONLY_VALID_ON_DRIVER). A worker imports the module of your "
    "function, so a session that the module makes at its top level is made there, too. Make the session in a function, a "
    'pytest fixture, or below `if __name__ == "__main__"`.'
)

_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: (\S+),")
_MISSING = re.compile(r"(?:\S+: )?(?:ModuleNotFoundError|ImportError): (.*)")
_LOADING = re.compile(r', in (?:read_udfs|read_command)$|\A  File "[^"\n]+", line \d+, in <module>$', re.MULTILINE)
"""Frames of a worker that loads a function, or begin with a module. A function that is called has none of them there."""

_TRACEBACK = "Traceback (most recent call last):"

_CONNECT_ERRORS = "pyspark.errors.exceptions.connect"
"""Module of the errors that a server of Spark Connect answers with. It can be imported only where gRPC is installed."""

_STAGE_FAILED, _CANCELED = "Job aborted due to stage failure", "[OPERATION_CANCELED]"
_EXECUTOR = "org.apache.spark.executor.Executor"

_texts: WeakKeyDictionary[BaseException, str] = WeakKeyDictionary()


def text_of(exc: BaseException) -> str | None:
    """Return the text of any error, or None if Java is gone, and the text with it.

    The text of a Java error is requested only once, because PySpark needs two dozen calls of Java to build it.
    """
    text = _texts.get(exc) if isinstance(exc, java_exceptions()) else None
    if text is None:
        try:
            text = str(exc)
        except java_errors():
            return None
        if isinstance(exc, java_exceptions()):
            _texts[exc] = text
    return text


def acker_error_in(exc: BaseException) -> AckerError | None:
    """Return the library's error that an error is or carries, or None.

    A carried error is the explicit cause, or part of a worker's traceback. It is made from its text, so raise it from the
    original: `raise own from exc`. If a traceback has several, the last one counts: the worker ended with it.
    """
    if isinstance(exc, AckerError):
        return exc
    carrier: BaseException | None = exc
    while carrier is not None:
        if isinstance(carrier, AckerError):
            kind = next(kind for kind in type(carrier).__mro__ if kind.__module__ == errors.__name__)
            return cast(AckerError, kind(str(carrier)))
        if isinstance(carrier, (PySparkException, *java_errors())) and (own := _in_text(carrier)) is not None:
            return own
        carrier = carrier.__cause__
    return None


_NO_ROWS_FAULT = (
    ServerUnavailableError, UnprovenEmissionError, LedgerLostError, AppNotFoundError, BadBatchError, PipelineError,
    BadConfigError, InexactPipelineError, OutputNotWrittenError, OutageError,
)  # fmt: skip


def broke_in_a_job(exc: BaseException) -> bool:
    """Return True if an error comes from a Spark job and a row may be to blame for it."""
    if isinstance(exc, _NO_ROWS_FAULT):
        return False
    return any(is_of_java(link) and _is_of_a_job(link) for link in chain_of(exc))


def _is_of_a_job(exc: BaseException) -> bool:
    """Return False if an error of Java's can't come from a Spark job.

    Over Spark Connect, an error of a task says so itself: it is a worker's, or the frames of its stack are an executor's. A
    cancelled request counts, too.
    """
    if isinstance(exc, (AnalysisException, ParseException)):
        return False
    if not _is_of_connect(exc) or isinstance(exc, PythonException):
        return True
    stack = getattr(exc, "getStackTrace", str)() or ""
    text = str(exc)
    return _STAGE_FAILED in text or _CANCELED in text or _EXECUTOR in stack


def is_of_java(exc: BaseException) -> bool:
    """Return True if Java raised an error, in Spark's JVM or in the server of Spark Connect."""
    return isinstance(exc, java_exceptions()) or _is_of_connect(exc)


def _is_of_connect(exc: BaseException) -> bool:
    return any(kind.__module__ == _CONNECT_ERRORS for kind in type(exc).__mro__)


def chain_of(exc: BaseException, *, explicit: bool = False) -> list[BaseException]:
    """List an error and its causes.

    An error without a cause is followed by the error that was being handled when it was raised, unless `explicit`.
    """
    chain = [exc]
    while True:
        last = chain[-1]
        before = last.__cause__ or (None if explicit or last.__suppress_context__ else last.__context__)
        if before is None or before in chain:
            return chain
        chain.append(before)


@contextmanager
def own_errors() -> Iterator[None]:
    """Replace Spark's errors by the library's errors that they carry.

    An error that follows an interrupt (Ctrl-C) is replaced by the interrupt.
    """
    try:
        with interruptible():
            yield
    except Exception as exc:
        own = acker_error_in(exc)
        if own is None or own is exc:
            raise
        raise own from exc


def environment_error_in(text: str) -> BadConfigError | None:
    """Return the error that a text of Spark's tells, if its workers can't load functions at all, or None."""
    pythons = _OTHER_PYTHON.search(text)
    if pythons:
        return BadConfigError(
            f"The workers of Spark have Python {pythons[1]}, and this process has Python {pythons[2]}. Functions can't pass "
            "from one minor version to another. Use the same one on both sides: set PYSPARK_PYTHON before the session or the "
            "server starts, which prepare_environment() does on this machine."
        )
    frames, raised = list[str](), ""  # of the first traceback: others may be in the text of its error
    for line in text.partition(_TRACEBACK)[2].splitlines()[1:]:
        if not line.startswith(" "):
            raised = line
            break
        frames.append(line)
    missing = _MISSING.match(raised)
    return not_importable(missing[1]) if missing and _LOADING.search("\n".join(frames)) else None


def not_importable(error: str) -> BadConfigError:
    """Return the error of workers that lack a module."""
    return BadConfigError(
        f"The workers of Spark can't import a module: {error}. So they can't process any row. Their Python needs redis, "
        "numpy, pandas and pyarrow: set PYSPARK_PYTHON before the session or the server starts, which prepare_environment() "
        "does on this machine. Where they lack only acker_redis, call ship(spark). Modules of your own go there with "
        "spark.addArtifacts(path, pyfile=True)."
    )


def _in_text(exc: BaseException) -> AckerError | None:
    text = text_of(exc) or ""
    for name, own in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AckerError):
            return kind(own)
    return PipelineError(_SESSION_IN_A_WORKER) if _MADE_IN_A_WORKER.search(text) else environment_error_in(text)
