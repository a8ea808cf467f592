"""State of a run as the driver sees it: opened once, and each turn is committed or closed before the next one begins."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from pyspark.sql import DataFrame

from acker_redis.acker import Acker, app_of
from acker_redis.client import server_info
from acker_redis.errors import AckerError, BadConfigError, InvalidTopologyError, ServerUnavailableError
from acker_redis.store import topology_sizes
from acker_redis.store.topology_state import MAX_TASKS, StateTurn, TopologyState, check
from acker_redis.store.turns import Turn
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.state.execution import Executed
from acker_redis.storm.state.holdings import is_of_holdings
from acker_redis.storm.state.shapes import shapes_of, states_of_task
from acker_redis.storm.turns.commit import executions
from acker_redis.storm.turns.steps import TurnSpec

log = logging.getLogger("acker_redis.storm")


class RunState:
    """State of one run.

    Attributes:
        is_used: True if a bolt has state, or holds tuples. Otherwise nothing is written.
        epoch: epoch of the run; 0 before `open`.
    """

    def __init__(self, graph: Graph, acker: Acker) -> None:
        """Note the shape of the topology, without asking the server."""
        self._topology, self._acker = graph.name, acker
        self._shapes = shapes_of(graph)
        self._is_tracking = graph.config.get(settings.ACKER_EXECUTORS) != 0
        self.is_used = any(bolt.maker is not None and states_of_task(bolt) for bolt in graph.bolts)
        self.epoch = 0
        self._decided = self._committed = 0

    def open(self) -> None:
        """Begin the run: from now on no earlier run changes the state. Batches and windows of earlier ones are deleted.

        Without bolts with state, nothing is changed.

        Raises:
            BadConfigError: the server evicts keys.
            InvalidTopologyError: the state was written by other tasks or fields.
            StateLostError: the server lost writes of the run before, or may have.
        """
        if self.is_used:
            self._begin()
        if self._is_tracking:  # else the run needs no server
            self._warn_of_leftovers()

    def _begin(self) -> None:
        client = app_of(self._acker).client
        policies = client.ask(server_info.eviction_policies, client.address, tolerate_gone=False)
        if policies:
            raise BadConfigError(
                f"{client.address} has maxmemory-policy {', '.join(sorted(policies))}, and may delete the state of topology "
                f"{self._topology!r} under memory pressure. Set maxmemory-policy to noeviction."
            )
        self.epoch, other = self._stored().open(self._shapes)
        if other is not None:
            component, stored = other
            raise InvalidTopologyError(
                f"The state of the bolt {component!r} of topology {self._topology!r} was written with {stored}, and the bolt "
                f"now has {self._shapes[component]}. Its keys would be in other tasks. Run it as before, move the state with "
                "`acker-redis topology rescale`, or start without state: `acker-redis topology empty-state`."
            )
        self._stored().forget_tasks(self.epoch, is_of_holdings)

    def _warn_of_leftovers(self) -> None:
        """Log state that no bolt has any more. It stays, because only people know whether it is still needed."""
        app = app_of(self._acker)
        sizes = topology_sizes.read(app.client, app.config.app, self._topology)
        left = [size for size in sizes if size.bytes and size.component not in self._shapes]
        if left:
            log.warning(
                "state left of bolts that no longer have any, delete it with acker-redis topology empty-state --bolt "
                "topology=%r bolts=%s bytes=%d",
                self._topology, ",".join(sorted({size.component for size in left})), sum(size.bytes for size in left),
            )  # fmt: skip

    @contextmanager
    def running(self, patiently: Callable[[Callable[[], None]], object], may_ask: Callable[[], bool]) -> Iterator[None]:
        """Open the state, and end the run behind its last turn, so that the next run knows that no write is missing.

        Args:
            patiently: calls a function until the server answers.
            may_ask: returns False while the server is silent. Then the end isn't noted.

        Raises:
            BadConfigError, InvalidTopologyError, StateLostError: as for `open`.
            StateLostError: the server lost the last turns.
            TurnOverError: a newer run has begun.
        """
        patiently(self.open)
        try:
            yield
        except BaseException:
            if self.is_used and may_ask():
                with suppress(AckerError):  # the error of the run says more
                    self._end()
            raise
        if self.is_used and may_ask():
            with suppress(ServerUnavailableError):
                self._end()

    def _end(self) -> None:
        """Fold the last turn, so that numbers of keys are right while nothing runs, and end the run."""
        self._stored().fold(self.epoch)
        self._stored().end(self.epoch, self._decided)

    def turn(self, run_id: str, number: int) -> "RunTurn":
        """Name a turn of the run, without opening it."""
        return RunTurn(app_of(self._acker).turn(run_id, number), self, number)

    def begin(self, number: int) -> None:
        """Close the turns before this one that weren't committed, so that a commit that wakes up late changes nothing.

        Raises:
            TurnOverError: a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        if self.is_used:
            for earlier in range(self._decided + 1, number):
                self.close(earlier)

    def executions(self, kept: DataFrame) -> list[Executed]:
        """Choose the executions of a turn whose state counts, once its levels are complete; see `turns.commit.executions`."""
        return executions(kept) if self.is_used else []

    def check_limit(self, chosen: Sequence[Executed], number: int) -> None:
        """Check the app's limit before the sinks write, because a turn that exceeds it goes out again.

        Raises:
            StateLimitError: the state would exceed it.
        """
        if chosen:
            self._turn(number).check_limit([attempt for one in chosen for attempt in one.attempts])

    def commit(self, chosen: Sequence[Executed], spec: TurnSpec) -> TurnSpec:
        """Commit the state of a turn. Returns the turn with the executions that count.

        Raises:
            TurnOverError: the turn is closed, or a newer run has begun.
            StateLimitError: the state would exceed the app's limit.
            StateLostError: the server lost writes of the state.
        """
        if not chosen:
            return spec
        attempts = [attempt for one in chosen for attempt in one.attempts]
        check(self._turn(spec.turn).commit(attempts), self._topology, spec.turn)
        self._decided = self._committed = spec.turn
        return replace(spec, executions=frozenset(one.name.encode() for one in chosen))

    def close(self, number: int) -> bool:
        """Close a turn. Returns False if it was committed, and may not be searched for a message to blame.

        Raises:
            TurnOverError: a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        if not self.is_used or number == self._committed:
            return not self.is_used
        self.begin(number)
        is_closed = self._turn(number).close()
        self._decided = number
        if not is_closed:
            self._committed = number
        return is_closed

    def _turn(self, number: int) -> StateTurn:
        return self._stored().turn(self.epoch, number)

    def _stored(self) -> TopologyState:
        return app_of(self._acker).topology_state(self._topology)


class RunTurn:
    """Turn of a run, with its claims and its state."""

    def __init__(self, claims: Turn, state: RunState, number: int) -> None:
        self._claims, self._state, self._number = claims, state, number

    def open(self) -> None:
        """Open the turn. Turns before it can no longer be committed."""
        self._state.begin(self._number)
        self._claims.open()

    def keep(self) -> None:
        """Keep the turn for two more dedup windows; see `Turn.keep`."""
        self._claims.keep()

    def close(self) -> bool:
        """Close the turn. Returns False if its state is committed, or one of its bins was claimed."""
        return self._state.close(self._number) and self._claims.close()


def check_state(graph: Graph) -> None:
    """Check the bolts with state.

    Raises:
        InvalidTopologyError: the topology isn't tracked, or has too many tasks with state.
    """
    bolts = [bolt for bolt in graph.bolts if states_of_task(bolt)]
    if bolts and graph.config.get(settings.ACKER_EXECUTORS) == 0:
        raise InvalidTopologyError(
            f"{settings.ACKER_EXECUTORS} is 0, and the bolt {bolts[0].name!r} has state, which is committed before the acks. "
            "Omit the setting, or use a Bolt."
        )
    tasks = sum(bolt.tasks * states_of_task(bolt) for bolt in bolts)
    if tasks > MAX_TASKS:
        raise InvalidTopologyError(
            f"Topology {graph.name!r} has {tasks} tasks with state, and one call commits all of them. Use at most {MAX_TASKS}."
        )
