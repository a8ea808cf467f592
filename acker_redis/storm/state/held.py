"""Tuples that the state of a task holds over turns: the bytes of each, and each as an object of a turn."""

from collections.abc import Iterable
from time import perf_counter
from typing import Any, NamedTuple

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.core.collectors import BoltCollector
from acker_redis.storm.core.tuples import PENDING, State, Tuple, values_type
from acker_redis.storm.core.values import dump_values, load_values
from acker_redis.storm.definition.graph import Graph

_OF_RUN = "/"
"""Mark of an id from an older run, behind its epoch."""


class Moment(NamedTuple):
    """Turn, as a task that holds tuples knows it.

    Attributes:
        epoch: epoch of the run.
        turn: number of the turn.
        since: turns before this one have no pending message any more.
        secs: time of the turn, by the run's clock.
        ms: the same, in milliseconds since 1970.
    """

    epoch: int
    turn: int
    since: int = 0
    secs: float = 0.0
    ms: int = 0


class Packed(NamedTuple):
    """Tuple as it is kept in a value.

    Attributes:
        epoch: epoch of the run that kept it.
        ms: time at which its execution began, by that run's clock, in milliseconds.
        tup_id, component, stream, task: those of the tuple.
        state: whether the bolt acked or failed it.
        values: its values, serialised.
        edges: root -> value, if it is pending.
    """

    epoch: int
    ms: int
    tup_id: str
    component: str
    stream: str
    task: int
    state: int
    values: bytes
    edges: dict[int, int]

    def loose(self) -> Tuple:
        """Return the tuple without its roots, for a reader that isn't the task."""
        return self.tuple_of(self.tup_id, load_values(self.values), {})

    def tuple_of(self, tup_id: str, values: Any, edges: dict[int, int]) -> Tuple:
        """Return the tuple, with this id, values and edges."""
        tup = Tuple(tup_id, self.component, self.stream, self.task, values, edges)
        tup.state = State(self.state)
        return tup


class HeldTuples:
    """Tuples of one task that its state holds.

    A tuple is kept with its edges, and whether it was acked or failed. One that was pending in an older run comes back without
    edges, and so does one whose messages have ended. Acking these does nothing.

    Attributes:
        too_long: roots of tuples that can't be kept in this turn, each with the reason. Nothing of the turn may count then.
    """

    def __init__(self, graph: Graph, component: str) -> None:
        """Hold nothing. `begin` comes before anything else."""
        self._graph, self._component = graph, component
        self._makers: dict[tuple[str, str], Any] = {}
        self._moment = Moment(0, 0)
        self._collector: BoltCollector
        self._began = 0.0
        self._restored: dict[str, Tuple] = {}
        self._homes: dict[str, tuple[Tuple, Any]] = {}
        self.too_long: dict[int, str] = {}

    def begin(self, moment: Moment, collector: BoltCollector) -> None:
        """Begin a turn of the task."""
        self._moment, self._collector, self._began = moment, collector, perf_counter()
        self._restored, self._homes, self.too_long = {}, {}, {}

    def admit(self, tups: Iterable[Tuple]) -> None:
        """Let the bolt ack, fail and anchor to tuples that it held before this turn."""
        for tup in tups:
            if tup.edges and int(tup.id.partition(":")[0]) < self._moment.since:
                tup.edges = {}
            if tup.state is PENDING:
                self._collector.open_tuples[tup.id] = tup

    def note(self, tup: Tuple, key: Any) -> None:
        """Note the key of a tuple whose value isn't written in this turn."""
        self._homes.setdefault(tup.id, (tup, key))

    def is_new(self, tup: Tuple) -> bool:
        """Return True if a message of this turn, or of an earlier one, brought a tuple in this turn."""
        return bool(tup.edges) and tup.id.startswith(f"{self._moment.turn}:")

    def packed(self, tup: Tuple, key: Any) -> Packed:
        """Return what is kept of a tuple in the value of a key.

        Raises:
            InvalidTopologyError: another value holds the tuple, too, and would not learn of its ack.
        """
        is_open = tup.state is PENDING
        home = self._homes.setdefault(tup.id, (tup, key))
        if is_open and tup.edges and (home[0] is not tup or home[1] != key):
            raise InvalidTopologyError(
                f"The state of the bolt {self._component!r} has the tuple {tup.id!r} for {home[1]!r:.80} and {key!r:.80}. An "
                "ack of one would leave the other one pending. Hold it under one key, and that key under the other one."
            )
        moment, edges = self._moment, tup.edges if is_open else {}
        ms = round((moment.secs - (self._began - tup.began)) * 1000)
        values = dump_values(tup.values)
        return Packed(moment.epoch, ms, tup.id, tup.component, tup.stream, tup.task, int(tup.state), values, edges)

    def restored(self, packed: Packed) -> Tuple:
        """Return the tuple of which this was kept. All values with a tuple have one object of it."""
        moment, is_of_run, tup_id = self._moment, packed.epoch == self._moment.epoch, packed.tup_id
        if not is_of_run and _OF_RUN not in tup_id:
            tup_id = f"{packed.epoch}{_OF_RUN}{tup_id}"  # this run may have one with the same id
        found = self._restored.get(tup_id)
        if found is not None:
            return found
        values = self._values(packed.component, packed.stream, load_values(packed.values))
        tup = packed.tuple_of(tup_id, values, packed.edges if is_of_run else {})
        tup.began = self._began - (moment.secs - packed.ms / 1000 if is_of_run else 0)
        self._restored[tup_id] = tup
        self.admit([tup])
        return tup

    def _values(self, component: str, stream: str, values: tuple[Any, ...]) -> Any:
        """Return the namedtuple of a stream's values. An older run may have had other streams."""
        make = self._makers.get((component, stream))
        if make is None:
            of = self._graph.components.get(component)
            declared = None if of is None else of.streams.get(stream)
            make = self._makers[component, stream] = tuple if declared is None else values_type(declared)._make
        try:
            return make(values)
        except TypeError:  # another number of fields
            return values
