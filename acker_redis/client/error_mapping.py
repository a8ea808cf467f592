"""Mapping of redis-py's errors: which are transient, and which error of the library each becomes."""

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
"""Error codes of a server that needs time or may have been replaced. The address may lead to another server by now."""

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
"""Codes that redis-py cuts off the text."""

NOTHING_THERE = "Nothing was sent. Check that the server runs, and check the URL's host, port and scheme."
"""Advice for a first connection that fails."""

LOST = "Check that the server runs and that the URL is right."
LOST_UNDER_WAY = (
    f"{LOST} A batch of updates under way may have been applied in part. Send it again with the same idempotency key, "
    "which applies each update exactly once."
)

_NO_DATABASE = ("DB index is out of range", "invalid DB index")
_NOT_SERVED = ("slots are not covered", "slot not served", "The cluster is down")
_SLOTS = (
    "Find them with `redis-cli --cluster check HOST:PORT`. Start the nodes that had them, or assign them to others."
)

_DETAIL_CHARS = 300
_SCRIPT_DENIED = ("The user executing the script can't", "ACL failure in script")
"""Redis 7.0; Redis 7.2 and Valkey."""

_CODE_IN_SCRIPT = re.compile(r"(?<![\w-])-([A-Z]{3,}) ")  # Redis 6.2 wraps the code of an error inside a script in text


def code_of(exc: BaseException) -> str:
    """Return the code word of an error reply."""
    if isinstance(exc, redis.exceptions.BusyLoadingError):
        return "LOADING"
    for kind, code in _CODES.items():
        if isinstance(exc, kind):
            return code
    text = str(exc)[:_DETAIL_CHARS]
    inside = _CODE_IN_SCRIPT.search(text)
    return inside[1] if inside else text.partition(" ")[0]


def passes(exc: BaseException) -> bool:
    """Return True if the error is transient."""
    if isinstance(exc, _REFUSED) or tls_error(exc) is not None:
        return False
    return isinstance(exc, _LOST) or code_of(exc) in _PASSING_CODES


def translate(exc: BaseException, address: str, *, lost: str = LOST) -> errors.AckerError:
    """Translate redis-py's error or an error reply into the library's own.

    Args:
        exc: error to translate.
        address: address of the server, without the password.
        lost: advice for a lost connection, in whole sentences.
    """
    text, code = str(exc)[:_DETAIL_CHARS], code_of(exc)
    if isinstance(exc, MasterNotFoundError):  # the rest describes redis-py's objects
        text = text.partition(" : ")[0]
    if isinstance(exc, errors.AckerError):
        return exc
    if code in ("ACKERLOST", "NOGROUP"):
        return errors.LedgerLostError(
            f"A shard on {address} lost its data since this client opened it (FLUSHALL, eviction, or a restart without "
            "persistence). Call Acker.reopen() and replay every root that has no outcome yet."
        )
    if code == "ACKERFULL":
        return errors.PendingLimitError(
            f"The app on {address} has as many pending roots as its limit allows, so new roots are refused. Acks, fails and "
            "rotation still work. Wait until roots settle, or raise the limit with `acker-redis limit --app APP --max-pending "
            "N`."
        )
    refused = tls_error(exc)
    if refused is not None:
        return errors.TlsError(
            f"TLS to {address} failed ({refused}). Check the certificates, and ssl_ca_certs, ssl_certfile and ssl_keyfile in "
            "the URL. Check that the server's certificate contains the URL's host name and that the port speaks TLS."
        )
    if isinstance(exc, _REFUSED) or code in ("NOAUTH", "WRONGPASS"):
        return errors.AuthenticationError(
            f"{address} refused the login ({text}). Check the user name and password in the URL."
        )
    if is_denied(exc):
        return errors.AuthenticationError(
            f"The user on {address} lacks a permission ({text}). Allow the command that the server names, and the keys "
            "acker:{APP:* and acker:{APP}:*, where APP is the app's name."
        )
    if isinstance(exc, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        return errors.ServerOutOfMemoryError(
            f"{address} is above maxmemory and refuses new roots ({text}). Acks, fails and rotation still work. Raise "
            "maxmemory, or wait until pending roots settle."
        )
    if code in ("READONLY", "MISCONF", "NOREPLICAS"):
        return errors.ServerRefusesWritesError(
            f"{address} refuses writes ({text}). Nothing was changed. Connect to the primary if this is a replica. Otherwise "
            "repair the problem that the server names."
        )
    if code == "BUSY":
        return errors.ServerBusyError(
            f"{address} is blocked by another client's script ({text}). Nothing was changed. Wait, or end the script with "
            "SCRIPT KILL."
        )
    if any(words in text for words in _NO_DATABASE):
        return errors.BadConfigError(
            f"{address} has no database of this number ({text}). Nothing was sent. Omit the number at the end of the URL, or "
            "raise `databases` in the server's configuration."
        )
    if any(words in text for words in _NOT_SERVED):
        return errors.ConnectionLostError(
            f"The cluster at {address} doesn't serve all hash slots ({text}). {_SLOTS} {_beyond_advice(lost)}".rstrip()
        )
    if isinstance(exc, (*_LOST, redis.exceptions.ClusterError)):
        return errors.ConnectionLostError(f"{address} can't be reached ({text}). {lost}")
    if code == "WRONGTYPE":
        return errors.DamagedDataError(
            f"A key of the app on {address} has the wrong type ({text}), because another program wrote it. Compare the types "
            "(redis-cli TYPE) with docs/reference/keys.md, and delete the keys that are not the app's."
        )
    if isinstance(exc, redis.InvalidResponse):
        return errors.ScriptFailedError(
            f"{address} doesn't answer as a Redis server does ({text}). Check the URL's host and port, which may be those of "
            "another program."
        )
    return errors.ScriptFailedError(
        f"{address} returned an unexpected error ({text}). If its text does not explain it, please report it."
    )


def _beyond_advice(lost: str) -> str:
    """Return what a text for a lost connection says beyond checking the server and the URL."""
    return "Nothing was sent." if lost == NOTHING_THERE else lost.removeprefix(LOST).strip()


def is_denied(exc: BaseException) -> bool:
    """Return True if the user's ACL refused the call."""
    if isinstance(exc, redis.exceptions.NoPermissionError) or code_of(exc) == "NOPERM":
        return True
    return any(words in str(exc) for words in _SCRIPT_DENIED)


def is_no_function(reply: object) -> bool:
    """Return True if functions or this one are missing or forbidden, so that scripts have to be sent."""
    return isinstance(reply, redis.ResponseError) and (
        "function not found" in str(reply).lower() or is_no_command(reply, "fcall")
    )


def is_no_command(reply: object, command: str) -> bool:
    """Return True if the server lacks a command, or forbids it to this user."""
    text = str(reply).lower()
    return isinstance(reply, redis.ResponseError) and (
        "unknown command" in text or (is_denied(reply) and command.lower() in text)
    )
