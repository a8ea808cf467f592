"""A driver that is killed between any two steps of a turn: its work is repeated, and nothing is lost."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from tests.storm.turns.test_state import state_of
from tests.support.jobs import rows_on_spark
from tests.support.jobs.counts_on_spark import COUNTED, Counts
from tests.support.jobs.words_on_spark import MESSAGES, Words
from tests.support.spark import parquet

ROOT = Path(__file__).parents[3]


@pytest.mark.spark
@pytest.mark.parametrize("step", [pytest.param("inits", marks=pytest.mark.chaos), "levels", "written", "acks"])
def test_what_a_killed_driver_left_is_repeated(
    url: str, spark: Any, environment: dict[str, str], acker: Acker, tmp_path: Path, step: str
) -> None:
    command = [sys.executable, "-m", "tests.support.jobs.words_on_spark", step, url, str(tmp_path)]
    died = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not (tmp_path / "acked").exists(), "no outcome was delivered"
    result = Words.run(
        spark, acker=acker, conf={"lines.acked": str(tmp_path / "acked")},
        sinks={"lower": lambda writer: writer.mode("append").parquet(str(tmp_path / "out"))},
    )  # fmt: skip
    assert result.acked == MESSAGES and result.unfinished == 0
    assert sorted(map(int, (tmp_path / "acked").read_text().split())) == list(range(1, MESSAGES + 1))
    written = Counter(word for (word,) in parquet.rows(tmp_path / "out", "word"))
    times = 2 if step in ("written", "acks") else 1
    assert written == {"a": times * MESSAGES, **{f"b{number}": times for number in range(1, MESSAGES + 1)}}
    left = {"inits": MESSAGES, "levels": MESSAGES, "written": MESSAGES, "acks": 0}[step]
    assert acker.pending() == left, "roots of the killed run wait for their timeout"
    for _ in range(acker.config.num_buckets + 2):
        while acker.admin.rotate(force=True).draining:
            pass
    assert acker.pending() == 0 and acker.stats().timed_out == left


@pytest.mark.spark
@pytest.mark.classic("over Spark Connect foreachBatch runs in another process")
@pytest.mark.parametrize("step", ["acked", pytest.param("ended", marks=pytest.mark.chaos)])
def test_rows_that_a_killed_driver_left_are_repeated_and_others_are_not(
    url: str, spark: Any, acker: Acker, tmp_path: Path, step: str
) -> None:
    """The batch that Spark hasn't committed, and lines that the progress file doesn't name."""
    rows_on_spark.write_sources(tmp_path)
    command = [sys.executable, "-m", "tests.support.jobs.rows_on_spark", step, url, str(tmp_path)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr
    first, second, third = rows_on_spark.BATCHES
    commits = tmp_path / "checkpoint" / "commits"
    assert [path.name for path in commits.glob("[0-9]*")] == ["0"], "the second batch isn't committed"
    acked = Counter(map(int, (tmp_path / "acked-batches").read_text().split()))
    assert set(first) <= acked.keys() <= {*first, *second} and acked.total() == {"acked": 4, "ended": 6}[step]
    known = json.loads((tmp_path / "progress.json").read_text())
    done = sum(known["begin"].values()) + sum(end - begin for runs in known["beyond"].values() for begin, end in runs)

    topology = rows_on_spark.topology_of(spark, tmp_path)
    result = topology.run(spark, acker=acker, sinks=rows_on_spark.sinks_in(tmp_path))
    assert result.acked == len(second) + len(third) + rows_on_spark.LINES - done and result.unfinished == 0
    acked_now = Counter(map(int, (tmp_path / "acked-batches").read_text().split())) - acked
    assert acked_now == Counter([*second, *third]), "exactly the batches that weren't committed"
    assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0", "1", "2"]
    lines = Counter((tmp_path / "acked-lines").read_text().split())
    assert len(lines) == rows_on_spark.LINES, "nothing is lost"
    written = Counter(v for (v,) in parquet.rows(tmp_path / "out", "v"))
    assert {written[str(one)] for one in first} == {1} and {written[str(one)] for one in second} == {2}
    assert written["6"] == 1 and all(written[f"line {number}"] for number in range(rows_on_spark.LINES))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("step", "committed"),
    [
        pytest.param("levels", 0, marks=pytest.mark.chaos),
        ("committed", 1),
        pytest.param("acks", 1, marks=pytest.mark.chaos),
    ],
)
def test_the_state_of_a_killed_driver_is_that_of_its_committed_turns(
    url: str, spark: Any, acker: Acker, tmp_path: Path, step: str, committed: int
) -> None:
    """What wasn't acked comes again, and counts again."""
    command = [sys.executable, "-m", "tests.support.jobs.counts_on_spark", step, url, str(tmp_path)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert state_of(acker, "Counts") == {word: n for word, n in COUNTED.items() if committed}
    result = Counts.run(spark, acker=acker, conf={"lines.acked": str(tmp_path / "acked")})
    assert result.acked == MESSAGES
    assert state_of(acker, "Counts") == {word: n * (committed + 1) for word, n in COUNTED.items()}
