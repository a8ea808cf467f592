"""Topologies: classes whose attributes are specs, checked when the class is created (streamparse: Topology)."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, InvalidTopologyError
from acker_redis.storm.components.component import SPEC_DOC, check_component
from acker_redis.storm.components.component import Component as ComponentObject
from acker_redis.storm.components.foreign import refuse_foreign
from acker_redis.storm.components.windowed import check_windows
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.definition.graph import Component, Graph, Subscription, make_component, make_graph, with_config
from acker_redis.storm.definition.mermaid import draw
from acker_redis.storm.definition.specs import Spec, StreamRef, source_of
from acker_redis.storm.local.run import LocalRun
from acker_redis.storm.local.service import RunResult, run_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("acker_redis.storm")


class Topology:
    """Topology of spouts and bolts.

    Derive a class whose attributes are specs. Mistakes raise when the class is created.

    Attributes:
        config: settings, by Storm's names. Names that don't begin with `topology.` are your own, and reach `conf`.
        sinks: sinks of streams for `run`: component, or (component, stream), -> function. A spec of the class stands for its
            component, and `split["empty"]` for a stream. Runs in process write none of them.

    Raises:
        InvalidTopologyError: when the class is created: a component, stream, field or setting is unknown or doesn't fit.

    >>> class WordCount(Topology):
    ...     config = {"topology.message.timeout.secs": 30}
    ...     lines = Lines.spec()
    ...     split = Split.spec(inputs=[lines], par=4)
    ...     count = Count.spec(inputs={split: Grouping.fields("word")}, par=8)
    """

    config: ClassVar[Mapping[str, Any]] = {}
    sinks: ClassVar[Mapping[Any, Callable[..., object]]] = {}
    _graph: ClassVar[Graph | None] = None
    _latest: ClassVar[Mapping[str, ComponentMetrics] | None] = None
    """Metrics of the latest run in this process."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the topology."""
        super().__init_subclass__(**options)
        if (given := vars(cls).get("_graph")) is None:
            cls._graph = _graph_of(cls)
        else:
            cls._graph = given
        cls._latest = None

    @classmethod
    def local(
        cls,
        conf: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        active: bool = True,
        acker: Acker | None = None,
    ) -> LocalRun:
        """Prepare a run in this process for a test, with simulated time. Use it in a `with` statement.

        Args:
            conf: settings that replace those of the topology.
            seed: number that the order of events is drawn from. Tests should pass with every seed.
            active: False to start deactivated, with nothing initialised.
            acker: acker of your own; None for one on fakeredis. Time then moves by `acker.admin.rotate(force=True)`.

        Raises:
            InvalidTopologyError: a setting is unknown or out of range.
            BadConfigError: `acker` is not an acker, or `seed` is not an integer.

        >>> with WordCount.local(seed=7) as run:
        ...     run.feed("lines", ["a b a"], tup_id=1)
        ...     run.settle()
        ...     run.acked("lines")
        [1]
        """
        if acker is not None:
            _check_acker(acker)
        graph = with_config(cls._checked_graph(), conf)
        check_windows(graph)
        return LocalRun(graph, seed=seed, active=active, acker=acker, on_start=cls._note_run)

    @classmethod
    def run_local(cls, acker: Acker, *, stop: threading.Event | None = None) -> RunResult:
        """Run the topology in this process and thread, in real time, on any Redis. Blocks until its end.

        It ends when `stop` is set. Without `stop` it ends when each spout has emitted nothing and everything is settled.
        Ctrl-C and `stop` drain the run: spouts emit nothing more, and what is pending is worked off. A second Ctrl-C ends
        it at once.

        Guarantee: each message ends as acked, failed or, of a reliable spout, as a dead letter, or counts as unfinished in the
        result. A run that finds the ledger lost fails everything that is pending.

        Not guaranteed: that a message is processed once.

        Args:
            acker: acker of the app, which must be open. The run polls the lane of its spout_id, which is derived from the
                topology's name. Give each topology that runs at the same time an app of its own.
            stop: event that ends the run.

        Raises:
            InvalidTopologyError: the topology's message timeout is longer than the app's.
            BadConfigError: another run holds the lane, `acker` is not an acker, or `stop` is not an event.
            AckerError: an error of the server that doesn't pass.
            Exception: what a spout raised.

        >>> WordCount.run_local(acker).acked
        3
        """
        _check_acker(acker)
        graph = cls._checked_graph()
        if cls.sinks:
            log.warning(
                "sinks are written on Spark only, this run writes none topology=%r sinks=%d", graph.name, len(cls.sinks)
            )
        return run_service(graph, acker, stop, on_start=cls._note_run)

    @classmethod
    def run(
        cls,
        spark: "SparkSession",
        *,
        acker: Acker,
        sinks: Mapping[Any, Callable[..., object]] | None = None,
        conf: Mapping[str, Any] | None = None,
        stop: threading.Event | None = None,
        executor_url: str | None = None,
        turn_tuples: int = 100_000,
        turn_secs: float = 1.0,
        turn_timeout_secs: float | None = 600.0,
        stop_if_broken: bool = True,
    ) -> RunResult:
        """Run the topology on Spark, acked by the executors. Blocks until its end.

        Spouts run in this process, and the rows of a `DataFrameSpout` or `BatchSpout` stay in Spark. A turn lets spouts emit,
        and runs one job with all bolts over what they emitted. The run ends as `run_local` does, and drains on `stop` and
        Ctrl-C.

        Guarantee: as for `run_local`. A message is acked only if each tuple of its tree was acked, and each tuple of a stream
        with a sink was written. Whatever dies, the message is processed again.

        Not guaranteed: that a message is processed or written once. Sinks append, or are idempotent.

        Args:
            spark: session, classic or of Spark Connect. Call `ship` first where the executors lack the library.
            acker: acker of the app, which must be open.
            sinks: component, or (component, stream), -> function of a writer, such as
                `lambda writer: writer.mode("append").parquet(path)`, or function of the record batches and the number of a
                partition. They are added to the topology's own `sinks`. The fields of the stream need types. A function of a
                writer is called once more before the run begins, with a writer that writes nothing.
            conf: settings that replace those of the topology.
            stop: event that ends the run.
            executor_url: URL of the acker's server for executors, if theirs differs from this process's.
            turn_tuples: number of emitted tuples at which a turn begins its job.
            turn_secs: time after which a turn that has tuples begins its job, in seconds.
            turn_timeout_secs: time after which the job of a turn is cancelled, in seconds. Its messages then go out again in
                parts, until a tuple that a bolt never returns from is alone. None: no timeout.
            stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that a
                bolt doesn't declare, and that bolt has processed none.

        Raises:
            InvalidTopologyError: a turn can't do what the topology needs, such as a cycle. Or a stream with a sink has no
                types, a bolt holds a tuple outside of its state, or the state was written with other tasks or groupings.
            StateLostError: the server lost the last writes of a bolt's state.
            TurnOverError: another run of the topology has begun.
            BadConfigError: an argument is invalid, an executor can't reach the acker, or another run holds the lane.
            OperatorBrokenError: see `stop_if_broken`.
            PipelineError: the `initialize` of a bolt raised, a sink replaces what other turns wrote or can't be written, or
                the ids of a `DataFrameSpout`, or of a batch of a `BatchSpout`, are null or not distinct.
            InexactPipelineError: the DataFrame of a spout doesn't return the same rows each time it is computed, or the
                function of a sink writes nothing.
            JobFailedError: turns broke, and no message is to blame, or the query of a `BatchSpout` failed.
            AckerError: an error of the server that doesn't pass.
            Exception: what a spout or Spark raised in the driver.

        >>> result = WordCount.run(spark, acker=acker)
        """
        from acker_redis.storm.turns.run import run_on_spark  # noqa: PLC0415  # topologies in process need no Spark

        return run_on_spark(
            with_config(cls._checked_graph(), conf), spark, acker, own_sinks=_by_name(cls, cls.sinks),
            sinks=_by_name(cls, sinks), stop=stop,
            executor_url=executor_url, turn_tuples=turn_tuples, turn_secs=turn_secs, turn_timeout_secs=turn_timeout_secs,
            stop_if_broken=stop_if_broken, on_start=cls._note_run,
        )  # fmt: skip

    @classmethod
    def describe(cls) -> str:
        """Draw the topology in Mermaid, with the counts of its latest run in this process, if there is one.

        >>> WordCount.describe().splitlines()[0]
        'flowchart LR'
        """
        return draw(cls._checked_graph(), cls._latest)

    def __repr__(self) -> str:
        graph = self._checked_graph()
        return f"<Topology {graph.name!r}: {', '.join(graph.components)}>"

    @classmethod
    def _note_run(cls, run: "_HasMetrics") -> None:
        cls._latest = run.metrics

    @classmethod
    def _checked_graph(cls) -> Graph:
        if cls._graph is None:
            raise InvalidTopologyError("Topology itself has no components. Derive a class whose attributes are specs.")
        return cls._graph


def _by_name(cls: type[Topology], sinks: Any) -> Any:
    """Name the streams of sinks that are given by the topology's specs, as inputs are: `split`, or `split["empty"]`."""
    if not isinstance(sinks, Mapping):
        return sinks  # it is refused
    names = {id(spec): spec.name or attribute for attribute, spec in _specs(cls)}
    named = {}
    for source, write in sinks.items():
        if isinstance(source, (Spec, StreamRef)):
            spec, stream = source_of(source)
            if id(spec) not in names:
                raise InvalidTopologyError(
                    f"A sink is of the component {spec.name or spec.component!r}, which is none of {cls.__name__}. Use an "
                    "attribute of the topology."
                )
            source = (names[id(spec)], stream)  # noqa: PLW2901
        named[source] = write
    return named


class _HasMetrics(Protocol):
    """Run whose counts can be drawn."""

    @property
    def metrics(self) -> Mapping[str, ComponentMetrics]:
        """Metrics by component."""


def _graph_of(cls: type[Topology]) -> Graph:
    specs = dict(_specs(cls))
    names: dict[int, str] = {}
    _check_forgotten(cls, specs.values())
    for attribute, spec in specs.items():
        if hasattr(Topology, attribute):
            raise InvalidTopologyError(
                f"The attribute {attribute!r} of {cls.__name__} would hide Topology.{attribute}. Use another attribute with "
                f"spec(name={attribute!r})."
            )
        if id(spec) in names:
            raise InvalidTopologyError(
                f"The attributes {names[id(spec)]!r} and {attribute!r} of {cls.__name__} are one component. Call spec() for "
                "each."
            )
        names[id(spec)] = attribute
    by_spec = {id(spec): spec.name or attribute for attribute, spec in specs.items()}
    graph = make_graph(cls.__name__, [_component(by_spec, spec) for spec in specs.values()], cls.config)
    for component in graph.components.values():
        check_component(component.name, component.maker)
    check_windows(graph)
    return graph


def _check_forgotten(cls: type[Topology], specs: Iterable[Spec]) -> None:
    """Refuse a component without a spec. A class that is defined inside of the topology, for its specs, is none."""
    used = [spec.component if isinstance(spec.component, type) else type(spec.component) for spec in specs]
    for attribute, value in vars(cls).items():
        refuse_foreign(value)
        is_class = isinstance(value, type) and issubclass(value, ComponentObject)
        if is_class and any(issubclass(component, value) for component in used):
            continue
        if is_class or isinstance(value, ComponentObject) or getattr(value, "__doc__", None) is SPEC_DOC:
            raise InvalidTopologyError(
                f"The attribute {attribute!r} of {cls.__name__} is a component without its place. Call spec(), for example "
                f"{attribute} = Split.spec(inputs=[lines])."
            )


def _check_acker(acker: object) -> None:
    if not isinstance(acker, Acker):
        raise BadConfigError(f"acker={acker!r} is not an Acker. Pass Acker.connect(url, app='...').")


def _component(names: Mapping[int, str], spec: Spec) -> Component:
    name = names[id(spec)]
    if spec.kind == "spout" and spec.inputs:
        raise InvalidTopologyError(f"The spout {name!r} has inputs. Only bolts subscribe to streams, so omit inputs.")
    subscriptions = []
    for source, grouping in spec.inputs:
        emitter, stream = source_of(source)
        if id(emitter) not in names:
            raise InvalidTopologyError(
                f"An input of component {name!r} is the unknown component {emitter.name or emitter.component!r}. Make it an "
                "attribute of the topology."
            )
        subscriptions.append(Subscription(names[id(emitter)], stream, name, grouping))
    par = spec.par if spec.par is not None else getattr(spec.component, "par", None)
    return make_component(name, spec.kind, spec.component, par=par, inputs=subscriptions, config=spec.config)


def _specs(cls: type) -> Iterator[tuple[str, Spec]]:
    """List the specs of a class and its bases, in order. An attribute of a subclass replaces one of its base."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found |= vars(base)
    for name, value in found.items():
        if isinstance(value, Spec):
            yield name, value
