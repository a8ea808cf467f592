"""State and counts of a run in Redis, where the dashboard, Prometheus and people read them."""

import logging

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError
from acker_redis.store import run_ends, topology_counts
from acker_redis.store.run_ends import End
from acker_redis.store.topology_counts import ENDED, FAILED, RUNNING, Counts
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.local.engine import Engine

log = logging.getLogger("acker_redis.storm")


class Showing:
    """What a run shows of itself. An error of the server changes nothing for the run."""

    def __init__(self, graph: Graph, acker: Acker, engine: Engine, run_id: str) -> None:
        self._name, self._run_id = graph.name, run_id
        self._acker, self._engine = acker, engine
        self._lane = engine.updates.spout_id % acker.config.lanes if engine.is_tracking else None

    def begin(self) -> None:
        """Note that the run has begun, and forget counts of topologies that didn't run for a week."""
        try:
            topology_counts.forget_old(app_of(self._acker).client, self._acker.config.app)
            self._note(End(self._run_id, self._engine.updates.spout_id, "begun"))
        except AckerError as exc:
            log.debug("begin not noted run_id=%r error=%s", self._run_id, exc)

    def counts(self, turns: int | None, state: str = RUNNING, error: str | None = None) -> None:
        """Write the counts."""
        engine = self._engine
        counts = Counts(
            topology=self._name,
            run_id=self._run_id,
            state=state,
            pending=engine.pending_roots_count,
            turns=turns,
            error=error,
            lane=self._lane,
            components={name: metrics.as_counts() for name, metrics in engine.observer.metrics.items()},
        )
        try:
            topology_counts.write(app_of(self._acker).client, self._acker.config.app, counts)
        except AckerError as exc:
            log.debug("counts not written run_id=%r error=%s", self._run_id, exc)

    def end(self, turns: int | None, error: BaseException | None) -> None:
        """Write the last counts, and how the run ended. Call it while the run holds its lane."""
        end = run_ends.end_of(
            self._run_id, self._engine.updates.spout_id, error, is_settled=not self._engine.pending_roots_count
        )
        self.counts(turns, FAILED if end.state == "failed" else ENDED, end.error or None)
        try:
            self._note(end)
        except AckerError as exc:
            log.debug("end not noted run_id=%r error=%s", self._run_id, exc)

    def _note(self, end: End) -> None:
        if self._lane is not None:
            app_of(self._acker).note_end(end, lane=self._lane)
