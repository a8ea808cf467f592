"""Parking location of a stream: a folder of snapshots, on a local disk or in an object store.

`query.json` names the query that owns the folder and the newest snapshot, so that a missing one is noticed. A snapshot is a
Parquet file `<batch>-<number>.parquet` with all messages that were parked when that micro-batch ended, or later. It counts
once Spark has committed the batch. If Spark runs a batch again, the source still has all of it, so the latest snapshot of an
earlier batch has the parked messages. Numbers count the snapshots of a query from 0.

The number of the newest snapshot also stands in Redis, per query, so that a folder that was restored from an older copy is
noticed. Therefore numbers never go back. In an empty folder with the file `start_empty` they continue above the one in Redis,
and in one that the product creates again above the one that it knows. `first` in `query.json` is the first number of such a
folder.

The folder keeps the snapshots that count for the next micro-batch and for the one before it. If a checkpoint is set back
further, the messages parked at that time are unknown, unless the very first snapshot still exists.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from acker_redis.errors import AckerError, BadConfigError
from acker_redis.model import keys
from acker_redis.outages import BACKOFF_BASE_SECS, Backoff
from acker_redis.spark.runtime.file_systems import scheme_of
from acker_redis.spark.streaming.kept_letters import KeptLetter, letters_in, to_bytes
from acker_redis.spark.streaming.parking.folder import Folder
from acker_redis.spark.streaming.parking.snapshot import VERSION, Snapshot, from_parquet, to_parquet

log = logging.getLogger("acker_redis.spark")

FORMAT = "acker_redis.park"

_NAME = re.compile(r"^(\d+)-(\d+)\.parquet$")
_OWNER_FILE, _TOPICS_FILE, _LETTERS_FILE = "query.json", "kafka_topics.json", "kafka_letters.json"
_OUTAGE_TIMEOUT_SECS, _MOST_WAIT_SECS = 600.0, 30.0
"""Longest outage of the store (such as a full disk) that is waited for, and longest pause between two tries."""

START_EMPTY = "start_empty"
"""File in an empty folder by which a user accepts that no message is parked. The start removes it."""

_WITHOUT_THEM = (
    "To continue without the messages parked there, move the folder away and create one that has only a file "
    f"{START_EMPTY}."
)

_RESET_STEP = 1000
"""Distance of the first number after a reset from the one in Redis, which may have missed some before."""

_MAX_IDS_NAMED = 5
"""Most message ids that an error lists."""


class SnapshotId(NamedTuple):
    """Identity of a snapshot: its micro-batch, and its number."""

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
        checkpoint: checkpoint location of that query, as a path or URI.
    """

    def __init__(self, path: str, app: str) -> None:
        """Read which query owns the folder.

        Raises:
            BadConfigError: the folder belongs to another app or program, is damaged or unreadable, or is on an unknown file
                system.
        """
        self.query: str | None = None
        self.checkpoint = ""
        self._path, self._app = path, app
        self._first = 0  # number of the first snapshot of this folder
        self._number = -1  # of the last snapshot that this process knows; without one, that before the first
        self._newest: SnapshotId | None = None
        self._is_reset = False
        self._kafka_files: dict[str, bytes] = {}  # as far as this process has read or written them
        try:
            self._folder = Folder(path)
            self._exists = self._folder.exists()
            owner = self._read(_OWNER_FILE)
        except OSError as exc:
            raise BadConfigError(
                f"parking_location={path!r} is unreadable ({exc}). Check the path and its permissions."
            ) from exc
        if owner is not None:
            self._check_owner(owner)

    @property
    def has_snapshots(self) -> bool:
        """Whether messages were ever parked there."""
        return self._newest is not None

    @property
    def number(self) -> int:
        """Number of the newest snapshot, once saving has started; without one, the number before the first."""
        return self._number

    def check_number(self, noted: int | None, before: int) -> None:
        """Compare the newest snapshot with the number that Redis has noted, once saving has started.

        After a reset, numbers continue above it, so that each copy from before the reset counts as older.

        Args:
            noted: number in Redis; None: unknown.
            before: first batch of this start. Before batch 0 nothing can be missing, because all messages come again.

        Raises:
            BadConfigError: the folder is older than another one that this query had.
            ParkingOutageError: the folder is not writable.
        """
        if noted is not None and self._number < noted:
            if before > 0 and not self._is_reset:
                has = f"its newest snapshot is number {self._number}" if self.has_snapshots else "it has no snapshot"
                raise BadConfigError(
                    f"parking_location={self._path!r} is an older copy: {has}, but number {noted} was saved. Messages parked "
                    "since would be lost. Restore the newest copy of the folder. If the checkpoint is a copy of the same "
                    f"time, nothing is missing: run redis-cli HDEL '{keys.snapshots(self._app)}' {self.query}. "
                    f"{_WITHOUT_THEM}"
                )
            self._first = noted + _RESET_STEP
            self._number = self._first - 1
            self._is_reset = True
        if self._is_reset:
            self._is_reset = False
            self._write_owner(str(self.query), self.checkpoint, self._newest)

    def claim(self, query: str, checkpoint: str, batch_id: int) -> None:
        """Claim the folder for a query that starts with a batch. Create the folder if the query is new.

        Raises:
            BadConfigError: the folder belongs to another query, or is missing or empty although the query is not new; or the
                checkpoint is on an unknown file system.
            ParkingOutageError: the folder is not writable, or the checkpoint can't be reached.
        """
        _check_file_system(checkpoint)
        if self.query is not None and self.query != query:
            raise BadConfigError(
                f"parking_location={self._path!r} belongs to another query, with the checkpoint {self.checkpoint!r}. Give "
                "each query its own parking location. If that checkpoint is permanently lost, move the folder away: its "
                "snapshots (Parquet) have the messages that were parked."
            )
        if self.query is None and scheme_of(self._path) is None and scheme_of(checkpoint) not in (None, "file"):
            raise BadConfigError(
                f"parking_location={self._path!r} is a folder on this machine, but the checkpoint is {checkpoint!r}. A start "
                "on another machine would not find the parked messages. Pass a URI such as that of the checkpoint, or one "
                "that begins with file:/ if you want this folder."
            )
        names = self._names()
        starts_empty = START_EMPTY in names
        if self.query is None and self._snapshot_ids():
            raise BadConfigError(
                f"parking_location={self._path!r} has snapshots but no {_OWNER_FILE}, so their owner is unknown. Restore the "
                f"file from a copy. {_WITHOUT_THEM}"
            )
        foreign = [name for name in names if not name.startswith(".") and name != START_EMPTY]
        if self.query is None and foreign:
            raise BadConfigError(
                f"parking_location={self._path!r} has unrelated files, such as {foreign[0]!r}. Pass an empty folder."
            )
        if self.query is None and batch_id > 0 and not starts_empty:
            is_there = f"has no {_OWNER_FILE}" if self._exists else "does not exist"
            raise BadConfigError(
                f"parking_location={self._path!r} {is_there}, but the query resumes at batch {batch_id}. Messages that were "
                "parked would be lost. Pass the parking location of the previous start, or restore it from a copy. To start "
                f"without parked messages, or if nothing was ever parked, create a folder that has only a file {START_EMPTY}."
            )
        self._is_reset = self._is_reset or starts_empty
        if self.query is None or self.checkpoint != checkpoint or starts_empty:
            self._write_owner(query, checkpoint, self._newest)
        if starts_empty:
            self._delete(START_EMPTY)
        self.query, self.checkpoint = query, checkpoint

    def committed(self) -> int | None:
        """Read the last committed micro-batch from the checkpoint; -1: none; None: the checkpoint doesn't exist.

        Raises:
            ParkingOutageError: the checkpoint is unreadable.
        """
        try:
            checkpoint = Folder(self.checkpoint)
            if not checkpoint.exists("commits"):
                return -1 if checkpoint.exists() else None
            return max((int(name) for name in checkpoint.names("commits") if name.isdigit()), default=-1)
        except OSError as exc:
            raise ParkingOutageError(f"The checkpoint {self.checkpoint!r} is unreadable ({exc}).") from exc

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
        if snapshot_ids and START_EMPTY in self._names():  # not by a start, which removes it first
            raise BadConfigError(
                f"parking_location={self._path!r} has a file {START_EMPTY}, but also snapshots. Their messages would be lost. "
                "Remove the file to resume with them, or move the snapshots and query.json away."
            )
        if self._newest is not None and self._newest not in snapshot_ids:
            raise BadConfigError(
                f"parking_location={self._path!r} lacks its newest snapshot {_file_name(self._newest)}. Restore the file "
                f"from a copy. {_WITHOUT_THEM}"
            )
        counted = _last_of(snapshot_ids, before - 1)
        if counted is None and min((snapshot_id.number for snapshot_id in snapshot_ids), default=0) > self._first:
            self._refuse_to_go_back(snapshot_ids, before)
        return None if counted is None else self._snapshot(counted)

    def start_saving(self, before: int) -> bool:
        """Start saving here. Return True if later snapshots exist, which would count unless a new one is saved."""
        snapshot_ids = self._snapshot_ids()
        self._number = max([self._first - 1, *(snapshot_id.number for snapshot_id in snapshot_ids)])
        return any(snapshot_id.batch_id >= before for snapshot_id in snapshot_ids)

    def topic_ids(self) -> dict[str, str]:
        """Read the ids of the topics that the query reads from Kafka, by name. Empty if they aren't known.

        Raises:
            BadConfigError: they are damaged.
            ParkingOutageError: they are unreadable.
        """
        try:
            data = self._read_kafka_file(_TOPICS_FILE)
            ids = {} if data is None else json.loads(data)
            return {str(name): str(topic_id) for name, topic_id in ids.items()}
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({exc}).") from exc
        except (ValueError, AttributeError) as exc:
            raise BadConfigError(
                f"parking_location={self._path!r} has a damaged {_TOPICS_FILE} ({exc}). Without it, a topic that was created "
                "again would go unnoticed. Restore the file from a copy, or delete it to take the topics as they are."
            ) from exc

    def keep_topic_ids(self, ids: Mapping[str, str]) -> None:
        """Keep the ids of topics.

        Raises:
            ParkingOutageError: the folder is not writable.
        """
        self._write_kafka_file(_TOPICS_FILE, json.dumps(ids).encode())

    def kafka_letters(self) -> list[KeptLetter]:
        """Read the dead letters that offsets waited for when they were last kept. Empty if there were none.

        Raises:
            BadConfigError: they are damaged.
            ParkingOutageError: they are unreadable.
        """
        try:
            data = self._read_kafka_file(_LETTERS_FILE)
            return [] if data is None else letters_in(data)
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({exc}).") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"parking_location={self._path!r} has a damaged {_LETTERS_FILE} ({exc}). Without it, a commit could pass dead "
                "letters that a failover loses. Restore the file from a copy, or delete it if the letters are in Redis."
            ) from exc

    def keep_kafka_letters(self, letters: Sequence[KeptLetter]) -> None:
        """Keep the dead letters that offsets wait for, in place of the last ones.

        Raises:
            ParkingOutageError: the folder is not writable.
        """
        self._write_kafka_file(_LETTERS_FILE, to_bytes(letters))

    def exists(self) -> bool:
        """Return True unless the folder is known to be deleted."""
        try:
            return self._folder.exists(_OWNER_FILE)
        except OSError:
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
            is_gone = not self._folder.exists(_OWNER_FILE) and self._read(_OWNER_FILE) is None
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({exc}).") from exc
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
        for name, data in self._kafka_files.items():
            self._write(name, data)
        number = self._number + 1
        if committed is None or committed < 0:  # nothing was parked before, so no earlier snapshot is missing
            self._first = number
        self._keep(SnapshotId(max(committed or 0, 0), number), snapshot)
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
            **({"first": self._first} if self._first else {}),
            **({"reset": True} if self._is_reset else {}),
        }  # fmt: skip
        self._write(_OWNER_FILE, json.dumps(owner).encode())

    def _read(self, name: str) -> bytes | None:
        """Read a file of JSON, or its draft if a process died between removing the old file and renaming."""
        if self._folder.exists(name):
            return self._folder.read(name)
        draft = self._folder.read_draft(name)
        try:
            json.loads(draft or b"")
        except ValueError:
            return None
        self._folder.rename_draft(name)
        return draft

    def _read_kafka_file(self, name: str) -> bytes | None:
        data = self._read(name)
        if data is not None:
            self._kafka_files[name] = data
        return data

    def _write_kafka_file(self, name: str, data: bytes) -> None:
        self._write(name, data)
        self._kafka_files[name] = data

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
            self._first, self._is_reset = int(owner.get("first", 0)), owner.get("reset") is True
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
            data = self._folder.read(_file_name(snapshot_id))
        except OSError as exc:
            raise ParkingOutageError(
                f"parking_location={self._path!r}: snapshot {_file_name(snapshot_id)} is unreadable ({exc}). "
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
        return [_parse_file_name(name) for name in self._names() if _NAME.match(name)]

    def _names(self) -> list[str]:
        try:
            return self._folder.names()
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is unreadable ({exc}).") from exc

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder.write(name, data)
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is not writable ({exc}).") from exc

    def _delete(self, name: str) -> None:
        try:
            self._folder.delete(name)
        except OSError as exc:
            raise ParkingOutageError(f"parking_location={self._path!r} is not writable ({exc}).") from exc

    def _remove(self, snapshot_ids: list[SnapshotId]) -> None:
        try:
            for snapshot_id in snapshot_ids:
                self._folder.delete(_file_name(snapshot_id))
        except OSError as exc:  # the next save removes them too
            log.warning("could not remove old snapshots parking_location=%s error=%s", self._path, exc)


def _last_of(snapshot_ids: list[SnapshotId], batch_id: int) -> SnapshotId | None:
    """Return the latest snapshot of this batch or an earlier one."""
    return max((snapshot_id for snapshot_id in snapshot_ids if snapshot_id.batch_id <= batch_id), default=None)


def _parse_file_name(name: str) -> SnapshotId:
    numbers = _NAME.match(name)
    if numbers is None:
        raise ValueError(name)
    return SnapshotId(int(numbers[1]), int(numbers[2]))


def _file_name(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.batch_id:010}-{snapshot_id.number:06}.parquet"


def _check_file_system(checkpoint: str) -> None:
    try:
        Folder(checkpoint)
    except OSError as exc:
        raise ParkingOutageError(f"The checkpoint {checkpoint!r} is unreadable ({exc}).") from exc
