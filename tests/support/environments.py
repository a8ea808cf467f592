"""Virtual environments of some packages of this one, as links: nothing is fetched or copied."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def create(folder: Path, requirements: Sequence[str], python: Path | str = sys.executable) -> Path:
    """Create an environment that has these requirements, and what they require. Returns its folder of packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed(requirements, [""]):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(distribution.locate_file(top)))
    return site


def needed(requirements: Iterable[str], extras: Sequence[str]) -> set[str]:
    """The distributions behind these requirements, with the extras that they name."""
    names: set[str] = set()
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            theirs = metadata.requires(requirement.name) or []
            names |= {requirement.name, *needed(theirs, ["", *requirement.extras])}
    return names
