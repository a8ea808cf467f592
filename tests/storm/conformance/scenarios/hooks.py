"""The order of task hooks."""

from collections.abc import Callable
from typing import Any

from acker_redis.storm import Tuple
from tests.storm.conformance.recording import (
    Recording,
    RecordingBolt,
    bolt,
    spout,
    take,
    upto,
)
from tests.storm.conformance.scenarios.scenario import (
    Built,
    line,
    scenario,
)


class Hook:
    """Records the calls of a task hook among those of its component."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log

    def prepare(self, conf: Any, context: Any) -> None:
        self._log("hook.prepare")

    def cleanup(self) -> None:
        self._log("hook.cleanup")

    def emit(self, info: Any) -> None:
        self._log(f"hook.emit {info.stream}")

    def spout_ack(self, info: Any) -> None:
        self._log("hook.spoutAck")

    def spout_fail(self, info: Any) -> None:
        self._log("hook.spoutFail")

    def bolt_execute(self, info: Any) -> None:
        self._log("hook.boltExecute")

    def bolt_ack(self, info: Any) -> None:
        self._log("hook.boltAck")

    def bolt_fail(self, info: Any) -> None:
        self._log("hook.boltFail")


@scenario()
def hooks(recording: Recording) -> Built:
    def add(self: Any) -> None:
        self.add_task_hook(Hook(self.note))

    def process(self: RecordingBolt, tup: Tuple) -> None:
        if tup.values.v == 2:
            self.fail(tup)
        else:
            self.send([tup], 5)
            self.ack(tup)

    return line(
        recording,
        spout(recording, upto(2), on_open=add),
        a=bolt(recording, process, on_open=add),
        sink=bolt(recording, take),
    )


HOOKS_OF_A = [
    "initialize", "hook.prepare",
    "execute", "emit", "hook.emit default", "emit_returned",
    "hook.emit __ack_ack", "hook.boltAck", "collector.ack", "hook.boltExecute",
    "execute", "hook.emit __ack_fail", "hook.boltFail", "collector.fail", "hook.boltExecute",
    "close",
]  # fmt: skip
"""The recorder wrote `collector.ack` before the call, and this one writes it after."""

HOOKS_OF_SPOUT = [
    "initialize", "hook.prepare", "activate",
    "emit", "hook.emit default", "hook.emit __ack_init", "emit_returned",
    "emit", "hook.emit default", "hook.emit __ack_init", "emit_returned",
]  # fmt: skip


def check_hooks(recording: Recording) -> None:
    """After the run's end: `cleanup` of the hooks comes before that of their component."""
    a = [e.call for e in recording.events if e.component == "a"]
    assert [call for call in a if call != "hook.cleanup"] == HOOKS_OF_A
    calls = [e.call for e in recording.events if e.component == "spout" and e.call != "next_tuple"]
    emits = [call for call in calls if call not in ("ack", "fail", "hook.spoutAck", "hook.spoutFail")]
    assert emits[: len(HOOKS_OF_SPOUT)] == HOOKS_OF_SPOUT
    for call in ("ack", "fail"):
        assert calls[calls.index(call) + 1] == f"hook.spout{call.title()}"
    for calls in (a, [e.call for e in recording.events if e.component == "spout"]):
        assert calls[-2:] == ["hook.cleanup", "close"]
