"""Pages of the repository, copied to their places on the site, with links that lead to the same pages there.

So each link works twice: in the repository, from file to file, and on the site.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "lua/README.md": "lua.md",
    "spark/README.md": "examples.md",
    "tests/README.md": "tests.md",
}
"""Pages outside of `docs/`, and their places on the site."""

_CODE_BLOCK = re.compile(r"^( *```.*?^ *```\n)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]*)(#[^()\s]*)?\)")


def gather(root: Path, target: Path, made: Mapping[str, str]) -> None:
    """Empty the folder, then fill it with the pages of the repository and the generated ones.

    Raises:
        FileNotFoundError: if a link leads nowhere.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "docs", target)
    places = {
        f"docs/{path.relative_to(target).as_posix()}": path.relative_to(target).as_posix()
        for path in target.rglob("*.*")
    }
    places |= ELSEWHERE
    for source, place in places.items():
        if source.endswith(".md"):
            text = (root / source).read_text(encoding="utf-8")
            (target / place).write_text(moved(text, source, places, root), encoding="utf-8")
    for place, text in made.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")


def moved(text: str, source: str, places: Mapping[str, str], root: Path) -> str:
    """Return a page as the site has it. A link to a file that isn't on the site, such as code, becomes its text."""

    def link(found: re.Match[str]) -> str:
        image, label, to, anchor = found[1], found[2], found[3], found[4] or ""
        if not to or "://" in to:
            return found[0]
        wanted = os.path.normpath(PurePosixPath(source).parent / to)
        if wanted in places:
            start = PurePosixPath(places[source]).parent
            return f"{image}[{label}]({os.path.relpath(places[wanted], start)}{anchor})"
        if not (root / wanted).exists():
            raise FileNotFoundError(f"{source}: a link leads to {to}, which does not exist")
        return label

    parts = _CODE_BLOCK.split(text)  # code is every second one
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))
