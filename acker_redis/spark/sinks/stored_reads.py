"""What stored rows a frame reads, and which a writer replaces.

Classic sessions have the plan, with tables and files. The client of Spark Connect has its own request, and asks the server for
what only that knows.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from acker_redis.spark.proof import requests
from acker_redis.spark.proof.plans import analyzed_part, each
from acker_redis.spark.runtime.jvm import java_errors, java_static
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.database_tables import DatabaseTable, is_jdbc, table_of
from acker_redis.spark.sinks.folders import is_in, plain, qualified
from acker_redis.spark.sinks.source_checks import has_versions, names_tables
from acker_redis.spark.sinks.stored import Stored
from acker_redis.spark.sources.files import files_of
from acker_redis.spark.sql import quoted

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

_GLOB = re.compile(r"[*?\[{]")
_LOCATION = re.compile(r"^\s*Location: (.+)$", re.MULTILINE)
"""Folder in the text of a table's partition."""


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
            found += stored_reads(session.table(table if whole is None or "." in table else whole))
        elif path is not None and names_tables(session, source, path):
            reader = session.read if source is None else session.read.format(source)
            return list(stored_reads(reader.options(**options).load(path)))
    if may_be_view and table is not None:
        with suppress(AnalysisException):
            found += stored_reads(session.table(table))
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


def stored_reads(frame: DataFrame) -> Iterator[Stored]:
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
            is_listed_once = name is None and not _is_versioned(location)  # Delta lists its newest files for each job
            is_deep = str(relation.options().toString()).lower().find("recursivefilelookup -> true") >= 0
            return Stored(
                name, folders, has_versions=_is_versioned(location), is_deep=is_deep, is_listed_once=is_listed_once
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
