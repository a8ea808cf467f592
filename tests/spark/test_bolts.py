"""Bolts row by row in Python and in SQL: the same meaning as the vectorised kind."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import xor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from acker_redis import BadBatchError, FailedError, NotExactError
from acker_redis.spark import Collector, Emitted, sql
from acker_redis.spark.anchors import COLUMN
from tests.spark.cases import CHILD, Case, MakeCase, consume

pytestmark = pytest.mark.spark

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


def rows_of(run: Case, frame: Any, name: str = "sink") -> int:
    return run.tracker.sink(frame, consume, name=name).rows


def test_a_generator_derives_rows(case: MakeCase) -> None:
    run = case(n=6)
    derived = run.tracker.bolt_rows(run.tracked, items, CHILD, name="items")
    assert rows_of(run, derived.repartition(2, "child")) == 15
    assert run.outcomes() == {"ack": 6}


def test_an_object_emits_through_a_collector_and_may_fail_its_row(case: MakeCase) -> None:
    run = case(n=6)
    derived = run.tracker.bolt_rows(run.tracked, Splitter(), CHILD, name="items")
    assert rows_of(run, derived) == 12
    outcomes = run.acker.poll()
    assert Counter(outcome.kind for outcome in outcomes) == {"ack": 5, "fail": 1}
    assert {o.detail for o in outcomes if o.kind == "fail"} == {"three is right out"}


def test_an_exception_fails_its_row_with_its_message_and_the_others_go_on(case: MakeCase) -> None:
    run = case(n=4)

    def divide(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
        yield row["id"], 6 // row["id"]

    rows_of(run, run.tracker.bolt_rows(run.tracked, divide, CHILD, name="divide"))
    outcomes = run.acker.poll()
    assert Counter(outcome.kind for outcome in outcomes) == {"ack": 3, "fail": 1}
    assert [o.detail for o in outcomes if o.kind == "fail"] == ["ZeroDivisionError: integer division or modulo by zero"]


def test_an_exception_may_fail_the_task_and_a_failure_still_fails_the_row(case: MakeCase) -> None:
    run = case(n=4)

    def broken(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise ZeroDivisionError("on purpose")

    def failing(row: dict[str, Any]) -> list[tuple[int, int]]:
        raise FailedError("no")

    with pytest.raises(PySparkException, match="on purpose"):
        rows_of(run, run.tracker.bolt_rows(run.tracked, broken, CHILD, name="x", on_error="raise"), "sink-x")
    other = case(n=4)
    rows_of(other, other.tracker.bolt_rows(other.tracked, failing, CHILD, name="y", on_error="raise"))
    assert other.outcomes() == {"failed": 4}


def test_rows_that_do_not_fit_the_schema_fail_alone_or_fail_the_task(case: MakeCase) -> None:
    def fit(row: dict[str, Any]) -> list[Any]:
        return [{0: (1, 2, 3), 4: (2, "x"), 5: {"id": 3}}.get(row["id"], (row["id"], 0))]

    run = case(n=6)
    assert rows_of(run, run.tracker.bolt_rows(run.tracked, fit, CHILD, name="fit")) == 3
    outcomes = run.acker.poll()
    assert Counter(outcome.kind for outcome in outcomes) == {"ack": 3, "fail": 3}
    reasons = sorted(outcome.detail or "" for outcome in outcomes if outcome.kind == "fail")
    assert [reason[:38] for reason in reasons] == [
        "a derived row has 3 values, the schema",
        "a derived row lacks the columns ['chil",
        "column 'child' is int and can't hold '",
    ]
    other = case(n=4, partitions=1)
    with pytest.raises(PySparkException, match="3 values, the schema 2 columns"):
        rows_of(other, other.tracker.bolt_rows(other.tracked, fit, CHILD, name="fit", on_error="raise"))


def test_bad_arguments_of_a_row_bolt(case: MakeCase) -> None:
    run = case(n=1)
    with pytest.raises(BadBatchError, match="on_error"):
        run.tracker.bolt_rows(run.tracked, items, CHILD, name="x", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(BadBatchError, match="function of one row"):
        run.tracker.bolt_rows(run.tracked, 5, CHILD, name="x")  # type: ignore[arg-type]


def test_sql_derives_rows_and_acks_those_without_children(case: MakeCase) -> None:
    run = case(n=8)
    derived = run.tracker.explode(run.tracked, ITEMS, name="items")
    assert derived.columns == ["id", "item", COLUMN]
    assert rows_of(run, derived.repartition(3, "item")) == 28
    assert run.outcomes() == {"ack": 8}
    assert run.acker.stats().unowned == 0


def test_sql_on_sql_on_python_on_sql(case: MakeCase) -> None:
    run = case(n=9)
    first = run.tracker.explode(run.tracked, ITEMS, name="items")
    second = run.tracker.filter(first, "item % 2 = 1", name="odd")
    third = run.tracker.explode(second, F.array("item", "item"), name="twice")

    def same(batch: pa.RecordBatch) -> Emitted:
        return Emitted(batch.select(["value"]), np.arange(batch.num_rows))

    fourth = run.tracker.bolt(third, same, "value int", name="python")
    fifth = run.tracker.filter(fourth, "value > 1", name="more")
    odd = sum((n + 1) // 2 for n in range(9))
    assert rows_of(run, fifth) == 2 * (odd - 8)
    assert run.outcomes() == {"ack": 9}


def test_sql_fails_rows_with_a_reason_and_the_others_go_on(case: MakeCase) -> None:
    """Before and behind other operators in SQL; what was dropped or failed before is not asked again."""
    run = case(n=12)
    kept = run.tracker.filter(run.tracked, "id <> 1", name="keep")
    first = run.tracker.fail(kept, "id < 3", "too small", name="check")
    items = run.tracker.explode(first, "if(id = 4, null, array(id, NULL))", name="items")
    second = run.tracker.fail(items, "value % 5 = 0", "a multiple of five", name="again")
    rows = run.tracker.sink(run.tracker.filter(second, "true", name="all"), consume, name="sink").rows
    assert rows == 2 * (12 - 1 - 2 - 1) - 2
    outcomes = run.acker.poll()
    assert Counter(outcome.kind for outcome in outcomes) == {"ack": 8, "fail": 4}
    failed = Counter((one.detail, one.last_stage) for one in outcomes if one.kind == "fail")
    assert failed == {("too small", "check"): 2, ("a multiple of five", "again"): 2}
    with pytest.raises(BadBatchError, match="what is wrong"):
        run.tracker.fail(run.tracked, "id = 1", "", name="no-reason")


def test_every_part_of_a_chain_in_sql_may_run_alone_before(case: MakeCase) -> None:
    run = case(n=9)
    first = run.tracker.explode(run.tracked, ITEMS, name="items")
    second = run.tracker.filter(first, "item > 2", name="more")
    third = run.tracker.explode(second, "array(item, item)", name="twice")
    assert [frame.count() for frame in (first, second, third)] == [36, 21, 42]
    rows_of(run, third)
    assert run.outcomes() == {"ack": 9}
    assert run.acker.stats().unowned == 0


@pytest.mark.parametrize("bound", [False, True], ids=["free", "bound to the DataFrame"])
def test_sql_behind_a_spout_acks_what_it_drops(case: MakeCase, bound: bool) -> None:
    run = case(n=9)
    kept = run.tracker.filter(run.tracked, run.tracked["id"] != 3 if bound else "id <> 3", name="kept")
    children = F.sequence(F.lit(1), F.when((kept["id"] if bound else F.col("id")) > 4, F.lit(2)))
    derived = run.tracker.explode(kept, children, name="two")
    assert derived.columns == ["value", COLUMN]
    assert sorted(row["value"] for row in derived.select("value").collect()) == [1] * 4 + [2] * 4
    assert rows_of(run, derived) == 8
    assert run.outcomes() == {"ack": 9}
    assert run.acker.stats().unowned == 0


def test_sql_that_is_not_repeatable_is_evaluated_once(case: MakeCase) -> None:
    run = case(n=40)
    assert not sql.is_of_one_row(run.tracked, "collect_list(id) OVER (ORDER BY id)")
    assert sql.is_of_one_row(run.tracked, F.expr(ITEMS))
    derived = run.tracker.explode(run.tracked, "filter(array(1, 2), i -> rand() < 0.5)", name="some")
    rows_of(run, derived)
    assert run.outcomes() == {"ack": 40}


def test_sql_behind_a_spout_and_its_sink_are_one_update_per_message(case: MakeCase) -> None:
    run = case(n=8)
    derived = run.tracker.explode(run.tracked, ITEMS, name="items")
    assert run.tracker.sink(derived, consume, name="sink") == (28, 8)
    stats = run.acker.stats()
    assert (stats.inits, stats.acks) == (8, 0)
    assert run.outcomes() == {"ack": 8}


def test_arrays_hold_nulls_and_nested_types_or_are_long(case: MakeCase) -> None:
    run = case(n=4, partitions=1)
    structs = """CASE id WHEN 0 THEN array(struct(id, map('a', array(1)) AS m), NULL) WHEN 1 THEN NULL WHEN 2 THEN array()
        ELSE transform(sequence(1, 50000), i -> struct(id, map('b', array(i)) AS m)) END"""
    derived = run.tracker.explode(run.tracked, structs, name="structs")
    counted = derived.groupBy("id").agg(F.count("*").alias("n"), F.sum(F.expr("m['b'][0]")).alias("sum")).collect()
    assert {row["id"]: (row["n"], row["sum"]) for row in counted} == {
        0: (1, None), None: (1, None), 3: (50_000, 50_000 * 50_001 // 2),
    }  # fmt: skip
    assert rows_of(run, derived) == 50_002
    assert run.outcomes() == {"ack": 4}


@pytest.mark.parametrize(
    "array",
    [
        'cast(parse_json(\'[{"a": 1}, {"b": 2}]\') AS array<variant>)',
        "array_repeat(named_struct(), 2)",
    ],
)
def test_types_that_do_not_cross_to_python_are_exploded_by_spark(case: MakeCase, array: str) -> None:
    run = case(n=3)
    derived = run.tracker.explode(run.tracked, array, name="two")
    assert rows_of(run, derived.select(F.lit(1).alias("one"), COLUMN)) == 6
    assert run.outcomes() == {"ack": 3}


def test_fields_of_one_name_are_refused_before_anything_runs(case: MakeCase) -> None:
    run = case(n=1)
    for array in ("array(named_struct('a', id, 'a', id))", "array(named_struct('a', id, 'A', id))"):
        with pytest.raises(BadBatchError, match="columns of one name"):
            run.tracker.explode(run.tracked, array, name="two")


def test_an_explode_planned_in_another_way_is_refused(case: MakeCase) -> None:
    """Its edges would be others, under the token of the first."""
    run = case(n=5)
    assert run.tracker.explode(run.tracked, "array(id, id)", name="e").count() == 10
    with pytest.raises(NotExactError, match="planned in one worker with 'spout' before"):
        run.tracker.explode(run.tracked.withColumn("more", F.lit(1)), "array(id, id)", name="e")
    with pytest.raises(NotExactError, match="planned in one worker with 'spout' before"):
        run.tracker.explode(run.tracked, F.array(run.tracked["id"], run.tracked["id"]), name="e")
    assert rows_of(run, run.tracker.explode(run.tracked, "array(id, id)", name="e")) == 10
    assert run.outcomes() == {"ack": 5}


def test_names_of_the_trackers_own_are_refused(case: MakeCase) -> None:
    """A column that names an operator which dropped the row would have its row acked unseen."""
    run = case(n=3)
    with pytest.raises(BadBatchError, match="_acker_dropped"):
        run.tracker.spout(run.messages.withColumn("_acker_dropped", F.lit("x")), "id", "attempt", name="other")
    kept = run.tracker.filter(run.tracked, "id > 0", name="kept")
    with pytest.raises(BadBatchError, match="_acker_dropped"):
        run.tracker.bolt_rows(kept, items, "_acker_dropped string", name="b")
    with pytest.raises(BadBatchError, match="_acker_dropped"):
        run.tracker.filter(kept.withColumn("_acker_dropped", F.lit("all")), "true", name="all")
    with pytest.raises(BadBatchError, match="_Acker_dropped"):
        run.tracker.explode(kept, "array(struct(id, 'all' AS _Acker_dropped))", name="e")
    with pytest.raises(BadBatchError, match=r"instead of giving \*"):
        run.tracker.explode(kept, "array(struct(*))", name="e")
    assert rows_of(run, run.tracker.explode(kept, "array(struct(id))", name="e")) == 2
    assert run.outcomes() == {"ack": 3}


def test_a_message_id_may_be_the_attempt(case: MakeCase) -> None:
    run = case(n=3)
    tracked = replace(run.tracker, emission=1).spout(run.messages, "id", "id")
    assert replace(run.tracker, emission=1).explode(tracked, "array(id)", name="e").count() == 3


def test_what_was_dropped_is_not_evaluated(case: MakeCase) -> None:
    run = case(n=6)
    kept = run.tracker.filter(run.tracked, "id > 0", name="not-zero")
    derived = run.tracker.explode(kept, "transform(array(1), i -> if(id = 0, raise_error('no'), id))", name="one")
    assert rows_of(run, derived) == 5
    assert run.outcomes() == {"ack": 6}


def test_what_sql_derives_completes_with_the_last_leaf_only(case: MakeCase) -> None:
    run = case(n=5)
    derived = run.tracker.explode(run.tracked, ITEMS, name="items")
    rows_of(run, derived.where("NOT (id = 4 AND item = 4)"))
    assert run.outcomes() == {"ack": 4}
    assert run.after_timeout() == {"timeout": 1}


def test_sql_splits_the_edges_of_every_root_of_a_row(case: MakeCase) -> None:
    """Rows with several anchors, as a join will make them."""
    run = case(n=1)
    frame = run.messages.sparkSession.range(3).withColumn(
        COLUMN, F.expr("flatten(transform(sequence(0, cast(id AS int)), i -> array(i, xxhash64(id, i))))")
    )
    want = {
        (len(row[COLUMN]), root): edge
        for row in frame.collect()
        for root, edge in zip(row[COLUMN][::2], row[COLUMN][1::2], strict=True)
    }
    for children in range(1, 5):
        split = sql.exploded(frame, F.expr(f"sequence(1, {children})"), "it's")
        got: dict[tuple[int, int], list[int]] = {}
        for row in split.collect():
            for root, edge in zip(row[COLUMN][::2], row[COLUMN][1::2], strict=True):
                got.setdefault((len(row[COLUMN]), root), []).append(edge)
        assert {key: reduce(xor, edges) for key, edges in got.items()} == want
        for key, edges in got.items():
            some = [reduce(xor, part) for n in range(1, children) for part in combinations(edges, n)]
            assert not {0, want[key]} & set(some)


def test_a_task_that_dies_half_way_counts_once_in_sql_too(case: MakeCase, tmp_path: Any) -> None:
    run = case(n=60)
    mark = tmp_path / "died"

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        for _ in batches:
            if not mark.exists():
                mark.touch()
                raise RuntimeError("on purpose")

    derived = run.tracker.explode(run.tracked, ITEMS, name="items")
    run.tracker.sink(derived.repartition(2, "item"), write, name="sink")
    assert mark.exists()
    assert run.outcomes() == {"ack": 60}


def test_what_is_not_an_array_is_refused(case: MakeCase) -> None:
    run = case(n=1)
    with pytest.raises(BadBatchError, match="expected an array"):
        run.tracker.explode(run.tracked, "id", name="x")


def test_sql_operators_have_one_consumer_too(case: MakeCase) -> None:
    run = case(n=3)
    kept = run.tracker.filter(run.tracked, "id > 0", name="kept")
    rows_of(run, kept, "one")
    with pytest.raises(NotExactError, match="fan_out"):
        rows_of(run, kept, "two")
