"""An ACL user that may touch one app's keys, with only the commands the library needs."""

import pytest

from acker_redis import Acker, AckerConfig, AuthenticationError
from acker_redis.health import check
from tests.integration.rounds import full_round, take

COMMANDS = (
    # sent by the client
    "ping", "info", "eval", "evalsha", "hgetall", "hget", "hmget", "hlen", "xlen", "xreadgroup", "xautoclaim",
    # called inside the scripts
    "time", "exists", "hset", "hdel", "hincrby", "hscan", "sismember", "sadd", "zadd", "zrange", "zrem", "zcard", "unlink",
    "xadd", "xgroup|create", "xack", "xpending", "xtrim", "xdel",
    # dead letters and kept payloads and run ids
    "xrange", "expire", "set", "get", "bitop", "del",
)  # fmt: skip
"""What a user needs to init, ack, fail, poll, confirm, rotate and look; `+` before each makes it an ACL rule."""

COMMANDS_TO_FIND_APPS = ("scan",)
"""Besides, for `acker-redis apps` and `acker-redis rotator --all`."""

COMMANDS_ON_A_CLUSTER = ("cluster|slots", "command")
"""Besides, on a cluster."""


def key_patterns(app: str) -> list[str]:
    """The keys of one app and of no other."""
    return [f"~acker:{{{app}:*", f"~acker:{{{app}}}:*"]


@pytest.fixture
def login(start_server, plain, kind):
    """Make a user for an app on a server of every kind: returns its URL."""
    server = start_server(kind=kind)

    def make(app: str, commands: tuple[str, ...] = COMMANDS) -> str:
        rules = ["reset", "on", ">secret", *key_patterns(app), *(f"+{command}" for command in commands)]
        plain(server.url).execute_command("ACL", "SETUSER", app, *rules)
        return f"redis://{app}:secret@127.0.0.1:{server.port}/0"

    return make


def test_the_user_of_an_app_can_do_everything_with_it(login, open_acker) -> None:
    url = login("orders")
    full_round(open_acker(url, app="orders", shards=2, lanes=2))
    acker = open_acker(url, app="orders", shards=2, lanes=2)
    acker.init_many([1, 2], [1, 0], 0)
    take(acker, 1, "another-spout")
    with Acker.attach(url, "orders") as attached:
        assert attached.stats().pending == 1
    assert [health.healthy for health in check(url, ["orders"])] == [True]


def test_the_user_of_an_app_can_do_nothing_with_another(login, open_acker) -> None:
    other = open_acker(login("orders-archive"), app="orders-archive")
    other.init(1, 1, 0)
    url = login("orders")
    for app in ("orders-archive", "order", "orders.eu"):
        with pytest.raises(AuthenticationError, match=r"the keys acker:\{APP:\* and acker:\{APP\}:\*"):
            Acker.connect(url, AckerConfig(app=app))
    with pytest.raises(AuthenticationError, match="lacks a permission"):
        Acker.attach(url, "orders-archive")
    assert other.stats().pending == 1


@pytest.mark.parametrize("missing", ["evalsha", "hincrby", "xadd", "bitop", "xgroup|create"])
def test_a_missing_command_is_named(login, open_acker, missing) -> None:
    url = login("orders", tuple(command for command in COMMANDS if command != missing))
    with pytest.raises(AuthenticationError, match=rf"(?i)permission.*({missing.partition('|')[0]}|this command)"):
        acker = open_acker(url, app="orders")
        acker.init(1, 0, 0)
        minted = acker.new_roots(32)
        acker.init_many(minted, minted, 0)
        acker.ack_many(minted, minted)


def test_the_list_of_commands_holds_no_more_than_is_used(start_server, plain, open_acker, kind) -> None:
    server = start_server(kind=kind)
    full_round(open_acker(server.url, shards=1))
    short = open_acker(server.url, app="short", shards=1, message_timeout_secs=0.01)
    short.poll()
    short.poll()  # looks for what was left behind
    stats = plain(server.url).info("commandstats")
    used = {name.removeprefix("cmdstat_") for name in stats}
    assert set(COMMANDS) - used <= {"xgroup|create"}  # Redis 6.2 counts no subcommands
    assert "xgroup|create" in used or "xgroup" in used


def test_finding_apps_needs_scan(login, open_acker) -> None:
    open_acker(login("orders"), app="orders")
    url = login("orders", (*COMMANDS, *COMMANDS_TO_FIND_APPS))
    assert [health.app for health in check(url)] == ["orders"]
