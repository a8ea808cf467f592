"""Groupings: which tasks receive a tuple."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm import Grouping, LocalRun, Spout, Stream, StreamId, Topology, TopologyBuilder
from acker_redis.storm.core.context import TopologyContext
from tests.storm.parts import SEEDS, Do, keeping, sink


class Keyed(Spout):
    outputs = ["k", "v"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.n = 0

    def next_tuple(self) -> None:
        if self.n < 40:
            self.emit([f"k{self.n % 5}", self.n], tup_id=f"m{self.n}")
            self.n += 1


def keyed(grouping: Grouping, tasks: int = 4) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", Keyed)
    builder.set_bolt("a", keeping(), par=tasks).grouping("spout", grouping)
    return builder.create_topology()


def received(run: LocalRun) -> list[list[Any]]:
    return [[tuple(tup.values) for tup in bolt.held] for bolt in run.tasks("a")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.NONE, Grouping.LOCAL_OR_SHUFFLE])
def test_shuffle_sends_each_tuple_to_one_task_about_evenly(grouping: Grouping, seed: int) -> None:
    with keyed(grouping).local(seed=seed) as run:
        run.settle()
        sizes = [len(tuples) for tuples in received(run)]
        assert sum(sizes) == 40 and min(sizes) >= 2
        assert len(run.acked("spout")) == 40


def test_shuffle_is_exactly_even_without_load_awareness() -> None:
    with keyed(Grouping.SHUFFLE).local(conf={"topology.disable.loadaware.messaging": True}) as run:
        run.settle()
        assert [len(tuples) for tuples in received(run)] == [10, 10, 10, 10]


def test_fields_grouping_sends_a_key_to_the_task_that_storm_chose() -> None:
    with keyed(Grouping.fields("k")).local() as run:
        run.settle()
        assert [{key for key, _ in tuples} for tuples in received(run)] == [{"k0", "k4"}, {"k1"}, {"k2"}, {"k3"}]


def test_partial_key_grouping_chooses_as_recorded_from_storm() -> None:
    with keyed(Grouping.partial_key("k")).local() as run:
        run.settle()
        assert [{key for key, _ in tuples} for tuples in received(run)] == [{"k2"}, set(), {"k0", "k3"}, {"k1", "k4"}]


def test_all_grouping_sends_a_copy_to_every_task_and_acks_after_all() -> None:
    with keyed(Grouping.ALL).local() as run:
        run.settle()
        assert [len(tuples) for tuples in received(run)] == [40] * 4
        assert len(run.acked("spout")) == 40


def test_global_grouping_uses_the_first_task() -> None:
    with keyed(Grouping.GLOBAL).local() as run:
        run.settle()
        assert [len(tuples) for tuples in received(run)] == [40, 0, 0, 0]


class Twice:
    """Names the first task twice for even numbers, and no task for others."""

    def prepare(self, context: TopologyContext, stream: StreamId, tasks: Sequence[int]) -> None:
        self.tasks, self.stream = tasks, stream
        assert context.tasks("a") == list(tasks)

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return [self.tasks[0], self.tasks[0]] if values[1] % 2 == 0 else []


def test_custom_grouping_may_name_a_task_twice_or_none() -> None:
    with keyed(Grouping.custom_object(Twice())).local() as run:
        run.settle()
        assert Counter(Counter(received(run)[0]).values()) == Counter({2: 20})
        assert len(run.acked("spout")) == 40


def test_tuple_of_a_task_that_was_named_twice_needs_both_acks() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", Keyed)

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v not in [held.values.v for held in bolt.held]:
            bolt.held.append(tup)
            bolt.ack(tup)

    builder.set_bolt("a", Do(call)).custom_grouping("spout", Twice())
    with builder.create_topology().local() as run:
        run.settle()
        assert len(run.acked("spout")) == 20  # those without a task


class Wrong(Twice):
    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return [99]


def test_custom_grouping_that_names_another_task_raises() -> None:
    with keyed(Grouping.custom_object(Wrong())).local() as run, pytest.raises(BadTupleError, match="chose task 99"):
        run.settle()


def test_custom_grouping_needs_its_methods() -> None:
    with pytest.raises(InvalidTopologyError, match="not a grouping"):
        Grouping.custom_object(object())  # type: ignore[arg-type]


def test_custom_grouping_in_java_is_refused_with_the_way_to_port_it() -> None:
    """As streamparse names them."""
    name: Any = "com.example.ByCustomer"
    for arguments in (None, [1, "a"]):
        with pytest.raises(
            InvalidTopologyError, match=r"'com\.example\.ByCustomer' is a class in Java.*Write it in Python"
        ):
            Grouping.custom_object(name, arguments)
    with pytest.raises(InvalidTopologyError, match="not a grouping"):
        Grouping.custom_object(Twice(), [1])


def direct(call: Any) -> Topology:
    class Direct(Spout):
        outputs = [Stream(["v"]), Stream(["v"], "dir", direct=True)]
        done = False

        def next_tuple(self) -> None:
            if not self.done:
                self.done = True
                call(self)

    builder = TopologyBuilder()
    builder.set_spout("spout", Direct)
    builder.set_bolt("d", sink(), par=3).direct_grouping("spout", "dir")
    builder.set_bolt("other", sink()).shuffle_grouping("spout")
    return builder.create_topology()


def test_direct_emit_reaches_the_task_that_it_names() -> None:
    def call(spout: Spout) -> None:
        tasks = spout.context.tasks("d")
        assert spout.emit([1], tup_id="m1", stream="dir", direct_task=tasks[1], need_task_ids=True) == [tasks[1]]

    with direct(call).local() as run:
        run.settle()
        assert run.executed("d") == [(1,)] and run.acked("spout") == ["m1"]


def test_direct_emit_to_a_task_that_does_not_subscribe_is_acked_at_once() -> None:
    def call(spout: Spout) -> None:
        other = spout.context.tasks("other")[0]
        assert spout.emit([1], tup_id="m1", stream="dir", direct_task=other, need_task_ids=True) == []

    with direct(call).local() as run:
        run.settle()
        assert run.acked("spout") == ["m1"] and run.executed("other") == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"stream": "dir"}, "is direct, so an emit must name its task"),
        ({"direct_task": 1}, "is not direct"),
        ({"stream": "dir", "direct_task": 77}, "not a task"),
        ({"stream": "dir", "direct_task": True}, "not a task"),
        ({"stream": "dir", "direct_task": 1.0}, "not a task"),
    ],
)
def test_misused_direct_streams_raise_and_leave_nothing_pending(arguments: Any, text: str) -> None:
    def call(spout: Spout) -> None:
        with pytest.raises(BadTupleError, match=text):
            spout.emit([1], tup_id="m1", **arguments)

    with direct(call).local() as run:
        run.settle()
        assert run.pending("spout") == [] and run.acked("spout") == []


def test_task_ids_of_numpy_are_task_ids() -> None:
    def call(spout: Spout) -> None:
        task = np.int64(spout.context.tasks("d")[1])
        assert spout.emit([1], tup_id="m1", stream="dir", direct_task=task, need_task_ids=True) == [2]  # type: ignore[arg-type]

    with direct(call).local() as run:
        run.settle()
        assert run.executed("d") == [(1,)] and run.acked("spout") == ["m1"]


@pytest.mark.parametrize("chosen", [None, 99, "x", [["x"]], [{}], True, [1, 1.0]])
def test_custom_grouping_that_chooses_no_task_raises(chosen: Any) -> None:
    class Strange(Twice):
        def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
            return chosen  # type: ignore[no-any-return]

    with (
        keyed(Grouping.custom_object(Strange())).local() as run,
        pytest.raises(BadTupleError, match=r"chose (task|nothing)"),
    ):
        run.settle()


def test_custom_grouping_that_cant_be_copied_is_refused_with_its_place() -> None:
    class Locked(Twice):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(
        InvalidTopologyError, match=r"stream 'default' of '.*' can't be copied, but each task needs its own"
    ):
        keyed(Grouping.custom_object(Locked())).local().__enter__()


@pytest.mark.parametrize("grouping", [Grouping.fields("k"), Grouping.partial_key("k")])
def test_value_that_contains_itself_raises_and_sends_nothing(grouping: Grouping) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with keyed(grouping).local() as run:
        (spout,) = run.tasks("spout")
        with pytest.raises(BadTupleError, match="nested too deep"):
            spout.emit([endless, 1], tup_id="m")
        assert run.pending("spout") == []


@pytest.mark.parametrize("grouping", [Grouping.fields("k"), Grouping.partial_key("k")])
def test_value_that_cannot_be_hashed_raises_and_sends_nothing(grouping: Grouping) -> None:
    with keyed(grouping).local() as run:
        run.feed("spout", [lambda: 0, 1], tup_id="m")
        with pytest.raises(BadTupleError, match="can't be pickled, so it can't choose a task"):
            run.settle()
        assert run.pending("spout") == run.executed("a") == run.emitted("spout") == []
