"""Commands for one server, written at once and read at once, on one connection.

redis-py's pipeline isn't used. If a signal handler raises between its write and its read (Ctrl-C, for one), it returns the
connection with unread replies, and whoever takes that connection reads the replies of somebody else. If the handler
raises in the pipeline's finalizer, Python drops the exception, and the program goes on.
"""

from collections.abc import Sequence
from typing import Any

import redis

from acker_redis.client.connection import DRIVER_ERRORS, RedisClient
from acker_redis.client.scripts import Command


class Batch:
    """Commands for one server.

    Call `write`, `read` and `release`, in this order. Several batches can be written before the first is read.

    Attributes:
        error: reason why the server did not answer; None while it answers.
    """

    def __init__(self, client: RedisClient, commands: Sequence[Command]) -> None:
        """Take a redis-py client of a single server, and commands."""
        self.error: Exception | None = None
        self._client = client
        self._commands = commands
        self._connection: Any = None
        self._is_unread = False

    def write(self) -> None:
        """Send the commands on a connection of the client's pool."""
        try:
            self._connection = self._client.connection_pool.get_connection()
            packed = self._connection.pack_commands([_in_text(command) for command in self._commands])
            self._is_unread = True
            self._connection.send_packed_command(packed)
        except DRIVER_ERRORS as exc:
            self.error = exc

    def read(self) -> list[Any]:
        """Return a reply per command. Errors of commands are among them; `error` stands for each reply that is missing."""
        replies: list[Any] = []
        for command in self._commands:
            if self.error is None:
                try:
                    replies.append(self._client.parse_response(self._connection, command[0]))
                    continue
                except redis.ResponseError as exc:
                    replies.append(exc)
                    continue
                except DRIVER_ERRORS as exc:
                    self.error = exc
            replies.append(self.error)
        self._is_unread = self.error is not None
        return replies

    def release(self) -> None:
        """Return the connection to its pool. Close it first if replies were left unread."""
        if self._connection is not None:
            if self._is_unread:
                self._connection.disconnect()
            self._client.connection_pool.release(self._connection)
            self._connection = None


def _in_text(command: Command) -> Command:
    """Write numbers as text. hiredis 3.5 crashes if a signal handler raises while it does so."""
    return tuple(repr(argument) if type(argument) in (int, float) else argument for argument in command)


def send(client: RedisClient, commands: Sequence[Command]) -> list[Any]:
    """Send commands to a single server, and return a reply or an error for each.

    If a reply is missing, every reply is the error, so that the caller sends all of them again.
    """
    batch = Batch(client, commands)
    try:
        batch.write()
        replies = batch.read()
    finally:
        batch.release()
    return replies if batch.error is None else [batch.error] * len(commands)
