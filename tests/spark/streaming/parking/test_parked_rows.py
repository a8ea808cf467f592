"""Messages that a stream has parked, and their snapshots, as far as they need no Spark."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from acker_redis import AckerError, RetryPolicy
from acker_redis.ledger.outcomes.outcome import OutcomeBatch, Receipt
from acker_redis.spark.streaming.parking.parked_messages import QUEUED, ParkedMessages
from acker_redis.spark.streaming.parking.parking_location import ParkingOutage, ParkingOutageError
from acker_redis.spark.streaming.parking.snapshot import ParkedRow, Snapshot, from_parquet, to_parquet
from acker_redis.spout.in_flight import Attempts, Emission
from acker_redis.spout.state import SpoutState

SCHEMA = StructType([StructField("id", LongType())])


def row(name: str) -> ParkedRow:
    return ParkedRow(0, name.encode())


class Stream:
    """Parked messages, beside a spout's state that is moved by hand."""

    def __init__(self) -> None:
        self.state = SpoutState("app", "run", RetryPolicy(max_attempts=9, first_delay_secs=0))
        self.replaying: list[int] = []
        self.messages = ParkedMessages(self.state, lambda: self.replaying)

    def emit(self, *fresh: int) -> Emission:
        self.state.add(np.array(fresh, np.int64))
        emission = self.state.next_emission(time.monotonic(), None)
        assert emission is not None
        return emission

    def end(self, emission: Emission, kind: Literal["ack", "fail"], *which: int) -> None:
        roots = emission.roots[np.isin(emission.message_ids, which)]
        outcome = OutcomeBatch(kind, 0, roots, "failed", "parse", False, None, Receipt("stream", []))
        self.state.apply_outcomes([outcome], time.monotonic())
        if kind == "ack":
            self.messages.done(self.state.pending_notifications)
            self.state.notified()

    def park(self, *ids: int) -> None:
        self.messages.park({one: row(f"row {one}") for one in ids})

    def snapshot(self) -> Snapshot:
        """As it comes back from a file."""
        return from_parquet(to_parquet(self.messages.snapshot(SCHEMA, "id", None)))


def test_parked_messages_of_same_id_come_in_their_order() -> None:
    messages = Stream().messages
    queued = [(1, row("second")), (1, row("third")), (2, row("alone"))]
    snapshot = Snapshot(Attempts.first(np.array([1])), np.zeros(1), [("", None)], [row("first")], queued, SCHEMA, "id")
    assert messages.restore(snapshot) == [2]  # nobody is before it
    assert messages.queued == 2
    assert messages.done(np.array([7])) == []
    assert (messages.done(np.array([1])), messages[1]) == ([1], row("second"))
    assert (messages.done(np.array([1])), messages[1]) == ([1], row("third"))
    assert messages.done(np.array([1, 2])) == []
    assert (len(messages), messages.queued) == (0, 0)


def test_a_snapshot_has_row_attempts_and_cause_of_each_message_and_another_stream_goes_on_with_it() -> None:
    stream = Stream()
    emission = stream.emit(1, 2, 3)
    stream.end(emission, "fail", 1)
    stream.end(emission, "ack", 3)
    stream.park(1, 2)
    stream.messages.queue(2, row("queued"))
    snapshot = stream.snapshot()
    of_message = dict(zip(snapshot.attempts.message_ids.tolist(), range(2), strict=True))
    order = [of_message[1], of_message[2]]
    assert [snapshot.rows[at] for at in order] == [row("row 1"), row("row 2")]
    assert snapshot.attempts.previous[order].tolist() == [1, 1]
    assert snapshot.attempts.exempted[order].tolist() == [0, 1]  # what is in flight comes as if that did not count
    assert [snapshot.causes[snapshot.attempts.cause_numbers[at]] for at in order] == [("failed", "parse"), ("", None)]
    assert snapshot.queued == [(2, row("queued"))]

    other = Stream()
    assert other.messages.restore(snapshot) == []
    assert other.messages.counts() == stream.messages.counts() == {("failed", "parse"): 1, ("", None): 1, QUEUED: 1}
    assert (other.messages.left, sorted(other.messages.left_ids().tolist())) == (3, [1, 2])


def test_messages_of_dead_letters_are_in_no_snapshot() -> None:
    stream = Stream()
    stream.replaying = [5, 6]
    stream.messages.park_replayed({5: row("letter"), 6: row("letter")})
    stream.end(stream.emit(1, 5), "fail", 1, 5)
    stream.state.add(np.array([6]))
    stream.park(1)
    assert stream.snapshot().message_ids == [1]


Change = Callable[[Stream], object]


def parked_stream() -> tuple[Stream, Emission]:
    """One waits for its second attempt, 2 is in flight, and one of its id waits behind it."""
    stream = Stream()
    emission = stream.emit(1, 2)
    stream.end(emission, "fail", 1)
    stream.park(1, 2)
    stream.messages.queue(2, row("queued"))
    return stream, emission


def test_the_version_stays_while_nothing_that_is_parked_changes() -> None:
    stream, _ = parked_stream()
    stream.state.next_emission(time.monotonic(), None)  # the second attempt
    version = stream.messages.version
    for batch in range(10, 40, 10):  # micro-batches whose messages are done within them
        stream.end(stream.emit(*range(batch, batch + 10)), "ack", *range(batch, batch + 10))
    stream.messages.counts()
    stream.snapshot()
    stream.messages.done(np.array([99]))
    stream.messages.park({})
    assert stream.messages.version == version


CHANGES: dict[str, Change] = {
    "parked": lambda stream: stream.park(3),
    "queued": lambda stream: stream.messages.queue(1, row("second")),
    "done": lambda stream: stream.messages.done(np.array([1])),
    "emitted": lambda stream: stream.state.next_emission(time.monotonic() + 1, None),
    "lost": lambda stream: stream.state.lose_all(time.monotonic()),
    "refitted": lambda stream: stream.messages.refit(lambda data: data + b"!", lambda: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_changes_with_what_is_parked(change: str) -> None:
    stream, _ = parked_stream()
    version = stream.messages.version
    CHANGES[change](stream)
    assert stream.messages.version != version


def test_the_version_changes_when_a_parked_message_fails_or_follows_another() -> None:
    stream, emission = parked_stream()
    versions = [stream.messages.version]
    stream.end(emission, "fail", 2)
    versions.append(stream.messages.version)
    again = stream.emit()
    versions.append(stream.messages.version)
    assert again.message_ids.tolist() == [1, 2]
    stream.end(again, "ack", 2)
    stream.state.add(np.array([2]))  # the one behind it
    versions.append(stream.messages.version)
    stream.state.next_emission(time.monotonic(), None)
    versions.append(stream.messages.version)
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize("jump_secs", [-3600, 3600])
def test_parked_delays_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch, jump_secs: int) -> None:
    """The rest of its wait runs again, whatever the clock of another machine says."""
    attempts = replace(Attempts.first(np.array([1, 2])), previous=np.array([1, 3]))
    snapshot = Snapshot(attempts, np.array([0.25, 90.0]), [("failed", None)], [row("a"), row("b")], [], SCHEMA, "id")
    data, now = to_parquet(snapshot), time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump_secs)
    monkeypatch.setattr(time, "time_ns", lambda: int((now + jump_secs) * 1e9))
    loaded = from_parquet(data)
    assert loaded.delays_secs.tolist() == [0.25, 90.0]
    assert loaded.attempts.previous.tolist() == [1, 3]
    assert (loaded.rows, loaded.id_column, loaded.schema) == ([row("a"), row("b")], "id", SCHEMA)


def test_parking_on_full_disk_waits_ten_minutes_then_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, now, tries = ParkingOutage(), 1000.0, 0
    with pytest.raises(AckerError, match=r"could not be saved for 6\d\d s\. Nothing is lost.*Last error: full"):
        while True:
            now += 0.1
            if outage.may_retry(now):
                tries += 1
                outage.note_failure(now, ParkingOutageError("full"))
    assert 600 <= now - 1000 < 631
    assert tries >= 20
    assert caplog.text.count("could not save parked messages, will retry error=full") == 1
    outage.note_success(now)
    assert "saved parked messages again outage_secs=" in caplog.text
    assert outage.may_retry(now + 31)
