"""Local runs: settling, time, seeds, the ledger behind them."""

import gc
from typing import Any

import pytest

from acker_redis.acker import app_of
from acker_redis.errors import AckerError, BadConfigError, BadTupleError, InvalidTopologyError
from acker_redis.storm import FeederSpout, Spout, Stream, Topology, TopologyBuilder
from acker_redis.testing import fake_acker
from tests.storm.parts import SEEDS, Do, Lines, Upto, WordCount, chain, holding, passing, sink


def trace(seed: int) -> list[Any]:
    order = []

    def call(bolt: Do, tup: Any) -> None:
        order.append((bolt.component_name, tup.values.v))
        bolt.emit([tup.values.v], anchors=[tup])
        bolt.fail(tup) if tup.values.v % 3 == 0 else bolt.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("s", Upto(10), par=2)
    builder.set_bolt("a", Do(call), par=2).shuffle_grouping("s")
    builder.set_bolt("b", Do(call), par=2).shuffle_grouping("a").shuffle_grouping("s")
    with builder.create_topology().local(seed=seed) as run:
        run.settle()
        return [order, run.acked("s"), run.failed("s"), run.executed("b")]


def test_one_seed_gives_one_order_and_others_give_others() -> None:
    assert trace(7) == trace(7)
    assert len({str(trace(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", SEEDS)
def test_tuples_of_a_pair_of_tasks_keep_their_order(seed: int) -> None:
    with chain(passing(), passing(), spout=Upto(50)).local(seed=seed) as run:
        run.settle()
        assert run.executed("a") == run.executed("b") == [(n,) for n in range(1, 51)]


def test_orders_that_storm_leaves_open_are_all_drawn() -> None:
    """Which of two bolts comes first, and which of two outcomes."""
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(2))
    seen: list[str] = []

    def call(bolt: Do, tup: Any) -> None:
        seen.append(bolt.component_name)
        bolt.ack(tup)

    for name in "ab":
        builder.set_bolt(name, Do(call)).shuffle_grouping("s")
    topology = builder.create_topology()
    orders, outcomes = set(), set()
    for seed in range(60):
        seen.clear()
        with topology.local(seed=seed) as run:
            run.settle()
            orders.add("".join(seen))
            outcomes.add(tuple(run.acked("s")))
    assert orders == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}
    assert outcomes == {("m1", "m2"), ("m2", "m1")}


# -- time


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_time_out_after_one_to_two_timeouts_all_at_ticks(seed: int) -> None:
    with chain(holding(), config={"topology.message.timeout.secs": 3}).local(seed=seed) as run:
        for n in range(12):
            run.feed("spout", [n], tup_id=n)
            run.settle()
            run.advance(0.5)
        assert run.failed("spout") and {tup_id for tup_id, _ in run.failed("spout")} == set(range(6))
        run.advance(3)
        assert sorted(run.failed("spout")) == [(n, "timeout") for n in range(12)]
        assert not run.metrics["spout"].complete_latency


def test_time_stands_still_while_settling_and_reaches_its_end() -> None:
    with chain(holding(), config={"topology.message.timeout.secs": 3}).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(5.999)
        assert run.pending("spout") == [1]
        run.advance(0.001)
        assert run.failed("spout") == [(1, "timeout")] and run.now_secs == 6
        with pytest.raises(AckerError, match="not a duration"):
            run.advance(-1)


def test_reset_timeout_keeps_a_message() -> None:
    def call(bolt: Do, tup: Any) -> None:
        if not tup.is_tick:
            bolt.held.append(tup)
        elif bolt.held:
            bolt.reset_timeout(bolt.held[0])

    conf = {"topology.message.timeout.secs": 2, "topology.tick.tuple.freq.secs": 1}
    with chain(Do(call), spout=Upto(2), config=conf).local() as run:
        run.advance(9)
        assert run.failed("spout") == [("m2", "timeout")] and run.pending("spout") == ["m1"]
        bolt = run.tasks("a")[0]
        for tup in bolt.held:
            bolt.ack(tup)  # the one of m2 comes too late
        run.settle()
        assert run.acked("spout") == ["m1"]


def test_timeouts_can_be_switched_off() -> None:
    conf = {"topology.message.timeout.secs": 2, "topology.enable.message.timeouts": False}
    acker = fake_acker(message_timeout_secs=2)
    with chain(holding(), spout=Upto(2), config=conf).local(acker=acker) as run:
        run.advance(100)
        assert run.pending("spout") == ["m1", "m2"] and acker.pending() == 2
        run.tasks("a")[0].ack(run.tasks("a")[0].held[0])
        run.settle()
        assert run.acked("spout") == ["m1"]


def test_late_ack_after_a_fail_has_no_effect() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(1))
    builder.set_bolt("f", Do(lambda bolt, tup: bolt.fail(tup))).shuffle_grouping("spout")
    builder.set_bolt("l", holding()).shuffle_grouping("spout")
    acker = fake_acker(message_timeout_secs=2)
    with builder.create_topology(config={"topology.message.timeout.secs": 2}).local(acker=acker) as run:
        run.settle()
        late = run.tasks("l")[0]
        late.ack(late.held[0])
        run.advance(10)
        assert run.failed("spout") == [("m1", "failed")] and run.acked("spout") == []
        assert acker.stats().orphaned == 0


# -- the ledger


def test_each_message_is_one_root_in_the_ledger_of_a_given_acker() -> None:
    acker = fake_acker(message_timeout_secs=30)
    with chain(passing(), holding(), spout=Upto(40)).local(acker=acker) as run:
        run.settle()
        assert acker.pending() == 40 and acker.stats().inits == 40
        bolt = run.tasks("b")[0]
        for tup in bolt.held[:30]:
            bolt.ack(tup)
        run.settle()
        assert acker.stats().acked == 30 and len(run.acked("spout")) == 30
    assert acker.pending() == 0 and acker.stats().failed == 10  # the end of the run fails what is pending


def test_topology_timeout_may_be_at_most_the_apps() -> None:
    acker = fake_acker(message_timeout_secs=10)
    topology = chain(sink(), spout=Upto(1), config={"topology.message.timeout.secs": 11})
    with pytest.raises(InvalidTopologyError, match="longer than the app's"):
        topology.local(acker=acker)
    with topology.local(conf={"topology.message.timeout.secs": 10}, acker=acker) as run:
        run.settle()
        assert run.acked("spout") == ["m1"]


def test_ledger_of_the_app_never_fails_a_message_before_the_pending_map() -> None:
    acker = fake_acker(message_timeout_secs=4, num_buckets=2)
    with chain(holding(), spout=Upto(1), config={"topology.message.timeout.secs": 4}).local(acker=acker) as run:
        run.advance(7.9)
        assert run.pending("spout") == ["m1"] and acker.pending() == 1
        run.advance(0.1)
        assert run.failed("spout") == [("m1", "timeout")] and acker.pending() == 0


def test_two_runs_on_one_acker_do_not_disturb_each_other() -> None:
    acker = fake_acker(lanes=4)
    for _ in range(3):
        with chain(holding(), spout=Upto(3)).local(acker=acker) as run:
            run.settle()
            assert run.acked("spout") == [] and run.failed("spout") == []


def test_components_are_closed_even_if_one_cannot_be_initialised() -> None:
    calls = []

    class Opens(Upto):
        def initialize(self, conf: Any, context: Any) -> None:
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

    class Fails(Do):
        def initialize(self, conf: Any, context: Any) -> None:
            raise ZeroDivisionError("no connection")

    for seed in SEEDS:
        calls.clear()
        with pytest.raises(ZeroDivisionError), chain(Fails(lambda bolt, tup: None), spout=Opens(1)).local(seed=seed):
            pass
        assert calls in ([], ["open", "close"])


class RefusesToRest(Upto):
    def deactivate(self) -> None:
        raise ZeroDivisionError("no rest")


def test_components_are_closed_even_if_a_spout_cannot_be_deactivated() -> None:
    closed = []

    class Closes(Do):
        def close(self) -> None:
            closed.append(self.component_name)

    bolt = Closes(lambda bolt, tup: bolt.ack(tup))
    with pytest.raises(ZeroDivisionError), chain(bolt, spout=RefusesToRest(1)).local() as run:
        run.settle()
    assert closed == ["a"]


def test_exception_in_activate_or_deactivate_ends_the_run() -> None:
    class Once(Upto):
        def activate(self) -> None:
            super().activate()
            if self.calls.count("activate") == 2:
                raise ZeroDivisionError("only once")

    with chain(sink(), spout=Once(1)).local() as run:
        run.deactivate()
        with pytest.raises(ZeroDivisionError):
            run.activate()
        with pytest.raises(AckerError, match=r"The run ended with ZeroDivisionError\('only once'\)"):
            run.settle()
    with chain(sink(), spout=RefusesToRest(1)).local() as run:
        with pytest.raises(ZeroDivisionError):
            run.deactivate()
        with pytest.raises(AckerError, match="The run ended with"):
            run.settle()


# -- mistakes


def test_topology_that_never_settles_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.storm.local.run.MAX_EVENTS", 1000)

    class Endless(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            self.emit([1])

    with (
        chain(sink(), spout=Endless()).local() as run,
        pytest.raises(AckerError, match="not settled after 1000 events"),
    ):
        run.settle()


def test_run_needs_with_and_is_entered_once() -> None:
    run = WordCount.local()
    with pytest.raises(AckerError, match="not entered"):
        run.settle()
    with run:
        run.feed("lines", ["a"])
        run.settle()
    with pytest.raises(AckerError, match="entered before"), run:
        pass


def test_run_that_ended_with_an_error_says_so() -> None:
    class Broken(Upto):
        def next_tuple(self) -> None:
            raise ZeroDivisionError("broken")

    with chain(sink(), spout=Broken(1)).local() as run:
        with pytest.raises(ZeroDivisionError):
            run.settle()
        with pytest.raises(AckerError, match=r"ended with ZeroDivisionError\('broken'\)"):
            run.settle()


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with WordCount.local() as run:
        for call in (run.feed, run.emitted, run.executed, run.acked, run.failed, run.pending, run.tasks):
            arguments = ["lnes", ["a"]] if call == run.feed else ["lnes"]
            with pytest.raises(InvalidTopologyError, match="Did you mean 'lines'"):
                call(*arguments)
        with pytest.raises(InvalidTopologyError, match="has no stream 'emty'"):
            run.emitted("split", "emty")
        with pytest.raises(InvalidTopologyError, match="is a bolt"):
            run.acked("split")


def test_object_that_cannot_be_copied_is_refused() -> None:
    spout = FeederSpout(["v"])
    spout.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    with pytest.raises(InvalidTopologyError, match="can't be copied"), chain(sink(), spout=spout).local():
        pass


@pytest.mark.parametrize("seed", SEEDS)
def test_cycle_of_a_bolt_with_itself_is_acked_once(seed: int) -> None:
    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v > 0:
            bolt.emit([tup.values.v - 1], stream="again", anchors=[tup])
        bolt.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    loop = Do(call, [Stream(["v"]), Stream(["v"], "again")])
    builder.set_bolt("loop", loop).shuffle_grouping("spout").shuffle_grouping("loop", "again")
    with builder.create_topology().local(seed=seed) as run:
        run.feed("spout", [3], tup_id="m1")
        run.settle()
        assert run.executed("loop") == [(3,), (2,), (1,), (0,)] and run.acked("spout") == ["m1"]


def test_stream_without_subscriber_acks_by_way_of_the_ledger() -> None:
    acker = fake_acker()
    with chain(spout=Upto(2)).local(acker=acker) as run:
        run.settle()
        assert sorted(run.acked("spout")) == ["m1", "m2"] and acker.stats().acked == 2


@pytest.mark.parametrize("secs", [float("inf"), float("nan"), -1, "1", None, True])
def test_advance_refuses_what_is_no_duration(secs: Any) -> None:
    with chain(sink()).local() as run, pytest.raises(AckerError, match="is not a duration"):
        run.advance(secs)


def test_acker_that_is_a_url_is_refused() -> None:
    topology: Any = chain(sink())
    for call in (topology.run_local, topology.local):
        with pytest.raises(BadConfigError, match="acker='redis://here' is not an Acker"):
            call(acker="redis://here")


def test_bolt_without_inputs_and_ticks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class T(Topology):
        lines = Lines.spec()
        forgotten = sink().spec()
        ticked = sink().spec(config={"topology.tick.tuple.freq.secs": 1})

    with T.local():
        pass
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["bolt executes nothing, it has neither inputs nor ticks component='forgotten'"]


def test_exchanges_become_rare_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange takes as long as hundreds of executions."""
    acker, sends = fake_acker(), []
    send = app_of(acker).ledger.send

    def sending(*args: Any) -> Any:
        sends.append(1)
        return send(*args)

    monkeypatch.setattr(app_of(acker).ledger, "send", sending)

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v < 20_000:
            bolt.emit([tup.values.v + 1], anchors=[tup])
        bolt.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("a", Do(call)).shuffle_grouping("spout").shuffle_grouping("a")
    with builder.create_topology().local(acker=acker) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1] and len(sends) < 400


@pytest.mark.parametrize("seed", [None, "7", 1.5, True, []])
def test_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(BadConfigError, match="is not an integer"):
        WordCount.local(seed=seed)


@pytest.mark.parametrize("stream", ["", None, 5, []])
def test_stream_that_is_no_name_is_refused(stream: Any) -> None:
    with WordCount.local() as run:
        with pytest.raises(InvalidTopologyError, match="has no stream"):
            run.emitted("split", stream)
        if stream is not None:  # of an emit, it means the default stream
            with pytest.raises(BadTupleError, match="does not declare the stream"):
                run.feed("lines", ["a"], stream=stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_local_run_that_is_not_entered_has_no_part_in_the_drawing(seed: int) -> None:
    topology = chain(sink(), spout=Upto(2))
    topology.local(seed=seed)
    assert "acked" not in topology.describe()
    with topology.local(seed=seed) as run:
        run.settle()
    del run
    gc.collect()
    topology.local(seed=seed)
    assert "acked 2" in topology.describe()


def test_fed_values_are_those_of_the_call() -> None:
    with chain(sink()).local() as run:
        values = [1]
        run.feed("spout", values, tup_id="m")
        values.append(2)
        run.settle()
        assert run.acked("spout") == ["m"] and run.emitted("spout") == [(1,)]


def test_feed_takes_a_spout_whose_emit_names_its_arguments() -> None:
    class Marks(FeederSpout):
        def emit(self, values: Any, **options: Any) -> Any:  # type: ignore[override]
            return super().emit([f"fed {values[0]}"], **options)

    with chain(sink(), spout=Marks(["v"])).local() as run:
        run.feed("spout", [1], tup_id="m1")
        run.settle()
        assert run.emitted("spout") == [("fed 1",)] and run.acked("spout") == ["m1"]
