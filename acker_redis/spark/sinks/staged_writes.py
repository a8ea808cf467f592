"""Which writes can wait in a stage until their messages are accepted, and which are refused."""

import threading
from collections.abc import Mapping

from pyspark.sql import SparkSession

from acker_redis.errors import PipelineError
from acker_redis.publishing.records import FILES
from acker_redis.spark.sinks.delta_tables import DELTA, check_delta_options, options_of
from acker_redis.spark.sinks.iceberg_tables import ICEBERG
from acker_redis.spark.sinks.staged_tables import StagedTarget

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
"""Formats whose files are moved from a stage into a folder."""

_WRITES = ("save", *FILE_FORMATS)
_OF_SNAPSHOTS = {
    "mergeschema": "changes the table when rows are staged, before their messages are accepted",
    "merge-schema": "changes the table when rows are staged, before their messages are accepted",
    "snapshot-property.": "describes a snapshot, and the table gets another one",
    "branch": "names another branch than the one in which they wait",
}
"""How options of Iceberg's writers begin that can't be staged, and why."""

_OF_SESSION = {
    "spark.wap.": "sends rows to another place than the branch in which they wait",
    "spark.sql.iceberg.merge-schema": _OF_SNAPSHOTS["merge-schema"],
    "spark.sql.iceberg.snapshot-property.": _OF_SNAPSHOTS["snapshot-property."],
}
"""How settings of a session begin with which rows can't be staged, and why."""

_COMMITTER = "mapreduce.fileoutputcommitter.algorithm.version"
_PROTOCOL = "spark.sql.sources.commitProtocolClass"
_PROTOCOLS = ("org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",)
"""Commit protocols that leave a task's files where the listing of the stage finds them."""


def check_staged(
    session: SparkSession,
    sink: str,
    method: str,
    source: str | None,
    path: object,
    options: Mapping[str, str],
    *,
    is_second: bool,
) -> StagedTarget:
    """Check that the rows of a call that writes can wait in a stage.

    Args:
        session: Spark session.
        sink: name of the sink.
        method: method of the writer.
        source: format that was set; None: none was.
        path: path among the arguments; None: there is none.
        options: options of the writer.
        is_second: whether the sink has written before.

    Returns:
        Where they belong.

    Raises:
        PipelineError: they can't.
    """
    _refuse_second(sink, is_second=is_second)
    source = source or session.conf.get("spark.sql.sources.default", "parquet")
    name = str(source if method == "save" else method).lower()
    if method not in _WRITES or name not in (*FILE_FORMATS, DELTA):
        called = f"{method}() with the format {name!r}" if method == "save" else f"{method}()"
        raise PipelineError(
            f"{sink!r}: {called} can't be staged. With once=, rows wait in a stage until their "
            f"messages are accepted. Write {', '.join(FILE_FORMATS)} or {DELTA} into a folder, append to an Iceberg table by "
            "tracker.write_table, or run without once=."
        )
    small = {option.lower(): value for option, value in options.items()}
    if not path or "path" in small:
        raise PipelineError(
            f"{sink!r}: {method}() has no path among its arguments. With once=, the path is replaced by that of a stage. "
            'Pass it as an argument, such as writer.mode("append").parquet(path).'
        )
    if name == DELTA:
        check_delta_options(sink, options)
        return StagedTarget(str(path), DELTA, name, options_of(session, options))
    hadoop = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 as the writer's, without its options
    version = small.get(_COMMITTER) or str(hadoop.get(_COMMITTER, "1"))
    protocol = session.conf.get(_PROTOCOL, _PROTOCOLS[0])
    if version != "1" or protocol not in _PROTOCOLS:
        raise PipelineError(
            f"{sink!r}: files are committed by version {version} of Hadoop's algorithm and {protocol}. With once=, a task "
            f"that runs twice must leave its rows once. Unset {_COMMITTER} and {_PROTOCOL}."
        )
    return StagedTarget(str(path), FILES, name, {})


def check_staged_table(
    session: SparkSession, sink: str, table: str, options: Mapping[str, str], *, is_second: bool
) -> StagedTarget:
    """Check that the rows of a call that appends to a table by its name can wait in a branch of it.

    Args:
        session: Spark session.
        sink: name of the sink.
        table: name of the table.
        options: options of the writer.
        is_second: whether the sink has written before.

    Returns:
        Where they belong.

    Raises:
        PipelineError: they can't.
    """
    _refuse_second(sink, is_second=is_second)
    for name in options:
        why = next((why for start, why in _OF_SNAPSHOTS.items() if name.lower().startswith(start)), None)
        if why is not None:
            raise PipelineError(f"{sink!r}: the option {name!r} {why}. So its rows can't be staged. Remove it.")
    for setting, text in session.conf.getAll.items():
        why = next((why for start, why in _OF_SESSION.items() if setting.startswith(start)), None)
        if why is not None and text.lower() != "false":
            raise PipelineError(
                f"{sink!r}: the session's setting {setting} {why}. So its rows can't be staged. Unset it for the run."
            )
    return StagedTarget(table, ICEBERG, ICEBERG, {})


def _refuse_second(sink: str, *, is_second: bool) -> None:
    """Reject a second write of a sink.

    Raises:
        PipelineError: it is one.
    """
    if is_second:
        raise PipelineError(
            f"{sink!r}: the function writes twice. With once=, each sink has a stage of its own, for one write. Call "
            "tracker.write or write_table once for each."
        )


def refuse_unnamed(output: str, thread: int, name: str | None, sink: str) -> None:
    """Reject a sink in a thread of the program that has no name, if sinks are compared with those of other emissions.

    Raises:
        PipelineError: they are compared.
    """
    if output == "once" and name is None and threading.get_ident() != thread:
        raise PipelineError(
            f"{sink} is called in another thread than the pipeline, and without a name. Sinks without one are numbered in "
            "the order of their calls, and with once= a sink needs the same name in each emission. Pass name=."
        )


def refuse_unstaged(output: str, sink: str) -> None:
    """Reject a sink whose rows can't wait in a stage, if the output needs that.

    Raises:
        PipelineError: it needs that.
    """
    if output == "once":
        raise PipelineError(
            f"{sink} writes at once, so its rows can't wait in a stage until their messages are accepted. With once=, use "
            'tracker.write with files or Delta, such as lambda writer: writer.mode("append").parquet(path), write_table with '
            "Iceberg, or write_staged."
        )
