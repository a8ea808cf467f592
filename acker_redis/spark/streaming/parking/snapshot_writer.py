"""Writer of a stream's snapshots: after changes, and again after an outage."""

import logging
import time
from collections.abc import Callable

from acker_redis.acker import Acker
from acker_redis.errors import AckerError
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingOutage, ParkingOutageError
from acker_redis.spark.streaming.parking.snapshot import Snapshot
from acker_redis.store.dead_letter import DeadLetter

log = logging.getLogger("acker_redis.spark")

SAVE_SECS = 1.0
"""Shortest interval between two writes outside micro-batches."""


class SnapshotWriter:
    """Keep the newest snapshot up to date. One thread at a time may use it."""

    def __init__(
        self,
        store: ParkingLocation,
        messages: ParkedMessages,
        snapshot: Callable[[], Snapshot | None],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare the writer without writing.

        Args:
            store: parking location.
            messages: parked messages, whose version shows whether they changed.
            snapshot: function that creates the snapshot; it returns None if no row was seen yet.
            before: function that is called before each save, and keeps in the location what is to outlive done messages.
        """
        self._store, self._messages, self._snapshot, self._before = store, messages, snapshot, before
        self._saved_version: tuple[int, int, int] | None = None
        self._tried_at = time.monotonic()
        self._outage = ParkingOutage()
        self._unsaved_letters: list[str] = []

    def mark_saved(self) -> None:
        """Record that the newest snapshot has all messages parked now."""
        self._saved_version = self._messages.version

    def note_letters(self, letters: list[DeadLetter]) -> None:
        """Record dead letters that were written. Until the next snapshot, a restart gets their messages again."""
        self._unsaved_letters += [letter.entry_id for letter in letters]

    def is_due(self) -> bool:
        """Return True if the last try was more than SAVE_SECS ago."""
        return time.monotonic() - self._tried_at > SAVE_SECS

    def try_to_save(self, batch_id: int, *, in_batch: bool) -> bool:
        """Write a snapshot if messages changed. Return False if an outage requires another try.

        Call this only while no emission is running and every message of the micro-batch has been emitted.

        Args:
            batch_id: number of the last micro-batch.
            in_batch: whether it is still running, so that Spark has not committed it.

        Raises:
            AckerError: the outage lasted too long.
            BadConfigError: another process writes into the parking location.
            ParkingLocationDeletedError: the parking location was deleted.
        """
        now = self._tried_at = time.monotonic()
        version = self._messages.version
        if not self._outage.may_retry(now):
            return False
        is_saved = version == self._saved_version and self._store.exists()
        snapshot = None if is_saved else self._snapshot()
        try:
            self._before()
            if snapshot is not None:
                self._store.save(batch_id, snapshot, batch_id - 1 if in_batch else self._store.committed())
        except ParkingOutageError as exc:
            self._outage.note_failure(now, exc)
            return False
        self._outage.note_success(now)
        if snapshot is not None:
            self._saved_version = version
        self._unsaved_letters.clear()
        return True

    def delete_unsaved_letters(self, acker: Acker) -> None:
        """Delete dead letters whose messages the next start gets again, so that they don't get another letter."""
        try:
            if self._unsaved_letters:
                acker.dead_letters.delete(self._unsaved_letters)
        except AckerError as exc:
            log.warning(
                "could not delete unsaved dead letters, so they may be written twice letters=%d error=%s",
                len(self._unsaved_letters), exc,
            )  # fmt: skip
        self.forget_letters()

    def forget_letters(self) -> None:
        """Keep the noted dead letters in Redis."""
        self._unsaved_letters = []
