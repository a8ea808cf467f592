"""Count the calls of Java that this process makes. A count is the same on any machine, unlike a time."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import acker_redis

_PACKAGE = str(Path(acker_redis.__file__).parent)


@dataclass
class Calls:
    """Calls of Java so far: of methods, look-ups of classes, and releases of objects.

    Attributes:
        by_place: file and line in the package -> number of its calls; "" for calls that others make, such as PySpark's own
            and the releases, which py4j makes at any time.
        objects: the same for calls that return an object, each of which costs a release later, unless the program keeps it.
    """

    by_place: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of all calls."""
        return self.by_place.total()

    @property
    def own(self) -> int:
        """Number of the package's calls."""
        return self.count - self.by_place[""]

    @property
    def own_objects(self) -> int:
        """Number of objects that the package's calls returned."""
        return self.objects.total() - self.objects[""]


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls of all threads meanwhile. py4j has one method that sends them."""
    from py4j.clientserver import ClientServerConnection
    from py4j.protocol import ARRAY_TYPE, ITERATOR_TYPE, LIST_TYPE, MAP_TYPE, REFERENCE_TYPE, SET_TYPE, SUCCESS

    calls, send = Calls(), ClientServerConnection.send_command
    objects = tuple(
        SUCCESS + kind for kind in (REFERENCE_TYPE, LIST_TYPE, MAP_TYPE, SET_TYPE, ARRAY_TYPE, ITERATOR_TYPE)
    )

    def counting(connection: Any, command: str, *args: Any, **options: Any) -> Any:
        place = _place()
        calls.by_place[place] += 1
        answer = send(connection, command, *args, **options)
        calls.objects[place] += str(answer).startswith(objects)
        return answer

    ClientServerConnection.send_command = counting
    try:
        yield calls
    finally:
        ClientServerConnection.send_command = send


def _place() -> str:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
