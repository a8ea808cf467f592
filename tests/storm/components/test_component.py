"""What spouts and bolts share: their place, logs, custom metrics, reported exceptions."""

from typing import Any

import pytest

from acker_redis import storm
from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import (
    BatchingBolt,
    Bolt,
    FeederSpout,
    ReliableSpout,
    RetryPolicy,
    Spout,
    StatefulBolt,
    TicklessBatchingBolt,
    Topology,
    TopologyBuilder,
)
from acker_redis.storm.components.component import PREFIX, Component
from acker_redis.testing import fake_acker
from tests.storm.parts import Do, Upto, chain, sink


class Seen(Bolt):
    outputs = ["v"]

    def process(self, tup: Any) -> None: ...

    def initialize(self, conf: Any, context: Any) -> None:
        self.conf = dict(conf)
        self.log("connected", "warn")
        self.report_metric("rows", 2)
        self.report_metric("rows", 3)
        self.report_metric("state", "open")
        self.raise_exception(ValueError("reported"))


def test_component_knows_its_place_and_settings() -> None:
    topology = chain(Seen(), spout=Upto(1), config={"mine": 1, "topology.name": "words"})
    with topology.local(conf={"more": 2}) as run:
        (bolt,) = run.tasks("a")
        assert (bolt.task_id, bolt.component_name, bolt.topology_name) == (1, "a", "words")
        assert bolt.conf == bolt.storm_conf == {"mine": 1, "more": 2, "topology.name": "words"}
        assert bolt.logger.name == "acker_redis.storm.a"


def test_custom_metrics_logs_and_reports(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "acker_redis.storm"), chain(Seen(), spout=Upto(1)).local() as run:
        metrics = run.metrics["a"]
        rows = metrics.custom["rows"]
        assert (rows.count, rows.total, rows.last) == (2, 5, 3)
        assert metrics.custom["state"].total is None and metrics.errors == 1
    assert ("acker_redis.storm.a", 30, "connected") in caplog.record_tuples
    assert "exception reported" in caplog.text


def test_spec_refuses_a_bad_name() -> None:
    with pytest.raises(InvalidTopologyError, match="not the name of a component"):
        Seen.spec(name="")


def test_spec_of_an_object_copies_it_for_each_task() -> None:
    class Own(Topology):
        lines = Upto(2).spec()
        last = sink().spec(name="the last", inputs=[lines], par=2)

    with Own.local() as run:
        run.settle()
        assert sorted(run.acked("lines")) == ["m1", "m2"] and len(run.tasks("the last")) == 2


def test_component_without_its_method_says_so() -> None:
    for source in (Spout, ReliableSpout):
        with pytest.raises(InvalidTopologyError, match=r"'spout' has no next_tuple\(\)"):
            chain(sink(), spout=type("Empty", (source,), {"outputs": ["v"]})())
    for base, method in ((Bolt, "process"), (StatefulBolt, "process"), (BatchingBolt, "process_batch")):
        idle = type("Idle", (base,), {})
        with pytest.raises(InvalidTopologyError, match=rf"'a' has no {method}\(\)"):
            chain(idle)
    with pytest.raises(InvalidTopologyError, match=r"'idle' has no process\(\)"):
        type("Wrong", (Topology,), {"spout": FeederSpout(["v"]).spec(), "idle": Bolt.spec(name="idle")})


def test_method_of_an_object_or_another_one_of_a_batch_will_do() -> None:
    bolt = Bolt()
    bolt.process = lambda tup: None  # type: ignore[method-assign]
    chain(bolt)
    chain(type("Whole", (BatchingBolt,), {"process_batches": lambda self: None}))


@pytest.mark.parametrize(
    ("base", "method"),
    [(Bolt, "process"), (Bolt, "process_tick"), (BatchingBolt, "process_batch"), (BatchingBolt, "process_batches")],
)
def test_method_of_a_bolt_that_is_a_generator_is_refused(base: type[Bolt], method: str) -> None:
    def generator(*arguments: Any) -> Any:
        yield

    def plain(*arguments: Any) -> None: ...

    own = {"process": plain} if base is Bolt else {}
    with pytest.raises(InvalidTopologyError, match=rf"{method}\(\) of component 'a' is a generator or a coroutine"):
        chain(type("Yields", (base,), {**own, method: generator}))


@pytest.mark.parametrize(
    ("base", "own", "text"),
    [
        (Bolt, {"process": lambda self: None}, r"process\(self\) of component 'a' can't be called with tup"),
        (Bolt, {"process": 5}, "process=5 of component 'a' is not a method"),
        (Bolt, {"process": lambda self, tup: None, "initialize": None}, "initialize=None of component 'a' is not a method"),
        (Bolt, {"process": lambda self, tup: None, "close": lambda self, why: None}, "can't be called with no argument"),
        (BatchingBolt, {"process_batch": lambda self, tups: None}, "can't be called with key and tups"),
        (BatchingBolt, {"process_batch": lambda self, key, tups: None, "group_key": None}, "group_key=None"),
    ],
)  # fmt: skip
def test_method_that_a_run_cant_call_is_refused(base: type[Bolt], own: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTopologyError, match=text):
        chain(type("Wrong", (base,), own))


def test_methods_with_other_names_and_defaults_will_do() -> None:
    chain(type("Static", (Bolt,), {"process": staticmethod(lambda t: None), "close": lambda self, *more: None}))
    chain(type("Whole", (Bolt,), {"process": classmethod(lambda cls, t, more=0: None)}))
    for fail in (lambda self, t: None, lambda self, t, *, reason: None, lambda self, *given: None):
        chain(sink(), spout=type("Own", (Upto,), {"fail": fail})())


def test_process_of_a_batching_bolt_may_choose_its_tuples() -> None:
    class Positive(BatchingBolt):
        outputs = ["v"]
        batch_size = 2

        def process(self, tup: Any) -> None:
            if tup.values.v == 2:
                self.ack(tup)
            else:
                super().process(tup)

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.emit([len(tups)])

    with chain(Positive, spout=Upto(3)).local() as run:
        run.settle()
        assert run.emitted("a") == [(2,)] and sorted(run.acked("spout")) == ["m1", "m2", "m3"]


def test_process_of_a_batching_bolt_that_fills_no_batch_is_refused() -> None:
    class Own(BatchingBolt):
        def process(self, tup: Any) -> None: ...

        def process_batch(self, key: Any, tups: list[Any]) -> None: ...

    with pytest.raises(InvalidTopologyError, match=r"process\(\) of component 'a' puts no tuple into a batch"):
        chain(Own)


def test_decorated_process_of_a_batching_bolt_will_do() -> None:
    """What it calls doesn't show in the wrapper."""

    def counted(method: Any) -> Any:
        def wrapper(self: Any, tup: Any) -> None:
            self.calls = getattr(self, "calls", 0) + 1
            method(self, tup)

        return wrapper

    class Own(BatchingBolt):
        batch_size = 2

        @counted
        def process(self, tup: Any) -> None:
            super().process(tup)

        def process_batch(self, key: Any, tups: list[Any]) -> None: ...

    with chain(Own, spout=Upto(2)).local() as run:
        run.settle()
        assert run.tasks("a")[0].calls == 2 and sorted(run.acked("spout")) == ["m1", "m2"]


def test_bolt_that_batches_by_itself_will_do() -> None:
    class Own(BatchingBolt):
        def process(self, tup: Any) -> None:
            self.mine = [*getattr(self, "mine", []), tup]

        def process_batches(self) -> None:
            for tup in self.mine:
                self.process_batch(None, [tup])

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.ack(tups[0])

    with chain(Own, spout=Upto(2), config={"topology.tick.tuple.freq.secs": 1}).local() as run:
        run.settle()
        run.advance(1)
        assert sorted(run.acked("spout")) == ["m1", "m2"]


@pytest.mark.parametrize("method", ["ack", "fail", "next_tuple"])
def test_method_of_a_spout_that_a_run_cant_call_is_refused(method: str) -> None:
    refused = (lambda self, task: None) if method == "next_tuple" else lambda self: None
    with pytest.raises(InvalidTopologyError, match=rf"{method}\(self.*\) of component 'spout' can't be called with"):
        chain(sink(), spout=type("Own", (Upto,), {method: refused})())


@pytest.mark.parametrize("method", ["next_tuple", "ack", "fail"])
def test_method_of_a_spout_that_is_a_coroutine_is_refused(method: str) -> None:
    async def coroutine(*arguments: Any) -> None: ...

    with pytest.raises(InvalidTopologyError, match=rf"{method}\(\) of component 'spout' is a generator or a coroutine"):
        chain(sink(), spout=type("Waits", (Upto,), {method: coroutine})())


def test_generator_that_the_component_itself_runs_through_is_accepted() -> None:
    class Whole(BatchingBolt):
        def process_batch(self, key: Any, tups: list[Any]) -> Any:
            yield len(tups)

        def process_batches(self) -> None:
            """Run through generators of `process_batch`."""

    chain(Whole)


class Writes(BatchingBolt):
    def process_batch(self, key: Any, tups: list[Any]) -> None: ...


class WritesBySecs(TicklessBatchingBolt):
    def process_batch(self, key: Any, tups: list[Any]) -> None: ...


class Retries(ReliableSpout):
    outputs = ["v"]

    def next_tuple(self) -> None: ...


WRONG = [
    *((Writes, "ticks_between_batches", value) for value in (0, -1, "2", None)),
    *((Writes, "batch_size", value) for value in (0, "2", 1.5)),
    *((WritesBySecs, "secs_between_batches", value) for value in (0, -1, "2", None, float("inf"), float("nan"))),
    (WritesBySecs, "batch_size", 0),
    *(
        (Seen, flag, value)
        for flag in ("auto_ack", "auto_anchor", "auto_fail", "exit_on_exception")
        for value in ("no", None)
    ),
    *((Writes, "auto_ack", value) for value in ("no", 0)),
    *((Retries, "max_fails", value) for value in (-1, "3", 1.5)),
    *((Retries, "retry", value) for value in (None, 3, RetryPolicy)),
]


@pytest.mark.parametrize(("kind", "attribute", "value"), WRONG)
@pytest.mark.parametrize("is_object", [False, True])
def test_wrong_attribute_is_refused_when_the_topology_is_made(
    kind: Any, attribute: str, value: Any, is_object: bool
) -> None:
    wrong = type("Wrong", (kind,), {attribute: value})
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    (builder.set_spout if kind is Retries else builder.set_bolt)("wrong", wrong() if is_object else wrong)
    with pytest.raises(InvalidTopologyError, match=f"{attribute}=.* of component 'wrong' is invalid"):
        builder.create_topology()


def test_wrong_attribute_that_initialize_sets_ends_the_start() -> None:
    class Late(WritesBySecs):
        def initialize(self, conf: Any, context: Any) -> None:
            self.secs_between_batches = conf["every"]

    with pytest.raises(InvalidTopologyError, match="secs_between_batches=0 of component 'a' is invalid"):
        chain(Late).local({"every": 0}).__enter__()


def test_spout_may_set_its_number_of_attempts_in_initialize() -> None:
    class Late(Retries):
        retry = RetryPolicy(first_delay_secs=0)

        def initialize(self, conf: Any, context: Any) -> None:
            self.max_fails = conf["fails"]

    with chain(Do(lambda bolt, tup: bolt.fail(tup)), spout=Late()).local({"fails": 2}) as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
        assert len(run.failed("spout")) == 3


def test_class_that_needs_arguments_is_refused_when_the_topology_is_made() -> None:
    class Reads(Spout):
        outputs = ["v"]

        def __init__(self, path: str, mode: str = "r") -> None: ...

        def next_tuple(self) -> None: ...

    text = r"component '\w+' can't be made from the class \w+, which needs arguments \(missing a required argument: '\w+'\)"
    for spout in (Reads, FeederSpout):
        builder = TopologyBuilder()
        builder.set_spout("spout", spout)
        with pytest.raises(InvalidTopologyError, match=text):
            builder.create_topology()
    with pytest.raises(InvalidTopologyError, match=text):
        type("Files", (Topology,), {"reads": Reads.spec()})
    with chain(sink(), spout=Reads("a")).local() as run:
        run.settle()


def test_names_of_the_library_leave_all_others_to_classes_of_users() -> None:
    """A class that took a name of the library's by accident could ack messages whose work isn't done."""
    exported = [getattr(storm, name) for name in storm.__all__]
    components = [one for one in exported if isinstance(one, type) and issubclass(one, Component)]
    bases = {base for one in components for base in one.__mro__ if base is not object}
    names = {name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    with chain(Seen(), spout=Upto(1)).local() as run:
        names |= vars(run.tasks("a")[0]).keys() | vars(run.tasks("spout")[0]).keys()
    assert not [name for name in names if name.startswith("_") and not name.startswith(("__", PREFIX))]


def test_names_that_a_bolt_gives_its_own_parts_change_nothing() -> None:
    class Own(Bolt):
        outputs = ["v"]
        kind = "parser"

        def initialize(self, conf: Any, context: Any) -> None:
            self._current: list[Any] = []
            self._collector = self._metrics = None
            self.rows = 0

        def process(self, tup: Any) -> None:
            self._current = []
            self.rows += 1
            self.emit([tup.values.v])

        def _flush(self) -> None: ...

    fails = Do(lambda bolt, tup: bolt.fail(tup, "no"))
    with chain(Own, fails, spout=Upto(2)).local() as run:
        run.settle()
        assert not run.acked("spout") and sorted(run.failed("spout")) == [("m1", "no"), ("m2", "no")]
    result = chain(Own, sink(), spout=Upto(2)).run_local(fake_acker())
    assert (result.acked, result.unfinished) == (2, 0)


def test_a_bolt_may_keep_its_own_cache_under_that_name() -> None:
    class Looks(Bolt):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            self.cache = {1: "one"}

        def process(self, tup: Any) -> None:
            self.emit([self.cache.setdefault(tup.values.v, "more")])

    with chain(Looks, spout=Upto(2)).local() as run:
        run.settle()
        assert run.emitted("a") == [("one",), ("more",)]


def test_attributes_of_the_library_are_free_after_initialize() -> None:
    """Such as `self.context = zmq.Context()`."""
    contexts: list[Any] = []

    class Own(BatchingBolt):
        config = {"topology.tick.tuple.freq.secs": 1}
        exit_on_exception = True

        def initialize(self, conf: Any, context: Any) -> None:
            contexts.append(context)
            for name in ("context", "storm_conf", "component_name", "topology_name", "task_id", "logger"):
                setattr(self, name, None)

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.log("batch")
            raise ValueError(len(tups))

    with chain(Own, spout=Upto(2)).local() as run:
        run.advance(1)
        assert sorted(run.failed("spout")) == [("m1", "ValueError: 2"), ("m2", "ValueError: 2")]
        (bolt,) = run.tasks("a")
        assert contexts == [contexts[0]] * 2 and contexts[0].component == "a" and bolt.context is None


def test_names_that_a_spout_or_a_batching_bolt_gives_its_own_parts_change_nothing() -> None:
    class Numbers(Spout):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            self._source = iter([1, 2])

        def next_tuple(self) -> None:
            for number in self._source:
                self.emit([number], tup_id=number)
                return

    class Own(BatchingBolt):
        batch_size = 2

        def process_batch(self, key: Any, tups: Any) -> None:
            for tup in tups:
                self._process(tup)

        def _process(self, tup: Any) -> None: ...

    with chain(Own, spout=Numbers()).local() as run:
        run.settle()
        assert sorted(run.acked("spout")) == [1, 2]
