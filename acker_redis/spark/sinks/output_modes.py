"""The modes in which sinks may write, and the calls of their writers.

The rules keep replays from doing harm. A sink writes at once, or after the whole emission is proven. Failed messages are
emitted again without the others. A sink that works by message must therefore add rows. A sink that replaces the output may
run only when every remaining message has come through: its output is a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from reprlib import Repr
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from pyspark.sql import Column

from acker_redis.errors import BadConfigError, InexactPipelineError, PipelineError
from acker_redis.spark.sinks.captured_variables import snapshot
from acker_redis.spark.sinks.replaced_sources import EmissionTables
from acker_redis.spark.sinks.staged_tables import StagedTarget
from acker_redis.spark.sinks.stored import Stored

Output: TypeAlias = Literal["by_message", "whole"]
"""Scope of the output: the messages of an emission, or all messages of the run."""

Scope: TypeAlias = Literal["by_message", "whole", "once"]
"""What decides when sinks write, and which rows: `Output`, or a publish log, which gets each message's rows once."""

WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "orc", "xml", "jdbc")
"""Methods of a DataFrameWriter that write. The others only set options."""

TABLE_WRITES = {
    "append": "append",
    "overwritePartitions": "overwrite",
    "overwrite": "overwrite",
    "replace": "overwrite",
    "createOrReplace": "overwrite",
    "create": "errorifexists",
}
"""Methods of a DataFrameWriterV2 that write -> the mode that they write in."""

_TARGETS = ("path", "name", "tableName", "table", "dbtable")
"""Arguments and options that name what a writer writes to."""

_TEXTS = Repr()
"""Formats arguments, shortened."""
_TEXTS.maxstring = _TEXTS.maxother = 200

_HARMS = {
    "overwrite": "would replace the rows of earlier emissions",
    "ignore": "would leave out all rows after the first emission",
}
_APPEND = 'mode("append")'
_FAILS = "would fail after the first emission, because the output exists then"


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
        return self.method in WRITES or self.method in TABLE_WRITES

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
        targets: what a whole output replaces by the calls that were only recorded.
        staged: where the rows belong, if they are staged.
        stage: folder, or name of a table, that gets the rows in place of that one.
    """

    sink: str
    output: Scope = "by_message"
    may_overwrite: bool = False
    any_mode: bool = False
    dry: bool = False
    expected: "list[Call] | None" = None
    calls: list[Call] = field(default_factory=list)
    targets: list[Stored] = field(default_factory=list)
    staged: StagedTarget | None = None
    stage: str | None = None
    tables: EmissionTables | None = None

    def check_mode(self, mode: str, method: str | None = None) -> None:
        """Check that the sink may write with a mode.

        Args:
            mode: mode of the write.
            method: method of a DataFrameWriterV2 that writes so; None: the mode was set by its name.

        Raises:
            PipelineError: the mode is not allowed.
        """
        mode = mode.lower()
        if self.any_mode or mode == ("overwrite" if self.output == "whole" else "append"):
            return
        called = f"mode {mode!r}" if method is None else f"{method}()"
        if self.output == "whole":
            replacing = (
                'mode("overwrite"), or insertInto with overwrite=True' if method is None else "createOrReplace()"
            )
            raise PipelineError(
                f"{self.sink!r}: {called} doesn't replace the output of an earlier run or attempt. With "
                f'output="whole" rows would be written twice, or not at all. Use {replacing}.'
            )
        if self.output == "once":
            use = _APPEND if method is None else "append()"
            raise PipelineError(f"{self.sink!r}: {called} {_HARMS.get(mode, _FAILS)}. With once=, use {use}.")
        if mode == "overwrite" and self.may_overwrite:
            return
        raise PipelineError(
            f"{self.sink!r}: {called} {_HARMS.get(mode, _FAILS)}. Failed messages are written again without the others. Use "
            f'{_APPEND if method is None else "append()"}. In a pipeline, run_tracked(..., output="whole") replaces the '
            "output once it is complete, and allow_overwrite=True lets messages overwrite partitions of their own."
        )

    def note(self, method: str, arguments: dict[str, Any]) -> None:
        """Record a call of a method of the writer.

        Raises:
            PipelineError: the first time, the function made another call, or passed other arguments.
        """
        texts = {name: _TEXTS.repr(value) for name, value in arguments.items()}
        call = Call(method, texts, {name: snapshot(_comparable(value)) for name, value in arguments.items()})
        at = len(self.calls)
        self.calls.append(call)
        if self.expected is None:
            return
        before = self.expected[at] if at < len(self.expected) else None
        if before is None or not call.is_like(before):
            raise self._changed(f"calls {_describe(call, before)}", before and _describe(before, call))

    def check_any_writes(self) -> None:
        """Check that a call that writes was made.

        Raises:
            InexactPipelineError: there was none.
        """
        if not any(call.writes for call in self.calls):
            raise InexactPipelineError(
                f"{self.sink!r}: the function called no method of the writer that writes. Pass one that calls one of them, "
                'once, such as lambda writer: writer.mode("append").parquet(path), or lambda writer: writer.append() for a '
                "table."
            )

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


def _comparable(value: object) -> object:
    """Return the text of a column, because each call makes another one; any other value as it is."""
    if isinstance(value, (tuple, list)):
        return [_comparable(item) for item in value]
    return str(value) if isinstance(value, Column) else value


def _describe(call: Call, other: Call | None) -> str:
    """Format a call with the arguments that differ from the other's.

    Passwords are mostly the same, so they don't show.
    """
    texts = call.texts
    if other is not None and other.method == call.method and call.method != "option":
        texts = {name: text for name, text in texts.items() if call.arguments[name] != other.arguments.get(name)}
    return f"{call.method}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def targets_of(calls: Sequence[Call]) -> list[str]:
    """Return paths and tables that calls of a writer write to, as texts. Those in other options are left out."""
    found, options = list[str](), dict[str, str]()
    for call in calls:
        if call.method == "option":
            options[call.texts["key"].strip("'")] = call.texts["value"]
        elif call.writes:
            texts = {**options, **call.texts}
            found += [texts[name] for name in _TARGETS if name in texts][:1]
    return found
