"""Groupings: which tasks of a subscriber receive a tuple."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.streams import StreamId


class Kind(Enum):
    """Kinds of groupings, by Storm's names."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    ALL = "all"
    GLOBAL = "global"
    NONE = "none"
    DIRECT = "direct"
    FIELDS = "fields"
    PARTIAL_KEY = "partial_key"
    CUSTOM = "custom"


class CustomGrouping(Protocol):
    """Grouping of your own (Storm: CustomStreamGrouping). Each emitting task has a copy of it."""

    def prepare(self, context: Any, stream: StreamId, tasks: Sequence[int]) -> object:
        """Receive the emitting task's context, the stream and the subscriber's tasks, in ascending order."""

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Iterable[int]:
        """Choose the tasks that receive these values, emitted by `task`. A task that is named twice receives two tuples."""


@dataclass(frozen=True)
class Grouping:
    """Rule that chooses the tasks of a subscriber (Storm: InputDeclarer).

    Attributes:
        kind: kind of the grouping.
        field_names: fields that `fields` and `partial_key` use.
        custom: object of a custom grouping.

    >>> Grouping.fields("word").field_names
    ('word',)
    """

    kind: Kind
    field_names: tuple[str, ...] = ()
    custom: CustomGrouping | None = None

    SHUFFLE: ClassVar["Grouping"]
    LOCAL_OR_SHUFFLE: ClassVar["Grouping"]
    ALL: ClassVar["Grouping"]
    GLOBAL: ClassVar["Grouping"]
    NONE: ClassVar["Grouping"]
    DIRECT: ClassVar["Grouping"]

    @classmethod
    def fields(cls, *names: str | Sequence[str]) -> "Grouping":
        """Send equal values of these fields to one task, by Storm's formula: hash of the values modulo tasks.

        >>> Grouping.fields("word") == Grouping.fields(["word"])
        True
        """
        return cls(Kind.FIELDS, _names("fields", names))

    @classmethod
    def partial_key(cls, *names: str | Sequence[str]) -> "Grouping":
        """Send equal values of these fields to one of two tasks, the one that this emitter chose less often.

        >>> Grouping.partial_key("word").kind.value
        'partial_key'
        """
        return cls(Kind.PARTIAL_KEY, _names("partial_key", names))

    @classmethod
    def custom_object(cls, grouping: CustomGrouping, arg_list: object = None) -> "Grouping":
        """Use an object with `prepare(context, stream, tasks)` and `choose_tasks(task, values)`.

        Args:
            grouping: the object.
            arg_list: streamparse's arguments of a class in Java. An object has none.

        Raises:
            InvalidTopologyError: the object has no such methods, or it is the name of a class in Java, as in streamparse.
        """
        if isinstance(grouping, str):
            raise InvalidTopologyError(
                f"The grouping {grouping!r} is a class in Java, which can't run here. Write it in Python, with "
                "prepare(context, stream, tasks) and choose_tasks(task, values), and pass an object."
            )
        is_whole = callable(getattr(grouping, "choose_tasks", None)) and callable(getattr(grouping, "prepare", None))
        if isinstance(grouping, type) or not is_whole or arg_list is not None:
            raise InvalidTopologyError(
                f"{grouping!r} is not a grouping. Pass an object with prepare(context, stream, tasks) and "
                "choose_tasks(task, values)."
            )
        return cls(Kind.CUSTOM, custom=grouping)

    def __str__(self) -> str:
        """Name the grouping as Storm does, with its fields."""
        return f"{self.kind.value}({', '.join(self.field_names)})" if self.field_names else self.kind.value


Grouping.SHUFFLE = Grouping(Kind.SHUFFLE)
Grouping.LOCAL_OR_SHUFFLE = Grouping(Kind.LOCAL_OR_SHUFFLE)
Grouping.ALL = Grouping(Kind.ALL)
Grouping.GLOBAL = Grouping(Kind.GLOBAL)
Grouping.NONE = Grouping(Kind.NONE)
Grouping.DIRECT = Grouping(Kind.DIRECT)


def _names(call: str, names: Sequence[str | Sequence[str]]) -> tuple[str, ...]:
    listed: tuple[Any, ...] = tuple(
        part for name in names for part in (name if isinstance(name, (list, tuple)) else [name])
    )
    if not listed or not all(isinstance(name, str) for name in listed):
        given = ", ".join(map(repr, names))
        raise InvalidTopologyError(
            f"Grouping.{call}({given}) does not name fields. Pass names, such as Grouping.{call}('word')."
        )
    return listed
