"""Sinks that use Spark's own means: writers, functions of a DataFrame, Python data sources."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from acker_redis.errors import InexactPipelineError, PipelineError
from acker_redis.spark import checks
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.blame import cause_of, failed_in_a_job, mark_handled
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.proof.responses import responses_of
from acker_redis.spark.protocol.columns import ROOTS, SHARE, TRACKING
from acker_redis.spark.runtime import frames
from acker_redis.spark.runtime.jobs import jobs_started
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.captured_variables import CapturedVariables
from acker_redis.spark.sinks.guarded_writers import guarded_table_writer, guarded_writer
from acker_redis.spark.sinks.output_modes import AllowedWrites, targets_of
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_tables import Stage
from acker_redis.spark.sinks.staged_writes import refuse_unnamed, refuse_unstaged
from acker_redis.spark.sinks.staging import StagedFrame
from acker_redis.spark.worker.data_source import consuming
from acker_redis.spark.worker.failures import OnError, Reason, failure_of


def write(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    write: Callable[[DataFrameWriter], object],
    on_error: OnError,
    name: str | None,
    *,
    allow_overwrite: bool,
) -> None:
    """Implement `Tracker.write`."""
    checks.check_function(
        write, "write", 'a function of the DataFrameWriter, such as lambda writer: writer.mode("append").parquet(path)'
    )
    _write_guarded(
        proof, outputs, tracked, "write", guarded_writer, write, on_error, name, may_overwrite=allow_overwrite
    )


def write_table(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    table: str,
    write: Callable[[DataFrameWriterV2], object],
    on_error: OnError,
    name: str | None,
    *,
    allow_overwrite: bool,
) -> None:
    """Implement `Tracker.write_table`."""
    checks.check_function(
        write, "write_table", "a function of the DataFrameWriterV2, such as lambda writer: writer.append()"
    )
    if not isinstance(table, str) or not table:
        raise PipelineError(f"write_table: table={table!r} is no name of a table. Pass one, such as 'sales.items'.")

    def make_writer(rows: DataFrame, writes: AllowedWrites) -> DataFrameWriterV2:
        return guarded_table_writer(rows, table, writes)

    _write_guarded(
        proof, outputs, tracked, "write_table", make_writer, write, on_error, name, may_overwrite=allow_overwrite,
        targets=[repr(table)],
    )  # fmt: skip


def _write_guarded(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    kind: str,
    make_writer: Callable[[DataFrame, AllowedWrites], Any],
    write: Callable[[Any], object],
    on_error: OnError,
    name: str | None,
    *,
    may_overwrite: bool,
    targets: Sequence[str] = (),
) -> None:
    checks.check_on_error(on_error, kind)
    outputs.refuse_on_error(on_error, kind)
    refuse_unnamed(outputs.output, outputs.thread, name, kind)
    sink = Sink.add(proof, outputs, kind, name, tracked)
    writes = outputs.allowed_writes(sink.node.name, may_overwrite=may_overwrite)
    if outputs.waits:  # fail before rows are computed; keep the calls, because a loop's variable changes later
        writes.expected = outputs.call_dry(write, partial(make_writer, tracked.drop(*TRACKING)), writes)

    def write_checked(rows: DataFrame) -> None:
        write(make_writer(rows, writes))
        writes.check_all_made()
        writes.check_any_writes()

    if outputs.output == "once":
        _stage(sink, writes, write, make_writer)
        return
    _run(sink, write_checked, on_error, targets or targets_of(writes.expected or ()))


def _stage(
    sink: Sink,
    writes: AllowedWrites,
    write: Callable[[Any], object],
    make_writer: Callable[[DataFrame, AllowedWrites], Any],
) -> None:
    """Compute the rows of a sink, and write them into a stage."""
    new_stage, target = sink.outputs.new_stage, writes.staged
    if target is None or new_stage is None:
        raise PipelineError(f"{sink.node.name!r}: the function writes to no folder.")

    def write_into(rows: DataFrame, stage: Stage) -> None:
        staging = replace(writes, calls=[], stage=stage.tables.begin(stage))
        write(make_writer(rows, staging))
        staging.check_all_made()

    stage = new_stage(sink.node.name, target)
    sink.outputs.staging.append(StagedFrame.of(sink, write_into, target, stage))


def write_dataframe(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    write: Callable[[DataFrame], object],
    on_error: OnError,
    name: str | None,
) -> None:
    """Implement `Tracker.write_dataframe`."""
    refuse_unstaged(outputs.output, "write_dataframe")
    checks.check_on_error(on_error, "write_dataframe")
    outputs.refuse_on_error(on_error, "write_dataframe")
    checks.check_function(write, "write_dataframe", "a function of the DataFrame")
    sink = Sink.add(proof, outputs, "write_dataframe", name, tracked)
    if outputs.waits:
        outputs.check_before_writing(partial(_check_unchanged, sink.node.name, CapturedVariables(write)))
    sink = sink.with_kept_rows()
    if outputs.waits:
        sink.finish()
        outputs.write_later(sink.node.name, partial(_call, sink, write, "raise"))
    elif _call(sink, write, on_error):
        sink.finish()


def _call(sink: Sink, write: Callable[[DataFrame], object], on_error: OnError) -> bool:
    """Call a function with the kept rows. Return True if it has returned, False if it has failed its rows."""
    before = _started(sink.proof.session)
    with sink.proof.jobs_of(sink.node):
        if not _succeeds(sink, lambda: write(sink.rows.drop(*TRACKING)), on_error):
            return False
    if sink.count and _started(sink.proof.session) == before:
        raise InexactPipelineError(
            f"{sink.node.name!r}: the function ran no Spark job, so it has not written its {sink.count:,} rows. Call a method "
            "that runs one, such as rows.writeTo(table).append() or rows.collect()."
        )
    return True


def _started(session: SparkSession) -> int:
    """Return the number of jobs so far, or over Spark Connect, that of requests that ran some."""
    return responses_of(session).started if is_connect(session) else jobs_started(session)


def _check_unchanged(sink: str, used: CapturedVariables) -> None:
    if changed := used.changed():
        raise PipelineError(
            f"{sink!r}: the function uses {', '.join(map(repr, changed))}, which changed since the call. With "
            'output="whole" the function runs after the pipeline has returned, when a loop\'s variable has its last value. '
            "Bind the value: lambda rows, table=table: ..."
        )


def write_data_source(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    source: type[DataSource],
    mode: str,
    options: dict[str, str],
    on_error: OnError,
    name: str | None,
    *,
    allow_overwrite: bool,
) -> None:
    """Implement `Tracker.write_data_source`."""
    refuse_unstaged(outputs.output, "write_data_source")
    checks.check_on_error(on_error, "write_data_source")
    outputs.refuse_on_error(on_error, "write_data_source")
    outputs.allowed_writes("write_data_source" if name is None else name, may_overwrite=allow_overwrite).check_mode(
        mode
    )
    if not (isinstance(source, type) and issubclass(source, DataSource)):
        raise PipelineError(
            f"write_data_source: {source!r} is not a Python data source. Pass a class derived from "
            "pyspark.sql.datasource.DataSource, or use tracker.write for Spark's own formats."
        )
    sink = Sink.add(proof, outputs, "write_data_source", name, tracked)
    consuming_source = consuming(source, sink.node.name)
    tracked.sparkSession.dataSource.register(consuming_source)
    options = dict(options)  # a copy, because it may write later

    def save(rows: DataFrame) -> None:
        rows.write.format(consuming_source.name()).mode(mode).options(**options).save()

    _run(sink, save, on_error)


def _run(sink: Sink, write: Callable[[DataFrame], object], on_error: OnError, targets: Sequence[str] = ()) -> None:
    if not sink.outputs.waits:
        _run_now(sink, write, on_error)
        return
    sink = sink.with_kept_rows()
    sink.finish()
    sink.outputs.write_later(sink.node.name, partial(_run_now, sink, write, "raise"), targets)


def _run_now(sink: Sink, write: Callable[[DataFrame], object], on_error: OnError) -> None:
    proof = sink.proof
    meter = proof.add_meter(sink.node)
    rows = frames.without(meters.meter_all(sink.rows, meter), *TRACKING)
    with proof.jobs_of(sink.node):
        if not _succeeds(sink, lambda: write(rows), on_error):
            return
    proof.prove(sink.node, meter, sink.equation, written=True)


def _succeeds(sink: Sink, write: Callable[[], object], on_error: OnError) -> bool:
    """Return True if a function returns, False if a job of it failed and so did the sink's rows."""
    proof = sink.proof
    try:
        write()
    except Exception as exc:
        if on_error == "raise" or not failed_in_a_job(exc, proof.session, proof.tag_of(sink.node)):
            raise
        _fail(sink, cause_of(exc))
        mark_handled(proof.session, proof.job_tag, proof.tag_of(sink.node))
        return False
    return True


def _fail(sink: Sink, reason: Reason) -> None:
    """Fail the messages of all rows, after a proof that these are all."""
    meter = sink.proof.add_meter(sink.node)
    rows = meters.meter_all(sink.rows, meter).select(
        F.explode_outer(ROOTS).alias("root"), F.expr(f"coalesce({SHARE}, 0) <> 0 AS is_of_message")
    )
    with sink.proof.jobs_of(sink.node):
        distinct = rows.where("root IS NOT NULL OR is_of_message").distinct().toArrow().column("root").combine_chunks()
    sink.proof.prove(sink.node, meter, sink.equation, written=False)
    roots = distinct.drop_null().to_numpy()
    sink.proof.add_failure(failure_of(sink.node.name, reason, np.unique(roots), distinct.null_count))
