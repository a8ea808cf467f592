"""Several rotators at once, and one that dies half-way: one outcome per root, one tick per due time."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from acker_redis import Acker, AckerConfig
from acker_redis.client.client import Client
from acker_redis.ledger.rotation import Rotation
from acker_redis.model.types import Rotated
from acker_redis.ops.rotator import Rotator
from acker_redis.testing import wait_until
from tests.support.rounds import take

NOTHING_DONE = Rotated(0, 0, 0, 0, 1000)

DIES_WHILE_IT_DRAINS = """
import os, signal, sys, threading
from acker_redis.ledger.rotation import Rotation
from acker_redis.ops.rotator import Rotator

try_rotate = Rotation.try_rotate

def rotate_and_die(self, **options):
    done, failed = try_rotate(self, **options)
    if done.timed_out:
        os.kill(os.getpid(), signal.SIGKILL)
    return done, failed

Rotation.try_rotate = rotate_and_die
Rotator(sys.argv[1], ["test"]).run(threading.Event())
"""
"""A rotator that is killed as soon as some roots have timed out."""


def test_concurrent_forced_ticks_expire_each_root_once(real_url, connect) -> None:
    acker: Acker = connect(shards=2, num_buckets=3)
    roots = np.arange(1, 6_001)

    def rotate() -> int:
        with Acker.connect(real_url, acker.config) as own:
            return sum(own.admin.rotate(force=bool(round_ % 3)).timed_out for round_ in range(30))

    with ThreadPoolExecutor(4) as pool:
        rotators = [pool.submit(rotate) for _ in range(4)]
        for part in np.array_split(roots, 6):
            acker.init_many(part, part, 0)
        counted = sum(rotator.result() for rotator in rotators)
    counted += sum(acker.admin.rotate(force=True).timed_out for _ in range(3))
    assert counted == len(roots)
    assert {outcome.reason for outcome in take(acker, len(roots))} == {"timeout"}
    stats = acker.stats()
    assert (stats.timed_out, stats.pending, stats.unconfirmed_outcomes) == (len(roots), 0, 0)


def test_concurrent_rotators_tick_once_per_due_time(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=1, num_buckets=2, message_timeout_secs=0.05)
    config: AckerConfig = acker.config
    meta = "acker:{test:0}:meta"
    stop = threading.Event()

    def rotate() -> int:
        ticked = 0
        with Acker.connect(real_url, config) as own:
            while not stop.is_set():
                ticked += own.admin.rotate().ticked
        return ticked

    with ThreadPoolExecutor(3) as pool:
        rotators = [pool.submit(rotate) for _ in range(3)]
        try:
            wait_until(lambda: int(raw.hget(meta, "tick")) >= 12, "twelve ticks")
        finally:
            stop.set()
        ticked = sum(rotator.result() for rotator in rotators)
    values = {name: int(value) for name, value in raw.hgetall(meta).items() if name.endswith((b"tick", b"_ms"))}
    assert values[b"tick"] == ticked
    assert values[b"last_rotation_ms"] - values[b"created_ms"] >= ticked * config.tick_ms


def test_rotator_killed_while_draining_is_continued_by_another(url, raw, connect, start_process) -> None:
    acker: Acker = connect(shards=2, num_buckets=2, message_timeout_secs=0.5)
    roots = np.arange(1, 20_001)
    acker.init_many(roots, roots, 0)
    acker.admin.rotate(force=True)
    died = subprocess.run([sys.executable, "-c", DIES_WHILE_IT_DRAINS, url], timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL

    def timed_out() -> int:
        return sum(int(raw.hget(f"acker:{{test:{shard}}}:stats", "timed_out") or 0) for shard in range(2))

    killed_at = timed_out()
    assert 0 < killed_at < len(roots)
    assert acker.stats().pending == len(roots) - killed_at

    start_process("rotator", "--redis", url, "--all")
    wait_until(lambda: timed_out() >= len(roots), "another rotator carries on")
    assert {outcome.reason for outcome in take(acker, len(roots))} == {"timeout"}
    stats = acker.stats()
    assert (stats.timed_out, stats.pending, stats.unowned, stats.unconfirmed_outcomes) == (len(roots), 0, 0, 0)


def test_app_with_many_expired_roots_does_not_delay_another(url, raw, connect, monkeypatch, caplog) -> None:
    monkeypatch.setattr("acker_redis.ops.rotator.DRAIN_CALLS_PER_TURN", 1)
    large: Acker = connect(app="large", shards=1, num_buckets=2, message_timeout_secs=0.05)
    small: Acker = connect(app="small", shards=1, num_buckets=2, message_timeout_secs=0.05)
    roots = np.arange(1, 5_001)
    large.init_many(roots, roots, 0)
    large.admin.rotate(force=True)
    caplog.set_level("INFO", "acker_redis.rotator")
    rotator = Rotator(url)

    def small_ticked() -> bool:
        rotator.run_once()
        return int(raw.hget("acker:{small:0}:meta", "tick")) > 0

    def large_is_drained() -> bool:
        rotator.run_once()
        return large.stats().pending == 0

    wait_until(lambda: small.stats().last_rotation_ms >= 100, "the ticks are due")
    wait_until(small_ticked, "the small app ticks")
    assert large.stats().pending > 0
    wait_until(large_is_drained, "the large app is drained")
    rotator.run_once()
    rotator.close()
    lines = [record.message for record in caplog.records if "timed_out=" in record.message]
    assert len(lines) == 1
    assert "timed_out=5000 orphaned=0" in lines[0]


def test_slowly_drained_bucket_never_receives_new_roots(source, connect, monkeypatch) -> None:
    monkeypatch.setattr("acker_redis.ledger.rotation.MAX_EXPIRE_ROUNDS", 1)
    acker: Acker = connect(shards=1, num_buckets=2)
    old = np.arange(1, 3_001)
    acker.init_many(old, old, 0)
    acker.admin.rotate(force=True)
    done = acker.admin.rotate(force=True)
    assert done.draining == 1
    young = np.arange(10_001, 10_101)
    acker.init_many(young, young, 0)
    drained = done.timed_out
    while done.draining:
        done = acker.admin.rotate(force=True)
        drained += done.timed_out
    assert drained == len(old)
    assert all(record is not None for record in acker.inspect_many(young))
    assert {outcome.root for outcome in take(acker, len(old))} == set(old.tolist())


def test_rotator_gives_apps_turns_of_a_bounded_size(url, connect, monkeypatch) -> None:
    """One that can't keep up (a tick every 2 ms, 500 buckets in each of 64 shards) waits behind the others each time."""
    connect(app="huge", shards=64, num_buckets=500, message_timeout_secs=1)
    connect(app="small", shards=2, num_buckets=2, message_timeout_secs=0.05)
    turns: list[tuple[str, int]] = []
    try_rotate = Rotation.try_rotate

    def noted(self: Rotation, **options: Any) -> Any:
        turns.append((self._shards.config.app, len(options["shards"])))
        return try_rotate(self, **options)

    monkeypatch.setattr(Rotation, "try_rotate", noted)
    rotator = Rotator(url)
    rounds: list[list[tuple[str, int]]] = []
    while sum(("small", 2) in turns for turns in rounds) < 20:
        turns = []
        rotator.run_once()
        rounds.append(turns)
    rotator.close()
    assert all(len({app for app, _ in turns}) == len(turns) for turns in rounds)  # one turn each
    assert {count for turns in rounds for app, count in turns if app == "huge"} == {
        3,
        1,
    }  # 21 times 3, and the last one
    with Acker.open_existing(url, "huge") as huge:
        assert huge.stats(with_oldest_age=False).last_rotation_ms < 60_000


def test_error_of_an_app_does_not_affect_others(url, raw, connect, caplog) -> None:
    sound: Acker = connect(app="sound", shards=1, num_buckets=2, message_timeout_secs=3600)
    connect(app="broken", shards=1, message_timeout_secs=0.01)
    sound.init(1, 1, 0)
    rotator = Rotator(url)
    rotator.run_once()
    raw.hset("acker:{broken:0}:meta", "tick", "no number")

    def errors() -> int:
        return sum("app='broken'" in record.message for record in caplog.records if record.levelname == "ERROR")

    def is_due() -> bool:
        rotator.run_once()
        return errors() > 0

    wait_until(is_due, "the turn of the broken app")
    for _ in range(20):
        rotator.run_once()
        sound.admin.rotate(force=True)
    rotator.close()
    assert sound.stats().timed_out == 1
    assert errors() == 1


def test_rotator_stops_between_the_turns_of_two_apps(url, connect, monkeypatch) -> None:
    for app in ("first", "second", "third"):
        connect(app=app, shards=1)
    stop = threading.Event()
    turns: list[str] = []

    def last_turn(self: Rotation, **options: Any) -> Any:
        turns.append(self._shards.config.app)
        stop.set()
        return NOTHING_DONE, []

    monkeypatch.setattr(Rotation, "try_rotate", last_turn)
    rotator = Rotator(url)
    rotator.run(stop)
    rotator.close()
    assert len(turns) == 1


def test_scan_of_many_foreign_keys_is_spread_over_passes(url, raw, connect, monkeypatch) -> None:
    monkeypatch.setattr("acker_redis.ops.rotator.SCAN_SECS_PER_PASS", 0)
    connect(app="found", shards=1)
    pipe = raw.pipeline(transaction=False)
    for number in range(20_000):
        pipe.set(f"foreign:{number}", "")
    pipe.execute()
    scans: list[int] = []
    scan = Client.scan

    def counted(self: Client, *arguments: Any) -> Any:
        scans[-1] += 1
        return scan(self, *arguments)

    monkeypatch.setattr(Client, "scan", counted)
    rotator = Rotator(url)
    while "found" not in rotator._apps or rotator._scan is not None:
        scans.append(0)
        assert rotator.run_once() >= 0
    rotator.close()
    assert len(scans) >= 10
    assert set(scans) == {1}
