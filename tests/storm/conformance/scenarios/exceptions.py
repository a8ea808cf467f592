"""Exceptions. In Storm the worker's JVM exits."""

from acker_redis.storm import Tuple
from tests.storm.conformance.recording import (
    Recording,
    RecordingBolt,
    RecordingSpout,
    bolt,
    spout,
    upto,
)
from tests.storm.conformance.scenarios.scenario import (
    Built,
    Divergence,
    Run,
    also,
    line,
    scenario,
)


@scenario(
    instead=Divergence(
        "An exception fails the tuple with its type and text, and the task goes on. In Storm the worker process exits.",
        {
            "acked": [["spout", 0, "m1"], ["spout", 0, "m3"]],
            "failed": [["spout", 0, "m2"]],
            "executed": {"a": [["spout[0]", "default", [n]] for n in (1, 2, 3)]},
        },
    ),
    leaves_out=["lifecycle"],
)
def exception_in_bolt(recording: Recording) -> Built:
    return _raises_at_two(recording, recorded_source=True)


@scenario(
    instead=Divergence(
        "An exception fails the tuple with its type and text, and the task goes on. In Storm the worker process exits.",
        {
            "acked": [["spout", 0, "m1"], ["spout", 0, "m3"]],
            "failed": [["spout", 0, "m2"]],
            "executed": {"a": [["spout[0]", "default", [n]] for n in (1, 2, 3)]},
        },
    ),
    leaves_out=["lifecycle"],
)
def exception_in_basic_bolt(recording: Recording) -> Built:
    return _raises_at_two(recording, recorded_source=False)


def _raises_at_two(recording: Recording, *, recorded_source: bool) -> Built:
    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 2:
            self.note("raised")
            raise ValueError("two")
        if recorded_source:
            self.ack(tup)

    by_hand = bolt(recording, process)
    flags = {"auto_fail": True, "auto_ack": not recorded_source}
    return line(recording, spout(recording, upto(3)), a=type("Raises", (by_hand,), flags))


@also(exception_in_bolt)
@also(exception_in_basic_bolt)
def _the_reason_is_type_and_text(recording: Recording, run: Run) -> None:
    [(_, reason)] = run.failed("spout")
    assert reason == "ValueError: two"


def _dying_spout(recording: Recording, where: str) -> Built:
    def next_tuple(self: RecordingSpout) -> None:
        if where == "next_tuple" and self.n == 1:
            self.die(where)
        upto(1)(self)

    def process(self: RecordingBolt, tup: Tuple) -> None:
        self.fail(tup) if where == "fail" else self.ack(tup)

    source = spout(recording, next_tuple)
    if where != "next_tuple":
        source = type("Dies", (source,), {f"on_{where}": lambda self, tup_id: self.die(where)})
    return line(recording, source, a=bolt(recording, process))


@scenario(raises=RuntimeError, leaves_out=["lifecycle"])
def exception_in_spout_ack(recording: Recording) -> Built:
    return _dying_spout(recording, "ack")


@scenario(raises=RuntimeError, leaves_out=["lifecycle"])
def exception_in_spout_fail(recording: Recording) -> Built:
    return _dying_spout(recording, "fail")


@scenario(raises=RuntimeError, leaves_out=["lifecycle", "executed", "acked"])
def exception_in_spout_next_tuple(recording: Recording) -> Built:
    """Whether m1 was executed or acked before is timing."""
    return _dying_spout(recording, "next_tuple")
