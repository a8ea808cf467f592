"""Puts staged files into tables that are folders on a local disk. Readers see a file completely or not at all.

A file's name in the table has the log and the record's number, so a table tells which records of a log it has.
"""

import hashlib
import os
import re
from pathlib import Path

from acker_redis.publishing.errors import FilesNotMovedError
from acker_redis.publishing.records import Staged

_NUMBER = re.compile(r"^acker-([0-9a-f]{12})-(\d{10})-")
_NO_NAME = re.compile(r"[^A-Za-z0-9]+")


def short_name(location: str, data: str | None) -> str:
    """Return the name that a log has in the names of files. It is the same in each run."""
    return hashlib.sha256(f"{location}\n{data or ''}".encode()).hexdigest()[:12]


class LocalFiles:
    """Publish the staged files of one log. `publish` may be called again, in any process, at the same time."""

    def __init__(self, log: str, *, assume_moved: bool = False) -> None:
        """Set the log's short name, and whether a file that is nowhere was moved, and then compacted by somebody."""
        self._log, self._assume_moved = log, assume_moved
        self._moved: tuple[int, set[Path]] = (0, set())  # by this process, of the newest record

    def publish(self, number: int, staged: Staged) -> None:
        """Move the files of one sink into its table. A file that was moved before is left where it is now.

        Raises:
            FilesNotMovedError: a file is neither in the stage nor in the table, or in both.
            OSError: the file system failed. Call it again.
        """
        if self._moved[0] != number:
            self._moved = number, set()
        for file in staged.files:
            self._move(Path(staged.stage, file), self.place_of(number, staged, file))

    def place_of(self, number: int, staged: Staged, file: str) -> Path:
        """Return the path that a staged file gets in the table."""
        place = Path(staged.target, file)
        sink = _NO_NAME.sub("-", staged.name).strip("-")[:40]
        return place.with_name(f"acker-{self._log}-{number:010}-{sink}-{place.name}")

    def newest_number(self, target: str) -> int:
        """Return the largest number of a record that the table has files of; 0: none."""
        found = 0
        for _, _, names in os.walk(target):
            for name in names:
                if (match := _NUMBER.match(name)) and match[1] == self._log:
                    found = max(found, int(match[2]))
        return found

    def _move(self, source: Path, place: Path) -> None:
        if place in self._moved[1]:
            return
        if source.exists():
            if place.exists():
                raise FilesNotMovedError(
                    f"{place} exists, and so does {source}, which belongs there. Both may have rows, so nothing was moved. "
                    "Remove the wrong one, and start again."
                )
            place.parent.mkdir(parents=True, exist_ok=True)
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
                "a compaction has removed it since, its rows are in the table. Else they are lost."
            )

    def _rename(self, source: Path, place: Path) -> None:
        os.utime(source)  # a stream that reads the table must not take it for older than it is
        source.rename(place)
