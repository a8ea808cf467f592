"""Sinks that use Spark's own means: writers, functions of a DataFrame, Python data sources."""

from collections.abc import Callable
from functools import partial

import numpy as np
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.blame import failed_in_a_job, mark_handled
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.proof.received_failures import cause_of
from acker_redis.spark.protocol import arguments
from acker_redis.spark.protocol.columns import ROOTS, SHARE, TRACKING
from acker_redis.spark.sinks.captured_variables import CapturedVariables
from acker_redis.spark.sinks.output_modes import GuardedWriter, Outputs
from acker_redis.spark.sinks.sink import Sink
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
    arguments.check_on_error(on_error, "write")
    outputs.refuse_on_error(on_error, "write")
    arguments.check_function(
        write, "write", 'a function of the DataFrameWriter, such as lambda writer: writer.mode("append").parquet(path)'
    )
    sink = Sink.add(proof, outputs, "write", name, tracked)
    writes = outputs.allowed_writes(sink.node.name, may_overwrite=allow_overwrite)
    if outputs.waits:  # fail before rows are computed; keep the calls, because a loop's variable changes later
        writes.expected = outputs.call_dry(write, tracked, writes)

    def write_checked(rows: DataFrame) -> None:
        write(GuardedWriter(rows, writes))
        writes.check_all_made()

    _run(sink, write_checked, on_error, written=True)


def write_dataframe(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    write: Callable[[DataFrame], object],
    on_error: OnError,
    name: str | None,
) -> None:
    """Implement `Tracker.write_dataframe`."""
    arguments.check_on_error(on_error, "write_dataframe")
    outputs.refuse_on_error(on_error, "write_dataframe")
    arguments.check_function(write, "write_dataframe", "a function of the DataFrame")
    sink = Sink.add(proof, outputs, "write_dataframe", name, tracked)
    if outputs.waits:
        outputs.check_before_writing(partial(_check_unchanged, sink.node.name, CapturedVariables(write)))
    _run(sink, write, on_error, written=False)


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
    arguments.check_on_error(on_error, "write_data_source")
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
    consuming_source = consuming(source)
    tracked.sparkSession.dataSource.register(consuming_source)
    options = dict(options)  # a copy, because it may write later

    def save(rows: DataFrame) -> None:
        rows.write.format(consuming_source.name()).mode(mode).options(**options).save()

    _run(sink, save, on_error, written=True)


def _run(sink: Sink, write: Callable[[DataFrame], object], on_error: OnError, *, written: bool) -> None:
    if sink.outputs.waits:
        sink.outputs.write_later(partial(_run_now, sink.with_kept_rows(), write, "raise", written=written))
    else:
        _run_now(sink, write, on_error, written=written)


def _run_now(sink: Sink, write: Callable[[DataFrame], object], on_error: OnError, *, written: bool) -> None:
    proof = sink.proof
    meter = proof.add_meter(sink.node)
    rows = metrics.meter_all(sink.rows, meter).drop(*TRACKING)
    try:
        with proof.job_description(sink.node):
            write(rows)
    except Exception as exc:
        if on_error == "raise" or not failed_in_a_job(exc, proof.session, proof.job_tag):
            raise
        _fail(sink, cause_of(exc))
        mark_handled(proof.session, proof.job_tag)
    else:
        proof.prove(sink.node, meter, sink.equation, written=written)


def _fail(sink: Sink, reason: Reason) -> None:
    """Fail the messages of all rows, after a proof that these are all."""
    meter = sink.proof.add_meter(sink.node)
    rows = metrics.meter_all(sink.rows, meter).select(
        F.explode_outer(ROOTS).alias("root"), F.expr(f"coalesce({SHARE}, 0) <> 0 AS is_of_message")
    )
    with sink.proof.job_description(sink.node):
        distinct = rows.where("root IS NOT NULL OR is_of_message").distinct().toArrow().column("root").combine_chunks()
    sink.proof.prove(sink.node, meter, sink.equation, written=False)
    roots = distinct.drop_null().to_numpy()
    sink.proof.add_failure(failure_of(sink.node.name, reason, np.unique(roots), distinct.null_count))
