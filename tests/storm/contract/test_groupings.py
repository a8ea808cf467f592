"""Groupings: which tasks get a tuple."""

from collections import Counter
from typing import Any

import pytest

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, FeederSpout, InvalidTopologyError, TopologyBuilder, Tuple
from tests.storm.contract.parts import Keeps, Sink


class Index(Bolt):
    outputs = ["v", "index"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.index = context.task_index

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0], self.index])


def tasks_of(values: list[Any], subscribe: Any, *, par: int, seed: int = 0) -> dict[str, list[int]]:
    """The task indices that each value came to."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    subscribe(builder.set_bolt("bolt", Index, par=par))
    found: dict[str, list[int]] = {}
    with builder.create_topology().local(seed=seed) as run:
        for number, value in enumerate(values):
            run.feed("spout", [value], tup_id=number)
        run.settle()
        for value, index in run.emitted("bolt"):
            found.setdefault(repr(value), []).append(index)
        assert sorted(run.acked("spout")) == list(range(len(values)))
    return found


def java_text_hash(text: str) -> int:
    """`String.hashCode`, over UTF-16 units."""
    units = text.encode("utf-16-be")
    found = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        found = (31 * found + (high << 8 | low)) & 0xFFFFFFFF
    return found


def signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@pytest.mark.parametrize(
    "text", ["", "k0", "nathan", "the", "Zürich", "日本", "\U0001f600 beyond the BMP", "a longer text that overflows"]
)
def test_texts_hash_as_java_s(text: str) -> None:
    for par in (1, 3, 7, 16):
        found = tasks_of([text, text], lambda bolt: bolt.fields_grouping("spout", ["v"]), par=par)
        expected = signed(31 + java_text_hash(text)) % par
        assert found[repr(text)] == [expected, expected]


@pytest.mark.parametrize("number", [0, 1, -1, 42, 2**31, -(2**31), 2**32, 2**62 + 12345, 2**63 - 1, -(2**63)])
def test_integers_hash_as_java_s_long(number: int) -> None:
    unsigned = number & 0xFFFFFFFFFFFFFFFF
    long_hash = signed((unsigned ^ (unsigned >> 32)) & 0xFFFFFFFF)
    for par in (3, 7):
        found = tasks_of([number], lambda bolt: bolt.fields_grouping("spout", ["v"]), par=par)
        assert found[repr(number)] == [signed(31 + long_hash) % par]


def test_true_and_one_are_one_key_or_two_but_always_the_same() -> None:
    values = [True, 1, 1.0, "1", None, 2**70, (1, 2), [1, 2], b"1", {"a": 1}]
    first = tasks_of(values, lambda bolt: bolt.fields_grouping("spout", ["v"]), par=5)
    again = tasks_of(values, lambda bolt: bolt.fields_grouping("spout", ["v"]), par=5, seed=9)
    assert first == again


@pytest.mark.parametrize("value", [1.5, None, b"bytes", (1, "a"), ["x", 2], 2**80, frozenset({1})])
def test_equal_values_of_any_type_meet(value: Any) -> None:
    import copy

    found = tasks_of([value, copy.deepcopy(value)], lambda bolt: bolt.fields_grouping("spout", ["v"]), par=8)
    [indices] = found.values()
    assert len(set(indices)) == 1


def test_fields_in_another_order_are_another_key() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["a", "b"]))
    builder.set_bolt("one", Index, par=16).fields_grouping("spout", ["a", "b"])
    builder.set_bolt("two", Index, par=16).fields_grouping("spout", ["b", "a"])
    with builder.create_topology().local() as run:
        run.feed("spout", ["x", "y"])
        run.settle()
        [(_, one)] = run.emitted("one")
        [(_, two)] = run.emitted("two")
        for found, pair in ((one, "xy"), (two, "yx")):
            expected = 1
            for letter in pair:
                expected = 31 * expected + ord(letter)
            assert found == expected % 16


@pytest.mark.parametrize("name", ["shuffle", "none", "local_or_shuffle"])
def test_one_task_per_tuple_and_every_task_in_time(name: str) -> None:
    found = tasks_of(list(range(200)), lambda bolt: getattr(bolt, f"{name}_grouping")("spout"), par=4)
    counts = Counter(index for [index] in found.values())
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) < 100


def test_seeds_change_the_tasks_of_shuffle() -> None:
    drawn = {
        str(tasks_of(list(range(20)), lambda bolt: bolt.shuffle_grouping("spout"), par=4, seed=s)) for s in range(8)
    }
    assert len(drawn) > 1


def test_global_is_the_lowest_task() -> None:
    found = tasks_of(["a", "b"], lambda bolt: bolt.global_grouping("spout"), par=5)
    assert found == {"'a'": [0], "'b'": [0]}


def test_partial_key_balances_over_two_tasks() -> None:
    found = tasks_of(["key"] * 10, lambda bolt: bolt.partial_key_grouping("spout", ["v"]), par=6)
    assert sorted(Counter(found["'key'"]).values()) == [5, 5]


def test_partial_key_with_one_task() -> None:
    assert tasks_of(["key"] * 3, lambda bolt: bolt.partial_key_grouping("spout", ["v"]), par=1) == {"'key'": [0] * 3}


class Names:
    """Names these tasks, by their index."""

    def __init__(self, *indices: int) -> None:
        self.indices = indices
        self.prepared: list[Any] = []

    def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
        self.tasks = list(tasks)
        self.prepared.append((context.component, tuple(stream), list(tasks)))

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [self.tasks[index] for index in self.indices]


def test_custom_grouping_may_name_no_task() -> None:
    assert tasks_of(["a"], lambda bolt: bolt.custom_grouping("spout", Names()), par=2) == {}


def test_custom_grouping_that_names_a_task_twice_sends_two_tuples() -> None:
    assert tasks_of(["a"], lambda bolt: bolt.custom_grouping("spout", Names(1, 0, 1)), par=2) in [
        {"'a'": order} for order in ([1, 0, 1], [0, 1, 1], [1, 1, 0])
    ]


def test_custom_grouping_of_a_task_twice_is_acked_after_both() -> None:
    """With one edge for both the tree would be complete at once."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("bolt", Keeps).custom_grouping("spout", Names(0, 0))
    with builder.create_topology().local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        [keeper] = run.tasks("bolt")
        first, second = keeper.held
        assert first.id != second.id
        assert run.acked("spout") == []
        keeper.ack(first.id)
        run.settle()
        assert run.acked("spout") == []
        keeper.ack(second.id)
        run.settle()
        assert run.acked("spout") == [1]


@pytest.mark.parametrize("choice", [[99], ["x"], None, [None]])
def test_custom_grouping_that_names_no_task_of_its_is_refused(choice: Any) -> None:
    class Wrong(Names):
        def choose_tasks(self, task: int, values: Any) -> Any:
            return choice

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("bolt", Sink).custom_grouping("spout", Wrong())
    with builder.create_topology().local() as run, pytest.raises(AckerError):
        run.feed("spout", [1], tup_id=1)
        run.settle()


def test_custom_grouping_of_a_bolt_that_is_wrong_leaves_the_tree() -> None:
    class Wrong(Names):
        def choose_tasks(self, task: int, values: Any) -> Any:
            return [self.tasks[0], 99]

    class Emits(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            with pytest.raises(AckerError):
                self.emit([1])

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("emits", Emits).shuffle_grouping("spout")
    builder.set_bolt("bolt", Sink).custom_grouping("emits", Wrong())
    with builder.create_topology().local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]
        assert run.executed("bolt") == []


def test_custom_grouping_without_its_methods_is_refused() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    with pytest.raises(InvalidTopologyError):
        builder.set_bolt("bolt", Sink).custom_grouping("spout", object())  # type: ignore[arg-type]


def test_each_emitting_task_balances_for_itself() -> None:
    """Partial keys and custom groupings belong to the emitting task."""
    prepared: list[Any] = []

    class Remembers(Names):
        def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
            super().prepare(context, stream, tasks)
            prepared.append((context.task_id, id(self)))

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("emits", Index, par=3).shuffle_grouping("spout")
    builder.set_bolt("bolt", Sink).custom_grouping("emits", Remembers(0))
    with builder.create_topology().local() as run:
        run.settle()
        assert len({task for task, _ in prepared}) == len({one for _, one in prepared}) == 3
