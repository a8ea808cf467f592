"""Spark's writers, which record their calls, and check them before they write."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, wraps
from inspect import BoundArguments, signature
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2

from acker_redis.errors import PipelineError
from acker_redis.spark.sinks.delta_tables import DELTA
from acker_redis.spark.sinks.output_modes import TABLE_WRITES, WRITES, AllowedWrites
from acker_redis.spark.sinks.overwrites import Overwrite
from acker_redis.spark.sinks.source_checks import check_connections, check_creation, check_distribution, check_source
from acker_redis.spark.sinks.staged_writes import check_staged, check_staged_table
from acker_redis.spark.sinks.stored import Stored
from acker_redis.spark.sinks.stored_reads import targets_of_call
from acker_redis.spark.sinks.trial_writes import check_by_trial

_CREATING = ("create", "createOrReplace", "replace")


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
            if self._writes.output == "once":
                writes = self._writes
                writes.staged = check_staged_table(
                    session, sink, table, self._options, is_second=writes.dry and writes.staged is not None
                )
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
        is_second = writes.dry and writes.staged is not None
        path, session = arguments.get("path"), self._rows.sparkSession
        options = self._options_of(arguments)
        writes.staged = check_staged(session, writes.sink, method, source, path, options, is_second=is_second)
        if writes.staged.kind == DELTA and any(name == "clusterBy" for name, _ in self._settings):
            raise PipelineError(
                f"{writes.sink!r}: clusterBy can't be staged, because a table is made when its rows are published. So it "
                "would lack the clusters. Create the table before the run, and omit clusterBy."
            )

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
            if self._writes.stage is not None and self._table is None:
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
    writer = rows.writeTo(writes.stage or table)
    kind: Any = type(writer)
    guarded: DataFrameWriterV2 = _guarded(kind)(writer, writes, rows, table)
    return guarded
