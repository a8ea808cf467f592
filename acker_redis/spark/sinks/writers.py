"""Sinks of Spark's own: writers, functions of a DataFrame, Python data sources."""

from collections.abc import Callable
from functools import partial

import numpy as np
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.blame import failed_in_a_job, mark_handled
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.proof.proof import Node, Proof
from acker_redis.spark.proof.received_failures import cause_of
from acker_redis.spark.protocol import arguments
from acker_redis.spark.protocol.columns import ROOTS, SHARE, TRACKING
from acker_redis.spark.sinks.captured_variables import CapturedVariables
from acker_redis.spark.sinks.output_modes import GuardedWriter, Outputs
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
    """Do as `Tracker.write` says."""
    arguments.check_on_error(on_error, "write")
    outputs.refuse_on_error(on_error, "write")
    arguments.check_function(
        write, "write", 'a function of the DataFrameWriter, such as lambda writer: writer.mode("append").parquet(path)'
    )
    node, equation = _begin(proof, "write", name, tracked)
    writes = outputs.allowed_writes(node.name, may_overwrite=allow_overwrite)
    if outputs.waits:  # refused before rows are computed; its calls are kept: later a loop's variable has another value
        writes.expected = outputs.call_dry(write, tracked, writes)

    def write_checked(rows: DataFrame) -> None:
        write(GuardedWriter(rows, writes))
        writes.check_all_made()

    _act(proof, outputs, tracked, write_checked, on_error, node, equation, written=True)


def write_dataframe(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    write: Callable[[DataFrame], object],
    on_error: OnError,
    name: str | None,
) -> None:
    """Do as `Tracker.write_dataframe` says."""
    arguments.check_on_error(on_error, "write_dataframe")
    outputs.refuse_on_error(on_error, "write_dataframe")
    arguments.check_function(write, "write_dataframe", "a function of the DataFrame")
    node, equation = _begin(proof, "write_dataframe", name, tracked)
    if outputs.waits:
        outputs.check_before_writing(partial(_check_unchanged, node.name, CapturedVariables(write)))
    _act(proof, outputs, tracked, write, on_error, node, equation, written=False)


def _check_unchanged(sink: str, used: CapturedVariables) -> None:
    if changed := used.changed():
        raise BadConfigError(
            f"{sink!r}: the function uses {', '.join(map(repr, changed))}, which changed since it was given. With "
            'output="whole" it runs after the pipeline has returned, when a loop\'s variable has its last value. Bind it: '
            "lambda rows, table=table: ..."
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
    """Do as `Tracker.write_data_source` says."""
    arguments.check_on_error(on_error, "write_data_source")
    outputs.refuse_on_error(on_error, "write_data_source")
    outputs.allowed_writes("write_data_source" if name is None else name, may_overwrite=allow_overwrite).check_mode(
        mode
    )
    if not (isinstance(source, type) and issubclass(source, DataSource)):
        raise PipelineError(
            f"write_data_source: {source!r} is no Python data source: give a class derived from "
            "pyspark.sql.datasource.DataSource, or use tracker.write for Spark's own formats"
        )
    node, equation = _begin(proof, "write_data_source", name, tracked)
    consuming_source = consuming(source)
    tracked.sparkSession.dataSource.register(consuming_source)
    options = dict(options)  # as they are now, also where it writes later

    def save(rows: DataFrame) -> None:
        rows.write.format(consuming_source.name()).mode(mode).options(**options).save()

    _act(proof, outputs, tracked, save, on_error, node, equation, written=True)


def _begin(proof: Proof, kind: str, name: str | None, tracked: DataFrame) -> tuple[Node, Equation]:
    equation = proof.equation_of(tracked, kind if name is None else name)
    return proof.add_action(kind, name, [equation.node]), equation


def _act(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    act: Callable[[DataFrame], object],
    on_error: OnError,
    node: Node,
    equation: Equation,
    *,
    written: bool,
) -> None:
    if outputs.waits:
        rows, equation = outputs.keep_rows(proof, tracked, node, equation)
        outputs.write_later(partial(_act_now, proof, rows, act, "raise", node, equation, written=written))
    else:
        _act_now(proof, tracked, act, on_error, node, equation, written=written)


def _act_now(
    proof: Proof,
    tracked: DataFrame,
    act: Callable[[DataFrame], object],
    on_error: OnError,
    node: Node,
    equation: Equation,
    *,
    written: bool,
) -> None:
    meter = proof.add_meter(node)
    rows = metrics.meter_all(tracked, meter).drop(*TRACKING)
    try:
        with proof.job_description(node):
            act(rows)
    except Exception as exc:
        if on_error == "raise" or not failed_in_a_job(exc, proof.session, proof.job_tag):
            raise
        _fail(proof, tracked, node, equation, cause_of(exc))
        mark_handled(proof.session, proof.job_tag)
    else:
        proof.prove(node, meter, equation, written=written)


def _fail(proof: Proof, tracked: DataFrame, node: Node, equation: Equation, reason: Reason) -> None:
    """Fail the messages of all rows, once it is proven that these are all."""
    meter = proof.add_meter(node)
    rows = metrics.meter_all(tracked, meter).select(
        F.explode_outer(ROOTS).alias("root"), F.expr(f"coalesce({SHARE}, 0) <> 0 AS is_of_message")
    )
    with proof.job_description(node):
        distinct = rows.where("root IS NOT NULL OR is_of_message").distinct().toArrow().column("root").combine_chunks()
    proof.prove(node, meter, equation, written=False)
    roots = distinct.drop_null().to_numpy()
    proof.add_failure(failure_of(node.name, reason, np.unique(roots), distinct.null_count))
