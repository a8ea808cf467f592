"""Queries about servers, for `Client.ask`: version, clock, INFO, ACL, names of keys.

On a cluster each query goes to every primary. Called directly, a query never retries and raises redis-py's errors.
"""

import re
from collections.abc import Sequence
from typing import Any

import redis
from redis.cluster import RedisCluster

from acker_redis.client import connection
from acker_redis.client.connection import DRIVER_ERRORS, RedisClient
from acker_redis.client.error_mapping import code_of, passes
from acker_redis.client.scripts import Argument
from acker_redis.errors import ServerVersionError

_OLDEST_VERSION = (6, 2)
_FIRST_WAITAOF = (7, 2)


def eviction_policies(server: RedisClient, address: str, *, tolerate_gone: bool) -> set[str]:
    """Check the version of each server, and return the eviction policies that may evict ledgers.

    Args:
        server: client of the server or cluster.
        address: address for error messages.
        tolerate_gone: True to accept that nodes of a cluster are gone if another one answers.

    Raises:
        ServerVersionError: a server is older than Redis 6.2.
    """
    policies = set[str]()
    failed: list[Exception] = []
    primaries = connection.primaries(server)
    for node in primaries:
        try:
            _greet(node)
            info = connection.info(node)
        except DRIVER_ERRORS as exc:
            failed.append(exc)
            if not (tolerate_gone and passes(exc) and len(failed) < len(primaries)):
                raise
            continue
        version = str(info.get("redis_version", ""))
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers and numbers < _OLDEST_VERSION:
            raise ServerVersionError(f"{address} runs Redis {version}. Use Redis 6.2 or newer, or Valkey 7.2 or newer.")
        policies.add(info.get("maxmemory_policy", "noeviction"))
    return policies - {"noeviction"}


def infos(server: RedisClient, *sections: str) -> list[dict[str, Any]]:
    """Read INFO of every primary, or of the single server. Empty if refused. No sections means the default ones."""
    return [connection.info(node, *sections) for node in connection.primaries(server)]


def server_ids(server: RedisClient) -> frozenset[tuple[str, str]]:
    """Read run id and replication id of each primary, if INFO has them.

    Changed ids mean that a server was restarted or replaced, and that the last writes may be missing.
    """
    return frozenset(
        (str(info["run_id"]), str(info.get("master_replid", ""))) for info in infos(server) if "run_id" in info
    )


def process_of(server: RedisClient, key: str) -> str:
    """Read the run id of the server that holds a key. Empty if INFO lacks it. A restart or a failover changes it."""
    node = server.get_node_from_key(key).redis_connection if isinstance(server, RedisCluster) else server  # type: ignore[no-untyped-call]
    return str(connection.info(node, "server").get("run_id", ""))


def clocks_ms(server: RedisClient, of_keys: Sequence[str]) -> list[int]:
    """Read the clock of the server that holds each key, in ms. Ages are never computed with a client's clock."""
    if not isinstance(server, RedisCluster):
        return [_milliseconds(server.time())] * len(of_keys)
    holders: list[Any] = [server.get_node_from_key(key) for key in of_keys]  # type: ignore[no-untyped-call]
    nodes = {node.name: node for node in holders}
    now = {name: _milliseconds(server.time(target_nodes=node)) for name, node in nodes.items()}
    return [now[node.name] for node in holders]


def node_clocks_ms(server: RedisClient) -> list[int]:
    """Read the clock of every primary, or of the single server, in milliseconds."""
    return [_milliseconds(node.time()) for node in connection.primaries(server)]


def acl(server: RedisClient, *arguments: Argument) -> Any:
    """Run ACL with these arguments. On a cluster it asks one primary, because all have the same users."""
    return connection.primaries(server)[0].execute_command("ACL", *arguments)


def send_copied(
    server: RedisClient, key: str, commands: Sequence[Sequence[Any]], timeout_ms: int, *, needs_replica: bool
) -> tuple[list[Any], bool, bool]:
    """Send commands to the server of a key, and wait until its earlier writes are copied.

    All goes over one connection, and the last command has to write: WAIT waits for writes of its own connection. With
    replicas the server waits for one of them, and otherwise for its append-only file, if it has one (Redis 7.2).

    Args:
        server: client of the server or cluster.
        key: key whose server is asked.
        commands: commands, of which the last one writes.
        timeout_ms: longest wait, in milliseconds.
        needs_replica: True if a replica was there before, so that its absence doesn't count as a copy.

    Returns:
        The replies; True if the writes are copied, or the server keeps no copies; and True if it has replicas.
    """
    node = server.get_node_from_key(key).redis_connection if isinstance(server, RedisCluster) else server  # type: ignore[no-untyped-call]
    info = connection.info(node, "everything")
    version = tuple(int(part) for part in re.findall(r"\d+", str(info.get("redis_version", "")))[:2])
    has_replicas = needs_replica or int(info.get("connected_slaves", 0)) > 0
    waits: tuple[Any, ...] = ()
    if has_replicas:
        waits = ("WAIT", 1, timeout_ms)
    elif int(info.get("aof_enabled", 0)) and version >= _FIRST_WAITAOF:
        waits = ("WAITAOF", 1, 0, timeout_ms)
    pipe = node.pipeline(transaction=False)
    for command in [*commands, *([waits] if waits else [])]:
        pipe.execute_command(*command)
    replies = pipe.execute()
    copies = replies.pop() if waits else 1
    return replies, (copies[0] if isinstance(copies, list) else copies) >= 1, has_replicas


def find_keys(server: RedisClient, pattern: str) -> list[bytes]:
    """Find the keys that match a pattern, by SCAN, on all nodes of a cluster."""
    return sorted(set(server.scan_iter(match=pattern, count=1000)))


def _greet(node: RedisClient) -> None:
    try:
        node.ping()
    except redis.ResponseError as exc:
        if code_of(exc) != "MISCONF":  # a server that can't persist refuses even PING, and can be read
            raise


def _milliseconds(time: Any) -> int:
    seconds, microseconds = time
    return int(seconds * 1000 + microseconds // 1000)
