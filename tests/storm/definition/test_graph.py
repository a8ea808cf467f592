"""Graph: mistakes are found before anything runs; tasks are numbered and split among executors."""

from typing import Any

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import Bolt, Grouping, Spout, Stream, Topology, TopologyBuilder
from acker_redis.storm.definition.graph import make_component, make_graph
from tests.storm.parts import Upto, sink


class Words(Spout):
    outputs = [Stream(["word", "n"]), Stream(["to"], "direct", direct=True)]

    def next_tuple(self) -> None: ...


class Count(Bolt):
    outputs = ["word"]

    def process(self, tup: Any) -> None: ...


def refuse(text: str, **attributes: Any) -> None:
    with pytest.raises(InvalidTopologyError, match=text):
        type("Wrong", (Topology,), attributes)


def test_unknown_field_is_refused_with_the_nearest_one() -> None:
    words = Words.spec()
    refuse("by field 'wrod', which the stream lacks. Did you mean 'word'", words=words,
           count=Count.spec(inputs={words: Grouping.fields("wrod")}))  # fmt: skip


def test_unknown_stream_is_refused() -> None:
    words = Words.spec()
    refuse("stream 'defalt', which 'words' does not declare", words=words, count=Count.spec(inputs=[words["defalt"]]))


def test_component_outside_of_the_topology_is_refused() -> None:
    refuse("unknown component", words=Words.spec(), count=Count.spec(inputs=[Words.spec()]))


def test_direct_grouping_and_direct_stream_belong_together() -> None:
    words = Words.spec()
    refuse("the stream is not direct", words=words, count=Count.spec(inputs={words: Grouping.DIRECT}))
    refuse("Use Grouping.DIRECT", words=words, count=Count.spec(inputs=[words["direct"]]))


def test_topology_without_spout_is_refused() -> None:
    refuse("has no spout", count=Count.spec())


def test_spout_with_inputs_is_refused() -> None:
    words = Words.spec()
    refuse("has inputs", words=words, other=Words.spec(inputs=[words]))


def test_one_name_or_one_spec_for_two_components_is_refused() -> None:
    words = Words.spec()
    refuse("are one component", words=words, again=words)
    refuse("Two components are named 'x'", words=Words.spec(name="x"), more=Words.spec(name="x"))


@pytest.mark.parametrize("par", [0, -1, True, "2", 1.5])
def test_bad_parallelism_is_refused(par: Any) -> None:
    refuse("no number of tasks", words=Words.spec(par=par))


def test_unknown_setting_is_refused_in_topology_component_and_run() -> None:
    refuse("unknown", words=Words.spec(), config={"topology.debugg": True})
    refuse("unknown", words=Words.spec(config={"topology.debugg": True}))

    class Fine(Topology):
        words = Words.spec()

    with pytest.raises(InvalidTopologyError, match="unknown"):
        Fine.local(conf={"topology.debugg": True})


def test_inputs_must_be_specs_and_groupings() -> None:
    words = Words.spec()
    for inputs in ("words", ["words"], {words: "shuffle"}, 1):
        with pytest.raises(InvalidTopologyError):
            Count.spec(inputs=inputs)


def test_class_attributes_give_parallelism_and_config() -> None:
    class Wide(Count):
        par = 3
        config = {"topology.tick.tuple.freq.secs": 1}

    class Fine(Topology):
        words = Words.spec()
        wide = Wide.spec(inputs=[words], config={"mine": 2})
        two = Wide.spec(inputs=[words], par=2)

    with Fine.local() as run:
        assert len(run.tasks("wide")) == 3 and len(run.tasks("two")) == 2
        assert run.tasks("wide")[0].storm_conf["topology.tick.tuple.freq.secs"] == 1
        assert run.tasks("wide")[0].storm_conf["mine"] == 2 and "mine" not in run.tasks("two")[0].storm_conf


def test_subclass_inherits_and_replaces_components() -> None:
    class Base(Topology):
        words = Words.spec()
        count = Count.spec(inputs=[words], par=2)

    class Wider(Base):
        config = {"mine": 1}
        words = Base.words
        count = Count.spec(inputs=[words], par=4)

    with Base.local() as base, Wider.local() as wider:
        assert (len(base.tasks("count")), len(wider.tasks("count"))) == (2, 4)


def test_tasks_are_numbered_in_the_order_of_names_and_split_larger_parts_first() -> None:
    spout = make_component("z", "spout", Upto(), par=2, tasks=5)
    graph = make_graph("t", [spout, make_component("a", "bolt", sink(), par=3)], None)
    assert graph.components["a"].task_ids == (1, 2, 3) and graph.components["z"].task_ids == (4, 5, 6, 7, 8)
    assert graph.components["z"].executor_tasks() == [(4, 5, 6), (7, 8)]


def test_max_task_parallelism_cuts_tasks() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(), par=9)
    with builder.create_topology().local(conf={"topology.max.task.parallelism": 2}) as run:
        assert len(run.tasks("spout")) == 2


def test_names_of_storm_are_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="name of Storm's"):
        TopologyBuilder().set_spout("__spout", Upto())


def test_topology_itself_has_nothing_to_run() -> None:
    with pytest.raises(InvalidTopologyError, match="has no components"):
        Topology.local()


def test_components_without_spec_are_refused() -> None:
    words = Words.spec()
    for value in (Count, Count(), Count.spec, Count().spec):
        refuse("The attribute 'count' of Wrong is a component without its place. Call spec", words=words, count=value)


def test_classes_inside_of_the_topology_are_no_forgotten_components() -> None:
    class Fine(Topology):
        class Base(Bolt):
            def process(self, tup: Any) -> None: ...

        class Derived(Base):
            pass

        words = Words.spec()
        count = Derived.spec(inputs=[words])

    with Fine.local() as run:
        assert isinstance(run.tasks("count")[0], Fine.Derived)


@pytest.mark.parametrize("name", ["local", "run_local", "describe"])
def test_attribute_that_hides_a_method_of_topologies_is_refused(name: str) -> None:
    refuse(f"would hide Topology.{name}", **{name: Words.spec()})

    class Fine(Topology):
        words = Words.spec(name=name)

    assert name in Fine.describe()


@pytest.mark.parametrize(
    "setting", [{"topology.message.timeout.secs": 5}, {"topology.acker.executors": 0}, {"topology.name": "x"}]
)
def test_settings_of_a_topology_are_refused_for_a_component(setting: dict[str, Any]) -> None:
    refuse("is one of the topology", words=Words.spec(config=setting))
    builder = TopologyBuilder()
    with pytest.raises(InvalidTopologyError, match="is one of the topology"):
        builder.set_spout("words", Words, config=setting)


def test_task_bound_of_a_component_replaces_that_of_the_topology() -> None:
    class Fine(Topology):
        config = {"topology.max.task.parallelism": 2}
        words = Words.spec(par=4)
        count = Count.spec(inputs=[words], par=4, config={"topology.max.task.parallelism": 3})

    with Fine.local() as run:
        assert (len(run.tasks("words")), len(run.tasks("count"))) == (2, 3)


def test_one_source_needs_no_list_and_a_direct_stream_means_a_direct_grouping() -> None:
    """As in streamparse."""

    class Direct(Words):
        outputs = [Stream(["to"], direct=True)]

    class Fine(Topology):
        words = Words.spec()
        direct = Direct.spec()
        one = Count.spec(inputs=words)
        two = Count.spec(inputs=[direct, words])

    with Fine.local() as run:
        groupings = run.tasks("two")[0].context["source->stream->grouping"]
        direct, shuffle = {"type": "DIRECT"}, {"type": "SHUFFLE"}
        assert groupings == {"direct": {"default": direct}, "words": {"default": shuffle}}
        assert run.tasks("one")[0].context["source->stream->grouping"] == {"words": {"default": shuffle}}


def test_built_topology_names_its_components() -> None:
    builder = TopologyBuilder()
    builder.set_spout("words", Words)
    assert repr(builder.create_topology("mine")) == "<Topology 'mine': words>"


def test_tasks_of_the_topology_are_those_of_each_component_that_sets_none() -> None:
    """As in Storm, which merges the settings of the component into those of the topology."""
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(), par=2)
    builder.set_bolt("a", sink(), par=8).shuffle_grouping("s")
    builder.set_bolt("b", sink(), tasks=5).shuffle_grouping("s")
    builder.set_bolt("c", sink(), config={"topology.tasks": 1}).shuffle_grouping("s")
    topology = builder.create_topology(config={"topology.tasks": 4})
    for conf, counts in (
        ({}, [4, 4, 5, 1]),
        ({"topology.tasks": None}, [2, 8, 5, 1]),
        ({"topology.max.task.parallelism": 3}, [3, 3, 3, 1]),
        ({"topology.max.task.parallelism": 9, "topology.tasks": 20}, [9, 9, 5, 1]),
    ):
        with topology.local(conf) as run:
            assert [len(run.tasks(name)) for name in "sabc"] == counts


def test_conf_of_a_run_replaces_the_topology_s_bound_on_tasks() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(), par=6)
    topology = builder.create_topology(config={"topology.max.task.parallelism": 2})
    for most, count in ((None, 6), (4, 4), (9, 6)):
        with topology.local({"topology.max.task.parallelism": most}) as run:
            assert len(run.tasks("s")) == count
