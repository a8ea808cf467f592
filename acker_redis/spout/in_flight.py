"""Arrays of attempts that are in flight or wait for their next emission: a million cost hardly more than ten.

This module does no I/O.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.model.blocks import Index

Mask = npt.NDArray[np.bool_]
Rows = Int64Array | npt.NDArray[np.bool_] | slice

_RUN = 100
"""Average length of sorted runs of ids from which on merging them is faster than sorting all."""


@dataclass(frozen=True)
class Emission:
    """Messages emitted together.

    Attributes:
        number: number of this emission within its spout. Roots and idempotency keys are derived from it.
        message_ids: 64-bit ids by which the source identifies its messages.
        attempts: number of earlier emissions, per message.
        roots: root of each message, as `roots.root_ids` derives it.
        is_unread: whether it has all messages of a source, whose ids aren't known yet. See `SpoutState.begin_unread`.
    """

    number: int
    message_ids: Int64Array
    attempts: Int64Array
    roots: Int64Array
    is_unread: bool = False

    def only(self, rows: npt.NDArray[np.bool_]) -> "Emission":
        """Return an emission with a part of the messages."""
        return Emission(self.number, self.message_ids[rows], self.attempts[rows], self.roots[rows])


@dataclass(frozen=True)
class Attempts:
    """Emissions of messages, one row each.

    Attributes:
        message_ids: 64-bit ids.
        previous: number of earlier emissions of the message, 0 for a first one.
        exempted: number of those that don't count as attempts, because they were lost or exempt.
        losses: number of those that were lost without a known cause.
        overtaken: number of those that timed out before their emission had ended, also without a known cause.
        exempt: True if this emission doesn't count as an attempt, however it ends, for example because of an outage.
        non_retryable: True if this emission is the last one should it fail.
        max_group: limit on messages in the next emission. 0 means no limit. While in flight: as known so far.
        first_secs: time of the message's first emission, in seconds since 1970. 0 if there was none.
        cause_numbers: index into `SpoutState.causes` of the end of the previous emission, 0 for a first one.
        numbers: number of the emission that contains the row. Arbitrary before it is in any.
    """

    message_ids: Int64Array
    previous: Int64Array
    exempted: npt.NDArray[np.int32]
    losses: npt.NDArray[np.int16]
    overtaken: npt.NDArray[np.int16]
    exempt: npt.NDArray[np.bool_]
    non_retryable: npt.NDArray[np.bool_]
    max_group: npt.NDArray[np.int32]
    first_secs: npt.NDArray[np.uint32]
    cause_numbers: npt.NDArray[np.int16]
    numbers: Int64Array

    @classmethod
    def first(cls, message_ids: Int64Array) -> "Attempts":
        """Return the first emissions of these messages."""
        count = len(message_ids)
        zeros = np.zeros(count, np.int64)
        return cls(
            message_ids,
            previous=zeros,
            exempted=np.zeros(count, np.int32),
            losses=np.zeros(count, np.int16),
            overtaken=np.zeros(count, np.int16),
            exempt=np.zeros(count, np.bool_),
            non_retryable=np.zeros(count, np.bool_),
            max_group=np.zeros(count, np.int32),
            first_secs=np.zeros(count, np.uint32),
            cause_numbers=np.zeros(count, np.int16),
            numbers=zeros,
        )

    @classmethod
    def concatenate(cls, parts: "Sequence[Attempts]") -> "Attempts":
        """Return the rows of all parts, in order. They aren't copied if only one part has rows."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.message_ids)

    def __getitem__(self, rows: Rows) -> "Attempts":
        """Return the selected rows."""
        return Attempts(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns, in the order of the attributes."""
        return (
            self.message_ids, self.previous, self.exempted, self.losses, self.overtaken, self.exempt, self.non_retryable,
            self.max_group, self.first_secs, self.cause_numbers, self.numbers,
        )  # fmt: skip

    def retries(self, exempt: Mask, lost: Mask) -> "Attempts":
        """Return the next emissions of these messages. `exempt` and `lost` are masks of how this one ended."""
        return replace(
            self,
            previous=self.previous + 1,
            exempted=self.exempted + exempt,
            losses=self.losses + lost,
            exempt=np.zeros(len(self), np.bool_),
            non_retryable=np.zeros(len(self), np.bool_),
        )


class InFlight:
    """Messages in flight, by root.

    Attributes:
        roots: root of each row.
        attempts: attempt of each row.
        open: mask of rows that aren't settled.
        count: number of open rows.
    """

    def __init__(self, roots: Int64Array, attempts: Attempts) -> None:
        """Start with all rows open."""
        self.roots, self.attempts = roots, attempts
        self._index = Index(roots.view(np.uint64))
        self.open = np.ones(len(roots), np.bool_)
        self.count = len(roots)

    def rows_of(self, roots: Int64Array) -> Int64Array:
        """Return the open row of each root, or -1."""
        rows = self._index.rows_of(roots.view(np.uint64))
        return np.where((rows >= 0) & self.open[rows], rows, -1)

    def close_rows(self, rows: Int64Array) -> None:
        """Settle rows. They must be open and distinct."""
        self.open[rows] = False
        self.count -= len(rows)


class Sent:
    """Result of an emission's roots, as far as known.

    Attributes:
        emission: emission as it was started.
        left: number of roots that neither have an outcome nor were lost.
        acked: number of acked roots.
        lost: number of roots that were lost before they were in the ledger, without a known cause.
        exempt: True if an event on a server, while this was in flight, explains lost roots.
        job_failed: True if its job failed as a whole, so its messages are replayed in smaller emissions.
        ended: True if the emission has ended.
        proven: True if it has ended without an error.
        error: error that ended it, unless that was an outage.
        failures: roots of failed rows, with their reason and component. See `Marks.failed`.
    """

    def __init__(self, emission: Emission) -> None:
        self.emission = emission
        self.left, self.acked, self.lost = len(emission.roots), 0, 0
        self.exempt = self.job_failed = self.ended = self.proven = False
        self.error: BaseException | None = None
        self.failures: list[tuple[Int64Array, str, str | None]] = []

    @property
    def is_in_outage(self) -> bool:
        """True if an event on a server, and no failed job, explains what happens to its roots."""
        return self.exempt and not self.job_failed

    def reasons_of(self, roots: Int64Array) -> tuple[Mask, npt.NDArray[np.intp]]:
        """Return which of these roots have failed rows, and the index of its entry in `failures` for each that has."""
        known = np.concatenate([np.array([], np.int64), *(failed for failed, _, _ in self.failures)])
        entries = np.repeat(np.arange(len(self.failures)), [len(failed) for failed, _, _ in self.failures])
        if not len(known):
            return np.zeros(len(roots), np.bool_), entries
        order = np.argsort(known)
        places = order[np.minimum(np.searchsorted(known, roots, sorter=order), len(known) - 1)]
        found = known[places] == roots
        return found, entries[places[found]]

    def note(self, count: int, outcome: Literal["acked", "settled", "lost"]) -> None:
        """Count roots that were acked, settled otherwise, or lost without a known cause."""
        self.left -= count
        self.acked += count if outcome == "acked" else 0
        self.lost += count if outcome == "lost" else 0


def merged(parts: Sequence[InFlight]) -> list[InFlight]:
    """Merge parts of messages in flight until each is more than twice as large as the next, so there are few.

    Each merge of a message about doubles its part. That keeps both merges and look-ups cheap.
    """
    kept: list[InFlight] = []
    for part in parts:
        together = [part]
        count = part.count
        while kept and kept[-1].count <= 2 * count:
            count += kept[-1].count
            together.insert(0, kept.pop())
        if len(together) > 1 or 2 * count < len(part.open):
            open_rows = [np.flatnonzero(part.open) for part in together]
            merged_part = InFlight(
                np.concatenate([part.roots[rows] for part, rows in zip(together, open_rows, strict=True)]),
                Attempts.concatenate([part.attempts[rows] for part, rows in zip(together, open_rows, strict=True)]),
            )
        else:
            merged_part = part
        if merged_part.count:
            kept.append(merged_part)
    return kept


class Replays:
    """Queue of messages that wait for their next emission, ordered by due time."""

    def __init__(self) -> None:
        """Start without messages."""
        self._chunks: list[tuple[float, int, Attempts, FloatArray]] = []  # a heap by the first time due
        self._added = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first_due(self) -> float:
        """Due time of the first message. The queue must not be empty."""
        return self._chunks[0][0]

    def add(self, attempts: Attempts, due: FloatArray) -> None:
        """Add emissions with their due times, as `time.monotonic`."""
        if len(attempts):
            order = np.argsort(due, kind="stable")
            self._push(attempts[order], due[order])
            self._count += len(attempts)

    def take_due(self, now: float, room: int | None) -> Attempts:
        """Remove and return emissions that are due, at most `room`."""
        parts = [Attempts.first(np.array([], np.int64))]
        left = self._count if room is None else room
        while left and self._chunks and self._chunks[0][0] <= now:
            _, _, attempts, due = heapq.heappop(self._chunks)
            count = min(left, int(np.searchsorted(due, now, side="right")))
            parts.append(attempts[:count])
            left -= count
            if count < len(attempts):
                self._push(attempts[count:], due[count:])
        taken = Attempts.concatenate(parts)
        self._count -= len(taken)
        return taken

    def remove(self, message_ids: Int64Array) -> None:
        """Remove the emissions of these messages."""
        attempts, due = self.all()
        kept = ~np.isin(attempts.message_ids, message_ids)
        if not kept.all():
            self._chunks, self._count = [], 0
            self.add(attempts[kept], due[kept])

    def all(self) -> tuple[Attempts, FloatArray]:
        """Return all waiting emissions and their due times."""
        chunks = [
            (Attempts.first(np.array([], np.int64)), np.array([])),
            *((attempts, due) for _, _, attempts, due in self._chunks),
        ]
        return Attempts.concatenate([attempts for attempts, _ in chunks]), np.concatenate([due for _, due in chunks])

    def _push(self, attempts: Attempts, due: FloatArray) -> None:
        self._added += 1
        heapq.heappush(self._chunks, (float(due[0]), self._added, attempts, due))


def in_order(message_ids: Int64Array) -> Int64Array:
    """Return the message ids sorted. Fast if they are in order, or in a few sorted runs, as from a few files."""
    steps_down = np.count_nonzero(message_ids[1:] < message_ids[:-1])
    if not steps_down:
        return message_ids
    return np.sort(message_ids, kind="stable" if steps_down < len(message_ids) // _RUN else None)
