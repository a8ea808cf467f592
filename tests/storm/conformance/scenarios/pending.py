"""The bound on pending messages."""

from typing import Any

from acker_redis.storm import TopologyBuilder, Tuple
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
    Run,
    also,
    line,
    scenario,
)


def pending_at_calls(recording: Recording, call: str) -> list[int]:
    """How many tracked messages had no outcome at each call, over all tasks."""
    found, pending = [], 0
    for event in recording.events:
        if event.call == call:
            found.append(pending)
        if event.call == "emit" and event.data["id"] is not None:
            pending += 1
        elif event.call in ("ack", "fail"):
            pending -= 1
    return found


@scenario()
def max_pending_1(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(10)), a=bolt(recording, take))


@also(max_pending_1)
def _each_emit_follows_the_ack_before_it(recording: Recording, run: Run) -> None:
    assert set(pending_at_calls(recording, "next_tuple")) == {0}
    assert [e.call for e in recording.calls("emit", "ack", component="spout")] == ["emit", "ack"] * 10


@scenario()
def max_pending_5(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(10)), a=bolt(recording, take))


@also(max_pending_5)
def _five_are_never_exceeded(recording: Recording, run: Run) -> None:
    assert max(pending_at_calls(recording, "next_tuple")) < 5


@scenario()
def max_pending_1_burst(recording: Recording) -> Built:
    def burst(self: RecordingSpout) -> None:
        for _ in range(3 if self.n < 9 else 0):
            self.n += 1
            self.send(f"m{self.n}", self.n)

    return line(recording, spout(recording, burst), a=bolt(recording, take))


@also(max_pending_1_burst)
def _a_burst_exceeds_the_bound(recording: Recording, run: Run) -> None:
    assert set(pending_at_calls(recording, "next_tuple")) == {0}
    assert pending_at_calls(recording, "emit") == [0, 1, 2] * 3


@scenario()
def max_pending_1_untracked(recording: Recording) -> Built:
    def some(self: RecordingSpout) -> None:
        if self.n < 6:
            self.n += 1
            self.send("m3" if self.n == 3 else None, self.n)

    return line(recording, spout(recording, some), a=bolt(recording, take))


@also(max_pending_1_untracked)
def _only_tracked_messages_count(recording: Recording, run: Run) -> None:
    calls = recording.calls("emit", "ack", component="spout")
    assert [e.data.get("id") for e in calls] == [None, None, "m3", "m3", None, None, None]


@scenario()
def max_pending_2_tasks_1_executor(recording: Recording) -> Built:
    def three(self: RecordingSpout) -> None:
        if self.n < 3:
            self.n += 1
            self.send(f"t{self.index}m{self.n}", self.n)

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, three, config={"topology.tasks": 2}))
    builder.set_bolt("a", bolt(recording, take)).shuffle_grouping("spout")
    return builder


@also(max_pending_2_tasks_1_executor)
def _the_bound_is_that_of_the_executor(recording: Recording, run: Run) -> None:
    """Two tasks at a bound of 1 have 2, which the second call of a round may exceed by one."""
    rounds = recording.calls("next_tuple")
    assert [e.index for e in rounds] == [0, 1] * (len(rounds) // 2)
    seen = pending_at_calls(recording, "next_tuple")
    assert max(seen[::2]) < 2
    assert max(seen[1::2]) <= 2


@scenario()
def max_pending_1_emit_in_fail(recording: Recording) -> Built:
    def three(self: RecordingSpout, tup_id: Any) -> None:
        for _ in range(3):
            self.n += 1
            self.send(f"m{self.n}", self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if tup.values.v == 1 else self.ack(tup)

    return line(recording, spout(recording, upto(1), on_fail=three), a=bolt(recording, process))


@also(max_pending_1_emit_in_fail)
def _emits_in_fail_aren_t_held_back(recording: Recording, run: Run) -> None:
    assert pending_at_calls(recording, "emit") == [0, 0, 1, 2]


@scenario()
def backpressure(recording: Recording) -> Built:
    def untracked(self: RecordingSpout) -> None:
        if self.n < 400:
            self.n += 1
            self.send(None, self.n)

    return line(recording, spout(recording, untracked), a=bolt(recording, take))


@also(backpressure)
def _four_hundred_keep_their_order(recording: Recording, run: Run) -> None:
    assert recording.values("a") == list(range(1, 401))
