"""The accounts of one emission.

They list operators that made frames, actions that are proven, and rows that failed. A frame is covered if it leads to a
proven action, or was discarded. If all frames are covered, every row derived from the emission's messages was written, except
rows that failed and rows that operators dropped on request.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import InexactPipelineError, PipelineError, UnprovenEmissionError
from acker_redis.spark import checks
from acker_redis.spark.proof import meters, plans
from acker_redis.spark.proof.blame import note_action
from acker_redis.spark.proof.equation import Equation, equation_of
from acker_redis.spark.proof.executions import Execution, Executions
from acker_redis.spark.proof.late_ids import LateIds
from acker_redis.spark.proof.listener import listener_of
from acker_redis.spark.proof.range_partitioning import check_range_partitioning
from acker_redis.spark.proof.responses import check_reported, responses_of
from acker_redis.spark.protocol.shares import BITS
from acker_redis.spark.runtime import reruns
from acker_redis.spark.runtime.collected import collected_bytes_per_task
from acker_redis.spark.runtime.jobs import described, tagged
from acker_redis.spark.runtime.sessions import activate, is_connect
from acker_redis.spark.worker.failures import Failure

log = logging.getLogger("acker_redis.spark")

_CAUSES = (
    "Fill a cached frame as a whole, for example by count(), before show() or another action reads a part of it. Use a writer "
    "that always writes, which mode('ignore') may not do. Otherwise, check that the messages have the same ids "
    "whenever they are read."
)
_ADVICE = f"None of your own operators between the tracker's explains this. {_CAUSES}"
_ADVICE_OF_A_CLIENT = (
    "Look for operators of your own between the tracker's that drop or copy rows, such as where, limit or join. Use the "
    f"tracker's instead. A classic session names them. {_CAUSES}"
)
_END = (
    "End each path with write, write_table, write_data_source, write_partitions, write_dataframe or export, or pass the frame "
    "to tracker.discard."
)
_ONLY_DISCARDED = (
    "tracker.discard runs no job, so no row was computed, and no operator could fail one. To compute rows and keep none, pass "
    'them to tracker.write with lambda writer: writer.format("noop").mode("append").save(), or with "overwrite" if '
    'output="whole".'
)
_LATE = (
    "A sink was called after the pipeline had returned. The emission has ended, so its rows can't be proven. Wait for your "
    "threads before the pipeline returns, for example by `with ThreadPoolExecutor() as pool`."
)
_CACHED = (
    "The rows come through a cached frame. If Spark lost or evicted a part of it, or show() filled only a part, the counts "
    "from there are unknown, so this is retried. If it persists, fill the cache as a whole by count() and give it room, for "
    "example by persist(StorageLevel.MEMORY_AND_DISK). Or use tracker.checkpoint instead."
)


@dataclass(frozen=True)
class Node:
    """An operator of the emission, or an action.

    Attributes:
        name: name, unique in the emission.
        sources: operators whose frames it consumes.
    """

    name: str
    sources: Sequence[str]


class _Meter(NamedTuple):
    operator: str
    reads: meters.ReadRemoved


@dataclass
class Proof:
    """Operators, meters, actions and failures of one emission.

    Attributes:
        session: Spark session.
        key: key of the emission (app, run and number), and prefix of the names of its meters.
        total: E, the sum of the shares of its messages. See `know_ids`.
        count: number of its messages. See `know_ids`.
        job_tag: tag of the emission's jobs.
        name_component: function that registers the name of an operator in the ledger, which numbers a few hundred of them.
        mismatched: operators whose sums were wrong in the last emission. Spark Connect doesn't tell whether it ran a task
            twice. So a wrong sum is repeated once there, and a second one of the same operator is a mistake.
        proven: names of the proven actions.
        processed: name of a sink, or of an operator in Python -> rows that it has processed without failing.
        exports: whether rows were exported, which may have been acked elsewhere.
        may_repeat: whether the pipeline may run again with the same messages, after a sum was wrong.
        late_ids: source of total and count, as long as they aren't known; else None.
    """

    session: SparkSession
    key: str
    total: int
    count: int
    job_tag: str
    name_component: Callable[[str], object]
    mismatched: set[str] = field(default_factory=set)
    proven: list[str] = field(default_factory=list)
    processed: dict[str, meters.Processed] = field(default_factory=dict)
    exports: bool = False
    may_repeat: bool = False
    late_ids: LateIds | None = None
    _nodes: dict[str, Node] = field(default_factory=dict)
    _covered: set[str] = field(default_factory=set)
    _actions: list[str] = field(default_factory=list)
    _failures: list[Failure] = field(default_factory=list)
    _meters: dict[str, _Meter] = field(default_factory=dict)
    _weights: int = 0
    _staged: int = 0
    _adding: threading.Condition = field(default_factory=threading.Condition)  # sinks may run in several threads
    _thread: int = field(default_factory=threading.get_ident)  # that of the pipeline
    _running: int = 0
    _is_over: bool = False
    _is_late: bool = False
    _unraised: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        is_remote = is_connect(self.session)
        self._executions: Executions = responses_of(self.session) if is_remote else listener_of(self.session)

    @cached_property
    def max_failure_bytes(self) -> int:
        """Limit on the failure of one task, in bytes."""
        return collected_bytes_per_task(self.session)

    def know_ids(self) -> int:
        """Read the message ids, if they aren't known yet. Return the number of messages.

        Exports need it, because their acks may arrive while the job runs.
        """
        self._learn(None)
        return self.count

    def _learn(self, executions: Iterable[Execution] | None) -> None:
        late_ids = self.late_ids  # sinks may run in several threads
        if late_ids is not None:
            self.total, self.count = late_ids.read() if executions is None else late_ids.learn(executions)
            self.late_ids = None

    def add_operator(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """Add an operator. Without a name it gets a numbered one.

        Raises:
            PipelineError: the name is invalid, or another operator of the emission has it.
        """
        with self._adding:
            if name is None:
                numbered = (kind if number == 1 else f"{kind}-{number}" for number in range(1, len(self._nodes) + 2))
                name = next(candidate for candidate in numbered if candidate not in self._nodes)
            checks.check_operator_name(name)
            if name in self._nodes:
                raise PipelineError(
                    f"name={name!r} is used by another operator of this emission. Use a different name for each."
                )
            node = self._nodes[name] = Node(name, tuple(sources))
        try:
            self.name_component(name)
        except BaseException:
            del self._nodes[name]  # no sink would prove it
            raise
        return node

    def add_meter(self, node: Node, reads: meters.ReadRemoved = meters.read_removed, *, of_cache: bool = False) -> str:
        """Return the name of a new meter.

        Args:
            node: operator of the meter.
            reads: function that reads the rows that the operator removed.
            of_cache: whether its rows are cached by a sink.
        """
        with self._adding:
            end = meters.OF_CACHE if of_cache else ""
            meter = f"{meters.PREFIX}{self.key}:{node.name}#{len(self._meters) + 1}{end}"
            self._meters[meter] = _Meter(node.name, reads)
        self._executions.expect(meter)
        return meter

    @property
    def may_fail_rows(self) -> bool:
        """True if an operator was added that may fail rows. Others only drop some."""
        with self._adding:
            return any(meter.reads is not meters.read_removed for meter in self._meters.values())

    def add_source_meter(self) -> str:
        """Return the name of the meter of all messages."""
        meter = f"{meters.PREFIX}{self.key}:source"
        self._executions.expect(meter)
        return meter

    def add_staged_meter(self, node: Node) -> str:
        """Return the name of a new meter of rows that a sink stages."""
        with self._adding:
            self._staged += 1
            meter = f"{meters.PREFIX}{self.key}:{node.name}#staged{self._staged}"
        self._executions.expect(meter)
        return meter

    def read_staged(self, node: Node, meter: str) -> meters.Staged:
        """Read the meter of the rows that a sink has staged.

        Raises:
            UnprovenEmissionError: Spark didn't tell, or told it more than once.
        """
        return meters.read_staged(self._staging(node, meter).metrics, meter)

    def read_written(self, node: Node, meter: str) -> plans.Written:
        """Return what Spark tells of the files with the rows that had this meter.

        Raises:
            UnprovenEmissionError: as `read_staged`.
        """
        return plans.written_by(self._staging(node, meter).query)

    def _staging(self, node: Node, meter: str) -> Execution:
        found = self._executions.find(lambda execution: meter in execution.metrics, self.session)
        if len(found) != 1:
            raise UnprovenEmissionError(
                f"{node.name!r}: Spark reported {len(found)} executions that staged its rows, so this is retried."
            )
        return found[0]

    def next_exponent(self) -> int:
        """Return the exponent of a weight for a frame that is combined with others.

        Each of 60 calls in a row returns a different one.
        """
        with self._adding:
            self._weights += 1
            return (self._weights - 1) % (BITS - 1) + 1

    def equation_of(self, frame: DataFrame, operator: str) -> Equation:
        """Return the equation of a frame that an operator consumes."""
        equation = equation_of(frame, self.key, operator)
        if equation.removed:
            check_range_partitioning(frame, operator)
            check_reported(frame, equation.removed, operator)
        return equation

    def add_action(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """Add an action, which must be proven."""
        node = self.add_operator(kind, name, sources)
        self._actions.append(node.name)
        return node

    @contextmanager
    def action(self) -> Iterator[None]:
        """Keep the emission open while an action runs, in whatever thread.

        An error in a thread of the program is kept, in case the pipeline doesn't raise it.

        Raises:
            PipelineError: the pipeline has returned.
        """
        with self._adding:
            if self._is_over:
                self._is_late = True
                log.error("a sink was called after its pipeline had returned, and is refused emission=%s", self.key)
                raise PipelineError(_LATE)
            self._running += 1
        try:
            yield
        except Exception as exc:
            if threading.get_ident() != self._thread:
                self._unraised.append(exc)
            raise
        finally:
            with self._adding:
                self._running -= 1
                self._adding.notify_all()

    def wait_for_actions(self) -> None:
        """Wait until each action that has begun has ended, in whatever thread. No other one may begin then."""
        with self._adding:
            self._adding.wait_for(lambda: not self._running)
            self._is_over = True

    def check_none_late(self) -> None:
        """Check that no action was called after the pipeline had returned.

        Raises:
            PipelineError: one was, and was refused.
        """
        if self._is_late:
            raise PipelineError(_LATE)

    @contextmanager
    def jobs_of(self, node: Node) -> Iterator[None]:
        """Tag the jobs of an action in this thread, and describe them by its name, the emission and the number of messages."""
        if threading.get_ident() != self._thread:
            activate(self.session)
        messages = f"{self.count:,} messages" if self.late_ids is None else "messages not counted yet"
        tag = self.tag_of(node)
        with (
            tagged(self.session, self.job_tag, tag),
            described(self.session, f"{node.name!r} of {self.key}, {messages}"),
        ):
            try:
                yield
            except Exception as exc:
                note_action(exc, tag, node.name)
                raise

    def tag_of(self, node: Node) -> str:
        """Return the tag of the jobs of an action, which they have beside that of the emission."""
        return f"{self.job_tag}:{node.name}".replace(",", "_")

    def discard(self, node: str) -> None:
        """Declare that the rows of this operator need no action."""
        self._cover(node)

    def prove(self, node: Node, meter: str, equation: Equation, *, written: bool, final: bool = True) -> int:
        """Check a successful action against its equation.

        Args:
            node: the action.
            meter: meter that all its rows passed.
            equation: expected sum of the rows.
            written: whether executions that write must have consumed the metered rows. Each that did must be balanced.
            final: whether the rows need no further action.

        Returns:
            Sum of the shares of the rows removed before the action.

        Raises:
            InexactPipelineError: rows are missing or were copied, and Spark ran nothing twice.
            UnprovenEmissionError: the same, or meters are missing, and Spark ran something twice or read a cache. Retry it.
        """

        def has_meter(execution: Execution) -> bool:
            return meter in (execution.written if written else execution.metrics)

        executions = self._executions.find(has_meter, self.session)
        self._learn(executions)
        balances = [self._balance(node, meter, equation, execution) for execution in executions]
        if not written and not any(balance.is_balanced for balance in balances):  # another one may have taken all rows
            executions = self._executions.find(has_meter, self.session, every=True)
            balances = [self._balance(node, meter, equation, execution) for execution in executions]
        if not balances:
            self._refuse(
                node,
                f"{node.name!r}: Spark reported no execution that wrote its rows. Pass a function that calls one writing "
                "method of the writer, once. If the target reports nothing, use tracker.write_dataframe or write_partitions.",
            )
        good = [balance for balance in balances if balance.is_balanced]
        if not good or (written and len(good) < len(balances)):
            bad = next(balance for balance in balances if not balance.is_balanced)
            self._refuse(node, bad.problem or "", bad.execution, meter, is_unknown=bad.is_unknown)
        for balance in good:
            self._failures += balance.failures
            for operator, processed in balance.processed.items():
                self._note_processed(operator, processed)
        if final:
            # A sink that fails rows has a meter that knows which.
            self.finish(node, 0 if node.name in good[0].processed else good[0].rows)
        return good[0].removed

    def finish(self, node: Node, rows: int) -> None:
        """Declare that an action has processed this number of rows, which need no further action."""
        self._cover(node.name)
        self.proven.append(node.name)
        self._note_processed(node.name, meters.Processed(rows))

    def add_failure(self, failure: Failure) -> None:
        """Add the failure of an action that failed all of its rows."""
        self._failures.append(failure)

    def check_covered(self) -> None:
        """Check that each action is proven and each frame is covered.

        Raises:
            InexactPipelineError: an action isn't proven, a frame isn't covered, or there is no action.
            PipelineError: an action was called after the pipeline had returned.
            Exception: an action raised it in a thread of the program, which kept it to itself.
        """
        self.check_none_late()
        if self._unraised:
            raise self._unraised[0]
        broken_off = [name for name in self._actions if name not in self.proven]
        if broken_off:
            raise InexactPipelineError(
                f"{', '.join(map(repr, broken_off))} ended with an error that the pipeline caught, so it is unknown which "
                "rows were written. Let the error leave the pipeline, or pass on_error='fail', which fails the rows."
            )
        if not self.proven:
            raise InexactPipelineError(
                f"The pipeline ran no sink, so none of its messages can be done. {self._no_sink()}"
            )
        taken = {source for node in self._nodes.values() for source in node.sources}
        open_ends = [name for name in self._nodes if name not in self._covered | taken]
        if open_ends:
            raise InexactPipelineError(
                f"The pipeline did nothing with the rows of {', '.join(map(repr, open_ends))}, so those can't be done. {_END}"
            )

    def _no_sink(self) -> str:
        return _ONLY_DISCARDED if self._covered else _END

    @property
    def has_written(self) -> bool:
        """True if a sink has got rows that didn't fail in it."""
        return any(name in self.processed for name in self.proven)

    def failures(self) -> list[Failure]:
        """Return the failures of all actions: the messages that failed, and why."""
        return self._failures

    def forget(self) -> None:
        """Drop the emission's executions."""
        self._executions.forget(f"{meters.PREFIX}{self.key}:")

    def _note_processed(self, operator: str, processed: meters.Processed) -> None:
        if processed.rows:
            with self._adding:
                before = self.processed.get(operator, processed)
                roots = before.roots | processed.roots if before.roots and processed.roots else frozenset()
                self.processed[operator] = meters.Processed(processed.rows, roots)

    def _balance(self, node: Node, meter: str, equation: Equation, execution: Execution) -> "_Balance":
        """Check the meters of one execution against an equation."""
        removed_by_meter = {source: self._removed_at(source, execution) for source in equation.removed}
        missing = [self._meters[source].operator for source, removed in removed_by_meter.items() if removed is None]
        if meter not in execution.metrics:
            return _Balance(
                execution,
                f"It is unknown how many rows reached {node.name!r}. Spark has not reported that count.",
                is_unknown=True,
            )
        if missing:
            return _Balance(
                execution,
                f"It is unknown which rows {', '.join(map(repr, missing))} dropped or failed. Spark did not evaluate that in "
                "this execution, but read a checkpoint, a file, or a cache that was filled in parts. Use tracker.checkpoint "
                "to cut a plan, and fill a cache by count().",
                is_unknown=True,
            )
        by_meter = {source: removed for source, removed in removed_by_meter.items() if removed is not None}
        reached = meters.read_counted(execution.metrics, meter)
        metered = {source: removed.shares for source, removed in by_meter.items()}
        if reached.shares != equation.expected(self.total, metered):
            return _Balance(execution, self._mismatch(node, reached, by_meter.values()))
        failures = [failure for removed in by_meter.values() for failure in removed.failures]
        processed = {removed.operator: removed.processed for removed in by_meter.values()}
        return _Balance(execution, None, equation.removed_sum(metered), failures, processed, reached.rows)

    def _removed_at(self, meter: str, execution: Execution) -> "_RemovedBy | None":
        """Return the rows that an operator removed, or None if its meter is missing or contradicts itself."""
        if meter not in execution.metrics:
            return None
        operator, reads = self._meters[meter]
        removed = reads(execution.metrics, meter, operator)
        return None if removed is None else _RemovedBy(operator, *removed)

    def _mismatch(self, node: Node, reached: meters.Counted, removed: Iterable["_RemovedBy"]) -> str:
        counts = [
            f"{reached.rows:,} rows reached {node.name!r}",
            *(str(removal) for removal in removed if removal.rows),
        ]
        return f"Some rows derived from the {self.count:,} messages are missing or duplicated: {', '.join(counts)}."

    def _refuse(
        self,
        node: Node,
        text: str,
        execution: Execution | None = None,
        meter: str | None = None,
        *,
        is_unknown: bool = False,
    ) -> NoReturn:
        """Raise the error of an unproven action.

        Raises:
            UnprovenEmissionError: it may be Spark's fault, so the emission is retried.
            InexactPipelineError: it is the pipeline's fault.
        """
        if is_connect(self.session):
            if is_unknown or node.name not in self.mismatched:
                if not is_unknown:
                    self.mismatched.add(node.name)
                self.may_repeat = not self.exports
                raise UnprovenEmissionError(
                    f"{text} Spark Connect doesn't tell whether tasks ran twice, so this is retried."
                )
            raise InexactPipelineError(f"{text} It was so twice in a row. {_ADVICE_OF_A_CLIENT}" if execution else text)
        if reruns.any_fault(self.session, self.job_tag):
            raise UnprovenEmissionError(f"{text} Spark tasks failed or ran twice meanwhile, so this is retried.")
        if execution is None or meter is None:
            raise InexactPipelineError(text)
        changes = plans.changes(execution.query, meter, node.name)
        advice = f" {plans.advice(changes)}" if changes else ""
        if plans.is_cached(execution.query):
            raise UnprovenEmissionError(f"{text} {_CACHED}{advice}")
        raise InexactPipelineError(f"{text}{advice or f' {_ADVICE}'}")

    def _cover(self, name: str) -> None:
        names = [name]
        while names:
            name = names.pop()
            if name not in self._covered:
                self._covered.add(name)
                names += self._nodes[name].sources


@dataclass(frozen=True)
class _Balance:
    """The meters of one execution, checked against the equation.

    Attributes:
        execution: the execution.
        problem: why it is not balanced, or None if it is.
        removed: weighted sum of the rows removed before the action.
        failures: failures of the failed rows.
        processed: operator in Python -> rows that it has processed without failing.
        rows: number of rows that reached the action.
        is_unknown: whether counts are missing, rather than wrong.
    """

    execution: Execution
    problem: str | None
    removed: int = 0
    failures: Sequence[Failure] = ()
    processed: Mapping[str, meters.Processed] = field(default_factory=dict)
    rows: int = 0
    is_unknown: bool = False

    @property
    def is_balanced(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class _RemovedBy:
    """Rows that one operator has removed."""

    operator: str
    dropped: meters.Counted
    failed: meters.Counted
    failures: Sequence[Failure]
    processed: meters.Processed

    @property
    def shares(self) -> int:
        return self.dropped.shares + self.failed.shares

    @property
    def rows(self) -> int:
        return self.dropped.rows + self.failed.rows

    def __str__(self) -> str:
        counts = [(self.dropped.rows, "dropped"), (self.failed.rows, "failed")]
        return f"{' and '.join(f'{rows:,} were {verb}' for rows, verb in counts if rows)} by {self.operator!r}"
