"""States of one start of a streaming query, and the transitions between them. No I/O.

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
    """State of one start of a query."""

    NEW = "not started"
    BETWEEN_BATCHES = "the worker thread processes outcomes and emits due messages"
    IN_BATCH = "a micro-batch runs in Spark's thread"
    BATCH_FULL = "the micro-batch waits because too many messages are not done or in flight"
    DRAINING = "a drain runs in its caller's thread"
    RESTING = "Spark doesn't run the query; everything is saved, and another run may use the lane"
    FAILED = "failed between micro-batches; the next call raises the error"
    ENDED = "ended, and the caller was notified; another start may take over"


TRANSITIONS: Mapping[QueryState, frozenset[QueryState]] = {
    # resume() | it raised
    QueryState.NEW: frozenset({QueryState.BETWEEN_BATCHES, QueryState.ENDED}),
    # a micro-batch | drain() | the query is gone | the worker raised | end()
    QueryState.BETWEEN_BATCHES: frozenset({
        QueryState.IN_BATCH, QueryState.DRAINING, QueryState.RESTING, QueryState.FAILED, QueryState.ENDED,
    }),
    # it ended | no room | it raised
    QueryState.IN_BATCH: frozenset({QueryState.BETWEEN_BATCHES, QueryState.BATCH_FULL, QueryState.ENDED}),
    # there is room | the batch raised
    QueryState.BATCH_FULL: frozenset({QueryState.IN_BATCH, QueryState.ENDED}),
    # it ended, with or without a running query | it raised
    QueryState.DRAINING: frozenset({QueryState.BETWEEN_BATCHES, QueryState.RESTING, QueryState.ENDED}),
    # the query starts after all | drain() | the end could not be saved | end()
    QueryState.RESTING: frozenset({
        QueryState.IN_BATCH, QueryState.DRAINING, QueryState.FAILED, QueryState.ENDED,
    }),
    # the error was raised
    QueryState.FAILED: frozenset({QueryState.ENDED}),
    QueryState.ENDED: frozenset(),
}  # fmt: skip
"""State -> states that may follow. The comment above each line lists the triggers in the same order."""


class QueryStates:
    """Current state of a query.

    It changes under the query's lock, and any thread may read it. A stop is a request, not a state: any thread may request
    it at any time, and the thread that holds the lock stops at its next step.

    Attributes:
        stop_requested: whether the current work should stop.
    """

    def __init__(self) -> None:
        """Start in the state NEW."""
        self.stop_requested = False
        self._state = QueryState.NEW
        self._over = threading.Event()

    @property
    def state(self) -> QueryState:
        """Current state."""
        return self._state

    @property
    def in_batch(self) -> bool:
        """Whether a micro-batch is running."""
        return self._state in (QueryState.IN_BATCH, QueryState.BATCH_FULL)

    @property
    def is_over(self) -> bool:
        """Whether the query has failed or ended."""
        return self._over.is_set()

    def move_to(self, state: QueryState) -> None:
        """Change the state.

        Raises:
            AckerError: `state` can't follow the current one.
        """
        if state not in TRANSITIONS[self._state]:
            raise AckerError(
                f"A query can't change from {self._state.name} to {state.name}. This is a bug. Please report it."
            )
        self._state = state
        if state in (QueryState.FAILED, QueryState.ENDED):
            self._over.set()

    def request_stop(self) -> None:
        """Request that the current work stops. Thread-safe."""
        self.stop_requested = True

    def wait_until_over(self, timeout_secs: float) -> bool:
        """Wait for the end of the query. Return True if it came in time."""
        return self._over.wait(timeout_secs)
