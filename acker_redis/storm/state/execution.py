"""State of the tasks that one execution of a Spark task runs."""

import pickle
import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from acker_redis.store.topology_state import Attempt, StateTurn
from acker_redis.storm.state.mapping import TaskState


class Executed(NamedTuple):
    """Execution that wrote the state of its tasks. The turn's commit decides whether it counts.

    Attributes:
        name: name of the execution, which no other has.
        tasks: its tasks with state.
        attempts: attempts of those whose state changed.
    """

    name: str
    tasks: tuple[int, ...]
    attempts: tuple[Attempt, ...]

    def to_bytes(self) -> bytes:
        """Serialise it for the commit."""
        return pickle.dumps(tuple(self), 5)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Executed":
        """Read one that a task of the run has serialised."""
        name, tasks, attempts = pickle.loads(data)  # noqa: S301  # the run's own
        return cls(name, tasks, tuple(Attempt(*attempt) for attempt in attempts))


class Execution:
    """State of one execution's tasks, from their first tuple to the end of their level."""

    def __init__(self, make_turn: Callable[[], StateTurn]) -> None:
        """Begin without tasks. The server isn't asked before a task with state begins."""
        self._make_turn = make_turn
        self._turn: StateTurn | None = None
        self._begun: dict[int, list[TaskState]] = {}

    def begin(self, task_id: int, states: Iterable[TaskState]) -> None:
        """Begin a task with its states.

        Raises:
            TurnOverError: the turn is over, or a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        for state in states:
            self._turn = self._turn or self._make_turn()
            state.begin(self._turn)
            self._begun.setdefault(task_id, []).append(state)

    def end(self) -> Executed | None:
        """Write the state of the tasks. None: no task has state.

        Raises:
            InvalidTopologyError: a value can't be kept.
            TurnOverError: the turn is over, or a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        if not self._begun:
            return None
        name = secrets.token_hex(8)
        attempts = [state.end(name) for states in self._begun.values() for state in states]
        return Executed(name, tuple(self._begun), tuple(attempt for attempt in attempts if attempt is not None))
