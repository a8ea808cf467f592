"""The driver of a stream is killed at one step after another: the sinks and the dead letters have the truth."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.testing import wait_until
from tests.spark.streaming.test_streams import give, parked, written
from tests.support.jobs import parking_job, redis_stream_job
from tests.support.spark.cluster import JOB_SECS, kill, start_python
from tests.support.spark.warm import Warm, read_answer

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("rotator")]

EVERYTHING = set(range(120))
SEVENS = {one for one in EVERYTHING if one % 10 == 7}


@pytest.fixture
def rotator(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield
        process.terminate()


def some_and_all(some: Sequence[str], every: Sequence[str]) -> pytest.MarkDecorator:
    """A short form for the suite, the long one for `make chaos`."""
    return pytest.mark.parametrize(
        "points", [pytest.param(some, id="some"), pytest.param(every, id="all", marks=pytest.mark.chaos)]
    )


def killed(folder: Path, module: str, *arguments: str) -> None:
    job = start_python(folder, module, *arguments)
    try:
        job.communicate(timeout=JOB_SECS)
    finally:
        kill(job)
    assert job.returncode < 0, (arguments, (folder / f"{module}.log").read_text()[-3000:])


def left_at_its_end(warm: Warm, folder: Path, module: str, *arguments: str, url: str) -> int:
    """A program goes on from what the killed ones left behind; it says what is left."""
    return int(read_answer(warm.run_module(module, url, str(folder), *arguments, url=url)))


def dead(url: str) -> list[Any]:
    with Acker.connect(url, parking_job.CONFIG) as acker:
        return acker.dead_letters.read()


@some_and_all(("re-emitting",), parking_job.POINTS)
def test_killed_driver_loses_no_parked_message(url: str, warm: Warm, tmp_path: Path, points: Sequence[str]) -> None:
    give(tmp_path, *(range(at, at + 40) for at in (0, 40, 80)))
    module = "tests.support.jobs.parking_job"
    for number, point in enumerate(points):
        killed(tmp_path, module, url, str(tmp_path), point, str(2 + number % 3))
    assert left_at_its_end(warm, tmp_path, module, "never", "5", url=url) == 0
    letters = dead(url)
    assert {letter.message_id for letter in letters} == SEVENS
    assert {(letter.reason, letter.detail) for letter in letters} == {("failed", "a seven")}
    assert set(written(tmp_path)) == EVERYTHING - SEVENS
    assert parked(tmp_path) == []


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "point", ["after-snapshot", pytest.param("written", marks=pytest.mark.chaos)], ids=["parked", "written"]
)
def test_resumed_driver_ends_harmlessly_after_a_takeover(url: str, warm: Warm, tmp_path: Path, point: str) -> None:
    """Both have the same checkpoint, parking location and lane."""
    give(tmp_path, *(range(at, at + 40) for at in (0, 40, 80)))
    module = "tests.support.jobs.parking_job"
    old = start_python(tmp_path, module, url, str(tmp_path), parking_job.FROZEN + point, "2")
    try:
        wait_until(lambda: is_stopped(old.pid), "it stands still", JOB_SECS)
        assert left_at_its_end(warm, tmp_path, module, "never", "3", url=url) == 0
        os.killpg(old.pid, signal.SIGCONT)
        old.communicate(timeout=JOB_SECS)
    finally:
        kill(old)
    assert old.returncode > 0
    assert {letter.message_id for letter in dead(url)} == SEVENS
    assert set(written(tmp_path)) == EVERYTHING - SEVENS
    assert parked(tmp_path) == []


@some_and_all(("acknowledging",), redis_stream_job.POINTS)
def test_killed_driver_loses_no_redis_stream_entry(
    url: str, raw: Any, warm: Warm, tmp_path: Path, points: Sequence[str]
) -> None:
    of_entry = {raw.xadd("orders", {"id": one}): one for one in sorted(EVERYTHING)}
    module = "tests.support.jobs.redis_stream_job"
    for point in points:
        killed(tmp_path, module, url, str(tmp_path), point)
        assert raw.xpending("orders", "g")["pending"] > 0
    assert left_at_its_end(warm, tmp_path, module, "never", url=url) == 0
    letters = dead(url)
    assert {of_entry[f"{one.message_id >> 16}-{one.message_id & 0xFFFF}".encode()] for one in letters} == SEVENS
    assert set(written(tmp_path)) == EVERYTHING - SEVENS
    assert raw.xpending("orders", "g")["pending"] == 0
