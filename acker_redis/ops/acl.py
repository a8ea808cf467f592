"""ACL users of an app: one for each kind of program, with only the keys and commands that it needs.

Apps are isolated: no user of an app can access the keys of another. Within an app isolation is weaker. An executor runs user
code and may write the shards, as acks do. So it could ack work that isn't done, or delete a shard. It can't receive or
confirm outcomes, delete dead letters, pause the app or hold a lane. If the server distinguishes reads from writes
(`ServerKind.FUNCTIONS`), it can't change the app's settings either.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from acker_redis.errors import BadConfigError
from acker_redis.model import keys
from acker_redis.model.config import check_app_name

_PASSWORD_BYTES = 24


class Role(StrEnum):
    """Purpose of a user: the program with the spout, workers that ack, `acker-redis rotator`, or people who only read."""

    SPOUT = "spout"
    EXECUTOR = "executor"
    ROTATOR = "rotator"
    ONCALL = "oncall"


SHARED_ROLES = (Role.ROTATOR, Role.ONCALL)
"""Roles whose user can serve all apps of a server."""

_ALL_APPS = "acker"
"""Prefix of the names of those users, in place of the app's name."""


class ServerKind(StrEnum):
    """Kind of server that the rules are for."""

    FUNCTIONS = "redis-7"
    SCRIPTS = "redis-6.2"


_GREETING = ("ping", "info", "cluster|slots", "command")
_CALLS = {ServerKind.FUNCTIONS: ("fcall",), ServerKind.SCRIPTS: ("eval", "evalsha")}
_REPORT_CALLS = {ServerKind.FUNCTIONS: ("fcall_ro",), ServerKind.SCRIPTS: ("eval",)}

_UPDATES = (
    "time", "hget", "hmget", "hgetall", "hlen", "hset", "hdel", "hincrby", "sismember", "smismember", "sadd", "zadd", "xadd",
    "set", "get", "del", "bitop",
)  # fmt: skip
"""Commands that init, ack, fail, reset_timeout and name_component call."""

_STATE = ("smembers", "srem", "persist", "pexpire", "hscan", "hstrlen")
"""Further commands that the state of a topology calls."""

_COMMANDS = {
    Role.EXECUTOR: (*_UPDATES, *_STATE, "xrange", "expire"),
    Role.SPOUT: (
        *_UPDATES, *_STATE, "hsetnx", "exists", "zrange", "zrem", "zcard", "unlink", "expire",
        "xlen", "xrange", "xdel", "xtrim", "xack",
        "xpending", "xreadgroup", "xautoclaim", "xgroup|create",
    ),
    Role.ROTATOR: (
        "time", "hget", "hmget", "hgetall", "hlen", "hset", "hdel", "hincrby", "hscan", "zadd", "zcard", "zrange", "zrem",
        "unlink", "xadd", "xlen", "scan",
    ),
    Role.ONCALL: ("@read", "-@dangerous", "time", "scan"),
}  # fmt: skip

_LETTER_COMMANDS = ("time", "xrange", "xdel", "smembers", "zcard", "zscore", "hincrby")
"""Commands that a rotator calls to remove dead letters that are too old."""

_REPORTS = ("xinfo", "memory|usage", "xrevrange", "xrange", "get", "exists", "cluster|nodes")
"""Commands that reports call. `status` and `--metrics` use the reports, too."""


@dataclass(frozen=True)
class User:
    """An ACL user.

    Attributes:
        name: name, such as `orders-executor`, or `acker-rotator` for all apps.
        role: purpose of the user.
        rules: rules after the password, in the order that the server expects.
        password: password, random unless it was given.
    """

    name: str
    role: Role
    rules: tuple[str, ...]
    password: str

    @property
    def as_command(self) -> str:
        """Command for `redis-cli`."""
        return f"ACL SETUSER {self.name} reset {self._behind_the_name}"

    @property
    def as_file_line(self) -> str:
        """Line for the server's `aclfile`."""
        return f"user {self.name} {self._behind_the_name}"

    @property
    def login(self) -> str:
        """User and password for a URL, with the @ before the host."""
        return f"{quote(self.name, safe='')}:{quote(self.password, safe='')}@"

    @property
    def _behind_the_name(self) -> str:
        return " ".join(["on", f">{self.password}", *self.rules])


def users(
    app: str | None = None,
    *,
    roles: Sequence[Role] = tuple(Role),
    kind: ServerKind = ServerKind.FUNCTIONS,
    password: str | None = None,
) -> list[User]:
    """Return a user for each role.

    Args:
        app: app of the users. None means users of all apps, now and later, for `SHARED_ROLES` only.
        roles: roles to return users for.
        kind: kind of the server. If it has functions, no user may EVAL.
        password: password of all users. None draws a random one for each.

    Raises:
        BadConfigError: if the app's name is not valid, or if its users would have the names of the users of all apps.
    """
    if app is not None:
        check_app_name(app)
    if app == _ALL_APPS and not set(roles).isdisjoint(SHARED_ROLES):
        shared = " and ".join(f"{app}-{role}" for role in SHARED_ROLES)
        raise BadConfigError(
            f"{shared} are the names of the users of all apps, which `acker-redis acl` without a name prints. They serve this "
            f"app, too. Print its other two users with `acker-redis acl {app} --role spout --role executor`."
        )
    return [
        User(
            f"{app or _ALL_APPS}-{role}",
            role,
            (*_keys(role, app, kind), *_allowed(role, kind), *_selectors(role, app, kind)),
            secrets.token_hex(_PASSWORD_BYTES) if password is None else password,
        )
        for role in roles
        if app is not None or role in SHARED_ROLES
    ]


def _allowed(role: Role, kind: ServerKind) -> list[str]:
    reports = (*_REPORT_CALLS[kind], *_REPORTS) if role in SHARED_ROLES else ()
    calls = () if role is Role.ONCALL else _CALLS[kind]
    letters = _LETTER_COMMANDS if role is Role.ROTATOR and kind is ServerKind.SCRIPTS else ()
    commands = dict.fromkeys((*_COMMANDS[role], *_GREETING, *calls, *reports, *letters))
    return [command if command.startswith("-") else f"+{command}" for command in commands]


def _selectors(role: Role, app: str | None, kind: ServerKind) -> list[str]:
    """Return further permissions, each for some keys and commands together. Redis 6.2 has none."""
    if role is not Role.ROTATOR or kind is ServerKind.SCRIPTS:
        return []
    name = "*" if app is None else app
    patterns = (
        keys.dead_letters(name), keys.replays(name, "*"), keys.replay_takers(name), keys.expired_letters(name)
    )  # fmt: skip
    rules = (
        *(f"~{pattern}" for pattern in patterns),
        *(f"+{command}" for command in (*_CALLS[kind], *_LETTER_COMMANDS)),
    )
    return [f"({' '.join(rules)})"]


def _keys(role: Role, app: str | None, kind: ServerKind) -> list[str]:
    """Return the patterns of keys. Read-only keys are marked if the server supports it."""
    read = "%R~" if kind is ServerKind.FUNCTIONS else "~"
    if app is None:
        every = f"{read}{keys.EVERY_KEY}"
        return [f"~{keys.EVERY_KEY_OF_SHARDS}", every] if role is Role.ROTATOR else [every]
    of_app, of_shards = keys.patterns_of(app)
    match role:
        case Role.SPOUT:
            return [f"~{of_shards}", f"~{of_app}"]
        case Role.EXECUTOR:
            return [
                f"~{of_shards}", f"~{keys.components(app)}", f"~{keys.payloads(app, '*')}", f"~{keys.turns(app)}",
                f"~{keys.states(app)}",
                f"{read}{keys.config(app)}",
                f"{read}{keys.dead_letters(app)}", f"{read}{keys.unwritten_runs(app)}", f"{read}{keys.limits(app)}",
            ]  # fmt: skip
        case Role.ROTATOR:
            return [f"~{of_shards}", f"{read}{of_app}"]
        case Role.ONCALL:
            return [f"{read}{of_shards}", f"{read}{of_app}"]
