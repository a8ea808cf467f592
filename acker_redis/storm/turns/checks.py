"""Checks before a run on Spark begins: what a turn can't do is refused, with what to write instead."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from acker_redis.errors import BadConfigError, InvalidTopologyError
from acker_redis.spark.checks import arrow_schema
from acker_redis.spark.protocol.columns import is_own
from acker_redis.storm.components.instances import make_instance
from acker_redis.storm.components.spout import FeederSpout
from acker_redis.storm.components.windowed import check_windows
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component, Graph
from acker_redis.storm.definition.streams import DEFAULT, SYSTEM, Stream, StreamId
from acker_redis.storm.turns.plan import SINK_PREFIX, fields_of


@dataclass(frozen=True)
class SinkSpec:
    """Sink of a stream.

    Attributes:
        name: name of its component.
        stream: the stream.
        write: function of a writer, or of the batches and the number of a partition.
        of_partition: True if it is the latter.
        schema: columns of the stream.
        types: Arrow type of each.
    """

    name: str
    stream: StreamId
    write: Callable[..., object]
    of_partition: bool
    schema: StructType
    types: tuple[Any, ...]

    @property
    def text(self) -> str:
        """Name for people, such as `sink of split`."""
        return f"sink of {self.name.removeprefix(SINK_PREFIX)}"


@dataclass(frozen=True)
class TurnSettings:
    """Checked settings of a run on Spark. `Topology.run` describes them."""

    turn_tuples: int
    turn_secs: float
    turn_timeout_secs: float | None
    stop_if_broken: bool


def check_graph(graph: Graph) -> None:
    """Refuse bolts and settings that a turn can't do.

    Raises:
        InvalidTopologyError: there is one.
    """
    check_windows(graph)
    for component in graph.components.values():
        name, kind = component.name, component.maker if isinstance(component.maker, type) else type(component.maker)
        if component.kind == "spout":
            if issubclass(kind, FeederSpout):
                raise InvalidTopologyError(
                    f"The spout {name!r} is a FeederSpout, which only local() can feed. Use a spout with next_tuple()."
                )
            continue
        make_instance(component)  # it raises
        for subscription in component.inputs:
            if subscription.stream == SYSTEM and graph.components[subscription.source].kind == "bolt":
                raise InvalidTopologyError(
                    f"The bolt {name!r} subscribes to {SYSTEM!r} of the bolt {subscription.source!r}, whose tasks start in "
                    "many processes on Spark. Use run_local(), or omit the input."
                )


def check_sinks(graph: Graph, own: Mapping[Any, Any], sinks: object, spark: SparkSession) -> list[SinkSpec]:
    """Check the sinks of a run.

    Args:
        graph: the topology.
        own: sinks of the topology: component, or (component, stream), -> function.
        sinks: further ones, which replace those.
        spark: session that knows the types.

    Raises:
        InvalidTopologyError: a stream doesn't exist, is direct, or lacks a type.
        BadConfigError: the sinks are no mapping, or one is no function.
    """
    if not isinstance(sinks, Mapping):
        raise BadConfigError(
            f"sinks={sinks!r:.100} is not a dict. Map a component, or (component, stream), to a function."
        )
    specs = [_sink(graph, source, write, spark) for source, write in [*own.items(), *sinks.items()]]
    return list({spec.stream: spec for spec in specs}.values())


def _sink(graph: Graph, source: object, write: object, spark: SparkSession) -> SinkSpec:
    if isinstance(source, str):
        source = (source, DEFAULT)
    if not (isinstance(source, tuple) and len(source) == 2 and all(isinstance(part, str) for part in source)):
        raise BadConfigError(
            f"A sink is given for {source!r:.100}, which names no stream. Use a component's name, (component, stream), or an "
            "attribute of the topology."
        )
    stream = StreamId(*source)
    component = graph.component(stream.component)
    declared = component.streams.get(stream.stream)
    if declared is None:
        raise InvalidTopologyError(
            f"Component {component.name!r} declares no stream {stream.stream!r}, so it can't have a sink. "
            f"{settings.nearest(stream.stream, component.streams, 'stream')}"
        )
    if declared.direct:
        raise InvalidTopologyError(
            f"Stream {stream.stream!r} of {component.name!r} is direct, and a sink has no task that an emit could name. Emit "
            "to a stream that isn't direct, too."
        )
    label = stream.component if stream.stream == DEFAULT else f"{stream.component}:{stream.stream}"
    of_partition = _counts_parameters(write, label) == 2
    schema = _schema(component, declared, spark)
    types = tuple(arrow_schema(schema).types)
    return SinkSpec(SINK_PREFIX + label, stream, write, of_partition, schema, types)  # type: ignore[arg-type]


def _counts_parameters(write: object, label: str) -> int:
    if callable(write):
        try:
            parameters = signature(write).parameters.values()
        except (TypeError, ValueError):
            return 1
        needed = [
            one
            for one in parameters
            if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
            and one.default is Parameter.empty
        ]
        if len(needed) in (1, 2):
            return len(needed)
    raise BadConfigError(
        f"The sink of {label!r} is {write!r:.100}, and no function with one or two parameters. Pass one of a writer, such as "
        'lambda writer: writer.mode("append").parquet(path), or one of the batches and the number of a partition.'
    )


def _schema(component: Component, stream: Stream, spark: SparkSession) -> StructType:
    without = [name for name, kind in zip(stream.fields, stream.types, strict=True) if kind is None]
    if without or not stream.fields:
        raise InvalidTopologyError(
            f"The fields {without} of stream {stream.name!r} of {component.name!r} have no types, and its sink needs them. "
            'Declare them, such as outputs = ["word string", "n bigint"].'
        )
    own = [name for name in stream.fields if is_own(name) or "`" in name]
    if own:
        raise InvalidTopologyError(
            f"The fields {own} of stream {stream.name!r} of {component.name!r} can't be columns of a sink. Rename them."
        )
    try:
        return spark.createDataFrame([], fields_of(stream)).schema
    except PySparkException as exc:
        raise InvalidTopologyError(
            f"The types of stream {stream.name!r} of {component.name!r} aren't types of Spark: {fields_of(stream)}. Use names "
            f"such as string, bigint or array<double>. Spark reported: {str(exc).strip().partition(chr(10))[0]:.200}"
        ) from exc
