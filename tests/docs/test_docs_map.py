"""Docs are laid out by purpose, and what they name is there: every package, every file and every module."""

import functools
import importlib
import re
from pathlib import Path

import pytest

import acker_redis

PACKAGE = Path(acker_redis.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *DOCS.rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "lua/README.md", "tests/README.md")),
]
PATH = re.compile(r"(?<![\w/.:<>-])(?:\.\./)*([\w-]+(?:/[\w-]+)*\.(?:py|lua))\b(?!\()")
MODULE = re.compile(r"\backer_redis(?:\.[a-zA-Z_]\w*)+")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _files_in(*folders: Path) -> set[str]:
    return {_name(path) for folder in folders for end in ("py", "lua") for path in folder.rglob(f"*.{end}")}


OURS = _files_in(*(ROOT / name for name in ("acker_redis", "lua", "spark", "stack", "docsite")))


def is_there(path: str, page: Path) -> bool:
    """Whether a file is there. Pages leave out the beginning of a path, such as the package or the page's own folder."""
    beside = _files_in(page.parent) if page.parent not in (ROOT, DOCS) else set()
    return (ROOT / path).is_file() or any(f"/{file}".endswith(f"/{path}") for file in OURS | beside)


def names_something(dotted: str) -> bool:
    """Whether this is a module, or a name in one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(lambda holder, name: getattr(holder, name, None), parts[end:], value) is not None
    return False


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_files_and_modules_named_by_docs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert sorted(path for path in set(PATH.findall(text)) if not is_there(path, page)) == []
    assert sorted(name for name in set(MODULE.findall(text)) if not names_something(name)) == []


def test_architecture_names_every_package() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}
    assert {"cli", "spark", "spark/worker"} <= packages
    assert [name for name in sorted(packages) if f"`{name}/`" not in page] == []


def test_a_folder_of_docs_has_at_most_twelve_pages() -> None:
    folders = [path for path in DOCS.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {
        "start",
        "guides",
        "topologies",
        "operate",
        "reference",
        "internals",
        "images",
    }
    assert [path.name for path in folders if len(list(path.glob("*.md"))) > 12] == []
