"""Pending messages of a spout executor. They time out by rotation, as in Storm."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from acker_redis.acker import Acker
from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.core.collectors import Emission
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph


@dataclass(slots=True)
class History:
    """Past of a message that a reliable spout replays.

    Attributes:
        failures: number of attempts that failed or timed out.
        losses: number of attempts whose root was lost.
        first_secs: time of the first emit, in seconds since 1970.
        letters: entry ids of the dead letters that asked for this replay.
        number: number of the message's first emit in the run.
        is_alone: True if the message is emitted in a turn of its own, because it broke one alone.
    """

    failures: int = 0
    losses: int = 0
    first_secs: float = 0.0
    letters: Sequence[str] = ()
    number: int = 0
    is_alone: bool = False


@dataclass(slots=True, eq=False)
class Message:
    """Attempt at a message: one root.

    Attributes:
        root: root in the ledger, unsigned.
        task: `SpoutTask` that emitted it. Its module imports this one.
        emission: id, stream and values.
        number: number of the emit in the run.
        emitted_secs: time of the emit by the run's clock.
        history: earlier attempts.
        settled_by: bolt that acked or failed a tuple of the tree last. Once one was failed, the bolt that failed the first.
        reason: text of the first fail.
        retry: False if the message must not be tried again.
    """

    root: int
    task: Any
    emission: Emission
    number: int
    emitted_secs: float
    history: History
    settled_by: str | None = None
    reason: str | None = None
    retry: bool = True

    @property
    def last_component(self) -> str:
        """Component that failed a tuple of the tree first, or else acked one last. Before any bolt did, it is the spout."""
        return self.settled_by or self.task.name


class PendingMap:
    """Pending messages in two buckets (Storm: RotatingMap, SpoutExecutor).

    A message that was put in stays for one to two rotations.
    """

    def __init__(self) -> None:
        self._young: dict[int, Message] = {}
        self._old: dict[int, Message] = {}

    def put(self, message: Message) -> None:
        """Put a message into the newest bucket."""
        self._young[message.root] = message

    def remove(self, root: int) -> Message | None:
        """Remove a message. Returns None if it is not pending."""
        return self._young.pop(root, None) or self._old.pop(root, None)

    def reset(self, root: int) -> None:
        """Move a message into the newest bucket."""
        message = self._old.pop(root, None)
        if message is not None:
            self._young[root] = message

    def rotate(self) -> list[Message]:
        """Turn the buckets. Returns the messages that timed out."""
        expired, self._old, self._young = self._old, self._young, {}
        return list(expired.values())

    def clear(self) -> list[Message]:
        """Remove and return all messages."""
        messages = list(self)
        self._old, self._young = {}, {}
        return messages

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[Message]:
        yield from self._old.values()
        yield from self._young.values()


def timeout_secs(graph: Graph, acker: Acker) -> float:
    """Return the message timeout of a topology on an app, in seconds.

    Raises:
        InvalidTopologyError: it is longer than the app's.
    """
    longest = acker.config.message_timeout_secs
    timeout = graph.config.get(settings.MESSAGE_TIMEOUT_SECS)
    if timeout is None:
        return min(settings.DEFAULT_TIMEOUT_SECS, longest)
    if timeout > longest:
        raise InvalidTopologyError(
            f"{settings.MESSAGE_TIMEOUT_SECS}={timeout!r} of topology {graph.name!r} is longer than the app's message timeout "
            f"of {longest:g} s, so the ledger would fail messages first. Use at most that, or an app with a longer one."
        )
    return float(timeout)
