"""Command `python -m docsite`: collect the sources of the site in `build/docs`."""

from pathlib import Path

from docsite import pages, reference

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    pages.gather(root, root / "build" / "docs", reference.pages())
