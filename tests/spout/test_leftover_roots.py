"""A run that was killed, interrupted or ended with an error leaves no roots, once the lane's next run is over."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import Acker, AckerError, Spout, run_spout
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.ops.dashboard import app_states
from acker_redis.spout import leftover_roots
from acker_redis.spout.in_flight import Emission
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server

RUN = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1)
import numpy as np
from acker_redis import Acker, Spout, run_spout
url, run_id, spout_id, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if how == "sigterm":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
acker = Acker.connect(url, app="orders", shards=2, lanes=2, message_timeout_secs=60)
spout = Spout(acker, run_id, spout_id)
spout.add(np.arange(1009))
def emit(emission):
    vals = np.full(len(emission.roots), 7)
    acker.init_many(emission.roots, vals, spout_id)
    acker.ack_many(emission.roots[:9], vals[:9])
def progress(busy):
    if how == "error" and spout.counts.acked:
        raise ValueError("the driver's own mistake")
run_spout(spout, emit, progress)
"""


@pytest.fixture
def acker(connect: Callable[..., Acker]) -> Acker:
    return connect(app="orders", shards=2, lanes=2, message_timeout_secs=60)


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(run_id: str, spout_id: int = 0, how: str = "", url: str = "") -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    RUN,
                    url or request.getfixturevalue("real_url" if "real_url" in request.fixturenames else "url"),
                    run_id,
                    str(spout_id),
                    how,
                ],
                stderr=subprocess.PIPE,
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ended(process: "subprocess.Popen[bytes]", secs: float) -> int:
    """The status of a process that ends in time. One that does not tells where its threads are."""
    try:
        return process.wait(secs)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        process.kill()
        assert process.stderr is not None
        raise TimeoutError(f"it goes on after {secs} s: {process.stderr.read().decode()}") from None


def work(acker: Acker, run_id: str, spout_id: int = 0, count: int = 10) -> Spout:
    """A run that does everything at once."""
    spout = Spout(acker, run_id, spout_id)
    spout.add(np.arange(count))
    run_spout(
        spout, lambda emission: acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), spout_id)
    )
    return spout


def left(acker: Acker) -> tuple[int, int]:
    stats = acker.stats(with_oldest_age=False)
    return stats.pending, stats.unconfirmed_outcomes


def doctor(url: str) -> Any:
    return CliRunner().invoke(app, ["doctor", "--redis", url])


def is_healthy(acker: Acker) -> bool:
    """No rotator runs here, which doctor would note after a while."""
    acker.admin.rotate()
    return bool(doctor(str(acker.url)).exit_code == 0)


def in_flight(acker: Acker) -> Callable[[], bool]:
    return lambda: acker.stats(with_oldest_age=False).pending >= 1000


def test_next_run_settles_leftover_roots_of_a_killed_run(
    real_url: str, acker: Acker, start: Callable[..., Any]
) -> None:
    process = start("killed")
    wait_until(in_flight(acker), "its roots are pending")
    process.kill()
    process.wait()
    spout = work(acker, "again")
    assert (spout.counts.emitted, spout.counts.acked) == (10, 10)
    assert left(acker) == (0, 0)
    for _ in range(4):
        acker.admin.rotate(force=True)
    assert left(acker) == (0, 0)
    stats = acker.stats()
    assert stats.timed_out == 0
    assert stats.failed == stats.released > 0, "nothing failed"
    shown = doctor(real_url)
    assert shown.exit_code == 0, shown.output
    assert acker.admin.last_run_ends()[0].state == "finished"


@pytest.mark.parametrize(("number", "how"), [(signal.SIGINT, ""), (signal.SIGTERM, "sigterm")])
def test_interrupted_run_leaves_no_roots(
    real_url: str, acker: Acker, start: Callable[..., Any], number: signal.Signals, how: str
) -> None:
    process = start("interrupted", how=how)
    wait_until(in_flight(acker), "its roots are pending")
    process.send_signal(number)
    assert ended(process, 60) != 0
    assert left(acker) == (0, 0)
    end = acker.admin.last_run_ends()[0]
    assert (end.run_id, end.state, end.is_settled) == ("interrupted", "interrupted", True)
    assert is_healthy(acker)
    assert work(acker, "again").counts.late == 0
    assert is_healthy(acker)


def test_failed_run_leaves_no_roots_and_shows_its_error(real_url: str, acker: Acker, start: Callable[..., Any]) -> None:
    assert start("failed", how="error").wait(60) == 1
    assert left(acker) == (0, 0)
    end = acker.admin.last_run_ends()[0]
    assert (end.run_id, end.state, end.error) == ("failed", "failed", "ValueError: the driver's own mistake")
    acker.admin.rotate()  # no rotator runs here, which would be worse than a failed run after a while
    shown = doctor(real_url)
    assert shown.exit_code == 1
    assert "lane 0: run failed failed, 20" in shown.output and "the driver's own mistake" in shown.output
    shown = CliRunner().invoke(app, ["status", "--redis", real_url, "--app", "orders"])
    assert shown.exit_code == 1
    text = " ".join(shown.output.split())
    assert "orders RUN FAILED since" in text
    assert "run failed ended with ValueError: the driver's own mistake. Fix the cause, and start it again" in text
    assert re.search(
        r"lane 0 0 entries of outcomes wait; polled .* run failed failed at ..:..:..Z with ValueError", text
    )
    acker.admin.rotate()
    (state,) = app_states(app_of(acker).client)
    assert (state.state, state.failed_runs, state.healthy) == ("RUN FAILED", 1, False)
    work(acker, "again")
    assert is_healthy(acker)
    (state,) = app_states(app_of(acker).client)
    assert (state.state, state.failed_runs) == ("ok", 0)


def test_abandoned_failed_run_is_no_longer_shown(url: str, acker: Acker) -> None:
    spout = Spout(acker, "failed")
    spout.add(np.arange(3))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(3, np.int64), 0)

    def progress(busy: bool) -> None:
        raise OSError("\x1b[2J no such folder")

    with pytest.raises(OSError, match="no such folder"):
        run_spout(spout, emit, progress)
    assert doctor(url).exit_code == 1
    shown = CliRunner().invoke(app, ["abandon", "--redis", url, "--app", "orders", "--run", "failed", "--yes"])
    assert shown.exit_code == 0
    assert acker.admin.last_run_ends() == {} and is_healthy(acker)


def test_killed_run_without_a_successor_is_shown_in_status(url: str, acker: Acker, start: Callable[..., Any]) -> None:
    process = start("killed")
    wait_until(in_flight(acker), "its roots are pending")
    process.kill()

    def report() -> str:
        return " ".join(CliRunner().invoke(app, ["status", "--redis", url, "--app", "orders"]).output.split())

    wait_until(
        lambda: "held by nobody; run killed was killed, or its process is cut off" in report(), "the report says so"
    )


@pytest.mark.parametrize("text", [b"x", b"[]", b'{"state": "failed"}', b"{}"])
def test_damaged_run_end_does_not_block_runs(url: str, acker: Acker, raw: Any, text: bytes) -> None:
    raw.hset("acker:{orders}:ends", 0, text)
    raw.hset("acker:{orders}:ends", "x", text)
    assert doctor(url).exit_code in (0, 1)
    assert work(acker, "run").counts.acked == 10
    assert acker.admin.last_run_ends()[0].state == "finished"


def test_leftover_roots_of_another_spout_id_are_settled(url: str, acker: Acker, start: Callable[..., Any]) -> None:
    process = start("killed", spout_id=2)
    wait_until(in_flight(acker), "its roots are pending")
    process.kill()
    process.wait()
    assert work(acker, "again", spout_id=0).counts.acked == 10
    assert left(acker) == (0, 0)


def test_leftover_search_keeps_roots_of_other_lanes_and_programs(url: str, acker: Acker) -> None:
    roots = np.arange(1000, 1100)
    acker.init_many(roots, roots, spout_id=4)  # of lane 0, and of no run that ever had it
    acker.init_many(roots + 1000, roots, spout_id=1)
    work(acker, "run")
    assert left(acker) == (200, 0)


def test_leftover_search_does_not_touch_roots_of_the_current_run(
    url: str, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_roots, "STEP_SECS", 0.0001)  # a step at a time
    old = np.arange(50_000, 60_000)
    acker.init_many(old, old, spout_id=0)
    spout = Spout(acker, "run")
    spout.add(np.arange(5000))
    held: list[Emission] = []

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        held.append(emission)

    def progress(busy: bool) -> None:
        if held and spout.counts.late == len(old):
            roots = held.pop().roots
            acker.ack_many(roots, np.full(len(roots), 7))

    counts = run_spout(spout, emit, progress)
    assert (counts.acked, counts.failed, counts.late) == (5000, 0, 10_000)
    assert left(acker) == (0, 0)


def test_silent_server_does_not_delay_the_end_of_a_run(
    start: Callable[..., Any], start_server: Callable[..., Server], open_acker: Callable[..., Acker]
) -> None:
    server = start_server()
    acker = open_acker(server.url, app="orders", shards=2, lanes=2, message_timeout_secs=60)
    process = start("interrupted", url=server.url)
    wait_until(lambda: acker.stats(with_oldest_age=False).pending == 1000, "its emission has ended")
    os.kill(server.pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    ended(process, leftover_roots.ERROR_SECS + 60)  # while the server says nothing
    os.kill(server.pid, signal.SIGCONT)


def test_run_that_lost_its_lane_keeps_its_successors_roots(
    url: str, acker: Acker, connect: Callable[..., Acker]
) -> None:
    spout = Spout(acker, "still")
    spout.add(np.arange(100))
    other = connect(app="orders", shards=2, lanes=2, message_timeout_secs=60)
    emitted: list[Emission] = []

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        emitted.append(emission)

    def progress(busy: bool) -> None:
        if emitted and not busy:
            key = "acker:{orders}:lane:0"
            app_of(other).client.pipeline([("SET", key, "successor host:1")])
            other.init(77, 7, spout_id=0)
            other.ack(77, 7)
            raise OSError("goes on")

    with pytest.raises(OSError, match="goes on"):
        run_spout(spout, emit, progress)
    assert acker.stats(with_oldest_age=False).pending == 0
    assert acker.admin.last_run_ends()[0].state == "begun"
    kinds = [outcome.kind for outcome in other.poll(max_outcomes=1000, consumer="spout-0", lane=0)]
    assert (kinds.count("ack"), kinds.count("fail")) == (1, 100)


def test_error_before_the_lease_writes_no_run_end(url: str, acker: Acker) -> None:
    lease = app_of(acker).lease(lane=0, run_id="alive")
    lease.acquire()
    with pytest.raises(AckerError, match="in use by another run"):
        work(acker, "second")
    assert acker.admin.last_run_ends() == {}
    lease.release()


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_restored_snapshot_keeps_no_roots_of_a_finished_run(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any], kind: str
) -> None:
    """Restored from a snapshot, it has roots as pending whose messages were acked since, and none of those begun since."""
    server = start_server(kind=kind)
    acker = open_acker(server.url, app="orders", shards=2, lanes=2, message_timeout_secs=60)
    spout = Spout(acker, "run", max_spout_pending=500)
    spout.add(np.arange(1500))
    held: list[Emission] = []
    restored = False

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        held.append(emission)

    def restore() -> None:
        """The server as it was when its first roots were pending."""
        nonlocal restored
        copy = (server.folder / "dump.rdb").read_bytes()
        for batch in held:
            acker.ack_many(batch.roots, np.full(len(batch.roots), 7))
        while spout.counts.acked < 500:
            spout.poll()
        server.kill()
        (server.folder / "dump.rdb").write_bytes(copy)
        server.start()
        restored = True
        held.clear()

    def progress(busy: bool) -> None:
        if busy or not held:
            return
        if not restored:
            plain(server.url).save()
            restore()
            return
        for batch in held:
            acker.ack_many(batch.roots, np.full(len(batch.roots), 7))
        held.clear()

    counts = run_spout(spout, emit, progress)
    assert (counts.acked, counts.dead_lettered) == (1500, 0)
    assert left(acker) == (0, 0)
    for _ in range(4):
        acker.admin.rotate(force=True)
    assert left(acker) == (0, 0)
    assert acker.admin.last_run_ends()[0].is_settled
