"""Tuples, contexts, and what spouts and bolts know about themselves."""

import logging
from typing import Any

import pytest

from acker_redis.storm import Bolt, FeederSpout, Spout, Stream, TopologyBuilder, Tuple
from tests.storm.contract.parts import Sink, fed


def seen_by(bolt: type[Bolt], fields: list[str], values: list[Any]) -> list[Tuple]:
    """The tuples that a bolt behind a feeder kept in `seen`."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(fields))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    with builder.create_topology().local() as run:
        run.feed("spout", values, tup_id=1)
        run.settle()
        return list(run.tasks("bolt")[0].seen)


class Sees(Bolt):
    def initialize(self, conf: Any, context: Any) -> None:
        self.seen: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.seen.append(tup)


def test_a_tuple_has_its_origin_and_a_namedtuple_of_values() -> None:
    [tup] = seen_by(Sees, ["word", "n"], ["a", 1])
    assert (tup.component, tup.stream) == ("spout", "default")
    assert isinstance(tup.task, int)
    assert tup.values == ("a", 1)
    assert (tup.values.word, tup.values.n, tup.values[1], tup.values._fields) == ("a", 1, 1, ("word", "n"))
    word, n = tup.values
    assert (word, n) == ("a", 1)
    assert tup.id is not None


def test_a_field_that_is_no_identifier_is_reached_by_index() -> None:
    [tup] = seen_by(Sees, ["global-count", "class", "_private", "word"], [3, 4, 5, "a"])
    assert tup.values[0] == 3
    assert tup.values[1] == 4
    assert tup.values[2] == 5
    assert tup.values.word == "a"


@pytest.mark.parametrize("name", ["count", "index"])
def test_fields_may_be_named_as_methods_of_tuples(name: str) -> None:
    [tup] = seen_by(Sees, [name], ["value"])
    assert getattr(tup.values, name) == "value"


def test_context_answers_for_the_task_and_its_topology() -> None:
    seen: dict[tuple[str, int], Any] = {}

    class Knows(Bolt):
        outputs = [Stream(fields=["v"]), Stream(fields=["w"], name="other")]

        def initialize(self, conf: Any, context: Any) -> None:
            seen[context.component, context.task_index] = context

        def process(self, tup: Tuple) -> None:
            pass

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]), par=2)
    builder.set_bolt("a", Knows, par=3).shuffle_grouping("spout")
    builder.set_bolt("b", Knows).shuffle_grouping("a", "other")
    with builder.create_topology().local({"mine": 1}) as run:
        run.settle()
        assert set(seen) == {("a", 0), ("a", 1), ("a", 2), ("b", 0)}
        tasks = [seen["a", index].task_id for index in range(3)]
        assert tasks == sorted(tasks) == [task.task_id for task in run.tasks("a")]
        context = seen["a", 1]
        assert context["taskid"] == context.task_id == tasks[1]
        names = context["task->component"]
        assert names[str(tasks[1])] == "a"
        assert sorted(names.values()) == ["a", "a", "a", "b", "spout", "spout"]
        assert context.conf["mine"] == 1
        assert context.tasks("a") == tasks
        assert set(context.streams) >= {"default", "other"}
        assert context.get("no such key") is None
        with pytest.raises(KeyError):
            context["no such key"]


def test_components_know_themselves() -> None:
    found: list[tuple[Any, ...]] = []

    class Knows:
        def initialize(self, conf: Any, context: Any) -> None:
            found.append((self.component_name, self.task_id, self.topology_name, self.storm_conf["mine"]))  # type: ignore[attr-defined]

    class KnowsSpout(Knows, Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            pass

    class KnowsBolt(Knows, Bolt):
        def process(self, tup: Tuple) -> None:
            pass

    builder = TopologyBuilder()
    builder.set_spout("spout", KnowsSpout)
    builder.set_bolt("bolt", KnowsBolt).shuffle_grouping("spout")
    with builder.create_topology().local({"mine": 2, "topology.name": "named"}) as run:
        run.settle()
        for name, task_id, topology, mine in found:
            assert [task.task_id for task in run.tasks(name)] == [task_id]
            assert (topology, mine) == ("named", 2)
    assert {name for name, *_ in found} == {"spout", "bolt"}


def test_logger_and_log_name_the_component(caplog: pytest.LogCaptureFixture) -> None:
    class Logs(Bolt):
        def process(self, tup: Tuple) -> None:
            self.logger.warning("by logger %s", tup.values.v)
            self.log(f"by log {tup.values.v}")
            for level in ("warn", "warning", "error", "critical", "unknown"):
                self.log(f"as {level}", level=level)

    with caplog.at_level(logging.INFO), fed(Logs).local() as run:
        run.feed("spout", [7])
        run.settle()
    texts = {record.getMessage(): record.levelname for record in caplog.records}
    assert texts["by logger 7"] == "WARNING"
    assert texts["by log 7"] == "INFO"
    assert [texts[f"as {level}"] for level in ("warn", "warning", "error")] == ["WARNING", "WARNING", "ERROR"]
    assert (texts["as critical"], texts["as unknown"]) == ("CRITICAL", "INFO")


def test_raise_exception_reports_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Reports(Bolt):
        def process(self, tup: Tuple) -> None:
            try:
                raise ValueError("reported")
            except ValueError as error:
                self.raise_exception(error, tup)

    with fed(Reports).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]
    assert any("reported" in record.getMessage() or record.exc_info for record in caplog.records)


def test_is_tick_knows_ticks() -> None:
    class Ticks(Sees):
        def process(self, tup: Tuple) -> None:
            assert not self.is_tick(tup)

        def process_tick(self, tup: Tuple) -> None:
            assert self.is_tick(tup)
            self.seen.append(tup)

    with fed(Ticks, config={"topology.tick.tuple.freq.secs": 2}).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(4)
        assert [(t.component, t.stream, tuple(t.values)) for t in run.tasks("b0")[0].seen] == [
            ("__system", "__tick", (2,))
        ] * 2
        assert run.acked("spout") == [1]


def test_an_instance_is_copied_for_each_task() -> None:
    class Holds(Bolt):
        def __init__(self, shared: list[int]) -> None:
            self.shared = shared

        def process(self, tup: Tuple) -> None:
            self.shared.append(tup.values.v)

    mine: list[int] = []
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("bolt", Holds(mine), par=2).all_grouping("spout")
    with builder.create_topology().local() as run:
        run.feed("spout", [1])
        run.settle()
        assert [task.shared for task in run.tasks("bolt")] == [[1], [1]]
        assert mine == []


def test_two_runs_of_one_topology_share_nothing() -> None:
    class Counts(Bolt):
        outputs = ["n"]

        def __init__(self) -> None:
            self.n = 0

        def process(self, tup: Tuple) -> None:
            self.n += 1
            self.emit([self.n])

    topology = fed(Counts())
    for _ in range(2):
        with topology.local() as run:
            run.feed("spout", [1], tup_id=1)
            run.settle()
            assert [tuple(row) for row in run.emitted("b0")] == [(1,)]
            assert run.acked("spout") == [1]


def test_sinks_need_no_outputs() -> None:
    with fed(Sink).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.emitted("b0") == []
        assert run.acked("spout") == [1]


def test_values_of_any_type_reach_the_bolt_as_they_are() -> None:
    import threading

    things = [threading.Lock(), lambda: 1, object(), float("nan"), b"\x00", {1: {2}}, None]
    seen: list[Any] = []

    class Sees(Bolt):
        def process(self, tup: Tuple) -> None:
            seen.append(tup.values.v)

    with fed(Sees).local() as run:
        for number, thing in enumerate(things):
            run.feed("spout", [thing], tup_id=number)
        run.settle()
        assert all(one is other for one, other in zip(seen, things, strict=True))
        assert sorted(run.acked("spout")) == list(range(len(things)))


def test_a_run_leaves_the_conf_of_its_caller_alone() -> None:
    class Changes(Bolt):
        def initialize(self, conf: Any, context: Any) -> None:
            dict(conf)["mine"] = 2

        def process(self, tup: Tuple) -> None:
            pass

    conf = {"mine": 1, "topology.message.timeout.secs": 5}
    with fed(Changes).local(conf) as run:
        run.settle()
    assert conf == {"mine": 1, "topology.message.timeout.secs": 5}
