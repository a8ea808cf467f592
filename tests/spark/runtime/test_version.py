"""An unsupported PySpark, or none, is told in one sentence when the Spark layer is imported."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from acker_redis.spark.runtime.version import SUPPORTED

ROOT = Path(__file__).resolve().parents[3]


def imported(folder: Path) -> str:
    """The last line of a program that has only the PySpark in the folder, or finds a folder without one."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from acker_redis.spark import run_tracked"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4.2.0", "4.30.0", "5.0.0"])
def test_unsupported_pyspark_version_is_named_in_the_error(version: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    assert imported(tmp_path) == (
        f"acker_redis.errors.SparkVersionError: PySpark {version} is installed, but acker_redis.spark needs PySpark 4.3. "
        "Run `pip install 'pyspark==4.3.*'`."
    )


def test_missing_pyspark_error_names_pip_install_command(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    assert imported(tmp_path) == (
        "acker_redis.errors.SparkVersionError: pyspark is not installed. acker_redis.spark needs PySpark 4.3. "
        "Run `pip install 'acker-redis[spark]'`."
    )


def test_supported_versions_match_spark_extra_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = (one for one in project["optional-dependencies"]["spark"] if one.startswith("pyspark"))
    assert wanted == f"pyspark=={SUPPORTED[-1]}.*"
