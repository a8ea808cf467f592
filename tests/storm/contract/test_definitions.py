"""Topologies as classes and by the builder: specs, streams, mistakes."""

from collections.abc import Sequence
from typing import Any

import pytest

from acker_redis.errors import AckerError, BadTupleError
from acker_redis.storm import (
    Bolt,
    FeederSpout,
    Grouping,
    InvalidTopologyError,
    ReliableSpout,
    RowFailedError,
    Spout,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
)
from acker_redis.testing import fake_acker
from tests.storm.contract.parts import Pass, Sink, rows
from tests.storm.parts import Split


class Lines(Spout):
    outputs: Sequence[str] | Sequence[Stream] = ["line"]
    par = 2
    config = {"mine": "class"}

    def next_tuple(self) -> None:
        pass


class Collects(Bolt):
    outputs = ["v"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0]])


def test_attributes_name_components_and_streams_are_chosen_by_index() -> None:
    class Words(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines], par=4)
        words = Collects.spec(inputs={split: Grouping.fields("word")}, par=3)
        empty = Collects.spec(inputs={split["empty"]: Grouping.GLOBAL})
        both = Collects.spec(inputs=[split, split["empty"]])

    with Words.local() as run:
        for line in ("a b", " ", "a"):
            run.feed("lines", [line], tup_id=line)
        run.settle()
        assert sorted(rows(run, "words")) == [("a",), ("a",), ("b",)]
        assert rows(run, "empty") == [(" ",)]
        assert rows(run, "split", "empty") == [(" ",)]
        assert sorted(rows(run, "both")) == [(" ",), ("a",), ("a",), ("b",)]
        assert sorted(run.acked("lines")) == [" ", "a", "a b"]
        assert {name: len(run.tasks(name)) for name in ("lines", "split", "words", "empty")} == {
            "lines": 2, "split": 4, "words": 3, "empty": 1
        }  # fmt: skip


def test_name_of_a_spec_replaces_that_of_the_attribute() -> None:
    class Named(Topology):
        lines = Lines.spec(name="line-spout")
        sink = Collects.spec(name="a sink", inputs=[lines])

    with Named.local() as run:
        run.feed("line-spout", ["x"], tup_id=1)
        run.settle()
        assert rows(run, "a sink") == [("x",)]


def test_spec_overrides_the_class_s_par_and_config() -> None:
    class Confs(Spout):
        outputs = ["v"]
        par = 3
        config = {"mine": "class", "other": "class"}

        def initialize(self, conf: Any, context: Any) -> None:
            self.seen = (conf["mine"], conf["other"])

        def next_tuple(self) -> None:
            pass

    class Topo(Topology):
        config = {"mine": "topology", "other": "topology", "third": 3}
        first = Confs.spec()
        second = Confs.spec(par=1, config={"mine": "spec"})

    with Topo.local() as run:
        run.settle()
        assert [task.seen for task in run.tasks("first")] == [("class", "class")] * 3
        [second] = run.tasks("second")
        assert second.seen[0] == "spec"
        assert second.storm_conf["third"] == 3


def test_a_subclass_of_a_topology_keeps_and_replaces_components() -> None:
    class Base(Topology):
        lines = Lines.spec()
        sink = Collects.spec(inputs=[lines])

    class More(Base):
        second = Collects.spec(inputs=[Base.lines])

    with More.local() as run:
        run.feed("lines", ["x"], tup_id=1)
        run.settle()
        assert rows(run, "sink") == rows(run, "second") == [("x",)]
        assert run.acked("lines") == [1]


def error_of(make: Any) -> str:
    with pytest.raises(InvalidTopologyError) as caught:
        make()
    return str(caught.value)


def topology(**components: Any) -> type[Topology]:
    return type("Topo", (Topology,), components)


def test_mistakes_are_found_when_the_class_is_created() -> None:
    lines = Lines.spec()
    split = Split.spec(inputs=[lines])
    elsewhere = Lines.spec(name="elsewhere")
    cases: list[tuple[Any, str]] = [
        (lambda: topology(), "spout"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs=[elsewhere])), "elsewhere"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs=[lines["nowhere"]])), "nowhere"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs={lines: Grouping.fields("lin")})), "lin"),
        (lambda: topology(lines=lines, split=split, sink=Sink.spec(inputs={split["empty"]: Grouping.fields("word")})), "word"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs={lines: Grouping.DIRECT})), "direct"),
        (lambda: topology(lines=Lines.spec(par=0)), "par=0"),
        (lambda: topology(lines=Lines.spec(par=-1)), "par=-1"),
        (lambda: topology(lines=Lines.spec(par="2")), "par='2'"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs=["lines"])), "'lines'"),
        (lambda: topology(lines=lines, sink=Sink.spec(inputs={lines: "shuffle"})), "'shuffle'"),
        (lambda: topology(a=Lines.spec(name="same"), b=Lines.spec(name="same")), "same"),
        (lambda: topology(lines=Lines.spec(name="__acker")), "__acker"),
        (lambda: topology(lines=lines, config={"topology.message.timeout.sec": 3}), "topology.message.timeout.secs"),
        (lambda: topology(lines=Lines.spec(config={"topology.tick.tuple.freq": 3})), "topology.tick.tuple.freq.secs"),
        (lambda: topology(lines=lines, config={"topology.message.timeout.secs": -1}), "-1"),
        (lambda: topology(lines=lines, config={"topology.message.timeout.secs": "30"}), "'30'"),
        (lambda: topology(lines=lines, config={"topology.acker.executors": -1}), "-1"),
    ]  # fmt: skip
    for make, text in cases:
        assert text in error_of(make), text


@pytest.mark.parametrize("outputs", ["word", ["word", "word"], [1], [Stream(fields=["a"]), Stream(fields=["b"])]])
def test_wrong_outputs_are_found_when_the_class_is_created(outputs: Any) -> None:
    spout: type[Lines] = type("Wrong", (Lines,), {"outputs": outputs})
    error_of(lambda: topology(lines=spout.spec()))


def test_a_class_without_its_method_is_found_when_the_topology_is_created() -> None:
    class Silent(Spout):
        outputs = ["v"]

    class Idle(Bolt):
        pass

    with pytest.raises((InvalidTopologyError, TypeError)):
        topology(lines=Silent.spec())
    with pytest.raises((InvalidTopologyError, TypeError)):
        lines = Lines.spec()
        topology(lines=lines, idle=Idle.spec(inputs=[lines]))


def test_a_bolt_without_inputs_may_live_on_ticks() -> None:
    class Ticks(Bolt):
        outputs = ["v"]
        config = {"topology.tick.tuple.freq.secs": 1}

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            self.emit(["tick"])

    class Topo(Topology):
        lines = Lines.spec()
        ticks = Ticks.spec()
        sink = Collects.spec(inputs=[ticks])

    with Topo.local() as run:
        run.settle()
        run.advance(2)
        assert rows(run, "sink") == [("tick",)] * 2


def test_foreign_components_are_refused_with_the_way_to_port_them() -> None:
    from acker_redis.storm import JavaBolt, JavaSpout, ShellBolt, ShellSpout

    for kind in (JavaBolt, JavaSpout, ShellBolt, ShellSpout):
        text = error_of(lambda kind=kind: kind.spec(name="x"))
        assert kind.__name__ in text
        assert "Bolt" in text or "Spout" in text


# -- the builder


def test_calls_chain_and_names_are_any_text() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout 1", FeederSpout(["k", "v"]))
    builder.set_spout("spout-2", FeederSpout(["k", "v"]))
    declared = builder.set_bolt("bolt: ünïcode", Collects, par=2, tasks=4)
    chained = declared.shuffle_grouping("spout 1").fields_grouping("spout-2", ["k"])
    assert chained is declared or type(chained) is type(declared)
    with builder.create_topology().local() as run:
        run.feed("spout 1", [1, 2], tup_id=1)
        run.feed("spout-2", [1, 2], tup_id=2)
        run.settle()
        assert len(run.tasks("bolt: ünïcode")) == 4
        assert run.acked("spout 1") == [1]
        assert run.acked("spout-2") == [2]


HALF = "\ud83d"  # of a surrogate pair, which UTF-8 can't encode


def test_a_name_that_utf8_cannot_encode_is_fine_for_a_component_and_refused_for_a_topology() -> None:
    class Gives(ReliableSpout):
        outputs = ["k"]
        max_fails = 0
        left = 1

        def next_tuple(self) -> None:
            while self.left:
                self.left -= 1
                self.emit([1], tup_id=(HALF,))

    class FailsAll(Bolt):
        def process(self, tup: Tuple) -> None:
            raise RowFailedError(HALF)

    builder = TopologyBuilder()
    builder.set_spout(HALF, Gives)
    builder.set_bolt(f"{HALF} bolt", FailsAll).shuffle_grouping(HALF)
    with fake_acker() as acker:
        assert builder.create_topology().run_local(acker).dead_letters == 1
        (letter,) = acker.dead_letters.read()
        assert letter.last_component == "? bolt"
    with pytest.raises(InvalidTopologyError, match="is not the name of a topology"):
        builder.create_topology(HALF)
    with pytest.raises(InvalidTopologyError, match=r"topology\.name=.* is invalid"):
        builder.create_topology(config={"topology.name": HALF})


def test_all_groupings_take_a_stream() -> None:
    class Named(Spout):
        outputs = [Stream(fields=["k"], name="named"), Stream(fields=["k"], name="direct", direct=True)]
        left = 1

        def next_tuple(self) -> None:
            if self.left:
                self.left = 0
                self.emit(["x"], tup_id=1, stream="named")

    class First:
        def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
            self.tasks = tasks

        def choose_tasks(self, task: int, values: Any) -> list[int]:
            return [self.tasks[0]]

    builder = TopologyBuilder()
    builder.set_spout("s", Named)
    builder.set_bolt("shuffle", Collects).shuffle_grouping("s", "named")
    builder.set_bolt("fields", Collects).fields_grouping("s", ["k"], stream="named")
    builder.set_bolt("all", Collects).all_grouping("s", "named")
    builder.set_bolt("global", Collects).global_grouping("s", "named")
    builder.set_bolt("none", Collects).none_grouping("s", "named")
    builder.set_bolt("local", Collects).local_or_shuffle_grouping("s", "named")
    builder.set_bolt("partial", Collects).partial_key_grouping("s", ["k"], stream="named")
    builder.set_bolt("custom", Collects).custom_grouping("s", First(), stream="named")
    builder.set_bolt("direct", Collects).direct_grouping("s", "direct")
    with builder.create_topology().local() as run:
        run.settle()
        for name in ("shuffle", "fields", "all", "global", "none", "local", "partial", "custom"):
            assert rows(run, name) == [("x",)], name
        assert rows(run, "direct") == []
        assert run.acked("s") == [1]


def test_config_of_a_bolt_is_that_of_the_call_over_that_of_its_class() -> None:
    class Confs(Bolt):
        config = {"mine": "class", "kept": "class"}

        def initialize(self, conf: Any, context: Any) -> None:
            self.seen = (conf["mine"], conf["kept"], conf["topology's"])

        def process(self, tup: Tuple) -> None:
            pass

    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    builder.set_bolt("b", Confs, config={"mine": "call"}).shuffle_grouping("s")
    with builder.create_topology().local({"topology's": 1, "mine": "topology"}) as run:
        run.settle()
        [task] = run.tasks("b")
        assert task.seen == ("call", "class", 1)


def test_create_topology_returns_one_that_runs_twice() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    builder.set_bolt("b", Pass).shuffle_grouping("s")
    built = builder.create_topology()
    assert isinstance(built, Topology)
    for _ in range(2):
        with built.local() as run:
            run.feed("s", [1], tup_id=1)
            run.settle()
            assert run.acked("s") == [1]


def test_builder_and_class_make_the_same_run() -> None:
    """One core: the same seed draws the same order."""

    class Words(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs=[lines], par=3)
        words = Collects.spec(inputs={split: Grouping.fields("word")}, par=2)

    builder = TopologyBuilder()
    builder.set_spout("lines", Lines, par=2)
    builder.set_bolt("split", Split, par=3).shuffle_grouping("lines")
    builder.set_bolt("words", Collects, par=2).fields_grouping("split", ["word"])
    seen = []
    for built in (Words, builder.create_topology()):
        with built.local(seed=5) as run:
            for number, line in enumerate(["a b c", "c d", "e"] * 3):
                run.feed("lines", [line], tup_id=number)
            run.settle()
            seen.append((sorted(rows(run, "words")), sorted(run.acked("lines"))))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (Grouping.SHUFFLE, 1),
        (Grouping.LOCAL_OR_SHUFFLE, 1),
        (Grouping.NONE, 1),
        (Grouping.GLOBAL, 1),
        (Grouping.ALL, 3),
        (Grouping.fields("line"), 1),
        (Grouping.fields(["line"]), 1),
        (Grouping.partial_key("line"), 1),
    ],
    ids=str,
)
def test_groupings_of_specs(grouping: Grouping, expected: int) -> None:
    class Topo(Topology):
        lines = Lines.spec()
        sink = Collects.spec(inputs={lines: grouping}, par=3)

    with Topo.local() as run:
        run.feed("lines", ["x"], tup_id=1)
        run.settle()
        assert rows(run, "sink") == [("x",)] * expected
        assert run.acked("lines") == [1]


def test_direct_and_custom_groupings_of_specs() -> None:
    class Directs(Lines):
        outputs = [Stream(fields=["v"], direct=True), Stream(fields=["v"], name="custom")]
        left = 1

        def initialize(self, conf: Any, context: Any) -> None:
            self.targets = context.tasks("direct")

        def next_tuple(self) -> None:
            if self.left:
                self.left = 0
                self.emit(["direct"], tup_id=1, direct_task=self.targets[-1])
                self.emit(["custom"], tup_id=2, stream="custom")

    class Last:
        def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
            self.tasks = tasks

        def choose_tasks(self, task: int, values: Any) -> list[int]:
            return [self.tasks[-1]]

    class Index(Collects):
        def initialize(self, conf: Any, context: Any) -> None:
            self.index = context.task_index

        def process(self, tup: Tuple) -> None:
            self.emit([f"{tup.values.v} {self.index}"])

    class Topo(Topology):
        spout = Directs.spec(par=1)
        direct = Index.spec(inputs={spout: Grouping.DIRECT}, par=3)
        custom = Index.spec(inputs={spout["custom"]: Grouping.custom_object(Last())}, par=2)

    with Topo.local() as run:
        run.settle()
        assert (rows(run, "direct"), rows(run, "custom")) == ([("direct 2",)], [("custom 1",)])
        assert sorted(run.acked("spout")) == [1, 2]


def test_builder_takes_the_parallelism_of_the_class() -> None:
    class Wide(Bolt):
        par = 3

        def process(self, tup: Tuple) -> None: ...

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("own", Wide).shuffle_grouping("spout")
    builder.set_bolt("given", Wide, par=2).shuffle_grouping("spout")
    with builder.create_topology().local() as run:
        assert [len(run.tasks(name)) for name in ("own", "given")] == [3, 2]


def test_arguments_of_the_builder_by_place() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["k", "v"]), 2)
    builder.set_bolt("b", Collects, 2, 4, {"mine": 1}).fields_grouping("s", ["k", "v"], "default")
    with builder.create_topology().local() as run:
        run.settle()
        assert [len(run.tasks(name)) for name in ("s", "b")] == [2, 4]
        assert run.tasks("b")[0].storm_conf["mine"] == 1


# -- settings


@pytest.mark.parametrize(("par", "tasks", "expected"), [(1, None, 2), (2, None, 4), (1, 2, 4), (2, 4, 8)])
def test_the_bound_of_a_spout_is_that_of_its_own_config_per_executor_and_task(
    par: int, tasks: int | None, expected: int
) -> None:
    class Endless(Lines):
        def next_tuple(self) -> None:
            self.emit(["x"], tup_id=1)

    class Holds(Sink):
        auto_ack = False

    config = {"topology.max.spout.pending": 2} | ({"topology.tasks": tasks} if tasks else {})
    builder = TopologyBuilder()
    builder.set_spout("s", type("Bounded", (Endless,), {"config": config}), par=par)
    builder.set_bolt("b", Holds).shuffle_grouping("s")
    with builder.create_topology().local({"topology.max.spout.pending": 100}) as run:
        run.settle()
        assert len(run.pending("s")) == expected


def test_user_names_reach_conf_untouched() -> None:
    thing = object()

    class Sees(Bolt):
        def initialize(self, conf: Any, context: Any) -> None:
            self.seen = conf["any.thing"]

        def process(self, tup: Tuple) -> None:
            pass

    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    builder.set_bolt("b", Sees).shuffle_grouping("s")
    with builder.create_topology().local({"any.thing": thing}) as run:
        run.settle()
        [task] = run.tasks("b")
        assert task.seen is thing


def test_settings_of_storm_without_effect_are_accepted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    conf = {"topology.workers": 3, "topology.spout.wait.strategy": "x", "topology.kryo.register": []}
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    built = builder.create_topology()
    with caplog.at_level("INFO"):
        for _ in range(2):
            with built.local(conf) as run:
                run.settle()
    for name in conf:
        assert sum(name in record.getMessage() for record in caplog.records) <= 1


def test_unknown_setting_of_a_run_is_refused_with_the_nearest() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    with pytest.raises(InvalidTopologyError, match=r"topology\.max\.spout\.pending"):
        builder.create_topology().local({"topology.max.spout.pendin": 1}).__enter__()


def test_timeout_above_that_of_the_app_is_refused() -> None:
    from acker_redis.testing import fake_acker

    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout(["v"]))
    built = builder.create_topology()
    with fake_acker(message_timeout_secs=10) as acker:
        with pytest.raises(AckerError, match="10"):
            built.local({"topology.message.timeout.secs": 11}, acker=acker).__enter__()
        with built.local({"topology.message.timeout.secs": 10}, acker=acker) as run:
            run.settle()


def test_message_for_a_direct_stream_is_fed_with_its_task() -> None:
    class Directs(Spout):
        outputs = [Stream(["v"], direct=True)]

        def next_tuple(self) -> None: ...

    builder = TopologyBuilder()
    builder.set_spout("spout", Directs)
    builder.set_bolt("sink", Sink, par=2).direct_grouping("spout")
    with builder.create_topology().local() as run:
        _, second = run.tasks("sink")
        run.feed("spout", [7], tup_id=1, direct_task=second.task_id)
        run.settle()
        assert run.acked("spout") == [1]
        with pytest.raises(BadTupleError, match="must name its task"):
            run.feed("spout", [7], tup_id=2)
        with pytest.raises(BadTupleError):
            run.feed("spout", [7], tup_id=2, direct_task=99)


def test_two_fields_whose_names_have_spaces_are_refused_with_the_reason() -> None:
    with pytest.raises(InvalidTopologyError, match="name ends at a space, and its type on Spark follows"):
        Stream(["word count", "word length"])
