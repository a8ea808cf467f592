"""A real redis-server 7 under a stream is killed again and again: what is parked goes on, and nothing is acked falsely."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker
from acker_redis.spark import Tracker
from acker_redis.testing.server import Server
from tests.spark.streaming.test_streams import CONFIG, give, handler_of, pipeline, start, written
from tests.support import servers

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]

BATCHES = 5
ALL = {one for batch in range(BATCHES) for one in range(batch * 100, batch * 100 + 40)}
SEVENS = {one for one in ALL if one % 10 == 7}


def killing(server: Server) -> Callable[[], None]:
    """Kills it, and starts it again."""

    def kill() -> None:
        server.kill()
        server.start()

    return kill


@pytest.mark.parametrize("keeps", [True, False], ids=["appendonly", "in memory"])
def test_redis_killed_under_a_stream_loses_no_message(spark: Any, tmp_path: Path, keeps: bool) -> None:
    """Before the sinks, behind them, and between micro-batches."""
    give(tmp_path, *(range(at, at + 40) for at in range(0, BATCHES * 100, 100)))
    options = ["--appendonly", "yes", "--appendfsync", "always"] if keeps else []
    done: list[int] = []
    with servers.REDIS7.server(*options) as server, Acker.connect(server.url, CONFIG) as acker:
        kill = killing(server)

        def run(tracker: Tracker, messages: DataFrame) -> None:
            if tracker.batch_id == 1 and not (tmp_path / "first").exists():
                (tmp_path / "first").touch()
                kill()
            pipeline(tmp_path, tracker, messages)
            if tracker.batch_id == 2 and not (tmp_path / "second").exists():
                (tmp_path / "second").touch()
                kill()

        with handler_of(acker, tmp_path, run, on_messages_done=done.extend) as handler:

            def handle(batch: DataFrame, batch_id: int) -> None:
                handler(batch, batch_id)
                if batch_id == 3:
                    kill()

            start(spark, tmp_path, handle).awaitTermination()
            assert handler.drain(120).parked == {}
            counts = handler.status().counts
        assert acker.stats().pending == 0
        letters = {letter.message_id for letter in acker.dead_letters.read()}
    assert sorted(done) == sorted(ALL)
    assert (counts.acked, counts.dead_lettered) == (len(ALL - SEVENS), len(SEVENS))
    assert set(written(tmp_path)) == ALL - SEVENS
    assert letters == SEVENS if keeps else letters <= SEVENS
