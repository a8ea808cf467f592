"""Virtual environments of some packages of this one, as links: nothing is fetched."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def create(
    folder: Path, requirements: Sequence[str], python: Path | str = sys.executable, *, for_all: bool = False
) -> Path:
    """Create an environment that has these requirements, and what they require. Returns its folder of packages.

    With `for_all`, each file has a link of its own, because another user may not enter the folder of this environment.
    """
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed(requirements, [""]):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            found = Path(str(distribution.locate_file(top)))
            if (site / top).exists():
                continue  # a folder of several packages, which came with the first of them
            if not for_all:
                (site / top).symlink_to(found)
            elif found.is_dir():
                shutil.copytree(found, site / top, copy_function=_link)
            else:
                _link(found, site / top)
    return site


def _link(file: str | Path, link: str | Path) -> None:
    try:
        os.link(file, link)
    except OSError:  # on another disk
        shutil.copy(file, link)


def needed(requirements: Iterable[str], extras: Sequence[str]) -> set[str]:
    """The distributions behind these requirements, with the extras that they name."""
    names: set[str] = set()
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            theirs = metadata.requires(requirement.name) or []
            names |= {requirement.name, *needed(theirs, ["", *requirement.extras])}
    return names
