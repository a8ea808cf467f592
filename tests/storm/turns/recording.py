"""Recording of a run on Spark: the spouts' calls in this process, and those of the bolts in Python workers."""

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.storm.conformance.recording import Event, Recording, plain


class SparkRecording(Recording):
    """Calls of one run. Workers write theirs to files, so that all can be merged by time.

    Attributes:
        stop: set once a call was made as often as `ends_at` says.
    """

    def __init__(self, folder: Path, ends_at: dict[str, int]) -> None:
        super().__init__()
        self.stop = threading.Event()
        self._folder, self._home = folder, os.getpid()
        self._ends_at = ends_at
        self._left = Counter(ends_at)
        self._times: list[int] = []
        self._unwritten: list[tuple[int, Event]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "stop": None, "events": [], "_times": []}

    def log(self, component: str, index: int, call: str, **data: Any) -> Event:
        """Record a call. The target tasks of an emit are known when it has returned."""
        now, event = time.monotonic_ns(), Event(component, index, call, data)
        if os.getpid() == self._home:
            self.events.append(event)
            self._times.append(now)
            self._left[call] -= 1
            if call in self._ends_at and self._left[call] == 0:
                self.stop.set()
            return event
        self._unwritten.append((now, event))
        if self._unwritten[0][1].call != "emit" or call in ("emit_returned", "raised"):
            for one in self._unwritten:
                self._write(*one)
            self._unwritten = []
        return event

    def _write(self, now: int, event: Event) -> None:
        data = {key: str(value) if key == "error" else plain(value) for key, value in event.data.items()}
        line = json.dumps([now, event.component, event.index, event.call, data])
        with Path(self._folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def executed(self, component: str) -> int:
        """Number of tuples that a bolt has executed so far."""
        texts = [path.read_text(encoding="utf-8") for path in self._folder.glob("*.jsonl")]
        lines = [line for text in texts for line in text.split("\n")[:-1]]  # the last line may not be whole yet
        calls = [json.loads(line)[1:4:2] for line in lines]
        return calls.count([component, "execute"])

    def merged(self) -> Recording:
        """All calls, in order."""
        timed = list(zip(self._times, self.events, strict=True))
        for path in self._folder.glob("*.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                now, *event = json.loads(line)
                timed.append((now, Event(*event)))
        return Recording([event for _, event in sorted(timed, key=lambda one: one[0])], self.names)


class Ended:
    """A run that has ended, with what the checks of a scenario ask of one in process. Its time stands still."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def failed(self, spout: str) -> list[tuple[Any, str]]:
        return [(e.data["id"], e.data["reason"]) for e in self._recording.calls("fail", component=spout)]

    def pending(self, spout: str) -> list[Any]:
        calls = self._recording.calls("emit", "raised", "ack", "fail", component=spout)
        open_ids: list[Any] = []
        for event in calls:
            if "id" not in event.data or event.data["id"] is None:
                continue
            if event.call == "emit":
                open_ids.append(event.data["id"])
            else:
                open_ids.remove(event.data["id"])
        return open_ids

    def advance(self, secs: float) -> None: ...
