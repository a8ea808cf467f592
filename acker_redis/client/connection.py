"""The only place where Redis connections are made, from URLs or redis-py clients.

URLs: `redis://`, `rediss://` (TLS), `unix://`, and through Sentinel `redis+sentinel://h1:26379,h2/service/db` or
`rediss+sentinel://`. The clients made here never retry. `client.Client` does, in one place.
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
"""Errors that redis-py raises."""

SOCKET_TIMEOUT_SECS = 5.0
"""Time after which a silent server counts as lost: a frozen machine, a cut cable."""

SHORT_SOCKET_TIMEOUT_SECS = 1.5
"""Socket timeout for callers that can't wait."""

_SENTINEL_TIMEOUT_SECS = 1.0
_SENTINEL_PORT = 26379
_SENTINEL_URL = re.compile(r"(rediss?)\+sentinel://(?:(.*)@)?([^/?@]+)/([^/?]+)(?:/([^/?]*))?(?:\?(.*))?")
_FORM = (
    "Use redis://[[user]:password@]host[:port][/db], rediss:// for TLS, unix://path, or "
    "redis+sentinel://[[user]:password@]host[:port],host[:port]/service[/db]. Percent-encode special characters of the "
    "password."
)
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def connect_single(url: str, *, socket_timeout_secs: float) -> RedisClient:
    """Make a client for a server, or for the primary of a service behind Sentinels. Sends nothing yet.

    Raises:
        BadConfigError: the URL is malformed, or names a missing file. The text holds no password.
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
        raise BadConfigError(f"{address(url)!r} is not a Redis URL. {_FORM}") from None


def connect_cluster(url: str, *, socket_timeout_secs: float) -> RedisCluster:
    """Connect to the whole cluster of the node at this URL. The node lists the others."""
    return RedisCluster.from_url(
        url, retry=_no_retry(), socket_timeout=socket_timeout_secs, socket_connect_timeout=socket_timeout_secs
    )


def close(client: RedisClient) -> None:
    """Close a client made here, including its Sentinel clients and its connections to the nodes of a cluster."""
    if isinstance(client, RedisCluster):
        client.disconnect_connection_pools()  # type: ignore[no-untyped-call]  # redis-py leaves them open if made from a URL
    client.close()
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinel is not None:
        sentinel.close()


def greet_sentinels(client: RedisClient) -> None:
    """Check that one of the client's Sentinels answers. redis-py hides the reason if none does.

    Raises:
        redis.RedisError: no Sentinel answers. If one refuses the login or the handshake, this is its error.
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
    """Close unused connections, so that the next ones resolve the address again, and no reply of an earlier use waits."""
    for node in primaries(client):
        pool = getattr(node, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)


def primaries(client: RedisClient) -> list[RedisClient]:
    """Return a client for each primary. A single server has one."""
    if isinstance(client, RedisCluster):
        nodes: list[Any] = client.get_primaries()  # type: ignore[no-untyped-call]
        return [client.get_redis_connection(node) for node in nodes]
    return [client]


def info(node: RedisClient, *sections: str) -> dict[str, Any]:
    """Read INFO. Returns an empty dict if the server refuses it (fakeredis, a narrow ACL)."""
    try:
        fields: dict[str, Any] = node.info(*sections)
    except redis.ResponseError as exc:
        if str(exc).startswith(("BUSY ", "MASTERDOWN ")):  # it can tell later
            raise
        return {}
    return fields


def max_block_ms(client: RedisClient) -> int:
    """Compute how long a command may block within the client's socket timeout, in milliseconds."""
    kwargs = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    return max(1, int((kwargs.get("socket_timeout") or SOCKET_TIMEOUT_SECS) * 500))


def address(source: str | RedisClient) -> str:
    """Describe the address of a URL or client, without passwords."""
    if not isinstance(source, str):
        kwargs = getattr(getattr(source, "connection_pool", None), "connection_kwargs", {})
        return f"{kwargs.get('host', 'server')}:{kwargs.get('port', '')}".rstrip(":")
    scheme, slashes, rest = source.partition("://")
    _, at, place = rest.rpartition("@")  # the last one: a password that was not encoded may hold any character
    return f"{scheme}{slashes}{'***@' if at else ''}{place.partition('?')[0]}"


def tls_error(exc: BaseException) -> ssl.SSLError | None:
    """Find the refused certificate or handshake behind an error, which no retry can fix."""
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return cause
    return None


def is_tls_eof(exc: BaseException) -> bool:
    """Return True if the server closed a TLS connection silently: it died, or refused a new client."""
    return any(isinstance(cause, ssl.SSLEOFError) for cause in _causes(exc))


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _parsed(url: str) -> dict[str, Any]:
    """Parse a URL's options for redis-py. Raises for values that redis-py would silently ignore."""
    options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise BadConfigError(
            f"{address(url)!r} has the database {database!r}, which is not a number. Omit it, or use a number such as 0."
        )
    for name in _TLS_FILES:
        if name in options and not Path(options[name]).is_file():
            raise BadConfigError(
                f"{name} of {address(url)!r} is {options[name]!r}, but that file does not exist. Correct the path."
            )
    return options


def _as_plain(match: re.Match[str]) -> str:
    """Build the URL of the service: a Sentinel URL without hosts, service and the Sentinels' options."""
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
