"""Bolts that hold tuples for later: the part that batches and windows share."""

from collections.abc import Iterable, Iterator
from typing import Any

from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.core.tuples import PENDING, Tuple


class HoldingBolt(Bolt):
    """Bolt that holds tuples until their batch or window is processed.

    On Spark it holds them over turns: a task gives away what it holds at the end of a turn, and takes it back at the next one.
    """

    _acker_is_whole: bool = True

    def _acker_execute(self, tup: Tuple) -> bool:
        self._acker_is_whole = True
        with self._acker_processing([tup], acks=self.auto_ack and tup.is_tick) as done:
            if tup.is_tick:
                self.process_tick(tup)
            else:
                self.process(tup)
        return done.is_whole and self._acker_is_whole

    def _acker_abandon(self) -> None:
        if self.auto_fail:
            self._acker_fail_held("the task was replaced after an exception")
        else:
            self._acker_let_go()

    def _acker_fail_held(self, reason: str) -> int:
        """Fail all tuples that the bolt holds, and let them go. Returns the number of those that were pending."""
        pending = [tup for tup in self._acker_let_go() if tup.state is PENDING]
        for tup in pending:
            self._acker_collector.fail(tup, reason)
        return len(pending)

    def _acker_held_tuples(self) -> list[Tuple]:
        """List the tuples that a later call will process."""
        raise NotImplementedError

    def _acker_let_go(self) -> list[Tuple]:
        """Hold nothing any more. Returns the tuples that were held."""
        raise NotImplementedError

    def _acker_held_places(self) -> Iterator[tuple[Tuple, Any]]:
        """Yield each tuple in order, with its place among the others."""
        raise NotImplementedError

    def _acker_held_progress(self) -> Any:
        """Return what the bolt knows beside its tuples."""
        raise NotImplementedError

    def _acker_resume_held(self, progress: Any, places: Iterable[tuple[Tuple, Any]]) -> None:
        """Go on with the tuples and the progress of a task that gave them away."""
        raise NotImplementedError
