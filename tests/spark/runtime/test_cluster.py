"""Faults that need several executors: one that dies, and speculative copies that run beside the first attempt."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.streaming.test_streams import give, written
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
    found = read_answer(
        warm.run_module("tests.support.jobs.cluster_job", cluster.url, url, str(folder), *scenarios, url=url)
    )
    for result in found.values():
        assert (result["acked"], result["letters"], result["pending"]) == (399, [7], 0)
    return dict(found)


def test_executor_killed_during_a_stage_keeps_outcomes_exact(
    cluster: Cluster, warm: Warm, url: str, tmp_path: Path
) -> None:
    """Killed in the sink's stage, it takes its map output along: the operator's stage runs again."""
    found = run_scenarios(cluster, warm, url, tmp_path, "kill:operator", "kill:sink", "kill-late:sink")
    assert sum(found["kill:operator"]["operator"].values()) > 2
    for scenario in ("kill:sink", "kill-late:sink"):
        assert sum(found[scenario]["sink"].values()) > 2
        assert sum(found[scenario]["operator"].values()) > 2, "no map output was lost"


def test_speculative_task_copies_keep_outcomes_exact(cluster: Cluster, warm: Warm, url: str, tmp_path: Path) -> None:
    found = run_scenarios(cluster, warm, url, tmp_path, "race:operator", "race:sink", "lose:sink")
    for scenario, result in found.items():
        assert max(result[scenario.partition(":")[2]].values()) > 1, "no copy ran"


def test_speculative_task_copies_in_a_stream_keep_outcomes_exact(
    cluster: Cluster, warm: Warm, url: str, tmp_path: Path
) -> None:
    """What is parked goes out with later micro-batches, beside copies of slow tasks; nothing is acked falsely."""
    batches = [range(at, at + 40) for at in (0, 100, 200)]
    give(tmp_path, *batches)
    found = read_answer(
        warm.run_module("tests.support.jobs.speculating_stream_job", cluster.url, url, str(tmp_path), url=url)
    )
    messages = [one for batch in batches for one in batch]
    assert found.pop("done") == messages == sorted(set(written(tmp_path)))
    assert max(found.pop("attempts")) > 1, "no copy ran"
    assert found == {"acked": len(messages), "parked": 0, "pending": 0, "letters": 0}
