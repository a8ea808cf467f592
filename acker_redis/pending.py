"""What a spout has in flight and what it will emit again, as arrays: a million messages are no more work than one. No I/O."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from acker_redis import ids

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True)
class Emission:
    """Messages emitted together.

    Attributes:
        number: counts the emissions of this spout; part of the fence tokens of everything made from them.
        message_ids: 64-bit ids the source knows its messages by.
        attempts: 0 for a first emission, per message.
        roots: root of each, as `root_ids` derives it.
    """

    number: int
    message_ids: Int64Array
    attempts: Int64Array
    roots: Int64Array


@dataclass(frozen=True)
class Tries:
    """Emissions of messages, one row each.

    Attributes:
        message_ids: 64-bit ids.
        attempts: 0 for a first emission.
        losses: how many emissions before this one got lost before the ledger knew of them, or are excused.
        excused: an outage broke this one off: if it got lost or times out, that doesn't count against the message.
    """

    message_ids: Int64Array
    attempts: Int64Array
    losses: npt.NDArray[np.int16]
    excused: npt.NDArray[np.bool_]

    @classmethod
    def first(cls, message_ids: Int64Array) -> "Tries":
        """First emissions."""
        count = len(message_ids)
        return cls(message_ids, np.zeros(count, np.int64), np.zeros(count, np.int16), np.zeros(count, np.bool_))

    @classmethod
    def concatenate(cls, parts: "Sequence[Tries]") -> "Tries":
        """The rows of all parts, one after another."""
        return cls(
            np.concatenate([part.message_ids for part in parts]),
            np.concatenate([part.attempts for part in parts]),
            np.concatenate([part.losses for part in parts]),
            np.concatenate([part.excused for part in parts]),
        )

    def __len__(self) -> int:
        """How many rows."""
        return len(self.message_ids)

    def __getitem__(self, rows: Rows) -> "Tries":
        """Some of the rows."""
        return Tries(self.message_ids[rows], self.attempts[rows], self.losses[rows], self.excused[rows])

    def again(self, uncounted: npt.NDArray[np.bool_]) -> "Tries":
        """The next emissions of these messages; for each, whether this one does not count, as if it had not been."""
        return Tries(self.message_ids, self.attempts + 1, self.losses + uncounted, np.zeros(len(self), np.bool_))


class InFlight:
    """Messages in flight, by root."""

    def __init__(self, roots: Int64Array, tries: Tries, *, runs: bool = False) -> None:
        """All of them are open. `runs` says that the roots are sorted, or a few sorted runs: a stable sort merges those."""
        order = np.argsort(roots, kind="stable" if runs else None)
        self.sorted_roots = roots[order]
        self.tries = tries[order]
        self.open = np.ones(len(roots), np.bool_)
        self.count = len(roots)

    def find(self, roots: Int64Array) -> Int64Array:
        """For each root the row that is open for it, -1 for none."""
        place = np.minimum(np.searchsorted(self.sorted_roots, roots), len(self.sorted_roots) - 1)
        return np.where((self.sorted_roots[place] == roots) & self.open[place], place, -1)

    def close(self, rows: Int64Array) -> Tries:
        """These rows, which are open and distinct, are settled."""
        self.open[rows] = False
        self.count -= len(rows)
        return self.tries[rows]


class Sent:
    """What became of the roots of one emission, as far as it is known.

    Attributes:
        emission: as it was made.
        left: roots without outcome, that did not get lost either.
        acked: roots that were acked.
        lost: roots that got lost before the ledger knew of them.
        ended: the emission has ended.
        error: what it ended with, if that was no outage.
    """

    def __init__(self, emission: Emission) -> None:
        """Nothing has become of them yet."""
        self.emission = emission
        self.left, self.acked, self.lost = len(emission.roots), 0, 0
        self.ended = False
        self.error: BaseException | None = None
        self._roots = np.sort(emission.roots)

    def note(self, roots: Int64Array, what: Literal["acked", "failed", "lost"]) -> None:
        """Something became of these roots, which are distinct and may be any emission's."""
        places = np.minimum(np.searchsorted(self._roots, roots), len(self._roots) - 1)
        mine = int((self._roots[places] == roots).sum())
        self.left -= mine
        self.acked += mine if what == "acked" else 0
        self.lost += mine if what == "lost" else 0


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
                np.concatenate([one.sorted_roots[rows] for one, rows in zip(together, open_rows, strict=True)]),
                Tries.concatenate([one.tries[rows] for one, rows in zip(together, open_rows, strict=True)]),
                runs=True,
            )
        if part.count:
            kept.append(part)
    return kept


class Replays:
    """Messages that wait for their next emission, ordered by when they are due."""

    def __init__(self) -> None:
        """None yet."""
        self._chunks: list[tuple[float, int, Tries, FloatArray]] = []  # a heap by the first time due
        self._added = 0
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

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

    def _push(self, tries: Tries, due: FloatArray) -> None:
        self._added += 1
        heapq.heappush(self._chunks, (float(due[0]), self._added, tries, due))


def root_ids(app: str, run: str, message_ids: Int64Array, attempts: Int64Array) -> Int64Array:
    """Roots of emissions: derived from (app, run, message, attempt), so executors and spout agree without talking."""
    seed = ids.derive(app, run)
    return ids.derive_many(seed, message_ids.view(np.uint64), attempts.view(np.uint64)).view(np.int64)
