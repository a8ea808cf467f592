"""Findings of doctor, for each thing that is spoilt, with advice."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from acker_redis import Acker, Limits
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.ops.dashboard import app_states
from acker_redis.ops.doctor import Finding, _clocks, _server, examine
from acker_redis.store import run_ends
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.outages import Outage, SetAside
from acker_redis.store.run_ends import End
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.servers import REAL_NAMES, REDIS62


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def found_on(server: Server) -> dict[tuple[str, str], Finding]:
    client = Client(server.url)
    try:
        return {(finding.subject, finding.about): finding for finding in examine(client)}
    finally:
        client.close()


@pytest.fixture
def server(start_server: Callable[..., Server], kind: str) -> Server:
    return start_server("--appendonly", "yes", "--maxmemory", "500mb", kind=kind)


@pytest.fixture
def acker(server: Server, open_acker: Callable[..., Acker]) -> Acker:
    return open_acker(server.url, app="orders")


def test_sound_server_has_no_bad_finding(server: Server, acker: Acker) -> None:
    findings = found_on(server)
    assert {finding.grade for finding in findings.values()} == {"ok", "warning"}
    assert [about for (_, about), finding in findings.items() if finding.grade == "warning"] == ["replicas", "user"]
    assert findings["orders", "settings"].text == "8 shards, 3 buckets, timeout 30 s, 1 lanes, 0 of them in use"
    assert all(finding.advice for finding in findings.values() if finding.grade != "ok")
    assert not any(finding.advice for finding in findings.values() if finding.grade == "ok")
    shown = run("doctor", "--redis", server.url)
    assert shown.exit_code == 0
    assert shown.output.startswith("warning  server: replicas: No replica is connected")
    assert "\n         -> Add two replicas" in shown.output


def spoil_eviction(raw: Any) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")


def spoil_memory(raw: Any) -> None:
    raw.config_set("maxmemory", int(raw.info("memory")["used_memory"] / 0.95))


def spoil_rotation(raw: Any) -> None:
    raw.hset("acker:{orders:1}:meta", "last_rotation_ms", 0)


def spoil_data(raw: Any) -> None:
    raw.delete("acker:{orders:1}:meta")


def spoil_settings(raw: Any) -> None:
    raw.hset("acker:{orders}:config", "lanes", 3)


SPOILT = {
    ("server", "eviction"): (spoil_eviction, "noeviction"),
    ("server", "memory"): (spoil_memory, "raise it"),
    ("orders", "state"): (spoil_rotation, "on-call.md"),
    ("orders", "settings"): (spoil_data, "need the same settings"),
}


@pytest.mark.filterwarnings("ignore::acker_redis.errors.EvictionPolicyWarning")
@pytest.mark.parametrize("of", SPOILT, ids=["-".join(of) for of in SPOILT])
def test_bad_finding_exits_with_status_1(server: Server, acker: Acker, of: tuple[str, str]) -> None:
    spoil, advice = SPOILT[of]
    with redis.Redis.from_url(server.url) as raw:
        spoil(raw)
    finding = found_on(server)[of]
    assert finding.grade == "bad"
    assert advice in finding.advice
    shown = run("doctor", "--redis", server.url, "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.output.splitlines()[0])["grade"] == "bad"


def test_conflicting_settings_are_bad(server: Server, acker: Acker) -> None:
    with redis.Redis.from_url(server.url) as raw:
        spoil_settings(raw)
    assert "other settings than those in its config key" in found_on(server)["orders", "settings"].text


def test_outage_that_a_run_waits_for_is_a_warning(server: Server, acker: Acker) -> None:
    app_of(acker).write_outages("run-1", [Outage("store", 30, 1000.0, 1060.0, "no route")], lane=0)
    with redis.Redis.from_url(server.url) as raw:
        raw.set("acker:{orders}:lane:0", "run-1 host:1")
    finding = found_on(server)["orders", "outage"]
    assert (finding.grade, finding.text) == (
        "warning", "run run-1 waits for 'store' since 1970-01-01T00:16:40Z, with 30 messages: no route",
    )  # fmt: skip
    assert finding.advice


def test_messages_that_a_stream_has_set_aside_are_a_warning(server: Server, acker: Acker) -> None:
    app_of(acker).write_outages("run-1", [], [SetAside("geocode", 1, 1000.0, "KeyError: 'city'")], lane=0)
    with redis.Redis.from_url(server.url) as raw:
        raw.set("acker:{orders}:lane:0", "run-1 host:1")
    finding = found_on(server)["orders", "set aside"]
    assert (finding.grade, finding.text) == (
        "warning",
        "run run-1 has not tried 1 message since 1970-01-01T00:16:40Z, because 'geocode' has processed no other: "
        "KeyError: 'city'",
    )
    assert "restart the stream" in finding.advice


def test_risky_configuration_is_a_warning(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker]
) -> None:
    server = start_server()
    acker = open_acker(server.url, app="orders")
    acker.dead_letters.add([DeadLetter(1, "run", 5, "failed")])
    with redis.Redis.from_url(server.url) as raw:
        raw.set("acker:{no app!}:config", "x")
        raw.config_set("maxmemory", 0)
        assert found_on(server)["server", "persistence"].text == "The AOF is off."
        raw.save()
    findings = found_on(server)
    assert findings["server", "persistence"].text == "The AOF is off. Only snapshots are written."
    warned = {about for (_, about), finding in findings.items() if finding.grade == "warning"}
    assert warned == {"persistence", "memory", "replicas", "dead letters", "keys", "user"}
    acker.admin.pause(reason="moved")
    assert found_on(server)["orders", "state"].grade == "warning"
    assert run("doctor", "--redis", server.url).exit_code == 0


def test_replica_role_is_graded_by_its_link(start_server: Callable[..., Server]) -> None:
    primary = start_server()
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    wait_until(lambda: found_on(replica)["server", "role"].grade == "ok", "the link is up")
    assert found_on(primary)["server", "replicas"].text == "1 connected"
    primary.kill()
    wait_until(lambda: found_on(replica)["server", "role"].grade == "bad", "the link is down")


def test_checks_without_permission_are_unknown(server: Server, acker: Acker) -> None:
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~acker:*", "+@read", "+ping", "+time")
    client = Client(server.url.replace("//", "//narrow:pw@"))
    findings = {finding.about: finding for finding in examine(client)}
    client.close()
    assert (findings["INFO"].grade, findings["reports"].grade, findings["settings"].grade) == (
        "unknown",
        "unknown",
        "ok",
    )
    assert (findings["user"].grade, findings["user"].text) == ("unknown", "The server doesn't report the user's name.")


def test_doctor_of_one_app_says_nothing_of_others(
    server: Server, acker: Acker, open_acker: Callable[..., Acker]
) -> None:
    open_acker(server.url, app="payments")
    shown = run("doctor", "--redis", server.url, "--app", "orders", "--json").output
    assert {json.loads(line)["subject"] for line in shown.splitlines()} == {"server", "orders"}
    missing = run("doctor", "--redis", server.url, "--app", "order")
    assert missing.exit_code != 0 and "'order'" in missing.output


def test_doctor_names_the_error_of_a_failed_run_once(server: Server, acker: Acker) -> None:
    run_ends.write(app_of(acker).client, "orders", 0, End("run-7", 0, "failed", error="no such table"))
    shown = run("doctor", "--redis", server.url).output
    assert shown.count("no such table") == 1 and shown.count("run-7") == 2, shown  # and in the advice


def test_differing_node_clocks_are_a_warning(server: Server, acker: Acker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(server.url)
    (now_ms,) = client.ask(server_info.node_clocks_ms)
    monkeypatch.setattr(server_info, "node_clocks_ms", lambda _: [now_ms, now_ms + 60_000])
    (finding,) = _clocks(client)
    assert (finding.grade, "60.0 s from each other" in finding.text) == ("warning", True)
    client.close()


def test_failed_disk_writes_are_bad() -> None:
    info = {"redis_version": "7.0", "aof_enabled": 1, "aof_last_write_status": "err", "rdb_last_bgsave_status": "err"}
    grades = {finding.about: finding.grade for finding in _server(info, several=False)}
    assert (grades["persistence"], grades["snapshots"]) == ("bad", "bad")


# -- limits


@pytest.mark.parametrize(("pending", "grade"), [(74, "ok"), (75, "warning"), (99, "warning"), (100, "bad")])
def test_pending_roots_near_the_limit_are_graded(server: Server, acker: Acker, pending: int, grade: str) -> None:
    acker.admin.set_limits(Limits(max_pending=100))
    roots = np.arange(1, pending + 1)
    acker.init_many(roots, roots, 0)
    finding = found_on(server)["orders", "limit"]
    assert (finding.grade, finding.text) == (grade, f"{pending} of 100 roots pending ({pending} %)".replace(" %", "%"))
    client = Client(server.url)
    (state,) = app_states(client)
    client.close()
    assert (state.state == "FULL") == (pending == 100)
    assert ("as many as its limit allows" in run("status", "--redis", server.url).output) == (pending == 100)


@pytest.mark.parametrize(("used", "grade"), [(74, "ok"), (75, "warning"), (100, "bad")])
def test_state_near_its_limit_is_graded(server: Server, acker: Acker, used: int, grade: str) -> None:
    assert ("orders", "state limit") not in found_on(server)
    acker.admin.set_limits(Limits(max_state_bytes=100))
    state = app_of(acker).topology_state("words")
    turn = state.turn(state.open({})[0], 1)
    assert turn.commit([turn.write("count:0", "one", {b"k": b"v" * (used - 1)})]) == 0
    finding = found_on(server)["orders", "state limit"]
    assert (finding.grade, finding.text) == (grade, f"{used} of 100 bytes of state of topologies ({used}%)")


def test_app_without_pending_limit_has_no_limit_finding(server: Server, acker: Acker) -> None:
    acker.admin.set_limits(Limits(max_payload_bytes=5))
    assert ("orders", "limit") not in found_on(server)


# -- the user

APP_RULES = ("~acker:{orders}:*", "~acker:{orders:*", "+@all", "-@dangerous", "-@admin", "+info")
ASKABLE = pytest.mark.parametrize("kind", [name for name in REAL_NAMES if name != REDIS62.name])
"""Redis 6.2 can't be asked what a user may do."""

ASKS = ("+acl|whoami", "+acl|getuser", "+acl|dryrun", "+scan")


def found_as(server: Server, *rules: str) -> dict[tuple[str, str], Finding]:
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("ACL", "SETUSER", "somebody", "reset", "on", ">pw", *rules)
    client = Client(server.url.replace("//", "//somebody:pw@"))
    try:
        return {(finding.subject, finding.about): finding for finding in examine(client)}
    finally:
        client.close()


def test_all_powerful_user_is_a_warning(server: Server, acker: Acker) -> None:
    for findings in (found_on(server), found_as(server, "~*", "+@all")):
        assert findings["server", "user"].grade == "warning"
        assert findings["server", "user"].text.endswith("has full access.")
        assert "acker-redis acl" in findings["server", "user"].advice
        assert ("orders", "user") not in findings


def test_user_with_all_commands_on_some_keys_does_not_have_full_access(server: Server, acker: Acker) -> None:
    finding = found_as(server, "~acker:*", "~other:*", "+@all")["server", "user"]
    assert finding.grade in ("warning", "unknown")  # Redis 6.2 can't tell
    assert "full access" not in finding.text


@ASKABLE
def test_app_user_with_the_right_rules_is_ok(server: Server, acker: Acker) -> None:
    findings = found_as(server, *APP_RULES, *ASKS)
    assert (findings["server", "user"].grade, findings["server", "user"].text) == ("ok", "somebody")
    assert (findings["orders", "user"].grade, findings["orders", "user"].text) == (
        "ok", "somebody has the permissions that a program of the app needs",
    )  # fmt: skip


@ASKABLE
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("+flushall", "FLUSHALL"),
        ("+keys", "KEYS *"),
        ("+config", "CONFIG SET"),
        ("~*", "SET on keys that are no app's"),
    ],
)
def test_excess_permission_is_a_warning(server: Server, acker: Acker, more: str, named: str) -> None:
    finding = found_as(server, *APP_RULES, *ASKS, more)["server", "user"]
    assert (finding.grade, finding.text) == ("warning", f"User somebody may run {named}, which no app needs.")


@ASKABLE
def test_missing_permission_is_a_warning(server: Server, acker: Acker) -> None:
    finding = found_as(server, *APP_RULES, *ASKS, "-hincrby", "-fcall", "-evalsha")["orders", "user"]
    assert finding.grade == "warning"
    assert finding.text == "User somebody may not run HINCRBY, FCALL or EVALSHA on the app's keys."
    looks = found_as(server, "%R~acker:*", "+@read", "+eval", "+info", "+time", "+ping", *ASKS)["orders", "user"]
    assert (looks.grade, "HSET, HINCRBY" in looks.text) == ("warning", True)
    assert looks.advice.startswith("This is enough for reading.")


def test_user_without_acl_dryrun_is_unknown(server: Server, acker: Acker) -> None:
    findings = found_as(server, *APP_RULES, "+acl|whoami", "+acl|getuser", "+scan")
    assert (findings["server", "user"].grade, findings["server", "user"].text) == (
        "unknown", "The server doesn't report the permissions of user somebody.",
    )  # fmt: skip
