"""Tuples as bolts receive them (Storm: TupleImpl; streamparse: Tuple)."""

from collections import namedtuple
from enum import IntEnum
from functools import lru_cache
from typing import Any

from acker_redis.storm.definition.streams import SYSTEM, TICK, Stream


class State(IntEnum):
    """State of a tuple at the bolt that received it."""

    PENDING = 0
    ACKED = 1
    FAILED = 2
    COPY = 3


PENDING, ACKED, FAILED, COPY = State  # bare names, because each tuple needs them several times


class Tuple:
    """Tuple that a bolt processes.

    Attributes:
        id: id of this tuple, unique in the run. `ack`, `fail` and `anchors` take it in place of the tuple.
        component: name of the component that emitted it.
        stream: name of the stream.
        task: id of the task that emitted it; -1 for a tick.
        values: values, as a namedtuple of the stream's fields.
        source: component and stream, as `component:stream`.
        edges: root -> value that an ack of this tuple XORs into the ledger. For runners; bolts leave it alone.
        state: whether the bolt acked or failed it. For runners.
        began: time at which its execution began, by `time.perf_counter`. For runners.

    >>> Tuple("1", "lines", "default", 1, ("a b",)).values[0]
    'a b'
    """

    __slots__ = ("began", "component", "edges", "id", "source", "state", "stream", "task", "values")

    def __init__(
        self,
        id: str,  # noqa: A002  # streamparse's name
        component: str,
        stream: str,
        task: int,
        values: Any,
        edges: dict[int, int] | None = None,
        source: str | None = None,
    ) -> None:
        self.id = id
        self.component = component
        self.stream = stream
        self.task = task
        self.values = values
        self.edges = {} if edges is None else edges
        self.source = source or f"{component}:{stream}"
        self.state = PENDING
        self.began = 0.0

    @property
    def is_tick(self) -> bool:
        """True if this is a tick tuple."""
        return self.stream == TICK and self.component == SYSTEM

    def __reduce__(self) -> tuple[Any, ...]:
        """Serialise it as a value. A copy belongs to no message, so that one tuple can't be acked as two."""
        fields = getattr(self.values, "_fields", None)
        return _copied, (self.id, self.component, self.stream, self.task, tuple(self.values), fields)

    def __repr__(self) -> str:
        return (
            f"Tuple(id={self.id!r}, component={self.component!r}, stream={self.stream!r}, task={self.task}, "
            f"values={self.values!r})"
        )


def _copied(
    id: str,  # noqa: A002  # as above
    component: str,
    stream: str,
    task: int,
    values: tuple[Any, ...],
    fields: tuple[str, ...] | None,
) -> Tuple:
    copied = Tuple(id, component, stream, task, values if fields is None else _made(fields)._make(values))
    copied.state = COPY
    return copied


@lru_cache(maxsize=1000)
def _made(fields: tuple[str, ...]) -> Any:
    return namedtuple("Values", fields, rename=True)


SYSTEM_TASK = -1
"""Id of the task that ticks come from."""


def values_type(stream: Stream) -> Any:
    """Make the namedtuple of a stream's values. Fields that can't be its attributes are reached by index.

    >>> values_type(Stream(["word", "global-count"]))._make(["a", 1])[1]
    1
    """
    return namedtuple("Values", stream.fields, rename=True)
