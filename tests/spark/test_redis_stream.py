"""A Redis stream as source: what became of an entry decides whether it is acknowledged."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, BadBatchError, BadConfigError
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Tracker, run_redis_stream
from acker_redis.spout import Spout
from tests.spark.cases import CONFIG
from tests.spark.test_sources import replayed, save, saved

pytestmark = pytest.mark.spark


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def run(
    spark: Any, url: str, acker: Acker, pipeline: Any, entries: int = 12, **options: Any
) -> tuple[int, list[Spout]]:
    """Until so many entries are done with."""
    stop, spouts = threading.Event(), list[Spout]()

    def done(spout: Spout) -> None:
        spouts.append(spout)
        if sum(s.counts.acked + s.counts.dead_lettered for s in spouts) == entries:
            stop.set()

    acknowledged = run_redis_stream(
        spark, pipeline, acker=acker, source=url, stream="orders", fields=["id", "value"], group="g",
        consumer="one", stop=stop, on_batch_done=done, max_spout_pending=5, block_ms=50, **options,
    )  # fmt: skip
    return acknowledged, spouts


def test_entries_are_acknowledged_when_all_that_came_of_them_is_done(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    for n in range(11):
        raw.xadd("orders", {"id": n, "value": f"v{n}"})
    raw.xadd("orders", {"id": 99, "value": "never"})
    out = tmp_path / "out"
    out.mkdir()
    in_flight: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        replayed(tmp_path / "marks", out, tracker, messages.withColumn("id", messages["id"].cast("long")))
        in_flight.append(raw.xpending("orders", "g")["pending"])

    acknowledged, spouts = run(
        spark, url, acker, pipeline, retry=RetryPolicy(max_attempts=2), payload_bytes=500, keep_payload=True
    )
    assert acknowledged == 12
    assert max(in_flight) <= 5
    assert sum(spout.counts.acked for spout in spouts) == 11
    assert raw.xpending("orders", "g")["pending"] == 0
    assert len(saved(out)) == 11
    (letter,) = acker.dead_letters.read()
    assert b'"value":"never"' in (letter.payload or b"")


def test_what_a_run_that_broke_down_did_not_acknowledge_goes_back(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    """Entries the dead consumer held come first, and those deleted meanwhile hold nobody up."""
    entries = [raw.xadd("orders", {"value": f"v{n}"}) for n in range(12)]

    def breaks_down(tracker: Tracker, messages: DataFrame) -> None:
        save(tmp_path, tracker, tracker.filter(messages, "value != 'v1'"))
        raise BadBatchError("on purpose")

    with pytest.raises(BadBatchError, match="on purpose"):
        run(spark, url, acker, breaks_down)
    held = raw.xpending("orders", "g")["pending"]
    assert 0 < held <= 5
    raw.xdel("orders", entries[1])
    raw.xadd("orders", {"other": "x"})
    expected = held - 1 + 13 - 5
    acknowledged, _ = run(spark, url, acker, partial(save, tmp_path), expected)
    assert acknowledged == expected
    assert raw.xpending("orders", "g")["pending"] == 0
    assert {*saved_values(tmp_path)} >= {f"v{n}" for n in range(12) if n != 1} | {None}


def test_a_stream_that_is_lost_in_the_middle_is_read_from_its_new_beginning(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    for n in range(3):
        raw.xadd("orders", {"value": f"old{n}"})

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        save(tmp_path, tracker, messages)
        if not raw.exists("flushed"):
            raw.flushall()
            raw.set("flushed", 1)
            for n in range(12):
                raw.xadd("orders", {"value": f"new{n}"})

    run(spark, url, acker, pipeline, entries=15)
    assert {*saved_values(tmp_path)} == {f"old{n}" for n in range(3)} | {f"new{n}" for n in range(12)}


def saved_values(folder: Path) -> list[str | None]:
    import pyarrow.parquet as pq

    return [v for path in folder.glob("*.parquet") for v in pq.read_table(path)["value"].to_pylist()]


def test_field_names_are_checked(spark: Any, url: str, acker: Acker) -> None:
    with pytest.raises(BadConfigError, match="give one or more names"):
        run_redis_stream(
            spark, lambda *_: None, acker=acker, source=url, stream="s", fields=["message_id"], group="g",
            consumer="c", stop=threading.Event(),
        )  # fmt: skip
    for wrong, text in ({"block_ms": 0}, "use 1 or more"), ({"run_id": "mine"}, "takes no run_id"):
        with pytest.raises(BadConfigError, match=text):
            run_redis_stream(
                spark, lambda *_: None, acker=acker, source=url, stream="s", fields=["v"], group="g",
                consumer="c", stop=threading.Event(), **wrong,
            )  # fmt: skip
