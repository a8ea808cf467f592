"""docs/operate/upgrade.md: its commands, against real servers."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, AckerConfig, FormatVersionError
from acker_redis.client import function_library
from acker_redis.ledger.shards import FORMAT as FORMAT_NUMBER
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.rounds import full_round, take
from tests.support.shell import Shell

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "upgrade.md").read_text(encoding="utf-8")
INSTALL, FORMAT, ANEW, REPLACE = (
    re.sub(r"^ +", "", block, flags=re.MULTILINE)
    for block in re.findall(r"^ *```sh\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
)


def test_functions_of_old_and_new_versions_coexist(
    start_server: Callable[..., Server], plain: Callable[..., Any], open_acker: Callable[..., Acker], tmp_path: Path
) -> None:
    server = start_server()
    shell, raw, ours = Shell(tmp_path, server), plain(server.url), function_library.library()
    old = "acker_0123456789ab"
    raw.execute_command(
        "FUNCTION", "LOAD", ours.text.replace(ours.name.removeprefix("acker_"), old.removeprefix("acker_"))
    )
    shown = shell.run(INSTALL)
    assert ours.name in shown and old in shown
    (delete,) = re.findall(r"`(redis-cli FUNCTION DELETE acker_<digest>)`", PAGE)
    shell.run(delete.replace("acker_<digest>", old))
    assert old not in shell.run(INSTALL)
    full_round(open_acker(server.url, app="orders"))


@pytest.fixture
def another_format(
    start_server: Callable[..., Server], plain: Callable[..., Any], open_acker: Callable[..., Acker]
) -> tuple[Server, Acker]:
    """An app of this version, which the next one will find in another form than its own."""
    server = start_server()
    acker = open_acker(server.url, app="orders", shards=2, message_timeout_secs=1)
    acker.dead_letters.add([DeadLetter(77, "run", 5, "failed", "parse", "no such customer")])
    return server, acker


def test_app_of_another_format_is_refused_and_can_be_recreated(
    another_format: tuple[Server, Acker], plain: Callable[..., Any], start_process: Callable[..., Any], tmp_path: Path
) -> None:
    server, acker = another_format
    shell, raw = Shell(tmp_path, server), plain(server.url)
    assert shell.run(FORMAT).strip() == str(FORMAT_NUMBER)
    for shard in (0, 1):
        raw.hset(f"acker:{{orders:{shard}}}:meta", "format", "2")
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    with pytest.raises(FormatVersionError, match="has shards of format 2"):
        Acker.connect(server.url, AckerConfig("orders", shards=2, message_timeout_secs=1))
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before
    for shard in (0, 1):  # the old version, which knows its own form, lets it run dry
        raw.hset(f"acker:{{orders:{shard}}}:meta", "format", FORMAT_NUMBER)
    acker.init_many([1, 2], [7, 7], 0)
    rotator = start_process("rotator", "--redis", server.url, "--app", "orders")
    wait_until(lambda: "rotating" in rotator.log(), "roots time out")
    spout = threading.Thread(target=take, args=(acker, 2))
    spout.start()
    shell.run(ANEW)
    spout.join(timeout=120)
    assert "no such customer" in (tmp_path / "letters.json").read_text()
    assert raw.dbsize() == 0
    with Acker.connect(server.url, AckerConfig("orders", shards=4)) as new:
        assert new.admin.paused() is None
        full_round(new)


@pytest.mark.parametrize("kinds", [("redis62", "redis7"), ("redis7", "valkey")], ids="-".join)
def test_newer_server_takes_over_by_replication(
    start_server: Callable[..., Server],
    open_acker: Callable[..., Acker],
    plain: Callable[..., Any],
    tmp_path: Path,
    kinds: tuple[str, str],
) -> None:
    quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
    old, new = (start_server(*quick, kind=kind) for kind in kinds)
    shell = Shell(tmp_path, old, new)
    roots = np.arange(1, 2_001)
    open_acker(old.url, app="orders", shards=2).init_many(roots, roots, 0)
    if kinds[0] != "redis62":
        shell.run(INSTALL)
    shell.run(REPLACE)
    assert not old.answers()
    acker = open_acker(new.url, app="orders", shards=2)
    acker.ack_many(roots, roots)
    assert len(take(acker, 2_000)) == 2_000
    assert bool(plain(new.url).execute_command("FUNCTION", "LIST")) == (kinds[0] != "redis62")
    shell.variables["ACKER_REDIS_URL"] = new.url
    shell.run("acker-redis install")


def test_older_server_cannot_replicate_a_newer_server(
    start_server: Callable[..., Server], plain: Callable[..., Any], open_acker: Callable[..., Acker]
) -> None:
    """Why the page ends the old server."""
    new, old = start_server(kind="valkey"), start_server(kind="redis62")
    open_acker(new.url, app="orders")
    plain(old.url).replicaof("127.0.0.1", str(new.port))
    log = old.folder / "server.log"
    wait_until(lambda: "Can't handle RDB format version" in log.read_text(), "the old server gives up")
