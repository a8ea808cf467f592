"""The library as a zip for executors, and the errors where their Python can't import it."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis import BadConfigError
from acker_redis.client import scripts
from acker_redis.spark import ship
from acker_redis.spark.runtime import shipping

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import acker_redis.spark.worker.arrow_function
from acker_redis.client import scripts
print(scripts.__file__, *(scripts.load(name).name for name in scripts.NAMES))
"""


def test_library_and_scripts_are_found_in_the_zip(tmp_path: Path) -> None:
    path = shipping._zip()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, path],
        cwd=tmp_path, env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    file, *names = done.stdout.split()
    assert (file, names) == (f"{path}/acker_redis/client/scripts.py", list(scripts.NAMES))


def test_zip_has_the_library_only_and_the_same_name_for_the_same_files() -> None:
    first, second = shipping._zip(), shipping._zip.__wrapped__()
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    with zipfile.ZipFile(first) as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"acker_redis"}
        assert {Path(name).suffix for name in archive.namelist()} == {".py", ".lua", ".typed"}


def file_of_the_library(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [path for path in sys.path if path.endswith(shipping._zip().name)]})


@pytest.mark.spark
def test_session_gets_the_library_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = shipping._zip(), list(sys.path)
    ship(spark)
    assert sys.path == before
    monkeypatch.setattr(shipping, "_check", lambda session: pytest.fail("asked again"))
    ship(spark)
    found = spark.range(1, numPartitions=1).mapInArrow(file_of_the_library, "path string").collect()
    assert [Path(row.path).name for row in found] == [path.name]


class Session:
    """Stands for a session whose workers answer, or fail, with something."""

    def __init__(self, answer: pa.Table | Exception) -> None:
        self._answer = answer

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802
        assert pyfile

    def range(self, *_: int, **__: int) -> "Session":
        return self

    mapInArrow = range  # noqa: N815

    def toArrow(self) -> pa.Table:  # noqa: N802
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def reply(version: str | None, error: str | None) -> pa.Table:
    return pa.table({"version": pa.array([version], pa.string()), "error": pa.array([error], pa.string())})


OTHER_PYTHON = (
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run "
    "with different minor versions."
)
NO_PYARROW = (
    "Traceback (most recent call last):\n"
    '  File "/spark/pyspark.zip/pyspark/worker.py", line 1920, in read_udfs\n'
    "    import pyarrow as pa\nModuleNotFoundError: No module named 'pyarrow'\n"
)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (PySparkException(OTHER_PYTHON), "have Python 3.12, and this process has Python 3.11."),
        (PySparkException(NO_PYARROW), "can't import a module: No module named 'pyarrow'."),
        (reply(None, "No module named 'redis'"), "can't import a module: No module named 'redis'."),
        (reply("0.0.1", None), "import acker_redis 0.0.1, and this process has"),
    ],
)
def test_workers_that_cannot_use_the_library_are_refused(answer: Any, told: str) -> None:
    session: Any = Session(answer)
    for _ in range(2):  # it is asked again, as it may have been put right
        with pytest.raises(BadConfigError, match=rf"^The workers of Spark {told}"):
            ship(session)


def test_another_error_of_spark_is_raised_unchanged() -> None:
    error = PySparkException("no executor answered")
    session: Any = Session(error)
    with pytest.raises(PySparkException) as caught:
        ship(session)
    assert caught.value is error
