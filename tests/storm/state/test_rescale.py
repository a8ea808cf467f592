"""The state of a topology moves to another number of tasks, as a whole or not at all."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from acker_redis import Acker, BadConfigError, InvalidTopologyError, Limits
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.store import topology_counts, topology_sizes
from acker_redis.store.topology_counts import Counts
from acker_redis.store.topology_state import StateTurn, Status
from acker_redis.storm import Grouping, Spout, StatefulBolt, TopologyBuilder
from acker_redis.storm.core.java_hash import task_index
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.state.codec import decode_value, encode_key, encode_value, key_of, with_key
from acker_redis.storm.state.rescale import Moved, rescale
from acker_redis.storm.state.shapes import shapes_of

WORDS = {f"word{number}": number for number in range(199)} | {"long": "x" * 130_000}
"""State of the words. One value is cut in pieces."""


BY_WORD = Grouping.fields("word")


class Lines(Spout):
    outputs = ("word", "site")

    def next_tuple(self) -> None: ...


class Count(StatefulBolt):
    def process(self, tup: Any) -> None: ...

    def state_key(self, key: Any) -> Any:
        return key[1] if isinstance(key, tuple) else key


class CountsThemselves(StatefulBolt):
    def process(self, tup: Any) -> None: ...


class CountsBySite(Count):
    def state_key(self, key: Any) -> Any:
        return key


class CountsWithPrefix(Count):
    def initialize(self, conf: Any, context: Any) -> None:
        self.prefix = "x"

    def state_key(self, key: Any) -> Any:
        return self.prefix + key


def topology(tasks: int, grouping: Grouping = BY_WORD, bolt: type[StatefulBolt] = Count) -> Graph:
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines)
    builder.set_bolt("count", bolt, par=tasks).grouping("lines", grouping)
    return builder.create_topology("words")._checked_graph()


@pytest.fixture
def acker(connect: Callable[..., Acker], source: object) -> Acker:
    return connect()


def begin(acker: Acker, graph: Graph) -> StateTurn:
    state = app_of(acker).topology_state("words")
    epoch, other = state.open(shapes_of(graph))
    assert other is None
    return state.turn(epoch, 1)


def fill(acker: Acker, tasks: int, values: dict[Any, Any], of: Callable[[Any], list[Any]] = lambda key: [key]) -> None:
    """Write a state as a run with so many tasks does."""
    grouping = Grouping.fields("word") if len(of(next(iter(values)))) == 1 else Grouping.fields("word", "site")
    turn = begin(acker, topology(tasks, grouping))
    attempts = []
    for index in range(tasks):
        own = {key: value for key, value in values.items() if task_index(of(key), tasks) == index}
        task = StateKeys.task("count", index)
        turn.load(task)
        changes = {encode_key(key): with_key(encode_value(value, key, "count"), key) for key, value in own.items()}
        attempts.append(turn.write(task, "filled", changes))
    assert turn.commit(attempts) is Status.OPEN


def found(acker: Acker, graph: Graph, tasks: int) -> list[dict[Any, Any]]:
    """The state of each task, as a run reads it, and of some that no longer exist."""
    turn, states = begin(acker, graph), []
    for index in range(tasks + 3):
        task = StateKeys.task("count", index)
        turn.load(task)
        states.append({key_of(field, v): decode_value(v) for part in turn.read_all(task) for field, v in part.items()})
    assert not any(states[tasks:])
    return states[:tasks]


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (1, 3)])
def test_each_key_is_in_its_new_task(acker: Acker, before: int, after: int) -> None:
    values: dict[Any, Any] = {**WORDS, **{("seen", word): [word] for word in WORDS}}
    fill(acker, before, values, lambda key: [key[1] if isinstance(key, tuple) else key])
    (moved,) = rescale(topology(after), acker)
    assert moved[:3] == ("count", after, 400) and 0 < moved.moved < 400
    states = found(acker, topology(after), after)
    assert {key: value for state in states for key, value in state.items()} == values
    for index, state in enumerate(states):
        assert all(task_index([key[1] if isinstance(key, tuple) else key], after) == index for key in state)
    assert rescale(topology(after), acker) == [], "nothing is left to do"


def test_tasks_that_no_longer_exist_leave_nothing_behind(acker: Acker) -> None:
    """Nobody would load them, and fold what was committed."""
    fill(acker, 5, WORDS)
    client, keys = app_of(acker).client, StateKeys("test", "words")
    rescale(topology(2), acker)
    left = client.pipeline([("EXISTS", keys.values(f"count:{index}")) for index in range(5)])
    assert left == [1, 1, 0, 0, 0] and app_of(acker).topology_state("words").tasks() == ["count:0", "count:1"]
    sizes = topology_sizes.read(client, "test")
    assert [(size.index, size.component) for size in sizes] == [(0, "count"), (1, "count")]
    assert sum(size.keys or 0 for size in sizes) == len(WORDS)
    expected = sum(len(encode_key(word)) + len(encode_value(n, word, "count")) for word, n in WORDS.items())
    assert sum(size.bytes for size in sizes) == topology_sizes.read_total(client, "test") == expected
    app_of(acker).topology_state("words").open({})


@pytest.mark.parametrize("tasks", [1, 5])
def test_a_state_at_its_limit_moves_because_it_does_not_grow(acker: Acker, tasks: int) -> None:
    fill(acker, 2, WORDS)
    total = topology_sizes.read_total(app_of(acker).client, "test")
    for limit in (total, total // 2):  # the limit may be lower than the state
        acker.admin.set_limits(Limits(max_state_bytes=limit))
        (moved,) = rescale(topology(tasks), acker)
        assert moved.moved > 0 and topology_sizes.read_total(app_of(acker).client, "test") == total
        rescale(topology(2), acker)


def test_keys_of_several_fields_are_tuples(acker: Acker) -> None:
    values = {(word, "site"): n for word, n in WORDS.items()}
    fill(acker, 2, values, lambda key: list(key))
    graph = topology(3, Grouping.fields("word", "site"), CountsBySite)
    assert [one.keys for one in rescale(graph, acker)] == [200]
    assert sum(map(len, found(acker, graph, 3))) == 200


@pytest.mark.parametrize(("before", "after"), [(1, 4), (3, 5)])
def test_numbers_move_by_their_types(acker: Acker, before: int, after: int) -> None:
    """A whole float and a boolean choose other tasks than the integer that a dict takes for equal."""
    values: dict[Any, Any] = {float(number): number for number in range(2, 60)} | {True: 1, False: 0}
    fill(acker, before, values)
    rescale(topology(after, bolt=CountsThemselves), acker)
    states = found(acker, topology(after), after)
    assert {key: value for state in states for key, value in state.items()} == values
    for index, state in enumerate(states):
        assert all(task_index([key], after) == index for key in state)


def test_inputs_whose_fields_have_other_names_move_by_their_values(acker: Acker) -> None:
    def joined(tasks: int, *fields: str) -> Graph:
        builder = TopologyBuilder()
        builder.set_spout("users", Lines)
        builder.set_spout("lines", Lines)
        (builder.set_bolt("count", Count, par=tasks)
            .fields_grouping("users", ["site"]).fields_grouping("lines", list(fields)))  # fmt: skip
        return builder.create_topology("words")._checked_graph()

    turn, tasks = begin(acker, joined(1, "word")), StateKeys.task("count", 0)
    turn.load(tasks)
    changes = {encode_key(key): encode_value(value, key, "count") for key, value in WORDS.items()}
    assert turn.commit([turn.write(tasks, "filled", changes)]) is Status.OPEN
    (moved,) = rescale(joined(3, "word"), acker)
    assert moved.keys == 200 and [len(state) > 0 for state in found(acker, joined(3, "word"), 3)] == [True] * 3
    with pytest.raises(InvalidTopologyError, match=r"Only the number of tasks may change.*Use the groupings of before"):
        rescale(joined(4, "word", "site"), acker)


def test_a_grouping_that_decides_no_task_keeps_the_number_of_tasks(acker: Acker) -> None:
    turn = begin(acker, topology(1, Grouping.SHUFFLE))
    turn.load("count:0")
    assert (
        turn.commit([turn.write("count:0", "filled", {encode_key("a"): encode_value(1, "a", "count")})]) is Status.OPEN
    )
    with pytest.raises(InvalidTopologyError, match=r"a fields grouping, .*Keep the number of tasks, or start without"):
        rescale(topology(2, Grouping.SHUFFLE), acker)


def test_a_move_that_dies_anywhere_is_completed_by_the_next_one(acker: Acker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run begins before that."""
    from acker_redis.client.client import Client

    class DiesError(Exception):
        pass

    sent, left = {name: getattr(Client, name) for name in ("run", "pipeline")}, [0]

    def dying(name: str) -> Any:
        def call(self: Client, commands: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise DiesError
            return sent[name](self, commands)

        return call

    fill(acker, 2, WORDS)
    tasks, rng = 2, random.Random(1)
    for died_at in range(1, 60):
        tasks = rng.choice([one for one in (1, 2, 3, 4) if one != tasks])
        left[0] = died_at
        with monkeypatch.context() as patched:
            for name in sent:
                patched.setattr(Client, name, dying(name))
            with suppress(DiesError):
                rescale(topology(tasks), acker)
        rescale(topology(tasks), acker)
        states = found(acker, topology(tasks), tasks)
        assert {key: value for state in states for key, value in state.items()} == WORDS
        if left[0] > 0:
            return
    raise AssertionError("no move was completed at once")


@pytest.mark.parametrize(("tasks", "bolt"), [(5, CountsBySite), (2, CountsThemselves)])
def test_a_key_whose_grouping_value_isnt_known_is_refused_and_nothing_moves(
    acker: Acker, tasks: int, bolt: type[StatefulBolt]
) -> None:
    """Two tasks may have each key where a wrong value puts it, by chance."""
    values = {("seen", word): n for word, n in WORDS.items()}
    fill(acker, tasks, values, lambda key: [key[1]])
    with pytest.raises(InvalidTopologyError, match=r"isn't known to be the grouping value .*state_key\(\)"):
        rescale(topology(3, bolt=bolt), acker)
    assert sum(map(len, found(acker, topology(tasks), tasks))) == 200


def test_error_in_state_key_names_bolt_and_key_and_nothing_moves(acker: Acker) -> None:
    fill(acker, 2, WORDS)
    with pytest.raises(
        InvalidTopologyError, match=r"state_key\(\) of the bolt 'count' raised AttributeError for the key '"
    ):
        rescale(topology(3, bolt=CountsWithPrefix), acker)
    assert sum(map(len, found(acker, topology(2), 2))) == 200


def test_other_groupings_and_a_topology_that_runs_are_refused(acker: Acker) -> None:
    fill(acker, 2, WORDS)
    for grouping in (Grouping.SHUFFLE, Grouping.fields("site")):
        with pytest.raises(InvalidTopologyError, match="Only the number of tasks may change"):
            rescale(topology(3, grouping), acker)
    client = app_of(acker).client
    topology_counts.write(client, "test", Counts("words", "run-1", "running", 0))
    with pytest.raises(BadConfigError, match="Topology 'words' runs"):
        rescale(topology(3), acker)


def test_a_topology_without_state_has_nothing_to_move(acker: Acker) -> None:
    assert rescale(topology(3), acker) == []
    assert Moved("count", 3, 2, 1).moved == 1
