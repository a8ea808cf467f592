"""`acker-redis delete-app`: every key of an app goes and none of another's, also when cut short."""

from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis import (
    Acker,
    AppNotFoundError,
    BadConfigError,
    ConnectionLostError,
    DeadLetter,
    LedgerLostError,
    Limits,
)
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.ops import delete_app
from acker_redis.ops.rotator import Rotator

OTHERS = (
    "acker:{orders2:0}:meta",
    "acker:{orders2}:config",
    "acker:{order}:config",
    "acker:{orders.eu:0}:meta",
    "orders",
)
LEFTOVERS = ("acker:{orders:99}:meta", "acker:{orders:0}:bucket:77", "acker:{orders}:payloads:old")


def run(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, arguments, input=typed)


def fill(acker: Acker) -> None:
    """Something in every kind of key."""
    acker.init_many([1, 2, 3, 4, 5], [7, 7, 7, 0, 7], 0)
    acker.fail(5, reason="bad", component="parse")
    acker.dead_letters.add([DeadLetter(9, "run", 3, "failed")] * 2)
    app_of(acker).payloads("run").put([(9, b"a message")])
    acker.admin.set_limits(Limits(max_pending=1000))


def names(raw: Any) -> set[str]:
    return {key.decode() for key in raw.scan_iter()}


def test_delete_app_removes_its_keys_and_no_others(source, raw, connect) -> None:
    fill(connect(app="orders", shards=3, lanes=2))
    for key in (*OTHERS, *LEFTOVERS):
        raw.set(key, "x")
    client = Client(source)
    holdings = delete_app.preview(client, "orders")
    assert holdings.text == (
        f"{raw.dbsize() - len(OTHERS)} keys, with 4 blocks in its ledgers, "
        "2 unconfirmed outcome entries, 2 dead letters, 1 kept messages"
    )
    assert holdings.keys[0] == b"acker:{orders}:config"
    assert {key.decode() for key in holdings.keys[1:5]} == {f"acker:{{orders:{shard}}}:meta" for shard in (0, 1, 2, 99)}
    assert delete_app.delete(client, holdings) == len(holdings.keys)
    assert names(raw) == set(OTHERS)
    with pytest.raises(AppNotFoundError, match="App 'orders' does not exist"):
        delete_app.preview(client, "orders")
    client.close()


@pytest.mark.parametrize("name", ["*", "o*", "[a-z]*", "orders}:x", "orders:0", "ord?rs", "\\orders", ""])
def test_delete_app_refuses_an_invalid_app_name(source, raw, connect, name) -> None:
    connect(app="orders")
    client = Client(source)
    with pytest.raises(BadConfigError, match="Use 1 to 64 letters"):
        delete_app.preview(client, name)
    client.close()


def test_delete_app_makes_running_clients_raise_ledger_lost(source, connect, raw) -> None:
    acker: Acker = connect(app="orders", shards=2)
    rotator = Rotator(source)
    rotator.run_once()
    client = Client(source)
    delete_app.delete(client, delete_app.preview(client, "orders"))
    for call in (lambda: acker.ack(1, 1), acker.poll, acker.stats, lambda: acker.admin.rotate(force=True)):
        with pytest.raises(LedgerLostError):
            call()
    rotator._apps["orders"].due = 0.0
    rotator.run_once()
    rotator.run_once()
    assert raw.dbsize() == 0
    client.close()
    rotator.close()


@pytest.mark.parametrize("after", range(13))
def test_delete_app_cut_short_can_be_repeated(url, raw, connect, monkeypatch, after) -> None:
    fill(connect(app="orders", shards=1))
    assert raw.dbsize() == 13
    sent = 0
    pipeline = Client.pipeline

    def cut(self: Client, commands: Any, **options: Any) -> Any:
        nonlocal sent
        if commands[0][0] == "UNLINK":
            if sent == after:
                raise ConnectionLostError("cut")
            sent += 1
        return pipeline(self, commands, **options)

    monkeypatch.setattr(delete_app, "_PER_PIPELINE", 1)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "pipeline", cut)
        result = run("delete-app", "--app", "orders", "--redis", url, "--yes")
    assert (result.exit_code, raw.dbsize()) == (3, 13 - after)
    assert run("delete-app", "--app", "orders", "--redis", url, "--yes").exit_code == 0
    assert raw.dbsize() == 0


def test_delete_app_asks_for_confirmation(url, raw, connect) -> None:
    fill(connect(app="orders", shards=2))
    before = names(raw)
    for typed in ("n\n", "\n", ""):
        result = run("delete-app", "--app", "orders", "--redis", url, typed=typed)
        assert result.exit_code == 1
        assert "orders on redis://127.0.0.1" in result.output and "4 blocks in its ledgers" in result.output
        assert "Nothing was deleted." in result.stderr
        assert names(raw) == before
    result = run("delete-app", "--app", "orders", "--redis", url, typed="y\n")
    assert result.exit_code == 0
    assert f"{len(before)} keys deleted" in result.output
    assert names(raw) == set()


def test_delete_app_reports_keys_that_came_back(url, raw, connect, monkeypatch) -> None:
    fill(connect(app="orders", shards=2))
    delete = delete_app.delete

    def delete_beside_a_program(client: Client, holdings: Any) -> int:
        deleted = delete(client, holdings)
        raw.hset("acker:{orders}:payloads:run", "1", "x")
        return deleted

    monkeypatch.setattr(delete_app, "delete", delete_beside_a_program)
    result = run("delete-app", "--app", "orders", "--redis", url, "--yes")
    assert result.exit_code == 1
    assert "1 keys came back, because a program of the app still runs. Stop its programs" in result.stderr
