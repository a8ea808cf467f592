"""Routing: the tasks that receive an emitted tuple, chosen by the emitter as in Storm."""

import copy
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm.core import java_hash
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.edges import CallEdges
from acker_redis.storm.core.tuples import values_type
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph, Subscription
from acker_redis.storm.definition.groupings import CustomGrouping, Kind
from acker_redis.storm.definition.streams import Stream, StreamId

Chooser: TypeAlias = Callable[[Sequence[Any], CallEdges], Sequence[int]]
"""Function that chooses the tasks of one subscriber, for the values and the call of an emit."""

_KNOWN, _KNOWN_CHARS = 10_000, 100
"""Number and length of the texts whose tasks a fields grouping remembers."""


class Router:
    """Chooses the targets of one task's emits.

    A choice depends on the run, task, call and emit only, or on the values. Partial key and custom groupings, and an even
    shuffle, depend on the task's earlier emits as well.
    """

    def __init__(self, graph: Graph, context: TopologyContext) -> None:
        self._graph = graph
        self._component = context.component
        self._streams = context.streams
        self._choosers: dict[str, Chooser] = {}
        self._even = bool(context.conf.get(settings.DISABLE_LOADAWARE))
        for name, stream in context.streams.items():
            self._choosers[name] = _all_of(
                [
                    self._chooser(number, subscription, stream, context)
                    for number, subscription in enumerate(graph.subscribers.get((context.component, name), ()))
                ]
            )

    def stream(self, name: str) -> Stream:
        """Return a declared stream.

        Raises:
            BadTupleError: the component doesn't declare it.
        """
        stream = self._streams.get(name) if isinstance(name, str) else None
        if stream is None:
            if len(self._streams) == 1:  # the system stream, which every component has
                raise BadTupleError(
                    f"Component {self._component!r} declares no outputs, so it can't emit. Set outputs = [...] in its class."
                )
            raise BadTupleError(
                f"Component {self._component!r} does not declare the stream {name!r}. "
                f"{settings.nearest(str(name), self._streams, 'stream')}"
            )
        return stream

    def chooser(self, stream: Stream) -> Chooser:
        """Return the function that chooses the targets of a regular emit.

        It raises BadTupleError if the stream is direct, or if a custom grouping chose a task that its subscriber doesn't have.
        """
        if not stream.direct:
            return self._choosers[stream.name]

        def refuse(values: Sequence[Any], call: CallEdges) -> Sequence[int]:  # noqa: ARG001
            raise BadTupleError(
                f"Stream {stream.name!r} of {self._component!r} is direct, so an emit must name its task. Pass direct_task."
            )

        return refuse

    def direct_targets(self, stream: Stream, task: int) -> list[int]:
        """Return the target of a direct emit, or none if the task's component doesn't subscribe to the stream.

        Raises:
            BadTupleError: the stream isn't direct, or there is no such task.
        """
        target = _task_among(self._graph.component_of, task)
        if target is None:
            raise BadTupleError(
                f"direct_task={task!r} is not a task of the topology. Nothing was sent. Use a number from "
                "context.tasks(component)."
            )
        if not stream.direct:
            raise BadTupleError(
                f"Stream {stream.name!r} of {self._component!r} is not direct, so its subscribers' groupings choose the task. "
                "Omit direct_task, or declare the stream with direct=True."
            )
        subscribers = self._graph.subscribers.get((self._component, stream.name), ())
        component = self._graph.component_of[target]
        return [target] if any(subscription.target == component for subscription in subscribers) else []

    def _chooser(self, number: int, subscription: Subscription, stream: Stream, context: TopologyContext) -> Chooser:
        tasks = self._graph.components[subscription.target].task_ids
        grouping, count = subscription.grouping, len(tasks)
        kind = grouping.kind
        if grouping.custom is not None:
            return _custom(grouping.custom, stream, tasks, context)
        if kind is Kind.ALL:
            return lambda values, call: tasks
        if count == 1 or kind is Kind.GLOBAL:
            return lambda values, call: tasks[:1]
        if kind in (Kind.FIELDS, Kind.PARTIAL_KEY):
            places = [stream.fields.index(name) for name in grouping.field_names]
            return (_by_fields if kind is Kind.FIELDS else _partial_key)(places, tasks)
        if self._even and kind in (Kind.SHUFFLE, Kind.LOCAL_OR_SHUFFLE):
            return _even(tasks, context.task_id + number)
        return lambda values, call: (tasks[call.choice(number, count)],)


def _all_of(choosers: Sequence[Chooser]) -> Chooser:
    if len(choosers) == 1:
        return choosers[0]
    return lambda values, call: [task for choose in choosers for task in choose(values, call)]


def _by_fields(places: Sequence[int], tasks: Sequence[int]) -> Chooser:
    count = len(tasks)

    def choose(values: Sequence[Any], call: CallEdges) -> Sequence[int]:  # noqa: ARG001
        return (tasks[java_hash.task_index([values[place] for place in places], count)],)

    if len(places) > 1:
        return choose
    (place,) = places
    known: dict[str, Sequence[int]] = {}

    def choose_by_text(values: Sequence[Any], call: CallEdges) -> Sequence[int]:
        text = values[place]
        if type(text) is not str or len(text) > _KNOWN_CHARS:
            return choose(values, call)
        found = known.get(text)
        if found is None:
            if len(known) >= _KNOWN:
                known.clear()
            found = known[text] = choose(values, call)
        return found

    return choose_by_text


def _even(tasks: Sequence[int], start: int) -> Chooser:
    at = start

    def choose(values: Sequence[Any], call: CallEdges) -> Sequence[int]:
        nonlocal at
        at += 1
        return (tasks[at % len(tasks)],)

    return choose


def _partial_key(places: Sequence[int], tasks: Sequence[int]) -> Chooser:
    chosen = [0] * len(tasks)

    def choose(values: Sequence[Any], call: CallEdges) -> Sequence[int]:
        first, second = java_hash.two_choices([values[place] for place in places], len(tasks))
        index = second if chosen[second] < chosen[first] else first
        chosen[index] += 1
        return (tasks[index],)

    return choose


def _custom(grouping: CustomGrouping, stream: Stream, tasks: Sequence[int], context: TopologyContext) -> Chooser:
    try:
        own = copy.deepcopy(grouping)
    except Exception as exc:  # whatever a class's own code raises
        raise InvalidTopologyError(
            f"The grouping {grouping!r} of stream {stream.name!r} of {context.component!r} can't be copied, but each task "
            f"needs its own. Open files and connections in prepare(). The copy failed with: {exc!r}."
        ) from exc
    own.prepare(context, StreamId(context.component, stream.name), list(tasks))
    known, make = frozenset(tasks), values_type(stream)._make

    def choose(values: Sequence[Any], call: CallEdges) -> Sequence[int]:
        chosen: Any = own.choose_tasks(context.task_id, make(values))
        targets = []
        for task in chosen if isinstance(chosen, Iterable) else [chosen]:
            target = _task_among(known, task)
            if target is None:
                what = "nothing (None)" if chosen is None else f"task {task!r}, which its subscriber does not have"
                raise BadTupleError(
                    f"The grouping {own!r} chose {what}. Nothing was sent. Return a list of tasks from {list(tasks)}, or [] "
                    "for none."
                )
            targets.append(target)
        return targets

    return choose


def _task_among(tasks: Container[int], task: object) -> int | None:
    """Return the id of a task as an int; None if it is none of these tasks. True and 1.0 are no ids, although they equal 1."""
    if isinstance(task, bool) or not isinstance(task, (int, np.integer)) or task not in tasks:
        return None
    return int(task)
