"""When the sinks of an emission write: at once, or once all of it is proven; and how they may, so that no replay does harm.

Failed messages are emitted again without the others. So a sink that works by message has to add, and one that replaces what
is there may only run where every message that is left has come through: its output is a whole.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis.errors import BadConfigError, NotExactError
from acker_redis.spark import meters
from acker_redis.spark.columns import TRACKING
from acker_redis.spark.edges import MASK
from acker_redis.spark.form import Form, with_form
from acker_redis.spark.proof import Node, Proof

log = logging.getLogger("acker_redis.spark")

Output: TypeAlias = Literal["by_message", "whole"]
"""Whether what is written belongs to the messages of an emission, or to all messages of the run."""

WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "orc", "xml", "jdbc")
"""Methods of a DataFrameWriter that write; the others only say how."""

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
    """A call of a writer's method that writes.

    Attributes:
        method: its name.
        mode: what it does where something is there already.
        given: its arguments.
    """

    method: str
    mode: str
    given: dict[str, Any]


@dataclass
class Writes:
    """Which modes a sink may write with, and what it called.

    Attributes:
        sink: its name.
        output: of the run.
        may_overwrite: whether it may replace, by message.
        any_mode: whether every mode is right, as for exports.
        dry: note calls, and write nothing.
        expected: calls that it has to make, as it made them before; None: any.
        calls: those it made.
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

    def note(self, call: Call) -> None:
        """It is about to write.

        Raises:
            BadConfigError: it may not write so, or not there.
        """
        self.check_mode(call.mode)
        self.calls.append(call)
        if self.expected is not None and self.calls != self.expected[: len(self.calls)]:
            raise BadConfigError(
                f"{self.sink!r}: the function now calls {call.method} with {call.given}, and first had {self.expected}: "
                'with output="whole" it runs after the pipeline has returned, when a loop\'s variable has its last value. '
                'Bind what it uses: lambda writer, path=path: writer.mode("overwrite").parquet(path)'
            )


class GuardedWriter(DataFrameWriter):
    """A writer that looks at its mode before it writes."""

    def __init__(self, rows: DataFrame, writes: Writes) -> None:
        """Of these rows."""
        super().__init__(rows)
        self._writes = writes
        self._mode = "errorifexists"

    def mode(self, saveMode: str | None) -> "GuardedWriter":  # noqa: N803  # Spark's name
        """As Spark's."""
        super().mode(saveMode)
        self._mode = self._mode if saveMode is None else saveMode
        return self


def _guarded(name: str) -> Callable[..., None]:
    spark = getattr(DataFrameWriter, name)

    @wraps(spark)
    def write(self: GuardedWriter, *args: Any, **options: Any) -> None:
        given = dict(signature(spark).bind(self, *args, **options).arguments)
        del given["self"]
        mode = self._mode if given.get("mode") is None else str(given["mode"])
        if name == "insertInto":
            overwrites = mode.lower() == "overwrite" if given.get("overwrite") is None else given["overwrite"]
            mode = "overwrite" if overwrites else "append"  # it knows no other
        writes = self._writes
        writes.note(Call(name, mode, given))
        if not writes.dry:
            spark(self, *args, **options)

    return write


for _name in WRITES:
    setattr(GuardedWriter, _name, _guarded(_name))


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
        if not dry.calls:
            raise NotExactError(
                f"{writes.sink!r}: the function called no method of the DataFrameWriter that writes: give one that calls "
                f"{', '.join(WRITES[:-1])} or {WRITES[-1]}, once"
            )
        return dry.calls

    def kept(self, proof: Proof, tracked: DataFrame, node: Node, form: Form) -> tuple[DataFrame, Form]:
        """The rows of a sink, computed and proven; and what they must sum to. `release` lets go of them."""
        meter = proof.meter(node)
        with proof.describing(node):
            rows = self.keep(meters.passing(tracked, meter).localCheckpoint())
        residue = proof.prove(node, meter, form, written=False)
        form = replace(form, residues={}, known=(form.known + residue) & MASK)
        if self.only_checked:
            self.counts[node.name] = rows.count()
        return with_form(rows, form), form

    def keep(self, rows: DataFrame) -> DataFrame:
        """Rows of a local checkpoint; `release` lets go of them."""
        self._kept.append(rows)
        return rows

    def later(self, write: Callable[[], object]) -> None:
        """Have it called by `write`."""
        self._waiting.append(write)

    def write(self) -> None:
        """Run what waits, in order."""
        for write in self._waiting:
            write()

    def release(self) -> None:
        """Let go of the rows that were kept."""
        for rows in self._kept:
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except Py4JError:
                log.debug("rows of a sink stay until Spark clears them away", exc_info=True)
        self._kept.clear()
        self._waiting.clear()

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
