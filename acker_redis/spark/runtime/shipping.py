"""Give the executors the library, where it isn't installed there."""

import atexit
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from weakref import WeakSet

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.client import scripts
from acker_redis.errors import BadConfigError
from acker_redis.spark.runtime.worker_errors import environment_error_in, not_importable
from acker_redis.version import VERSION

_DIGEST_CHARS = 12
_OLDEST_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every file in the zip, so that the same files make the same zip."""

_shipped: WeakSet[SparkSession] = WeakSet()


def ship(spark: SparkSession) -> None:
    """Give the executors this installation of acker_redis.

        spark = SparkSession.builder.remote("sc://spark.example:15002").getOrCreate()
        ship(spark)
        run_tracked(messages, pipeline, acker=acker, ids="id")

    Python workers import the library. Call this once per session, before the first run, unless the library is installed on
    every machine with executors. It sends a zip with the library's code and scripts as an artifact of the session, over
    Spark Connect and in classic sessions. A second call for the same session does nothing.

    The zip has no other packages. The Python of the workers must have the same minor version as yours, with redis, numpy,
    pandas and pyarrow installed. One task on one executor checks that.

    Raises:
        BadConfigError: the workers have another Python, lack a package, or import another copy of the library.
    """
    if spark in _shipped:
        return
    path = _zip()
    spark.addArtifacts(str(path), pyfile=True)
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(path.name)]  # PySpark puts it there, for nothing
    _check(spark)
    _shipped.add(spark)


@cache
def _zip() -> Path:
    """Write the library into a zip, which exists until this process ends: classic executors fetch it when they start."""
    folder = Path(tempfile.mkdtemp(prefix="acker-redis-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    files = scripts.library_files()
    digest = hashlib.sha256(
        b"\0".join(name.encode() + b"\0" + text for name, text in sorted(files.items()))
    ).hexdigest()
    path = folder / f"acker_redis-{VERSION}-{digest[:_DIGEST_CHARS]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _OLDEST_DATE), content, zipfile.ZIP_DEFLATED)
    return path


def _check(spark: SparkSession) -> None:
    try:
        reply = spark.range(1, numPartitions=1).mapInArrow(_probe(), "version string, error string").toArrow()
    except PySparkException as exc:
        own = environment_error_in(str(exc))
        if own is None:
            raise
        raise own from exc
    version, error = (column[0].as_py() for column in reply.columns)
    if error is not None:
        raise not_importable(error)
    if version != VERSION:
        raise BadConfigError(
            f"The workers of Spark import acker_redis {version}, and this process has {VERSION}. Tasks of one can't read rows "
            "of the other. Remove the older one, or open a new session."
        )


def _probe() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that pickle sends as it is, because a worker without the library can't import it by its name."""
    modules = ("pandas", "acker_redis.spark.worker.arrow_function", "acker_redis.client.scripts", "acker_redis.version")

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib import import_module

        import pyarrow

        version, error = None, None
        try:
            *_, scripts, about = map(import_module, modules)
            scripts.load("ack")
            version = about.VERSION
        except Exception as exc:
            error = str(exc)
        for _batch in batches:
            yield pyarrow.RecordBatch.from_pydict(
                {"version": pyarrow.array([version], "string"), "error": pyarrow.array([error], "string")}
            )

    return probe
