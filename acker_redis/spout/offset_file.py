"""Progress of a source: per partition the first offset that isn't done, and runs of offsets done beyond it.

Storm's Kafka spout commits only the former, so one failed message makes a restart repeat everything after it. Progress is
stored in a file of the program, not in Redis, because it must survive the loss of Redis's memory.
"""

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

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


class OffsetFile:
    """Store the progress of a source's partitions in a JSON file.

    The file names the app, the partition column and the offset column. Per partition it holds the first offset that isn't
    known to be done, and the runs of done offsets beyond it. While the file is open, no other run can open it: the file
    `.<name>.lock` beside it is locked. On Windows this is not enforced.

    Guarantee: every offset below a partition's offset in `known`, and every offset in its runs, was done. The file is
    replaced atomically, so a crash leaves the old one. Not guaranteed: that any other offset was not done.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Set the path. `run_tracked` opens and reads the file."""
        self._path = Path(path).resolve()
        self._lock: IO[bytes] | None = None
        self._about: dict[str, Any] = {}
        self._begin: dict[str, int] = {}
        self._beyond: dict[str, list[list[int]]] = {}
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
            self._begin, self._beyond = self._read()
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
        self._draft.unlink(missing_ok=True)
        with self._draft.open("x", encoding="utf-8") as file:
            if self._path.exists():
                self._draft.chmod(stat.S_IMODE(self._path.stat().st_mode))
            beyond = {name: runs for name, runs in self._beyond.items() if runs}
            json.dump({**self._about, "begin": self._begin, "beyond": beyond}, file)
            file.flush()
            os.fsync(file.fileno())
        self._draft.replace(self._path)
        return dict(self._begin)

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

    def _read(self) -> tuple[dict[str, int], dict[str, list[list[int]]]]:
        """Read the offsets of this app and these columns."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}, {}
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
        return dict(content["begin"]), beyond


def _are_runs(runs: Any) -> bool:
    """Return True if these are pairs of begin and end, in order and disjoint."""
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        return False
    bounds = [bound for run in runs for bound in run]
    return all(type(bound) is int and 0 <= bound <= _LARGEST for bound in bounds) and bounds == sorted(set(bounds))
