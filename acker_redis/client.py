"""The only place where a Redis connection is made, and where scripts are sent.

Script calls are pipelined in bounded windows. Calls of a script the server does not know (restart, failover, SCRIPT
FLUSH) are sent again with the script's text; after a lost connection the whole window is sent again, which is exact
because every update carries a fence token.
"""

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import PipelineCommand, RedisCluster
from redis.exceptions import ClusterDownError, MovedError, RedisClusterException, TryAgainError
from redis.retry import Retry

from acker_redis import errors, scripts
from acker_redis.scripts import Call

RedisClient: TypeAlias = Any
"""A redis-py client: `redis.Redis`, `redis.cluster.RedisCluster`, or fakeredis's stand-in."""

WINDOW_BYTES = 1 << 20
"""Bytes of arguments sent per pipeline: bounds the memory of client and server, and what a lost connection repeats."""

_SOCKET_TIMEOUT_SECS = 5.0
"""A server that says nothing for so long is taken for lost: a frozen machine, a cable that was cut."""

_RETRIES = 9
_BACKOFF_BASE_SECS, _BACKOFF_CAP_SECS = 0.05, 1.0
_CLUSTER_RETRIED = (redis.ConnectionError, redis.TimeoutError, ClusterDownError, MovedError, TryAgainError)
_OLDEST_VERSION = (6, 2)
_DETAIL_CHARS = 300
_SCRIPT_DENIED = "The user executing the script can't"
_CODE_IN_SCRIPT = re.compile(r"(?<![\w-])-([A-Z]{3,}) ")  # Redis 6.2 wraps the code of an error inside a script in text


class Client:
    """A Redis, Valkey or cluster client that runs the library's scripts.

    Args:
        source: a URL (`redis://`, `rediss://`, `unix://`) or a redis-py client. A URL that leads to a cluster node gives
            a cluster client. A client given stays the caller's: it is not closed, and its own retry settings hold.

    Raises:
        ConnectionLostError: no server answers within some seconds.
        AuthenticationError: user name or password is refused.
        ServerVersionError: older than Redis 6.2.
        BadConfigError: the URL is malformed, or the client given decodes responses.
    """

    def __init__(self, source: str | RedisClient) -> None:
        """Connect, check the server, and find out whether it knows shebang lines (Redis 7)."""
        self._owned = isinstance(source, str)
        self.address = _address(source)
        with self.translated():
            self.redis = _checked(_from_url(source) if isinstance(source, str) else source)
            self._nodes = _primaries(self.redis)
            self._check_servers()
            self._shebang = self._knows_shebang()
        self.is_cluster = isinstance(self.redis, RedisCluster)
        self.max_block_ms = _max_block_ms(self.redis)
        self._texts: dict[str, tuple[str, bytes]] = {}

    def close(self) -> None:
        """Close the connections this client made."""
        if self._owned:
            self.redis.close()

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, pipelined; replies in the same order.

        An error of the library's own kind is returned in place of the reply, so that the caller sees what the others did.

        Raises:
            ConnectionLostError: the connection was lost and did not come back. Calls may have been applied.
        """
        replies: list[Any] = []
        window: list[Call] = []
        size = 0
        for call in calls:
            window.append(call)
            size += sum(len(arg) for arg in call.args if isinstance(arg, (bytes, str)))
            if size >= WINDOW_BYTES:
                replies.extend(self._run_window(window))
                window, size = [], 0
        if window:
            replies.extend(self._run_window(window))
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

        Raises:
            AckerError: the first error among the replies; with raise_on_error=False errors stand among the replies.
        """
        with self.translated():
            replies = self._send_to_cluster(commands) if self.is_cluster else self._send_to_one(commands)
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise self.translate(reply) from reply
        return replies

    def find_keys(self, pattern: str) -> list[str]:
        """Keys that match a pattern, by SCAN."""
        with self.translated():
            return sorted(key.decode() for key in self.redis.scan_iter(match=pattern, count=1000))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the driver's errors as this library's own."""
        try:
            yield
        except (redis.RedisError, RedisClusterException, OSError) as exc:
            raise self.translate(exc) from exc

    def translate(self, exc: BaseException) -> errors.AckerError:
        """The library's error for one of the driver's."""
        return _translate(exc, self.address)

    def _run_window(self, calls: list[Call]) -> list[Any]:
        commands = [("EVALSHA", self._text(c.script)[0], len(c.keys), *c.keys, *c.args) for c in calls]
        replies = self.pipeline(commands, raise_on_error=False)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]
        if unknown:  # with its text a call can't be refused again, whatever is flushed meanwhile
            again = [("EVAL", self._text(calls[i].script)[1], *commands[i][2:]) for i in unknown]
            for i, reply in zip(unknown, self.pipeline(again, raise_on_error=False), strict=True):
                replies[i] = reply
        return [self.translate(reply) if isinstance(reply, Exception) else reply for reply in replies]

    def _send_to_one(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        pipe = self.redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def _send_to_cluster(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One pipeline per node. What a node did not take is sent again, together and a bounded number of times.

        redis-py's own redirection sends every refused command by itself, each with all its retries: minutes for a
        window of calls when a node is gone.
        """
        replies: list[Any] = [None] * len(commands)
        todo = list(range(len(commands)))
        backoff = ExponentialWithJitterBackoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS)
        for attempt in range(_RETRIES + 1):
            if attempt:
                time.sleep(backoff.compute(attempt))
                with suppress(redis.RedisError, RedisClusterException):  # nodes are asked anew at the next attempt
                    self.redis.nodes_manager.initialize()
            stack = [
                PipelineCommand(commands[i], {}, position)  # type: ignore[no-untyped-call]
                for position, i in enumerate(todo)
            ]
            try:
                found = self.redis.pipeline().send_cluster_commands(
                    stack, raise_on_error=False, allow_redirections=False
                )
            except (*_CLUSTER_RETRIED, RedisClusterException) as exc:
                found = [exc] * len(todo)
            for i, reply in zip(todo, found, strict=True):
                is_ask = isinstance(reply, redis.exceptions.AskError) and not isinstance(reply, MovedError)
                replies[i] = self.redis.execute_command(*commands[i]) if is_ask else reply
            todo = [i for i in todo if isinstance(replies[i], (*_CLUSTER_RETRIED, RedisClusterException))]
            if not todo:
                break
        return replies

    def _text(self, script: scripts.Script) -> tuple[str, bytes]:
        cached = self._texts.get(script.name)
        if cached is None:
            text = script.text_for(shebang=self._shebang)
            cached = self._texts[script.name] = (scripts.sha1(text), text)
        return cached

    def _knows_shebang(self) -> bool:
        try:
            self._nodes[0].eval("#!lua\nreturn 1", 0)
        except redis.ResponseError:
            return False
        return True

    def _check_servers(self) -> None:
        for node in self._nodes:
            info = _info(node)
            version = str(info.get("redis_version", ""))
            numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
            if numbers and numbers < _OLDEST_VERSION:
                raise errors.ServerVersionError(
                    f"{self.address} runs Redis {version}: use Redis 6.2 or newer, or Valkey 7.2 or newer"
                )
            policy = info.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                warnings.warn(
                    f"{self.address} has maxmemory-policy {policy}: under memory pressure it may evict ledgers, and "
                    "records in flight are lost to tracking. Set maxmemory-policy to noeviction.",
                    errors.EvictionPolicyWarning,
                    stacklevel=4,
                )


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(base=_BACKOFF_BASE_SECS, cap=_BACKOFF_CAP_SECS), _RETRIES)


def _from_url(url: str) -> RedisClient:
    timeouts = {"socket_timeout": _SOCKET_TIMEOUT_SECS, "socket_connect_timeout": _SOCKET_TIMEOUT_SECS}
    try:
        single = redis.Redis.from_url(url, retry=_retry(), **timeouts)
    except ValueError:  # its text may quote the password
        raise errors.BadConfigError(
            f"{_address(url)!r} is no Redis URL: use redis://[[user]:password@]host[:port][/db], and percent-encode "
            "special characters of the password"
        ) from None
    # An AuthenticationError counts as a lost connection in redis-py, so ask once without retries.
    probe = redis.Redis.from_url(url, retry=Retry(ExponentialWithJitterBackoff(), 0), **timeouts)
    try:
        probe.ping()
    except (redis.AuthenticationError, redis.ResponseError):
        raise
    except (redis.ConnectionError, redis.TimeoutError):
        single.ping()
    finally:
        probe.close()
    if int(_info(single, "cluster").get("cluster_enabled", 0)):
        single.close()
        no_retry = Retry(ExponentialWithJitterBackoff(), 0)  # `Client` retries
        return RedisCluster.from_url(url, retry=no_retry, **timeouts)
    return single


def _checked(client: RedisClient) -> RedisClient:
    if client.get_encoder().decode_responses:
        raise errors.BadConfigError(
            "the redis client decodes responses, which damages packed ids: use decode_responses=False"
        )
    return client


def _max_block_ms(client: RedisClient) -> int:
    """How long a command may block before the client's own socket timeout takes the server for lost."""
    kwargs = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    return max(1, int((kwargs.get("socket_timeout") or _SOCKET_TIMEOUT_SECS) * 500))


def _primaries(client: RedisClient) -> list[RedisClient]:
    if isinstance(client, RedisCluster):
        nodes: list[Any] = client.get_primaries()  # type: ignore[no-untyped-call]
        return [client.get_redis_connection(node) for node in nodes]
    return [client]


def _info(node: RedisClient, *sections: str) -> dict[str, Any]:
    """INFO, or nothing where a server (fakeredis, a narrow ACL) doesn't tell."""
    try:
        info: dict[str, Any] = node.info(*sections)
    except redis.ResponseError:
        return {}
    return info


def _address(source: str | RedisClient) -> str:
    if not isinstance(source, str):
        kwargs = getattr(getattr(source, "connection_pool", None), "connection_kwargs", {})
        return f"{kwargs.get('host', 'server')}:{kwargs.get('port', '')}".rstrip(":")
    scheme, slashes, rest = source.partition("://")
    _, at, place = rest.rpartition("@")  # the last one: a password that was not encoded may hold any character
    return f"{scheme}{slashes}{'***@' if at else ''}{place.partition('?')[0]}"


def _translate(exc: BaseException, address: str) -> errors.AckerError:
    text = str(exc)[:_DETAIL_CHARS]
    inside = _CODE_IN_SCRIPT.search(text)
    code = inside[1] if inside else text.partition(" ")[0]
    if isinstance(exc, errors.AckerError):
        return exc
    if code == "ACKERLOST" or code == "NOGROUP":
        return errors.LedgerLostError(
            f"{address}: a shard lost its data since this client opened it (FLUSHALL, or a restart without persistence). "
            "Call Acker.recover() and replay every root that has no outcome yet"
        )
    if isinstance(exc, (redis.AuthenticationError, redis.exceptions.AuthorizationError)) or code in (
        "NOAUTH",
        "WRONGPASS",
    ):
        return errors.AuthenticationError(f"{address} refused the login ({text}): check user name and password")
    if isinstance(exc, redis.exceptions.NoPermissionError) or code == "NOPERM" or _SCRIPT_DENIED in text:
        return errors.AuthenticationError(
            f"{address}: the user lacks a permission ({text}): allow the command it names, and the keys acker:{{APP:* and "
            "acker:{APP}:* where APP is the app's name"
        )
    if isinstance(exc, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        return errors.OutOfMemoryError(
            f"{address} is above maxmemory and takes no new roots ({text}): raise maxmemory, or wait until pending roots "
            "settle; acks, fails and rotation still work"
        )
    if isinstance(exc, redis.exceptions.ReadOnlyError) or code in ("READONLY", "MISCONF", "NOREPLICAS"):
        return errors.ServerRefusesWritesError(
            f"{address} refuses writes ({text}): connect to the primary if this is a replica, else mend what the server "
            "says; nothing was changed"
        )
    if isinstance(exc, (*_CLUSTER_RETRIED, redis.exceptions.ClusterError, RedisClusterException, OSError)):
        return errors.ConnectionLostError(
            f"{address} can't be reached ({text}): check that the server runs and the URL is right. A batch that met this "
            "may have been applied in part; sending it again with the same token is exact"
        )
    return errors.ScriptFailedError(f"{address}: {text}")
