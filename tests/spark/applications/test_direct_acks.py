"""Executors that ack directly: two Spark applications, and the acks of a partition by themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import Row

from acker_redis import Acker, AckerConfig
from spark.applications.direct_acks.prices import acker_of_worker, price_partition
from tests.docs.test_readme import ROOT
from tests.support.spark import versions


def test_rerun_task_writes_the_same_and_acks_once(url: str, tmp_path: Path) -> None:
    """Two items of order 7 and one of order 8, in two partitions of which one runs twice."""
    acker_of_worker.cache_clear()
    rows = [
        Row(order=7, item="tea", count=2, anchors=[70, 5]),
        Row(order=7, item="milk", count=1, anchors=[70, 6]),
        Row(order=8, item="unicorn", count=1, anchors=[-80, 9]),
    ]
    with Acker.connect(url, AckerConfig(app="by-hand")) as acker:
        acker.init_many([70, -80], [5 ^ 6 ^ 1, 9 ^ 1], spout_id=0)
        for _ in range(2):
            price_partition(url, "by-hand", "first", tmp_path, rows)
        assert acker.stats().deduplicated > 0
        (failed,) = acker.poll()
        assert (failed.root, failed.detail, failed.last_component) == (-80, "no price of 'unicorn'", "price")
        acker.ack(
            70, 1
        )  # the application that exported has closed its part; it would be open if an edge had cancelled itself
        (outcome,) = (one for one in acker.poll() if one.kind == "ack")
        assert outcome.root == 70
    (path,) = tmp_path.iterdir()
    priced = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert priced == [{"order": 7, "item": "tea", "price": 600}, {"order": 7, "item": "milk", "price": 120}]
    acker_of_worker(url, "by-hand").close()
    acker_of_worker.cache_clear()


@pytest.mark.spark
def test_direct_acks_demo_completes_both_applications() -> None:
    env = {name: value for name, value in os.environ.items() if name != "ACKER_REDIS_URL"}
    env["PYTHONWARNINGS"] = ",".join(versions.warning_filters())
    done = subprocess.run(
        [sys.executable, "-m", "spark.applications.direct_acks.demo", "--orders", "200"],
        capture_output=True, text=True, timeout=500, cwd=ROOT, check=False,
        env=env,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[1:] == [
        "first application: 198 of 200 orders done, once the second had acked their last item",
        "                   2 dead letters: no price of 'unicorn'",
        "second application: 500 items priced and acked by its executors",
    ]
