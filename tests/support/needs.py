"""Everything that tests need: programs, packages and jars. `python -m tests.support.needs` names what is missing.

Jars are downloaded if they aren't here yet.
"""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]

PROGRAMS = {
    "redis-server": "redis-server", "redis-cli": "redis-tools", "luajit": "luajit", "promtool": "prometheus",
    "prometheus": "prometheus",
}  # fmt: skip
"""Program -> Debian's package."""


def missing() -> Iterator[str]:
    """Yield a line for each missing one, with the remedy."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            yield f"the program {program} is missing: apt-get install {package}"
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")) and shutil.which("postgres") is None:
        yield "the program postgres is missing: apt-get install postgresql"
    for name in sorted(_packages("dev")):
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            yield f"the Python package {name} is missing: make setup"
    yield from _missing_jars()


def _packages(extra: str) -> set[str]:
    """Return the packages that an extra of this project names, itself and by other extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if requirement.name == project["name"]:
            found.update(*(_packages(one) for one in requirement.extras))
        else:
            found.add(requirement.name)
    return found


def _missing_jars() -> Iterator[str]:
    try:
        from acker_redis import AckerError
        from spark.support import kafka

        kafka.jars()
    except ImportError as exc:
        yield f"a module is missing: {exc}"
    except AckerError as exc:
        yield str(exc)


if __name__ == "__main__":
    sys.exit("\n".join(missing()) or None)
