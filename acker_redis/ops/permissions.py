"""Permissions of a connection's user, as far as the server reports them. Used by `doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acker_redis.client import server_info
from acker_redis.client.client import SCRIPT_CALLS, Client
from acker_redis.client.replies import as_dict
from acker_redis.client.scripts import Command
from acker_redis.errors import AckerError, ServerUnavailableError
from acker_redis.model import keys
from acker_redis.model.keys import ShardKeys

_DANGEROUS: tuple[Command, ...] = (
    ("FLUSHALL",), ("FLUSHDB",), ("SHUTDOWN",), ("CONFIG", "SET", "maxmemory", "0"), ("KEYS", "*"), ("ACL", "SETUSER", "x"),
)  # fmt: skip
"""Commands that no program of an app needs, and that stop, empty or block the server for all."""

_FOREIGN_KEY = "someone:else"


@dataclass(frozen=True)
class Rights:
    """Permissions of a user.

    Attributes:
        name: name of the user. None if the server did not report it.
        has_all: True if the user may run every command on every key. None if the server did not report it.
        dangerous: names of commands among `_DANGEROUS` that the user may run, and whether it may write keys outside of apps.
            None if the server did not report it: this needs Redis 7 or Valkey, and the permission to ask.
        lacking: names of commands that a program of an app needs and the user may not run on its keys, by app.
    """

    name: str | None = None
    has_all: bool | None = None
    dangerous: tuple[str, ...] | None = None
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)


def rights(client: Client, apps: Sequence[str]) -> Rights:
    """Read the permissions of this connection's user.

    Raises:
        ServerUnavailableError: if the server does not answer.
    """
    user = _asked(client, "WHOAMI")
    if not isinstance(user, bytes):
        return Rights()
    name = user.decode(errors="replace")
    described = _asked(client, "GETUSER", name)
    has_all = None if described is None else _has_all(described)
    if has_all or _may(client, name, ("PING",)) is None:
        return Rights(name, has_all)
    dangerous = [" ".join(map(str, command[:2])) for command in _DANGEROUS if _may(client, name, command)]
    if _may(client, name, ("SET", _FOREIGN_KEY, "x")):
        dangerous.append("SET on keys that are no app's")
    return Rights(name, has_all, tuple(dangerous), {app: _lacking(client, name, app) for app in apps})


def _lacking(client: Client, user: str, app: str) -> tuple[str, ...]:
    """Check some commands of each kind. A program that lacks another command raises an error at its start."""
    shard = ShardKeys(app, 0, 2, 1)
    needed: tuple[Command, ...] = (
        ("HGETALL", keys.config(app)), ("HMGET", shard.meta, "x"), ("HSET", shard.meta, "x", "x"),
        ("HINCRBY", shard.stats, "x", 1), ("ZADD", shard.bucket[0], 1, "x"), ("XADD", shard.acked[0], "*", "x", "x"),
        ("XREADGROUP", "GROUP", keys.GROUP, "x", "STREAMS", shard.acked[0], ">"), ("SET", keys.pause(app), "x"),
    )  # fmt: skip
    lacking = [str(command[0]) for command in needed if not _may(client, user, command)]
    if not any(_may(client, user, (call, "x", 1, shard.meta)) for call in SCRIPT_CALLS):
        lacking.append(" or ".join(SCRIPT_CALLS))
    return tuple(lacking)


def _may(client: Client, user: str, command: Command) -> bool | None:
    """Return True if a user may run a command, or None if the server can't tell."""
    reply = _asked(client, "DRYRUN", user, *command)
    return None if reply is None else reply == b"OK"


def _asked(client: Client, *arguments: str | int | float | bytes) -> object:
    try:
        return client.ask(server_info.acl, *arguments)
    except ServerUnavailableError:
        raise
    except AckerError:
        return None


def _has_all(described: object) -> bool:
    rules: dict[bytes, Any] = dict(as_dict(described))
    flags = rules.get(b"flags") or ()
    if b"allkeys" in flags and b"allcommands" in flags:  # Redis 6.2
        return True
    given: bytes | list[bytes] = rules.get(b"keys") or b""
    patterns = (
        given.split() if isinstance(given, bytes) else [b"~" + key for key in given]
    )  # Redis 6.2 lists them without ~
    return rules.get(b"commands") == b"+@all" and b"~*" in patterns
