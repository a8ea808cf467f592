"""What a task keeps over turns: the state of its bolt, and the tuples that it holds for batches and windows."""

from typing import Any

from acker_redis.model.keys import StateKeys
from acker_redis.storm.components.holding import HoldingBolt
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.state.held import HeldTuples, Moment
from acker_redis.storm.state.mapping import TaskState
from acker_redis.storm.state.shapes import has_state, holds_tuples

_HELD = "__held:"
"""Prefix of the names of components that stand for what others hold. No component's name begins so."""

_SPELLED = StateKeys.task(_HELD, 0).removesuffix(":0")
"""The prefix as tasks are spelled."""

_TITLE = "its batches or windows"
"""Stands for the keys of all tuples that a bolt holds for these."""

_PROGRESS = None
"""Key of the progress. All others are ids of tuples."""


def is_of_holdings(task: str) -> bool:
    """Return True if the state of a task, as `StateKeys.task` spells it, is what its batches or windows hold."""
    return task.startswith(_SPELLED)


class Holdings:
    """Tuples that the batches or windows of a task hold, in a state of their own.

    A new run begins without those of the run before. Their messages have no spout any more, and come again.
    """

    def __init__(self, state: TaskState, held: HeldTuples) -> None:
        """Begin without tuples."""
        self.state = state
        self._held = held
        self._epoch = 0
        self._progress: Any = None  # as it was written last
        self._orders: dict[str, int] = {}
        self._written: dict[str, Any] = {}
        self._next = 0

    def begin(self, bolt: HoldingBolt, moment: Moment) -> None:
        """Give a bolt back what it held at the end of the last committed turn. The state has begun."""
        self._epoch = moment.epoch
        if self.state.is_continued:
            self._held.admit(tup for tup, _ in bolt._acker_held_places())  # noqa: SLF001  # of the classes here
            return
        epoch, self._progress = self.state.get(_PROGRESS, (0, None))
        self._orders, self._written = {}, {}
        if epoch != moment.epoch:
            self.state.clear()
            self._progress = None
            bolt._acker_resume_held(None, [])  # noqa: SLF001
            return
        kept = (value for key, value in self.state.read_values() if key is not _PROGRESS)
        found = sorted(kept, key=lambda entry: entry[0])
        self._next = found[-1][0] + 1 if found else 0
        for order, tup, place in found:
            self._orders[tup.id], self._written[tup.id] = order, _print_of(tup, place)
        bolt._acker_resume_held(self._progress, [(tup, place) for _, tup, place in found])  # noqa: SLF001

    def end(self, bolt: HoldingBolt) -> int:
        """Take what a bolt holds at the end of a turn. Returns the number of tuples that a later call will process."""
        ids = set()
        for tup, place in bolt._acker_held_places():  # noqa: SLF001
            ids.add(tup.id)
            self._held.note(tup, _TITLE)  # the bolt's own state may not have it, too
            seen = _print_of(tup, place)
            if self._written.get(tup.id) == seen:
                continue
            if tup.id not in self._orders:
                self._orders[tup.id], self._next = self._next, self._next + 1
            self.state[tup.id] = self._orders[tup.id], tup, place
            self._written[tup.id] = seen
        for gone in self._written.keys() - ids:
            self.state.discard(gone)
            del self._written[gone], self._orders[gone]
        progress = bolt._acker_held_progress()  # noqa: SLF001
        if progress != self._progress:
            self.state[_PROGRESS] = self._epoch, progress
            self._progress = progress
        return len(bolt._acker_held_tuples())  # noqa: SLF001


def _print_of(tup: Tuple, place: Any) -> Any:
    return place, tup.state, tuple(tup.edges.items())


class KeptStates:
    """States of one task.

    Attributes:
        held: tuples that they hold.
        own: state of the bolt; None if it has none.
        holdings: what its batches or windows hold; None if it has none.
    """

    def __init__(self, graph: Graph, task_id: int) -> None:
        """Make the states of a task."""
        component = graph.components[graph.component_of[task_id]]
        index = component.task_ids.index(task_id)
        self.held = HeldTuples(graph, component.name)
        self.own: TaskState | None = None
        self.holdings: Holdings | None = None
        if has_state(component):
            self.own = TaskState(component.name, StateKeys.task(component.name, index), self.held)
        if holds_tuples(component):
            task = StateKeys.task(_HELD + component.name, index)
            self.holdings = Holdings(TaskState(component.name, task, self.held, _TITLE), self.held)

    def all(self) -> list[TaskState]:
        """List the states."""
        holdings = None if self.holdings is None else self.holdings.state
        return [state for state in (self.own, holdings) if state is not None]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies that this worker keeps, about."""
        return sum(state.kept_bytes for state in self.all())

    def forget(self) -> None:
        """Drop the copies. The next execution reads what it needs."""
        for state in self.all():
            state.forget()
