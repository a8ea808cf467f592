"""`run_local`: real time, any server, until it is stopped or its spouts are done."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from acker_redis import Acker, RetryPolicy
from acker_redis.errors import AckerError
from acker_redis.storm import (
    BatchingBolt,
    Bolt,
    Grouping,
    ReliableSpout,
    RowFailedError,
    Spout,
    Topology,
    TopologyBuilder,
    Tuple,
)
from acker_redis.testing import fake_acker, wait_until
from tests.storm.contract.parts import Pass
from tests.support.leaks import assert_no_leaks, run_out


class Numbers(Spout):
    """Emits 0, 1, 2 …, and remembers what came back."""

    outputs = ["v"]
    count = 50
    heard: list[Any]

    def initialize(self, conf: Any, context: Any) -> None:
        self.left = list(range(self.count))

    def next_tuple(self) -> None:
        if self.left:
            number = self.left.pop(0)
            self.emit([number], tup_id=number)

    def ack(self, tup_id: Any) -> None:
        self.heard.append(tup_id)

    def fail(self, tup_id: Any, reason: str) -> None:
        self.heard.append((tup_id, reason))


def numbers(**attributes: Any) -> type[Numbers]:
    return type("Mine", (Numbers,), attributes)


class Reliable(Numbers, ReliableSpout):
    retry = RetryPolicy(max_attempts=20, first_delay_secs=0.01, max_delay_secs=0.01, jitter=0)

    def fail(self, tup_id: Any, reason: str) -> None:
        pass


def line(spout: type[Spout], *bolts: type[Bolt], heard: list[Any] | None = None, **attributes: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", type("Mine", (spout,), {"heard": [] if heard is None else heard} | attributes))
    previous = "spout"
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt, par=2).shuffle_grouping(previous)
        previous = f"b{number}"
    return builder.create_topology()


def on_each(call: Callable[[Tuple], object]) -> type[Bolt]:
    """A bolt that calls this for each tuple."""
    return type("Calls", (Bolt,), {"process": lambda self, tup: call(tup)})


def test_a_run_ends_when_its_spouts_are_done(source: Any, raw: Any, connect: Any) -> None:
    heard: list[Any] = []
    acker: Acker = connect(message_timeout_secs=60)
    result = line(Numbers, Pass, Pass, heard=heard).run_local(acker)
    assert sorted(heard) == list(range(50))
    assert (result.acked, result.failed, result.timed_out, result.dead_letters, result.unfinished) == (50, 0, 0, 0, 0)
    run_out(acker)
    assert_no_leaks(raw, "test")


def test_runs_over_one_acker_follow_each_other() -> None:
    with fake_acker() as acker:
        for _ in range(3):
            heard: list[Any] = []
            line(Numbers, Pass, heard=heard).run_local(acker)
            assert sorted(heard) == list(range(50))


def test_failed_messages_are_heard_and_counted() -> None:
    def fails_odd(tup: Tuple) -> None:
        if tup.values.v % 2:
            raise RowFailedError("odd")

    heard: list[Any] = []
    with fake_acker() as acker:
        result = line(Numbers, on_each(fails_odd), heard=heard, count=6).run_local(acker)
    assert sorted(map(str, heard)) == sorted(map(str, [0, 2, 4, (1, "odd"), (3, "odd"), (5, "odd")]))
    assert (result.acked, result.failed) == (3, 3)


def test_stop_drains_what_is_pending() -> None:
    stop = threading.Event()

    class Endless(Numbers):
        def next_tuple(self) -> None:
            self.left.append(0)
            self.emit([len(self.left)], tup_id=len(self.left))

    heard: list[Any] = []
    emitted: list[int] = []

    def stops(tup: Tuple) -> None:
        emitted.append(tup.values.v)
        if tup.values.v == 70:
            stop.set()

    with fake_acker() as acker:
        result = line(Endless, on_each(stops), heard=heard).run_local(acker, stop=stop)
        assert sorted(heard) == sorted(emitted)
        assert (result.acked, result.unfinished) == (len(heard), 0)
        assert acker.stats().pending == 0


def test_stop_that_is_set_before_ends_at_once() -> None:
    stop = threading.Event()
    stop.set()
    with fake_acker() as acker:
        result = line(Numbers, Pass).run_local(acker, stop=stop)
    assert result.acked == 0


def test_ctrl_c_drains_and_returns_a_result() -> None:
    heard: list[Any] = []

    class Interrupts(Numbers):
        def next_tuple(self) -> None:
            super().next_tuple()
            if len(self.left) == 10:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with fake_acker() as acker:
        result = line(Interrupts, Pass, heard=heard).run_local(acker)
        assert acker.stats().pending == 0
    assert result.acked == len(heard) >= 40
    assert len(heard) < 50
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_at_once() -> None:
    class Interrupts(Numbers):
        def next_tuple(self) -> None:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with fake_acker() as acker, pytest.raises(KeyboardInterrupt):
        line(Interrupts, Pass).run_local(acker)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_exception_of_a_spout_leaves_the_run_and_closes_it() -> None:
    class Dies(Numbers):
        def next_tuple(self) -> None:
            super().next_tuple()
            if len(self.left) == 40:
                raise KeyError("dies")

    with fake_acker() as acker:
        with pytest.raises(KeyError, match="dies"):
            line(Dies, Pass).run_local(acker)
        assert acker.stats().pending == 0
        assert line(Numbers, Pass).run_local(acker).acked == 50, "the lane is free again"


@pytest.mark.usefixtures("whole_rounds")
def test_a_forgotten_tuple_times_out_in_real_time() -> None:
    """The others are acked in the round that emits them, so that a pause of this process lets none of them time out."""

    class Forgets(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            if tup.values.v != 3:
                self.ack(tup)

    heard: list[Any] = []

    class Short(Topology):
        config = {"topology.message.timeout.secs": 0.2}
        spout = numbers(heard=heard, count=5).spec()
        bolt = Forgets.spec(inputs=[spout])

    with fake_acker() as acker:
        result = Short.run_local(acker)
    assert (3, "timeout") in heard
    assert (result.acked, result.timed_out, result.failed) == (4, 1, 0)


def test_ticks_and_batches_come_in_real_time() -> None:
    class Batches(BatchingBolt):
        outputs = ["n"]

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit([len(tups)])

    heard: list[Any] = []

    class Ticking(Topology):
        spout = numbers(heard=heard).spec()
        batches = Batches.spec(inputs={spout: Grouping.GLOBAL}, config={"topology.tick.tuple.freq.secs": 0.05})
        sink = Pass.spec(inputs=[batches])

    with fake_acker() as acker:
        result = Ticking.run_local(acker)
    assert result.acked == len(heard) == 50


def test_what_batches_hold_at_the_end_is_processed() -> None:
    class Batches(BatchingBolt):
        outputs = ["n"]
        batch_size = 7

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit([len(tups)])

    with fake_acker() as acker:
        assert line(Numbers, Batches, Pass).run_local(acker).acked == 50


def test_reliable_spouts_replay_and_dead_letter_in_real_time() -> None:
    tried: list[int] = []

    def fails(tup: Tuple) -> None:
        tried.append(tup.values.v)
        if tup.values.v == 4 or tried.count(tup.values.v) == 1:
            raise RowFailedError("again")

    class Few(Reliable):
        retry = RetryPolicy(max_attempts=3, first_delay_secs=0.01, multiplier=1, jitter=0)

    with fake_acker() as acker:
        result = line(Few, on_each(fails), count=6).run_local(acker)
        assert (result.acked, result.dead_letters, result.unfinished) == (5, 1, 0)
        assert tried.count(4) == 3
        [letter] = acker.dead_letters.read()
        assert (letter.reason, letter.detail) == ("failed", "again")


def test_a_ledger_that_is_lost_in_the_middle_loses_no_message(url: str, connect: Any, raw: Any) -> None:
    flushed: list[bool] = []

    def flushes(tup: Tuple) -> None:
        if tup.values.v == 25 and not flushed:
            flushed.append(True)
            raw.flushall()

    heard: list[Any] = []
    acker: Acker = connect(message_timeout_secs=60)
    result = line(Reliable, Pass, on_each(flushes), heard=heard).run_local(acker)
    assert sorted(set(heard)) == list(range(50))
    assert result.unfinished == 0


def test_a_connection_that_is_cut_costs_no_message_and_no_second_ack(
    start_server: Any, start_proxy: Any, open_acker: Any
) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker = open_acker(proxy.url, message_timeout_secs=60, outage_timeout_secs=5)
    cuts = iter(range(5, 50, 9))
    at = [next(cuts)]

    def cuts_sometimes(tup: Tuple) -> None:
        if at and tup.values.v >= at[0]:
            proxy.cut_replies(after_bytes=tup.values.v)
            at[:] = [n for n in [next(cuts, None)] if n is not None]

    heard: list[Any] = []
    few = {"topology.max.spout.pending": 2}  # many rounds, of one exchange each
    result = line(Reliable, Pass, on_each(cuts_sometimes), heard=heard, config=few).run_local(acker)
    assert sorted(heard) == list(range(50))
    assert result.unfinished == 0
    assert proxy.cuts >= 2


def test_a_timeout_above_the_app_s_is_refused_before_anything_starts() -> None:
    class Long(Topology):
        config = {"topology.message.timeout.secs": 100}
        spout = numbers(heard=[]).spec()

    with fake_acker(message_timeout_secs=10) as acker, pytest.raises(AckerError, match="100"):
        Long.run_local(acker)


def test_ackers_0_needs_no_ledger() -> None:
    class Untracked(Topology):
        config = {"topology.acker.executors": 0}
        spout = numbers(heard=[]).spec()
        bolt = Pass.spec(inputs=[spout])

    with fake_acker() as acker:
        before = acker.stats()
        assert Untracked.run_local(acker).acked == 50
        assert acker.stats().pending == before.pending == 0


def test_stop_ends_the_calls_of_a_round() -> None:
    """A spout that polls slowly would otherwise go on for a thousand calls."""
    stop = threading.Event()
    calls: list[int] = []

    class Stops(Numbers):
        def next_tuple(self) -> None:
            calls.append(len(calls))
            self.emit([1], tup_id=calls[-1])
            if len(calls) == 10:
                stop.set()

    with fake_acker() as acker:
        assert line(Stops, Pass).run_local(acker, stop=stop).acked == 10


def test_a_bolt_that_feeds_itself() -> None:
    class Counts(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            if tup.values.v:
                self.emit([tup.values.v - 1])

    builder = TopologyBuilder()
    heard: list[Any] = []
    builder.set_spout("spout", type("Mine", (Numbers,), {"heard": heard, "count": 7}))
    builder.set_bolt("loop", Counts).shuffle_grouping("spout").shuffle_grouping("loop")
    with fake_acker() as acker:
        result = builder.create_topology().run_local(acker)
    assert (result.acked, result.unfinished, sorted(heard)) == (7, 0, list(range(7)))
    assert result.metrics["loop"].executed.total() == 7 + sum(range(7))


@pytest.mark.parametrize("acks", [True, False])
def test_an_outcome_that_is_here_comes_before_a_timeout_that_is_due(acks: bool) -> None:
    """A bolt settles its tuple, and is slow until two turns of the timeout are due. They must not overtake."""

    class Slow(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            self.ack(tup) if acks else self.fail(tup, "why")
            over = time.monotonic() + 0.9
            wait_until(lambda: time.monotonic() > over, "two turns are due")

    heard: list[Any] = []

    class Short(Topology):
        config = {"topology.message.timeout.secs": 0.4}
        spout = numbers(heard=heard, count=1).spec()
        bolt = Slow.spec(inputs=[spout])

    with fake_acker() as acker:
        result = Short.run_local(acker)
    assert heard == ([0] if acks else [(0, "why")])
    assert (result.acked, result.failed, result.timed_out) == ((1, 0, 0) if acks else (0, 1, 0))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_a_spout_emits_as_it_is_deactivated_is_processed(is_stopped: bool) -> None:
    heard: list[Any] = []
    stop = threading.Event()

    class Rest(Numbers):
        count = 2

        def deactivate(self) -> None:
            self.emit([2], tup_id=2)

        def ack(self, tup_id: Any) -> None:
            heard.append(tup_id)
            if len(heard) == 2 and is_stopped:
                stop.set()

    builder = TopologyBuilder()
    builder.set_spout("spout", Rest)
    builder.set_bolt("bolt", Pass).shuffle_grouping("spout")
    with fake_acker() as acker:
        result = builder.create_topology().run_local(acker, stop=stop if is_stopped else None)
        assert (sorted(heard), result.acked, result.unfinished) == ([0, 1, 2], 3, 0)


def test_a_batch_of_what_a_spout_emits_untracked_as_it_is_deactivated_is_processed() -> None:
    sizes: list[int] = []

    class Rest(Numbers):
        count = 2

        def deactivate(self) -> None:
            self.emit([2])

    class Batches(BatchingBolt):
        config = {"topology.tick.tuple.freq.secs": 1}

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            sizes.append(len(tups))

    with fake_acker(message_timeout_secs=60) as acker:
        assert line(Rest, Batches).run_local(acker).acked == 2
    assert sum(sizes) == 3
