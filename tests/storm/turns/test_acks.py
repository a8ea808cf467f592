"""The step that acks: a bin is sent for one result of its tasks, once, and under one digest."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.errors import ServerUnavailableError, UnprovenEmissionError
from acker_redis.model import ids
from acker_redis.store.turns import Claim, Turn
from acker_redis.storm.definition.streams import StreamId
from acker_redis.storm.turns import steps
from acker_redis.storm.turns.plan import Plan, make_plan
from acker_redis.storm.turns.rows import BIN, RowBuffer
from acker_redis.storm.turns.steps import CONTENT, AckStep, BinReport, ReadBackStep, TurnSpec
from acker_redis.storm.turns.updates import Bin, Updates, bin_numbers
from tests.storm.turns.test_plan import graph_of

SPOUT_ID = 7
STREAM = StreamId("a", "default")


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, app="acks", shards=2) as acker:
        yield acker


@pytest.fixture
def plan() -> Plan:
    return make_plan(graph_of(("s", "a")), {STREAM: "__sink:a"}, {}, 1)


_runs = iter(range(1_000_000))


class Turned:
    """One turn, whose ack step runs as often as one likes."""

    def __init__(self, acker: Acker, plan: Plan) -> None:
        self.acker, self.plan = acker, plan
        run_id = f"run-{next(_runs)}"
        sent: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
        self.spec = TurnSpec(run_id, sent, 1, 0.0, acker.url, acker.config, {})
        self.turn: Turn = app_of(acker).turn(run_id, 1)
        self.roots = acker.new_roots(4).view(np.uint64).tolist()
        self.acker.init_many(self.roots, [5] * 4, SPOUT_ID)
        self.turn.open()

    def updates(self, acks: dict[int, int], fails: Sequence[int] = ()) -> Updates:
        updates = Updates(self.plan)
        for root, val in acks.items():
            updates.ack({root: val}, "a")
        for root in fails:
            updates.fail(root, "no", "a", retry=False, is_expected=True)
        return updates

    def ack(self, *parts: Updates) -> list[BinReport]:
        import pickle

        rows = RowBuffer()
        for part in parts:
            for number, one in part.bins():
                rows.add(self.plan.keys[number], BIN, number, one.to_bytes())
        replies = list(AckStep(self.spec)(iter(rows.take())))
        return [pickle.loads(data) for reply in replies for data in reply.column(0).to_pylist()]

    def outcomes(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"ack": [], "fail": []}
        for outcome in self.acker.poll():
            found[outcome.kind].append(self.roots.index(outcome.root % (1 << 64)))
            self.acker.confirm([outcome])
        return {kind: sorted(numbers) for kind, numbers in found.items()}


@pytest.fixture
def turned(acker: Acker, plan: Plan) -> Turned:
    return Turned(acker, plan)


def test_a_bin_is_acked_once_however_often_its_task_runs(turned: Turned) -> None:
    updates = turned.updates(dict.fromkeys(turned.roots, 5))
    claims = [turned.ack(updates)[0].claim for _ in range(3)]
    assert claims == [Claim.CLAIMED, Claim.SENT, Claim.SENT]
    assert turned.outcomes() == {"ack": [0, 1, 2, 3], "fail": []} and turned.acker.stats().acks == 4


def test_parts_of_a_bin_in_any_order_make_the_same_updates(turned: Turned) -> None:
    first, second = turned.updates({turned.roots[0]: 4}), turned.updates({turned.roots[0]: 1, turned.roots[1]: 5})
    assert [turned.ack(first, second)[0].claim, turned.ack(second, first)[0].claim] == [Claim.CLAIMED, Claim.SENT]
    assert turned.outcomes() == {"ack": [0, 1], "fail": []}


def test_other_updates_of_a_claimed_bin_are_not_sent(turned: Turned) -> None:
    assert turned.ack(turned.updates({turned.roots[0]: 5}))[0].claim == Claim.CLAIMED
    (report,) = turned.ack(turned.updates({turned.roots[1]: 5}))
    assert report.claim == Claim.OTHER and report.roots == 1
    assert turned.outcomes() == {"ack": [0], "fail": []} and turned.acker.pending() == 3


def test_a_late_task_of_a_closed_turn_sends_nothing(turned: Turned) -> None:
    assert turned.turn.close()
    assert turned.ack(turned.updates({turned.roots[0]: 5}))[0].claim == Claim.CLOSED
    assert turned.outcomes() == {"ack": [], "fail": []}


def test_a_task_that_dies_between_its_claim_and_its_end_is_made_up_for(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = turned.updates(dict.fromkeys(turned.roots, 5))
    with monkeypatch.context() as patched:
        patched.setattr(Turn, "sent", _raise)
        with pytest.raises(ServerUnavailableError):
            turned.ack(updates)
    assert turned.ack(updates)[0].claim == Claim.CLAIMED
    assert turned.outcomes() == {"ack": [0, 1, 2, 3], "fail": []}, "the second execution changed nothing"
    assert not turned.turn.close()


def test_a_bin_that_was_sent_in_part_is_sent_again_and_changes_nothing_twice(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two shards has its updates when the task dies."""
    run = Client.run
    blocks: dict[int, int] = {}
    while len(blocks) < 2:
        root = turned.acker.new_roots(1).view(np.uint64)
        blocks.setdefault(int(ids.shard_of(root & np.uint64((1 << 59) - 1), 2)[0]), int(root[0]))
    turned.roots = list(blocks.values())
    turned.acker.init_many(turned.roots, [5, 5], SPOUT_ID)
    updates = turned.updates(dict.fromkeys(turned.roots, 5))

    def run_first(self: Client, calls: Sequence[Any]) -> list[Any]:
        if len(calls) == 1:
            return run(self, calls)
        run(self, calls[:1])
        raise ServerUnavailableError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "run", run_first)
        with pytest.raises(ServerUnavailableError):
            turned.ack(updates)
    assert turned.acker.stats().acks == 1
    assert [turned.ack(updates)[0].claim for _ in range(2)] == [Claim.CLAIMED, Claim.SENT]
    assert turned.acker.stats().acks == 2 and turned.outcomes() == {"ack": [0, 1], "fail": []}


def _raise(*arguments: Any) -> None:
    raise ServerUnavailableError("on purpose")


def test_a_root_that_failed_is_not_acked_and_its_least_fail_counts(turned: Turned) -> None:
    (report,) = turned.ack(turned.updates(dict.fromkeys(turned.roots, 5), [turned.roots[2]]))
    assert turned.outcomes() == {"ack": [0, 1, 3], "fail": [2]}
    assert {key: np.frombuffer(of, np.uint64).tolist() for key, of in report.failed.items()} == {
        ("a", "no", False, True): [turned.roots[2]]
    }


def kept_rows(turned: Turned) -> list[pa.RecordBatch]:
    """Two tuples of a sink and a bin, with a hash of each row: 7 and 8."""
    rows = RowBuffer()
    sink = turned.plan.sinks[STREAM]
    for number, root in enumerate(turned.roots[:2]):
        rows.tuples(0, sink, 2).append((number, 0, b"", {root: 5}))
    rows.add(0, BIN, 0, Bin.merged([]).to_bytes())
    return [batch.append_column(CONTENT, pa.array([7, 8], pa.int64())) for batch in rows.take()]


def test_the_read_back_consumes_the_edges_of_sinks(turned: Turned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "partition_id", lambda: 3)
    step = ReadBackStep(turned.spec, {3: 15})
    found = [row for batch in step(iter(kept_rows(turned))) for row in batch.to_pylist()]
    assert (found[0]["to"], found[0]["data"]) == (BIN, Bin.merged([]).to_bytes())
    updates = Bin.from_bytes(found[1]["data"])
    assert sorted(updates.roots.tolist()) == sorted(turned.roots[:2]) and updates.vals.tolist() == [5, 5]


@pytest.mark.parametrize("contents", [{3: 14}, {0: 15}, {}])
def test_rows_that_no_sink_wrote_are_not_acked(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, contents: dict[int, int]
) -> None:
    """Speculation may leave two copies of a partition, which differ if a bolt isn't deterministic."""
    monkeypatch.setattr(steps, "partition_id", lambda: 3)
    step = AckStep(turned.spec, ReadBackStep(turned.spec, contents))
    with pytest.raises(
        UnprovenEmissionError, match=r"Partition 3 of turn 1 has other rows than those that its sinks wrote"
    ):
        list(step(iter(kept_rows(turned))))
    assert turned.acker.pending() == len(turned.roots)


def test_a_small_turn_whose_input_breaks_off_claims_nothing(turned: Turned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends the input as if it were complete when it can't read on. Then it tries the task again."""
    monkeypatch.setattr(steps, "partition_id", lambda: 3)
    rows = RowBuffer()
    (number, updates), *_ = turned.updates(dict.fromkeys(turned.roots, 5)).bins()
    rows.add(turned.plan.keys[number], BIN, number, updates.to_bytes())
    part = [batch.append_column(CONTENT, pa.array([20], pa.int64())) for batch in rows.take()]
    step = AckStep(turned.spec, ReadBackStep(turned.spec, {3: 35}))
    with pytest.raises(UnprovenEmissionError):
        list(step(iter(part)))
    assert turned.turn.claim(number, b"of the whole input") == Claim.CLAIMED


def test_roots_of_a_block_are_in_one_bin_and_blocks_are_spread() -> None:
    roots = Acker.new_roots(32 * 100).view(np.uint64)
    numbers = bin_numbers(roots, 4).reshape(100, 32)
    assert (numbers == numbers[:, :1]).all()
    assert set(numbers[:, 0].tolist()) == {0, 1, 2, 3}
