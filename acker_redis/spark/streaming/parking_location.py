"""Parking location of a stream: a folder of snapshots, on any file system that Spark writes to.

`query.json` names the query that owns the folder and the newest snapshot, so that a missing one is noticed. A snapshot is a
Parquet file `<batch>-<number>.parquet` with all messages that were parked when that micro-batch ended, or later. It counts
once Spark has committed the batch. If Spark runs a batch again, the source still has all of it, so the latest snapshot of an
earlier batch has the parked messages. Numbers count the snapshots of a folder from 0.

The folder keeps the snapshots that count for the next micro-batch and for the one before it. If a checkpoint is set back
further, the messages parked at that time are unknown, unless the very first snapshot still exists.
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
"""Longest outage of the store (such as a full disk) that is waited for, and longest pause between two tries."""

_WITHOUT_THEM = "To continue without the messages parked there, move the folder away and create an empty one."

_MAX_IDS_NAMED = 5
"""Most message ids that an error lists."""


class SnapshotId(NamedTuple):
    """Identity of a snapshot: its micro-batch, and its number within the folder."""

    batch_id: int
    number: int


class ParkingOutageError(AckerError):
    """The parking location or checkpoint is temporarily unreadable or unwritable, for example because a disk is full."""


class ParkingLocationDeletedError(AckerError):
    """The parking location was deleted while the query ran. It was recreated with all parked messages."""


class ParkingOutage:
    """Track an outage of the parking location: how long it lasts, and when to try again."""

    def __init__(self) -> None:
        self._since = self._next = 0.0
        self._times = 0
        self._waits = Backoff(base=BACKOFF_BASE_SECS, cap=_MOST_WAIT_SECS)

    def may_retry(self, now: float) -> bool:
        """Return True if it is time to try again."""
        return now >= self._next

    def note_failure(self, now: float, error: ParkingOutageError) -> None:
        """Record a failed write.

        Raises:
            AckerError: writes have failed for too long.
        """
        if not self._times:
            self._since = now
            log.warning("could not save parked messages, will retry error=%s", error)
        if now - self._since > _OUTAGE_TIMEOUT_SECS:
            raise AckerError(
                f"Parked messages could not be saved for {now - self._since:.0f} s. Nothing is lost: the previous snapshot "
                "counts, and Spark runs the micro-batch again. Restart the query once the folder is writable. Last error: "
                f"{error}"
            ) from error
        self._times += 1
        self._next = now + self._waits.compute(self._times)

    def note_success(self, now: float) -> None:
        """Record a successful write."""
        if self._times:
            self._times = 0
            log.warning("saved parked messages again outage_secs=%.1f", now - self._since)


class ParkingLocation:
    """The parking location of one query: a folder of snapshots, with one writing process at a time.

    Attributes:
        query: id of the streaming query that owns the folder; None: the folder is new.
        checkpoint: checkpoint location of that query.
    """

    def __init__(self, spark: SparkSession, path: str, app: str) -> None:
        """Read which query owns the folder.

        Raises:
            BadConfigError: the folder belongs to another app or program, is damaged, or is unreadable.
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
            raise BadConfigError(
                f"parking_location={path!r} is unreadable ({_cause(exc)}). Check the path and its permissions."
            ) from exc
        if owner is not None:
            self._check_owner(owner)

    @property
    def has_snapshots(self) -> bool:
        """Whether messages were ever parked there."""
        return self._newest is not None

    def claim(self, query: str, checkpoint: str, batch_id: int) -> None:
        """Claim the folder for a query that starts with a batch. Create the folder if the query is new.

        Raises:
            BadConfigError: the folder belongs to another query, or is missing although the query is not new.
        """
        if self.query is not None and self.query != query:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to another query, with the checkpoint {self.checkpoint!r}. Give "
                "each query its own parking location. If that checkpoint is permanently lost, move the folder away: its "
                "snapshots (Parquet) have the messages that were parked."
            )
        if self.query is None and batch_id > 0 and not self._exists:
            raise BadConfigError(
                f"parking_location={self._path!r} does not exist, but the query resumes at batch {batch_id}, so messages may "
                "be parked elsewhere. Pass the parking location of the previous start, or restore it from a copy. To start "
                "without parked messages, which are then lost, create an empty folder (in an object store: with a file "
                ".empty)."
            )
        if self.query is None and self._snapshot_ids():
            raise BadConfigError(
                f"parking_location={self._path!r} has snapshots but no {_OWNER_FILE}, so their owner is unknown. Restore the "
                f"file from a copy. {_WITHOUT_THEM}"
            )
        if self.query is None and self._foreign_files():
            raise BadConfigError(
                f"parking_location={self._path!r} has unrelated files, such as {self._foreign_files()[0]!r}. Pass an empty "
                "folder."
            )
        if self.query is None or self.checkpoint != checkpoint:
            self._write_owner(query, checkpoint, self._newest)
        self.query, self.checkpoint = query, checkpoint

    def committed(self) -> int | None:
        """Read the last committed micro-batch from the checkpoint; -1: none; None: the checkpoint doesn't exist.

        Raises:
            ParkingOutageError: the checkpoint is unreadable.
        """
        try:
            commits = self._hadoop_path(self.checkpoint, "commits")
            if not self._files.exists(commits):
                return -1 if self._files.exists(self._hadoop_path(self.checkpoint)) else None
            return max((int(name) for name in self._file_names(commits) if name.isdigit()), default=-1)
        except Py4JError as exc:
            raise ParkingOutageError(f"The checkpoint {self.checkpoint!r} is unreadable ({_cause(exc)}).") from exc

    def next_batch(self) -> int:
        """Return the micro-batch with which the query resumes.

        Raises:
            BadConfigError: its checkpoint doesn't exist.
        """
        committed = self.committed()
        if committed is None:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to a query whose checkpoint {self.checkpoint!r} does not exist, so "
                "it is unknown which snapshot counts. Restore the checkpoint. If it was moved, start the query, which "
                "records the new location."
            )
        return committed + 1

    def load(self, before: int) -> Snapshot | None:
        """Read the messages parked when batch `before` starts: the latest snapshot of an earlier batch.

        This is read-only.

        Raises:
            BadConfigError: the snapshot is damaged or missing, or unknown because the checkpoint was set back too far.
            ParkingOutageError: the snapshot is unreadable.
        """
        snapshot_ids = self._snapshot_ids()
        if self._newest is not None and self._newest not in snapshot_ids:
            raise BadConfigError(
                f"parking_location={self._path!r} lacks its newest snapshot {_file_name(self._newest)}. Restore the file "
                f"from a copy. {_WITHOUT_THEM}"
            )
        counted = _last_of(snapshot_ids, before - 1)
        if counted is None and min((snapshot_id.number for snapshot_id in snapshot_ids), default=0) > 0:
            self._refuse_to_go_back(snapshot_ids, before)
        return None if counted is None else self._snapshot(counted)

    def start_saving(self, before: int) -> bool:
        """Start saving here. Return True if later snapshots exist, which would count unless a new one is saved."""
        snapshot_ids = self._snapshot_ids()
        self._number = max((snapshot_id.number for snapshot_id in snapshot_ids), default=-1)
        return any(snapshot_id.batch_id >= before for snapshot_id in snapshot_ids)

    def exists(self) -> bool:
        """Return True unless the folder is known to be deleted."""
        try:
            return bool(self._files.exists(self._path_of(_OWNER_FILE)))
        except Py4JError:
            return True

    def save(self, batch_id: int, snapshot: Snapshot, committed: int | None) -> None:
        """Save a snapshot, and remove older ones that no longer count because a later batch was committed.

        Raises:
            BadConfigError: another process saves here.
            ParkingLocationDeletedError: the folder was deleted. It was recreated with the snapshot.
            ParkingOutageError: the folder is not writable.
        """
        if self.query is None:
            raise AssertionError("the parking location was not claimed")
        try:
            is_gone = not self._files.exists(self._path_of(_OWNER_FILE)) and self._read_owner() is None
        except Py4JError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({_cause(exc)}).") from exc
        if is_gone:
            self._restore_folder(snapshot, committed)
        snapshot_ids = self._snapshot_ids()
        if max((snapshot_id.number for snapshot_id in snapshot_ids), default=-1) > self._number:
            raise BadConfigError(
                f"parking_location={self._path!r} is written by another process too. Nothing was lost. Stop the other "
                "process, probably an older driver of this query."
            )
        snapshot_id = SnapshotId(batch_id, self._number + 1)
        self._keep(snapshot_id, snapshot)
        if committed is not None:
            kept = {
                snapshot_id,
                _last_of(snapshot_ids, committed - 1),
                _last_of([*snapshot_ids, snapshot_id], committed),
            }
            # Oldest first, so that an interruption leaves no gap.
            self._remove(sorted(set(snapshot_ids) - kept))

    def _restore_folder(self, snapshot: Snapshot, committed: int | None) -> None:
        """Save the snapshot for the uncommitted batch. Spark runs it again, so its messages are parked twice at worst."""
        is_first = committed == -1
        snapshot_id = SnapshotId(0, 0) if is_first or committed is None else SnapshotId(committed, self._number + 1)
        self._keep(snapshot_id, snapshot)
        raise ParkingLocationDeletedError(
            f"parking_location={self._path!r} was deleted while the query ran. It was recreated with all {len(snapshot)} "
            "parked messages, so nothing is lost. Find out what deleted it, and restart the query."
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
        """Read `query.json`, or its draft if a process died between removing the old file and renaming."""
        owner, draft = self._path_of(_OWNER_FILE), self._path_of(_draft(_OWNER_FILE))
        if not self._files.exists(owner) and self._files.exists(draft):
            try:
                json.loads(self._read(draft))
            except ValueError:
                return None
            self._files.rename(draft, owner)
        return self._read(owner) if self._files.exists(owner) else None

    def _check_owner(self, text: bytes) -> None:
        remedy = "Pass the parking location of an earlier start of this query, or an empty folder."
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
                f"parking_location={self._path!r} has a {_OWNER_FILE} that is damaged or from another program. {remedy}"
            ) from exc
        if app != self._app:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to app {app!r}, but this is app {self._app!r}. {remedy}"
            )
        if version != VERSION:
            raise BadConfigError(
                f"parking_location={self._path!r} is in format {version}, but this version of acker_redis reads only format "
                f"{VERSION}. Start the program with the version that wrote it, and drain() it. {_WITHOUT_THEM}"
            )

    def _refuse_to_go_back(self, snapshot_ids: list[SnapshotId], before: int) -> None:
        newest = self._snapshot(max(snapshot_ids, key=lambda snapshot_id: snapshot_id.number))
        messages = newest.message_ids
        if not messages:  # all messages parked then are done
            return
        some = ", ".join(map(str, messages[:_MAX_IDS_NAMED])) + (", …" if len(messages) > _MAX_IDS_NAMED else "")
        first = min(snapshot_ids)
        raise BadConfigError(
            f"parking_location={self._path!r} has snapshots of batch {first.batch_id} and later, but the query resumes at "
            f"batch {before}. {len(messages)} messages are parked ({some}), and those from before batch {before} would be "
            f"lost. Nothing was changed. Restore a checkpoint that resumes at batch {first.batch_id + 1} or later. "
            f"{_WITHOUT_THEM}"
        )

    def _snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        try:
            data = self._read(self._path_of(_file_name(snapshot_id)))
        except Py4JError as exc:
            raise ParkingOutageError(
                f"parking_location={self._path!r}: snapshot {_file_name(snapshot_id)} is unreadable ({_cause(exc)}). "
                "The query was not started. Restart it once the file is readable, or replace the file with a copy."
            ) from exc
        try:
            return from_parquet(data)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"parking_location={self._path!r}: snapshot {_file_name(snapshot_id)} is damaged ({exc}). Replace it with "
                f"a copy. {_WITHOUT_THEM}"
            ) from exc

    def _snapshot_ids(self) -> list[SnapshotId]:
        try:
            names = self._file_names(self._folder) if self._files.exists(self._folder) else []
        except Py4JError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({_cause(exc)}).") from exc
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
        """Write a file completely or not at all. A process that dies may leave a complete draft of `query.json`."""
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
            raise ParkingOutageError(f"parking_location={self._path!r} is not writable ({_cause(exc)}).") from exc
        if not renamed:
            raise ParkingOutageError(
                f"parking_location={self._path!r}: the draft of {name} could not be renamed. Check that the folder is "
                "writable."
            )

    def _remove_draft(self, draft: Any) -> None:
        """Remove a partly written file, which takes space on a full disk."""
        try:
            self._files.delete(draft, False)
        except Py4JError as exc:
            log.debug("could not remove a draft parking_location=%s error=%s", self._path, _cause(exc))

    def _remove(self, snapshot_ids: list[SnapshotId]) -> None:
        try:
            for snapshot_id in snapshot_ids:
                self._files.delete(self._path_of(_file_name(snapshot_id)), False)
        except Py4JError as exc:  # the next save removes them too
            log.warning("could not remove old snapshots parking_location=%s error=%s", self._path, _cause(exc))


def _last_of(snapshot_ids: list[SnapshotId], batch_id: int) -> SnapshotId | None:
    """Return the latest snapshot of this batch or an earlier one."""
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
