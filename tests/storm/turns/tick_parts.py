"""Bolts with ticks, which Python workers import. They note their calls in files."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acker_redis.storm import Bolt, RowFailedError, Spout, StatefulBolt, Tuple
from acker_redis.testing import wait_until

TICKS = {"topology.tick.tuple.freq.secs": 0.2}


class Noting(Bolt):
    """Notes its calls, and emits the name of each: `tick`, or the value."""

    outputs = ["v string", "task bigint"]
    config = TICKS

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def note(self, *what: object) -> None:
        with Path(self.folder, f"{self.component_name}-{self.task_id}").open("a") as file:
            file.write(" ".join(map(str, what)) + "\n")

    def process(self, tup: Tuple) -> None:
        self.note("tuple", tup.values[0])
        self.emit([str(tup.values[0]), self.task_id])

    def process_tick(self, tup: Tuple) -> None:
        self.note("tick", tup.id, *tup.values)
        self.emit(["tick", self.task_id])


class Ending(Noting):
    """The last bolt, without ticks."""

    config = {}


class Counting(Noting, StatefulBolt):
    """Counts its tuples in its state, and emits the number at each tick."""

    def process(self, tup: Tuple) -> None:
        self.state["n"] = self.state.get("n", 0) + 1

    def process_tick(self, tup: Tuple) -> None:
        self.emit([str(self.state.pop("n", 0)), self.task_id])


class Raises(Noting):
    def process_tick(self, tup: Tuple) -> None:
        self.note("tick")
        raise KeyError("tick") if len(noted(Path(self.folder), "a")) % 2 else RowFailedError("no tick")


class DiesAtTicks(Noting):
    """Its worker dies at each tick, up to a number of times."""

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__(folder)
        self.most = most

    def process_tick(self, tup: Tuple) -> None:
        self.note("tick")
        if len(noted(Path(self.folder), self.component_name)) <= self.most:
            os.kill(os.getpid(), signal.SIGKILL)


class DiesAtTuple(Noting):
    def process(self, tup: Tuple) -> None:
        if tup.values[0] == "bad":
            os.kill(os.getpid(), signal.SIGKILL)
        super().process(tup)


def noted(folder: Path, component: str) -> list[str]:
    """Calls of a component, in order of each of its tasks."""
    return [line for path in sorted(folder.glob(f"{component}-*")) for line in path.read_text().splitlines()]


def source(values: Sequence[str | None], heard: list[Any], is_over: Callable[[], bool], stop: Any) -> type[Spout]:
    """A spout that emits each value once, and stops the run when something has happened.

    At None a turn ends, and the next one begins when ticks are due.
    """
    left = list(values)[::-1]

    class Source(Spout):
        outputs = ["v"]
        is_waiting = False

        def next_tuple(self) -> None:
            if left and left[-1] is None:
                left.pop()
                self.is_waiting = True
            elif left:
                if self.is_waiting:
                    due = time.monotonic() + 0.3
                    wait_until(lambda: time.monotonic() > due, "the time of a tick")
                    self.is_waiting = False
                value = left.pop()
                self.emit([value], tup_id=value)
            elif is_over():
                stop.set()

        def ack(self, tup_id: Any) -> None:
            heard.append(("ack", tup_id))

        def fail(self, tup_id: Any, reason: str) -> None:
            heard.append(("fail", tup_id, reason.partition(":")[0]))

    return Source
