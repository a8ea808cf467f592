"""Job of a turn: levels of bolts, sinks, and the acks of the last stage's executors."""

import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import InvalidTopologyError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import AckerConfig
from acker_redis.spark.runtime.frames import in_partitions, map_in_arrow, read_rows, select
from acker_redis.spark.runtime.jobs import described, ended_after, running
from acker_redis.spark.runtime.jvm import java_errors
from acker_redis.spark.runtime.sessions import is_connect, version_of
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.storm.core.event_log import Event
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.definition.streams import StreamId
from acker_redis.storm.turns import sinks
from acker_redis.storm.turns.checks import SinkSpec
from acker_redis.storm.turns.collectors import MAX_VALUE_BYTES
from acker_redis.storm.turns.frames import TurnRows
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.row_step import RowStep
from acker_redis.storm.turns.rows import MAX_BYTES, ROW_BYTES, SCHEMA, TYPES
from acker_redis.storm.turns.run_state import RunState
from acker_redis.storm.turns.steps import (
    CONTENT,
    REPLY,
    AckStep,
    BinReport,
    LevelReport,
    LevelStep,
    Read,
    ReadBackStep,
    TurnSpec,
)

_MAX_RECORDS, _MAX_RECORD_BYTES = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)
_CANCEL_EVERY_SECS = 1.0

_FEW = 10_000
"""Tuples of spouts and sinks in a turn up to which one task sends all bins, because an exchange costs more."""

_RECORDS = ((1 << 31) - 1) // (ROW_BYTES + MAX_VALUE_BYTES)
"""Rows of a batch on Spark 4.0, which can't bound its bytes. A column of that many long rows is within Arrow's limit."""


class TurnReport(NamedTuple):
    """Result of a turn's job.

    Attributes:
        levels: reports of the levels' tasks.
        bins: reports of the bins.
        written: stream -> number of rows that its sink wrote.
    """

    levels: list[LevelReport]
    bins: list[BinReport]
    written: Mapping[StreamId, int] = {}

    def metrics(self) -> Iterator[tuple[str, ComponentMetrics]]:
        """Yield components and their metrics."""
        for report in self.levels:
            yield from report.metrics.items()

    def events(self) -> Iterator[Event]:
        """Yield the events of the event log."""
        for report in self.levels:
            yield from report.events

    def worked(self) -> dict[str, set[int]]:
        """Return up to two roots that each bolt has processed without failing."""
        worked: dict[str, set[int]] = {}
        for report in self.levels:
            for bolt, roots in report.worked.items():
                known = worked.setdefault(bolt, set())
                known.update(sorted(roots)[: 2 - len(known)])
        return worked

    def read(self, task: int) -> Read:
        """Sum up the rows that a spout's task read from its DataFrame."""
        parts = [report.read[task] for report in self.levels if task in report.read]
        return Read(sum(part.rows for part in parts), sum(part.roots for part in parts) & (1 << 64) - 1)

    def resets(self) -> set[int]:
        """Return the roots whose timeout a bolt has reset."""
        return {root for report in self.levels for root in report.resets}

    def holds(self) -> dict[int, int]:
        """Return how many tuples the batches or windows of each task hold."""
        return {task: count for report in self.levels for task, count in report.holds.items()}

    def released(self) -> int:
        """Count the held tuples that were failed, because a call that needs them breaks its turns."""
        return sum(sum(report.released.values()) for report in self.levels)

    def failed(self) -> dict[tuple[str, str, bool, bool], Int64Array]:
        """Return the failed roots, signed, by bolt, reason, whether to retry, and whether it was expected."""
        found: dict[tuple[str, str, bool, bool], list[bytes]] = {}
        for report in self.bins:
            for key, roots in report.failed.items():
                found.setdefault(key, []).append(roots)
        return {key: np.frombuffer(b"".join(parts), np.int64) for key, parts in found.items()}


class TurnJobs:
    """Jobs of one run.

    Attributes:
        session: Spark session.
    """

    def __init__(
        self,
        session: SparkSession,
        plan: Plan,
        sink_specs: Sequence[SinkSpec],
        *,
        run_id: str,
        url: str | None,
        config: AckerConfig,
        timeout_secs: float | None,
        state: RunState,
    ) -> None:
        """Serialise the plan.

        Raises:
            InvalidTopologyError: a bolt or grouping can't be sent to Python workers.
        """
        self.session = session
        self._plan, self._sinks = plan, sink_specs
        self._run_id, self._url, self._config, self._timeout_secs = run_id, url, config, timeout_secs
        self._state = state
        self._bolts = ", ".join(component.name for component in plan.graph.bolts if component.maker is not None)
        try:
            self._sent_plan: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
        except Exception as exc:  # of the user's objects
            raise InvalidTopologyError(
                f"The bolts of topology {plan.graph.name!r} can't reach Spark's workers ({type(exc).__name__}: {exc}). Open "
                "files and connections in initialize(), or pass classes."
            ) from exc

    def run(
        self,
        number: int,
        rows: Sequence[pa.RecordBatch],
        frames: Sequence[TurnRows],
        since: int,
        secs: float,
        ms: int,
        debug: Mapping[str, float],
    ) -> TurnReport:
        """Run the job of a turn. When it returns, the updates of all bins that were claimed are sent.

        Args:
            number: number of the turn.
            rows: tuples that spouts emitted in the driver.
            frames: rows of DataFrames.
            since: number of the first turn of which a message may be pending.
            secs: time of the turn, by the run's clock.
            ms: the same, in milliseconds since 1970.
            debug: component -> percent of its emits that the event log takes.

        Raises:
            Exception: the job broke.
        """
        session = frames[0].frame.sparkSession if frames else self.session  # a micro-batch has a session of its own
        spec = TurnSpec(
            self._run_id, self._sent_plan, number, secs, self._url, self._config, dict(debug),
            topology=self._plan.graph.name, epoch=self._state.epoch, since=since, ms=ms,
        )  # fmt: skip
        tag = self.tag(number)
        text = f"topology {self._plan.graph.name!r}, turn {number}: {self._bolts}"
        with (
            own_errors(),
            running(session, tag),
            described(session, text),
            ended_after(session, tag, self._timeout_secs, "turn_timeout_secs", "a turn"),
        ):
            if not self._sinks and not self._state.is_used:
                return self._sent(self._by_bin(self._levels(rows, frames, spec)), spec)
            kept = self._levels(rows, frames, spec).localCheckpoint(eager=not self._sinks)  # else `keep` does it
            try:
                totals, contents = sinks.keep(kept, self._plan) if self._sinks else sinks.KeptRows({}, {})
                chosen = self._state.executions(kept)
                if self._sinks:
                    self._state.check_limit(chosen, number)
                key = f"{self._config.app}:{self._run_id}:{number}"
                sinks.write(kept, self._plan, self._sinks, totals, session, key, tag)
                spec = self._state.commit(chosen, spec)
                is_small = _count(rows, frames) + sum(total.rows for total in totals.values()) <= _FEW
                report = self._acked(kept, contents, spec, is_small=is_small)
                rows_of = {task: total.rows for task, total in totals.items()}
                return report._replace(
                    written={stream: rows_of[task] for stream, task in self._plan.sinks.items() if task in rows_of}
                )
            finally:
                _release(kept)

    def tag(self, number: int) -> str:
        """Return the tag of a turn's jobs."""
        return f"acker:{self._config.app}:{self._run_id}:{number}".replace(",", "_")

    def cancel(self, number: int) -> None:
        """Cancel the jobs of a turn."""
        if is_connect(self.session):
            self.session.interruptTag(self.tag(number))
        else:
            self.session.sparkContext.cancelJobsWithTag(self.tag(number))

    def cancel_until(self, ended: threading.Event, number: int) -> None:
        """Cancel the jobs of a turn, and those that start later, until the turn has ended."""
        while not ended.is_set():
            self.cancel(number)
            ended.wait(_CANCEL_EVERY_SECS)

    def _levels(self, rows: Sequence[pa.RecordBatch], frames: Sequence[TurnRows], spec: TurnSpec) -> DataFrame:
        parts = [of.frame.mapInArrow(RowStep(spec, of.task), TYPES) for of in frames]
        if rows:
            parts.append(self.session.createDataFrame(pa.Table.from_batches(rows, SCHEMA), TYPES))
        frame = reduce(lambda first, second: first.union(second), parts)
        for level in range(len(self._plan.levels)):
            routed = in_partitions(frame, len(self._plan.keys), "key", "to", "frm", "seq")
            frame = map_in_arrow(routed, LevelStep(spec, level), TYPES, *SCHEMA.names)
        return frame

    def _acked(self, kept: DataFrame, contents: Mapping[int, int], spec: TurnSpec, *, is_small: bool) -> TurnReport:
        """Send the updates of a turn whose rows are kept, and written by its sinks."""
        if not self._sinks:
            return self._sent(kept.coalesce(1) if is_small else self._by_bin(kept), spec)
        columns = (*(f"`{name}`" for name in SCHEMA.names), sinks.CONTENT_OF_ROW)
        if is_small:
            whole = {0: sum(contents.values()) & (1 << 64) - 1}
            return self._sent(select(kept.coalesce(1), *columns), spec, ReadBackStep(spec, whole))
        read = map_in_arrow(select(kept, *columns), ReadBackStep(spec, contents), TYPES, *SCHEMA.names, CONTENT)
        return self._sent(self._by_bin(read), spec)

    def _by_bin(self, frame: DataFrame) -> DataFrame:
        """Bring the parts of each bin together."""
        return in_partitions(frame, len(self._plan.keys), "key")

    def _sent(self, frame: DataFrame, spec: TurnSpec, read_back: ReadBackStep | None = None) -> TurnReport:
        """Send the updates of bins whose parts are together. With a read-back, the rows have their contents."""
        names = SCHEMA.names if read_back is None else [*SCHEMA.names, CONTENT]
        acked = map_in_arrow(frame, AckStep(spec, read_back), REPLY, *names)
        reports = [pickle.loads(data) for data in read_rows(acked).column("data").to_pylist()]  # noqa: S301
        return TurnReport(
            [report for report in reports if isinstance(report, LevelReport)],
            [report for report in reports if isinstance(report, BinReport)],
        )


def _count(rows: Sequence[pa.RecordBatch], frames: Sequence[TurnRows]) -> int:
    return sum(int(batch.column("size").to_numpy().sum()) for batch in rows) + sum(of.expected.rows for of in frames)


@contextmanager
def small_batches(session: SparkSession) -> Iterator[None]:
    """Bound the batches that Python workers receive during a run, because a tuple may have 32 MiB."""
    wanted = {_MAX_RECORD_BYTES: str(8 * MAX_BYTES)}
    if version_of(session).startswith("4.0."):
        own = int(session.conf.get(_MAX_RECORDS, None) or 0)  # 0 or less: no bound
        wanted[_MAX_RECORDS] = str(min(_RECORDS, own) if own > 0 else _RECORDS)
    before = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _release(kept: DataFrame) -> None:
    if is_connect(kept.sparkSession):
        return  # the server drops the rows with the last frame over them
    try:
        kept._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
    except java_errors():
        return  # Spark drops the rows with the frame
