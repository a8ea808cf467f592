"""A run that writes once, killed at random points and started again until it is through; then the tables and the letters."""

import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from acker_redis import Acker
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from tests.chaos.test_random_kills import SECS, SEED
from tests.support.jobs import once_job
from tests.support.spark.cluster import JOB_SECS, kill, run_python, start_python

pytestmark = pytest.mark.chaos

MODULE = "tests.support.jobs.once_job"
POINTS = {"parquet": once_job.POINTS, "store": once_job.POINTS | once_job.POINTS_OF_STORE}
"""Where rows go, and where a run may be killed."""

KILLS = 4
MOST_TIMES = 4


def killed(url: str, folder: Path, point: str, times: int, kind: str) -> bool:
    """Run up to a point. Return False if the run was through before."""
    process = start_python(folder, MODULE, url, str(folder), point, str(times), kind)
    try:
        process.communicate(timeout=JOB_SECS)
    finally:
        kill(process)
    assert process.returncode in (0, -9), (folder / f"{MODULE}.log").read_text()[-3000:]
    return process.returncode != 0


def check_exact(folder: Path, acker: Acker, kind: str) -> None:
    """Each accepted message has its rows of one attempt in each sink, and no other message has any."""
    log = PublishLog(LocalLogFolder(folder / "log" / once_job.DATA))
    log.read()
    dead = set(log.state.dead.get("", {}))
    assert log.state.is_settled
    assert log.state.is_finished
    assert {number for number in range(once_job.MESSAGES) if number % 10 == 7} <= dead
    letters = Counter(letter.message_id for letter in acker.dead_letters.read())
    assert letters.keys() == dead
    for sink, count in once_job.SINKS.items():
        if kind == "store" and sink == "b":
            rows = once_job.store_of(folder).items()
        else:
            rows = [(row["id"], row["attempt"]) for row in pq.read_table(folder / sink).to_pylist()]
        found = Counter(number for number, _ in rows)
        assert found == {number: count(number) for number in range(once_job.MESSAGES) if number not in dead}
        assert len(set(rows)) == len(found), "of one attempt"


@pytest.mark.timeout(2 * SECS + 4 * JOB_SECS)
def test_run_under_random_kills_writes_each_message_once(url: str, raw: object, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    until, kills, rounds = time.monotonic() + SECS, list[str](), 0
    with Acker.connect(url, once_job.CONFIG) as acker:
        while time.monotonic() < until:
            folder = tmp_path / str(rounds)
            folder.mkdir()
            rounds += 1
            for entry in acker.dead_letters.read():
                acker.dead_letters.delete([entry.entry_id])
            kind = chance.choice(list(POINTS))
            for _ in range(KILLS):
                point, times = chance.choice(list(POINTS[kind])), chance.randint(1, MOST_TIMES)
                if killed(url, folder, point, times, kind):
                    kills.append(f"{point} {times}")
            run_python(folder, MODULE, url, str(folder), "never", "1", kind)
            check_exact(folder, acker, kind)
    print(f"{rounds} rounds, killed at: {', '.join(kills)}")  # noqa: T201
    assert kills


@pytest.mark.parametrize("point", once_job.POINTS_OF_STORE)
def test_run_killed_around_a_transaction_publishes_it_once(url: str, raw: object, tmp_path: Path, point: str) -> None:
    with Acker.connect(url, once_job.CONFIG) as acker:
        for times in (2, 1):
            assert killed(url, tmp_path, point, times, "store")
        run_python(tmp_path, MODULE, url, str(tmp_path), "never", "1", "store")
        check_exact(tmp_path, acker, "store")
