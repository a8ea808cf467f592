"""Recognise outages and wait for their end. Logs one line when an outage begins and one when it ends."""

import errno
import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from acker_redis.errors import AckerError, OutageError, ServerUnavailableError

OUTAGE_TRIES = 40
"""Number of tries, each for the client's outage timeout: three to twelve minutes in total."""

BACKOFF_BASE_SECS, BACKOFF_CAP_SECS = 0.5, 5.0

_MAX_EXPONENT = 64

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KINDS = re.compile(
    r"(?<!Spark)Connect(ion|Error|Exception|Timeout)|Timeout|TimedOut|TTransport|UnknownHost|NoRouteToHost|NoNodeAvailable|SSLZeroReturn|"
    r"ServiceUnavailable|Unreachable|Concurrent(Append|Delete|Write|Modification|Transaction)|CommitFailed"
)
_WORDS = re.compile(
    r"connection (refused|reset|closed|aborted|timed out|failed|attempt failed|to \S+ (refused|failed))|could ?n[o']t connect|"
    r"(read|connect|operation|request)? ?timed out|no space left on device|disk quota exceeded|broken pipe|no route to host|"
    r"timeout was reached|could(n't| not) resolve host|"
    r"aws error (network_connection|request_timeout|service_unavailable|slow_down|throttling)\b|"
    r"network is unreachable|name or service not known|temporary failure in name resolution|server closed the connection|"
    r"service (is )?(temporarily )?unavailable|temporarily unavailable|StatusCode\.UNAVAILABLE|"
    r"too many (requests|clients|connections)|"
    r"\b(HTTP|status|code)\D{0,12}(429|502|503|504)\b|the database system is (starting up|shutting down)|lost connection|"
    r"terminating connection|connection (has been|was) (closed|reset|lost)|deadlock detected|database is locked",
    re.IGNORECASE,
)
_MISTAKES = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    SyntaxError,
    ImportError,
)
"""Errors of the user's code. They are never outages, because their texts may quote anything."""

_MISTAKE = re.compile(
    r"^(?:\w+\.)*(?:Lookup|Key|Index|Type|Value|Attribute|Name|Assertion|ZeroDivision|Import|ModuleNotFound)Error\b"
)
_CLASS = re.compile(r"\b(?:[a-zA-Z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Timeout))\b")
_T = TypeVar("_T")


class Backoff(ExponentialWithJitterBackoff):
    """Exponential backoff with jitter and a cap, for any number of failures. redis-py's own overflows after 1 023."""

    def compute(self, failures: int) -> float:
        """Compute the seconds to wait after this many failures in a row."""
        return super().compute(min(failures, _MAX_EXPONENT))


def is_outage(error: BaseException) -> bool:
    """Return True if something is unreachable or full now, so that a later try may succeed.

    The error's type decides, by the names that Python and many clients use, or the words of its text.

    >>> is_outage(ConnectionRefusedError()), is_outage(OSError(28, "No space left on device")), is_outage(KeyError("order"))
    (True, True, False)
    """
    if isinstance(error, (ConnectionError, TimeoutError, OutageError)):
        return True
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if isinstance(error, AckerError) or (isinstance(error, _MISTAKES) and not isinstance(error, OSError)):
        return False  # our own errors have types for outages, and quote other texts
    return any(_KINDS.search(kind.__name__) for kind in type(error).__mro__) or describes_outage(text_of(error))


def describes_outage(text: str) -> bool:
    """Return True if a line of text describes an outage, such as the text of a Java error.

    >>> describes_outage("java.net.ConnectException: Connection refused"), describes_outage("KeyError: 'order'")
    (True, False)
    """
    if _MISTAKE.match(text):
        return False
    return any(_KINDS.search(name) for name in _CLASS.findall(text)) or _WORDS.search(text) is not None


class Outages:
    """State of a server as one process sees it. Logs a line when the kind of error changes.

    Attributes:
        seen: True if there was an outage since this was last set to False. Updates may then be missing.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.seen = False
        self._log = log
        self._state: type[Exception] | None = None
        self._since = 0.0

    def down(self, error: Exception) -> None:
        """Register a failed attempt."""
        self.seen = True
        if self._state is None:
            self._since = time.monotonic()
        if type(error) is not self._state:
            self._state = type(error)
            self._log.warning("waiting for the server: error=%s", error)

    def up(self) -> None:
        """Register a successful attempt."""
        if self._state is not None:
            self._state = None
            self._log.warning("server is back after_secs=%.1f", time.monotonic() - self._since)

    def wait_for(self, do: Callable[[], _T]) -> _T:
        """Call `do` until the server is available.

        Raises:
            ServerUnavailableError: the server was still unavailable at the last of OUTAGE_TRIES.
        """
        backoff = Backoff(base=BACKOFF_BASE_SECS, cap=BACKOFF_CAP_SECS)
        retry: Retry = Retry(backoff, OUTAGE_TRIES - 1, supported_errors=(ServerUnavailableError,))
        result = retry.call_with_retry(do, self.down)
        self.up()
        return result


def text_of(error: BaseException) -> str:
    """Return the text of an exception; empty if its own code can't make one."""
    try:
        return str(error)
    except Exception:  # str raises what a class's own code raises
        return ""
