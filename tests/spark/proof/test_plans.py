"""What a pipeline in SQL costs: no Python in its plans, nothing kept, no roots column, and nothing sent per row."""

from collections import Counter
from typing import Any

import pytest
import redis
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark import Tracker
from tests.support.spark.cases import Case, MakeCase

pytestmark = [pytest.mark.spark, pytest.mark.classic("only a JVM shows the plans that ran")]


class Plans:
    """Executed plans of what was written meanwhile, as texts, by a listener of the test's own."""

    def __init__(self, spark: Any) -> None:
        self._spark, self.texts = spark, list[str]()
        self.executions = 0

    def onSuccess(self, name: str, execution: JavaObject, nanos: int) -> None:
        self.executions += 1
        if name in ("command", "save"):
            self.texts.append(execution.executedPlan().toString())

    def onFailure(self, name: str, execution: JavaObject, error: JavaObject) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __enter__(self) -> "Plans":
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)  # what was written before isn't meant
        self._spark._jsparkSession.listenerManager().register(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)
        self._spark._jsparkSession.listenerManager().unregister(self)


def in_sql(run: Case, tracker: Tracker, messages: DataFrame) -> None:
    """Every operator in SQL but those that fail rows, a shuffle, two sinks."""
    parsed = messages.withColumn("parsed", F.from_json(F.format_string('{"a": %d}', "id"), "a bigint"))
    kept = tracker.filter(parsed, "parsed.a % 3 > 0")
    items = tracker.explode(kept, "transform(sequence(1, cast(id % 3 AS int)), i -> struct(id, i AS item))")
    priced = tracker.join(items, run.spark.range(3).selectExpr("cast(id AS int) AS item", "id * 10 AS price"), "item")
    tracker.write(priced.repartition(3, "id"), run.append())
    total = tracker.group_by(tracker.union_by_name(priced, priced), "item", F.sum("price").alias("total"), partial=True)
    counts = tracker.group_by(priced, "item", F.count("*").alias("n"), partial=True)
    both = tracker.join(total, counts, "item", partial=True)
    tracker.write(tracker.local_checkpoint(both), run.append("totals"))


def test_sql_pipeline_plan_has_no_python_cache_or_roots_column(case: MakeCase) -> None:
    run = case(n=200)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        parsed = messages.withColumn("parsed", F.from_json(F.format_string('{"a": %d}', "id"), "a bigint"))
        kept = tracker.filter(parsed, "parsed.a % 3 > 0")
        items = tracker.explode(kept, "transform(sequence(1, cast(id % 3 AS int)), i -> struct(id, i AS item))")
        tracker.write(items.repartition(3, "id"), run.append())

    with Plans(run.spark) as plans:
        run.complete(pipeline)
    assert len(run.written()) == sum(id % 3 for id in range(200))
    assert len(plans.texts) == 1
    for word in ("Python", "MapInArrow", "InMemory", "_roots", "ArrowEval"):
        assert word not in plans.texts[0], plans.texts[0]
    assert "CollectMetrics" in plans.texts[0]


def test_sql_joins_and_groups_have_no_python_in_their_plans(case: MakeCase) -> None:
    run = case(n=60)
    with Plans(run.spark) as plans:
        run.complete(lambda tracker, messages: in_sql(run, tracker, messages))
    assert len(plans.texts) == 2
    for text in plans.texts:
        assert "Python" not in text
        assert "MapInArrow" not in text
        assert "InMemory" not in text
    assert "_roots" not in plans.texts[0]


def commands(url: str) -> Counter[str]:
    """How often the server ran each command."""
    with redis.Redis.from_url(url) as client:
        return Counter({name: one["calls"] for name, one in client.info("commandstats").items()})


@pytest.mark.parametrize("n", [100, 20_000])
def test_redis_calls_do_not_grow_with_rows_per_message(case: MakeCase, url: str, n: int) -> None:
    """Init and ack calls for roots, some thousands at a time; nothing from workers, and no more for more rows of each."""
    few, many = updates_of(case(n=n), url, 1), updates_of(case(n=n), url, 50)
    assert max(few, many) < 60 + n / 100
    assert abs(few - many) < 20


def updates_of(run: Case, url: str, children: int) -> int:
    """Script calls in a run with so many rows per message."""
    before = commands(url)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        items = tracker.explode(messages, f"sequence(1, {children})")
        tracker.write(tracker.filter(items.repartition(2, "value"), "value > 0"), run.append())

    run.complete(pipeline)
    calls = commands(url) - before
    stats = run.acker.stats()
    assert (stats.inits, stats.acks) == (run.n, run.n)
    return sum(count for name, count in calls.items() if "evalsha" in name or "fcall" in name)
