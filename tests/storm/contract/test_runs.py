"""The run that `local` gives: feed, settle, advance, activate, what it shows."""

import logging
import time
from typing import Any

import pytest

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, FeederSpout, InvalidTopologyError, Spout, TaskHook, TopologyBuilder, Tuple
from acker_redis.storm.local import run as run_module
from acker_redis.testing import fake_acker
from tests.storm.contract.parts import Keeps, Pass, Sink, fed, rows


def test_a_fed_spout_s_own_next_tuple_is_not_called() -> None:
    class Own(Spout):
        outputs = ["v"]
        calls = 0

        def next_tuple(self) -> None:
            type(self).calls += 1
            self.emit(["own"])

    builder = TopologyBuilder()
    builder.set_spout("spout", Own)
    builder.set_bolt("sink", Pass).shuffle_grouping("spout")
    with builder.create_topology().local() as run:
        run.feed("spout", ["fed"], tup_id=1)
        run.settle()
        assert rows(run, "sink") == [("fed",)]
        assert Own.calls == 0


def test_feed_waits_for_settle() -> None:
    with fed(Pass).local() as run:
        run.feed("spout", [1], tup_id=1)
        assert run.executed("b0") == []
        run.settle()
        assert [tuple(row) for row in run.executed("b0")] == [(1,)]


def test_feed_to_an_unknown_spout_stream_or_with_wrong_arity_is_refused() -> None:
    with fed(Pass).local() as run:
        for arguments in (("nobody", [1]), ("b0", [1]), ("spout", [1, 2]), ("spout", [1], 1, "nowhere")):
            with pytest.raises(AckerError):
                run.feed(*arguments)
                run.settle()


def test_emitted_and_executed_are_namedtuples_in_order() -> None:
    with fed(Pass).local() as run:
        for number in range(5):
            run.feed("spout", [number])
        run.settle()
        assert [row.v for row in run.emitted("spout")] == [row.v for row in run.executed("b0")] == list(range(5))


@pytest.mark.parametrize("call", ["emitted", "executed", "acked", "failed", "pending", "tasks"])
def test_an_unknown_component_is_refused(call: str) -> None:
    with fed(Pass).local() as run:
        run.settle()
        with pytest.raises(InvalidTopologyError, match="'b9'"):
            getattr(run, call)("b9")


def test_what_a_run_shows_is_not_its_own_list() -> None:
    with fed(Keeps).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        for call in (run.pending, run.acked, run.failed):
            call("spout").clear()
        run.emitted("spout").clear()
        assert run.pending("spout") == [1]
        assert rows(run, "spout") == [(1,)]


def test_an_endless_run_raises_after_a_million_events(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_module.MAX_EVENTS == 1_000_000
    monkeypatch.setattr(run_module, "MAX_EVENTS", 10_000)

    class Endless(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            self.emit([1])

    builder = TopologyBuilder()
    builder.set_spout("spout", Endless)
    with builder.create_topology().local({"topology.acker.executors": 0}) as run, pytest.raises(AckerError):
        run.settle()


def test_time_stands_still_in_settle() -> None:
    class Ticks(Bolt):
        ticks = 0

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            type(self).ticks += 1

    topology = fed(Ticks, config={"topology.tick.tuple.freq.secs": 1})
    with topology.local() as run:
        for _ in range(20):
            run.feed("spout", [1], tup_id=1)
            run.settle()
        assert Ticks.ticks == 0
        run.advance(0.5)
        run.advance(0.25)
        assert Ticks.ticks == 0
        run.advance(0.25)
        assert Ticks.ticks == 1


@pytest.mark.parametrize("step", [0.1, 0.2, 1 / 3, 0.7])
def test_small_steps_add_up_to_whole_periods(step: float) -> None:
    """Ten times 0.1 s is a second, although their sum as floats is less."""

    class Ticks(Bolt):
        outputs = ["n"]

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            self.emit([1])

    with fed(Ticks, config={"topology.tick.tuple.freq.secs": 1}).local() as run:
        run.settle()
        for _ in range(round(7 / step)):
            run.advance(step)
        assert len(rows(run, "b0")) == 7


@pytest.mark.parametrize("period", [0.1, 0.3, 1 / 3])
def test_short_periods_tick_as_often_as_they_should(period: float) -> None:
    class Ticks(Bolt):
        outputs = ["n"]

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            self.emit([1])

    with fed(Ticks, config={"topology.tick.tuple.freq.secs": period}).local() as run:
        run.settle()
        run.advance(30 * period)
        assert len(rows(run, "b0")) == 30


def test_advance_takes_no_real_time_and_refuses_to_go_back() -> None:
    with fed(Keeps).local({"topology.message.timeout.secs": 30}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        began = time.monotonic()
        run.advance(3600)
        assert time.monotonic() - began < 60
        assert run.failed("spout") == [(1, "timeout")]
        with pytest.raises((AckerError, ValueError)):
            run.advance(-1)


@pytest.mark.parametrize("secs", [2, 5, 30])
def test_timeouts_come_between_t_and_two_t(secs: int) -> None:
    with fed(Keeps).local({"topology.message.timeout.secs": secs}) as run:
        ages: dict[int, float] = {}
        for step in range(8 * secs):
            if step < 4 * secs:
                run.feed("spout", [step], tup_id=step)
            run.settle()
            run.advance(0.5)
            for tup_id, reason in run.failed("spout")[len(ages) :]:
                assert reason == "timeout"
                ages[tup_id] = (step + 1) / 2 - tup_id / 2
        assert len(ages) == 4 * secs
        assert min(ages.values()) >= secs
        assert max(ages.values()) <= 2 * secs


def test_ticks_and_timeouts_go_on_in_order_of_time() -> None:
    """A tuple that a tick acks before its timeout is acked, however far one call advances."""

    class AcksAtTick(Keeps):
        def process_tick(self, tup: Tuple) -> None:
            for held in self.held:
                self.ack(held)
            self.held = []

    topology = fed(AcksAtTick, config={"topology.tick.tuple.freq.secs": 5})
    with topology.local({"topology.message.timeout.secs": 30}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(10_000)
        assert (run.acked("spout"), run.failed("spout")) == ([1], [])


def test_the_same_seed_gives_the_same_order_and_others_give_others() -> None:
    def order(seed: int) -> str:
        builder = TopologyBuilder()
        for name in ("s1", "s2", "s3"):
            builder.set_spout(name, FeederSpout(["v"]))
        bolt = builder.set_bolt("bolt", Pass)
        for name in ("s1", "s2", "s3"):
            bolt.shuffle_grouping(name)
        with builder.create_topology().local(seed=seed) as run:
            for number in range(6):
                for name in ("s1", "s2", "s3"):
                    run.feed(name, [f"{name} {number}"], tup_id=number)
            run.settle()
            return str([row.v for row in run.executed("bolt")])

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(6)}) > 1


def test_a_given_acker_stays_open() -> None:
    with fake_acker() as acker:
        with fed(Sink).local(acker=acker) as run:
            run.feed("spout", [1], tup_id=1)
            run.settle()
            assert run.acked("spout") == [1]
        assert acker.stats().pending == 0


def test_time_moves_with_a_given_acker_too() -> None:
    with fake_acker(message_timeout_secs=30) as acker:
        topology = fed(Keeps, config={"topology.tick.tuple.freq.secs": 1})
        with topology.local({"topology.message.timeout.secs": 2}, acker=acker) as run:
            run.feed("spout", [1], tup_id=1)
            run.settle()
            run.advance(4)
            assert run.failed("spout") == [(1, "timeout")]


def test_a_long_advance_does_not_expire_what_is_renewed() -> None:
    """The ledger's own expiry is a backstop only: it must not decide before the spout's map does."""

    class Renews(Keeps):
        def process_tick(self, tup: Tuple) -> None:
            for held in self.held:
                self.reset_timeout(held)

    with fake_acker(message_timeout_secs=2) as acker:
        topology = fed(Renews, config={"topology.tick.tuple.freq.secs": 1})
        with topology.local({"topology.message.timeout.secs": 2}, acker=acker) as run:
            for number in range(3):
                run.feed("spout", [number], tup_id=number)
            run.settle()
            run.advance(60)
            assert run.failed("spout") == []
            [keeper] = run.tasks("b0")
            for held in keeper.held:
                keeper.ack(held)
            run.settle()
            assert sorted(run.acked("spout")) == [0, 1, 2]


def test_disabled_timeouts_never_time_out_on_a_given_acker_either() -> None:
    conf = {"topology.message.timeout.secs": 2, "topology.enable.message.timeouts": False}
    with fake_acker(message_timeout_secs=2) as acker, fed(Keeps).local(conf, acker=acker) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(100)
        assert (run.failed("spout"), run.pending("spout")) == ([], [1])
        [keeper] = run.tasks("b0")
        keeper.ack(keeper.held[0])
        run.settle()
        assert run.acked("spout") == [1]


def test_a_new_run_over_the_same_acker_hears_nothing_of_the_old_one() -> None:
    with fake_acker(message_timeout_secs=5) as acker:
        conf = {"topology.message.timeout.secs": 5}
        for number in range(3):
            with fed(Keeps).local(conf, acker=acker) as run:
                run.feed("spout", [1], tup_id="same")
                run.settle()
                assert (run.acked("spout"), run.failed("spout")) == ([], [])
                if number == 2:
                    run.advance(10)
                    assert run.failed("spout") == [("same", "timeout")]


def test_two_runs_over_one_acker_at_once_hear_their_own_outcomes() -> None:
    with fake_acker() as acker, fed(Keeps).local(acker=acker) as one, fed(Keeps).local(acker=acker) as two:
        for run in (one, two):
            run.feed("spout", [1], tup_id=id(run))
            run.settle()
        for run in (two, one):
            [keeper] = run.tasks("b0")
            keeper.ack(keeper.held[0])
            one.settle()
            two.settle()
            assert run.acked("spout") == [id(run)]


def test_a_run_that_is_over_refuses_calls() -> None:
    with fed(Sink).local() as run:
        run.settle()
    for call in (run.settle, run.activate, run.deactivate):
        with pytest.raises(AckerError):
            call()


def test_an_error_in_the_block_is_the_test_s_own() -> None:
    closed: list[str] = []

    class Closes(Bolt):
        def process(self, tup: Tuple) -> None:
            pass

        def close(self) -> None:
            closed.append("bolt")

    with pytest.raises(KeyError, match="mine"), fed(Closes).local() as run:
        run.settle()
        raise KeyError("mine")
    assert closed == ["bolt"]


def test_close_is_called_once_even_if_another_raises() -> None:
    closed: list[str] = []

    class Closes(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            pass

        def close(self) -> None:
            closed.append("spout")
            raise KeyError("close")

    class ClosesToo(Bolt):
        def process(self, tup: Tuple) -> None:
            pass

        def close(self) -> None:
            closed.append("bolt")

    builder = TopologyBuilder()
    builder.set_spout("spout", Closes)
    builder.set_bolt("bolt", ClosesToo).shuffle_grouping("spout")
    with pytest.raises(KeyError, match="close"), builder.create_topology().local() as run:
        run.settle()
    assert sorted(closed) == ["bolt", "spout"]


def test_a_bolt_s_exception_is_logged_with_its_component(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Bolt):
        def process(self, tup: Tuple) -> None:
            raise ValueError("drawn")

    with caplog.at_level(logging.INFO), fed(Raises).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
    assert any("b0" in record.name and "drawn" in record.getMessage() for record in caplog.records)


def test_the_ledger_is_real_and_has_what_is_pending() -> None:
    with fake_acker() as acker, fed(Keeps).local(acker=acker) as run:
        for number in range(5):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        assert acker.stats().pending == len(run.pending("spout")) == 5
        [keeper] = run.tasks("b0")
        keeper.ack(keeper.held[0])
        keeper.fail(keeper.held[1])
        run.settle()
        assert acker.stats().pending == len(run.pending("spout")) == 3


def test_any_number_of_shards_and_lanes() -> None:
    with fake_acker(shards=3, lanes=4) as acker, fed(Pass, Sink).local(acker=acker) as run:
        for number in range(100):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        assert sorted(run.acked("spout")) == list(range(100))


def test_emits_of_initialize_and_activate_are_executed_after_every_initialize() -> None:
    order: list[str] = []

    class Early(Spout):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            order.append("initialize")
            self.emit(["initialize"], tup_id="initialize")

        def activate(self) -> None:
            self.emit(["activate"], tup_id="activate")

        def next_tuple(self) -> None:
            pass

    class EarlyBolt(Bolt):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            order.append("initialize")
            self.emit(["bolt"])

        def process(self, tup: Tuple) -> None:
            order.append(f"process {tup.values.v}")

    class End(Pass):
        def initialize(self, conf: Any, context: Any) -> None:
            order.append("initialize")

        def process(self, tup: Tuple) -> None:
            order.append(f"process {tup.values.v}")

    builder = TopologyBuilder()
    builder.set_spout("spout", Early)
    builder.set_bolt("first", EarlyBolt).shuffle_grouping("spout")
    builder.set_bolt("second", End).shuffle_grouping("first")
    with builder.create_topology().local() as run:
        run.settle()
        assert order[:3] == ["initialize"] * 3
        assert sorted(order[3:]) == ["process activate", "process bolt", "process initialize"]
        assert sorted(run.acked("spout")) == ["activate", "initialize"]


def test_an_exception_in_initialize_of_a_bolt_leaves_local() -> None:
    class Dies(Bolt):
        def initialize(self, conf: Any, context: Any) -> None:
            raise KeyError("initialize")

        def process(self, tup: Tuple) -> None:
            pass

    with pytest.raises(KeyError, match="initialize"), fed(Dies).local():
        pass


def test_a_fresh_copy_is_not_hooked_twice() -> None:
    calls: list[str] = []

    class Hook(TaskHook):
        def bolt_execute(self, info: Any) -> None:
            calls.append(info.tuple.values.v)

    class Exits(Bolt):
        exit_on_exception = True

        def initialize(self, conf: Any, context: Any) -> None:
            self.add_task_hook(Hook())

        def process(self, tup: Tuple) -> None:
            if tup.values.v == "dies":
                raise ValueError("dies")

    with fed(Exits).local() as run:
        for value in ("a", "dies", "b", "dies", "c"):
            run.feed("spout", [value], tup_id=value)
        run.settle()
    assert calls == ["a", "dies", "b", "dies", "c"]


def orders(play: Any, seeds: int = 40) -> set[Any]:
    """What different seeds draw."""
    return {play(seed) for seed in range(seeds)}


def test_two_bolts_take_either_turn() -> None:
    def play(seed: int) -> str:
        order: list[str] = []

        class Notes(Bolt):
            def process(self, tup: Tuple) -> None:
                order.append(f"{self.component_name}{tup.values.v}")

        builder = TopologyBuilder()
        builder.set_spout("spout", FeederSpout(["v"]))
        for name in ("a", "b"):
            builder.set_bolt(name, Notes).shuffle_grouping("spout")
        with builder.create_topology().local(seed=seed) as run:
            for number in (1, 2):
                run.feed("spout", [number])
            run.settle()
        return " ".join(order)

    assert orders(play) == {"a1 a2 b1 b2", "a1 b1 a2 b2", "a1 b1 b2 a2", "b1 a1 a2 b2", "b1 a1 b2 a2", "b1 b2 a1 a2"}


def test_outcomes_of_two_messages_come_in_either_order() -> None:
    def play(seed: int) -> tuple[Any, ...]:
        with fed(Pass, Sink).local(seed=seed) as run:
            for number in (1, 2):
                run.feed("spout", [number], tup_id=number)
            run.settle()
            return tuple(run.acked("spout"))

    assert orders(play) == {(1, 2), (2, 1)}


def test_an_outcome_comes_before_or_after_a_later_next_tuple() -> None:
    def play(seed: int) -> str:
        order: list[str] = []

        class Two(Spout):
            outputs = ["v"]
            left = 2

            def next_tuple(self) -> None:
                if self.left:
                    self.left -= 1
                    order.append(f"emit{self.left}")
                    self.emit([self.left], tup_id=self.left)

            def ack(self, tup_id: Any) -> None:
                order.append(f"ack{tup_id}")

        builder = TopologyBuilder()
        builder.set_spout("spout", Two)
        builder.set_bolt("sink", Sink).shuffle_grouping("spout")
        with builder.create_topology().local(seed=seed) as run:
            run.settle()
        return " ".join(order)

    assert orders(play, 80) == {"emit1 emit0 ack1 ack0", "emit1 emit0 ack0 ack1", "emit1 ack1 emit0 ack0"}


def test_a_tick_and_a_tuple_of_one_time_come_in_either_order() -> None:
    def play(seed: int) -> str:
        order: list[str] = []

        class Sends(Pass):
            config = {"topology.tick.tuple.freq.secs": 1}

            def process_tick(self, tup: Tuple) -> None:
                self.emit(["tuple"])

        class Notes(Bolt):
            config = {"topology.tick.tuple.freq.secs": 1}

            def process(self, tup: Tuple) -> None:
                order.append("tuple")

            def process_tick(self, tup: Tuple) -> None:
                order.append("tick")

        with fed(Sends, Notes).local(seed=seed) as run:
            run.settle()
            run.advance(1)
        return " ".join(order)

    assert orders(play) == {"tick tuple", "tuple tick"}


def test_a_timeout_and_an_ack_of_one_time_come_in_either_order() -> None:
    def play(seed: int) -> str:
        class AcksAtTick(Keeps):
            config = {"topology.tick.tuple.freq.secs": 4}

            def process_tick(self, tup: Tuple) -> None:
                for held in self.held:
                    self.ack(held)

        with fed(AcksAtTick).local({"topology.message.timeout.secs": 2}, seed=seed) as run:
            run.feed("spout", [1], tup_id=1)
            run.settle()
            run.advance(4)
            assert len(run.acked("spout")) + len(run.failed("spout")) == 1
            return "ack" if run.acked("spout") else "timeout"

    assert orders(play) == {"ack", "timeout"}
