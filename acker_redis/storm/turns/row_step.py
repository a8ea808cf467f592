"""Step of a turn's job that sends the rows of a DataFrame to the bolts' tasks. It runs in Python workers."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from acker_redis.errors import BadTupleError
from acker_redis.spark.worker.process import keep_imports, partition_id
from acker_redis.spark.worker.python_values import values_of
from acker_redis.storm.core.collectors import Emission
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.event_log import plain_events
from acker_redis.storm.core.hooks import HookList
from acker_redis.storm.definition import settings
from acker_redis.storm.turns.collectors import Emits, RowSpoutCollector
from acker_redis.storm.turns.steps import LevelReport, Read, TurnSpec, last_rows
from acker_redis.storm.turns.tasks import TaskSet
from acker_redis.storm.turns.updates import Updates

log = logging.getLogger("acker_redis.storm")

UNREAD = 1
"""Ack val of a message until a worker has read its row. Then it is that of the row's tuples."""

_MASK = (1 << 64) - 1
_ROWS_BITS = 40
"""Bits of a tuple's sequence that count in its partition. The others are the partition's number."""


@dataclass(frozen=True)
class RowStep:
    """Function for `mapInArrow` from id, root, reason and values of rows to tuples for tasks.

    Attributes:
        spec: the turn.
        task: task of the spout.
    """

    spec: TurnSpec
    task: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition."""
        keep_imports()
        run = _RowRun(self.spec.tasks(), self.spec, self.task)
        for batch in batches:
            yield from run.emit(batch)
        yield from run.end()


class _RowRun:
    """Rows of one partition: the transport of the spout's collector."""

    def __init__(self, tasks: TaskSet, spec: TurnSpec, task: int) -> None:
        graph = tasks.plan.graph
        component = graph.components[graph.component_of[task]]
        hooks = HookList()
        context = TopologyContext(graph, task, {settings.NAME: graph.name, **graph.config, **component.config}, hooks)
        self.is_tracking = spec.url is not None
        self._component, self._task = component.name, task
        self._emits = Emits(tasks.plan)
        self._updates = Updates(tasks.plan)
        self._observer = tasks.observer(spec.secs, spec.debug)
        transport: Any = self  # for a spout: it receives no tuples
        self._collector = RowSpoutCollector(
            graph, context, transport, self._observer, hooks, run=spec.run_id, turn=spec.turn
        )
        self._collector.send_to(self._emits)
        self._collector.begin_sequence(partition_id() << _ROWS_BITS)
        self._root, self._rows, self._sum = 0, 0, 0

    def emit(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send the rows of a batch."""
        ids, roots, reasons, *columns = map(values_of, batch.columns)
        for message_id, root, reason, values in zip(ids, roots, reasons, zip(*columns, strict=True), strict=True):
            self._root = root & _MASK
            self._rows += 1
            self._sum += self._root
            self._emit_row(message_id, reason, values)
            if self._emits.rows.is_full:
                yield from self._emits.rows.take()

    def _emit_row(self, message_id: int, reason: str | None, values: tuple[Any, ...]) -> None:
        """Send a row. Its call is its message, so that its edges and targets don't depend on where it was read."""
        self._collector.begin_call(str(self._root))
        try:
            if reason is None:
                self._collector.emit(values, message_id if self.is_tracking else None)
                return
        except BadTupleError as exc:
            reason = f"BadTupleError: {exc}"
        if self.is_tracking:
            self._updates.fail(self._root, reason, self._component, retry=False, is_expected=True)
        else:
            log.warning("row dropped spout=%r id=%d reason=%r", self._component, message_id, reason)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the last rows, the updates and the report."""
        if not self._rows:
            return
        read = {self._task: Read(self._rows, self._sum & _MASK)}
        metrics = {self._component: self._observer.metrics[self._component]}
        report = LevelReport(metrics, plain_events(self._observer.events), {}, read=read)
        yield from last_rows(self._emits, self._updates, report)

    # -- the transport of the collector

    def new_root(self) -> int:
        """Return the root of the row."""
        return self._root

    def init(self, task: int, root: int, val: int, emission: Emission) -> None:  # noqa: ARG002
        """Replace the ack val of a message that wasn't read by that of its tuples."""
        self._updates.ack({root: UNREAD ^ val}, self._component)

    def ack_untracked(self, task: int, emission: Emission) -> None:
        """Do nothing: the driver has acked it."""

    def note_untracked(self, task: int, emission: Emission) -> None:
        """Do nothing: the driver knows them."""
