"""Puts staged files into tables that are folders on a local disk. Readers see a file completely or not at all.

A file's name in the table has the log and the record's number, so a table tells which records of a log it has.
"""

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from acker_redis.errors import BadConfigError, FilesNotMovedError, PipelineError
from acker_redis.publishing.disk import make_folder, sync_all
from acker_redis.publishing.records import Staged

_NUMBER = re.compile(r"^acker-([0-9a-f]{12})-(\d{10})-")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_NAME = re.compile(r"[^A-Za-z0-9]+")


def local_folder(location: str, what: str, base: Path | None = None) -> Path:
    """Return the absolute path of a folder on a local disk.

    Args:
        location: path or URI of the folder.
        what: what it has, for the error.
        base: folder of relative paths; None: the present one of this process.

    Raises:
        BadConfigError: the location is elsewhere.
    """
    scheme, colon, path = location.partition(":")
    if colon and scheme != "file" and "/" not in scheme:
        raise BadConfigError(
            f"{what} {location!r} isn't on a local disk. Files can be published only where a rename is atomic. Use a path of "
            "this machine, or of a disk that all executors share."
        )
    return Path(base or "", "/" + path.lstrip("/") if colon and scheme == "file" else location).absolute()


def check_rename(stage: Path, target: Path) -> None:
    """Check that files can be renamed from a stage into a table, by doing it with an empty one.

    Numbers of devices don't tell: two mounts of one device refuse it.

    Raises:
        BadConfigError: they can't.
        OSError: the file system failed. Call it again.
    """
    stage.mkdir(parents=True, exist_ok=True)
    name = f".acker-probe-{uuid.uuid4().hex}"  # which readers skip, should the process die now
    source, place = stage / name, _nearest(target) / name
    try:
        source.touch()
        try:
            source.rename(place)
        except OSError as exc:
            if exc.errno in _FULL:
                raise
            raise BadConfigError(
                f"A file can't be renamed from {stage} into the table {target}: {exc.strerror}. So rows can't be moved "
                "there at once. Put the publish log on the file system of the table, and let this process write to both."
            ) from exc
    finally:
        for path in (source, place):
            with suppress(OSError):
                path.unlink()


def _nearest(path: Path) -> Path:
    """Return a path, or the nearest of its parents that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def is_read(name: str) -> bool:
    """Return True if Spark's readers don't skip a file or folder with this name."""
    return name[0] != "." and (name[0] != "_" or "=" in name)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a table, or of a part of it."""
    for parent, folders, names in os.walk(folder):
        folders[:] = filter(is_read, folders)
        yield from (Path(parent, name) for name in names if is_read(name))


def check_partitions(sink: str, target: Path, there: Path, staged: Path) -> None:
    """Check that staged files are partitioned as those of the table are. Readers would ignore one of them.

    Args:
        sink: name of the sink.
        target: the table.
        there: path of a file, below the table.
        staged: path of a file, below the stage.

    Raises:
        PipelineError: they aren't.
    """
    before, now = _partitioned_by(there), _partitioned_by(staged)
    if before != now:
        raise PipelineError(
            f"{sink!r}: the table {target} is partitioned by {before or 'nothing'}, and the writer partitions by "
            f"{now or 'nothing'}. Readers would ignore some of the files. Partition by the same columns, or choose another "
            "folder."
        )


def _partitioned_by(file: Path) -> list[str]:
    return [part.partition("=")[0].lower() for part in file.parent.parts]


def short_name(location: str) -> str:
    """Return the name for a new log in a folder. A log that is made anew there has the same, which shows if one was lost."""
    return hashlib.sha256(location.encode()).hexdigest()[:12]


class LocalFiles:
    """Publish the staged files of one log. `publish` may be called again, in any process, at the same time.

    Attributes:
        log: short name of the log.
    """

    def __init__(self, log: str, *, assume_moved: bool = False) -> None:
        """Set the log's short name, and whether a file that is nowhere was moved, and then compacted by somebody."""
        self.log, self._assume_moved = log, assume_moved
        self._moved: tuple[int, set[Path]] = (0, set())  # by this process, of the newest record

    def publish(self, number: int, staged: Staged) -> None:
        """Move the files of one sink into its table. A file that was moved before is left where it is now.

        When this returns, the disk has their names.

        Raises:
            FilesNotMovedError: a file is neither in the stage nor in the table, or in both.
            OSError: the file system failed. Call it again.
        """
        if self._moved[0] != number:
            self._moved = number, set()
        for file in staged.files:
            try:
                self._move(Path(staged.stage, file), self.place_of(number, staged, file))
            except FilesNotMovedError as exc:
                raise FilesNotMovedError(f"Record {number} of the publish log, sink {staged.name!r}: {exc}") from None
        folders = {folder for file in staged.files for folder in Path(file).parents}
        places = (Path(staged.target, folder) for folder in sorted(folders, reverse=True))
        sync_all([place for place in places if place.exists()])  # a compaction may have removed one

    def place_of(self, number: int, staged: Staged, file: str) -> Path:
        """Return the path that a staged file gets in the table."""
        place = Path(staged.target, file)
        sink = _NO_NAME.sub("-", staged.name).strip("-")[:40]
        return place.with_name(f"acker-{self.log}-{number:010}-{sink}-{place.name}")

    def newest_number(self, target: str) -> int:
        """Return the largest number of a record that the table has files of; 0: none."""
        found = 0
        for _, _, names in os.walk(target):
            for name in names:
                if (match := _NUMBER.match(name)) and match[1] == self.log:
                    found = max(found, int(match[2]))
        return found

    def _move(self, source: Path, place: Path) -> None:
        if place in self._moved[1]:
            return
        if source.exists():
            if place.exists() and source.exists():  # else another process has moved it meanwhile
                raise FilesNotMovedError(
                    f"{place} exists, and so does {source}, which belongs there. Both may have rows, so nothing was moved. "
                    "Remove the wrong one, and start again."
                )
            make_folder(place.parent)
            try:
                self._rename(source, place)
            except FileNotFoundError:
                if source.exists():
                    raise
            else:
                self._moved[1].add(place)
                return
        if not place.exists() and not self._assume_moved:
            raise FilesNotMovedError(
                f"{source.name} is neither in the stage {source.parent} nor in the table as {place}. If it was there, and "
                "a compaction has removed it since, its rows are in the table: run acker-redis once publish --assume-moved on "
                "the log. Else restore the file, or the place of the log, which may have been moved."
            )

    def _rename(self, source: Path, place: Path) -> None:
        os.utime(source)  # a stream that reads the table must not take it for older than it is
        source.rename(place)
