"""A stream over either kind of session. With `--connect` the query runs in a process beside Spark's server."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, BadConfigError, RetryPolicy
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.testing import wait_until
from tests.spark.streaming.test_streams import CONFIG, give, handler_of, parked, plain, start, written

pytestmark = pytest.mark.spark


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def test_parked_messages_survive_a_stop_in_the_middle_of_a_batch(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The status is seen from here, the next start goes on with what was parked, and a drain here does the rest."""
    options = {"checkpoint_location": str(tmp_path / "checkpoint"), "retry": RetryPolicy(max_attempts=50)}
    give(tmp_path, [1, 7], [2, 17])
    with handler_of(acker, tmp_path, **options) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 second")
        wait_until(lambda: handler.status().batches == 2, "both batches are seen to end", 120)
        status = handler.status()
        assert (status.batch_id, status.parked, status.counts.acked) == (1, {("failed", "fail_where"): 2}, 2)
        give(tmp_path, [3, 27])
        wait_until(lambda: (tmp_path / "checkpoint" / "offsets" / "2").exists(), "the third batch begins", 180)
        query.stop()
        if not is_connect(spark):  # whose server ends the query's process, and the lease of the lane expires
            wait_until(lambda: acker.admin.last_run_ends()[0].state != "begun", "it lets go of its lane", 120)
    assert parked(tmp_path)[:2] == [7, 17]
    with handler_of(acker, tmp_path, partial(plain, tmp_path), **options) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert handler.drain(180).parked == {}
    assert set(written(tmp_path)) == {1, 2, 3, 7, 17, 27}
    assert (acker.stats().pending, acker.dead_letters.count()) == (0, 0)


def test_a_checkpoint_of_another_query_is_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1])
    if is_connect(spark):
        with pytest.raises(BadConfigError, match=r"has no checkpoint_location\. .*\. Pass the path or URI"):
            handler_of(acker, tmp_path)
    with (
        handler_of(acker, tmp_path, checkpoint_location=str(tmp_path / "other")) as handler,
        pytest.raises(Exception, match=r"other' (is not the checkpoint of the query|has no readable file metadata)"),
    ):
        start(spark, tmp_path, handler).awaitTermination()
    assert not (tmp_path / "parked").exists()
