"""Exports: rows that leave with anchors, whose fresh edges other programs ack."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from acker_redis.acker import Acker
from acker_redis.errors import PipelineError
from acker_redis.spark import checks
from acker_redis.spark.operators.map_in_arrow import map_in_arrow
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import anchor_codec
from acker_redis.spark.protocol.columns import ANCHORS, SHARE, TRACKING
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.sinks.guarded_writers import guarded_writer
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_writes import refuse_unstaged
from acker_redis.spark.worker.export import ExportStep


@dataclass(frozen=True)
class Origin:
    """The acker, as the driver and the executors reach it.

    Attributes:
        url: server's URL, as executors reach it.
        acker: the driver's acker.
        initialise_roots: function that returns once the ledger has the emission's roots.
    """

    url: str | None = field(repr=False)  # may hold a password
    acker: Acker
    initialise_roots: Callable[[], object] = field(default=lambda: None, repr=False)


def export(
    proof: Proof,
    origin: Origin | None,
    outputs: Outputs,
    tracked: DataFrame,
    write: Callable[[DataFrameWriter], object],
    encoding: anchor_codec.Encoding,
    column: str,
    name: str | None,
) -> None:
    """Implement `Tracker.export`."""
    refuse_unstaged(outputs.output, "export")
    if outputs.output == "whole":
        raise PipelineError(
            'export: output="whole" does not support exports. A message would be done only after other programs are done with '
            "its rows, and the output would wait for that. Write the output to a file or table that they read."
        )
    checks.check_function(
        write, "export", "a function of the DataFrameWriter, such as lambda writer: writer.parquet(path)"
    )
    anchor_codec.check_encoding(encoding)
    fields = [field for field in tracked.schema.fields if field.name not in TRACKING]
    checks.check_column_names([*(field.name for field in fields), column], "export")
    sink = Sink.add(proof, outputs, "export", name, tracked)
    node, writes = sink.node, outputs.allowed_writes(sink.node.name, any_mode=True)
    if outputs.waits or origin is None:
        without_anchors = tracked.withColumn(column, F.lit(None)).drop(*TRACKING)
        outputs.call_dry(write, partial(guarded_writer, without_anchors), writes)
        sink.with_kept_rows().finish()
        return
    url = check_url(proof.session, origin.url, origin.acker)
    meter = proof.add_meter(node)
    prefix = f"{proof.key}:{node.name}"
    nullable = [StructField(field.name, field.dataType, True, field.metadata) for field in fields]
    output = [*nullable, StructField(ANCHORS, ArrayType(LongType())), StructField(SHARE, LongType())]
    exported = map_in_arrow(
        tracked,
        lambda names: ExportStep(url, origin.acker.config, prefix, node.name, names),
        StructType(output),
    )
    rows = meters.meter_all(exported, meter).withColumn(ANCHORS, anchor_codec.encode(encoding, ANCHORS)).drop(SHARE)
    proof.exports = True
    proof.know_ids()
    with proof.jobs_of(node):
        write(guarded_writer(rows.withColumnRenamed(ANCHORS, column), writes))
    proof.prove(node, meter, sink.equation, written=True)
