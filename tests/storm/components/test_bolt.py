"""Bolts: acks and fails by the runner, exceptions, fresh copies."""

import logging
from typing import Any

import pytest

from acker_redis.storm import Bolt, RowFailedError, StatefulBolt
from tests.storm.parts import SEEDS, Do, Upto, chain, holding, passing, sink

T = {"topology.message.timeout.secs": 2}


class Basic(Bolt):
    """As in a recording of Storm: 2 emits and fails, 3 raises another exception."""

    outputs = ["v"]

    def process(self, tup: Any) -> None:
        if tup.values.v == 3:
            raise ValueError("three")
        self.emit([tup.values.v * 10])
        if tup.values.v == 2:
            raise RowFailedError("two")


@pytest.mark.parametrize("seed", SEEDS)
def test_tuples_are_acked_on_return_and_failed_by_exceptions(seed: int) -> None:
    with chain(Basic(), sink(), spout=Upto(4)).local(seed=seed) as run:
        run.settle()
        assert sorted(run.acked("spout")) == ["m1", "m4"]
        assert sorted(run.failed("spout")) == [("m2", "two"), ("m3", "ValueError: three")]
        assert run.executed("b") == [(10,), (20,), (40,)]  # what was emitted before the failure was sent
        assert run.metrics["a"].errors == 1


def test_bolt_without_auto_fail_leaves_the_tuple_pending() -> None:
    class Loose(Basic):
        auto_fail = False

    with chain(Loose(), sink(), spout=Upto(4), config=T).local() as run:
        run.settle()
        assert run.pending("spout") == ["m2", "m3"]
        run.advance(4)
        assert sorted(run.failed("spout")) == [("m2", "timeout"), ("m3", "timeout")]


def test_bolt_without_auto_ack_may_ack_itself_and_auto_ack_minds() -> None:
    class Own(Bolt):
        outputs = ["v"]

        def process(self, tup: Any) -> None:
            self.ack(tup)

    class Manual(Own):
        auto_ack = False

    for bolt in (Own(), Manual()):
        with chain(bolt, spout=Upto(1)).local() as run:
            run.settle()
            assert run.acked("spout") == ["m1"]


def test_auto_anchor_can_be_replaced_or_switched_off() -> None:
    class Anchors(Bolt):
        outputs = ["v"]

        def process(self, tup: Any) -> None:
            self.emit([1], anchors=[])
            self.emit([2], stream=None)

    class None_(Anchors):
        auto_anchor = False

    for bolt, tracked in ((Anchors(), {2}), (None_(), set())):
        with chain(bolt, holding(), spout=Upto(1)).local() as run:
            run.settle()
            assert {tup.values.v for tup in run.tasks("b")[0].held if tup.edges} == tracked


@pytest.mark.parametrize(("own", "failed"), [({}, 1), ({"auto_fail": False}, 0), ({"acks": True}, 0)])
def test_log_of_an_exception_counts_the_tuples_that_fail(
    own: dict[str, bool], failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(Bolt):
        acks = False

        def process(self, tup: Any) -> None:
            if self.acks:
                self.ack(tup)
            raise ValueError("no")

    with chain(type("Own", (Raises,), own), spout=Upto(1)).local() as run:
        run.settle()
        assert len(run.failed("spout")) == failed
    assert f"exception in a bolt task_id=1 failed={failed} error=ValueError('no')" in caplog.text


def test_exit_on_exception_goes_on_with_a_fresh_initialised_copy() -> None:
    class Fragile(StatefulBolt):
        outputs = ["v"]
        exit_on_exception = True

        def initialize(self, conf: Any, context: Any) -> None:
            self.seen: list[int] = []

        def process(self, tup: Any) -> None:
            self.seen.append(tup.values.v)
            self.state[tup.values.v] = True
            if tup.values.v == 2:
                raise ValueError("two")
            if tup.values.v == 3:
                raise RowFailedError("three")

    with chain(Fragile, spout=Upto(4)).local() as run:
        (first,) = run.tasks("a")
        run.settle()
        (second,) = run.tasks("a")
        assert first.seen == [1, 2] and second.seen == [3, 4]
        assert set(second.state) == {1, 2, 3, 4}
        assert run.acked("spout") and len(run.failed("spout")) == 2


def test_each_task_has_its_own_deep_copy_of_an_object() -> None:
    bolt = passing()
    with chain(bolt, spout=Upto(1)).local() as run:
        run.settle()
        assert run.tasks("a")[0] is not bolt and run.tasks("a")[0].held is not bolt.held


def test_tick_emits_and_acks_have_no_tree() -> None:
    def call(bolt: Do, tup: Any) -> None:
        if tup.is_tick:
            assert (tup.component, tup.stream, tup.task, tuple(tup.values)) == ("__system", "__tick", -1, (1,))
            bolt.emit([99], anchors=[tup])
        bolt.ack(tup)

    last = Do(lambda bolt, tup: bolt.fail(tup))
    with chain(Do(call), last, spout=Upto(1)).local(conf={"topology.tick.tuple.freq.secs": 1}) as run:
        run.settle()
        run.advance(2)
        assert run.emitted("a") == [(99,), (99,)] and run.acked("spout") == ["m1"] and run.failed("spout") == []


def test_process_tick_is_called_in_place_of_process() -> None:
    class Ticks(Bolt):
        outputs = ["v"]
        ticks = 0

        def process(self, tup: Any) -> None:
            assert not self.is_tick(tup)

        def process_tick(self, tup: Any) -> None:
            assert self.is_tick(tup)
            self.ticks += 1

    with chain(Ticks(), spout=Upto(1)).local(conf={"topology.tick.tuple.freq.secs": 2}) as run:
        run.advance(1.9)
        assert run.tasks("a")[0].ticks == 0
        run.advance(0.1)  # one period after initialize
        assert run.tasks("a")[0].ticks == 1
        run.deactivate()
        run.advance(4)
        assert run.tasks("a")[0].ticks == 3
        assert run.executed("a") == [(1,)]


def test_exception_in_a_tick_fails_nothing_and_the_task_goes_on() -> None:
    def call(bolt: Do, tup: Any) -> None:
        if tup.is_tick:
            raise ValueError("tick")
        bolt.ack(tup)

    with chain(Do(call), spout=Upto(1)).local(conf={"topology.tick.tuple.freq.secs": 1}) as run:
        run.advance(3)
        assert run.acked("spout") == ["m1"] and run.metrics["a"].errors == 3


def test_exception_without_text_is_named_by_its_type() -> None:
    class Bare(Bolt):
        def process(self, tup: Any) -> None:
            raise ValueError

    with chain(Bare(), spout=Upto(1)).local() as run:
        run.settle()
        assert run.failed("spout") == [("m1", "ValueError")]


def test_exception_that_has_no_text_fails_its_tuple_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # A formatter of PySpark's, which earlier tests may have left behind, can't write such an exception.
    monkeypatch.setattr(logging.getLogger("acker_redis.storm"), "propagate", False)

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def call(bolt: Do, tup: Any) -> None:
        if tup.values.v == 1:
            raise Silent
        bolt.ack(tup)

    with chain(Do(call), spout=Upto(2)).local() as run:
        run.settle()
        assert (run.acked("spout"), run.failed("spout")) == (["m2"], [("m1", "Silent")])
