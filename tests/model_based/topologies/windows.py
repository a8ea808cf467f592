"""Windowed bolts of random topologies: by number, by time, or by event time."""

from datetime import timedelta
from typing import Any

from acker_redis.storm import BoltInfo, TaskHook, Tuple, TupleWindow, WindowedBolt
from acker_redis.storm.core.tuples import PENDING
from tests.model_based.topologies.components import STREAMS, ProbeBolt, guarded
from tests.model_based.topologies.oracle import Wrong
from tests.model_based.topologies.plan import BoltPlan


class Windows(ProbeBolt, WindowedBolt):
    """The product decides when it acks a tuple. No tuple may be acked before its last window."""

    outputs = STREAMS

    def initialize(self, conf: Any, context: Any) -> None:
        super().initialize(conf, context)
        self.length, self.step = (of if isinstance(of, int) else 0 for of in (self.window, self.slide))
        self.is_by_number = self.length > 0 and not self.world.oracle.is_real_time
        """True if numbers alone decide. The end of a real run brings a window, too."""
        self.arrived: list[Tuple] = []
        self.fired = 0
        """Tuples that had arrived at the latest window."""
        self.seen: set[str] = set()
        """Tuples that a window had."""
        self.failed: set[str] = set()
        self.add_task_hook(Settles(self))

    @guarded()
    def process(self, tup: Tuple) -> None:
        self.take(tup)
        self.arrived.append(tup)
        super().process(tup)
        if self.is_by_number:
            over = self.arrived[: max(0, min(self.fired, self.next_start))]
            if any(one.state is PENDING for one in over):
                raise Wrong(f"some of {over} are in no later window, and pending")

    @guarded()
    def process_window(self, window: TupleWindow) -> None:
        self.world.oracle.counts["windows"] += 1
        self.fired = len(self.arrived)
        if self.is_by_number:
            expected = [tup for tup in self.arrived[-self.length :] if tup.id not in self.failed]
            if window.tuples != expected:
                raise Wrong(f"window {window.tuples} is not {expected}")
        new = [tup for tup in window.tuples if tup.id not in self.seen]
        if window.new != new:
            raise Wrong(f"{window.new} of a window are new, and {new} were in none before")
        self.seen.update(tup.id for tup in window.tuples)
        self.children(list(window.tuples), by_hand=self.chance.random() < 0.5)
        if self.fails_now():
            raise self.error()

    @property
    def next_start(self) -> int:
        """Number of tuples before the next window."""
        return (self.fired // self.step + 1) * self.step - self.length

    def check_ack(self, tup: Tuple) -> None:
        if self.is_by_number:
            number = next(place for place, one in enumerate(self.arrived, 1) if one.id == tup.id)
            if number > self.next_start:
                raise Wrong(f"tuple {number} was acked before its last window")
        elif self.timestamp_field is None and not self.length and tup.id not in self.seen:
            raise Wrong(f"{tup} was acked, and no window had it")


class Settles(TaskHook):
    """Tells the oracle what the product acks and fails."""

    def __init__(self, bolt: Windows) -> None:
        self.bolt = bolt

    def bolt_ack(self, info: BoltInfo) -> None:
        self.bolt.check_ack(info.tuple)
        self.bolt.world.oracle.acked(self.bolt.copies[info.tuple.id])

    def bolt_fail(self, info: BoltInfo) -> None:
        self.bolt.failed.add(info.tuple.id)
        self.bolt.world.oracle.failed(self.bolt.copies[info.tuple.id])


def windows_of(bolt: BoltPlan) -> dict[str, Any]:
    """The windows of a plan: by number without `tick_secs`, else by time, and by event time if it holds 4."""
    if bolt.tick_secs is None:
        return {"window": bolt.holds, "slide": 1 + bolt.emits}
    if bolt.holds == 4:
        return {"window": timedelta(milliseconds=8), "slide": timedelta(milliseconds=4), "timestamp_field": "serial"}
    length = timedelta(seconds=bolt.tick_secs)
    return {"window": length, "slide": length / 2}
