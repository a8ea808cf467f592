"""Streams that never stall: what is not done leaves its micro-batch, and stays with the query until it is."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis import Acker, AckerConfig, AckerError, BadConfigError, DeadLetter, RetryPolicy
from acker_redis.spark import MessageIds, TrackedBatches, Tracker
from acker_redis.spark.emission.operator_health import MANY_FAILED
from acker_redis.spark.runs import callback_retries
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.parked_rows import ParkedRows
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation
from acker_redis.spout.state import SpoutState
from acker_redis.testing import wait_until
from tests.support.spark.stored_rows import stored_rdds

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]

CONFIG = AckerConfig(app="streams", shards=2)
QUICK = RetryPolicy(max_attempts=3, first_delay_secs=0)
HANGS = "id % 100 = 50"


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def give(folder: Path, *parts: Any, schema: pa.Schema | None = None) -> None:
    """A file per micro-batch: ids, or tables."""
    (folder / "in").mkdir(exist_ok=True)
    there = len(list((folder / "in").iterdir()))
    for number, part in enumerate(parts, there):
        path = folder / "in" / f"{number:04}.parquet"
        table = part if isinstance(part, pa.Table) else pa.table({"id": pa.array(part, pa.int64())})
        pq.write_table(table, folder / "draft")
        os.utime(folder / "draft", (1_000_000_000 + number, 1_000_000_000 + number))  # Spark reads the oldest first
        (folder / "draft").rename(path)


def start(spark: Any, folder: Path, handle: Callable[..., Any], schema: Any = "id bigint", **trigger: Any) -> Any:
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return (
        stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True})).start()
    )  # fmt: skip


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    """Sevens fail, and what hangs is exported to somebody who never acks it; the others are written."""
    kept = tracker.fail_where(messages, "id % 10 = 7", "a seven")
    tracker.export(
        tracker.filter(kept, HANGS),
        lambda writer: writer.mode("append").parquet(str(folder / "hung")),
        encoding="array",
    )
    tracker.write(
        tracker.filter(kept, f"NOT ({HANGS})"), lambda writer: writer.mode("append").parquet(str(folder / "out"))
    )


def written(folder: Path, part: str = "out") -> list[int]:
    return sorted(one for path in (folder / part).glob("*.parquet") for one in pq.read_table(path)["id"].to_pylist())


def handler_of(acker: Acker, folder: Path, run: Any = None, **options: Any) -> TrackedBatches:
    # Nothing goes out by itself between micro-batches, however long Spark takes to the next.
    given = {"ids": "id", "retry": QUICK, "parking_location": str(folder / "parked"), "batch_wait_secs": 600}
    return TrackedBatches(run or partial(pipeline, folder), acker=acker, **{**given, **options})


def parked(folder: Path) -> list[int]:
    """By the last snapshot, as anybody can read it."""
    while True:
        last = max((folder / "parked").glob("*.parquet"))
        with suppress(FileNotFoundError):  # another one has taken its place meanwhile
            return sorted(pq.read_table(last)["id"].to_pylist())


def snapshots(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "parked").iterdir() if not path.name.startswith("."))


def test_rows_of_write_dataframe_are_released_after_each_batch(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, range(10), range(10, 20), range(20, 30))
    before, kept = stored_rdds(spark), list[frozenset[int]]()

    def run(tracker: Tracker, messages: DataFrame) -> None:
        kept.append(stored_rdds(spark) - before)
        tracker.write_dataframe(messages, lambda rows: rows.write.mode("append").parquet(str(tmp_path / "out")))
        kept.append(stored_rdds(spark) - before)

    with handler_of(acker, tmp_path, run) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    assert all(kept[1::2]) and not any(kept[2::2]), "each batch keeps its rows until it ends"
    assert not stored_rdds(spark) - before
    assert written(tmp_path) == list(range(30))


def test_failed_messages_join_later_batches_and_then_dead_letter(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, *(range(at, at + 40) for at in (0, 60, 110)))
    emissions: list[tuple[int | None, int]] = []

    def counted(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append((tracker.batch_id, messages.count()))
        pipeline(tmp_path, tracker, messages)

    done: list[int] = []
    with handler_of(acker, tmp_path, counted, dead_letter_bytes=100, on_messages_done=done.extend) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert emissions == [(0, 40), (1, 44), (2, 48)]
        assert handler.status().parked == {("failed", "fail_where"): 8}
        assert parked(tmp_path) == [67, 77, 87, 97, 117, 127, 137, 147]
        status = handler.drain(180)
    assert status.parked == {}
    assert (status.counts.acked, status.counts.dead_lettered, status.in_flight) == (108, 12, 0)
    letters = acker.dead_letters.read()
    sevens = [one for at in (0, 60, 110) for one in range(at, at + 40) if one % 10 == 7]
    assert sorted(letter.message_id for letter in letters) == sevens
    assert {(letter.attempts, letter.detail) for letter in letters} == {(3, "a seven")}
    assert {json.loads(letter.payload or b"")["id"] for letter in letters} == set(sevens)
    assert written(tmp_path) == sorted(set(done) - set(sevens))
    assert len(done) == 120
    assert parked(tmp_path) == []
    assert acker.stats().pending == 0


def test_hanging_message_delays_no_other_until_its_late_ack(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, range(40, 60), range(60, 80), range(80, 100))
    with handler_of(acker, tmp_path) as handler:  # the one that hangs is not waited for
        start(spark, tmp_path, handler).awaitTermination()
        status = handler.status()
        assert (status.batch_id, status.in_flight) == (2, 1)
        assert written(tmp_path) == [one for one in range(40, 100) if one % 10 != 7 and one != 50]
        assert 50 in parked(tmp_path)
        (row,) = [row for path in (tmp_path / "hung").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        root, edge = row["anchors"]
        acker.ack(root, edge)
        assert handler.drain(180).parked == {}
        assert handler.status().in_flight == 0
    assert sorted(letter.message_id for letter in acker.dead_letters.read()) == [47, 57, 67, 77, 87, 97]


def test_restart_with_a_silent_source_resumes_parked_messages(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The second handler is given no micro-batch; the query is there, and that is enough."""
    give(tmp_path, range(40, 60))
    with handler_of(
        acker, tmp_path, retry=RetryPolicy(max_attempts=2, first_delay_secs=3600, max_delay_secs=3600)
    ) as one:
        start(spark, tmp_path, one).awaitTermination()
    assert parked(tmp_path) == [47, 50, 57]
    found = pq.read_table(max((tmp_path / "parked").glob("*.parquet"))).to_pylist()
    assert {(row["id"], row["attempts"], row["reason"], row["last_component"]) for row in found} == {
        (47, 1, "failed", "fail_where"), (57, 1, "failed", "fail_where"), (50, 1, "", None),
    }  # fmt: skip
    assert all(row["wait_ms"] > 2_800_000 for row in found if row["id"] != 50)
    with handler_of(acker, tmp_path, partial(plain, tmp_path), batch_wait_secs=0.5) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 hour")
        try:
            wait_until(lambda: 50 in written(tmp_path), "what hung goes out again", 180)
            wait_until(lambda: parked(tmp_path) == [47, 57], "it is not parked any more", 180)
        finally:
            query.stop()
    assert acker.dead_letters.count() == 0


def test_parked_failures_do_not_end_the_next_start(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """They go out first, alone, and are all that the operator has seen then."""
    bad = range(MANY_FAILED + 5)

    def of_bad(row: dict[str, Any]) -> list[tuple[int]]:
        return [(row["id"] // int(row["id"] not in bad),)]

    def failing(tracker: Tracker, messages: DataFrame) -> None:
        plain(tmp_path, tracker, tracker.flat_map(messages, of_bad, "id bigint"))

    give(tmp_path, range(60))
    with handler_of(acker, tmp_path, failing) as one:
        start(spark, tmp_path, one).awaitTermination()
    assert parked(tmp_path) == list(bad)
    emissions: list[int | None] = []

    def counted(tracker: Tracker, messages: DataFrame) -> None:
        failing(tracker, messages)
        emissions.append(tracker.batch_id)

    with handler_of(acker, tmp_path, counted, batch_wait_secs=0.5) as handler:
        query = start(spark, tmp_path, handler, processingTime="100 milliseconds")
        try:
            wait_until(lambda: len(emissions) > 2, "they went out before a micro-batch", 180)
            assert set(emissions) == {None}
            give(tmp_path, range(100, 160))
            wait_until(lambda: acker.dead_letters.count() == len(bad), "they count once others were processed", 120)
            assert (query.exception(), handler.status().error) == (None, None)
        finally:
            query.stop()
    assert written(tmp_path) == [*range(len(bad), 60), *range(100, 160)]
    letters = acker.dead_letters.read()
    assert sorted(letter.message_id for letter in letters) == list(bad)
    assert {letter.attempts for letter in letters} == {3}


def plain(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write(messages, lambda writer: writer.mode("append").parquet(str(folder / "out")))


def test_a_query_that_starts_after_a_drain_works_between_its_batches(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The drain finds no query that runs, and lets go; the first micro-batch takes up the work again."""
    batches: list[int] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        if tracker.batch_id is not None:
            batches.append(tracker.batch_id)
        fails = tracker.batch_id is not None or 1 not in batches  # what goes out before the query fails, too
        plain(tmp_path, tracker, tracker.fail_where(messages, f"{fails} AND id % 10 = 7", "too early"))

    options = {"retry": RetryPolicy(max_attempts=50, first_delay_secs=0)}
    give(tmp_path, [1, 17])
    with handler_of(acker, tmp_path, run, **options) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    give(tmp_path, [2, 27])
    with handler_of(acker, tmp_path, run, batch_wait_secs=0.5, **options) as handler:
        assert sum(handler.drain(0).parked.values()) == 1
        query = start(spark, tmp_path, handler, processingTime="1 hour")
        try:
            wait_until(lambda: written(tmp_path) == [1, 2, 17, 27], "what failed goes out by itself", 180)
        finally:
            query.stop()


def test_second_message_of_an_id_waits_for_the_first(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def of(value: str) -> pa.Table:
        return pa.table({"id": pa.array([1, 2], pa.int64()), "value": [value, "fine"]})

    give(tmp_path, of("bad"), of("second"), of("third"))
    seen: list[list[tuple[int, str]]] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        seen.append(sorted((row["id"], row["value"]) for row in messages.collect()))
        plain(tmp_path, tracker, tracker.fail_where(messages, "value = 'bad'", "bad"))

    schema, options = "id bigint, value string", {"retry": RetryPolicy(max_attempts=4, first_delay_secs=0)}
    with handler_of(acker, tmp_path, run, **options) as handler:
        start(spark, tmp_path, handler, schema).awaitTermination()
        assert handler.status().parked == {("failed", "fail_where"): 1, ("queued", None): 2}
        assert parked(tmp_path) == [1, 1, 1]
    with handler_of(acker, tmp_path, run, **options) as handler:
        assert handler.drain(180).parked == {}
    assert seen == [
        [(1, "bad"), (2, "fine")], [(1, "bad"), (2, "fine")], [(1, "bad"), (2, "fine")],
        [(1, "bad")], [(1, "second")], [(1, "third")],
    ]  # fmt: skip
    assert acker.dead_letters.count() == 1


def test_parking_snapshot_holds_the_newest_message_of_an_id(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Both failed once, one after the other in one micro-batch, so that nothing but the row has changed."""

    def of(value: str) -> pa.Table:
        return pa.table({"id": pa.array([1], pa.int64()), "value": [value]})

    give(tmp_path, of("first"), of("second"))

    def run(tracker: Tracker, messages: DataFrame) -> None:
        fails = f"value = 'second' OR {tracker.emission} = 0"
        plain(tmp_path, tracker, tracker.fail_where(messages, fails, "once"))

    with handler_of(acker, tmp_path, run, max_parked=1) as handler:  # the second goes out in its own micro-batch
        start(spark, tmp_path, handler, "id bigint, value string").awaitTermination()
        assert sum(handler.status().parked.values()) == 1  # failed, but for a failure that is not taken yet
    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        assert handler.drain(180).parked == {}
    found = [row for path in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(path)["value"].to_pylist()]
    assert sorted(found) == ["first", "second"]


def test_columns_may_be_added_or_dropped_but_not_retyped(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, pa.table({"id": pa.array([7, 8], pa.int64()), "old": ["x", "y"]}))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, "id bigint, old string").awaitTermination()
    give(tmp_path, pa.table({"id": pa.array([18], pa.int64()), "n": pa.array([5], pa.int32())}))
    seen: list[Any] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        seen.extend(tuple(row)[:2] for row in messages.select("id", "n").collect())
        plain(tmp_path, tracker, messages)

    retry = RetryPolicy(max_attempts=9, first_delay_secs=0)
    with handler_of(acker, tmp_path, run, retry=retry, parked_columns={"old": None}) as handler:
        start(spark, tmp_path, handler, "id bigint, n int").awaitTermination()
        handler.drain(180)
    assert sorted(seen, key=str) == [(18, 5), (7, None)]
    give(tmp_path, pa.table({"id": pa.array([27], pa.int64()), "n": pa.array([5], pa.int32())}))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, "id bigint, n int").awaitTermination()
    give(tmp_path, pa.table({"id": pa.array([38], pa.int64()), "n": pa.array(["5"])}))
    with handler_of(acker, tmp_path) as handler, pytest.raises(StreamingQueryException, match="drain"):
        start(spark, tmp_path, handler, "id bigint, n string").awaitTermination()


@pytest.mark.parametrize("closed", ["acker", "handler"])
def test_tracked_batches_ends_quietly_in_either_close_order(
    closed: str, spark: Any, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, range(5, 9))  # a seven is parked, and its thread works on
    config = replace(CONFIG, message_timeout_secs=600)  # before that, no missing rotator is logged
    acker = Acker.connect(url, config)
    handler = handler_of(acker, tmp_path)
    start(spark, tmp_path, handler).awaitTermination()
    for one in (acker, handler) if closed == "acker" else (handler, acker):
        one.close()
    wait_until(lambda: "acker-stream" not in {thread.name for thread in threading.enumerate()}, "its thread ends", 180)
    assert not caplog.records
    with Acker.connect(url, config) as again, handler_of(again, tmp_path) as handler:
        assert handler.drain(180).parked == {}


def test_stopped_query_logs_single_lines_without_a_stack(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, range(20))
    began = tmp_path / "began"

    def sleeps(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not began.exists():
            began.touch()
            time.sleep(600)
        yield row

    def run(tracker: Tracker, messages: DataFrame) -> None:
        plain(tmp_path, tracker, messages.transform(tracker.flat_map, sleeps, "id bigint"))

    with handler_of(acker, tmp_path, run) as handler:
        query = start(spark, tmp_path, handler)
        wait_until(began.exists, "a job is at work", 120)
        query.stop()
        wait_until(lambda: not query.isActive, "it is stopped", 180)
    ours = [record for record in caplog.records if record.name.startswith("acker_redis")]
    assert all("\n" not in one.getMessage() and not one.exc_info for one in ours), caplog.text


def test_non_null_column_may_be_added_while_messages_are_parked(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The pipeline gets the same columns whether messages are fresh, parked or both."""
    give(tmp_path, [1, 7, 17])
    seen: list[Any] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        seen.append((tracker.emission, messages.drop("_share", "_roots").schema))
        seen.extend((row["id"], row["source"]) for row in messages.collect())
        plain(tmp_path, tracker, tracker.fail_where(messages, f"id % 10 = 7 AND {tracker.emission} = 0", "a seven"))

    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    give(tmp_path, [2, 27])
    with handler_of(acker, tmp_path, run) as handler:
        start(
            spark, tmp_path, lambda batch, number: handler(batch.withColumn("source", F.lit("web")), number)
        ).awaitTermination()
        assert handler.drain(180).parked == {}
    schemas = [schema for _, schema in seen if isinstance(schema, StructType)]
    assert schemas == [StructType([StructField("id", LongType()), StructField("source", StringType())])] * 2
    rows = {(message, source) for message, source in seen if not isinstance(source, StructType)}
    assert rows == {(7, None), (17, None), (2, "web"), (27, "web")}
    assert acker.dead_letters.count() == 0


def test_column_renamed_in_case_keeps_its_parked_values(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, pa.table({"id": pa.array([7], pa.int64()), "Item": ["unicorn"]}))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, "id bigint, Item string").awaitTermination()
    give(tmp_path, pa.table({"id": pa.array([8], pa.int64()), "item": ["horse"]}))
    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        start(spark, tmp_path, handler, "id bigint, item string").awaitTermination()
        assert handler.drain(180).parked == {}
    found = [pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")]
    assert {one for table in found if "item" in table.column_names for one in table["item"].to_pylist()} == {
        "unicorn", "horse",
    }  # fmt: skip


@pytest.mark.parametrize("within", [False, True])
def test_renamed_column_ends_the_query_until_its_new_name_is_given(
    spark: Any, acker: Acker, tmp_path: Path, within: bool
) -> None:
    """Else a parked row would be acked with a null in place of its value. Also for a field of a struct."""

    def texts(name: str, value: str) -> pa.Table:
        column = pa.array([{name: value}]) if within else [value]
        return pa.table({"id": pa.array([7], pa.int64()), "s" if within else name: column})

    def schema(name: str) -> str:
        return f"id bigint, s struct<{name}: string>" if within else f"id bigint, {name} string"

    give(tmp_path, texts("v", "unicorn"))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, schema("v")).awaitTermination()
    before = (snapshots(tmp_path), parked(tmp_path))
    give(tmp_path, texts("text", "horse").set_column(0, "id", pa.array([8], pa.int64())))
    old, new = ("s.v", "s.text") if within else ("v", "text")
    refused = rf"1 values in column '{old}'.*parked_columns=\{{'{old}': 'NEW_NAME'\}}.*accept the loss"
    with (
        handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler,
        pytest.raises(StreamingQueryException, match=refused),
    ):
        start(spark, tmp_path, handler, schema("text")).awaitTermination()
    assert (snapshots(tmp_path), parked(tmp_path)) == before
    for _ in range(2):  # the mapping may stay
        with handler_of(acker, tmp_path, partial(plain, tmp_path), parked_columns={old: new}) as handler:
            start(spark, tmp_path, handler, schema("text")).awaitTermination()
            assert handler.drain(180).parked == {}
    found = [row for path in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    kept = {row["id"]: row["s"]["text"] if within else row["text"] for row in found}
    assert kept == {7: "unicorn", 8: "horse"}


def test_dropped_column_is_accepted_if_its_parked_values_are_null_or_may_be_lost(
    spark: Any, acker: Acker, tmp_path: Path
) -> None:
    columns = {"id": pa.array([7, 17], pa.int64()), "v": ["unicorn", None], "w": pa.array([None, None], pa.string())}
    give(tmp_path, pa.table(columns))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, "id bigint, v string, w string").awaitTermination()
    give(tmp_path, [8])
    with handler_of(acker, tmp_path, partial(plain, tmp_path), parked_columns={"v": None}) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert handler.drain(180).parked == {}
    assert written(tmp_path) == [7, 8, 17]


@pytest.mark.parametrize("wrong", [["v"], {"v": 7}, {7: "v"}, "v"])
def test_parked_columns_that_are_no_mapping_are_refused(acker: Acker, tmp_path: Path, spark: Any, wrong: Any) -> None:
    with pytest.raises(BadConfigError, match="is not a mapping of column names"):
        handler_of(acker, tmp_path, parked_columns=wrong)
    with pytest.raises(BadConfigError, match="gives one name to several columns"):
        handler_of(acker, tmp_path, parked_columns={"v": "text", "w": "text"})


@pytest.mark.parametrize("swapped", [{"a": "b", "b": "a"}, {"x": "a", "a": "B", "b": "c", "c": "A"}])
def test_parked_columns_that_swap_names_are_refused(
    acker: Acker, tmp_path: Path, spark: Any, swapped: dict[str, str | None]
) -> None:
    with pytest.raises(BadConfigError, match=r"swaps names\..*drain"):
        handler_of(acker, tmp_path, parked_columns=swapped)
    handler_of(acker, tmp_path, parked_columns={"a": "b", "b": "c", "v": "V"}).close()


def test_parked_messages_wait_for_new_columns_of_a_silent_source(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program of now wants a column that parked rows get with the first micro-batch, which says what it is."""
    give(tmp_path, [7])
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler).awaitTermination()

    def run(tracker: Tracker, messages: DataFrame) -> None:
        plain(tmp_path, tracker, messages.withColumn("n", F.coalesce("n", F.lit(0))))

    with caplog.at_level("INFO"), handler_of(acker, tmp_path, run, batch_wait_secs=0.1) as handler:
        query = start(spark, tmp_path, handler, "id bigint, n int", processingTime="1 second")
        try:
            wait_until(lambda: "columns of the stream changed" in caplog.text, "it waits", 180)
            give(tmp_path, pa.table({"id": pa.array([18], pa.int64()), "n": pa.array([5], pa.int32())}))
            wait_until(lambda: written(tmp_path) == [7, 18], "both go out", 180)
        finally:
            query.stop()
    assert acker.dead_letters.count() == 0


def test_changed_id_column_is_refused_while_messages_are_parked(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Else parked rows would be emitted under ids that are not theirs."""
    table = pa.table({"id": pa.array([7], pa.int64()), "other": pa.array([1], pa.int64())})
    give(tmp_path, table)
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler, "id bigint, other bigint").awaitTermination()
    give(tmp_path, table)
    with (
        handler_of(acker, tmp_path, ids="other") as handler,
        pytest.raises(
            StreamingQueryException, match=r"ids in column 'id', but the stream now has them in 'other'.*drain"
        ),
    ):
        start(spark, tmp_path, handler, "id bigint, other bigint").awaitTermination()
    assert parked(tmp_path) == [7]


def test_unreadable_parked_rows_count_against_no_message(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(tmp_path, [7, 50])
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler).awaitTermination()

    def kept() -> list[Any]:
        found = pq.read_table(max((tmp_path / "parked").glob("*.parquet"))).sort_by("id")
        return list(found.select(["id", "attempts", "exempted", "losses"]).to_pylist())

    before = kept()

    def fails(rows: ParkedRows, ids: Any) -> DataFrame:
        raise ValueError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(ParkedRows, "_frame_with", fails)
        for _ in range(2):
            with handler_of(acker, tmp_path) as handler, pytest.raises(AckerError, match="on purpose"):
                handler.drain(180)
        give(tmp_path, [1])
        with handler_of(acker, tmp_path) as handler, pytest.raises(StreamingQueryException, match="on purpose"):
            start(spark, tmp_path, handler).awaitTermination()
    assert kept() == before
    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert handler.drain(180).parked == {}
    assert written(tmp_path) == [1, 7, 50]
    assert acker.dead_letters.count() == 0


def test_micro_batch_waits_while_max_parked_is_exceeded(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, range(40), range(40, 80))
    most: list[bool] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        most.append(handler.status().is_full)
        plain(tmp_path, tracker, tracker.fail_where(messages, f"{tracker.emission} = 0", "the first time"))

    with handler_of(acker, tmp_path, run, max_parked=10) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert not handler.status().is_full
    assert True in most
    assert written(tmp_path) == list(range(80))
    assert (
        "micro-batch waits, as too many messages are not done or in flight app=streams batch=0 not_done=40 "
        in caplog.text
    )
    assert "max_parked=10 " in caplog.text


def test_micro_batch_waits_for_room_within_max_spout_pending(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hang, and no more than two may be in flight: the next batch waits until one of them is acked."""
    give(tmp_path, [50, 150], [1])
    options = {"max_spout_pending": 2, "batch_wait_secs": 0}
    with handler_of(acker, tmp_path, **options) as handler:
        query = start(spark, tmp_path, handler)
        wait_until(lambda: handler.status().is_full, "the second micro-batch waits", 120)
        assert not (tmp_path / "out").exists() or 1 not in written(tmp_path)
        rows = [row for path in (tmp_path / "hung").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        for row in rows:
            acker.ack(*row["anchors"])
        query.awaitTermination()
        assert (handler.drain(180).parked, handler.status().is_full) == ({}, False)
    assert written(tmp_path) == [1]
    assert "not_done=3 in_flight=2 " in caplog.text


def test_unreadable_parking_location_releases_the_lane(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(tmp_path, [1])

    def fails(store: ParkingLocation, before: int) -> None:
        raise BadConfigError("on purpose")

    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        with monkeypatch.context() as patched, pytest.raises(StreamingQueryException, match="on purpose"):
            patched.setattr(ParkingLocation, "start_saving", fails)
            start(spark, tmp_path, handler).awaitTermination()
        start(spark, tmp_path, handler).awaitTermination()
    assert written(tmp_path) == [1]


def test_parking_location_of_another_query_is_refused_at_start(spark: Any, acker: Acker, tmp_path: Path) -> None:
    location = tmp_path / "parked"
    give(tmp_path, range(40))
    with handler_of(acker, tmp_path) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    emitted = acker.stats().inits

    other = tmp_path / "other"
    other.mkdir()
    give(other, range(40))
    with (
        handler_of(acker, tmp_path) as handler,
        pytest.raises(StreamingQueryException, match="belongs to another query"),
    ):
        start(spark, other, handler).awaitTermination()
    with (
        Acker.connect(acker.url, AckerConfig(app="another")) as stranger,
        pytest.raises(BadConfigError, match="belongs to app 'streams'"),
    ):
        handler_of(stranger, tmp_path)

    snapshot = max(location.glob("*.parquet"))
    whole = snapshot.read_bytes()
    for crc in location.glob(".*.crc"):
        crc.unlink()
    for damaged in (whole[:-20], b"", whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]):
        snapshot.write_bytes(damaged)
        with pytest.raises(BadConfigError, match="damaged"):
            handler_of(acker, tmp_path)
    snapshot.write_bytes(whole)
    about = location / "query.json"
    for text in ("{", "{}", '{"format": "else"}', "[1]"):
        about.write_text(text)
        with pytest.raises(BadConfigError, match="damaged or from another program"):
            handler_of(acker, tmp_path)

    location.rename(tmp_path / "moved")
    give(tmp_path, range(40, 80))
    with handler_of(acker, tmp_path) as handler, pytest.raises(StreamingQueryException, match="does not exist"):
        start(spark, tmp_path, handler).awaitTermination()
    location.mkdir()
    (location / "data.csv").touch()
    with handler_of(acker, tmp_path) as handler, pytest.raises(StreamingQueryException, match="has unrelated files"):
        start(spark, tmp_path, handler).awaitTermination()
    assert acker.stats().inits == emitted
    (location / "data.csv").rename(location / "start_empty")
    with handler_of(acker, tmp_path, partial(plain, tmp_path)) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    assert set(range(40, 80)) <= set(written(tmp_path))


def test_dead_letters_replayed_from_payload_are_then_removed(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def run(tracker: Tracker, messages: DataFrame) -> None:
        bad = "false" if (tmp_path / "repaired").exists() else "id % 10 = 7"
        kept = tracker.fail_where(messages, f"{bad} OR id = 8", "a seven")
        tracker.write(kept, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    at = [f"2026-01-01 00:00:00.00000{one}Z" for one in range(10)]
    table = pa.table({
        "id": pa.array(range(10), pa.int64()), "text": [f"é{one}" for one in range(10)],
        "at": pa.array(at).cast(pa.timestamp("us", "UTC")), "raw": pa.array([bytes([one, 255]) for one in range(10)]),
        "price": pa.array([None if one % 2 else "1.50" for one in range(10)]).cast(pa.decimal128(10, 2)),
    })  # fmt: skip
    schema = "id bigint, text string, at timestamp, raw binary, price decimal(10,2)"
    give(tmp_path, table)
    with handler_of(
        acker, tmp_path, run, retry=RetryPolicy(max_attempts=1, first_delay_secs=0), dead_letter_bytes=1000
    ) as handler:
        start(spark, tmp_path, handler, schema).awaitTermination()
        assert sorted((one.message_id, one.replay) for one in acker.dead_letters.read()) == [
            (7, "payload"),
            (8, "payload"),
        ]
        (tmp_path / "repaired").touch()
        acker.dead_letters.add([DeadLetter(99, "run", 1, "failed", payload=b"no json", replay="payload")])
        assert acker.dead_letters.replay() == 3
        handler.drain(180)
        wait_until(lambda: acker.dead_letters.replaying() == 0, "the letters are replayed", 180)
    left = [(one.message_id, one.detail) for one in acker.dead_letters.read()]
    assert sorted(left) == [(8, "a seven"), (99, None)]
    found = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")).sort_by("id")
    wanted = table.filter(pa.compute.not_equal(table["id"], 8))
    assert found.select(table.column_names).cast(table.schema).to_pylist() == wanted.to_pylist()
    assert handler.status().parked == {}


def test_letter_of_before_a_renaming_is_replayed_with_its_values_or_stays(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its message would be acked with nulls, and the letter with the only copy of the values would be deleted."""
    old, new = "id bigint, v string, `n.x` int, text string", "id bigint, text string, `n.x` int, body string, more int"
    ids = pa.array([7, 17], pa.int64())
    given: dict[str, Any] = {"retry": RetryPolicy(max_attempts=1), "dead_letter_bytes": 1000}
    give(tmp_path, pa.table({
        "id": ids, "v": ["a", "b"], "n.x": pa.array([1, None], pa.int32()), "text": ["é", "f"],
    }))  # fmt: skip
    with handler_of(acker, tmp_path, **given) as handler:
        start(spark, tmp_path, handler, old).awaitTermination()
    give(tmp_path, pa.table({"id": pa.array([27], pa.int64()), "text": ["c"], "body": ["g"]}))
    with handler_of(acker, tmp_path, **given) as handler:
        start(spark, tmp_path, handler, new).awaitTermination()
        assert acker.dead_letters.replay() == 3
        handler.drain(180)
    assert caplog.text.count("dead letters not replayed") == 1
    assert "'v' would be lost" in caplog.text
    assert {7, 17} <= {letter.message_id for letter in acker.dead_letters.read()}

    names: dict[str, str | None] = {"v": "text", "text": "body"}
    with handler_of(acker, tmp_path, partial(plain, tmp_path), parked_columns=names, **given) as handler:
        assert acker.dead_letters.replay() == 3
        assert handler.drain(180).counts.acked == 3
    assert acker.dead_letters.count() == 0
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")]
    found = pa.concat_tables(table for table in tables if table.num_rows).sort_by("id")
    assert [tuple(row.values()) for row in found.select(["id", "text", "n.x", "body", "more"]).to_pylist()] == [
        (7, "a", 1, "é", None),
        (17, "b", None, "f", None),
        (27, "c", None, "g", None),
    ]


def test_letter_of_before_a_change_of_a_type_stays(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A text that is no number would be acked as a null."""
    given: dict[str, Any] = {"retry": RetryPolicy(max_attempts=1), "dead_letter_bytes": 1000}
    give(tmp_path, pa.table({"id": pa.array([7, 17], pa.int64()), "v": ["a", "5"]}))
    with handler_of(acker, tmp_path, **given) as handler:
        start(spark, tmp_path, handler, "id bigint, v string").awaitTermination()
    give(tmp_path, pa.table({"id": pa.array([21], pa.int64()), "v": pa.array([1], pa.int64())}))
    with handler_of(acker, tmp_path, partial(plain, tmp_path), **given) as handler:
        start(spark, tmp_path, handler, "id bigint, v bigint").awaitTermination()
        foreign = DeadLetter(5, "run", 1, "failed", payload=b"[]", replay="payload")
        acker.dead_letters.add([foreign])
        assert acker.dead_letters.replay() == 3
        handler.drain(180)
    assert {5, 7, 17} == {letter.message_id for letter in acker.dead_letters.read()}
    assert caplog.text.count("dead letters not replayed") == 2
    assert "a value doesn't fit its column count=2" in caplog.text
    assert "they stay count=1" in caplog.text and "The payload is no JSON object" in caplog.text


def test_completed_offsets_stop_at_the_first_undone_message(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Offset 7 of the first partition always fails, so it is parked behind the first batch, and over a restart."""
    schema = "topic int, at bigint, id bigint"  # Kafka's partitions are numbers, from 0

    def rows(*offsets: int) -> pa.Table:
        return pa.table(
            {"topic": pa.array([int(one >= 10) for one in offsets], pa.int32()), "at": offsets, "id": offsets}
        )

    def run(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.fail_where(messages, "id = 7", "a seven")
        tracker.write(kept, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    options = {"ids": MessageIds.offsets("topic", "at")}  # of three attempts
    give(tmp_path, rows(*range(10), 20, 21))
    with handler_of(acker, tmp_path, run, **options) as handler:
        start(spark, tmp_path, handler, schema).awaitTermination()
        assert handler.status().completed_offsets == acker.completed_offsets() == {"0": 7, "1": 22}
    give(tmp_path, rows(9, 22))
    with handler_of(acker, tmp_path, run, **options) as handler:
        start(spark, tmp_path, handler, schema).awaitTermination()
        assert acker.completed_offsets() == {"0": 7, "1": 23}  # what was parked before is not passed over
        assert handler.drain(180).completed_offsets == acker.completed_offsets() == {"0": 10, "1": 23}


def test_duplicate_ids_in_a_micro_batch_are_emitted_in_turn(spark: Any, acker: Acker, tmp_path: Path) -> None:
    together: list[int] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        ids = [row["id"] for row in messages.collect()]
        together.append(len(ids) - len(set(ids)))
        tracker.write(messages, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    give(tmp_path, pa.table({"id": [1, 2, 2, 3, 2], "text": ["a", "b", "c", "d", "e"]}))
    with handler_of(acker, tmp_path, run) as handler:
        start(spark, tmp_path, handler, "id bigint, text string").awaitTermination()
        assert handler.drain(180).counts.acked == 5
    assert set(together) == {0}
    found = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")).to_pylist()
    assert sorted(row["text"] for row in found) == ["a", "b", "c", "d", "e"]
    assert handler.status().parked == {}


def test_on_messages_done_raising_at_times_delays_nothing(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work is done by then: it is called again, and the query goes on."""
    monkeypatch.setattr(callback_retries, "PAUSES_SECS", (0.01, 0.01))
    give(tmp_path, [1, 2], [3, 4])
    calls, done = list[int](), list[int]()

    def told(ids: Any) -> None:
        calls.append(len(ids))
        if len(calls) % 2:
            raise OSError("every other time")
        done.extend(ids.tolist())

    with handler_of(acker, tmp_path, partial(plain, tmp_path), on_messages_done=told) as handler:
        start(spark, tmp_path, handler).awaitTermination()
        assert handler.drain(180).counts.emitted == 4
    assert sorted(done) == written(tmp_path) == [1, 2, 3, 4]
    assert acker.admin.last_run_ends()[0].state == "finished"


def test_query_failing_repeatedly_leaves_a_letter_per_message(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter is written before what breaks the query; its message comes again with the next start."""
    monkeypatch.setattr(callback_retries, "PAUSES_SECS", (0.01,))
    give(tmp_path, [7, 8])
    once = RetryPolicy(max_attempts=1)

    def raises(ids: Any) -> None:
        raise OSError("mend me")

    for _ in range(3):
        with handler_of(acker, tmp_path, retry=once, on_messages_done=raises) as handler:
            query = start(spark, tmp_path, handler)
            with pytest.raises(
                StreamingQueryException, match=r"on_messages_done raised OSError: mend me \(2 times in a row"
            ):
                query.awaitTermination()
        assert acker.dead_letters.count() == 0
        assert (acker.admin.last_run_ends()[0].state, acker.stats(with_oldest_age=False).pending) == ("failed", 0)
        assert "on_messages_done raised OSError: mend me" in acker.admin.last_run_ends()[0].error
    with handler_of(acker, tmp_path, retry=once) as handler:
        start(spark, tmp_path, handler).awaitTermination()
    assert [letter.message_id for letter in acker.dead_letters.read()] == [7]
    assert acker.admin.last_run_ends()[0].state == "finished"


def test_query_stopped_in_a_micro_batch_is_marked_interrupted(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [50])  # hangs: the micro-batch waits for it
    with handler_of(acker, tmp_path, max_parked=0) as handler:
        query = start(spark, tmp_path, handler)
        wait_until(lambda: handler.status().is_full, "the micro-batch waits", 120)
        query.stop()
        wait_until(lambda: acker.admin.last_run_ends()[0].state == "interrupted", "its end is noted", 180)
    assert acker.stats(with_oldest_age=False).pending == 0


def test_tracked_batches_closed_during_a_wait_ends_the_query(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [50])  # hangs: the micro-batch waits for it
    handler = handler_of(acker, tmp_path, max_parked=0)
    query = start(spark, tmp_path, handler)
    try:
        wait_until(lambda: handler.status().is_full, "the micro-batch waits", 120)
        with pytest.raises(AckerError, match=r"drain\(timeout_secs=0\) could not start.*Stop the query first"):
            handler.drain(0)
        closing = threading.Thread(target=handler.close, daemon=True)
        closing.start()
        wait_until(lambda: not closing.is_alive(), "the handler is closed", 180)
        with pytest.raises(StreamingQueryException, match="closed during a micro-batch"):
            query.awaitTermination()
    finally:
        query.stop()
    assert (acker.admin.last_run_ends()[0].state, acker.stats(with_oldest_age=False).pending) == ("interrupted", 0)
    with handler_of(acker, tmp_path) as handler:  # Spark gives the batch again
        start(spark, tmp_path, handler).awaitTermination()
    assert parked(tmp_path) == [50]


JSON_CARRIES = {
    "binary": "unhex('00ff10')", "float": "cast('NaN' AS double)", "infinity": "cast('-Infinity' AS float)",
    "zero": "-0.0D", "decimal": "cast('123456789012345678.90' AS decimal(20, 2))", "text": "'a\\u0000\\n\U0001f600'",
    "timestamp": "timestamp'1883-11-18 12:03:57.123456'", "ntz": "timestamp_ntz'0001-01-01 00:00:00.000001'",
    "date": "date'9999-12-31'", "map": "map('a', 1, 'b', null)", "struct": "named_struct('x', cast(null AS int))",
    "array": "array(named_struct('x', 1), null)", "interval": "interval '1 02:03:04.5' day to second",
    "null": "cast(null AS int)",
}  # fmt: skip
JSON_DOES_NOT = {
    "map": "map(1, 'a')", "nested": "array(map(date'2024-01-01', 1))", "broken": "cast(unhex('ff') AS string)",
}  # fmt: skip


def test_letter_with_an_exact_payload_is_replayed_from_it(spark: Any, acker: Acker, tmp_path: Path) -> None:
    columns = [f"{expression} AS {name}_" for name, expression in JSON_CARRIES.items()]
    frame = spark.range(7, 8).selectExpr("id", *columns)
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    runs: list[tuple[int, str]] = []

    def run(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.drop(*(name for name in messages.columns if name.startswith("_")))
        runs.append((rows.count(), str(rows.toArrow().to_pylist())))
        pipeline(tmp_path, tracker, messages)

    given = {"retry": RetryPolicy(max_attempts=1), "dead_letter_bytes": 10_000}
    with handler_of(acker, tmp_path, run, **given) as handler:
        start(spark, tmp_path, handler, frame.schema).awaitTermination()
        (letter,) = acker.dead_letters.read()
        assert letter.replay == "payload"
        assert acker.dead_letters.replay() == 1
        handler.drain(180)
    assert len(runs) == 2 and runs[0] == runs[1]


@pytest.mark.parametrize("name", JSON_DOES_NOT)
def test_letter_with_an_inexact_payload_is_not_replayable(
    spark: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = spark.range(7, 8).selectExpr("id", f"{JSON_DOES_NOT[name]} AS {name}")
    state = SpoutState("app", "run", RetryPolicy())
    rows = ParkedRows(ParkedMessages(state, lambda: []), 1000)
    state.add(rows.start_batch(frame, "id", np.array([7])))
    for _ in range(2):
        (payload,) = rows.payloads([7])
        assert payload is not None
        assert not rows.is_exact(DeadLetter(7, "run", 1, "failed", payload=payload))
        rows.finish_batch()  # and the same when it is parked
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
