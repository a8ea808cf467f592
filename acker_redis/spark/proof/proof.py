"""The accounts of one emission.

They list operators that made frames, actions that are proven, and rows that failed. A frame is covered if it leads to a
proven action, or was discarded. If all frames are covered, every row derived from the emission's messages was written, except
rows that failed and rows that operators dropped on request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import NotExactError, NotProvenError, PipelineError
from acker_redis.spark.proof import metrics, plans
from acker_redis.spark.proof.equation import Equation, equation_of
from acker_redis.spark.proof.listener import Execution, listener_of
from acker_redis.spark.proof.received_failures import ReceivedFailures
from acker_redis.spark.protocol import arguments
from acker_redis.spark.protocol.shares import BITS, MASK
from acker_redis.spark.runtime import reruns
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.worker.failures import Failure

_ADVICE = (
    "None of your own operators between the tracker's explains this. Fill a cached frame as a whole, for example by count(), "
    "before show() or another action reads a part of it. Use a writer that always writes, which mode('ignore') may not do. "
    "Otherwise, check that the messages have the same ids whenever they are read."
)
_END = (
    "End each path with write, write_data_source, write_partitions, write_dataframe or export, or pass the frame to "
    "tracker.discard."
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
    has_failures: bool


@dataclass
class Proof:
    """Operators, meters, actions and failures of one emission.

    Attributes:
        session: Spark session.
        key: key of the emission (app, run and number), and prefix of the names of its meters.
        total: E, the sum of the shares of its messages.
        count: number of its messages.
        job_tag: tag of the emission's jobs.
        name_component: function that registers the name of an operator in the ledger, which numbers a few hundred of them.
        proven: names of the proven actions.
        processed: name of a sink, or of an operator in Python -> rows that it has processed without failing.
    """

    session: SparkSession
    key: str
    total: int
    count: int
    job_tag: str
    name_component: Callable[[str], object]
    proven: list[str] = field(default_factory=list)
    processed: dict[str, metrics.Processed] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)
    _covered: set[str] = field(default_factory=set)
    _actions: list[str] = field(default_factory=list)
    _failures: dict[int, Failure] = field(default_factory=dict)
    _meters: dict[str, _Meter] = field(default_factory=dict)
    _weights: int = 0

    def __post_init__(self) -> None:
        self._listener = listener_of(self.session)
        self._received = ReceivedFailures(self.session.sparkContext, f"{metrics.PREFIX}{self.key}:")

    def add_operator(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """Add an operator. Without a name it gets a numbered one.

        Raises:
            PipelineError: the name is invalid, or another operator of the emission has it.
        """
        if name is None:
            numbered = (kind if number == 1 else f"{kind}-{number}" for number in range(1, len(self._nodes) + 2))
            name = next(candidate for candidate in numbered if candidate not in self._nodes)
        arguments.check_operator_name(name)
        if name in self._nodes:
            raise PipelineError(
                f"name={name!r} is used by another operator of this emission. Use a different name for each."
            )
        self.name_component(name)
        node = self._nodes[name] = Node(name, tuple(sources))
        return node

    def add_meter(self, node: Node, *, has_failures: bool = False) -> str:
        """Return the name of a new meter.

        Args:
            node: operator of the meter.
            has_failures: whether rows that pass it may represent failed ones.
        """
        meter = f"{metrics.PREFIX}{self.key}:{node.name}#{len(self._meters) + 1}"
        self._meters[meter] = _Meter(node.name, has_failures)
        return meter

    def next_exponent(self) -> int:
        """Return the exponent of a weight for a frame that is combined with others.

        Each of 60 calls in a row returns a different one.
        """
        self._weights += 1
        return (self._weights - 1) % (BITS - 1) + 1

    def equation_of(self, frame: DataFrame, operator: str) -> Equation:
        """Return the equation of a frame that an operator consumes."""
        return equation_of(frame, self.key, operator)

    def add_action(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """Add an action, which must be proven."""
        node = self.add_operator(kind, name, sources)
        self._actions.append(node.name)
        return node

    def job_description(self, node: Node) -> AbstractContextManager[None]:
        """Describe the jobs of a running action by its name, the emission and the number of messages."""
        return described(self.session, f"{node.name!r} of {self.key}, {self.count:,} messages")

    def discard(self, node: str) -> None:
        """Declare that the rows of this operator need no action."""
        self._cover(node)

    def prove(self, node: Node, meter: str, equation: Equation, *, written: bool, final: bool = True) -> int:
        """Check a successful action against its equation.

        Args:
            node: the action.
            meter: meter that all its rows passed.
            equation: expected sum of the rows.
            written: whether one of Spark's commands must have consumed the metered rows.
            final: whether the rows need no further action.

        Returns:
            Sum of the shares of the rows removed before the action.

        Raises:
            NotExactError: rows are missing or were copied, and Spark ran nothing twice.
            NotProvenError: the same, or meters are missing, and Spark ran something twice or read a cache. Retry it.
        """

        def has_meter(execution: Execution) -> bool:
            return meter in (execution.written if written else execution.metrics)

        executions = self._listener.executions(has_meter, self.session)
        balances = [self._balance(node, meter, equation, execution) for execution in executions]
        if not written and not any(balance.is_balanced for balance in balances):  # another one may have taken all rows
            executions = self._listener.executions(has_meter, self.session, every=True)
            balances = [self._balance(node, meter, equation, execution) for execution in executions]
        if not balances:
            self._refuse(
                f"{node.name!r}: Spark reported no execution that wrote its rows unchanged. Pass a function that calls one "
                "writing method of the DataFrameWriter, once. Writers that use foreachPartition, such as JDBC's, report "
                "nothing. Use write_partitions for those."
            )
        good = [balance for balance in balances if balance.is_balanced]
        if not good or (written and len(good) < len(balances)):
            bad = next(balance for balance in balances if not balance.is_balanced)
            self._refuse(bad.problem or "", bad.execution, node, meter)
        for balance in good:
            self._failures |= {failure.number: failure for failure in balance.failures}
            for operator, processed in balance.processed.items():
                self._note_processed(operator, processed)
        if final:
            self._cover(node.name)
            self.proven.append(node.name)
            if node.name not in good[0].processed:  # otherwise its own meter knows which rows failed
                self._note_processed(node.name, metrics.Processed(good[0].rows))
        return good[0].removed

    def add_failure(self, failure: Failure) -> None:
        """Add the failure of an action that failed all of its rows."""
        self._failures[failure.number] = failure

    def check_covered(self) -> None:
        """Check that each action is proven and each frame is covered.

        Raises:
            NotExactError: an action isn't proven, a frame isn't covered, or there is no action.
        """
        broken_off = [name for name in self._actions if name not in self.proven]
        if broken_off:
            raise NotExactError(
                f"{', '.join(map(repr, broken_off))} ended with an error that the pipeline caught, so it is unknown which "
                "rows were written. Let the error leave the pipeline, or pass on_error='fail', which fails the rows."
            )
        if not self.proven:
            raise NotExactError(f"The pipeline ran no sink, so none of its messages can be done. {_END}")
        taken = {source for node in self._nodes.values() for source in node.sources}
        open_ends = [name for name in self._nodes if name not in self._covered | taken]
        if open_ends:
            raise NotExactError(
                f"The pipeline did nothing with the rows of {', '.join(map(repr, open_ends))}, so those can't be done. {_END}"
            )

    def failures(self) -> list[Failure]:
        """Return the failures of all actions: the messages that failed, and why."""
        return list(self._failures.values())

    def forget(self) -> None:
        """Drop the emission's executions and failures."""
        self._received.forget()
        self._listener.forget(f"{metrics.PREFIX}{self.key}:")

    def _note_processed(self, operator: str, processed: metrics.Processed) -> None:
        if processed.rows:
            before = self.processed.get(operator, processed)
            roots = before.roots | processed.roots if before.roots and processed.roots else frozenset()
            self.processed[operator] = metrics.Processed(processed.rows, roots)

    def _balance(self, node: Node, meter: str, equation: Equation, execution: Execution) -> "_Balance":
        """Check the meters of one execution against an equation."""
        removed_by_meter = {source: self._removed_at(source, execution) for source in equation.removed}
        missing = [self._meters[source].operator for source, removed in removed_by_meter.items() if removed is None]
        if missing:
            return _Balance(
                execution,
                f"It is unknown which rows {', '.join(map(repr, missing))} dropped or failed. Spark did not evaluate that in "
                "this execution, but read a checkpoint, a file, or a cache that was filled in parts. Use tracker.checkpoint "
                "to cut a plan, and fill a cache by count().",
            )
        by_meter = {source: removed for source, removed in removed_by_meter.items() if removed is not None}
        reached = metrics.read_counted(execution.metrics, meter)
        metered = {source: removed.shares for source, removed in by_meter.items()}
        if reached.shares != equation.expected(self.total, metered):
            return _Balance(execution, self._mismatch(node, reached, by_meter.values()))
        failures = [failure for removed in by_meter.values() for failure in removed.failures]
        processed = {removed.operator: removed.processed for removed in by_meter.values()}
        return _Balance(execution, None, equation.removed_sum(metered), failures, processed, reached.rows)

    def _removed_at(self, meter: str, execution: Execution) -> "_RemovedBy | None":
        """Return the rows that an operator removed, or None if its meter or a failure is missing."""
        if meter not in execution.metrics:
            return None
        operator, has_failures = self._meters[meter]
        if not has_failures:
            return _RemovedBy(operator, metrics.read_counted(execution.metrics, meter), metrics.Counted(0, 0), ())
        removed = metrics.read_removed(execution.metrics, meter)
        failures = self._received.failures(meter, removed.failures)
        if failures is None or sum(failure.share_sum for failure in failures) & MASK != removed.failed.shares:
            return None
        return _RemovedBy(operator, removed.dropped, removed.failed, failures, removed.processed)

    def _mismatch(self, node: Node, reached: metrics.Counted, removed: Iterable["_RemovedBy"]) -> str:
        counts = [
            f"{reached.rows:,} rows reached {node.name!r}",
            *(str(removal) for removal in removed if removal.rows),
        ]
        return f"Some rows derived from the {self.count:,} messages are missing or duplicated: {', '.join(counts)}."

    def _refuse(
        self, text: str, execution: Execution | None = None, node: Node | None = None, meter: str | None = None
    ) -> NoReturn:
        """Raise the error of an unproven action.

        Raises:
            NotProvenError: it may be Spark's fault, so the emission is retried.
            NotExactError: it is the pipeline's fault.
        """
        if reruns.any_fault(self.session, self.job_tag):
            raise NotProvenError(f"{text} Spark tasks failed or ran twice meanwhile, so this is retried.")
        if execution is None or node is None or meter is None:
            raise NotExactError(text)
        changes = plans.changes(execution.query, meter, node.name)
        advice = f" {plans.advice(changes)}" if changes else ""
        if plans.is_cached(execution.query):
            raise NotProvenError(f"{text} {_CACHED}{advice}")
        raise NotExactError(f"{text}{advice or f' {_ADVICE}'}")

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
    """

    execution: Execution
    problem: str | None
    removed: int = 0
    failures: Sequence[Failure] = ()
    processed: Mapping[str, metrics.Processed] = field(default_factory=dict)
    rows: int = 0

    @property
    def is_balanced(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class _RemovedBy:
    """Rows that one operator has removed."""

    operator: str
    dropped: metrics.Counted
    failed: metrics.Counted
    failures: Sequence[Failure]
    processed: metrics.Processed = field(default_factory=metrics.Processed)

    @property
    def shares(self) -> int:
        return self.dropped.shares + self.failed.shares

    @property
    def rows(self) -> int:
        return self.dropped.rows + self.failed.rows

    def __str__(self) -> str:
        counts = [(self.dropped.rows, "dropped"), (self.failed.rows, "failed")]
        return f"{' and '.join(f'{rows:,} were {verb}' for rows, verb in counts if rows)} by {self.operator!r}"
