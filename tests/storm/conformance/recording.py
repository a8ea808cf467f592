"""Spouts and bolts that record their calls, and the facts of a recording in the form of `tests/data/storm_vectors.json`."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from acker_redis.errors import AckerError
from acker_redis.storm import Bolt, Spout, StatefulBolt, Stream, Tuple, TupleWindow, WindowedBolt

Facts = dict[str, Any]
Outputs = Sequence[str] | Sequence[Stream]

LIFECYCLE = {"initialize", "activate", "deactivate", "close"}
SYSTEM = "__system"


@dataclass
class Event:
    """One call of one task."""

    component: str
    index: int
    call: str
    data: dict[str, Any]

    @property
    def task(self) -> str:
        return f"{self.component}[{self.index}]"


@dataclass
class Recording:
    """The calls of one run, in order. A run has one thread, so the order is real."""

    events: list[Event] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """`component[index]` by task id."""

    def log(self, component: str, index: int, call: str, **data: Any) -> Event:
        self.events.append(Event(component, index, call, data))
        return self.events[-1]

    def calls(self, *calls: str, component: str | None = None) -> list[Event]:
        return [e for e in self.events if e.call in calls and component in (None, e.component)]

    def values(self, component: str) -> list[Any]:
        """The first value of each tuple that a bolt executed, ticks left out, in order."""
        return [e.data["values"][0] for e in self.calls("execute", component=component) if e.data["stream"] != "__tick"]

    def facts(self) -> Facts:
        emitted: dict[str, list[Any]] = defaultdict(list)
        lifecycle: dict[str, list[str]] = defaultdict(list)
        executed: dict[str, list[Any]] = defaultdict(list)
        raised: dict[str, int] = defaultdict(int)
        for event in self.events:
            if event.call == "emit" and "id" in event.data:
                emitted[event.task].append([event.data["stream"], event.data["values"], event.data["id"]])
            elif event.call in LIFECYCLE:
                lifecycle[event.task].append(event.call)
            elif event.call == "execute" and event.data["stream"] != "__tick":
                row = [event.data["source"], event.data["stream"], event.data["values"]]
                executed[event.component].append(row)
            elif event.call == "raised":
                raised[event.component] += 1
        outcomes = {call: [[e.component, e.index, e.data["id"]] for e in self.calls(call)] for call in ("ack", "fail")}
        return {
            "acked": by_text(outcomes["ack"]),
            "failed": by_text(outcomes["fail"]),
            "emitted": {task: by_text(rows) for task, rows in emitted.items()},
            "executed": {name: by_text(rows) for name, rows in executed.items()},
            "raised": dict(raised),
            "lifecycle": dict(lifecycle),
        }

    def check_what_storm_always_guarantees(self) -> None:
        """The `common` guarantees of the recordings."""
        self._check_life()
        self._check_outcomes()
        self._check_order()

    def _check_life(self) -> None:
        seen: dict[str, set[str]] = defaultdict(set)
        for event in self.events:
            before = {"activate": "initialize", "next_tuple": "activate", "execute": "initialize"}.get(event.call)
            if before is not None:
                assert before in seen[event.task], f"{event.call} of {event.task} came before {before}"
            assert "close" not in seen[event.task] or event.call == "raised", f"{event.call} after close"
            seen[event.task].add(event.call)

    def _check_outcomes(self) -> None:
        """At most one per emit, at the task that emitted, and never before the emit."""
        open_ids: dict[tuple[str, str], int] = defaultdict(int)
        for event in self.events:
            if event.call == "emit" and event.data.get("id") is not None:
                open_ids[event.task, text(event.data["id"])] += 1
            elif event.call == "raised" and "id" in event.data:
                open_ids[event.task, text(event.data["id"])] -= 1
            elif event.call in ("ack", "fail"):
                key = event.task, text(event.data["id"])
                assert open_ids[key] > 0, f"{event.call} of {event.data['id']!r} at {event.task} has no emit"
                open_ids[key] -= 1

    def _check_order(self) -> None:
        """Per pair of tasks the order of emits is the order of executes."""
        sent: dict[tuple[str, str], list[Any]] = defaultdict(list)
        received: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for event in self.events:
            if event.call == "emit":
                for task in event.data["tasks"] or ():
                    sent[event.task, self.names[task]].append((event.data["stream"], text(event.data["values"])))
            elif event.call == "execute" and event.data["source"] is not None:
                row = (event.data["stream"], text(event.data["values"]))
                received[event.data["source"], event.task].append(row)
        for pair, rows in received.items():
            if not pair[0].startswith(SYSTEM):
                assert rows == sent[pair][: len(rows)], f"order from {pair[0]} to {pair[1]}"


def text(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)


def by_text(rows: Iterable[Any]) -> list[Any]:
    return sorted((plain(row) for row in rows), key=text)


def plain(value: Any) -> Any:
    """As JSON has it; any other object by its text, as the recorder wrote it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return f"<{type(value).__name__} {value}>"


class _Recorded:
    """Calls of one task."""

    recording: ClassVar[Recording]

    def note(self, call: str, /, **data: Any) -> Event:
        return self.recording.log(self.component_name, self.index, call, **data)  # type: ignore[attr-defined]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the scenario, if it has this one."""
        function = getattr(type(self), name, None)
        if function is not None:
            function(self, *arguments)

    def begin(self, context: Any) -> None:
        self.context = context
        self.index = context.task_index
        self.clear()
        self.recording.names[context.task_id] = f"{context.component}[{self.index}]"
        self.note("initialize")

    def clear(self) -> None:
        self.n = 0
        self.kept: Any = {}


class RecordingSpout(_Recorded, Spout):
    """A spout with a function for `next_tuple`, and, where a scenario wants them, for `ack` and `fail`."""

    outputs = ["v"]
    on_next: ClassVar[Callable[["RecordingSpout"], None]]

    def initialize(self, conf: Any, context: Any) -> None:
        self.begin(context)
        self.call("on_open")

    def activate(self) -> None:
        self.note("activate")

    def deactivate(self) -> None:
        self.note("deactivate")

    def close(self) -> None:
        self.note("close")

    def next_tuple(self) -> None:
        self.note("next_tuple")
        type(self).on_next(self)

    def ack(self, tup_id: Any) -> None:
        self.note("ack", id=tup_id)
        self.call("on_ack", tup_id)

    def fail(self, tup_id: Any, reason: str) -> None:
        self.note("fail", id=tup_id, reason=reason)
        self.call("on_fail", tup_id)

    def send(self, tup_id: Any, *values: Any, stream: str = "default", to: int | None = None) -> None:
        """Emit, and record what came of it. A refusal is caught."""
        event = self.note("emit", stream=stream, values=list(values), id=tup_id, tasks=[])
        try:
            tasks = self.emit(list(values), tup_id=tup_id, stream=stream, direct_task=to, need_task_ids=to is None)
        except AckerError as error:
            self.note("raised", id=tup_id, error=error)
        else:
            event.data["tasks"] = tasks if to is None else [to]
            self.note("emit_returned", id=tup_id)

    def die(self, where: str) -> None:
        self.note("raised")
        raise RuntimeError(where)


class RecordingBolt(_Recorded, Bolt):
    """A bolt that acks, fails and anchors by hand, as Storm's rich bolts do."""

    outputs = ["v"]
    auto_anchor = False
    auto_ack = False
    auto_fail = False
    cache = True  # on Spark, for scenarios of one turn
    on_tuple: ClassVar[Callable[["RecordingBolt", Tuple], None]]

    def initialize(self, conf: Any, context: Any) -> None:
        self.begin(context)
        self.call("on_open")

    def process(self, tup: Tuple) -> None:
        self.note("execute", source=self.recording.names.get(tup.task), stream=tup.stream, values=list(tup.values))
        type(self).on_tuple(self, tup)

    def process_tick(self, tup: Tuple) -> None:
        self.note("execute", source=tup.component, stream=tup.stream, values=list(tup.values))
        type(self).on_tuple(self, tup)

    def close(self) -> None:
        self.note("close")

    def send(self, anchors: list[Tuple] | None, *values: Any, stream: str = "default") -> None:
        """Emit anchored to these, and record what came of it. A refusal is caught."""
        event = self.note("emit", stream=stream, values=list(values), tasks=[])
        try:
            tasks = self.emit(list(values), stream=stream, anchors=anchors, need_task_ids=True)
        except AckerError as error:
            self.note("raised", error=error)
        else:
            event.data["tasks"] = tasks
            self.note("emit_returned")

    def ack(self, tup: Any) -> None:
        self._settle("collector.ack", super().ack, tup)

    def fail(self, tup: Any, reason: str | None = None) -> None:
        self._settle("collector.fail", super().fail, tup)

    def _settle(self, call: str, settle: Callable[[Any], None], tup: Tuple) -> None:
        try:
            settle(tup)
        except AckerError as error:
            self.note("raised", error=error)
        else:
            self.note(call, values=list(tup.values))


class RecordingHolder(RecordingBolt, StatefulBolt):
    """A bolt that keeps all that it knows in its state, tuples too, so that it can hold them over turns."""

    def clear(self) -> None:
        """Another worker may have begun the state."""

    @property
    def kept(self) -> Any:
        return self.state

    @property
    def n(self) -> int:
        return int(self.state.get("n", 0))

    @n.setter
    def n(self, value: int) -> None:
        self.state["n"] = value


class RecordingWindowedBolt(_Recorded, WindowedBolt):
    """A bolt that records its windows, and emits the text of their values."""

    outputs = ["v"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.begin(context)

    def process_window(self, window: TupleWindow) -> None:
        values, new, expired = ([tup.values.v for tup in of] for of in (window.tuples, window.new, window.expired))
        self.note("execute", source=None, stream=None, values=values, new=new, expired=expired)
        event = self.note("emit", stream="default", values=[str(values)], tasks=[])
        event.data["tasks"] = self.emit([str(values)], need_task_ids=True)
        self.note("emit_returned")

    def close(self) -> None:
        self.note("close")


def windows(recording: Recording, window: int, slide: int) -> type[RecordingWindowedBolt]:
    """A class of windowed bolts."""
    return type("Win", (RecordingWindowedBolt,), {"recording": recording, "window": window, "slide": slide})


def spout(
    recording: Recording,
    on_next: Callable[[RecordingSpout], None],
    *,
    outputs: Outputs | None = None,
    config: dict[str, Any] | None = None,
    **functions: Callable[..., object],
) -> type[RecordingSpout]:
    """A class of spouts that emit by this function."""
    namespace = {name: staticmethod(function) for name, function in functions.items()}
    return type(
        "Source",
        (RecordingSpout,),
        {"recording": recording, "on_next": staticmethod(on_next), "outputs": outputs or ["v"], "config": config or {}}
        | namespace,
    )


def bolt(
    recording: Recording,
    on_tuple: Callable[[RecordingBolt, Tuple], None],
    *,
    outputs: Outputs | None = None,
    tick: int | None = None,
    holds: bool = False,
    **functions: Callable[..., object],
) -> type[RecordingBolt]:
    """A class of bolts that process by this function, and may hold tuples."""
    config = {"topology.tick.tuple.freq.secs": tick} if tick else {}
    namespace = {name: staticmethod(function) for name, function in functions.items()}
    return type(
        "Step",
        (RecordingHolder if holds else RecordingBolt,),
        {"recording": recording, "on_tuple": staticmethod(on_tuple), "outputs": outputs or ["v"], "config": config}
        | namespace,
    )


def upto(count: int) -> Callable[[RecordingSpout], None]:
    """`next_tuple` of a spout that emits 1, 2, 3 … as m1, m2, m3 …, one per call."""

    def next_tuple(self: RecordingSpout) -> None:
        if self.n < count:
            self.n += 1
            self.send(f"m{self.n}", self.n)

    return next_tuple


def pass_on(self: RecordingBolt, tup: Tuple) -> None:
    self.send([tup], *tup.values)
    self.ack(tup)


def take(self: RecordingBolt, tup: Tuple) -> None:
    self.ack(tup)


def is_tick(tup: Tuple) -> bool:
    return tup.stream == "__tick"
