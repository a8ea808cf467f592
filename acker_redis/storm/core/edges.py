"""Edges, derived from all that makes a tuple: no two tuples of a run have one edge, and content that differs has another.

    edge = hash(root, run, turn, task, call, ordinal of the emit in its call, place among its targets, target task, values)

*Call* is the number of the call of a component within its task and turn, or the input that it executes. A call that runs again
makes the same edges if it emits the same values, and others if it does not.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any

from acker_redis.storm.core.values import dump_values

_PLACE = Struct(">QIIq")
_END = b"\0"
_MASK = (1 << 64) - 1


class CallEdges:
    """Edges and choices of one call of a component.

    Attributes:
        task_key: digest of run, turn and task.
        ordinal: number of the emit in the call.
    """

    __slots__ = ("_call", "_key", "_number", "ordinal", "task_key")

    def __init__(self, task_key: bytes, call: str) -> None:
        """Begin a call.

        Args:
            task_key: digest of run, turn and task; see `task_key`.
            call: key of the call, unique within task and turn, without null characters.
        """
        self.task_key = task_key
        self.begin(call)

    def begin(self, call: str) -> None:
        """Begin another call of the same task."""
        self._call, self._key = call, b""
        self._number = -1
        self.ordinal = 0

    def _make_key(self) -> bytes:
        self._key = key = self.task_key + self._call.encode() + _END
        return key

    def edge(self, root: int, place: int, target: int, content: bytes) -> int:
        """Derive the edge of a tuple of the current emit, for one root."""
        whole = (self._key or self._make_key()) + _PLACE.pack(root, self.ordinal, place, target) + content
        return int.from_bytes(blake2b(whole, digest_size=8).digest(), "big")

    def choice(self, subscription: int, options: int) -> int:
        """Choose one of some options for a subscription of the current emit, evenly."""
        if self._number < 0:
            self._number = int.from_bytes(blake2b(self._key or self._make_key(), digest_size=8).digest(), "big")
        number = self._number + (self.ordinal << 10) + subscription
        number = (number + 0x9E3779B97F4A7C15) & _MASK
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
        return (number ^ number >> 31) % options


def task_key(run: str, turn: int, task: int) -> bytes:
    """Compute the digest of run, turn and task that the edges of the task's calls derive from.

    >>> task_key("run-1", 0, 1) != task_key("run-1", 0, 2)
    True
    """
    return blake2b(f"{len(run)}:{run}:{turn}:{task}".encode(errors="surrogatepass"), digest_size=16).digest()


def content_of(values: Sequence[Any]) -> bytes:
    """Serialise the values of a tuple for its edge.

    Values that can't be serialised have no content: their edges are distinct all the same, but don't tell two executions of
    one call apart. Only a runner that repeats calls has to refuse them.
    """
    try:
        return dump_values(values)
    except Exception:  # of a value's own code
        return b""
