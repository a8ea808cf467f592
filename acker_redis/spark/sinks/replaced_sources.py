"""Find out whether a whole output reads what it replaces.

Such an output is right only if nothing breaks. Once a sink has written, the next attempt reads the rows of this run in place
of those before it, and counts them again. So the plans of the sinks are compared with the targets of the writers, before rows
are kept.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import requests
from acker_redis.spark.proof.plans import analyzed_part, each
from acker_redis.spark.runtime.jvm import java_errors, java_static
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.database_tables import DatabaseTable, is_jdbc, table_of
from acker_redis.spark.sinks.folders import UNREADABLE, folders_above, is_in, plain, qualified, resolved
from acker_redis.spark.sinks.source_checks import has_versions, names_tables
from acker_redis.spark.sources.files import files_of
from acker_redis.spark.sql import quoted

log = logging.getLogger("acker_redis.spark")

_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_DATABASE = "org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation"
"""Classes of relations."""

_OF_PROGRAM = ("LocalRelation", "LogicalRDD", "Scan ExistingRDD")
"""Leaves with rows that the program has made, such as the names of files that `read_files` reads."""

_VERSIONED = ("org.apache.spark.sql.delta.", "io.delta.", "org.apache.iceberg.")
"""Packages of tables that know the options below. Others ignore them."""

_PINS = ("versionasof", "timestampasof", "snapshot-id", "as-of-timestamp")
"""Options that read a fixed version of a table, unless their value names a branch."""

_PINNED_NAME = re.compile(r"@(?:v\d+|\d{17})`?$|\.(?:snapshot_id|at_timestamp)_\d+$")
_BRANCH = re.compile(r"VERSION AS OF (?!'?\d+'?$)")
_PINNED_QUERY = re.compile(r"\b(?:VERSION|TIMESTAMP)\s+AS\s+OF\b", re.IGNORECASE)
"""Names and texts of SQL that read a fixed version of a table."""

_FILES_BY_PATH = re.compile(r"\s*`?(?:parquet|orc|json|csv|text|xml|avro|binaryfile)`?\s*\.", re.IGNORECASE)
"""Names in SQL that are paths of files, which have no versions."""

_RELATION = re.compile(r"\bRelation ([^\s\[]+)\[|\bRelationV2\[[^\]]*\] ([^\s,]+)")
_JDBC_RELATION = re.compile(r"\bJDBCRelation\((.*)\) \[numPartitions=\d+\]")
"""Names of tables in the text of a plan."""

_PARTS_OF_NAME = re.compile(r"`([^`]+)`|([^.`]+)")

_MOST_SINKS = 1_000
"""Sinks of a run that are compared. A stream might give those of each batch other names."""

_OF_FILE = re.compile(r"\.[A-Za-z]\w*$")
"""End of a file's name."""

_GLOB = re.compile(r"[*?\[{]")
_LOCATION = re.compile(r"^\s*Location: (.+)$", re.MULTILINE)
"""Folder in the text of a table's partition."""


@dataclass(frozen=True)
class Stored:
    """Stored rows that a plan reads, or a writer replaces.

    Attributes:
        table: name of the table; None: it is only a folder, or a table of another database.
        folders: folders and files of the rows.
        database_table: what JDBC reads or writes; None: it is something else.
        has_versions: whether a read can name a version of it.
        in_parts: whether a writer replaces only the partitions that it has rows for.
        is_deep: whether files in all folders below are read.
        is_listed_once: whether the files were listed when the frame was made, and not for each job.
    """

    table: str | None = None
    folders: frozenset[str] = frozenset()
    database_table: DatabaseTable | None = None
    has_versions: bool = False
    in_parts: bool = field(default=False, compare=False)
    is_deep: bool = field(default=False, compare=False)
    is_listed_once: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return repr(self.table or str(self.database_table or min(self.folders)))

    def named(self, other: "Stored") -> str:
        """Return a name that shows what it has in common with the other."""
        if self.table is not None:
            return str(self)
        common = [mine for mine in sorted(self.folders) if Stored(folders=frozenset([mine])).overlaps(other)]
        return repr(common[0]) if common else str(self)

    @property
    def is_query(self) -> bool:
        """True if it is a query that only a database understands."""
        return self.database_table is not None and self.database_table.is_query

    @cached_property
    def places(self) -> frozenset[str]:
        """Folders by the names that they were given, and by those without links."""
        return self.folders | frozenset(map(resolved, self.folders))

    def overlaps(self, other: "Stored") -> bool:
        """Return True if both may be the same table, or one has a folder of the other, in it, or above it."""
        if self.table is not None and self.table == other.table:
            return True
        ours, theirs = self.database_table, other.database_table
        if ours is not None and theirs is not None and ours.may_be(theirs):
            return True
        is_below = not self.places_and_above.isdisjoint(other.places)
        return is_below or not other.places_and_above.isdisjoint(self.places)

    @cached_property
    def places_and_above(self) -> frozenset[str]:
        """The places, and all folders that they are in."""
        return frozenset(above for place in self.places for above in (place, *folders_above(place)))

    def is_replaced_with(self, other: "Stored") -> bool:
        """Return True if a writer that replaces one surely replaces the other, or a part of it."""
        ours, theirs = self.database_table, other.database_table
        return self.overlaps(other) and (ours is None or theirs is None or ours.is_surely(theirs))

    def is_changed_by(self, target: "Stored", *, overwrites: bool) -> bool:
        """Return True if a write may change what is read here. Of folders in a folder, Spark reads only partitions."""
        if not self.overlaps(target):
            return False
        if self.is_deep or (self.table is not None and self.table == target.table):
            return True
        ours, theirs = self.database_table, target.database_table
        if ours is not None and theirs is not None:
            return ours.is_surely(theirs)
        pairs = [(mine, theirs) for mine in self.places for theirs in target.places]
        return any(
            _is_partition_of(theirs, mine) or _is_partition_of(mine, theirs) or (overwrites and is_in(mine, theirs))
            for mine, theirs in pairs
        )


def _is_partition_of(place: str, folder: str) -> bool:
    """Return True if a place is a folder, or has rows of a partition in it."""
    if place == folder:
        return True
    below = place[len(folder) :].lstrip("/").partition("/")[0] if is_in(place, folder) else ""
    return "=" in below and _OF_FILE.search(below) is None


@dataclass
class ReplacedSources:
    """What the sinks of a whole output read, and what their writers replace."""

    _read: list[tuple[str, Stored]] = field(default_factory=list)
    _replaced: list[tuple[str, Stored]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # sinks may run in several threads

    def add_read(self, reader: str, rows: DataFrame) -> None:
        """Add the rows that a sink or an operator computes.

        Raises:
            PipelineError: they are read from a target.
        """
        found = [(reader, read) for read in _reads(rows)]
        with self._lock:
            self._check(found, self._replaced)
            self._read += found

    def add_replaced(self, sink: str, targets: Iterable[Stored]) -> None:
        """Add the targets of a writer.

        Raises:
            PipelineError: a sink reads one of them, or another sink replaces it.
        """
        replaced = [(sink, target) for target in targets]
        with self._lock:
            self._check(self._read, replaced)
            for _, target in replaced:
                for other, theirs in self._replaced:
                    if other != sink and not (target.in_parts and theirs.in_parts) and target.is_replaced_with(theirs):
                        raise PipelineError(
                            f"{sink!r}: the output replaces {target.named(theirs)}, and so does that of {other!r}: "
                            f"{theirs.named(target)}. Only the rows of one would stay. Use separate folders or tables, unite "
                            "the rows before one sink, or replace partitions of their own: partitionBy with "
                            'option("partitionOverwriteMode", "dynamic").'
                        )
            self._replaced += replaced

    def clear(self) -> None:
        """Forget everything."""
        self._read.clear()
        self._replaced.clear()

    def _check(self, reads: list[tuple[str, Stored]], replaced: list[tuple[str, Stored]]) -> None:
        for reader, read in reads:
            for sink, target in replaced:
                if read.overlaps(target):
                    raise _error(reader, read, sink, target)


class WrittenTables:
    """What the sinks of a run read, and where they write, if they write by message or once.

    Each emission reads everything again. So a sink must not change what the messages or other sinks are read from. Sinks are
    compared within an emission, and those that an earlier one has compared aren't again: it costs dozens of calls of Java.
    """

    def __init__(self, messages: DataFrame | None = None) -> None:
        """Set the messages, if the run reads them again for each emission."""
        self._messages = messages
        self._compared: set[str] = set()
        self._lock = threading.Lock()

    def of_emission(self) -> "EmissionTables":
        """Return the tables of another emission."""
        return EmissionTables(self._compared, self._of_messages)

    def add_compared(self, tables: "EmissionTables") -> None:
        """Note that the sinks of an emission were compared."""
        if len(self._compared) < _MOST_SINKS:
            self._compared |= tables.sinks

    @cached_property
    def _reads_of_messages(self) -> list[Stored]:
        return [] if self._messages is None else _known_reads(self._messages)

    def _of_messages(self) -> list[Stored]:
        with self._lock:
            return self._reads_of_messages


class EmissionTables:
    """What the sinks of one emission read, and where they write.

    Attributes:
        sinks: names of the sinks.
    """

    def __init__(self, compared: Set[str], of_messages: Callable[[], list[Stored]]) -> None:
        """Set the names of sinks that were compared before, and a function that returns what the messages are read from."""
        self.sinks: set[str] = set()
        self._compared, self._of_messages = frozenset(compared), of_messages
        self._read: dict[str, list[Stored]] = {}
        self._written: dict[str, tuple[list[Stored], bool]] = {}
        self._lock = threading.Lock()  # sinks may run in several threads

    def add_read(self, reader: str, rows: DataFrame) -> None:
        """Add the rows of a sink.

        Raises:
            PipelineError: another sink writes to what they are read from.
        """
        self.sinks.add(reader)
        if reader in self._compared:
            return
        found = _known_reads(rows)
        with self._lock:
            self._read[reader] = found
            for sink, (targets, overwrites) in self._written.items():
                _check_apart(reader, found, sink, targets, overwrites=overwrites)

    def add_written(self, sink: str, targets: Callable[[], list[Stored]], *, overwrites: bool, is_once: bool) -> None:
        """Add where a sink writes, before it does.

        Args:
            sink: name of the sink.
            targets: function that returns its targets.
            overwrites: whether it replaces partitions.
            is_once: whether nothing is written before all sinks have their rows.

        Raises:
            PipelineError: messages or other sinks are read from there, or the sink overwrites what it reads.
        """
        if sink in self._compared:
            return
        found = _known_targets(targets)
        for read, target in _changed(self._of_messages(), found, overwrites=overwrites):
            if read.is_listed_once and not overwrites:
                continue
            raise PipelineError(
                f"{sink!r}: the messages are read from {read.named(target)}, to which this sink writes. Each emission reads "
                "them again, so later ones would lack messages, or find other rows under their ids. Call localCheckpoint() or "
                "checkpoint() on the messages before the run, or write to another target."
            )
        with self._lock:
            own = self._read.get(sink, []) if overwrites else []
            for read, target in _changed(own, found, overwrites=True):
                raise PipelineError(
                    f"{sink!r}: its rows are read from {read.named(target)}, which it overwrites. An emission that is "
                    "repeated would read what it wrote, and count it twice. Append the rows, or read a copy that was made "
                    "before the run."
                )
            if is_once:
                return
            self._written[sink] = found, overwrites
            for reader, reads in self._read.items():
                _check_apart(reader, reads, sink, found, overwrites=overwrites)


def _known_reads(rows: DataFrame) -> list[Stored]:
    """Return what a frame reads, as far as Spark tells it."""
    try:
        return list(_reads(rows))
    except UNREADABLE:
        log.debug("sources of rows not compared with the targets of sinks", exc_info=True)
        return []


def _known_targets(targets: Callable[[], list[Stored]]) -> list[Stored]:
    """Return where a writer writes. If that isn't known, the writer tells what is wrong."""
    try:
        return targets()
    except UNREADABLE:
        log.debug("targets of a sink not compared with what is read", exc_info=True)
        return []


def _changed(
    reads: Iterable[Stored], targets: Iterable[Stored], *, overwrites: bool
) -> Iterator[tuple[Stored, Stored]]:
    """Yield what is read and changed for sure. Databases know more names of a table, and queries of several."""
    for read in reads:
        for target in targets:
            if read.is_changed_by(target, overwrites=overwrites):
                yield read, target


def _check_apart(
    reader: str, reads: Iterable[Stored], sink: str, targets: Iterable[Stored], *, overwrites: bool
) -> None:
    if reader == sink:  # it may leave out what it has written before
        return
    for read, target in _changed(reads, targets, overwrites=overwrites):
        raise PipelineError(
            f"{reader!r}: its rows are read from {read.named(target)}, to which {sink!r} writes in the same run. So a message "
            f"may be acked although {reader!r} lacks its row, because {sink!r} has it. Nothing was acked now, but one of them "
            "may have written its rows. Read only what this sink itself writes, or use run_tracked(..., once=...), for which "
            "this is right."
        )


def _error(reader: str, read: Stored, sink: str, target: Stored) -> PipelineError:
    if read.is_query and not target.is_query:
        return PipelineError(
            f"{sink!r}: the output replaces {target}, and the rows of {reader!r} are read from the same database by a query: "
            f"{read}. It can't be told which tables it reads, and if this one is among them, the next attempt counts the rows "
            "of this run again. Read tables by their names, copy the query's rows into another table before the first start, "
            "or write to another database or with tracker.write_dataframe."
        )
    version = (
        ', or read a fixed version of the table with option("versionAsOf", ...), which for Iceberg is the id of a snapshot'
        if read.has_versions
        else ""
    )
    return PipelineError(
        f"{sink!r}: the output replaces {target.named(read)}, and the rows of {reader!r} are read from {read.named(target)}. "
        "If a sink fails or the run ends between two sinks, the next attempt reads the rows that this run wrote, and counts "
        "them again. Write to another "
        f"target{version}."
    )


def targets_of_call(
    session: SparkSession,
    source: str | None,
    table: str | None,
    path: str | None,
    options: Mapping[str, str],
    *,
    may_be_view: bool,
) -> list[Stored]:
    """Return where a writer writes.

    Args:
        session: Spark session.
        source: format of the writer; None: the session's default.
        table: name of the table; None: it writes elsewhere.
        path: path of the writer; None: it has none.
        options: options of the writer, by their names in lower case.
        may_be_view: whether the name may be that of a temporary view, as for `insertInto`.
    """
    found: list[Stored] = []
    if is_jdbc(source):
        return [Stored(database_table=table_of(options))]
    whole = None if table is None else _full_name(session, table)
    if whole is not None:
        found.append(Stored(whole))  # two sinks may make it
    with suppress(AnalysisException):  # no such table, so nobody reads it
        if table is not None:  # a name without dots may be that of a temporary view, which isn't written to
            found += _reads(session.table(table if whole is None or "." in table else whole))
        elif path is not None and names_tables(session, source, path):
            reader = session.read if source is None else session.read.format(source)
            return list(_reads(reader.options(**options).load(path)))
    if may_be_view and table is not None:
        with suppress(AnalysisException):
            found += _reads(session.table(table))
    if path is not None:
        found.append(Stored(folders=frozenset([qualified(session, path)])))
    return found


def _full_name(session: SparkSession, table: str) -> str:
    """Return the name of a table with its catalog and schema, as Spark prints it."""
    parts = [(quoted_part or part).lower() for quoted_part, part in _PARTS_OF_NAME.findall(table)]
    catalog = session.catalog
    if len(parts) == 1:
        parts = [catalog.currentDatabase(), *parts]
    if len(parts) == 2:  # noqa: PLR2004  # a schema, or a catalog of tables without schemas: then Spark finds no such table
        parts = [catalog.currentCatalog(), *parts]
    return ".".join(map(quoted, parts))


def _reads(frame: DataFrame) -> Iterator[Stored]:
    """Yield what a frame reads, without fixed versions of tables."""
    session = frame.sparkSession
    if is_connect(session):
        yield from _requested(session, frame._plan.to_proto(session.client).root)  # type: ignore[operator]  # noqa: SLF001
        return
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    for part in (plan, *each(plan.subqueriesAll())):
        for leaf in each(part.collectLeaves()):
            stored = _stored(session, leaf)
            if stored is not None:
                yield stored


def _stored(session: SparkSession, leaf: Any) -> Stored | None:
    """Return what a leaf of a plan reads, or None: nothing that is stored, or a fixed version."""
    kind = str(leaf.nodeName())
    if kind.startswith("LogicalRelation"):
        relation, catalog = leaf.relation(), leaf.catalogTable()
        name = str(catalog.get().identifier().toString()) if catalog.isDefined() else None
        of_classes = list(_classes_of(relation))
        if _FILES in of_classes:
            location = relation.location()
            if _called(location, "isTimeTravelQuery") is True:
                return None
            folders = frozenset(_followed(session, str(path.toString())) for path in each(location.rootPaths()))
            if catalog.isDefined():
                folders |= _folders_of_partitions(session, catalog.get())
            is_deep = str(relation.options().toString()).lower().find("recursivefilelookup -> true") >= 0
            return Stored(
                name, folders, has_versions=_is_versioned(location), is_deep=is_deep, is_listed_once=name is None
            )
        if _DATABASE in of_classes:
            options = relation.jdbcOptions()
            return Stored(name, database_table=DatabaseTable(str(options.url()), str(options.tableOrQuery())))
        return None if name is None else Stored(name)
    if kind.startswith("DataSourceV2Relation"):
        return _stored_v2(session, leaf)
    if kind == "HiveTableRelation":
        table, location = leaf.tableMeta(), leaf.tableMeta().storage().locationUri()
        folders = frozenset([plain(unquote(str(location.get().toString())))] if location.isDefined() else [])
        return Stored(str(table.identifier().toString()), folders | _folders_of_partitions(session, table))
    columns = leaf.output() if kind in _OF_PROGRAM else None
    path = None if columns is None or columns.isEmpty() else files_of(str(columns.head().name()))
    return None if path is None else Stored(folders=frozenset([qualified(session, path)]), is_listed_once=True)


def _folders_of_partitions(session: SparkSession, table: Any) -> frozenset[str]:
    """Return the folders of a table's partitions, each of which may be elsewhere."""
    if table.partitionColumnNames().isEmpty():
        return frozenset()
    catalog = session._jsparkSession.sessionState().catalog()  # noqa: SLF001
    every = java_static(session.sparkContext, "scala.Option", "empty")()
    try:
        text = str(catalog.listPartitions(table.identifier(), every).mkString("\n"))
    except java_errors():  # the table is gone, or isn't in the catalog of the session
        return frozenset()
    own = frozenset(plain(unquote(str(uri.toString()))) for uri in each(table.storage().locationUri()))
    places = (plain(unquote(found)) for found in _LOCATION.findall(text))
    return frozenset(place for place in places if not any(is_in(place, folder) for folder in own))


def _followed(session: SparkSession, path: str) -> str:
    """Return a plain path. One of ViewFS is that of the file system behind it."""
    return qualified(session, path) if path.startswith("viewfs:") else plain(path)


def _stored_v2(session: SparkSession, leaf: Any) -> Stored | None:
    table, options = leaf.table(), leaf.options()
    catalog, name = leaf.catalog(), leaf.identifier()
    travel, versioned = _called(leaf, "timeTravelSpec"), _is_versioned(table)
    # From Iceberg 1.11 on, each table has the id of its newest snapshot, and a version.
    of_snapshot = _called(table, "snapshotId") is not None and _called(table, "version") is None
    if (
        (versioned and any(options.containsKey(pin) and _is_version(pin, str(options.get(pin))) for pin in _PINS))
        or (travel is not None and travel.isDefined() and _BRANCH.match(str(travel.get().toString())) is None)
        or of_snapshot
        or (versioned and name.isDefined() and _PINNED_NAME.search(name.get().toString()) is not None)
    ):
        return None
    full = (
        f"{catalog.get().name()}.{name.get().toString()}" if catalog.isDefined() and name.isDefined() else table.name()
    )
    location = table.properties().get("location")
    files = _called(table, "fileIndex")  # of files that are read by their source of version 2
    folders = [location] if location else [] if files is None else [path.toString() for path in each(files.rootPaths())]
    if not folders and options.containsKey("path"):  # of a source in Python, for example
        folders = [qualified(session, str(options.get("path")))]
    jdbc = _called(table, "jdbcOptions")
    database_table = None if jdbc is None else DatabaseTable(str(jdbc.url()), str(jdbc.tableOrQuery()))
    return Stored(str(full), frozenset(plain(str(folder)) for folder in folders), database_table, versioned)


def _is_versioned(table: Any) -> bool:
    """Return True if an object of a table or of its files is of a format whose reads can name a version."""
    return any(name.startswith(_VERSIONED) for name in _classes_of(table))


def _classes_of(one: Any) -> Iterator[str]:
    """Yield the names of an object's class and those above it. On Spark 4.0, Delta's relation of files has its own class."""
    of_class = one.getClass()
    while of_class is not None:
        yield of_class.getName()
        of_class = of_class.getSuperclass()


def _called(of: Any, method: str) -> Any:
    """Return the result of a method that some classes have, or None."""
    try:
        return getattr(of, method)()
    except java_errors():
        return None


def _requested(session: SparkSession, relation: Any) -> Iterator[Stored]:
    """Yield what a relation reads, as Spark Connect sends it."""
    below, some_pinned = [relation], False
    while below:
        part = below.pop()
        below += requests.inputs(part)
        kind = part.WhichOneof("rel_type")
        if kind == "sql":
            pinned, hidden = _PINNED_QUERY.search(part.sql.query) is not None, True
        elif kind == "map_partitions":
            if (path := files_of(part.map_partitions.func.function_name)) is not None:
                yield Stored(folders=frozenset([qualified(session, path)]), is_listed_once=True)
            continue
        elif kind == "read" and not part.read.is_streaming:
            pinned, hidden = _is_pinned(session, part.read), _is_hidden(session, part.read)
        else:
            continue
        some_pinned |= pinned
        if not pinned:
            yield from _looked_up(session, part) if hidden else _read_directly(session, part.read.data_source)
    if not some_pinned and requests.has_subqueries(relation):  # else it is unknown which of them reads a fixed version
        yield from _looked_up(session, relation)


def _is_pinned(session: SparkSession, read: Any) -> bool:
    """Return True if a request reads a fixed version of a table. Spark refuses the options where a named table has none."""
    if read.WhichOneof("read_type") == "named_table":
        if _FILES_BY_PATH.match(read.named_table.unparsed_identifier):
            return False
    elif not has_versions(session, read.data_source.format):
        return False
    options = {name.lower(): value for name, value in _source_of(read).options.items()}
    by_option = any(_is_version(pin, options[pin]) for pin in _PINS if pin in options)
    return by_option or any(map(_PINNED_NAME.search, _names_in(read)))


def _is_version(option: str, value: str) -> bool:
    """Return True if an option of a read names a version that never changes. A name may be that of a branch of Iceberg."""
    return option in ("timestampasof", "as-of-timestamp") or value.isdigit()


def _is_hidden(session: SparkSession, read: Any) -> bool:
    """Return True if only the server knows what a request reads: tables, views, and paths with wildcards."""
    if read.WhichOneof("read_type") == "named_table":
        return True
    names = _names_in(read)
    return any(map(_GLOB.search, names)) or any(names_tables(session, read.data_source.format, name) for name in names)


def _source_of(read: Any) -> Any:
    return getattr(read, read.WhichOneof("read_type"))


def _names_in(read: Any) -> list[str]:
    if read.WhichOneof("read_type") == "named_table":
        return [read.named_table.unparsed_identifier]
    return [
        *read.data_source.paths,
        *(value for name, value in read.data_source.options.items() if name.lower() == "path"),
    ]


def _read_directly(session: SparkSession, source: Any) -> Iterator[Stored]:
    options = {name.lower(): value for name, value in source.options.items()}
    if is_jdbc(source.format):
        yield Stored(database_table=table_of(options))
        return
    versioned = has_versions(session, source.format)
    for path in (*source.paths, *filter(None, [options.get("path")])):
        yield Stored(folders=frozenset([qualified(session, path)]), has_versions=versioned)


def _looked_up(session: SparkSession, relation: Any) -> Iterator[Stored]:
    """Ask the server what a relation reads: names of tables from the text of its plan, and files."""
    from pyspark.sql.connect.proto import Plan  # noqa: PLC0415 only a session of Spark Connect has its packages

    client: Any = session.client
    plan = Plan()
    plan.root.CopyFrom(relation)
    with suppress(PySparkException):  # a query of other frames, which the request has beside it
        text = client.explain_string(plan, "extended")
        for found in _RELATION.finditer(analyzed_part(text)):
            yield _described(session, found[1] or found[2])
        for found in _JDBC_RELATION.finditer(analyzed_part(text)):  # which has no URL
            yield Stored(database_table=DatabaseTable(None, found[1]))
        files = client._analyze(method="input_files", plan=plan).input_files  # noqa: SLF001
        if files:
            yield Stored(folders=frozenset(plain(unquote(file)) for file in files))


def _described(session: SparkSession, table: str) -> Stored:
    with suppress(AnalysisException):
        rows = {row[0]: row[1] for row in session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}
        folders = frozenset([plain(rows["Location"])] if "Location" in rows else [])
        return Stored(table, folders, has_versions=has_versions(session, rows.get("Provider", "")))
    return Stored(table)
