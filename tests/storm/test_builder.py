"""TopologyBuilder: Java's calls over the same core."""

from collections.abc import Callable
from typing import Any

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import BoltDeclarer, Topology, TopologyBuilder
from tests.storm.parts import Upto, passing, sink


def test_calls_chain_and_any_text_is_a_name() -> None:
    builder = TopologyBuilder()
    builder.set_spout("source 1", Upto(3))
    builder.set_spout("source 2", Upto(2), 2)
    declarer = builder.set_bolt("all of them", passing(), 2, config={"mine": 1})
    assert declarer.shuffle_grouping("source 1").fields_grouping("source 2", ["v"]) is declarer
    topology = builder.create_topology()
    assert isinstance(topology, Topology)
    with topology.local() as run:
        run.settle()
        assert sorted(run.acked("source 1")) == ["m1", "m2", "m3"] and len(run.acked("source 2")) == 4
        assert run.tasks("all of them")[0].storm_conf["mine"] == 1


@pytest.mark.parametrize(
    "call", ["shuffle", "local_or_shuffle", "none", "all", "global"],
)  # fmt: skip
def test_each_simple_grouping_has_its_call(call: str) -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    getattr(builder.set_bolt("a", sink()), f"{call}_grouping")("s", stream="default")
    with builder.create_topology().local() as run:
        run.settle()
        assert run.acked("s") == ["m1"]


def test_partial_key_grouping_has_its_call() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    builder.set_bolt("a", sink()).partial_key_grouping("s", ["v"], stream="default")
    assert "partial_key(v)" in builder.create_topology().describe()


def wrong(name: str, *calls: tuple[str, tuple[Any, ...]]) -> Any:
    return pytest.param(calls, id=name)


@pytest.mark.parametrize(
    "calls",
    [
        wrong("unknown component", ("set_bolt", ("a", sink())), ("shuffle_grouping", ("nobody",))),
        wrong("unknown stream", ("set_bolt", ("a", sink())), ("shuffle_grouping", ("s", "nothing"))),
        wrong("unknown field", ("set_bolt", ("a", sink())), ("fields_grouping", ("s", ["nothing"]))),
        wrong("direct", ("set_bolt", ("a", sink())), ("direct_grouping", ("s",))),
        wrong("name twice", ("set_bolt", ("s", sink()))),
        wrong("name of Storm's", ("set_bolt", ("__acker", sink()))),
        wrong("no bolt", ("set_bolt", ("a", Upto(1)))),
        wrong("no component", ("set_bolt", ("a", "sink"))),
        wrong("parallelism", ("set_bolt", ("a", sink(), 0))),
        wrong("tasks", ("set_bolt", ("a", sink(), 1, 0))),
        wrong("setting", ("set_bolt", ("a", sink(), 1, None, {"topology.tick": 1}))),
        wrong("twice", ("set_bolt", ("a", sink())), ("shuffle_grouping", ("s",)), ("all_grouping", ("s",))),
    ],
)
def test_mistakes_are_refused(calls: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    with pytest.raises(InvalidTopologyError):
        target: Any = builder
        for name, arguments in calls:
            target = getattr(target, name)(*arguments)
        builder.create_topology()


def test_tasks_of_one_executor() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1), par=1, tasks=3)
    builder.set_bolt("a", sink(), par=2, tasks=5).shuffle_grouping("s")
    with builder.create_topology().local() as run:
        assert (len(run.tasks("s")), len(run.tasks("a"))) == (3, 5)


def declared(call: Callable[[BoltDeclarer], object]) -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    call(builder.set_bolt("a", sink()))


@pytest.mark.parametrize(
    "call",
    [
        lambda bolt: bolt.shuffle_grouping(None),
        lambda bolt: bolt.shuffle_grouping(["s"]),
        lambda bolt: bolt.shuffle_grouping("s", None),
        lambda bolt: bolt.all_grouping("s", stream=["default"]),
        lambda bolt: bolt.grouping("s", "shuffle"),
        lambda bolt: bolt.fields_grouping("s", None),
        lambda bolt: bolt.fields_grouping("s", [1]),
        lambda bolt: bolt.partial_key_grouping("s", {"v": 1}),
        lambda bolt: bolt.custom_grouping("s", Weekly),
    ],
)
def test_wrong_arguments_of_a_grouping_are_refused_by_the_call(call: Any) -> None:
    with pytest.raises(InvalidTopologyError, match=r"not (a grouping|name fields|the name of a (component|stream))"):
        declared(call)


class Weekly:
    """Grouping that is given as a class, in place of an object."""

    def prepare(self, context: Any, stream: Any, tasks: Any) -> None: ...

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return []


@pytest.mark.parametrize("name", [{"topology.debug": True}, None, 5, ""])
def test_settings_in_place_of_the_name_are_refused(name: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    with pytest.raises(InvalidTopologyError, match="is not the name of a topology"):
        builder.create_topology(name)
