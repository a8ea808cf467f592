"""Get the library's own errors out of those that Spark makes of them.

An error of a Python worker reaches the driver as text: the traceback, inside an error of PySpark's or py4j's. As such,
an outage of the server would look like a mistake of the program.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from acker_redis import errors
from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    BadBatchError,
    BadConfigError,
    LedgerLostError,
    NotAcceptedError,
    NotExactError,
    NotProvenError,
    PipelineError,
    ServerUnavailableError,
)
from acker_redis.model.interrupts import interruptible

_RAISED = re.compile(
    r"^(?:\S+: )?acker_redis\.errors\.(\w+)(?:: (.*?))?"
    r"(?=\n\s*SQLSTATE: |\n\s*at \S|\n\nJVM stacktrace:|\n\nThe above exception was |\n\nDuring handling of |"
    r"\n\s*=== Streaming Query ===|\s*\Z)",
    re.MULTILINE | re.DOTALL,
)
"""The last line of a Python traceback, further lines of its text too, up to what Spark puts behind it."""


_OF_JAVA = (CapturedException, Py4JJavaError)

_texts: WeakKeyDictionary[BaseException, str] = WeakKeyDictionary()


def text_of(exc: BaseException) -> str | None:
    """Get the text of any error; None: Java is gone, and the text with it.

    The text of a Java error is asked for once: PySpark makes it each time, by two dozen calls of Java.
    """
    text = _texts.get(exc) if isinstance(exc, _OF_JAVA) else None
    if text is None:
        try:
            text = str(exc)
        except Py4JError:
            return None
        if isinstance(exc, _OF_JAVA):
            _texts[exc] = text
    return text


def acker_error_in(exc: BaseException) -> AckerError | None:
    """Find the library's error that an error is, or carries: as its explicit cause, or as a worker's traceback.

    An error that is carried is made from its text; give it the original as cause: `raise own from exc`. Of several
    in one traceback it is the last, which is what the worker ended with. None: the error is not the library's.
    """
    if isinstance(exc, AckerError):
        return exc
    carrier: BaseException | None = exc
    while carrier is not None:
        if isinstance(carrier, AckerError):
            kind = next(kind for kind in type(carrier).__mro__ if kind.__module__ == errors.__name__)
            return cast(AckerError, kind(str(carrier)))
        if isinstance(carrier, (PySparkException, Py4JError)) and (own := _in_text(carrier)) is not None:
            return own
        carrier = carrier.__cause__
    return None


_NO_ROWS_FAULT = (
    ServerUnavailableError, NotProvenError, LedgerLostError, AppNotFoundError, BadBatchError, PipelineError, BadConfigError,
    NotExactError, NotAcceptedError,
)  # fmt: skip


def broke_in_a_job(exc: BaseException) -> bool:
    """Return True if an error comes out of a Spark job, and one of its rows may be to blame, not the program."""
    if isinstance(exc, _NO_ROWS_FAULT):
        return False
    return any(is_of_java(link) and not isinstance(link, (AnalysisException, ParseException)) for link in chain_of(exc))


def is_of_java(exc: BaseException) -> bool:
    """Return True if Java raised an error."""
    return isinstance(exc, _OF_JAVA)


def chain_of(exc: BaseException, *, explicit: bool = False) -> list[BaseException]:
    """List an error and its causes, or, unless `explicit`, the errors that were handled when each was raised."""
    chain = [exc]
    while True:
        last = chain[-1]
        before = last.__cause__ or (None if explicit or last.__suppress_context__ else last.__context__)
        if before is None or before in chain:
            return chain
        chain.append(before)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's errors that come out of Spark as what they are, from Spark's; and Ctrl-C as that."""
    try:
        with interruptible():
            yield
    except Exception as exc:
        own = acker_error_in(exc)
        if own is None or own is exc:
            raise
        raise own from exc


def _in_text(exc: BaseException) -> AckerError | None:
    for name, text in reversed(_RAISED.findall(text_of(exc) or "")):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AckerError):
            return kind(text)
    return None
