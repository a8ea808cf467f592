"""A stream killed at random moments and started again with random settings, until it is through; then the truth."""

import random
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from acker_redis import Acker
from acker_redis.testing import wait_until
from tests.chaos.test_random_kills import SECS, SEED
from tests.spark.streaming.test_restarts import acked_messages, give_messages, whole_messages
from tests.support.jobs import stream_job
from tests.support.spark.cluster import JOB_SECS, kill, run_python, start_python

pytestmark = pytest.mark.chaos

KILLS = 3
KILL_SECS = (0.0, 6.0)
"""After the process began its first micro-batch."""

MODULE = "tests.support.jobs.stream_job"


def emissions(folder: Path) -> int:
    """How many have begun."""
    runs = folder / "runs"
    return len(runs.read_text().split()) if runs.exists() else 0


def under_way(process: subprocess.Popen[str], folder: Path, begun: int) -> bool:
    """It has begun another emission, or is through."""
    return process.poll() is not None or emissions(folder) > begun


@pytest.mark.timeout(2 * SECS + 4 * JOB_SECS)
def test_stream_under_random_restarts_loses_no_messages(url: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    until = time.monotonic() + SECS
    killed = rounds = 0
    with Acker.connect(url, stream_job.CONFIG) as acker:
        while time.monotonic() < until:
            folder = tmp_path / str(rounds)
            rounds += 1
            give_messages(folder)
            for mark in ("middle", "written"):
                (folder / mark).touch()  # nobody holds still

            def settings(folder: Path = folder) -> tuple[str, ...]:
                return url, str(folder), str(chance.randint(1, 9)), chance.choice(["true", "false"])

            for _ in range(KILLS):
                begun = emissions(folder)
                process = start_python(folder, MODULE, *settings())
                try:
                    wait_until(
                        partial(under_way, process, folder, begun),
                        "the stream is under way",
                        JOB_SECS,
                    )
                    process.wait(chance.uniform(*KILL_SECS))
                except subprocess.TimeoutExpired:
                    killed += 1
                finally:
                    kill(process)
            run_python(folder, MODULE, *settings())
            acked = acked_messages(folder, acker)
            for run, messages in acked.items():
                assert messages <= whole_messages(folder, run), (SEED, folder)
            assert set().union(*acked.values()) == set(stream_job.ALL), (SEED, folder)
            for _ in range(stream_job.CONFIG.num_buckets):
                acker.admin.rotate(force=True)
            while outcomes := acker.poll(consumer="spout-0"):
                assert {outcome.reason for outcome in outcomes} == {"timeout"}
                acker.confirm(outcomes)
            stats = acker.stats()
            assert (stats.pending, stats.unowned) == (0, 0)
    assert killed
