"""State of a run as the driver opens it."""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from acker_redis import InvalidTopologyError
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.store import topology_sizes
from acker_redis.storm import Bolt, Grouping
from acker_redis.storm.state import shapes
from acker_redis.storm.turns.run_state import RunState
from tests.storm.state.test_held import graph_of
from tests.storm.state.test_holdings import BatchesWithState
from tests.storm.state.test_rescale import topology
from tests.storm.turns.parts import Passing


def test_a_new_run_deletes_what_batches_and_windows_of_earlier_ones_held(connect: Any, url: str, raw: Any) -> None:
    """They may be of tasks, or of a bolt, that no longer exist. What was committed may not be folded yet."""
    acker, graph = connect(), graph_of(BatchesWithState)
    client, stored = app_of(acker).client, app_of(acker).topology_state(graph.name)
    own, held = "bolt:0", [StateKeys.task(f"__held:{name}", i) for name, i in (("bolt", 0), ("bolt", 2), ("gone", 0))]
    RunState(graph, acker).open()
    turn = stored.turn(1, 1)
    assert turn.commit([turn.write(task, "one", {b"n": b"1"}) for task in (own, *held)]) == 0
    turn = stored.turn(1, 2)
    turn.load(held[0])
    assert turn.commit([turn.write(held[0], "two", {b"o": b"22"})]) == 0
    assert stored.tasks() == sorted([own, *held]) and topology_sizes.read_total(client, "test") == 11
    for epoch in (2, 3):
        state = RunState(graph, acker)
        state.open()
        assert state.epoch == epoch and stored.tasks() == [own] and raw.keys("*__held*") == []
        assert topology_sizes.read_total(client, "test") == 2
        turn = stored.turn(epoch, 1)
        assert turn.load(own) == "1:1:one" and list(turn.read_all(own)) == [{b"n": b"1"}]


@pytest.mark.parametrize(("bolt", "left"), [(BatchesWithState, "gone"), (Passing, "__held:bolt,bolt,gone")])
def test_state_that_no_bolt_has_any_more_stays_and_is_logged(
    connect: Any, url: str, caplog: pytest.LogCaptureFixture, bolt: type[Bolt], left: str
) -> None:
    acker, graph = connect(), graph_of(bolt)
    stored = app_of(acker).topology_state(graph.name)
    stored.open({})
    turn, tasks = stored.turn(1, 1), [*(StateKeys.task(name, 0) for name in ("bolt", "gone", "__held:bolt")), "empty:0"]
    values = [{b"n": b"1" * 1000}] * 3 + [{b"n": b""}]
    assert turn.commit([turn.write(*one) for one in zip(tasks, "abcd", values, strict=True)]) == 0
    RunState(graph, acker).open()
    size = 1001 * (left.count(",") + 1)
    assert f"empty-state --bolt topology={graph.name!r} bolts={left} bytes={size}\n" in caplog.text
    assert set(stored.tasks()) == set(tasks) - ({"__held%3Abolt:0"} if bolt is BatchesWithState else set())


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_number_of_keys_is_right_once_a_run_has_ended(
    connect: Any, url: str, error: type[Exception] | None
) -> None:
    """Until then it lacks the last turn, which only the next load folds."""
    acker, graph = connect(), topology(2)
    client, state = app_of(acker).client, RunState(graph, acker)

    def keys() -> list[int | None]:
        return [size.keys for size in topology_sizes.read(client, "test", graph.name)]

    with suppress(ValueError), state.running(lambda call: call(), lambda: True):
        turn = app_of(acker).topology_state(graph.name).turn(state.epoch, 1)
        tasks = [StateKeys.task("count", index) for index in range(2)]
        for task in tasks:
            turn.load(task)
        assert turn.commit([turn.write(task, "one", {b"sa": b"1", b"sb": b"2"}) for task in tasks]) == 0
        assert keys() == [0, 0]
        if error is not None:
            raise error
    assert keys() == [2, 2]


def test_a_run_without_acks_needs_no_server_for_its_state() -> None:
    graph = replace(graph_of(Passing), config={"topology.acker.executors": 0})
    RunState(graph, Mock()).open()


@pytest.mark.parametrize("changed", ["fields", "formula"])
def test_state_of_other_fields_or_another_formula_is_refused_and_nothing_changes(
    connect: Any, url: str, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    acker, graph = connect(), topology(2)
    RunState(graph, acker).open()
    with monkeypatch.context() as patched:
        patched.setattr(shapes, "FORMULA", shapes.FORMULA + (changed == "formula"))
        with pytest.raises(InvalidTopologyError, match=r"'count' of topology 'words' was written with .* now has"):
            RunState(topology(2, Grouping.fields("site")) if changed == "fields" else graph, acker).open()
    state = RunState(graph, acker)
    state.open()
    assert state.epoch == 2
