"""The benchmarks of Spark jobs run, in a tiny size."""

import json
import math
from pathlib import Path

import pytest

from tests.support.spark.warm import Warm

ONE_OF_EACH_KIND = ("sinks", "streams", "turns")
OTHERS = ("realistic", "fan_out", "word_count", "micro_batches", "driver_memory", "topology_state")


@pytest.mark.spark
@pytest.mark.parametrize(
    "names", [ONE_OF_EACH_KIND, pytest.param(OTHERS, marks=pytest.mark.chaos)], ids=["some", "others"]
)
def test_spark_benchmarks_yield_valid_rows(warm: Warm, tmp_path: Path, names: tuple[str, ...]) -> None:
    options = ["--scale", "0.001", "--server", "valkey", "--results", str(tmp_path)]
    status, _, errors = warm.run_module("benchmarks", *names, *options, url="")
    assert status == 0, errors
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["benchmark"] for row in rows} == set(names)
    assert all(math.isfinite(row["value"]) for row in rows)
    assert (tmp_path / "measured-pipelines.svg").exists()
