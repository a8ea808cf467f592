"""TopologyBuilder: Java's way to define a topology, by calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.component import check_component
from acker_redis.storm.components.foreign import refuse_foreign
from acker_redis.storm.components.spout import Spout
from acker_redis.storm.components.windowed import check_windows
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component, Subscription, make_component, make_graph
from acker_redis.storm.definition.groupings import CustomGrouping, Grouping
from acker_redis.storm.definition.streams import DEFAULT
from acker_redis.storm.topology import Topology


class BoltDeclarer:
    """Inputs of a bolt. Its calls chain (Storm: BoltDeclarer)."""

    def __init__(self, name: str, subscriptions: list[Subscription]) -> None:
        self._name = name
        self._subscriptions = subscriptions

    def shuffle_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Send each tuple to some task, evenly."""
        return self.grouping(source, Grouping.SHUFFLE, stream)

    def local_or_shuffle_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Send each tuple to some task of the same process, if there is one."""
        return self.grouping(source, Grouping.LOCAL_OR_SHUFFLE, stream)

    def none_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Send each tuple to some task."""
        return self.grouping(source, Grouping.NONE, stream)

    def all_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Send each tuple to every task."""
        return self.grouping(source, Grouping.ALL, stream)

    def global_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Send every tuple to the task with the lowest id."""
        return self.grouping(source, Grouping.GLOBAL, stream)

    def direct_grouping(self, source: str, stream: str = DEFAULT) -> Self:
        """Let the emitter choose the task of each tuple."""
        return self.grouping(source, Grouping.DIRECT, stream)

    def fields_grouping(self, source: str, fields: str | Sequence[str], stream: str = DEFAULT) -> Self:
        """Send equal values of fields to one task."""
        return self.grouping(source, Grouping.fields(fields), stream)

    def partial_key_grouping(self, source: str, fields: str | Sequence[str], stream: str = DEFAULT) -> Self:
        """Send equal values of fields to one of two tasks."""
        return self.grouping(source, Grouping.partial_key(fields), stream)

    def custom_grouping(self, source: str, grouping: CustomGrouping, stream: str = DEFAULT) -> Self:
        """Let an object with `prepare(context, stream, tasks)` and `choose_tasks(task, values)` choose."""
        return self.grouping(source, Grouping.custom_object(grouping), stream)

    def grouping(self, source: str, grouping: Grouping, stream: str = DEFAULT) -> Self:
        """Subscribe by any grouping.

        Raises:
            InvalidTopologyError: `grouping` is not a Grouping, or a name is not a text. The other calls raise it, too.

        >>> builder.set_bolt("sink", Sink).grouping("split", Grouping.SHUFFLE)
        <BoltDeclarer of 'sink'>
        """
        if not isinstance(grouping, Grouping):
            raise InvalidTopologyError(
                f"{grouping!r} is not a grouping. Use Grouping.SHUFFLE, Grouping.fields('word'), ..."
            )
        for what, name in (("component", source), ("stream", stream)):
            if not isinstance(name, str):
                raise InvalidTopologyError(
                    f"Bolt {self._name!r} subscribes to {name!r}, which is not the name of a {what}. Pass a text."
                )
        self._subscriptions.append(Subscription(source, stream, self._name, grouping))
        return self

    def __repr__(self) -> str:
        return f"<BoltDeclarer of {self._name!r}>"


class TopologyBuilder:
    """Defines a topology by calls (Storm: TopologyBuilder).

    >>> builder = TopologyBuilder()
    >>> builder.set_spout("lines", Lines)
    >>> builder.set_bolt("split", Split, par=4).shuffle_grouping("lines")
    <BoltDeclarer of 'split'>
    >>> WordCount = builder.create_topology()
    """

    def __init__(self) -> None:
        self._components: list[tuple[Component, list[Subscription]]] = []

    def set_spout(
        self,
        name: str,
        spout: Spout | type[Spout],
        par: int | None = None,
        tasks: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a spout.

        Args:
            name: name of the component, any text.
            spout: class or object. Each task has its own deep copy of an object.
            par: number of executors. None means the class attribute `par`, or 1.
            tasks: number of tasks; None for one per executor.
            config: settings of this component, by Storm's names.

        Raises:
            InvalidTopologyError: the name is taken, or an argument is invalid.
        """
        self._add(name, spout, Spout, par, tasks, config)

    def set_bolt(
        self,
        name: str,
        bolt: Bolt | type[Bolt],
        par: int | None = None,
        tasks: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> BoltDeclarer:
        """Add a bolt, as `set_spout` does. Subscribe it by calls on the result.

        >>> builder.set_bolt("count", Count, par=8).fields_grouping("split", ["word"])
        <BoltDeclarer of 'count'>
        """
        return BoltDeclarer(name, self._add(name, bolt, Bolt, par, tasks, config))

    def create_topology(self, name: str = "topology", config: Mapping[str, Any] | None = None) -> Topology:
        """Check and return the topology, with `local` and `run_local`.

        Args:
            name: name of the topology. Its dead letters and its lane belong to it, so give each topology of an app its own.
            config: settings of the topology, by Storm's names.

        Raises:
            InvalidTopologyError: a component, stream, field or setting is unknown or doesn't fit.
        """
        if not settings.is_text(name) or not name:
            raise InvalidTopologyError(
                f"name={name!r} is not the name of a topology. Pass a text that UTF-8 can encode, and settings as "
                "config={...}."
            )
        components = [
            make_component(
                component.name, component.kind, component.maker, par=component.par, tasks=component.own_tasks,
                inputs=subscriptions, config=component.config,
            )
            for component, subscriptions in self._components
        ]  # fmt: skip
        graph = make_graph(name, components, config or {})
        for component in components:
            check_component(component.name, component.maker)
        check_windows(graph)
        made: type[Topology] = type("BuiltTopology", (Topology,), {"config": dict(config or {}), "_graph": graph})
        return made()

    def _add(
        self, name: str, maker: Any, base: type[Spout] | type[Bolt], par: int | None, tasks: int | None, config: object
    ) -> list[Subscription]:
        refuse_foreign(maker)
        if not (isinstance(maker, base) or (isinstance(maker, type) and issubclass(maker, base))):
            raise InvalidTopologyError(
                f"{maker!r} of component {name!r} is not a {base.__name__.lower()}. Pass a class derived from "
                f"{base.__name__}, or an object of one."
            )
        if any(component.name == name for component, _ in self._components):
            raise InvalidTopologyError(f"Two components are named {name!r}. Give each a name of its own.")
        subscriptions: list[Subscription] = []
        kind = base._acker_kind  # noqa: SLF001  # of a class here
        par = maker.par if par is None else par
        component = make_component(name, kind, maker, par=par, tasks=tasks, config=config)
        self._components.append((component, subscriptions))
        return subscriptions
