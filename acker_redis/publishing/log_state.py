"""What a publish log says up to one of its records, and snapshots of that."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from acker_redis.errors import DamagedDataError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import Mask, MessageNames, MessageSet, names_of
from acker_redis.publishing.records import (
    FORMAT,
    Accepted,
    Dead,
    Epoch,
    Finished,
    Owner,
    Published,
    Ranges,
    Record,
    Reopened,
    Skipped,
    json_of_owner,
    json_of_ranges,
    owner_of_json,
    ranges_of_json,
)

_RANGES_IN_A_LINE, _DEAD_IN_A_LINE = 65_536, 10_000


@dataclass
class LogState:
    """What the log says.

    Attributes:
        number: number of its newest record; 0: it has none.
        owner: what it belongs to; None: it has no record.
        log_id: id of the log, which no other log has: its name and a random text; empty: it has no record.
        run: run that may decide.
        epoch: number of that run's first record.
        accepted: messages whose rows are in the tables, or will be once `to_publish` is empty.
        dead: partition -> number of a dead message -> number of the record that says so.
        to_publish: numbers of records whose rows aren't known to be published -> the records.
        to_store: numbers of records whose letters aren't known to be stored -> the records.
        is_finished: whether every message that the source had was done when its newest run ended.
        newest_accepted: number of the newest record that accepted messages; 0: none did.
        newest_stored: number of the newest record whose letters were stored; 0: none were.
        newest_reopened: number of the newest record by which dead messages ran again; 0: none did.
        sinks: names of sinks and their targets, of the newest accepted messages; empty behind the end of the data.
        tables: targets of all accepted messages.
    """

    number: int = 0
    owner: Owner | None = None
    log_id: str = ""
    run: str = ""
    epoch: int = 0
    accepted: MessageSet = field(default_factory=MessageSet)
    dead: dict[str, dict[int, int]] = field(default_factory=dict)
    to_publish: dict[int, Accepted] = field(default_factory=dict)
    to_store: dict[int, Dead] = field(default_factory=dict)
    is_finished: bool = False
    newest_accepted: int = 0
    newest_stored: int = 0
    newest_reopened: int = 0
    sinks: dict[str, str] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)

    def apply(self, number: int, record: Record) -> None:
        """Add the next record."""
        match record.decision:
            case Epoch(run, owner, log_id):
                if self.is_finished:
                    self.sinks = {}
                self.run, self.owner, self.epoch, self.is_finished = run, owner, number, False
                self.log_id = log_id
            case Accepted() as accepted:
                self.accepted.add(accepted.messages)
                self.to_publish[number] = accepted
                self.newest_accepted = number
                self.sinks = {staged.name: staged.target for staged in accepted.staged}
                self.tables.update(self.sinks.values())
            case Dead() as dead:
                for partition, message in zip(dead.partitions, dead.numbers, strict=True):
                    self.dead.setdefault(partition, {})[message] = number
                self.to_store[number] = dead
            case Reopened(_, messages):
                self._reopen(messages)
                self.newest_reopened = number
            case Skipped(skipped, sink):
                self._skip(skipped, sink)
            case Finished():
                self.is_finished = True
            case Published():
                pass  # the numbers in the record say it
        for done in record.published:
            self.done(done)
        self.number = number

    @property
    def name(self) -> str:
        """Name that the log has in the names of files. It stays the same if the log is moved."""
        return self.log_id.partition("-")[0]

    def done(self, number: int) -> None:
        """Note that the rows of a record are published, or its letters are stored."""
        self.to_publish.pop(number, None)
        if self.to_store.pop(number, None) is not None:
            self.newest_stored = max(self.newest_stored, number)

    @property
    def is_settled(self) -> bool:
        """True if nothing that was decided is left to be done."""
        return not (self.to_publish or self.to_store)

    def is_dead(self, names: MessageNames) -> Mask:
        """Return which messages are dead."""
        return self.dead_by(names) > 0

    def dead_by(self, names: MessageNames) -> Int64Array:
        """Return the numbers of the records by which messages are dead; 0: one isn't."""
        found = np.zeros(len(names), np.int64)
        if not any(self.dead.values()):
            return found
        for index, rows in names.by_partition():
            if dead := self.dead.get(names.partitions[index]):
                found[rows] = [dead.get(number, 0) for number in names.numbers[rows].tolist()]
        return found

    def has_done(self, ranges: Ranges) -> bool:
        """Return True if any message of these ranges is accepted or dead. The ranges aren't expanded."""
        return self.accepted.overlaps(ranges) or any(map(self._has_dead, ranges, ranges.values()))

    def _has_dead(self, partition: str, ranges: Int64Array) -> bool:
        numbers = np.fromiter(self.dead.get(partition, ()), np.int64)
        at = np.searchsorted(ranges[:, 0], numbers, "right") - 1
        return bool(((at >= 0) & (numbers <= ranges[np.maximum(at, 0), 1])).any())

    def _reopen(self, messages: Ranges) -> None:
        names = names_of(messages)
        for index, number in zip(names.partition_of.tolist(), names.numbers.tolist(), strict=True):
            self.dead.get(names.partitions[index], {}).pop(number, None)

    def _skip(self, number: int, sink: str) -> None:
        if number in self.to_publish:
            accepted = self.to_publish[number]
            left = tuple(staged for staged in accepted.staged if staged.name != sink)
            self.to_publish[number] = replace(accepted, staged=left)

    def to_bytes(self) -> bytes:
        """Return a snapshot, as lines of JSON. It leaves out what is left to be done, so there must be nothing."""
        return b"".join(self.snapshot())

    def snapshot(self) -> "Snapshot":
        """Return the lines of a snapshot one by one, so that nobody has to hold all of them."""
        return Snapshot(self)

    def lines(self) -> Iterator[object]:
        """Return what the lines of a snapshot say."""
        owner = None if self.owner is None else json_of_owner(self.owner)
        yield {
            "format": FORMAT, "number": self.number, "owner": owner, "log_id": self.log_id, "run": self.run,
            "epoch": self.epoch, "is_finished": self.is_finished, "newest_accepted": self.newest_accepted,
            "newest_stored": self.newest_stored, "newest_reopened": self.newest_reopened, "sinks": self.sinks,
            "tables": sorted(self.tables),
        }  # fmt: skip
        for partition, ranges in self.accepted.pieces():
            for at in range(0, len(ranges), _RANGES_IN_A_LINE):
                yield {"accepted": partition, "ranges": json_of_ranges(ranges[at : at + _RANGES_IN_A_LINE])}
        for partition in sorted(self.dead):
            pairs = sorted(self.dead[partition].items())
            for at in range(0, len(pairs), _DEAD_IN_A_LINE):
                yield {"dead": partition, "by_record": pairs[at : at + _DEAD_IN_A_LINE]}
        yield {"end": self.number}

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Read a snapshot that `to_bytes` wrote.

        Raises:
            DamagedDataError: it is none, or of a later format.
        """
        try:
            first, *lines = data.splitlines()
            return cls._from_lines(json.loads(first), lines)
        except (ValueError, TypeError, KeyError) as exc:
            raise DamagedDataError(
                f"{name} is no snapshot of a publish log that this version can read ({exc!r}). So it isn't known which "
                "messages' rows are in the tables. Restore the file, or install the version that wrote it."
            ) from exc

    @classmethod
    def _from_lines(cls, header: Mapping[str, Any], lines: Sequence[bytes]) -> Self:
        if header["format"] != FORMAT or not lines or json.loads(lines[-1]) != {"end": header["number"]}:
            raise ValueError("another format, or an incomplete file")
        owner = None if header["owner"] is None else owner_of_json(header["owner"])
        state = cls(
            header["number"],
            owner,
            header["log_id"],
            header["run"],
            header["epoch"],
            is_finished=header["is_finished"],
            newest_accepted=header["newest_accepted"],
            newest_stored=header["newest_stored"],
            newest_reopened=header["newest_reopened"],
            sinks=header["sinks"],
            tables=set(header["tables"]),
        )
        for text in lines[:-1]:
            line = json.loads(text)
            if "accepted" in line:
                state.accepted.add({line["accepted"]: ranges_of_json(line["ranges"])})
            else:
                state.dead.setdefault(line["dead"], {}).update((int(message), by) for message, by in line["by_record"])
        return state


class Snapshot:
    """The lines of a snapshot. They are made anew each time they are read."""

    def __init__(self, state: LogState) -> None:
        """Set the state, which nobody may change meanwhile."""
        self._state = state

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""
        for line in self._state.lines():
            yield json.dumps(line, separators=(",", ":")).encode() + b"\n"
