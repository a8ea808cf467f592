"""Outcomes: acks and fails that repeat, replays, ids, no ackers."""

from typing import Any

from acker_redis.storm import RowFailedError, TopologyBuilder, Tuple
from tests.storm.conformance.recording import (
    Recording,
    RecordingBolt,
    RecordingSpout,
    bolt,
    spout,
    take,
    upto,
)
from tests.storm.conformance.scenarios.scenario import (
    Built,
    Divergence,
    Run,
    also,
    line,
    scenario,
    settle_and_advance,
)


@scenario()
def fail_then_late_ack(recording: Recording) -> Built:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(1)))
    builder.set_bolt("f", bolt(recording, lambda self, tup: self.fail(tup))).shuffle_grouping("spout")
    builder.set_bolt("l", bolt(recording, take)).shuffle_grouping("spout")
    return builder


@also(fail_then_late_ack)
def _the_fail_stays_the_only_outcome(recording: Recording, run: Run) -> None:
    run.advance(6)
    assert len(recording.calls("ack", "fail")) == 1


@scenario()
def ack_then_fail_same_tuple(recording: Recording) -> Built:
    def both(self: RecordingBolt, tup: Tuple) -> None:
        self.ack(tup)
        self.fail(tup)

    return line(recording, spout(recording, upto(1)), a=bolt(recording, both))


@scenario(
    drive=settle_and_advance(4),
    instead=Divergence(
        "A second ack raises and leaves the tree as it was. In Storm it cancels the first one, and m2 times out although "
        "every tuple was acked.",
        {"acked": [["spout", 0, "m1"], ["spout", 0, "m2"]], "failed": [], "raised": {"a": 2}},
    ),
)
def double_ack(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 2:
            self.send([tup], 22)
        self.ack(tup)
        self.ack(tup)

    return line(recording, spout(recording, upto(2)), a=bolt(recording, process), sink=bolt(recording, take))


@scenario()
def double_fail(recording: Recording) -> Built:
    def again(self: RecordingSpout, tup_id: Any) -> None:
        if self.n < 5:
            self.n += 1
            self.send(tup_id, 100 + self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v < 100:
            self.fail(tup)
            self.fail(tup)
        else:
            self.ack(tup)

    return line(recording, spout(recording, upto(1), on_fail=again), a=bolt(recording, process))


@scenario(
    drive=settle_and_advance(4),
    instead=Divergence(
        "An anchor that is acked already is refused. In Storm the child is outside the tree, so its loss isn't seen.",
        {"executed": {"a": [["spout[0]", "default", [1]], ["spout[0]", "default", [2]]]}, "raised": {"a": 2}},
    ),
)
def emit_after_ack(recording: Recording) -> Built:
    def late(self: RecordingBolt, tup: Tuple) -> None:
        self.ack(tup)
        self.send([tup], tup.values.v)

    def end(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if tup.values.v == 2 else self.ack(tup)

    return line(recording, spout(recording, upto(2)), a=bolt(recording, late), sink=bolt(recording, end))


@scenario()
def replay_same_id(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if tup.values.v < 100 else self.ack(tup)

    def again(self: RecordingSpout, tup_id: Any) -> None:
        self.send(tup_id, int(tup_id[1:]) + 100)

    return line(recording, spout(recording, upto(2), on_fail=again), a=bolt(recording, process))


@scenario()
def same_id_twice_pending(recording: Recording) -> Built:
    def same(self: RecordingSpout) -> None:
        if self.n < 2:
            self.n += 1
            self.send("same", self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.ack(tup) if tup.values.v == 1 else self.fail(tup)

    return line(recording, spout(recording, same), a=bolt(recording, process))


@scenario(leaves_out=["executed"])
def two_spout_tasks(recording: Recording) -> Built:
    def three(self: RecordingSpout) -> None:
        if self.n < 3:
            self.n += 1
            self.send(f"t{self.index}m{self.n}", self.index * 10 + self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if tup.values.v % 10 == 2 else self.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, three), par=2)
    builder.set_bolt("a", bolt(recording, process), par=2).shuffle_grouping("spout")
    return builder


class Custom:
    """An id without equality, hash by identity, and no way through JSON."""

    def __str__(self) -> str:
        return "Custom(7)"


@scenario()
def message_id_types(recording: Recording) -> Built:
    ids: list[Any] = [1, 2, "three", [4, "x"], Custom(), {"k": 6}, False, 0, ""]

    def next_id(self: RecordingSpout) -> None:
        if self.n < len(ids):
            self.n += 1
            self.send(ids[self.n - 1], self.n)

    def same_object(self: RecordingSpout, tup_id: Any) -> None:
        assert any(tup_id is one for one in ids)

    return line(recording, spout(recording, next_id, on_ack=same_object), a=bolt(recording, take))


@scenario()
def emit_in_ack(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(1), on_ack=_next_of_three), a=bolt(recording, take))


def _next_of_three(self: RecordingSpout, tup_id: Any) -> None:
    if self.n < 3:
        self.n += 1
        self.send(f"m{self.n}", self.n)


@scenario()
def ackers_0(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 1:
            self.send([tup], 1)
            self.ack(tup)
        elif tup.values.v == 2:
            self.fail(tup)
        else:
            self.reset_timeout(tup)

    return line(recording, spout(recording, upto(3)), a=bolt(recording, process))


@also(ackers_0)
def _acks_come_inside_emit(recording: Recording, run: Run) -> None:
    calls = [e.call for e in recording.calls("emit", "ack", "emit_returned", component="spout")]
    assert calls == ["emit", "ack", "emit_returned"] * 3
    assert run.pending("spout") == []


@scenario()
def ackers_0_emit_in_ack(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(1), on_ack=_next_of_three), a=bolt(recording, take))


@also(ackers_0_emit_in_ack)
def _emits_and_acks_are_nested(recording: Recording, run: Run) -> None:
    calls = [e.call for e in recording.calls("emit", "ack", "emit_returned", component="spout")]
    assert calls == ["emit", "ack"] * 3 + ["emit_returned"] * 3


@scenario(leaves_out=["lifecycle"])
def stateful(recording: Recording) -> Built:
    """Each value is a count, which is in the state."""

    def count(self: RecordingBolt, tup: Tuple) -> None:
        self.n += 1
        self.send([tup], self.n)
        self.ack(tup)

    counts = bolt(recording, count, holds=True)
    return line(recording, spout(recording, upto(3)), stateful=counts, sink=bolt(recording, take))


@scenario()
def basic_bolt(recording: Recording) -> Built:
    class Basic(RecordingBolt):
        auto_anchor = auto_ack = auto_fail = True

        def process(self, tup: Tuple) -> None:
            self.note("execute", source=None, stream=tup.stream, values=list(tup.values))
            if tup.values.v == 2:
                self.send(None, 20)
            if tup.values.v in (2, 3):
                self.note("raised")
                raise RowFailedError("two or three")
            self.send(None, tup.values.v * 10)

    return line(
        recording,
        spout(recording, upto(4)),
        basic=type("Basic", (Basic,), {"recording": recording}),
        sink=bolt(recording, take),
    )


@also(basic_bolt)
def _the_reason_is_the_text(recording: Recording, run: Run) -> None:
    assert {reason for _, reason in run.failed("spout")} == {"two or three"}
