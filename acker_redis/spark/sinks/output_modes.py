"""When the sinks of an emission write: at once, or once all of it is proven; and how they may, so that no replay does harm.

Failed messages are emitted again without the others. So a sink that works by message has to add, and one that replaces what
is there may only run where every message that is left has come through: its output is a whole.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from reprlib import Repr
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis.errors import BadConfigError, NotExactError
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import Equation, with_equation
from acker_redis.spark.proof.proof import Node, Proof
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.sinks.captured_variables import frozen

log = logging.getLogger("acker_redis.spark")

Output: TypeAlias = Literal["by_message", "whole"]
"""Whether what is written belongs to the messages of an emission, or to all messages of the run."""

WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "orc", "xml", "jdbc")
"""Methods of a DataFrameWriter that write; the others only say how."""

_TEXTS = Repr()
"""How arguments are shown."""
_TEXTS.maxstring = _TEXTS.maxother = 200

_HARMS = {
    "overwrite": "would replace what earlier emissions wrote",
    "ignore": "would leave out what is written after the first emission",
}
_FAILS = "would fail after the first emission, as the output is there by then"

_WAYS_OUT = (
    'Failed messages are written again without the others. Use mode("append"); or run_tracked(..., output="whole"), which '
    "replaces the output once all of it is there; or allow_overwrite=True where each message has a partition of its own"
)


def check_output(output: str) -> None:
    """It is one of the two kinds.

    Raises:
        BadConfigError: it isn't.
    """
    if output not in get_args(Output):
        raise BadConfigError(f"output={output!r}: use 'by_message' or 'whole'")


class Call(NamedTuple):
    """A call of a writer's method.

    Attributes:
        method: its name.
        given: its arguments, as text.
        was: its arguments as they were then, to be compared.
    """

    method: str
    given: dict[str, str]
    was: dict[str, object]

    @property
    def writes(self) -> bool:
        """Whether the method writes; else it says how."""
        return self.method in WRITES

    def is_like(self, other: "Call") -> bool:
        """It is the same method with equal arguments."""
        return self.method == other.method and self.was == other.was


@dataclass
class Writes:
    """Which modes a sink may write with, and what it called.

    Attributes:
        sink: its name.
        output: of the run.
        may_overwrite: whether it may replace, by message.
        any_mode: whether every mode is right, as for exports.
        dry: note calls, and write nothing.
        expected: calls that it has to make, in order, as it made them before; None: any.
        calls: those it made, of all methods.
    """

    sink: str
    output: Output = "by_message"
    may_overwrite: bool = False
    any_mode: bool = False
    dry: bool = False
    expected: "list[Call] | None" = None
    calls: list[Call] = field(default_factory=list)

    def check_mode(self, mode: str) -> None:
        """It may write so.

        Raises:
            BadConfigError: it may not.
        """
        mode = mode.lower()
        if self.any_mode or mode == ("append" if self.output == "by_message" else "overwrite"):
            return
        if self.output == "whole":
            raise BadConfigError(
                f"{self.sink!r}: mode {mode!r} doesn't replace what an earlier run or an earlier try wrote, so with "
                'output="whole" it would stand there twice, or not at all. Use mode("overwrite"), and insertInto with '
                "overwrite=True"
            )
        if mode == "overwrite" and self.may_overwrite:
            return
        raise BadConfigError(f"{self.sink!r}: mode {mode!r} {_HARMS.get(mode, _FAILS)}. {_WAYS_OUT}")

    def note(self, method: str, given: dict[str, Any]) -> None:
        """It calls a method of its writer.

        Raises:
            BadConfigError: it called another, or with other arguments, when it was given.
        """
        texts = {name: _TEXTS.repr(value) for name, value in given.items()}
        call = Call(method, texts, {name: frozen(value) for name, value in given.items()})
        at = len(self.calls)
        self.calls.append(call)
        if self.expected is None:
            return
        before = self.expected[at] if at < len(self.expected) else None
        if before is None or not call.is_like(before):
            raise self._changed(f"calls {_told(call, before)}", before and _told(before, call))

    def check_all_made(self) -> None:
        """It has made all calls that it has to make.

        Raises:
            BadConfigError: it hasn't.
        """
        if self.expected is not None and len(self.calls) < len(self.expected):
            raise self._changed("doesn't call it", _told(self.expected[len(self.calls)], None))

    def _changed(self, now: str, before: str | None) -> BadConfigError:
        return BadConfigError(
            f"{self.sink!r}: the function now {now}; when it was given it called {before or 'nothing more'}. With "
            'output="whole" it runs once more after the pipeline has returned, when a loop\'s variable has its last value. '
            'Bind what it uses: lambda writer, path=path: writer.mode("overwrite").parquet(path)'
        )


def _told(call: Call, other: Call | None) -> str:
    """A call, with the arguments that the other has otherwise: passwords are mostly the same."""
    given = call.given
    if other is not None and other.method == call.method and call.method != "option":
        given = {name: text for name, text in given.items() if call.was[name] != other.was.get(name)}
    return f"{call.method}({', '.join(f'{name}={text}' for name, text in given.items())})"


class GuardedWriter(DataFrameWriter):
    """A writer that notes what it is told, and looks at its mode before it writes."""

    def __init__(self, rows: DataFrame, writes: Writes) -> None:
        super().__init__(rows)
        self._writes = writes
        self._mode = "errorifexists"
        self._is_inside = False

    def _run(self, spark: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a method of Spark's, which calls others of this writer that nobody has to note."""
        outside, self._is_inside = self._is_inside, True
        try:
            return spark(self, *args, **options)
        finally:
            self._is_inside = outside


def _given(spark: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """The arguments of a method by their names, without `self`."""
    given = dict(signature(spark).bind(*args, **options).arguments)
    del given["self"]
    return given


def _noted(name: str) -> Callable[..., DataFrameWriter]:
    spark = getattr(DataFrameWriter, name)

    @wraps(spark)
    def tell(self: GuardedWriter, *args: Any, **options: Any) -> DataFrameWriter:
        given = _given(spark, self, *args, **options)
        if name == "mode" and given["saveMode"] is not None:
            self._mode = given["saveMode"]
        if not self._is_inside:
            self._writes.note(name, given)
        self._run(spark, *args, **options)
        return self

    return tell


def _guarded(name: str) -> Callable[..., None]:
    spark = getattr(DataFrameWriter, name)

    @wraps(spark)
    def write(self: GuardedWriter, *args: Any, **options: Any) -> None:
        given = _given(spark, self, *args, **options)
        mode = self._mode if given.get("mode") is None else str(given["mode"])
        if name == "insertInto":
            overwrites = mode.lower() == "overwrite" if given.get("overwrite") is None else given["overwrite"]
            mode = "overwrite" if overwrites else "append"  # it knows no other
        writes = self._writes
        if not self._is_inside:
            writes.check_mode(mode)
            writes.note(name, given)
        if not writes.dry:
            self._run(spark, *args, **options)

    return write


for _name, _method in vars(DataFrameWriter).items():
    if callable(_method) and not _name.startswith("_"):
        setattr(GuardedWriter, _name, (_guarded if _name in WRITES else _noted)(_name))


@dataclass
class Outputs:
    """The sinks of one emission.

    Attributes:
        output: of the run.
        only_checked: nothing is to be written at all.
        counts: sink -> the rows it would have written, where nothing is.
    """

    output: Output = "by_message"
    only_checked: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    _checks: list[Callable[[], object]] = field(default_factory=list)
    _waiting: list[Callable[[], object]] = field(default_factory=list)
    _kept: list[DataFrame] = field(default_factory=list)

    @property
    def wait(self) -> bool:
        """Whether sinks keep their rows, and don't write at once."""
        return self.only_checked or self.output == "whole"

    def writes(self, sink: str, *, may_overwrite: bool = False, any_mode: bool = False) -> Writes:
        """What a sink may do."""
        return Writes(sink, self.output, may_overwrite, any_mode)

    def call_dry(self, write: Callable[[DataFrameWriter], object], tracked: DataFrame, writes: Writes) -> list[Call]:
        """What a function does with its writer, with nothing written.

        Raises:
            BadConfigError: it may not write so.
            NotExactError: it doesn't write.
        """
        dry = replace(writes, dry=True, calls=[])
        write(GuardedWriter(tracked.drop(*TRACKING), dry))
        if not any(call.writes for call in dry.calls):
            raise NotExactError(
                f"{writes.sink!r}: the function called no method of the DataFrameWriter that writes: give one that calls "
                f"{', '.join(WRITES[:-1])} or {WRITES[-1]}, once"
            )
        return dry.calls

    def kept(self, proof: Proof, tracked: DataFrame, node: Node, equation: Equation) -> tuple[DataFrame, Equation]:
        """The rows of a sink, computed and proven; and what they must sum to. `release` lets go of them."""
        meter = proof.meter(node)
        with proof.describing(node):
            rows = self.keep(metrics.passing(tracked, meter).localCheckpoint())
        residue = proof.prove(node, meter, equation, written=False)
        equation = replace(equation, residues={}, known=(equation.known + residue) & MASK)
        if self.only_checked:
            self.counts[node.name] = rows.count()
        return with_equation(rows, equation), equation

    def keep(self, rows: DataFrame) -> DataFrame:
        """Rows of a local checkpoint; `release` lets go of them."""
        self._kept.append(rows)
        return rows

    def later(self, write: Callable[[], object]) -> None:
        """Have it called by `write`."""
        self._waiting.append(write)

    def check_first(self, check: Callable[[], object]) -> None:
        """Have it called by `write` before anything is written."""
        self._checks.append(check)

    def write(self) -> None:
        """Run what waits, in order."""
        for run in (*self._checks, *self._waiting):
            run()

    def release(self) -> None:
        """Let go of the rows that were kept."""
        for rows in self._kept:
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except Py4JError:
                log.debug("rows of a sink stay until Spark clears them away", exc_info=True)
        self._kept.clear()
        self._waiting.clear()
        self._checks.clear()

    def refuse_on_error(self, on_error: str, sink: str) -> None:
        """A sink of a whole has no messages of its own that it could fail.

        Raises:
            BadConfigError: it is to.
        """
        if self.output == "whole" and on_error == "fail":
            raise BadConfigError(
                f'{sink}: on_error="fail" is not for output="whole": what is written is made of all messages, so none of '
                "them can be failed for it. Leave on_error out; an output that can't be written is tried again"
            )
