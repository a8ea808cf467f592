"""Steps of a turn's job that run in Python workers: levels of bolts, the read-back of sinks' rows, and the acks."""

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from acker_redis.acker import app_of
from acker_redis.errors import InvalidTopologyError, LedgerLostError, UnprovenEmissionError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import AckerConfig
from acker_redis.spark.protocol.shares import salt_of, split
from acker_redis.spark.worker.process import acker_of_worker, keep_imports, partition_id, while_lost
from acker_redis.store.topology_state import StateTurn
from acker_redis.storm.core.event_log import plain_events
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.tuples import FAILED, SYSTEM_TASK, Tuple, values_type
from acker_redis.storm.core.values import load_all, load_values
from acker_redis.storm.definition.streams import SYSTEM, TICK, TICK_STREAM
from acker_redis.storm.state.execution import Executed, Execution
from acker_redis.storm.state.held import Moment
from acker_redis.storm.turns.collectors import Emits
from acker_redis.storm.turns.field_types import column_of
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.rows import (
    BIN,
    CALLER,
    LAST_CALLER,
    RELEASE_SOURCE,
    REPORT,
    SCHEMA,
    STATE,
    TICK_SOURCE,
    TIMER_SOURCE,
    edges_of_tuples,
    unpack,
    unpack_edges,
)
from acker_redis.storm.turns.tasks import TaskSet, WorkerTask
from acker_redis.storm.turns.updates import Bin, Updates

REPLY = StructType([StructField("data", BinaryType())])
"""Columns of the reports that reach the driver."""

CONTENT = "content"
"""Column with a hash of all that a row contains."""

_MASK = (1 << 64) - 1
_SALT = salt_of("tuples of a row")

_MAX_REASONS = 1000
_REASON_CHARS = 200
_KEPT_RUNS = 4

_runs: "OrderedDict[str, TaskSet]" = OrderedDict()
"""Tasks of this process, by run."""


class Read(NamedTuple):
    """Rows of a DataFrame that were read.

    Attributes:
        rows: their number.
        roots: sum of their roots, modulo 2**64.
    """

    rows: int
    roots: int


class LevelReport(NamedTuple):
    """Report of a task of a level, or of a DataFrame's rows.

    Attributes:
        metrics: component -> metrics.
        events: events of the event log.
        worked: component -> up to two roots whose tuples it processed without failing. 0 stands for untracked tuples.
        mistake: what a bolt did that a turn can't do; it ends the run. None: nothing.
        read: task of a spout -> rows that it read.
        resets: roots whose timeout a bolt has reset.
        holds: task -> number of tuples that its batches or windows hold.
        released: task -> number of held tuples that were failed, because a call that needs them breaks its turns.
        too_long: root of a held tuple that the state can't keep -> bolt, and the reason. Nothing of the turn may count then.
    """

    metrics: dict[str, ComponentMetrics]
    events: list[Any]
    worked: dict[str, set[int]]
    mistake: str | None = None
    read: Mapping[int, Read] = {}
    resets: Sequence[int] = ()
    holds: Mapping[int, int] = {}
    released: Mapping[int, int] = {}
    too_long: Mapping[int, tuple[str, str]] = {}


class BinReport(NamedTuple):
    """Report of a bin.

    Attributes:
        number: number of the bin.
        claim: answer to its claim, a `Claim`.
        roots: number of its roots.
        failed: (component, reason, whether to retry, whether it was expected) -> roots, packed.
    """

    number: int
    claim: int
    roots: int
    failed: dict[tuple[str, str, bool, bool], bytes]


@dataclass(frozen=True)
class TurnSpec:
    """What the steps of one turn share.

    Attributes:
        run_id: id of the run.
        plan: plan of the run, serialised once.
        turn: number of the turn.
        secs: time of the turn, by the run's clock.
        url: server's URL, as executors reach it; None: nothing is tracked.
        config: settings of the app.
        debug: component -> percent of its emits that the event log takes.
        topology: name of the topology.
        epoch: epoch of its state; 0 if it has none.
        executions: names of the executions whose state is committed. Only their bins are sent, and those without a name.
        since: number of the first turn of which a message may be pending.
        ms: time of the turn, in milliseconds since 1970.
    """

    run_id: str
    plan: bytes = field(repr=False)
    turn: int
    secs: float
    url: str | None = field(repr=False)  # may hold a password
    config: AckerConfig
    debug: dict[str, float]
    topology: str = ""
    epoch: int = 0
    executions: frozenset[bytes] = frozenset()
    since: int = 0
    ms: int = 0

    @property
    def moment(self) -> Moment:
        """The turn, as tasks that hold tuples know it."""
        return Moment(self.epoch, self.turn, self.since, self.secs, self.ms)

    def state_turn(self) -> StateTurn:
        """Return the turn of the topology's state."""
        acker = acker_of_worker(str(self.url), self.config)
        return app_of(acker).topology_state(self.topology).turn(self.epoch, self.turn)

    def tasks(self) -> TaskSet:
        """Return this process's tasks of the run."""
        tasks = _runs.pop(self.run_id, None)
        if tasks is None:
            tasks = TaskSet(pickle.loads(self.plan), self.run_id)  # noqa: S301  # the driver's
        _runs[self.run_id] = tasks
        while len(_runs) > _KEPT_RUNS:
            _runs.popitem(last=False)[1].close()
        return tasks


@dataclass(frozen=True)
class LevelStep:
    """Function for `mapInArrow` that runs the tasks of one level. Rows for others pass.

    Attributes:
        spec: the turn.
        level: number of the level, from 0.
    """

    spec: TurnSpec
    level: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition, whose rows are sorted by task, emitter and sequence.

        A mistake travels to the driver in the data, because Spark would try a task again that raises. Without the updates of
        its task, no tree with a tuple of this partition is complete.
        """
        keep_imports()
        tasks = self.spec.tasks()
        try:
            yield from self._execute(batches, tasks)
        except InvalidTopologyError as exc:
            rows = Emits(tasks.plan).rows
            report = LevelReport({}, [], {}, str(exc))
            rows.add(tasks.plan.keys[0], REPORT, 0, pickle.dumps(report, 5))
            yield from rows.take()

    def _execute(self, batches: Iterator[pa.RecordBatch], tasks: TaskSet) -> Iterator[pa.RecordBatch]:
        run = _LevelRun(tasks, self.spec)
        own = np.array(tasks.plan.levels[self.level], np.int32)
        for batch in batches:
            is_own = np.isin(batch.column("to").to_numpy(), own)
            if not is_own.all():
                yield batch.filter(pa.array(~is_own))
                batch = batch.filter(pa.array(is_own))
            yield from run.execute(batch)
        yield from run.end()


class _LevelRun:
    """Tasks of a level during one turn: the transport of their collectors."""

    is_tracking = True

    def __init__(self, tasks: TaskSet, spec: TurnSpec) -> None:
        self._plan = tasks.plan
        self._spec = spec
        self._tasks = tasks
        self._emits = Emits(tasks.plan)
        self._updates = Updates(tasks.plan)
        self._observer = tasks.observer(spec.secs, spec.debug)
        self._worked: dict[str, set[int]] = defaultdict(set)
        self._open: dict[int, WorkerTask] = {}
        self._state = Execution(spec.state_turn)
        self._makers: dict[int, tuple[str, str, Any, str]] = {}
        self._resets: set[int] = set()
        self._released: dict[int, int] = {}
        self.is_tracking = spec.url is not None
        self.ack, self.fail = self._updates.ack, self._updates.fail  # for the transport, without a detour
        self.ack_tuples = self._updates.ack_tuples

    def execute(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Execute the tuples of a batch."""
        columns = [batch.column(name).to_pylist() for name in ("to", "frm", "data", "edges")]
        rows = self._emits.rows
        for to, frm, data, edges in zip(*columns, strict=True):
            task = self._open.get(to) or self._begin(to)
            acked = self._acked(task)
            if frm in (CALLER, LAST_CALLER):
                self._call(to, task, data)
            else:
                yield from self._execute_row(task, frm, data, edges)
            if self._acked(task) > acked:
                self._worked[task.name].add(0)
            if rows.is_full:
                yield from rows.take()

    def _begin(self, to: int) -> WorkerTask:
        task = self._open[to] = self._tasks.task(to)
        self._state.begin(to, task.states.all())
        task.begin_turn(self, self._emits, self._observer, self._spec.moment)
        return task

    def _execute_row(self, task: WorkerTask, frm: int, data: bytes, edges: bytes) -> Iterator[pa.RecordBatch]:
        worked, collector = self._worked[task.name], task.collector
        rows, state, most = self._emits.rows, task.state, 0 if task.states.holdings is not None else 2
        for tup in task.executed(self._tuples(frm, data, edges), are_ticks=frm == SYSTEM_TASK):
            if collector.mistake is not None:
                raise collector.mistake
            if state is not None and state.error is not None:
                raise state.error
            if len(worked) < most and tup.state is not FAILED and not tup.is_tick:
                worked.update(list(tup.edges or (0,))[: most - len(worked)])
            if rows.is_full:
                yield from rows.take()

    def _acked(self, task: WorkerTask) -> int:
        """Count the tuples that batches or windows have acked. These show that the bolt works, and not those that wait."""
        if task.states.holdings is None:
            return 0
        acked = self._observer.metrics[task.name].acked
        return int(acked.total() - acked[f"{SYSTEM}:{TICK}"])

    def _call(self, to: int, task: WorkerTask, data: bytes) -> None:
        """Make the calls of a row."""
        calls, state = unpack(data), task.state
        for source, packed in zip(calls.sources, calls.values, strict=True):
            arguments = load_values(packed)
            if source == TIMER_SOURCE:
                task.on_time(*arguments)
            elif source == RELEASE_SOURCE:
                self._released[to] = task.release(*arguments)
            else:
                task.flush()
        if task.collector.mistake is not None:
            raise task.collector.mistake
        if state is not None and state.error is not None:
            raise state.error

    def _tuples(self, frm: int, data: bytes, edges: bytes) -> Iterator[Tuple]:
        """Yield the tuples of a row. The id of a tick has the number of its period in place of a turn."""
        tuples = unpack(data)
        of_turn = f"{self._spec.turn}:{frm}:" if frm > SYSTEM_TASK else f"{frm}:"
        makers = {source: self._makers.get(source) or self._maker(source) for source in set(tuples.sources)}
        for seq, (component, stream, make, name), values, of in zip(
            tuples.seqs, map(makers.__getitem__, tuples.sources), load_all(tuples.values),
            edges_of_tuples(tuples, edges), strict=True,
        ):  # fmt: skip
            yield Tuple(f"{of_turn}{seq}", component, stream, frm, make(values), of, name)

    def _maker(self, source: int) -> tuple[str, str, Any, str]:
        if source == TICK_SOURCE:
            component, stream, declared = SYSTEM, TICK, TICK_STREAM
        else:
            component, stream = self._plan.sources[source]
            declared = self._plan.graph.components[component].streams[stream]
        make = partial(tuple.__new__, values_type(declared))  # `_make` would check the number again
        self._makers[source] = made = component, stream, make, f"{component}:{stream}"
        return made

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the turn of the tasks. Yields the last rows, the updates and the report."""
        held = {to: task.end_turn() for to, task in self._open.items()}
        holds = {to: count for to, count in held.items() if count is not None}
        executed = self._state.end()
        self._tasks.forget_states(self._open)
        report = None
        if self._open:
            metrics = {name: of for name, of in self._observer.metrics.items() if of != ComponentMetrics()}
            worked = {bolt: roots for bolt, roots in self._worked.items() if roots}
            report = LevelReport(
                metrics, plain_events(self._observer.events), worked, resets=tuple(self._resets), holds=holds,
                released=self._released, too_long=self._too_long(),
            )  # fmt: skip
        yield from last_rows(self._emits, self._updates, report, executed)

    def _too_long(self) -> dict[int, tuple[str, str]]:
        return {
            root: (task.name, reason)
            for task in self._open.values()
            for root, reason in task.states.held.too_long.items()
        }

    def reset_timeout(self, root: int) -> None:
        """Note a root for the driver, which knows the timeouts."""
        self._resets.add(root)


def content_of_rows(contents: Int64Array) -> int:
    """Sum up what rows contain, modulo 2**64."""
    return int(contents.astype(np.int64).view(np.uint64).sum(dtype=np.uint64))


@dataclass(frozen=True)
class ReadBackStep:
    """Function for `mapInArrow` that consumes the edges of tuples that reached a sink. All other rows pass.

    Speculation may leave two copies of a kept partition, which differ if a bolt isn't deterministic. The sinks wrote one of
    them, and no other may be acked.

    Attributes:
        spec: the turn.
        contents: partition -> sum of what its rows of sinks and bins contain.
    """

    spec: TurnSpec
    contents: Mapping[int, int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            UnprovenEmissionError: the partition isn't the one whose rows the sinks wrote. Nothing of it reaches the ledger.
        """
        keep_imports()
        plan = self.spec.tasks().plan
        updates, emits = Updates(plan), Emits(plan)
        names = {task: plan.graph.component_of[task] for task in plan.sinks.values()}
        sinks, written = np.array(list(names), np.int32), np.array([*names, BIN], np.int32)
        content = 0
        for batch in batches:
            to = batch.column("to").to_numpy()
            content += content_of_rows(batch.column(CONTENT).to_numpy()[np.isin(to, written)])
            is_own = np.isin(to, sinks)
            rows = batch.select(SCHEMA.names)
            yield rows.filter(pa.array(~is_own))
            own = rows.filter(pa.array(is_own))
            for task, edges in zip(own.column("to").to_pylist(), own.column("edges").to_pylist(), strict=True):
                updates.ack_many(*unpack_edges(edges), names[task])
        if content & _MASK != self.contents.get(partition_id(), 0):
            raise UnprovenEmissionError(
                f"Partition {partition_id()} of turn {self.spec.turn} has other rows than those that its sinks wrote. A "
                "speculative task may have kept them. Nothing of it is acked, and its messages time out."
            )
        yield from last_rows(emits, updates, None)


@dataclass(frozen=True)
class DecodeStep:
    """Function for `mapInArrow` from a sink's rows with their share to the declared columns, share and roots.

    A row becomes one per tuple. Roots are null, because a sink that raises fails no row, but breaks the turn.

    Attributes:
        schema: columns of the sink, then share and roots.
        share: name of the share's column in the input.
    """

    schema: pa.Schema
    share: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition."""
        keep_imports()
        for batch in batches:
            for data, share in zip(*(batch.column(name).to_pylist() for name in ("data", self.share)), strict=True):
                yield self._decoded(unpack(data).values, share)

    def _decoded(self, packed: Sequence[bytes], share: int) -> pa.RecordBatch:
        values = zip(*load_all(packed), strict=True)
        columns = [column_of(column, one.type) for column, one in zip(values, list(self.schema)[:-2], strict=True)]
        shares = split(np.array([share]), np.array([len(packed)]), _SALT)
        tracking = [pa.array(shares), pa.nulls(len(packed), self.schema.types[-1])]
        return pa.RecordBatch.from_arrays([*columns, *tracking], schema=self.schema)


@dataclass(frozen=True)
class AckStep:
    """Function for `mapInArrow` that sends the updates of its bins, and returns reports.

    A bin's rows are all in one partition. Before its updates are sent, the bin is claimed for exactly these.

    Attributes:
        spec: the turn.
        read_back: step that the rows pass first, in this process. Behind a step in another one, the input would seem complete
            if that one raised.
    """

    spec: TurnSpec
    read_back: ReadBackStep | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition. Nothing is sent before all of it was read."""
        keep_imports()
        plan = self.spec.tasks().plan
        parts: dict[int, list[Bin]] = defaultdict(list)
        reports: list[bytes] = []
        for batch in batches if self.read_back is None else self.read_back(batches):
            columns = [batch.column(name).to_pylist() for name in ("to", "seq", "data", "edges")]
            for to, seq, data, execution in zip(*columns, strict=True):
                if to == BIN and (not execution or execution in self.spec.executions):
                    parts[seq].append(Bin.from_bytes(data))
                elif to == REPORT:
                    reports.append(data)
        reports += [pickle.dumps(self._send(plan, number, Bin.merged(parts[number])), 5) for number in sorted(parts)]
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.binary())], ["data"])

    def _send(self, plan: Plan, number: int, updates: Bin) -> BinReport:
        acker = acker_of_worker(str(self.spec.url), self.spec.config)
        turn = app_of(acker).turn(self.spec.run_id, self.spec.turn)
        digest = updates.digest()
        claim = turn.claim(number, digest)
        key = f"{self.spec.run_id}:{self.spec.turn}:{number}"
        if claim == claim.CLAIMED:
            try:
                updates.send(acker, plan, key)
            except LedgerLostError:  # this process opened the app before it was lost. The turn's roots may be newer
                while_lost(acker.reopen)
                claim = turn.claim(number, digest)
                if claim == claim.CLAIMED:
                    updates.send(acker, plan, key)
        if claim == claim.CLAIMED:
            turn.sent(number, digest)
        return BinReport(number, int(claim), len(updates.roots) + len(updates.fails), _failed(plan, updates))


def last_rows(
    emits: Emits, updates: Updates, report: LevelReport | None, executed: Executed | None = None
) -> list[pa.RecordBatch]:
    """Return the rows that are left, then the updates by bin, the report, and the execution that wrote state."""
    rows, keys = emits.rows, emits.plan.keys
    rows.pack()
    for roots, edges in rows.derived:
        updates.add_edges(roots, edges)
    name = b"" if executed is None else executed.name.encode()
    for number, of in updates.bins():
        rows.add(keys[number], BIN, number, of.to_bytes(), name)
    if executed is not None:
        rows.add(keys[0], STATE, 0, executed.to_bytes())
    if report is not None:
        rows.add(keys[0], REPORT, 0, pickle.dumps(report, 5))
    return rows.take()


def _failed(plan: Plan, updates: Bin) -> dict[tuple[str, str, bool, bool], bytes]:
    """Group failed roots by what the driver needs to know, with a bounded number of texts."""
    names = plan.component_names
    groups: dict[tuple[str, str, bool, bool], list[int]] = defaultdict(list)
    for root, fail in updates.fails.items():
        key = (names[fail.rank], fail.reason[:_REASON_CHARS], fail.retry, fail.is_expected)
        if key not in groups and len(groups) >= _MAX_REASONS:
            key = (key[0], "", key[2], key[3])
        groups[key].append(root)
    return {key: np.array(roots, np.uint64).tobytes() for key, roots in groups.items()}
