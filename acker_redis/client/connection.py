"""The only place where a Redis connection is made: from a URL, or a client given, to a redis-py client.

URLs: `redis://`, `rediss://` (TLS), `unix://`, and through Sentinel `redis+sentinel://h1:26379,h2/service/db` or
`rediss+sentinel://`. None of the clients made here retries by itself; `client.Client` does, in one place.
"""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from acker_redis.errors import BadConfigError

RedisClient: TypeAlias = Any
"""A redis-py client: `redis.Redis`, `redis.cluster.RedisCluster`, or fakeredis's stand-in."""

DRIVER_ERRORS = (redis.RedisError, RedisClusterException, OSError)
"""What redis-py raises."""

SOCKET_TIMEOUT_SECS = 5.0
"""A server that says nothing for so long is taken for lost: a frozen machine, a cable that was cut."""

SHORT_SOCKET_TIMEOUT_SECS = 1.5
"""The same for those who must not be held up."""

_SENTINEL_TIMEOUT_SECS = 1.0
_SENTINEL_PORT = 26379
_SENTINEL_URL = re.compile(r"(rediss?)\+sentinel://(?:(.*)@)?([^/?@]+)/([^/?]+)(?:/([^/?]*))?(?:\?(.*))?")
_FORM = (
    "use redis://[[user]:password@]host[:port][/db], rediss:// for TLS, unix://path, or "
    "redis+sentinel://[[user]:password@]host[:port],host[:port]/service[/db], and percent-encode special characters of the "
    "password"
)
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def connect_single(url: str, *, socket_timeout_secs: float) -> RedisClient:
    """A client for a server, or for the primary of a service that Sentinels watch; nothing is sent yet.

    Raises:
        BadConfigError: the URL is malformed, or names a file that isn't there. The text holds no password.
    """
    options = {
        "socket_timeout": socket_timeout_secs,
        "socket_connect_timeout": socket_timeout_secs,
        "retry": _no_retry(),
    }
    try:
        sentinel = _SENTINEL_URL.fullmatch(url)
        parsed = _parsed(_as_plain(sentinel) if sentinel else url)
        if sentinel is None:
            return redis.Redis.from_url(url, **options)
        return _through_sentinel(sentinel, options | parsed)
    except ValueError as exc:
        if isinstance(exc, BadConfigError):
            raise
        # Without the cause: its text may quote the password.
        raise BadConfigError(f"{address(url)!r} is no Redis URL: {_FORM}") from None


def connect_cluster(url: str, *, socket_timeout_secs: float) -> RedisCluster:
    """Connect to the whole cluster that this node belongs to; the node names the others."""
    return RedisCluster.from_url(
        url, retry=_no_retry(), socket_timeout=socket_timeout_secs, socket_connect_timeout=socket_timeout_secs
    )


def close(client: RedisClient) -> None:
    """Close a client made here, and its clients of Sentinels."""
    client.close()
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinel is not None:
        sentinel.close()


def greet_sentinels(client: RedisClient) -> None:
    """Ask the Sentinels behind a client whether one answers; redis-py keeps to itself why none lets us in.

    Raises:
        redis.RedisError: none does; the answer of one that refuses the login or the handshake, if there is such a one.
    """
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    failed: list[BaseException] = []
    for server in sentinel.sentinels if sentinel is not None else ():
        try:
            server.ping()
            return
        except DRIVER_ERRORS as exc:
            failed.append(exc)
    refused = [exc for exc in failed if isinstance(exc, redis.AuthenticationError) or tls_error(exc) is not None]
    if failed:
        raise (refused or failed)[0]


def drop_idle(client: RedisClient) -> None:
    """Close unused connections, so that the next ones are made to where the address leads then."""
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect(inuse_connections=False)


def primaries(client: RedisClient) -> list[RedisClient]:
    """Give a client for each primary; a single server has one."""
    if isinstance(client, RedisCluster):
        nodes: list[Any] = client.get_primaries()  # type: ignore[no-untyped-call]
        return [client.get_redis_connection(node) for node in nodes]
    return [client]


def info(node: RedisClient, *sections: str) -> dict[str, Any]:
    """Read INFO; empty where a server (fakeredis, a narrow ACL) doesn't give it."""
    try:
        fields: dict[str, Any] = node.info(*sections)
    except redis.ResponseError as exc:
        if str(exc).startswith(("BUSY ", "MASTERDOWN ")):  # it can tell later
            raise
        return {}
    return fields


def max_block_ms(client: RedisClient) -> int:
    """Give the time that a command may block without running into the client's own socket timeout."""
    kwargs = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    return max(1, int((kwargs.get("socket_timeout") or SOCKET_TIMEOUT_SECS) * 500))


def address(source: str | RedisClient) -> str:
    """Describe where a URL or client leads, without passwords."""
    if not isinstance(source, str):
        kwargs = getattr(getattr(source, "connection_pool", None), "connection_kwargs", {})
        return f"{kwargs.get('host', 'server')}:{kwargs.get('port', '')}".rstrip(":")
    scheme, slashes, rest = source.partition("://")
    _, at, place = rest.rpartition("@")  # the last one: a password that was not encoded may hold any character
    return f"{scheme}{slashes}{'***@' if at else ''}{place.partition('?')[0]}"


def tls_error(exc: BaseException) -> ssl.SSLError | None:
    """Find the refusal of a certificate or handshake behind an error; waiting can't change it."""
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return cause
    return None


def is_tls_eof(exc: BaseException) -> bool:
    """The other side closed a TLS connection without a word: it died, or, if we have just come, doesn't want us."""
    return any(isinstance(cause, ssl.SSLEOFError) for cause in _causes(exc))


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _parsed(url: str) -> dict[str, Any]:
    """A URL's options as redis-py takes them; what it would silently leave out is refused."""
    options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise BadConfigError(
            f"{address(url)!r}: {database!r} is no database number: leave it out, or give one, such as 0"
        )
    for name in _TLS_FILES:
        if name in options and not Path(options[name]).is_file():
            raise BadConfigError(f"{address(url)!r}: {name} is {options[name]!r}, and there is no such file")
    return options


def _as_plain(match: re.Match[str]) -> str:
    """Give the URL of the service itself: a Sentinel URL without hosts, service and the sentinels' options."""
    scheme, login, hosts, _, database, query = match.groups()
    own = [(name, value) for name, value in parse_qsl(query or "") if not name.startswith("sentinel_")]
    return f"{scheme}://{login + '@' if login else ''}{hosts.split(',')[0]}/{database or ''}?{urlencode(own)}"


def _through_sentinel(match: re.Match[str], options: dict[str, Any]) -> RedisClient:
    scheme, _, hosts, service, _, query = match.groups()
    options = {name: value for name, value in options.items() if name not in ("host", "port", "connection_class")}
    with_tls = {"ssl": True} if scheme == "rediss" else {}
    sentinel_query = [(name[9:], value) for name, value in parse_qsl(query or "") if name.startswith("sentinel_")]
    of_sentinels = {
        **{name: value for name, value in options.items() if name.startswith("ssl_")},
        **{
            name: value
            for name, value in _parsed(f"redis://host?{urlencode(sentinel_query)}").items()
            if name != "host"
        },
        **with_tls,
        "socket_timeout": _SENTINEL_TIMEOUT_SECS,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_SECS,
        "retry": _no_retry(),
    }
    places = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not all(place.hostname for place in places):
        raise ValueError(hosts)
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(str(place.hostname), place.port or _SENTINEL_PORT) for place in places],
        sentinel_kwargs=of_sentinels,
        **options,
        **with_tls,
    )
    return sentinel.master_for(service)  # type: ignore[no-untyped-call]
