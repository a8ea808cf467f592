"""The pages on tracked DataFrames and streams run from their first block to their last, each as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import VALKEY
from tests.spark.test_readme import ROOT, run_program

pytestmark = pytest.mark.spark


STREAMS = """
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Tracker, each_batch, prepare_environment

prepare_environment()
session = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
acker = Acker.connect(os.environ["ACKER_REDIS_URL"], app="docs")
Path("orders").mkdir()
rows = {"id": [1, 2, 3], "item": ["tea", "milk", "unicorn"], "price": [3, 1, None]}
pq.write_table(pa.table(rows), "orders/1.parquet")
orders = session.readStream.schema("id bigint, item string, price bigint").parquet("orders")
"""


@pytest.mark.parametrize(("name", "before"), [("spark.md", ""), ("streams.md", STREAMS)])
def test_every_block_runs(tmp_path: Path, name: str, before: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    with VALKEY.server() as server:
        rotator = subprocess.Popen(
            [sys.executable, "-m", "acker_redis", "rotator", "--redis", server.url, "--all"], stderr=subprocess.DEVNULL
        )
        try:
            run_program("\n".join([before, *blocks]), server.url, tmp_path)
        finally:
            rotator.terminate()
            rotator.wait(timeout=30)
