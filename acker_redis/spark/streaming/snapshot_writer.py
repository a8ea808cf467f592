"""Writes what a stream has parked into its parking location: when it has changed, and again after an outage."""

import logging
import time
from collections.abc import Callable

from acker_redis.acker import Acker
from acker_redis.errors import AckerError
from acker_redis.spark.streaming.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking_location import ParkingLocation, ParkingOutage, ParkingOutageError
from acker_redis.spark.streaming.snapshot import Snapshot
from acker_redis.store.dead_letter import DeadLetter

log = logging.getLogger("acker_redis.spark")

SAVE_SECS = 1.0
"""Between micro-batches a change is written so often at most."""


class SnapshotWriter:
    """Keeps the newest snapshot up to date; one thread at a time may use it."""

    def __init__(
        self, store: ParkingLocation, messages: ParkedMessages, snapshot: Callable[[], Snapshot | None]
    ) -> None:
        """Prepare the writer; nothing is written yet.

        Args:
            store: of the parking location.
            messages: tell by their version whether there is something to write.
            snapshot: gives what is to be written; None: there is nothing yet.
        """
        self._store, self._messages, self._snapshot = store, messages, snapshot
        self._saved_version: tuple[int, int, int] | None = None
        self._tried_at = time.monotonic()
        self._outage = ParkingOutage()
        self._unsaved_letters: list[str] = []

    def mark_saved(self) -> None:
        """Note that the newest snapshot has all that is parked now."""
        self._saved_version = self._messages.version

    def note_letters(self, letters: list[DeadLetter]) -> None:
        """Note dead letters that were written. Until a snapshot is, another start is given their messages again."""
        self._unsaved_letters += [letter.entry_id for letter in letters]

    def is_due(self) -> bool:
        """Return True if the last try is SAVE_SECS ago."""
        return time.monotonic() - self._tried_at > SAVE_SECS

    def try_to_save(self, batch_id: int, *, in_batch: bool) -> bool:
        """Write a snapshot if anything has changed; return False if that has to be tried again, as there is an outage.

        To be called with no emission under way, and no message of a micro-batch that was not emitted yet.

        Args:
            batch_id: the last micro-batch.
            in_batch: whether that still runs, so that Spark has not committed it.

        Raises:
            AckerError: the outage lasts too long.
            BadConfigError: another process writes into the parking location.
            ParkingLocationDeletedError: the parking location was deleted.
        """
        now = self._tried_at = time.monotonic()
        version = self._messages.version
        if version == self._saved_version and self._store.exists():
            self._unsaved_letters.clear()
            return True
        if not self._outage.may_retry(now):
            return False
        snapshot = self._snapshot()
        if snapshot is not None:
            try:
                self._store.save(batch_id, snapshot, batch_id - 1 if in_batch else self._store.committed())
            except ParkingOutageError as exc:
                self._outage.note_failure(now, exc)
                return False
            self._outage.note_success(now)
            self._saved_version = version
        self._unsaved_letters.clear()
        return True

    def delete_unsaved_letters(self, acker: Acker) -> None:
        """Delete dead letters whose messages the next start is given again; else they would get another one each time."""
        try:
            if self._unsaved_letters:
                acker.dead_letters.delete(self._unsaved_letters)
        except AckerError as exc:
            log.warning("%d dead letters may stand twice: %s", len(self._unsaved_letters), exc)
        self.forget_letters()

    def forget_letters(self) -> None:
        """Leave the dead letters as they are."""
        self._unsaved_letters = []
