"""A whole run: every message through the pipeline until it was acked or is a dead letter."""

import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, BadBatchError, BadConfigError, FailedError, NotExactError, Offsets
from acker_redis.model import MAX_PAYLOAD_BYTES
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Emitted, Tracker, each_batch, reach, run_tracked
from acker_redis.spout import Spout
from tests.spark.cases import CONFIG, consume
from tests.spark.files_source import RowsToFiles

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64())])
QUICK = RetryPolicy(max_attempts=3)


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def write_ids(folder: Path, emission: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    pq.write_table(pa.Table.from_batches(batches, SCHEMA), folder / f"{emission}-{partition}.parquet")


def fails_at_first(row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 10 == 7:
        raise FailedError("never")
    return [(row["id"],)]


def pipeline(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    derived = tracker.bolt_rows(messages, fails_at_first, "id bigint", name="pass")
    tracker.sink(derived, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"), name="save")


def written(folder: Path) -> list[int]:
    found = [i for path in folder.glob("*.parquet") for i in pq.read_table(path)["id"].to_pylist()]
    return sorted(found, key=lambda i: (i is None, i))


def test_every_message_is_acked_or_a_dead_letter(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    spout = run_tracked(
        spark.range(100), partial(pipeline, tmp_path), acker=acker, url=url, message_id="id", retry=QUICK
    )
    assert sorted(spout.dead_letters) == list(range(7, 100, 10))
    assert {(e.attempts, e.reason, e.last_stage, e.detail) for e in spout.dead_letters.values()} == {
        (3, "failed", "pass", "never")
    }
    assert (spout.counts.acked, spout.counts.dead_lettered, spout.counts.lost) == (90, 10, 0)
    assert written(tmp_path) == [i for i in range(100) if i % 10 != 7]
    assert acker.stats().pending == 0


def test_messages_in_flight_are_bounded_and_rows_without_id_go_through_once(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    messages = spark.range(60).withColumn("id", F.when(F.col("id") < 50, F.col("id")))
    pending: list[int] = []
    spout = run_tracked(
        messages, partial(plain, tmp_path), acker=acker, url=url, message_id="ID", max_spout_pending=20,
        progress=lambda spout, busy: pending.append(spout.pending),
    )  # fmt: skip
    assert spout.counts.acked == 50
    assert 0 < max(pending) <= 20
    assert written(tmp_path) == [*range(50), *[None] * 10]


def plain(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    tracker.sink(messages, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"), name="save")


def test_only_rows_without_id(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    messages = spark.range(5).selectExpr("CAST(NULL AS bigint) AS id")
    spout = run_tracked(messages, partial(plain, tmp_path), acker=acker, url=url, message_id="id")
    assert spout.counts.emitted == 0
    assert written(tmp_path) == [None] * 5


def test_ids_that_stand_twice_are_refused(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    twice = spark.range(5).unionByName(spark.range(2))
    with pytest.raises(BadBatchError, match="2 message ids stand more than once"):
        run_tracked(twice, partial(plain, tmp_path), acker=acker, url=url, message_id="id")
    assert acker.stats().inits == 0


def test_micro_batches_of_a_stream(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    out.mkdir()
    dead: list[int] = []

    def done(batch: DataFrame, spout: Spout) -> None:
        assert spout.done
        dead.extend(row["id"] for row in batch.where(F.col("id").isin(list(spout.dead_letters))).collect())

    handle = each_batch(partial(pipeline, out), acker=acker, url=url, message_id="id", retry=QUICK, done=done)
    for part in range(3):
        spark.range(part * 50, part * 50 + 50).write.mode("append").parquet(str(source))
        query = (
            spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(source)).writeStream
            .foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
    assert written(out) == [i for i in range(150) if i % 10 != 7]
    assert sorted(dead) == list(range(7, 150, 10))
    assert acker.stats().pending == 0


def test_a_micro_batch_that_failed_is_read_again_under_fresh_roots(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    out.mkdir()
    spark.range(40).write.parquet(str(source))
    failures = iter([True, False])

    def done(batch: DataFrame, spout: Spout) -> None:
        if next(failures):
            raise OSError("on purpose")

    for shuffle_partitions in (3, 5):
        handle = each_batch(partial(shuffled, out), acker=acker, url=url, message_id="id", retry=QUICK, done=done)
        spark.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)
        query = (
            spark.readStream.schema("id bigint").parquet(str(source)).writeStream
            .foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            .start()
        )  # fmt: skip
        try:
            query.awaitTermination()
        except Exception as exc:
            assert "on purpose" in str(exc)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    assert written(out) == sorted([*range(40), *range(40)])
    stats = acker.stats()
    assert (stats.acked, stats.pending, stats.unowned, stats.duplicate_inits) == (80, 0, 0, 0)


def shuffled(folder: Path, tracker: Tracker, messages: DataFrame) -> None:
    groups = tracker.group(messages, "id", [F.count("*").alias("n")], name="group").drop("n")
    name = f"{uuid.uuid4().hex}-{tracker.emission}"
    tracker.sink(groups, partial(write_ids, folder, name), name="save")


def test_a_mistake_that_shows_in_a_worker_ends_the_run_at_once(spark: Any, url: str, acker: Acker) -> None:
    emissions: list[int] = []

    def wrong_columns(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        tracker.sink(tracker.bolt(messages, all_of_them, "id bigint, item string", name="x"), consume, name="save")

    with pytest.raises(BadBatchError, match=r"bolt 'x': rows have columns \['id'\]"):
        run_tracked(spark.range(5), wrong_columns, acker=acker, url=url, message_id="id")
    assert emissions == [0]


def all_of_them(batch: pa.RecordBatch) -> Emitted:
    return Emitted(batch, np.arange(batch.num_rows))


def two_sinks(folder: Path, fail: str, tracker: Tracker, messages: DataFrame) -> None:
    to_files, to_source = tracker.fan_out(messages, "files", "source")
    tracker.sink(to_files, partial(write_ids, folder, f"{tracker.run_id}-{tracker.emission}"), name="files")
    tracker.save(to_source, RowsToFiles, name="source", on_error="fail", folder=str(folder), fail=fail)


def test_a_data_source_is_a_sink_of_a_run(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    messages = spark.range(40).selectExpr("nullif(id, -1) AS id")
    spout = run_tracked(messages, partial(two_sinks, tmp_path, ""), acker=acker, url=url, message_id="id")
    assert (spout.counts.acked, spout.counts.emitted, spout.counts.lost) == (40, 40, 0)
    assert written(tmp_path) == list(range(40))
    assert (tmp_path / "committed").read_text() == "40"


def test_a_data_source_that_fails_once_is_a_sink_of_micro_batches(
    spark: Any, url: str, acker: Acker, tmp_path: Path
) -> None:
    spark.range(40).write.parquet(str(tmp_path / "in"))
    pipeline = partial(two_sinks, tmp_path, "first commit")
    spouts: list[Spout] = []
    handle = each_batch(pipeline, acker=acker, url=url, message_id="id", done=lambda batch, spout: spouts.append(spout))
    (
        spark.readStream.schema("id bigint").parquet(str(tmp_path / "in")).writeStream
        .foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        .start().awaitTermination()
    )  # fmt: skip
    assert [(s.counts.acked, s.counts.failed, s.counts.lost, s.counts.dead_lettered) for s in spouts] == [
        (40, 40, 0, 0)
    ]
    assert (tmp_path / "aborted").read_text() == (tmp_path / "committed").read_text() == "40"


def test_rows_that_no_sink_takes_are_told_at_once(spark: Any, url: str, acker: Acker) -> None:
    def a_branch_without_sink(tracker: Tracker, messages: DataFrame) -> None:
        left, right = tracker.fan_out(messages, "left", "right")
        tracker.sink(left, consume, name="save")
        tracker.filter(right, "id > 1", name="high")

    with pytest.raises(NotExactError, match=r"rows of 'high', so .* end each way"):
        run_tracked(spark.range(5), a_branch_without_sink, acker=acker, url=url, message_id="id")
    with pytest.raises(NotExactError, match="rows of 'spout', so"):
        run_tracked(spark.range(5), lambda tracker, messages: None, acker=acker, url=url, message_id="id")


def test_rows_that_are_handed_over_need_no_sink(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    def hand_over(tracker: Tracker, messages: DataFrame) -> None:
        tracker.hand_over(messages, name="out").write.parquet(str(tmp_path / "out"))
        other = Tracker(url, acker.config, run_id=f"other-{tracker.run_id}", emission=0)
        other.sink(other.take_over(spark.read.parquet(str(tmp_path / "out")), name="in"), consume, name="save")

    assert run_tracked(spark.range(5), hand_over, acker=acker, url=url, message_id="id").counts.acked == 5


def test_messages_that_have_other_ids_when_they_are_read_again_are_told_at_once(
    spark: Any, url: str, acker: Acker
) -> None:
    def drain(tracker: Tracker, messages: DataFrame) -> None:
        tracker.sink(messages, consume, name="save")

    messages = spark.range(5).selectExpr("id + unix_micros(current_timestamp()) AS id")
    with pytest.raises(NotExactError, match=r"none of the 5 messages .* persist\(\) or write the messages"):
        run_tracked(messages, drain, acker=acker, url=url, message_id="id")


def test_a_run_id_serves_one_run(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    def run() -> Spout:
        return run_tracked(
            spark.range(5), partial(pipeline, tmp_path), acker=acker, url=url, message_id="id", run_id="monday"
        )

    assert run().counts.acked == 5
    with pytest.raises(BadConfigError, match="'monday' was used by an earlier run"):
        run()
    assert acker.stats().inits == 5


def test_a_wrong_url_is_told_before_anything_is_emitted(
    spark: Any, url: str, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(wrong: str) -> None:
        run_tracked(spark.range(5), partial(plain, Path()), acker=acker, url=wrong, message_id="id")

    with pytest.raises(BadConfigError, match=r"Spark's workers can't use it: 'redis:/127.0.0.1' is no Redis URL"):
        run("redis:/127.0.0.1")
    with pytest.raises(BadConfigError, match=r"leads Spark's workers to another server or database than `acker`"):
        run(url.removesuffix("/0") + "/1")
    monkeypatch.setattr(reach, "_runs_here", lambda session: False)  # as on a cluster: an executor is asked
    with pytest.raises(BadConfigError, match=r"the executors can't use it: redis://127.0.0.1:1/0 can't be reached"):
        run("redis://127.0.0.1:1/0")
    assert acker.stats().inits == 0


def test_names_of_columns_may_hold_dots_and_backticks(spark: Any, url: str, acker: Acker, tmp_path: Path) -> None:
    messages = spark.createDataFrame([("a", i, f"k{i}") for i in range(6)], "`p.q` string, `o``r` bigint, `k.1` string")
    prices = spark.createDataFrame([("k1", 3), ("k2", 4)], "`k.1` string, `pr.ice` int")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail(messages, "`o``r` = 3", "three", name="fail")
        priced = tracker.join(good, prices, on="k.1", name="price", how="left")
        left, right = tracker.fan_out(priced, "left", "right")
        keys = tracker.explode(right, "array(struct(`k.1`, `o``r` AS `x.y`))", name="keys")
        both = tracker.join(left, keys, on="k.1", name="join")
        total = tracker.group(both, ["p.q", "k.1"], [F.sum("`pr.ice`").alias("to.tal")], name="total")
        taken = tracker.take_over(tracker.hand_over(total, name="out", column="an.chors"), name="in", column="an.chors")
        tracker.write(taken, lambda rows: rows.write.parquet(str(tmp_path / str(tracker.emission))), name="save")

    spout = run_tracked(
        messages, pipeline, acker=acker, url=url, partition="p.q", offset="o`r", retry=RetryPolicy(max_attempts=2),
        offsets=Offsets(tmp_path / "progress.json"), payload_bytes=100, keep_payload=True,
    )  # fmt: skip
    (letter,) = acker.dead_letters.read()
    assert b'"k.1":"k3"' in (letter.payload or b"")
    assert (spout.counts.acked, spout.counts.lost) == (5, 0)
    assert Counter(row["to.tal"] for row in pq.read_table(tmp_path / "0").to_pylist()) == {3: 1, 4: 1, None: 3}
    later = run_tracked(
        messages,
        pipeline,
        acker=acker,
        url=url,
        partition="p.q",
        offset="o`r",
        offsets=Offsets(tmp_path / "progress.json"),
    )
    assert later.counts.emitted == 0


@pytest.mark.parametrize("payload_bytes", [-1, MAX_PAYLOAD_BYTES + 1])
def test_a_limit_for_payloads_that_can_not_be_kept_is_refused_before_anything_runs(payload_bytes: int) -> None:
    nothing: Any = None
    with pytest.raises(BadConfigError, match=f"payload_bytes={payload_bytes}"):
        run_tracked(nothing, nothing, acker=nothing, url="", payload_bytes=payload_bytes)
