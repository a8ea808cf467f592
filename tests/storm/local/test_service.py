"""run_local: small services in real time, on any Redis."""

import gc
import logging
import signal
import threading
from typing import Any

import pytest

from acker_redis import Limits
from acker_redis.acker import Acker, app_of
from acker_redis.client.error_mapping import passes
from acker_redis.errors import BadConfigError, ConnectionLostError, InvalidTopologyError
from acker_redis.store import topology_counts
from acker_redis.storm import (
    BatchingBolt,
    Grouping,
    ReliableSpout,
    RetryPolicy,
    StatefulBolt,
    Stream,
    Topology,
    TopologyBuilder,
)
from acker_redis.testing import fake_acker, wait_until
from acker_redis.testing.server import Server, find_program
from tests.storm.parts import Do, Upto, chain, holding, passing, sink, until_tick

QUICK = {"topology.message.timeout.secs": 0.4}


class Endless(Upto):
    """Goes on emitting as soon as fewer than the bound are pending."""

    def next_tuple(self) -> None:
        self.n += 1
        self.emit([self.n], tup_id=self.n)


def test_run_ends_when_the_spouts_are_done_and_everything_is_settled() -> None:
    acker = fake_acker()
    result = chain(passing(), sink(), spout=Upto(2500)).run_local(acker)
    assert (result.acked, result.failed, result.timed_out, result.unfinished) == (2500, 0, 0, 0)
    assert result.metrics["b"].executed == {"a:default": 2500}
    assert acker.pending() == 0 and acker.stats().acked == 2500 and acker.stats().unconfirmed_outcomes == 0


def test_run_on_a_server(url: str) -> None:
    with Acker.connect(url, app="orders", lanes=4) as acker:
        result = chain(passing(), sink(), spout=Upto(2500), config={"topology.max.spout.pending": 100}).run_local(acker)
        assert result.acked == 2500 and acker.pending() == 0


def test_a_run_writes_its_counts_and_its_end_for_people(url: str) -> None:
    """As a run on Spark does."""
    seen: list[str] = []

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 9:
            (counts,) = topology_counts.read_all(app_of(acker).client, "orders")
            assert counts.turns is None
            seen.append(counts.state)
        bolt.ack(tup)

    class Raises(Upto):
        def next_tuple(self) -> None:
            raise KeyError("no such order")

    with Acker.connect(url, app="orders", lanes=4) as acker:
        result = chain(passing(), Do(call), spout=Upto(20)).run_local(acker)
        (counts,) = topology_counts.read_all(app_of(acker).client, "orders")
        assert (seen, counts.state, counts.run_id, counts.pending) == (["running"], "ended", result.run_id, 0)
        assert counts.components["b"]["executed"] == {"a:default": 20}
        assert {end.state for end in acker.admin.last_run_ends().values()} == {"finished"}
        with pytest.raises(KeyError):
            chain(passing(), spout=Raises()).run_local(acker)
        (counts,) = topology_counts.read_all(app_of(acker).client, "orders")
        assert (counts.state, counts.error) == ("failed", "KeyError: 'no such order'")
        assert {(end.state, end.error) for end in acker.admin.last_run_ends().values()} == {("failed", counts.error)}


class Remember(StatefulBolt):
    """Keeps what it has seen."""

    def process(self, tup: Any) -> None:
        self.state[tup.values.v] = True


@pytest.mark.parametrize(
    ("grouping", "par", "is_split"),
    [
        (Grouping.SHUFFLE, 2, True),
        (Grouping.LOCAL_OR_SHUFFLE, 2, True),
        (Grouping.SHUFFLE, 1, False),
        (Grouping.fields("v"), 2, False),
        (Grouping.ALL, 2, False),
    ],
)
def test_state_that_is_split_over_tasks_is_logged(
    caplog: pytest.LogCaptureFixture, grouping: Grouping, par: int, is_split: bool
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", Upto(3))
    builder.set_bolt("b", Remember, par).grouping("a", grouping)
    assert builder.create_topology("remember").run_local(fake_acker()).acked == 3
    expected = "state of a key is split over tasks, subscribe with Grouping.fields component='b' tasks=2 inputs=a"
    assert (expected in caplog.messages) is is_split


def test_sinks_of_a_run_in_process_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Written(Topology):
        sinks = {"b": lambda writer: writer.mode("append").parquet("rows")}
        a = Upto(3).spec()
        b = Remember.spec(inputs=[a])

    assert Written.run_local(fake_acker()).acked == 3
    assert "sinks are written on Spark only, this run writes none topology='Written' sinks=1" in caplog.messages


@pytest.mark.usefixtures("whole_rounds")
def test_updates_of_a_round_are_one_per_root() -> None:
    """A tree that is done within a round is one init of value zero."""
    acker = fake_acker()
    chain(passing(), passing(), sink(), spout=Upto(1000)).run_local(acker)
    stats = acker.stats()
    assert (stats.inits, stats.acked, stats.acks) == (1000, 1000, 0)


def test_cycles_and_slow_bolts_share_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a round is up in the middle of a queue, and a bolt feeds itself."""
    monkeypatch.setattr("acker_redis.storm.local.service._TUPLES_SECS", 0.0)

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v > 0:
            bolt.emit([tup.values.v - 1], stream="again", anchors=[tup])
        bolt.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(20))
    loop = Do(call, [Stream(["v"]), Stream(["v"], "again")])
    builder.set_bolt("loop", loop).shuffle_grouping("spout").shuffle_grouping("loop", "again")
    result = builder.create_topology().run_local(fake_acker())
    assert result.acked == 20 and result.metrics["loop"].executed.total() == sum(range(1, 21)) + 20


def test_slow_spout_does_not_keep_its_tuples_from_being_processed() -> None:
    """Each call takes longer than a round gives to the spouts."""
    order: list[str] = []

    class Slow(Upto):
        def next_tuple(self) -> None:
            order.append("call")
            threading.Event().wait(0.03)
            super().next_tuple()

    def call(bolt: Do, tup: Any) -> None:
        order.append("tuple")
        bolt.ack(tup)

    chain(Do(call), spout=Slow(3)).run_local(fake_acker())
    assert order[:6] == ["call", "tuple"] * 3


def test_stop_drains_the_run() -> None:
    stop = threading.Event()

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 50:
            stop.set()
        bolt.ack(tup)

    spout = Endless()
    result = chain(Do(call), spout=spout, config={"topology.max.spout.pending": 10}).run_local(fake_acker(), stop=stop)
    assert result.acked >= 50 and result.unfinished == 0
    assert result.metrics["spout"].emitted.total() == result.acked


def test_run_with_stop_waits_for_it_while_the_spouts_have_nothing() -> None:
    stop, calls = threading.Event(), []

    class Slow(Upto):
        def next_tuple(self) -> None:
            calls.append(1)
            if len(calls) == 20:
                stop.set()

    assert chain(sink(), spout=Slow()).run_local(fake_acker(), stop=stop).acked == 0
    assert len(calls) == 20


def test_first_ctrl_c_drains_and_returns_the_result() -> None:
    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 30:
            signal.raise_signal(signal.SIGINT)
        bolt.ack(tup)

    before = signal.getsignal(signal.SIGINT)
    result = chain(Do(call), spout=Endless(), config={"topology.max.spout.pending": 7}).run_local(fake_acker())
    assert result.acked >= 30 and result.unfinished == 0 and signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("whole_rounds")
def test_second_ctrl_c_ends_at_once() -> None:
    """Both come in one round: behind the first, no spout emits."""

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v in (1, 2):
            signal.raise_signal(signal.SIGINT)

    acker = fake_acker()
    with pytest.raises(KeyboardInterrupt):
        chain(Do(call), spout=Endless(), config={"topology.max.spout.pending": 7}).run_local(acker)
    assert acker.pending() == 0  # the roots of what was pending failed


def test_drain_processes_what_batching_bolts_hold() -> None:
    class Batches(BatchingBolt):
        outputs = ["n"]
        batch_size = 1000

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.emit([len(tups)])

    for stop in (None, threading.Event()):
        if stop is not None:
            stop.set()
        result = chain(Batches, sink(), spout=Upto(10)).run_local(fake_acker(), stop=stop)
        assert result.unfinished == 0 and result.timed_out == 0
        assert result.acked == (10 if stop is None else 0)


def test_ticks_and_timeouts_come_in_real_time() -> None:
    """Each has a run of its own: on a busy machine a tick may come later than so short a timeout."""
    acker = fake_acker(message_timeout_secs=60)
    ticks = {"topology.message.timeout.secs": 60, "topology.tick.tuple.freq.secs": 0.05}
    result = chain(until_tick(), spout=Upto(1), config=ticks).run_local(acker)
    assert (result.acked, result.timed_out) == (1, 0)
    result = chain(holding(), spout=Upto(1), config=QUICK).run_local(acker)
    assert (result.acked, result.timed_out) == (0, 1)
    assert [(tree.tup_id, tree.reason) for tree in result.failed_trees] == [("m1", "timeout")]


def test_exception_in_a_spout_ends_the_run_and_frees_its_roots() -> None:
    class Broken(Upto):
        def next_tuple(self) -> None:
            super().next_tuple()
            if self.n == 5:
                raise ZeroDivisionError("broken")

    closed = []

    class Closes(Do):
        def close(self) -> None:
            closed.append(self)

    acker = fake_acker()
    with pytest.raises(ZeroDivisionError):
        chain(Closes(lambda bolt, tup: None), spout=Broken(9)).run_local(acker)
    assert acker.pending() == 0 and len(closed) == 1
    assert chain(sink(), spout=Upto(1)).run_local(acker).acked == 1  # the lane is free


def test_without_ackers_nothing_is_sent() -> None:
    acker = fake_acker()
    result = chain(passing(), sink(), spout=Upto(100), config={"topology.acker.executors": 0}).run_local(acker)
    assert result.acked == 100 and acker.stats().inits == 0


class Flaky(ReliableSpout):
    outputs = ["v"]
    retry = RetryPolicy(max_attempts=2, first_delay_secs=0.01)
    n = 0

    def next_tuple(self) -> None:
        if self.n < 20:
            self.n += 1
            self.emit([self.n], tup_id=self.n)


def test_reliable_spout_replays_and_dead_letters(url: str) -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.fail(tup, "odd") if tup.values.v % 2 else bolt.ack(tup)

    with Acker.connect(url, app="orders") as acker:
        result = chain(Do(call), spout=Flaky()).run_local(acker)
        assert (result.acked, result.failed, result.dead_letters, result.unfinished) == (10, 20, 10, 0)
        assert sorted(letter.message_id for letter in acker.dead_letters.read()) == list(range(1, 21, 2))


def test_requested_replay_goes_through_the_spout_of_a_running_service() -> None:
    acker, stop = fake_acker(), threading.Event()

    def fails(bolt: Do, tup: Any) -> None:
        bolt.fail(tup)

    class One(Flaky):
        retry = RetryPolicy(max_attempts=1)
        n = 19

    chain(Do(fails), spout=One()).run_local(acker)
    assert acker.dead_letters.replay() == 1

    class Idle(One):
        n = 20

        def ack(self, tup_id: Any) -> None:
            stop.set()

    result = chain(sink(), spout=Idle()).run_local(acker, stop=stop)
    assert result.acked == 1 and acker.dead_letters.count() == 0


def test_requested_replay_without_ackers_is_finished_and_the_run_ends() -> None:
    acker = fake_acker()

    class One(Flaky):
        retry = RetryPolicy(max_attempts=1)
        n = 19

    chain(Do(lambda bolt, tup: bolt.fail(tup)), spout=One()).run_local(acker)
    assert acker.dead_letters.replay() == 1

    class Idle(One):
        n = 20

    result = chain(sink(), spout=Idle(), config={"topology.acker.executors": 0}).run_local(acker)
    assert (result.acked, result.unfinished, acker.dead_letters.count()) == (1, 0, 0)


def test_message_that_a_spout_emits_in_close_is_unfinished() -> None:
    class Late(Upto):
        def close(self) -> None:
            self.emit([0], tup_id="late")

    result = chain(sink(), spout=Late(3)).run_local(fake_acker())
    assert (result.acked, result.unfinished) == (3, 1)


def test_two_runs_on_one_lane_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run's lease outlasts any pause of this process; the other one waits half a second for its end."""
    monkeypatch.setattr("acker_redis.store.lane_leases.LEASE_SECS", 600.0)
    monkeypatch.setattr("acker_redis.store.lane_leases.RENEW_SECS", 600.0)
    acker, stop = fake_acker(), threading.Event()
    first = threading.Thread(target=lambda: chain(sink(), spout=Upto(0)).run_local(acker, stop=stop))
    first.start()
    try:
        other = Acker(app_of(acker).client, acker.config)
        wait_until(
            lambda: bool(other._app.client.pipeline([("EXISTS", "acker:{test}:lane:0")])[0]),
            "the first run holds its lane",
        )
        monkeypatch.setattr("acker_redis.store.lane_leases.LEASE_SECS", 0.5)
        monkeypatch.setattr("acker_redis.store.lane_leases.RENEW_SECS", 0.1)
        with pytest.raises(BadConfigError, match=r"in use by another run.*give each topology an app of its own"):
            chain(sink(), spout=Upto(1)).run_local(other)
    finally:
        stop.set()
        first.join()


def test_paused_app_emits_nothing_until_it_is_resumed() -> None:
    acker = fake_acker()
    acker.admin.pause(reason="maintenance")

    calls: list[str] = []

    class Resumes(Upto):
        def initialize(self, conf: Any, context: Any) -> None:
            self.timer = threading.Timer(0.2, acker.admin.resume)
            self.timer.start()

        def activate(self) -> None:
            calls.append("activate")

        def deactivate(self) -> None:
            calls.append("deactivate")

        def next_tuple(self) -> None:
            assert acker.admin.paused() is None
            super().next_tuple()

        def close(self) -> None:
            self.timer.join()

    assert chain(sink(), spout=Resumes(3)).run_local(acker).acked == 3
    assert calls == ["activate", "deactivate"] * 2, "a pause is Storm's `deactivate`, and the end is one, too"


def test_timeout_longer_than_the_apps_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="longer than the app's"):
        chain(sink(), config={"topology.message.timeout.secs": 99}).run_local(fake_acker(message_timeout_secs=30))


# -- faults


def test_outage_keeps_updates_and_sends_them_again_exactly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the batches are applied, and their replies are lost."""
    acker = fake_acker()
    sends = 0
    original = app_of(acker).ledger.send

    def send(updates: Any, key: str | None) -> Any:
        nonlocal sends
        sends += 1
        if sends % 4 == 1:
            raise ConnectionLostError("away")
        result = original(updates, key)
        if sends % 4 == 2:
            raise ConnectionLostError("the reply was lost")
        return result

    monkeypatch.setattr(app_of(acker).ledger, "send", send)
    conf = {"topology.tick.tuple.freq.secs": 0.01, "topology.max.spout.pending": 50}
    with caplog.at_level(logging.INFO, "acker_redis.storm"):
        result = chain(passing(), until_tick(), spout=Upto(300), config=conf).run_local(acker)
    assert (result.acked, result.failed, result.timed_out) == (300, 0, 0)
    assert "server unavailable" in caplog.text and "server available again" in caplog.text
    assert acker.stats().acked == 300


def test_outage_while_letters_are_written_or_deleted_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    acker = fake_acker()
    calls = 0

    def flaky(original: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 2:
                raise ConnectionLostError("away")
            return original(*args)

        return call

    letters = acker.dead_letters
    monkeypatch.setattr(letters, "add", flaky(letters.add))
    monkeypatch.setattr(letters, "delete", flaky(letters.delete))

    class Once(Flaky):
        retry = RetryPolicy(max_attempts=1)

    fails = chain(Do(lambda bolt, tup: bolt.fail(tup)), spout=Once())
    assert fails.run_local(acker).dead_letters == 20 == letters.count()

    class Idle(Once):
        n = 20

    (letter,) = letters.read(1)
    assert letters.replay() == 20 == letters.replaying(letter.spout_id)
    result = chain(sink(), spout=Idle()).run_local(acker)
    assert result.acked == 20 and letters.count() == 0 and letters.replaying(letter.spout_id) == 0


def test_lost_ledger_is_recovered_once_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    acker, tries = fake_acker(), []
    original = acker.reopen

    def reopen() -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionLostError("away")
        return original()

    monkeypatch.setattr(acker, "reopen", reopen)

    def call(bolt: Do, tup: Any) -> None:
        app_of(acker).client.pipeline([("FLUSHALL",)])

    result = chain(Do(call), spout=Upto(1)).run_local(acker)
    assert (result.failed, len(tries)) == (1, 3) and result.failed_trees[0].reason == "lost"


def test_lost_ledger_fails_what_is_pending_and_the_run_goes_on() -> None:
    acker = fake_acker()
    calls = []

    class Replays(Upto):
        def fail(self, tup_id: Any, reason: str) -> None:
            calls.append((tup_id, reason))
            self.emit([0], tup_id=tup_id)

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 0:
            bolt.ack(tup)
        elif tup.values.v == 3:
            app_of(acker).client.pipeline([("FLUSHALL",)])

    result = chain(Do(call), spout=Replays(3)).run_local(acker)
    assert sorted(calls) == [("m1", "lost"), ("m2", "lost"), ("m3", "lost")]
    assert result.acked == 3 and result.unfinished == 0


def test_limit_on_pending_roots_holds_the_spout_back_and_the_run_goes_on() -> None:
    acker = fake_acker()
    acker.admin.set_limits(Limits(max_pending=10))
    result = chain(until_tick(), spout=Upto(60), config={"topology.tick.tuple.freq.secs": 0.01}).run_local(acker)
    assert result.acked == 60 and result.timed_out == 0


def test_component_names_of_any_length_and_number_are_allowed() -> None:
    """The ledger keeps 100 characters of a name, and 255 names."""
    acker = fake_acker()
    for number in range(254):
        acker.ack(number + 1, 1, component=f"c{number}")
    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(4))
    fails = Do(lambda bolt, tup: bolt.fail(tup, "no"))
    builder.set_bolt("x" * 200, fails).shuffle_grouping("spout")
    builder.set_bolt("y" * 200, fails).shuffle_grouping("spout")
    result = builder.create_topology().run_local(acker)
    assert result.failed == 4 and {tree.last_component for tree in result.failed_trees} <= {"x" * 200, "y" * 200}


def test_describe_has_the_counts_of_the_latest_run() -> None:
    drawings: list[str] = []

    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup)
        drawings.append(topology.describe())

    topology = chain(Do(call), spout=Upto(3))
    topology.run_local(fake_acker())
    assert "acked 3" in drawings[-1]


def test_service_renews_roots_longer_than_the_apps_timeout() -> None:
    """The ledger's clock runs: a root that nobody renewed would time out there."""
    acker, stop = fake_acker(message_timeout_secs=0.8, num_buckets=2), threading.Event()
    conf = {"topology.enable.message.timeouts": False, "topology.tick.tuple.freq.secs": 0.1}
    ticks = []

    def call(bolt: Do, tup: Any) -> None:
        if not tup.is_tick:
            bolt.held.append(tup)
            return
        acker.admin.rotate()
        ticks.append(1)
        if len(ticks) == 25:
            bolt.ack(bolt.held.pop())
            stop.set()

    result = chain(Do(call), spout=Upto(1), config={**conf, **QUICK}).run_local(acker, stop=stop)
    assert (result.acked, result.timed_out, result.failed) == (1, 0, 0)


@pytest.mark.usefixtures("whole_rounds")
def test_a_stopped_run_ends_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits again for a server that is known to be silent, and missed calls are not made up for.

    A round has ten messages. The last ten are emitted and processed, and the server never hears of them.
    """
    monkeypatch.setattr("acker_redis.storm.local.service._DRAIN_SECS", 2.0)
    stop, waits = threading.Event(), []

    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup)
        if tup.values.v == 100:
            server.kill()
            stop.set()

    with Server(find_program()) as server, Acker.connect(server.url, app="away", outage_timeout_secs=0.5) as acker:
        client = app_of(acker).client
        patiently = client._patiently

        def waiting(attempt: Any) -> Any:
            if stop.is_set() and threading.current_thread() is threading.main_thread():
                waits.append(1)
            return patiently(attempt)

        monkeypatch.setattr(client, "_patiently", waiting)
        conf = {"topology.message.timeout.secs": 0.2, "topology.max.spout.pending": 10}
        result = chain(Do(call), spout=Endless(), config=conf).run_local(acker, stop=stop)
    ended = result.acked + result.timed_out + result.unfinished
    assert ended == result.metrics["spout"].emitted.total() and 0 < result.acked <= ended - 10 and len(waits) <= 3


@pytest.mark.parametrize("presses", [0, 2])
def test_a_stop_ends_the_patience_of_a_call_that_waits_for_the_server(
    presses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is lost first, and the call would wait for it for ten minutes."""
    monkeypatch.setattr("acker_redis.storm.local.service._DRAIN_SECS", 0.5)
    stop, main = threading.Event(), threading.main_thread().ident

    def end(exc: Exception) -> bool:
        if passes(exc) and not ended and threading.current_thread() is threading.main_thread():
            ended.append(exc)
            for _ in range(presses):
                threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT)).start()
            if not presses:
                stop.set()
        return passes(exc)

    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup)
        if tup.values.v == 20:
            server.kill()

    ended: list[Exception] = []
    with Server(find_program()) as server, Acker.connect(server.url, app="away", outage_timeout_secs=600) as acker:
        monkeypatch.setattr("acker_redis.client.client.passes", end)
        topology = chain(Do(call), spout=Endless(), config={"topology.message.timeout.secs": 0.2})
        if presses:
            with pytest.raises(KeyboardInterrupt):
                topology.run_local(acker, stop=stop)
        else:
            assert topology.run_local(acker, stop=stop).acked >= 0
    assert len(ended) == 1


def test_run_goes_on_once_a_silent_server_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acker, answers = fake_acker(), iter([False, False])
    monkeypatch.setattr("acker_redis.storm.local.service._OUTAGE_PAUSE_SECS", 0.01)
    monkeypatch.setattr(app_of(acker).client, "answers", lambda: next(answers, True))
    send, lost = app_of(acker).ledger.send, iter([1])

    def sending(updates: Any, key: str | None) -> Any:
        if next(lost, None):
            raise ConnectionLostError("away")
        return send(updates, key)

    monkeypatch.setattr(app_of(acker).ledger, "send", sending)
    with caplog.at_level(logging.INFO, "acker_redis.storm"):
        assert chain(sink(), spout=Upto(10)).run_local(acker).acked == 10
    assert caplog.text.count("server unavailable") == caplog.text.count("server available again") == 1
    assert next(answers, None) is None


def test_a_failed_message_that_times_out_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    acker, spout_heard = fake_acker(), threading.Event()
    send = app_of(acker).ledger.send

    def sending(updates: Any, key: str | None) -> Any:
        if not spout_heard.is_set():
            raise ConnectionLostError("away")
        return send(updates, key)

    class Hears(Upto):
        def fail(self, tup_id: Any, reason: str) -> None:
            assert (tup_id, reason) == ("m1", "bad")
            spout_heard.set()

    monkeypatch.setattr(app_of(acker).ledger, "send", sending)
    result = chain(Do(lambda bolt, tup: bolt.fail(tup, "bad")), spout=Hears(1), config=QUICK).run_local(acker)
    assert spout_heard.is_set() and (result.failed, result.timed_out) == (1, 0)
    assert [tree.reason for tree in result.failed_trees] == ["bad"]


def test_result_has_the_event_log() -> None:
    result = chain(sink(), spout=Upto(2), config={"topology.debug": True}).run_local(fake_acker())
    assert [(event.component, event.tup_id) for event in result.events] == [("spout", "m1"), ("spout", "m2")]
    assert chain(sink(), spout=Upto(2)).run_local(fake_acker()).events == []


@pytest.mark.parametrize("stop", [True, 0, lambda: True])
def test_stop_that_is_no_event_is_refused_before_anything_starts(stop: Any) -> None:
    calls: list[Any] = []
    spout = type("Seen", (Upto,), {"initialize": lambda self, conf, context: calls.append("initialize")})
    with fake_acker() as acker, pytest.raises(BadConfigError, match="is not an event"):
        chain(sink(), spout=spout(1)).run_local(acker, stop=stop)
    assert calls == []


def test_describe_keeps_the_counts_after_the_run() -> None:
    topology = chain(sink(), spout=Upto(3))
    topology.run_local(fake_acker())
    gc.collect()
    assert "acked 3" in topology.describe()
