"""The users that `acker-redis acl` prints: each may do its work, and nothing else."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from acker_redis import (
    Acker,
    AckerConfig,
    AppNotFoundError,
    AuthenticationError,
    LedgerLostError,
    Limits,
    Spout,
    run_spout,
)
from acker_redis.acker import app_of
from acker_redis.cli import app as program
from acker_redis.client import function_library
from acker_redis.ops.acl import Role, ServerKind, users
from acker_redis.ops.rotation_check import check
from acker_redis.ops.rotator import Rotator
from acker_redis.spout.in_flight import Emission
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.topology_state import Status
from acker_redis.store.turns import Claim
from acker_redis.testing.server import Server
from tests.acker.test_open_existing import fill, look
from tests.support.rounds import full_round, take
from tests.support.servers import REAL_NAMES
from tests.support.users import log_in, rules_for

WAYS = [(kind, way) for kind in REAL_NAMES for way in ServerKind if way is ServerKind.SCRIPTS or rules_for(kind) is way]


@pytest.fixture(params=WAYS, ids=lambda one: "-".join(one))
def way(request: pytest.FixtureRequest) -> tuple[str, ServerKind]:
    """Every kind of server, and both ways to call where it has both."""
    found: tuple[str, ServerKind] = request.param
    return found


@pytest.fixture
def kind(way: tuple[str, ServerKind]) -> str:
    return way[0]


@pytest.fixture
def rules(way: tuple[str, ServerKind]) -> ServerKind:
    return way[1]


@pytest.fixture
def server(start_server: Callable[..., Server], kind: str) -> Server:
    return start_server(kind=kind)


@pytest.fixture
def login(server: Server, plain: Callable[..., Any], rules: ServerKind) -> Callable[..., str]:
    """Make a user of a role for an app; returns its URL."""

    def make(role: Role, app: str | None = "orders", *, without: tuple[str, ...] = ()) -> str:
        return log_in(plain(server.url), server.url, role, app, rules=rules, without=without)

    return make


@pytest.fixture
def refuses(plain: Callable[..., Any]) -> Callable[..., None]:
    """Each of these commands is refused to the user of a URL."""

    def ask(url: str, *commands: tuple[Any, ...]) -> None:
        raw = plain(url)
        for command in commands:
            with pytest.raises(redis.exceptions.NoPermissionError):
                raw.execute_command(*command)

    return ask


def test_spout_user_runs_every_operation_of_its_app(
    login: Callable[..., str], open_acker: Callable[..., Acker]
) -> None:
    url = login(Role.SPOUT)
    full_round(open_acker(url, app="orders", shards=2, lanes=2))
    acker = open_acker(url, app="orders", shards=2, lanes=2)
    acker.init_many([1, 2], [1, 0], 0)
    take(acker, 1, "another-spout")
    acker.admin.pause(reason="a test")
    assert acker.admin.resume()
    with Acker.open_existing(url, "orders") as attached:
        assert attached.stats().pending == 1
    assert [health.healthy for health in check(url, ["orders"])] == [True]


def test_users_claim_and_close_the_turns_of_topologies(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None]
) -> None:
    spout = app_of(open_acker(login(Role.SPOUT), app="orders")).turn("run", 1)
    spout.open()
    url = login(Role.EXECUTOR)
    with Acker.open_existing(url, "orders") as attached:
        executor = app_of(attached).turn("run", 1)
        assert executor.claim(0, b"digest") is Claim.CLAIMED
        executor.sent(0, b"digest")
    spout.keep()
    assert not spout.close()
    refuses(url, ("HSET", "acker:{other}:turn:run:1", "state", "closed"))


def test_users_change_and_commit_the_state_of_topologies(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None]
) -> None:
    driver = app_of(open_acker(login(Role.SPOUT), app="orders")).topology_state("words")
    epoch, _ = driver.open({"count": "shape"})
    url = login(Role.EXECUTOR)
    with Acker.open_existing(url, "orders") as attached:
        state = app_of(attached).topology_state("words")
        unnamed = state.turn(epoch, 1).write("count:0", "one", {b"a": b"1"})
        assert driver.turn(epoch, 1).close()
        named = state.turn(epoch, 2).write("count:0", "two", {b"a": b"2"})
        assert state.turn(epoch, 2).commit([named]) is Status.OPEN
        assert state.turn(epoch, 3).load("count:0") == named.attempt_id != unnamed.attempt_id
        assert state.turn(epoch, 3).read("count:0", [b"a"]) == [b"2"] and state.turn(epoch, 3).count("count:0") == 1
        assert list(state.turn(epoch, 3).read_all("count:0")) == [{b"a": b"2"}]
    refuses(url, ("HSET", "acker:{other}:state:words", "epoch", "7"))


def emit(acker: Acker, emission: Emission) -> None:
    acker.init_many(emission.roots, emission.roots, 0)
    acker.ack_many(emission.roots, emission.roots)


def test_spout_user_finishes_a_run_and_handles_dead_letters(
    login: Callable[..., str], open_acker: Callable[..., Acker]
) -> None:
    acker = open_acker(login(Role.SPOUT), app="orders", shards=2)
    spout = Spout(acker, "run")
    spout.add(np.array([1, 2, 3]))
    run_spout(spout, partial(emit, acker))
    assert spout.counts.acked == 3
    acker.dead_letters.add([DeadLetter(1, "run", 3, "failed", payload=b"1")])
    assert len(list(acker.dead_letters.find())) == 1
    app_of(acker).payloads("run").put([(1, b"row")])
    assert app_of(acker).payloads("run").get([1]) == [b"row"]


@pytest.mark.parametrize("role", [Role.SPOUT, Role.EXECUTOR])
def test_app_user_is_refused_on_another_app(
    login: Callable[..., str], open_acker: Callable[..., Acker], role: Role
) -> None:
    other = open_acker(login(Role.SPOUT, "orders-archive"), app="orders-archive")
    other.init(1, 1, 0)
    url = login(role)
    for app in ("orders-archive", "order", "orders.eu"):
        with pytest.raises(AuthenticationError, match=r"the keys acker:\{APP:\* and acker:\{APP\}:\*"):
            Acker.connect(url, AckerConfig(app=app))
    with pytest.raises(AuthenticationError, match="lacks a permission"):
        Acker.open_existing(url, "orders-archive")
    assert other.stats().pending == 1


def test_executor_user_acks_fails_and_keeps_payloads(
    login: Callable[..., str], open_acker: Callable[..., Acker]
) -> None:
    acker = open_acker(login(Role.SPOUT), app="orders", shards=2)
    acker.init_many([1, 2, 3], [1, 2, 3], 0)
    acker.dead_letters.add([DeadLetter(1, "run", 3, "failed", unwritten=True)])
    with Acker.open_existing(login(Role.EXECUTOR), "orders") as executor:
        executor.ack_many([1], [1], component="price", idempotency_key="partition-0")
        executor.fail(2, reason="no such item", component="a component that is new")
        assert executor.reset_timeout(3)
        app_of(executor).payloads("run").put([(3, b"row")])
        assert [letter.unwritten for letter in executor.dead_letters.read()] == [True]
    assert app_of(acker).output_written("run", 0) == 0
    assert sorted((one.kind, one.root) for one in take(acker, 2)) == [("ack", 1), ("fail", 2)]


def test_executor_user_is_refused_other_commands_and_keys(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None], rules: ServerKind,
    plain: Callable[..., Any],
) -> None:  # fmt: skip
    """Other apps' keys, declared to a script or not; the app's settings, letters and lanes; the server."""
    acker = open_acker(login(Role.SPOUT), app="orders", shards=1)
    other = open_acker(login(Role.SPOUT, "payments"), app="payments", shards=1)
    other.init(1, 1, 0)
    url = login(Role.EXECUTOR)
    refuses(
        url,
        ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", "1"), ("KEYS", "*"), ("SCAN", "0"),
        ("SCRIPT", "KILL"), ("SCRIPT", "FLUSH"), ("SHUTDOWN",), ("CLIENT", "LIST"), ("ACL", "LIST"),
        ("MONITOR",), ("SWAPDB", "0", "1"), ("REPLICAOF", "NO", "ONE"), ("SAVE",),
        ("HGETALL", "acker:{payments}:config"), ("HGETALL", "acker:{payments:0}:ledger"),
        ("HSET", "acker:{payments:0}:meta", "a", 1),
        ("XADD", "acker:{payments:0}:acked:0", "*", "a", "b"), ("DEL", "acker:{payments:0}:ledger"),
        ("DEL", "acker:{orders}:lane:0"), ("SET", "acker:{orders}:pause", "0 held"),
        ("XDEL", "acker:{orders}:dead_letters", "1-1"),
        ("XREADGROUP", "GROUP", "spout", "me", "STREAMS", "acker:{orders:0}:acked:0", ">"),
        ("XACK", "acker:{orders:0}:acked:0", "spout", "1-1"), ("UNLINK", "acker:{orders:0}:ledger"),
    )  # fmt: skip
    if rules is ServerKind.FUNCTIONS:
        refuses(
            url,
            ("EVAL", "return 1", 0),
            ("EVALSHA", "0" * 40, 0),
            ("SCRIPT", "LOAD", "return 1"),
            ("FUNCTION", "FLUSH"),
        )
        refuses(
            url, ("HSET", "acker:{orders}:config", "shards", 9), ("XADD", "acker:{orders}:dead_letters", "*", "a", "b")
        )
        refuses(url, ("FCALL", function_library.library().functions["ack"], 1, "acker:{payments:0}:ledger"))
    else:
        refuses(url, ("EVAL", "return 1", 1, "acker:{payments:0}:ledger"))
        with pytest.raises(redis.ResponseError, match=r"(?i)permission|can't access"):  # a key that it does not declare
            plain(url).eval("return redis.call('HGETALL', 'acker:{payments:0}:ledger')", 0)
    assert (acker.stats().pending, other.stats().pending) == (0, 1)


def test_executor_user_creates_no_app_or_shard(
    login: Callable[..., str], open_acker: Callable[..., Acker], plain: Any, server: Any
) -> None:
    executor = login(Role.EXECUTOR)
    with pytest.raises(AppNotFoundError):
        Acker.open_existing(executor, "orders")
    spout = open_acker(login(Role.SPOUT), app="orders", shards=2)
    with Acker.open_existing(executor, "orders") as attached:
        plain(server.url).flushall()
        with pytest.raises(LedgerLostError):
            attached.ack(1, 1)
        with pytest.raises(LedgerLostError):
            attached.reopen()
        assert spout.reopen() == [0, 1]
        assert attached.reopen() == []
        attached.ack(1, 1)


def test_rotator_user_rotates_and_checks(login: Callable[..., str], open_acker: Callable[..., Acker]) -> None:
    short = open_acker(login(Role.SPOUT), app="orders", shards=2, message_timeout_secs=0.02)
    short.init_many([1, 2], [1, 2], 0)
    short.fail(2)
    for url, names in ((login(Role.ROTATOR), ["orders"]), (login(Role.ROTATOR, None), [])):
        rotator = Rotator(url, names)
        rotator.run_once()
        assert [health.app for health in check(url, names)] == ["orders"]
        rotator.close()
    url = login(Role.ROTATOR)
    rotator = Rotator(url, ["orders"])
    while not short.stats().timed_out:
        rotator.run_once()
    rotator.close()
    with pytest.raises(AuthenticationError), Acker.open_existing(url, "orders") as attached:
        attached.poll()


@pytest.mark.parametrize("app", ["orders", None])
def test_rotator_user_removes_old_letters(
    login: Callable[..., str],
    open_acker: Callable[..., Acker],
    plain: Callable[..., Any],
    server: Server,
    app: str | None,
) -> None:
    """Those with a request stay, so it reads the requests."""
    acker = open_acker(login(Role.SPOUT), app="orders", shards=1)
    acker.admin.set_limits(Limits(dead_letter_days=1))
    raw = plain(server.url)
    for number in (1, 2):
        raw.xadd("acker:{orders}:dead_letters", {"message_id": number, "spout_id": 7}, id=f"{number}-1")
    raw.zadd("acker:{orders}:replay:7", {"1-1": 1})
    rotator = Rotator(login(Role.ROTATOR, app), ["orders"])
    while raw.xlen("acker:{orders}:dead_letters") > 1:
        rotator.run_once()
    rotator.close()
    assert raw.xrange("acker:{orders}:dead_letters")[0][0] == b"1-1"
    assert raw.hgetall("acker:{orders}:expired_letters") == {b"total": b"1"}


def test_rotator_user_of_an_earlier_version_rotates_and_logs_that_letters_stay(
    login: Callable[..., str], open_acker: Callable[..., Acker], plain: Callable[..., Any], server: Server,
    rules: ServerKind, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    acker = open_acker(login(Role.SPOUT), app="orders", shards=2, message_timeout_secs=0.02)
    acker.admin.set_limits(Limits(dead_letter_days=1))
    acker.init_many([1, 2], [1, 2], 0)
    raw, url = plain(server.url), login(Role.ROTATOR)
    raw.xadd("acker:{orders}:dead_letters", {"message_id": 1}, id="1-1")
    raw.execute_command(
        "ACL", "SETUSER", "orders-rotator", *(["-xdel"] if rules is ServerKind.SCRIPTS else ["clearselectors"])
    )
    rotator = Rotator(url, ["orders"])
    while acker.stats().timed_out < 2:
        rotator.run_once()
    rotator.close()
    assert caplog.text.count("dead letters not expired app='orders' error=The user on") == 1
    assert raw.xlen("acker:{orders}:dead_letters") == 1


def test_rotator_user_of_an_app_is_refused_on_another(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None]
) -> None:
    open_acker(login(Role.SPOUT, "payments"), app="payments", shards=1).init(1, 1, 0)
    refuses(
        login(Role.ROTATOR),
        ("HGETALL", "acker:{payments}:config"), ("UNLINK", "acker:{payments:0}:ledger"), ("FLUSHALL",), ("CONFIG", "GET", "*"),
        ("KEYS", "*"), ("SCRIPT", "KILL"), ("DEL", "acker:{orders:0}:meta"),
    )  # fmt: skip


def test_rotator_user_is_denied_updates_polls_and_pauses(
    login: Callable[..., str], open_acker: Callable[..., Acker]
) -> None:
    acker = open_acker(login(Role.SPOUT), app="orders", shards=1)
    acker.init_many([1, 2, 3], [1, 2, 3], 0)
    for app in ("orders", None):
        with Acker.open_existing(login(Role.ROTATOR, app), "orders") as rotator:
            for attempt in (
                partial(rotator.ack, 1, 1), partial(rotator.fail, 2), partial(rotator.init, 4, 1, 0), rotator.poll,
                rotator.admin.pause,
            ):  # fmt: skip
                with pytest.raises(AuthenticationError, match="lacks a permission"):
                    attempt()
    assert acker.stats().pending == 3


def test_rotator_user_of_all_apps_writes_only_shards_and_removes_letters(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None], rules: ServerKind
) -> None:
    if rules is ServerKind.SCRIPTS:  # patterns there can't tell reading from writing, as docs/operate/access.md says
        assert not any("%" in rule for user in users(kind=rules) for rule in user.rules)
        return
    acker = open_acker(login(Role.SPOUT), app="orders", shards=1)
    acker.dead_letters.add([DeadLetter(1, "run", 3, "failed")])
    url = login(Role.ROTATOR, None)
    refuses(
        url,
        ("HSET", "acker:{orders}:config", "shards", 9), ("HSET", "acker:{orders}:limits", "max_pending", 1),
        ("UNLINK", "acker:{orders}:dead_letters"), ("UNLINK", "acker:{orders}:pause"), ("UNLINK", "acker:{orders}:runs"),
        ("XADD", "acker:{orders}:dead_letters", "*", "a", 1), ("ZREM", "acker:{orders}:replay:0", "1-1"),
        ("HSET", "acker:{orders}:components", "a", 1), ("UNLINK", "somebody's"), ("HGETALL", "somebody's"),
    )  # fmt: skip
    with Acker.open_existing(url, "orders") as rotator, pytest.raises(AuthenticationError):
        rotator.admin.set_limits(Limits(max_pending=1))
    assert (acker.admin.limits(), len(acker.dead_letters.read())) == (Limits(), 1)


@pytest.mark.parametrize("app", ["orders", None])
def test_oncall_user_inspects_and_changes_nothing(
    login: Callable[..., str], open_acker: Callable[..., Acker], refuses: Callable[..., None], app: str | None,
    rules: ServerKind,
) -> None:  # fmt: skip
    fill(open_acker(login(Role.SPOUT), app="orders", shards=3))
    url = login(Role.ONCALL, app)
    look(url)
    for command in (("status",), ("doctor",), ("pending", "--app", "orders")):
        result = CliRunner().invoke(program, [*command, "--redis", url])
        assert result.exit_code in (0, 1), result.output
        assert "orders" in result.output
    refuses(
        url,
        ("HSET", "acker:{orders:0}:meta", "tick", 9), ("DEL", "acker:{orders:0}:meta"), ("SET", "acker:{orders}:pause", "0"),
        ("XDEL", "acker:{orders}:dead_letters", "1-1"),
        ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SCRIPT", "KILL"),
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["hincrby", "xadd", "bitop", "xgroup|create"])
def test_missing_command_permission_is_named(
    login: Callable[..., str], open_acker: Callable[..., Acker], missing: str
) -> None:
    url = login(Role.SPOUT, without=(missing,))
    with pytest.raises(AuthenticationError, match=rf"(?i)permission.*({missing.partition('|')[0]}|this command)"):
        acker = open_acker(url, app="orders")
        acker.init(1, 0, 0)
        minted = acker.new_roots(32)
        acker.init_many(minted, minted, 0)
        acker.ack_many(minted, minted)


def test_check_of_all_apps_requires_scan_permission(
    login: Callable[..., str], open_acker: Callable[..., Acker]
) -> None:
    url = login(Role.SPOUT)
    open_acker(url, app="orders")
    with pytest.raises(AuthenticationError, match="scan"):
        check(url)
    assert [health.app for health in check(login(Role.ROTATOR))] == ["orders"]


def test_acl_command_prints_server_commands_and_file_lines(
    start_server: Callable[..., Server], plain: Callable[..., Any], kind: str, rules: ServerKind, tmp_path: Path
) -> None:
    def printed(*arguments: str) -> list[str]:
        result = CliRunner().invoke(program, ["acl", *arguments, "--server", rules])
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout.splitlines()

    file = tmp_path / "users.acl"
    file.write_text(
        "\n".join(["user default on nopass ~* +@all", *printed("orders", "--file"), *printed("--file"), ""])
    )
    server = start_server("--aclfile", str(file), kind=kind)
    raw = plain(server.url)
    names = [f"orders-{role}" for role in Role] + ["acker-rotator", "acker-oncall"]
    assert sorted(one.decode() for one in raw.execute_command("ACL", "USERS")) == sorted(["default", *names])
    before = raw.execute_command("ACL", "LIST")
    for line in [*printed("orders"), *printed()]:
        raw.execute_command(*line.split())
    after = raw.execute_command("ACL", "LIST")
    without_passwords = [[re.sub(rb" (#\w+|sanitize-payload)", b"", one) for one in found] for found in (before, after)]
    assert without_passwords[0] == without_passwords[1]
    assert len({one for one in before if b"#" in one} & set(after)) == 0  # each time others
    (user,) = map(json.loads, printed("orders", "--role", "oncall", "--json"))
    raw.execute_command("ACL", "SETUSER", user["name"], "reset", "on", f">{user['password']}", *user["rules"])
    assert plain(server.url.replace("//", f"//{user['login']}")).ping()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["or:ders"], "Use 1 to 64 letters"),
        (["--role", "spout"], "need the name of an app"),
        (["acker"], "users of all apps"),
        (["acker", "--role", "oncall"], "--role spout --role executor"),
        (["orders", "--role", "executor", "--role", "driver"], "driver"),
        (["orders", "--file", "--json"], "exclude each other"),
        (["orders", "--server", "valkey"], "valkey"),
    ],
)
def test_acl_command_explains_invalid_arguments(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(program, ["acl", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
