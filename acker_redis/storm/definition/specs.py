"""Specs: a component in a topology class, with its inputs and parallelism (streamparse: Spec)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Union

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.groupings import Grouping
from acker_redis.storm.definition.streams import DEFAULT, Stream

ComponentKind: TypeAlias = Literal["spout", "bolt"]


@dataclass(frozen=True, eq=False)
class StreamRef:
    """Named stream of a component, such as `split["empty"]`."""

    spec: "Spec"
    stream: str


Source: TypeAlias = Union["Spec", StreamRef]
Inputs: TypeAlias = Sequence[Source] | Mapping[Source, Grouping]


@dataclass(frozen=True, eq=False)
class Spec:
    """Component of a topology class. `spec()` of a spout or bolt makes it.

    Attributes:
        kind: `spout` or `bolt`.
        component: class or object of the component. Each task has a copy of an object.
        name: name of the component; None means the attribute's name.
        inputs: pairs of source and grouping.
        par: number of executors; None means the class attribute `par`, or 1.
        config: settings of this component, by Storm's names.

    >>> Lines.spec(par=2).par
    2
    """

    kind: ComponentKind
    component: Any
    name: str | None = None
    inputs: tuple[tuple[Source, Grouping], ...] = ()
    par: int | None = None
    config: Mapping[str, Any] | None = None

    def __getitem__(self, stream: str) -> StreamRef:
        """Refer to a named stream of this component.

        >>> Split.spec()["empty"].stream
        'empty'
        """
        if not isinstance(stream, str):
            raise InvalidTopologyError(f"{stream!r} is not the name of a stream. Pass a text.")
        return StreamRef(self, stream)


def inputs_of(inputs: object) -> tuple[tuple[Source, Grouping], ...]:
    """Read the inputs of a bolt: a source or a list of them, which means shuffle, or source -> grouping.

    A component whose default stream is direct means a direct grouping, as in streamparse.

    Raises:
        InvalidTopologyError: a source is not a spec, or a grouping is not a Grouping.
    """
    if inputs is None:
        return ()
    if isinstance(inputs, Mapping):
        pairs = tuple(inputs.items())
    elif isinstance(inputs, (Spec, StreamRef)):
        pairs = ((inputs, _usual(inputs)),)
    elif isinstance(inputs, (list, tuple, set)):
        pairs = tuple((source, _usual(source)) for source in inputs)
    else:
        raise InvalidTopologyError(
            f"inputs={inputs!r} is neither a list nor a dict. Pass [lines], or {{lines: Grouping.fields('word')}}."
        )
    for source, grouping in pairs:
        if not isinstance(source, (Spec, StreamRef)):
            raise InvalidTopologyError(
                f"Input {source!r} is not a component. Pass the result of spec(), such as lines or split['empty']."
            )
        if not isinstance(grouping, Grouping):
            raise InvalidTopologyError(
                f"{grouping!r} is not a grouping. Use Grouping.SHUFFLE, Grouping.fields('word'), ..."
            )
    return pairs


def _usual(source: object) -> Grouping:
    """Return the grouping of a source that comes without one."""
    outputs = (getattr(source.component, "outputs", None) or ()) if isinstance(source, Spec) else ()
    is_direct = any(isinstance(output, Stream) and output.name == DEFAULT and output.direct for output in outputs)
    return Grouping.DIRECT if is_direct else Grouping.SHUFFLE


def source_of(source: Source) -> tuple[Spec, str]:
    """Return the spec and the stream of a source."""
    return (source.spec, source.stream) if isinstance(source, StreamRef) else (source, DEFAULT)
