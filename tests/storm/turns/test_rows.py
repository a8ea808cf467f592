"""Rows that carry many tuples: what is packed comes back, and rows and batches are cut."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps

from acker_redis import AckerConfig
from acker_redis.spark.protocol.shares import MASK
from acker_redis.storm import Bolt, Tuple
from acker_redis.storm.core.values import dump_values, load_values
from acker_redis.storm.definition.streams import StreamId
from acker_redis.storm.turns.collectors import MAX_VALUE_BYTES
from acker_redis.storm.turns.job import small_batches
from acker_redis.storm.turns.plan import make_plan
from acker_redis.storm.turns.rows import (
    MAX_BYTES,
    MAX_TUPLES,
    REPORT,
    ROW_BYTES,
    Entry,
    RowBuffer,
    edges_of_tuples,
    pack,
    unpack,
    unpack_edges,
)
from acker_redis.storm.turns.steps import DecodeStep, LevelStep, TurnSpec
from tests.storm.turns.parts import Heard, Passing, chain, spout_of

ROOT = (1 << 64) - 1


@pytest.mark.parametrize(
    "edges",
    [[{}], [{1: 2}], [{1: 2}, {3: ROOT}], [{}, {ROOT: 1}, {}, {1: 5, 2: 6, 3: 7}], [{1: 2, 3: 4}, {5: 6, 7: 8}]],
)
def test_tuples_of_a_row_come_back(edges: list[dict[int, int]]) -> None:
    entries: list[Entry] = [(7 + place, place % 2, dump_values([place]), of) for place, of in enumerate(edges)]
    data, packed = pack(entries)
    tuples = unpack(data)
    assert tuples.seqs == [7 + place for place in range(len(edges))]
    assert tuples.sources == [place % 2 for place in range(len(edges))]
    assert [load_values(values) for values in tuples.values] == [(place,) for place in range(len(edges))]
    assert edges_of_tuples(tuples, packed) == edges
    roots, vals = unpack_edges(packed)
    assert list(zip(roots.tolist(), vals.tolist(), strict=True)) == [pair for of in edges for pair in of.items()]


def test_untracked_tuples_have_no_edges() -> None:
    data, packed = pack([(1, 0, b"x", {}), (2, 0, b"y", {})])
    assert packed == b"" and edges_of_tuples(unpack(data), packed) == [{}, {}]


def rows_of(buffer: RowBuffer) -> list[dict[str, Any]]:
    return [row for batch in buffer.take() for row in batch.to_pylist()]


def filled(sizes: list[int], *targets: int) -> RowBuffer:
    buffer = RowBuffer()
    for seq, size in enumerate(sizes):
        for target in targets:
            buffer.tuples(target * 10, target, 1).append((seq, 0, b"x" * size, {}))
            buffer.count += 1
            buffer.nbytes += size
    return buffer


def test_a_row_has_consecutive_tuples_of_one_task_for_another() -> None:
    buffer = filled([1] * 5, 2, 3)
    buffer.add(0, REPORT, 0, b"report")
    found = rows_of(buffer)
    assert [(row["key"], row["to"], row["frm"], row["seq"], row["size"]) for row in found] == [
        (20, 2, 1, 0, 5), (30, 3, 1, 0, 5), (0, REPORT, 0, 0, 0),
    ]  # fmt: skip
    assert len(buffer) == 0 and rows_of(buffer) == []


def test_rows_are_cut_by_tuples_and_by_bytes() -> None:
    assert [row["size"] for row in rows_of(filled([1] * (MAX_TUPLES + 3), 2))] == [MAX_TUPLES, 3]
    found = rows_of(filled([ROW_BYTES, 1, ROW_BYTES // 2, ROW_BYTES, 1], 2))
    assert [(row["seq"], row["size"]) for row in found] == [(0, 1), (1, 3), (4, 1)]


def test_a_buffer_is_full_by_tuples_or_by_bytes() -> None:
    assert not filled([1] * (MAX_TUPLES - 1), 2).is_full and filled([1] * MAX_TUPLES, 2).is_full
    assert filled([ROW_BYTES] * 8, 2).is_full


class Joins(Bolt):
    """Holds 512 tuples, and emits each further one anchored to all of them."""

    outputs = ["v"]
    auto_ack = False
    cache = True
    emitted = 0

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        if len(self.held) < 512:
            self.held.append(tup)
        else:
            self.emit([1], anchors=self.held)
            Joins.emitted += 1


def test_rows_and_batches_are_cut_by_the_bytes_of_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuple that is anchored to many others has few bytes of values, and many of edges."""
    topology = chain(spout_of([], Heard()), Joins, Passing, par=1)
    plan = make_plan(topology._checked_graph(), {}, {}, 1)
    task, spout = plan.graph.components["a"].task_ids[0], plan.graph.components["spout"].task_ids[0]
    source = plan.sources.index(StreamId("spout", "default"))
    rows, emits = RowBuffer(), MAX_BYTES // (512 * 16) + 10
    rows.tuples(plan.key_of[task], task, spout).extend(
        (seq, source, dump_values([seq]), {seq: 1}) for seq in range(512 + emits)
    )
    monkeypatch.setattr("acker_redis.storm.turns.steps._runs", {})
    sent: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
    spec = TurnSpec("run", sent, 1, 0.0, "redis://unused", AckerConfig("app"), {})
    monkeypatch.setattr(Joins, "emitted", 0)
    batches, emitted = [], []
    for batch in LevelStep(spec, 0)(iter(rows.take())):
        batches.append(batch.to_pylist())
        emitted.append(Joins.emitted)
    of_tuples = [[row for row in batch if row["size"]] for batch in batches]
    assert emitted[0] < emitted[-1] == emits, "the first batch goes while there are tuples to process"
    assert sum(row["size"] for batch in of_tuples for row in batch) == emits
    assert max(len(row["edges"]) for batch in of_tuples for row in batch) <= ROW_BYTES + 512 * 16
    assert max(sum(len(row["edges"]) for row in batch) for batch in of_tuples) <= MAX_BYTES + ROW_BYTES


def test_tuples_of_a_sink_split_the_share_of_their_row() -> None:
    """The second row has the tuples of the first once more, and the same shares."""
    data, _ = pack([(seq, 0, dump_values([word]), {}) for seq, word in enumerate(("a", "b", None))])
    schema = pa.schema([("word", pa.string()), ("share", pa.int64()), ("roots", pa.list_(pa.int64()))])
    batch = pa.RecordBatch.from_pydict({"data": [data] * 2, "own": [MASK - 3] * 2})
    first, again = DecodeStep(schema, "own")(iter([batch]))
    assert first.equals(again) and first.schema == schema
    assert first.column("word").to_pylist() == ["a", "b", None]
    assert first.column("roots").to_pylist() == [None] * 3
    shares = first.column("share").to_pylist()
    assert sum(shares) & MASK == MASK - 3 and len(set(shares)) == 3 and np.all(np.array(shares) >= 0)


@pytest.mark.parametrize(("own", "expected"), [(None, 62), ("10000", 62), ("0", 62), ("-1", 62), ("20", 20)])
def test_a_batch_of_the_longest_rows_is_within_arrows_limit_on_spark_4_0(own: str | None, expected: int) -> None:
    """It bounds the rows of a batch only, and a column of Arrow has less than 2 GiB."""
    rows = RowBuffer()
    rows.tuples(1, 2, 3).extend(
        (number, 1, bytes(size), {}) for number, size in enumerate((ROW_BYTES - 1, MAX_VALUE_BYTES))
    )
    (batch,) = rows.take()
    assert batch.num_rows == 1
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    session: Any = Session({} if own is None else {name: own})
    with small_batches(session):
        most = int(session.conf.get(name, None))
        assert most == expected and most * batch.column("data").nbytes < 1 << 31
    assert session.conf.get(name, None) == own


class Session:
    """A session of Spark 4.0, and its settings."""

    version = "4.0.2"

    def __init__(self, values: dict[str, str]) -> None:
        self.values, self.conf = values, self

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        del self.values[name]
