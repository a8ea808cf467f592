"""What a flat_map_arrow step in a Python worker makes of its batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import PipelineError
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import FAILURE, OUT, ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.worker.arrow_function import FlatMapOutput, FlatMapStep
from acker_redis.spark.worker.row_function import RowByRow
from tests.support.batches import MAX_BYTES, failures_in, roots_of, some_shares, tracked

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.struct([("x", pa.string())]))])


def output(values: list[int], parents: Any, failed: Any = None) -> FlatMapOutput:
    columns = [pa.array(values, pa.int64()), pa.nulls(len(values), SCHEMA.field("s").type)]
    return FlatMapOutput(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), parents, failed)


def step(execute: Callable[[pa.RecordBatch], FlatMapOutput], **given: Any) -> FlatMapStep:
    return FlatMapStep("split", execute, SCHEMA, MAX_BYTES, **given)


def run(flat_map: FlatMapStep, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    results = list(flat_map(iter(batches)))
    for batch in results:
        batch.validate(full=True)
        pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))  # as Spark hands it on
    assert len({str(batch.schema) for batch in results}) <= 1
    return [row for batch in results for row in batch.to_pylist()]


def test_child_rows_split_share_of_parent_and_keep_its_roots() -> None:
    own = some_shares(3)
    given = tracked(own, [[1], [2, 3], None])
    rows = run(step(lambda batch: output([10, 11, 12, 13], np.array([0, 1, 1, 2]))), given)
    cut = shares.split(np.array(own, np.int64), np.array([1, 2, 1]), shares.salt_of("split")).tolist()
    assert rows == [
        {"n": n, "s": None, SHARE: share, ROOTS: roots, OUT: 0, FAILURE: None}
        for n, share, roots in zip([10, 11, 12, 13], cut, [[1], [2, 3], [2, 3], None], strict=True)
    ]


def test_child_rows_of_a_parent_may_come_in_any_order() -> None:
    own = some_shares(3)
    together = run(step(lambda batch: output([0, 1, 2, 3, 4], np.array([0, 0, 2, 2, 2]))), tracked(own))
    apart = run(step(lambda batch: output([2, 0, 3, 1, 4], np.array([2, 0, 2, 0, 2]))), tracked(own))
    assert sorted(apart, key=lambda row: (row[OUT], row["n"] or 0)) == together


def test_childless_and_failed_rows_are_summed_after_last_batch() -> None:
    own = some_shares(8)

    def keep_even(batch: pa.RecordBatch) -> FlatMapOutput:
        ids = batch.column("id").to_pylist()
        kept = [at for at, one in enumerate(ids) if one % 2 == 0]
        return output(
            [ids[at] for at in kept], np.array(kept), {at: f"no {one}" for at, one in enumerate(ids) if one == 2}
        )

    first, second = tracked(own[:4]), tracked(own[4:], [[7], None, [8], [9]])
    rows = run(step(keep_even), first, second)
    (failure,) = failures_in(rows)
    assert [row["n"] for row in rows] == [0, 0, None, None]
    childless = sum(own[at] or 0 for at in (1, 3, 5, 7)) & MASK
    both = [(own[2] or 0) + (own[6] or 0)][0] & MASK
    assert [(row[OUT], row[SHARE], row[ROOTS]) for row in rows[2:]] == [
        (1, childless, [4]),
        (2, both, [2]),
    ]
    assert sum(row[SHARE] for row in rows) & MASK == sum(one or 0 for one in own) & MASK
    assert (failure.rows, failure.rootless, failure.unreported) == (2, 0, 0)
    assert roots_of(failure) == {"no 2": [8, 102]}


def test_partition_without_rows_gives_no_rows() -> None:
    assert run(step(lambda batch: output([], []))) == []
    assert run(step(lambda batch: output([], [])), tracked([])) == []


def test_null_share_counts_as_zero() -> None:
    rows = run(step(lambda batch: output([1, 2, 3], np.array([0, 0, 1]))), tracked([None, 5]))
    assert (rows[0][SHARE] + rows[1][SHARE]) & MASK == 0
    assert rows[2][SHARE] == 5


def test_function_sees_columns_under_user_names() -> None:
    seen: list[list[str]] = []

    def execute(batch: pa.RecordBatch) -> FlatMapOutput:
        seen.append(batch.schema.names)
        return output([1], [0])

    given = tracked([5], columns={"_1": ["x"]})
    run(step(execute, columns=("id", "a.b", SHARE, ROOTS)), given)
    assert seen == [["id", "a.b"]]


def test_output_is_cast_to_the_declared_types() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([7], pa.int8()), pa.nulls(1, SCHEMA.field("s").type)], names=["n", "s"])
    assert run(step(lambda batch: FlatMapOutput(rows, np.array([0]))), tracked([5]))[0]["n"] == 7


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (output([1], [0, 1]), "1 output rows have 2 parents"),
        (output([1], [2]), "parents names a row outside the 2 rows"),
        (output([1], [-1]), "parents names a row outside"),
        (output([1], [0.5]), "parents has values of type float64"),
        (output([1], [0], {2: "x"}), "failed names a row outside the 2 rows"),
        (
            FlatMapOutput(pa.record_batch({"m": [1]}), np.array([0])),
            r"the output rows have columns \['m'\], but the schema",
        ),
    ],
)
def test_invalid_flat_map_output_is_refused(returned: FlatMapOutput, message: str) -> None:
    with pytest.raises(PipelineError, match=f"^flat_map_arrow 'split': {message}"):
        run(step(lambda batch: returned), tracked(some_shares(2)))


def test_row_function_keeps_sum_of_shares_like_arrow_function() -> None:
    def derive(row: dict[str, Any]) -> list[Any]:
        if row["id"] == 1:
            raise ValueError("bad")
        return [(row["id"], None)] * row["id"]

    own = some_shares(4)
    rows = run(step(RowByRow(derive, SCHEMA, "fail")), tracked(own))
    assert [row["n"] for row in rows] == [2, 2, 3, 3, 3, None, None]
    assert [row[OUT] for row in rows[5:]] == [1, 2]
    assert roots_of(failures_in(rows)[0]) == {"ValueError: bad": [101]}
    assert sum(row[SHARE] for row in rows) & MASK == sum(one or 0 for one in own) & MASK


def test_random_outputs_keep_sum_of_shares_and_every_row() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        count = int(random.integers(1, 30))
        own = some_shares(count, int(random.integers(1 << 30)))
        parents = random.integers(0, count, int(random.integers(0, 200)))
        bad = {int(at): f"r{at % 3}" for at in random.integers(0, count, int(random.integers(0, 5)))}
        rows = run(step(lambda batch, p=parents, b=bad: output(p.tolist(), p, b)), tracked(own))  # type: ignore[misc]
        assert sum(row[SHARE] for row in rows) & MASK == sum(one or 0 for one in own) & MASK
        stay = [row for row in rows if row[OUT] == 0]
        assert [row["n"] for row in stay] == [p for p in parents.tolist() if p not in bad]
        assert [row[ROOTS] for row in stay] == [[100 + row["n"]] for row in stay]
        kept = [p for p in parents.tolist() if p not in bad]
        cut = shares.split(
            np.array(own), np.bincount(np.array(kept, np.int64), minlength=count), shares.salt_of("split")
        )
        by_parent = sorted(range(len(kept)), key=lambda at: (kept[at], at))
        assert [stay[at][SHARE] for at in by_parent] == cut.tolist()
        childless = count - len({*parents.tolist(), *bad})
        removed = {row[OUT]: row[ROOTS] for row in rows if row[OUT]}
        assert removed == {**({1: [childless]} if childless else {}), **({2: [len(bad)]} if bad else {})}
        found = [root for failure in failures_in(rows) for roots in roots_of(failure).values() for root in roots]
        assert sorted(found) == sorted(100 + at for at in bad)
