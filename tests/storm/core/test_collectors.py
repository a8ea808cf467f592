"""Collectors: anchoring, and strictness. A call that raises leaves the tree as it was."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from acker_redis.errors import AckerError, BadTupleError
from acker_redis.storm import Bolt, Spout, Stream, TopologyBuilder
from tests.storm.parts import SEEDS, Do, Upto, chain, holding, passing, sink

T = {"topology.message.timeout.secs": 2}


def outcomes(topology: Any, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Acked and failed ids after all timeouts, in drawn order."""
    with topology.local(seed=seed) as run:
        run.settle()
        run.advance(10)
        assert run.pending("spout") == []
        return sorted(run.acked("spout")), sorted(run.failed("spout"))


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_number_of_values_raises_and_leaves_the_tree_as_it_was(seed: int) -> None:
    def call(bolt: Do, tup: Any) -> None:
        for values in ([1, 2], [], "ab"):
            with pytest.raises(BadTupleError):
                bolt.emit(values, anchors=[tup])
        bolt.ack(tup)

    assert outcomes(chain(Do(call), sink(), spout=Upto(1), config=T), seed) == (["m1"], [])


def test_undeclared_stream_raises_with_the_nearest_one() -> None:
    def call(bolt: Do, tup: Any) -> None:
        with pytest.raises(BadTupleError, match="Did you mean 'default'"):
            bolt.emit([1], stream="defalt", anchors=[tup])
        bolt.ack(tup)

    assert outcomes(chain(Do(call), sink(), spout=Upto(1), config=T)) == (["m1"], [])


def test_second_ack_raises_and_changes_nothing() -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.emit([1], anchors=[tup])
        bolt.ack(tup)
        with pytest.raises(BadTupleError, match="twice"):
            bolt.ack(tup)
        with pytest.raises(BadTupleError, match="not a tuple that it holds"):
            bolt.ack(tup.id)

    assert outcomes(chain(Do(call), sink(), spout=Upto(1), config=T)) == (["m1"], [])


def test_anchor_after_ack_raises_and_sends_nothing() -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup)
        with pytest.raises(BadTupleError, match="Emit first, then ack"):
            bolt.emit([1], anchors=[tup])

    topology = chain(Do(call), sink(), spout=Upto(1), config=T)
    assert outcomes(topology) == (["m1"], [])
    with topology.local() as run:
        run.settle()
        assert run.executed("b") == [] and run.emitted("a") == []


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (["ack", "fail"], (["m1"], [])),
        (["fail", "ack"], ([], [("m1", "why")])),
        (["fail", "fail"], ([], [("m1", "why")])),
    ],
)
def test_fail_after_ack_and_the_like_have_no_effect(calls: list[str], expected: Any) -> None:
    def call(bolt: Do, tup: Any) -> None:
        for name in calls:
            bolt.ack(tup) if name == "ack" else bolt.fail(tup, "why")

    assert outcomes(chain(Do(call), spout=Upto(1), config=T)) == expected


def test_ack_by_id_after_a_fail_has_no_effect() -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.fail(tup.id, "why")
        bolt.ack(tup.id)
        bolt.fail(tup.id)

    assert outcomes(chain(Do(call), spout=Upto(1), config=T)) == ([], [("m1", "why")])


@pytest.mark.parametrize("by_id", [False, True])
def test_ack_fail_and_anchors_take_ids(by_id: bool) -> None:
    def call(bolt: Do, tup: Any) -> None:
        key = tup.id if by_id else tup
        bolt.reset_timeout(key)
        if tup.values.v == 1:
            bolt.emit([1], anchors=[key])
            bolt.emit([1], anchors=key)
            bolt.ack(key)
        else:
            bolt.fail(key)

    assert outcomes(chain(Do(call), sink(), spout=Upto(2), config=T)) == (["m1"], [("m2", "failed")])


@pytest.mark.parametrize("seed", SEEDS)
def test_message_is_acked_after_the_last_of_its_tree(seed: int) -> None:
    def call(bolt: Do, tup: Any) -> None:
        for n in range(5):
            bolt.emit([n], anchors=[tup])
        bolt.ack(tup)

    last = holding()
    with chain(Do(call), last, spout=Upto(1)).local(seed=seed) as run:
        run.settle()
        (bolt,) = run.tasks("b")
        assert run.executed("b") == [(0,), (1,), (2,), (3,), (4,)]
        for tup in bolt.held:
            assert run.acked("spout") == []
            bolt.ack(tup)
            run.settle()
        assert run.acked("spout") == ["m1"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ok", [True, False])
def test_tuple_anchored_to_two_messages_decides_about_both(seed: int, ok: bool) -> None:
    def join(bolt: Do, tup: Any) -> None:
        bolt.held.append(tup)
        if len(bolt.held) == 2:
            bolt.emit([9], anchors=bolt.held)
            for held in bolt.held:
                bolt.ack(held)

    last = sink() if ok else Do(lambda bolt, tup: bolt.fail(tup, "no"))
    acked, failed = outcomes(chain(Do(join), last, spout=Upto(2), config=T), seed)
    assert (acked, failed) == ((["m1", "m2"], []) if ok else ([], [("m1", "no"), ("m2", "no")]))


@pytest.mark.parametrize("seed", SEEDS)
def test_two_tuples_of_one_message_rejoin(seed: int) -> None:
    def join(bolt: Do, tup: Any) -> None:
        bolt.held.append(tup)
        if len(bolt.held) == 2:
            bolt.emit([9], anchors=[*bolt.held, bolt.held[0]])
            for held in bolt.held:
                bolt.ack(held)

    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(1))
    for name in "lr":
        builder.set_bolt(name, passing()).shuffle_grouping("spout")
    builder.set_bolt("j", Do(join)).global_grouping("l").global_grouping("r")
    builder.set_bolt("sink", holding()).shuffle_grouping("j")
    with builder.create_topology(config=T).local(seed=seed) as run:
        run.settle()
        assert run.acked("spout") == []
        bolt = run.tasks("sink")[0]
        bolt.ack(bolt.held[0])
        run.settle()
        assert run.acked("spout") == ["m1"]


def test_unanchored_tuple_is_outside_of_the_tree() -> None:
    def call(bolt: Do, tup: Any) -> None:
        bolt.emit([5])
        bolt.ack(tup)

    assert outcomes(chain(Do(call), Do(lambda bolt, tup: bolt.fail(tup)), spout=Upto(1), config=T)) == (["m1"], [])


def test_message_without_id_is_not_tracked_and_0_is_an_id() -> None:
    class Ids(Spout):
        outputs = ["v"]
        ids = [None, 0, "", False]

        def initialize(self, conf: Any, context: Any) -> None:
            self.left = list(self.ids)

        def next_tuple(self) -> None:
            if self.left:
                self.emit([1], tup_id=self.left.pop())

    with chain(sink(), spout=Ids()).local() as run:
        run.settle()
        assert len(run.executed("a")) == 4
        assert sorted(map(repr, run.acked("spout"))) == ["''", "0", "False"]


def test_one_id_may_be_pending_twice() -> None:
    class Same(Spout):
        outputs = ["v"]
        n = 0

        def next_tuple(self) -> None:
            if self.n < 2:
                self.n += 1
                self.emit([self.n], tup_id="same")

    def call(bolt: Do, tup: Any) -> None:
        bolt.ack(tup) if tup.values.v == 1 else bolt.fail(tup)

    with chain(Do(call), spout=Same()).local() as run:
        run.settle()
        assert run.acked("spout") == ["same"] and run.failed("spout") == [("same", "failed")]


@pytest.mark.parametrize("seed", SEEDS)
def test_held_anchor_of_many_ticks_is_acked_only_after_all_their_tuples(seed: int) -> None:
    """Two ticks that emit the same values anchored to one held tuple make two edges."""

    def call(bolt: Do, tup: Any) -> None:
        if not tup.is_tick:
            bolt.held.append(tup)
        elif bolt.held:
            bolt.emit([0], anchors=bolt.held)

    last = holding()
    conf = {"topology.tick.tuple.freq.secs": 1, "topology.message.timeout.secs": 100}
    with chain(Do(call), last, spout=Upto(1), config=conf).local(seed=seed) as run:
        run.settle()
        run.advance(4)
        a, b = run.tasks("a")[0], run.tasks("b")[0]
        a.ack(a.held.pop())
        for tup in [tup for tup in b.held if not tup.is_tick]:
            assert run.acked("spout") == []
            b.ack(tup)
            run.settle()
        assert run.acked("spout") == ["m1"]
        assert len(run.emitted("a")) == 4


def test_tuples_of_messages_that_ended_are_forgotten_and_acks_by_their_ids_have_no_effect() -> None:
    last = holding()
    with chain(last, spout=Upto(3), config=T).local() as run:
        run.settle()
        bolt = run.tasks("a")[0]
        assert len(bolt._acker_collector.open_tuples) == 3
        run.advance(8)
        assert len(run.failed("spout")) == 3 and not bolt._acker_collector.open_tuples
        first, second, third = bolt.held
        bolt.ack(first.id)
        bolt.fail(second.id)
        bolt.emit([1], anchors=[third.id])
        bolt.reset_timeout(third.id)
        with pytest.raises(BadTupleError):
            bolt.ack("another")


def test_without_ackers_messages_are_acked_inside_of_emit() -> None:
    class Nested(Upto):
        outputs = ["v"]

        def next_tuple(self) -> None:
            if self.n < self.most:
                self.n += 1
                n = self.n
                self.emit([n], tup_id=f"m{n}")
                self.calls.append(("returned", n))

    spout = Nested(2)
    never = Do(lambda bolt, tup: bolt.fail(tup))
    with chain(
        never, spout=spout, config={"topology.acker.executors": 0, "topology.max.spout.pending": 1}
    ).local() as run:
        run.settle()
        assert run.tasks("spout")[0].calls[2:] == [("ack", "m1"), ("returned", 1), ("ack", "m2"), ("returned", 2)]
        assert run.acked("spout") == ["m1", "m2"] and run.failed("spout") == []


def test_values_are_reached_by_name_or_by_index() -> None:
    class Named(Spout):
        outputs = [Stream(["word", "global-count"])]
        done = False

        def next_tuple(self) -> None:
            if not self.done:
                self.done = True
                self.emit(["a", 1])

    seen = []
    with chain(Do(lambda bolt, tup: seen.append((tup.values.word, tup.values[1]))), spout=Named()).local() as run:
        run.settle()
    assert seen == [("a", 1)]


def test_component_outside_of_a_run_says_so() -> None:
    with pytest.raises(AckerError, match="not part of a run"):
        Bolt().emit([1])


def test_calls_from_another_thread_are_refused_and_leave_the_tree_as_it_was() -> None:
    refused: list[str] = []

    def elsewhere(bolt: Do, tup: Any) -> None:
        calls: list[Callable[[Any], Any]] = [
            bolt.ack,
            bolt.fail,
            bolt.reset_timeout,
            lambda tup: bolt.emit([1], anchors=[tup]),
        ]
        for call in calls:
            with pytest.raises(BadTupleError, match="from thread 'own'"):
                call(tup)
            refused.append(tup.id)

    def call(bolt: Do, tup: Any) -> None:
        thread = threading.Thread(target=elsewhere, args=(bolt, tup), name="own")
        thread.start()
        thread.join()
        bolt.ack(tup)

    assert outcomes(chain(Do(call), sink(), spout=Upto(2), config=T)) == (["m1", "m2"], [])
    assert len(refused) == 8


def test_emit_of_a_component_without_outputs_names_the_remedy() -> None:
    def call(bolt: Do, tup: Any) -> None:
        with pytest.raises(BadTupleError, match="'a' declares no outputs, so it can't emit"):
            bolt.emit([1])
        bolt.ack(tup)

    assert outcomes(chain(Do(call, outputs=()), spout=Upto(1), config=T)) == (["m1"], [])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda bolt, tup: bolt.fail(tup, ValueError("no price")), "is not a text"),
        (lambda bolt, tup: bolt.fail(tup, ["no price"]), "is not a text"),
        (lambda bolt, tup: bolt.fail(5), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.fail(None), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.ack([tup]), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.reset_timeout([tup]), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.emit([1], anchors=5), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.emit([1], anchors=[[tup]]), "neither a tuple nor its id"),
        (lambda bolt, tup: bolt.emit([1], stream=""), "does not declare the stream ''"),
        (lambda bolt, tup: bolt.emit([1], stream=["default"]), "does not declare the stream"),
        (lambda bolt, tup: bolt.emit([1], direct_task=[1]), "is not a task of the topology"),
    ],
)
def test_wrong_arguments_raise_and_leave_the_tree_as_it_was(call: Any, text: str) -> None:
    raised: list[str] = []

    def mistaken(bolt: Do, tup: Any) -> None:
        try:
            call(bolt, tup)
        except BadTupleError as error:
            raised.append(str(error))
        bolt.ack(tup)

    assert outcomes(chain(Do(mistaken), sink(), spout=Upto(2), config=T)) == (["m1", "m2"], [])
    assert len(raised) == 2 and all(text in error for error in raised)
