"""Sinks of Spark's own: writers, functions of a DataFrame, Python data sources."""

from collections.abc import Callable

import numpy as np
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from acker_redis.errors import BadBatchError
from acker_redis.spark import checks, meters
from acker_redis.spark.blame import failed_in_a_job
from acker_redis.spark.columns import ANCHORS, EDGE, TRACKING
from acker_redis.spark.form import Form
from acker_redis.spark.proof import Node, Proof
from acker_redis.spark.reports import cause_of
from acker_redis.spark.worker.data_source import consuming
from acker_redis.spark.worker.failed import OnError, Reason, report_of


def write(
    proof: Proof, tracked: DataFrame, write: Callable[[DataFrameWriter], object], on_error: OnError, name: str | None
) -> None:
    """As `Tracker.write`."""
    checks.on_error(on_error, "write")
    checks.function(write, "write", "a function of the DataFrameWriter, such as lambda writer: writer.parquet(path)")
    _act(proof, tracked, lambda rows: write(rows.write), on_error, *_begin(proof, "write", name, tracked), written=True)


def write_with(
    proof: Proof, tracked: DataFrame, write: Callable[[DataFrame], object], on_error: OnError, name: str | None
) -> None:
    """As `Tracker.write_with`."""
    checks.on_error(on_error, "write_with")
    checks.function(write, "write_with", "a function of the DataFrame")
    _act(proof, tracked, write, on_error, *_begin(proof, "write_with", name, tracked), written=False)


def write_source(
    proof: Proof,
    tracked: DataFrame,
    source: type[DataSource],
    mode: str,
    options: dict[str, str],
    on_error: OnError,
    name: str | None,
) -> None:
    """As `Tracker.write_source`."""
    checks.on_error(on_error, "write_source")
    if not (isinstance(source, type) and issubclass(source, DataSource)):
        raise BadBatchError(
            f"write_source: {source!r} is no Python data source: give a class derived from pyspark.sql.datasource.DataSource, "
            "or use tracker.write for Spark's own formats"
        )
    node, form = _begin(proof, "write_source", name, tracked)
    made = consuming(source)
    tracked.sparkSession.dataSource.register(made)

    def save(rows: DataFrame) -> None:
        rows.write.format(made.name()).mode(mode).options(**options).save()

    _act(proof, tracked, save, on_error, node, form, written=True)


def _begin(proof: Proof, kind: str, name: str | None, tracked: DataFrame) -> tuple[Node, Form]:
    form = proof.form_of(tracked, kind if name is None else name)
    return proof.begin(kind, name, [form.node]), form


def _act(
    proof: Proof,
    tracked: DataFrame,
    act: Callable[[DataFrame], object],
    on_error: OnError,
    node: Node,
    form: Form,
    *,
    written: bool,
) -> None:
    meter = proof.meter(node)
    rows = meters.passing(tracked, meter).drop(*TRACKING)
    try:
        with proof.describing(node):
            act(rows)
    except Exception as exc:
        if on_error == "raise" or not failed_in_a_job(exc, proof.session, proof.job_tag):
            raise
        _fail(proof, tracked, node, form, cause_of(exc))
    else:
        proof.prove(node, meter, form, written=written)


def _fail(proof: Proof, tracked: DataFrame, node: Node, form: Form, reason: Reason) -> None:
    """Fail the messages of all rows, once it is proven that these are all."""
    meter = proof.meter(node)
    each = meters.passing(tracked, meter).select(
        F.explode_outer(ANCHORS).alias("root"), F.expr(f"coalesce({EDGE}, 0) <> 0 AS is")
    )
    with proof.describing(node):
        told = each.where("root IS NOT NULL OR is").distinct().toArrow().column("root").combine_chunks()
    proof.prove(node, meter, form, written=False)
    roots = told.drop_null().to_numpy()
    proof.fail(report_of(node.name, reason, np.unique(roots), told.null_count))
