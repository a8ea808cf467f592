"""The books of one emission: which operators made frames, what the actions that the tracker ran have proven, what failed.

A frame is covered when it leads to a proven action, or was discarded. When each is, everything that came of the emission's
messages was written, but for the rows that failed and those that operators dropped by their user's word.
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
    "No operator of yours between the tracker's explains it. A cached frame has to be filled as a whole, as count does, "
    "before show or anything else takes a part of it; and a writer has to write, where mode('ignore') may not. Otherwise: do "
    "the messages have the same ids whenever they are read?"
)
_CACHED = (
    "A cached frame is on the way: where Spark lost or evicted a part of it, or a show filled it in part, what was counted "
    "there is not known, so this is tried again. If it stays so, fill the cache as a whole, by count(), and give it room, as "
    "persist(StorageLevel.MEMORY_AND_DISK) does, or use tracker.checkpoint in its place."
)


@dataclass(frozen=True)
class Node:
    """An operator of the emission, or an action.

    Attributes:
        name: unique in the emission.
        sources: operators whose frames it takes.
    """

    name: str
    sources: Sequence[str]


class _Meter(NamedTuple):
    operator: str
    has_failures: bool


@dataclass
class Proof:
    """What is known of one emission.

    Attributes:
        session: Spark.
        key: of the emission: run and number; begins the names of its meters.
        total: E, the sum of the shares of its messages.
        count: of its messages.
        job_tag: of the jobs of the emission.
        name_component: has the acker number the name of an operator, of which it takes a few hundred.
        proven: names of actions that were.
        processed: name of an operator in Python, or of a sink -> what it has processed without failing.
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
    _failed: dict[int, Failure] = field(default_factory=dict)
    _meters: dict[str, _Meter] = field(default_factory=dict)
    _shifts: int = 0

    def __post_init__(self) -> None:
        self._listener = listener_of(self.session)
        self._received = ReceivedFailures(self.session.sparkContext, f"{metrics.PREFIX}{self.key}:")

    def add(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """A new operator; without a name it is numbered.

        Raises:
            PipelineError: the name can't be one, or is another operator's of the emission.
        """
        if name is None:
            numbered = (kind if number == 1 else f"{kind}-{number}" for number in range(1, len(self._nodes) + 2))
            name = next(one for one in numbered if one not in self._nodes)
        arguments.operator_name(name)
        if name in self._nodes:
            raise PipelineError(f"name={name!r}: an operator of this emission has this name: give each one of its own")
        self.name_component(name)
        node = self._nodes[name] = Node(name, tuple(sources))
        return node

    def meter(self, node: Node, *, has_failures: bool = False) -> str:
        """The name of a new meter of an operator; whether rows that pass it name failures of failed rows."""
        meter = f"{metrics.PREFIX}{self.key}:{node.name}#{len(self._meters) + 1}"
        self._meters[meter] = _Meter(node.name, has_failures)
        return meter

    def next_shift(self) -> int:
        """A weight for a way that comes together with others; the next 60 are others."""
        self._shifts += 1
        return (self._shifts - 1) % (BITS - 1) + 1

    def equation_of(self, frame: DataFrame, operator: str) -> Equation:
        """The equation of a frame that an operator takes."""
        return equation_of(frame, self.key, operator)

    def begin(self, kind: str, name: str | None, sources: Iterable[str]) -> Node:
        """A new operator that is an action, which has to be proven."""
        node = self.add(kind, name, sources)
        self._actions.append(node.name)
        return node

    def describing(self, node: Node) -> AbstractContextManager[None]:
        """While an operator's action runs, its jobs carry its name, the emission and the number of messages."""
        return described(self.session, f"{node.name!r} of {self.key}, {self.count:,} messages")

    def discard(self, node: str) -> None:
        """What leads to this operator only needs no action."""
        self._cover(node)

    def prove(self, node: Node, meter: str, equation: Equation, *, written: bool, final: bool = True) -> int:
        """Hold an action that has ended well against its equation; returns the sum of what was dropped and failed before it.

        Args:
            node: the action.
            meter: that all its rows passed.
            equation: what they must sum to.
            written: whether a command of Spark's has to have taken the metered rows.
            final: whether nothing has to be done with the rows any more.

        Raises:
            NotExactError: rows are missing or were copied, and Spark ran nothing twice.
            NotProvenError: the same, or meters are missing, and Spark ran something twice, or read a cache: try again.
        """

        def wanted(heard: Execution) -> bool:
            return meter in (heard.written if written else heard.metrics)

        heard = self._listener.find(wanted, self.session)
        told = [self._balance(node, meter, equation, one) for one in heard]
        if not written and not any(one.is_balanced for one in told):  # another one may have taken all rows
            heard = self._listener.find(wanted, self.session, every=True)
            told = [self._balance(node, meter, equation, one) for one in heard]
        if not told:
            self._refuse(
                f"{node.name!r}: Spark told of no execution that wrote its rows as they are. Give a function that calls one "
                "method of the DataFrameWriter that writes, once; writers that take rows by foreachPartition, as JDBC's does, "
                "report nothing: use write_partitions for those"
            )
        good = [one for one in told if one.is_balanced]
        if not good or (written and len(good) < len(told)):
            bad = next(one for one in told if one.text is not None)
            self._refuse(bad.text or "", bad.execution, node, meter)
        for one in good:
            self._failed |= {failure.number: failure for failure in one.named}
            for operator, processed in one.processed.items():
                self._note(operator, processed)
        if final:
            self._cover(node.name)
            self.proven.append(node.name)
            if node.name not in good[0].processed:  # else it says itself which rows failed
                self._note(node.name, metrics.Processed(good[0].rows))
        return good[0].residue

    def fail(self, failure: Failure) -> None:
        """Take note of rows that an action failed as a whole."""
        self._failed[failure.number] = failure

    def close(self) -> None:
        """See that everything is covered.

        Raises:
            NotExactError: it isn't.
        """
        broken_off = [name for name in self._actions if name not in self.proven]
        if broken_off:
            raise NotExactError(
                f"{', '.join(map(repr, broken_off))} ended with an error that was not passed on, so what it wrote is unknown: "
                "let the error out of the pipeline, or give on_error='fail', which fails its rows"
            )
        if not self.proven:
            raise NotExactError(
                "the pipeline ran no sink, so no message of it can be done: end each way through it with write, "
                "write_data_source, "
                "write_partitions, write_dataframe or export, or give the frame to tracker.discard"
            )
        taken = {source for node in self._nodes.values() for source in node.sources}
        open_ends = [name for name in self._nodes if name not in self._covered | taken]
        if open_ends:
            raise NotExactError(
                f"the pipeline did nothing with the rows of {', '.join(map(repr, open_ends))}, so these can't be done: "
                "end each way through it with write, write_data_source, write_partitions, write_dataframe or "
                "export, or give the frame "
                "to tracker.discard"
            )

    def failed(self) -> list[Failure]:
        """Which messages failed, and why, of all actions."""
        return list(self._failed.values())

    def end(self) -> None:
        """Let go of what was kept."""
        self._received.forget()
        self._listener.forget(f"{metrics.PREFIX}{self.key}:")

    def _note(self, operator: str, processed: metrics.Processed) -> None:
        if processed.rows:
            before = self.processed.get(operator, processed)
            roots = before.roots | processed.roots if before.roots and processed.roots else frozenset()
            self.processed[operator] = metrics.Processed(processed.rows, roots)

    def _balance(self, node: Node, meter: str, equation: Equation, execution: Execution) -> "_Balance":
        """Hold what one execution metered against a equation."""
        metered = execution.metrics
        gone: dict[str, _Gone] = {}
        missing = []
        for one in equation.residues:
            known = self._meters[one]
            if one not in metered:
                missing.append(known.operator)
            elif not known.has_failures:
                gone[one] = _Gone(known.operator, metrics.passed(metered, one), metrics.Passed(0, 0), ())
            else:
                left = metrics.left_python(metered, one)
                named = self._received.find(one, left.failures)
                if named is None or sum(failure.share_sum for failure in named) & MASK != left.failed.shares:
                    missing.append(known.operator)
                else:
                    gone[one] = _Gone(known.operator, left.dropped, left.failed, named, left.processed)
        if missing:
            return _Balance(
                execution,
                f"what {', '.join(map(repr, missing))} dropped or failed is unknown, as Spark did not evaluate it in this "
                "execution: behind a checkpoint, a file or a cache that was filled bit by bit. Use tracker.checkpoint to cut "
                "a plan, and fill a cache by count()",
            )
        got = metrics.passed(metered, meter)
        residues = {one: left.shares for one, left in gone.items()}
        if got.shares != equation.expected(self.total, residues):
            return _Balance(execution, self._mismatch(node, got, gone))
        residue = sum(equation.residues[one] * shares for one, shares in residues.items())
        named = [failure for left in gone.values() for failure in left.named]
        processed = {left.operator: left.processed for left in gone.values()}
        return _Balance(execution, None, residue, named, processed, got.rows)

    def _mismatch(self, node: Node, got: metrics.Passed, gone: "dict[str, _Gone]") -> str:
        told = [f"{got.rows:,} rows reached {node.name!r}", *(str(one) for one in gone.values() if one.rows)]
        return (
            f"not everything that came of the {self.count:,} messages is accounted for, or something is twice: "
            f"{', '.join(told)}."
        )

    def _refuse(
        self, text: str, execution: Execution | None = None, node: Node | None = None, meter: str | None = None
    ) -> NoReturn:
        """Say that an action isn't proven, and of whose doing that is: Spark's, or the pipeline's."""
        if reruns.any_fault(self.session, self.job_tag):
            raise NotProvenError(f"{text} Tasks of Spark failed or ran twice meanwhile, so this is tried again")
        if execution is None or node is None or meter is None:
            raise NotExactError(text)
        changes = plans.changes(execution.query, meter, node.name)
        found = f" {plans.advice(changes)}" if changes else ""
        if plans.is_cached(execution.query):
            raise NotProvenError(f"{text} {_CACHED}{found}")
        raise NotExactError(f"{text}{found or f' {_ADVICE}'}")

    def _cover(self, name: str) -> None:
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if one not in self._covered:
                self._covered.add(one)
                waiting += self._nodes[one].sources


@dataclass(frozen=True)
class _Balance:
    """How one execution stands.

    Attributes:
        execution: the one.
        text: why it is not balanced; None: it is.
        residue: the sum of what was dropped and failed before it, weighed.
        named: failures of failed rows.
        processed: operator in Python -> what it has processed without failing.
        rows: that reached the action.
    """

    execution: Execution
    text: str | None
    residue: int = 0
    named: Sequence[Failure] = ()
    processed: Mapping[str, metrics.Processed] = field(default_factory=dict)
    rows: int = 0

    @property
    def is_balanced(self) -> bool:
        return self.text is None


@dataclass(frozen=True)
class _Gone:
    operator: str
    dropped: metrics.Passed
    failed: metrics.Passed
    named: Sequence[Failure]
    processed: metrics.Processed = field(default_factory=metrics.Processed)

    @property
    def shares(self) -> int:
        return self.dropped.shares + self.failed.shares

    @property
    def rows(self) -> int:
        return self.dropped.rows + self.failed.rows

    def __str__(self) -> str:
        told = [(self.dropped.rows, "dropped"), (self.failed.rows, "failed")]
        return f"{' and '.join(f'{rows:,} were {what}' for rows, what in told if rows)} by {self.operator!r}"
