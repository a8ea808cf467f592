"""The benchmark of Kafka runs, in a tiny size: parts of it without Spark, and all of it with Spark and its connector."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import Bench
from benchmarks.kafka import commits, restarts
from tests.support import java
from tests.support.jars import jars_of
from tests.support.kafka import broker, required

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.server
@pytest.mark.chaos
def test_restarts_repeat_one_record_and_commits_are_measured() -> None:
    bench = Bench("kafka", "", "", is_valkey=True, scale=0.001)
    with broker(**{"log.cleaner.backoff.ms": 200}) as node:
        repeats = list(restarts.rows(bench, node))
        times = list(commits.rows(bench, node))
    assert [(row.value, row.met) for row in repeats] == [(1, True)] * 3
    assert [row.value > 0 for row in times] == [True, True]


@pytest.mark.spark
@pytest.mark.chaos
def test_kafka_benchmark_yields_valid_rows(tmp_path: Path) -> None:
    required()
    if jars_of("kafka") is None:
        pytest.skip("no connector of Kafka was published for this Spark")
    options = ["kafka", "--scale", "0.001", "--server", "valkey", "--results", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options], cwd=ROOT, env=java.preloaded(), capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["benchmark"] for row in rows} == {"kafka"}
    assert all(math.isfinite(row["value"]) for row in rows)
    (repeated,) = (row for row in rows if row["measure"].startswith("lines repeated after kill -9"))
    assert repeated["value"] <= repeated["target"]
