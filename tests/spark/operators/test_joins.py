"""The tracker's joins by keys of two types, against Spark's own join of the same frames: rows, keys and errors."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from itertools import combinations_with_replacement, product
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from acker_redis.spark.operators import joins, tracking
from acker_redis.spark.proof.equation import Equation
from tests.support.spark.cases import MakeCase

pytestmark = pytest.mark.spark

EQUATION = Equation("emission", "spout")
SALTS = ("roots", "shares")

VALUES = {
    "boolean": "true, false",
    "bigint": "1, 4, 9007199254740993",
    "double": "1, '-0.0', 0, 'NaN', 0.1, 9007199254740992",
    "decimal(10,2)": "1, 0.1, 0, 12345678.12",
    "string": "'1', '01', ' 1', '1.0', 'x', 'T', '0.1', 'NaN', '2026-01-01', '2026-1-1', '2026-01-01T00:00:00Z', 'a', 'A', ''",
    "string collate utf8_lcase": "'A', 'a', '1', 'true'",
    "binary": "'1', 'a', ''",
    "date": "'2026-01-01', '1500-01-01'",
    "timestamp": "'2026-01-01 00:00:00', '2026-01-01 00:00:00Z'",
    "timestamp_ntz": "'2026-01-01 00:00:00', '2026-01-01 05:45:00'",
    "array<double>": "array('1'), array('-0.0'), array('0')",
    "map<int, int>": "map(1, 1)",
}
"""Type -> values of it, awkward ones among them."""

TEXTS = [kind for kind in VALUES if kind.startswith("string")]


@pytest.fixture(params=["ansi", "not ansi"])
def ansi(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    settings = {
        "spark.sql.ansi.enabled": str(request.param == "ansi").lower(),
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.adaptive.enabled": "false",  # and no code, for which small data take longer
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {name: spark.conf.get(name) or "" for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield request.param == "ansi"
    for name, value in before.items():
        spark.conf.set(name, value)


Sides: TypeAlias = Callable[[str, str], tuple[DataFrame, DataFrame]]


def side(spark: SparkSession, kind: str, name: str) -> tuple[DataFrame, DataFrame]:
    """The values of a type, each twice, and null: as a frame of Spark's, and tracked."""
    values = f"posexplode(array({VALUES[kind]}, {VALUES[kind]}, NULL)) AS (place, value)"
    plain = spark.sql(f"SELECT bigint(place) AS {name}, CAST(value AS {kind}) AS key FROM (SELECT {values})")
    return plain, tracking.tracked(plain, name, SALTS, EQUATION)


def sides(spark: SparkSession) -> Sides:
    """Each side is made once, and joined with many others."""
    return cache(partial(side, spark))


def ways(sides: Sides, one: str, other: str, how: str) -> list[DataFrame] | None:
    """Spark's own join and the tracker's two; None: all three refuse."""
    (left, left_rows), (right, right_rows) = sides(one, "l"), sides(other, "r")
    candidates: list[Callable[[], DataFrame]] = [
        lambda: left.join(right, "key", how),
        lambda: joins.matched(left_rows, right_rows, ["key"], how, "join", uuid4().hex, EQUATION),
    ]
    if how in ("inner", "left"):
        candidates.append(
            lambda: joins.looked_up(
                left_rows, right, ["key"], "join", uuid4().hex, EQUATION, keep_unmatched=how == "left"
            )
        )
    frames = []
    for make in candidates:
        try:
            frame = make().select("key", "l", "r")
            _ = frame.schema  # Spark Connect resolves a plan when it is asked for it
            frames.append(frame)
        except (AnalysisException, PipelineError) as exc:
            assert isinstance(exc, AnalysisException) is (make is candidates[0]), exc
    assert len(frames) in (0, len(candidates)), f"{one} and {other}: {len(frames)} of {len(candidates)} accept them"
    assert len({frame.schema["key"].dataType.simpleString() for frame in frames}) <= 1
    return frames or None


def rows(pairs: list[DataFrame]) -> Counter[tuple[Any, ...]]:
    frames = [
        frame.select(F.lit(number).alias("pair"), F.col("key").cast("string").alias("key"), "l", "r")
        for number, frame in enumerate(pairs)
    ]
    return Counter(tuple(row) for row in reduce(DataFrame.union, frames).collect())


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_join_keys_of_any_two_types_match_as_in_spark(spark: SparkSession, ansi: bool, how: str) -> None:
    some = product(["bigint", "double"], VALUES)
    pairs = combinations_with_replacement(VALUES, 2) if how == "inner" else some
    of_types = sides(spark)
    compared = [
        found
        for one, other in pairs
        if not (ansi and (one in TEXTS) != (other in TEXTS)) and (found := ways(of_types, one, other, how))
    ]
    assert len(compared) > (15 if how == "inner" else 5)
    for at in range(0, len(compared), 12):  # more in one plan take long
        own, *ours = (rows(list(way)) for way in zip(*compared[at : at + 12], strict=True))
        assert own
        for one in ours:
            assert one == own


def ended(frame: DataFrame) -> Any:
    try:
        return Counter(tuple(row) for row in frame.selectExpr("CAST(key AS string)", "l", "r").collect())
    except PySparkException as exc:
        return exc.getCondition()


@pytest.mark.parametrize("ansi", ["ansi"], indirect=True)
@pytest.mark.parametrize("other", ["bigint", "decimal(10,2)", "boolean", "date", "timestamp", "double"])
def test_join_key_text_that_cannot_be_cast_raises_as_in_spark(spark: SparkSession, ansi: bool, other: str) -> None:
    of_types = sides(spark)
    for one, how in product(TEXTS, ("inner", "full")):
        found = ways(of_types, one, other, how)
        assert found is not None
        own, *ours = map(ended, found)
        assert isinstance(own, str), own
        assert ours == [own] * len(ours)


@pytest.mark.parametrize("ansi", ["not ansi"], indirect=True)
@pytest.mark.parametrize("other_side", ["tracked", "table"])
def test_join_of_text_and_number_keys_matches_equal_numbers(case: MakeCase, ansi: bool, other_side: str) -> None:
    run = case(n=4)
    texts = run.spark.createDataFrame([("1", 10), ("02", 20), (" 3", 30), ("4.0", 40)], "key string, other bigint")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        left = messages.withColumn("key", F.expr("id + 1"))
        right = texts
        if other_side == "tracked":
            text = F.element_at(F.array(*map(F.lit, ("1", "02", " 3", "4.0"))), (F.col("id") + 1).cast("int"))
            right = messages.select(text.alias("key"), (10 * (F.col("id") + 1)).alias("other"), "_share", "_roots")
        tracker.write(tracker.join(left, right, "key", partial=True), run.append())

    run.complete(pipeline)
    assert sorted(run.written("key", "other")) == [(1, 10), (2, 20), (3, 30), (4, 40)]


def test_join_keys_compared_by_more_than_casts_are_refused(spark: SparkSession) -> None:
    """char is padded: by a function, before it is compared."""
    for kind in ("char(3)", "char(5)"):
        spark.sql(f"CREATE TABLE c{kind[5]} (key {kind}, n{kind[5]} bigint) USING parquet")
    try:
        short, long = spark.table("c3"), spark.table("c5")
        left = tracking.tracked(short, "n3", SALTS, EQUATION)
        with pytest.raises(PipelineError, match="by more than casts"):
            joins.looked_up(left, long, ["key"], "join", "meter", EQUATION, keep_unmatched=False)
    finally:
        spark.sql("DROP TABLE c3")
        spark.sql("DROP TABLE c5")
