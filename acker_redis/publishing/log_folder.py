"""Folders in which a file can be created only once, whoever tries."""

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from acker_redis.publishing.disk import make_folder, sync

STAGE, SKIPPED = "stage", "skipped"
"""Folders beside the records of a log: of rows that wait, and of rows that a person on call has given up."""

_DRAFT = ".draft"
_TRIES = 10


class _DraftGoneError(Exception):
    """Somebody has removed the draft of a file before it got its name. So it wasn't created."""


class LogFolder(Protocol):
    """A folder of small files. Every method raises OSError if the file system fails."""

    def names(self) -> list[str]:
        """List the files. A folder that doesn't exist has none."""

    def folders(self) -> list[str]:
        """List the folders in it."""

    def read(self, name: str) -> bytes | None:
        """Read a file; None: there is none."""

    def create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        """Create a file, completely or not at all. Return False if it exists, and leave it as it is.

        Args:
            name: its name.
            data: its contents, or their parts, which may be read several times.

        Raises:
            OSError: it isn't known whether the file was created. It may still appear.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def remove_drafts(self, name: str) -> None:
        """Remove what processes that died have left of files that they began before a file, if that is possible."""

    def check(self) -> None:
        """Check that a file can be created only once, if there are places of this kind where it isn't so.

        Raises:
            BadConfigError: it isn't so here.
        """


class LocalLogFolder:
    """A folder on a local disk, or on one that is shared and has hard links. A link never replaces a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Set the path. The folder is created with its first file."""
        self.path = Path(path).absolute()

    def names(self) -> list[str]:
        """List the files."""
        try:
            return [entry.name for entry in os.scandir(self.path) if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    def folders(self) -> list[str]:
        """List the folders."""
        try:
            return [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Read a file."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        """Create a file. It is on the disk when this returns."""
        make_folder(self.path)
        for _ in range(_TRIES):
            with suppress(_DraftGoneError):
                return self._create(name, data)
        raise OSError(f"{self.path / name} couldn't be created, because others remove its draft all the time")

    def _create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        draft = self.path / f".{uuid.uuid4().hex}{_DRAFT}"
        try:
            with draft.open("xb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self.path / name)
        except FileExistsError:
            return False
        except FileNotFoundError as exc:
            if draft.exists() or not self.path.exists():
                raise
            raise _DraftGoneError from exc  # a run that has begun meanwhile took it for one of a process that died
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        sync(self.path)
        return True

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)

    def remove_drafts(self, name: str) -> None:
        """Remove drafts that are older than a file. Their numbers are at most that of the file, so it loses none of them."""
        with suppress(OSError):  # a later run removes them
            began_ns = (self.path / name).stat().st_mtime_ns
            for draft in self.path.glob(f".*{_DRAFT}"):
                if draft.stat().st_mtime_ns < began_ns:
                    draft.unlink(missing_ok=True)

    def check(self) -> None:
        """Do nothing. A disk without hard links refuses the first file."""
