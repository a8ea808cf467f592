"""Iceberg tables whose rows wait in a branch.

A stage is a branch of the table, which readers of the table don't see. So Iceberg checks rows when they are staged, and keeps
the files from those who expire snapshots. From there, one commit moves the branch's snapshot to the table, removes the branch,
and notes the number of the record in a property of the table. No file is moved or copied. Iceberg refuses a snapshot that the
table has already, if another process is faster.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError, FilesNotMovedError
from acker_redis.publishing.records import Staged
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runtime.jvm import java_errors, java_static
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget
from acker_redis.spark.sql import quoted

log = logging.getLogger("acker_redis.spark")

ICEBERG = "iceberg"
"""Kind of Iceberg tables."""

_SCHEME = f"{ICEBERG}://"
_UTIL = "org.apache.iceberg.spark.Spark3Util"
_BRANCH, _SNAPSHOT, _BASE, _PLACE = "branch", "snapshot", "base", "place"
_BRANCH_FILE = "branch.json"
_OF_BRANCH = "branch_"
"""How Iceberg's names of tables say that a branch is meant."""

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ROWS = "added-records"
_TRIES = 3
_OVERTAKEN = ("CommitFailedException", "CommitStateUnknownException", "CherrypickAncestorCommitException")
"""Names of the errors of commits that others have overtaken, or whose result isn't known."""

_NO_TABLE: tuple[type[Exception], ...] = (TypeError, PySparkException, *java_errors())
"""Errors of names that are no tables. A session without Iceberg has no such class, which is a TypeError."""

_NOT_REMOVED: tuple[type[Exception], ...] = (OSError, ValueError, PySparkException, *java_errors())


class IcebergTables:
    """Stage rows of one log for Iceberg tables. `publish` may be called again, in any process, at the same time."""

    are_folders = False
    one_sink_each = False
    spark_tells = False

    def __init__(self, session: SparkSession, log: str) -> None:
        """Set the session, and the log's short name."""
        self._session, self._log = session, log

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
        if str(table.name()) != ".".join(parts):
            raise BadConfigError(
                f"{sink!r}: {path} is a branch or another view of the table {table.name()}. With once=, rows wait in a branch "
                "of their own. Write to the table."
            )
        return _SCHEME + ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in parts)

    def begin(self, stage: Stage) -> str:
        """Make the branch of a stage, and return its name for Spark.

        Raises:
            Exception: Iceberg raised it.
        """
        table, branch = self._table_at(stage.place), f"acker-redis-{stage.key}"
        stage.folder.mkdir(parents=True)
        noted = stage.folder / _BRANCH_FILE
        noted.write_text(json.dumps({_PLACE: stage.place, _BRANCH: branch}), encoding="utf-8")
        table.manageSnapshots().createBranch(branch).commit()
        base = int(table.snapshot(branch).snapshotId())
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
        properties, prefix = self._table_at(place).properties(), self._property("")
        return max((int(properties[name]) for name in properties if name.startswith(prefix)), default=0)

    def publish(self, number: int, staged: Staged) -> None:
        """Move the snapshot of one sink's branch to its table, unless that has it.

        Raises:
            FilesNotMovedError: the snapshot is gone.
            Exception: Iceberg raised it.
        """
        if not staged.rows:
            return
        for tries_left in reversed(range(_TRIES)):
            table = self._table_at(staged.target)
            if int(table.properties().get(self._property(staged.name)) or 0) >= number:
                break
            if table.snapshot(int(staged.options[_SNAPSHOT])) is None:
                raise FilesNotMovedError(
                    f"Record {number} of the publish log, sink {staged.name!r}: {staged.target} has no snapshot "
                    f"{staged.options[_SNAPSHOT]}, which has the {staged.rows:,} rows that were accepted. Restore the table, "
                    "or give up the record's rows by acker-redis once skip."
                )
            try:
                self._append(number, table, staged)
                break
            except java_errors() as exc:
                if not tries_left or not any(name in str(exc) for name in _OVERTAKEN):
                    raise
        self._session.catalog.refreshTable(
            staged.target.removeprefix(_SCHEME)
        )  # for frames that the program has cached

    def forget(self, folder: Path) -> None:
        """Remove the branch of a stage, which the commit of its rows has done already if it was published."""
        if not (folder / _BRANCH_FILE).exists():
            return
        try:
            noted = _noted_in(folder)
            table = self._table_at(noted[_PLACE])
            if table.snapshot(noted[_BRANCH]) is not None:
                table.manageSnapshots().removeBranch(noted[_BRANCH]).commit()
        except _NOT_REMOVED:
            log.warning("branch with staged rows not removed stage=%s", folder, exc_info=True)

    def _append(self, number: int, table: Any, staged: Staged) -> None:
        """Commit a snapshot, the end of its branch, and the number of its record together."""
        transaction = table.newTransaction()
        transaction.updateProperties().set(self._property(staged.name), str(number)).commit()
        snapshots = transaction.manageSnapshots().cherrypick(int(staged.options[_SNAPSHOT]))
        snapshots.removeBranch(staged.options[_BRANCH]).commit()
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


def _noted_in(folder: Path) -> dict[str, Any]:
    """Return what a stage notes of its branch."""
    noted: dict[str, Any] = json.loads((folder / _BRANCH_FILE).read_text(encoding="utf-8"))
    return noted
