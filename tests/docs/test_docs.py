"""Pages of the docs run from their first block to their last, each as one program with a session of its own."""

import subprocess
import sys

import pytest

from tests.docs.test_readme import ROOT, blocks
from tests.support.servers import VALKEY
from tests.support.spark.warm import Warm

STREAMS = """
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Tracker, TrackedBatches, prepare_environment

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
acker = Acker.connect(os.environ["ACKER_REDIS_URL"], app="docs")
Path("orders").mkdir()
rows = {"id": [1, 2, 3], "item": ["tea", "milk", "unicorn"], "price": [3, 1, None]}
pq.write_table(pa.table(rows), "orders/1.parquet")
orders = session.readStream.schema("id bigint, item string, price bigint").parquet("orders")
"""


TOPOLOGY_BEFORE = """
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_redis import Acker, RowFailedError, RetryPolicy
from acker_redis.spark import prepare_environment, run_tracked

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
"""

TOPOLOGY_AFTER = """
lines = session.createDataFrame([(1, "the cat"), (2, "the dog"), (3, "")], "id bigint, text string")
with Acker.connect(os.environ["ACKER_REDIS_URL"], app="topology") as acker:
    run = run_tracked(lines, topology, acker=acker, ids="id", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
assert (run.counts.acked, run.dead_letters[3].detail) == (2, "empty line")
counts = {row.word: row.n for row in session.read.parquet("counts").collect()}
assert counts == {"the": 2, "cat": 1, "dog": 1}, counts
"""

AGAIN = """
import os
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Tracker, prepare_environment, read_dead_letters, read_files, run_tracked, with_message_id

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
acker = Acker.connect(os.environ["ACKER_REDIS_URL"], app="again")
orders = session.createDataFrame([(1, "tea,milk"), (2, "bread"), (3, None)], "order bigint, items string")
last_night = datetime.now() - timedelta(hours=1)
Path("lines").mkdir()
Path("lines/1.txt").write_text("the cat")


def count_words(tracker: Tracker, lines: DataFrame) -> None:
    tracker.write_partitions(lines, lambda batches, partition: [None for _ in batches])


def last_nights_pipeline(tracker: Tracker, orders: DataFrame) -> None:
    good = tracker.fail_where(orders, "items IS NULL", "no items")
    tracker.write_partitions(good, lambda batches, partition: [None for _ in batches])


once = RetryPolicy(max_attempts=1, first_delay_secs=0)
run_tracked(orders, last_nights_pipeline, acker=acker, ids="order", run_id="orders-of-monday", retry=once)
"""

CALLS = """
called = [one() or name for name, one in list(globals().items()) if name.startswith("test_")]
assert len(called) > 5, called
"""

PAGES = {
    "guides/aggregates.md": ("", ""),
    "guides/applications.md": ("", ""),
    "guides/from-queues.md": (STREAMS, ""),
    "guides/from-storm.md": (TOPOLOGY_BEFORE, TOPOLOGY_AFTER),
    "guides/hosted-spark.md": ("", ""),
    "guides/run-again.md": (AGAIN, ""),
    "guides/spark.md": ("", ""),
    "guides/streams.md": (STREAMS, ""),
    "guides/testing.md": ("", CALLS),
}
"""What stands before the blocks of a page, and behind them."""

ELSEWHERE = {
    "guides/bare.md": "docs/test_readme.py",
    "start/pipeline.md": "docs/test_readme.py",
    "guides/log-pipeline.md": "spark/applications/test_access_logs.py",
    "operate/on-call.md": "ops/test_tracing.py",
    "operate/sizing.md": "docs/test_sizing.py",
}


def test_every_docs_page_with_python_blocks_is_tested() -> None:
    names = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in names if blocks("python", f"docs/{name}")} == PAGES.keys() | ELSEWHERE.keys()
    for name, module in ELSEWHERE.items():
        assert name.rpartition("/")[2] in (ROOT / "tests" / module).read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_of_a_docs_page_run(warm: Warm, name: str) -> None:
    before, after = PAGES[name]
    with VALKEY.server() as server:
        rotator = subprocess.Popen(
            [sys.executable, "-m", "acker_redis", "rotator", "--redis", server.url, "--all"], stderr=subprocess.DEVNULL
        )
        try:
            warm.run("\n".join([before, *blocks("python", f"docs/{name}"), after]), server.url)
        finally:
            rotator.terminate()
            rotator.wait(timeout=30)
