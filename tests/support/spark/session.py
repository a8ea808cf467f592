"""The Spark session of tests that run in a process with a JVM of its own: two cores, retries, no UI."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.spark import prepare_environment

ROOT = Path(__file__).resolve().parents[3]


def started(folder: Path, **settings: str) -> SparkSession:
    """Everything that it writes is in the folder; its workers can import the tests."""
    prepare_environment()
    # Before the JVM starts: Python workers import the tests' functions by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in {
        "spark.buffer.pageSize": "1m",  # else each relation of a broadcast join takes 64 MB, and the JVM ends
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "local"),  # where shuffle files are
        "spark.log.level": "OFF",
        "spark.python.daemon.module": "tests.support.spark.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.codegen.cache.maxEntries": "5000",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.ui.retainedExecutions": "10",  # their plans are what fills the driver over a long run
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.showConsoleProgress": "false",
        **settings,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Sessions:
    """One session for many tests; another one where the last has lost its only executor.

    In local mode an executor whose shuffle files were lost can't be registered again, as Spark asks a scheduler for it that
    is not there. It goes on without knowing where cached blocks are, and after sixty heartbeats, ten minutes, ends the JVM.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder, self._settings = folder, settings
        self._made: SparkSession | None = None

    def live(self) -> SparkSession:
        """The session that is there, or a new one."""
        if self._made is not None and not self._made.sparkContext._jsc.sc().getExecutorMemoryStatus().size():
            self.stop()
        if self._made is None:
            self._made = started(self._folder, **self._settings)
        return self._made

    def stop(self) -> None:
        """End the session; the JVM stays."""
        if self._made is not None:
            self._made.stop()
            self._made = None
