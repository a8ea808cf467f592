"""Event log: emitted tuples of components that are debugged, sampled (Storm: EventLoggerBolt)."""

import pickle
import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_MAX_EVENTS, _MAX_BYTES = 1000, 1 << 20
"""Events that a task of Spark reports at most, and the bytes of their values."""


class Event(NamedTuple):
    """Emit of a tuple.

    Attributes:
        component: name of the emitting component.
        task: id of the emitting task.
        stream: name of the stream.
        tup_id: id of the message; None for a bolt and for a message that isn't tracked.
        values: values of the tuple.
        secs: time of the emit by the run's clock, in seconds.
    """

    component: str
    task: int
    stream: str
    tup_id: Any
    values: Any
    secs: float


class EventLog:
    """Emitted tuples, of components that are debugged only. The newest `most` are kept.

    Attributes:
        is_any_on: True if some component's emits are logged.
    """

    def __init__(self, rng: random.Random, most: int = 100_000) -> None:
        self._rng = rng
        self._events: deque[Event] = deque(maxlen=most)
        self._percents: dict[str, float] = {}
        self.is_any_on = False

    def debug(self, component: str, percent: float) -> None:
        """Log this share of a component's emits from now on, 0 to 100 percent."""
        self._percents[component] = percent
        self.is_any_on = any(self._percents.values())

    @property
    def percents(self) -> dict[str, float]:
        """Component -> percent of its emits that are logged."""
        return dict(self._percents)

    def keep(self, event: Event) -> None:
        """Keep an event that a sample took elsewhere."""
        self._events.append(event)

    def is_on(self, component: str) -> bool:
        """Return True if a component's emits are logged."""
        return self._percents.get(component, 0) > 0

    def add(self, event: Event) -> None:
        """Add an event, if its component is debugged and the sample takes it."""
        percent = self._percents.get(event.component, 0)
        if percent >= 100 or (percent > 0 and self._rng.random() * 100 < percent):
            self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)


def plain_events(events: Iterable[Event]) -> list[Event]:
    """Return the first events, with values of plain types, within the bounds of a report."""
    plain: list[Event] = []
    left = _MAX_BYTES
    for event in events:
        made = event._replace(values=tuple(event.values))
        left -= len(pickle.dumps(made.values, 5))  # they were serialised for their emit, too
        if len(plain) >= _MAX_EVENTS or left < 0:
            break
        plain.append(made)
    return plain
