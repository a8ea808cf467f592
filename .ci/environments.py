"""Python environments with other versions of Spark, which all clones on a machine share. Needs Python alone.

`python3 .ci/environments.py 4.0` prints the Python of the environment for Spark 4.0, and makes it first if it isn't there.
It has the packages of the extra `spark-tests`, but not this project: set PYTHONPATH to the checkout. With `connect` as second
argument it has pyspark-client and no PySpark.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRA = "spark-tests"
KEPT_SECS = 30 * 86_400.0
"""An environment with other pins is removed once nothing has used it for this long."""

_COMPLETE = ".complete"


def cache() -> Path:
    """Return the folder of the environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acker-redis" / "environments"


def versions() -> dict[str, dict[str, str]]:
    """Return the pins of each version of Spark in `spark-versions`: "4.0" -> package -> version."""
    lines = (ROOT / ".ci" / "spark-versions").read_text(encoding="utf-8").splitlines()
    found = [dict(pin.split("==") for pin in line.split()) for line in lines if not line.startswith("#")]
    return {pins["pyspark"].rpartition(".")[0]: pins for pins in found}


def constraints(spark: str) -> str:
    """Return the pins of `constraints.txt`, those of a version of Spark in their places."""
    own = versions()[spark]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in {*own, "py4j"}]  # PySpark pins py4j itself
    return "\n".join([*(f"{name}=={version}" for name, version in own.items()), *kept, ""])


def requirements(extra: str) -> list[str]:
    """Return what this project requires, with an extra, other extras that it names resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def of(extra: str) -> Iterator[str]:
        for line in project["optional-dependencies"][extra]:
            if (ours := re.fullmatch(rf"{project['name']}\[(.+)\]", line)) is None:
                yield line
            else:
                for other in ours[1].split(","):
                    yield from of(other)

    return [*project["dependencies"], *of(extra)]


def python_of(spark: str, extra: str = EXTRA) -> Path:
    """Return the Python of an environment. One that is missing, half-made or broken is made.

    Raises:
        subprocess.CalledProcessError: a package can't be installed.
    """
    pins, wanted = constraints(spark), requirements(extra)
    told = "\n".join([sys.version, pins, *wanted])
    kind = "client" if extra == "connect" else "spark"
    folder = cache() / f"{kind}-{spark}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait until it is made
        if not _works(folder):
            _remove_old(folder)
            shutil.rmtree(folder, ignore_errors=True)
            say(f"Spark {spark}: packages are installed into {folder}, about 1 GB")
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            (folder / "constraints.txt").write_text(pins, encoding="utf-8")
            pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            subprocess.run([*pip, "-c", str(folder / "constraints.txt"), *wanted], check=True, stdout=sys.stderr)
        (folder / _COMPLETE).touch()
    return python


def _works(folder: Path) -> bool:
    """Return True if an environment was made to its end, and its largest packages can be imported."""
    command = [str(folder / "bin" / "python"), "-c", "import pandas, pyarrow, pyspark, pyspark.sql"]
    try:
        return (folder / _COMPLETE).exists() and not subprocess.run(
            command, capture_output=True, check=False
        ).returncode
    except OSError:
        return False


def _remove_old(folder: Path) -> None:
    """Remove environments of the same kind and Spark, with other pins, that nothing has used for long."""
    for other in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*/{_COMPLETE}"):
        if other.parent != folder and time.time() - other.stat().st_mtime > KEPT_SECS:
            say(f"{other.parent} is removed: it was not used for a month")
            shutil.rmtree(other.parent, ignore_errors=True)


def say(text: str) -> None:
    """Print a line beside the result."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Print the Python of an environment. Return an exit status."""
    known = ", ".join(versions())
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["connect"]):
        say(f"Name a version of Spark ({known}), and connect for its client alone.")
        return 2
    if arguments[0] not in versions():
        say(
            f"Spark {arguments[0]} is not among the versions that are tried here. Name one of {known}, such as SPARK=4.0."
        )
        return 2
    try:
        print(python_of(arguments[0], *arguments[1:]))
    except subprocess.CalledProcessError as exc:
        say(f"The environment can't be made: {' '.join(map(str, exc.cmd[:4]))} failed. Look at its message above.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
