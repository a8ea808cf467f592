"""Headers of exported records, and what the ledger learns of their edges. No Spark, no broker."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import Acker, Anchors, InexactPipelineError
from acker_redis.acker import app_of
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.worker import kafka_export
from acker_redis.spark.worker.kafka import KafkaWrite, _Record
from acker_redis.spark.worker.kafka_export import AnchorHeaders
from acker_redis.testing import fake_acker, settle
from tests.support.batches import some_shares, tracked


@pytest.fixture
def acker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Acker]:
    with fake_acker(app="shop") as fake:
        monkeypatch.setattr(kafka_export, "acker_of_worker", lambda url, config: fake)
        yield fake


def headers(acker: Acker, prefix: str = "run:3:0") -> AnchorHeaders:
    return AnchorHeaders("redis://user:s3cret@host", acker.config, prefix, "export_kafka", "pricing")


def anchors_of(values: list[bytes | None]) -> list[Anchors | None]:
    pairs = [[] if value is None else [("acker-anchors", value)] for value in values]
    return [Anchors.of_headers(one, app="shop", group="pricing") for one in pairs]


def run(step: AnchorHeaders, *batches: pa.RecordBatch) -> list[Anchors | None]:
    return anchors_of([value for batch in step(iter(batches)) for value in batch.column(ANCHORS).to_pylist()])


def test_messages_complete_once_their_records_are_acked(acker: Acker) -> None:
    acker.init_many([1, 2, 3], [11, 12, 13], 0)
    found = run(
        headers(acker), tracked(some_shares(3), [[1], [1, 2], [2]]), tracked([*some_shares(1), None], [[3], None])
    )
    assert [None if one is None else one.roots.tolist() for one in found] == [[1], [1, 2], [2], [3], None]
    acker.ack_many([1, 2, 3], [11, 12, 13])  # the driver, after its proof
    assert settle(acker) == {}
    for one in [*found[1:], found[1]]:
        if one is not None:
            acker.ack_many(one.roots, one.edges, record_keys=one.edges)
    assert settle(acker) == {2: "ack", 3: "ack"}


def test_columns_are_the_users_and_the_header(acker: Acker) -> None:
    (batch,) = headers(acker)(iter([tracked([5, None], columns={"value": ["x", "y"]})]))
    batch.validate(full=True)
    assert batch.schema.names == ["id", "value", ANCHORS]


@pytest.mark.parametrize("died_after", range(4))
def test_edges_count_once_however_far_an_earlier_try_got(acker: Acker, died_after: int) -> None:
    """A try whose step before it died sees an input that ends early, as if it was complete."""
    acker.init_many([1, 2], [11, 12], 0)
    batches = [tracked(some_shares(2), [[1], [2]]), tracked(some_shares(3)[1:], [[1], [1, 2]]), tracked([7], [[2]])]
    run(headers(acker), *batches[:died_after])
    found = run(headers(acker), *batches)
    acker.ack_many([1, 2], [11, 12])
    assert settle(acker) == {}
    for one in found:
        assert one is not None
        acker.ack_many(one.roots, one.edges, record_keys=one.edges)
    assert settle(acker) == {1: "ack", 2: "ack"}


def test_edges_are_introduced_while_the_input_goes_on(acker: Acker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker's memory doesn't grow with its partition."""
    monkeypatch.setattr(kafka_export, "_AT_ONCE", 4)
    acks: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            acks.append(acker.stats().acks)
            yield tracked([number * 2 + 1, number * 2 + 2], [[1], [2]])

    assert len(list(headers(acker)(batches()))) == 6
    assert acks == [0, 0, 2, 2, 4, 4]
    assert acker.stats().acks == 6


def test_rows_without_roots_are_a_mistake(acker: Acker) -> None:
    with pytest.raises(InexactPipelineError, match="lost their roots"):
        run(headers(acker), tracked([5], [None]))
    assert app_of(acker).inspection.blocks() == 0


def test_header_of_another_topic_is_replaced() -> None:
    write = KafkaWrite("export_kafka", "items", {})
    old = [{"key": "acker-anchors", "value": b"old"}, {"key": "h", "value": b"1"}]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {"value": ["a", "b", "c"], "headers": pa.array([old, None, old], kind)}
    for given, expected in (
        ({ANCHORS: pa.array([b"new", b"new", None], pa.binary())}, [
            [("h", b"1"), ("acker-anchors", b"new")], [("acker-anchors", b"new")], [("h", b"1")],
        ]),
        ({}, [[("acker-anchors", b"old"), ("h", b"1")], None, [("acker-anchors", b"old"), ("h", b"1")]]),
    ):  # fmt: skip
        records: list[_Record] = list(write._records(iter([pa.RecordBatch.from_pydict({**columns, **given})]), {}))
        assert [record.headers for record in records] == expected


def test_edges_of_two_emissions_differ(acker: Acker) -> None:
    rows = tracked(some_shares(2), [[1], [2]])
    first, second = (np.concatenate([one.edges for one in run(headers(acker, p), rows) if one]) for p in ("a", "b"))
    assert not set(first.tolist()) & set(second.tolist())
