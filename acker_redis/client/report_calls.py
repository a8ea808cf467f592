"""Run a report on one server: by its function if that is loaded, otherwise with its text."""

from typing import Any

import redis

from acker_redis.client import function_library, scripts
from acker_redis.client.connection import RedisClient
from acker_redis.client.error_mapping import is_no_command, is_no_function
from acker_redis.version import VERSION, numbers_of


def ask(node: RedisClient, name: str, arguments: tuple[str, ...]) -> Any:
    """Run a report of `scripts.REPORTS` with these arguments.

    Functions of an older version may lack something that this version needs. The text is then sent instead.

    Raises:
        RedisError: the server does not answer, or the user may call neither functions nor scripts.
    """
    library = function_library.reports()
    pipe = node.pipeline(transaction=False)
    pipe.execute_command("FCALL_RO", function_library.REPORTS_VERSION_FUNCTION, 0)
    pipe.execute_command("FCALL_RO", library.functions[name], 0, *arguments)
    version, reply = pipe.execute(raise_on_error=False)
    if isinstance(reply, Exception) and not is_no_function(reply):
        raise reply
    if not isinstance(reply, Exception) and isinstance(version, bytes) and not is_older(version):
        return reply
    text = scripts.report(name)
    try:
        return node.execute_command("EVAL_RO", text, 0, *arguments)
    except redis.ResponseError as exc:
        if not is_no_command(exc, "eval_ro"):
            raise
    return node.execute_command("EVAL", text, 0, *arguments)


def is_older(version: bytes) -> bool:
    """Return True if reports of this version are older than this program's."""
    return numbers_of(version.decode()) < numbers_of(VERSION)


def newer_version(node: RedisClient) -> str | None:
    """Return the version of a server's report functions if it is newer than this program's, otherwise None.

    Raises:
        RedisError: the server does not answer, or the user may not call the function.
    """
    try:
        version = node.execute_command("FCALL_RO", function_library.REPORTS_VERSION_FUNCTION, 0).decode()
    except redis.ResponseError as exc:
        if "function not found" not in str(exc).lower():
            raise
        return None
    return version if numbers_of(version) > numbers_of(VERSION) else None
