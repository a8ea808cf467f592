"""Hooks, metrics, the event log, reasons and last components, and the drawing."""

import logging
from typing import Any

import pytest

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, FeederSpout, RowFailedError, Stream, Topology, TopologyBuilder, Tuple
from tests.storm.contract.parts import Keeps, Pass, Sink, fed


class Hook:
    """Remembers its calls; the info of each under its name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def prepare(self, conf: Any, context: Any) -> None:
        self.calls.append(("prepare", context.component))

    def cleanup(self) -> None:
        self.calls.append(("cleanup", None))

    def emit(self, info: Any) -> None:
        self.calls.append(("emit", info))

    def spout_ack(self, info: Any) -> None:
        self.calls.append(("spout_ack", info))

    def spout_fail(self, info: Any) -> None:
        self.calls.append(("spout_fail", info))

    def bolt_execute(self, info: Any) -> None:
        self.calls.append(("bolt_execute", info))

    def bolt_ack(self, info: Any) -> None:
        self.calls.append(("bolt_ack", info))

    def bolt_fail(self, info: Any) -> None:
        self.calls.append(("bolt_fail", info))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class FailsOdd(Bolt):
    outputs = ["v"]

    def process(self, tup: Tuple) -> None:
        if tup.values.v % 2:
            raise RowFailedError("odd")
        self.emit([tup.values.v])


AUTO: list[Hook] = []


class AutoHook(Hook):
    def __init__(self) -> None:
        super().__init__()
        AUTO.append(self)


@pytest.mark.parametrize("by_name", [False, True])
def test_auto_task_hooks_join_every_task(by_name: bool) -> None:
    AUTO.clear()
    hook: Any = f"{__name__}.AutoHook" if by_name else AutoHook
    with fed(Pass, Sink).local({"topology.auto.task.hooks": [hook]}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
    assert sorted(info for one in AUTO for name, info in one.calls if name == "prepare") == ["b0", "b1", "spout"]
    assert all(one.names()[0] == "prepare" and one.names()[-1] == "cleanup" for one in AUTO)
    assert sum(one.names().count("spout_ack") for one in AUTO) == 1
    assert sum(one.names().count("bolt_execute") for one in AUTO) == 2


def test_hooks_know_values_tasks_ids_and_reasons() -> None:
    hooks: dict[str, Hook] = {}

    class Hooked(FailsOdd):
        def initialize(self, conf: Any, context: Any) -> None:
            hooks["bolt"] = Hook()
            self.add_task_hook(hooks["bolt"])

    class HookedSpout(FeederSpout):
        def initialize(self, conf: Any, context: Any) -> None:
            hooks["spout"] = Hook()
            context.add_task_hook(hooks["spout"])

    builder = TopologyBuilder()
    builder.set_spout("spout", HookedSpout(["v"]))
    builder.set_bolt("b0", Hooked).shuffle_grouping("spout")
    with builder.create_topology().local() as run:
        for number in (1, 2):
            run.feed("spout", [number], tup_id=f"m{number}")
        run.settle()
        spout = dict(hooks["spout"].calls)
        assert (spout["spout_ack"].tup_id, spout["spout_fail"].tup_id) == ("m2", "m1")
        assert (spout["spout_fail"].reason, spout["spout_fail"].last_component) == ("odd", "b0")
        emits = [(info.stream, list(info.values)) for name, info in hooks["bolt"].calls if name == "emit"]
        assert ("default", [2]) in emits
        assert [stream for stream, _ in emits if stream.startswith("__ack")] == ["__ack_fail", "__ack_ack"]
        executed = [tuple(info.tuple.values) for name, info in hooks["bolt"].calls if name == "bolt_execute"]
        assert executed == [(1,), (2,)]


def test_several_hooks_are_called_in_order() -> None:
    order: list[str] = []

    class Named(Hook):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def bolt_ack(self, info: Any) -> None:
            order.append(self.name)

    class Hooked(Sink):
        def initialize(self, conf: Any, context: Any) -> None:
            for name in ("first", "second"):
                self.add_task_hook(Named(name))

    with fed(Hooked).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
    assert order == ["first", "second"]


def test_a_hook_that_refuses_is_not_swallowed() -> None:
    class Refuses(Hook):
        def spout_ack(self, info: Any) -> None:
            raise KeyError("hook")

    class HookedSpout(FeederSpout):
        def initialize(self, conf: Any, context: Any) -> None:
            self.add_task_hook(Refuses())

    builder = TopologyBuilder()
    builder.set_spout("spout", HookedSpout(["v"]))
    builder.set_bolt("b0", Sink).shuffle_grouping("spout")
    with pytest.raises(KeyError, match="hook"), builder.create_topology().local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()


def test_metrics_are_exact_per_component_and_stream() -> None:
    class Splits(Bolt):
        outputs = [Stream(fields=["v"]), Stream(fields=["v"], name="odd")]

        def process(self, tup: Tuple) -> None:
            self.emit([tup.values.v])
            if tup.values.v % 2:
                self.emit([tup.values.v], stream="odd")
            if tup.values.v == 5:
                raise RowFailedError("five")

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("splits", Splits).shuffle_grouping("spout")
    builder.set_bolt("all", Sink, par=3).all_grouping("splits").shuffle_grouping("splits", "odd")
    with builder.create_topology().local() as run:
        for number in range(10):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        spout, splits, end = (run.metrics[name] for name in ("spout", "splits", "all"))
        assert (spout.emitted["default"], spout.transferred["default"]) == (10, 10)
        assert (spout.acked["default"], spout.failed["default"], spout.timed_out["default"]) == (9, 1, 0)
        assert (splits.emitted["default"], splits.transferred["default"]) == (10, 30)
        assert (splits.emitted["odd"], splits.transferred["odd"]) == (5, 5)
        assert (splits.executed["spout:default"], splits.acked["spout:default"], splits.failed["spout:default"]) == (
            10,
            9,
            1,
        )
        assert (end.executed["splits:default"], end.executed["splits:odd"]) == (30, 5)
        assert spout.complete_latency["default"].count == 9
        assert splits.execute_latency["spout:default"].count == 10
        assert splits.process_latency["spout:default"].count == 9
        assert {source: mean.count for source, mean in end.process_latency.items()} == end.acked


def test_timeouts_count_separately() -> None:
    with fed(Keeps).local({"topology.message.timeout.secs": 2}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(4)
        spout = run.metrics["spout"]
        assert (spout.failed["default"], spout.timed_out["default"], spout.acked["default"]) == (0, 1, 0)


def test_untracked_messages_have_no_outcome_in_the_metrics() -> None:
    with fed(Sink).local() as run:
        run.feed("spout", [1])
        run.settle()
        spout = run.metrics["spout"]
        assert (spout.emitted["default"], spout.acked.total(), spout.failed.total()) == (1, 0, 0)


def test_reported_metrics_are_kept_by_name() -> None:
    class Reports(Bolt):
        def process(self, tup: Tuple) -> None:
            self.report_metric("rows", tup.values.v)
            self.report_metric("last", f"v{tup.values.v}")

    with fed(Reports).local() as run:
        for number in (3, 4):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        custom = run.metrics["b0"].custom
        assert (custom["rows"].count, custom["rows"].last, custom["rows"].total) == (2, 4, 7)
        assert custom["last"].last == "v4"


def test_the_event_log_is_empty_until_debugged() -> None:
    with fed(Pass).local() as run:
        run.feed("spout", [1], tup_id="m1")
        run.settle()
        assert run.events == []


def test_the_event_log_has_values_and_ids_of_debugged_components() -> None:
    with fed(Pass, Pass).local({"topology.debug": True}) as run:
        run.feed("spout", [1], tup_id="m1")
        run.settle()
        found = [
            (event.component, tuple(event.values), event.tup_id) for event in run.events if event.stream == "default"
        ]
        assert sorted(found, key=str) == [("b0", (1,), None), ("b1", (1,), None), ("spout", (1,), "m1")]


def test_the_event_log_samples() -> None:
    with fed(Pass).local() as run:
        run.debug("b0", percent=30)
        for number in range(400):
            run.feed("spout", [number])
        run.settle()
        assert 60 < len(run.events) < 180
        assert {event.component for event in run.events} == {"b0"}


def test_failed_trees_name_the_last_component_and_the_reason() -> None:
    with fed(Pass, FailsOdd, Keeps).local({"topology.message.timeout.secs": 2}) as run:
        for number in (1, 2):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        run.advance(4)
        trees = {tree.tup_id: (tree.spout, tree.reason, tree.last_component) for tree in run.failed_trees}
        assert trees == {1: ("spout", "odd", "b1"), 2: ("spout", "timeout", "b1")}


def test_the_last_component_of_a_tree_that_no_bolt_settled_a_part_of_is_its_spout() -> None:
    with fed(Keeps).local({"topology.message.timeout.secs": 2}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(4)
        assert [tree.last_component for tree in run.failed_trees] == ["spout"]


def test_describe_draws_components_streams_and_live_counts() -> None:
    class Drawn(Topology):
        lines = FeederSpout(["v"]).spec()
        split = FailsOdd.spec(inputs=[lines], par=4)
        sink = Sink.spec(inputs=[split])

    bare = Drawn.describe()
    assert bare.startswith("flowchart")
    for name in ("lines", "split", "sink"):
        assert name in bare
    with Drawn.local() as run:
        for number in range(10):
            run.feed("lines", [number], tup_id=number)
        run.settle()
        for text in (run.describe(), Drawn.describe()):
            assert "acked 5, failed 5" in text
            assert text != bare


def test_describe_escapes_names_that_mermaid_would_read() -> None:
    builder = TopologyBuilder()
    builder.set_spout('a "quoted" | [name]', FeederSpout(["v"]))
    text = builder.create_topology().describe()
    assert '"quoted"' not in text


def test_errors_of_bolts_are_counted_and_logged_with_their_text(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Bolt):
        def process(self, tup: Tuple) -> None:
            raise ValueError("text of it")

    with caplog.at_level(logging.WARNING), fed(Raises).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.metrics["b0"].errors == 1
    assert any("text of it" in record.getMessage() for record in caplog.records)


def test_reads_work_after_the_run() -> None:
    with fed(Pass).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
    assert run.acked("spout") == [1]
    assert [tuple(row) for row in run.emitted("b0")] == [(1,)]
    assert run.metrics["b0"].emitted["default"] == 1
    assert run.events == []


def test_calls_before_the_block_say_how_to_enter_it() -> None:
    run = fed(Pass).local()
    with pytest.raises(AckerError, match="with"):
        run.settle()


class Raises(Bolt):
    def process(self, tup: Tuple) -> None:
        raise RowFailedError(f"because of {self.component_name}")


@pytest.mark.parametrize("seed", range(20))
def test_failed_tree_names_the_component_that_gave_its_reason(seed: int) -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    for name in ("left", "right"):
        builder.set_bolt(name, Raises).shuffle_grouping("spout")
    builder.set_bolt("acks", Pass).shuffle_grouping("spout")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        (tree,) = run.failed_trees
    assert tree.reason == f"because of {tree.last_component}"
