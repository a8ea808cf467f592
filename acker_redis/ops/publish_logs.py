"""Publish logs for the person on call: what they say, what is left to be done, and ways to complete or to give it up.

All of it works without Redis and Spark. What decides something begins a run in the log, so a run that still works is fenced.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from acker_redis.errors import AckerError, BadConfigError, FilesNotMovedError
from acker_redis.publishing.disk import make_folder, sync
from acker_redis.publishing.files import LocalFiles, local_folder
from acker_redis.publishing.locations import folder_at, location_below, whole_location
from acker_redis.publishing.log_folder import SKIPPED
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog, is_log
from acker_redis.publishing.records import FILES, Accepted, Owner, Staged


@dataclass(frozen=True)
class Waiting:
    """Rows that were accepted, and aren't known to be in their table.

    Attributes:
        number: number of their record.
        sink: name of the sink.
        target: the table.
        rows: number of rows.
        staged: number of their files that are still in the stage.
    """

    number: int
    sink: str
    target: str
    rows: int
    staged: int


@dataclass(frozen=True)
class Table:
    """A table of a log, held against the records that no snapshot has replaced.

    Attributes:
        target: the table.
        there: number of published files that are in the table.
        gone: number of published files that aren't. A compaction removes them; it isn't seen whether their rows are lost.
        newest: number of the newest record that the table has files of; 0: none. None: it has none of ours.
    """

    target: str
    there: int
    gone: int
    newest: int | None


class LogUpkeep:
    """One publish log, as it is now.

    Attributes:
        location: its folder.
        log: the log.
    """

    def __init__(self, location: str) -> None:
        """Read the log.

        Raises:
            AckerError: the folder can't be read.
            BadConfigError: there is no log.
            DamagedDataError: a record or snapshot can't be read.
        """
        self.location = whole_location(location)
        self.log = PublishLog(folder_at(self.location))
        try:
            self.log.read()
            logs = [] if self.log.state.number else _logs_in(self.location)
        except OSError as exc:
            raise AckerError(
                f"The publish log {self.location} can't be read: {exc}. So it isn't known what it says. Repair the file "
                "system, and repeat the command."
            ) from exc
        if not self.log.state.number:
            there = (
                f"Logs in that folder are {', '.join(logs)}. Name one of them" if logs else "Name the folder of a log"
            )
            raise BadConfigError(
                f"{self.location} is no publish log, because it has no record. {there}: location/data."
            )

    @property
    def owner(self) -> Owner:
        """What the log belongs to."""
        if (owner := self.log.state.owner) is None:
            raise BadConfigError(
                f"{self.location} has no record of a run's begin. So it isn't known whose it is. Restore it."
            )
        return owner

    def waiting(self) -> list[Waiting]:
        """Return what was accepted and isn't known to be published, in the order of the records."""
        return [
            Waiting(number, staged.name, staged.target, staged.rows, _in_stage(staged))
            for number, accepted in sorted(self.log.state.to_publish.items())
            for staged in accepted.staged
        ]

    def tables(self, others: Sequence[str] = ()) -> list[Table]:
        """Hold the tables against the log. Of records that a snapshot has replaced, the log has no names of files.

        Args:
            others: folders of tables that the log may not know, because it was lost.

        Raises:
            BadConfigError: a folder isn't on a local disk.
        """
        known = {*self.log.state.tables, *(str(local_folder(table, "The table")) for table in others)}
        files, found = LocalFiles(self.log.state.name), dict.fromkeys(known, (0, 0))
        for number, record in self.log.records():
            if isinstance(record.decision, Accepted):
                for staged in record.decision.staged:
                    if staged.kind != FILES:
                        continue
                    are_there = [files.place_of(number, staged, file).exists() for file in staged.files]
                    there, gone = found.get(staged.target, (0, 0))
                    found[staged.target] = there + sum(are_there), gone + len(are_there) - sum(are_there)
        return [
            Table(target, *counts, None if _has_no_files(target) else files.newest_number(target))
            for target, counts in sorted(found.items())
        ]

    def publish(self, *, assume_moved: bool = False) -> int:
        """Publish what was accepted, and return the number of records.

        Args:
            assume_moved: whether a file that is nowhere was in its table, and then compacted by somebody.

        Raises:
            FilesNotMovedError: a file is neither in the stage nor in the table, or in both.
            AckerError: the file system failed. Call it again.
        """
        if not (count := len(self.log.state.to_publish)):
            return 0
        files = LocalFiles(self.log.state.name, assume_moved=assume_moved)

        def publish(number: int, staged: Staged) -> None:
            if staged.kind != FILES:
                raise FilesNotMovedError(
                    f"Rows of record {number} wait for the sink {staged.name!r}, a table where only a run can put "
                    f"them ({staged.kind}): {staged.target}. They come first. Start the run again, which puts them there."
                )
            files.publish(number, staged)

        self._begin()
        try:
            _decided(self.location, lambda: self.log.publish(publish))
        finally:
            _decided(self.location, self.log.note_published)
        return count

    def waits(self, number: int, sink: str) -> Waiting:
        """Return the rows of one record that wait for a sink.

        Raises:
            BadConfigError: none do.
        """
        waiting = {(one.number, one.sink): one for one in self.waiting()}
        if (number, sink) not in waiting:
            there = ", ".join(f"{one} {name!r}" for one, name in waiting) or "none"
            raise BadConfigError(
                f"No rows of record {number} wait for the sink {sink!r}. Name a record and a sink that wait: {there}."
            )
        return waiting[number, sink]

    def skip(self, number: int, sink: str) -> Path | None:
        """Give up the rows of one record that wait for a sink.

        Return the folder to which their files were moved, or None if they have no files.

        Files that are in the table already stay there, and so do rows in a branch of it, or in a store.

        Raises:
            BadConfigError: no rows of that record wait for the sink.
            AckerError: the file system failed. Call it again.
        """
        self.waits(number, sink)
        (staged,) = (one for one in self.log.state.to_publish[number].staged if one.name == sink)
        place = Path(self.location, SKIPPED, f"{number}-{Path(staged.stage).name}")
        self._begin()
        if staged.files:
            # Before it is decided: the next start removes what is left in the stage, and then this can't be repeated.
            _decided(self.location, lambda: _move_away(Path(staged.stage), place))
        _decided(self.location, lambda: self.log.skip(number, sink))
        return place if staged.files else None

    def reopen(self) -> int:
        """Decide that all dead messages run again at the next start, and return their number.

        Their letters stay until then. A stream doesn't get its messages again; ask it for replays instead.

        Raises:
            AckerError: the file system failed. Call it again.
        """
        dead = [(partition, number) for partition, by in sorted(self.log.state.dead.items()) for number in by]
        if dead:
            names, run = MessageNames.of_places(dead), self._begin()
            by_records = self.log.state.dead_by(names)
            _decided(self.location, lambda: self.log.reopen(run, names, by_records))
        return len(dead)

    def _begin(self) -> str:
        run, state = f"by-hand-{uuid.uuid4().hex}", self.log.state
        _decided(self.location, lambda: self.log.begin(run, self.owner, state.name))
        return run


def _decided(location: str, call: Callable[[], object]) -> None:
    try:
        call()
    except OSError as exc:
        raise AckerError(
            f"The publish log {location} or a table can't be written: {exc}. So this isn't complete. Repair the file "
            "system, and repeat the command."
        ) from exc


def _move_away(folder: Path, place: Path) -> None:
    make_folder(place.parent)
    if folder.exists():  # else an earlier try has moved it
        folder.rename(place)
        sync(place.parent)


def _has_no_files(target: str) -> bool:
    """Return True if a table is one of Delta, which may be anywhere, of Iceberg, or of a store. Files are on a local disk."""
    return "://" in target or Path(target, "_delta_log").is_dir()


def _in_stage(staged: Staged) -> int:
    return sum(Path(staged.stage, file).exists() for file in staged.files)


def _logs_in(location: str) -> list[str]:
    folders = [location_below(location, name) for name in sorted(folder_at(location).folders())]
    return [folder for folder in folders if is_log(folder_at(folder))]
