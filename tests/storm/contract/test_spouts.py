"""Spouts: life cycle, emits, ids, outcomes."""

from collections.abc import Sequence
from typing import Any

import pytest

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, RowFailedError, Spout, Stream, TopologyBuilder, Tuple
from tests.storm.contract.parts import Keeps, Sink, rows


class Once(Spout):
    """Calls `once` in its first `next_tuple`, and does nothing afterwards."""

    outputs: Sequence[str] | Sequence[Stream] = ["v"]
    begun = False

    def next_tuple(self) -> None:
        if not self.begun:
            self.begun = True
            self.once()

    def once(self) -> None:
        raise NotImplementedError


class Fails(Bolt):
    def process(self, tup: Tuple) -> None:
        raise RowFailedError("no good")


def line(spout: type[Spout], *bolts: type[Bolt]) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt).shuffle_grouping("spout")
    return builder.create_topology()


def test_emit_returns_task_ids_only_if_asked() -> None:
    found: list[Any] = []

    class Emits(Once):
        def once(self) -> None:
            found.append(self.emit([1]))
            found.append(self.emit([2], tup_id=2, need_task_ids=True))

    with line(Emits, Sink).local() as run:
        run.settle()
        [task] = run.tasks("b0")
        assert found == [None, [task.task_id]]


def test_stream_none_means_the_default() -> None:
    class Emits(Once):
        def once(self) -> None:
            self.emit([1], tup_id="m", stream=None)

    with line(Emits, Sink).local() as run:
        run.settle()
        assert rows(run, "spout") == [(1,)]
        assert run.acked("spout") == ["m"]


def test_fail_with_one_argument_is_called_with_one() -> None:
    calls: list[Any] = []

    class OneArgument(Once):
        def once(self) -> None:
            self.emit([1], tup_id="m")

        def fail(self, tup_id: Any) -> None:  # type: ignore[override]
            calls.append(tup_id)

    with line(OneArgument, Fails).local() as run:
        run.settle()
    assert calls == ["m"]


def test_fail_with_two_arguments_has_the_reason() -> None:
    calls: list[Any] = []

    class TwoArguments(Once):
        def once(self) -> None:
            self.emit([1], tup_id="m")

        def fail(self, tup_id: Any, reason: str) -> None:
            calls.append((tup_id, reason))

    with line(TwoArguments, Fails).local() as run:
        run.settle()
        assert run.failed("spout") == calls == [("m", "no good")]


def test_fail_with_any_arguments_has_the_reason() -> None:
    calls: list[Any] = []

    class AnyArguments(Once):
        def once(self) -> None:
            self.emit([1], tup_id="m")

        def fail(self, *arguments: Any) -> None:
            calls.append(arguments)

    with line(AnyArguments, Fails).local() as run:
        run.settle()
    assert calls == [("m", "no good")]


@pytest.mark.parametrize("where", ["initialize", "activate", "next_tuple", "ack", "fail", "deactivate"])
def test_exception_in_a_method_of_a_spout_ends_the_run(where: str) -> None:
    class Dies(Once):
        def initialize(self, conf: Any, context: Any) -> None:
            self.die("initialize")

        def activate(self) -> None:
            self.die("activate")

        def deactivate(self) -> None:
            self.die("deactivate")

        def once(self) -> None:
            self.die("next_tuple")
            self.emit([1], tup_id=1)

        def ack(self, tup_id: Any) -> None:
            self.die("ack")

        def fail(self, tup_id: Any, reason: str) -> None:
            self.die("fail")

        def die(self, name: str) -> None:
            if name == where:
                raise KeyError(where)

    with pytest.raises(KeyError, match=where), line(Dies, Fails if where == "fail" else Sink).local() as run:
        run.settle()
        run.deactivate()
        run.settle()


def test_a_run_that_an_exception_ended_goes_on_with_nothing() -> None:
    class Dies(Once):
        def once(self) -> None:
            self.emit([1], tup_id=1)
            raise KeyError("once")

    with pytest.raises(KeyError), line(Dies, Sink).local() as run:
        with pytest.raises(KeyError):
            run.settle()
        with pytest.raises((AckerError, KeyError)):
            run.settle()
        raise KeyError


def test_only_none_is_no_id() -> None:
    class Falsy(Once):
        def once(self) -> None:
            ids: list[Any] = [None, 0, False, "", (), [], {}]
            for tup_id in ids:
                self.emit([repr(tup_id)], tup_id=tup_id)

    with line(Falsy, Sink).local() as run:
        run.settle()
        assert sorted(map(repr, run.acked("spout"))) == sorted(map(repr, (0, False, "", (), [], {})))


def test_ids_may_refuse_equality_and_hash() -> None:
    class Stubborn:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody compares ids")

        def __reduce__(self) -> Any:
            raise AssertionError("nobody pickles ids")

    mine = Stubborn()
    seen: list[Any] = []

    class Emits(Once):
        def once(self) -> None:
            self.emit([1], tup_id=mine)

        def ack(self, tup_id: Any) -> None:
            seen.append(tup_id)

    with line(Emits, Sink).local() as run:
        run.settle()
        assert seen[0] is mine
        assert run.acked("spout")[0] is mine


def test_pending_has_the_ids_without_outcome() -> None:
    class Emits(Once):
        def once(self) -> None:
            self.emit([1], tup_id="same")
            self.emit([2], tup_id="same")
            self.emit([3])

    with line(Emits, Keeps).local() as run:
        run.settle()
        assert run.pending("spout") == ["same", "same"]
        first, *_ = run.tasks("b0")[0].held
        run.tasks("b0")[0].ack(first)
        run.settle()
        assert (run.acked("spout"), run.pending("spout")) == (["same"], ["same"])


def test_unknown_stream_raises_before_anything_is_pending() -> None:
    class Emits(Once):
        def once(self) -> None:
            with pytest.raises(AckerError, match="'nowhere'"):
                self.emit([1], tup_id=1, stream="nowhere")

    with line(Emits, Sink).local() as run:
        run.settle()
        run.advance(1000)
        assert (run.acked("spout"), run.failed("spout"), run.pending("spout")) == ([], [], [])


@pytest.mark.parametrize("values", [[], [1, 2], "x", 7, None, {"v": 1}])
def test_wrong_values_raise_even_without_a_subscriber(values: Any) -> None:
    class Emits(Once):
        def once(self) -> None:
            with pytest.raises(AckerError):
                self.emit(values, tup_id=1)

    with line(Emits).local() as run:
        run.settle()
        assert (run.acked("spout"), run.pending("spout")) == ([], [])


@pytest.mark.parametrize("values", [[1], (1,)])
def test_values_may_be_a_list_or_a_tuple(values: Any) -> None:
    class Emits(Once):
        def once(self) -> None:
            self.emit(values, tup_id=1)

    with line(Emits, Sink).local() as run:
        run.settle()
        assert rows(run, "spout") == [(1,)]


def test_values_are_those_of_the_emit_whatever_becomes_of_the_list() -> None:
    class Emits(Once):
        def once(self) -> None:
            values = [1]
            self.emit(values)
            values[0] = 2
            self.emit(values)

    with line(Emits, Sink).local() as run:
        run.settle()
        assert rows(run, "spout") == [(1,), (2,)]
        assert [tuple(row) for row in run.executed("b0")] == [(1,), (2,)]


def test_direct_emit_wants_a_direct_stream() -> None:
    class Emits(Once):
        outputs = [Stream(fields=["v"]), Stream(fields=["v"], name="direct", direct=True)]

        def once(self) -> None:
            with pytest.raises(AckerError):
                self.emit([1], tup_id=1, direct_task=2)
            with pytest.raises(AckerError):
                self.emit([1], tup_id=2, stream="direct")
            with pytest.raises(AckerError, match="99"):
                self.emit([1], tup_id=3, stream="direct", direct_task=99)

    with line(Emits, Sink).local() as run:
        run.settle()
        assert (run.acked("spout"), run.pending("spout"), run.executed("b0")) == ([], [], [])


def test_activate_again_does_not_initialize_again() -> None:
    calls: list[str] = []

    class Calls(Once):
        def initialize(self, conf: Any, context: Any) -> None:
            calls.append("initialize")

        def activate(self) -> None:
            calls.append("activate")

        def deactivate(self) -> None:
            calls.append("deactivate")

        def close(self) -> None:
            calls.append("close")

        def once(self) -> None:
            pass

    with line(Calls, Sink).local() as run:
        run.settle()
        run.deactivate()
        run.settle()
        run.activate()
        run.settle()
    assert [call for call in calls if call != "close"][:4] == ["initialize", "activate", "deactivate", "activate"]
    assert calls[-1] == "close"
    assert calls.count("initialize") == calls.count("close") == 1


def test_deactivated_spout_emits_nothing_and_hears_its_outcomes() -> None:
    emitted: list[int] = []

    class Counts(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            if len(emitted) < 10:
                emitted.append(len(emitted))
                self.emit([emitted[-1]], tup_id=emitted[-1])

    with line(Counts, Keeps).local({"topology.max.spout.pending": 2}) as run:
        run.settle()
        run.deactivate()
        [keeper] = run.tasks("b0")
        for tup in keeper.held:
            keeper.ack(tup)
        run.settle()
        assert (sorted(run.acked("spout")), emitted) == ([0, 1], [0, 1])
        run.activate()
        run.settle()
        assert emitted == [0, 1, 2, 3]


@pytest.mark.parametrize("bound", [None, 0])
def test_no_bound_means_all_are_emitted(bound: int | None) -> None:
    class Many(Once):
        left = 50

        def next_tuple(self) -> None:
            if self.left:
                self.left -= 1
                self.emit([1], tup_id=self.left)

    with line(Many, Keeps).local({"topology.max.spout.pending": bound}) as run:
        run.settle()
        assert len(run.pending("spout")) == 50


def test_ackers_0_holds_nothing_back() -> None:
    class Many(Once):
        left = 50

        def next_tuple(self) -> None:
            if self.left:
                self.left -= 1
                self.emit([1], tup_id=self.left)

    conf = {"topology.max.spout.pending": 1, "topology.acker.executors": 0}
    with line(Many, Keeps).local(conf) as run:
        run.settle()
        assert len(run.acked("spout")) == 50
        run.advance(1000)
        assert (run.failed("spout"), run.pending("spout")) == ([], [])
