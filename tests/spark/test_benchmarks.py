"""The benchmarks of Spark jobs run, in a tiny size and a process of their own, as each stops its session."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["realistic", "fan_out", "word_count", "sinks", "micro_batches", "driver_memory"])
def test_a_benchmark_of_spark_jobs_gives_rows(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        name,
        "--scale",
        "0.001",
        "--server",
        "valkey",
        "--json",
        str(results),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(results.read_text())["rows"]
    assert rows
    assert all(row["benchmark"] == name and math.isfinite(row["value"]) for row in rows)
