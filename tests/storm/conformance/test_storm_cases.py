"""Cases after the subjects of Storm's own tests (2.8.2): integration, ticks, groupings, builder."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from acker_redis.storm import (
    Bolt,
    FeederSpout,
    InvalidTopologyError,
    Spout,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
)


class Words(Spout):
    """Emits its words once, tracked, the tasks taking turns."""

    outputs = ["word"]
    words: tuple[Any, ...] = ("nathan", "bob", "joey", "nathan")

    def initialize(self, conf: Any, context: Any) -> None:
        tasks = sorted(int(task) for task, name in context["task->component"].items() if name == context.component)
        self.mine = iter(list(enumerate(self.words))[context.task_index :: len(tasks)])

    def next_tuple(self) -> None:
        for number, word in self.mine:
            self.emit([word], tup_id=number)
            return


class Identity(Bolt):
    outputs = ["v"]

    def process(self, tup: Tuple) -> None:
        self.emit(list(tup.values))


class WordCounter(Bolt):
    outputs = ["word", "n"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: Counter[Any] = Counter()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.word] += 1
        self.emit([tup.values.word, self.counts[tup.values.word]])


class Total(Bolt):
    """How many tuples came. The field is one that Storm's programs have, and no Python name."""

    outputs = ["global-count"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.total = 0

    def process(self, tup: Tuple) -> None:
        self.total += 1
        self.emit([self.total])


class Branching(Bolt):
    """Emits so many children."""

    outputs = ["v"]
    branches = 2

    def process(self, tup: Tuple) -> None:
        for number in range(self.branches):
            self.emit([number])


class Aggregating(Bolt):
    """Holds so many tuples, and emits one that is anchored to all of them."""

    outputs = ["n"]
    auto_ack = False
    wanted = 2

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.held.append(tup)
        if len(self.held) == self.wanted:
            self.emit([self.wanted], anchors=self.held)
            for one in self.held:
                self.ack(one)
            self.held = []


class Acking(Bolt):
    def process(self, tup: Tuple) -> None:
        pass


class AckEveryOther(Bolt):
    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.acks = False

    def process(self, tup: Tuple) -> None:
        self.acks = not self.acks
        if self.acks:
            self.ack(tup)


def rows(run: Any, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run.emitted(component, stream)]


@pytest.fixture(params=range(5))
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    return request.param  # type: ignore[no-any-return]


def test_word_count_with_a_global_count(seed: int) -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", Words, par=3)
    builder.set_bolt("2", WordCounter, par=4).fields_grouping("1", ["word"])
    builder.set_bolt("3", Total).global_grouping("1")
    builder.set_bolt("4", Total).global_grouping("2")
    with builder.create_topology().local(seed=seed) as run:
        run.settle()
        assert sorted(rows(run, "1")) == [("bob",), ("joey",), ("nathan",), ("nathan",)]
        assert sorted(rows(run, "2")) == [("bob", 1), ("joey", 1), ("nathan", 1), ("nathan", 2)]
        assert rows(run, "3") == rows(run, "4") == [(1,), (2,), (3,), (4,)]
        assert sorted(run.acked("1")) == [0, 1, 2, 3]


def test_more_tasks_than_executors_all_get_their_copy(seed: int) -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["word"]))
    builder.set_bolt("2", Index, par=3, tasks=6).all_grouping("1")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("1", ["a"], tup_id="m")
        run.settle()
        assert sorted(rows(run, "2")) == [(index,) for index in range(6)]
        assert run.acked("1") == ["m"]


def test_a_tuple_that_is_never_acked_times_out(seed: int) -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["field1"]))
    builder.set_bolt("2", AckEveryOther).global_grouping("1")
    with builder.create_topology().local({"topology.message.timeout.secs": 10}, seed=seed) as run:
        for number, word in enumerate("abc", 1):
            run.feed("1", [word], tup_id=number)
        run.settle()
        run.advance(9)
        assert (sorted(run.acked("1")), run.failed("1")) == ([1, 3], [])
        run.advance(12)
        assert (sorted(run.acked("1")), run.failed("1")) == ([1, 3], [(2, "timeout")])


def test_a_bolt_that_renews_keeps_its_tuple_alive(seed: int) -> None:
    class Renewing(Bolt):
        auto_ack = False

        def initialize(self, conf: Any, context: Any) -> None:
            self.first: Tuple | None = None

        def process(self, tup: Tuple) -> None:
            if tup.values.v == "renewed":
                self.first = tup
            elif tup.values.v == "renew":
                assert self.first is not None
                self.reset_timeout(self.first)
                self.ack(tup)
            elif tup.values.v == "end":
                assert self.first is not None
                self.ack(self.first)
                self.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Renewing).global_grouping("1")
    with builder.create_topology().local({"topology.message.timeout.secs": 10}, seed=seed) as run:
        run.feed("1", ["renewed"], tup_id="renewed")
        run.feed("1", ["forgotten"], tup_id="forgotten")
        for number in range(5):
            run.settle()
            run.advance(8)
            run.feed("1", ["renew"], tup_id=number)
        run.settle()
        assert run.failed("1") == [("forgotten", "timeout")]
        run.feed("1", ["end"], tup_id="end")
        run.settle()
        assert "renewed" in run.acked("1")


def test_branches_of_three_spouts_that_meet(seed: int) -> None:
    """Feeds come one by one: each ack waits for what its tuple was aggregated with."""
    builder = TopologyBuilder()
    for name in ("1", "2", "3"):
        builder.set_spout(name, FeederSpout(["v"]))
    for name, source, branches in (("4", "1", 2), ("5", "2", 4), ("6", "3", 1)):
        builder.set_bolt(name, type("Branches", (Branching,), {"branches": branches})).shuffle_grouping(source)
    three = type("Three", (Aggregating,), {"wanted": 3})
    builder.set_bolt("7", three).shuffle_grouping("4").shuffle_grouping("5").shuffle_grouping("6")
    builder.set_bolt("8", Branching).shuffle_grouping("7")
    builder.set_bolt("9", Acking).shuffle_grouping("8")

    def acked() -> tuple[list[int], ...]:
        run.settle()
        return tuple(sorted(run.acked(name)) for name in ("1", "2", "3"))

    with builder.create_topology().local(seed=seed) as run:
        run.feed("1", [1], tup_id=1)  # two wait
        assert acked() == ([], [], [])
        run.feed("2", [1], tup_id=2)  # six: two batches
        assert acked() == ([1], [2], [])
        run.feed("1", [1], tup_id=3)  # two wait
        assert acked() == ([1], [2], [])
        run.feed("3", [1], tup_id=4)  # three: a batch
        assert acked() == ([1, 3], [2], [4])
        for number in (5, 6):
            run.feed("3", [1], tup_id=number)
        assert acked() == ([1, 3], [2], [4])
        run.feed("1", [1], tup_id=7)  # one of its branches completes a batch, the other waits
        assert acked() == ([1, 3], [2], [4, 5, 6])
        run.feed("2", [1], tup_id=8)  # five: one batch, and two wait
        assert acked() == ([1, 3, 7], [2], [4, 5, 6])


def test_an_aggregate_over_two_branches_acks_both_messages(seed: int) -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Identity).shuffle_grouping("1")
    builder.set_bolt("3", Identity).shuffle_grouping("1")
    four = type("Four", (Aggregating,), {"wanted": 4})
    builder.set_bolt("4", four).shuffle_grouping("2").shuffle_grouping("3")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("1", ["a"], tup_id=1)
        run.settle()
        assert run.acked("1") == []
        run.feed("1", ["b"], tup_id=2)
        run.settle()
        assert sorted(run.acked("1")) == [1, 2]


def test_a_tuple_twice_among_anchors(seed: int) -> None:
    class TwiceAnchored(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.emit([1], anchors=[tup, tup.id])

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", TwiceAnchored).shuffle_grouping("1")
    builder.set_bolt("3", Acking).shuffle_grouping("2")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("1", ["a"], tup_id=1)
        run.settle()
        assert run.acked("1") == [1]


def test_each_task_of_a_component_says_startup_on_the_system_stream(seed: int) -> None:
    builder = TopologyBuilder()
    spout = type("Three", (Words,), {"words": ("a", "b", "c")})
    builder.set_spout("1", spout, par=3)
    builder.set_bolt("2", Identity).fields_grouping("1", ["word"]).global_grouping("1", "__system")
    with builder.create_topology().local(seed=seed) as run:
        run.settle()
        assert sorted(rows(run, "2")) == [("a",), ("b",), ("c",), ("startup",), ("startup",), ("startup",)]
        assert sorted(run.acked("1")) == [0, 1, 2]


def test_system_stream_has_the_field_event_and_no_root() -> None:
    seen: list[Tuple] = []

    class Listens(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            seen.append(tup)
            self.fail(tup)

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Identity, par=2).shuffle_grouping("1")
    builder.set_bolt("3", Listens).shuffle_grouping("2", "__system")
    with builder.create_topology().local() as run:
        run.settle()
        assert [(tup.component, tup.stream, tup.values.event) for tup in seen] == [("2", "__system", "startup")] * 2
        assert (run.acked("1"), run.failed("1")) == ([], [])


def test_component_config_is_merged_into_conf() -> None:
    class Reports(Bolt):
        outputs = ["key", "value"]

        def initialize(self, conf: Any, context: Any) -> None:
            self.conf = conf

        def process(self, tup: Tuple) -> None:
            self.emit([tup.values.key, self.conf.get(tup.values.key)])

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["key"]))
    config = {"fake.config": 123, "topology.max.spout.pending": 30}
    builder.set_bolt("2", Reports, config=config).shuffle_grouping("1")
    with builder.create_topology().local({"fake.config": "topology's", "topology.max.spout.pending": 7}) as run:
        for key in ("fake.config", "topology.max.spout.pending", "missing"):
            run.feed("1", [key])
        run.settle()
        assert rows(run, "2") == [("fake.config", 123), ("topology.max.spout.pending", 30), ("missing", None)]


def test_hooks_count_what_storm_s_count(seed: int) -> None:
    """Each execute emits one tuple and one message to the acker, and sees what came before it."""

    class Counting:
        def __init__(self) -> None:
            self.seen: Counter[str] = Counter()

        def emit(self, info: Any) -> None:
            self.seen["emit"] += 1

        def bolt_ack(self, info: Any) -> None:
            self.seen["ack"] += 1

        def bolt_fail(self, info: Any) -> None:
            self.seen["fail"] += 1

        def bolt_execute(self, info: Any) -> None:
            self.seen["execute"] += 1

    class Hooked(Bolt):
        outputs = ["emit", "ack", "fail", "executed"]
        auto_ack = auto_anchor = False

        def initialize(self, conf: Any, context: Any) -> None:
            self.hook = Counting()
            self.add_task_hook(self.hook)
            self.base: Counter[str] | None = None

        def process(self, tup: Tuple) -> None:
            if self.base is None:
                self.base = self.hook.seen.copy()  # `startup` is an emit as well
            self.emit([self.hook.seen[name] - self.base[name] for name in ("emit", "ack", "fail", "execute")])
            if self.hook.seen["ack"] == self.hook.seen["fail"]:
                self.ack(tup)
            else:
                self.fail(tup)

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Hooked).shuffle_grouping("1")
    with builder.create_topology().local(seed=seed) as run:
        for number in range(4):
            run.feed("1", [number], tup_id=number)
        run.settle()
        assert rows(run, "2") == [(0, 0, 0, 0), (2, 1, 0, 1), (4, 1, 1, 2), (6, 2, 1, 3)]


def test_inactive_topology_opens_at_activation() -> None:
    calls: list[str] = []

    class Opens(Spout):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            calls.append("initialize")

        def activate(self) -> None:
            calls.append("activate")

        def next_tuple(self) -> None:
            pass

    class Prepares(Bolt):
        def initialize(self, conf: Any, context: Any) -> None:
            calls.append("bolt")

        def process(self, tup: Tuple) -> None:
            pass

    builder = TopologyBuilder()
    builder.set_spout("1", Opens)
    builder.set_bolt("2", Prepares).shuffle_grouping("1")
    with builder.create_topology().local(active=False) as run:
        run.settle()
        run.advance(9)
        assert calls == []
        run.activate()
        run.settle()
        assert sorted(calls) == ["activate", "bolt", "initialize"]


@pytest.mark.parametrize(
    ("source", "stream", "field"), [("3", "default", None), ("1", "2", None), ("1", "default", "no-such-field")]
)
def test_unknown_component_stream_or_field_is_an_invalid_topology(source: str, stream: str, field: str | None) -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", Words)
    declared = builder.set_bolt("2", Acking)
    with pytest.raises(InvalidTopologyError) as caught:
        if field is None:
            declared.shuffle_grouping(source, stream)
        else:
            declared.fields_grouping(source, [field], stream=stream)
        builder.create_topology()
    assert (field or (stream if stream != "default" else source)) in str(caught.value)


def test_a_name_twice_is_refused_for_spouts_and_bolts() -> None:
    for first in ("spout", "bolt"):
        for second in ("spout", "bolt"):
            builder = TopologyBuilder()
            builder.set_spout("other", Words)
            with pytest.raises(InvalidTopologyError, match="'twice'"):
                for kind in (first, second):
                    if kind == "spout":
                        builder.set_spout("twice", Words)
                    else:
                        builder.set_bolt("twice", Acking).shuffle_grouping("other")
                builder.create_topology()


@pytest.mark.parametrize("par", [0, -1])
def test_parallelism_below_one_is_refused(par: int) -> None:
    for kind in ("set_spout", "set_bolt"):
        builder = TopologyBuilder()
        with pytest.raises(InvalidTopologyError, match=str(par)):
            if kind == "set_spout":
                builder.set_spout("1", Words, par=par)
            else:
                builder.set_spout("1", Words)
                builder.set_bolt("2", Acking, par=par).shuffle_grouping("1")
            builder.create_topology()


def test_ticks_come_at_whole_periods(seed: int) -> None:
    class Ticking(Bolt):
        ticks = 0

        def process(self, tup: Tuple) -> None:
            raise AssertionError("only ticks come")

        def process_tick(self, tup: Tuple) -> None:
            type(self).ticks += 1

    Ticking.ticks = 0
    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Ticking, config={"topology.tick.tuple.freq.secs": 3}).shuffle_grouping("1")
    with builder.create_topology().local(seed=seed) as run:
        run.settle()
        for expected in (0, 0, 1, 1, 1, 2, 2, 2, 3):
            run.advance(1)
            assert Ticking.ticks == expected
        run.advance(30)
        assert Ticking.ticks == 13


def test_ticks_of_the_topology_reach_each_bolt() -> None:
    seen: Counter[str] = Counter()

    class Ticking(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            seen[self.component_name] += 1

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Ticking).shuffle_grouping("1")
    builder.set_bolt("3", Ticking, config={"topology.tick.tuple.freq.secs": 5}).shuffle_grouping("2")
    with builder.create_topology().local({"topology.tick.tuple.freq.secs": 2}) as run:
        run.settle()
        run.advance(10)
        assert seen == {"2": 5, "3": 2}


class Index(Bolt):
    """Emits the index of its task."""

    outputs = ["index"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.index = context.task_index

    def process(self, tup: Tuple) -> None:
        self.emit([self.index])


def test_partial_key_alternates_between_two_tasks() -> None:
    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["key", "n"]))
    builder.set_bolt("2", Index, par=6).partial_key_grouping("1", ["key"])
    with builder.create_topology().local() as run:
        for number in range(12):
            run.feed("1", ["key", number])
            run.settle()
        indices = [index for (index,) in rows(run, "2")]
        assert indices == indices[:2] * 6
        assert indices[0] != indices[1]


def test_custom_grouping_of_the_first_two_tasks(seed: int) -> None:
    class FirstTwo:
        def prepare(self, context: Any, stream: Any, tasks: Sequence[int]) -> None:
            self.tasks = sorted(tasks)[:2]

        def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
            return self.tasks

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Index, par=4).custom_grouping("1", FirstTwo())
    builder.set_bolt("3", Index, par=6).custom_grouping("1", FirstTwo())
    with builder.create_topology().local(seed=seed) as run:
        for number in range(2):
            run.feed("1", [number], tup_id=number)
        run.settle()
        assert sorted(rows(run, "2")) == sorted(rows(run, "3")) == [(0,), (0,), (1,), (1,)]
        assert sorted(run.acked("1")) == [0, 1]


def test_bytes_group_by_content(seed: int) -> None:
    builder = TopologyBuilder()
    spout = type("Bytes", (Words,), {"words": tuple(bytes([65 + n % 4]) * 3 for n in range(20))})
    builder.set_spout("1", spout, par=4)
    builder.set_bolt("2", WordCounter, par=3).fields_grouping("1", ["word"])
    with builder.create_topology().local(seed=seed) as run:
        run.settle()
        assert sorted(rows(run, "2")) == sorted((bytes([65 + k]) * 3, n) for k in range(4) for n in range(1, 6))


def test_feed_takes_the_place_of_any_spout_s_output() -> None:
    class Topo(Topology):
        words = Words.spec()
        end = Identity.spec(inputs=[words])

    with Topo.local() as run:
        run.feed("words", ["fed"], tup_id="one")
        run.settle()
        assert rows(run, "end") == [("fed",)]
        assert run.acked("words") == ["one"]


def test_streams_with_other_fields_reach_one_bolt(seed: int) -> None:
    class Two(Bolt):
        outputs = [Stream(fields=["a"]), Stream(fields=["b", "c"], name="second")]

        def process(self, tup: Tuple) -> None:
            self.emit([tup.values[0]])
            self.emit([tup.values[0], 2], stream="second")

    class Sink(Bolt):
        outputs = ["names"]

        def process(self, tup: Tuple) -> None:
            self.emit(["+".join(tup.values._fields)])

    builder = TopologyBuilder()
    builder.set_spout("1", FeederSpout(["v"]))
    builder.set_bolt("2", Two).shuffle_grouping("1")
    builder.set_bolt("3", Sink).shuffle_grouping("2").shuffle_grouping("2", "second")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("1", [1], tup_id=1)
        run.settle()
        assert sorted(rows(run, "3")) == [("a",), ("b+c",)]
