"""Anchors without Spark: the arithmetic of trees with several roots per row."""

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import AckerConfig, BadBatchError, ids
from acker_redis.spark import operators
from acker_redis.spark.anchors import Anchors, attach, detach
from acker_redis.spark.operators import CHILDREN, ExplodeStep
from acker_redis.spark.worker import Updates


def anchors(*rows: list[tuple[int, int]]) -> Anchors:
    flat = [pair for row in rows for pair in row]
    starts = np.cumsum([0, *(len(row) for row in rows)])
    return Anchors(starts, np.array([r for r, _ in flat], np.uint64), np.array([e for _, e in flat], np.uint64))


def total(*parts: Anchors) -> dict[int, int]:
    roots, vals = ids.xor_by_root(np.concatenate([p.roots for p in parts]), np.concatenate([p.edges for p in parts]))
    return dict(zip(roots.tolist(), vals.tolist(), strict=True))


def test_the_column_survives_a_round_trip() -> None:
    before = anchors([(1, 10)], [], [(1, 11), (2, 12)])
    batch = attach(pa.record_batch({"x": [1, 2, 3]}), before)
    after = Anchors.of(batch)
    assert after.starts.tolist() == [0, 1, 1, 3]
    assert (after.roots.tolist(), after.edges.tolist()) == ([1, 1, 2], [10, 11, 12])
    assert detach(batch).schema.names == ["x"]


def test_a_sliced_batch_reads_its_own_rows() -> None:
    batch = attach(pa.record_batch({"x": [1, 2, 3]}), anchors([(1, 10)], [(2, 20), (3, 30)], [(4, 40)]))
    part = Anchors.of(batch.slice(1, 2))
    assert (part.starts.tolist(), part.roots.tolist()) == ([0, 2, 3], [2, 3, 4])


def test_children_inherit_every_root_of_their_parent() -> None:
    parents = anchors([(1, 10)], [(2, 20), (3, 30)])
    children, _ = parents.children("bolt", np.array([1, 0, 1]))
    assert children.starts.tolist() == [0, 2, 3, 5]
    assert children.roots.tolist() == [2, 3, 1, 2, 3]
    assert len(set(children.edges.tolist())) == 5


@pytest.mark.parametrize("order", [[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
def test_a_tree_of_several_roots_sums_to_zero_when_all_is_acked(order: list[int]) -> None:
    init = anchors([(1, 10)], [(2, 20), (3, 30)])
    first, acked_by_a = init.children("a", np.array(order))
    second, acked_by_b = first.children("b", np.array([4, 2, 0]))
    acks = [Anchors(init.starts, init.roots, acked_by_a), Anchors(first.starts, first.roots, acked_by_b)]
    assert set(total(init, *acks, second).values()) == {0}
    assert set(total(init, *acks).values()) != {0}


def test_edges_are_derived_and_depend_on_parent_operator_and_ordinal() -> None:
    parents = anchors([(1, 10)], [(1, 11)])
    places = np.array([0, 1, 0])
    edges = parents.children("a", places)[0].edges.tolist()
    assert edges == parents.children("a", places)[0].edges.tolist()
    assert len({*edges, *parents.children("b", places)[0].edges.tolist()}) == 6


def test_ordinals_do_not_depend_on_the_order_of_other_parents() -> None:
    parents = anchors([(1, 10)], [(2, 20)])
    grouped = parents.children("a", np.array([0, 0, 1]))[0].edges.tolist()
    mixed = parents.children("a", np.array([0, 1, 0]))[0].edges.tolist()
    assert [mixed[0], mixed[2], mixed[1]] == grouped


def test_arrays_are_taken_apart_a_bounded_number_of_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "EXPLODED_ROWS", 4)
    lengths = [3, 0, 1, 1, 9, 0, 2, 2]
    arrays = [None if n == 0 else [{"parent": row, "n": n} for n in range(n)] for row, n in enumerate(lengths)]
    schema = pa.schema([("parent", pa.int64()), ("n", pa.int64())])
    batch = pa.record_batch([pa.array(arrays, pa.list_(pa.struct(schema)))], names=[CHILDREN])
    before = anchors(*([(row, 100 + row)] for row in range(len(lengths))))
    updates = Updates("", AckerConfig(app="x"), "explode", "token")
    made = list(
        ExplodeStep("explode", schema).run(
            updates, iter([(batch, before), (batch.slice(4), before.rows(np.arange(4, 8)))])
        )
    )
    assert [rows.num_rows for rows, _ in made] == [4, 1, 9, 4, 9, 4]
    for rows, children in made:
        assert children.roots.tolist() == rows.column("parent").to_pylist()
    whole = [Anchors.of(attach(rows, children)) for rows, children in made]
    roots, vals = ids.xor_by_root(np.concatenate(updates._ack_roots), np.concatenate(updates._ack_vals))
    acked = dict(zip(roots.tolist(), vals.tolist(), strict=True))
    first = total(*whole[:4])
    # The second batch repeats rows 4 to 7, whose acks cancel the first ones'.
    assert {row: acked[row] for row in range(4)} == {row: (100 + row) ^ first.get(row, 0) for row in range(4)}
    assert {acked[row] for row in range(4, 8)} == {0}


def test_a_batch_without_the_column_says_what_to_do() -> None:
    with pytest.raises(BadBatchError, match="keep the column in every select"):
        Anchors.of(pa.record_batch({"x": [1]}))


def test_no_rows() -> None:
    empty = anchors()
    assert empty.children("a", np.array([], np.int64))[0].roots.tolist() == []
    assert Anchors.of(attach(pa.record_batch({"x": pa.array([], pa.int64())}), empty)).starts.tolist() == [0]


def test_combining_xors_the_edges_of_a_root_within_a_row() -> None:
    anchors = Anchors(
        np.array([0, 3, 3, 4, 6]), np.array([7, 5, 7, 7, 5, 7], np.uint64), np.array([1, 2, 4, 8, 16, 32], np.uint64)
    )
    combined = anchors.combined()
    assert combined.starts.tolist() == [0, 2, 2, 3, 5]
    assert combined.roots.tolist() == [5, 7, 7, 5, 7]
    assert combined.edges.tolist() == [2, 5, 8, 16, 32]
    assert combined.combined().edges.tolist() == combined.edges.tolist()
