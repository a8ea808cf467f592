"""Operators of Spark's own between the tracker's: harmless ones, which every pipeline has to survive, and harmful ones.

A harmful one may drop or copy rows, so what it means here is what its user ought to have written: every row, once.
"""

import random
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import ClassVar
from uuid import uuid4

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from acker_redis.spark.runtime.sessions import is_connect
from tests.model_based.pipelines.operators import TRACKING, Known, Operator, Playing, Rows, condition_of
from tests.support.spark.versions import COUNTS_ONCE, VIEWS_OVER_CONNECT

HARMLESS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "select": lambda frame: frame.select(*reversed(frame.columns)),
    "scratch column": lambda frame: frame.withColumn("scratch", F.size("tags")).drop("scratch"),
    "renamed and back": lambda frame: frame.withColumnRenamed("k", "K2").withColumnRenamed("K2", "k"),
    "alias": lambda frame: frame.alias("other").select("other.*"),
    "repartition": lambda frame: frame.repartition(3),
    "repartition by k": lambda frame: frame.repartition(3, "k"),
    "repartition by id": lambda frame: frame.repartition("id"),
    "coalesce": lambda frame: frame.coalesce(1),
    "sortWithinPartitions": lambda frame: frame.sortWithinPartitions("k"),
    "rebalance": lambda frame: frame.hint("rebalance"),
    "observe": lambda frame: frame.observe(f"mine {uuid4()}", F.count(F.lit(1)).alias("rows")),  # Spark wants other names
    "window": lambda frame: frame.withColumn("w", F.row_number().over(Window.partitionBy("k").orderBy("path")))
    .where("w > 0")
    .drop("w"),
    "where true": lambda frame: frame.where("path IS NOT NULL OR path IS NULL"),
    "dropna": lambda frame: frame.dropna(how="all"),
    "cross join with one row": lambda frame: frame.crossJoin(frame.sparkSession.range(1).toDF("one")).drop("one"),
    "lookup": lambda frame: frame.join(
        F.broadcast(frame.sparkSession.createDataFrame([("a", 1), ("b", 2), (None, 3)], "k string, unique int")), "k", "left"
    ).withColumn("pad", F.when(F.expr("coalesce(unique, 0) >= 0"), F.col("pad"))).drop("unique"),
}  # fmt: skip
"""Name -> what it does."""

if COUNTS_ONCE:
    HARMLESS |= {
        "repartitionByRange": lambda frame: frame.repartitionByRange(3, "n"),
        "orderBy": lambda frame: frame.orderBy("n", "path"),
    }

LOOKS: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    "show": lambda frame: frame.show(3),
    "collect": lambda frame: frame.collect(),
    "toPandas": lambda frame: frame.select("id", "k").toPandas(),
    "toLocalIterator": lambda frame: list(islice(frame.toLocalIterator(), 3)),
    "take": lambda frame: frame.take(2),
    "isEmpty": lambda frame: frame.isEmpty(),
    "explain": lambda frame: frame.explain(),
    "native write": lambda frame: frame.write.format("noop").mode("overwrite").save(),
    "groupBy count": lambda frame: frame.groupBy("k").count().collect(),
}
"""Actions of the user's, without effect on any outcome."""

HARMFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "limit": lambda frame: frame.limit(5),
    "limit of many": lambda frame: frame.limit(150),
    "offset": lambda frame: frame.offset(2),
    "sample": lambda frame: frame.sample(0.7, 3),
    "sample with replacement": lambda frame: frame.sample(True, 1.0, 3),
    "randomSplit": lambda frame: frame.randomSplit([0.5, 0.5], 7)[0],
    "dropDuplicates of n": lambda frame: frame.dropDuplicates(["n"]),
    "dropDuplicates of id": lambda frame: frame.dropDuplicates(["id"]),
    "dropna of k": lambda frame: frame.dropna(subset=["k"]),
    "union with itself": lambda frame: frame.union(frame),
    "native explode": lambda frame: frame.withColumn("c", F.explode(F.expr("sequence(1, 2)"))).drop("c"),
    "crossJoin": lambda frame: frame.crossJoin(frame.sparkSession.range(2).toDF("two")).drop("two"),
    "inner join, keys twice": lambda frame: frame.join(
        frame.sparkSession.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "k string, x int"), "k"
    ).drop("x"),
    "left join, keys twice": lambda frame: frame.join(
        frame.sparkSession.createDataFrame([("a", 1), ("a", 2)], "k string, x int"), "k", "left"
    ).drop("x"),
    "full join": lambda frame: frame.join(
        frame.sparkSession.createDataFrame([("a", 1), ("nobody", 2)], "k string, x int"), "k", "full"
    ).drop("x"),
    "left_semi": lambda frame: frame.join(
        frame.sparkSession.createDataFrame([("a",), ("b",)], "k string"), "k", "left_semi"
    ),
    "localCheckpoint": lambda frame: frame.localCheckpoint(),
    "mapInPandas": lambda frame: (
        frame.mapInPandas(lambda batches: batches, frame.schema) if "marks" not in frame.columns else frame.limit(7)
    ),
    "where rand": lambda frame: frame.where("rand(4) < 0.8"),
    "shares set to 0": lambda frame: frame.withColumn("_share", F.lit(0).cast("bigint")),
}
"""Name -> what it does."""


@dataclass(frozen=True)
class Harmless(Operator):
    """One of Spark's that keep every row once."""

    what: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return HARMLESS[self.what](frames[0])


@dataclass(frozen=True)
class Add(Operator):
    """`withColumn` of a column that is there."""

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return frames[0].withColumn("n", F.expr("n + 1")).fillna("none", ["k"])

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        derived = []
        for one in rows[0]:
            n, k = one.row["n"], one.row["k"]
            row = {**one.row, "n": None if n is None else n + 1, "k": "none" if k is None else k}
            derived.append(Known(row, one.messages))
        return derived


@dataclass(frozen=True)
class Look(Operator):
    """An action of the user's in between."""

    what: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        with redirect_stdout(StringIO()):
            LOOKS[self.what](frames[0])
        return frames[0]


@dataclass(frozen=True)
class Cache(Operator):
    """`cache`, filled at once or by whoever comes first."""

    filled: bool

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        cached = frames[0].cache()
        playing.cached.append(cached)
        if self.filled:
            cached.count()
        return cached


@dataclass(frozen=True)
class View(Operator):
    """A temporary view, and SQL over it."""

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        order = "ORDER" if COUNTS_ONCE else "SORT"
        query = f"SELECT * FROM (SELECT *, length(path) AS long FROM {{rows}}) {order} BY long"
        if is_connect(playing.session) and not VIEWS_OVER_CONNECT:
            return playing.session.sql(query, rows=frames[0]).drop("long")
        frames[0].createOrReplaceTempView("seen")
        return playing.session.sql(query.format(rows="seen")).drop("long")


@dataclass(frozen=True)
class Harmful(Operator):
    """One of Spark's that drop or copy rows, or may."""

    harmless: ClassVar[bool] = False
    what: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return HARMFUL[self.what](frames[0])


@dataclass(frozen=True)
class Where(Operator):
    """Spark's `where`; with `rest`, the rows that it dropped come back by a union of Spark's."""

    harmless: ClassVar[bool] = False
    condition: str
    rest: bool = False

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        kept = frames[0].where(self.condition)
        return kept.union(frames[0].where(f"NOT coalesce({self.condition}, false)")) if self.rest else kept


@dataclass(frozen=True)
class Without(Operator):
    """`exceptAll` or `intersect` with a part of the same rows."""

    harmless: ClassVar[bool] = False
    condition: str
    intersect: bool = False

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        part = frames[0].where(self.condition)
        if "marks" in frames[0].columns:  # maps can't be compared
            return part
        return frames[0].intersectAll(part) if self.intersect else frames[0].exceptAll(part)


@dataclass(frozen=True)
class ThroughFile(Operator):
    """Written by the user, and read again."""

    harmless: ClassVar[bool] = False
    table: bool

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        number = len(list(playing.folder.parent.glob("through-*")))
        path = playing.folder.parent / f"through-{number}"
        writer = frames[0].write
        if self.table:
            name = f"through_{path.parent.name}_{number}"
            writer.option("path", str(path)).saveAsTable(name)
            return playing.session.table(name)
        writer.parquet(str(path))
        return playing.session.read.parquet(str(path))


@dataclass(frozen=True)
class NativeUnion(Operator):
    """Spark's `unionByName` of two tracked frames."""

    harmless: ClassVar[bool] = False
    inputs: ClassVar[int] = 2

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return frames[0].unionByName(frames[1])

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        return [*rows[0], *rows[1]]


@dataclass(frozen=True)
class NativeJoin(Operator):
    """Spark's `join` of two tracked frames, of which the second lends no column but the key."""

    harmless: ClassVar[bool] = False
    inputs: ClassVar[int] = 2
    how: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return frames[0].join(frames[1].select("k"), "k", self.how).select(*playing.data.columns, *TRACKING)


def draw(chance: random.Random, *, harmful: bool) -> Operator:
    """Draw one."""
    if harmful:
        choices: list[Callable[[], Operator]] = [
            *(lambda what=what: Harmful(what) for what in HARMFUL),
            lambda: Where(condition_of(chance), chance.random() < 0.3),
            lambda: Where(condition_of(chance), chance.random() < 0.3),
            lambda: Without(condition_of(chance), chance.random() < 0.3),
            lambda: ThroughFile(chance.random() < 0.5),
            lambda: NativeUnion(),
            lambda: NativeUnion(),
            lambda: NativeJoin(chance.choice(("inner", "left_semi", "left_anti"))),
        ]
        return chance.choice(choices)()
    choices = [
        *(lambda what=what: Harmless(what) for what in HARMLESS),
        *(lambda: Look(chance.choice([*LOOKS])) for _ in range(4)),
        Add,
        lambda: Cache(chance.random() < 0.6),
        lambda: Cache(chance.random() < 0.6),
        View,
    ]
    return chance.choice(choices)()
