"""States of one start of a streaming query, and which follows which. No I/O.

NEW --> BETWEEN_BATCHES <--> IN_BATCH <--> BATCH_FULL
^  |
|  +--> DRAINING <--> RESTING --> IN_BATCH
|          |             ^
+----------+             +-- BETWEEN_BATCHES

each but NEW --> ENDED;  BETWEEN_BATCHES --> FAILED --> ENDED
"""

import threading
from collections.abc import Mapping
from enum import Enum

from acker_redis.errors import AckerError


class QueryState(Enum):
    """What one start of a query is doing."""

    NEW = "nothing is begun"
    BETWEEN_BATCHES = "its worker thread takes outcomes, and emits what is due"
    IN_BATCH = "a micro-batch runs, in Spark's thread"
    BATCH_FULL = "the micro-batch waits, as too many messages are not done or in flight"
    DRAINING = "a drain runs, in its caller's thread"
    RESTING = "Spark doesn't run the query: all is saved, and another run may have the lane"
    FAILED = "it broke off between micro-batches; the next call raises the error"
    ENDED = "it is over, and its caller knows; another start may take over"


TRANSITIONS: Mapping[QueryState, frozenset[QueryState]] = {
    # resume() | it raised
    QueryState.NEW: frozenset({QueryState.BETWEEN_BATCHES, QueryState.ENDED}),
    # a micro-batch | drain() | the query is gone | the worker raised | end()
    QueryState.BETWEEN_BATCHES: frozenset({
        QueryState.IN_BATCH, QueryState.DRAINING, QueryState.RESTING, QueryState.FAILED, QueryState.ENDED,
    }),
    # it is over | no room | it raised
    QueryState.IN_BATCH: frozenset({QueryState.BETWEEN_BATCHES, QueryState.BATCH_FULL, QueryState.ENDED}),
    # there is room | the batch raised
    QueryState.BATCH_FULL: frozenset({QueryState.IN_BATCH, QueryState.ENDED}),
    # it is over, with or without a query that runs | it raised
    QueryState.DRAINING: frozenset({QueryState.BETWEEN_BATCHES, QueryState.RESTING, QueryState.ENDED}),
    # the query starts after all | drain() | the end could not be saved | end()
    QueryState.RESTING: frozenset({
        QueryState.IN_BATCH, QueryState.DRAINING, QueryState.FAILED, QueryState.ENDED,
    }),
    # the error was raised
    QueryState.FAILED: frozenset({QueryState.ENDED}),
    QueryState.ENDED: frozenset(),
}  # fmt: skip
"""State -> states that may follow, and above each line what leads to them, in their order."""


class QueryStates:
    """The state that a query is in.

    It changes under the query's lock; any thread may read it. A stop is a request and no state: any thread may make it
    at any time, and the thread that has the lock breaks off at its next step.

    Attributes:
        stop_requested: whether what is under way is to break off.
    """

    def __init__(self) -> None:
        """Begin in the state NEW."""
        self.stop_requested = False
        self._state = QueryState.NEW
        self._over = threading.Event()

    @property
    def state(self) -> QueryState:
        """The state now."""
        return self._state

    @property
    def in_batch(self) -> bool:
        """Whether a micro-batch runs."""
        return self._state in (QueryState.IN_BATCH, QueryState.BATCH_FULL)

    @property
    def is_over(self) -> bool:
        """Whether nothing is done any more, as it failed or ended."""
        return self._over.is_set()

    def move_to(self, state: QueryState) -> None:
        """Change the state.

        Raises:
            AckerError: this state can't follow the one before.
        """
        if state not in TRANSITIONS[self._state]:
            raise AckerError(
                f"A query can't go from {self._state.name} to {state.name}. That is a bug: please report it"
            )
        self._state = state
        if state in (QueryState.FAILED, QueryState.ENDED):
            self._over.set()

    def request_stop(self) -> None:
        """Let what is under way break off; any thread may call this."""
        self.stop_requested = True

    def wait_until_over(self, timeout_secs: float) -> bool:
        """Wait so long at most for the end; return True if it came."""
        return self._over.wait(timeout_secs)
