"""The only place where commands and scripts are sent: pipelined, and retried while the server can't execute them.

Script calls are pipelined in bounded windows. A call of a script that the server does not know (restart, failover, SCRIPT
FLUSH) is sent again with the script's text. After a lost connection the whole window is sent again. That is exact, because
every update carries an idempotency key.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import redis
from redis.cluster import RedisCluster
from redis.retry import Retry

from acker_redis import errors
from acker_redis.client import batch, connection, error_mapping, function_library, report_calls, server_info
from acker_redis.client.cluster import LeftAloneError, Nodes
from acker_redis.client.connection import DRIVER_ERRORS, RedisClient
from acker_redis.client.error_mapping import ROLE_CODES, code_of, passes
from acker_redis.client.script_calls import ScriptCalls, denies_eval, key_of, windows
from acker_redis.client.scripts import Call, Command
from acker_redis.outages import Backoff

OUTAGE_TIMEOUT_SECS = 15.0
"""Time that a call retries while the server is gone, busy or a replica, before it raises."""

CONNECT_SECS = 5.0
"""Outage timeout of the first call, so that a wrong address fails soon."""

WINDOW_BYTES = 1 << 20
"""Bytes of arguments per pipeline. Bounds the memory of client and server, and the resend after a lost connection."""

SCRIPT_CALLS = ("FCALL", "EVALSHA")
"""Commands that call scripts. A user needs only one of them; see `Client.install`."""

_BACKOFF_BASE_SECS, _BACKOFF_CAP_SECS = 0.05, 1.0
_GAVE_UP = (errors.ConnectionLostError, errors.ServerBusyError)

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Installed(NamedTuple):
    """Result of `Client.install`.

    Attributes:
        library: name of the library of scripts.
        newer_reports: address of a server -> version of its reports, which are newer than this program's and were kept.
    """

    library: str
    newer_reports: dict[str, str]


class Client:
    """Client of a Redis or Valkey server or cluster that runs the library's scripts.

    Connecting writes nothing and runs no script, so it works on a replica and for a user who may only read.

    Args:
        source: URL (see `connection`) or redis-py client. A URL of a cluster node makes a cluster client. A redis-py client
            still belongs to the caller: `close` leaves it open, and its own timeouts and retries also apply.
        outage_timeout_secs: time that a call retries while the server is gone, busy, loading or a replica, in seconds.
            0 tries once. Below CONNECT_SECS the client drops a silent server after 1.5 s instead of 5. At 0 a cluster
            node that does not answer is skipped for up to 10 s and delays nothing else, if another node answers.
        connect_secs: upper limit of the outage timeout until a first script call succeeded, in seconds. None means
            CONNECT_SECS.

    Attributes:
        nodes: primaries of a cluster; None for a single server.

    Raises:
        ConnectionLostError: no server answers within some seconds.
        AuthenticationError: user name or password is refused.
        TlsError: a certificate is refused.
        ServerVersionError: the server is older than Redis 6.2.
        BadConfigError: the URL is malformed, or the redis-py client decodes responses.
    """

    def __init__(
        self,
        source: str | RedisClient,
        *,
        outage_timeout_secs: float = OUTAGE_TIMEOUT_SECS,
        connect_secs: float | None = None,
    ) -> None:
        """Connect and check the server."""
        if not isinstance(source, str) and not hasattr(source, "get_encoder"):
            raise errors.BadConfigError(
                f"The server is of type {type(source).__name__}, which is neither a URL nor a redis-py client. Pass a URL, "
                "such as redis://127.0.0.1:6379/0. If you read it from a variable, check that it is set."
            )
        self._owned = isinstance(source, str)
        self.url = source if isinstance(source, str) else None
        self.address = connection.address(source)
        self._outage_timeout_secs = min(outage_timeout_secs, CONNECT_SECS if connect_secs is None else connect_secs)
        self._has_connected = self._closed = False
        self._has_patience: Callable[[], bool] = lambda: True
        self._impatient = outage_timeout_secs == 0
        self.nodes: Nodes | None = None
        self.redis: RedisClient = None
        with self.translated():
            try:
                self.redis = self._connected(source) if isinstance(source, str) else source
                if self.redis.get_encoder().decode_responses:
                    raise errors.BadConfigError(
                        "The redis-py client has decode_responses=True. Decoding damages packed ids. "
                        "Use decode_responses=False."
                    )
                if isinstance(self.redis, RedisCluster):
                    self.nodes = Nodes(self.redis, key_of, rests=self._impatient)
                policies = self._patiently(
                    lambda: server_info.eviction_policies(self.redis, self.address, tolerate_gone=self._impatient)
                )
            except BaseException:
                self.close()
                raise
        for policy in sorted(policies):
            warnings.warn(
                f"{self.address} has maxmemory-policy {policy}. Under memory pressure it may evict ledgers, so that "
                "messages in flight are no longer tracked. Set maxmemory-policy to noeviction.",
                errors.EvictionPolicyWarning,
                stacklevel=3,
            )
        self._has_connected = True
        self._later_patience_secs = outage_timeout_secs
        self.is_cluster = self.nodes is not None
        self.max_block_ms = connection.max_block_ms(self.redis)
        self._calls = ScriptCalls(self._send, lambda: self._knows_shebang)

    def close(self) -> None:
        """Close the connections that this client made.

        A call under way in another thread ends.
        """
        self._closed = True
        if self._owned and self.redis is not None:
            connection.close(self.redis)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, pipelined, and return the replies in the same order.

        Raises:
            AckerError: first error among the replies. The other calls may have been executed.
        """
        replies = self.run_each(calls)
        raise_first(replies)
        return replies

    def run_each(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls as `run` does.

        An error replaces the reply of its call, so that the caller sees the other replies.
        """
        replies: list[Any] = []
        for window in windows(calls, WINDOW_BYTES):
            answers = self._calls.send(window)
            if not all(isinstance(reply, Exception) for reply in answers):
                self._outage_timeout_secs = self._later_patience_secs
            replies.extend(
                _with_cause(self._explain(reply), reply) if isinstance(reply, Exception) else reply for reply in answers
            )
            gone = next((reply for reply in replies if isinstance(reply, _GAVE_UP)), None)
            if gone is not None:  # the timeout was spent on it: each of the others would wait as long again
                return replies + [gone] * (len(calls) - len(replies))
        return replies

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Send plain commands, pipelined without a transaction, and return the replies in the same order.

        Commands that the server can't execute now are retried until the outage timeout is over. After a lost connection
        all of them are retried, otherwise only the refused ones.

        Raises:
            AckerError: first error among the replies. Its cause is redis-py's error.
        """
        replies = self.pipeline_each(commands)
        raise_first(replies)
        return replies

    def pipeline_each(self, commands: Sequence[Command], *, on_resend: Callable[[], object] | None = None) -> list[Any]:
        """Send commands as `pipeline` does. An error replaces the reply of its command.

        Args:
            commands: commands to send.
            on_resend: function called before commands are sent again. The server may have executed them and a reply may
                be lost. Entries of a lost XREADGROUP reply still belong to their consumer.
        """
        return [
            _with_cause(self.translate(_naming(command, reply)), reply) if isinstance(reply, Exception) else reply
            for command, reply in zip(commands, self._send(commands, on_resend), strict=True)
        ]

    def _send(self, commands: Sequence[Command], on_resend: Callable[[], object] | None = None) -> list[Any]:
        """Send commands and return the replies, with redis-py's errors in place of missing ones."""
        send = self._send_to_one if self.nodes is None else self.nodes.send
        replies: list[Any] = [None] * len(commands)
        todo = list(range(len(commands)))
        is_resent = False

        def attempt() -> None:
            nonlocal todo, is_resent
            if is_resent and on_resend is not None:
                on_resend()
            is_resent = True
            for i, reply in zip(todo, send([commands[i] for i in todo]), strict=True):
                replies[i] = reply
            todo = [i for i in todo if isinstance(replies[i], Exception) and passes(replies[i])]
            if todo:
                raise min((replies[i] for i in todo), key=lambda reply: isinstance(reply, LeftAloneError))

        if commands:
            with suppress(*DRIVER_ERRORS):  # they stand among the replies
                self._patiently(attempt)
        return replies

    def scan(self, pattern: str, cursors: Mapping[str, int]) -> dict[str, tuple[int, list[bytes]] | errors.AckerError]:
        """Run one step of SCAN on each of these nodes.

        A single server is one node without a name.

        Args:
            pattern: pattern of keys.
            cursors: node -> cursor of its scan; 0 to begin.

        Returns:
            Node -> next cursor (0 at the end) and keys, or the node's error.
        """
        commands = [("SCAN", cursor, "MATCH", pattern, "COUNT", 1000) for cursor in cursors.values()]
        replies = self._send_to_one(commands) if self.nodes is None else self.nodes.send(commands, list(cursors))
        return {
            name: self.translate(reply) if isinstance(reply, Exception) else (int(reply[0]), reply[1])
            for name, reply in zip(cursors, replies, strict=True)
        }

    def server_ids(self) -> frozenset[tuple[str, str]]:
        """Read run id and replication id of each primary, if INFO has them.

        Changed ids mean that a server was restarted or replaced, and that the last writes may be missing.
        """
        return self.ask(server_info.server_ids)

    def ask(
        self, question: Callable[Concatenate[RedisClient, _P], _T], *arguments: _P.args, **options: _P.kwargs
    ) -> _T:
        """Call a function of `server_info`, and retry while the server can't answer.

        Raises:
            AckerError: error of the server.
        """
        with self.translated():
            return self._patiently(lambda: question(self.redis, *arguments, **options))

    def report(self, name: str, *arguments: str) -> list[bytes]:
        """Run a report of `scripts.REPORTS` on every primary, or on the single server.

        Calls the report's function. If the function is not loaded, or is older than this program, the user must be allowed
        to EVAL.

        Raises:
            AckerError: a server does not answer, or refuses the report.
        """

        def ask() -> list[bytes]:
            return [self._report_of(node, name, arguments) for node in connection.primaries(self.redis)]

        with self.translated():
            return self._patiently(ask)

    def _report_of(self, node: RedisClient, name: str, arguments: tuple[str, ...]) -> bytes:
        try:
            report: bytes = report_calls.ask(node, name, arguments)
        except redis.ResponseError as exc:
            if not denies_eval(exc):
                raise
            raise errors.AuthenticationError(
                f"{connection.address(node)} has no reports of this version as functions, and the user may not send them as "
                f"scripts ({exc}). Load them with `acker-redis install` as a user who may, and allow this user +fcall_ro."
            ) from exc
        return report

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate redis-py's errors into this library's own."""
        try:
            yield
        except DRIVER_ERRORS as exc:
            raise self.translate(exc) from exc

    def translate(self, exc: BaseException) -> errors.AckerError:
        """Translate an error of redis-py into the library's own."""
        lost = error_mapping.LOST if self._has_connected else error_mapping.NOTHING_THERE
        return error_mapping.translate(exc, self.address, lost=lost)

    def install(self) -> Installed:
        """Load scripts and reports as libraries of functions into every primary (Redis 7 and newer, Valkey).

        From then on clients of this version call them with FCALL and FCALL_RO and need no EVAL. A repeat changes nothing.
        Reports of a newer version stay.

        Raises:
            ServerVersionError: the server has no functions.
            AckerError: error of the server.
        """
        library = function_library.library()
        kept: dict[str, str] = {}
        with self.translated():
            for node in connection.primaries(self.redis):
                self._load(node, library)
                newer = report_calls.newer_version(node)
                if newer is None:
                    self._load(node, function_library.reports())
                else:
                    kept[connection.address(node)] = newer
        self._calls.look_again()
        return Installed(library.name, kept)

    def _load(self, node: RedisClient, library: function_library.Library) -> None:
        try:
            node.execute_command("FUNCTION", "LOAD", "REPLACE", library.text)
        except redis.ResponseError as exc:
            if "unknown command" not in str(exc).lower():
                raise
            raise errors.ServerVersionError(
                f"{self.address} has no functions, so its clients use EVAL. For functions, use Redis 7 or newer, or Valkey."
            ) from exc

    def _explain(self, exc: Exception) -> errors.AckerError:
        error = error_mapping.translate(exc, self.address, lost=error_mapping.LOST_UNDER_WAY)
        if isinstance(error, errors.AuthenticationError) and denies_eval(exc):
            self._calls.look_again()
            return errors.AuthenticationError(
                f"{error} Or load this version's scripts as functions with `acker-redis install`, as a user who may."
            )
        return error

    def _patiently(self, attempt: Callable[[], _T]) -> _T:
        """Retry while the error is transient, until the outage timeout is over."""
        began = time.monotonic()

        def attempt_if_open() -> _T:
            self.check_open()
            try:
                return attempt()
            except (errors.AckerError, *DRIVER_ERRORS):
                raise
            except Exception as exc:  # redis-py meets a socket that `close` has taken away meanwhile
                if self._closed:
                    raise self._is_closed() from exc
                raise
            except BaseException:  # of a signal handler: redis-py may have released a connection with an unread reply
                connection.drop_idle(self.redis)
                raise

        def goes_on(exc: Exception) -> bool:
            if self._closed:
                raise self._is_closed() from exc
            if not self._has_connected and connection.is_tls_eof(exc):
                raise errors.TlsError(
                    f"{self.address} closed the connection after the TLS handshake ({exc}). The server may require a "
                    "client certificate. Set ssl_certfile and ssl_keyfile in the URL."
                ) from exc
            if not passes(exc):
                return False
            self._start_over(exc)  # at the last attempt, too: the next call must not meet the same
            return time.monotonic() - began < self._outage_timeout_secs and self._has_patience()

        backoff = Backoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)
        retry: Retry = Retry(backoff, -1, supported_errors=DRIVER_ERRORS)
        return retry.call_with_retry(attempt_if_open, lambda exc: None, is_retryable=goes_on)

    @contextmanager
    def patient_while(self, has_patience: Callable[[], bool]) -> Iterator[None]:
        """Let calls, of all threads, try again during an outage only as long as a function returns True."""
        before, self._has_patience = self._has_patience, has_patience
        try:
            yield
        finally:
            self._has_patience = before

    def answers(self) -> bool:
        """Ask the server once, without patience, whether it answers."""
        self.check_open()
        try:
            self.redis.ping()
        except DRIVER_ERRORS as exc:
            self._start_over(exc)
            return False
        return True

    def check_open(self) -> None:
        """Raise ClosedError after `close`.

        Calls that reach the server check this themselves.
        """
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> errors.ClosedError:
        return errors.ClosedError(f"The client of {self.address} was closed. Connect again.")

    def _start_over(self, exc: Exception) -> None:
        """Drop connections to a server that was replaced, and refresh the slot map of a cluster."""
        if self.nodes is not None:
            self.nodes.renew()
        elif code_of(exc) in ROLE_CODES:
            connection.drop_idle(self.redis)

    def _send_to_one(self, commands: Sequence[Command]) -> list[Any]:
        return batch.send(self.redis, commands)

    @cached_property
    def _knows_shebang(self) -> bool:
        """True if the server knows `#!lua` lines (Redis 7); asked at the first script."""

        def ask() -> bool:
            primaries = connection.primaries(self.redis)
            for left, node in enumerate(reversed(primaries)):
                try:
                    node.eval("#!lua flags=no-writes\nreturn 1", 0)
                except DRIVER_ERRORS as exc:
                    if not passes(exc):
                        return False
                    if left == len(primaries) - 1:  # no other one can tell
                        raise
                else:
                    return True
            return False

        with self.translated():
            return self._patiently(ask)

    def _connected(self, url: str) -> RedisClient:
        patient = self._outage_timeout_secs >= CONNECT_SECS
        timeout_secs = connection.SOCKET_TIMEOUT_SECS if patient else connection.SHORT_SOCKET_TIMEOUT_SECS
        single = self.redis = connection.connect_single(url, socket_timeout_secs=timeout_secs)
        self._patiently(lambda: connection.greet_sentinels(single))
        try:
            cluster_info = self._patiently(lambda: connection.info(single, "cluster"))
        except TypeError:  # an option that redis-py does not know
            raise errors.BadConfigError(
                f"The URL {self.address!r} has an option that redis-py does not know. Remove it, or correct its name."
            ) from None
        if not int(cluster_info.get("cluster_enabled", 0)):
            return single
        connection.close(single)
        return self._patiently(lambda: connection.connect_cluster(url, socket_timeout_secs=timeout_secs))


def raise_first(replies: Sequence[object]) -> None:
    """Raise the first error among replies."""
    for reply in replies:
        if isinstance(reply, errors.AckerError):
            raise reply


def _with_cause(error: errors.AckerError, cause: Exception) -> errors.AckerError:
    if error is not cause:
        error.__cause__ = cause
    return error


def _naming(command: Command, error: Exception) -> Exception:
    """Add the command and key to an error about a key's type. The server leaves them out."""
    text = str(error)
    if not text.startswith("WRONGTYPE"):
        return error
    return redis.ResponseError(f"{text}: {' '.join(str(part) for part in command[:2])}")
