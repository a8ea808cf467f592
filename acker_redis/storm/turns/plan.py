"""Plan of a run on Spark: levels of bolts, sinks as components, and the partition of each task. Workers receive it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.graph import Component, Graph, Subscription
from acker_redis.storm.definition.groupings import Grouping
from acker_redis.storm.definition.settings import DEFAULT_TIMEOUT_SECS
from acker_redis.storm.definition.streams import Stream, StreamId

SINK_PREFIX = "__sink:"
"""Prefix of the components that stand for sinks, as Storm's `__acker` stands for its ackers."""

_SEED = 42
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
        graph: the topology, with a component of one task for each sink.
        levels: ids of the tasks of each level of bolts. A level receives from earlier levels and spouts only.
        sinks: stream -> id of the task that stands for its sink.
        types: component -> stream -> Arrow type of each field, for streams with a sink.
        keys: key of each partition: Spark's hash partitioning sends a row with this key there.
        key_of: id of a task -> key of its partition.
        ranks: component -> its place in the order of levels. Sinks come last.
        sources: streams of all components, numbered by their place here.
        ledger_names: component -> its name in the ledger; None: it has none.
        timeout_secs: message timeout, in seconds.
    """

    graph: Graph
    levels: tuple[tuple[int, ...], ...]
    sinks: Mapping[StreamId, int]
    types: Mapping[str, Mapping[str, tuple[Any, ...]]]
    keys: tuple[int, ...]
    key_of: Mapping[int, int]
    ranks: Mapping[str, int]
    sources: tuple[StreamId, ...]
    ledger_names: Mapping[str, str | None] = field(default_factory=dict)
    timeout_secs: float = DEFAULT_TIMEOUT_SECS

    @property
    def component_names(self) -> list[str]:
        """Names of the components, by rank."""
        return sorted(self.ranks, key=lambda name: self.ranks[name])

    def for_workers(self) -> "Plan":
        """Return the plan without the spouts' objects, which stay in the driver."""
        components = {
            name: replace(component, maker=None) if component.kind == "spout" else component
            for name, component in self.graph.components.items()
        }
        return replace(self, graph=replace(self.graph, components=components))


def levels_of(graph: Graph) -> dict[str, int]:
    """Compute the level of each component: the longest path from a spout. Spouts have level 0.

    Raises:
        InvalidTopologyError: the topology has a cycle.
    """
    levels: dict[str, int] = {}
    under_way: list[str] = []

    def level(name: str) -> int:
        if name in levels:
            return levels[name]
        if name in under_way:
            circle = " -> ".join([*under_way[under_way.index(name) :], name])
            raise InvalidTopologyError(
                f"Topology {graph.name!r} has the cycle {circle}, and a turn on Spark passes each bolt once. Let the bolt "
                "fail the tuple, so that the spout emits it again, or use run_local()."
            )
        under_way.append(name)
        component = graph.components[name]
        above = max((level(subscription.source) for subscription in component.inputs), default=0)
        levels[name] = 0 if component.kind == "spout" else 1 + above
        under_way.pop()
        return levels[name]

    for name in graph.components:
        level(name)
    return levels


def make_plan(
    graph: Graph, sinks: Mapping[StreamId, str], types: Mapping[StreamId, tuple[Any, ...]], partitions: int
) -> Plan:
    """Make the plan of a run.

    Args:
        graph: the topology.
        sinks: stream -> name of its sink.
        types: stream with a sink -> Arrow type of each field.
        partitions: greatest number of partitions of a level.

    Raises:
        InvalidTopologyError: the topology has a cycle.
    """
    levels = levels_of(graph)
    last = max(levels.values())
    graph, tasks = _with_sinks(graph, sinks)
    by_level = [
        tuple(
            task
            for name in sorted(graph.components)
            if levels.get(name) == level
            for task in graph.components[name].task_ids
        )
        for level in range(1, last + 1)
    ]
    keys = partition_keys(max(1, min(partitions, max(map(len, by_level), default=1))))
    key_of = {task: keys[place % len(keys)] for tasks_of in by_level for place, task in enumerate(tasks_of)}
    key_of |= {task: keys[task % len(keys)] for task in tasks.values()}
    ordered = sorted(graph.components, key=lambda name: (levels.get(name, last + 1), name))
    typed: dict[str, dict[str, tuple[Any, ...]]] = {}
    for stream, of in types.items():
        typed.setdefault(stream.component, {})[stream.stream] = of
    return Plan(
        graph=graph,
        levels=tuple(by_level),
        sinks=tasks,
        types=typed,
        keys=keys,
        key_of=key_of,
        ranks={name: rank for rank, name in enumerate(ordered)},
        sources=tuple(
            StreamId(name, stream) for name in sorted(graph.components) for stream in graph.components[name].streams
        ),
    )


def _with_sinks(graph: Graph, sinks: Mapping[StreamId, str]) -> tuple[Graph, dict[StreamId, int]]:
    """Add a component for each sink, behind all others, so that the tasks keep their ids."""
    components, component_of = dict(graph.components), dict(graph.component_of)
    subscribers, tasks = dict(graph.subscribers), {}
    for stream, name in sinks.items():
        task = len(component_of) + 1
        subscription = Subscription(stream.component, stream.stream, name, Grouping.GLOBAL)
        components[name] = Component(name, "bolt", None, {}, (subscription,), 1, 1, MappingProxyType({}), 1, 1, (task,))
        component_of[task] = name
        subscribers[stream] = (*subscribers.get(stream, ()), subscription)
        tasks[stream] = task
    whole = replace(graph, components=components, component_of=component_of, subscribers=subscribers)
    return whole, tasks


def partition_keys(count: int) -> tuple[int, ...]:
    """Find the least integer that Spark's hash partitioning sends to each of some partitions.

    >>> partition_keys(2)
    (0, 2)
    """
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < count:
        keys.setdefault(_hash(key) % count, key)
        key += 1
    return tuple(keys[partition] for partition in range(count))


def _hash(value: int) -> int:
    """Hash an integer as Spark's Murmur3Hash does."""
    mixed = value * 0xCC9E2D51 & _MASK
    mixed = _turned(mixed, 15) * 0x1B873593 & _MASK
    hashed = (_turned(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def fields_of(stream: Stream) -> str:
    """Write a stream's fields and types as Spark's SQL does."""
    return ", ".join(f"`{name}` {kind}" for name, kind in zip(stream.fields, stream.types, strict=True))
