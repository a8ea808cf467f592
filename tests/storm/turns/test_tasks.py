"""Tasks of bolts in a worker: how they end, and what they keep."""

from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest
from pyspark.cloudpickle import dumps

from acker_redis import AckerConfig
from acker_redis.client.client import Client
from acker_redis.store.topology_state import TopologyState
from acker_redis.storm import Bolt, TopologyBuilder, Tuple
from acker_redis.storm.state.held import Moment
from acker_redis.storm.turns import steps
from acker_redis.storm.turns.collectors import Emits
from acker_redis.storm.turns.plan import make_plan
from acker_redis.storm.turns.steps import TurnSpec
from acker_redis.storm.turns.tasks import TaskSet
from tests.storm.turns.parts import Heard, chain, spout_of
from tests.storm.turns.state_parts import Count


class RaisesAtTheEnd(Bolt):
    closed: list[int] = []
    cache = True

    def process(self, tup: Tuple) -> None: ...

    def close(self) -> None:
        self.closed.append(self.task_id)
        raise OSError("on purpose")


def test_a_bolt_that_raises_at_its_end_breaks_no_turn_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker closes the bolts of the oldest run when it begins with a turn of the fifth."""
    monkeypatch.setattr(steps, "_runs", type(steps._runs)())
    plan = make_plan(chain(spout_of([], Heard()), RaisesAtTheEnd)._checked_graph(), {}, {}, 1)
    sent: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
    transport: Any = Mock(is_tracking=False)
    for run in range(5):
        tasks = TurnSpec(f"run-{run}", sent, 1, 0.0, None, AckerConfig("app"), {}).tasks()
        for task in plan.levels[0]:
            tasks.task(task).begin_turn(transport, Emits(plan), tasks.observer(0.0, {}), Moment(0, 1))
    assert RaisesAtTheEnd.closed == list(plan.levels[0])


def test_a_worker_keeps_copies_of_state_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs a task anywhere, so a worker sees all of them in time. Those in use are kept in any case."""
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of([], Heard()))
    builder.set_bolt("count", Count, par=4).fields_grouping("spout", "v")
    plan = make_plan(builder.create_topology("words")._checked_graph(), {}, {}, 1)
    stored = TopologyState(Client(fakeredis.FakeRedis()), "app", "words")
    turn, tasks, kept = stored.turn(stored.open({})[0], 1), TaskSet(plan, "run"), {}
    for number in (1, 2, 3, 4, 1):
        task = tasks.task(number)
        assert task.state is not None
        kept[number] = task.state
        task.state.begin(turn)
        task.state["a"] = b"x" * 1000
        task.state.end(f"x{number}")
    tasks.forget_states({1})
    assert all(state.kept_bytes > 1000 for state in kept.values())
    monkeypatch.setattr("acker_redis.storm.turns.tasks.KEPT_BYTES", 3000)
    tasks.forget_states({1})
    assert [number for number, state in kept.items() if state.kept_bytes] == [1, 4]
    monkeypatch.setattr("acker_redis.storm.turns.tasks.KEPT_BYTES", 0)
    tasks.forget_states({1})
    assert [number for number, state in kept.items() if state.kept_bytes] == [1]
