"""When the sinks of an emission write, and in which modes.

The rules keep replays from doing harm. A sink writes at once, or after the whole emission is proven. Failed messages are
emitted again without the others. A sink that works by message must therefore add rows. A sink that replaces the output may
run only when every remaining message has come through: its output is a whole.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from inspect import BoundArguments, signature
from reprlib import Repr
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from pyspark.sql import Column, DataFrame, DataFrameWriter, DataFrameWriterV2

from acker_redis.errors import BadConfigError, InexactPipelineError, PipelineError
from acker_redis.spark.runtime.jvm import java_errors
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.captured_variables import snapshot
from acker_redis.spark.sinks.overwrites import Overwrite
from acker_redis.spark.sinks.replaced_sources import EmissionTables, ReplacedSources
from acker_redis.spark.sinks.source_checks import check_connections, check_creation, check_distribution, check_source
from acker_redis.spark.sinks.staged_writes import NewStage, Staging, check_staged
from acker_redis.spark.sinks.stored import Stored
from acker_redis.spark.sinks.stored_reads import targets_of_call
from acker_redis.spark.sinks.trial_writes import check_by_trial

log = logging.getLogger("acker_redis.spark")

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

_CREATING = ("create", "createOrReplace", "replace")

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
        folder: folder that the rows are for, and their format, if they are staged.
        stage: folder that gets the rows in place of that one.
    """

    sink: str
    output: Scope = "by_message"
    may_overwrite: bool = False
    any_mode: bool = False
    dry: bool = False
    expected: "list[Call] | None" = None
    calls: list[Call] = field(default_factory=list)
    targets: list[Stored] = field(default_factory=list)
    folder: tuple[str, str] | None = None
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
            raise PipelineError(f"{self.sink!r}: {called} {_HARMS.get(mode, _FAILS)}. With once=, use {_APPEND}.")
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


class _Guard:
    """Methods that guard one of Spark's writers, of either kind of session. Its class is made from both (`_guarded`)."""

    def __init__(self, writer: Any, writes: AllowedWrites, rows: DataFrame, table: str | None = None) -> None:
        self._writer, self._writes, self._rows, self._table = writer, writes, rows, table
        self._mode = "errorifexists"
        self._source: str | None = None
        self._options: dict[str, str] = {}
        self._partitioned_by: object = None
        self._settings: list[tuple[str, dict[str, Any]]] = []

    def _note(self, method: str, arguments: dict[str, Any]) -> None:
        """Record a call that sets something."""
        self._settings.append((method, arguments))
        if method == "mode" and arguments["saveMode"] is not None:
            self._mode = arguments["saveMode"]
        elif method in ("format", "using"):
            self._source = next(iter(arguments.values()))
        elif method == "partitionBy":
            self._partitioned_by = arguments.get("cols")
        elif method in ("option", "options"):
            pairs = {arguments["key"]: arguments["value"]} if method == "option" else arguments.get("options", {})
            self._options = _with_options(self._options, pairs)
        self._writes.note(method, arguments)

    def _check(self, method: str, arguments: dict[str, Any]) -> None:
        """Check a call that writes, and record it.

        Raises:
            PipelineError: the mode is not allowed, or the write can't be proven.
        """
        session, sink, table = self._rows.sparkSession, self._writes.sink, self._table
        if table is not None:
            self._writes.check_mode(TABLE_WRITES[method], method)
            self._check_target(method, arguments)
            if method in _CREATING:
                check_creation(session, sink, self._source, table, replaces=True)
        else:
            self._writes.check_mode(self._mode_of(method, arguments))
            self._check_target(method, arguments)
            if self._writes.output == "once":
                self._note_staged(method, arguments)
            source = method if method == "jdbc" else arguments.get("format") or self._source
            options = self._options_of(arguments)
            if method in ("save", "saveAsTable"):
                check_source(session, sink, source)
            path = arguments.get("path") or _path_among(options)
            if method in ("save", "saveAsTable") and not self._writes.dry:
                mode, write = self._mode_of(method, arguments), (method, arguments, self._settings)
                append = partial(self._append, method, arguments)
                check_by_trial(self._rows, sink, source, path, mode, write, append)
            if source == "jdbc":
                check_connections(session, sink, options)
            elif method == "save" and source is not None and path is not None:
                check_distribution(session, sink, self._rows, path, options, source)
            elif method in ("saveAsTable", "insertInto"):
                table = arguments.get("name", arguments.get("tableName"))
                if method == "saveAsTable" and table is not None:
                    replaces = self._mode_of(method, arguments).lower() != "append"
                    check_creation(session, sink, source, table, replaces=replaces)
        if table is not None:
            check_distribution(session, sink, self._rows, table, self._options)
        self._writes.note(method, arguments)

    def _check_target(self, method: str, arguments: dict[str, Any]) -> None:
        """Check that a call that overwrites replaces what it should, and that nobody reads what a call changes.

        Raises:
            PipelineError: it doesn't, or somebody does.
        """
        writes = self._writes
        mode = self._mode_of(method, arguments) if self._table is None else TABLE_WRITES[method]
        if writes.any_mode:
            return
        call, overwrites = self._overwrite_of(method, arguments), mode.lower() == "overwrite"

        def targets() -> list[Stored]:
            where = call.format, call.table, call.path, call.options
            return targets_of_call(call.session, *where, may_be_view=method == "insertInto")

        if writes.output != "whole":
            if overwrites:
                call.check_own_partitions()
            if writes.tables is not None:
                is_once = writes.output == "once"
                writes.tables.add_written(writes.sink, targets, overwrites=overwrites, is_once=is_once)
        elif overwrites:
            call.check_whole()
            if writes.dry:
                in_parts = call.replaces_parts
                writes.targets += [replace(target, in_parts=in_parts) for target in targets()]

    def _overwrite_of(self, method: str, arguments: dict[str, Any]) -> Overwrite:
        options = self._options_of(arguments)
        if method == "jdbc":
            options |= {"url": arguments["url"], "dbtable": arguments["table"]}
        given = arguments.get("partitionBy")
        return Overwrite(
            self._rows.sparkSession,
            self._writes.sink,
            method,
            arguments.get("format") or self._source,
            self._table or arguments.get("name", arguments.get("tableName")),
            arguments.get("path") or _path_among(options),
            _has_columns(self._partitioned_by if given is None else given),
            {name.lower(): value for name, value in options.items()},
        )

    def _note_staged(self, method: str, arguments: dict[str, Any]) -> None:
        """Note the folder and the format of a call that writes, so that its files can wait in a stage.

        Raises:
            PipelineError: they can't.
        """
        writes, source = self._writes, arguments.get("format") or self._source
        options = {name.lower(): value for name, value in self._options_of(arguments).items()}
        is_second = writes.dry and writes.folder is not None
        path, session = arguments.get("path"), self._rows.sparkSession
        writes.folder = check_staged(session, writes.sink, method, source, path, options, is_second=is_second)

    def _options_of(self, arguments: dict[str, Any]) -> dict[str, str]:
        """Return the options of a call that writes."""
        return _with_options(self._options, {**arguments.get("options", {}), **(arguments.get("properties") or {})})

    def _append(self, method: str, arguments: dict[str, Any], rows: DataFrame) -> None:
        """Append other rows to the target, with the settings of this writer."""
        writer = rows.write
        for setting, given in self._settings:
            _apply(writer, setting, given)
        _apply(writer, method, {**arguments, "mode": "append"})

    def _mode_of(self, method: str, arguments: dict[str, Any]) -> str:
        mode = self._mode if arguments.get("mode") is None else str(arguments["mode"])
        if method == "insertInto":  # which has no other modes
            overwrites = mode.lower() == "overwrite" if arguments.get("overwrite") is None else arguments["overwrite"]
            return "overwrite" if overwrites else "append"
        return mode


def _with_options(options: dict[str, str], given: dict[str, Any]) -> dict[str, str]:
    """Return options with others as Spark takes them: the last spelling of a name wins, and None unsets it."""
    for name, value in given.items():
        options = {other: old for other, old in options.items() if other.lower() != name.lower()}
        if value is not None:
            options[name] = str(value)
    return options


def _path_among(options: dict[str, str]) -> str | None:
    """Return the option `path`, in any spelling."""
    return next((value for name, value in options.items() if name.lower() == "path"), None)


def _has_columns(names: object) -> bool:
    """Return True if an argument of `partitionBy` names a column: a name, or names in lists and tuples."""
    return any(map(_has_columns, names)) if isinstance(names, (list, tuple)) else bool(names)


def _apply(writer: Any, method: str, arguments: dict[str, Any]) -> None:
    """Call a method with arguments by name, as `signature(...).bind` returns them."""
    function = getattr(type(writer), method)
    bound = BoundArguments(signature(function), OrderedDict(self=writer, **arguments))
    function(*bound.args, **bound.kwargs)


@cache
def _guarded(writer: Any) -> Any:
    """Derive a writer that records its calls, and checks them before it writes.

    Classic sessions and those of Spark Connect have writers of their own.
    """
    methods = {name: method for base in reversed(writer.__mro__) for name, method in vars(base).items()}
    own = {name: _method(name, method) for name, method in methods.items() if callable(method) and name[0] != "_"}
    return type(f"Guarded{writer.__name__}", (_Guard, writer), own)


def _method(name: str, spark: Callable[..., Any]) -> Callable[..., Any]:
    writes = name in WRITES or name in TABLE_WRITES

    @wraps(spark)
    def call(self: _Guard, *args: Any, **options: Any) -> Any:
        arguments = dict(signature(spark).bind(self, *args, **options).arguments)
        del arguments["self"]
        if writes:
            self._check(name, arguments)
            if self._writes.dry:
                return None
            if self._writes.stage is not None:
                return _apply(self._writer, name, {**arguments, "path": self._writes.stage})
        else:
            self._note(name, arguments)
        result = getattr(self._writer, name)(*args, **options)
        return result if writes else self

    return call


def guarded_writer(rows: DataFrame, writes: AllowedWrites) -> DataFrameWriter:
    """Return a writer of rows that records its calls, and checks its mode before it writes."""
    writer = rows.write
    kind: Any = type(writer)
    guarded: DataFrameWriter = _guarded(kind)(writer, writes, rows)
    return guarded


def guarded_table_writer(rows: DataFrame, table: str, writes: AllowedWrites) -> DataFrameWriterV2:
    """Return a writer of rows into a table that records its calls, and checks them before it writes."""
    writer = rows.writeTo(table)
    kind: Any = type(writer)
    guarded: DataFrameWriterV2 = _guarded(kind)(writer, writes, rows, table)
    return guarded


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


class LateSink(NamedTuple):
    """A sink that has kept its rows, and writes them when all others have, too.

    Attributes:
        name: name of the sink.
        write: function that writes its rows.
        text: name of the sink for people, with its targets if they are known.
    """

    name: str
    write: Callable[[], object]
    text: str


@dataclass
class Outputs:
    """The sinks of one emission.

    Attributes:
        output: scope of the output.
        only_checked: whether nothing is written at all.
        counts: sink -> number of rows that it would have written, if nothing is written.
        late: sinks that have kept their rows, in the order in which they write.
        staging: sinks whose rows are in a stage.
        new_stage: function that makes a stage. None: nothing is staged.
        tables: what the sinks read and write; None: nobody compares it.
        thread: thread of the pipeline.
    """

    output: Scope = "by_message"
    only_checked: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    late: list[LateSink] = field(default_factory=list)
    staging: list[Staging] = field(default_factory=list)
    new_stage: NewStage | None = None
    tables: EmissionTables | None = None
    thread: int = field(default_factory=threading.get_ident, init=False)
    _checks: list[Callable[[], object]] = field(default_factory=list)
    _kept: list[DataFrame] = field(default_factory=list)
    _cached: list[DataFrame] = field(default_factory=list)
    _sources: ReplacedSources = field(default_factory=ReplacedSources)

    @property
    def waits(self) -> bool:
        """True if sinks keep their rows first, and write them later or not at all."""
        return self.only_checked or self.output != "by_message"

    def allowed_writes(self, sink: str, *, may_overwrite: bool = False, any_mode: bool = False) -> AllowedWrites:
        """Return the writes that a sink may do."""
        return AllowedWrites(sink, self.output, may_overwrite, any_mode, tables=self.tables)

    def call_dry(
        self, write: Callable[[Any], object], make_writer: Callable[[AllowedWrites], object], writes: AllowedWrites
    ) -> list[Call]:
        """Call a function with a writer that writes nothing, and return its calls.

        Args:
            write: the function.
            make_writer: function that makes the writer for the writes that it may do.
            writes: the writes that the sink may do.

        Raises:
            PipelineError: a mode is not allowed, or a sink reads what the function replaces.
            InexactPipelineError: the function called no method that writes.
        """
        dry = replace(writes, dry=True, calls=[], targets=[])
        write(make_writer(dry))
        dry.check_any_writes()
        self._sources.add_replaced(writes.sink, dry.targets)
        writes.folder = dry.folder
        return dry.calls

    def add_sink(self, sink: str, rows: DataFrame) -> None:
        """Compare what a sink reads with where others of the run write.

        Raises:
            PipelineError: another sink writes there.
        """
        if self.tables is not None:
            self.tables.add_read(sink, rows)

    def check_read(self, reader: str, rows: DataFrame) -> None:
        """Check that a whole output doesn't read what it replaces, before the rows are computed.

        Args:
            reader: name of the sink or operator that computes the rows.
            rows: the rows.

        Raises:
            PipelineError: it does.
        """
        if self.output == "whole":
            self._sources.add_read(reader, rows)

    def keep_checkpoint(self, rows: DataFrame) -> DataFrame:
        """Register the rows of a local checkpoint, which `release` drops."""
        self._kept.append(rows)
        return rows

    def keep_cached(self, rows: DataFrame) -> DataFrame:
        """Register cached rows, which `release` drops."""
        self._cached.append(rows)
        return rows

    def write_later(self, sink: str, write: Callable[[], object], targets: Sequence[str] = ()) -> None:
        """Register a sink that has kept its rows, with the function that writes them."""
        self.late.append(LateSink(sink, write, f"{sink!r} ({', '.join(targets)})" if targets else repr(sink)))

    def check_before_writing(self, check: Callable[[], object]) -> None:
        """Register a function for `check` to call."""
        self._checks.append(check)

    def check(self) -> None:
        """Run the checks that come before anything is written."""
        for check in self._checks:
            check()

    def release(self) -> None:
        """Drop the kept rows."""
        for rows in self._kept:
            if is_connect(rows.sparkSession):
                continue  # the server drops them with the last frame over them
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except java_errors():
                log.debug("kept rows not released, Spark will drop them", exc_info=True)
        for rows in self._cached:
            try:
                rows.unpersist()
            except java_errors():
                log.debug("cached rows not released", exc_info=True)
        self._kept.clear()
        self._cached.clear()
        self.late.clear()
        self.staging.clear()
        self._checks.clear()
        self._sources.clear()

    def refuse_on_error(self, on_error: str, sink: str) -> None:
        """Reject `on_error="fail"` for rows that are written after the emission is proven.

        Raises:
            PipelineError: `on_error` is `fail`, and the sink doesn't write at once.
        """
        if self.output == "whole" and on_error == "fail":
            raise PipelineError(
                f'{sink}: output="whole" does not support on_error="fail". The output is made from all messages, so none of '
                "them can fail for it. Omit on_error. An output that can't be written is retried."
            )
        if self.output == "once" and on_error == "fail":
            raise PipelineError(
                f'{sink}: once= does not support on_error="fail". Rows are staged once all sinks are proven, so a write that '
                "fails breaks the emission. Omit on_error. The emission is retried."
            )
