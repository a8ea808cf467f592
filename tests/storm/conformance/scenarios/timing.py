"""Timeouts, ticks, activation."""

from acker_redis.storm import TopologyBuilder, Tuple
from tests.storm.conformance.recording import (
    Recording,
    RecordingBolt,
    RecordingSpout,
    bolt,
    is_tick,
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
    settle_and_advance,
)


@scenario(drive=settle_and_advance(4))
def never_acks(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v != 2:
            self.ack(tup)

    return line(recording, spout(recording, upto(3)), a=bolt(recording, process))


@also(never_acks)
def _the_reason_of_a_timeout_is_timeout(recording: Recording, run: Run) -> None:
    assert run.failed("spout") == [("m2", "timeout")]


@scenario(drive=settle_and_advance(7.5))
def timeouts_disabled(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v != 2:
            self.ack(tup)

    return line(recording, spout(recording, upto(2)), a=bolt(recording, process))


@also(timeouts_disabled)
def _it_stays_pending(recording: Recording, run: Run) -> None:
    run.advance(20)
    assert run.pending("spout") == ["m2"]
    assert run.failed("spout") == []


@scenario(drive=settle_and_advance(*[0.5] * 18))
def reset_timeout(recording: Recording) -> Built:
    def keep(self: RecordingBolt, tup: Tuple) -> None:
        if not is_tick(tup):
            self.kept[tup.values.v] = tup
            return
        self.n += 1
        if self.n < 9:
            self.reset_timeout(self.kept[1])
        elif self.n == 9:
            self.ack(self.kept[1])
            self.ack(self.kept[2])

    return line(recording, spout(recording, upto(2)), k=bolt(recording, keep, tick=1, holds=True))


@scenario(drive=settle_and_advance(*[0.5] * 24))
def timeout_phase(recording: Recording) -> Built:
    """A message every half second. The run's own clock isn't asked: a tick of half a second would be none of Storm's."""

    def one_per_settle(self: RecordingSpout) -> None:
        if self.n < 12 and not self.kept.pop("rests", False):
            self.n += 1
            self.kept["rests"] = True
            self.send(f"m{self.n}", self.n)

    return line(recording, spout(recording, one_per_settle), a=bolt(recording, lambda self, tup: None))


@also(timeout_phase)
def _all_fail_by_timeout(recording: Recording, run: Run) -> None:
    assert {reason for _, reason in run.failed("spout")} == {"timeout"}


@scenario(drive=settle_and_advance(5), leaves_out=["executed"])
def tick(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if is_tick(tup):
            self.send([tup], 99)
        self.ack(tup)

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(1)))
    builder.set_bolt("a", bolt(recording, process, tick=1), par=1, tasks=2).shuffle_grouping("spout")
    builder.set_bolt("sink", bolt(recording, lambda self, tup: self.fail(tup))).shuffle_grouping("a")
    return builder


@also(tick)
def _each_task_has_its_own_ticks(recording: Recording, run: Run) -> None:
    ticks = [e for e in recording.calls("execute", component="a") if e.data["stream"] == "__tick"]
    assert sorted(e.index for e in ticks) == [0] * 5 + [1] * 5
    assert {(e.data["source"], *e.data["values"]) for e in ticks} == {("__system", 1)}
    assert recording.values("sink") == [99] * 10


def _activate_after_4_secs(run: Run) -> None:
    run.settle()
    run.advance(4)
    assert run.events == []
    run.activate()
    run.settle()


@scenario(drive=_activate_after_4_secs, active=False)
def inactive_start(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(1)), a=bolt(recording, take, tick=1))


@also(inactive_start)
def _ticks_begin_with_activation(recording: Recording, run: Run) -> None:
    assert recording.values("a") == [1]
    run.advance(1)
    assert len(recording.calls("execute", component="a")) == 2


def _deactivate_and_activate(run: Run) -> None:
    run.settle()
    run.advance(1.5)
    run.deactivate()
    run.advance(8)
    run.activate()
    run.settle()


@scenario(drive=_deactivate_and_activate, leaves_out=["lifecycle"])
def deactivate_pending(recording: Recording) -> Built:
    def next_tuple(self: RecordingSpout) -> None:
        if self.n < (5 if "failed" in self.kept else 4):
            self.n += 1
            self.send(f"m{self.n}", self.n)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        if is_tick(tup):
            self.n += 1
            if self.n == 4:
                self.ack(self.kept[2])
                self.fail(self.kept[3])
        elif tup.values.v in (1, 5):
            self.ack(tup)
        else:
            self.kept[tup.values.v] = tup

    source = spout(recording, next_tuple, on_fail=lambda self, tup_id: self.kept.update(failed=True))
    return line(recording, source, a=bolt(recording, process, tick=1, holds=True))


@also(deactivate_pending)
def _outcomes_come_while_deactivated(recording: Recording, run: Run) -> None:
    calls = recording.calls("initialize", "activate", "deactivate", "ack", "fail", "next_tuple", component="spout")
    names = [e.call for e in calls]
    start, end = names.index("deactivate"), len(names) - 1 - names[::-1].index("activate")
    between = {(e.call, e.data.get("id")) for e in calls[start + 1 : end]}
    assert between == {("ack", "m2"), ("fail", "m3"), ("fail", "m4")}
    assert names.count("initialize") == 1
    ticks = [e for e in recording.calls("execute") if e.data["stream"] == "__tick"]
    assert len(ticks) == 9


@scenario()
def no_emit_waits(recording: Recording) -> Built:
    return line(recording, spout(recording, lambda self: None), a=bolt(recording, take))
