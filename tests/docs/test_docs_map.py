"""Docs are laid out by purpose, and docs/internals/architecture.md names every package of the library."""

from pathlib import Path

import acker_redis

PACKAGE = Path(acker_redis.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


def test_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}
    assert {"cli", "spark", "spark/worker"} <= packages
    assert [name for name in sorted(packages) if f"`{name}/`" not in page] == []


def test_a_folder_of_docs_has_at_most_twelve_pages() -> None:
    folders = [path for path in (ROOT / "docs").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {"start", "guides", "operate", "reference", "internals", "images"}
    assert [path.name for path in folders if len(list(path.glob("*.md"))) > 12] == []
