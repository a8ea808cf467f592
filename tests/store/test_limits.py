"""The limits of an app: spouts keep to it, Redis refuses what goes beyond, and large messages are not kept."""

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import (
    Acker,
    BadConfigError,
    DamagedDataError,
    DeadLetter,
    LedgerLostError,
    Limits,
    PendingLimitError,
    RetryPolicy,
)
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.ops.rotator import Rotator
from acker_redis.spout import emission_thread, loop
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import run_spout
from acker_redis.spout.spout import Spout
from acker_redis.store.limits import shard_limit
from acker_redis.testing import wait_until

NONE = Limits()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_limits_can_be_set_read_and_removed(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=2)
    assert acker.admin.limits() == NONE
    all_of_them = Limits(max_pending=1000, max_payload_bytes=0, max_state_bytes=10**12, dead_letter_days=0.1)
    acker.admin.set_limits(all_of_them)
    assert acker.admin.limits() == all_of_them
    parts = {int(raw.hget(f"acker:{{orders:{shard}}}:meta", "max_pending")) for shard in range(2)}
    assert parts == {shard_limit(all_of_them, 2)}
    acker.admin.set_limits(NONE)
    assert acker.admin.limits() == NONE
    assert not raw.exists("acker:{orders}:limits")
    assert not any(raw.hexists(f"acker:{{orders:{shard}}}:meta", "max_pending") for shard in range(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pending": 0},
        {"max_pending": True},
        {"max_pending": 1.5},
        {"max_payload_bytes": -1},
        {"max_state_bytes": -1},
        {"dead_letter_days": 0},
        {"dead_letter_days": -0.5},
        {"dead_letter_days": True},
        {"dead_letter_days": float("nan")},
        {"dead_letter_days": 36_501},
        {"dead_letter_days": "7"},
    ],
)
def test_limits_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError, match=next(iter(wrong))):
        Limits(**wrong)


def test_damaged_limits_raise_an_error_naming_the_command(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    raw.hset("acker:{orders}:limits", "max_pending", "many")
    with pytest.raises(DamagedDataError, match="acker-redis limit --app orders"):
        acker.admin.limits()


@pytest.mark.parametrize("shards", [1, 8, 64, 1000])
@pytest.mark.parametrize("most", [1, 100, 1000, 100_000, 3_000_000])
def test_shard_limit_leaves_room_for_uneven_hashing(shards: int, most: int) -> None:
    """A spout at the limit is refused nothing by any shard: whole blocks of 32, spread by the hash."""
    part = shard_limit(Limits(max_pending=most), shards)
    assert part is not None
    blocks = -(-most // 32)
    spread = np.random.default_rng(most + shards).multinomial(blocks, np.full(shards, 1 / shards), size=20)
    assert part >= min(most, spread.max() * 32)
    assert part * shards <= max(2 * most, most + 4000 * shards)


def test_shard_refuses_inits_at_the_limit_and_accepts_below(source: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=1)
    acker.admin.set_limits(Limits(max_pending=100))
    roots = np.arange(1, 101)
    assert acker.init_many(roots, roots, 0).applied == 100
    with pytest.raises(PendingLimitError, match="acker-redis limit --app APP --max-pending N"):
        acker.init(1000, 7, 0)
    assert (acker.pending(), acker.stats().pending, acker.inspect(1000)) == (100, 100, None)
    acker.ack(1, 1)
    acker.fail(2)
    assert acker.init(1000, 7, 0)
    assert connect(app="another", shards=1).init(1, 7, 0)


def test_refused_batch_is_completed_under_its_idempotency_key(source: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=4)
    acker.admin.set_limits(Limits(max_pending=300))
    other = acker.new_roots(300)
    acker.init_many(other, other, 0)
    while True:  # until each shard is full
        more = acker.new_roots(300)
        try:
            acker.init_many(more, more, 0)
        except PendingLimitError:
            break
    roots = acker.new_roots(2000)
    with pytest.raises(PendingLimitError):
        acker.init_many(roots, roots, 0, idempotency_key="batch")
    acker.admin.set_limits(NONE)
    acker.init_many(roots, roots, 0, idempotency_key="batch")
    assert {held.state for held in acker.inspect_many(roots) if held} == {"owned"}
    assert None not in acker.inspect_many(roots)


def test_recovered_shard_keeps_its_part_of_the_limit(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=2)
    allowed = Limits(max_pending=3)
    acker.admin.set_limits(allowed)
    lost = [key for key in raw.scan_iter() if b"{orders:1}" in key]
    raw.delete(*lost)
    with pytest.raises(LedgerLostError):
        acker.admin.pause() and acker.poll()
    assert acker.reopen() == [1]
    assert raw.hget("acker:{orders:1}:meta", "max_pending") == b"3"
    later = connect(app="orders", shards=2)
    assert later.admin.limits() == allowed


# -- spouts


class Running:
    """A spout in a thread whose emissions end when they are let."""

    def __init__(self, acker: Acker, messages: int, **options: Any) -> None:
        self.acker, self.sizes = acker, list[int]()
        self.spout = Spout(acker, run_id="run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0), **options)
        self.spout.add(np.arange(messages))
        self.settles = threading.Event()
        self.thread = threading.Thread(target=lambda: run_spout(self.spout, self.emit))
        self.thread.start()

    def emit(self, emission: Emission) -> None:
        self.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        self.sizes.append(len(emission.roots))
        assert self.settles.wait(60)
        self.acker.ack_many(emission.roots, np.full(len(emission.roots), 7))

    def end(self) -> None:
        self.settles.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LIMIT_SECS", 0.0)


@pytest.mark.usefixtures("looks_at_once")
@pytest.mark.parametrize("max_spout_pending", [None, 1000, 20])
def test_spout_emits_only_up_to_the_remaining_limit(
    source: Any, connect: Callable[..., Acker], max_spout_pending: int | None
) -> None:
    acker, other = connect(app="orders", lanes=2), connect(app="orders", lanes=2)
    other.admin.set_limits(Limits(max_pending=100))
    others = np.arange(1, 71)
    other.init_many(others, others, 1)
    running = Running(acker, 100, max_spout_pending=max_spout_pending)
    wait_until(lambda: bool(running.sizes), "the first emission is under way")
    first = running.sizes[0]
    running.end()
    counts = running.spout.counts
    assert first == min(30, max_spout_pending or 30)
    assert max(running.sizes) <= 30
    assert (counts.acked, counts.emitted, counts.dead_lettered) == (100, 100, 0)


@pytest.mark.usefixtures("looks_at_once")
def test_spout_without_room_logs_once_and_resumes_when_freed(
    source: Any, connect: Callable[..., Acker], caplog: pytest.LogCaptureFixture
) -> None:
    acker, other = connect(app="orders", lanes=2), connect(app="orders", lanes=2)
    other.admin.set_limits(Limits(max_pending=50))
    others = np.arange(1, 51)
    other.init_many(others, others, 1)
    running = Running(acker, 10)
    running.settles.set()
    wait_until(lambda: "limit of pending roots reached" in caplog.text, "it says so")
    assert running.sizes == []
    other.ack_many(others, others)
    running.end()
    assert running.spout.counts.acked == 10
    assert caplog.text.count("limit of pending roots reached") == 1


def test_run_refused_by_the_limit_waits_and_counts_no_attempt(
    source: Any, connect: Callable[..., Acker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with several spouts that took the same room: what looked free is not."""
    monkeypatch.setattr(loop, "LIMIT_SECS", float("inf"))
    monkeypatch.setattr(emission_thread, "BACKOFF_BASE_SECS", 0.01)
    acker, other = connect(app="orders", shards=1, lanes=2), connect(app="orders", shards=1, lanes=2)
    refused = list[int]()
    spout = Spout(acker, run_id="run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    spout.add(np.arange(10))

    def emit(emission: Emission) -> None:
        if not refused:
            other.admin.set_limits(Limits(max_pending=1))
            other.init(99, 7, 1)
        try:
            acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)
        except PendingLimitError:
            refused.append(emission.number)
            if len(refused) == 4:  # three failures end a run
                other.ack(99, 7)
            raise

    counts = run_spout(spout, emit)
    assert (len(refused), counts.acked, counts.dead_lettered) == (4, 10, 0)


# -- payloads


def test_payloads_above_the_limit_are_not_kept(source: Any, connect: Callable[..., Acker]) -> None:
    acker, operator = connect(app="orders"), connect(app="orders")
    kept = app_of(acker).payloads("run")
    kept.put([(1, b"12345"), (2, b"123456")])
    operator.admin.set_limits(Limits(max_payload_bytes=5))
    kept.put([(3, b"12345"), (4, b"123456")])
    assert kept.get([1, 2, 3, 4]) == [b"12345", b"123456", b"12345", None]
    operator.admin.set_limits(Limits(max_payload_bytes=0))
    kept.put([(5, b"1"), (6, b"")])
    assert kept.get([5, 6]) == [None, b""]


def test_dead_letters_above_the_limit_are_kept_without_payload(source: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    acker.admin.set_limits(Limits(max_payload_bytes=5))
    letter = DeadLetter(1, "run", 3, "failed")
    acker.dead_letters.add(
        [
            letter._replace(payload=b"12345", replay="payload"),
            letter._replace(payload=b"123456", replay="payload"),
            letter._replace(payload=b"123456", replay="source"),
            letter,
        ]
    )
    assert [(one.payload, one.replay) for one in acker.dead_letters.read()] == [
        (b"12345", "payload"), (None, None), (None, "source"), (None, None),
    ]  # fmt: skip


# -- apps of a rotator


def with_death_row(connect: Callable[..., Acker], app: str, roots: int) -> Acker:
    """An app of one shard whose roots are all on death row."""
    acker = connect(app=app, shards=1, num_buckets=2, message_timeout_secs=3600)
    ids = np.arange(1, roots + 1)
    acker.init_many(ids, ids, 0)
    acker.admin.rotate(force=True)
    app_of(acker).rotation.rotate(force=True, drain_calls=1)
    return acker


def drained(acker: Acker) -> int:
    return acker.stats(with_oldest_age=False).timed_out


def test_apps_have_equal_parts_of_a_rotator(url: str, connect: Callable[..., Acker]) -> None:
    apps = [with_death_row(connect, name, 10_000) for name in ("one", "two")]
    rotator = Rotator(url)
    while all(one.pending() for one in apps):
        rotator.run_once()
        assert drained(apps[0]) == drained(apps[1])
    rotator.close()


# -- the command


def test_limit_command_sets_given_limits_and_keeps_the_rest(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    of_app = ("--app", "orders", "--redis", url)
    shown = run("limit", *of_app)
    assert (shown.exit_code, shown.output.count("no limit")) == (0, 4)
    assert run("limit", *of_app, "--max-pending", "500").exit_code == 0
    shown = run("limit", *of_app, "--max-payload-bytes", "0", "--json")
    assert json.loads(shown.output) == {
        "app": "orders",
        "max_pending": 500,
        "max_payload_bytes": 0,
        "max_state_bytes": None,
        "dead_letter_days": None,
        "pending": 0,
        "state_bytes": 0,
    }
    assert acker.admin.limits() == Limits(500, 0)
    assert run("limit", *of_app, "--none", "--max-pending", "1").exit_code == 2
    assert run("limit", *of_app, "--max-pending", "0").exit_code == 2
    assert acker.admin.limits() == Limits(500, 0)
    assert run("limit", *of_app, "--none").exit_code == 0
    assert acker.admin.limits() == NONE


def test_limit_command_sets_the_retention_of_letters(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    of_app = ("--app", "orders", "--redis", url)
    shown = run("limit", *of_app, "--dead-letter-days", "0.5")
    assert re.search(r"dead_letter_days +0\.5\n", shown.output)
    assert acker.admin.limits() == Limits(dead_letter_days=0.5)
    refused = run("limit", *of_app, "--dead-letter-days", "0")
    assert refused.exit_code == 2
    assert "error: dead_letter_days=0.0 is out of range. Use a number of days above 0" in refused.output
    assert acker.admin.limits() == Limits(dead_letter_days=0.5)


def test_limit_command_on_a_missing_app_creates_no_key(url: str, raw: Any) -> None:
    assert run("limit", "--app", "nobody", "--redis", url, "--max-pending", "1").exit_code == 1
    assert raw.dbsize() == 0
