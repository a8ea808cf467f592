"""One Spark session for all tests here: two cores, retries, no UI, workers that can import this package."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acker_redis.spark import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cases import MakeCase

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import QUICK_JAVA

    prepare_environment()
    # Before the JVM starts: Python workers import the tests' functions by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))  # where shuffle files are
        .config("spark.driver.memory", "2g")
        .config("spark.sql.ui.retainedExecutions", "10")  # their plans are what fills the driver over a long run
        .config("spark.ui.retainedJobs", "200")
        .config("spark.ui.retainedStages", "200")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def case(spark: "SparkSession", url: str, tmp_path: Path) -> Iterator["MakeCase"]:
    from tests.spark.cases import Case

    made: list[Case] = []

    def make(**options: Any) -> Case:
        folder = tmp_path / f"case-{len(made)}"
        folder.mkdir()
        made.append(Case(spark, url, folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.acker.close()
