"""Every public member of DataFrame in a tracked pipeline, as docs/guides/operators.md has it."""

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import InexactPipelineError, PipelineError, UnprovenEmissionError
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import Case, MakeCase
from tests.support.spark.versions import SPARK

pytestmark = pytest.mark.spark

TABLE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "operators.md"
KINDS = ("exact", "caught", "no effect", "elsewhere")

Change: TypeAlias = Callable[[DataFrame], Any]
Example = TypeVar("Example")


def table() -> list[tuple[str, str]]:
    """(member, kind) of each line."""
    return re.findall(r"^\| `(\w+)` \| ([a-z ]+?) \|", TABLE.read_text(), re.MULTILINE)


def newer() -> set[str]:
    """Members that this Spark doesn't have yet, as the lines say."""
    since = re.findall(r"^\| `(\w+)` \| .*since Spark (\d)\.(\d) \|$", TABLE.read_text(), re.MULTILINE)
    return {member for member, major, minor in since if (int(major), int(minor)) > SPARK}


def here(examples: dict[str, Example]) -> dict[str, Example]:
    """Those of members that this Spark has."""
    return {member: example for member, example in examples.items() if member not in newer()}


def ids(rows: DataFrame, *numbers: int) -> DataFrame:
    """Another frame with a column `id`: 0 ... 19 if no numbers are given."""
    return (
        rows.sparkSession.range(20)
        if not numbers
        else rows.sparkSession.createDataFrame([(n,) for n in numbers], "id long")
    )


def firsts(frames: Any) -> Any:
    return (frame[:1] for frame in frames)


EXACT: dict[str, Change] = {
    "alias": lambda rows: rows.alias("a").select("a.*"),
    "cache": lambda rows: rows.cache(),
    "checkpoint": lambda rows: rows.checkpoint(),
    "coalesce": lambda rows: rows.coalesce(1),
    "colRegex": lambda rows: rows.select(rows.colRegex("`(_|i).*`")),
    "crossJoin": lambda rows: rows.crossJoin(rows.sparkSession.range(1).toDF("other")),
    "drop": lambda rows: rows.drop("text"),
    "fillna": lambda rows: rows.fillna("x", subset=["text"]),
    "hint": lambda rows: rows.hint("broadcast"),
    "join": lambda rows: rows.join(ids(rows), "id").join(ids(rows, 3, 50), "id", "left"),
    "lateralJoin": lambda rows: rows.alias("r").lateralJoin(
        rows.sparkSession.range(1).select(F.col("r.id").outer().alias("o"))
    ),
    "localCheckpoint": lambda rows: rows.localCheckpoint(),
    "mapInArrow": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "metadataColumn": lambda rows: rows.withColumn("path", rows.metadataColumn("_metadata")["file_path"]),
    "na": lambda rows: rows.na.fill("x", subset=["text"]).na.replace({"a": "b"}, subset=["text"]),
    "observe": lambda rows: rows.observe("mine", F.count(F.lit(1)).alias("n")),
    "orderBy": lambda rows: rows.orderBy(F.desc("id")),
    "persist": lambda rows: rows.persist(),
    "repartition": lambda rows: rows.repartition(3, "id"),
    "repartitionById": lambda rows: rows.repartitionById(3, (F.col("id") % 3).cast("int")),
    "repartitionByRange": lambda rows: rows.repartitionByRange(3, "id"),
    "replace": lambda rows: rows.replace("a", "b", subset=["text"]),
    "select": lambda rows: rows.select("id", (F.col("id") + 1).alias("more"), "_roots", "_share"),
    "selectExpr": lambda rows: rows.selectExpr("id % 2 AS half", "_share", "_roots"),
    "sort": lambda rows: rows.sort("text"),
    "sortWithinPartitions": lambda rows: rows.sortWithinPartitions("text"),
    "to": lambda rows: rows.to(rows.schema),
    "toDF": lambda rows: rows.toDF("number", "letters", "_share", "_roots"),
    "transform": lambda rows: rows.transform(lambda frame: frame.withColumn("more", F.lit(1))),
    "unpersist": lambda rows: rows.unpersist(),
    "withColumn": lambda rows: rows.withColumn("rank", F.expr("row_number() OVER (PARTITION BY id % 2 ORDER BY id)")),
    "withColumns": lambda rows: rows.withColumns({"text": F.upper("text"), "drawn": F.rand()}),
    "withColumnRenamed": lambda rows: rows.withColumnRenamed("text", "letters"),
    "withColumnsRenamed": lambda rows: rows.withColumnsRenamed({"text": "letters"}),
    "withMetadata": lambda rows: rows.withMetadata("text", {"a": 1}),
    "withWatermark": lambda rows: rows.withColumn("at", F.current_timestamp()).withWatermark("at", "1 second"),
    "zip": lambda rows: rows.zip(rows.select(F.upper("text").alias("upper"))),
    "zipWithIndex": lambda rows: rows.zipWithIndex("place"),
}  # fmt: skip
"""Of messages 0 ... 19, columns `id` and `text`."""

CAUGHT: dict[str, list[Change]] = {
    "agg": [lambda rows: rows.agg(F.sum("_share").alias("_share"), F.first("_roots").alias("_roots"))],
    "checkpoint": [lambda rows: rows.checkpoint()],
    "crossJoin": [
        lambda rows: rows.crossJoin(rows.sparkSession.range(0).toDF("other")),
        lambda rows: rows.crossJoin(rows.sparkSession.range(2).toDF("other")),
    ],
    "cube": [lambda rows: rows.cube("id").agg(F.sum("_share").alias("_share"))],
    "describe": [lambda rows: rows.describe("id")],
    "distinct": [lambda rows: rows.union(rows).distinct().limit(3), lambda rows: rows.select("id").distinct()],
    "drop": [lambda rows: rows.drop("_share"), lambda rows: rows.drop("_roots")],
    "dropDuplicates": [lambda rows: rows.dropDuplicates(["id"])],
    "drop_duplicates": [lambda rows: rows.drop_duplicates(["id"])],
    "dropna": [lambda rows: rows.withColumn("x", F.expr("nullif(id, 7)")).dropna()],
    "exceptAll": [lambda rows: rows.exceptAll(rows.where("id = 7"))],
    "fillna": [lambda rows: rows.fillna(0)],
    "filter": [lambda rows: rows.filter("id <> 7")],
    "groupBy": [lambda rows: rows.groupBy("id").agg(F.sum("_share").alias("_share"), F.first("_roots").alias("_roots"))],
    "groupby": [lambda rows: rows.groupby("id").count()],
    "groupingSets": [lambda rows: rows.groupingSets([["id"], []], "id").agg(F.sum("_share").alias("_share"))],
    "intersect": [lambda rows: rows.intersect(rows.where("id <> 7"))],
    "intersectAll": [lambda rows: rows.intersectAll(rows.where("id <> 7"))],
    "join": [
        lambda rows: rows.join(ids(rows, 1, 2), "id"),
        lambda rows: rows.join(ids(rows, *range(20), 7), "id"),
        lambda rows: rows.join(ids(rows, 7, 7), "id", "left"),
        lambda rows: rows.join(ids(rows, 7), "id", "left_semi"),
        lambda rows: rows.join(ids(rows, 7), "id", "left_anti"),
    ],
    "lateralJoin": [
        lambda rows: rows.lateralJoin(rows.sparkSession.range(0).toDF("other")),
        lambda rows: rows.lateralJoin(rows.sparkSession.range(2).toDF("other")),
    ],
    "limit": [lambda rows: rows.limit(3)],
    "localCheckpoint": [lambda rows: rows.localCheckpoint()],
    "mapInArrow": [lambda rows: rows.mapInArrow(lambda batches: (batch.slice(1) for batch in batches), rows.schema)],
    "mapInPandas": [
        lambda rows: rows.drop("_roots").mapInPandas(firsts, "id long, _share long")
    ],
    "melt": [lambda rows: rows.melt(["_share", "_roots"], ["id", "child"], "name", "value")],
    "na": [lambda rows: rows.withColumn("x", F.expr("nullif(id, 7)")).na.drop()],
    "nearestByJoin": [
        lambda rows: rows.nearestByJoin(ids(rows).toDF("other"), F.abs(F.col("id") - F.col("other")), 2, "exact", "distance")
    ],
    "offset": [lambda rows: rows.offset(1)],
    "randomSplit": [lambda rows: rows.randomSplit([0.5, 0.5], 3)[0]],
    "replace": [lambda rows: rows.replace(7, 8)],
    "rollup": [lambda rows: rows.rollup("id").agg(F.sum("_share").alias("_share"))],
    "sample": [lambda rows: rows.sample(0.5, 3), lambda rows: rows.sample(True, 2.0, 3)],
    "sampleBy": [lambda rows: rows.sampleBy("child", {0: 0.5}, 3)],
    "select": [lambda rows: rows.select("id"), lambda rows: rows.select("*", F.explode(F.array(F.lit(1), F.lit(2))))],
    "selectExpr": [
        lambda rows: rows.selectExpr("id", "_share + 1 AS _share", "_roots"),
        lambda rows: rows.selectExpr("*", "stack(2, 1, 2)"),
    ],
    "subtract": [lambda rows: rows.subtract(rows.where("id = 7"))],
    "summary": [lambda rows: rows.select("id").summary()],
    "toDF": [lambda rows: rows.toDF("a", "b", "c", "d")],
    "transpose": [lambda rows: rows.select("id", "_share").transpose()],
    "union": [lambda rows: rows.union(rows)],
    "unionAll": [lambda rows: rows.unionAll(rows)],
    "unionByName": [lambda rows: rows.unionByName(rows)],
    "unpivot": [lambda rows: rows.unpivot(["_share", "_roots"], ["id", "child"], "name", "value")],
    "where": [lambda rows: rows.where("id <> 7"), lambda rows: rows.where("false")],
    "withColumn": [
        lambda rows: rows.withColumn("_share", F.col("_share") + 0),
        lambda rows: rows.withColumn("_roots", F.array()),
    ],
    "withColumnRenamed": [
        lambda rows: rows.withColumnRenamed("_share", "share"),
        lambda rows: rows.drop("_roots").withColumnRenamed("child", "_roots"),
    ],
    "withMetadata": [lambda rows: rows.withMetadata("_share", {"a": 1}), lambda rows: rows.withMetadata("_roots", {"a": 1})],
}  # fmt: skip
"""Of two rows per message, columns `id` and `child`, behind a filter."""


UNKNOWN = {"checkpoint", "localCheckpoint", "where"}
"""Members behind which a client of Spark Connect has unknown sums, which it doesn't take for a mistake: of `where("false")`,
Spark leaves nothing in the plan.
"""


def path(rows: DataFrame) -> str:
    return str(Path(str(rows.sparkSession.conf.get("spark.sql.warehouse.dir")).removeprefix("file:")) / "aside")


def if_implemented(call: Callable[[], object]) -> None:
    """Spark Connect got it later than classic sessions."""
    with suppress(PySparkNotImplementedError):
        call()


NO_EFFECT: dict[str, Change] = {
    "approxQuantile": lambda rows: rows.approxQuantile("id", [0.5], 0.1),
    "collect": lambda rows: rows.collect(),
    "columns": lambda rows: rows.columns,
    "corr": lambda rows: rows.corr("id", "child"),
    "count": lambda rows: rows.count(),
    "cov": lambda rows: rows.cov("id", "child"),
    "createGlobalTempView": lambda rows: rows.createGlobalTempView("a_view"),
    "createOrReplaceGlobalTempView": lambda rows: rows.createOrReplaceGlobalTempView("a_view"),
    "createOrReplaceTempView": lambda rows: rows.createOrReplaceTempView("a_view"),
    "createTempView": lambda rows: rows.createTempView("another_view"),
    "crosstab": lambda rows: rows.crosstab("id", "child").collect(),
    "dtypes": lambda rows: rows.dtypes,
    "exists": lambda rows: rows.sparkSession.range(3).where(rows.exists()).collect(),
    "explain": lambda rows: rows.explain(True),
    "first": lambda rows: rows.first(),
    "foreach": lambda rows: rows.foreach(lambda row: None),
    "foreachPartition": lambda rows: rows.foreachPartition(lambda part: None),
    "freqItems": lambda rows: rows.freqItems(["id"]).collect(),
    "head": lambda rows: rows.head(3),
    "inputFiles": lambda rows: rows.inputFiles(),
    "isEmpty": lambda rows: rows.isEmpty(),
    "isLocal": lambda rows: rows.isLocal(),
    "isStreaming": lambda rows: rows.isStreaming,
    "mergeInto": lambda rows: rows.alias("r").mergeInto("nothing", F.col("r.id") == 1),
    "printSchema": lambda rows: rows.printSchema(),
    "rdd": lambda rows: is_connect(rows.sparkSession) or rows.rdd.count(),  # Spark Connect has none
    "registerTempTable": lambda rows: rows.registerTempTable("old_view"),
    "sameSemantics": lambda rows: rows.sameSemantics(rows),
    "scalar": lambda rows: rows.sparkSession.range(3).where(F.col("id") < rows.agg(F.max("id")).scalar()).collect(),
    "schema": lambda rows: rows.schema,
    "semanticHash": lambda rows: rows.semanticHash(),
    "show": lambda rows: rows.show(2),
    "sparkSession": lambda rows: rows.sparkSession,
    "stat": lambda rows: rows.stat.corr("id", "child"),
    "storageLevel": lambda rows: rows.storageLevel,
    "tail": lambda rows: rows.tail(2),
    "take": lambda rows: rows.take(2),
    "toArrow": lambda rows: rows.toArrow(),
    "toJSON": lambda rows: if_implemented(lambda: rows.toJSON().collect()),
    "toLocalIterator": lambda rows: next(rows.toLocalIterator()),
    "toPandas": lambda rows: rows.toPandas(),
    "write": lambda rows: rows.write.mode("overwrite").parquet(path(rows)),
    "writeTo": lambda rows: rows.writeTo("nothing"),
}

PARTS = 3
"""Tests into which the inexact ones are divided."""

ELSEWHERE = {"asTable", "dropDuplicatesWithinWatermark", "executionInfo", "pandas_api", "plot", "writeStream"}


def test_operators_table_covers_every_dataframe_member() -> None:
    found = table()
    assert len(found) == len(set(found)), "a line stands twice"
    assert {kind for _, kind in found} == set(KINDS)
    assert {member for member, _ in found} - newer() == {name for name in dir(DataFrame) if not name.startswith("_")}
    examples = [set(members) for members in (EXACT, CAUGHT, NO_EFFECT, ELSEWHERE)]
    assert set(found) == {(member, kind) for kind, of in zip(KINDS, examples, strict=True) for member in of}
    assert len(TABLE.read_text().splitlines()) > len(found)


@pytest.fixture
def run(case: MakeCase) -> Case:
    return case(n=20)


def test_exact_dataframe_operators_complete(run: Case) -> None:
    """One sink for each; the messages are in a file, which has metadata columns."""
    run.messages.withColumn("text", F.expr("nullif(chr(97 + id % 5), 'c')")).write.parquet(str(run.folder / "in"))

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        for member, change in here(EXACT).items():
            tracker.write(change(messages), lambda writer: writer.format("noop").mode("append").save(), name=member)

    run.complete(pipeline, run.spark.read.parquet(str(run.folder / "in")))


def test_dataframe_members_without_effect_change_nothing(run: Case) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(
            tracker.filter(messages, "id > 3"), "array(struct(id, 0 AS child), struct(id, 1 AS child))"
        )
        for again in range(2):
            for change in NO_EFFECT.values():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Spark's own, of what is deprecated
                    change(rows)
            run.spark.catalog.dropTempView("another_view")
            run.spark.catalog.dropGlobalTempView("a_view")
            if not again:
                tracker.write(rows, run.append())

    run.complete(pipeline)
    assert sorted(run.written()) == [(id, child) for id in range(4, 20) for child in range(2)]


@pytest.mark.parametrize("part", range(PARTS))
def test_inexact_dataframe_operators_are_refused_and_ack_nothing(run: Case, part: int) -> None:
    """Over Spark Connect, the pipeline runs twice for a wrong sum, which is a mistake the second time."""
    caught = {
        member: changes for number, (member, changes) in enumerate(here(CAUGHT).items()) if number % PARTS == part
    }
    unknown = UNKNOWN & set(caught)
    texts_of: dict[str, list[str]] = {}
    unproven: list[dict[str, UnprovenEmissionError]] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id > 3")
        rows = tracker.explode(kept, "array(struct(id, 0 AS child), struct(id, 1 AS child))")
        texts_of.clear()
        unproven.append({})
        for member, changes in caught.items():
            for number, change in enumerate(changes):
                try:
                    tracker.write(
                        change(rows),
                        lambda writer: writer.format("noop").mode("append").save(),
                        name=f"{member}-{number}",
                    )
                except (InexactPipelineError, PipelineError) as exc:
                    texts_of.setdefault(member, []).append(str(exc))
                except UnprovenEmissionError as exc:
                    texts_of.setdefault(member, []).append(str(exc))
                    unproven[-1][member] = exc
        if len(unproven) == 1 and unproven[0]:
            raise next(iter(unproven[0].values()))

    assert "ended with an error that the pipeline caught" in run.refused(pipeline, InexactPipelineError)
    assert len(unproven) == (2 if unproven[0] else 1)
    assert set(unproven[-1]) == (unknown if is_connect(run.spark) else set())
    assert {member: len(texts) for member, texts in texts_of.items()} == {
        member: len(each) for member, each in caught.items()
    }
    assert all("tracker" in text for texts in texts_of.values() for text in texts)


def test_writer_in_ignore_mode_that_writes_nothing_is_named(case: MakeCase) -> None:
    run = case(n=20)

    def ignored(tracker: Tracker, messages: DataFrame) -> None:
        messages.select("id").write.mode("overwrite").parquet(str(run.folder / "there"))
        tracker.export(messages, lambda writer: writer.mode("ignore").parquet(str(run.folder / "there")))

    assert "which mode('ignore') may not do" in run.refused(ignored, InexactPipelineError)


BETWEEN: dict[str, tuple[Change, str, str]] = {
    "where": (lambda rows: rows.where("child > 0"), "Filter (child > 0)", "tracker.filter for where"),
    "limit": (lambda rows: rows.limit(3), "GlobalLimit (3)", "tracker.filter to keep a part"),
    "offset": (lambda rows: rows.offset(3), "Offset (3)", "tracker.filter to keep a part"),
    "sample": (lambda rows: rows.sample(0.5, 3), "Sample (", "rand() < 0.1"),
    "distinct": (lambda rows: rows.union(rows).distinct().limit(3), "Deduplicate (", "tracker.group_by for aggregates"),
    "dropDuplicates": (
        lambda rows: rows.dropDuplicates(["id"]),
        "Deduplicate ([id])",
        "tracker.group_by for aggregates",
    ),
    "join": (
        lambda rows: rows.join(ids(rows, 7, 7), "id", "left_semi"),
        "Join (LeftSemi, (id = id))",
        "tracker.join for joins",
    ),
    "explode": (
        lambda rows: rows.withColumn("c", F.explode(F.sequence(F.lit(1), F.lit(2)))).drop("c"),
        "Generate (explode(sequence(",
        "tracker.explode or flat_map",
    ),
    "union": (lambda rows: rows.union(rows), "Union (", "tracker.union_by_name for unions"),
    "exceptAll": (lambda rows: rows.exceptAll(rows.where("id = 7")), "Except", "tracker.filter, join or group"),
    "mapInArrow": (CAUGHT["mapInArrow"][0], "MapInArrow (", "tracker.flat_map_arrow for functions"),
}
"""Operators of Spark's -> how they are named, and what is to be used instead."""


@pytest.mark.parametrize("kind", BETWEEN)
@pytest.mark.classic("only a JVM shows which operators of Spark were in the plan")
def test_untracked_operator_is_named_with_its_place(run: Case, kind: str) -> None:
    change, described, instead = BETWEEN[kind]

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        kept = tracker.filter(messages, "id > 3", name="keep")
        rows = tracker.explode(kept, "array(struct(id, 0 AS child), struct(id, 1 AS child))", name="split")
        later = tracker.filter(change(rows).withColumn("more", F.lit(1)), "id < 100", name="again")
        tracker.write(tracker.union_by_name(later, later).repartition(2), run.append(), name="save")

    # what is read from the source is nobody's mistake
    text = run.refused(pipeline, InexactPipelineError, run.messages.where("id >= 0"))
    assert described in text
    assert "between 'split' and 'again'" in text
    assert instead in text
    assert "id >= 0" not in text
    assert "None of your own operators" not in text


@pytest.mark.classic("only a JVM shows which operators of Spark were in the plan")
def test_untracked_operator_before_group_by_and_join_is_named(run: Case) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        some = tracker.filter(messages.where("id <> 7"), "id > 3", name="keep")
        both = tracker.join(some, some.select("id", "_share", "_roots"), "id", name="meet")
        table = both.sparkSession.range(30).where("id <> 8").withColumn("x", F.lit(1))
        counted = F.count("*").alias("n")
        total = tracker.group_by(tracker.join(both, table, "id"), "x", counted, partial=True, name="total")
        tracker.write(total, run.append(), name="save")

    text = run.refused(pipeline, InexactPipelineError)
    assert "Filter (NOT (id = 7)), between 'spout' and 'keep'" in text
    assert "id = 8" not in text
