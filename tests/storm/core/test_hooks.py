"""Task hooks come in Storm's order, as recorded in its scenario `hooks`."""

from typing import Any

import pytest

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm import Bolt, TaskHook
from tests.storm.parts import SEEDS, Do, Upto, chain, sink

LOG: list[Any] = []


class Hook(TaskHook):
    def prepare(self, conf: Any, context: Any) -> None:
        self.name = context.component
        LOG.append((self.name, "prepare"))

    def cleanup(self) -> None:
        LOG.append((self.name, "cleanup"))

    def emit(self, info: Any) -> None:
        LOG.append((self.name, "emit", info.stream, len(info.out_tasks)))

    def spout_ack(self, info: Any) -> None:
        LOG.append((self.name, "spout_ack", info.tup_id))

    def spout_fail(self, info: Any) -> None:
        LOG.append((self.name, "spout_fail", info.tup_id, info.reason, info.last_component))

    def bolt_execute(self, info: Any) -> None:
        LOG.append((self.name, "bolt_execute", info.tuple.values.v))

    def bolt_ack(self, info: Any) -> None:
        LOG.append((self.name, "bolt_ack", info.tuple.values.v))

    def bolt_fail(self, info: Any) -> None:
        LOG.append((self.name, "bolt_fail", info.tuple.values.v))


class Hooked(Upto):
    def initialize(self, conf: Any, context: Any) -> None:
        context.add_task_hook(Hook())

    def ack(self, tup_id: Any) -> None:
        LOG.append(("spout", "ack", tup_id))

    def close(self) -> None:
        LOG.append(("spout", "close"))


class Fails2(Bolt):
    outputs = ["v"]
    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.add_task_hook(Hook())

    def process(self, tup: Any) -> None:
        if tup.values.v == 2:
            return self.fail(tup, "two")
        self.emit([5])
        return self.ack(tup)

    def close(self) -> None:
        LOG.append(("a", "close"))


@pytest.mark.parametrize("seed", SEEDS)
def test_hooks_come_in_storms_order(seed: int) -> None:
    LOG.clear()
    with chain(Fails2(), sink(), spout=Hooked(2)).local(seed=seed) as run:
        run.settle()
    emit = [("spout", "emit", "default", 1), ("spout", "emit", "__ack_init", 0)]
    of_spout = [entry for entry in LOG if entry[0] == "spout"]
    assert of_spout[0] == ("spout", "prepare") and of_spout[-2:] == [("spout", "cleanup"), ("spout", "close")]
    assert [entry for entry in of_spout if entry[1] == "emit"] == emit * 2
    at = of_spout.index(("spout", "ack", "m1"))
    assert of_spout[at + 1] == ("spout", "spout_ack", "m1")
    assert ("spout", "spout_fail", "m2", "two", "a") in of_spout
    assert [entry[1:] for entry in LOG if entry[0] == "a"] == [
        ("prepare",),
        ("emit", "default", 1), ("emit", "__ack_ack", 0), ("bolt_ack", 1), ("bolt_execute", 1),
        ("emit", "__ack_fail", 0), ("bolt_fail", 2), ("bolt_execute", 2),
        ("cleanup",), ("close",),
    ]  # fmt: skip


@pytest.mark.parametrize("hook", [Hook, Hook(), f"{__name__}.Hook", f"{__name__}:Hook"])
def test_automatic_hooks_are_added_to_every_task(hook: Any) -> None:
    LOG.clear()
    with chain(sink(), spout=Upto(1)).local(conf={"topology.auto.task.hooks": [hook]}) as run:
        run.settle()
    assert {("a", "prepare"), ("spout", "prepare"), ("a", "bolt_ack", 1), ("spout", "spout_ack", "m1")} <= set(LOG)


@pytest.mark.parametrize("hook", ["nothing.Hook", "Hook", 5, object])
def test_bad_automatic_hook_is_refused(hook: Any) -> None:
    with (
        pytest.raises(InvalidTopologyError, match="hook"),
        chain(sink()).local(conf={"topology.auto.task.hooks": [hook]}),
    ):
        pass


class ExpectsWords(TaskHook):
    """As a hook that forgets the acker's streams, whose values have no such field."""

    def emit(self, info: Any) -> None:
        if info.stream in ("__ack_ack", "__ack_fail"):
            LOG.append(info.values.word)


def test_a_hook_that_raises_loses_no_ack_and_no_fail() -> None:
    with chain(Fails2, sink(), spout=Upto(2)).local({"topology.auto.task.hooks": [ExpectsWords]}) as run:
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == (["m1"], [("m2", "two")])


class Doubles(TaskHook):
    def __init__(self, bolt: Bolt) -> None:
        self.bolt, self.is_heard = bolt, False

    def emit(self, info: Any) -> None:
        if info.stream == "default" and not self.is_heard:
            self.is_heard = True
            self.bolt.emit(info.values)
            self.is_heard = False


class Doubled(Bolt):
    outputs = ["v"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.add_task_hook(Doubles(self))

    def process(self, tup: Any) -> None:
        self.emit([1])


def test_tuples_of_a_hook_have_edges_of_their_own() -> None:
    """Two equal edges would cancel each other, and the message would be acked before both tuples are processed."""
    held: list[Any] = []
    with chain(Doubled, Do(lambda _, tup: held.append(tup)), spout=Upto(1)).local() as run:
        run.settle()
        first, second = held
        assert first.edges.keys() == second.edges.keys() and first.edges != second.edges
        assert run.acked("spout") == []


class Hasty(TaskHook):
    def __init__(self, bolt: Any) -> None:
        self.bolt = bolt

    def emit(self, info: Any) -> None:
        if info.stream == "default":
            self.bolt.ack(self.bolt.tup)


class AcksTooEarly(Bolt):
    outputs = ["v"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.add_task_hook(Hasty(self))

    def process(self, tup: Any) -> None:
        self.tup = tup
        with pytest.raises(BadTupleError, match="Emit first, then ack"):
            self.emit([1])


def test_a_tuple_that_a_hook_acks_inside_of_an_emit_is_no_anchor() -> None:
    held: list[Any] = []
    with chain(AcksTooEarly, Do(lambda _, tup: held.append(tup)), spout=Upto(1)).local() as run:
        run.settle()
        assert (run.acked("spout"), held) == (["m1"], [])
