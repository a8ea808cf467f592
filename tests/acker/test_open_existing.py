"""Looking without writing: replicas, users who may only read, servers that refuse writes, shards that are gone."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis import Acker, LedgerLostError, ServerOutOfMemoryError, ServerRefusesWritesError, SettingsConflictError
from acker_redis.cli import app
from acker_redis.ops.acl import Role
from acker_redis.ops.rotation_check import check
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.users import READS, log_in, rules_for

LETTER = DeadLetter(7, "run", 3, "failed", "parse", "bad", b"a message")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def fill(acker: Acker) -> None:
    """Two roots pending, one acked and not taken, one dead letter."""
    acker.init_many([1, 2, 3], [5, 6, 0], 0)
    acker.ack(2, 1, component="parse")
    acker.dead_letters.add([LETTER])


def look(url: str, name: str = "orders") -> None:
    """Every way to look, by the library and on the command line."""
    with Acker.open_existing(url, name) as acker:
        stats = acker.stats()
        assert (stats.pending, stats.acked, stats.unconfirmed_outcomes) == (2, 1, 1)
        assert stats.oldest_age_ms is not None
        record, gone = acker.inspect_many([2, 9])
        assert record is not None and gone is None
        assert (record.val, record.spout_id, record.last_component) == (6 ^ 1, 0, "parse")
        (letter,) = acker.dead_letters.read()
        assert letter._replace(entry_id="") == LETTER
    assert [(health.app, health.healthy) for health in check(url)] == [(name, True)]
    for command in (
        ("stats", "--app", name),
        ("inspect", "2", "--app", name),
        ("dead-letters", "--app", name),
        ("rotator", "--check", "--app", name),
        ("apps",),
    ):
        result = run(*command, "--redis", url)
        assert (result.exit_code, result.exception) == (0, None), (command, result.output)


def follow(primary: Server, start_server: Callable[..., Server], plain: Callable[..., Any], kind: str) -> Server:
    """A replica that is in step."""
    replica = start_server("--replicaof", "127.0.0.1", str(primary.port), kind=kind)
    wait_until(lambda: plain(replica.url).info("replication")["master_link_status"] == "up", "the replica is in step")
    return replica


def test_replica_can_be_inspected(start_server, plain, open_acker, kind) -> None:
    primary = start_server("--repl-diskless-sync-delay", "0", kind=kind)
    fill(open_acker(primary.url, app="orders", shards=3))
    look(follow(primary, start_server, plain, kind).url)


def test_read_only_user_can_inspect(start_server, plain, open_acker, kind) -> None:
    server = start_server(kind=kind)
    fill(open_acker(server.url, app="orders", shards=3))
    look(log_in(plain(server.url), server.url, Role.ONCALL, rules=rules_for(kind)))


@pytest.mark.parametrize("refusal", ["MISCONF", "NOREPLICAS", "OOM"])
def test_server_refusing_writes_can_be_inspected(
    start_server, plain, open_acker, kind, refusal, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    server = start_server("--dir", str(folder), kind=kind)
    acker = open_acker(server.url, app="orders", shards=3, outage_timeout_secs=0)
    fill(acker)
    raw = plain(server.url)
    if refusal == "MISCONF":
        raw.config_set("save", "3600 1")
        shutil.rmtree(folder)
        raw.bgsave()
        wait_until(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err", "saving has failed")
    elif refusal == "NOREPLICAS":
        raw.config_set("min-replicas-to-write", "1")
    else:
        raw.config_set("maxmemory", "1")
    with pytest.raises((ServerRefusesWritesError, ServerOutOfMemoryError)):
        acker.init(9, 9, 0)
    look(server.url)
    server.kill()  # one that can't save waits to be asked again whether to end


def test_inspection_sends_only_read_commands(start_server, plain, open_acker, kind) -> None:
    server = start_server(kind=kind)
    fill(open_acker(server.url, app="orders", shards=3))
    raw = plain(server.url)
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    raw.config_resetstat()
    look(server.url)
    used = {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}
    assert used - {"config", "config|resetstat", "client", "client|setinfo", "hello", "select"} <= set(READS)
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


def test_check_with_a_lost_shard_fails_and_creates_nothing(source, raw, connect) -> None:
    """A shard whose meta is gone is lost; it once was created again by the check itself, which then reported it as rotated."""
    acker: Acker = connect(app="orders", shards=3)
    fill(acker)
    raw.delete("acker:{orders:1}:meta")
    left = sorted(raw.scan_iter())
    with pytest.raises(
        LedgerLostError, match=r"App 'orders' has lost its data in 1 of 3 shards .*the first is shard 1\)"
    ):
        Acker.open_existing(source, "orders")
    (health,) = check(source)
    assert not health.healthy
    assert "has lost its data in 1 of 3 shards" in health.text
    assert sorted(raw.scan_iter()) == left


def test_command_line_reports_a_lost_shard(url, raw, connect) -> None:
    fill(connect(app="orders", shards=3))
    raw.delete("acker:{orders:1}:meta")
    for command in (("stats",), ("inspect", "1"), ("rotator", "--check")):
        result = run(*command, "--app", "orders", "--redis", url)
        assert result.exit_code == 1, command
        assert "has lost its data in 1 of 3 shards" in result.output
    assert run("dead-letters", "--app", "orders", "--redis", url).exit_code == 0  # they are in none of the shards
    assert not raw.exists("acker:{orders:1}:meta")


def test_shards_with_other_settings_are_a_conflict(source, raw, connect) -> None:
    connect(app="orders", shards=2)
    raw.hset("acker:{orders:1}:meta", "tick_ms", 1)
    with pytest.raises(SettingsConflictError, match="created with other settings"):
        Acker.open_existing(source, "orders")


def test_acker_from_open_existing_can_rotate_and_update(source, connect) -> None:
    connect(app="orders", shards=2, num_buckets=2)
    with Acker.open_existing(source, "orders") as acker:
        acker.init(1, 5, 0)
        acker.ack(1, 4, component="parse")
        assert acker.admin.rotate(force=True).ticked == 2
        assert acker.admin.rotate(force=True).timed_out == 1
        (outcome,) = acker.poll()
        assert (outcome.reason, outcome.last_component) == ("timeout", "parse")
        assert acker.confirm([outcome]) == 1


def test_empty_replica_is_unhealthy(start_server, plain, kind) -> None:
    primary = start_server("--repl-diskless-sync-delay", "0", kind=kind)
    replica = follow(primary, start_server, plain, kind)
    assert run("rotator", "--check", "--all", "--redis", primary.url).exit_code == 0
    result = run("rotator", "--check", "--all", "--redis", replica.url)
    assert result.exit_code == 1
    assert (
        f"is a replica (role slave) of 127.0.0.1:{primary.port}, master_link_status up. It holds no apps."
        in result.output
    )


def test_replica_without_its_primary_is_unhealthy(start_server, plain, open_acker, kind) -> None:
    primary = start_server("--repl-diskless-sync-delay", "0", kind=kind)
    fill(open_acker(primary.url, app="orders"))
    replica = follow(primary, start_server, plain, kind)
    assert [health.healthy for health in check(replica.url)] == [True]
    primary.kill()
    raw = plain(replica.url)
    wait_until(lambda: raw.info("replication")["master_link_status"] == "down", "the link is down")
    for names in (("--all",), ("--app", "orders")):
        result = run("rotator", "--check", *names, "--redis", replica.url)
        assert result.exit_code == 1
        assert "master_link_status down. Its data may be stale." in result.output
        assert "orders: last tick" in result.output
