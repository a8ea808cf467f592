"""JVMs of the tests start in half the time.

What they load is the same each time, so it comes from an archive of classes that were read and checked before. The JVM
itself refuses one that does not fit, without a word, and starts as ever.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / f"spark-{version('pyspark')}.jsa"

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
"""For JVMs that live as long as a few tests: what the second compiler and further collectors cost does not pay. With that one
compiler Java keeps 48 MB for code, and a session of all tests compiles the same code again and again. Room for classes
spares the collections of the whole heap with which Java makes more."""


def options() -> str:
    """With the archive as soon as it is there: a JVM that finds none does without Java's own, too."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK


def use() -> None:
    """For drivers and daemons that this process and its children start from now on; executors get theirs by a setting."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options()} -Dspark.ui.enabled=false"
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = options()
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK


def preloaded() -> dict[str, str]:
    """Environment of a program whose Python workers come from `tests.support.spark.daemon`, as in the tests' session."""
    use()
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Dspark.python.daemon.module=tests.support.spark.daemon",
    }


def begin() -> subprocess.Popen[bytes] | None:
    """Make what is missing of Spark's archive and Kafka's beside the tests; a process that starts before does without."""
    from spark.support import kafka

    if ARCHIVE.exists() and (kafka.archive().exists() or not kafka.are_here()):
        return None
    return subprocess.Popen(
        [sys.executable, "-m", __name__], cwd=ROOT, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def end(making: subprocess.Popen[bytes] | None) -> None:
    """Whether it got to its end or not."""
    if making is not None and making.poll() is None:
        os.killpg(making.pid, signal.SIGKILL)
        making.wait()


def make() -> None:
    """Run what most tests run, SQL, Python and files, and keep the classes that were loaded."""
    if ARCHIVE.exists():
        return
    from tests.support.spark.cluster import session

    ARCHIVE.parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=ARCHIVE.parent))
    draft = folder / ARCHIVE.name
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    try:
        spark = session(folder, {"spark.sql.shuffle.partitions": "2"})
        rows = spark.range(100).selectExpr("id % 10 AS k", "id", "cast(id AS string) AS text")
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("k").count().collect()
        rows.join(rows.groupBy("k").max("id"), "k").orderBy("id").write.json(str(folder / "json"))
        spark.read.json(str(folder / "json")).write.parquet(str(folder / "parquet"))
        stream = spark.readStream.schema("id long").parquet(str(folder / "parquet")).writeStream
        options = {"checkpointLocation": str(folder / "checkpoint")}
        stream.foreachBatch(lambda batch, _: batch.count()).options(**options).trigger(
            availableNow=True
        ).start().awaitTermination()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()  # which ends it
        jvm.wait()
        draft.replace(ARCHIVE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from tests.support.kafka import make_archive

    make()
    make_archive()
