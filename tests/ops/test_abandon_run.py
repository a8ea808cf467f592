"""Roots that a dead run left pending are abandoned: in its lanes and in no other, and not while a spout has them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig, BadConfigError, DamagedDataError, Spout, run_spout
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.ops import abandon_run
from acker_redis.spout.in_flight import Emission
from acker_redis.testing import wait_until

CONFIG = AckerConfig(app="orders", shards=3, lanes=2)
BLOCKS, ALONE = np.arange(64, dtype=np.int64) << 59 | 5, np.arange(1000, 1500)


def run(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, arguments, input=typed)


@pytest.fixture
def acker(connect: Callable[..., Acker]) -> Acker:
    return connect(app="orders", shards=3, lanes=2)


@pytest.fixture
def client(source: Any) -> Iterator[Client]:
    client = Client(source)
    yield client
    client.close()


def die(acker: Acker, run_id: str, spout_id: int = 0) -> None:
    """As a run that took its lane, and whose hold has run out."""
    lease = app_of(acker).lease(lane=spout_id % 2, run_id=run_id)
    lease.acquire()
    lease.release()


def leave(acker: Acker, run_id: str, roots: Any, spout_id: int = 0) -> None:
    """What a run leaves behind: roots in every state, and outcomes that its spout took and did not confirm."""
    acker.init_many(roots, np.full(len(roots), 7), spout_id)
    acker.ack_many(roots[:5], np.full(5, 7))
    acker.fail_many(roots[5:10])
    assert acker.poll(consumer=f"spout-{spout_id}", lane=spout_id % 2)
    acker.ack(2**40 + spout_id, 7)  # waits for its init
    acker.fail(2**41 + spout_id)
    acker.ack_many(roots[10:12], np.full(2, 7))
    die(acker, run_id, spout_id)


def test_abandon_fails_the_roots_of_the_dead_run_only(client: Client, acker: Acker, raw: Any) -> None:
    mine = np.unique(np.concatenate([BLOCKS[:32], ALONE]))
    leave(acker, "dead run 1", mine)
    others = np.arange(5000, 5100)
    leave(acker, "other", others, spout_id=1)
    left = abandon_run.preview(client, CONFIG, "dead run 1")
    assert (left.lanes, left.held, left.spout_ids) == ((0,), {}, {0: len(mine) - 12})
    assert set(left.roots.tolist()) == set(mine.tolist()) - set(mine[:12].tolist())
    details = list[bytes]()

    def look(count: int) -> None:
        for shard in range(3):
            details.extend(
                fields[b"detail"]
                for _, fields in raw.xrange(f"acker:{{orders:{shard}}}:failed:0")
                if b"detail" in fields
            )

    assert abandon_run.abandon(client, CONFIG, left, look) == len(left.roots)
    assert details == [b"abandoned by the person on call"] * len(left.roots)
    stats = acker.stats(lane=0)
    assert (stats.pending, stats.unconfirmed_outcomes) == (len(others) - 12, 0)
    assert (stats.released, stats.failed) == (len(left.roots), len(left.roots) + 10), "five of each run failed before"
    assert acker.stats(lane=1).unconfirmed_outcomes > 0
    assert {record.state for record in acker.inspect_many(others[12:]) if record} == {"owned"}
    assert abandon_run.preview(client, CONFIG, "dead run 1").roots.tolist() == []
    assert abandon_run.preview(client, CONFIG, "other").spout_ids == {1: len(others) - 12}


def test_abandon_covers_every_lane_the_run_held_last(client: Client, acker: Acker) -> None:
    for spout_id in (0, 1):
        acker.init_many(ALONE + 1000 * spout_id, ALONE, spout_id)
        die(acker, "both", spout_id)
    left = abandon_run.preview(client, CONFIG, "both")
    assert (left.lanes, left.spout_ids) == ((0, 1), {0: 500, 1: 500})
    assert abandon_run.abandon(client, CONFIG, left) == 1000
    assert (acker.pending(), acker.stats().unconfirmed_outcomes) == (0, 0)


def test_survey_of_a_living_run_shows_its_lease_and_no_roots(client: Client, acker: Acker) -> None:
    acker.init_many(ALONE, ALONE, 0)
    lease = app_of(acker).lease(lane=0, run_id="alive")
    lease.acquire()
    left = abandon_run.preview(client, CONFIG, "alive")
    assert left.lanes == (0,)
    assert left.held[0].startswith("alive ")
    assert len(left.roots) == 0
    lease.release()


def test_survey_of_a_run_with_a_successor_has_no_lanes(client: Client, acker: Acker) -> None:
    leave(acker, "first", ALONE)
    spout = Spout(acker, "second")
    spout.add(np.arange(10))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)

    assert run_spout(spout, emit).acked == 10
    assert abandon_run.preview(client, CONFIG, "first").lanes == ()
    assert abandon_run.preview(client, CONFIG, "second").lanes == (0,)


def test_abandon_is_refused_after_a_later_run_held_the_lane(client: Client, acker: Acker) -> None:
    acker.init_many(ALONE, ALONE, 0)
    die(acker, "first")
    left = abandon_run.preview(client, CONFIG, "first")
    acker.init(1, 7, 0)
    acker.ack(1, 7)
    die(acker, "second")
    with pytest.raises(BadConfigError, match="Another run acquired lane 0"):
        abandon_run.abandon(client, CONFIG, left)
    assert (acker.pending(), acker.stats().unconfirmed_outcomes) == (500, 1)
    assert abandon_run.preview(client, CONFIG, "second").lanes == (0,)


def test_progress_callbacks_count_scanned_and_failed_roots(client: Client, acker: Acker) -> None:
    many = np.arange(1, 12_001)
    acker.init_many(many, many, 0)
    die(acker, "run")
    looked, failed = list[int](), list[int]()
    left = abandon_run.preview(client, CONFIG, "run", looked.append)
    assert sum(looked) >= 12_000
    assert len(looked) > 12
    abandon_run.abandon(client, CONFIG, left, failed.append)
    assert failed == [5000, 5000, 2000]


def test_survey_of_a_damaged_ledger_raises_damaged_data(client: Client, acker: Acker, raw: Any) -> None:
    die(acker, "run")
    raw.hset("acker:{orders:1}:ledger", "short", "x" * 22)
    with pytest.raises(DamagedDataError, match="not a block number"):
        abandon_run.preview(client, CONFIG, "run")


SPOUT = """
import sys
import numpy as np
from acker_redis import Acker, Spout, run_spout
acker = Acker.connect(sys.argv[1], app="orders", shards=3, lanes=2)
spout = Spout(acker, "killed")
spout.add(np.arange(1000))
run_spout(spout, lambda emission: acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0))
"""


def test_abandon_fails_the_roots_of_a_killed_process(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=3, lanes=2)
    client = Client(url)
    process = subprocess.Popen([sys.executable, "-c", SPOUT, url])
    try:
        wait_until(lambda: acker.pending() == 1000, "its roots are pending")
        assert abandon_run.preview(client, CONFIG, "killed").held.keys() == {0}
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not abandon_run.preview(client, CONFIG, "killed").held, "its hold has run out")
    assert abandon_run.abandon(client, CONFIG, abandon_run.preview(client, CONFIG, "killed")) == 1000
    assert (acker.pending(), acker.stats().unconfirmed_outcomes) == (0, 0)
    client.close()


# -- the command


def test_abandon_command_counts_roots_and_asks_for_confirmation(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=3, lanes=2)
    acker.init_many(ALONE, ALONE, 0)
    die(acker, "run-1")
    of_run = ("abandon", "--app", "orders", "--redis", url, "--run", "run-1")
    for typed in ("n\n", "", "\n"):
        shown = run(*of_run, typed=typed)
        assert (shown.exit_code, "Nothing was abandoned." in shown.stderr) == (1, True)
        assert "orders: 500 roots are pending from run run-1, or from earlier runs in its lanes (0)" in shown.output
    assert acker.pending() == 500
    shown = run(*of_run, "--yes")
    assert (shown.exit_code, "500 roots failed: abandoned by the person on call" in shown.output) == (0, True)
    assert acker.pending() == 0
    shown = run(*of_run, typed="y\n")
    assert (shown.exit_code, "0 roots failed" in shown.output) == (0, True)


def test_abandon_command_refuses_living_and_unknown_runs(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=3, lanes=2)
    lease = app_of(acker).lease(lane=1, run_id="run-1")
    lease.acquire()
    options = ("--app", "orders", "--redis", url, "--yes")
    shown = run("abandon", *options, "--run", "run-1")
    assert (shown.exit_code, "lane 1 is held by run-1 " in shown.stderr, "End that process" in shown.stderr) == (
        1,
        True,
        True,
    )
    lease.release()
    shown = run("abandon", *options, "--run", "run-2")
    assert (shown.exit_code, "Run run-2 is not the last run of any lane of orders" in shown.stderr) == (1, True)
    assert run("abandon", *options).exit_code == 2
    raw.flushall()
    assert run("abandon", *options, "--run", "run-1").exit_code == 1
    assert raw.dbsize() == 0
