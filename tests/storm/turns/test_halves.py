"""Joins with held tuples, counts and batches, whatever dies at random: the state is that of the committed turns.

No message is acked that wasn't processed in them, and none is lost.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from tests.storm.turns.state_parts import spare_workers
from tests.support.jobs.halves_on_spark import check, journal, lines, run_halves
from tests.support.spark.cluster import JOB_SECS, Cluster, kill, start_python

JOB = "tests.support.jobs.halves_on_spark"
MOST_RUNS = 40


def play(spark: Any, acker: Acker, folder: Path, *, pairs: int, deaths: int) -> None:
    """Without a replay, each pair is joined and batched once."""
    try:
        with journal(folder):
            result = run_halves(spark, acker, folder, pairs=pairs, deaths=deaths)
    finally:
        spare_workers(folder, deaths)
    assert result.acked == 2 * pairs and result.unfinished == 0 and not lines(folder, "failed")
    assert len(check(acker, folder)) == pairs and acker.pending() == 0


@pytest.mark.spark
def test_held_tuples_and_batches_are_processed_once_although_workers_die(
    spark: Any, acker: Acker, tmp_path: Path
) -> None:
    play(spark, acker, tmp_path, pairs=8, deaths=3)


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(8))
def test_many_deaths_of_workers_change_nothing(spark: Any, acker: Acker, tmp_path: Path, seed: int) -> None:
    """A turn breaks at four deaths of one task."""
    play(spark, acker, tmp_path, pairs=20 + 10 * seed, deaths=3 + seed % 5)


def run_job(url: str, folder: Path, pairs: int, chance: float, *master: str) -> int:
    """Run the topology in a program of its own. Returns its exit status."""
    process = start_python(folder, JOB, url, str(folder), str(pairs), str(chance), *master)
    try:
        process.communicate(timeout=JOB_SECS)
    finally:
        kill(process)
    log = (folder / f"{JOB}.log").read_text(errors="replace")
    assert process.returncode in (0, -signal.SIGKILL), log[-4000:]
    return process.returncode


@pytest.mark.spark
@pytest.mark.chaos
def test_drivers_that_die_at_random_leave_the_state_of_their_committed_turns(
    url: str, acker: Acker, tmp_path: Path
) -> None:
    deaths, done = 0, set[str]()
    for number in range(MOST_RUNS):
        ended = run_job(url, tmp_path, 20, 0.05 if number < MOST_RUNS // 2 else 0)
        before, done = done, check(acker, tmp_path)
        assert before <= done
        if ended == 0:
            break
        deaths += 1
    assert len(done) == 20 and deaths > 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    started = Cluster(folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address and /proc are Linux'")
def test_executors_that_die_at_random_lose_nothing(url: str, acker: Acker, tmp_path: Path, cluster: Cluster) -> None:
    """Trees whose updates were lost time out, and their pairs come again under another key."""
    folder = tmp_path / "job"
    folder.mkdir()
    assert run_job(url, folder, 40, 0, cluster.url) == 0
    assert len(check(acker, folder)) == 40 and list(folder.glob("executor-*"))
