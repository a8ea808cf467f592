"""Several Spark applications on one acker, each in processes of its own, some of which are killed.

One of those that nobody kills runs in the JVM of other tests' programs (`warm`), which is up already.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from acker_redis import Acker
from acker_redis.testing import expire, wait_until
from tests.support.jobs.app_job import CHILDREN, MESSAGES, SHARED
from tests.support.spark.cluster import JOB_SECS, kill, start_python
from tests.support.spark.faults import WAIT_SECS
from tests.support.spark.warm import Warm, read_answer

pytestmark = pytest.mark.spark

JOB = "tests.support.jobs.app_job"


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start an application; all that are left are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_one(kind: str, *arguments: str) -> subprocess.Popen[str]:
        started.append(start_python(tmp_path, JOB, kind, url, str(tmp_path), *arguments))
        return started[-1]

    yield start_one
    for process in started:
        if process.returncode is None:
            kill(process)


Begin = Callable[..., Callable[[], Any]]


@pytest.fixture
def begin(warm: Warm, url: str, tmp_path: Path) -> Begin:
    """Start an application that nobody kills; gives what waits for its end, for what it printed."""

    def begin_one(kind: str, *arguments: str) -> Callable[[], Any]:
        warm.begin_module(JOB, kind, url, str(tmp_path), *arguments, url=url)
        return lambda: read_answer(warm.answer())

    return begin_one


def printed(process: subprocess.Popen[str], folder: Path) -> Any:
    """What an application printed at its end."""
    text, _ = process.communicate(timeout=JOB_SECS)
    assert process.returncode == 0, (folder / f"{JOB}.log").read_text(errors="replace")[-4000:]
    return json.loads(text.splitlines()[-1])


def written(folder: Path, pattern: str) -> Counter[tuple[int, int]]:
    """Rows and how often each was written."""
    tables = [pq.read_table(path) for path in folder.glob(pattern)]
    return Counter(pair for t in tables for pair in zip(t["id"].to_pylist(), t["child"].to_pylist(), strict=True))


ALL = {(message, child) for message in range(1, MESSAGES) for child in range(CHILDREN)}
"""Message 0 has no children."""


def test_killed_application_leaves_another_app_untouched(
    begin: Begin, start: Callable[..., Any], url: str, raw: Any, tmp_path: Path
) -> None:
    """Both hold still in the middle of their sinks; two is killed there, one goes on, and two begins again."""
    two, one = start("alone", "two"), begin("alone", "one")
    for app in ("one", "two"):
        wait_until((tmp_path / f"{app}-middle").exists, f"{app} to be in the middle", WAIT_SECS)
    with Acker.open_existing(url, "two") as acker:
        # They are initialised beside the job.
        wait_until(lambda: acker.stats().pending == MESSAGES, "its messages to be pending", WAIT_SECS)
        kill(two)
        left = acker.stats().pending
        assert left == MESSAGES
        for _ in range(acker.config.num_buckets):  # nothing of this reaches the other
            acker.admin.rotate(force=True)
        assert acker.stats().timed_out == left
    (tmp_path / "one-go").touch()
    quiet = {"pending": 0, "timed_out": 0, "failed": 0, "deduplicated": 0, "unowned": 0}
    assert one() == {"acked": MESSAGES, "others": 0, "stats": quiet}
    assert written(tmp_path, "one-*.parquet") == Counter(ALL)

    (tmp_path / "two-go").touch()
    again = begin("alone", "two")()
    assert again["acked"] == MESSAGES
    assert (
        left <= again["others"] <= left + 1
    )  # outcomes of the run that died, which came late; message 0 was acked before
    assert set(written(tmp_path, "two-*.parquet")) == ALL
    assert {key.split(b"{")[1].split(b"}")[0].split(b":")[0] for key in raw.scan_iter("acker:*")} == {b"one", b"two"}


def test_tree_begun_in_an_application_completes_in_another(
    begin: Begin, start: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    (tmp_path / "between").mkdir()
    (tmp_path / "go").touch()
    second, first = start("second", "600", "1"), begin("first", "600")
    expected = {"acked": MESSAGES, "timed_out": 0, "failed": 0, "lost": 0, "dead_lettered": 0}
    assert first() == expected
    assert printed(second, tmp_path) == {"folders": 1}
    assert written(tmp_path, "out-*.parquet") == Counter(ALL)
    with Acker.open_existing(url, SHARED) as acker:
        stats = acker.stats()
        assert (stats.acked, stats.pending, stats.unowned) == (
            MESSAGES + len(ALL),
            0,
            0,
        )  # imported rows are messages, too


def test_rows_taken_by_a_killed_application_are_replayed(
    begin: Begin, start: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    """The second is killed with one partition written and one not. The first emits all again, and a new second ends them.

    They time out by hand: a busy machine may need longer than any short message timeout to start another application.
    """
    between = tmp_path / "between"
    between.mkdir()
    second, first = start("second", "600", "1"), begin("first", "600")
    wait_until((tmp_path / "middle").exists, "the second to be in the middle", WAIT_SECS)
    kill(second)
    with Acker.open_existing(url, SHARED) as acker:
        for _ in range(acker.config.num_buckets):
            acker.admin.rotate(force=True)
    (tmp_path / "go").touch()
    again = start("second", "600", "2")
    counts = first()
    assert counts["acked"] == MESSAGES
    assert counts["timed_out"] > 0
    assert (counts["failed"], counts["dead_lettered"]) == (0, 0)
    assert printed(again, tmp_path)["folders"] >= 2
    assert set(written(tmp_path, "out-*.parquet")) == ALL
    with Acker.open_existing(url, SHARED) as acker:
        expire(acker)
        stats = acker.stats()
        assert (stats.pending, stats.unconfirmed_outcomes) == (0, 0)
        assert {lane: end.state for lane, end in acker.admin.last_run_ends().items()} == {0: "finished", 1: "finished"}
