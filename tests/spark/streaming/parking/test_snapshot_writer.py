"""What is parked is written when it has changed, and not else."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyspark.sql.types import StructType

from acker_redis import RetryPolicy, ServerUnavailableError
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.parking_location import ParkingOutageError
from acker_redis.spark.streaming.parking.snapshot import ParkedRow, Snapshot
from acker_redis.spark.streaming.parking.snapshot_writer import SAVE_SECS, SnapshotWriter
from acker_redis.spout.state import SpoutState
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import fake_acker


class Folder:
    """A parking location in memory."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, list[int], int | None]] = []
        self.is_full = self.is_deleted = False

    def exists(self) -> bool:
        return not self.is_deleted

    def committed(self) -> int:
        return 41

    def save(self, batch_id: int, snapshot: Snapshot, committed: int | None) -> None:
        if self.is_full:
            raise ParkingOutageError("full")
        self.saved.append((batch_id, snapshot.message_ids, committed))


class Writing:
    """A writer that is looked at."""

    def __init__(self, schema: StructType | None = StructType()) -> None:  # noqa: B008
        self.state = SpoutState("app", "run", RetryPolicy())
        self.messages = ParkedMessages(self.state, lambda: [])
        self.schema, self.folder, self.snapshot_count = schema, Folder(), 0
        park: Any = self.folder
        self.keep: Callable[[], object] = lambda: None
        self.writer = SnapshotWriter(park, self.messages, self._snapshot, lambda: self.keep())
        self.writer.mark_saved()

    def _snapshot(self) -> Snapshot | None:
        self.snapshot_count += 1
        return None if self.schema is None else self.messages.snapshot(self.schema, "id", None)

    def park(self, *ids: int) -> None:
        """They wait behind others that are done, so they were not emitted."""
        self.messages.park({one: ParkedRow(0, b"") for one in ids})
        self.state.add(np.array(ids, np.int64))

    def try_to_save(self, *, in_batch: bool = False) -> bool:
        return self.writer.try_to_save(42, in_batch=in_batch)


def test_nothing_is_written_or_even_serialised_while_nothing_changes() -> None:
    writing = Writing()
    assert writing.try_to_save()
    writing.park(7)
    assert all(writing.try_to_save() for _ in range(5))
    assert (writing.folder.saved, writing.snapshot_count) == ([(42, [7], 41)], 1)


def test_each_change_is_written_once_and_counts_from_the_batch_that_is_committed() -> None:
    writing = Writing()
    writing.park(7)
    assert writing.try_to_save(in_batch=True)
    writing.park(8)
    assert writing.try_to_save()
    assert writing.folder.saved == [(42, [7], 41), (42, [7, 8], 41)]


def test_a_folder_that_is_deleted_is_noticed_though_nothing_changes() -> None:
    writing = Writing()
    writing.folder.is_deleted = True
    assert writing.try_to_save()
    assert len(writing.folder.saved) == 1


def test_what_an_outage_kept_from_being_written_is_written_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, now = Writing(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    writing.folder.is_full = True
    writing.park(7)
    assert not writing.try_to_save()
    writing.folder.is_full = False
    assert not writing.try_to_save()  # too early
    now[0] += 60
    assert writing.try_to_save()
    assert len(writing.folder.saved) == 1


def test_before_a_row_was_seen_there_is_nothing_to_write() -> None:
    writing = Writing(None)
    writing.park(7)
    assert writing.try_to_save()
    assert writing.folder.saved == []


def test_a_change_is_due_a_second_after_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    writing = Writing()
    assert not writing.writer.is_due()
    now[0] += SAVE_SECS + 0.1
    assert writing.writer.is_due()
    writing.try_to_save()
    assert not writing.writer.is_due()


@pytest.mark.parametrize("is_saved", [False, True])
def test_letters_are_deleted_if_another_start_is_given_their_messages_again(is_saved: bool) -> None:
    acker, writing = fake_acker(), Writing()
    letters = [DeadLetter(7, "run", 1, "failed")]
    (entry_id,) = acker.dead_letters.add(letters)
    writing.writer.note_letters([letters[0]._replace(entry_id=entry_id)])
    if is_saved:
        assert writing.try_to_save()
    writing.writer.delete_unsaved_letters(acker)
    assert acker.dead_letters.count() == (1 if is_saved else 0)


def test_letters_that_cant_be_deleted_are_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acker, writing = fake_acker(), Writing()

    def fails(*_: object) -> None:
        raise ServerUnavailableError("gone")

    monkeypatch.setattr(type(acker.dead_letters), "delete", fails)
    writing.writer.note_letters([DeadLetter(7, "run", 1, "failed", entry_id="1-0")])
    writing.writer.delete_unsaved_letters(acker)
    assert "so they may be written twice letters=1 error=gone" in caplog.text


def test_what_outlives_messages_is_kept_before_each_save_and_without_changes_too() -> None:
    writing, kept = Writing(), []
    writing.keep = lambda: kept.append(len(writing.folder.saved))
    writing.park(7)
    assert writing.try_to_save()
    assert writing.try_to_save()
    assert (kept, len(writing.folder.saved)) == ([0, 1], 1)


def test_no_snapshot_is_written_while_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, now = Writing(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def keep() -> None:
        raise ParkingOutageError("full")

    writing.keep = keep
    writing.park(7)
    assert not writing.try_to_save()
    writing.keep = lambda: None
    assert not writing.try_to_save()  # it pauses
    now += 60
    assert writing.try_to_save()
    assert writing.folder.saved == [(42, [7], 41)]
