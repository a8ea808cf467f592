"""Rows of a stream's messages that are not done, as far as they need no Spark."""

import io
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from acker_redis import AckerError
from acker_redis.spark.streaming.park_store import ParkOutage, ParkOutageError, Row, Snapshot, _packed, _unpacked
from acker_redis.spark.streaming.parked_rows import ParkedRows
from acker_redis.spout.in_flight import Tries

SCHEMA = StructType([StructField("id", LongType())])


def row(name: str) -> Row:
    return Row(0, name.encode())


def test_messages_of_one_id_come_one_after_another_in_their_order() -> None:
    rows = ParkedRows(0)
    behind = [(1, row("second")), (1, row("third")), (2, row("alone"))]
    assert rows.resume([1], [row("first")], behind, SCHEMA, "id") == [2]  # nobody is before it
    assert rows.waiting == 2
    assert rows.done(np.array([7])) == []
    assert (rows.done(np.array([1])), rows.parked[1]) == ([1], row("second"))
    assert (rows.done(np.array([1])), rows.parked[1]) == ([1], row("third"))
    assert rows.done(np.array([1, 2])) == []
    assert (rows.parked, rows.waiting) == ({}, 0)


@pytest.mark.parametrize("jump_secs", [-3600, 3600])
def test_no_clock_decides_when_a_message_is_due(monkeypatch: pytest.MonkeyPatch, jump_secs: int) -> None:
    """The rest of its wait runs again, whatever the clock of another machine says."""
    tries = Tries.first(np.array([1, 2]))
    snapshot = Snapshot(tries, np.array([0.25, 90.0]), [("failed", None)], [row("a"), row("b")], [], SCHEMA, "id")
    data, now = _packed(snapshot), time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump_secs)
    monkeypatch.setattr(time, "time_ns", lambda: int((now + jump_secs) * 1e9))
    found = _unpacked(pq.read_table(io.BytesIO(data)))
    assert found.delays_secs.tolist() == [0.25, 90.0]
    assert (found.rows, found.column, found.schema) == ([row("a"), row("b")], "id", SCHEMA)


def test_a_full_disk_is_waited_for_ten_minutes_in_waits_of_half_a_minute_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, now, tries = ParkOutage(), 1000.0, 0
    with pytest.raises(AckerError, match=r"could not be saved for 6\d\d s: full.*nothing is lost"):
        while True:
            now += 0.1
            if outage.is_over(now):
                tries += 1
                outage.down(now, ParkOutageError("full"))
    assert 600 <= now - 1000 < 631
    assert tries >= 20
    assert caplog.text.count("waiting until what is parked can be saved: full") == 1
    outage.up(now)
    assert "is saved again, after" in caplog.text
    assert outage.is_over(now + 31)
