"""What the driver's errors mean: which of them pass by themselves, and which error of the library each one is."""

import re

import redis
from redis.exceptions import (
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError

from acker_redis import errors
from acker_redis.client.connection import tls_error

ROLE_CODES = ("READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "NOREPLICAS")
"""Answers of a server that another one may have replaced, or that needs time: the address may lead elsewhere by now."""

_PASSING_CODES = (*ROLE_CODES, "BUSY", "TRYAGAIN")
_LOST = (
    redis.ConnectionError,
    redis.TimeoutError,
    ClusterDownError,
    MovedError,
    TryAgainError,
    RedisClusterException,
    OSError,
)
_REFUSED = (redis.AuthenticationError, AuthorizationError)
_CODES = {ReadOnlyError: "READONLY", MasterDownError: "MASTERDOWN", ClusterDownError: "CLUSTERDOWN"}
"""redis-py cuts these codes off the text."""

NOTHING_THERE = (
    "nothing answers there, and nothing was sent. Check that the server runs, and the URL's host, port and scheme"
)
"""What to do where a first connection is refused."""

LOST = "check that the server runs and the URL is right"
LOST_UNDER_WAY = (
    f"{LOST}. A batch of updates under way may have been applied in part; sending it again with the same idempotency key "
    "is exact"
)

_DETAIL_CHARS = 300
_SCRIPT_DENIED = ("The user executing the script can't", "ACL failure in script")
"""Redis 7.0; Redis 7.2 and Valkey."""

_CODE_IN_SCRIPT = re.compile(r"(?<![\w-])-([A-Z]{3,}) ")  # Redis 6.2 wraps the code of an error inside a script in text


def code_of(exc: BaseException) -> str:
    """The code word of an error reply."""
    if isinstance(exc, redis.exceptions.BusyLoadingError):
        return "LOADING"
    for kind, code in _CODES.items():
        if isinstance(exc, kind):
            return code
    text = str(exc)[:_DETAIL_CHARS]
    inside = _CODE_IN_SCRIPT.search(text)
    return inside[1] if inside else text.partition(" ")[0]


def passes(exc: BaseException) -> bool:
    """Whether the same call may well succeed in a moment."""
    if isinstance(exc, _REFUSED) or tls_error(exc) is not None:
        return False
    return isinstance(exc, _LOST) or code_of(exc) in _PASSING_CODES


def translate(exc: BaseException, address: str, *, lost: str = LOST) -> errors.AckerError:
    """Translate the driver's error, or an error reply, into the library's; `lost` says what a lost connection means."""
    text, code = str(exc)[:_DETAIL_CHARS], code_of(exc)
    if isinstance(exc, MasterNotFoundError):  # the rest describes redis-py's objects
        text = text.partition(" : ")[0]
    if isinstance(exc, errors.AckerError):
        return exc
    if code in ("ACKERLOST", "NOGROUP"):
        return errors.LedgerLostError(
            f"{address}: a shard lost its data since this client opened it (FLUSHALL, eviction, a restart without "
            "persistence). Call Acker.recover() and replay every root that has no outcome yet"
        )
    if code == "ACKERFULL":
        return errors.PendingLimitError(
            f"{address}: the app has as many pending roots as its limit allows, and gets no new ones: wait until some "
            "settle, or allow more (acker-redis limit --app APP --max-pending N); acks, fails and rotation still work"
        )
    refused = tls_error(exc)
    if refused is not None:
        return errors.TlsError(
            f"{address}: TLS failed ({refused}): check the certificates and ssl_ca_certs, ssl_certfile and ssl_keyfile of the "
            "URL, that the name in the URL is in the server's certificate, and that the port speaks TLS"
        )
    if isinstance(exc, _REFUSED) or code in ("NOAUTH", "WRONGPASS"):
        return errors.AuthenticationError(
            f"{address} refused the login ({text}): check user name and password in the URL"
        )
    if is_denied(exc):
        return errors.AuthenticationError(
            f"{address}: the user lacks a permission ({text}): allow the command it names, and the keys acker:{{APP:* and "
            "acker:{APP}:* where APP is the app's name"
        )
    if isinstance(exc, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        return errors.ServerOutOfMemoryError(
            f"{address} is above maxmemory and takes no new roots ({text}): raise maxmemory, or wait until pending roots "
            "settle; acks, fails and rotation still work"
        )
    if code in ("READONLY", "MISCONF", "NOREPLICAS"):
        return errors.ServerRefusesWritesError(
            f"{address} refuses writes ({text}): connect to the primary if this is a replica, else repair what the server "
            "says; nothing was changed"
        )
    if code == "BUSY":
        return errors.ServerBusyError(
            f"{address} is busy with another client's script ({text}): wait, or end it with SCRIPT KILL; nothing was changed"
        )
    if isinstance(exc, (*_LOST, redis.exceptions.ClusterError)):
        return errors.ConnectionLostError(f"{address} can't be reached ({text}): {lost}")
    if code == "WRONGTYPE":
        return errors.DamagedDataError(
            f"{address}: a key of the app is not of the type it was made with ({text}): something else wrote it. Compare the "
            "types (redis-cli TYPE) with docs/reference/keys.md, and delete what is not the app's"
        )
    return errors.ScriptFailedError(f"{address}: {text}")


def is_denied(exc: BaseException) -> bool:
    """Whether the user's ACL is the reason."""
    if isinstance(exc, redis.exceptions.NoPermissionError) or code_of(exc) == "NOPERM":
        return True
    return any(words in str(exc) for words in _SCRIPT_DENIED)


def is_no_function(reply: object) -> bool:
    """Whether the server has no functions, lacks this one, or keeps it from this user: then scripts are sent."""
    return isinstance(reply, redis.ResponseError) and (
        "function not found" in str(reply).lower() or is_no_command(reply, "fcall")
    )


def is_no_command(reply: object, command: str) -> bool:
    """Whether the server lacks a command, or keeps it from this user."""
    text = str(reply).lower()
    return isinstance(reply, redis.ResponseError) and (
        "unknown command" in text or (is_denied(reply) and command.lower() in text)
    )
