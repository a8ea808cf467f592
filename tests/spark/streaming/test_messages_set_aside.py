"""A bad message of a rare kind isn't tried for good: it is set aside until its operator has processed another one."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.model import keys
from acker_redis.spark import Tracker
from acker_redis.spark.streaming.stream_status import from_json, to_json
from tests.spark.streaming.test_streams import acker, give, handler_of, parked, start

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]

__all__ = ["acker"]

TWICE = RetryPolicy(max_attempts=2, first_delay_secs=0)


def rarely(row: dict[str, Any]) -> Any:
    if row["id"] == 100:
        raise KeyError("city")
    yield (row["id"],)


def pipeline(tracker: Tracker, messages: DataFrame) -> None:
    usual, rare = tracker.filter(messages, "id < 100"), tracker.filter(messages, "id >= 100")
    tracker.write(usual, lambda writer: writer.format("noop").mode("append").save())
    rows = tracker.flat_map(rare, rarely, "id bigint", name="geocode")
    tracker.write(rows, lambda writer: writer.format("noop").mode("append").save())


@pytest.fixture(autouse=True)
def _no_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.SET_ASIDE_SECS", 0.0)
    monkeypatch.setattr("acker_redis.spout.retry._EXEMPT_SECS", 0.1)
    monkeypatch.setattr("acker_redis.spout.loop._NOTE_SECS", 0.0)


def test_rare_message_is_set_aside_and_judged_once_its_operator_works(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [0, 1, 100])
    with handler_of(acker, tmp_path, pipeline, retry=TWICE) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        status = handler.drain(3600)
        (aside,) = status.set_aside
        assert (aside.operator, aside.messages, aside.error) == ("geocode", 1, "KeyError: 'city'")
        assert sum(status.parked.values()) == 1, "it counts as parked"
        assert from_json(to_json(status)) == status
        (noted,) = app_of(acker).client.pipeline([("HGET", keys.outages(acker.config.app), 0)])
        (shown,) = json.loads(noted)["set_aside"]
        assert (shown["operator"], shown["messages"], shown["error"]) == ("geocode", 1, "KeyError: 'city'")
    assert acker.dead_letters.read() == []
    assert parked(tmp_path) == [100]
    give(tmp_path, [101])
    with handler_of(acker, tmp_path, pipeline, retry=TWICE) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        status = handler.drain(120)
        assert (status.parked, status.set_aside) == ({}, ())
    assert [letter.message_id for letter in acker.dead_letters.read()] == [100]
