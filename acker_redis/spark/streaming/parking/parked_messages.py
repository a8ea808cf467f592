"""Parked messages of a stream: their rows, attempts and queues. No Spark, no I/O."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from pyspark.sql.types import StructType

from acker_redis.model.arrays import Int64Array
from acker_redis.spark.streaming.parking.snapshot import ParkedRow, Snapshot
from acker_redis.spout.state import Cause, SpoutState

QUEUED: Cause = ("queued", None)
"""Cause of messages that wait for an earlier message with the same id."""


class ParkedMessages:
    """Parked messages, with their rows and queues. Attempts, causes and delays are in the spout's state.

    A message is parked once it has a row here: it left its micro-batch and is not done. The spout has one message per id. A
    later message with the same id is queued until the earlier one is done. Replayed dead letters have a row too, but are in
    no snapshot, because the letter keeps their message.
    """

    def __init__(self, state: SpoutState, replaying: Callable[[], Sequence[int]]) -> None:
        """Start with nothing parked.

        Args:
            state: state of the spout.
            replaying: function that returns the ids of dead letters that are being replayed.
        """
        self._state, self._replaying = state, replaying
        self._rows: dict[int, ParkedRow] = {}
        self._queued: dict[int, deque[ParkedRow | None]] = {}  # None: the micro-batch's frame has the row
        self._row_changes = 0

    def __contains__(self, message: int) -> bool:
        """Return True if a message is parked."""
        return message in self._rows

    def __len__(self) -> int:
        """Count the parked messages, without queued ones."""
        return len(self._rows)

    def __getitem__(self, message: int) -> ParkedRow:
        """Return the row of a parked message."""
        return self._rows[message]

    def rows(self) -> list[ParkedRow]:
        """List the rows of all parked messages. Thread-safe."""
        return list(self._rows.copy().values())

    @property
    def version(self) -> tuple[int, int, int]:
        """Version of the snapshot: it changes with the messages, rows, attempts or causes in it.

        A message that is done within its micro-batch doesn't change it, nor do running delays.
        """
        return self._row_changes, self._state.retry_changes, len(self._fresh_ids())

    @property
    def queued(self) -> int:
        """Number of messages that wait for an earlier message with the same id. Thread-safe."""
        return sum(map(len, list(self._queued.values())))

    @property
    def left(self) -> int:
        """Number of messages that are not done."""
        return self._state.left + self.queued

    @property
    def in_spout(self) -> int:
        """Number of the spout's messages that are not done."""
        return self._state.left

    def left_ids(self) -> Int64Array:
        """List the spout's messages that are not done."""
        return self._state.left_ids()

    def has_to_emit(self, due_by: float) -> bool:
        """Return True if messages are fresh, searched for poison, or known poison that is due.

        Args:
            due_by: time by which they are due (`time.monotonic`).
        """
        return self._state.fresh > 0 or self._state.poison_search.left_by(due_by)

    @property
    def has_fresh(self) -> bool:
        """Whether there are messages that were not emitted yet."""
        return self._state.fresh > 0

    def in_flight_without(self, left_out: Int64Array) -> Int64Array:
        """List the messages in flight except `left_out`."""
        return np.setdiff1d(self._state.in_flight(), left_out)

    def park(self, rows: Mapping[int, ParkedRow]) -> None:
        """Park messages."""
        self._rows |= rows
        self._row_changes += len(rows) > 0

    def park_replayed(self, rows: Mapping[int, ParkedRow]) -> None:
        """Park replayed dead letters, which are in no snapshot."""
        self._rows |= rows

    def queue(self, message: int, row: ParkedRow | None) -> None:
        """Queue a message behind an earlier one with the same id. Without a row, the micro-batch has it."""
        self._queued.setdefault(message, deque()).append(row)
        self._row_changes += 1

    @property
    def queued_in_batch(self) -> list[int]:
        """Ids whose last queued message is in the micro-batch."""
        return [message for message, rows in self._queued.items() if rows[-1] is None]

    def set_queued_rows(self, rows: Mapping[int, ParkedRow]) -> None:
        """Set the rows of `queued_in_batch` at the end of the micro-batch."""
        for message, row in rows.items():
            self._queued[message][-1] = row

    def done(self, ids: Int64Array) -> list[int]:
        """Remove completed messages. Return the ids whose next queued message may now be emitted."""
        following = []
        for message in ids.tolist():
            self._row_changes += self._rows.pop(message, None) is not None
            queue = self._queued.get(message)
            if queue:
                row = queue.popleft()
                self._row_changes += 1
                if row is not None:  # else the frame has it
                    self._rows[message] = row
                following.append(message)
                if not queue:
                    del self._queued[message]
        return following

    def refit(self, refit: Callable[[bytes], bytes], check: Callable[[], object]) -> None:
        """Convert all rows to the current columns. If `check` raises after that, they stay as they were."""

        def refitted(row: ParkedRow) -> ParkedRow:
            return ParkedRow(row.since_ms, refit(row.data))

        rows = {message: refitted(row) for message, row in self._rows.items()}
        queued = {
            message: deque(None if row is None else refitted(row) for row in rows)
            for message, rows in self._queued.items()
        }
        check()
        self._rows, self._queued = rows, queued
        self._row_changes += 1

    def counts(self) -> dict[Cause, int]:
        """Count parked messages by the outcome of their last attempt, and queued ones. Thread-safe."""
        attempts, _ = self._state.attempts_left(time.monotonic())
        parked, causes = self._rows.copy(), self._state.causes
        columns = (attempts.message_ids.tolist(), attempts.cause_numbers.tolist())
        counts = Counter(causes[number] for message, number in zip(*columns, strict=True) if message in parked)
        if queued := self.queued:
            counts[QUEUED] = queued
        return dict(counts)

    def snapshot(self, schema: StructType, id_column: str, stream: str | None) -> Snapshot:
        """Create a snapshot from which another process can resume. No emission or micro-batch may be running.

        Args:
            schema: schema of the rows.
            id_column: name of the message id column.
            stream: see `Snapshot`.
        """
        state = self._state
        attempts, delays = state.attempts_left(time.monotonic())
        kept = ~np.isin(attempts.message_ids, self._replaying())
        attempts = attempts[kept]
        rows = [self._rows[message] for message in attempts.message_ids.tolist()]
        fresh = [(message, self._rows[message]) for message in self._fresh_ids()]  # were queued behind another
        queued = [(message, row) for message, rows in self._queued.items() for row in rows if row is not None]
        state.outages.note_evidence()
        return Snapshot(
            attempts, delays[kept], state.causes, rows, [*fresh, *queued], schema, id_column, stream,
            state.outages.rows, state.outages.operators,
        )  # fmt: skip

    def restore(self, snapshot: Snapshot) -> list[int]:
        """Resume from a snapshot. Return the ids of queued messages with no earlier message, which may be emitted."""
        self._rows = dict(zip(snapshot.attempts.message_ids.tolist(), snapshot.rows, strict=True))
        self._state.resume(snapshot.attempts, snapshot.causes, snapshot.delays_secs, time.monotonic())
        self._state.outages.resume(snapshot.outages, snapshot.outage_operators)
        return self._restore_queue(snapshot.queued)

    def _restore_queue(self, queued: Iterable[tuple[int, ParkedRow]]) -> list[int]:
        fresh = []
        for message, row in queued:
            if message not in self._rows:
                self._rows[message] = row
                fresh.append(message)
            else:
                self.queue(message, row)
        return fresh

    def _fresh_ids(self) -> list[int]:
        """List parked messages that were not emitted yet because they were queued."""
        replaying = set(self._replaying())
        return [message for message in self._state.fresh_ids().tolist() if message not in replaying]
