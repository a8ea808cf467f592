"""A paused app emits nothing until it is resumed, and takes outcomes meanwhile; and the commands for who is on call."""

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import Acker, BadConfigError
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.ops.dashboard import app_states
from acker_redis.spout import loop
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import run_spout
from acker_redis.spout.spout import Spout
from acker_redis.testing import wait_until


def run(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, arguments, input=typed)


class Running:
    """A spout of 30 messages, ten at a time, in a thread; half of an emission fails at first."""

    def __init__(self, acker: Acker) -> None:
        self.acker, self.emitted = acker, 0
        self.spout = Spout(acker, run_id="run", max_spout_pending=10)
        self.spout.add(np.arange(30))
        self.go_on = threading.Event()
        self.thread = threading.Thread(target=lambda: run_spout(self.spout, self.emit))

    def emit(self, emission: Emission) -> None:
        self.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        self.emitted += 1  # what is under way is known to the ledger
        assert self.go_on.wait(60)
        fails = emission.roots[(emission.attempts == 0) & (emission.message_ids % 2 == 0)]
        if len(fails):
            self.acker.fail_many(fails)
        others = np.setdiff1d(emission.roots, fails)
        self.acker.ack_many(others, np.full(len(others), 7))


def test_paused_spout_receives_outcomes_and_emits_nothing(
    source: Any, connect: Callable[..., Acker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PAUSE_SECS", 0.0)
    acker, operator = connect(app="orders"), connect(app="orders")
    running = Running(acker)
    running.thread.start()
    wait_until(lambda: running.emitted == 1, "the first emission is under way")
    assert operator.admin.pause(reason="a store is moved").reason == "a store is moved"
    assert operator.admin.pause(reason="another").reason == "a store is moved"
    paused = operator.admin.paused()
    assert paused is not None and paused.since_ms > 1_700_000_000_000
    running.go_on.set()
    wait_until(
        lambda: operator.stats().pending == 0 and operator.stats().unconfirmed_outcomes == 0, "what is in flight ends"
    )
    steps = running.spout.counts.acked, running.spout.counts.failed
    assert steps == (5, 5)
    assert running.emitted == 1
    assert operator.admin.resume()
    assert not operator.admin.resume()
    running.thread.join(60)
    assert running.spout.counts.acked == 30
    assert running.emitted > 1


def test_run_started_on_a_paused_app_waits_for_resume(
    source: Any, connect: Callable[..., Acker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "PAUSE_SECS", 0.0)
    acker, operator = connect(app="orders"), connect(app="orders")
    operator.admin.pause()
    running = Running(acker)
    running.go_on.set()
    running.thread.start()
    wait_until(lambda: "app paused, emitting nothing app='orders' reason=''" in caplog.text, "it says so")
    assert running.emitted == 0
    operator.admin.resume()
    running.thread.join(60)
    assert running.spout.counts.acked == 30


def test_pause_reason_over_200_characters_is_refused(source: Any, connect: Callable[..., Acker]) -> None:
    with pytest.raises(BadConfigError, match="at most 200"):
        connect(app="orders").admin.pause(reason="x" * 201)


def test_pause_drain_rotate_and_resume_commands_work_together(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    roots = acker.new_roots(10)
    acker.init_many(roots, roots, 0)
    of_app = ("--app", "orders", "--redis", url)
    shown = run("pause", *of_app, "--reason", "moving\x1b[31m")
    assert (shown.exit_code, shown.output) == (0, "orders is paused: moving\\x1b[31m; 10 pending\n")
    client = Client(url)
    (state,) = app_states(client)
    assert (state.state, state.healthy) == ("PAUSED", True)
    client.close()
    shown = run("status", "--redis", url)
    assert (shown.exit_code, "orders PAUSED since" in shown.output, "moving?[31m" in shown.output) == (0, True, True)
    left = run("drain", *of_app, "--timeout", "0.1")
    assert (left.exit_code, "orders is paused: 10 pending" in left.output) == (1, True)
    assert run("rotate", *of_app, "--ticks", "3", typed="n\n").exit_code == 1
    assert acker.stats().pending == 10
    turned = run("rotate", *of_app, "--ticks", "3", "--yes")
    assert "orders: 10 pending, all of them time out" in turned.output
    assert "3 ticks, 10 timed out" in turned.output
    assert run("drain", *of_app, "--timeout", "0.1").exit_code == 1  # nobody takes the outcomes
    acker.confirm(acker.poll())
    assert run("drain", *of_app).exit_code == 0
    assert run("resume", *of_app).output == "orders is resumed\n"
    assert run("resume", *of_app).output == "orders was not paused\n"
    assert json.loads(run("status", *of_app, "--json").output)["state"] == "ok"


@pytest.mark.parametrize("value", ["0 by hand", "by hand"])
def test_pause_key_set_by_hand_pauses_without_a_start_time(
    url: str, raw: Any, connect: Callable[..., Acker], value: str
) -> None:
    acker = connect(app="orders")
    raw.set("acker:{orders}:pause", value)
    assert acker.admin.paused() is not None
    shown = run("status", "--redis", url).output
    assert "orders PAUSED: spouts emit nothing until `acker-redis resume`: by hand" in shown


@pytest.mark.parametrize("command", ["pause", "resume", "drain", "rotate"])
def test_commands_on_a_missing_app_create_no_key(url: str, raw: Any, command: str) -> None:
    assert run(command, "--app", "nobody", "--redis", url).exit_code == 1
    assert raw.dbsize() == 0
