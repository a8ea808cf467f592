"""Python workers and executors killed at random while whole runs are under way; the truth is checked after each."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acker_redis.testing import wait_until
from tests.support.jobs.kills_job import MESSAGES
from tests.support.spark.cluster import JOB_SECS, Cluster, kill, start_python
from tests.support.spark.faults import parent

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address and /proc are Linux'"),
]

SECS = float(os.environ.get("ACKER_CHAOS_SECS", "90"))
SEED = int(os.environ.get("ACKER_CHAOS_SEED", "1"))
PAUSE_SECS = (0.2, 3.0)
EXECUTORS = 0.25
"""Share of the kills that hit an executor; the others hit a Python process of one."""

LONGEST_SECS = SECS + 2 * JOB_SECS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def children(pids: set[int]) -> set[int]:
    """Processes whose parent is one of these."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if parent(int(path.name)) in pids:
                    found.add(int(path.name))
            except OSError:  # it has ended meanwhile
                continue
    return found


def kill_one(chance: random.Random, cluster: Cluster) -> str | None:
    """An executor of the cluster's workers, or a Python daemon or worker of one."""
    executors = children(set(cluster.pids))
    daemons = children(executors)
    what = "executor" if chance.random() < EXECUTORS else "python"
    victims = sorted(executors if what == "executor" else daemons | children(daemons))
    if not victims:
        return None
    try:
        os.kill(chance.choice(victims), signal.SIGKILL)
    except ProcessLookupError:
        return None
    return what


@pytest.mark.timeout(LONGEST_SECS + 60)
def test_runs_under_random_kills_lose_no_messages(cluster: Cluster, url: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    kills: list[str] = []
    until = SECS
    job = start_python(tmp_path, "tests.support.jobs.kills_job", cluster.url, url, str(tmp_path), str(SECS), str(SEED))
    try:
        wait_until(lambda: job.poll() is not None or (tmp_path / "0").exists(), "the first run begins", JOB_SECS)
        while job.poll() is None and until > 0:
            pause = chance.uniform(*PAUSE_SECS)
            until -= pause
            try:
                job.wait(pause)
            except subprocess.TimeoutExpired:
                killed = kill_one(chance, cluster)
                kills += [killed] if killed else []
        printed, _ = job.communicate(timeout=JOB_SECS)
    finally:
        kill(job)
    log = (tmp_path / "tests.support.jobs.kills_job.log").read_text(errors="replace")
    assert job.returncode == 0, f"seed {SEED}: {log[-4000:]}"
    result = json.loads(printed.splitlines()[-1])
    assert {"executor", "python"} <= set(kills)
    assert result["runs"]
    for run in result["runs"]:
        assert run["acked_and_missing"] == [], (SEED, run)
        assert (run["acked"] + run["dead"], run["pending"]) == (MESSAGES, 0), (SEED, run)
        assert run["random"] or run["dead"] == 0, (SEED, run)
