"""Where a stream keeps what it has parked: snapshots beside the checkpoint, on any file system that Spark writes to.

`query.json` says whose the folder is, and which snapshot is the newest, so that one that is missing is noticed. A
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
from acker_redis.spark.runtime.jvm import of
from acker_redis.spark.streaming.snapshot import VERSION, Snapshot, from_parquet, to_parquet

log = logging.getLogger("acker_redis.spark")

FORMAT = "acker_redis.park"

_NAME = re.compile(r"^(\d+)-(\d+)\.parquet$")
_ABOUT = "query.json"
_OUTAGE_TIMEOUT_SECS, _MOST_WAIT_SECS = 600.0, 30.0
"""A full disk or a store that is away is waited for so long; one wait is no longer than the second."""

_WITHOUT_THEM = "To go on without what is parked there, move the folder away, and make an empty one"

_SOME = 5
"""Messages that an error names."""


class Place(NamedTuple):
    """The number of a snapshot: its micro-batch, and which of that it is."""

    batch_id: int
    number: int


class ParkOutageError(AckerError):
    """The folder or the checkpoint can't be read or written now: the disk is full, or the store is away."""


class ParkGoneError(AckerError):
    """The folder was deleted while the query ran, and made again with all that is parked."""


class ParkOutage:
    """How long the folder can't be written, and when to try again."""

    def __init__(self) -> None:
        self._since = self._next = 0.0
        self._times = 0
        self._waits = Backoff(base=BACKOFF_BASE_SECS, cap=_MOST_WAIT_SECS)

    def is_over(self, now: float) -> bool:
        """Whether it may be."""
        return now >= self._next

    def down(self, now: float, error: ParkOutageError) -> None:
        """It can't.

        Raises:
            AckerError: for too long.
        """
        if not self._times:
            self._since = now
            log.warning("waiting until what is parked can be saved: %s", error)
        if now - self._since > _OUTAGE_TIMEOUT_SECS:
            raise AckerError(
                f"what is parked could not be saved for {now - self._since:.0f} s: {error}. The snapshot of before counts, "
                "and Spark gives the micro-batch again, so nothing is lost. Start the query when the folder can be written"
            ) from error
        self._times += 1
        self._next = now + self._waits.compute(self._times)

    def up(self, now: float) -> None:
        """It can."""
        if self._times:
            self._times = 0
            log.warning("what is parked is saved again, after %.1f s", now - self._since)


class Park:
    """A folder of snapshots. One process at a time writes there.

    Attributes:
        query: id of the streaming query that it belongs to; None: it is new.
        checkpoint: of that query.
    """

    def __init__(self, session: SparkSession, path: str, app: str) -> None:
        """Look whose the folder is.

        Raises:
            BadConfigError: it is another app's, something else, or damaged; or it can't be read.
        """
        self.query: str | None = None
        self.checkpoint = ""
        self._path, self._app = path, app
        self._hadoop_path = of(session.sparkContext, "org.apache.hadoop.fs.Path")
        self._number = -1  # of the last snapshot, as far as this process knows
        self._newest: Place | None = None
        try:
            self._folder = self._hadoop_path(path)
            self._files = self._folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
            self._exists = self._files.exists(self._folder)
            about = self._about()
        except Py4JError as exc:
            raise BadConfigError(f"park={path!r} can't be read: {_cause(exc)}") from exc
        if about is not None:
            self._check(about)

    @property
    def has_snapshots(self) -> bool:
        """Whether something was parked there once."""
        return self._newest is not None

    def claim(self, query: str, checkpoint: str, batch_id: int) -> None:
        """Take the folder for a query that begins with a batch; makes it, if the query is new.

        Raises:
            BadConfigError: it is another query's, or it is missing, and the query is not new.
        """
        if self.query is not None and self.query != query:
            raise BadConfigError(
                f"park={self._path!r} belongs to another query, with the checkpoint {self.checkpoint!r}: give each query a "
                "folder of its own. If that query's checkpoint is gone for good, what it had parked is in the snapshots here "
                "(Parquet): move the folder away"
            )
        if self.query is None and batch_id > 0 and not self._exists:
            raise BadConfigError(
                f"park={self._path!r} is not there, and the query goes on with batch {batch_id}, so messages may be parked "
                "somewhere: give the folder that was used before, or put it back from a copy. An empty folder in its place "
                "(in an object store: with a file .empty) says that none are, and those that were are lost"
            )
        if self.query is None and self._places():
            raise BadConfigError(
                f"park={self._path!r} holds snapshots, and no {_ABOUT} that says whose they are: put it back from a copy. "
                f"{_WITHOUT_THEM}"
            )
        if self.query is None and self._strangers():
            raise BadConfigError(
                f"park={self._path!r} holds other files, such as {self._strangers()[0]!r}: give an empty folder"
            )
        if self.query is None or self.checkpoint != checkpoint:
            self._write_about(query, checkpoint, self._newest)
        self.query, self.checkpoint = query, checkpoint

    def committed(self) -> int | None:
        """The last micro-batch that Spark has committed, by the checkpoint; -1: none. None: the checkpoint is not there.

        Raises:
            ParkOutageError: it can't be read.
        """
        try:
            commits = self._hadoop_path(self.checkpoint, "commits")
            if not self._files.exists(commits):
                return -1 if self._files.exists(self._hadoop_path(self.checkpoint)) else None
            return max((int(name) for name in self._names(commits) if name.isdigit()), default=-1)
        except Py4JError as exc:
            raise ParkOutageError(f"the checkpoint {self.checkpoint!r} can't be read: {_cause(exc)}") from exc

    def next_batch(self) -> int:
        """The micro-batch that the query goes on with.

        Raises:
            BadConfigError: its checkpoint is not there.
        """
        committed = self.committed()
        if committed is None:
            raise BadConfigError(
                f"park={self._path!r} belongs to a query whose checkpoint {self.checkpoint!r} is not there, so nobody knows "
                "which of its snapshots counts: put it back, or start the query, which says where it is now"
            )
        return committed + 1

    def load(self, before: int) -> Snapshot | None:
        """What is parked when a batch begins: the latest snapshot of an earlier one. Nothing is changed.

        Raises:
            BadConfigError: it is damaged or missing; or not known, as the checkpoint was set back too far.
            ParkOutageError: it can't be read.
        """
        places = self._places()
        if self._newest is not None and self._newest not in places:
            raise BadConfigError(
                f"park={self._path!r}: the snapshot {_name(self._newest)} is missing, which has what was parked last: put it "
                f"back from a copy. {_WITHOUT_THEM}"
            )
        counted = _last_of(places, before - 1)
        if counted is None and min((place.number for place in places), default=0) > 0:
            self._refuse_to_go_back(places, before)
        return None if counted is None else self._snapshot(counted)

    def begin(self, before: int) -> bool:
        """From now on this process saves here. Whether there are snapshots that don't count, and will if none comes after."""
        places = self._places()
        self._number = max((place.number for place in places), default=-1)
        return any(place.batch_id >= before for place in places)

    def is_there(self) -> bool:
        """Return False if the folder is known to be deleted."""
        try:
            return bool(self._files.exists(self._at(_ABOUT)))
        except Py4JError:
            return True

    def save(self, batch_id: int, snapshot: Snapshot, committed: int | None) -> None:
        """Keep a snapshot, behind the others; removes those that can't count any more, as a batch was committed after them.

        Raises:
            BadConfigError: another process saves here.
            ParkGoneError: the folder was deleted, and is there again, with the snapshot.
            ParkOutageError: it can't be written.
        """
        if self.query is None:
            raise AssertionError("the folder was not claimed")
        try:
            is_gone = not self._files.exists(self._at(_ABOUT)) and self._about() is None
        except Py4JError as exc:
            raise ParkOutageError(f"park={self._path!r} can't be read: {_cause(exc)}") from exc
        if is_gone:
            self._restore_folder(snapshot, committed)
        places = self._places()
        if max((one.number for one in places), default=-1) > self._number:
            raise BadConfigError(
                f"park={self._path!r}: another process writes there: is an older driver of this query still alive? End it. "
                "Nothing was lost"
            )
        place = Place(batch_id, self._number + 1)
        self._keep(place, snapshot)
        if committed is not None:
            kept = {place, _last_of(places, committed - 1), _last_of([*places, place], committed)}
            self._remove(sorted(set(places) - kept))  # the oldest first: of what is left, none between two was removed

    def _restore_folder(self, snapshot: Snapshot, committed: int | None) -> None:
        """As what is parked for the batch that is not committed yet, which comes again, to be parked twice at worst."""
        is_first = committed == -1
        place = Place(0, 0) if is_first or committed is None else Place(committed, self._number + 1)
        self._keep(place, snapshot)
        raise ParkGoneError(
            f"park={self._path!r} was deleted while the query ran: it is there again, with all {len(snapshot)} messages that "
            "are parked, so nothing is lost. Find out who deletes it, and start the query again"
        )

    def _keep(self, place: Place, snapshot: Snapshot) -> None:
        self._write(_name(place), to_parquet(snapshot))
        self._number = place.number
        self._write_about(str(self.query), self.checkpoint, place)
        self._newest = place

    def _write_about(self, query: str, checkpoint: str, newest: Place | None) -> None:
        about = {
            "format": FORMAT, "version": VERSION, "app": self._app, "query": query, "checkpoint": checkpoint,
            "newest": None if newest is None else _name(newest),
        }  # fmt: skip
        self._write(_ABOUT, json.dumps(about).encode())

    def _about(self) -> bytes | None:
        """What `query.json` says; one that was to take its place, where a process died between removing and renaming."""
        about, draft = self._at(_ABOUT), self._at(_draft(_ABOUT))
        if not self._files.exists(about) and self._files.exists(draft):
            try:
                json.loads(self._read(draft))
            except ValueError:
                return None
            self._files.rename(draft, about)
        return self._read(about) if self._files.exists(about) else None

    def _check(self, text: bytes) -> None:
        remedy = "give the folder an earlier run made, or a new one"
        try:
            about = json.loads(text)
            if about["format"] != FORMAT:
                raise ValueError
            version, app = about["version"], about["app"]
            self.query, self.checkpoint = about["query"], about["checkpoint"]
            newest = about["newest"] if version == VERSION else None
            self._newest = None if newest is None else _place(newest)
        except (ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"park={self._path!r} holds a {_ABOUT} that is damaged, or not ours: {remedy}"
            ) from exc
        if app != self._app:
            raise BadConfigError(
                f"park={self._path!r} was made for app {app!r}, and this is app {self._app!r}: {remedy}"
            )
        if version != VERSION:
            raise BadConfigError(
                f"park={self._path!r} is in format {version}. This version of acker_redis can read format {VERSION} only. "
                f"Start the program with the version that wrote it, and drain() it. {_WITHOUT_THEM}"
            )

    def _refuse_to_go_back(self, places: list[Place], before: int) -> None:
        newest = self._snapshot(max(places, key=lambda place: place.number))
        messages = newest.message_ids
        if not messages:  # whatever was parked then is done
            return
        some = ", ".join(map(str, messages[:_SOME])) + (", …" if len(messages) > _SOME else "")
        first = min(places)
        raise BadConfigError(
            f"park={self._path!r}: the query begins with batch {before}, and nobody knows what was parked then, as the "
            f"snapshots are of batch {first.batch_id} and later. {len(messages)} messages are parked ({some}); "
            f"those that came before batch {before} would be lost. Nothing was changed: put a checkpoint back that goes on "
            f"with batch {first.batch_id + 1} or later. {_WITHOUT_THEM}"
        )

    def _snapshot(self, place: Place) -> Snapshot:
        try:
            data = self._read(self._at(_name(place)))
        except Py4JError as exc:
            raise ParkOutageError(
                f"park={self._path!r}: the snapshot {_name(place)} can't be read: {_cause(exc)}. Nothing was begun: start "
                "again when it can be, or put a copy in its place"
            ) from exc
        try:
            return from_parquet(data)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"park={self._path!r}: the snapshot {_name(place)} is damaged ({exc}): put a copy in its place. "
                f"{_WITHOUT_THEM}"
            ) from exc

    def _places(self) -> list[Place]:
        try:
            names = self._names(self._folder) if self._files.exists(self._folder) else []
        except Py4JError as exc:
            raise ParkOutageError(f"park={self._path!r} can't be read: {_cause(exc)}") from exc
        return [_place(name) for name in names if _NAME.match(name)]

    def _strangers(self) -> list[str]:
        return [name for name in self._names(self._folder) if not name.startswith(".")] if self._exists else []

    def _names(self, folder: Any) -> list[str]:
        return [status.getPath().getName() for status in self._files.listStatus(folder)]

    def _at(self, name: str) -> Any:
        return self._hadoop_path(self._folder, name)

    def _read(self, path: Any) -> bytes:
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def _write(self, name: str, data: bytes) -> None:
        """Whole or not at all; what a process that dies leaves of `query.json` is a whole draft at least, see `_about`."""
        draft = self._at(_draft(name))
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
            self._files.delete(self._at(name), False)
            renamed = self._files.rename(draft, self._at(name))
        except Py4JError as exc:
            raise ParkOutageError(f"park={self._path!r} can't be written: {_cause(exc)}") from exc
        if not renamed:
            raise ParkOutageError(
                f"park={self._path!r}: {name} could not be given its name: can the folder be written?"
            )

    def _remove_draft(self, draft: Any) -> None:
        """What a part of a file takes of a full disk."""
        try:
            self._files.delete(draft, False)
        except Py4JError as exc:
            log.debug("a draft is left: %s", _cause(exc))

    def _remove(self, places: list[Place]) -> None:
        try:
            for place in places:
                self._files.delete(self._at(_name(place)), False)
        except Py4JError as exc:  # the next ones that are written remove them, too
            log.warning("park=%r: old snapshots can't be removed: %s", self._path, _cause(exc))


def _last_of(places: list[Place], batch_id: int) -> Place | None:
    """The latest snapshot of this batch or an earlier one."""
    return max((place for place in places if place.batch_id <= batch_id), default=None)


def _place(name: str) -> Place:
    numbers = _NAME.match(name)
    if numbers is None:
        raise ValueError(name)
    return Place(int(numbers[1]), int(numbers[2]))


def _draft(name: str) -> str:
    return f".{name}.draft"


def _name(place: Place) -> str:
    return f"{place.batch_id:010}-{place.number:06}.parquet"


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString())
