"""A whole run: every message through the pipeline until it was acked or is a dead letter."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import (
    Acker,
    BadConfigError,
    ConnectionLostError,
    InexactPipelineError,
    OffsetFile,
    PipelineError,
    RowFailedError,
)
from acker_redis.acker import app_of
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spark import (
    FlatMapOutput,
    Progress,
    ReplayFrom,
    RunResult,
    TrackedBatches,
    Tracker,
    run_exported,
    run_redis_stream,
    run_tracked,
)
from acker_redis.spark.runtime import executor_check
from acker_redis.spout.retry import RetryPolicy
from acker_redis.store import lane_leases
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import fake_acker, wait_until
from tests.support.spark.cases import CONFIG, consume
from tests.support.spark.files_source import RowsToFiles

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64())])
QUICK = RetryPolicy(max_attempts=3, first_delay_secs=0)


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def write_ids(folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    plain = (batch.cast(SCHEMA) for batch in batches)
    pq.write_table(pa.Table.from_batches(plain, SCHEMA), folder / f"{emission}-{partition}.parquet")


def fails_at_first(row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 10 == 7:
        raise RowFailedError("never")
    return [(row["id"],)]


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    derived = messages.transform(tracker.flat_map, fails_at_first, "id bigint", name="pass")
    tracker.write_partitions(derived, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"))


def written(folder: Path) -> list[int]:
    found = [i for path in folder.glob("*.parquet") for i in pq.read_table(path)["id"].to_pylist()]
    return sorted(found, key=lambda i: (i is None, i))


def test_every_message_is_acked_or_dead_lettered(spark: Any, acker: Acker, tmp_path: Path) -> None:
    result = run_tracked(spark.range(100), partial(pipeline, tmp_path), acker=acker, ids="id", retry=QUICK)
    assert sorted(result.dead_letters) == list(range(7, 100, 10))
    assert {(e.attempts, e.reason, e.last_component, e.detail) for e in result.dead_letters.values()} == {
        (3, "failed", "pass", "never")
    }
    assert (result.counts.acked, result.counts.dead_lettered, result.counts.lost) == (90, 10, 0)
    assert written(tmp_path) == [i for i in range(100) if i % 10 != 7]
    assert acker.stats().pending == 0


def fails_for_good(row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 10 in (1, 2):
        raise RowFailedError("never" if row["id"] % 10 == 1 else "not now", retry=row["id"] % 10 == 2)
    if row["id"] % 10 == 7:
        raise KeyError("never")
    return [(row["id"],)]


class FailsThroughTheCollector:
    def execute(self, row: dict[str, Any], collector: Any) -> None:
        if row["id"] % 10 == 3:
            collector.fail("never", retry=False)
        collector.emit((row["id"],))


def fails_batches(batch: pa.RecordBatch) -> FlatMapOutput:
    bad = {at: RowFailedError("never", retry=False) for at, i in enumerate(batch["id"].to_pylist()) if i % 10 == 4}
    return FlatMapOutput(batch, np.arange(batch.num_rows), bad)


def fails_its_partition(folder: Path, name: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    rows = [i for batch in batches for i in batch["id"].to_pylist()]
    if any(i % 10 == 6 for i in rows):
        raise RowFailedError("never", retry=False)
    write_ids(folder, name, iter([pa.record_batch({"id": rows}, SCHEMA)]), partition)


def gives_up(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    rows = messages.transform(tracker.flat_map, fails_for_good, "id bigint", no_retry=(LookupError,), name="first")
    rows = rows.transform(tracker.flat_map, FailsThroughTheCollector(), "id bigint", name="second")
    rows = rows.transform(tracker.flat_map_arrow, fails_batches, "id bigint", name="third")
    rows = tracker.fail_where(rows, "id % 10 = 5", "never", retry=False, name="fourth")
    rows = rows.repartition(5, F.expr("id % 10"))
    sink = partial(fails_its_partition, folder, f"{tracker.run_id}-{tracker.emission}")
    tracker.write_partitions(rows, sink, on_error="fail", name="fifth")


@pytest.mark.usefixtures("one_attempt")
def test_no_retry_failure_dead_letters_its_message_at_once(spark: Any, acker: Acker, tmp_path: Path) -> None:
    result = run_tracked(spark.range(20), partial(gives_up, tmp_path), acker=acker, ids="id", retry=QUICK)
    letters = result.dead_letters
    for digit, stage in enumerate(("first", "first", "second", "third", "fourth", "fifth", "first"), 1):
        attempts = 3 if digit == 2 else 1
        for message in (digit, 10 + digit):
            letter = letters[message]
            assert (letter.attempts, letter.last_component) == (attempts, stage)
            assert letter.detail == {2: "not now", 7: "KeyError: 'never'"}.get(digit, "never")
    beside = set(letters) - {tens + digit for tens in (0, 10) for digit in range(1, 8)}  # in the partition of the sixes
    assert {letters[message].attempts for message in beside} <= {1}
    assert written(tmp_path) == sorted(set(range(20)) - set(letters))


def two_ways_to_fail(row: dict[str, Any]) -> list[tuple[int]]:
    raise RowFailedError("for good" if row["way"] else "for now", retry=not row["way"])


def test_no_retry_failure_outweighs_a_retryable_row(spark: Any, acker: Acker) -> None:
    def both(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, "array(struct(id, false AS way), struct(id, true AS way))")
        tracker.write(
            rows.transform(tracker.flat_map, two_ways_to_fail, "id bigint"),
            lambda w: w.format("noop").mode("append").save(),
        )

    result = run_tracked(spark.range(3), both, acker=acker, ids="id", retry=QUICK)
    assert {(one.attempts, one.detail) for one in result.dead_letters.values()} == {(1, "for good")}


def described_jobs(spark: Any) -> list[str]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    told = [jobs.apply(at).description() for at in range(jobs.size())]
    return [one.get() for one in told if one.isDefined()]


def at_first(now: Path, later: Path, row: dict[str, Any]) -> list[tuple[int]]:
    """Message 1 fails for good, and 2 for now, until there is a file for each."""
    if row["id"] == 1 and not now.exists():
        raise RowFailedError("no store", retry=False)
    if row["id"] == 2 and not later.exists():
        raise RowFailedError("not yet")
    return [(row["id"],)]


def test_active_run_replays_its_own_dead_letters(spark: Any, acker: Acker, tmp_path: Path) -> None:
    now, later = tmp_path / "now", tmp_path / "later"
    asked: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.transform(tracker.flat_map, partial(at_first, now, later), "id bigint")
        tracker.write(rows, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    def progress(_: Progress) -> None:
        if asked and acker.dead_letters.count() == 1:
            later.touch()
        elif not asked and acker.dead_letters.count() == 2:
            now.touch()
            asked.append(acker.dead_letters.replay())

    others = DeadLetter(1, "another-run", 1, "failed", replay="run")
    acker.dead_letters.add([others])
    assert acker.dead_letters.survey().replayable == 0
    patient = RetryPolicy(max_attempts=1000, first_delay_secs=0.2, multiplier=1)
    try:
        result = run_tracked(spark.range(3), pipeline, acker=acker, ids="id", retry=patient, progress=progress)
        assert asked == [1]
        assert (result.counts.acked, result.counts.dead_lettered, result.dead_letters) == (3, 1, {})
        assert [letter.run_id for letter in acker.dead_letters.read()] == ["another-run"]
        assert acker.dead_letters.replaying() == 0
    finally:
        acker.dead_letters.delete(letter.entry_id for letter in acker.dead_letters.read())
    assert written(tmp_path / "out") == [0, 1, 2]


class Jobs:
    """A listener of Spark's as an application has one, which notes the properties of each job."""

    def __init__(self) -> None:
        self.properties: list[dict[str, str]] = []

    def onJobStart(self, event: Any) -> None:  # noqa: N802
        found = event.properties()
        self.properties.append({name: found.getProperty(name) for name in found.stringPropertyNames()})

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on"):
            raise AttributeError(name)
        return lambda *_: None

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)


@pytest.mark.classic("a client can't set the properties of jobs")
def test_spark_listener_sees_message_counts_as_job_properties(spark: Any, acker: Acker) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(tracker.fail_where(messages, "id = 1", "a one"), consume, name="files")

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jobs, context = Jobs(), spark.sparkContext._jsc.sc()
    context.addSparkListener(jobs)
    try:
        run_tracked(spark.range(3), pipeline, acker=acker, ids="id", retry=QUICK)
        context.listenerBus().waitUntilEmpty(60_000)
    finally:
        context.removeSparkListener(jobs)
    seen = [one for one in jobs.properties if "'files'" in one.get("spark.job.description", "")]
    names = ("left", "pending", "emitted", "acked", "failed", "dead_lettered")
    told = [{name: int(one[f"acker.{name}"]) for name in names} for one in seen]
    by_emission = {(one["emitted"], one["failed"], one["dead_lettered"]) for one in told}
    assert sorted(by_emission) == [(3, 0, 0), (4, 1, 0), (5, 2, 0)]
    # The acks of an emission may be received when the next one has begun.
    assert all(one["left"] == one["pending"] == 3 - one["acked"] for one in told)
    assert (told[0]["acked"], told[-1]["acked"]) == (0, 2)
    assert spark.sparkContext.getLocalProperty("acker.left") is None


@pytest.mark.classic("a client can't set the properties of jobs")
def test_spark_ui_shows_a_description_of_each_job(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        messages.count()
        cut = tracker.local_checkpoint(messages, name="cut")
        tracker.write(cut, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")), name="save")
        tracker.write_partitions(cut, consume, name="files")

    spark.sparkContext.setJobDescription("mine")
    run_tracked(spark.range(3), pipeline, acker=acker, ids="id", run_id="described-1")
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    spark.sparkContext.setLocalProperty("spark.job.description", None)
    emission = f"of {acker.config.app}:described-1:0"
    wanted = {f"'cut' {emission}, messages not counted yet; mine", "mine"}
    wanted |= {f"'{name}' {emission}, 3 messages; mine" for name in ("save", "files")}
    wait_until(lambda: wanted <= set(described_jobs(spark)), "the jobs are known", 60)
    assert f"message ids of {acker.config.app}:described-1; mine" not in described_jobs(spark)


def plain(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write_partitions(messages, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"))


def test_messages_in_flight_are_bounded_by_max_spout_pending(spark: Any, acker: Acker, tmp_path: Path) -> None:
    pending: list[int] = []
    result = run_tracked(
        spark.range(50), partial(plain, tmp_path), acker=acker, ids="ID", max_spout_pending=20,
        progress=lambda now: pending.append(now.in_flight),
    )  # fmt: skip
    assert result.counts.acked == 50
    assert 0 < max(pending) <= 20
    assert written(tmp_path) == [*range(50)]


def test_messages_with_a_null_id_are_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    messages = spark.range(60).selectExpr("IF(id < 50, id, NULL) AS id")
    with pytest.raises(PipelineError, match="10 messages have a null id"):
        run_tracked(messages, partial(plain, tmp_path), acker=acker, ids="id")
    assert acker.stats().inits == 0


def test_non_integer_ids_are_refused_with_advice(spark: Any, acker: Acker, tmp_path: Path) -> None:
    texts = spark.range(5).selectExpr("CAST(id AS string) AS `order id`")
    with pytest.raises(PipelineError, match=r"is string, not bigint\. .*xxhash64\(`order id`\)"):
        run_tracked(texts, partial(plain, tmp_path), acker=acker, ids="order id")
    hashed = texts.selectExpr("xxhash64(`order id`) AS id")
    assert run_tracked(hashed, partial(plain, tmp_path), acker=acker, ids="id").counts.acked == 5


def test_duplicate_message_ids_are_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    twice = spark.range(5).unionByName(spark.range(2))
    with pytest.raises(PipelineError, match=r"2 rows repeat the id of another row .*\(for example 0\)"):
        run_tracked(twice, partial(plain, tmp_path), acker=acker, ids="id")
    assert acker.stats().inits == 0


def two_sinks(folder: Path, fail: str, tracker: Tracker, messages: DataFrame) -> None:
    tracker.write_partitions(messages, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"))
    tracker.write_data_source(messages, RowsToFiles, on_error="fail", options={"folder": str(folder), "fail": fail})


def test_data_source_sink_completes_a_run(spark: Any, acker: Acker, tmp_path: Path) -> None:
    messages = spark.range(40).selectExpr("nullif(id, -1) AS id")
    result = run_tracked(messages, partial(two_sinks, tmp_path, ""), acker=acker, ids="id")
    assert (result.counts.acked, result.counts.emitted, result.counts.lost) == (40, 40, 0)
    assert written(tmp_path) == list(range(40))
    assert (tmp_path / "committed").read_text() == "40"


def test_unstable_message_ids_are_refused_at_once(spark: Any, acker: Acker) -> None:
    def drain(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_partitions(messages, consume)

    clock = F.udf(lambda value: 2 * (value + time.time_ns()), "long")  # Spark takes it for deterministic
    messages = spark.range(5).select(clock("id").alias("id"))
    with pytest.raises(InexactPipelineError, match="check that the messages have the same ids whenever they are read"):
        run_tracked(messages, drain, acker=acker, ids="id")


def test_run_id_used_again_is_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    def run() -> RunResult:
        return run_tracked(spark.range(5), partial(pipeline, tmp_path), acker=acker, ids="id", run_id="monday")

    assert run().counts.acked == 5
    with pytest.raises(BadConfigError, match="'monday' was used by an earlier run"):
        run()
    assert acker.stats().inits == 5


def nothing(tracker: Tracker, messages: DataFrame) -> None:
    """No run comes so far."""


RUNS: dict[str, Callable[[Any, str, Acker], object]] = {
    "run_tracked": lambda spark, url, acker: run_tracked(spark.range(5), nothing, acker=acker, ids="id"),
    "run_exported": lambda spark, url, acker: run_exported(
        spark.sql("SELECT 1 AS id, array(7L, 8L) AS anchors"), nothing, acker=acker, spout_id=0
    ),
    "run_redis_stream": lambda spark, url, acker: run_redis_stream(
        spark, nothing, acker=acker, source=url, stream="orders", fields=["id"], group="g", consumer="one",
        max_spout_pending=5, stop=threading.Event(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_error_of_a_held_lane_has_no_frames_of_the_library(
    spark: Any, url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    config = replace(CONFIG, lanes=2)
    with Acker.connect(url, config) as acker, Acker.connect(url, config) as other:
        for name in "LEASE_SECS", "RENEW_SECS":
            monkeypatch.setattr(lane_leases, name, 600.0)
        lease = app_of(other).lease(lane=0, run_id="first")
        lease.acquire()
        for name in "LEASE_SECS", "RENEW_SECS":
            monkeypatch.setattr(lane_leases, name, 0.1)  # for which the second one waits
        with pytest.raises(BadConfigError, match="in use by another run") as refused:
            RUNS[kind](spark, url, acker)
        lease.release()
    assert refused.traceback[-1].name == kind and refused.value.__suppress_context__


def test_wrong_executor_url_is_refused_before_emitting(
    spark: Any, url: str, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(wrong: str) -> None:
        run_tracked(spark.range(5), partial(plain, Path()), acker=acker, executor_url=wrong, ids="id")

    with pytest.raises(
        BadConfigError, match=r"doesn't work for (Spark's workers|the executors).*'redis:/127.0.0.1' is no"
    ):
        run("redis:/127.0.0.1")
    with pytest.raises(
        BadConfigError, match=r"leads (Spark's workers|the executors) to another server or database than acker: app"
    ):
        run(url.removesuffix("/0") + "/1")
    monkeypatch.setattr(executor_check, "_runs_here", lambda session: False)  # as on a cluster: an executor is asked
    with pytest.raises(
        ConnectionLostError,
        match=r"unavailable to the executors\. .*executor_url\. .*redis://127.0.0.1:1/0 can't be reached",
    ):
        run("redis://127.0.0.1:1/0")
    assert acker.stats().inits == 0


@pytest.mark.parametrize("letter_bytes", [-1, MAX_PAYLOAD_BYTES + 1, 1.5, True, "1"])
def test_payload_limit_out_of_range_is_refused_before_running(letter_bytes: Any) -> None:
    nothing: Any = None
    with pytest.raises(BadConfigError, match=f"dead_letter_bytes={letter_bytes!r}"):
        run_tracked(nothing, print, acker=fake_acker(), dead_letter_bytes=letter_bytes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_spout_pending", 0), ("max_spout_pending", -1), ("max_spout_pending", 1.5), ("batch_wait_secs", math.nan),
        ("batch_wait_secs", math.inf), ("stop_wait_secs", math.nan), ("max_parked", math.nan), ("emit_timeout_secs", math.nan),
        ("claim_secs", math.nan), ("block_ms", 0.5),
    ],
)  # fmt: skip
def test_settings_that_wait_forever_are_refused_before_running(setting: str, value: float) -> None:
    nothing: Any = None
    acker = fake_acker(lanes=2)
    of_stream = {"source": "", "stream": "s", "fields": ["v"], "group": "g", "consumer": "c", "stop": nothing}
    calls: dict[str, Callable[..., object]] = {
        "run_tracked": partial(run_tracked, nothing, print, acker=acker),
        "run_exported": partial(run_exported, nothing, print, acker=acker, spout_id=1),
        "TrackedBatches": partial(TrackedBatches, print, acker=acker, parking_location="parked"),
        "run_redis_stream": partial(run_redis_stream, nothing, print, acker=acker, **of_stream),
    }
    of = {
        "max_spout_pending": set(calls), "emit_timeout_secs": set(calls), "batch_wait_secs": {"TrackedBatches"},
        "max_parked": {"TrackedBatches"},
    }  # fmt: skip
    for name in of.get(setting, {"run_redis_stream"}):
        with pytest.raises(BadConfigError, match=setting):
            calls[name](**{setting: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pipeline": None}, "pipeline=None can't be called"),
        ({"pipeline": lambda messages: None}, r"can't be called with 2 arguments \(too many positional arguments\)"),
        ({"acker": "redis://127.0.0.1"}, "acker='redis://127.0.0.1' is not an Acker"),
        ({"retry": 3}, r"retry=3 is not a RetryPolicy\. Pass one, such as RetryPolicy\(max_attempts=3\)"),
        ({"max_spout_pending": "10"}, "max_spout_pending='10' is not an integer"),
        ({"messages": "orders"}, "messages='orders' is not a DataFrame"),
        ({"ids": 5}, r"run_tracked: ids=5 is not a source of message ids\. Pass the name of a column"),
        ({"ids": ["id"]}, r"ids=\['id'\] is not a source of message ids"),
        ({"ids": ""}, r"name='' is not a column name"),
        ({"ids": OffsetFile("p.json")}, r"is not a source of message ids\. Pass the file as MessageIds\.offsets"),
        ({"replay": "redis"}, r"replay='redis' is not a ReplayFrom\. Pass ReplayFrom\.source\(\)"),
        ({"replay": ReplayFrom}, "is not a ReplayFrom"),
        ({"executor_url": 6379}, "executor_url=6379 is not a URL"),
        ({"stop_if_broken": "no"}, "stop_if_broken='no' is not a bool"),
        ({"on_messages_done": []}, r"on_messages_done=\[\] is not callable"),
        ({"progress": 1}, "progress=1 is not callable"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_run_tracked(
    spark: Any, acker: Acker, given: dict[str, Any], said: str
) -> None:
    options: dict[str, Any] = {
        "messages": spark.range(3), "pipeline": print, "acker": acker, "ids": "id", **given,
    }  # fmt: skip
    with pytest.raises(BadConfigError, match=said):
        run_tracked(**options)
    assert acker.stats().inits == 0
