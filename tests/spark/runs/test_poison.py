"""A message that breaks the whole job is found, and is a dead letter with what the job said; it ends no run."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerError, RetryPolicy
from acker_redis.spark import FlatMapOutput, Tracker, run_tracked
from acker_redis.testing import wait_until
from tests.spark.runs.test_dataframe import write_ids, written
from tests.spark.streaming.test_streams import give, handler_of, start
from tests.spark.streaming.test_streams import written as stream_written
from tests.support.spark.cases import CONFIG

pytestmark = pytest.mark.spark

BAD = 5
ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
CRASHED = "Python worker exited unexpectedly (crashed)"


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def rows(do: Callable[[], object], row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] == BAD:
        do()
    return [(row["id"],)]


def batches(do: Callable[[], object], batch: pa.RecordBatch) -> FlatMapOutput:
    if BAD in batch["id"].to_pylist():
        do()
    return FlatMapOutput(batch, np.arange(batch.num_rows))


def die() -> None:
    os._exit(3)


def killed() -> None:
    """As the kernel does it where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def too_much() -> None:
    """More than the worker may have."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 33, resource.RLIM_INFINITY))
    try:
        bytearray(1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def hang() -> None:
    while True:
        time.sleep(0.1)


def wrong_type(row: dict[str, Any]) -> list[tuple[Any]]:
    return [("text" if row["id"] == BAD else row["id"],)]


def pipeline(folder: Path, operator: str, function: Any, tracker: Tracker, messages: DataFrame) -> None:
    derived = getattr(tracker, operator)(messages, function, "id bigint", name="work")
    tracker.write_partitions(derived, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"))


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    ("operator", "function", "detail"),
    [
        pytest.param("flat_map", partial(rows, die), CRASHED, id="os._exit"),
        pytest.param("flat_map", partial(rows, too_much), "MemoryError", id="memory"),
        pytest.param("flat_map", wrong_type, "text", id="wrong type"),
        pytest.param("flat_map", partial(rows, killed), CRASHED, id="SIGKILL", marks=pytest.mark.chaos),
        pytest.param(
            "flat_map", partial(rows, partial(sys.exit, 4)), "SystemExit: 4", id="sys.exit", marks=pytest.mark.chaos
        ),
        pytest.param("flat_map_arrow", partial(batches, die), CRASHED, id="Arrow batches", marks=pytest.mark.chaos),
    ],
)
def test_poison_search_dead_letters_the_row_breaking_its_job(
    spark: Any, acker: Acker, tmp_path: Path, operator: str, function: Any, detail: str
) -> None:
    run = partial(pipeline, tmp_path, operator, function)
    result = run_tracked(spark.range(10), run, acker=acker, ids="id", retry=ONCE)
    assert {one.message_id: one.attempts for one in result.dead_letters.values()} == {BAD: 1}
    assert detail in str(result.dead_letters[BAD].detail)
    assert sorted(set(written(tmp_path))) == [one for one in range(10) if one != BAD]
    assert result.counts.acked == 9
    assert acker.stats().pending == 0


def test_poison_search_identifies_a_row_that_never_returns(spark: Any, acker: Acker, tmp_path: Path) -> None:
    run = partial(pipeline, tmp_path, "flat_map", partial(rows, hang))
    messages = spark.range(BAD - 1, BAD + 2).coalesce(1)  # few, as each try takes its whole time
    result = run_tracked(messages, run, acker=acker, ids="id", retry=ONCE, emit_timeout_secs=12)
    assert {one.message_id: one.detail for one in result.dead_letters.values()} == {
        BAD: "AckerError: The jobs of an emission took longer than emit_timeout_secs=12 and were cancelled."
    }
    assert sorted(set(written(tmp_path))) == [BAD - 1, BAD + 1]


@pytest.mark.usefixtures("one_attempt")
def test_error_in_every_emission_is_raised_without_dead_letters(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def store(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        raise OSError("the store is down")

    def run(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, store)

    with pytest.raises(AckerError, match=r"(?s)The cause is not a particular message.*the store is down"):
        run_tracked(spark.range(100), run, acker=acker, ids="id", retry=ONCE)
    assert acker.dead_letters.count() == 0


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.classic("foreachBatch runs in the server")
def test_stream_continues_during_a_poison_search(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def run(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map(messages, partial(rows, killed), "id bigint", name="work")
        tracker.write(derived, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    give(tmp_path, range(20), range(20, 30))
    with handler_of(acker, tmp_path, run, retry=ONCE) as handler:
        query = start(spark, tmp_path, handler)
        wait_until(lambda: not query.isActive, "the end of the query", 120)
        assert query.exception() is None
        assert handler.status().batches == 2
        handler.drain(60)
        assert handler.status().parked == {}
    assert [(one.message_id, one.attempts) for one in acker.dead_letters.read()] == [(BAD, 1)]
    assert sorted(set(stream_written(tmp_path))) == [one for one in range(30) if one != BAD]
