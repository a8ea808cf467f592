"""Where a stream keeps what it has parked: snapshots beside the checkpoint, on any file system that Spark writes to.

`query.json` says whose the folder is. A snapshot is a Parquet file `<batch>-<number>.parquet` with all that was parked when
that micro-batch ended, or later. It counts once Spark has committed the batch: a batch that Spark gives again is still whole
in its source, so the latest snapshot of an earlier batch is what is parked then.
"""

import io
import json
import re
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from acker_redis.errors import AckerError, BadConfigError
from acker_redis.pending import FloatArray, Tries
from acker_redis.spark.java import of
from acker_redis.spout_state import Cause

FORMAT, VERSION = "acker_redis.park", 2

_NAME = re.compile(r"^(\d+)-(\d+)\.parquet$")
_ABOUT = "query.json"
_COLUMNS = pa.schema([
    ("id", pa.int64()), ("attempts", pa.int64()), ("uncounted", pa.int32()), ("losses", pa.int16()), ("most", pa.int32()),
    ("first_secs", pa.uint32()), ("due_ms", pa.int64()), ("since_ms", pa.int64()), ("reason", pa.string()),
    ("last_stage", pa.string()), ("behind", pa.bool_()), ("row", pa.binary()),
])  # fmt: skip


class Row(NamedTuple):
    """A parked message.

    Attributes:
        since_ms: when it was parked, by this machine's clock.
        data: as `kept_rows` has it.
    """

    since_ms: int
    data: bytes


@dataclass(frozen=True)
class Snapshot:
    """All that is parked.

    Attributes:
        tries: of messages that were emitted.
        delays_secs: until each is due.
        causes: that `tries.why` counts in.
        rows: of each of the tries.
        behind: messages that wait for an earlier one of the same id, in their order.
        schema: of the rows.
        column: of the message ids among them.
    """

    tries: Tries
    delays_secs: FloatArray
    causes: list[Cause]
    rows: list[Row]
    behind: list[tuple[int, Row]]
    schema: StructType
    column: str


class Place(NamedTuple):
    """The number of a snapshot: its micro-batch, and which of that it is."""

    batch_id: int
    number: int


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
        self._last = Place(-1, -1)
        try:
            self._folder = self._hadoop_path(path)
            self._files = self._folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
            self._exists = self._files.exists(self._folder)
            about = self._at(_ABOUT)
            found = self._read(about) if self._files.exists(about) else None
        except Py4JError as exc:
            raise BadConfigError(f"park={path!r} can't be read: {_cause(exc)}") from exc
        if found is not None:
            self._check(found)

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
                "somewhere: give the folder that was used before. If there was none yet, make it (empty), and start again"
            )
        if self.query is None and self._strangers():
            raise BadConfigError(
                f"park={self._path!r} holds other files, such as {self._strangers()[0]!r}: give an empty folder"
            )
        if self.query is None or self.checkpoint != checkpoint:
            about = {"format": FORMAT, "version": VERSION, "app": self._app, "query": query, "checkpoint": checkpoint}
            self._write(_ABOUT, json.dumps(about).encode())
        self.query, self.checkpoint = query, checkpoint

    def committed(self) -> int:
        """The last micro-batch that Spark has committed, by the checkpoint; -1: none."""
        try:
            commits = self._hadoop_path(self.checkpoint, "commits")
            if not self._files.exists(commits):
                return -1
            return max((int(name) for name in self._names(commits) if name.isdigit()), default=-1)
        except Py4JError as exc:
            raise BadConfigError(f"the checkpoint {self.checkpoint!r} can't be read: {_cause(exc)}") from exc

    def load(self, before: int) -> Snapshot | None:
        """What is parked when a batch begins: the latest snapshot of an earlier one.

        Raises:
            BadConfigError: it is damaged.
        """
        counted = _last_of(self._places(), before - 1)
        return None if counted is None else self._snapshot(counted)

    def begin(self, before: int) -> None:
        """From now on this process saves here. Removes the snapshots that do not count for the batch that is next."""
        places = self._places()
        self._last = max(places, default=self._last)
        counted = _last_of(places, before - 1)
        self._remove([place for place in places if place != counted])

    def save(self, batch_id: int, snapshot: Snapshot, committed: int) -> None:
        """Keep a snapshot, behind the others; removes those that can't count any more, as a batch was committed after them.

        Raises:
            BadConfigError: another process saves here.
            AckerError: it can't be written.
        """
        places = self._places()
        if max(places, default=self._last) > self._last:
            raise BadConfigError(
                f"park={self._path!r}: another process writes there: is an older driver of this query still alive? End it. "
                "Nothing was lost"
            )
        place = Place(batch_id, self._last.number + 1)
        self._write(_name(place), _packed(snapshot))
        self._last = place
        counted = _last_of([*places, place], committed)
        self._remove([one for one in places if one != counted])

    def _check(self, text: bytes) -> None:
        anew = "give the folder an earlier run made, or a new one"
        try:
            about = json.loads(text)
            if about["format"] != FORMAT:
                raise ValueError
            version, app, self.query, self.checkpoint = (about[n] for n in ("version", "app", "query", "checkpoint"))
        except (ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(f"park={self._path!r} holds a {_ABOUT} that is damaged, or not ours: {anew}") from exc
        if version != VERSION or app != self._app:
            raise BadConfigError(
                f"park={self._path!r} was made for app {app!r} in format {version}, and this is app {self._app!r} in format "
                f"{VERSION}: {anew}"
            )

    def _snapshot(self, place: Place) -> Snapshot:
        try:
            found = pq.read_table(io.BytesIO(self._read(self._at(_name(place)))), page_checksum_verification=True)
            return _unpacked(found)
        except (Py4JError, OSError, ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"park={self._path!r}: the snapshot {_name(place)} is damaged ({_cause(exc)}): put a copy in its place, or "
                "remove it, and the messages that were parked are lost: the acker's counters don't know them any more"
            ) from exc

    def _places(self) -> list[Place]:
        try:
            names = self._names(self._folder) if self._files.exists(self._folder) else []
        except Py4JError as exc:
            raise AckerError(f"park={self._path!r} can't be read: {_cause(exc)}") from exc
        return [Place(int(found[1]), int(found[2])) for found in map(_NAME.match, names) if found]

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
        """Whole or not at all, where the file system renames in one step."""
        draft = self._at(f".{name}.draft")
        try:
            self._files.mkdirs(self._folder)
            stream = self._files.create(draft, True)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
            self._files.delete(self._at(name), False)
            renamed = self._files.rename(draft, self._at(name))
        except Py4JError as exc:
            raise AckerError(f"park={self._path!r} can't be written: {_cause(exc)}") from exc
        if not renamed:
            raise AckerError(f"park={self._path!r}: {name} could not be given its name: can the folder be written?")

    def _remove(self, places: list[Place]) -> None:
        try:
            for place in places:
                self._files.delete(self._at(_name(place)), False)
        except Py4JError as exc:
            raise AckerError(f"park={self._path!r}: old snapshots can't be removed: {_cause(exc)}") from exc


def _last_of(places: list[Place], batch_id: int) -> Place | None:
    """The latest snapshot of this batch or an earlier one."""
    return max((place for place in places if place.batch_id <= batch_id), default=None)


def _name(place: Place) -> str:
    return f"{place.batch_id:010}-{place.number:06}.parquet"


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString())


def _packed(snapshot: Snapshot) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    tries, behind = snapshot.tries, snapshot.behind
    causes = [snapshot.causes[why] for why in tries.why.tolist()]
    rest = len(behind)
    none = [0] * rest
    table = pa.table(
        [
            [*tries.message_ids.tolist(), *(message for message, _ in behind)],
            [*tries.attempts.tolist(), *none],
            [*tries.uncounted.tolist(), *none],
            [*tries.losses.tolist(), *none],
            [*tries.most.tolist(), *none],
            [*tries.first_secs.tolist(), *none],
            [*(now_ms + (snapshot.delays_secs * 1000).astype(np.int64)).tolist(), *none],
            [*(row.since_ms for row in snapshot.rows), *(row.since_ms for _, row in behind)],
            [*(reason for reason, _ in causes), *([""] * rest)],
            [*(stage for _, stage in causes), *([None] * rest)],
            [*([False] * len(tries)), *([True] * rest)],
            [*(row.data for row in snapshot.rows), *(row.data for _, row in behind)],
        ],
        schema=_COLUMNS.with_metadata(
            {"acker_redis.columns": snapshot.schema.json(), "acker_redis.id": snapshot.column}
        ),
    )
    out = io.BytesIO()
    pq.write_table(table, out, write_page_checksum=True)
    return out.getvalue()


def _unpacked(table: pa.Table) -> Snapshot:
    metadata = table.schema.metadata
    schema = StructType.fromJson(json.loads(metadata[b"acker_redis.columns"]))
    table = table.select(_COLUMNS.names).cast(_COLUMNS)
    is_behind = table.column("behind")
    found, behind = table.filter(pc.invert(is_behind)), table.filter(is_behind)

    def rows(part: pa.Table) -> list[Row]:
        pairs = zip(part.column("since_ms").to_pylist(), part.column("row").to_pylist(), strict=True)
        return [Row(since_ms, data) for since_ms, data in pairs]

    tries = Tries.first(found.column("id").to_numpy())
    pairs = list(zip(found.column("reason").to_pylist(), found.column("last_stage").to_pylist(), strict=True))
    causes: list[Cause] = list(dict.fromkeys(pairs))
    numbers = {cause: number for number, cause in enumerate(causes)}
    return Snapshot(
        Tries(
            tries.message_ids, found.column("attempts").to_numpy(), found.column("uncounted").to_numpy(),
            found.column("losses").to_numpy(), tries.excused, tries.final, found.column("most").to_numpy(),
            found.column("first_secs").to_numpy(),
            np.array([numbers[pair] for pair in pairs], np.int16), tries.numbers.copy(),
        ),
        np.maximum(0.0, found.column("due_ms").to_numpy() / 1000 - time.time()),
        causes, rows(found), list(zip(behind.column("id").to_pylist(), rows(behind), strict=True)), schema,
        metadata[b"acker_redis.id"].decode(),
    )  # fmt: skip
