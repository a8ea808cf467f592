"""Single outcomes: a view of whole entries, for programs that handle few."""

from collections import deque

from acker_redis.errors import AckerError
from acker_redis.ledger.outcomes.consumer import Consumer
from acker_redis.ledger.outcomes.outcome import ComponentName, EntryReceipt, Outcome


class SingleOutcomes:
    """Hands out exactly the requested number of outcomes from one consumer's entries.

    Only the last entry of a poll can be handed out in part. The consumer holds it until all of it was handed out.

    Attributes:
        consumer: consumer that reads the entries.
    """

    def __init__(self, consumer: Consumer, component_name: ComponentName) -> None:
        """Wrap a consumer. `component_name` maps a component's number to its name."""
        self.consumer = consumer
        self._component_name = component_name
        self._rest: deque[Outcome] = deque()
        self._held: EntryReceipt | None = None

    def poll(self, max_outcomes: int, block_ms: int) -> list[Outcome]:
        """Read up to `max_outcomes` outcomes; see `Acker.poll`."""
        outcomes = self._take(max_outcomes)
        if len(outcomes) < max_outcomes:
            try:
                self._read(max_outcomes - len(outcomes), 0 if outcomes else block_ms)
            except AckerError:
                if outcomes:  # taken already: hand them out, the next poll meets the error
                    return outcomes
                raise
            outcomes += self._take(max_outcomes - len(outcomes))
        return outcomes

    def begin_again(self) -> None:
        """Let the next poll begin with entries that were not confirmed, and drop the rest of the last entry."""
        self._rest.clear()
        self._take(0)
        self.consumer.begin_again()

    def _read(self, wanted: int, block_ms: int) -> None:
        taken = self.consumer.poll(wanted, block_ms)
        try:
            outcomes = [outcome for entries in taken for outcome in entries.outcomes(self._component_name)]
        except AckerError:  # the name of a component could not be read
            self.consumer.begin_again()
            raise
        self._rest.extend(outcomes)

    def _take(self, count: int) -> list[Outcome]:
        taken = [self._rest.popleft() for _ in range(min(count, len(self._rest)))]
        begun = self._rest[0].receipt if self._rest else None
        if begun is not self._held:
            if self._held is not None:
                self.consumer.release(self._held.stream, self._held.entry_id)
            if begun is not None:
                self.consumer.hold(begun.stream, begun.entry_id)
            self._held = begun
        return taken
