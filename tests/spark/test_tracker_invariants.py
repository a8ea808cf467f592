"""What a tracked pipeline must be right about whatever Spark does with it: each outcome against what is in the sinks.

No false completion, no dead letter whose rows were all written, one outcome per root (`Ended.check`).
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from acker_redis import AckerError, InexactPipelineError, PipelineError, UnprovenEmissionError
from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import CHILD, IDS, Case, MakeCase, Row, by_message
from tests.support.spark.faults import fan_out, kill_self, once, raise_error
from tests.support.spark.versions import COUNTS_ONCE, VIEWS_OVER_CONNECT

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
TWICE = "array(struct(id, 0 AS child), struct(id, 1 AS child))"


def two(id: int) -> list[Row]:
    return [(id, 0), (id, 1)]


def same(batch: pa.RecordBatch) -> FlatMapOutput:
    return FlatMapOutput(batch.select(["id"]), np.arange(batch.num_rows))


def is_bad(row: Row) -> bool:
    return bool(row[0] % 8 == 1 and row[-1] % 2 == 1)


def write_some(run: Case, tracker: Tracker, rows: DataFrame) -> None:
    """Into files; a partition with a bad row can't be written, and bad rows are in partitions of their own."""
    first, *_, last = (F.col(column) for column in rows.columns if column not in TRACKING)
    spread = rows.repartition(8, (first % 8 == 1) & (last % 2 == 1))
    tracker.write_partitions(spread, run.partition_files(tracker, is_bad), on_error="fail")


KEYS = {
    "bigint": ("id div 4", "IF(id % 2 = 0, '', '0') || cast((id - 40) div 4 AS string)"),
    "date": (
        "date_add(date'2026-01-01', cast(id div 4 AS int))",
        "IF(id % 2 = 0, '2026-01-', '2026-1-') || cast(1 + (id - 40) div 4 AS string)",
    ),
}
"""Of ids below 40 and of those from 40 on: of two types, and more texts than Spark tells apart when it compares."""


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("other_side", ["tracked", "table"])
def test_join_of_mixed_key_types_with_failed_writes_is_exact(case: MakeCase, kind: str, other_side: str) -> None:
    run = case(n=80)
    left_key, right_key = KEYS[kind]
    left = run.messages.where("id < 40").selectExpr("id", f"{left_key} AS key")
    right = run.messages.where("id >= 40").selectExpr("id AS other", f"{right_key} AS key")
    truth = [tuple(row) for row in left.join(right, "key").select("id", "other").collect()]
    assert len(truth) == 160

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        if other_side == "table":
            joined = tracker.join(messages, right, "key")
        else:
            lower = tracker.filter(messages, "id < 40").withColumn("key", F.expr(left_key))
            upper = tracker.filter(messages, "id >= 40").withColumn("key", F.expr(right_key))
            joined = tracker.join(lower, upper.withColumnRenamed("id", "other"), "key", partial=True)
        write_some(run, tracker, joined.select("id", "other", *TRACKING))

    ended = run.done(pipeline, left if other_side == "table" else None, retry=ONCE)
    ended.check(by_message(truth, 0, 1) if other_side == "tracked" else by_message(truth), run.written(name="rows"))
    bad = {message for row in truth if is_bad(row) for message in (row if other_side == "tracked" else row[:1])}
    assert set(ended.letters) == bad
    assert len(ended.acked) == (80 if other_side == "tracked" else 40) - len(bad) > 0


@pytest.mark.parametrize(
    "generate",
    [
        lambda tracker, rows: tracker.explode(rows, F.explode(F.array(F.array("id"), F.array("id", F.lit(9))))),
        lambda tracker, rows: tracker.explode(rows, "explode(array(array(id), array(id)))"),
        lambda tracker, rows: tracker.group_by(
            rows, F.explode(F.array("id", F.lit(5))), F.count("*").alias("value"), partial=True
        ),
        lambda tracker, rows: tracker.group_by(rows, "id", F.max(F.explode(F.array("id", F.lit(5)))).alias("value")),
        lambda tracker, rows: tracker.filter(rows, "explode(array(true, true))"),
    ],
)
def test_generator_in_an_operator_expression_acks_nothing(
    case: MakeCase, generate: Callable[[Tracker, DataFrame], DataFrame]
) -> None:
    run = case(n=20)
    ended = run.run(lambda tracker, rows: tracker.write(generate(tracker, rows), run.append()), retry=ONCE)
    assert isinstance(ended.error, (AckerError, AnalysisException))
    assert (ended.acked, ended.letters) == (set(), {})


def local_checkpoint(run: Case, frame: DataFrame, name: str) -> DataFrame:
    return frame.localCheckpoint()


def reliable_checkpoint(run: Case, frame: DataFrame, name: str) -> DataFrame:
    return frame.checkpoint()


def through_parquet(run: Case, frame: DataFrame, name: str) -> DataFrame:
    path = str(run.folder / f"through-{name}")
    frame.write.mode("overwrite").parquet(path)  # over Spark Connect, the pipeline runs twice
    return frame.sparkSession.read.parquet(path)


def through_a_table(run: Case, frame: DataFrame, name: str) -> DataFrame:
    table = f"through_{run.folder.parent.name.replace('-', '_')}_{name}"
    frame.write.mode("overwrite").saveAsTable(table)
    return frame.sparkSession.table(table)


def exploded(run: Case, tracker: Tracker, rows: DataFrame) -> DataFrame:
    return tracker.explode(rows, TWICE)


def joined(run: Case, tracker: Tracker, rows: DataFrame) -> DataFrame:
    table = run.spark.range(2).selectExpr("cast(id AS int) AS child", "true AS yes")
    return tracker.join(rows.withColumn("yes", F.lit(True)), table, "yes").select("id", "child", *TRACKING)


def united(run: Case, tracker: Tracker, rows: DataFrame) -> DataFrame:
    return tracker.union_by_name(*(rows.withColumn("child", F.lit(child)) for child in range(2)))


@pytest.mark.parametrize("through", [local_checkpoint, reliable_checkpoint, through_parquet, through_a_table])
@pytest.mark.parametrize("shape", [exploded, joined, united])
def test_stored_rows_with_failed_writes_are_exact_or_refused(
    case: MakeCase,
    through: Callable[[Case, DataFrame, str], DataFrame],
    shape: Callable[[Case, Tracker, DataFrame], DataFrame],
) -> None:
    """Exact, or refused because what was dropped isn't known any more; never acked with rows unwritten.

    What isn't known is a mistake in a classic session, and tried again over Spark Connect until the run ends.
    """
    for lossy in (False, True):
        run = case(n=24)
        ended = run.run(partial(through_and_written, run, through, shape, lossy), retry=ONCE)
        ended.check({id: two(id) for id in range(24)}, run.written(name="rows"))
        if lossy or ended.error is not None:
            assert ended.error is not None
            why = ended.error.__cause__ or ended.error
            assert isinstance(
                why, (InexactPipelineError, UnprovenEmissionError) if is_connect(run.spark) else InexactPipelineError
            )
            assert not ended.notified
        else:
            assert set(ended.letters) == {1, 9, 17}


def through_and_written(
    run: Case,
    through: Callable[[Case, DataFrame, str], DataFrame],
    shape: Callable[[Case, Tracker, DataFrame], DataFrame],
    lossy: bool,
    tracker: Tracker,
    messages: DataFrame,
) -> None:
    rows = through(run, shape(run, tracker, messages), shape.__name__)
    write_some(run, tracker, rows.where("id <> 3 OR child <> 1") if lossy else rows)


def test_checkpointed_rows_with_failed_writes_are_exact(case: MakeCase) -> None:
    run = case(n=24)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        some = tracker.filter(messages, "id % 5 > 0")
        kept = tracker.local_checkpoint(tracker.explode(tracker.flat_map_arrow(some, same, IDS), TWICE))
        write_some(run, tracker, tracker.checkpoint(tracker.filter(kept, "id <> 7")))

    ended = run.done(pipeline, retry=ONCE)
    ended.check({id: two(id) if id % 5 and id != 7 else [] for id in range(24)}, run.written(name="rows"))
    assert set(ended.letters) == {1, 9, 17}


def test_frame_with_two_sinks_is_acked_after_both_write(case: MakeCase) -> None:
    run = case(n=40)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, partial(fan_out, 2), CHILD)
        tracker.write(tracker.filter(derived, "child = 0"), run.append())
        write_some(run, tracker, tracker.filter(derived, "child = 1"))

    ended = run.done(pipeline, retry=ONCE)
    ended.check({id: two(id) if id else [] for id in range(40)}, [*run.written(), *run.written(name="rows")])
    assert set(ended.letters) == set(range(1, 40, 8))


@pytest.mark.parametrize("second", ["raises", "writes"])
def test_two_sinks_of_the_same_name_complete_nothing(case: MakeCase, second: str) -> None:
    run = case(n=10)

    def unwritable(writer: DataFrameWriter) -> None:
        raise OSError("disk full")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append(), name="save")
        tracker.write(messages, unwritable if second == "raises" else run.append("other"), name="save")

    assert "Use a different name for each" in run.refused(pipeline, PipelineError)


def test_second_sink_raising_completes_nothing(case: MakeCase) -> None:
    run = case(n=10)

    def unwritable(writer: DataFrameWriter) -> None:
        raise OSError("disk full")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append())
        tracker.write(messages, unwritable)

    ended = run.run(pipeline, retry=ONCE)
    assert isinstance(ended.error, OSError)
    assert (ended.acked, ended.letters) == (set(), {})

    def swallowing(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append())
        with contextlib.suppress(OSError):
            tracker.write(messages, unwritable)

    assert "'write-2' ended with an error that the pipeline caught" in case(n=10).refused(
        swallowing, InexactPipelineError
    )


@pytest.mark.parametrize(
    "again",
    [
        lambda tracker, rows: tracker.flat_map_arrow(rows, partial(fan_out, 2), CHILD, name="x"),
        lambda tracker, rows: tracker.flat_map_arrow(rows, same, IDS, name="x"),
        lambda tracker, rows: tracker.filter(rows, "true", name="x"),
    ],
)
def test_operators_with_the_same_name_are_refused(
    case: MakeCase, again: Callable[[Tracker, DataFrame], DataFrame]
) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.flat_map_arrow(messages, partial(fan_out, 2), CHILD, name="x"), run.append())
        tracker.write(again(tracker, messages), run.append())

    assert "'x'" in run.refused(pipeline, PipelineError)


def drawn(batch: pa.RecordBatch) -> FlatMapOutput:
    """Zero to two children, drawn anew each time."""
    ids = batch.column("id").to_numpy()
    counts = np.random.default_rng().integers(0, 3, len(ids))
    parents = np.repeat(np.arange(len(ids)), counts)
    places = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
    of = counts[parents]
    return FlatMapOutput(pa.record_batch({"id": ids[parents], "child": places, "of": of}), parents)


@pytest.mark.parametrize(
    "lost", ["between", pytest.param("within", marks=pytest.mark.classic("only a JVM drops single blocks"))]
)
def test_lost_cached_random_rows_never_mix_two_draws(case: MakeCase, lost: str) -> None:
    """Each sink has all rows of one drawing of each message."""
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, drawn, "id bigint, child bigint, of bigint").cache()
        derived.count()
        tracker.write(derived, run.append())
        if lost == "between":
            derived.unpersist(blocking=True)
        else:  # the blocks only: what Spark has cached is computed anew, partition by partition
            for rdd in run.spark.sparkContext._jsc.getPersistentRDDs().values():
                rdd.unpersist(True)
        tracker.write(derived, run.append("again"))

    ended = run.run(pipeline, retry=ONCE)
    why = ended.error and (ended.error.__cause__ or ended.error)
    assert why is None or isinstance(why, (InexactPipelineError, UnprovenEmissionError)), why
    for name in ("out", "again"):
        for id, rows in by_message(run.written("id", "child", "of", name=name)).items():
            if id in ended.acked:
                assert sorted(rows) == [(id, child, rows[0][2]) for child in range(rows[0][2])]
    if ended.error is None:
        assert ended.acked == set(range(60))


def plain(frame: DataFrame) -> DataFrame:
    return frame


def shuffled(frame: DataFrame) -> DataFrame:
    return frame.repartition("id")


def cached(frame: DataFrame) -> DataFrame:
    return frame.cache()


def counted(frame: DataFrame) -> DataFrame:
    frame.count()
    return frame


@pytest.mark.parametrize("change", [plain, shuffled, cached, counted])
def test_union_of_two_flat_map_branches_completes(case: MakeCase, change: Callable[[DataFrame], DataFrame]) -> None:
    run = case(n=100)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        start = change(messages)
        left = tracker.flat_map_arrow(tracker.filter(start, "id % 3 > 0"), partial(fan_out, 2), CHILD, name="left")
        right = tracker.flat_map_arrow(tracker.filter(start, "id % 3 = 0"), partial(fan_out, 3), CHILD, name="right")
        tracker.write(tracker.union_by_name(change(left), change(right)), run.append())

    run.complete(pipeline)
    truth = [(id, child) for id in range(1, 100) for child in range(2 if id % 3 else 3)]
    assert sorted(run.written()) == truth


@pytest.mark.parametrize("aqe", ["true", "false"])
def test_shuffled_branches_to_two_kinds_of_sinks_complete(case: MakeCase, aqe: str) -> None:
    run = case(n=300)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages.repartition("id"), partial(fan_out, 2), CHILD)
        derived.count()
        tracker.write_partitions(tracker.filter(derived, "child = 0"), run.partition_files(tracker))
        tracker.write(tracker.filter(derived, "child = 1").repartition("child"), run.append())

    before = run.spark.conf.get("spark.sql.adaptive.enabled")
    run.spark.conf.set("spark.sql.adaptive.enabled", aqe)
    try:
        run.complete(pipeline)
    finally:
        run.spark.conf.set("spark.sql.adaptive.enabled", before)
    assert sorted([*run.written(), *run.written(name="rows")]) == [row for id in range(1, 300) for row in two(id)]


@pytest.mark.parametrize(
    "order", [lambda frame: frame.orderBy(F.desc("id")), lambda frame: frame.repartitionByRange(5, "id")]
)
def test_sorted_rows_written_to_two_sinks_complete(case: MakeCase, order: Callable[[DataFrame], DataFrame]) -> None:
    """Spark samples the rows anew for each action, and finds other ranges."""
    run = case(n=20_000)
    messages = run.messages.withColumn("text", F.expr("repeat(md5(cast(id AS string)), 10)"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        ordered = order(messages)
        ordered.count()
        derived = tracker.flat_map_arrow(ordered, same, IDS)
        tracker.write(derived, run.append())
        tracker.write_partitions(tracker.filter(derived, "id % 2 = 0"), run.partition_files(tracker))

    run.complete(pipeline, messages)
    assert sorted(run.written()) == [(id,) for id in range(20_000)]
    assert sorted(run.written(name="rows")) == [(id,) for id in range(0, 20_000, 2)]


def look(run: Case, frame: DataFrame) -> None:
    """What people do to see their rows; `test_operators` has the rest."""
    frame.show(2)
    frame.count()
    frame.collect()
    frame.toPandas()
    next(frame.toLocalIterator())
    frame.observe("mine", F.count(F.lit(1)).alias("n")).count()
    frame.createOrReplaceTempView("looked_at")
    run.spark.sql("SELECT max(id) FROM looked_at").collect()
    frame.write.mode("append").parquet(str(run.folder / "aside"))


def test_inspecting_rows_does_not_change_outcomes(case: MakeCase, capsys: pytest.CaptureFixture[str]) -> None:
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        look(run, messages)
        derived = tracker.flat_map_arrow(messages, partial(fan_out, 2), CHILD)
        look(run, derived)
        checked = tracker.fail_where(selected(derived), "id = 7 AND child = 1", "seven")
        tracker.write(checked, run.append())
        look(run, checked)

    ended = run.done(pipeline, retry=ONCE)
    ended.check({id: two(id) if id else [] for id in range(60)}, run.written())
    assert (len(ended.acked), list(ended.letters), ended.emissions) == (59, [7], 1)


def selected(rows: DataFrame) -> DataFrame:
    """The same rows by SQL from a view, where a run may read one."""
    session = rows.sparkSession
    if is_connect(session) and not VIEWS_OVER_CONNECT:
        return session.sql("SELECT * FROM {rows}", rows=rows)
    rows.createOrReplaceTempView("derived")
    return session.sql("SELECT * FROM derived")


HARMFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "where": lambda rows: rows.where("NOT (id = 7 AND child = 1)"),
    "where-of-all": lambda rows: rows.where("false"),
    "limit": lambda rows: rows.limit(20),
    "offset": lambda rows: rows.offset(1),
    "sample": lambda rows: rows.sample(0.5, 7),
    "sample-with-replacement": lambda rows: rows.sample(True, 2.0, 7),
    "dropDuplicates": lambda rows: rows.dropDuplicates(["id"]),
    "dropna": lambda rows: rows.withColumn("x", F.nullif("id", F.lit(7))).dropna(),
    "inner-join-that-drops": lambda rows: rows.join(rows.sparkSession.range(30), "id"),
    "inner-join-that-copies": lambda rows: rows.join(both(rows.sparkSession.range(60)), "id"),
    "left-semi-join": lambda rows: rows.join(rows.sparkSession.range(30), "id", "left_semi"),
    "left-anti-join": lambda rows: rows.join(rows.sparkSession.range(30), "id", "left_anti"),
    "cross-join": lambda rows: rows.crossJoin(rows.sparkSession.range(2).withColumnRenamed("id", "other")),
    "union": lambda rows: rows.union(rows),
    "union-of-a-part": lambda rows: (
        rows.where("id < 20").unionByName(rows.where("id < 20")).unionByName(rows.where("id > 39"))
    ),
    "exceptAll": lambda rows: rows.exceptAll(rows.where("id = 7")),
    "intersectAll": lambda rows: rows.intersectAll(rows.where("id <> 7")),
    "subtract": lambda rows: rows.subtract(rows.where("id = 7")),
    "explode": lambda rows: rows.withColumn("more", F.explode(F.array(F.lit(1), F.lit(2)))),
}


def both(frame: DataFrame) -> DataFrame:
    return frame.union(frame)


@pytest.mark.parametrize("kind", HARMFUL)
def test_untracked_row_drops_or_copies_ack_nothing(case: MakeCase, kind: str) -> None:
    run = case(n=60)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = HARMFUL[kind](tracker.explode(messages, TWICE))
        tracker.write(rows, run.append())

    text = run.refused(pipeline, InexactPipelineError)
    assert "derived from the 60 messages are missing or duplicated" in text or kind == "where-of-all"


def ordered(frame: DataFrame) -> DataFrame:
    """By an exchange of ranges, where Spark counts once below it."""
    return frame.orderBy("id") if COUNTS_ONCE else frame.repartition("id")


DROPPING: dict[str, Callable[[Tracker, DataFrame], DataFrame]] = {
    "all": lambda tracker, rows: tracker.filter(rows, "id < 0"),
    "a constant": lambda tracker, rows: tracker.filter(rows, "false"),
    "null": lambda tracker, rows: tracker.filter(rows, "cast(NULL AS boolean)"),
    "all, behind a shuffle": lambda tracker, rows: tracker.filter(rows.repartition(3, "id"), "id < 0").repartition(2),
    "all, behind a group": lambda tracker, rows: tracker.filter(
        tracker.group_by(rows, "id", F.count("*").alias("n")), "n > 1"
    ),
    "rand": lambda tracker, rows: tracker.filter(rows, "rand() < 0.5").repartition(2),
    "a subquery": lambda tracker, rows: tracker.filter(rows, "id IN (SELECT id * 2 FROM range(20))"),
    "a scalar subquery": lambda tracker, rows: tracker.filter(rows, "id > (SELECT max(id) FROM range(30))"),
    "null arrays": lambda tracker, rows: tracker.explode(rows, "IF(id % 2 = 0, array(id), NULL)"),
    "null arrays only": lambda tracker, rows: tracker.explode(rows, "cast(NULL AS array<int>)").repartition(2),
    "an empty table": lambda tracker, rows: tracker.join(rows, rows.sparkSession.range(0), "id"),
    "two sides without a match": lambda tracker, rows: tracker.join(
        tracker.filter(rows, "id < 20"), tracker.filter(rows, "id >= 20").withColumn("more", F.lit(1)), "id"
    ),
    "a flat_map without children": lambda tracker, rows: tracker.flat_map_arrow(
        rows, partial(fan_out, 0), CHILD
    ).repartition(2),
    "filter, order, filter": lambda tracker, rows: tracker.filter(
        ordered(tracker.filter(rows, "id % 3 > 0")), "id > 50"
    ),
}


@pytest.mark.parametrize("kind", DROPPING)
def test_rows_dropped_by_tracked_operators_complete(case: MakeCase, kind: str) -> None:
    run = case(n=60)
    run.complete(lambda tracker, rows: tracker.write(DROPPING[kind](tracker, rows), run.append()))


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_outer_join_completes(case: MakeCase, how: str) -> None:
    run = case(n=60)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        left = tracker.filter(rows, "id < 40").withColumn("key", F.expr("nullif(id % 40, 7)"))
        right = tracker.filter(rows, "id >= 30").selectExpr("id AS other", "nullif(id - 20, 9) AS key", *TRACKING)
        tracker.write(tracker.join(left, right, "key", how, partial=True), run.append())

    run.complete(pipeline)
    left = run.messages.where("id < 40").withColumn("key", F.expr("nullif(id % 40, 7)"))
    right = run.messages.where("id >= 30").selectExpr("id AS other", "nullif(id - 20, 9) AS key")
    truth = [tuple(row) for row in left.join(right, "key", how).select("id", "other").collect()]
    assert sorted(map(str, run.written("id", "other"))) == sorted(map(str, truth))


@pytest.mark.parametrize("n", [0, 1])
def test_empty_emissions_and_partitions_complete(case: MakeCase, n: int) -> None:
    run = case(n=n, partitions=4)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages.repartition(6, "id"), partial(fan_out, 2), CHILD)
        values = tracker.explode(derived, "array(id)")
        grouped = tracker.group_by(values, "value", F.count("*").alias("n"), partial=True)
        tracker.write(tracker.join(grouped, messages.sparkSession.range(3).toDF("value"), "value"), run.append())
        tracker.write_partitions(derived, run.partition_files(tracker))

    ended = run.complete(pipeline)
    assert len(ended.acked) == n
    wrong = case(n=n)
    assert "ran no sink" in wrong.refused(lambda tracker, messages: None, InexactPipelineError)


@pytest.mark.parametrize("lags", ["before", "between"])
@pytest.mark.classic("the listener bus is that of a JVM")
def test_lagging_listener_bus_keeps_outcomes_exact(case: MakeCase, lags: str) -> None:
    """The bus is held up before and while an action runs, and let go after longer than one looks for a metric."""
    run = case(n=20)
    held, let_go = threading.Event(), threading.Event()

    class Slow:
        def onSuccess(self, name: str, execution: Any, nanos: int) -> None:
            held.set()
            let_go.wait(60)

        def onFailure(self, name: str, execution: Any, error: Any) -> None:
            pass

        class Java:
            implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    slow = Slow()
    manager = run.spark._jsparkSession.listenerManager()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        manager.register(slow)
        if lags == "before":
            messages.count()
            held.wait(60)
        timer = threading.Timer(3.0, let_go.set)
        timer.start()
        tracker.write(tracker.filter(messages, "id > 3"), run.append())
        tracker.write(tracker.filter(messages, "id <= 3"), run.append())
        timer.join()

    try:
        run.complete(pipeline)
    finally:
        let_go.set()
        manager.unregister(slow)
    assert len(run.written()) == 20


@pytest.mark.parametrize("act", [raise_error, kill_self])
def test_failed_rows_of_a_dying_task_have_a_single_outcome(case: MakeCase, act: Callable[[], None]) -> None:
    """Each failed message has one outcome, with its reason, and the others are acked."""
    run = case(n=60)
    mark = run.folder / "died"

    def fail_some(batch: pa.RecordBatch) -> FlatMapOutput:
        ids = batch.column("id").to_numpy()
        failed = {int(row): "a third" for row in np.flatnonzero(ids % 3 == 0)}
        return FlatMapOutput(batch.select(["id"]), np.arange(len(ids)), failed)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        for _ in batches:
            pass
        once(mark, act)  # what was failed before has been noted by then

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        checked = tracker.fail_where(tracker.flat_map_arrow(messages, fail_some, IDS), "id % 10 = 1", "one")
        tracker.write_partitions(checked, write)

    ended = run.done(pipeline, retry=ONCE)
    assert mark.exists()
    assert ended.reasons == {("a third", "fail_some"): 20, ("one", "fail_where"): 4}
    assert ended.acked == {id for id in range(60) if id % 3 and id % 10 != 1}


def nothing(writer: DataFrameWriter) -> None:
    """Writes nothing."""


@pytest.mark.parametrize(
    "write",
    [
        nothing,
        lambda writer: writer._rows.count(),
        lambda writer: writer._rows.collect(),
        lambda writer: writer._rows.where("id > 3").write.format("noop").mode("append").save(),
    ],
)
def test_metrics_of_another_execution_ack_nothing(case: MakeCase, write: Callable[[DataFrameWriter], object]) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, write)

    assert "the function called no method of the writer that writes" in run.refused(pipeline, InexactPipelineError)


def test_metrics_of_another_sink_or_emission_ack_nothing(case: MakeCase) -> None:
    """The first sink's frame is written again by the second's function, and rows of one emission are given to the next."""
    run = case(n=10)
    kept: list[DataFrameWriter] = []

    def keeping(writer: DataFrameWriter) -> None:
        kept.append(writer)
        writer.mode("append").parquet(run.out)

    def again(writer: DataFrameWriter) -> None:
        kept[0].format("noop").mode("append").save()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, keeping)
        tracker.write(messages, again)

    assert "the function called no method of the writer that writes" in run.refused(pipeline, InexactPipelineError)
    other = case(n=10)
    frames: list[DataFrame] = []

    def of_the_first(tracker: Tracker, messages: DataFrame) -> None:
        frames.append(messages)
        tracker.write(tracker.fail_where(frames[0], "id = 3", "three"), other.append())

    ended = other.run(of_the_first)
    assert isinstance(ended.error, PipelineError)
    assert "comes from another emission" in str(ended.error)
    assert 3 not in ended.acked


def test_null_or_duplicate_message_ids_are_refused(case: MakeCase) -> None:
    run = case(n=10)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, run.append())

    assert "repeat the id of another" in run.refused(pipeline, PipelineError, both(run.messages))
    nulls = run.messages.selectExpr("nullif(id, 3) AS id")
    assert "1 message has a null id" in run.refused(pipeline, PipelineError, nulls)
    assert run.acker.stats().inits == 0


def test_branch_without_a_sink_acks_nothing_and_is_named(case: MakeCase) -> None:
    run = case(n=10)

    def unwritten(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.filter(messages, "id > 3"), run.append())
        tracker.filter(messages, "id <= 3", name="low")

    text = run.refused(unwritten, InexactPipelineError)
    assert "did nothing with the rows of 'low'" in text
    assert "discard" in text

    def discarded(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(tracker.filter(messages, "id > 3"), run.append())
        tracker.discard(tracker.filter(messages, "id <= 3", name="low"))

    run.complete(discarded)
    assert "ran no sink" in case(n=10).refused(lambda tracker, messages: messages.count(), InexactPipelineError)


def test_discarding_all_messages_is_refused_with_the_reason(case: MakeCase) -> None:
    """No job computes them, so no operator could fail one."""
    text = case(n=10).refused(lambda tracker, messages: tracker.discard(messages), InexactPipelineError)
    assert "ran no sink" in text and "tracker.discard runs no job" in text and "pass the frame" not in text

    def compute(tracker: Tracker, messages: DataFrame) -> None:
        some = tracker.fail_where(messages, "id = 3", "refused", retry=False)
        tracker.write(some, lambda writer: writer.format("noop").mode("append").save())

    assert case(n=10).run(compute).acked == {*range(10)} - {3}
