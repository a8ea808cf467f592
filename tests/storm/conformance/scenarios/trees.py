"""Trees: chains, fans, joins, anchors, cycles, held tuples."""

from collections.abc import Callable
from typing import Any

from acker_redis.storm import Stream, TopologyBuilder, Tuple
from tests.storm.conformance.recording import (
    Recording,
    RecordingBolt,
    RecordingSpout,
    bolt,
    pass_on,
    spout,
    take,
    upto,
)
from tests.storm.conformance.scenarios.scenario import (
    Built,
    Run,
    also,
    line,
    scenario,
)


@scenario()
def chain3(recording: Recording) -> Built:
    step = bolt(recording, pass_on)
    return line(recording, spout(recording, upto(3)), a=step, b=step, c=bolt(recording, take))


@also(chain3)
def _each_bolt_executes_in_order(recording: Recording, run: Run) -> None:
    assert [recording.values(name) for name in "abc"] == [[1, 2, 3]] * 3


@scenario()
def fanout(recording: Recording) -> Built:
    def split(self: RecordingBolt, tup: Tuple) -> None:
        for number in range(5):
            self.send([tup], number)
        self.ack(tup)

    return line(recording, spout(recording, upto(1)), split=bolt(recording, split), sink=bolt(recording, take))


@also(fanout)
def _the_ack_follows_the_last_child(recording: Recording, run: Run) -> None:
    assert recording.values("sink") == [0, 1, 2, 3, 4]
    calls = recording.calls("collector.ack", "ack")
    assert calls[-1].call == "ack"


@scenario()
def fail_middle(recording: Recording) -> Built:
    def second(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 2:
            self.fail(tup)
        else:
            pass_on(self, tup)

    return line(
        recording,
        spout(recording, upto(3)),
        a=bolt(recording, pass_on),
        b=bolt(recording, second),
        c=bolt(recording, take),
    )


@also(fail_middle)
def _the_others_keep_their_order(recording: Recording, run: Run) -> None:
    assert recording.values("c") == [1, 3]


def _join(recording: Recording, end: Callable[[RecordingBolt, Tuple], None]) -> Built:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(2)))
    join = bolt(recording, lambda self, tup: _pair(self, tup, sum), holds=True)
    builder.set_bolt("join", join).global_grouping("spout")
    builder.set_bolt("sink", bolt(recording, end)).shuffle_grouping("join")
    return builder


def _pair(self: RecordingBolt, tup: Tuple, value: Callable[[list[Any]], Any]) -> None:
    """Keep the first tuple. At the second emit one that is anchored to both, and ack both."""
    first = self.kept.setdefault("first", tup)
    if first is not tup:
        self.send([first, tup], value([first.values[0], tup.values[0]]))
        self.ack(first)
        self.ack(tup)


@scenario()
def join_ok(recording: Recording) -> Built:
    return _join(recording, take)


@also(join_ok)
def _both_acks_follow_that_of_the_sink(recording: Recording, run: Run) -> None:
    assert [e.component for e in recording.calls("collector.ack", "ack")][-3:] == ["sink", "spout", "spout"]


@scenario()
def join_fail(recording: Recording) -> Built:
    return _join(recording, lambda self, tup: self.fail(tup))


@scenario()
def diamond_rejoin(recording: Recording) -> Built:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(1)))
    for name in ("l", "r"):
        builder.set_bolt(name, bolt(recording, pass_on)).shuffle_grouping("spout")
    join = bolt(recording, lambda self, tup: _pair(self, tup, lambda both: 9), holds=True)
    builder.set_bolt("j", join).global_grouping("l").global_grouping("r")
    builder.set_bolt("sink", bolt(recording, take)).shuffle_grouping("j")
    return builder


@scenario()
def dup_anchor(recording: Recording) -> Built:
    def twice(self: RecordingBolt, tup: Tuple) -> None:
        self.send([tup, tup], 5)
        self.ack(tup)

    return line(recording, spout(recording, upto(1)), a=bolt(recording, twice), sink=bolt(recording, take))


@scenario()
def dup_anchor_lists(recording: Recording) -> Built:
    def join(self: RecordingBolt, tup: Tuple) -> None:
        first = self.kept.setdefault("first", tup)
        if first is not tup:
            self.send([first, tup, first], 9)
            self.send([tup], 8)
            self.ack(first)
            self.ack(tup)

    def end(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if tup.values.v == 8 else self.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(2)))
    builder.set_bolt("j", bolt(recording, join, holds=True)).global_grouping("spout")
    builder.set_bolt("sink", bolt(recording, end)).global_grouping("j")
    return builder


@scenario()
def unanchored(recording: Recording) -> Built:
    def free(self: RecordingBolt, tup: Tuple) -> None:
        self.send([], 5)
        self.ack(tup)

    end = bolt(recording, lambda self, tup: self.fail(tup))
    return line(recording, spout(recording, upto(1)), a=bolt(recording, free), sink=end)


@scenario()
def no_message_id(recording: Recording) -> Built:
    def untracked(self: RecordingSpout) -> None:
        if self.n < 2:
            self.n += 1
            self.send(None, self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 1:
            self.fail(tup)
        else:
            self.send([tup], 7)
            self.ack(tup)

    return line(recording, spout(recording, untracked), a=bolt(recording, process))


@scenario()
def cycle(recording: Recording) -> Built:
    def loop(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v > 0:
            self.send([tup], tup.values.v - 1, stream="again")
        self.ack(tup)

    def first(self: RecordingSpout) -> None:
        if self.n == 0:
            self.n = 1
            self.send("m1", 3)

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, first))
    step = bolt(recording, loop, outputs=[Stream(fields=["v"]), Stream(fields=["v"], name="again")])
    builder.set_bolt("loop", step).shuffle_grouping("spout").shuffle_grouping("loop", "again")
    return builder


@also(cycle)
def _rounds_are_in_order(recording: Recording, run: Run) -> None:
    assert recording.values("loop") == [3, 2, 1, 0]


@scenario()
def execute_returns_without_ack_then_later(recording: Recording) -> Built:
    def batch(self: RecordingBolt, tup: Tuple) -> None:
        held = self.kept.setdefault("held", [])
        held.append(tup)
        if len(held) == 5:
            self.send(list(held), 5)
            for one in held:
                self.ack(one)
            held.clear()

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(7)))
    builder.set_bolt("batch", bolt(recording, batch)).global_grouping("spout")
    builder.set_bolt("sink", bolt(recording, take)).shuffle_grouping("batch")
    return builder


@also(execute_returns_without_ack_then_later)
def _held_tuples_stay_pending(recording: Recording, run: Run) -> None:
    assert sorted(run.pending("spout")) == ["m6", "m7"]
