"""The rotator removes dead letters that are too old."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, Limits
from acker_redis.acker import app_of
from acker_redis.ops import letter_retention
from acker_redis.ops.letter_retention import LetterRetention
from acker_redis.ops.rotator import Rotator
from acker_redis.store.letter_expiry import LETTERS_PER_STEP
from acker_redis.testing import wait_until


def put_old(raw: Any, app: str, count: int, **fields: Any) -> None:
    """Letters that were written in 1970."""
    pipe = raw.pipeline()
    for number in range(1, count + 1):
        letter = {"format": 2, "message_id": number, "attempts": 3, **fields}
        pipe.xadd(f"acker:{{{app}}}:dead_letters", letter, id=f"{number}-1")
    pipe.execute()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over an app's letters is due at once, not after a minute."""
    monkeypatch.setattr(letter_retention, "PASS_SECS", 0.0)


def test_rotator_process_removes_old_letters_and_logs_their_number(
    real_url: str, raw: Any, connect: Callable[..., Acker], start_process: Callable[..., Any]
) -> None:
    acker, other = connect(app="orders"), connect(app="clicks")
    for app in ("orders", "clicks"):
        put_old(raw, app, 2 * LETTERS_PER_STEP)
    acker.admin.set_limits(Limits(dead_letter_days=30))
    process = start_process("rotator", "--redis", real_url)
    wait_until(lambda: acker.dead_letters.count() == 0, "the old letters are removed")
    wait_until(lambda: "expired" in process.log(), "the rotator logs it")
    assert f"dead letters expired app='orders' count={2 * LETTERS_PER_STEP}" in process.log()
    process.popen.terminate()
    assert process.popen.wait(timeout=60) == 0
    assert process.log().count("dead letters") == 1
    assert other.dead_letters.count() == 2 * LETTERS_PER_STEP


def test_each_call_of_the_rotator_takes_one_step_after_the_ticks(
    url: str, raw: Any, connect: Callable[..., Acker]
) -> None:
    """So that no number of letters delays a tick."""
    apps = [connect(app=name, shards=1) for name in ("one", "two")]
    for acker in apps:
        put_old(raw, acker.config.app, 3 * LETTERS_PER_STEP, spout_id=0)
        acker.admin.set_limits(Limits(dead_letter_days=1))
    rotator = Rotator(url)
    counts = [[acker.dead_letters.count() for acker in apps]]
    while sum(counts[-1]):
        pause = rotator.run_once()
        counts.append([acker.dead_letters.count() for acker in apps])
        assert not sum(counts[-1]) or pause == 0
    rotator.close()
    steps = [before - after for before, after in zip(map(sum, counts), map(sum, counts[1:]), strict=False)]
    assert max(steps) <= LETTERS_PER_STEP + 3
    assert all(abs(one - two) <= LETTERS_PER_STEP + 3 for one, two in counts)  # the apps take turns


def test_next_pass_begins_about_a_minute_later(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    acker.admin.set_limits(Limits(dead_letter_days=1))
    client, retention = app_of(acker).client, LetterRetention()
    retention.step(client, ["orders"])
    put_old(raw, "orders", 3)
    for _ in range(5):
        retention.step(client, ["orders"])
    assert acker.dead_letters.count() == 3


@pytest.mark.usefixtures("at_once")
def test_change_of_the_retention_holds_for_the_next_pass(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    put_old(raw, "orders", 3)
    client, retention = app_of(acker).client, LetterRetention()
    retention.step(client, ["orders"])
    assert acker.dead_letters.count() == 3
    acker.admin.set_limits(Limits(dead_letter_days=1))
    while acker.dead_letters.count():
        retention.step(client, ["orders"])


@pytest.mark.usefixtures("at_once")
def test_an_apps_error_is_logged_once_and_stops_neither_ticks_nor_other_apps(
    url: str, raw: Any, connect: Callable[..., Acker], caplog: pytest.LogCaptureFixture
) -> None:
    damaged = connect(app="damaged", num_buckets=2, message_timeout_secs=0.05)
    sound = connect(app="sound", num_buckets=2, message_timeout_secs=0.05)
    raw.hset("acker:{damaged}:limits", "dead_letter_days", "many")
    put_old(raw, "sound", 3)
    sound.admin.set_limits(Limits(dead_letter_days=1))
    roots = np.arange(1, 11)
    damaged.init_many(roots, roots, 0)
    rotator = Rotator(url)
    while sound.dead_letters.count() or damaged.stats().timed_out < len(roots):
        rotator.run_once()
    rotator.close()
    assert caplog.text.count("dead letters not expired app='damaged' error=") == 1


def test_letters_removed_by_an_unfinished_pass_are_logged_at_the_end(
    url: str, raw: Any, connect: Callable[..., Acker], caplog: pytest.LogCaptureFixture
) -> None:
    acker = connect(app="orders")
    acker.admin.set_limits(Limits(dead_letter_days=1))
    put_old(raw, "orders", 3 * LETTERS_PER_STEP)
    rotator = Rotator(url, ["orders"])
    with caplog.at_level(logging.INFO):
        while acker.dead_letters.count() == 3 * LETTERS_PER_STEP:
            rotator.run_once()
        removed = 3 * LETTERS_PER_STEP - acker.dead_letters.count()
        rotator.close()
    assert f"dead letters expired app='orders' count={removed}" in caplog.text
