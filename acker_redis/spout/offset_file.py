"""Progress of a source: per partition the first offset that isn't done, and runs of offsets done beyond it.

Storm's Kafka spout commits only the former, so one failed message makes a restart repeat everything after it. Progress is
stored in a file of the program, not in Redis, because it must survive the loss of Redis's memory.
"""

import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.model.arrays import Int64Array

if sys.platform != "win32":
    import fcntl

FORMAT, VERSION = "acker_redis.offsets", 2

MAX_RUNS = 10_000
"""Largest number of runs beyond the first gaps that are kept. These are the longest; a restart repeats the others."""

_LARGEST = np.iinfo(np.int64).max
_NO_HASHES = np.array([], np.int64)


class OffsetFile:
    """Store the progress of a source's partitions in a JSON file.

    The file names the app, the partition column and the offset column. Per partition it holds the first offset that isn't
    known to be done, and the runs of done offsets beyond it. While the file is open, no other run can open it: the file
    `.<name>.lock` beside it is locked. On Windows this is not enforced.

    Per file of `read_files` it also holds a hash of the first and of the last record done. A file may grow. If it has fewer
    records than are done, or another hash, it was replaced by another file with its name.

    Guarantee: every offset below a partition's offset in `known`, and every offset in its runs, was done. The file is
    replaced atomically, so a crash leaves the old one. Not guaranteed: that any other offset was not done.
    """

    def __init__(self, path: str | os.PathLike[str], *, on_replaced: Literal["raise", "read_again"] = "raise") -> None:
        """Set the path. `run_tracked` opens and reads the file.

        Args:
            path: path of the file.
            on_replaced: whether a source file that was replaced under its name ends the run (`raise`), or is read from its
                first record (`read_again`).

        Raises:
            BadConfigError: `on_replaced` is another value.
        """
        if on_replaced not in ("raise", "read_again"):
            raise BadConfigError(f"OffsetFile: on_replaced={on_replaced!r} is unknown. Use 'raise' or 'read_again'.")
        self._path, self._on_replaced = Path(path).resolve(), on_replaced
        self._lock: IO[bytes] | None = None
        self._about: dict[str, Any] = {}
        self._begin: dict[str, int] = {}
        self._beyond: dict[str, list[list[int]]] = {}
        self._hashes: dict[str, dict[int, int]] = {}
        self._records: dict[str, tuple[int, Int64Array]] = {}  # first offset, and the hashes from there on
        self._ids = np.array([], np.int64)
        self._partition_of = np.array([], np.int64)
        self._offset_of = np.array([], np.int64)
        self._done = np.array([], np.bool_)
        self._by_place = np.array([], np.int64)
        self._names: list[str] = []

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
        return self._path

    @property
    def on_replaced(self) -> Literal["raise", "read_again"]:
        """What happens to a source file that was replaced under its name."""
        return self._on_replaced

    def open(self, app: str, partition: str, offset: str) -> Self:
        """Lock the file for one run, and read it if it exists. Use as a context manager, or call `close`.

        Args:
            app: app whose messages are tracked.
            partition: column with the names of the source's partitions.
            offset: column with the offset in the partition.

        Raises:
            BadConfigError: if another run has the file open, or the folder isn't writable. Also if the file is damaged, is
                not an offset file, or belongs to another app or source.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     offsets.known()
        {}
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            self._draft.unlink(missing_ok=True)  # of a run that was killed
            self._about = {"format": FORMAT, "version": VERSION, "app": app, "partition": partition, "offset": offset}
            self._begin, self._beyond, self._hashes = self._read()
            self._records = {}
        except OSError as exc:
            self.close()
            raise BadConfigError(
                f"The offset file {self._path} can't be opened ({exc}). Pass a path that is writable."
            ) from exc
        except BadConfigError:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Release the file without saving.

        >>> offsets = OffsetFile("offsets.json").open("orders", "partition", "offset")
        >>> offsets.close()
        """
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def known(self) -> dict[str, int]:
        """Return per partition the first offset that isn't known to be done.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     offsets.known()
        {}
        """
        return dict(self._begin)

    def marks(self) -> dict[str, dict[int, int | None]]:
        """Return per partition the offsets whose records identify it, with their hashes; None: not known yet.

        They are the first and the last offset that is done.

        >>> with OffsetFile("offsets.json").open("orders", "file", "row") as offsets:
        ...     offsets.marks()
        {}
        """
        marks: dict[str, dict[int, int | None]] = {}
        for name in self._begin:
            rows = {*self._hashes.get(name, {}), *self._bounds(name)}
            if rows:
                marks[name] = {row: self._hash_of(name, row) for row in sorted(rows)}
        return marks

    def forget(self, partitions: Iterable[str]) -> None:
        """Forget the progress of partitions, so that they are read from their first record.

        >>> with OffsetFile("offsets.json").open("orders", "file", "row") as offsets:
        ...     offsets.forget(["monday.log"])
        """
        for name in partitions:
            for kept in (self._begin, self._beyond, self._hashes, self._records):
                kept.pop(name, None)

    def add_hashes(self, hashes: Mapping[str, tuple[int, Int64Array]]) -> None:
        """Add hashes of records, in place of those added before.

        Args:
            hashes: per partition the first offset, and the hashes of its records from there on.

        >>> with OffsetFile("offsets.json").open("orders", "file", "row") as offsets:
        ...     offsets.add_hashes({"monday.log": (0, np.array([17, 18]))})
        """
        self._records |= hashes

    def add_marks(self, partition: str, hashes: Mapping[int, int]) -> None:
        """Add the hashes of single records of a partition, by offset.

        >>> with OffsetFile("offsets.json").open("orders", "file", "row") as offsets:
        ...     offsets.add_marks("monday.log", {0: 17, 59: 18})
        """
        self._hashes[partition] = dict(hashes)
        self._keep_hashes(partition)

    def open_partitions(self) -> list[str]:
        """Return the partitions with tracked messages that aren't done.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     _ = offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1]))
        ...     offsets.open_partitions()
        ['p0']
        """
        return [self._names[number] for number in np.unique(self._partition_of[~self._done]).tolist()]

    def track(
        self, message_ids: Int64Array, partitions: Sequence[str], of_message: Int64Array, offsets: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Track messages in place of those tracked before. Return a mask of messages that aren't done.

        Args:
            message_ids: distinct ids of the messages.
            partitions: names of the partitions.
            of_message: index of each message's partition.
            offsets: offset of each message in its partition, from 0. A partition has no gaps of unknown messages.

        Raises:
            PipelineError: if ids aren't distinct, or an offset is out of range.
            BadConfigError: if the file is one of the partitions.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1])).tolist()
        [True, True]
        """
        if len(offsets) and not (int(offsets.min()) >= 0 and int(offsets.max()) < _LARGEST):
            raise PipelineError(
                f"Offsets range from {offsets.min()} to {offsets.max()}. Use offsets from 0 to below 2^63 - 1."
            )
        place = self._path.as_uri()
        if {str(self._path), place, place.replace("file:///", "file:/")} & set(partitions):
            raise BadConfigError(
                f"The offset file {self._path} is read as a source file. Store it outside of the source's folder."
            )
        if duplicates := len(message_ids) - len(np.unique(message_ids)):
            raise PipelineError(f"{duplicates} message ids are duplicates. Use distinct ids.")
        order = np.argsort(message_ids)
        self._ids, self._names = message_ids[order], list(partitions)
        self._partition_of, self._offset_of = of_message[order], offsets[order]
        self._by_place = np.lexsort((self._offset_of, self._partition_of))
        self._done = self._done_before()
        is_open = np.ones(len(order), np.bool_)
        is_open[order[self._done]] = False
        return is_open

    def complete(self, message_ids: Int64Array) -> None:
        """Mark messages as done: acked, or stored as dead letters. Ids that aren't tracked are ignored.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     _ = offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1]))
        ...     offsets.complete(np.array([7]))
        """
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, message_ids), len(self._ids) - 1)
            self._done[places[self._ids[places] == message_ids]] = True

    def save(self) -> dict[str, int]:
        """Write the progress. Return per partition the first offset that isn't done.

        Raises:
            BadConfigError: if the file isn't open.
            OSError: if it can't be written. The old file is unchanged.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     _ = offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1]))
        ...     offsets.complete(np.array([7]))
        ...     offsets.save()
        {'p0': 1}
        """
        if self._lock is None:
            raise BadConfigError(
                f"The offset file {self._path} is not open. Call open() first, with the app and the two columns."
            )
        seen = np.bincount(self._partition_of, minlength=len(self._names)) > 0
        first_open = np.full(len(self._names), -1)
        np.maximum.at(first_open, self._partition_of, self._offset_of + 1)  # if all are done: after the last
        np.minimum.at(first_open, self._partition_of[~self._done], self._offset_of[~self._done])
        for number in np.flatnonzero(seen).tolist():
            name, offset = self._names[number], int(first_open[number])
            self._begin[name] = max(self._begin.get(name, offset), offset)
        self._beyond |= {self._names[number]: [] for number in np.flatnonzero(seen).tolist()}
        for number, begin, end in self._runs(first_open):
            self._beyond[self._names[number]].append([begin, end])
        for number in np.flatnonzero(seen).tolist():
            self._keep_hashes(self._names[number])
        self._draft.unlink(missing_ok=True)
        with self._draft.open("x", encoding="utf-8") as file:
            if self._path.exists():
                self._draft.chmod(stat.S_IMODE(self._path.stat().st_mode))
            beyond = {name: runs for name, runs in self._beyond.items() if runs}
            hashes = {name: sorted(of_row.items()) for name, of_row in self._hashes.items() if of_row}
            json.dump({**self._about, "begin": self._begin, "beyond": beyond, "hashes": hashes}, file)
            file.flush()
            os.fsync(file.fileno())
        self._draft.replace(self._path)
        return dict(self._begin)

    def _bounds(self, name: str) -> set[int]:
        """Return the first and the last offset of a partition that is done, if there is one."""
        begin, runs = self._begin.get(name, 0), self._beyond.get(name, [])
        if begin:
            return {0, runs[-1][1] - 1 if runs else begin - 1}
        return {runs[0][0], runs[-1][1] - 1} if runs else set()

    def _hash_of(self, name: str, row: int) -> int | None:
        first, hashes = self._records.get(name, (0, _NO_HASHES))
        if 0 <= row - first < len(hashes):
            return int(hashes[row - first])
        return self._hashes.get(name, {}).get(row)

    def _keep_hashes(self, name: str) -> None:
        """Keep the hashes of the first and the last record done, or those that are kept, if these aren't known."""
        hashes = {row: self._hash_of(name, row) for row in self._bounds(name)}
        known = {row: one for row, one in hashes.items() if one is not None}
        if len(known) == len(hashes):
            self._hashes[name] = known

    def _done_before(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the tracked messages that are in runs of the file."""
        done = np.zeros(len(self._ids), np.bool_)
        for number, name in enumerate(self._names):
            runs = np.array(self._beyond.get(name, []), np.int64).reshape(-1, 2)
            if len(runs):
                rows = np.flatnonzero(self._partition_of == number)
                places = np.searchsorted(runs[:, 0], self._offset_of[rows], side="right") - 1
                done[rows] = (places >= 0) & (self._offset_of[rows] < runs[places, 1])
        return done

    def _runs(self, first_open: Int64Array) -> list[tuple[int, int, int]]:
        """Return (partition, begin, end) of the longest MAX_RUNS runs done beyond the first gaps, in order."""
        rows = self._by_place[self._done[self._by_place]]
        rows = rows[self._offset_of[rows] >= first_open[self._partition_of[rows]]]
        partitions, offsets = self._partition_of[rows], self._offset_of[rows]
        if not len(rows):
            return []
        is_begin = np.ones(len(rows), np.bool_)
        is_begin[1:] = (partitions[1:] != partitions[:-1]) | (offsets[1:] != offsets[:-1] + 1)
        begins = np.flatnonzero(is_begin)
        ends = np.append(begins[1:], len(rows)) - 1
        lengths = ends - begins
        if len(begins) > MAX_RUNS:
            longest = np.sort(np.argsort(lengths)[-MAX_RUNS:])
            begins, ends = begins[longest], ends[longest]
        return list(
            zip(partitions[begins].tolist(), offsets[begins].tolist(), (offsets[ends] + 1).tolist(), strict=True)
        )

    @property
    def _draft(self) -> Path:
        """Path of the draft. One name is enough, because only the holder of the lock writes."""
        return self._path.with_name(f".{self._path.name}.draft")

    def _locked(self) -> IO[bytes]:
        """Lock a file beside the target, because the target is replaced.

        The lock file is never removed, because that could remove another run's lock.
        """
        file = self._path.with_name(f".{self._path.name}.lock").open("ab")
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            file.close()
            raise BadConfigError(
                f"The offset file {self._path} is in use by another run. Wait until that run ends, or use one file per run."
            ) from exc
        except OSError:
            file.close()
            raise
        return file

    def _read(self) -> tuple[dict[str, int], dict[str, list[list[int]]], dict[str, dict[int, int]]]:
        """Read the offsets of this app and these columns, and the hashes of records."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}, {}, {}
        hint = "or move the file away to start from the first offset."
        try:
            content = json.loads(text)
            is_ours = content.get("format") == FORMAT
        except (ValueError, RecursionError, AttributeError) as exc:
            raise BadConfigError(
                f"{self._path} is not an offset file. Pass the file that an earlier run wrote, {hint}"
            ) from exc
        if not is_ours:
            raise BadConfigError(
                f"{self._path} is not an offset file, because its format is not {FORMAT!r}. Pass the file that an earlier run "
                f"wrote, {hint}"
            )
        for name, wanted in self._about.items():
            if content.get(name) != wanted:
                raise BadConfigError(
                    f"The offset file {self._path} was written for {name} {content.get(name)!r}, but this run has {name} "
                    f"{wanted!r}. Use one file per app and source, {hint}"
                )
        begin = content.get("begin")
        for partition, offset in begin.items() if isinstance(begin, dict) else [("begin", begin)]:
            if type(offset) is not int or not 0 <= offset <= _LARGEST:
                raise BadConfigError(
                    f"The offset file {self._path} is damaged: {offset!r:.50} of {partition!r} is not an offset. Restore a "
                    f"copy, {hint}"
                )
        beyond = content.get("beyond")
        if not isinstance(beyond, dict) or not all(map(_are_runs, beyond.values())):
            raise BadConfigError(
                f"The offset file {self._path} is damaged: {beyond!r:.50} is not a set of offset runs. Restore a copy, {hint}"
            )
        hashes = content.get("hashes", {})  # files of earlier versions have none
        if not isinstance(hashes, dict) or not all(map(_are_hashes, hashes.values())):
            raise BadConfigError(
                f"The offset file {self._path} is damaged: {hashes!r:.50} is not a set of hashes. Restore a copy, {hint}"
            )
        return dict(content["begin"]), beyond, {name: dict(pairs) for name, pairs in hashes.items() if name in begin}


def _are_runs(runs: Any) -> bool:
    """Return True if these are pairs of begin and end, in order and disjoint."""
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        return False
    bounds = [bound for run in runs for bound in run]
    return all(type(bound) is int and 0 <= bound <= _LARGEST for bound in bounds) and bounds == sorted(set(bounds))


def _are_hashes(pairs: Any) -> bool:
    """Return True if these are pairs of an offset and a hash."""
    return isinstance(pairs, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(part) is int for part in pair)
        and 0 <= pair[0] <= _LARGEST
        for pair in pairs
    )
