"""The only place where commands and scripts are sent: pipelined, and sent again while the server can't take them.

Script calls are pipelined in bounded windows. Calls of a script the server does not know (restart, failover, SCRIPT
FLUSH) are sent again with the script's text; after a lost connection the whole window is sent again, which is exact
because every update carries a fence token.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import PipelineCommand, RedisCluster
from redis.exceptions import MovedError
from redis.retry import Retry

from acker_redis import connection, driver_errors, errors, scripts
from acker_redis.connection import DRIVER_ERRORS, RedisClient
from acker_redis.driver_errors import ROLE_CODES, code_of, is_denied, passes
from acker_redis.scripts import Call

WINDOW_BYTES = 1 << 20
"""Bytes of arguments sent per pipeline: bounds the memory of client and server, and what a lost connection repeats."""

PATIENCE_SECS = 15.0
"""How long a call is sent again while the server is gone, busy or a replica, before it raises."""

CONNECT_SECS = 5.0
"""The same until a first call succeeded: a wrong address should show soon."""

_BACKOFF_BASE_SECS, _BACKOFF_CAP_SECS = 0.05, 1.0
_GAVE_UP = (errors.ConnectionLostError, errors.ServerBusyError)
_OLDEST_VERSION = (6, 2)

_T = TypeVar("_T")


class Client:
    """A Redis, Valkey or cluster client that runs the library's scripts.

    Connecting writes nothing and runs no script, so it works on a replica and for a user who may only read.

    Args:
        source: a URL (see `connection`) or a redis-py client. A URL that leads to a cluster node gives a cluster client. A
            client given stays the caller's: it is not closed, and its own timeouts and retries hold besides.
        patience_secs: how long a call goes on trying while the server is gone, busy, loading or a replica. 0: once. Below
            CONNECT_SECS a silent server is given up after 1.5 s instead of 5.

    Raises:
        ConnectionLostError: no server answers within some seconds.
        AuthenticationError: user name or password is refused.
        TlsError: a certificate is refused.
        ServerVersionError: older than Redis 6.2.
        BadConfigError: the URL is malformed, or the client given decodes responses.
    """

    def __init__(self, source: str | RedisClient, *, patience_secs: float = PATIENCE_SECS) -> None:
        """Connect and check the server."""
        self._owned = isinstance(source, str)
        self.address = connection.address(source)
        self._patience_secs = min(patience_secs, CONNECT_SECS)
        self._has_connected = False
        self.redis: RedisClient = None
        with self.translated():
            try:
                self.redis = self._connected(source) if isinstance(source, str) else source
                if self.redis.get_encoder().decode_responses:
                    raise errors.BadConfigError(
                        "the redis client decodes responses, which damages packed ids: use decode_responses=False"
                    )
                policies = self._patiently(self._check_servers)
            except BaseException:
                self.close()
                raise
        for policy in sorted(policies):
            warnings.warn(
                f"{self.address} has maxmemory-policy {policy}: under memory pressure it may evict ledgers, and "
                "records in flight are lost to tracking. Set maxmemory-policy to noeviction.",
                errors.EvictionPolicyWarning,
                stacklevel=3,
            )
        self._has_connected = True
        self._later_patience_secs = patience_secs
        self.is_cluster = isinstance(self.redis, RedisCluster)
        self.max_block_ms = connection.max_block_ms(self.redis)
        self._by_function: bool | None = None
        self._texts: dict[str, tuple[str, bytes]] = {}

    def close(self) -> None:
        """Close the connections this client made."""
        if self._owned and self.redis is not None:
            connection.close(self.redis)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, pipelined; replies in the same order.

        An error of the library's own kind is returned in place of the reply, so that the caller sees what the others did.
        """
        replies: list[Any] = []
        for window in _windows(calls):
            replies.extend(self._run_window(window))
            gone = next((reply for reply in replies if isinstance(reply, _GAVE_UP)), None)
            if gone is not None:  # patience was spent on it: the others would cost as much again
                return replies + [gone] * (len(calls) - len(replies))
        return replies

    def run_one(self, call: Call) -> Any:
        """Send one call and return its reply.

        Raises:
            AckerError: as the server answered.
        """
        (reply,) = self.run([call])
        if isinstance(reply, errors.AckerError):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[tuple[Any, ...]], *, raise_on_error: bool = True) -> list[Any]:
        """Send plain commands, pipelined without a transaction; replies in the same order.

        What the server could not take for now is sent again until the client's patience is at its end: after a lost
        connection all of it, else the commands that were refused.

        Raises:
            AckerError: the first error among the replies; with raise_on_error=False errors stand among the replies.
        """
        send = self._send_to_cluster if self.is_cluster else self._send_to_one
        replies: list[Any] = [None] * len(commands)
        todo = list(range(len(commands)))

        def attempt() -> None:
            nonlocal todo
            for i, reply in zip(todo, send([commands[i] for i in todo]), strict=True):
                replies[i] = reply
            todo = [i for i in todo if isinstance(replies[i], Exception) and passes(replies[i])]
            if todo:
                raise replies[todo[0]]

        if commands:
            with suppress(*DRIVER_ERRORS):  # they stand among the replies
                self._patiently(attempt)
        if raise_on_error:
            for command, reply in zip(commands, replies, strict=True):
                if isinstance(reply, Exception):
                    raise self.translate(_naming(command, reply)) from reply
        return replies

    def find_keys(self, pattern: str) -> list[bytes]:
        """Keys that match a pattern, by SCAN; on a cluster of all nodes."""
        with self.translated():
            found = self._patiently(lambda: list(self.redis.scan_iter(match=pattern, count=1000)))
        return sorted(set(found))

    def server_ids(self) -> frozenset[tuple[str, str]]:
        """Run id and replication id of each primary, as far as INFO gives them.

        Others than before mean that a server was restarted or replaced, and that the last writes may be missing.
        """
        with self.translated():
            infos = self._patiently(lambda: [connection.info(node) for node in connection.primaries(self.redis)])
        return frozenset((str(one["run_id"]), str(one.get("master_replid", ""))) for one in infos if "run_id" in one)

    def clocks_ms(self, of_keys: Sequence[str]) -> list[int]:
        """The time of the server that holds each key, in milliseconds: ages are never taken from a client's clock."""

        def ask() -> list[int]:
            if not self.is_cluster:
                return [_milliseconds(self.redis.time())] * len(of_keys)
            holders = [self.redis.get_node_from_key(key) for key in of_keys]
            nodes = {node.name: node for node in holders}
            now = {name: _milliseconds(self.redis.time(target_nodes=node)) for name, node in nodes.items()}
            return [now[node.name] for node in holders]

        with self.translated():
            return self._patiently(ask)

    def replication(self) -> list[dict[str, Any]]:
        """INFO replication of every primary, or of the server; empty where it is not told."""
        with self.translated():
            nodes = connection.primaries(self.redis)
            return self._patiently(lambda: [connection.info(node, "replication") for node in nodes])

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the driver's errors as this library's own."""
        try:
            yield
        except DRIVER_ERRORS as exc:
            raise self.translate(exc) from exc

    def translate(self, exc: BaseException) -> errors.AckerError:
        """The library's error for one of the driver's."""
        return driver_errors.translate(exc, self.address)

    def install(self) -> str:
        """Load the scripts as a library of functions into every primary (Redis 7 and newer, Valkey); returns its name.

        From then on clients of this version call them with FCALL and need no EVAL. A repeat changes nothing.

        Raises:
            ServerVersionError: the server has no functions.
            AckerError: as the server answered.
        """
        library = scripts.library()
        with self.translated():
            for node in connection.primaries(self.redis):
                try:
                    node.execute_command("FUNCTION", "LOAD", "REPLACE", library.text)
                except redis.ResponseError as exc:
                    if "unknown command" not in str(exc).lower():
                        raise
                    raise errors.ServerVersionError(
                        f"{self.address} has no functions: use Redis 7 or newer, or Valkey. Clients use EVAL there"
                    ) from exc
        self._by_function = None
        return library.name

    def _run_window(self, calls: list[Call]) -> list[Any]:
        replies: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        if self._by_function is not False:
            for i, reply in zip(todo, self._send_calls(calls, self._fcall), strict=True):
                replies[i] = reply
            todo = [i for i in todo if _is_no_function(replies[i])]
            self._by_function = not todo
        for command in (self._evalsha, self._eval):  # with its text a call can't be refused again, whatever is flushed
            refused = self._send_calls([calls[i] for i in todo], command)
            for i, reply in zip(todo, refused, strict=True):
                replies[i] = reply
            todo = [i for i in todo if isinstance(replies[i], redis.exceptions.NoScriptError)]
        if not all(isinstance(reply, Exception) for reply in replies):
            self._patience_secs = self._later_patience_secs
        return [self._explain(reply) if isinstance(reply, Exception) else reply for reply in replies]

    def _send_calls(self, calls: Sequence[Call], command: Callable[[Call], tuple[Any, ...]]) -> list[Any]:
        return self.pipeline([command(call) for call in calls], raise_on_error=False)

    def _fcall(self, call: Call) -> tuple[Any, ...]:
        return ("FCALL", scripts.library().functions[call.script.name], len(call.keys), *call.keys, *call.args)

    def _evalsha(self, call: Call) -> tuple[Any, ...]:
        return ("EVALSHA", self._text(call.script)[0], len(call.keys), *call.keys, *call.args)

    def _eval(self, call: Call) -> tuple[Any, ...]:
        return ("EVAL", self._text(call.script)[1], len(call.keys), *call.keys, *call.args)

    def _explain(self, exc: Exception) -> errors.AckerError:
        found = self.translate(exc)
        if isinstance(found, errors.AuthenticationError) and _denies_eval(exc):
            self._by_function = None  # they may be loaded by the time of the next call
            return errors.AuthenticationError(
                f"{found}. Or load the scripts of this version as functions, with a user who may: acker-redis install"
            )
        return found

    def _patiently(self, attempt: Callable[[], _T]) -> _T:
        """Try again while what hinders it is passing, and the client's patience lasts."""
        began = time.monotonic()

        def goes_on(exc: Exception) -> bool:
            if not self._has_connected and connection.is_tls_eof(exc):
                raise errors.TlsError(
                    f"{self.address}: the server closed the connection behind the TLS handshake ({exc}): it may want a "
                    "certificate of the client: ssl_certfile and ssl_keyfile of the URL"
                ) from exc
            if not passes(exc):
                return False
            self._start_over(exc)  # at the last attempt, too: the next call must not meet the same
            return time.monotonic() - began < self._patience_secs

        backoff = ExponentialWithJitterBackoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)
        retry: Retry = Retry(backoff, -1, supported_errors=DRIVER_ERRORS)
        return retry.call_with_retry(attempt, lambda exc: None, is_retryable=goes_on)

    def _start_over(self, exc: Exception) -> None:
        """Leave connections that lead to a server which was replaced, and ask a cluster again who has which slot."""
        if isinstance(self.redis, RedisCluster):
            with suppress(*DRIVER_ERRORS):  # asked again at the next attempt
                self.redis.nodes_manager.initialize()
        elif code_of(exc) in ROLE_CODES:
            connection.drop_idle(self.redis)

    def _send_to_one(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        pipe = self.redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        try:
            replies: list[Any] = pipe.execute(raise_on_error=False)
        except DRIVER_ERRORS as exc:
            replies = [exc] * len(commands)
        return replies

    def _send_to_cluster(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One pipeline per node.

        redis-py's own redirection sends every refused command by itself, each with all its retries: minutes for a
        window of calls when a node is gone.
        """
        stack = [
            PipelineCommand(command, self._options(command), position)  # type: ignore[no-untyped-call]
            for position, command in enumerate(commands)
        ]
        try:
            found = self.redis.pipeline().send_cluster_commands(stack, raise_on_error=False, allow_redirections=False)
        except DRIVER_ERRORS as exc:
            found = [exc] * len(commands)
        return [
            self._follow(command) if _is_ask(reply) else reply for command, reply in zip(commands, found, strict=True)
        ]

    def _options(self, command: tuple[Any, ...]) -> dict[str, Any]:
        """Where a command goes; of those whose keys stand anywhere redis-py asks the server for them, each time."""
        if command[0] in ("FCALL", "EVALSHA", "EVAL"):
            key = command[3]
        elif command[0] == "XREADGROUP":
            key = command[command.index("STREAMS") + 1]
        else:
            return {}
        node = self.redis.get_node_from_key(key)
        return {} if node is None else {"target_nodes": node}

    def _follow(self, command: tuple[Any, ...]) -> Any:
        try:
            return self.redis.execute_command(*command)
        except DRIVER_ERRORS as exc:
            return exc

    def _text(self, script: scripts.Script) -> tuple[str, bytes]:
        cached = self._texts.get(script.name)
        if cached is None:
            text = script.text_for(shebang=self._knows_shebang)
            cached = self._texts[script.name] = (scripts.sha1(text), text)
        return cached

    @cached_property
    def _knows_shebang(self) -> bool:
        """Whether the server knows `#!lua` lines (Redis 7); asked at the first script."""
        node = connection.primaries(self.redis)[0]

        def ask() -> bool:
            try:
                node.eval("#!lua flags=no-writes\nreturn 1", 0)
            except redis.ResponseError as exc:
                if passes(exc):
                    raise
                return False
            return True

        with self.translated():
            return self._patiently(ask)

    def _connected(self, url: str) -> RedisClient:
        patient = self._patience_secs >= CONNECT_SECS
        timeout_secs = connection.SOCKET_TIMEOUT_SECS if patient else connection.SHORT_SOCKET_TIMEOUT_SECS
        single = self.redis = connection.connect_single(url, socket_timeout_secs=timeout_secs)
        self._patiently(lambda: connection.greet_sentinels(single))
        try:
            cluster_info = self._patiently(lambda: connection.info(single, "cluster"))
        except TypeError:  # an option that redis-py does not know
            raise errors.BadConfigError(f"{self.address!r}: an option of the URL is not known to redis-py") from None
        if not int(cluster_info.get("cluster_enabled", 0)):
            return single
        connection.close(single)
        return self._patiently(lambda: connection.connect_cluster(url, socket_timeout_secs=timeout_secs))

    def _check_servers(self) -> set[str]:
        """Refuse old servers; returns the eviction policies that may cost ledgers."""
        policies = set[str]()
        for node in connection.primaries(self.redis):
            _greet(node)
            info = connection.info(node)
            version = str(info.get("redis_version", ""))
            numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
            if numbers and numbers < _OLDEST_VERSION:
                raise errors.ServerVersionError(
                    f"{self.address} runs Redis {version}: use Redis 6.2 or newer, or Valkey 7.2 or newer"
                )
            policies.add(info.get("maxmemory_policy", "noeviction"))
        return policies - {"noeviction"}


def _windows(calls: Sequence[Call]) -> Iterator[list[Call]]:
    window: list[Call] = []
    size = 0
    for call in calls:
        window.append(call)
        size += sum(len(arg) for arg in call.args if isinstance(arg, (bytes, str)))
        if size >= WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _greet(node: RedisClient) -> None:
    try:
        node.ping()
    except redis.ResponseError as exc:
        if code_of(exc) != "MISCONF":  # a server that can't persist refuses even PING, and can be read
            raise


def _is_ask(reply: object) -> bool:
    return isinstance(reply, redis.exceptions.AskError) and not isinstance(reply, MovedError)


def _is_no_function(reply: object) -> bool:
    """The server has no functions, not ours, or keeps them from this user: then scripts are sent."""
    text = str(reply).lower()
    return isinstance(reply, redis.ResponseError) and (
        "function not found" in text or "unknown command" in text or (is_denied(reply) and "fcall" in text)
    )


def _naming(command: tuple[Any, ...], error: Exception) -> Exception:
    """An error about the type of a key, with the key, which the server leaves out."""
    text = str(error)
    return redis.ResponseError(f"{text}: {command[0]} {command[1]}") if text.startswith("WRONGTYPE") else error


def _milliseconds(time: tuple[int, int]) -> int:
    return time[0] * 1000 + time[1] // 1000


def _denies_eval(exc: BaseException) -> bool:
    return is_denied(exc) and "'eval" in str(exc).lower()
