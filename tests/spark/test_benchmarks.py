"""The benchmarks of Spark jobs run, in a tiny size and a process of their own, as each stops its session."""

import json
import math
import subprocess
import sys
from pathlib import Path

from tests import java

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["realistic", "fan_out", "word_count", "sinks", "micro_batches", "streams", "driver_memory"]


def test_the_benchmarks_of_spark_jobs_give_rows(tmp_path: Path) -> None:
    """All in one process, whose JVM is warm from the second on."""
    options = ["--scale", "0.001", "--server", "valkey", "--results", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks", *NAMES, *options]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=java.preloaded(), timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["benchmark"] for row in rows} == set(NAMES)
    assert all(math.isfinite(row["value"]) for row in rows)
    assert (tmp_path / "measured-pipelines.svg").exists()
