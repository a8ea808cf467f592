"""Context of a task: its place in the topology (Storm: TopologyContext)."""

from collections.abc import Iterator, Mapping
from typing import Any

from acker_redis.storm.core.hooks import HookList
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.groupings import Grouping, Kind
from acker_redis.storm.definition.streams import Stream


class TopologyContext(Mapping[str, Any]):
    """Place of a task in its topology. It is a mapping, too, with the keys that streamparse's context has.

    Attributes:
        task_id: id of the task, unique in the topology.
        task_index: index of the task among those of its component, from 0.
        component: name of the component.
        streams: declared streams of the component, by name.
        conf: settings of the topology, replaced by those of the component.
        topology_name: name of the topology.

    >>> context["task->component"][str(context.task_id)] == context.component
    True
    """

    def __init__(self, graph: Graph, task_id: int, conf: Mapping[str, Any], hooks: HookList) -> None:
        self._graph = graph
        own = graph.components[graph.component_of[task_id]]
        self.task_id = task_id
        self.task_index = own.task_ids.index(task_id)
        self.component = own.name
        self.streams: Mapping[str, Stream] = own.streams
        self.conf = conf
        self.topology_name = str(conf.get(settings.NAME, graph.name))
        self._hooks = hooks

    def tasks(self, component: str) -> list[int]:
        """Return the ids of a component's tasks, ascending (Storm: getComponentTasks).

        Raises:
            InvalidTopologyError: there is no such component.

        >>> context.tasks("split")
        [3, 4]
        """
        return list(self._graph.component(component).task_ids)

    def component_of(self, task_id: int) -> str | None:
        """Return the name of a task's component, or None for an unknown task (Storm: getComponentId).

        >>> context.component_of(3)
        'split'
        """
        return self._graph.component_of.get(task_id)

    def fields(self, component: str, stream: str = "default") -> tuple[str, ...]:
        """Return the fields of a component's stream (Storm: getComponentOutputFields).

        Raises:
            InvalidTopologyError: there is no such component or stream.

        >>> context.fields("split")
        ('word',)
        """
        return self._graph.component(component).stream(stream).fields

    def add_task_hook(self, hook: Any) -> None:
        """Add a hook to this task, and call its `prepare` (Storm: addTaskHook).

        Args:
            hook: object with some of the methods of `TaskHook`.

        >>> context.add_task_hook(TaskHook())
        """
        self._hooks.add(hook, self.conf, self)

    def __getitem__(self, key: str) -> Any:
        match key:
            case "taskid":
                return self.task_id
            case "componentid":
                return self.component
            case "task->component":
                return {str(task): name for task, name in self._graph.component_of.items()}
            case "streams":
                return list(self.streams)
            case "stream->outputfields":
                return {name: list(stream.fields) for name, stream in self.streams.items()}
            case "stream->target->grouping":
                return self._targets()
            case "source->stream->grouping":
                return self._groupings()
            case "source->stream->fields":
                return self._input_fields()
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)

    def __repr__(self) -> str:
        return f"<TopologyContext of task {self.task_id}, {self.component}[{self.task_index}]>"

    def _sources(self) -> dict[str, dict[str, Any]]:
        sources: dict[str, dict[str, Any]] = {}
        for subscription in self._graph.components[self.component].inputs:
            sources.setdefault(subscription.source, {})[subscription.stream] = subscription
        return sources

    def _targets(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            stream: {
                subscription.target: _described(subscription.grouping)
                for subscription in self._graph.subscribers.get((self.component, stream), ())
            }
            for stream in self.streams
        }

    def _groupings(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            source: {stream: _described(subscription.grouping) for stream, subscription in streams.items()}
            for source, streams in self._sources().items()
        }

    def _input_fields(self) -> dict[str, dict[str, list[str]]]:
        return {
            source: {stream: list(self.fields(source, stream)) for stream in streams}
            for source, streams in self._sources().items()
        }


def _described(grouping: Grouping) -> dict[str, Any]:
    """Describe a grouping as Storm does to components in other languages. To Storm, global is a grouping by no field."""
    if grouping.kind in (Kind.FIELDS, Kind.GLOBAL):
        return {"type": "FIELDS", "fields": list(grouping.field_names)}
    return {"type": _TYPES.get(grouping.kind, grouping.kind.name)}


_TYPES = {Kind.PARTIAL_KEY: "CUSTOM_SERIALIZED", Kind.CUSTOM: "CUSTOM_OBJECT"}
"""Storm's names of groupings, where they differ from ours."""

_KEYS = (
    "taskid",
    "componentid",
    "task->component",
    "streams",
    "stream->outputfields",
    "stream->target->grouping",
    "source->stream->grouping",
    "source->stream->fields",
)
"""Keys that Storm sends to components in other languages."""
