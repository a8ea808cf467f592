"""Reliable spouts: replays, and dead letters of messages that are given up."""

from typing import Any

import pytest

from acker_redis import RetryPolicy
from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, ReliableSpout, RowFailedError, Spout, TopologyBuilder, Tuple
from acker_redis.testing import fake_acker
from tests.storm.contract.parts import Keeps

AT_ONCE = RetryPolicy(max_attempts=3, first_delay_secs=1, multiplier=1, jitter=0)


class Numbers(ReliableSpout):
    outputs = ["v"]
    retry = AT_ONCE
    values: tuple[Any, ...] = (1, 2, 3)

    def initialize(self, conf: Any, context: Any) -> None:
        self.left = list(self.values)
        self.heard: list[Any] = []

    def next_tuple(self) -> None:
        if self.left:
            value = self.left.pop(0)
            self.emit([value], tup_id=["id", value])

    def ack(self, tup_id: Any) -> None:
        self.heard.append(("ack", tup_id))

    def fail(self, tup_id: Any, reason: str) -> None:
        self.heard.append((reason, tup_id))


class FailsTwo(Bolt):
    """Fails the value 2 so many times."""

    times = 99
    failed = 0

    def process(self, tup: Tuple) -> None:
        if tup.values.v == 2 and self.failed < self.times:
            self.failed += 1
            raise RowFailedError("two")


def line(spout: Any, bolt: Any) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    return builder.create_topology()


def letters(acker: Any) -> list[Any]:
    return list(acker.dead_letters.read())


def test_an_emit_without_id_is_refused() -> None:
    class Anonymous(Numbers):
        def next_tuple(self) -> None:
            if self.left:
                self.left = []
                with pytest.raises(AckerError, match="tup_id"):
                    self.emit([1])

    with line(Anonymous, FailsTwo).local() as run:
        run.settle()
        assert run.executed("bolt") == []


def test_a_failed_message_is_replayed_with_its_id_and_values() -> None:
    once = type("Once", (FailsTwo,), {"times": 1})
    with line(Numbers, once).local() as run:
        run.settle()
        assert run.failed("spout") == [(["id", 2], "two")]
        run.advance(5)
        assert sorted(run.acked("spout")) == [["id", 1], ["id", 2], ["id", 3]]
        assert [row.v for row in run.executed("bolt")].count(2) == 2


def test_a_message_that_is_given_up_is_a_dead_letter_and_no_ack() -> None:
    with fake_acker() as acker, line(Numbers, FailsTwo).local(acker=acker) as run:
        run.settle()
        run.advance(30)
        assert [row.v for row in run.executed("bolt")].count(2) == 3
        assert sorted(run.acked("spout")) == [["id", 1], ["id", 3]]
        assert run.pending("spout") == []
        [letter] = letters(acker)
        assert (letter.reason, letter.detail, letter.last_component) == ("failed", "two", "bolt")


@pytest.mark.parametrize("max_fails", [0, 1, 3])
def test_max_fails_is_one_attempt_less_than_max_attempts(max_fails: int) -> None:
    spout = type("Some", (Numbers,), {"max_fails": max_fails})
    with fake_acker() as acker, line(spout, FailsTwo).local(acker=acker) as run:
        run.settle()
        run.advance(60)
        assert [row.v for row in run.executed("bolt")].count(2) == max_fails + 1
        assert len(letters(acker)) == 1


def test_retry_false_is_a_dead_letter_at_once() -> None:
    class Hopeless(Bolt):
        def process(self, tup: Tuple) -> None:
            raise RowFailedError("hopeless", retry=False)

    spout = type("One", (Numbers,), {"values": (1,)})
    with fake_acker() as acker, line(spout, Hopeless).local(acker=acker) as run:
        run.settle()
        run.advance(60)
        assert len(run.executed("bolt")) == 1
        assert len(letters(acker)) == 1


def test_under_a_plain_spout_retry_false_is_a_fail_and_no_dead_letter() -> None:
    class Hopeless(Bolt):
        def process(self, tup: Tuple) -> None:
            raise RowFailedError("hopeless", retry=False)

    class Plain(Spout):
        outputs = ["v"]
        left = 1

        def next_tuple(self) -> None:
            if self.left:
                self.left = 0
                self.emit([1], tup_id=1)

    with fake_acker() as acker, line(Plain, Hopeless).local(acker=acker) as run:
        run.settle()
        run.advance(60)
        assert run.failed("spout") == [(1, "hopeless")]
        assert letters(acker) == []


def test_a_timeout_is_an_attempt() -> None:
    spout = type("One", (Numbers,), {"values": (1,)})
    with fake_acker() as acker, line(spout, Keeps).local({"topology.message.timeout.secs": 5}, acker=acker) as run:
        run.settle()
        run.advance(120)
        assert len(run.executed("bolt")) == 3
        assert {reason for _, reason in run.failed("spout")} == {"timeout"}
        [letter] = letters(acker)
        assert letter.reason == "timeout"
        assert run.pending("spout") == []


def test_late_acks_of_earlier_attempts_do_not_count_for_the_replay() -> None:
    spout = type("One", (Numbers,), {"values": (1,)})
    with line(spout, Keeps).local({"topology.message.timeout.secs": 5}) as run:
        run.settle()
        run.advance(12)
        [keeper] = run.tasks("bolt")
        assert len(keeper.held) == 2
        keeper.ack(keeper.held[0])
        run.settle()
        assert run.acked("spout") == []
        keeper.ack(keeper.held[1])
        run.settle()
        assert run.acked("spout") == [["id", 1]]


@pytest.mark.parametrize("tup_id", [0, "", ("a", 1), {"k": [1]}, b"\xff\x00", 2**80, frozenset({1})])
def test_dead_letters_keep_ids_of_any_type(tup_id: Any) -> None:
    """A replay has to hand the spout the id that it emitted."""

    class One(Numbers):
        def next_tuple(self) -> None:
            if self.left:
                self.left = []
                self.emit([2], tup_id=tup_id)

    thrice = type("Thrice", (FailsTwo,), {"times": 3})
    with fake_acker() as acker, line(One, thrice).local(acker=acker) as run:
        run.settle()
        run.advance(60)
        assert len(letters(acker)) == 1
        acker.dead_letters.replay()
        run.advance(60)
        assert run.acked("spout") == [tup_id]
        assert type(run.acked("spout")[0]) is type(tup_id)
        assert letters(acker) == []


def test_a_letter_of_a_message_that_cant_be_kept_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Opaque(Numbers):
        def next_tuple(self) -> None:
            if self.left:
                self.left = []
                self.emit([lambda: 2], tup_id=9)

    class Fails(Bolt):
        def process(self, tup: Tuple) -> None:
            raise RowFailedError("no", retry=False)

    with fake_acker() as acker, line(Opaque, Fails).local(acker=acker) as run:
        run.settle()
        [letter] = letters(acker)
        assert letter.replay is None and b"values" not in letter.payload
    assert "dead letter without its message, so no replay spout='spout' tup_id=9" in caplog.text
    assert "can't be pickled" in caplog.text


def test_a_letter_that_no_spout_can_emit_stays_and_asks_for_another_request(caplog: pytest.LogCaptureFixture) -> None:
    spout = type("One", (Numbers,), {"values": (2,)})
    with fake_acker() as acker:
        with line(spout, FailsTwo).local(acker=acker) as run:
            run.settle()
            run.advance(60)
        acker.dead_letters.replay()
        builder = TopologyBuilder()
        builder.set_spout("another", type("None", (Numbers,), {"values": ()}))
        with builder.create_topology().local(acker=acker) as run:
            run.settle()
            run.advance(60)
        assert len(letters(acker)) == 1
    assert "request it again once one can" in caplog.text and "spout='spout'" in caplog.text


def test_a_new_run_replays_the_letters_of_an_old_one() -> None:
    """Their ids are of any type there, too."""
    spout = type("One", (Numbers,), {"values": (2,)})
    with fake_acker() as acker:
        with line(spout, FailsTwo).local(acker=acker) as run:
            run.settle()
            run.advance(60)
            assert len(letters(acker)) == 1
        empty = type("None", (Numbers,), {"values": ()})
        acker.dead_letters.replay()
        with line(empty, type("Never", (FailsTwo,), {"times": 0})).local(acker=acker) as run:
            run.settle()
            run.advance(60)
            assert run.acked("spout") == [["id", 2]]
        assert letters(acker) == []


def test_a_dead_letter_is_replayed_through_the_spout() -> None:
    spout = type("One", (Numbers,), {"values": (2,)})
    times = type("Thrice", (FailsTwo,), {"times": 3})
    with fake_acker() as acker, line(spout, times).local(acker=acker) as run:
        run.settle()
        run.advance(60)
        assert len(letters(acker)) == 1
        assert acker.dead_letters.replay() == 1
        run.settle()
        run.advance(120)
        assert run.acked("spout") == [["id", 2]]
        assert letters(acker) == []


def test_the_bound_counts_messages_in_flight_and_replays_are_not_lost() -> None:
    spout = type("Many", (Numbers,), {"values": tuple(range(20)), "retry": AT_ONCE})
    with fake_acker() as acker, line(spout, FailsTwo).local({"topology.max.spout.pending": 1}, acker=acker) as run:
        run.settle()
        run.advance(120)
        done = [tup_id[1] for tup_id in run.acked("spout")]
        assert sorted(done) == [n for n in range(20) if n != 2]
        assert len(letters(acker)) == 1


def test_fail_is_called_for_each_failed_attempt() -> None:
    spout = type("One", (Numbers,), {"values": (2,)})
    with line(spout, FailsTwo).local() as run:
        run.settle()
        run.advance(60)
        [task] = run.tasks("spout")
        assert task.heard == [("two", ["id", 2])] * 3
