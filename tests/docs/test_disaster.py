"""docs/operate/disaster.md: its commands, in the order of the page, against real servers with a run under way."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import Acker, Spout, run_spout
from acker_redis.spout.in_flight import Emission
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.docs.test_readme import blocks_of
from tests.support.shell import Shell

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "disaster.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
LETTER = DeadLetter(77, "run", 5, "failed", "parse", "no such customer")


def lines_of(section: str) -> list[str]:
    return blocks_of(SECTIONS[section], "sh")


class Run:
    """A spout in a thread: message 0 is held until it is let go, the others are acked at once."""

    def __init__(self, acker: Acker) -> None:
        self.emissions: list[Emission] = []
        self._lock = threading.Lock()  # each root of message 0 is either held or let go
        self._held: list[int] | None = []
        self.acker, self.spout = acker, Spout(acker, "run")
        self.spout.add(np.arange(1000))
        self._thread = threading.Thread(target=lambda: run_spout(self.spout, self._emit))
        self._thread.start()
        wait_until(lambda: bool(self.emissions), "the first emission went out")

    def _emit(self, emission: Emission) -> None:
        self.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        done = emission.roots
        with self._lock:
            if self._held is not None:
                self._held += emission.roots[emission.message_ids == 0].tolist()
                done = emission.roots[emission.message_ids > 0]
        if len(done):
            self.acker.ack_many(done, np.full(len(done), 7))
        self.emissions.append(emission)

    def ends(self) -> None:
        """Every message is acked, and none is a dead letter."""
        with self._lock:
            held, self._held = self._held, None
        for root in held or ():  # where it is still there
            if (record := self.acker.inspect(root)) is not None and record.state == "owned":
                self.acker.ack(root, 7)
        self._thread.join(timeout=180)
        assert (self.spout.done, self.spout.counts.acked, self.spout.counts.dead_lettered) == (True, 1000, 0)


@pytest.fixture
def start_run(open_acker: Callable[..., Acker]) -> Callable[..., Run]:
    """No rotator runs beside it: an hour goes by before a doctor misses one."""
    return lambda url: Run(open_acker(url, app="orders", shards=2, message_timeout_secs=3600))


@pytest.fixture
def daemon(start_server: Callable[..., Server], kind: str) -> Iterator[Server]:
    """A server with an append-only file that the page ends, and starts again as a daemon."""
    server = start_server("--appendonly", "yes", "--appendfsync", "always", kind=kind)
    yield server
    with redis.Redis(port=server.port) as raw:
        raw.shutdown(nosave=True)


def test_every_section_of_the_disaster_docs_is_tested() -> None:
    named = set(re.findall(r"\]\(#([a-z-]+)\)", PAGE))
    assert named == {name.lower().replace(" ", "-") for name in SECTIONS}
    assert [len(lines_of(name)) for name in SECTIONS] == [1, 2, 2, 2, 2]


def test_redis_outage_commands_show_it_and_lose_nothing(
    start_server: Callable[..., Server], start_run: Callable[..., Run], tmp_path: Path
) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    shell, run = Shell(tmp_path, server), start_run(server.url)
    server.kill()
    (look,) = lines_of("Redis does not answer")
    assert "Connection refused" in shell.run(look, status=3)
    server.start()
    run.ends()
    assert run.spout.counts.lost == 0
    assert "AOF" in shell.run(look)


def test_redis_restarted_empty_is_restored_by_the_commands(
    start_server: Callable[..., Server], start_run: Callable[..., Run], plain: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_server()
    shell, run = Shell(tmp_path, server), start_run(server.url)
    look, remember = lines_of("Redis came back empty")
    shell.run(remember)
    plain(server.url).config_set("appendonly", "no")
    run.acker.dead_letters.add([LETTER])
    wait_until(lambda: run.spout.pending == 1, "one message is in flight")
    server.kill()
    server.start()
    wait_until(lambda: run.spout.counts.lost == 1, "the spout has found out")
    assert "orders" in shell.run(look)
    assert run.acker.dead_letters.count() == 0
    assert not plain(server.url).execute_command("FUNCTION", "LIST")
    shell.run(remember)
    assert plain(server.url).execute_command("FUNCTION", "LIST")
    run.ends()


def test_status_of_an_empty_server_shows_no_apps(start_server: Callable[..., Server], tmp_path: Path) -> None:
    shell = Shell(tmp_path, start_server())
    assert "no apps" in shell.run("acker-redis status")


def test_restored_snapshot_brings_back_dead_letters(
    daemon: Server, start_run: Callable[..., Run], tmp_path: Path
) -> None:
    """The snapshot knows the first emission and the letter; what was settled since is pending again."""
    shell, run = Shell(tmp_path, daemon), start_run(daemon.url)
    keep, restore = lines_of("Redis has older data")
    run.acker.dead_letters.add([LETTER])
    shell.run(keep)
    shell.run("redis-cli DEL 'acker:{orders}:dead_letters'")
    run.acker.admin.pause(reason="begun since")
    assert "no such customer" in shell.run(restore)
    assert run.acker.admin.paused() is None
    run.ends()
    shell.run("redis-cli SHUTDOWN NOSAVE; redis-server /etc/redis/redis.conf --appendonly yes --daemonize yes")
    wait_until(daemon.answers, "it is back, from the append-only file that was made")
    assert run.acker.dead_letters.count() == 1


def test_snapshot_is_ignored_beside_an_append_only_file(daemon: Server, tmp_path: Path) -> None:
    """Why the page starts without one."""
    shell = Shell(tmp_path, daemon)
    shell.run("redis-cli SET key value")
    keep, restore = lines_of("Redis has older data")
    shell.run(keep)
    wrong = restore.replace("--appendonly no", "--appendonly yes").split("redis-cli CONFIG")[0]
    shell.run(wrong)
    assert shell.run("redis-cli DBSIZE").strip() == "0"


def test_full_redis_is_freed_by_the_documented_commands(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_server()
    shell, raw = Shell(tmp_path, server), plain(server.url)
    left_over = open_acker(server.url, app="left-over")
    left_over.init_many(np.arange(1, 50_001), np.full(50_000, 7), 0)
    acker = open_acker(server.url, app="orders", shards=2, message_timeout_secs=60)
    acker.dead_letters.add([LETTER])
    raw.config_set("maxmemory", "3mb")
    spout = Spout(acker, "run")
    spout.add(np.arange(1000))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        acker.ack_many(emission.roots, np.full(len(emission.roots), 7))

    thread = threading.Thread(target=lambda: run_spout(spout, emit))
    thread.start()
    give, let_go = lines_of("Redis is full")
    for refused in ("acker-redis pause --app orders", "acker-redis install"):
        assert "above maxmemory" in shell.run(refused, status=3)
    assert "FULL" in shell.run(let_go)
    assert "no such customer" in (tmp_path / "letters.txt").read_text()
    thread.join(timeout=180)
    assert (spout.done, spout.counts.acked) == (True, 1000)
    assert acker.dead_letters.count() == 0
    raw.config_set("maxmemory", "1mb")
    shell.run(give)
    assert raw.config_get("maxmemory")["maxmemory"] == str(2 << 30)
    shell.run("acker-redis pause --app orders")


def test_redis_move_by_replication_keeps_the_run_going(
    start_server: Callable[..., Server],
    start_run: Callable[..., Run],
    start_proxy: Callable[..., Any],
    plain: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The programs know it by a name, which a proxy stands for here."""
    quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
    old, new = start_server(*quick), start_server(*quick)
    shell, name = Shell(tmp_path, old, new), start_proxy(old)
    shell.variables["ACKER_REDIS_URL"] = new.url
    run = start_run(name.url)
    plain(old.url).execute_command("ACL", "SETUSER", "orders", "on", ">secret")
    shell.run(f"acker-redis install --redis {old.url}")
    change, leave = lines_of("Redis moves")
    shell.run(change)
    name.lead_to(new.port)
    assert plain(old.url).role()[0] == b"slave"
    assert plain(new.url).execute_command("FUNCTION", "LIST")
    assert "orders" not in plain(new.url).acl_users()
    run.ends()
    assert "orders" in shell.run(leave)
    assert not old.answers()
