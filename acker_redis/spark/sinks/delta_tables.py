"""Delta tables whose rows wait in a stage.

The stage is a Delta table, too, with the columns, partitions, constraints and properties of the target. So Delta checks rows
when they are staged, where a row that it refuses fails like any other. From there, one commit appends them. Its transaction
has the number of the record, and Delta takes each number once.
"""

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError, FilesNotMovedError, PipelineError
from acker_redis.publishing.disk import sync, sync_tree
from acker_redis.publishing.records import Staged
from acker_redis.spark.proof.plans import each
from acker_redis.spark.runtime.jvm import java_class, java_errors, java_static
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget

log = logging.getLogger("acker_redis.spark")

DELTA = "delta"
"""Kind of Delta tables, which is also Spark's name for their format."""

_LOG = "_delta_log"
_DELTA_LOG = "org.apache.spark.sql.delta.DeltaLog"
_RETENTION = "delta.setTransactionRetentionDuration"
_OF_ELSEWHERE = ("delta.universalFormat.", "delta.coordinatedCommits.", "delta.autoOptimize")
"""Properties for what happens to a table beside its own log."""

_OF_ONE_TABLE = (
    *_OF_ELSEWHERE,
    "delta.columnMapping.maxColumnId",
    "delta.columnMapping.physicalName",
    "delta.rowTracking.",
)
"""Properties that Delta sets for each table anew."""

_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"

_IDENTITY = "delta.identity."
_OF_STORES = ("fs.", "dfs.")
"""Options that may have credentials."""

_REFUSED = {
    "txnappid": "numbers Delta's transactions, which once= does",
    "txnversion": "numbers Delta's transactions, which once= does",
    "replacewhere": "replaces rows, which once= never does",
    "partitionoverwritemode": "replaces rows, which once= never does",
    "overwriteschema": "replaces rows, which once= never does",
    _RETENTION.lower(): "makes the table forget transactions, so rows might be written twice",
}
_NO_DELTA: tuple[type[Exception], ...] = (BadConfigError, *java_errors())

_TRIES = 3
_CONCURRENT = "io.delta.exceptions."
"""Package of the errors of commits that others have overtaken."""


def check_delta_options(sink: str, options: Mapping[str, str]) -> None:
    """Check that a write with these options can be done later, from what a record says.

    Raises:
        PipelineError: it can't.
    """
    for name in options:
        why = _REFUSED.get(name.lower())
        if why is None and name.lower().startswith(_OF_STORES):
            why = "may be a credential, which a record would show"
        if why is not None:
            raise PipelineError(f"{sink!r}: the option {name!r} {why}. So its rows can't be staged. Remove it.")


def options_of(session: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a write with those that the session has for it, which may be another one at the next start."""
    merges = str(session.conf.get(_AUTO_MERGE, "false")).lower() == "true"
    is_given = any(name.lower() == "mergeschema" for name in options)
    return {**options, **({"mergeSchema": "true"} if merges and not is_given else {})}


def rows_of_parquet(file: Path) -> int:
    """Return the number of rows in a file, by its footer."""
    return int(pq.read_metadata(file).num_rows)


def _all_in(stage: Path) -> list[str]:
    """Return the paths of all files below a stage, also of its log and of checksums."""
    return [str(file.relative_to(stage)) for file in stage.rglob("*") if file.is_file()]


def _check_metadata(metadata: Any, what: str) -> None:
    """Check that a table's rows can be written once.

    Raises:
        BadConfigError: they can't.
    """
    if metadata.configuration().contains(_RETENTION):
        raise _forgetful(what)
    columns = json.loads(str(metadata.schemaString()))["fields"]
    if any(name.startswith(_IDENTITY) for column in columns for name in column["metadata"]):
        raise BadConfigError(
            f"{what} has an identity column. Delta numbers rows only where they are written, and once= stages them before. "
            "Write to a table without one."
        )


def _forgetful(what: str) -> BadConfigError:
    return BadConfigError(
        f"{what} has the property {_RETENTION}. It forgets transactions, so rows might be written twice. Unset it."
    )


class DeltaTables:
    """Stage rows of one log for Delta tables. `publish` may be called again, in any process, at the same time."""

    are_folders = True
    one_sink_each = True  # else each would be checked against a table without the rows of the others
    spark_tells = False

    def __init__(self, session: SparkSession, log: str) -> None:
        """Set the session, and the log's short name."""
        self._session, self._prefix = session, f"acker-redis-{log}-"

    def place_of(self, sink: str, path: str) -> str:
        """Check that rows can be staged for a Delta table, and return its whole path, or its URI if it isn't on a local disk.

        Raises:
            BadConfigError: there is something else, or a table that can't be written once.
        """
        place = java_class(self._session.sparkContext, "org.apache.hadoop.fs.Path")(path)
        system = place.getFileSystem(self._session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
        location = str(system.makeQualified(place).toString())
        if not _is_table(self._session, location):
            if system.exists(place) and len(system.listStatus(place)):
                raise BadConfigError(
                    f"{sink!r}: {path} has files, and is no Delta table. They are of something else, or of a first write that "
                    "ended early. Write to another folder, remove the files, or convert them into a Delta table."
                )
            return _without_scheme(location)
        _check_metadata(_snapshot(self._session, location).metadata(), f"{sink!r}: the table {path}")
        return _without_scheme(location)

    def begin(self, stage: Stage) -> str:
        """Begin the log of a stage, unless a write has to create its table. Return its folder.

        Raises:
            BadConfigError: the table has changed, and can't be written once any more.
        """
        if not _is_table(self._session, stage.place):
            return str(stage.folder)
        snapshot = _snapshot(self._session, stage.place)
        _check_metadata(snapshot.metadata(), f"The table {stage.place}")  # it may have changed since the first emission
        metadata = json.loads(str(snapshot.metadata().json()))["metaData"]
        properties = metadata.get("configuration", {})
        metadata["configuration"] = {
            name: value for name, value in properties.items() if not name.startswith(_OF_ELSEWHERE)
        }
        metadata["id"] = str(uuid.uuid4())
        now_ms = int(time.time() * 1000)
        commit = {
            "timestamp": now_ms,
            "inCommitTimestamp": now_ms,
            "operation": "STAGE",
            "operationParameters": {},
            "isBlindAppend": True,
        }
        actions = [{"commitInfo": commit}, json.loads(str(snapshot.protocol().json())), {"metaData": metadata}]
        log = stage.folder / _LOG
        log.mkdir(parents=True)
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        (log / f"{0:020}.json").write_text(text, encoding="utf-8")
        return str(stage.folder)

    def contents(self, folder: Path, file_format: str) -> StageContents:  # noqa: ARG002
        """Return the files that the log of a stage has, with their rows. A task that ran twice may have left others.

        Raises:
            BadConfigError: the session gives new tables properties with which rows can't be written once.
        """
        found: dict[str, None] = {}
        for action in _actions(folder):
            if _RETENTION in action.get("metaData", {}).get("configuration", {}):
                raise _forgetful("A new table of this session")
            if "add" in action:
                found[unquote(action["add"]["path"])] = None
            elif "remove" in action:
                found.pop(unquote(action["remove"]["path"]), None)
        return StageContents(tuple(sorted(found)), sum(rows_of_parquet(folder / path) for path in found))

    def keep(self, sink: str, target: StagedTarget, place: str, staged: StagedRows) -> Staged:
        """Put a stage on the disk, and return what a record says of it."""
        folder = staged.folder
        sync_tree(folder, _all_in(folder))
        sync(folder.parent)
        return Staged(sink, DELTA, place, str(folder), staged.files, staged.rows, target.options)

    def newest_number(self, place: str) -> int:
        """Return the largest number of a record that a table has rows of; 0: none, or it isn't one of Delta."""
        return max(self._numbers(place).values(), default=0) if _is_delta_table(self._session, place) else 0

    def publish(self, number: int, staged: Staged) -> None:
        """Append the rows of one sink to its table, unless that has them.

        Raises:
            Exception: Spark or Delta raised it.
        """
        if not staged.rows and _is_table(self._session, staged.target):
            return
        name = self._prefix + staged.name
        for tries_left in reversed(range(_TRIES)):
            if self._numbers(staged.target).get(name, 0) >= number:
                break
            try:
                self._append(number, name, staged)
                break
            except Exception as exc:
                # Somebody has changed the table meanwhile, or another process was faster and has removed the stage.
                if not tries_left or not (isinstance(exc, FilesNotMovedError) or _CONCURRENT in str(exc)):
                    raise

    def forget(self, folder: Path) -> None:
        """Let Delta drop what it has cached of a stage, because nobody reads it any more."""
        if (folder / _LOG).exists():
            try:
                place = java_class(self._session.sparkContext, "org.apache.hadoop.fs.Path")(str(folder))
                invalidate = java_static(self._session.sparkContext, _DELTA_LOG, "invalidateCache")
                invalidate(self._session._jsparkSession, place)  # noqa: SLF001
            except java_errors():
                log.debug("cache of a stage not dropped stage=%s", folder, exc_info=True)

    def _append(self, number: int, name: str, staged: Staged) -> None:
        _check_there(number, staged)
        reader = self._session.read.format("delta").options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
        writer = reader.load(staged.stage).write.format("delta").mode("append")
        if not _is_table(self._session, staged.target):
            metadata = json.loads(str(_snapshot(self._session, staged.stage).metadata().json()))["metaData"]
            properties = metadata.get("configuration", {}).items()
            writer = writer.partitionBy(*metadata["partitionColumns"])
            writer = writer.options(**{name: text for name, text in properties if not name.startswith(_OF_ONE_TABLE)})
        writer.options(**staged.options).options(txnAppId=name, txnVersion=str(number)).save(staged.target)

    def _numbers(self, target: str) -> dict[str, int]:
        """Return the newest record of each sink of this log that a table has rows of."""
        if not _is_table(self._session, target):
            return {}
        transactions: Iterable[Any] = each(_snapshot(self._session, target).setTransactions())
        found = {str(one.appId()): int(one.version()) for one in transactions}
        return {name: number for name, number in found.items() if name.startswith(self._prefix)}


def _check_there(number: int, staged: Staged) -> None:
    """Check that a stage has all of its rows, because the session may ignore files that are missing.

    Raises:
        FilesNotMovedError: some are missing.
    """
    files = [Path(staged.stage, file) for file in staged.files]
    gone = [file for file in files if not file.exists()]
    if gone or sum(map(rows_of_parquet, files)) != staged.rows:
        raise FilesNotMovedError(
            f"Record {number} of the publish log, sink {staged.name!r}: the stage {staged.stage} lacks rows of the "
            f"{staged.rows:,} that were accepted{f', such as {gone[0].name}' if gone else ''}. Restore it, or give up the "
            "record's rows by acker-redis once skip."
        )


def _is_delta_table(session: SparkSession, target: str) -> bool:
    """Return True if a whole path or URI is that of a Delta table, and the session knows Delta."""
    try:
        return _is_table(session, target)
    except _NO_DELTA:
        return False


def _is_table(session: SparkSession, location: str) -> bool:
    """Return True if a location is that of a table, and isn't only somewhere in one."""
    return int(_snapshot(session, location).version()) >= 0


def _snapshot(session: SparkSession, location: str) -> Any:
    """Return the newest state of a table.

    Raises:
        BadConfigError: the session doesn't know Delta.
    """
    look = java_static(session.sparkContext, _DELTA_LOG, "forTableWithSnapshot")
    try:
        return look(session._jsparkSession, location)._2()  # noqa: SLF001
    except TypeError as exc:  # no such class
        raise BadConfigError(
            f"This Spark session has no Delta, and {location} has to be read or written by it. Start the session with the "
            "package and the settings of docs/guides/sinks.md."
        ) from exc


def _without_scheme(location: str) -> str:
    """Return the path of a local table. Others keep their URI, as Spark has to find them again."""
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/") if path != location else location


def _commits(stage: Path) -> list[Path]:
    return sorted(file for file in (stage / _LOG).glob("*.json") if file.stem.isdecimal())


def _actions(stage: Path) -> Iterator[dict[str, Any]]:
    for commit in _commits(stage):
        yield from map(json.loads, commit.read_text(encoding="utf-8").splitlines())
