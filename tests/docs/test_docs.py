"""Pages of the docs run from their first block to their last, each as one program with a session of its own."""

import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acker_redis.ops.rotator import Rotator
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


PARKED = (
    """
defaults = TrackedBatches.__init__.__kwdefaults__
before, defaults["batch_wait_secs"] = defaults["batch_wait_secs"], 600.0  # however long a slow machine takes to end the query
""",
    """
defaults["batch_wait_secs"] = before
""",
)
"""No replay goes out between the end of the micro-batch and the look at what is parked."""

STORM_BEFORE = """
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_redis import Acker, RowFailedError, RetryPolicy
from acker_redis.spark import prepare_environment, run_tracked

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
"""

STORM_AFTER = """
lines = session.createDataFrame([(1, "the cat"), (2, "the dog"), (3, "")], "id bigint, text string")
with Acker.connect(os.environ["ACKER_REDIS_URL"], app="storm") as acker:
    run = run_tracked(lines, pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
assert (run.counts.acked, run.dead_letters[3].detail) == (2, "empty line")
counts = {row.word: row.n for row in session.read.parquet("counts").collect()}
assert counts == {"the": 2, "cat": 1, "dog": 1}, counts
"""

AGAIN = """
import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, DeadLetterFilter, RetryPolicy
from acker_redis.spark import Tracker, prepare_environment, read_files, run_tracked

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
acker = Acker.connect(os.environ["ACKER_REDIS_URL"], app="again")
orders = session.createDataFrame([(1, "tea,milk"), (2, "bread"), (3, None)], "order bigint, items string")
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

PAGES = {
    "guides/aggregates.md": ("", ""),
    "guides/applications.md": ("", ""),
    "guides/from-queues.md": (STREAMS, ""),
    "guides/once.md": ("", ""),
    "operate/run-again.md": (AGAIN, "assert acker.dead_letters.count() == 0"),
    "guides/spark.md": ("", ""),
    "guides/streams.md": (STREAMS + PARKED[0], PARKED[1]),
    "operate/hosted-spark.md": ("", ""),
    "topologies/from-storm.md": (STORM_BEFORE, STORM_AFTER),
    "topologies/spark.md": (
        "",
        "assert (result.acked, result.failed, of_files.acked, of_files.dead_letters) == (2, 1, 1, 1)\n"
        "assert (of_stream.acked, of_stream.dead_letters) == (1, 1)\n"
        "assert spark.read.parquet('words').count() == 4",
    ),
}
"""What stands before the blocks of a page, and behind them."""

ELSEWHERE = {
    "guides/testing.md": "docs/test_docs.py",
    "guides/bare.md": "docs/test_readme.py",
    "start/pipeline.md": "docs/test_readme.py",
    "guides/log-pipeline.md": "spark/applications/test_access_logs.py",
    "operate/connect.md": "spark/runtime/test_remote_server.py",
    "guides/kafka.md": "spark/sinks/test_kafka.py",
    "guides/sinks.md": "support/targets/__init__.py",
    "operate/on-call.md": "ops/test_tracing.py",
    "operate/sizing.md": "docs/test_sizing.py",
    "topologies/port.md": "docs/test_topologies.py",
    "topologies/testing.md": "docs/test_topologies.py",
    "topologies/topologies.md": "docs/test_topologies.py",
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
    with VALKEY.server() as server, rotated(server.url):
        warm.run("\n".join([before, *blocks("python", f"docs/{name}"), after]), server.url)


@pytest.mark.spark
def test_the_page_on_tests_runs_under_pytest_as_a_file_of_its_own(tmp_path: Path) -> None:
    page = tmp_path / "test_orders.py"
    page.write_text("\n".join(blocks("python", "docs/guides/testing.md")), encoding="utf-8")
    site = installed_plugins(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", page.name],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def installed_plugins(site: Path) -> Path:
    """Write the entry points that an installation would have, in case the environment's own is older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (info := site / "plugins_of_the_library-0.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins-of-the-library\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in project.get("entry-points", {}).get("pytest11", {}).items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return site


@contextmanager
def rotated(url: str) -> Iterator[None]:
    """Rotate all apps beside the program."""
    rotator, stop = Rotator(url), threading.Event()
    thread = threading.Thread(target=rotator.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        rotator.close()
