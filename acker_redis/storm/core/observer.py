"""Observer of a run: metrics, the event log, and for tests everything that was emitted and executed."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from acker_redis.storm.core.event_log import Event, EventLog
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.tuples import Tuple


class FailedTree(NamedTuple):
    """Tree that failed or timed out.

    Attributes:
        spout: name of the spout that emitted the message.
        task: id of its task.
        tup_id: id of the message.
        reason: text of the fail, or `timeout`, or `lost` if Redis lost its root.
        last_component: component that failed a tuple of the tree first, or else acked one last. Before any bolt did, it is
            the spout.
    """

    spout: str
    task: int
    tup_id: Any
    reason: str
    last_component: str


class Observer:
    """Counts and records what components do.

    Attributes:
        metrics: component -> metrics.
        events: event log.
        emitted: (component, stream) -> values, if everything is recorded.
        executed: component -> values, if everything is recorded.
        is_recording: True if everything is recorded.
    """

    def __init__(
        self, components: Iterable[str], events: EventLog, now_secs: Callable[[], float], *, is_recording: bool
    ) -> None:
        self.metrics = {component: ComponentMetrics() for component in components}
        self.events = events
        self.emitted: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self.executed: dict[str, list[Any]] = defaultdict(list)
        self._now_secs = now_secs
        self.is_recording = is_recording

    def note_emit(self, component: str, task: int, stream: str, values: Any, tup_id: Any) -> None:
        """Note the values of an emit, if everything is recorded or the component is debugged."""
        if self.is_recording:
            self.emitted[component, stream].append(values)
        if self.events.is_on(component):
            self.events.add(Event(component, task, stream, tup_id, values, self._now_secs()))

    def note_execution(self, component: str, tup: Tuple) -> None:
        """Note the values of a tuple that was executed, if everything is recorded."""
        if self.is_recording and not tup.is_tick:
            self.executed[component].append(tup.values)
