"""Errors of the server while a bolt reads its state: they break the turn, and are no failure of a message."""

import pickle
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from pyspark.cloudpickle import dumps

from acker_redis import AckerConfig, StateLostError, TurnOverError
from acker_redis.client.client import Client
from acker_redis.errors import AckerError, ConnectionLostError
from acker_redis.store.topology_state import StateTurn, Status, TopologyState
from acker_redis.storm import StatefulBolt, Topology, TopologyBuilder, Tuple
from acker_redis.storm.core.tuples import SYSTEM_TASK
from acker_redis.storm.core.values import dump_values
from acker_redis.storm.state.codec import decode_value, encode_key
from acker_redis.storm.state.execution import Executed
from acker_redis.storm.turns.plan import Plan, make_plan
from acker_redis.storm.turns.rows import REPORT, STATE, TICK_SOURCE, RowBuffer
from acker_redis.storm.turns.steps import LevelStep, TurnSpec
from tests.storm.turns.parts import Heard, spout_of


class Reads(StatefulBolt):
    config = {"topology.tick.tuple.freq.secs": 1}

    def process(self, tup: Tuple) -> None:
        self.state.get(tup.values[0])

    process_tick = process


class Counts(Reads):
    def process(self, tup: Tuple) -> None:
        len(self.state)

    process_tick = process


class Hides(Reads):
    def process(self, tup: Tuple) -> None:
        try:
            self.state["n"] = self.state.get("n", 0) + 1
        except AckerError:
            self.state["n"] = 1


def plan_of(bolt: type[StatefulBolt]) -> Plan:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of([], Heard()))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    topology: Topology = builder.create_topology("reads")
    return make_plan(topology._checked_graph(), {}, {}, 1)


def level(plan: Plan, *, is_tick: bool, value: Any = 1) -> Callable[[], list[Any]]:
    """A task of the level of the bolt, with a tuple or a tick for it."""
    (task,), rows = plan.graph.components["bolt"].task_ids, RowBuffer()
    entries = rows.tuples(plan.key_of[task], task, SYSTEM_TASK if is_tick else 2)
    entries.append((1, TICK_SOURCE if is_tick else 1, dump_values([value]), {} if is_tick else {7: 5}))
    rows.count += 1
    sent: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
    spec = TurnSpec("run", sent, 1, 0.0, "redis://unused", AckerConfig("app"), {}, "reads", 1)
    return lambda: list(LevelStep(spec, 0)(iter(rows.take())))


@pytest.mark.parametrize("is_tick", [False, True])
@pytest.mark.parametrize(
    ("bolt", "call", "error"),
    [
        (Reads, "read", ConnectionLostError),
        (Reads, "read", TurnOverError),
        (Counts, "read_all", StateLostError),
        (Hides, "read", ConnectionLostError),
    ],
)
def test_an_error_of_the_server_breaks_the_turn(
    monkeypatch: pytest.MonkeyPatch, bolt: type[StatefulBolt], call: str, error: type[AckerError], is_tick: bool
) -> None:
    state = TopologyState(Client(fakeredis.FakeRedis()), "app", "reads")
    state.open({})
    monkeypatch.setattr(TurnSpec, "state_turn", lambda spec: state.turn(spec.epoch, spec.turn))
    monkeypatch.setattr("acker_redis.storm.turns.steps._runs", {})

    def breaks(*arguments: Any) -> Any:
        raise error("the server is away")

    monkeypatch.setattr(StateTurn, call, breaks)
    with pytest.raises(error, match="the server is away"):
        level(plan_of(bolt), is_tick=is_tick)()


class Adds(Reads):
    def process(self, tup: Tuple) -> None:
        self.state["n"] = self.state.get("n", 0) + 1

    process_tick = process


@pytest.mark.parametrize("is_tick", [False, True])
def test_a_level_that_runs_again_behind_its_turns_commit_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, is_tick: bool
) -> None:
    state = TopologyState(Client(fakeredis.FakeRedis()), "app", "reads")
    state.open({})
    monkeypatch.setattr(TurnSpec, "state_turn", lambda spec: state.turn(spec.epoch, spec.turn))
    monkeypatch.setattr("acker_redis.storm.turns.steps._runs", {})
    plan = plan_of(Adds)
    (data,) = (
        data
        for batch in level(plan, is_tick=is_tick)()
        for to, data in zip(batch.column("to").to_pylist(), batch.column("data").to_pylist(), strict=True)
        if to == STATE
    )
    turn = state.turn(1, 1)
    assert turn.commit(Executed.from_bytes(data).attempts) is Status.OPEN
    for _ in range(2):
        with pytest.raises(TurnOverError, match="Turn 1 of topology 'reads' is over"):
            level(plan, is_tick=is_tick)()
    state.turn(1, 2).load("bolt:0")
    assert [decode_value(n) for n in state.turn(1, 2).read("bolt:0", [encode_key("n")])] == [1]


class Holds(StatefulBolt):
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        self.state["held"] = {"tuples": [tup]}


def test_a_level_that_holds_a_tuple_that_is_too_long_names_its_roots_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(fakeredis.FakeRedis())
    state = TopologyState(client, "app", "reads")
    state.open({})
    monkeypatch.setattr(TurnSpec, "state_turn", lambda spec: state.turn(spec.epoch, spec.turn))
    monkeypatch.setattr("acker_redis.storm.turns.steps._runs", {})
    found: dict[int, Any] = {}
    for batch in level(plan_of(Holds), is_tick=False, value=b"x" * (2 << 20))():
        found |= dict(zip(batch.column("to").to_pylist(), batch.column("data").to_pylist(), strict=True))
    ((root, (bolt, reason)),) = pickle.loads(found[REPORT]).too_long.items()
    assert (root, bolt) == (7, "bolt") and "can't keep the tuple '1:2:1', which has 2,097,1" in reason
    assert Executed.from_bytes(found[STATE]).attempts == ()
    assert client.redis.keys("*attempt*") == []
