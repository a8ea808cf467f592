"""Spark session of the applications: local, and silent except for errors."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis import AckerError
from acker_redis.spark import prepare_environment, ship

HERE = Path(__file__).resolve().parent

REMOTE = "SPARK_REMOTE"
"""Variable with the address of a server of Spark Connect, as PySpark names it."""

_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@contextlib.contextmanager
def quiet_session(master: str, app_name: str, arrow_rows: int = 1_000) -> Iterator[SparkSession]:
    """Create a session whose workers can import the applications, and stop it at the end.

    With SPARK_REMOTE in the environment, it is a session of Spark Connect, and the library is sent to that server. The JVM
    of a local session logs to a file that is removed with the session: every relevant error reaches the driver as an
    exception. With another master, Spark logs as configured.

    Args:
        master: Spark master of a classic session, with task retries as in local[2,4].
        app_name: name in Spark's own pages.
        arrow_rows: number of rows per record batch.

    Raises:
        AckerError: Spark did not start. The message has Spark's error.
    """
    if REMOTE in os.environ:
        with _connected(arrow_rows) as spark:
            yield spark
        return
    prepare_environment()
    # Python workers import functions by name, from any working directory.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    builder = (
        SparkSession.builder.master(master)
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(_ARROW_ROWS, str(arrow_rows))
    )
    with tempfile.TemporaryFile() as log:
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            options = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.extraJavaOptions", options)
        from py4j.protocol import Py4JError  # which pyspark-client lacks

        try:
            with _stderr_to(log.fileno()) if master.startswith("local") else contextlib.nullcontext():
                spark = builder.getOrCreate()
        except (Py4JError, PySparkException) as exc:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            causes = [line.partition("Exception: ")[2] for line in str(exc).splitlines() if "Exception: " in line]
            reason = causes[0] if causes else "\n".join([str(exc), *lines[-5:]])
            raise AckerError(
                f"Spark could not start with master={master!r}. Check the master and the Java installation. Error: {reason}"
            ) from exc
        try:
            yield spark
        finally:
            spark.stop()


def parallelism(spark: SparkSession) -> int:
    """Return the number of cores, or over Spark Connect, which doesn't tell it, the number of partitions of a shuffle."""
    if REMOTE in os.environ:
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return spark.sparkContext.defaultParallelism


@contextlib.contextmanager
def _connected(arrow_rows: int) -> Iterator[SparkSession]:
    try:
        spark = SparkSession.builder.getOrCreate()
        spark.conf.set(_ARROW_ROWS, str(arrow_rows))
    except PySparkException as exc:
        raise AckerError(
            f"Spark Connect did not answer at {REMOTE}={os.environ[REMOTE]!r}. Start the server, or unset the variable. "
            f"Error: {exc}"
        ) from exc
    try:
        ship(spark)
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _stderr_to(file: int) -> Iterator[None]:
    """Redirect the stderr that new processes inherit."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
