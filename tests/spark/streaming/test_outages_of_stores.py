"""A store that is away parks messages of a stream, over restarts, and never ends it or dead-letters them."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, RetryPolicy
from acker_redis.spark import Tracker
from acker_redis.spark.streaming.stream_status import from_json, to_json
from acker_redis.testing import wait_until
from tests.spark.runs.test_outages import dead_url, insert, look_up
from tests.spark.streaming.test_streams import acker, give, handler_of, parked, start
from tests.support.stores import Store, ask

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]

__all__ = ["acker"]

SHORT = RetryPolicy(max_attempts=2, first_delay_secs=0, outage_secs=0.01)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays grow from a fiftieth of a second."""
    monkeypatch.setattr("acker_redis.spout.retry._OUTAGE_DELAY_SECS", 0.02)
    monkeypatch.setattr("acker_redis.spout.retry._EXEMPT_SECS", 0.1)
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.02)


def insert_all(port: int, rows: DataFrame) -> None:
    ask(port)
    rows.collect()


def reaching(port: int, where: str) -> Callable[[Tracker, DataFrame], None]:
    """A pipeline that needs a store in a row function or in a sink."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if where == "row function":
            rows = tracker.flat_map(messages, partial(look_up, port), "id bigint", name="store")
            tracker.write(rows, lambda writer: writer.format("noop").mode("append").save())
        elif where == "driver":
            tracker.write_dataframe(messages, partial(insert_all, port), name="store")
        else:
            tracker.write_partitions(
                messages, partial(insert, port), on_error="raise" if where == "raise" else "fail", name="store"
            )

    return pipeline


@pytest.mark.parametrize("where", ["row function", "fail", "raise", "driver"])
def test_store_that_stays_away_parks_messages_until_it_is_back_after_a_restart(
    spark: Any, acker: Acker, tmp_path: Path, where: str
) -> None:
    give(tmp_path, range(2), range(2, 4))
    with closing(Store()) as store:
        with handler_of(acker, tmp_path, reaching(store.port, where), retry=SHORT) as handler:
            start(spark, tmp_path, handler).awaitTermination()
            status = handler.status()
            (outage,) = status.outages
            assert (outage.operator, outage.messages) == ("store", 4)
            assert "Connection refused" in outage.error
            assert from_json(to_json(status)) == status
            assert status.counts.acked == 0
        assert parked(tmp_path) == [0, 1, 2, 3]
        store.open()
        give(tmp_path, range(4, 6))
        with handler_of(acker, tmp_path, reaching(store.port, where), retry=SHORT) as handler:
            start(spark, tmp_path, handler).awaitTermination()
            assert handler.drain(120).parked == {}
            assert handler.status().counts.acked == 6
    assert acker.dead_letters.read() == []


def test_time_of_an_outage_goes_on_over_a_restart(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The second start alone would be too short for a dead letter."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(dead_url, 7), "id bigint")
        tracker.write(rows, lambda writer: writer.format("noop").mode("append").save())

    give(tmp_path, range(10))
    with handler_of(acker, tmp_path, pipeline, retry=RetryPolicy(max_attempts=2, first_delay_secs=0)) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    assert parked(tmp_path) == [7]
    assert acker.dead_letters.read() == []
    give(tmp_path, range(10, 20))
    with handler_of(acker, tmp_path, pipeline, retry=SHORT) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        status = handler.status()
    assert (status.parked, status.counts.acked) == ({}, 10)
    assert [letter.message_id for letter in acker.dead_letters.read()] == [7]


def test_micro_batch_waits_at_max_parked_until_the_store_is_back(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, range(20), range(20, 40))
    with closing(Store()) as store:
        pipeline = reaching(store.port, "fail")
        with handler_of(acker, tmp_path, pipeline, retry=SHORT, max_parked=10) as handler:
            query = start(spark, tmp_path, handler)
            wait_until(
                lambda: handler.status().is_full and bool(handler.status().outages), "the micro-batch waits", 120
            )
            (outage,) = handler.status().outages
            assert (outage.operator, outage.messages) == ("store", 20), "the second micro-batch waits for the first"
            assert query.isActive
            store.open()
            query.awaitTermination()
            assert handler.drain(120).parked == {}
            assert handler.status().counts.acked == 40
    assert acker.dead_letters.read() == []
