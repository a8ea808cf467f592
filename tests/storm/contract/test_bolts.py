"""Bolts: anchors, acks, fails, flags, exceptions, held tuples."""

import copy
from typing import Any

import pytest

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, FeederSpout, RowFailedError, StatefulBolt, Stream, TopologyBuilder, Tuple
from tests.storm.contract.parts import Keeps, Pass, Sink, fed, rows


class Fails(Bolt):
    def process(self, tup: Tuple) -> None:
        raise RowFailedError("no good")


def test_row_failed_error_fails_with_its_text() -> None:
    with fed(Fails).local() as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
        assert run.failed("spout") == [("m", "no good")]


def test_any_other_exception_fails_with_type_and_text_and_the_task_goes_on() -> None:
    class Divides(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.emit([6 / tup.values.v])

    with fed(Divides).local() as run:
        [before] = run.tasks("b0")
        for value in (0, 2):
            run.feed("spout", [value], tup_id=value)
        run.settle()
        assert run.failed("spout") == [(0, "ZeroDivisionError: division by zero")]
        assert run.acked("spout") == [2]
        assert run.tasks("b0") == [before]


def test_exit_on_exception_continues_with_a_fresh_initialised_copy() -> None:
    instances: list[Any] = []

    class Exits(Bolt):
        outputs = ["n"]
        exit_on_exception = True

        def initialize(self, conf: Any, context: Any) -> None:
            self.n = 0
            instances.append(self)

        def process(self, tup: Tuple) -> None:
            self.n += 1
            if tup.values.v == "dies":
                raise ValueError("dies")
            self.emit([self.n])

    with fed(Exits).local() as run:
        for value in ("one", "two", "dies", "one"):
            run.feed("spout", [value], tup_id=value)
        run.settle()
        assert rows(run, "b0") == [(1,), (2,), (1,)]
        assert run.failed("spout") == [("dies", "ValueError: dies")]
        assert len(instances) == 2
        assert run.tasks("b0") == [instances[1]]
        assert instances[0] is not instances[1]


def test_row_failed_error_does_not_count_as_an_exit() -> None:
    instances: list[Any] = []

    class Exits(Bolt):
        exit_on_exception = True

        def initialize(self, conf: Any, context: Any) -> None:
            instances.append(self)

        def process(self, tup: Tuple) -> None:
            raise RowFailedError("declared")

    with fed(Exits).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert (run.failed("spout"), len(instances)) == ([(1, "declared")], 1)


@pytest.mark.parametrize("error", [RowFailedError("no"), ValueError("no")])
def test_without_auto_fail_the_tuple_stays_pending(error: Exception) -> None:
    class Raises(Bolt):
        auto_fail = False

        def process(self, tup: Tuple) -> None:
            raise error

    with fed(Raises).local({"topology.message.timeout.secs": 5}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert (run.failed("spout"), run.acked("spout"), run.pending("spout")) == ([], [], [1])
        run.advance(10)
        assert run.failed("spout") == [(1, "timeout")]


def test_a_call_that_fails_keeps_its_emits_and_its_state() -> None:
    class Half(StatefulBolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.state["n"] = self.state.get("n", 0) + 1
            self.emit([self.state["n"]])
            raise RowFailedError("half")

    with fed(Half, Sink).local() as run:
        for number in range(3):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        assert rows(run, "b0") == [(1,), (2,), (3,)]
        assert [tuple(row) for row in run.executed("b1")] == [(1,), (2,), (3,)]
        assert len(run.failed("spout")) == 3


def test_auto_anchor_false_leaves_the_child_outside_the_tree() -> None:
    class Free(Bolt):
        outputs = ["v"]
        auto_anchor = False

        def process(self, tup: Tuple) -> None:
            self.emit([1])

    with fed(Free, Fails).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == ([1], [])


def test_an_empty_list_of_anchors_overrides_auto_anchor() -> None:
    class Free(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.emit([1], anchors=[])

    with fed(Free, Fails).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == ([1], [])


@pytest.mark.parametrize("by_id", [False, True])
def test_ack_fail_and_anchors_take_a_tuple_or_its_id(by_id: bool) -> None:
    class ByHand(Bolt):
        outputs = ["v"]
        auto_ack = auto_anchor = auto_fail = False

        def process(self, tup: Tuple) -> None:
            given = tup.id if by_id else tup
            self.emit([tup.values.v], anchors=[given])
            self.ack(given)

    class Ends(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            given = tup.id if by_id else tup
            self.fail(given, "why") if tup.values.v == 1 else self.ack(given)

    with fed(ByHand, Ends).local() as run:
        for number in (1, 2):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == ([2], [(1, "why")])


def test_fail_without_a_reason_has_one() -> None:
    class Ends(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            self.fail(tup)

    with fed(Ends).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        [(tup_id, reason)] = run.failed("spout")
        assert tup_id == 1
        assert isinstance(reason, str)
        assert reason != "timeout"


def test_reset_timeout_takes_a_tuple_or_its_id() -> None:
    class Renews(Keeps):
        def process_tick(self, tup: Tuple) -> None:
            self.reset_timeout(self.held[0])
            self.reset_timeout(self.held[1].id)

    topology = fed(Renews, config={"topology.tick.tuple.freq.secs": 1})
    with topology.local({"topology.message.timeout.secs": 2}) as run:
        for number in range(3):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        run.advance(20)
        assert run.failed("spout") == [(2, "timeout")]
        assert sorted(run.pending("spout")) == [0, 1]


def test_a_double_ack_raises_and_leaves_the_tree() -> None:
    class Twice(Bolt):
        outputs = ["v"]
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            self.emit([1])
            self.ack(tup)
            with pytest.raises(AckerError):
                self.ack(tup)

    with fed(Twice, Keeps).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == []
        [keeper] = run.tasks("b1")
        keeper.ack(keeper.held[0])
        run.settle()
        assert run.acked("spout") == [1]


def test_a_double_ack_by_auto_ack_is_one() -> None:
    """A bolt that acks by hand although `auto_ack` is on acks twice. Its message is acked, or fails with the error's text."""

    class Twice(Bolt):
        def process(self, tup: Tuple) -> None:
            self.ack(tup)

    with fed(Twice).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]
        assert run.failed("spout") == []


def test_an_anchor_after_ack_raises_and_leaves_the_tree() -> None:
    class Late(Bolt):
        outputs = ["v"]
        auto_ack = auto_anchor = False

        def process(self, tup: Tuple) -> None:
            self.emit([1], anchors=[tup])
            self.ack(tup)
            with pytest.raises(AckerError):
                self.emit([2], anchors=[tup])

    with fed(Late, Keeps).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        [keeper] = run.tasks("b1")
        assert [tuple(tup.values) for tup in keeper.held] == [(1,)]
        keeper.ack(keeper.held[0])
        run.settle()
        assert run.acked("spout") == [1]


def test_an_anchor_after_ack_among_good_ones_leaves_their_trees() -> None:
    """The good anchor must not keep the edge of a tuple that was not sent."""

    class Mixed(Bolt):
        outputs = ["v"]
        auto_ack = auto_anchor = False

        def initialize(self, conf: Any, context: Any) -> None:
            self.first: Tuple | None = None

        def process(self, tup: Tuple) -> None:
            if self.first is None:
                self.first = tup
                self.ack(tup)
                return
            with pytest.raises(AckerError):
                self.emit([1], anchors=[tup, self.first])
            self.ack(tup)

    with fed(Mixed, Keeps).local() as run:
        for number in range(2):
            run.feed("spout", [number], tup_id=number)
        run.settle()
        assert sorted(run.acked("spout")) == [0, 1]


def test_a_wrong_arity_leaves_the_tree() -> None:
    class Wide(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            with pytest.raises(AckerError):
                self.emit([1, 2])

    with fed(Wide, Sink).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]


@pytest.mark.parametrize("by_id", [False, True], ids=["by tuple", "by id"])
@pytest.mark.parametrize("calls", ["ack fail", "fail ack", "fail fail", "fail ack fail", "fail ack ack"])
def test_a_second_call_after_the_first_has_no_effect(calls: str, by_id: bool) -> None:
    first, *others = calls.split()

    class Calls(Bolt):
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            for call in (first, *others):
                getattr(self, call)(tup.id if by_id else tup)

    with fed(Calls).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(1000)
        assert (len(run.acked("spout")), len(run.failed("spout"))) == ((1, 0) if first == "ack" else (0, 1))
        assert run.metrics["b0"].errors == 0


def test_an_anchor_after_fail_is_allowed_as_in_storm() -> None:
    class Late(Bolt):
        outputs = ["v"]
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            self.fail(tup, "first")
            self.emit([1], anchors=[tup])

    with fed(Late, Sink).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.failed("spout") == [(1, "first")]
        assert [tuple(row) for row in run.executed("b1")] == [(1,)]


def test_an_unknown_tuple_is_refused() -> None:
    class Knows(Bolt):
        outputs = ["v"]
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            with pytest.raises(AckerError, match="no-such-id"):
                self.ack("no-such-id")
            with pytest.raises(AckerError, match="no-such-id"):
                self.emit([1], anchors=["no-such-id"])
            self.ack(tup)

    with fed(Knows, Sink).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]
        assert rows(run, "b0") == []


def test_emit_returns_task_ids_only_if_asked() -> None:
    found: list[Any] = []

    class Emits(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            found.append(self.emit([1]))
            found.append(self.emit([1], need_task_ids=True))

    with fed(Emits, Sink).local() as run:
        run.feed("spout", [1])
        run.settle()
        assert found == [None, [run.tasks("b1")[0].task_id]]


def test_a_direct_emit_that_nobody_hears_is_dropped_and_acked() -> None:
    class Directs(Bolt):
        outputs = [Stream(fields=["v"]), Stream(fields=["v"], name="direct", direct=True)]

        def process(self, tup: Tuple) -> None:
            self.emit([1], stream="direct", direct_task=self.task_id)

    with fed(Directs).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]


def test_a_direct_emit_to_a_regular_grouping_leaves_the_tree() -> None:
    class Directs(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            with pytest.raises(AckerError):
                self.emit([1], direct_task=self.task_id)

    with fed(Directs, Sink).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]


def test_a_fresh_copy_forgets_what_it_held_and_its_tuples_time_out() -> None:
    class Forgets(Keeps):
        exit_on_exception = True

        def process(self, tup: Tuple) -> None:
            super().process(tup)
            if tup.values.v == "dies":
                raise ValueError("dies")

    with fed(Forgets).local({"topology.message.timeout.secs": 5}) as run:
        for value in ("held", "dies"):
            run.feed("spout", [value], tup_id=value)
        run.settle()
        assert run.tasks("b0")[0].held == []
        assert run.failed("spout") == [("dies", "ValueError: dies")]
        run.advance(10)
        assert run.failed("spout")[1:] == [("held", "timeout")]


def test_held_tuples_of_state_outlive_a_fresh_copy() -> None:
    class Holds(StatefulBolt):
        auto_ack = False
        exit_on_exception = True

        def process(self, tup: Tuple) -> None:
            held = self.state.setdefault("held", [])
            if tup.values.v == "dies":
                raise ValueError("dies")
            held.append(tup)
            if tup.values.v == "end":
                for one in held:
                    self.ack(one)

    with fed(Holds).local() as run:
        for value in ("held", "dies", "end"):
            run.feed("spout", [value], tup_id=value)
        run.settle()
        assert sorted(run.acked("spout")) == ["end", "held"]


def test_each_task_has_a_state_of_its_own() -> None:
    class Counts(StatefulBolt):
        outputs = ["word", "n"]

        def process(self, tup: Tuple) -> None:
            self.state[tup.values.v] = n = self.state.get(tup.values.v, 0) + 1
            self.emit([tup.values.v, n])

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    builder.set_bolt("count", Counts, par=3).all_grouping("spout")
    with builder.create_topology().local() as run:
        for word in ("a", "b", "a"):
            run.feed("spout", [word])
        run.settle()
        assert sorted(rows(run, "count")) == [("a", 1)] * 3 + [("a", 2)] * 3 + [("b", 1)] * 3


def test_state_is_a_mapping() -> None:
    class Uses(StatefulBolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.state["a"] = 1
            self.state["b"] = [2]
            self.state["b"].append(3)
            del self.state["a"]
            assert "a" not in self.state
            assert (len(self.state), list(self.state), dict(self.state)) == (1, ["b"], {"b": [2, 3]})
            assert self.state.pop("b") == [2, 3]
            self.emit([len(self.state)])

    with fed(Uses).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.failed("spout") == []
        assert rows(run, "b0") == [(0,)]


def test_an_emit_in_a_tick_is_anchored_to_no_root() -> None:
    class Ticks(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            pass

        def process_tick(self, tup: Tuple) -> None:
            assert self.is_tick(tup)
            self.emit(["tick"])

    with fed(Ticks, Fails, config={"topology.tick.tuple.freq.secs": 1}).local() as run:
        run.settle()
        run.advance(3)
        assert rows(run, "b0") == [("tick",)] * 3
        assert (run.acked("spout"), run.failed("spout")) == ([], [])


def test_an_exception_in_a_tick_does_not_end_the_task() -> None:
    class Ticks(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.emit([tup.values.v])

        def process_tick(self, tup: Tuple) -> None:
            raise ValueError("tick")

    with fed(Ticks, config={"topology.tick.tuple.freq.secs": 1}).local() as run:
        run.settle()
        run.advance(2)
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert run.acked("spout") == [1]


def test_a_bolt_may_settle_outside_of_a_call() -> None:
    with fed(Pass, Keeps).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        [keeper] = run.tasks("b1")
        keeper.fail(keeper.held[0], "from outside")
        run.settle()
        assert run.failed("spout") == [(1, "from outside")]


def test_a_late_ack_after_a_timeout_has_no_effect() -> None:
    with fed(Keeps).local({"topology.message.timeout.secs": 2}) as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(4)
        [keeper] = run.tasks("b0")
        keeper.ack(keeper.held[0])
        run.settle()
        run.advance(100)
        assert (run.acked("spout"), run.failed("spout")) == ([], [(1, "timeout")])


@pytest.mark.parametrize("call", ["emit", "ack", "fail", "reset_timeout"])
def test_copy_of_a_tuple_is_refused_and_fails_its_message(call: str) -> None:
    """A message would be acked without what is derived from the copy."""

    class Copies(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            of_tuple = copy.copy(tup)
            if call == "emit":
                self.emit([1], anchors=[of_tuple])
            else:
                getattr(self, call)(of_tuple)

    with fed(Copies).local() as run:
        run.feed("spout", [1], tup_id="m")
        run.settle()
        [(message, reason)] = run.failed("spout")
        assert message == "m"
        assert "a copy of the tuple" in reason
        assert run.acked("spout") == []
