"""Log of what was accepted: one sequence of records, each of which only one writer can create.

A run begins with a record of its own. The next record of an older run has the number of a newer run's record then, so the
older one learns that it is fenced, and decides nothing more. The log decides, and not the server: that may lose its memory.
"""

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TypeAlias

from acker_redis.errors import BadConfigError, DamagedDataError, FencedError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.log_folder import LogFolder
from acker_redis.publishing.log_state import LogState
from acker_redis.publishing.messages import Mask, MessageNames
from acker_redis.publishing.records import (
    Accepted,
    Dead,
    Decision,
    Epoch,
    Finished,
    Owner,
    Published,
    Record,
    Reopened,
    Skipped,
    Staged,
)

Publish: TypeAlias = Callable[[int, Staged], object]
"""Function that puts the rows of one sink of a record into their target. It may be called again for the same ones."""

SNAPSHOT_EVERY = 1000
"""Records after which a snapshot replaces them."""

_NAME = re.compile(r"^(\d{10})\.(json|snap)$")
_STARTS = 100


def is_log(folder: LogFolder) -> bool:
    """Return True if a folder has a record or a snapshot."""
    return any(map(_NAME.match, folder.names()))


class PublishLog:
    """The log of one set of messages. Its methods may be called by any thread.

    Attributes:
        state: what the log says, as far as this process knows.
    """

    def __init__(self, folder: LogFolder, *, snapshot_every: int | None = None) -> None:
        """Set the folder, and the records after which a snapshot replaces them. Nothing is read."""
        self.state = LogState()
        self._folder, self._snapshot_every = folder, snapshot_every or SNAPSHOT_EVERY
        self._base = 0  # number of the newest snapshot
        self._published: list[int] = []  # done, and in no record yet
        self._under_way: Record | None = None  # nobody knows whether it was created
        self._is_fenced = False
        self._lock = threading.RLock()

    def read(self) -> None:
        """Read what the log says.

        Raises:
            DamagedDataError: a record or snapshot can't be read.
            OSError: the file system failed.
        """
        with self._lock:
            while not self._read_once():
                pass

    def begin(self, run: str, owner: Owner, name: str, check: Callable[[LogState], object] | None = None) -> None:
        """Begin a run. Earlier ones can decide nothing more.

        Args:
            run: the run.
            owner: what the log belongs to.
            name: name of a log that has no record yet, for the names of files.
            check: function that may refuse what the log says, before anything is written.

        Raises:
            BadConfigError: the log belongs to something else. Nothing was written.
            DamagedDataError: a record or snapshot can't be read.
            FencedError: other runs begin all the time.
            OSError: the file system failed. Call it again.
        """
        with self._lock:
            for _ in range(_STARTS):
                try:
                    self._settle()
                    if self.state.run == run:  # an earlier call has begun it, and couldn't know
                        return
                    self.read()
                    self._check_owner(owner)
                    if check is not None:
                        check(self.state)
                    self._put(Epoch(run, owner, self.state.log_id or f"{name}-{uuid.uuid4().hex}"))
                    self._folder.remove_drafts(_record(self.state.epoch))
                except FencedError:
                    self._is_fenced = False
                else:
                    return
            raise self._fenced()

    def accept(self, accepted: Accepted) -> int | None:
        """Decide that the rows of some messages belong into the tables.

        Returns:
            The number of the record; None: some of the messages are accepted or dead already, so nothing was decided. Stage
            the rows of the others, and try again.

        Raises:
            FencedError: a newer run has begun. Nothing was decided.
            OSError: nobody knows whether it was decided. Call `settle` before anything else.
        """
        with self._lock:
            self._settle()
            return None if self.state.has_done(accepted.messages) else self._put(accepted)

    def bury(self, dead: Dead) -> tuple[int, Dead] | None:
        """Decide that messages are dead, before their letters are stored.

        Returns:
            The number of the record, and what it has: messages that are accepted or dead already are left out, and get no
            letter. None: that are all of them.

        Raises:
            Exception: as `accept`.
        """
        with self._lock:
            self._settle()
            fresh = [
                not self.is_done(MessageNames.one(*name))[0] for name in zip(dead.partitions, dead.numbers, strict=True)
            ]
            if not any(fresh):
                return None
            left = replace(
                dead,
                partitions=tuple(compress(dead.partitions, fresh)),
                numbers=tuple(compress(dead.numbers, fresh)),
                letters=tuple(compress(dead.letters, fresh)),
            )
            return self._put(left), left

    def buried(self, since: int) -> dict[int, Dead]:
        """Read the records from a number on by which messages are dead, as far as no snapshot has replaced them.

        Raises:
            DamagedDataError: a record can't be read.
            Exception: as `accept`.
        """
        with self._lock:
            self._settle()
            return {
                number: record.decision
                for number, record in self.records()
                if number >= since and isinstance(record.decision, Dead)
            }

    def outdated(self, names: MessageNames, by: Int64Array) -> Mask:
        """Return which letters nobody needs any more.

        A letter is needed if its message is dead by its record, or was reopened and isn't done: its driver may have ended
        behind the record, so that only the letter brings the message back.

        Args:
            names: messages of the letters.
            by: numbers of the records that made them letters.

        Raises:
            FencedError: a newer run has begun, such as one that wrote a letter.
            Exception: as `accept`.
        """
        with self._lock:
            self._settle()
            if (by > self.state.number).any():
                self._is_fenced = True
            if self._is_fenced:
                raise self._fenced()
            dead_by = self.state.dead_by(names)
            is_dead_by_another: Mask = (dead_by > 0) & (dead_by != by)
            return self.state.accepted.has(names) | is_dead_by_another

    def reopen(self, run: str, names: MessageNames, by: Int64Array) -> Mask:
        """Decide that messages of letters run again, except those of outdated ones.

        Args:
            run: run that decides.
            names: messages of the letters.
            by: numbers of the records that made them letters.

        Returns:
            Which of them run again.

        Raises:
            Exception: as `outdated`.
        """
        with self._lock:
            is_needed = ~self.outdated(names, by)
            if (dead := is_needed & self.state.is_dead(names)).any():
                self._put(Reopened(run, names.only(dead).ranges()))
            return is_needed

    def skip(self, number: int, sink: str) -> None:
        """Decide that rows of a record that wait for one sink are never published.

        Raises:
            Exception: as `accept`.
        """
        with self._lock:
            self._put(Skipped(number, sink))

    def records(self) -> Iterator[tuple[int, Record]]:
        """Yield the records that no snapshot has replaced, with their numbers.

        Raises:
            DamagedDataError: one can't be read.
            OSError: the file system failed.
        """
        for name in sorted(self._folder.names()):
            found = _NAME.match(name)
            if found and found[2] == "json" and (data := self._folder.read(name)) is not None:
                yield int(found[1]), Record.from_bytes(data, name)

    def is_done(self, names: MessageNames) -> Mask:
        """Return which messages are accepted or dead."""
        with self._lock:
            return self.state.accepted.has(names) | self.state.is_dead(names)

    def is_accepted(self, names: MessageNames) -> Mask:
        """Return which messages are accepted."""
        with self._lock:
            return self.state.accepted.has(names)

    def finish(self) -> None:
        """Say that every message of the source is done, if the log doesn't say so.

        Raises:
            Exception: as `accept`.
        """
        with self._lock:
            if not self.state.is_finished:
                self._put(Finished(self.state.run))

    def note_published(self) -> None:
        """Say what is published or stored, if no record says so. Nobody looks for it any more, and its files may vanish.

        Raises:
            Exception: as `accept`.
        """
        with self._lock:
            self._settle()
            if self._published:
                self._put(Published())

    def settle(self) -> None:
        """Find out whether the last record was created, if nobody knows.

        Raises:
            Exception: as `accept`.
        """
        with self._lock:
            self._settle()

    def publish(self, publish: Publish) -> None:
        """Publish what was accepted and isn't published, in the order of its numbers, up to the first error.

        Raises:
            Exception: `publish` raised it.
        """
        with self._lock:
            for number, accepted in sorted(self.state.to_publish.items()):
                for staged in accepted.staged:
                    publish(number, staged)
                self._done(number)

    def may_need(self, stage: Path) -> bool:
        """Return True if a record has rows in this folder that may still have to be published."""
        with self._lock:
            under_way = None if self._under_way is None else self._under_way.decision
            accepted = [*self.state.to_publish.values(), *([under_way] if isinstance(under_way, Accepted) else [])]
            return any(Path(staged.stage).is_relative_to(stage) for one in accepted for staged in one.staged)

    def stored(self, number: int) -> None:
        """Note that the letters of a record are stored."""
        with self._lock:
            self._done(number)

    def compact(self, *, at_once: bool = False) -> None:
        """Replace old records by a snapshot if there are many, and nothing that was decided is left to be done.

        Raises:
            OSError: the file system failed. Nothing is lost.
        """
        with self._lock:
            number, is_due = self.state.number, self.state.number - self._base >= self._snapshot_every
            if self._under_way is not None or not self.state.is_settled or not (is_due or at_once) or not number:
                return
            self._folder.create(_snapshot(number), self.state.snapshot())
            self._base, self._published = number, []
            # Only now: a record that is gone must be known to have existed.
            for name in self._folder.names():
                found = _NAME.match(name)
                if found and int(found[1]) <= number and name != _snapshot(number):
                    self._folder.remove(name)

    def _put(self, decision: Decision) -> int:
        with self._lock:
            self._settle()
            if self._is_fenced:
                raise self._fenced()
            self._under_way = Record(uuid.uuid4().hex, decision, tuple(self._published))
            self._settle()
            return self.state.number

    def _settle(self) -> None:
        record, number = self._under_way, self.state.number + 1
        if record is None:
            return
        is_own = self._folder.create(_record(number), record.to_bytes())
        if not is_own:  # the file system may have repeated our own request
            there = self._folder.read(_record(number))
            is_own = there is not None and Record.from_bytes(there, _record(number)).put == record.put
        # A number that a snapshot covers was used before, and removed: to have created it proves nothing.
        is_own = is_own and max(self._snapshots(), default=0) < number
        self._under_way = None
        if not is_own:
            self._is_fenced = True
            raise self._fenced()
        self.state.apply(number, record)
        self._published = self._published[len(record.published) :]

    def _done(self, number: int) -> None:
        self.state.done(number)
        self._published.append(number)

    def _read_once(self) -> bool:
        """Read the newest snapshot and the records behind it. Return False if a newer snapshot has come meanwhile."""
        state, base = LogState(), max(self._snapshots(), default=0)
        if base:
            snapshot = self._folder.read(_snapshot(base))
            if snapshot is None:
                return False
            state = LogState.from_bytes(snapshot, _snapshot(base))
        while (data := self._folder.read(_record(state.number + 1))) is not None:
            record = Record.from_bytes(data, _record(state.number + 1))
            _check_log_of(state, record)
            state.apply(state.number + 1, record)
        if max(self._snapshots(), default=0) > base:  # whose writer removes records, so some may have looked missing
            return False
        if not self._is_newest(state.number):
            return False
        self.state, self._base, self._published = state, base, []
        return True

    def _is_newest(self, number: int) -> bool:
        """Return True if no record has a greater number; False if one has come meanwhile.

        Raises:
            DamagedDataError: the next one is missing.
        """
        numbers = {int(name[1]) for name in map(_NAME.match, self._folder.names()) if name and name[2] == "json"}
        later = {one for one in numbers if one > number}
        if not later:
            return True
        if number + 1 in later or max(self._snapshots(), default=0) > number:
            return False
        raise DamagedDataError(
            f"The publish log lacks record {number + 1}, or the snapshot in its place, but has record {min(later)}. So it "
            "isn't known which messages' rows are in the tables. Restore the whole folder of the log."
        )

    def _snapshots(self) -> list[int]:
        found = map(_NAME.match, self._folder.names())
        return [int(name[1]) for name in found if name and name[2] == "snap"]

    def _check_owner(self, owner: Owner) -> None:
        if self.state.owner not in (None, owner):
            raise BadConfigError(
                f"The publish log belongs to {self.state.owner}, and not to {owner}. So its messages may be other ones. Use "
                "another location, or other data=."
            )

    def _fenced(self) -> FencedError:
        return FencedError(
            "A newer run, or a command of a person on call, has written to the publish log. So this run can't decide anything "
            "more. If no other run works on this data, start it again, and it completes the rest."
        )


def _check_log_of(state: LogState, record: Record) -> None:
    """Check that a record belongs to the log of those before it.

    Raises:
        DamagedDataError: it was written while the log was lost, and then the log was restored around it.
    """
    if isinstance(record.decision, Epoch) and state.log_id not in ("", record.decision.log_id):
        raise DamagedDataError(
            f"Record {state.number + 1} of the publish log belongs to another log, which was begun while this one was away. "
            "They can't be read as one. Empty the folder of the log, and restore the whole log into it."
        )


def _record(number: int) -> str:
    return f"{number:010}.json"


def _snapshot(number: int) -> str:
    return f"{number:010}.snap"
