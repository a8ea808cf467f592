"""Iceberg: tables, one with a sort order, and MERGE."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, AckerError, BadConfigError, LogLostError, PipelineError, RetryPolicy
from acker_redis.errors import FilesNotMovedError
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Staged
from acker_redis.spark import Once, TrackedBatches, Tracker
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.iceberg_tables import IcebergTables
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
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": "ice",
    "spark.sql.catalog.ice.cache-enabled": "false",
}


def created(run: Case, name: str, *clauses: str) -> str:
    run.spark.sql(f"CREATE TABLE ice.{name}(id bigint, child int) USING iceberg {' '.join(clauses)}")
    return f"ice.{name}"


def table(run: Case, name: str) -> Callable[[], Iterable[Row]]:
    return lambda: run.spark.table(name).collect()


def append_to(name: str, **options: str) -> Write:
    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.options(**options).append())

    return write


def save(tracker: Tracker, rows: DataFrame, path: str, **options: str) -> None:
    tracker.write(rows, lambda writer: writer.format("iceberg").options(**options).mode("append").save(path))


def saved(make: MakeCase) -> None:
    """Its path is the name of a table."""
    run = make(n=N)
    name = created(run, "save")
    check_proven(run, lambda tracker, rows: save(tracker, rows, name), table(run, name))
    check_refused(make(n=N), lambda tracker, rows: save(tracker, rows, name))


def saved_in_a_folder(make: MakeCase) -> None:
    """A table of no catalog. A client of Spark Connect can't ask for its sort order, but appends no rows, which shows it."""
    run = make(n=N)
    created(run, "folder")
    path = str(run.folder.parent / "ice" / "folder")
    check_proven(run, lambda tracker, rows: save(tracker, rows, path), table(run, "ice.folder"))
    if SPARK < "4.3":
        ordered = make(n=N)
        created(ordered, "ordered")
        run.spark.sql("ALTER TABLE ice.ordered WRITE ORDERED BY child")
        path = str(run.folder.parent / "ice" / "ordered")

        def by_folder(tracker: Tracker, rows: DataFrame) -> None:
            save(tracker, tracker.explode(rows, TWO), path)

        assert "has a sort order" in ordered.refused(by_folder, PipelineError)
        assert run.spark.table("ice.ordered").count() == 0
        check_proven(
            ordered,
            lambda tracker, rows: save(tracker, rows, path, **{"distribution-mode": "none"}),
            table(run, "ice.ordered"),
        )


def appended(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "append")
    check_proven(run, append_to(name), table(run, name))
    check_refused(make(n=N), append_to(name))


def inserted(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "insert")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(rows, lambda writer: writer.mode("append").saveAsTable(name))

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def partitions_overwritten(make: MakeCase) -> None:
    run = make(n=N)
    name = created(run, "overwrite", "PARTITIONED BY (id)")

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.overwritePartitions(), allow_overwrite=True)

    check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def source_replaced(make: MakeCase) -> None:
    """A whole output may read what it replaces only as a fixed snapshot."""
    run = make(n=N)
    name = created(run, "source")
    run.spark.sql(f"INSERT INTO {name} VALUES (1, 0), (2, 0)")
    snapshot = str(run.spark.table(f"{name}.snapshots").collect()[0]["snapshot_id"])

    def over(**version: str) -> Write:
        def write(tracker: Tracker, rows: DataFrame) -> None:
            before = run.spark.read.options(**version).table(name).withColumnRenamed("child", "before")
            joined = tracker.join(rows, before, "id", "left").drop("before")
            tracker.write_table(joined, name, lambda writer: writer.using("iceberg").createOrReplace())

        return write

    for version in ({}, {"versionAsOf": "main"}):  # a branch changes, too
        assert "the output replaces" in make(n=N).refused(over(**version), PipelineError, output="whole")
    check_proven(make(n=N), over(versionAsOf=snapshot), table(run, name), output="whole")


def sorted_by_range(make: MakeCase) -> None:
    """Before Spark 4.3 it would be counted twice, and is refused before a row is in the table."""
    run = make(n=N)
    name = created(run, "sorted")
    run.spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY child")
    if SPARK < "4.3":
        text = run.refused(append_to(name), PipelineError)
        assert "has a sort order" in text and "write_dataframe" in text, text
        assert run.spark.table(name).count() == 0

        def by_name(tracker, rows):
            return tracker.write(rows, lambda writer: writer.mode("append").insertInto(name))

        assert "has a sort order" in run.refused(by_name, PipelineError)
        assert "has a sort order" in run.refused(lambda tracker, rows: save(tracker, rows, name), PipelineError)
        assert run.spark.table(name).count() == 0
        check_proven(run, append_to(name, **{"distribution-mode": "none"}), table(run, name))
        run.spark.sql(f"DELETE FROM {name}")
    else:
        check_proven(run, append_to(name), table(run, name))
        run.spark.sql(f"DELETE FROM {name}")
    check_proven(
        run,
        lambda tracker, rows: tracker.write_dataframe(rows, lambda found: found.writeTo(name).append()),
        table(run, name),
    )
    check_released(run)


def merged(make: MakeCase) -> None:
    """Twice: the second run finds every row there."""
    run = make(n=N)
    name = created(run, "merge")

    def merge(rows: DataFrame) -> None:
        merge: Any = rows.alias("new").mergeInto(name, F.expr("new.id = merge.id AND new.child = merge.child"))
        merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_dataframe(rows, merge)

    for _ in range(2):
        check_proven(run, write, table(run, name))
    check_refused(make(n=N), write)


def once(run: Case) -> Once:
    run.once = Once(str(run.folder / "log"), "monday")
    return run.once


def check_refused_over_connect(run: Case, write: Write) -> bool:
    """Return True over Spark Connect, where output once is refused."""
    if not is_connect(run.spark):
        return False
    assert "can't be combined with Spark Connect" in run.refused(write, BadConfigError)
    return True


def snapshots(run: Case, name: str) -> list[Row]:
    return list(run.spark.table(f"{name}.history").select("snapshot_id", "is_current_ancestor").collect())


def branches(run: Case, name: str) -> set[str]:
    return {row["name"] for row in run.spark.table(f"{name}.refs").collect()}


def accepted_once(make: MakeCase) -> None:
    """Another run of the same data changes nothing. Rows of others stay, and so does the order of commits."""
    for number, clause in enumerate(("PARTITIONED BY (bucket(4, id))", "TBLPROPERTIES('format-version'='3')")):
        run = make(n=N)
        name = created(run, f"once{number}", clause)
        log = once(run)
        if check_refused_over_connect(run, append_to(name)):
            return
        cached = run.spark.table(name).cache()
        assert cached.count() == 0
        check_proven(run, append_to(name), table(run, name))
        cached.unpersist()
        before = snapshots(run, name)
        assert run.done(partial(doubled, name)).acked == set()
        assert (snapshots(run, name), branches(run, name)) == (before, {"main"})
        assert not list(Path(log.location, "monday", "stage").rglob("*.json"))
        check_released(run)
        shutil.rmtree(log.location)
        ended = run.run(partial(doubled, name))
        assert isinstance(ended.error, LogLostError), ended
        assert "whose newest record with rows is 0" in str(ended.error)
        assert snapshots(run, name) == before


def doubled(name: str, tracker: Tracker, messages: DataFrame) -> None:
    append_to(name)(tracker, tracker.explode(messages, TWO))


def into_two(names: tuple[str, str], tracker: Tracker, messages: DataFrame) -> None:
    rows = tracker.explode(messages, TWO)
    for sink, name in zip(("a", "b"), names, strict=True):
        tracker.write_table(rows, name, lambda writer: writer.append(), name=sink)


def two(run: Case, name: str) -> tuple[str, str]:
    """Two tables, one of which has a row. Its snapshots follow on that, so they needn't be copied."""
    names = created(run, f"{name}_a"), created(run, f"{name}_b", "PARTITIONED BY (child)")
    run.spark.sql(f"INSERT INTO {names[0]} VALUES (-1, -1)")
    return names


def check_two(run: Case, names: tuple[str, str], more: tuple[int, int] = (1, 0)) -> None:
    """The tables have all rows, and so many others."""
    whole = sorted(row for rows in TRUTH.values() for row in rows)
    for name, others in zip(names, more, strict=True):
        found = sorted(tuple(row) for row in run.spark.table(name).collect())
        assert found == sorted([*whole, *[(-1, -1)] * others]), found
        assert branches(run, name) == {"main"}


def ending(self: IcebergTables, number: int, staged: Staged, *, publish: Any = None) -> None:
    if publish is not None:
        publish(self, number, staged)
    raise RuntimeError("The driver ended here.")


def completed_once(make: MakeCase) -> None:
    """Two runs end behind the record, before and behind the commit. The next one completes it.

    Meanwhile somebody else appends, and removes all snapshots that nobody keeps.
    """
    for number, publish in enumerate((None, IcebergTables.publish)):
        run = make(n=N)
        once(run)
        names = two(run, f"completed{number}")
        if check_refused_over_connect(run, partial(into_two, names)):
            return
        with patch.object(IcebergTables, "publish", partialmethod(ending, publish=publish)):
            text = run.refused(partial(into_two, names), AckerError)
        assert "can't be put into the table of the sink 'a'" in text
        for name in names:
            for _ in range(2):
                run.spark.sql(f"INSERT INTO {name} VALUES (-1, -1)")
            expire = "CALL ice.system.expire_snapshots(table => '{}', older_than => TIMESTAMP '{}', retain_last => 1)"
            run.spark.sql(expire.format(name, datetime.now(UTC) + timedelta(days=1)))
        ended = run.done(partial(into_two, names))
        assert ended.acked == set(), ended
        check_two(run, names, (3, 2))


def published_by_several(make: MakeCase) -> None:
    """Drivers that were thought dead publish the same record: at the same time, and between the look and the commit."""
    for at_once in (True, False):
        run = make(n=N)
        log = once(run)
        names = two(run, f"several{at_once}")
        if check_refused_over_connect(run, partial(into_two, names)):
            return
        with patch.object(IcebergTables, "publish", ending):
            run.refused(partial(into_two, names), AckerError)
        there = PublishLog(LocalLogFolder(Path(log.location, "monday")))
        there.read()
        ((number, accepted),) = there.state.to_publish.items()
        tables = IcebergTables(run.spark, there.state.name)
        if at_once:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(partial(tables.publish, number), [*accepted.staged] * 4))
        else:
            with patch.object(IcebergTables, "_append", partialmethod(overtaken, IcebergTables._append)):
                for staged in accepted.staged:
                    tables.publish(number, staged)
        check_two(run, names)
        assert run.done(partial(into_two, names)).acked == set()
        check_two(run, names)


def overtaken(self: IcebergTables, append: Any, number: int, table: Any, staged: Staged, *, is_there: bool) -> None:
    """Append what another process has appended since the table was looked at."""
    append(self, number, self._table_at(staged.target), staged, is_there=is_there)
    append(self, number, table, staged, is_there=is_there)


def published_by_hand(make: MakeCase) -> None:
    """A person brings the waiting snapshots into the tables: as a copy, and as it is."""
    run = make(n=N)
    once(run)
    names = two(run, "by_hand")
    if check_refused_over_connect(run, partial(into_two, names)):
        return
    with patch.object(IcebergTables, "publish", ending):
        run.refused(partial(into_two, names), AckerError)
    for name in names:
        refs = {row["name"]: row["snapshot_id"] for row in run.spark.table(f"{name}.refs").collect()}
        (branch,) = refs.keys() - {"main"}
        run.spark.sql(f"CALL ice.system.cherrypick_snapshot('{name}', {refs[branch]})")
    assert run.done(partial(into_two, names)).acked == set()
    check_two(run, names)


def streamed_once(make: MakeCase) -> None:
    """Two files are two micro-batches. The query starts over without a checkpoint, and changes nothing."""
    run = make(n=N)
    classic_only(run)
    give(run.folder, range(N // 2), range(N // 2, N))
    name = created(run, "streamed")

    def write(tracker: Tracker, messages: DataFrame) -> None:
        condition = f"id = 3 OR (id = 5 AND {tracker.emission} = 0)"
        append_to(name)(tracker, tracker.explode(tracker.fail_where(messages, condition, "refused"), TWO))

    for start_number in range(2):
        handler = TrackedBatches(
            write, acker=run.acker, ids="id", parking_location=str(run.folder / f"parked-{start_number}"),
            retry=RetryPolicy(max_attempts=3, first_delay_secs=0), once=Once(str(run.folder / "log"), "clicks", True),
        )  # fmt: skip
        with handler:
            start(run.spark, run.folder, handler).awaitTermination()
            assert handler.drain(180).parked == {}
        shutil.rmtree(run.folder / "checkpoint")
        found = sorted(tuple(row) for row in run.spark.table(name).collect())
        assert found == sorted(row for id, rows in TRUTH.items() if id != 3 for row in rows), found
    assert branches(run, name) == {"main"}


def killed_once(make: MakeCase) -> None:
    """Driver and JVM are killed before and behind the commits of two tables, and started again."""
    run = make(n=N)
    classic_only(run)
    folder = run.folder / "killed"
    folder.mkdir()
    for point, times in (("before a commit", 2), ("committed into", 1)):
        process = start_python(folder, once_job.__name__, run.url, str(folder), point, str(times), "iceberg")
        process.communicate(timeout=JOB_SECS)
        assert process.returncode == -9, (folder / f"{once_job.__name__}.log").read_text()[-3000:]
    run_python(folder, once_job.__name__, run.url, str(folder), "never", "1", "iceberg")
    with Acker.connect(run.url, once_job.CONFIG) as acker:
        dead = {letter.message_id for letter in acker.dead_letters.read()}
    assert {number for number in range(once_job.MESSAGES) if number % 10 == 7} <= dead
    for sink, count in once_job.SINKS.items():
        rows = [tuple(row) for row in run.spark.read.format("iceberg").load(str(folder / "ice" / sink)).collect()]
        found = Counter(message for message, _ in rows)
        assert found == {number: count(number) for number in range(once_job.MESSAGES) if number not in dead}, found
        assert len(set(rows)) == len(found), "rows of one attempt"


def rules_kept_once(make: MakeCase) -> None:
    """A row that the table refuses is its message's failure, before anything is accepted."""
    run = make(n=N)
    once(run)
    run.spark.sql("CREATE TABLE ice.rules(id bigint NOT NULL, child int NOT NULL, note string) USING iceberg")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr("_share", "_roots", "id", "1 AS child", "raise_or(id) AS note")
        tracker.write_table(rows, "ice.rules", lambda writer: writer.append())

    if check_refused_over_connect(run, append_to("ice.rules")):
        return
    run.spark.udf.register("raise_or", lambda id: str(id) if id != 7 else 1 / 0)
    ended = run.done(pipeline)
    assert ended.acked == set(range(N)) - {7}, ended
    assert "division by zero" in str(ended.letters[7]), ended.letters
    found = sorted(tuple(row) for row in run.spark.table("ice.rules").collect())
    assert found == sorted((id, 1, str(id)) for id in range(N) if id != 7), found


def staging_refused(make: MakeCase) -> None:
    """What would fail behind the record, or show rows before it, is refused before it."""
    run = make(n=N)
    log = once(run)
    name = created(run, "refused")
    if check_refused_over_connect(run, append_to(name)):
        return
    for option in ("mergeSchema", "snapshot-property.a", "branch"):
        refused = run.refused(append_to(name, **{option: "true"}), PipelineError)
        assert f"the option {option!r}" in refused, refused
    for setting in ("spark.wap.id", "spark.sql.iceberg.snapshot-property.wap.id", "spark.sql.iceberg.merge-schema"):
        run.spark.conf.set(setting, "true")
        text = run.refused(append_to(name), PipelineError)
        run.spark.conf.unset(setting)
        assert f"the session's setting {setting}" in text, text
    run.spark.sql(f"ALTER TABLE {name} CREATE BRANCH mine")
    for other, text in {
        f"{name}.branch_mine": f"is a branch or another view of a table ({name})",
        "ice.nowhere": "'ice.nowhere' isn't an Iceberg table",
    }.items():
        refused = run.refused(append_to(other), BadConfigError)
        assert text in refused, refused
    run.spark.sql("CREATE TABLE plain(id bigint, child int) USING parquet")
    assert "isn't an Iceberg table" in run.refused(append_to("plain"), BadConfigError)

    def overwrite(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_table(rows, name, lambda writer: writer.overwritePartitions(), allow_overwrite=True)

    for write in (overwrite, partial(save, path=name)):
        refused = run.refused(write, PipelineError)
        assert "With once=, use append()" in refused or "tracker.write_table" in refused, refused
    assert (run.spark.table(name).count(), branches(run, name)) == (0, {"mine"})
    assert not list(Path(log.location).rglob("*branch.json"))


def branches_kept_and_removed(make: MakeCase) -> None:
    """Others commit all the time, and the table keeps branches for a moment only. A run that was killed has left a branch."""
    run = make(n=N)
    log = once(run)
    name = created(run, "kept", "TBLPROPERTIES('history.expire.max-ref-age-ms'='1')")
    if check_refused_over_connect(run, append_to(name)):
        return
    load, busy = IcebergTables._load, [6]

    def overtaken(self: IcebergTables, table: str) -> Any:
        """Somebody commits between the look at a table and the change of its branches."""
        found = load(self, table)
        if busy[0]:
            busy[0] -= 1
            manage = found.manageSnapshots

            class Overtaken:
                def __getattr__(self, method: str) -> Any:
                    return getattr(found, method)

                def manageSnapshots(self) -> Any:  # noqa: N802
                    changes = manage()
                    run.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES('commits'='{busy[0]}')")
                    return changes

            return Overtaken()
        return found

    publish_log = PublishLog(LocalLogFolder(Path(log.location, "monday")))
    with patch.object(IcebergTables, "_load", overtaken), patch.object(IcebergTables, "publish", ending):
        run.refused(partial(doubled, name), AckerError)
    publish_log.read()
    (waiting,) = branches(run, name) - {"main"}
    left = f"acker-redis-{publish_log.state.name}-00000000-x"
    run.spark.sql(f"ALTER TABLE {name} CREATE BRANCH `{left}`")
    run.spark.sql(f"CALL ice.system.expire_snapshots(table => '{name}', retain_last => 1)")
    assert {waiting, left} >= branches(run, name) - {"main"} >= {waiting}
    with patch.object(IcebergTables, "publish", ending):
        assert isinstance(run.run(partial(doubled, name)).error, AckerError)
    more = run.spark.range(N + 1)
    assert run.done(partial(doubled, name), more).acked == {N}
    assert branches(run, name) == {"main"}
    assert run.spark.table(name).count() == 2 * (N + 1)
    run.spark.sql(f"DROP TABLE {name}")
    assert run.done(partial(doubled, created(run, "kept")), more).acked == set()


def lost_stage_noticed(make: MakeCase) -> None:
    """Somebody drops the branch and its snapshot between the record and the commit."""
    run = make(n=N)
    once(run)
    names = two(run, "lost")
    classic_only(run)
    with patch.object(IcebergTables, "publish", ending):
        run.refused(partial(into_two, names), AckerError)
    (branch,) = branches(run, names[0]) - {"main"}
    run.spark.sql(f"ALTER TABLE {names[0]} DROP BRANCH `{branch}`")
    run.spark.sql(
        f"CALL ice.system.expire_snapshots(table => '{names[0]}', retain_last => 1, "
        f"older_than => TIMESTAMP '{datetime.now(UTC) + timedelta(days=1)}')"
    )
    ended = run.run(partial(into_two, names))
    assert isinstance(ended.error, FilesNotMovedError), ended
    assert (ended.acked, "that were accepted" in str(ended.error)) == (set(), True), ended


def documented(make: MakeCase) -> None:
    run_section(make(n=N), "Iceberg")


def documented_once(make: MakeCase) -> None:
    run = make(n=N)
    classic_only(run)
    run_section(run, "Iceberg with each row once")


SCENARIOS: tuple[Scenario, ...] = (
    appended,
    saved,
    saved_in_a_folder,
    inserted,
    partitions_overwritten,
    source_replaced,
    sorted_by_range,
    merged,
    documented,
    accepted_once,
    completed_once,
    published_by_several,
    published_by_hand,
    streamed_once,
    killed_once,
    rules_kept_once,
    staging_refused,
    branches_kept_and_removed,
    lost_stage_noticed,
    documented_once,
)
