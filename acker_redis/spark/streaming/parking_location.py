"""Keep what a stream has parked in its parking location: snapshots, on any file system that Spark writes to.

`query.json` says whose the folder is, and which snapshot is the newest, so that a missing one is noticed. A
snapshot is a Parquet file `<batch>-<number>.parquet` with all that was parked when that micro-batch ended, or later. It
counts once Spark has committed the batch: a batch that Spark gives again is still whole in its source, so the latest
snapshot of an earlier batch is what is parked then. Numbers count the snapshots of a folder from 0.

Kept are the snapshots that count for the next micro-batch and for the one before it. Where a checkpoint was set back
further, what was parked then is not known, unless the first snapshot of all is there.
"""

import json
import logging
import re
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from acker_redis.client.backoff import BACKOFF_BASE_SECS, Backoff
from acker_redis.errors import AckerError, BadConfigError
from acker_redis.spark.runtime.jvm import java_class
from acker_redis.spark.streaming.snapshot import VERSION, Snapshot, from_parquet, to_parquet

log = logging.getLogger("acker_redis.spark")

FORMAT = "acker_redis.park"

_NAME = re.compile(r"^(\d+)-(\d+)\.parquet$")
_OWNER_FILE = "query.json"
_OUTAGE_TIMEOUT_SECS, _MOST_WAIT_SECS = 600.0, 30.0
"""A full disk or a store that is away is waited for so long; one wait is no longer than the second."""

_WITHOUT_THEM = "To go on without the messages that are parked there, move the folder away, and make an empty one"

_MAX_IDS_NAMED = 5
"""Message ids that an error names."""


class SnapshotId(NamedTuple):
    """Name a snapshot: its micro-batch, and its number among all of the folder."""

    batch_id: int
    number: int


class ParkingOutageError(AckerError):
    """The parking location or the checkpoint can't be read or written now: the disk is full, or the store is away."""


class ParkingLocationDeletedError(AckerError):
    """The parking location was deleted while the query ran, and made again with all that is parked."""


class ParkingOutage:
    """Tell how long the parking location can't be written, and when to try again."""

    def __init__(self) -> None:
        self._since = self._next = 0.0
        self._times = 0
        self._waits = Backoff(base=BACKOFF_BASE_SECS, cap=_MOST_WAIT_SECS)

    def may_retry(self, now: float) -> bool:
        """Return True if it is time to try again."""
        return now >= self._next

    def note_failure(self, now: float, error: ParkingOutageError) -> None:
        """Note that writing failed.

        Raises:
            AckerError: it has failed for too long.
        """
        if not self._times:
            self._since = now
            log.warning("waiting until parked messages can be saved: %s", error)
        if now - self._since > _OUTAGE_TIMEOUT_SECS:
            raise AckerError(
                f"parked messages could not be saved for {now - self._since:.0f} s: {error}. The snapshot before counts, and "
                "Spark gives the micro-batch again, so nothing is lost. Start the query when the folder can be written"
            ) from error
        self._times += 1
        self._next = now + self._waits.compute(self._times)

    def note_success(self, now: float) -> None:
        """Note that writing worked."""
        if self._times:
            self._times = 0
            log.warning("parked messages are saved again, after %.1f s", now - self._since)


class ParkingLocation:
    """Read and write the parking location, a folder of snapshots. One process at a time writes there.

    Attributes:
        query: id of the streaming query that it belongs to; None: it is new.
        checkpoint: of that query.
    """

    def __init__(self, spark: SparkSession, path: str, app: str) -> None:
        """Look whose the folder is.

        Raises:
            BadConfigError: it is another app's, something else, or damaged; or it can't be read.
        """
        self.query: str | None = None
        self.checkpoint = ""
        self._path, self._app = path, app
        self._hadoop_path = java_class(spark.sparkContext, "org.apache.hadoop.fs.Path")
        self._number = -1  # of the last snapshot, as far as this process knows
        self._newest: SnapshotId | None = None
        try:
            self._folder = self._hadoop_path(path)
            self._files = self._folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
            self._exists = self._files.exists(self._folder)
            owner = self._read_owner()
        except Py4JError as exc:
            raise BadConfigError(f"parking_location={path!r} can't be read: {_cause(exc)}") from exc
        if owner is not None:
            self._check_owner(owner)

    @property
    def has_snapshots(self) -> bool:
        """Whether something was parked there once."""
        return self._newest is not None

    def claim(self, query: str, checkpoint: str, batch_id: int) -> None:
        """Take the folder for a query that begins with a batch; make it if the query is new.

        Raises:
            BadConfigError: it is another query's, or it is missing, and the query is not new.
        """
        if self.query is not None and self.query != query:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to another query, with the checkpoint {self.checkpoint!r}: give "
                "each query one of its own. If that query's checkpoint is gone for good, what it had parked is in the "
                "snapshots there (Parquet): move the folder away"
            )
        if self.query is None and batch_id > 0 and not self._exists:
            raise BadConfigError(
                f"parking_location={self._path!r} is missing, and the query goes on with batch {batch_id}, so messages may "
                "be parked elsewhere: give the parking location that was used before, or put it back from a copy. An "
                "empty folder in its place (in an object store: with a file .empty) says that none are, and those that "
                "were are lost"
            )
        if self.query is None and self._snapshot_ids():
            raise BadConfigError(
                f"parking_location={self._path!r} holds snapshots, and no {_OWNER_FILE} that says whose they are: put it back "
                f"from a copy. {_WITHOUT_THEM}"
            )
        if self.query is None and self._foreign_files():
            raise BadConfigError(
                f"parking_location={self._path!r} holds other files, such as {self._foreign_files()[0]!r}: give an empty "
                "folder"
            )
        if self.query is None or self.checkpoint != checkpoint:
            self._write_owner(query, checkpoint, self._newest)
        self.query, self.checkpoint = query, checkpoint

    def committed(self) -> int | None:
        """Find the last micro-batch that Spark has committed, by the checkpoint; -1: none. None: there is no checkpoint.

        Raises:
            ParkingOutageError: it can't be read.
        """
        try:
            commits = self._hadoop_path(self.checkpoint, "commits")
            if not self._files.exists(commits):
                return -1 if self._files.exists(self._hadoop_path(self.checkpoint)) else None
            return max((int(name) for name in self._file_names(commits) if name.isdigit()), default=-1)
        except Py4JError as exc:
            raise ParkingOutageError(f"the checkpoint {self.checkpoint!r} can't be read: {_cause(exc)}") from exc

    def next_batch(self) -> int:
        """Find the micro-batch that the query goes on with.

        Raises:
            BadConfigError: its checkpoint is not there.
        """
        committed = self.committed()
        if committed is None:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to a query whose checkpoint {self.checkpoint!r} is missing, so "
                "it is not known which of its snapshots counts: put it back, or start the query, which says where it is "
                "now"
            )
        return committed + 1

    def load(self, before: int) -> Snapshot | None:
        """Read what is parked when a batch begins: the latest snapshot of an earlier one. Nothing is changed.

        Raises:
            BadConfigError: the snapshot is damaged or missing; or not known, as the checkpoint was set back too far.
            ParkingOutageError: it can't be read.
        """
        snapshot_ids = self._snapshot_ids()
        if self._newest is not None and self._newest not in snapshot_ids:
            raise BadConfigError(
                f"parking_location={self._path!r}: the snapshot {_file_name(self._newest)} is missing, which has what was "
                f"parked last: put it back from a copy. {_WITHOUT_THEM}"
            )
        counted = _last_of(snapshot_ids, before - 1)
        if counted is None and min((snapshot_id.number for snapshot_id in snapshot_ids), default=0) > 0:
            self._refuse_to_go_back(snapshot_ids, before)
        return None if counted is None else self._snapshot(counted)

    def start_saving(self, before: int) -> bool:
        """Save here from now on; return True if there are snapshots that don't count, and will if none comes after."""
        snapshot_ids = self._snapshot_ids()
        self._number = max((snapshot_id.number for snapshot_id in snapshot_ids), default=-1)
        return any(snapshot_id.batch_id >= before for snapshot_id in snapshot_ids)

    def exists(self) -> bool:
        """Return False if the folder is known to be deleted."""
        try:
            return bool(self._files.exists(self._path_of(_OWNER_FILE)))
        except Py4JError:
            return True

    def save(self, batch_id: int, snapshot: Snapshot, committed: int | None) -> None:
        """Keep a snapshot, behind the others; remove those that can't count any more, as a batch was committed after them.

        Raises:
            BadConfigError: another process saves here.
            ParkingLocationDeletedError: the folder was deleted, and is there again, with the snapshot.
            ParkingOutageError: it can't be written.
        """
        if self.query is None:
            raise AssertionError("the parking location was not claimed")
        try:
            is_gone = not self._files.exists(self._path_of(_OWNER_FILE)) and self._read_owner() is None
        except Py4JError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} can't be read: {_cause(exc)}") from exc
        if is_gone:
            self._restore_folder(snapshot, committed)
        snapshot_ids = self._snapshot_ids()
        if max((snapshot_id.number for snapshot_id in snapshot_ids), default=-1) > self._number:
            raise BadConfigError(
                f"parking_location={self._path!r}: another process writes there: is an older driver of this query still "
                "alive? End it. Nothing was lost"
            )
        snapshot_id = SnapshotId(batch_id, self._number + 1)
        self._keep(snapshot_id, snapshot)
        if committed is not None:
            kept = {
                snapshot_id,
                _last_of(snapshot_ids, committed - 1),
                _last_of([*snapshot_ids, snapshot_id], committed),
            }
            # The oldest first: of what is left, none between two was removed.
            self._remove(sorted(set(snapshot_ids) - kept))

    def _restore_folder(self, snapshot: Snapshot, committed: int | None) -> None:
        """Write the snapshot for the batch that is not committed yet: that comes again, and is parked twice at worst."""
        is_first = committed == -1
        snapshot_id = SnapshotId(0, 0) if is_first or committed is None else SnapshotId(committed, self._number + 1)
        self._keep(snapshot_id, snapshot)
        raise ParkingLocationDeletedError(
            f"parking_location={self._path!r} was deleted while the query ran: it was made again, with all {len(snapshot)} "
            "messages that are parked, so nothing is lost. Find out what deletes it, and start the query again"
        )

    def _keep(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> None:
        self._write(_file_name(snapshot_id), to_parquet(snapshot))
        self._number = snapshot_id.number
        self._write_owner(str(self.query), self.checkpoint, snapshot_id)
        self._newest = snapshot_id

    def _write_owner(self, query: str, checkpoint: str, newest: SnapshotId | None) -> None:
        owner = {
            "format": FORMAT, "version": VERSION, "app": self._app, "query": query, "checkpoint": checkpoint,
            "newest": None if newest is None else _file_name(newest),
        }  # fmt: skip
        self._write(_OWNER_FILE, json.dumps(owner).encode())

    def _read_owner(self) -> bytes | None:
        """Read `query.json`; or its draft, where a process died between removing the old file and renaming."""
        owner, draft = self._path_of(_OWNER_FILE), self._path_of(_draft(_OWNER_FILE))
        if not self._files.exists(owner) and self._files.exists(draft):
            try:
                json.loads(self._read(draft))
            except ValueError:
                return None
            self._files.rename(draft, owner)
        return self._read(owner) if self._files.exists(owner) else None

    def _check_owner(self, text: bytes) -> None:
        remedy = "give the parking location of an earlier start of this query, or an empty folder"
        try:
            owner = json.loads(text)
            if owner["format"] != FORMAT:
                raise ValueError
            version, app = owner["version"], owner["app"]
            self.query, self.checkpoint = owner["query"], owner["checkpoint"]
            newest = owner["newest"] if version == VERSION else None
            self._newest = None if newest is None else _parse_file_name(newest)
        except (ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"parking_location={self._path!r}: {_OWNER_FILE} is damaged, or another program's: {remedy}"
            ) from exc
        if app != self._app:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to app {app!r}, and this is app {self._app!r}: {remedy}"
            )
        if version != VERSION:
            raise BadConfigError(
                f"parking_location={self._path!r} is in format {version}. This version of acker_redis reads format "
                f"{VERSION} only. Start the program with the version that wrote it, and drain() it. {_WITHOUT_THEM}"
            )

    def _refuse_to_go_back(self, snapshot_ids: list[SnapshotId], before: int) -> None:
        newest = self._snapshot(max(snapshot_ids, key=lambda snapshot_id: snapshot_id.number))
        messages = newest.message_ids
        if not messages:  # whatever was parked then is done
            return
        some = ", ".join(map(str, messages[:_MAX_IDS_NAMED])) + (", …" if len(messages) > _MAX_IDS_NAMED else "")
        first = min(snapshot_ids)
        raise BadConfigError(
            f"parking_location={self._path!r}: the query begins with batch {before}, and what was parked then is not "
            f"known, as the snapshots are of batch {first.batch_id} and later. {len(messages)} messages are parked "
            f"({some}); those that came before batch {before} would be lost. Nothing was changed: put a checkpoint back "
            f"that goes on with batch {first.batch_id + 1} or later. {_WITHOUT_THEM}"
        )

    def _snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        try:
            data = self._read(self._path_of(_file_name(snapshot_id)))
        except Py4JError as exc:
            raise ParkingOutageError(
                f"parking_location={self._path!r}: the snapshot {_file_name(snapshot_id)} can't be read: {_cause(exc)}. "
                "Nothing was begun: start again when it can be, or put a copy in its place"
            ) from exc
        try:
            return from_parquet(data)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"parking_location={self._path!r}: the snapshot {_file_name(snapshot_id)} is damaged ({exc}): put a copy "
                f"in its place. {_WITHOUT_THEM}"
            ) from exc

    def _snapshot_ids(self) -> list[SnapshotId]:
        try:
            names = self._file_names(self._folder) if self._files.exists(self._folder) else []
        except Py4JError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} can't be read: {_cause(exc)}") from exc
        return [_parse_file_name(name) for name in names if _NAME.match(name)]

    def _foreign_files(self) -> list[str]:
        return [name for name in self._file_names(self._folder) if not name.startswith(".")] if self._exists else []

    def _file_names(self, folder: Any) -> list[str]:
        return [status.getPath().getName() for status in self._files.listStatus(folder)]

    def _path_of(self, name: str) -> Any:
        return self._hadoop_path(self._folder, name)

    def _read(self, path: Any) -> bytes:
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def _write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all; what a process that dies leaves of `query.json` is a whole draft."""
        draft = self._path_of(_draft(name))
        try:
            self._files.mkdirs(self._folder)
            try:
                stream = self._files.create(draft, True)
                try:
                    stream.write(bytearray(data))
                finally:
                    stream.close()
            except Py4JError:
                self._remove_draft(draft)
                raise
            self._files.delete(self._path_of(name), False)
            renamed = self._files.rename(draft, self._path_of(name))
        except Py4JError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} can't be written: {_cause(exc)}") from exc
        if not renamed:
            raise ParkingOutageError(
                f"parking_location={self._path!r}: {name} could not be given its name: can the folder be written?"
            )

    def _remove_draft(self, draft: Any) -> None:
        """Free what a part of a file takes of a full disk."""
        try:
            self._files.delete(draft, False)
        except Py4JError as exc:
            log.debug("a draft is left: %s", _cause(exc))

    def _remove(self, snapshot_ids: list[SnapshotId]) -> None:
        try:
            for snapshot_id in snapshot_ids:
                self._files.delete(self._path_of(_file_name(snapshot_id)), False)
        except Py4JError as exc:  # the next ones that are written remove them, too
            log.warning("parking_location=%r: old snapshots can't be removed: %s", self._path, _cause(exc))


def _last_of(snapshot_ids: list[SnapshotId], batch_id: int) -> SnapshotId | None:
    """Find the latest snapshot of this batch or an earlier one."""
    return max((snapshot_id for snapshot_id in snapshot_ids if snapshot_id.batch_id <= batch_id), default=None)


def _parse_file_name(name: str) -> SnapshotId:
    numbers = _NAME.match(name)
    if numbers is None:
        raise ValueError(name)
    return SnapshotId(int(numbers[1]), int(numbers[2]))


def _draft(name: str) -> str:
    return f".{name}.draft"


def _file_name(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.batch_id:010}-{snapshot_id.number:06}.parquet"


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString())
