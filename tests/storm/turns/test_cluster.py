"""Topologies on a standalone cluster: executors that die, speculative copies of tasks, and spark-submit."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from acker_redis import Acker
from tests.storm.turns.cluster_parts import MESSAGES
from tests.support.jobs.state_cluster_job import LINES as COUNTED
from tests.support.jobs.words_on_spark import MESSAGES as LINES
from tests.support.spark import cluster as clusters
from tests.support.spark.cluster import Cluster
from tests.support.spark.warm import Warm, read_answer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address and /proc are Linux'"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


def run_scenarios(cluster: Cluster, warm: Warm, url: str, folder: Path, *scenarios: str) -> dict[str, Any]:
    found: dict[str, Any] = read_answer(
        warm.run_module("tests.support.jobs.topology_cluster_job", cluster.url, url, str(folder), *scenarios, url=url)
    )
    for result in found.values():
        assert result["outcomes"] == [[1, MESSAGES]], "each message has one outcome"
        assert (result["false"], result["unfinished"], result["late"], result["pending"]) == ([], 0, 0, 0)
        assert set(result["reasons"]) <= {"timeout"}
    return found


def test_executor_killed_in_a_stage_or_a_sink_of_a_turn_keeps_outcomes_exact(
    cluster: Cluster, warm: Warm, url: str, tmp_path: Path
) -> None:
    """It takes its shuffle files along, so earlier levels run again, with other results. Such trees time out.

    A sink's executor takes kept rows along, so all messages go out again.
    """
    found = run_scenarios(cluster, warm, url, tmp_path, "kill:bolt", "kill:ack", "kill:sink")
    for scenario in found:
        assert (tmp_path / scenario.replace(":", "-") / "killed").exists()
    assert found["kill:sink"]["acked"] == MESSAGES, "the turn broke before its acks"


@pytest.mark.parametrize(
    "scenarios", [("race:ack",), pytest.param(("race:bolt", "lose:ack"), marks=pytest.mark.chaos)], ids="+".join
)
def test_speculative_copies_of_a_turns_tasks_keep_outcomes_exact(
    cluster: Cluster, warm: Warm, url: str, tmp_path: Path, scenarios: tuple[str, ...]
) -> None:
    found = run_scenarios(cluster, warm, url, tmp_path, *scenarios)
    for scenario, result in found.items():
        # The copy alone may get as far as the fault, and Spark then ends the first attempt.
        assert (tmp_path / scenario.replace(":", "-") / "copy").exists(), "no copy ran"
        assert result["acked"] == MESSAGES


@pytest.mark.parametrize(
    "scenarios", [("race:count",), pytest.param(("kill:count", "kill:behind"), marks=pytest.mark.chaos)], ids="+".join
)
def test_state_is_changed_once_by_copies_of_tasks_and_behind_killed_executors(
    cluster: Cluster, warm: Warm, url: str, tmp_path: Path, scenarios: tuple[str, ...]
) -> None:
    """Without a replay the state is the oracle's. Updates of an execution that doesn't count time out."""
    job = "tests.support.jobs.state_cluster_job"
    found = read_answer(warm.run_module(job, cluster.url, url, str(tmp_path), *scenarios, url=url))
    for scenario, result in found.items():
        assert result["counted"] == Counter(" ".join(COUNTED).split())
        assert result["outcomes"] == [[1, len(COUNTED)]] and set(result["reasons"]) <= {"timeout"}
        assert (result["unfinished"], result["pending"]) == (0, 0)
        mark = "copy" if scenario.startswith("race") else "killed"
        assert (tmp_path / scenario.replace(":", "-") / mark).exists(), "the fault happened"
        assert result["acked"] == len(COUNTED) or scenario == "kill:behind"


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from acker_redis import Acker
from tests.support.jobs.words_on_spark import Words
url, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
with Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
    result = Words.run(
        spark, acker=acker, conf={"lines.acked": f"{folder}/acked"},
        sinks={"lower": lambda writer: writer.mode("append").parquet(f"{folder}/out")},
    )
print("acked", result.acked, "rows", spark.read.parquet(f"{folder}/out").count())
"""


@pytest.mark.parametrize("master", ["local[2,4]", pytest.param("cluster", marks=pytest.mark.chaos)])
def test_a_topology_runs_through_spark_submit(
    request: pytest.FixtureRequest, acker: Acker, url: str, tmp_path: Path, master: str
) -> None:
    if master == "cluster":
        master = request.getfixturevalue("cluster").url
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {
        "spark.cores.max": "2", "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.ui.enabled": "false",
        "spark.driver.host": clusters.HOSTS[0], "spark.local.dir": str(tmp_path), "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = Path(str(pyspark.__file__)).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", master, *options, str(program), url, str(tmp_path)],
        env=clusters.environment(tmp_path) | {"PYSPARK_PYTHON": sys.executable, "HOME": os.environ.get("HOME", "/")},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=clusters.JOB_SECS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"acked {LINES} rows {2 * LINES}" in done.stdout
    assert sorted(map(int, (tmp_path / "acked").read_text().split())) == list(range(1, LINES + 1))
    assert acker.pending() == 0
