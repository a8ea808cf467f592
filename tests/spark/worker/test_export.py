"""Rows that leave with edges of their own, and what the ledger learns of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import Acker, InexactPipelineError, UnprovenEmissionError
from acker_redis.acker import app_of
from acker_redis.errors import ConnectionLostError
from acker_redis.model import ids
from acker_redis.model.xxhash64 import hash_longs
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ANCHORS, ROOTS, SHARE
from acker_redis.spark.worker import export
from acker_redis.spark.worker.export import ExportStep, IntroducedEdges
from acker_redis.testing import fake_acker, settle
from tests.support.batches import some_shares, tracked

URL = "redis://user:s3cret@host"


@pytest.fixture
def acker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Acker]:
    with fake_acker() as acker:
        monkeypatch.setattr(export, "acker_of_worker", lambda url, config: acker)
        monkeypatch.setattr(export, "partition_id", lambda: 4)
        yield acker


def step(acker: Acker, prefix: str = "run:3:0", **given: Any) -> ExportStep:
    return ExportStep(URL, acker.config, prefix, "hand on", **given)


def run(exporting: ExportStep, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for batch in exporting(iter(batches)) for row in batch.to_pylist()]


def pairs(row: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(row[ANCHORS][::2], row[ANCHORS][1::2], strict=True))


def test_tree_completes_after_acks_of_exported_rows_and_driver(acker: Acker) -> None:
    acker.init_many([1, 2, 3], [11, 12, 13], 0)
    rows = run(step(acker), tracked(some_shares(3), [[1], [1, 2], [2]]), tracked([*some_shares(1), None], [[3], None]))
    assert [[root for root, _ in pairs(row)] for row in rows] == [[1], [1, 2], [2], [3], []]
    acker.ack_many([1, 2, 3], [11, 12, 13])  # the driver, after its proof
    assert settle(acker) == {}
    todo = [pair for row in rows for pair in pairs(row)]
    for root, edge in todo[:-1]:
        acker.ack(root, edge)
    assert settle(acker) == {1: "ack", 2: "ack"}
    acker.ack(*todo[-1])
    assert settle(acker) == {3: "ack"}


def test_exported_rows_keep_their_columns_and_share(acker: Acker) -> None:
    (batch,) = step(acker, columns=("id", "a.b", SHARE, ROOTS))(iter([tracked([5, None], columns={"_1": ["x", "y"]})]))
    batch.validate(full=True)
    assert batch.schema.names == ["id", "a.b", ANCHORS, SHARE]
    assert batch.column(SHARE).to_pylist() == [5, 0]
    assert batch.column("a.b").to_pylist() == ["x", "y"]


def test_ledger_edges_depend_on_share_and_root_not_on_row_order(acker: Acker) -> None:
    own = [*some_shares(3)]
    own[1] = 0  # a row of no message
    rows = run(step(acker), tracked(own[:2], [[7, -2], None]), tracked(own[2:], [[7]]))
    salt = shares.salt_of("run:3:0")

    def fresh(at: int, root: int) -> int:
        return int(np.uint64(hash_longs(own[at] or 0, salt, root)).astype(np.int64))

    assert {*pairs(rows[0])} == {(7, fresh(0, 7)), (-2, fresh(0, -2))}
    assert pairs(rows[2]) == [(7, fresh(2, 7))]


def test_exported_row_has_each_root_once_with_nonzero_edge(acker: Acker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(step(acker), tracked([5, 6], [[1], [1, 1, 2]]))
    assert [root for root, _ in pairs(rows[1])] == [1, 2]  # two equal edges of one row would cancel out
    edges = [edge for row in rows for _, edge in pairs(row)]
    again = [edge for row in run(step(acker, "run:3:1"), tracked([5], [[1]])) for _, edge in pairs(row)]
    assert len({*edges, *again}) == 4
    monkeypatch.setattr(export, "hash_longs", lambda *values: np.zeros(len(values[0]), np.uint64))
    (row,) = run(step(acker, "run:3:2"), tracked([5], [[1]]))
    assert pairs(row) == [(1, 1)]


def test_spark_task_that_runs_again_exports_the_same_rows(acker: Acker) -> None:
    acker.init_many([1, 2], [11, 12], 0)
    batch = tracked(some_shares(2), [[1], [2]])
    first = run(step(acker), batch)
    turned = run(step(acker), tracked(batch.column(SHARE).to_pylist()[::-1], [[2], [1]]))
    assert [pairs(row) for row in turned] == [pairs(row) for row in first[::-1]]
    before = acker.inspect_many([1, 2])
    assert run(step(acker), batch) == first
    assert [one and one.val for one in acker.inspect_many([1, 2])] == [one and one.val for one in before]


def test_spark_task_that_reruns_with_other_rows_is_not_proven(acker: Acker) -> None:
    run(step(acker), tracked([5, 6], [[1], [2]]))
    with pytest.raises(
        UnprovenEmissionError, match="export 'hand on': the task of a partition ran again and returned other rows"
    ):
        run(step(acker), tracked([7, 6], [[1], [2]]))


def test_input_that_broke_off_acks_nothing_and_the_next_emission_completes(acker: Acker) -> None:
    """A step of the task dies, which looks like the end of the input. Then Spark tries the task again."""
    acker.init_many([1, 2], [11, 12], 0)
    own = list(some_shares(3))
    first, second = tracked(own[:2], [[1], [2]]), tracked(own[2:], [[1]])
    seen = run(step(acker), first)
    with pytest.raises(UnprovenEmissionError):
        run(step(acker), first, second)
    for pair in [pair for row in seen for pair in pairs(row)]:  # files of the broken try that somebody read
        acker.ack(*pair)
    assert settle(acker) == {}

    acker.fail_many([1, 2])
    acker.init_many([3, 4], [13, 14], 0)
    again = run(step(acker, "run:4:0"), tracked(own, [[3], [4], [3]]))
    acker.ack_many([3, 4], [13, 14])  # the driver, after its proof
    for pair in [pair for row in again for pair in pairs(row)]:
        acker.ack(*pair)
    assert settle(acker) == {1: "failed", 2: "failed", 3: "ack", 4: "ack"}


@pytest.mark.parametrize("roots", [[[1], None], [[1], []], [[1], [0]]])
def test_row_of_a_message_without_roots_raises_not_exact(acker: Acker, roots: Any) -> None:
    with pytest.raises(InexactPipelineError, match="rows of a message have lost their roots"):
        run(step(acker), tracked([5, 6], roots))
    assert acker.stats().pending == 0


def test_abandoned_or_broken_export_changes_no_ledger(acker: Acker) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield tracked([5], [[1]])
        raise ArithmeticError

    rows = step(acker)(iter([tracked([5], [[1]])]))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    with pytest.raises(ArithmeticError):
        list(step(acker)(broken()))
    assert run(step(acker)) == []
    assert run(step(acker), tracked([0], [None])) != []
    assert acker.inspect(1) is None
    assert acker.stats().pending == 0


def test_export_after_lost_ledger_does_not_fail_the_spark_task(acker: Acker) -> None:
    """The spout learns of it by itself and replays."""
    acker.init(1, 11, 0)
    app_of(acker).client.redis.flushall()
    run(step(acker), tracked([5], [[1]]))
    assert acker.inspect(1) is not None


def test_export_during_an_outage_raises(acker: Acker, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise ConnectionLostError("gone")

    monkeypatch.setattr(acker, "ack_many", gone)
    with pytest.raises(ConnectionLostError):
        run(step(acker), tracked([5], [[1]]))


def test_memory_of_export_is_bounded_by_distinct_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_COMPACT_ROWS", 100)
    drawn = np.random.default_rng(1).integers(0, 30, (500, 7)).astype(np.uint64)
    vals = np.random.default_rng(2).integers(0, 1 << 63, (500, 7)).astype(np.uint64)
    introduced = IntroducedEdges()
    for roots, part in zip(drawn, vals, strict=True):
        introduced.add(roots, part)
        assert sum(map(len, introduced._roots)) <= 107
    want: dict[int, int] = {}
    for root, val in zip(drawn.ravel().tolist(), vals.ravel().tolist(), strict=True):
        want[root] = want.get(root, 0) ^ val
    found_roots, found_vals = ids.xor_by_root(*introduced.ack_vals())
    assert dict(zip(found_roots.tolist(), found_vals.tolist(), strict=True)) == want


def test_repr_of_export_step_hides_the_url(acker: Acker) -> None:
    assert "s3cret" not in repr(step(acker))
