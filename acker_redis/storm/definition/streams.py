"""Streams: what a component emits, by name and fields."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from acker_redis.errors import InvalidTopologyError

DEFAULT = "default"
"""Name of the stream that an emit without a name uses (Storm: Utils.DEFAULT_STREAM_ID)."""

SYSTEM = "__system"
"""Name of Storm's system component, and of the stream that every component has."""

TICK = "__tick"
"""Name of the stream that tick tuples arrive on, from the system component."""


class StreamId(NamedTuple):
    """Stream of a component (Storm: GlobalStreamId).

    Attributes:
        component: name of the component.
        stream: name of the stream.
    """

    component: str
    stream: str


@dataclass(frozen=True)
class Stream:
    """Declared output of a component (Storm: OutputFieldsDeclarer.declareStream).

    Attributes:
        fields: names of the values, in order. A name that is no identifier, is a keyword or begins with `_` is reached by its
            index. A name may be followed by the type of its column in Spark, as in `n bigint`. The sinks of a run on Spark
            need the types.
        name: name of the stream.
        direct: True if each emit names the task that receives it.
        types: type of each field in Spark's SQL; None where it is not declared.

    Raises:
        InvalidTopologyError: a name is not a text, or a field occurs twice.

    >>> Stream(fields=["line"], name="empty").fields
    ('line',)
    """

    fields: tuple[str, ...]
    name: str = DEFAULT
    direct: bool = False
    types: tuple[str | None, ...] = ()

    def __init__(self, fields: Iterable[str], name: str = DEFAULT, direct: bool = False) -> None:
        is_listed = isinstance(fields, Iterable) and not isinstance(fields, str)
        declared: tuple[Any, ...] = tuple(fields) if is_listed else (fields,)
        parts = [field.split(None, 1) if isinstance(field, str) else [field] for field in declared]
        names = tuple(part[0] if part else "" for part in parts)
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "types", tuple(part[1].strip() if len(part) > 1 else None for part in parts))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "direct", direct)
        if not is_listed or not all(isinstance(field, str) and field for field in names):
            raise InvalidTopologyError(f"fields={fields!r} is not a list of names. Pass a list such as ['word'].")
        if len(set(names)) < len(names):
            raise InvalidTopologyError(
                f"fields={list(names)!r} has a name twice. A field's name ends at a space, and its type on Spark follows. "
                "Give each field a name of its own."
            )
        if not isinstance(name, str) or not name:
            raise InvalidTopologyError(f"name={name!r} is not the name of a stream. Pass a text.")
        if not isinstance(direct, bool):
            raise InvalidTopologyError(
                f"direct={direct!r} of stream {name!r} is neither True nor False. Pass one of them."
            )


SYSTEM_STREAM = Stream(["event"], SYSTEM)
"""Stream that every component has in Storm."""

TICK_STREAM = Stream(["rate_secs"], TICK)
"""Stream of ticks."""


def streams_of(outputs: object, owner: str) -> dict[str, Stream]:
    """Read the declared outputs of a component: names of fields for the default stream, streams, or both.

    Raises:
        InvalidTopologyError: the outputs are neither, or two streams have one name.
    """
    if outputs is None:
        outputs = []
    if not isinstance(outputs, (list, tuple)):
        raise InvalidTopologyError(
            f"outputs={outputs!r} of {owner} is not a list. Use field names, such as ['word'], or a list of Stream."
        )
    declared = [output for output in outputs if isinstance(output, Stream)]
    fields = [output for output in outputs if not isinstance(output, Stream)]
    if fields:
        declared.append(Stream(fields))
    streams = {stream.name: stream for stream in declared}
    if len(streams) < len(declared):
        twice = next(name for name, count in Counter(stream.name for stream in declared).items() if count > 1)
        raise InvalidTopologyError(
            f"Stream {twice!r} of {owner} is declared twice, so an emit could mean either. Give each stream a name of its own."
        )
    for name in streams:
        if name.startswith("__"):
            raise InvalidTopologyError(
                f"Stream {name!r} of {owner} has a name of Storm's. Begin it with another character."
            )
    return {**streams, SYSTEM: SYSTEM_STREAM}
