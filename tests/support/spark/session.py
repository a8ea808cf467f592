"""The Spark session of tests that run in a process with a JVM of its own: two cores, retries, no UI."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.spark import prepare_environment
from acker_redis.spark.runtime.jvm import java_class
from tests.support.spark import plain_files

ROOT = Path(__file__).resolve().parents[3]


ATTEMPTS = 4
MASTER = f"local[2,{ATTEMPTS}]"

YOUNG = "400m"
"""Room for new objects in the JVM. What the tests keep is half as large, and each collection copies it."""


def prepare() -> None:
    """Before the JVM starts: Python workers import the tests' functions by name."""
    prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def settings_in(folder: Path) -> dict[str, str]:
    """Everything that Spark writes is in the folder."""
    return {
        "spark.checkpoint.dir": str(folder / "checkpoints"),
        "spark.buffer.pageSize": "1m",  # else each relation of a broadcast join takes 64 MB, and the JVM ends
        "spark.driver.extraJavaOptions": f"-Xmn{YOUNG}",
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
    }


def started(folder: Path, **settings: str) -> SparkSession:
    """Everything that it writes is in the folder; its workers can import the tests."""
    prepare()
    builder = SparkSession.builder.master(MASTER).appName("tests")
    for name, value in {**settings_in(folder), **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    plain_files.use(session)
    return session


def _has_executor(session: SparkSession) -> bool:
    """False, too, where another session's owner has stopped the context that both had."""
    context = session.sparkContext._jsc
    return context is not None and context.sc().getExecutorMemoryStatus().size() > 0


def try_tasks(session: SparkSession, attempts: int) -> None:
    """How often Spark tries each task from now on. In local mode it takes the number from the master, and never again."""
    context = session.sparkContext
    of_class = java_class(context, "java.lang.Class").forName("org.apache.spark.scheduler.TaskSchedulerImpl")
    field = of_class.getDeclaredField("maxTaskFailures")
    field.setAccessible(True)
    field.setInt(context._jsc.sc().taskScheduler(), attempts)


class Sessions:
    """One session for many tests; another one where the last has lost its only executor.

    In local mode an executor whose shuffle files were lost can't be registered again, as Spark asks a scheduler for it that
    is not there. It goes on without knowing where cached blocks are, and after sixty heartbeats, ten minutes, ends the JVM.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder, self._settings = folder, settings
        self._session: SparkSession | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For programs that are to have the same kind of session: one of their own."""
        return {}

    def live(self) -> SparkSession:
        """The session that is there, or a new one."""
        if self._session is not None and not _has_executor(self._session):
            self.stop()
        if self._session is None:
            self._session = started(self._folder, **self._settings)
        return self._session

    def renew(self) -> None:
        """Nothing to do: `live` sees what a test did to the executor."""

    def stop(self) -> None:
        """End the session; the JVM stays."""
        if self._session is not None:
            self._session.stop()
            self._session = None
