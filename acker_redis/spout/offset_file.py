"""Progress of a source: per partition the offset below which everything is done, and runs of offsets done beyond it.

Storm's Kafka spout commits no more than the former, so a message that failed makes a restart repeat all behind it. Kept in
a file of the program's own, not in Redis: it has to survive the loss of Redis's memory.
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
"""Runs of offsets beyond the first gaps that are kept, the longest ones; a restart repeats the others."""

_LARGEST = np.iinfo(np.int64).max


class OffsetFile:
    """Progress of a source's partitions.

    The file is JSON. It names the app and the columns it counts in, and holds per partition the first offset that is not
    known to be done, and runs of those beyond it that are. While it is open nobody else can open it (on Windows that is not
    noticed); for this `.<name>.lock` stands beside it.

    Guarantee: every offset below a partition's in `known`, and of its runs, was done. The file is replaced as a whole, so a
    crash leaves the old one. Not guaranteed: that another offset was not done.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file. It is read when it is opened, which `run_tracked` does."""
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
        """The file, absolute."""
        return self._path

    def open(self, app: str, partition: str, offset: str) -> Self:
        """Take the file for one run, and read it if it is there. Use as a context manager, or call `close`.

        Args:
            app: whose messages it counts.
            partition: column with the names of the source's partitions.
            offset: column that counts in them.

        Raises:
            BadConfigError: another run has it open; it is no offset file, damaged, or of another app or source; or the
                folder can't be written.

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
                f"offsets can't be kept in {self._path}: {exc}: give a file that can be written"
            ) from exc
        except BadConfigError:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Let others open the file. Nothing is saved.

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
        """Return the first offset that is not known to be done, of each partition in the file.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     offsets.known()
        {}
        """
        return dict(self._begin)

    def track(
        self, message_ids: Int64Array, partitions: Sequence[str], of_message: Int64Array, offsets: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Track messages, in place of those tracked before; returns for each whether it is still to be done.

        Args:
            message_ids: distinct.
            partitions: names.
            of_message: for each message the index of its partition.
            offsets: for each message its offset there, from 0. A partition's have no gaps of unknown messages.

        Raises:
            PipelineError: ids are not distinct, or an offset is out of range.
            BadConfigError: the file is one of the partitions.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1])).tolist()
        [True, True]
        """
        if len(offsets) and not (int(offsets.min()) >= 0 and int(offsets.max()) < _LARGEST):
            raise PipelineError(f"offsets go from {offsets.min()} to {offsets.max()}: count from 0, below 2^63 - 1")
        place = self._path.as_uri()
        if {str(self._path), place, place.replace("file:///", "file:/")} & set(partitions):
            raise BadConfigError(f"{self._path} is read as a source file: keep offsets outside of the source's folder")
        if len(np.unique(message_ids)) != len(message_ids):
            raise PipelineError("message ids stand more than once")
        order = np.argsort(message_ids)
        self._ids, self._names = message_ids[order], list(partitions)
        self._partition_of, self._offset_of = of_message[order], offsets[order]
        self._by_place = np.lexsort((self._offset_of, self._partition_of))
        self._done = self._done_before()
        is_open = np.ones(len(order), np.bool_)
        is_open[order[self._done]] = False
        return is_open

    def complete(self, message_ids: Int64Array) -> None:
        """Note messages that are done: acked, or kept as dead letters. Ids that are not tracked are ignored.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     _ = offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1]))
        ...     offsets.complete(np.array([7]))
        """
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, message_ids), len(self._ids) - 1)
            self._done[places[self._ids[places] == message_ids]] = True

    def save(self) -> dict[str, int]:
        """Write the progress; returns the first offset of each partition that is not done.

        Raises:
            BadConfigError: the file is not open.
            OSError: it can't be written; it is as it was.

        >>> with OffsetFile("offsets.json").open("orders", "partition", "offset") as offsets:
        ...     _ = offsets.track(np.array([7, 8]), ["p0"], np.array([0, 0]), np.array([0, 1]))
        ...     offsets.complete(np.array([7]))
        ...     offsets.save()
        {'p0': 1}
        """
        if self._lock is None:
            raise BadConfigError(
                f"{self._path} is not open: call open() first, with the app and the columns it counts in"
            )
        seen = np.bincount(self._partition_of, minlength=len(self._names)) > 0
        first_open = np.full(len(self._names), -1)
        np.maximum.at(first_open, self._partition_of, self._offset_of + 1)  # where all is done: behind the last
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
        """Which of the tracked messages are in runs of the file."""
        done = np.zeros(len(self._ids), np.bool_)
        for number, name in enumerate(self._names):
            runs = np.array(self._beyond.get(name, []), np.int64).reshape(-1, 2)
            if len(runs):
                rows = np.flatnonzero(self._partition_of == number)
                places = np.searchsorted(runs[:, 0], self._offset_of[rows], side="right") - 1
                done[rows] = (places >= 0) & (self._offset_of[rows] < runs[places, 1])
        return done

    def _runs(self, first_open: Int64Array) -> list[tuple[int, int, int]]:
        """(partition, begin, end) of runs that are done beyond the first gaps, in order; the longest MAX_RUNS of them."""
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
        """One name is enough, because only the holder of the lock writes."""
        return self._path.with_name(f".{self._path.name}.draft")

    def _locked(self) -> IO[bytes]:
        """Lock a file beside the target, as the target is replaced. It stays: removing it could remove another run's lock."""
        file = self._path.with_name(f".{self._path.name}.lock").open("ab")
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            file.close()
            raise BadConfigError(
                f"{self._path} is in use by another run: wait for its end, or give each run a file of its own"
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
        hint = "or move it away to start from the first offset"
        try:
            content = json.loads(text)
            is_ours = content.get("format") == FORMAT
        except (ValueError, RecursionError, AttributeError) as exc:
            raise BadConfigError(f"{self._path} holds no offsets: give the file an earlier run made, {hint}") from exc
        if not is_ours:
            raise BadConfigError(
                f"{self._path} holds no offsets: it doesn't name an app. Give the file an earlier run made, {hint}"
            )
        for name, wanted in self._about.items():
            if content.get(name) != wanted:
                raise BadConfigError(
                    f"{self._path} was made for {name} {content.get(name)!r}, and this is {name} {wanted!r}: give each app "
                    f"and each source a file of its own, {hint}"
                )
        begin = content.get("begin")
        for partition, offset in begin.items() if isinstance(begin, dict) else [("begin", begin)]:
            if type(offset) is not int or not 0 <= offset <= _LARGEST:
                raise BadConfigError(
                    f"{self._path} was damaged: {offset!r:.50} of {partition!r} is no offset: put a copy in its place, {hint}"
                )
        beyond = content.get("beyond")
        if not isinstance(beyond, dict) or not all(map(_are_runs, beyond.values())):
            raise BadConfigError(
                f"{self._path} was damaged: {beyond!r:.50} are no runs of offsets: put a copy in its place, {hint}"
            )
        return dict(content["begin"]), beyond


def _are_runs(runs: Any) -> bool:
    """Whether these are pairs of begin and end, in order and apart."""
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        return False
    bounds = [bound for run in runs for bound in run]
    return all(type(bound) is int and 0 <= bound <= _LARGEST for bound in bounds) and bounds == sorted(set(bounds))
