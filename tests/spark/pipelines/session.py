"""A Spark session where pytest's isn't at hand."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.spark import prepare_environment

ROOT = Path(__file__).resolve().parents[3]


def started(folder: Path) -> SparkSession:
    """Two cores, retries, no UI; everything that it writes is in the folder."""
    prepare_environment()
    # Before the JVM starts: Python workers import the pipelines' functions by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[2,4]")
        .appName("pipelines")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", str(folder / "local"))  # where shuffle files are
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
