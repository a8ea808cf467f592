"""Graph of a topology: components with their tasks, streams and subscriptions. Checked when it is built."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.groupings import Grouping, Kind
from acker_redis.storm.definition.specs import ComponentKind
from acker_redis.storm.definition.streams import Stream, streams_of


@dataclass(frozen=True)
class Subscription:
    """Input of a bolt: a stream of a component, and the grouping.

    Attributes:
        source: name of the emitting component.
        stream: name of its stream.
        target: name of the bolt.
        grouping: rule that chooses the bolt's tasks.
    """

    source: str
    stream: str
    target: str
    grouping: Grouping


@dataclass(frozen=True)
class Component:
    """Spout or bolt of a topology.

    Attributes:
        name: name of the component.
        kind: `spout` or `bolt`.
        maker: class or object that the tasks are made from.
        streams: declared streams by name, with `__system`.
        inputs: subscriptions of a bolt.
        par: number of executors that it asks for.
        own_tasks: number of tasks that it asks for; None for that of the topology, or one per executor.
        config: settings of this component alone.
        executors: number of executors; as the two below, decided when the graph is complete.
        tasks: number of tasks.
        task_ids: ids of the tasks, ascending.
    """

    name: str
    kind: ComponentKind
    maker: Any
    streams: Mapping[str, Stream]
    inputs: tuple[Subscription, ...]
    par: int
    own_tasks: int | None
    config: Mapping[str, Any]
    executors: int = 0
    tasks: int = 0
    task_ids: tuple[int, ...] = ()

    def stream(self, name: str) -> Stream:
        """Return a stream by name.

        Raises:
            InvalidTopologyError: the component doesn't declare it.
        """
        if not isinstance(name, str) or name not in self.streams:
            raise InvalidTopologyError(
                f"Component {self.name!r} has no stream {name!r}. {settings.nearest(str(name), self.streams, 'stream')}"
            )
        return self.streams[name]

    def executor_tasks(self) -> list[tuple[int, ...]]:
        """Split the tasks among the executors: neighbours together, the larger parts first (Storm: Utils.partitionFixed)."""
        size, larger = divmod(self.tasks, self.executors)
        parts, start = [], 0
        for number in range(self.executors):
            stop = start + size + (number < larger)
            parts.append(self.task_ids[start:stop])
            start = stop
        return parts


@dataclass(frozen=True)
class Graph:
    """All components of a topology, checked.

    Attributes:
        name: name of the topology.
        components: components by name.
        config: settings of the topology.
        component_of: task id -> name of its component.
        subscribers: (component, stream) -> subscriptions.
    """

    name: str
    components: Mapping[str, Component]
    config: Mapping[str, Any]
    component_of: Mapping[int, str] = field(default_factory=dict)
    subscribers: Mapping[tuple[str, str], tuple[Subscription, ...]] = field(default_factory=dict)

    @property
    def spouts(self) -> list[Component]:
        """Spouts, in the order of their tasks."""
        return [component for component in self.components.values() if component.kind == "spout"]

    @property
    def bolts(self) -> list[Component]:
        """Bolts, in the order of their tasks."""
        return [component for component in self.components.values() if component.kind == "bolt"]

    def component(self, name: str) -> Component:
        """Return a component by name.

        Raises:
            InvalidTopologyError: there is none.
        """
        if not isinstance(name, str) or name not in self.components:
            raise InvalidTopologyError(
                f"Topology {self.name!r} has no component {name!r}. "
                f"{settings.nearest(str(name), self.components, 'component')}"
            )
        return self.components[name]


def make_component(
    name: object,
    kind: ComponentKind,
    maker: Any,
    *,
    par: object,
    inputs: Iterable[Subscription] = (),
    tasks: object = None,
    config: object = None,
) -> Component:
    """Make a component, and check everything that it says about itself.

    Raises:
        InvalidTopologyError: a name, number, stream or setting is invalid.
    """
    if not isinstance(name, str) or not name:
        raise InvalidTopologyError(f"{name!r} is not the name of a component. Pass a text.")
    if name.startswith("__"):
        raise InvalidTopologyError(
            f"Component {name!r} has a name of Storm's. Begin it with another character than '__'."
        )
    owner = f"component {name!r}"
    own = settings.check_own(getattr(maker, "config", None), owner) | settings.check_own(config, owner)
    own_tasks = own.get(settings.TASKS) if tasks is None else tasks
    return Component(
        name=name,
        kind=kind,
        maker=maker,
        streams=MappingProxyType(streams_of(getattr(maker, "outputs", None), owner)),
        inputs=tuple(inputs),
        par=_count("par", 1 if par is None else par, owner),
        own_tasks=None if own_tasks is None else _count("tasks", own_tasks, owner),
        config=MappingProxyType(own),
    )


def make_graph(name: str, components: Iterable[Component], config: object) -> Graph:
    """Put components together, check their subscriptions and number their tasks.

    Task ids count from 1, in the order of the components' names.

    Raises:
        InvalidTopologyError: the topology has no spout, or a subscription names an unknown component, stream or field, or a
            direct grouping and a stream don't fit.
    """
    checked = settings.check(config, f"topology {name!r}")
    by_name: dict[str, Component] = {}
    for component in components:
        if component.name in by_name:
            raise InvalidTopologyError(f"Two components are named {component.name!r}. Give each a name of its own.")
        by_name[component.name] = component
    return _named(Graph(name, MappingProxyType(by_name), MappingProxyType(checked)))


def with_config(graph: Graph, conf: object) -> Graph:
    """Return the graph with more settings, which replace those of the topology."""
    config = {**graph.config, **settings.check(conf, f"topology {graph.name!r}", "conf")}
    return _named(replace(graph, config=MappingProxyType(config)))


def _named(graph: Graph) -> Graph:
    """Give the graph the name in its settings, if they have one: its state, counts and dead letters are kept under it."""
    return _numbered(replace(graph, name=str(graph.config.get(settings.NAME, graph.name))))


def _numbered(graph: Graph) -> Graph:
    _check(graph)
    components: dict[str, Component] = {}
    component_of: dict[int, str] = {}
    first = 1
    for name in sorted(graph.components):
        component = graph.components[name]
        most = component.config.get(settings.MAX_TASK_PARALLELISM, graph.config.get(settings.MAX_TASK_PARALLELISM))
        tasks = component.own_tasks or graph.config.get(settings.TASKS) or component.par
        tasks = tasks if most is None else min(tasks, most)
        task_ids = tuple(range(first, first + tasks))
        first += tasks
        component_of |= dict.fromkeys(task_ids, name)
        components[name] = replace(component, tasks=tasks, executors=min(component.par, tasks), task_ids=task_ids)
    subscribers: dict[tuple[str, str], tuple[Subscription, ...]] = {}
    for component in components.values():
        for subscription in component.inputs:
            place = (subscription.source, subscription.stream)
            subscribers[place] = (*subscribers.get(place, ()), subscription)
    return replace(
        graph,
        components=MappingProxyType(components),
        component_of=MappingProxyType(component_of),
        subscribers=MappingProxyType(subscribers),
    )


def _check(graph: Graph) -> None:
    if not graph.spouts:
        raise InvalidTopologyError(f"Topology {graph.name!r} has no spout, so nothing would ever happen. Add one.")
    for component in graph.components.values():
        seen = set()
        for subscription in component.inputs:
            _check_subscription(graph, subscription)
            place = (subscription.source, subscription.stream)
            if place in seen:
                raise InvalidTopologyError(
                    f"Component {component.name!r} subscribes to stream {subscription.stream!r} of {subscription.source!r} "
                    "twice. Keep one of the groupings."
                )
            seen.add(place)


def _check_subscription(graph: Graph, subscription: Subscription) -> None:
    where = f"Component {subscription.target!r} subscribes to "
    source = graph.components.get(subscription.source)
    if source is None:
        raise InvalidTopologyError(
            f"{where}the unknown component {subscription.source!r}. "
            f"{settings.nearest(str(subscription.source), graph.components, 'component')}"
        )
    stream = source.streams.get(subscription.stream)
    if stream is None:
        raise InvalidTopologyError(
            f"{where}stream {subscription.stream!r}, which {source.name!r} does not declare. "
            f"{settings.nearest(str(subscription.stream), source.streams, 'stream')}"
        )
    for field_name in subscription.grouping.field_names:
        if field_name not in stream.fields:
            raise InvalidTopologyError(
                f"{where}stream {stream.name!r} of {source.name!r} by field {field_name!r}, which the stream lacks. "
                f"{settings.nearest(field_name, stream.fields, 'field')}"
            )
    is_direct = subscription.grouping.kind is Kind.DIRECT
    if is_direct and not stream.direct:
        raise InvalidTopologyError(
            f"{where}stream {stream.name!r} of {source.name!r} by Grouping.DIRECT, but the stream is not direct. Declare it "
            "with Stream(..., direct=True)."
        )
    if stream.direct and not is_direct:
        raise InvalidTopologyError(
            f"{where}the direct stream {stream.name!r} of {source.name!r} by {subscription.grouping}. Use Grouping.DIRECT."
        )


def _count(what: str, value: object, owner: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidTopologyError(f"{what}={value!r} of {owner} is no number of tasks. Use an integer of 1 or more.")
    return value
