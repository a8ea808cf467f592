"""Checks of a sink's target before anything is written: will Spark report which rows were written?

Without them, the proof would fail after the rows are in the target.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import PipelineError
from acker_redis.spark.proof.plans import each
from acker_redis.spark.proof.range_partitioning import counts_twice
from acker_redis.spark.runtime.jvm import java_class
from acker_redis.spark.runtime.sessions import is_connect, version_of

_DEFAULT = "spark.sql.sources.default"
_OWN_WRITES = "org.apache.spark.sql.sources.CreatableRelationProvider"
"""Sources that get a DataFrame and write it in a way of their own."""

_REPORTED = ("org.apache.spark.sql.delta.", "org.apache.spark.sql.execution.datasources.jdbc.")
"""Packages of such sources whose executions `proof/listener.py` knows."""

_DELTA, _ICEBERG, _KAFKA = "delta", "iceberg", "kafka"
_UNREPORTED = (_KAFKA, "console")
"""Names of such sources that every server may have."""

_OF_KAFKA = "org.apache.spark.sql.kafka010."
"""Package of Spark's Kafka source, which writes by Spark's newer interface where `_V1_LIST` doesn't name it."""

_V1_LIST = "spark.sql.sources.useV1SourceList"

_FILES_BY_NAME = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
_KNOWN = (*_FILES_BY_NAME, "noop", "jdbc", _DELTA, _ICEBERG)
"""Names of sources that report their rows. A client of Spark Connect can't look into others, so it tries them."""

_V2 = "org.apache.spark.sql.connector"

_FILES = (
    "org.apache.spark.sql.execution.datasources.FileFormat",
    "org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2",
)
"""Sources of files, whose partitions are folders."""

_NAMES_TABLES = f"{_V2}.catalog.SupportsCatalogOptions"
"""Sources whose path names a table of a catalog, such as Iceberg's."""

_MODE = "distribution-mode"
"""Iceberg's name for how rows are distributed, as an option, a setting, and a property of a table."""


def check_source(session: SparkSession, sink: str, source: str | None) -> None:
    """Check that Spark reports the rows that a source writes. Over Spark Connect, `must_try` names those it doesn't know.

    Args:
        session: Spark session.
        sink: name of the sink.
        source: format of the writer; None: the session's default.

    Raises:
        PipelineError: it does not.
    """
    source = _named(session, source)
    reports = _reports_over_connect if is_connect(session) else _reports
    if not reports(session, source):
        raise unreported(session, sink, source)


def is_delta(session: SparkSession, source: str | None) -> bool:
    """Return True if a source is Delta, by its name; None: the session's default."""
    return _named(session, source).lower() == _DELTA


def has_versions(session: SparkSession, source: str | None) -> bool:
    """Return True if reads of a source can name a version of the table: Delta, and Iceberg.

    Args:
        session: Spark session.
        source: format of the reader; None or empty: the session's default.
    """
    return _named(session, source).lower() in (_DELTA, _ICEBERG)


def replaces_partitions(session: SparkSession, source: str | None) -> bool:
    """Return True if a source can replace single partitions of its target: Delta, and files.

    Args:
        session: Spark session.
        source: format of the writer; None: the session's default.
    """
    name = _named(session, source)
    if is_delta(session, name) or is_connect(session):
        return name.lower() in (*_FILES_BY_NAME, _DELTA)
    found = _class_of(session, name)
    return any(_is_a(session, found, files) for files in _FILES)


def names_tables(session: SparkSession, source: str | None, path: str) -> bool:
    """Return True if a source reads a path as the name of a table, as Iceberg does.

    Args:
        session: Spark session.
        source: format of the writer or reader; None: the session's default.
        path: path that it gets. Over Spark Connect, one with a slash is taken for a folder.
    """
    name = _named(session, source)
    if is_connect(session):
        return name.lower() == _ICEBERG and "/" not in path
    return _is_a(session, _class_of(session, name), _NAMES_TABLES)


def unreported(session: SparkSession, sink: str, source: str | None) -> PipelineError:
    """Return the error of a source that doesn't report each row once."""
    source = _named(session, source)
    if source.lower() == _ICEBERG:
        write = 'rows.write.format("iceberg").mode("append").save(path)'
        return _counted_twice(f"{sink!r}: the table", write)
    way = "tracker.write_kafka, whose records the broker acknowledges, or " if source.lower() == _KAFKA else ""
    return PipelineError(
        f"{sink!r}: Spark doesn't report which rows the source {source!r} writes, so nothing could be proven. Use "
        f"{way}tracker.write_dataframe, which proves the rows before your function writes them, or "
        "tracker.write_partitions."
    )


def must_try(session: SparkSession, source: str | None, path: str | None) -> bool:
    """Return True if only a trial shows whether a source reports each row once.

    Args:
        session: Spark session.
        source: format of the writer; None: the session's default.
        path: path that it writes to; None: it writes elsewhere.
    """
    if not is_connect(session):
        return False
    source = _named(session, source).lower()
    return source not in _KNOWN or (source == _ICEBERG and "/" in (path or "") and counts_twice(session))


def _counted_twice(subject: str, write: str) -> PipelineError:
    return PipelineError(
        f"{subject} has a sort order, and Spark before 4.3 counts its rows twice. Use "
        f"tracker.write_dataframe(rows, lambda rows: {write}). An Iceberg table can also "
        'be written with writer.option("distribution-mode", "none").'
    )


def _named(session: SparkSession, source: str | None) -> str:
    return source or str(session.conf.get(_DEFAULT))


def check_connections(session: SparkSession, sink: str, options: Mapping[str, str]) -> None:
    """Check that JDBC doesn't count partitions before it writes them. Over Spark Connect only the first execution is heard.

    Raises:
        PipelineError: it does.
    """
    if is_connect(session) and any(name.lower() == "numpartitions" for name in options):
        raise PipelineError(
            f"{sink!r}: with the option numPartitions, Spark Connect doesn't report which rows JDBC writes. So nothing could "
            "be proven. Omit the option, and coalesce the rows before the sink: rows.coalesce(8)."
        )


def check_creation(session: SparkSession, sink: str, source: str | None, table: str, *, replaces: bool) -> None:
    """Check that Spark reports the rows of a table that the write may create.

    Args:
        session: Spark session.
        sink: name of the sink.
        source: format of the writer; None: the session's default.
        table: name of the table.
        replaces: whether the write replaces a table that exists.

    Raises:
        PipelineError: it doesn't report them, as Spark 4.1 over Spark Connect for Delta.
    """
    if not is_connect(session) or not version_of(session).startswith("4.1."):
        return
    if _named(session, source).lower() == _DELTA and (replaces or not session.catalog.tableExists(table)):
        raise PipelineError(
            f"{sink!r}: Spark 4.1 over Spark Connect doesn't report the rows of a Delta table that the write creates or "
            f"replaces ({table!r}), so nothing could be proven. Create the table before the run and append to it, or use "
            "tracker.write_dataframe."
        )


def _reports(session: SparkSession, source: str) -> bool:
    found = _class_of(session, source)
    if found.getName().startswith(_OF_KAFKA):
        return not {_KAFKA, found.getName().lower()} & _v1_list(session)
    return not _is_a(session, found, _OWN_WRITES) or found.getName().startswith(_REPORTED)


def _reports_over_connect(session: SparkSession, source: str) -> bool:
    """Return False if a source is known not to report. `must_try` names those that aren't known."""
    name = source.lower()
    return name not in _UNREPORTED or (name == _KAFKA and name not in _v1_list(session))


def _v1_list(session: SparkSession) -> set[str]:
    """Return the sources that write by Spark's older interface although they have the newer one."""
    return {name.strip().lower() for name in str(session.conf.get(_V1_LIST)).split(",")}


def check_distribution(
    session: SparkSession, sink: str, rows: DataFrame, table: str, options: Mapping[str, str], source: str | None = None
) -> None:
    """Check that Spark counts each row once that a table gets.

    Args:
        session: Spark session.
        sink: name of the sink.
        rows: rows to write.
        table: name of the table. If there is none yet, it has no order.
        options: options of the writer.
        source: source that `table` is a path of; None: it is a name.

    Raises:
        PipelineError: rows are distributed by range, which counts them twice before Spark 4.3.
    """
    if not counts_twice(session):
        return
    by_range = _iceberg_distributes_by_range if is_connect(session) else _distributes_by_range
    with suppress(AnalysisException):  # no such table, or the writer raises it, too
        if by_range(session, rows, table, options, source):
            raise _counted_twice(f"{sink!r}: the table {table!r}", f"rows.writeTo({table!r}).append()")


def _distributes_by_range(
    session: SparkSession, rows: DataFrame, table: str, options: Mapping[str, str], source: str | None
) -> bool:
    if source is None:
        frame = session.table(table)
    elif names_tables(session, source, table):
        frame = session.read.format(source).options(**options).load(table)
    else:
        return False
    relations: list[Any] = [frame._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while relations[-1].nodeName() == "SubqueryAlias":
        relations += each(relations[-1].children())
    relation, context = relations[-1], session.sparkContext
    if not relation.nodeName().startswith("DataSourceV2Relation"):
        return False
    empty = java_class(context, "java.util.Optional").empty()
    of_writer = java_class(context, "org.apache.spark.sql.util.CaseInsensitiveStringMap")(dict(options))
    schema = rows._jdf.schema()  # noqa: SLF001
    info = java_class(context, f"{_V2}.write.LogicalWriteInfoImpl")(uuid.uuid4().hex, schema, of_writer, empty, empty)
    write = relation.table().newWriteBuilder(info).build()
    class_of = java_class(context, "java.lang.Class").forName
    distributes = class_of(f"{_V2}.write.RequiresDistributionAndOrdering")
    by_range = class_of(f"{_V2}.distributions.OrderedDistribution")
    return bool(distributes.isInstance(write) and by_range.isInstance(write.requiredDistribution()))


def _iceberg_distributes_by_range(
    session: SparkSession,
    rows: DataFrame,
    table: str,
    options: Mapping[str, str],
    source: str | None,  # noqa: ARG001
) -> bool:
    """Do the same for Iceberg, whose tables show their order. A client of Spark Connect can't ask the table itself."""
    if source is not None and (source.lower() != _ICEBERG or "/" in table):  # see `must_try`
        return False
    properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    if not properties.get("format", "").startswith(f"{_ICEBERG}/"):
        return False
    modes = (
        next((value for name, value in options.items() if name.lower() == _MODE), None),
        session.conf.get(f"spark.sql.{_ICEBERG}.{_MODE}", None),
        properties.get(f"write.{_MODE}"),
        "range" if "sort-order" in properties else "none",
    )
    return next(filter(None, modes), "none").lower() == "range"


def _class_of(session: SparkSession, source: str) -> Any:
    """Return the class of a source, or that of all objects if there is none: the writer raises the error."""
    context = session.sparkContext
    data_sources = java_class(context, "org.apache.spark.sql.execution.datasources.DataSource")
    try:
        return data_sources.lookupDataSource(source, session._jsparkSession.sessionState().conf())  # noqa: SLF001
    except AnalysisException:
        return java_class(context, "java.lang.Class").forName("java.lang.Object")


def _is_a(session: SparkSession, found: Any, name: str) -> bool:
    return bool(java_class(session.sparkContext, "java.lang.Class").forName(name).isAssignableFrom(found))
