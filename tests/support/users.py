"""ACL users as `acker-redis acl` prints them, made on servers of the tests."""

from typing import Any

from acker_redis.client.client import Client
from acker_redis.ops.acl import Role, ServerKind, users

READS = ("ping", "info", "hgetall", "hmget", "hlen", "xlen", "zrange", "time", "xrange", "scan", "exists")
"""Commands of calls that only look, without reports."""


def rules_for(kind: str) -> ServerKind:
    """Return the rules for a server of a kind of `tests.support.servers`."""
    return ServerKind.SCRIPTS if kind == "redis62" else ServerKind.FUNCTIONS


def log_in(
    raw: Any, url: str, role: Role, app: str | None = "orders", *, rules: ServerKind, without: tuple[str, ...] = ()
) -> str:
    """Make the user of a role, without some commands, and load the functions it needs; returns its URL."""
    if rules is ServerKind.FUNCTIONS:
        client = Client(url)
        client.install()
        client.close()
    (user,) = users(app, roles=[role], kind=rules, password="s3cret")
    for word in without:
        assert f"+{word}" in user.rules
    command = [part for part in user.as_command.split() if part.removeprefix("+") not in without]
    raw.execute_command(*command)
    return url.replace("redis://", f"redis://{user.login}")
