"""What a spout has in flight and what it will emit again, as arrays: a million messages are no more work than one. No I/O."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from acker_redis.model import ids
from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.model.blocks import Index
from acker_redis.model.xxhash64 import hash_longs, hash_salt

Mask = npt.NDArray[np.bool_]
Rows = Int64Array | npt.NDArray[np.bool_] | slice

SLOT_BITS = 5
"""Last bits of a message id, which are its root's slot."""

_RUN = 100
"""Where runs are as long as this on average, merging them is quicker than sorting all."""


@dataclass(frozen=True)
class Emission:
    """Messages emitted together.

    Attributes:
        number: counts the emissions of this spout, so each has one of its own; its roots and tokens are derived from it.
        message_ids: 64-bit ids the source knows its messages by.
        attempts: emissions before this one, per message.
        roots: root of each, as `root_ids` derives it.
    """

    number: int
    message_ids: Int64Array
    attempts: Int64Array
    roots: Int64Array

    def only(self, rows: npt.NDArray[np.bool_]) -> "Emission":
        """Some of its messages."""
        return Emission(self.number, self.message_ids[rows], self.attempts[rows], self.roots[rows])


@dataclass(frozen=True)
class Tries:
    """Emissions of messages, one row each.

    Attributes:
        message_ids: 64-bit ids.
        attempts: 0 for a first emission.
        uncounted: how many emissions before this one don't count as attempts: they got lost, or are excused.
        losses: how many of those got lost without an excuse.
        excused: an outage broke this one off: whatever becomes of it doesn't count against the message.
        final: if this one fails, there is no other.
        most: the next one goes out with so many messages at most; 0: with any number. One in flight: as it is known now.
        first_secs: when the message was emitted first, in seconds since 1970; 0: it was not.
        why: index into `SpoutState.causes`: what became of the one before; 0 of a first one.
        numbers: emission that each is in; any number before it is in one.
    """

    message_ids: Int64Array
    attempts: Int64Array
    uncounted: npt.NDArray[np.int32]
    losses: npt.NDArray[np.int16]
    excused: npt.NDArray[np.bool_]
    final: npt.NDArray[np.bool_]
    most: npt.NDArray[np.int32]
    first_secs: npt.NDArray[np.uint32]
    why: npt.NDArray[np.int16]
    numbers: Int64Array

    @classmethod
    def first(cls, message_ids: Int64Array) -> "Tries":
        """First emissions."""
        none = np.zeros(len(message_ids), np.int64)
        no = none.astype(np.bool_)
        few = none.astype(np.int16)
        some = none.astype(np.int32)
        return cls(
            message_ids, none, some, few, no, no.copy(), some.copy(), none.astype(np.uint32), few.copy(), none
        )  # fmt: skip

    @classmethod
    def concatenate(cls, parts: "Sequence[Tries]") -> "Tries":
        """The rows of all parts, one after another; not copied where they are of one part."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.message_ids)

    def __getitem__(self, rows: Rows) -> "Tries":
        return Tries(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All of them, in the order of the attributes."""
        return (
            self.message_ids, self.attempts, self.uncounted, self.losses, self.excused, self.final, self.most,
            self.first_secs, self.why, self.numbers,
        )  # fmt: skip

    def again(self, uncounted: Mask, lost: Mask) -> "Tries":
        """The next emissions of these messages; for each, whether this one doesn't count, and whether it got lost."""
        return replace(
            self,
            attempts=self.attempts + 1,
            uncounted=self.uncounted + uncounted,
            losses=self.losses + lost,
            excused=np.zeros(len(self), np.bool_),
            final=np.zeros(len(self), np.bool_),
        )


class InFlight:
    """Messages in flight, by root.

    Attributes:
        roots: of all of them.
        tries: theirs.
        open: which are not settled.
        count: how many those are.
    """

    def __init__(self, roots: Int64Array, tries: Tries) -> None:
        self.roots, self.tries = roots, tries
        self._index = Index(roots.view(np.uint64))
        self.open = np.ones(len(roots), np.bool_)
        self.count = len(roots)

    def find(self, roots: Int64Array) -> Int64Array:
        """For each root the row that is open for it, -1 for none."""
        rows = self._index.find(roots.view(np.uint64))
        return np.where((rows >= 0) & self.open[rows], rows, -1)

    def close(self, rows: Int64Array) -> None:
        """These rows, which are open and distinct, are settled."""
        self.open[rows] = False
        self.count -= len(rows)


class Sent:
    """What became of the roots of one emission, as far as it is known.

    Attributes:
        emission: as it was made.
        left: roots without outcome, that did not get lost either.
        acked: roots that were acked.
        lost: roots that got lost before the ledger knew of them, without an excuse.
        excused: something happened to a server while this was in flight, which explains what gets lost of it.
        broke: it broke as a whole, and its messages go out again in smaller ones.
        ended: the emission has ended.
        proven: it has ended well.
        error: what it ended with, if that was no outage.
    """

    def __init__(self, emission: Emission) -> None:
        self.emission = emission
        self.left, self.acked, self.lost = len(emission.roots), 0, 0
        self.excused = self.broke = self.ended = self.proven = False
        self.error: BaseException | None = None

    def note(self, count: int, what: Literal["acked", "settled", "lost"]) -> None:
        """So many roots were acked, ended otherwise, or got lost without an excuse."""
        self.left -= count
        self.acked += count if what == "acked" else 0
        self.lost += count if what == "lost" else 0


def merged(parts: Sequence[InFlight]) -> list[InFlight]:
    """The same messages in few parts, whatever was emitted bit by bit: each is more than twice as large as the next.

    A message is merged as often as that doubles its part, which keeps both cheap: this, and looking through the parts.
    """
    kept: list[InFlight] = []
    for part in parts:
        together = [part]
        count = part.count
        while kept and kept[-1].count <= 2 * count:
            count += kept[-1].count
            together.insert(0, kept.pop())
        if len(together) > 1 or 2 * count < len(part.open):
            open_rows = [np.flatnonzero(one.open) for one in together]
            part = InFlight(
                np.concatenate([one.roots[rows] for one, rows in zip(together, open_rows, strict=True)]),
                Tries.concatenate([one.tries[rows] for one, rows in zip(together, open_rows, strict=True)]),
            )
        if part.count:
            kept.append(part)
    return kept


class Replays:
    """Messages that wait for their next emission, ordered by when they are due."""

    def __init__(self) -> None:
        self._chunks: list[tuple[float, int, Tries, FloatArray]] = []  # a heap by the first time due
        self._added = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first_due(self) -> float:
        """When the first of them is due; there has to be one."""
        return self._chunks[0][0]

    def add(self, tries: Tries, due: FloatArray) -> None:
        """Emissions to make, each not before its time (`time.monotonic`)."""
        if len(tries):
            order = np.argsort(due, kind="stable")
            self._push(tries[order], due[order])
            self._count += len(tries)

    def take(self, now: float, room: int | None) -> Tries:
        """Take those that are due, `room` at most."""
        parts = [Tries.first(np.array([], np.int64))]
        left = self._count if room is None else room
        while left and self._chunks and self._chunks[0][0] <= now:
            _, _, tries, due = heapq.heappop(self._chunks)
            count = min(left, int(np.searchsorted(due, now, side="right")))
            parts.append(tries[:count])
            left -= count
            if count < len(tries):
                self._push(tries[count:], due[count:])
        taken = Tries.concatenate(parts)
        self._count -= len(taken)
        return taken

    def all(self) -> tuple[Tries, FloatArray]:
        """All that wait, and when each is due."""
        chunks = [
            (Tries.first(np.array([], np.int64)), np.array([])),
            *((tries, due) for _, _, tries, due in self._chunks),
        ]
        return Tries.concatenate([tries for tries, _ in chunks]), np.concatenate([due for _, due in chunks])

    def _push(self, tries: Tries, due: FloatArray) -> None:
        self._added += 1
        heapq.heappush(self._chunks, (float(due[0]), self._added, tries, due))


def in_order(message_ids: Int64Array) -> Int64Array:
    """The same, smallest first; quick where they are in order, or come in a few runs that are, as of a few files."""
    steps_down = np.count_nonzero(message_ids[1:] < message_ids[:-1])
    if not steps_down:
        return message_ids
    return np.sort(message_ids, kind="stable" if steps_down < len(message_ids) // _RUN else None)


def root_salt(app: str, run: str, number: int) -> str:
    """What the roots of one emission are derived from, as it stands in SQL, too.

    A text, not a number: Spark compiles a plan anew for each number in it, 50 ms of a micro-batch, and for a text it does not.
    """
    return ids.derive_salt(app, run, number)


def root_ids(app: str, run: str, message_ids: Int64Array, number: int) -> Int64Array:
    """Roots of one emission, whose number is never used again: executors, SQL and spout derive them without talking.

    The top five bits are the message id's last five; the others, its block, a hash of what is left. So 32 neighbours share
    a block, and differ. In SQL: `shiftleft(id & 31L, 59) | (xxhash64(salt, shiftright(id, 5)) & 576460752303423487L)`.
    """
    salt = hash_salt(root_salt(app, run, number))
    blocks = hash_longs((message_ids >> SLOT_BITS).view(np.uint64), seed=salt)
    slots = (message_ids & (ids.SLOTS - 1)).view(np.uint64)
    return ids.mint(np.asarray(blocks), slots).view(np.int64)
