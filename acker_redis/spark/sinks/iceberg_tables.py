"""Iceberg tables whose rows wait in a branch.

A stage is a branch of the table, which readers of the table don't see. So Iceberg checks rows when they are staged, and keeps
the files from those who expire snapshots. From there, one commit moves the branch's snapshot to the table, removes the branch,
and notes the number of the record in a property of the table. No file is moved or copied. Iceberg refuses a snapshot that the
table has already, if another process is faster.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.errors import AckerError, BadConfigError, FilesNotMovedError
from acker_redis.publishing.records import Staged
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runtime.jvm import java_errors, java_static
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget
from acker_redis.spark.sql import quoted

log = logging.getLogger("acker_redis.spark")

ICEBERG = "iceberg"
"""Kind of Iceberg tables."""

_PREFIX = "acker-redis-"
"""How names of branches begin. The rest is the key of a stage: log, number of the run's first record, and others."""

_SCHEME = f"{ICEBERG}://"
_UTIL = "org.apache.iceberg.spark.Spark3Util"
_BRANCH, _SNAPSHOT, _BASE, _PLACE = "branch", "snapshot", "base", "place"
_BRANCH_FILE = "branch.json"
_OF_BRANCH = "branch_"
"""How Iceberg's names of tables say that a branch is meant."""

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ROWS = "added-records"
_TRIES = 3
_THERE = "CherrypickAncestorCommitException"
"""Name of the error of a snapshot that a table has already."""

_OVERTAKEN = ("CommitFailedException", "CommitStateUnknownException", _THERE)
"""Names of the errors of commits that others have overtaken, or whose result isn't known."""

_TRIES_OF_BRANCH = 20
"""Tries of a commit that makes or removes a branch, which Iceberg itself doesn't try again."""

_FOR_EVER_MS = 2**63 - 1
_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "NoSuchTable", "SCHEMA_NOT_FOUND", "NoSuchNamespace")
"""Parts of the errors of a table that doesn't exist."""

_NO_TABLE: tuple[type[Exception], ...] = (TypeError, PySparkException, *java_errors())
"""Errors of names that are no tables. A session without Iceberg has no such class, which is a TypeError."""

_NOT_REMOVED: tuple[type[Exception], ...] = (OSError, ValueError, *_NO_TABLE)


class IcebergTables:
    """Stage rows of one log for Iceberg tables. `publish` may be called again, in any process, at the same time."""

    are_folders = False
    one_sink_each = False
    spark_tells = False

    def __init__(self, session: SparkSession, log: str, waiting: Callable[[], Iterable[Staged]] = tuple) -> None:
        """Prepare.

        Args:
            session: Spark session.
            log: short name of the log.
            waiting: function that returns what was accepted and isn't known to be published.
        """
        self._session, self._log, self._waiting = session, log, waiting
        self._seen: set[str] = set()

    def place_of(self, sink: str, path: str) -> str:
        """Check that rows can be staged for a table, and return its whole name as an URI.

        Raises:
            BadConfigError: there is no Iceberg table of that name, or it is a view of one.
        """
        try:
            found = java_static(self._session.sparkContext, _UTIL, "catalogAndIdentifier")(
                self._session._jsparkSession,  # noqa: SLF001
                path,
            )
            table = self._load(path)
        except _NO_TABLE as exc:
            why = "the session has no Iceberg" if isinstance(exc, TypeError) else line_of(exc)
            raise BadConfigError(
                f"{sink!r}: {path!r} isn't an Iceberg table that this session knows: {why}. With once=, write_table appends "
                "to Iceberg tables alone. Create the table before the run. Write files and Delta by tracker.write."
            ) from exc
        identifier = found.identifier()
        parts = [str(found.catalog().name()), *map(str, identifier.namespace()), str(identifier.name())]
        if str(table.name()) != ".".join(parts) or not _can_change(table):
            raise BadConfigError(
                f"{sink!r}: {path} is a branch or another view of a table ({table.name()}). With once=, rows wait in a "
                "branch of their own. Write to the table."
            )
        return _SCHEME + ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in parts)

    def begin(self, stage: Stage) -> str:
        """Make the branch of a stage, and return its name for Spark.

        Raises:
            Exception: Iceberg raised it.
        """
        branch = f"{_PREFIX}{stage.key}"
        self._remove_leftovers(stage)
        stage.folder.mkdir(parents=True)
        noted = stage.folder / _BRANCH_FILE
        noted.write_text(json.dumps({_PLACE: stage.place, _BRANCH: branch}), encoding="utf-8")
        # A table may limit the age of branches, beyond which whoever expires snapshots removes them.
        self._commit(stage.place, lambda to: to.createBranch(branch).setMaxRefAgeMs(branch, _FOR_EVER_MS))
        base = int(self._table_at(stage.place).snapshot(branch).snapshotId())
        noted.write_text(json.dumps({_PLACE: stage.place, _BRANCH: branch, _BASE: base}), encoding="utf-8")
        return f"{stage.place.removeprefix(_SCHEME)}.{quoted(_OF_BRANCH + branch)}"

    def contents(self, folder: Path, file_format: str) -> StageContents:  # noqa: ARG002
        """Return the snapshot that was written, and its rows as Iceberg has counted them in the files."""
        noted = _noted_in(folder)
        snapshot = self._table_at(noted[_PLACE]).snapshot(noted[_BRANCH])
        if int(snapshot.snapshotId()) == noted[_BASE]:
            return StageContents((), 0)
        return StageContents((str(snapshot.snapshotId()),), int(snapshot.summary().get(_ROWS) or 0))

    def keep(self, sink: str, target: StagedTarget, place: str, staged: StagedRows) -> Staged:  # noqa: ARG002
        """Return what a record says of a branch. Its files are where those of the table are."""
        names = {_BRANCH: _noted_in(staged.folder)[_BRANCH], _SNAPSHOT: "".join(staged.files)}
        return Staged(sink, ICEBERG, place, str(staged.folder), (), staged.rows, names)

    def newest_number(self, place: str) -> int:
        """Return the largest number of a record that a table has rows of; 0: none, or it isn't one of Iceberg."""
        if not place.startswith(_SCHEME):
            return 0
        try:
            table = self._table_at(place)
        except _NO_TABLE as exc:
            if isinstance(exc, TypeError) or any(part in str(exc) for part in _MISSING):
                return 0  # this session can't write to it
            raise AckerError(
                f"The table {place} can't be read: {line_of(exc)}. So it isn't known whether it has rows that the publish log "
                "lacks. Repair the table, or drop it if nothing in it is needed."
            ) from exc
        properties, prefix = table.properties(), self._property("")
        return max((_number_in(properties, name) for name in properties if name.startswith(prefix)), default=0)

    def publish(self, number: int, staged: Staged) -> None:
        """Move the snapshot of one sink's branch to its table, unless that has it.

        Raises:
            FilesNotMovedError: the snapshot is gone.
            Exception: Iceberg raised it.
        """
        if not staged.rows:
            return
        is_there = False
        for tries_left in reversed(range(_TRIES)):
            table = self._table_at(staged.target)
            if _number_in(table.properties(), self._property(staged.name)) >= number:
                break
            if table.snapshot(int(staged.options[_SNAPSHOT])) is None:
                raise FilesNotMovedError(
                    f"Record {number} of the publish log, sink {staged.name!r}: {staged.target} has no snapshot "
                    f"{staged.options[_SNAPSHOT]}, which has the {staged.rows:,} rows that were accepted. Restore the table, "
                    "or give up the record's rows by acker-redis once skip."
                )
            try:
                self._append(number, table, staged, is_there=is_there)
                break
            except java_errors() as exc:
                if not tries_left or not any(name in str(exc) for name in _OVERTAKEN):
                    raise
                is_there = _THERE in str(exc)
        self._session.catalog.refreshTable(
            staged.target.removeprefix(_SCHEME)
        )  # for frames that the program has cached

    def forget(self, folder: Path) -> None:
        """Remove the branch of a stage, which the commit of its rows has done already if it was published."""
        if not (folder / _BRANCH_FILE).exists():
            return
        try:
            noted = _noted_in(folder)
            if noted[_BRANCH] in self._table_at(noted[_PLACE]).refs():
                self._remove(noted[_PLACE], noted[_BRANCH])
        except _NOT_REMOVED:
            log.warning("branch with staged rows not removed stage=%s", folder, exc_info=True)

    def _remove_leftovers(self, stage: Stage) -> None:
        """Remove branches of a table that earlier runs of the log have left, unless they wait to be published.

        Raises:
            Exception: Iceberg raised it.
        """
        if stage.place in self._seen:
            return
        self._seen.add(stage.place)
        log_name, epoch, _ = stage.key.split("-", 2)
        waiting = {staged.options.get(_BRANCH) for staged in self._waiting()}
        for branch in list(self._table_at(stage.place).refs()):
            is_older = branch.startswith(f"{_PREFIX}{log_name}-") and branch < f"{_PREFIX}{log_name}-{epoch}"
            if is_older and branch not in waiting:
                self._remove(stage.place, branch)

    def _remove(self, place: str, branch: str) -> None:
        self._commit(place, lambda to: to.removeBranch(branch))

    def _commit(self, place: str, change: Callable[[Any], Any]) -> None:
        """Change the branches of a table, also if others commit at the same time.

        Raises:
            Exception: Iceberg raised it.
        """
        for tries_left in reversed(range(_TRIES_OF_BRANCH)):
            try:
                change(self._table_at(place).manageSnapshots()).commit()
                return
            except java_errors() as exc:
                if not tries_left or _OVERTAKEN[0] not in str(exc):
                    raise

    def _append(self, number: int, table: Any, staged: Staged, *, is_there: bool) -> None:
        """Commit a snapshot, the end of its branch, and the number of its record together.

        If the snapshot is in the table although the number isn't, a person has brought it there. Then only the rest is done.
        """
        transaction = table.newTransaction()
        transaction.updateProperties().set(self._property(staged.name), str(number)).commit()
        snapshots = transaction.manageSnapshots()
        if not is_there:
            snapshots = snapshots.cherrypick(int(staged.options[_SNAPSHOT]))
        if staged.options[_BRANCH] in table.refs():
            snapshots = snapshots.removeBranch(staged.options[_BRANCH])
        snapshots.commit()
        transaction.commitTransaction()

    def _property(self, sink: str) -> str:
        """Return the property of a table with the newest record of a sink."""
        return f"acker-redis.{self._log}.{sink}"

    def _table_at(self, place: str) -> Any:
        """Return a table, by its whole name, in its newest state."""
        table = self._load(place.removeprefix(_SCHEME))
        table.refresh()
        return table

    def _load(self, name: str) -> Any:
        return java_static(self._session.sparkContext, _UTIL, "loadIcebergTable")(self._session._jsparkSession, name)  # noqa: SLF001


def _can_change(table: Any) -> bool:
    """Return False for tables that only show others, such as one of the files of a table."""
    try:
        table.operations()
    except java_errors():
        return False
    return True


def _number_in(properties: Any, name: str) -> int:
    """Return the number of a record that a property has; 0: there is no such property.

    Raises:
        AckerError: the property has something else.
    """
    text = str(properties.get(name) or 0)
    if not text.isdecimal():
        raise AckerError(
            f"The property {name!r} of an Iceberg table is {text!r}, and not the number of a record. So it isn't known which "
            "rows the table has. Restore the property from an earlier version of the table's metadata."
        )
    return int(text)


def _noted_in(folder: Path) -> dict[str, Any]:
    """Return what a stage notes of its branch."""
    noted: dict[str, Any] = json.loads((folder / _BRANCH_FILE).read_text(encoding="utf-8"))
    return noted
