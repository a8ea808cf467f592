"""Messages whose ids are learned from the job that processes them: the outcomes are those of ids that were read first."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, AckerError, RetryPolicy, RowFailedError
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.errors import StoppedError
from acker_redis.model.arrays import Int64Array
from acker_redis.ops.dashboard import app_states
from acker_redis.spark import Tracker, run_tracked
from acker_redis.spark.emission.messages import RunMessages
from acker_redis.spark.runtime.jobs import reading_ids
from acker_redis.spout.loop import SpoutLoop
from tests.support.spark import parquet
from tests.support.spark.cases import CONFIG, consume

pytestmark = [pytest.mark.spark, pytest.mark.classic("a client can't see the plan that ran")]

MANY = 10**9
"""A bound that no test reaches. A run with a bound reads the ids first."""

COUNT = 200

Change = Callable[[Any, DataFrame], DataFrame]
"""A function of the session and tracked rows."""


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of ids that each job for ids alone has read."""
    found: list[int] = []
    read = RunMessages.read_ids

    def noted(self: RunMessages, *args: Any) -> Int64Array:
        ids = read(self, *args)
        found.append(len(ids))
        return ids

    monkeypatch.setattr(RunMessages, "read_ids", noted)
    return found


class Ended(NamedTuple):
    """How a run ended."""

    error: str
    acked: int
    letters: set[tuple[Any, ...]]
    rows: list[tuple[Any, ...]]
    counters: dict[str, int]


def end(
    messages: DataFrame, pipeline: Callable[[Tracker, DataFrame], object], acker: Acker, folder: Path, **options: Any
) -> Ended:
    """Run a pipeline to its end, and read its output."""
    before = acker.stats()
    error, acked, letters = "", 0, set()
    try:
        result = run_tracked(
            messages, pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=2, first_delay_secs=0), **options
        )
        acked = result.counts.acked
        letters = {
            (i, one.reason, one.last_component, one.detail, one.attempts) for i, one in result.dead_letters.items()
        }
    except Exception as exc:
        error = f"{type(exc).__name__}: {exc}"
    after = acker.stats()
    assert after.pending == 0
    names = ("inits", "acked", "failed", "timed_out", "orphaned", "duplicate_inits")
    rows = []
    if any(folder.glob("*.parquet")):
        rows = sorted(parquet.rows(folder), key=str)
    return Ended(error, acked, letters, rows, {name: getattr(after, name) - getattr(before, name) for name in names})


def into(folder: Path, change: Change) -> Callable[[Tracker, DataFrame], object]:
    """Return a pipeline that writes changed rows."""

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        changed = change(rows.sparkSession, rows)
        tracker.write(changed, lambda writer: writer.mode("append").parquet(str(folder)))

    return pipeline


def both(messages: DataFrame, change: Change, acker: Acker, tmp_path: Path) -> Ended:
    """Run a pipeline without and with ids that were read first, and return how both ended."""
    late, early = (
        end(messages, into(tmp_path / name, change), acker, tmp_path / name, **options)
        for name, options in (("late", {}), ("early", {"max_spout_pending": MANY}))
    )
    assert late == early
    return late


def foreign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes the first batch only."""
    yield next(batches)


def first(rows: DataFrame, count: int) -> DataFrame:
    return rows.coalesce(1).limit(count)


def subquery(session: Any, rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("tracked")
    least = "SELECT min(id) FROM (SELECT id FROM tracked LIMIT 3)"
    changed: DataFrame = session.sql(f"SELECT * FROM tracked WHERE id >= ({least})")
    return changed


def other(session: Any, rows: str) -> DataFrame:
    return F.broadcast(session.range(COUNT).where(rows).select(F.col("id").alias("other")))


def beside(session: Any, rows: DataFrame, wanted: str, how: str) -> DataFrame:
    return rows.join(other(session, wanted), F.col("id") == F.col("other"), how)


NOT_DRAINED: dict[str, Change] = {
    "limit": lambda session, rows: first(rows, 5),
    "limit of all": lambda session, rows: first(rows, COUNT),
    "offset": lambda session, rows: rows.offset(3),
    "sample of all": lambda session, rows: rows.sample(False, 1.0, 3),
    "semi-join": lambda session, rows: beside(session, rows, "id < 100", "left_semi"),
    "join with nothing": lambda session, rows: beside(session, rows, "id < 0", "inner"),
    "side without matches": lambda session, rows: beside(session, rows, "id < 9", "right_outer"),
    "foreign Python": lambda session, rows: rows.mapInArrow(foreign, rows.schema),
    "subquery": subquery,
    "cache": lambda session, rows: rows.cache(),
    "cache beside the source": lambda session, rows: rows.where("id < 0").union(
        rows.where("id >= 0").cache().repartition(2)
    ),
}


def with_and_without_adaptive_plans(names: Iterable[str], also_without: Iterable[str]) -> list[tuple[str, str]]:
    return [*((name, "true") for name in names), *((name, "false") for name in also_without)]


@pytest.fixture
def adaptive(spark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    yield
    spark.conf.set("spark.sql.adaptive.enabled", before)


@pytest.mark.parametrize(
    ("name", "adaptive"),
    with_and_without_adaptive_plans(NOT_DRAINED, ["limit", "join with nothing"]),
    indirect=["adaptive"],
)
def test_plan_that_may_stop_early_reads_ids(
    spark: Any, acker: Acker, tmp_path: Path, reads: list[int], name: str, adaptive: None
) -> None:
    ended = both(spark.range(COUNT), NOT_DRAINED[name], acker, tmp_path)
    spark.catalog.clearCache()
    assert reads == [COUNT] * 2
    assert ended.acked in (0, COUNT) and bool(ended.error) == (not ended.acked)


DRAINED: dict[str, Change] = {
    "nothing": lambda session, rows: rows,
    "preserved side": lambda session, rows: beside(session, rows, "id < 0", "left_outer"),
    "preserved side of a shuffle": lambda session, rows: rows.join(
        session.range(9).select(F.col("id").alias("other")).hint("shuffle_hash"), F.col("id") == F.col("other"), "left"
    ),
    "sort": lambda session, rows: rows.orderBy(F.col("id") % 7),
    "shuffle": lambda session, rows: rows.repartition(3, "id"),
}


@pytest.mark.parametrize(
    ("name", "adaptive"),
    with_and_without_adaptive_plans(DRAINED, ["preserved side of a shuffle"]),
    indirect=["adaptive"],
)
def test_plan_that_reads_its_source_tells_the_ids(
    spark: Any, acker: Acker, tmp_path: Path, reads: list[int], name: str, adaptive: None
) -> None:
    ended = both(spark.range(7, 7 + COUNT), DRAINED[name], acker, tmp_path)
    assert reads == [COUNT]
    assert (ended.error, ended.acked, len(ended.rows)) == ("", COUNT, COUNT)
    assert ended.counters["inits"] == ended.counters["acked"] == COUNT


SOURCES: dict[str, tuple[str, int]] = {
    "gap": (f"explode(sequence(0, {COUNT})) AS id", COUNT + 1),
    "null": ("explode(array(1, 2, null)) AS id", 0),
    "repeat": ("explode(array(1, 2, 2, 3)) AS id", 0),
    "repeat in place of another": ("explode(array(1, 2, 2, 4)) AS id", 0),
    "none": ("explode(cast(array() AS array<bigint>)) AS id", 0),
    "negative": ("explode(sequence(-40, 3)) AS id", 44),
    "as far as numbers go": ("explode(array(-9223372036854775808, 9223372036854775807)) AS id", 2),
}


@pytest.mark.parametrize("name", SOURCES)
def test_ids_of_any_kind_end_as_if_read_first(
    spark: Any, acker: Acker, tmp_path: Path, reads: list[int], name: str
) -> None:
    source, acked = SOURCES[name]
    messages = spark.range(1).selectExpr(source)
    if name == "gap":
        messages, acked = messages.where("id <> 5"), acked - 1
    late, early = (
        end(messages, into(tmp_path / key, lambda session, rows: rows), acker, tmp_path / key, **options)
        for key, options in (("late", {}), ("early", {"max_spout_pending": MANY}))
    )
    refused = name in ("null", "repeat", "repeat in place of another")
    assert late == (early._replace(rows=late.rows) if refused else early)  # they are written before they are refused
    ended = late
    assert ended.acked == acked
    assert bool(ended.error) == refused
    assert ended.counters["inits"] == acked


def fails_some(row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 50 == 3:
        raise RowFailedError(f"no {row['id']}", retry=row["id"] != 53)
    return [(row["id"],)] * (row["id"] % 3)


def failing(folder: Path, tracker: Tracker, rows: DataFrame) -> None:
    changed = tracker.flat_map(tracker.filter(rows, "id <> 4"), fails_some, "id bigint")
    twice = tracker.union_by_name(changed, changed, rows)
    tracker.write(twice.repartition(2), lambda writer: writer.mode("append").parquet(str(folder)))
    tracker.write_partitions(rows, consume)


def test_failed_rows_end_as_if_ids_were_read_first(spark: Any, acker: Acker, tmp_path: Path, reads: list[int]) -> None:
    late, early = (
        end(spark.range(COUNT), partial(failing, tmp_path / name), acker, tmp_path / name, **options)
        for name, options in (("late", {}), ("early", {"max_spout_pending": MANY}))
    )
    assert reads == [COUNT]
    assert late == early
    assert (late.acked, len(late.letters)) == (COUNT - 4, 4)
    assert {letter[4] for letter in late.letters} == {1, 2}


@pytest.mark.parametrize(("source", "is_range"), [("id >= 0", True), ("id <> 5", False)])
def test_sinks_in_several_threads_learn_the_same_ids(
    spark: Any, acker: Acker, reads: list[int], source: str, is_range: bool
) -> None:
    """All sinks have the rows of the source before the first of them is proven."""
    together = Barrier(3, timeout=60)

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        learn = tracker._proof._learn

        def learn_together(executions: Any) -> None:
            together.wait()
            learn(executions)

        tracker._proof._learn = learn_together  # type: ignore[method-assign]

        def consume_in(name: str) -> None:
            tracker.write_partitions(rows, consume, name=name)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(inheritable_thread_target(spark)(consume_in), ["a", "b", "c"]))

    counts = run_tracked(spark.range(COUNT).where(source), pipeline, acker=acker, ids="id").counts
    expected = COUNT if is_range else COUNT - 1
    assert (counts.emitted, counts.acked, len(reads)) == (expected, expected, 0 if is_range else 1)


def test_exported_roots_are_initialised_before_their_job(
    spark: Any, acker: Acker, tmp_path: Path, reads: list[int]
) -> None:
    seen = []

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.export(rows, lambda writer: writer.parquet(str(tmp_path / "out")))
        seen.append(acker.stats().pending)
        raise RuntimeError("their acks would come from elsewhere")

    with pytest.raises(RuntimeError):
        run_tracked(spark.range(20), pipeline, acker=acker, ids="id")
    assert (seen, reads) == ([20], [20])


def test_age_of_a_message_counts_from_the_beginning_of_its_emission(
    spark: Any, acker: Acker, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[int] = []
    ledger = app_of(acker).ledger
    settle = ledger.settle

    def noted(roots: Any, vals: Any, spout_id: int, age_ms: int, idempotency_key: str) -> Any:
        ages.append(age_ms)
        return settle(roots, vals, spout_id, age_ms + 60_000, idempotency_key)

    monkeypatch.setattr(ledger, "settle", noted)
    result = run_tracked(
        spark.range(COUNT), lambda tracker, rows: tracker.write_partitions(rows, consume), acker=acker, ids="id"
    )
    assert (result.counts.acked, reads) == (COUNT, [])
    assert len(ages) == 1 and 0 < ages[0] < 600_000


def test_roots_of_blocks_that_exist_are_initialised_and_acked(
    spark: Any, acker: Acker, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    ledger = app_of(acker).ledger
    settle = ledger.settle

    def noted(*args: Any) -> Any:
        roots = settle(*args)
        refused.append(len(roots))
        return roots

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)
        last = rows.where("id = 40").select(F.expr("get(_roots, 0)")).toArrow().column(0).to_numpy()
        acker.ack_many(last ^ np.int64(1 << 59), np.ones(1, np.int64))  # of message 41, which isn't there

    monkeypatch.setattr(ledger, "settle", noted)
    result = run_tracked(spark.range(41), pipeline, acker=acker, ids="id")
    assert (result.counts.acked, reads) == (41, [])
    assert sum(refused) >= 9  # the call of a shard has one block, or both
    assert acker.stats().unowned == 1


def test_run_that_ends_before_its_first_emission_begins_runs_nothing(
    spark: Any, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emission's thread is late. Meanwhile the loop has an error."""
    is_over = Event()
    ran: list[StoppedError | None] = []
    end_emission = SpoutLoop._end_emission

    def end(self: SpoutLoop, error: BaseException | None) -> None:
        self._state.unread = False
        is_over.set()
        end_emission(self, error)

    def late(session: Any) -> Callable[[Callable[..., object]], Callable[..., object]]:
        def wrapped(emit: Callable[..., object]) -> Callable[..., object]:
            def call(emission: Any) -> None:
                assert is_over.wait(60)
                try:
                    emit(emission)
                except StoppedError as exc:
                    ran.append(exc)
                    raise

            return call

        return wrapped

    def progress(_: Any) -> None:
        raise ValueError("at once")

    monkeypatch.setattr(SpoutLoop, "_end_emission", end)
    monkeypatch.setattr("acker_redis.spark.runs.dataframe.inheritable_thread_target", late)
    with pytest.raises(ValueError, match="at once"):
        run_tracked(spark.range(COUNT), lambda *_: ran.append(None), acker=acker, ids="id", progress=progress)
    assert [type(one) for one in ran] == [StoppedError]


class Hangs:
    """Reads rows once, then never again."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "read"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows, or wait."""
        if self.mark.exists():
            time.sleep(600)
        yield from batches
        self.mark.touch()


def test_read_of_ids_has_the_time_limit_of_an_emission(
    spark: Any, acker: Acker, tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job before it has the same limit, which it must not reach, however long it takes."""
    limits: list[float | None] = []

    def soon(session: Any, key: str, timeout_secs: float | None) -> Any:
        limits.append(timeout_secs)
        return reading_ids(session, key, 2)

    monkeypatch.setattr("acker_redis.spark.emission.late_messages.reading_ids", soon)
    source = spark.range(0, COUNT, 1, 1).mapInArrow(Hangs(tmp_path), "id bigint").where("id <> 5")

    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)

    with pytest.raises(AckerError, match="the read of message ids took longer than emit_timeout_secs=2"):
        run_tracked(source, pipeline, acker=acker, ids="id", emit_timeout_secs=300)
    assert limits == [300]
    assert (tmp_path / "read").exists() and reads == []
    assert acker.stats().inits == 0


def test_dashboard_shows_an_emission_without_a_count(spark: Any, acker: Acker, url: str, reads: list[int]) -> None:
    shown: list[Any] = []
    with closing(Client(url)) as client:

        def pipeline(tracker: Tracker, rows: DataFrame) -> None:
            shown.append(app_states(client, CONFIG.app)[0])
            tracker.write_partitions(rows, consume)
            shown.append(app_states(client, CONFIG.app)[0])

        run_tracked(spark.range(COUNT), pipeline, acker=acker, ids="id", run_id="counted-later")
    before, after = shown
    (begun,) = before.uncounted
    assert (begun.run_id, begun.emission, begun.job) == ("counted-later", 0, f"acker:{CONFIG.app}:counted-later:0")
    assert begun.since_ms > 0 and before.pending == 0
    assert after.uncounted == [] and reads == []


def test_driver_that_ends_before_its_roots_settle_leaves_none(
    spark: Any, acker: Acker, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_partitions(rows, consume)

    def ends(*args: Any) -> Any:
        raise RuntimeError("the driver ends")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="the driver ends"):
        patched.setattr(app_of(acker).ledger, "settle", ends)
        run_tracked(spark.range(COUNT), pipeline, acker=acker, ids="id")
    assert acker.stats().pending == 0
    assert run_tracked(spark.range(COUNT), pipeline, acker=acker, ids="id").counts.acked == COUNT
    assert reads == []
