"""Spouts: life cycle, the bound on pending messages, replays of reliable ones."""

import threading
from typing import Any

import pytest

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm import FeederSpout, ReliableSpout, RetryPolicy, RowFailedError, Spout, Stream, TopologyBuilder
from acker_redis.testing import fake_acker
from tests.storm.parts import SEEDS, Do, Upto, chain, holding, sink

FAILS = Do(lambda bolt, tup: bolt.fail(tup, "no"))


def test_calls_come_in_storms_order() -> None:
    with chain(sink(), spout=Upto(1)).local() as run:
        (spout,) = run.tasks("spout")
        run.settle()
        run.deactivate()
        run.activate()
    assert spout.calls == ["initialize", "activate", ("ack", "m1"), "deactivate", "activate", "deactivate", "close"]


def test_inactive_start_prepares_nothing_and_ticks_begin_at_activation() -> None:
    seen = []

    def call(bolt: Do, tup: Any) -> None:
        seen.append(bolt.is_tick(tup))
        bolt.ack(tup)

    conf = {"topology.tick.tuple.freq.secs": 1}
    with chain(Do(call), spout=Upto(1)).local(conf=conf, active=False) as run:
        run.advance(5)
        assert run.tasks("spout")[0].calls == [] and seen == []
        run.activate()
        run.advance(1)
        assert run.acked("spout") == ["m1"] and seen == [False, True]


def test_deactivated_spout_emits_nothing_and_hears_outcomes() -> None:
    last = holding()
    with chain(
        last, spout=Upto(4), config={"topology.max.spout.pending": 3, "topology.message.timeout.secs": 3}
    ).local() as run:
        run.settle()
        run.deactivate()
        bolt = run.tasks("a")[0]
        bolt.ack(bolt.held[0])
        bolt.fail(bolt.held[1], "no")
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == (["m1"], [("m2", "no")])
        run.advance(6)
        assert run.failed("spout") == [("m2", "no"), ("m3", "timeout")]
        assert len(run.emitted("spout")) == 3
        run.activate()
        run.settle()
        assert len(run.emitted("spout")) == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_bound_is_checked_before_next_tuple_only(seed: int) -> None:
    class Burst(Upto):
        def next_tuple(self) -> None:
            for _ in range(3):
                super().next_tuple()

    with chain(holding(), spout=Burst(9), config={"topology.max.spout.pending": 1}).local(seed=seed) as run:
        run.settle()
        assert run.pending("spout") == ["m1", "m2", "m3"]
        bolt = run.tasks("a")[0]
        for tup in bolt.held[:2]:
            bolt.ack(tup)
        run.settle()
        assert run.pending("spout") == ["m3"]
        bolt.ack(bolt.held[2])
        run.settle()
        assert run.pending("spout") == ["m4", "m5", "m6"]


def test_bound_belongs_to_an_executor_and_is_exceeded_by_its_tasks() -> None:
    """As in a recording of Storm: 3 pending of 2, because the bound is checked once per round over the tasks."""
    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(3), tasks=2)
    builder.set_bolt("a", holding()).shuffle_grouping("spout")
    with builder.create_topology(config={"topology.max.spout.pending": 1}).local() as run:
        run.settle()
        assert run.pending("spout") == ["m1", "m1"]
        run.tasks("a")[0].ack(run.tasks("a")[0].held[0])
        run.settle()
        assert len(run.pending("spout")) == 3


def test_emits_in_fail_and_messages_without_id_are_not_held_back() -> None:
    class Again(Upto):
        def fail(self, tup_id: Any, reason: str) -> None:
            for n in range(3):
                self.emit([n + 10], tup_id=n)
            self.emit([20])

    def call(bolt: Do, tup: Any) -> None:
        bolt.fail(tup) if tup.values.v == 1 else bolt.held.append(tup)

    with chain(Do(call), spout=Again(1), config={"topology.max.spout.pending": 1}).local() as run:
        run.settle()
        assert run.pending("spout") == [0, 1, 2] and len(run.emitted("spout")) == 5


@pytest.mark.parametrize("call", ["next_tuple", "ack", "fail", "initialize"])
def test_exception_in_a_spout_ends_the_run(call: str) -> None:
    class Broken(Upto):
        pass

    def raises(*args: Any) -> None:
        raise ZeroDivisionError("broken")

    setattr(Broken, call, raises)
    bolt = FAILS if call == "fail" else sink()
    with pytest.raises(ZeroDivisionError), chain(bolt, spout=Broken(1)).local() as run:
        run.settle()
    if call in ("ack", "fail"):
        assert run.pending("spout") == []


def test_fail_may_take_the_id_alone_or_the_reason_by_name() -> None:
    heard = []

    class Old(Upto):
        def fail(self, tup_id: Any) -> None:  # type: ignore[override]
            heard.append(tup_id)

    class ByName(Upto):
        def fail(self, tup_id: Any, *, reason: str) -> None:  # type: ignore[override]
            heard.append(reason)

    for spout in (Old(1), ByName(1)):
        with chain(FAILS, spout=spout).local() as run:
            run.settle()
    assert heard == ["m1", "no"]


def test_message_id_comes_back_as_the_same_object() -> None:
    ids = [1, "three", [4, "x"], {"k": 6}, object(), False, threading.Lock()]

    class Ids(Spout):
        outputs = ["v"]
        n = 0

        def next_tuple(self) -> None:
            if self.n < len(ids):
                self.n += 1
                self.emit([self.n], tup_id=ids[self.n - 1])

    with chain(sink(), spout=Ids()).local() as run:
        run.settle()
        assert {id(tup_id) for tup_id in run.acked("spout")} == {id(tup_id) for tup_id in ids}


def test_each_task_hears_of_its_own_messages() -> None:
    class Own(Upto):
        def next_tuple(self) -> None:
            if self.n < 3:
                self.n += 1
                self.emit([self.n], tup_id=(self.context.task_index, self.n))

    builder = TopologyBuilder()
    builder.set_spout("spout", Own(3), par=2)
    builder.set_bolt("a", sink()).shuffle_grouping("spout")
    with builder.create_topology().local() as run:
        run.settle()
        for index, spout in enumerate(run.tasks("spout")):
            assert sorted(call[1] for call in spout.calls[2:]) == [(index, n) for n in (1, 2, 3)]


# -- feeding


def test_fed_spout_emits_what_it_is_fed_in_place_of_its_own_messages() -> None:
    with chain(sink(), spout=Upto(3)).local() as run:
        run.feed("spout", [7], tup_id="fed")
        run.settle()
        assert run.emitted("spout") == [(7,)] and run.acked("spout") == ["fed"]


def test_feeder_spout_may_have_several_streams() -> None:
    with chain(sink(), spout=FeederSpout([Stream(["v"]), Stream(["w"], "more")])).local() as run:
        run.feed("spout", [1], tup_id=1, stream="more")
        run.feed("spout", [2], stream=None)
        run.settle()
        assert run.emitted("spout", "more") == [(1,)] and run.emitted("spout") == [(2,)]
        assert run.acked("spout") == [1]


def test_feeding_wrong_values_raises_at_once() -> None:
    with chain(sink()).local() as run:
        with pytest.raises(BadTupleError, match="has 1 field "):
            run.feed("spout", [1, 2])
        with pytest.raises(BadTupleError, match="does not declare"):
            run.feed("spout", [1], stream="other")


# -- reliable spouts


class Reliable(ReliableSpout):
    outputs = ["v"]
    retry = RetryPolicy(max_attempts=3, first_delay_secs=10, multiplier=2, jitter=0)

    def initialize(self, conf: Any, context: Any) -> None:
        self.heard: list[Any] = []

    def next_tuple(self) -> None: ...

    def fail(self, tup_id: Any, reason: str) -> None:
        self.heard.append((tup_id, reason))


def test_reliable_spout_replays_under_its_policy() -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.held.append(tup)
        bolt.fail(tup, "no") if len(bolt.held) < 3 else bolt.ack(tup)

    with chain(Do(call), spout=Reliable()).local() as run:
        run.feed("spout", [1], tup_id="m")
        run.advance(9)
        assert run.executed("a") == [(1,)] and run.pending("spout") == []
        run.advance(1)
        assert len(run.executed("a")) == 2
        run.advance(19)
        assert len(run.executed("a")) == 2
        run.advance(1)
        assert len(run.executed("a")) == 3 and run.acked("spout") == ["m"]
        assert run.failed("spout") == [("m", "no"), ("m", "no")] == run.tasks("spout")[0].heard


def test_reliable_spout_needs_ids() -> None:
    with chain(sink(), spout=Reliable()).local() as run, pytest.raises(BadTupleError, match="without tup_id"):
        run.feed("spout", [1])


def test_max_fails_gives_one_attempt_more() -> None:
    class Streamparse(Reliable):
        max_fails = 1
        retry = RetryPolicy(first_delay_secs=0)

    acker = fake_acker()
    with chain(FAILS, spout=Streamparse()).local(acker=acker) as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
        assert len(run.executed("a")) == 2
        (letter,) = acker.dead_letters.read()
        assert (letter.attempts, letter.reason, letter.detail, letter.last_component) == (2, "failed", "no", "a")


def test_retry_false_makes_a_dead_letter_of_a_reliable_spout_only() -> None:
    def call(bolt: Do, tup: Any) -> None:
        raise RowFailedError("poison", retry=False)

    for spout, letters in ((Reliable(), 1), (Upto(0), 0)):
        acker = fake_acker()
        with chain(Do(call), spout=spout).local(acker=acker) as run:
            run.feed("spout", [1], tup_id="m")
            run.settle()
            assert run.failed("spout") == [("m", "poison")]
            assert acker.dead_letters.count() == letters


def test_policy_by_reason_applies() -> None:
    class ByReason(Reliable):
        retry = RetryPolicy(by_reason={"ValueError": RetryPolicy(max_attempts=1)}, first_delay_secs=0)

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 1:
            raise ValueError("x")
        bolt.fail(tup) if len(run.executed("a")) < 4 else bolt.ack(tup)

    acker = fake_acker()
    with chain(Do(call), spout=ByReason()).local(acker=acker) as run:
        run.feed("spout", [1], tup_id="v")
        run.feed("spout", [2], tup_id="w")
        run.settle()
        assert run.acked("spout") == ["w"] and [letter.detail for letter in acker.dead_letters.read()] == [
            "ValueError: x"
        ]


@pytest.mark.parametrize("tup_id", [7, "text", ("a", 1), None.__class__, 2**70, b"\x00", {"k": [1, 2]}])
def test_dead_letter_keeps_an_id_of_any_type_and_a_replay_emits_it_again(tup_id: Any) -> None:
    class Once(Reliable):
        retry = RetryPolicy(max_attempts=1)

    works = [False]

    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup) if works else bolt.fail(tup)

    works.clear()
    topology = chain(Do(call), spout=Once())
    acker = fake_acker()
    with topology.local(acker=acker) as run:
        run.feed("spout", [1], tup_id=tup_id)
        run.settle()
        assert run.failed("spout") == [(tup_id, "failed")]
    (letter,) = acker.dead_letters.read()
    assert letter.replay == "payload" and (tup_id != 7 or letter.message_id == 7)
    works.append(True)
    with topology.local(acker=acker, seed=1) as run:
        assert acker.dead_letters.replay() == 1
        run.advance(2)
        assert run.acked("spout") == [tup_id] and run.emitted("spout") == [(1,)]
        assert acker.dead_letters.count() == 0 and acker.dead_letters.replaying(letter.spout_id) == 0


def test_replay_that_fails_again_becomes_a_new_letter() -> None:
    class Once(Reliable):
        retry = RetryPolicy(max_attempts=1)

    acker = fake_acker()
    topology = chain(FAILS, spout=Once())
    with topology.local(acker=acker) as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
        (first,) = acker.dead_letters.read()
        acker.dead_letters.replay()
        run.advance(2)
        (second,) = acker.dead_letters.read()
        assert second.entry_id != first.entry_id and acker.dead_letters.replaying(first.spout_id) == 0


def test_letter_of_a_topology_that_has_changed_is_not_replayed(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Reliable):
        retry = RetryPolicy(max_attempts=1)

    class Wider(Once):
        outputs = ["v", "w"]

    acker = fake_acker()
    with chain(FAILS, spout=Once()).local(acker=acker) as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
    acker.dead_letters.replay()
    with chain(sink(), spout=Wider()).local(acker=acker) as run:
        run.advance(2)
        assert run.emitted("spout") == [] and acker.dead_letters.count() == 1
    assert "dead letter not replayed" in caplog.text


def test_fail_of_one_parameter_may_call_its_base_class() -> None:
    """A program for pystorm has to, or nothing would be replayed."""

    class Ported(ReliableSpout):
        outputs = ["v"]
        max_fails = 1
        heard: list[Any] = []

        def next_tuple(self) -> None: ...

        def fail(self, tup_id: Any) -> None:  # type: ignore[override]
            super().fail(tup_id)  # type: ignore[call-arg]
            self.heard.append(tup_id)

    with chain(FAILS, spout=Ported()).local() as run:
        run.feed("spout", [1], tup_id="m1")
        run.advance(60)
        assert run.tasks("spout")[0].heard == ["m1", "m1"]


def test_feeder_of_a_text_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="outputs='line'"):
        chain(sink(), spout=FeederSpout("line"))


class Wordless:
    """Value whose text can't be made."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wordless)

    def __hash__(self) -> int:
        return 1


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("tup_id", "value"),
    [(Wordless(), 1), (1, Wordless()), (10**5000, 1), (1, LOOP)],
    ids=["id", "value", "long id", "value that contains itself"],
)
def test_dead_letter_keeps_values_that_have_no_text(tup_id: Any, value: Any) -> None:
    class Once(Reliable):
        retry = RetryPolicy(max_attempts=1)

    acker = fake_acker()
    with chain(FAILS, spout=Once()).local(acker=acker) as run:
        run.feed("spout", [value], tup_id=tup_id)
        run.settle()
        assert acker.dead_letters.replay() == 1
        run.advance(2)
        assert [failed_id for failed_id, _ in run.failed("spout")] == [tup_id, tup_id]
        assert acker.dead_letters.count() == 1
