"""Handlers that are pickled, as Spark Connect does: a copy runs the query, and the object in the client follows it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerError, BadConfigError, RetryPolicy
from acker_redis.model.arrays import Int64Array
from acker_redis.spark import StreamStatus, TrackedBatches, Tracker
from acker_redis.testing import wait_until
from tests.spark.streaming.test_streams import CONFIG, give, handler_of, pipeline, plain, start, written

pytestmark = [pytest.mark.spark, pytest.mark.classic("a copy in this process plays the server's")]

SENDING: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
"""As the client of Spark Connect sends functions."""


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


@pytest.fixture
def copy_of() -> Iterator[Callable[[TrackedBatches], TrackedBatches]]:
    """Copies, which are closed at the end."""
    copies: list[TrackedBatches] = []

    def copy_of(handler: TrackedBatches) -> TrackedBatches:
        copies.append(SENDING.loads(SENDING.dumps(handler)))
        return copies[-1]

    yield copy_of
    for one in copies:
        one.close()


def test_a_copy_runs_the_query_and_the_client_sees_its_status_and_drains(
    spark: Any, acker: Acker, tmp_path: Path, copy_of: Any
) -> None:
    give(tmp_path, [1, 7], [2, 17])
    with handler_of(acker, tmp_path, retry=RetryPolicy(max_attempts=50)) as handler:
        assert handler.status() == StreamStatus()
        copy = copy_of(handler)
        assert handler.status() == StreamStatus()
        query = start(spark, tmp_path, copy, processingTime="1 second")
        wait_until(lambda: handler.status().batches == 2, "the client sees both batches", 180)
        status = handler.status()
        assert (status.parked, status.counts.acked) == ({("failed", "fail_where"): 2}, 2)
        with pytest.raises(AckerError, match=r"drain\(\) was called while the query runs on Spark's server"):
            handler.drain(180)
        # A batch that Spark hasn't committed is run again, and its messages aren't among those to drain.
        wait_until(lambda: (query.lastProgress or {"batchId": 0})["batchId"] >= 1, "Spark commits the last batch", 180)
        query.stop()
        copy.close()
    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        assert handler.status() == StreamStatus(), "a status of another object's query is not this one's"
        assert handler.drain(180).parked == {}
        assert handler.status().counts.acked == 2
        give(tmp_path, [3])
        start(spark, tmp_path, copy_of(handler)).awaitTermination()  # the lane goes to the copy
        assert handler.status().counts.acked == 1
    assert written(tmp_path) == [1, 2, 3, 7, 17]


def test_an_error_of_a_copy_is_in_the_clients_status(spark: Any, acker: Acker, tmp_path: Path, copy_of: Any) -> None:
    give(tmp_path, [1])

    def fails(*_: object) -> None:
        raise LookupError("no store")

    with handler_of(acker, tmp_path, fails) as handler:
        with pytest.raises(StreamingQueryException, match="no store"):
            start(spark, tmp_path, copy_of(handler)).awaitTermination()
        assert (handler.status().error or "").endswith("LookupError: no store")


def test_a_client_that_does_not_see_the_parking_location_does_not_drain_nothing(
    spark: Any, acker: Acker, tmp_path: Path, copy_of: Any
) -> None:
    give(tmp_path, [1, 7])
    with handler_of(acker, tmp_path, retry=RetryPolicy(max_attempts=50)) as handler:
        copy = copy_of(handler)
        start(spark, tmp_path, copy).awaitTermination()
        copy.close()
        (tmp_path / "parked").rename(tmp_path / "elsewhere")
        with pytest.raises(BadConfigError, match=r"is empty here, but .* So they can't be drained from here\. Use a"):
            handler.drain(180)


def test_a_handler_whose_acker_has_no_url_is_not_sent(spark: Any, url: str, tmp_path: Path) -> None:
    client = redis.Redis.from_url(url)
    with (
        client,
        Acker.connect(client, CONFIG) as acker,
        handler_of(acker, tmp_path) as handler,
        pytest.raises(BadConfigError, match=r"an acker without a URL.*\. Pass a URL to Acker\.connect"),
    ):
        handler.__reduce__()


def test_a_checkpoint_location_is_compared_with_sparks(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1])
    for given in ("", 3):
        with pytest.raises(BadConfigError, match=r"checkpoint_location=.* is not a path"):
            handler_of(acker, tmp_path, checkpoint_location=given)
    with (
        handler_of(acker, tmp_path, checkpoint_location=str(tmp_path / "other")) as handler,
        pytest.raises(StreamingQueryException, match=r"other' is not the checkpoint of the query, which is 'file:/"),
    ):
        start(spark, tmp_path, handler).awaitTermination()
    assert not (tmp_path / "parked").exists()
    with handler_of(acker, tmp_path, checkpoint_location=(tmp_path / "checkpoint").as_uri()) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert handler.status().counts.acked == 1


def test_a_pipeline_defined_in_a_test_is_sent_by_value(spark: Any, acker: Acker, tmp_path: Path, copy_of: Any) -> None:
    give(tmp_path, [1])
    seen = tmp_path / "seen"

    def run(tracker: Tracker, messages: DataFrame) -> None:
        seen.touch()
        pipeline(tmp_path, tracker, messages)

    def on_done(ids: Int64Array) -> None:
        (tmp_path / "done").write_text(str(ids.tolist()))

    with handler_of(acker, tmp_path, run, on_messages_done=on_done) as handler:
        start(spark, tmp_path, copy_of(handler)).awaitTermination()
    assert seen.exists() and (tmp_path / "done").read_text() == "[1]"
