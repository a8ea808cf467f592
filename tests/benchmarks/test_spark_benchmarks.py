"""The benchmarks of Spark jobs run, in a tiny size."""

import json
import math
from pathlib import Path

import pytest

from tests.support.spark.warm import Warm

NAMES = ["realistic", "fan_out", "word_count", "sinks", "micro_batches", "streams", "driver_memory"]


@pytest.mark.spark
def test_spark_benchmarks_yield_valid_rows(warm: Warm, tmp_path: Path) -> None:
    options = ["--scale", "0.001", "--server", "valkey", "--results", str(tmp_path)]
    status, _, errors = warm.run_module("benchmarks", *NAMES, *options, url="")
    assert status == 0, errors
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["benchmark"] for row in rows} == set(NAMES)
    assert all(math.isfinite(row["value"]) for row in rows)
    assert (tmp_path / "measured-pipelines.svg").exists()
