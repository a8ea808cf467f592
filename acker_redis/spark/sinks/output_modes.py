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

from acker_redis.errors import BadConfigError, NotExactError, PipelineError
from acker_redis.spark.protocol.columns import TRACKING
from acker_redis.spark.sinks.captured_variables import snapshot

log = logging.getLogger("acker_redis.spark")

Output: TypeAlias = Literal["by_message", "whole"]
"""Whether what is written belongs to the messages of an emission, or to all messages of the run."""

WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "orc", "xml", "jdbc")
"""Methods of a DataFrameWriter that write; the others set how."""

_TEXTS = Repr()
"""Shows arguments, cut."""
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
    """Check that it is one of the two kinds.

    Raises:
        BadConfigError: it isn't.
    """
    if output not in get_args(Output):
        raise BadConfigError(f"output={output!r}: use 'by_message' or 'whole'")


class Call(NamedTuple):
    """A call of a writer's method.

    Attributes:
        method: its name.
        texts: its arguments, as text.
        arguments: snapshots of its arguments, to be compared.
    """

    method: str
    texts: dict[str, str]
    arguments: dict[str, object]

    @property
    def writes(self) -> bool:
        """Whether the method writes; others set how."""
        return self.method in WRITES

    def is_like(self, other: "Call") -> bool:
        """Tell whether it is the same method with equal arguments."""
        return self.method == other.method and self.arguments == other.arguments


@dataclass
class AllowedWrites:
    """The modes that a sink may write with, and the calls of its writer.

    Attributes:
        sink: its name.
        output: of the run.
        may_overwrite: whether it may replace, by message.
        any_mode: whether every mode is allowed, as for exports.
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
        """Check that the sink may write with a mode.

        Raises:
            PipelineError: it may not.
        """
        mode = mode.lower()
        if self.any_mode or mode == ("append" if self.output == "by_message" else "overwrite"):
            return
        if self.output == "whole":
            raise PipelineError(
                f"{self.sink!r}: mode {mode!r} doesn't replace what an earlier run or an earlier try wrote, so with "
                'output="whole" it would stand there twice, or not at all. Use mode("overwrite"), and insertInto with '
                "overwrite=True"
            )
        if mode == "overwrite" and self.may_overwrite:
            return
        raise PipelineError(f"{self.sink!r}: mode {mode!r} {_HARMS.get(mode, _FAILS)}. {_WAYS_OUT}")

    def note(self, method: str, arguments: dict[str, Any]) -> None:
        """Note a call of a method of the writer.

        Raises:
            PipelineError: the sink called another, or with other arguments, when it was given.
        """
        texts = {name: _TEXTS.repr(value) for name, value in arguments.items()}
        call = Call(method, texts, {name: snapshot(value) for name, value in arguments.items()})
        at = len(self.calls)
        self.calls.append(call)
        if self.expected is None:
            return
        before = self.expected[at] if at < len(self.expected) else None
        if before is None or not call.is_like(before):
            raise self._changed(f"calls {_describe(call, before)}", before and _describe(before, call))

    def check_all_made(self) -> None:
        """Check that the sink has made all calls that it has to make.

        Raises:
            PipelineError: it hasn't.
        """
        if self.expected is not None and len(self.calls) < len(self.expected):
            raise self._changed("doesn't call it", _describe(self.expected[len(self.calls)], None))

    def _changed(self, now: str, before: str | None) -> PipelineError:
        return PipelineError(
            f"{self.sink!r}: the function now {now}; when it was given it called {before or 'nothing more'}. With "
            'output="whole" it runs once more after the pipeline has returned, when a loop\'s variable has its last value. '
            'Bind what it uses: lambda writer, path=path: writer.mode("overwrite").parquet(path)'
        )


def _describe(call: Call, other: Call | None) -> str:
    """Write a call, with the arguments that differ from the other's: passwords are mostly the same."""
    texts = call.texts
    if other is not None and other.method == call.method and call.method != "option":
        texts = {name: text for name, text in texts.items() if call.arguments[name] != other.arguments.get(name)}
    return f"{call.method}({', '.join(f'{name}={text}' for name, text in texts.items())})"


class GuardedWriter(DataFrameWriter):
    """A writer that notes its calls, and checks its mode before it writes."""

    def __init__(self, rows: DataFrame, writes: AllowedWrites) -> None:
        super().__init__(rows)
        self._writes = writes
        self._mode = "errorifexists"
        self._is_inside = False

    def _run(self, spark: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a method of Spark's, which calls others of this writer that are not noted."""
        outside, self._is_inside = self._is_inside, True
        try:
            return spark(self, *args, **options)
        finally:
            self._is_inside = outside


def _bind(spark: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Bind the arguments of a method to their names, without `self`."""
    arguments = dict(signature(spark).bind(*args, **options).arguments)
    del arguments["self"]
    return arguments


def _noted(name: str) -> Callable[..., DataFrameWriter]:
    spark = getattr(DataFrameWriter, name)

    @wraps(spark)
    def call(self: GuardedWriter, *args: Any, **options: Any) -> DataFrameWriter:
        arguments = _bind(spark, self, *args, **options)
        if name == "mode" and arguments["saveMode"] is not None:
            self._mode = arguments["saveMode"]
        if not self._is_inside:
            self._writes.note(name, arguments)
        self._run(spark, *args, **options)
        return self

    return call


def _guarded(name: str) -> Callable[..., None]:
    spark = getattr(DataFrameWriter, name)

    @wraps(spark)
    def write(self: GuardedWriter, *args: Any, **options: Any) -> None:
        arguments = _bind(spark, self, *args, **options)
        mode = self._mode if arguments.get("mode") is None else str(arguments["mode"])
        if name == "insertInto":
            overwrites = mode.lower() == "overwrite" if arguments.get("overwrite") is None else arguments["overwrite"]
            mode = "overwrite" if overwrites else "append"  # it knows no other
        writes = self._writes
        if not self._is_inside:
            writes.check_mode(mode)
            writes.note(name, arguments)
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
    def waits(self) -> bool:
        """Whether sinks keep their rows, and don't write at once."""
        return self.only_checked or self.output == "whole"

    def allowed_writes(self, sink: str, *, may_overwrite: bool = False, any_mode: bool = False) -> AllowedWrites:
        """Give what a sink may do."""
        return AllowedWrites(sink, self.output, may_overwrite, any_mode)

    def call_dry(
        self, write: Callable[[DataFrameWriter], object], tracked: DataFrame, writes: AllowedWrites
    ) -> list[Call]:
        """Call a function with a writer that writes nothing; give its calls.

        Raises:
            PipelineError: it may not write so.
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

    def keep_checkpoint(self, rows: DataFrame) -> DataFrame:
        """Take rows of a local checkpoint, for `release` to drop them."""
        self._kept.append(rows)
        return rows

    def write_later(self, write: Callable[[], object]) -> None:
        """Register a function for `write` to call."""
        self._waiting.append(write)

    def check_before_writing(self, check: Callable[[], object]) -> None:
        """Register a function for `write` to call before anything is written."""
        self._checks.append(check)

    def write(self) -> None:
        """Run the checks, then the sinks that wait, in order."""
        for run in (*self._checks, *self._waiting):
            run()

    def release(self) -> None:
        """Drop the rows that were kept."""
        for rows in self._kept:
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except Py4JError:
                log.debug("rows of a sink stay until Spark clears them away", exc_info=True)
        self._kept.clear()
        self._waiting.clear()
        self._checks.clear()

    def refuse_on_error(self, on_error: str, sink: str) -> None:
        """Refuse `on_error="fail"` for a whole output, whose sinks have no messages of their own that could fail.

        Raises:
            PipelineError: it is to fail them.
        """
        if self.output == "whole" and on_error == "fail":
            raise PipelineError(
                f'{sink}: on_error="fail" is not for output="whole": what is written is made of all messages, so none of '
                "them can be failed for it. Leave on_error out; an output that can't be written is tried again"
            )
