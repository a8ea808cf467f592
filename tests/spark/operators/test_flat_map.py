"""flat_map in Python, row by row and vectorised, and the operators in SQL that derive, fail and drop rows."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import AckerError, JobFailedError, PipelineError, RowFailedError
from acker_redis.spark import Collector, FlatMapOutput, Tracker
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import CHILD, IDS, Case, MakeCase, Row
from tests.support.spark.faults import fan_out

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
ITEMS = "transform(filter(sequence(0, cast(id AS int)), i -> i > 0), i -> struct(id, i AS item))"
"""As many children as the id says, none for id 0."""


def items(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for item in range(row["id"]):
        yield row["id"], item


class Splitter:
    def execute(self, row: dict[str, Any], collector: Collector) -> None:
        if row["id"] == 3:
            collector.emit({"id": 3, "child": 0})
            collector.fail("three is right out")
        for item in range(row["id"]):
            collector.emit({"id": row["id"], "child": item})


def writing(run: Case, make: Callable[[Tracker, DataFrame], DataFrame]) -> Callable[[Tracker, DataFrame], None]:
    """A pipeline: what is made of the messages, into files."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(make(tracker, messages), run.append())

    return pipeline


def items_of(ids: range) -> list[Row]:
    return [(id, item) for id in ids for item in range(id)]


def test_chained_flat_maps_complete_and_childless_rows_are_acked(case: MakeCase) -> None:
    run = case(n=50)

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        first = messages.transform(tracker.flat_map_arrow, partial(fan_out, 2), CHILD)
        return tracker.flat_map_arrow(first.repartition(3, "child"), partial(fan_out, 4), CHILD, name="second")

    run.complete(writing(run, pipeline))
    assert sorted(run.written()) == sorted((id, child) for id in range(1, 50) for child in [*range(4)] * 2)


def test_flat_map_generator_derives_rows(case: MakeCase) -> None:
    run = case(n=6)
    run.complete(writing(run, lambda t, rows: rows.transform(t.flat_map, items, CHILD).repartition(2, "child")))
    assert sorted(run.written()) == items_of(range(6))


def test_flat_map_object_emits_and_fails_through_a_collector(case: MakeCase) -> None:
    run = case(n=6)
    ended = run.done(writing(run, lambda t, rows: t.flat_map(rows, Splitter(), CHILD)), retry=ONCE)
    assert sorted(run.written()) == [row for row in items_of(range(6)) if row[0] != 3]
    assert ended.acked == {0, 1, 2, 4, 5}
    assert ended.reasons == {("three is right out", "Splitter"): 1}


def test_failed_row_fails_its_message_with_its_reason(case: MakeCase) -> None:
    run = case(n=20)

    def fail_two(batch: pa.RecordBatch) -> FlatMapOutput:
        ids = batch.column("id").to_numpy()
        bad = {int(row): "odd one" for row in np.flatnonzero(np.isin(ids, [3, 15]))}
        return FlatMapOutput(pa.record_batch({"id": ids}), np.arange(len(ids)), bad)

    ended = run.done(writing(run, lambda t, rows: t.flat_map_arrow(rows, fail_two, IDS, name="check")))
    assert ended.reasons == {("odd one", "check"): 2}
    assert (set(ended.letters), {len(ended.kinds[id]) for id in (3, 15)}) == ({3, 15}, {2})
    ended.check({id: [(id,)] for id in range(20)}, run.written())


def test_flat_map_exception_fails_only_its_row(case: MakeCase) -> None:
    run = case(n=4)

    def divide(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
        yield row["id"], int(6 / row["id"])

    ended = run.done(writing(run, lambda t, rows: t.flat_map(rows, divide, CHILD)), retry=ONCE)
    assert ended.acked == {1, 2, 3}
    assert ended.reasons == {("ZeroDivisionError: division by zero", "divide"): 1}


def test_flat_map_with_on_error_raise_fails_the_task(case: MakeCase) -> None:
    def broken(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise ZeroDivisionError("on purpose")

    def failing(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise RowFailedError("no")

    run = case(n=4)
    ended = run.run(writing(run, lambda t, rows: t.flat_map(rows, broken, CHILD, on_error="raise")), retry=ONCE)
    assert "The last error was: ZeroDivisionError: on purpose" in str(ended.error)
    assert (ended.acked, ended.letters) == (set(), {})
    other = case(n=4)
    ended = other.done(writing(other, lambda t, rows: t.flat_map(rows, failing, CHILD, on_error="raise")), retry=ONCE)
    assert ended.reasons == {("no", "failing"): 4}


def test_rows_not_fitting_the_schema_fail_alone(case: MakeCase) -> None:
    def fit(row: dict[str, Any]) -> list[Any]:
        return [{0: (1, 2, 3), 4: (2, "x"), 5: {"id": 3}}.get(row["id"], (row["id"], 0))]

    run = case(n=6)
    ended = run.done(writing(run, lambda t, rows: t.flat_map(rows, fit, CHILD)), retry=ONCE)
    assert ended.acked == {1, 2, 3}
    assert [(ended.letters[id].detail or "")[:38] for id in (0, 5, 4)] == [
        "A derived row has 3 values, but the sc",
        "A derived row lacks the columns ['chil",
        "Column 'child' is int and can't hold '",
    ]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda t, rows: t.flat_map(rows, items, CHILD, on_error="skip"),
            "on_error='skip' is unknown. Use 'fail' or 'raise'",
        ),
        (lambda t, rows: t.flat_map(rows, 5, CHILD), "function of one row"),
        (lambda t, rows: t.flat_map(rows, items, CHILD, name=""), "1 to 100 characters"),
        (lambda t, rows: t.flat_map(rows, items, "id bigint, _acker_x string"), "_acker_x"),
        (lambda t, rows: t.flat_map(rows, items, "id bigint, ID string"), "columns of one name"),
        (lambda t, rows: t.explode(rows, "id"), "children is bigint, not an array"),
        (lambda t, rows: t.explode(rows, "array(struct(*))"), r"instead of by \*"),
        (lambda t, rows: t.explode(rows, "array(struct(id, 'all' AS _Acker_dropped))"), "_Acker_dropped"),
        (lambda t, rows: t.explode(rows, "array(named_struct('a', id, 'A', id))"), "columns of one name"),
        (lambda t, rows: t.fail_where(rows, "id = 1", ""), "what is wrong"),
        (lambda t, rows: t.flat_map(rows, "split", "id bigint"), "Pass a function of one row"),
        (lambda t, rows: t.flat_map_arrow(rows, "id bigint", CHILD), "'id bigint' can't be called"),
        (lambda t, rows: t.join(rows, rows.sparkSession.range(3), "ID"), "spelled alike. Missing: \\['ID'\\]"),
        (lambda t, rows: t.write(rows.sparkSession.range(3), print), "isn't tracked"),
        (lambda t, rows: t.flat_map(rows.sparkSession.range(3), items, CHILD), "isn't tracked"),
        (lambda t, rows: t.flat_map(rows.drop("_roots"), items, CHILD), "_roots is missing"),
    ],
)
def test_invalid_operator_arguments_are_refused_before_reading(
    case: MakeCase, call: Callable[[Tracker, DataFrame], object], text: str
) -> None:
    run = case(n=5)
    with pytest.raises(PipelineError, match=text):
        raise PipelineError(run.refused(call, PipelineError))


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (lambda batch: FlatMapOutput(batch, np.zeros(1, np.int64)), "Return one parent per output row"),
        (lambda batch: FlatMapOutput(batch.rename_columns(["other"]), np.arange(batch.num_rows)), "but the schema has"),
    ],
)
def test_invalid_flat_map_output_ends_the_run_at_once(
    case: MakeCase, execute: Callable[[pa.RecordBatch], FlatMapOutput], text: str
) -> None:
    run = case(n=20)
    assert text in run.refused(writing(run, lambda t, rows: t.flat_map_arrow(rows, execute, IDS)), PipelineError)


def test_chained_sql_and_python_operators_complete(case: MakeCase) -> None:
    run = case(n=9)

    def same(batch: pa.RecordBatch) -> FlatMapOutput:
        return FlatMapOutput(batch.select(["value"]), np.arange(batch.num_rows))

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        first = tracker.explode(messages, ITEMS)
        assert first.columns == ["id", "item", *TRACKING]
        second = tracker.filter(first, first["item"] % 2 == 1)
        third = tracker.explode(second, F.array("item", "item"))
        fourth = tracker.flat_map_arrow(third, same, "value int")
        return tracker.filter(fourth.repartition(3, "value"), "value > 1")

    run.complete(writing(run, pipeline))
    odd = [item for id in range(9) for item in range(1, id + 1) if item % 2]
    assert sorted(run.written()) == sorted((item,) for item in odd + odd if item > 1)


def test_fail_where_fails_matching_rows_with_a_reason(case: MakeCase) -> None:
    """Before and behind other operators in SQL; what was dropped or failed before is not asked again."""
    run = case(n=12)

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        kept = tracker.filter(messages, "id <> 1")
        first = tracker.fail_where(kept, "id < 3", "too small", name="check")
        exploded = tracker.explode(first, "if(id = 4, null, array(id, NULL))")
        again = tracker.fail_where(exploded, "value % 5 = 0", F.concat(F.lit("a multiple: "), "value"), name="again")
        return tracker.filter(again, "true")

    ended = run.done(writing(run, pipeline), retry=ONCE)
    assert ended.reasons == {
        ("too small", "check"): 2, ("a multiple: 5", "again"): 1, ("a multiple: 10", "again"): 1,
    }  # fmt: skip
    truth = {id: [(id,), (None,)] for id in range(12) if id not in (1, 4)}
    assert len(ended.acked) == 8
    ended.check(truth, [(value,) for (value,) in run.written() if value is not None] + [(None,)] * 16)


def test_dropped_rows_are_not_evaluated_by_later_operators(case: MakeCase) -> None:
    run = case(n=6)

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        kept = tracker.filter(messages, "id > 0")
        derived = tracker.explode(kept, "transform(array(1), i -> if(id = 0, raise_error('no'), id))")
        return tracker.filter(derived.repartition(2), "10 div value > 1")

    run.complete(writing(run, pipeline))
    assert sorted(run.written()) == [(value,) for value in range(1, 6)]


def test_nondeterministic_sql_is_evaluated_once(case: MakeCase) -> None:
    run = case(n=400)

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        some = tracker.filter(messages, "rand() < 0.5")
        derived = tracker.explode(some, "filter(array(1, 2), i -> rand() < 0.5)")
        return tracker.fail_where(derived, "rand() < 0.3", "drawn")

    ended = run.done(writing(run, pipeline), retry=ONCE)
    assert 0 < len(ended.letters) < 200


def test_explode_handles_nulls_nested_types_and_long_arrays(case: MakeCase) -> None:
    run = case(n=4, partitions=1)
    structs = """CASE id WHEN 0 THEN array(struct(id, map('a', array(1)) AS m), NULL) WHEN 1 THEN NULL WHEN 2 THEN array()
        ELSE transform(sequence(1, 50000), i -> struct(id, map('b', array(i)) AS m)) END"""
    run.complete(writing(run, lambda t, rows: t.explode(rows, structs)))
    found = run.spark.read.parquet(run.out).groupBy("id").agg(F.count("*"), F.sum(F.expr("m['b'][0]"))).collect()
    assert {tuple(row) for row in found} == {(0, 1, None), (None, 1, None), (3, 50_000, 50_000 * 50_001 // 2)}


@pytest.mark.parametrize(
    "array", ['cast(parse_json(\'[{"a": 1}, {"b": 2}]\') AS array<variant>)', "array_repeat(named_struct(), 2)"]
)
def test_explode_handles_types_unknown_to_python(case: MakeCase, array: str) -> None:
    run = case(n=3)

    def pipeline(tracker: Tracker, messages: DataFrame) -> DataFrame:
        return tracker.explode(messages, array).select(F.lit(1).alias("one"), *TRACKING)

    run.complete(writing(run, pipeline))
    assert run.written() == [(1,)] * 6


def test_column_names_with_dots_and_backticks_are_accepted(case: MakeCase) -> None:
    run = case(n=6)

    def whole(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield row

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        named = messages.withColumns({"p.q": F.col("id") % 2, "o`r": F.col("id"), "k.1": F.concat(F.lit("k"), "id")})
        good = tracker.fail_where(named, "`o``r` = 3", "three")
        prices = run.spark.createDataFrame([("k1", 3), ("k2", 4)], "`k.1` string, `pr.ice` int")
        priced = tracker.join(good, prices, "k.1", "left")
        keys = tracker.explode(priced, "array(struct(`k.1`, `o``r` AS `x.y`))")
        both = tracker.join(priced, tracker.flat_map(keys, whole, "`k.1` string, `x.y` bigint"), "k.1", partial=True)
        total = tracker.group_by(both, ["p.q", "k.1"], F.sum("`pr.ice`").alias("to.tal"), partial=True)
        tracker.write(total.withColumnsRenamed({"p.q": "pq", "k.1": "k", "to.tal": "total"}), run.append())

    ended = run.done(pipeline, retry=ONCE)
    assert ended.reasons == {("three", "fail_where"): 1}
    assert sorted(run.written(), key=str) == [
        (0, "k0", None),
        (0, "k2", 4),
        (0, "k4", None),
        (1, "k1", 3),
        (1, "k5", None),
    ]


def test_spark_sql_error_ends_the_run_with_its_text_in_letters(case: MakeCase) -> None:
    run = case(n=4)
    ended = run.run(
        writing(run, lambda t, rows: rows.withColumn("x", F.expr("CAST(raise_error('too bad') AS string)"))), retry=ONCE
    )
    assert ended.acked == set()
    assert isinstance(ended.error, AckerError)
    assert isinstance(ended.error.__cause__, JobFailedError)
    assert isinstance(ended.error.__cause__.__cause__, PySparkException)
    assert all("too bad" in (letter.detail or "") for letter in ended.letters.values())
