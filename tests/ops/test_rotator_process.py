"""`acker-redis rotator` as a process of its own."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from acker_redis import Acker, ConnectionLostError, LedgerLostError
from acker_redis.ops.rotation_check import check
from acker_redis.testing import wait_until
from tests.support.rounds import take
from tests.support.servers import connections

PENDING = np.arange(1, 101)


def times_out(acker: Acker, description: str) -> None:
    """A hundred roots are put in and time out by the work of another process."""
    before = acker.stats().timed_out  # first: they may time out at once
    acker.init_many(PENDING, PENDING, 0)
    wait_until(lambda: acker.stats().timed_out == before + len(PENDING), description)
    assert {outcome.reason for outcome in take(acker, len(PENDING))} == {"timeout"}


def test_named_apps_are_rotated_and_only_effective_ticks_logged(url, connect, start_process) -> None:
    first: Acker = connect(app="first", shards=2, num_buckets=2, message_timeout_secs=0.3)
    second: Acker = connect(app="second", shards=2, num_buckets=2, message_timeout_secs=0.3)
    ignored: Acker = connect(app="ignored", num_buckets=2, message_timeout_secs=0.3)
    ignored.init(1, 1, 0)
    process = start_process("rotator", "--redis", url, "--app", "first", "--app", "second")
    times_out(first, "the first app's roots time out")
    times_out(second, "the second app's roots time out")
    second.ack(5, 5)  # nobody's: it goes silently
    wait_until(lambda: second.stats().orphaned == 1, "the orphan expires")
    assert ignored.stats().pending == 1

    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=60) == 0
    lines = process.log().splitlines()
    assert "rotator started apps=first,second" in lines[0]
    assert "rotator stopped" in lines[-1]
    counts = [re.search(r"expired app='(\w+)' .*timed_out=(\d+) orphaned=(\d+)", line) for line in lines]
    done = [(match[1], int(match[2]), int(match[3])) for match in counts if match]
    for app, timed_out, orphaned in (("first", 100, 0), ("second", 100, 1)):
        assert sum(count for name, count, _ in done if name == app) == timed_out
        assert sum(count for name, _, count in done if name == app) == orphaned
    assert all(timed_out + orphaned > 0 for _, timed_out, orphaned in done)
    assert not any(" ERROR " in line or " WARNING " in line for line in lines)


def test_all_option_also_rotates_an_app_created_later(url, connect, start_process) -> None:
    times = {"num_buckets": 2, "message_timeout_secs": 0.3}
    early: Acker = connect(app="early", **times)
    process = start_process("rotator", "--redis", url, "--all")
    times_out(early, "the early app's roots time out")
    late: Acker = connect(app="late", **times)
    times_out(late, "the late app's roots time out")
    assert "rotating app='late' shards=8 tick_ms=300" in process.log()
    process.popen.send_signal(signal.SIGINT)
    assert process.popen.wait(timeout=60) == 0
    assert "Traceback" not in process.log()


def test_unopenable_apps_do_not_delay_other_apps(url, raw, connect, start_process) -> None:
    connect(app="damaged")
    raw.hset("acker:{damaged}:config", "lanes", "many")
    connect(app="changed", shards=1)
    raw.hset("acker:{changed}:config", "num_buckets", "9")
    sound: Acker = connect(app="sound", num_buckets=2, message_timeout_secs=0.3)
    process = start_process("rotator", "--redis", url, "--app", "damaged", "--app", "changed", "--app", "sound")
    times_out(sound, "the sound app's roots time out")
    assert re.search(r"skipped app='damaged' reason=.*settings", process.log())
    assert re.search(r"skipped app='changed' reason=.*settings", process.log())
    assert "waiting for the server" not in process.log()


def test_two_rotators_of_an_app_tick_once_and_replace_each_other(url, raw, connect, start_process) -> None:
    acker: Acker = connect(shards=1, num_buckets=2, message_timeout_secs=0.2)
    copies = [start_process("rotator", "--redis", url, "--app", "test") for _ in range(2)]
    wait_until(lambda: all("rotating" in copy.log() for copy in copies), "both copies rotate")
    times_out(acker, "the roots time out")
    found = {
        name: int(value)
        for name, value in raw.hgetall("acker:{test:0}:meta").items()
        if name != b"clock" and value.isdigit()
    }
    assert found[b"last_rotation_ms"] - found[b"created_ms"] >= found[b"tick"] * 200
    copies[0].popen.send_signal(signal.SIGKILL)
    acker.confirm(acker.poll())
    times_out_again = np.arange(1_001, 1_051)
    acker.init_many(times_out_again, times_out_again, 0)
    take(acker, 50)
    assert acker.stats().timed_out == 150


def test_rotator_resumes_after_a_server_restart(start_server, open_acker, start_process) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    acker: Acker = open_acker(server.url, shards=2, num_buckets=2, message_timeout_secs=0.3)
    process = start_process("rotator", "--redis", server.url, "--app", "test")
    times_out(acker, "the rotator works")
    server.kill()
    wait_until(lambda: "waiting for the server" in process.log(), "the rotator misses the server")
    server.start()
    wait_until(lambda: "server is back after_secs=" in process.log(), "the rotator finds the server again")
    acker.init_many(PENDING + 1_000, PENDING, 0)
    assert {outcome.reason for outcome in take(acker, len(PENDING))} == {"timeout"}
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=60) == 0
    assert process.log().count("waiting for the server") == 1


def test_rotator_started_without_a_server_waits_for_it(start_server, open_acker, start_process) -> None:
    server = start_server()
    server.kill()
    process = start_process("rotator", "--redis", server.url, "--app", "test")
    wait_until(lambda: "rotator started" in process.log(), "the rotator starts")
    server.start()
    times_out(open_acker(server.url, num_buckets=2, message_timeout_secs=0.3), "the rotator works")


def test_lost_ledger_is_not_recreated_by_the_rotator(url, raw, connect, start_process) -> None:
    acker: Acker = connect(num_buckets=2, message_timeout_secs=0.3)
    process = start_process("rotator", "--redis", url, "--app", "test")
    times_out(acker, "the rotator works")
    raw.flushall()
    wait_until(
        lambda: "app lost, not rotated until it exists again app='test'" in process.log(),
        "the rotator learns of the loss",
    )
    wait_until(lambda: "Its first client creates it" in process.log(), "the rotator looks for the app again")
    assert raw.dbsize() == 0
    with pytest.raises(LedgerLostError):
        acker.poll()
    assert len(acker.reopen()) == 8
    times_out(acker, "the rotator goes on")


def test_frozen_server_does_not_delay_rotator_shutdown(start_server, open_acker, start_process) -> None:
    """Containers are killed after 10 s. Here it takes 3 s, where nothing else runs."""
    server = start_server()
    acker: Acker = open_acker(server.url, shards=2, num_buckets=2, message_timeout_secs=0.3)
    process = start_process("rotator", "--redis", server.url, "--app", "test")
    times_out(acker, "the rotator works")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "waiting for the server" in process.log(), "the rotator misses the server")
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(timeout=60) == 0
        with pytest.raises(ConnectionLostError):
            check(server.url, ["test"])
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_hostile_keys_are_skipped_and_logged_escaped(url, raw, connect, start_process) -> None:
    """A user limited to an app's keys may write them."""
    for name in (b"orders:\xff", b"orders:\x1b[2J", b"orders*"):
        raw.hset(b"acker:{%s}:config" % name, "shards", "8")
    raw.set("acker:{text}:config", "no hash")
    raw.hset("acker:{binary}:config", "shards", b"\xff\xfe")
    acker: Acker = connect(app="sound", num_buckets=2, message_timeout_secs=0.3)
    process = start_process("rotator", "--redis", url, "--all")
    times_out(acker, "the sound app's roots time out")
    log = process.log()
    assert log.count(r"acker:{orders:\\xff}:config' reason=") == 1
    assert log.count(r"acker:{orders:\x1b[2J}:config' reason=") == 1
    assert "\x1b" not in log
    assert re.search(r"skipped app='binary' reason=.*settings", log)
    assert "skipped app='text' reason=" in log
    assert [health.healthy for health in check(url, ["sound"])] == [True]


def test_wrong_usage_exits_with_status_2(start_process) -> None:
    for arguments, words in (
        (("--app", ""), "Name an app"),
        (("--app", "a", "--all"), "--all"),
        (("--redis", "http://127.0.0.1", "--app", "a"), "is not a Redis URL"),
        (("--no-such-option",), "No such option"),
    ):
        process = start_process("rotator", *arguments)
        assert process.popen.wait(timeout=60) == 2
        assert words in process.log()
        assert "Traceback" not in process.log()


def test_stopped_rotator_leaves_no_connection(url, raw, connect, start_process) -> None:
    connect()
    before = connections(raw)
    process = start_process("rotator", "--redis", url, "--all")
    wait_until(lambda: bool(connections(raw) - before), "the rotator connects")
    os.kill(process.popen.pid, signal.SIGTERM)
    assert process.popen.wait(timeout=60) == 0
    wait_until(lambda: connections(raw) <= before, "the rotator's connections are closed")


@pytest.fixture
def buffered(monkeypatch) -> None:
    """Python keeps what it can't write, and tries again at its end, unless images set this."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.mark.usefixtures("buffered")
def test_rotator_continues_when_its_log_is_on_a_full_disk(url, connect, request) -> None:
    acker: Acker = connect(num_buckets=2, message_timeout_secs=0.3)
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen([sys.executable, "-m", "acker_redis", "rotator", "--redis", url], stderr=full)
    request.addfinalizer(process.kill)
    times_out(acker, "the rotator works")
    times_out(acker, "and goes on")
    process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.mark.usefixtures("buffered")
@pytest.mark.parametrize("left", ["nobody reads", "its reader is gone"])
def test_rotator_continues_when_its_log_pipe_is_full_or_closed(left, url, connect, request) -> None:
    acker: Acker = connect(num_buckets=2, message_timeout_secs=0.3)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 512)
    os.set_blocking(writer, True)
    if left == "its reader is gone":
        os.close(reader)
    else:
        request.addfinalizer(lambda: os.close(reader))
    process = subprocess.Popen([sys.executable, "-m", "acker_redis", "rotator", "--redis", url], stderr=writer)
    request.addfinalizer(process.kill)
    os.close(writer)
    times_out(acker, "the rotator works")
    times_out(acker, "and goes on")
    process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.mark.usefixtures("buffered")
def test_unwritable_error_message_keeps_the_exit_status() -> None:
    command = [sys.executable, "-m", "acker_redis", "stats", "--app", "a", "--redis", "redis://127.0.0.1:1"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, timeout=60, check=False).returncode == 3
