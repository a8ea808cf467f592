"""Delta: every way to write it, whole outputs, and MERGE."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from acker_redis import Acker, AckerError, BadConfigError, LogLostError, PipelineError, RetryPolicy
from acker_redis.errors import FilesNotMovedError
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Staged
from acker_redis.spark import Once, TrackedBatches, Tracker
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.delta_tables import DeltaTables
from tests.spark.streaming.test_streams import give, start
from tests.support.jars import SPARK
from tests.support.jobs import once_job
from tests.support.spark.cases import Case, MakeCase, Row
from tests.support.spark.cluster import JOB_SECS, run_python, start_python
from tests.support.targets import (
    TRUTH,
    TWO,
    N,
    Scenario,
    Write,
    check_proven,
    check_refused,
    check_released,
    classic_only,
    run_section,
)

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",  # else each look at a table's log takes 50 tasks
}


def created(run: Case, name: str, *clauses: str) -> str:
    run.spark.sql(f"CREATE TABLE {name}(id bigint, child int) USING delta {' '.join(clauses)}")
    return name


def creates_unseen(run: Case) -> bool:
    """Whether Spark doesn't report the rows of a table that the write creates."""
    return is_connect(run.spark) and SPARK == "4.1"


def table(run: Case, name: str) -> Callable[[], Iterable[Row]]:
    return lambda: run.spark.table(name).select("id", "child").collect()


def save(tracker: Tracker, rows: DataFrame, path: str, **options: str) -> None:
    tracker.write(rows, lambda writer: writer.format("delta").mode("append").options(**options).save(path))


def saved(make: MakeCase) -> None:
    run = make(n=N)
    check_proven(
        run,
        lambda tracker, rows: save(tracker, rows, run.out),
        lambda: run.spark.read.format("delta").load(run.out).collect(),
    )
    check_refused(make(n=N), lambda tracker, rows: save(tracker, rows, run.out))


def partitioned(make: MakeCase) -> None:
    run = make(n=N)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows, lambda writer: writer.format("delta").partitionBy("child").mode("append").saveAsTable("d_parts")
        )

    if creates_unseen(run):
        assert "that the write creates or replaces ('d_parts')" in run.refused(write, PipelineError)
        assert not run.spark.catalog.tableExists("d_parts")
        created(run, "d_parts", "PARTITIONED BY (child)")
    check_proven(run, write, table(run, "d_parts"))
    check_refused(make(n=N), write)


def inserted(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_insert", "TBLPROPERTIES('delta.enableChangeDataFeed'='true')")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.mode("append").insertInto(name))

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def appended(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_append")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.append())

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def partitions_overwritten(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "d_overwrite", "PARTITIONED BY (id)")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.overwritePartitions(), allow_overwrite=True)

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def whole_replaced(make: MakeCase) -> None:
    """A whole output by `save`, by `replaceWhere` with a change data feed, and by `createOrReplace`."""
    run = make(n=N)
    name = created(run, "d_where", "TBLPROPERTIES('delta.enableChangeDataFeed'='true')")
    run.spark.sql(f"INSERT INTO {name} VALUES (3, 9), (4, 9)")

    def save_whole(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.format("delta").mode("overwrite").save(run.out))

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows,
            lambda writer: (
                writer.format("delta")
                .mode("overwrite")
                .option("replaceWhere", "id >= 0 AND child < 10")
                .saveAsTable(name)
            ),
        )
        replace(tracker, rows)

    def replace(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, "d_new", lambda writer: writer.using("delta").createOrReplace())

    check_proven(run, save_whole, lambda: run.spark.read.format("delta").load(run.out).collect(), output="whole")
    if creates_unseen(run):
        for kind in (write, replace):
            assert "that the write creates or replaces" in make(n=N).refused(kind, PipelineError, output="whole")
        assert run.spark.table(name).count() == 2
        return
    check_proven(run, write, table(run, name), output="whole")
    assert run.spark.table("d_new").count() == 2 * (N - 1)
    for kind in (save_whole, write, replace):
        check_refused(make(n=N), kind, output="whole")
    check_released(run)


def source_replaced(make: MakeCase) -> None:
    """A whole output may read what it replaces only as a fixed version."""
    run = make(n=N)
    path = run.out
    run.spark.range(2).withColumn("before", F.lit(1)).write.format("delta").save(path)

    def over(**version: str) -> Write:
        def write(tracker: Tracker, rows: DataFrame) -> None:
            before = run.spark.read.format("delta").options(**version).load(path)
            joined = tracker.join(rows, before, "id", "left").drop("before")
            overwriting = {"overwriteSchema": "true"}
            tracker.write(joined, lambda w: w.format("delta").options(**overwriting).mode("overwrite").save(path))

        return write

    assert "the output replaces" in run.refused(over(), PipelineError, output="whole")
    written = run.spark.read.format("delta")
    check_proven(make(n=N), over(versionAsOf="0"), lambda: written.load(path).collect(), output="whole")


def merged(make: MakeCase) -> None:
    """Twice: the second run finds every row there."""
    run = make(n=N)
    name = created(run, "d_merge")

    def merge(rows: DataFrame) -> None:
        same = F.expr(f"new.id = {name}.id AND new.child = {name}.child")
        merge: Any = rows.alias("new").mergeInto(name, same)
        merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_dataframe(rows, merge)

    for _ in range(2):
        check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)
    check_released(run)


def once(run: Case) -> Once:
    run.once = Once(str(run.folder / "log"), "monday")
    return run.once


def read(run: Case, path: str) -> list[Row]:
    return list(run.spark.read.format("delta").load(path).select("id", "child").collect())


def check_refused_over_connect(run: Case, write: Write) -> None:
    assert "can't be combined with Spark Connect" in run.refused(write, BadConfigError)


def accepted_once(make: MakeCase) -> None:
    """Into a table that the run makes. Another run of the same data changes nothing."""
    run = make(n=N)
    log = once(run)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda w: w.format("delta").partitionBy("id").mode("append").save(run.out))

    if is_connect(run.spark):
        check_refused_over_connect(run, write)
        return
    check_proven(run, write, lambda: read(run, run.out))
    assert list(run.spark.read.format("delta").load(run.out).inputFiles()[0].split("/")[-2].partition("=")[:2]) == [
        "id",
        "=",
    ]
    before = versions(run, run.out)
    ended = run.done(lambda tracker, rows: write(tracker, tracker.explode(rows, TWO)))
    assert (ended.acked, versions(run, run.out)) == (set(), before)
    assert not list(Path(log.location, "monday", "stage").rglob("*.parquet"))
    check_released(run)
    shutil.rmtree(log.location)
    ended = run.run(lambda tracker, rows: write(tracker, tracker.explode(rows, TWO)))
    assert isinstance(ended.error, LogLostError), ended
    assert "whose newest record with rows is 0" in str(ended.error)
    assert versions(run, run.out) == before


def versions(run: Case, path: str) -> list[Row]:
    return list(run.spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("version", "operation").collect())


def rules_kept_once(make: MakeCase) -> None:
    """The stage has the rules of the table: a row that breaks one is its message's failure. Columns may be added."""
    run = make(n=N)
    once(run)
    path = run.out
    properties = {
        "delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name", "delta.enableInCommitTimestamps": "true",
        "delta.autoOptimize.autoCompact": "true",
    }  # fmt: skip
    empty = run.spark.createDataFrame([], "id bigint, child int")
    empty.write.format("delta").partitionBy("id").options(**properties).save(path)
    run.spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (child < 9)")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, TWO).selectExpr("*", "if(id = 7, 99, child) AS c", "'new' AS more")
        rows = rows.drop("child").withColumnRenamed("c", "child")
        tracker.write(rows, lambda w: w.format("delta").option("mergeSchema", "true").mode("append").save(path))

    if is_connect(run.spark):
        check_refused_over_connect(run, pipeline)
        return
    ended = run.done(pipeline)
    assert ended.acked == set(range(N)) - {7}, ended
    assert "small" in str(ended.letters[7]), ended.letters
    rows = run.spark.read.format("delta").load(path)
    found = sorted(tuple(row) for row in rows.collect())
    assert found == sorted((*row, "new") for id, rows in TRUTH.items() if id != 7 for row in rows), found


def into_two(run: Case, tracker: Tracker, messages: DataFrame) -> None:
    rows = tracker.explode(messages, TWO)
    for name in ("a", "b"):
        tracker.write(rows, partial(append_to, path=f"{run.out}/{name}"), name=name)


def append_to(writer: DataFrameWriter, path: str) -> None:
    writer.format("delta").mode("append").save(path)


def ending(self: DeltaTables, number: int, staged: Staged, *, publish: Any = None) -> None:
    if publish is not None:
        publish(self, number, staged)
    raise RuntimeError("The driver ended here.")


def completed_once(make: MakeCase) -> None:
    """Two runs end behind the record: before and behind the commit. The next one completes it, and Delta takes it once."""
    for publish in (None, DeltaTables.publish):
        run = make(n=N)
        once(run)
        if is_connect(run.spark):
            check_refused_over_connect(run, partial(into_two, run))
            return
        with patch.object(DeltaTables, "publish", partialmethod(ending, publish=publish)):
            text = run.refused(partial(into_two, run), AckerError)
        assert "can't be put into the table of the sink 'a'" in text
        ended = run.done(partial(into_two, run))
        assert ended.acked == set(), ended
        check_two(run)


def check_two(run: Case) -> None:
    for name in ("a", "b"):
        found = sorted(tuple(row) for row in read(run, f"{run.out}/{name}"))
        assert found == sorted(row for rows in TRUTH.values() for row in rows), found


def published_by_several(make: MakeCase) -> None:
    """A driver that was thought dead publishes the same record at the same time, once or as one of many."""
    run = make(n=N)
    log = once(run)
    if is_connect(run.spark):
        check_refused_over_connect(run, partial(into_two, run))
        return
    with patch.object(DeltaTables, "publish", ending):
        run.refused(partial(into_two, run), AckerError)
    there = PublishLog(LocalLogFolder(Path(log.location, "monday")))
    there.read()
    ((number, accepted),) = there.state.to_publish.items()
    tables = DeltaTables(run.spark, there.state.name)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda staged: tables.publish(number, staged), [*accepted.staged] * 4))
    check_two(run)
    assert len(versions(run, f"{run.out}/a")) == 1
    assert run.done(partial(into_two, run)).acked == set()
    check_two(run)


def streamed_once(make: MakeCase) -> None:
    """Two files are two micro-batches. The query starts over without a checkpoint, and changes nothing."""
    run = make(n=N)
    classic_only(run)
    give(run.folder, range(N // 2), range(N // 2, N))
    seen: list[int | None] = []

    def write(tracker: Tracker, messages: DataFrame) -> None:
        seen.append(tracker.batch_id)
        condition = f"id = 3 OR (id = 5 AND {tracker.emission} = 0)"
        tracker.write(
            tracker.explode(tracker.fail_where(messages, condition, "refused"), TWO), partial(append_to, path=run.out)
        )

    for start_number in range(2):
        handler = TrackedBatches(
            write, acker=run.acker, ids="id", parking_location=str(run.folder / f"parked-{start_number}"),
            retry=RetryPolicy(max_attempts=3, first_delay_secs=0), once=Once(str(run.folder / "log"), "clicks", True),
        )  # fmt: skip
        with handler:
            start(run.spark, run.folder, handler).awaitTermination()
            assert handler.drain(180).parked == {}
        shutil.rmtree(run.folder / "checkpoint")
        found = sorted(tuple(row) for row in read(run, run.out))
        assert found == sorted(row for id, rows in TRUTH.items() if id != 3 for row in rows), found
    assert 1 in seen


def killed_once(make: MakeCase) -> None:
    """Driver and JVM are killed before and behind the commits of two tables, and started again."""
    run = make(n=N)
    classic_only(run)
    folder = run.folder / "killed"
    folder.mkdir()
    for point, times in (("before an append", 2), ("appended", 1)):
        process = start_python(folder, once_job.__name__, run.url, str(folder), point, str(times), "delta")
        process.communicate(timeout=JOB_SECS)
        assert process.returncode == -9, (folder / f"{once_job.__name__}.log").read_text()[-3000:]
    run_python(folder, once_job.__name__, run.url, str(folder), "never", "1", "delta")
    with Acker.connect(run.url, once_job.CONFIG) as acker:
        dead = {letter.message_id for letter in acker.dead_letters.read()}
    assert {number for number in range(once_job.MESSAGES) if number % 10 == 7} <= dead
    for sink, count in once_job.SINKS.items():
        rows = [tuple(row) for row in run.spark.read.format("delta").load(str(folder / sink)).collect()]
        found = Counter(message for message, _ in rows)
        assert found == {number: count(number) for number in range(once_job.MESSAGES) if number not in dead}, found
        assert len(set(rows)) == len(found), "rows of one attempt"


def staging_refused(make: MakeCase) -> None:
    """What would fail behind the record is refused before it."""
    run = make(n=N)
    log = once(run)
    if is_connect(run.spark):
        check_refused_over_connect(run, partial(save, path=run.out))
        return
    refused_options = {
        "txnVersion": "numbers", "replaceWhere": "replaces", "fs.s3a.secret.key": "credential",
        "delta.setTransactionRetentionDuration": "forget",
    }  # fmt: skip
    for name, text in refused_options.items():
        options: dict[str, Any] = {name: "1"}
        refused = run.refused(partial(save, path=run.out, **options), PipelineError)
        assert f"the option {name!r}" in refused, refused
        assert text in refused, refused
    run.spark.range(1).write.parquet(run.out)
    text = run.refused(partial(save, path=run.out), BadConfigError)
    assert "is no Delta table" in text, text
    forgetful = f"{run.folder}/forgetful"
    run.spark.range(0).write.format("delta").option("delta.setTransactionRetentionDuration", "interval 1 day").save(
        forgetful
    )
    text = run.refused(partial(save, path=forgetful), BadConfigError)
    assert "forgets transactions" in text, text
    other = f"{run.folder}/other"
    run.spark.createDataFrame([], "id string").write.format("delta").save(other)
    ended = run.run(partial(save, path=other))
    assert "Failed to merge fields 'id' and 'id'" in str(ended.error), ended
    assert (ended.acked, ended.letters) == (set(), {}), ended
    text = run.refused(
        lambda tracker, rows: tracker.write(rows, lambda w: w.format("delta").mode("append").saveAsTable("t")),
        PipelineError,
    )
    assert "can't be staged" in text, text
    other = created_at(run, "other2")

    link = Path(run.folder, "link")
    link.symlink_to(other)

    def two(tracker: Tracker, rows: DataFrame, second: str = other) -> None:
        save(tracker, rows.withColumn("child", F.lit(0)), other)
        save(tracker, rows.withColumn("child", F.lit("x")), second)

    for second in (other, str(link)):
        assert "writes to the table" in run.refused(partial(two, second=second), BadConfigError)

    def kinds(tracker: Tracker, rows: DataFrame) -> None:
        save(tracker, rows, f"{run.folder}/new")
        tracker.write(rows, lambda w: w.mode("append").parquet(f"{run.folder}/new"))

    assert "only one of them writes a Delta table" in run.refused(kinds, BadConfigError)
    text = run.refused(
        lambda tracker, rows: tracker.write(rows, lambda w: w.mode("append").parquet(other)), BadConfigError
    )
    assert "is a Delta table, whose readers" in text, text
    assert not list(Path(log.location).rglob("*.parquet"))


def created_at(run: Case, name: str) -> str:
    path = f"{run.folder}/{name}"
    run.spark.createDataFrame([], "id bigint, child int").write.format("delta").save(path)
    return path


def session_noted_once(make: MakeCase) -> None:
    """Settings that the session had when rows were staged hold when they are published, into a table below another one."""
    run = make(n=N)
    once(run)
    path = created_at(run, "outer") + "/inner"
    classic_only(run)

    def write(tracker: Tracker, messages: DataFrame, columns: dict[str, Column]) -> None:
        save(tracker, tracker.explode(messages, TWO).withColumns(columns), path)

    settings = {
        "spark.databricks.delta.schema.autoMerge.enabled": "true",
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
    }
    for data, columns in (("monday", {"a b": F.lit(1)}), ("tuesday", {"a b": F.lit(1), "more": F.lit(2)})):
        run.once = Once(str(run.folder / "log"), data)
        for name, text in settings.items():
            run.spark.conf.set(name, text)
        with patch.object(DeltaTables, "publish", ending):
            ended = run.run(partial(write, columns=columns))
        assert isinstance(ended.error, AckerError), ended
        for name in settings:
            run.spark.conf.unset(name)
        assert run.done(partial(write, columns=columns)).acked == set()
    rows = run.spark.read.format("delta").load(path)
    assert (rows.columns, rows.count()) == (["id", "child", "a b", "more"], 4 * N)


def lost_stage_noticed(make: MakeCase) -> None:
    """A staged file is gone, and the session ignores that."""
    run = make(n=N)
    log = once(run)
    classic_only(run)
    with patch.object(DeltaTables, "publish", ending):
        run.refused(partial(into_two, run), AckerError)
    next(Path(log.location, "monday", "stage").rglob("part-*.parquet")).unlink()
    run.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    ended = run.run(partial(into_two, run))
    run.spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    assert isinstance(ended.error, FilesNotMovedError), ended
    assert (ended.acked, "that were accepted, such as part-" in str(ended.error)) == (set(), True), ended


def read_again_refused(make: MakeCase) -> None:
    """Delta lists the newest files of a path for each job, so messages may not be read from a sink's table."""
    run = make(n=N)
    path = created_at(run, "again")
    run.spark.range(N).selectExpr("id", "0 AS child").write.format("delta").mode("append").save(path)
    messages = run.spark.read.format("delta").load(path)
    ended = run.run(lambda tracker, rows: save(tracker, rows, path), messages)
    assert isinstance(ended.error, PipelineError), ended
    assert "the messages are read from" in str(ended.error), ended
    assert (ended.acked, run.spark.read.format("delta").load(path).count()) == (set(), N)


def documented(make: MakeCase) -> None:
    run_section(make(n=N), "Delta")


def documented_once(make: MakeCase) -> None:
    run = make(n=N)
    classic_only(run)
    run_section(run, "Delta with each row once")


SCENARIOS: tuple[Scenario, ...] = (
    saved, partitioned, inserted, appended, partitions_overwritten, whole_replaced, source_replaced, merged, documented,
    accepted_once, rules_kept_once, completed_once, published_by_several, streamed_once, killed_once, staging_refused,
    session_noted_once, lost_stage_noticed, read_again_refused, documented_once,
)  # fmt: skip
