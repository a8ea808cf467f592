"""Calls that are refused: arity, streams, direct emits."""

from acker_redis.storm import Stream, TopologyBuilder, Tuple
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
    settle_often,
)


@scenario(drive=settle_often)
def arity(recording: Recording) -> Built:
    def values(self: RecordingSpout) -> None:
        if self.n < 3:
            self.n += 1
            self.send(f"m{self.n}", *[[1, 2], [], [3]][self.n - 1])

    return line(recording, spout(recording, values), a=bolt(recording, take))


@also(arity)
def _nothing_is_pending(recording: Recording, run: Run) -> None:
    assert run.pending("spout") == []
    run.advance(60)
    assert run.failed("spout") == []


@scenario(
    drive=settle_and_advance(4),
    instead=Divergence(
        "A refused emit leaves the tree as it was. In Storm the anchor holds the edge of the tuple that wasn't sent.",
        {"acked": [["spout", 0, "m1"]], "failed": []},
    ),
)
def arity_in_bolt(recording: Recording) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.send([tup], 1, 2)
        self.ack(tup)

    return line(recording, spout(recording, upto(1)), a=bolt(recording, process), sink=bolt(recording, take))


@scenario(drive=settle_often)
def direct(recording: Recording) -> Built:
    def chosen(self: RecordingSpout) -> None:
        tasks = {name: number for number, name in recording.names.items()}
        self.n += 1
        if self.n == 1:
            self.send("m1", 1, stream="dir", to=tasks["d[1]"])
        elif self.n == 2:
            self.send("m2", 2, stream="dir", to=tasks["d[0]"])
        elif self.n == 3:
            self.send("m3", 3, stream="dir")
        elif self.n == 4:
            self.send("m4", 4, to=tasks["other[0]"])
        elif self.n == 5:
            self.send("m5", 5, stream="dir", to=tasks["other[0]"])

    builder = TopologyBuilder()
    outputs = [Stream(fields=["v"]), Stream(fields=["v"], name="dir", direct=True)]
    builder.set_spout("spout", spout(recording, chosen, outputs=outputs))
    builder.set_bolt("d", bolt(recording, take), par=3).direct_grouping("spout", "dir")
    builder.set_bolt("other", bolt(recording, take)).shuffle_grouping("spout")
    return builder


@also(direct)
def _each_reaches_the_task_named(recording: Recording, run: Run) -> None:
    assert {(e.task, e.data["values"][0]) for e in recording.calls("execute")} == {("d[1]", 1), ("d[0]", 2)}


@scenario()
def named_streams(recording: Recording) -> Built:
    def part(self: RecordingBolt, tup: Tuple) -> None:
        value = tup.values.v
        self.send([tup], value, stream="odd" if value % 2 else "even")
        self.send([tup], value, stream="nobody")
        if value == 4:
            self.send([tup], 4, stream="undeclared")
        self.ack(tup)

    outputs = [Stream(fields=["v"], name=name) for name in ("even", "odd", "nobody")]
    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(4)))
    builder.set_bolt("part", bolt(recording, part, outputs=outputs)).shuffle_grouping("spout")
    builder.set_bolt("e", bolt(recording, take)).shuffle_grouping("part", "even")
    builder.set_bolt("o", bolt(recording, take)).shuffle_grouping("part", "odd")
    both = builder.set_bolt("both", bolt(recording, take))
    both.shuffle_grouping("part", "even").shuffle_grouping("part", "odd")
    return builder


@also(named_streams)
def _a_stream_without_subscriber_has_no_tasks(recording: Recording, run: Run) -> None:
    nobody = [e.data["tasks"] for e in recording.calls("emit") if e.data["stream"] == "nobody"]
    assert nobody == [[]] * 4


@scenario()
def no_subscriber(recording: Recording) -> Built:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, upto(2)))
    return builder


@also(no_subscriber)
def _acks_don_t_come_inside_emit(recording: Recording, run: Run) -> None:
    calls = [e.call for e in recording.calls("emit", "ack", "emit_returned", component="spout")]
    for position, call in enumerate(calls):
        assert call != "emit" or calls[position + 1] == "emit_returned"
