"""Makes files and folders last beyond a loss of power."""

import os
from collections.abc import Collection
from multiprocessing.pool import ThreadPool
from pathlib import Path

_AT_ONCE = 8
"""Syncs at a time. A file system does those that wait together with one write of its journal."""


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk.

    Raises:
        OSError: the disk failed. It isn't known what it has, and another try doesn't tell.
    """
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_all(paths: Collection[Path]) -> None:
    """Sync several files or folders.

    Raises:
        OSError: as `sync`.
    """
    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    with ThreadPool(min(_AT_ONCE, len(paths))) as pool:
        pool.map(sync, paths, chunksize=1)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they don't exist, and sync the names of those that this creates.

    Raises:
        OSError: the file system failed.
    """
    fresh = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in fresh:
        sync(folder.parent)


def sync_tree(top: Path, files: Collection[str]) -> None:
    """Sync files below a folder, and all folders between. The name of the top itself isn't.

    Raises:
        OSError: as `sync`.
    """
    sync_all([top / file for file in files])
    sync_all(sorted({top / folder for file in files for folder in Path(file).parents}))
