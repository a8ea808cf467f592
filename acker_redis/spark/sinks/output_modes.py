"""When the sinks of an emission write, and in which modes.

The rules keep replays from doing harm. A sink writes at once, or after the whole emission is proven. Failed messages are
emitted again without the others. A sink that works by message must therefore add rows. A sink that replaces the output may
run only when every remaining message has come through: its output is a whole.
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
"""Scope of the output: the messages of an emission, or all messages of the run."""

WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "orc", "xml", "jdbc")
"""Methods of a DataFrameWriter that write. The others only set options."""

_TEXTS = Repr()
"""Formats arguments, shortened."""
_TEXTS.maxstring = _TEXTS.maxother = 200

_HARMS = {
    "overwrite": "would replace the rows of earlier emissions",
    "ignore": "would leave out all rows after the first emission",
}
_FAILS = "would fail after the first emission, because the output exists then"

_WAYS_OUT = (
    'Failed messages are written again without the others. Use mode("append"), or run_tracked(..., output="whole"), which '
    "replaces the output once it is complete. Pass allow_overwrite=True if each message has its own partition."
)


def check_output(output: str) -> None:
    """Check that `output` is `by_message` or `whole`.

    Raises:
        BadConfigError: it is neither.
    """
    if output not in get_args(Output):
        raise BadConfigError(f"output={output!r} is unknown. Use 'by_message' or 'whole'.")


class Call(NamedTuple):
    """A call of a writer's method.

    Attributes:
        method: name of the method.
        texts: arguments as texts.
        arguments: snapshots of the arguments, for comparison.
    """

    method: str
    texts: dict[str, str]
    arguments: dict[str, object]

    @property
    def writes(self) -> bool:
        """True if the method writes; others set options."""
        return self.method in WRITES

    def is_like(self, other: "Call") -> bool:
        """Return True if the other call has the same method and equal arguments."""
        return self.method == other.method and self.arguments == other.arguments


@dataclass
class AllowedWrites:
    """The modes that a sink may write with, and the calls of its writer.

    Attributes:
        sink: name of the sink.
        output: scope of the output.
        may_overwrite: whether it may overwrite with output by message.
        any_mode: whether every mode is allowed, as for exports.
        dry: whether calls are only recorded, and nothing is written.
        expected: calls that it must repeat, in order, or None if any calls are allowed.
        calls: calls made so far, of all methods.
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
            PipelineError: the mode is not allowed.
        """
        mode = mode.lower()
        if self.any_mode or mode == ("append" if self.output == "by_message" else "overwrite"):
            return
        if self.output == "whole":
            raise PipelineError(
                f"{self.sink!r}: mode {mode!r} doesn't replace the output of an earlier run or attempt. With "
                'output="whole" rows would be written twice, or not at all. Use mode("overwrite"), or insertInto with '
                "overwrite=True."
            )
        if mode == "overwrite" and self.may_overwrite:
            return
        raise PipelineError(f"{self.sink!r}: mode {mode!r} {_HARMS.get(mode, _FAILS)}. {_WAYS_OUT}")

    def note(self, method: str, arguments: dict[str, Any]) -> None:
        """Record a call of a method of the writer.

        Raises:
            PipelineError: the first time, the function made another call, or passed other arguments.
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
        """Check that the function has repeated all of its earlier calls.

        Raises:
            PipelineError: a call is missing.
        """
        if self.expected is not None and len(self.calls) < len(self.expected):
            raise self._changed("makes no more calls", _describe(self.expected[len(self.calls)], None))

    def _changed(self, now: str, before: str | None) -> PipelineError:
        return PipelineError(
            f"{self.sink!r}: the function now {now}, but the first time it called {before or 'nothing more'}. With "
            'output="whole" it runs again after the pipeline has returned, when a loop\'s variable has its last value. '
            'Bind the values it uses: lambda writer, path=path: writer.mode("overwrite").parquet(path).'
        )


def _describe(call: Call, other: Call | None) -> str:
    """Format a call with the arguments that differ from the other's.

    Passwords are mostly the same, so they don't show.
    """
    texts = call.texts
    if other is not None and other.method == call.method and call.method != "option":
        texts = {name: text for name, text in texts.items() if call.arguments[name] != other.arguments.get(name)}
    return f"{call.method}({', '.join(f'{name}={text}' for name, text in texts.items())})"


class GuardedWriter(DataFrameWriter):
    """A writer that records its calls, and checks its mode before it writes."""

    def __init__(self, rows: DataFrame, writes: AllowedWrites) -> None:
        super().__init__(rows)
        self._writes = writes
        self._mode = "errorifexists"
        self._is_inside = False

    def _run(self, spark: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run one of Spark's methods. Calls that it makes on this writer itself are not recorded."""
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
            mode = "overwrite" if overwrites else "append"  # insertInto has no other modes
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
        output: scope of the output.
        only_checked: whether nothing is written at all.
        counts: sink -> number of rows that it would have written, if nothing is written.
    """

    output: Output = "by_message"
    only_checked: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    _checks: list[Callable[[], object]] = field(default_factory=list)
    _waiting: list[Callable[[], object]] = field(default_factory=list)
    _kept: list[DataFrame] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """True if sinks keep their rows first, and write them later or not at all."""
        return self.only_checked or self.output == "whole"

    def allowed_writes(self, sink: str, *, may_overwrite: bool = False, any_mode: bool = False) -> AllowedWrites:
        """Return the writes that a sink may do."""
        return AllowedWrites(sink, self.output, may_overwrite, any_mode)

    def call_dry(
        self, write: Callable[[DataFrameWriter], object], tracked: DataFrame, writes: AllowedWrites
    ) -> list[Call]:
        """Call a function with a writer that writes nothing, and return its calls.

        Raises:
            PipelineError: a mode is not allowed.
            NotExactError: the function called no method that writes.
        """
        dry = replace(writes, dry=True, calls=[])
        write(GuardedWriter(tracked.drop(*TRACKING), dry))
        if not any(call.writes for call in dry.calls):
            raise NotExactError(
                f"{writes.sink!r}: the function called no writing method of the DataFrameWriter. Pass one that calls "
                f"{', '.join(WRITES[:-1])} or {WRITES[-1]}, once."
            )
        return dry.calls

    def keep_checkpoint(self, rows: DataFrame) -> DataFrame:
        """Register the rows of a local checkpoint, which `release` drops."""
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
        """Drop the kept rows."""
        for rows in self._kept:
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except Py4JError:
                log.debug("kept rows not released, Spark will drop them", exc_info=True)
        self._kept.clear()
        self._waiting.clear()
        self._checks.clear()

    def refuse_on_error(self, on_error: str, sink: str) -> None:
        """Reject `on_error="fail"` for a whole output, whose rows belong to all messages.

        Raises:
            PipelineError: `on_error` is `fail`, and the output is a whole.
        """
        if self.output == "whole" and on_error == "fail":
            raise PipelineError(
                f'{sink}: output="whole" does not support on_error="fail". The output is made from all messages, so none of '
                "them can fail for it. Omit on_error. An output that can't be written is retried."
            )
