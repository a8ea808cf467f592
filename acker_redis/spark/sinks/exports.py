"""Exports: rows that leave with edges of their own, for other programs to ack."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError
from acker_redis.spark.operators.map_in_arrow import in_python
from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import anchor_codec, arguments
from acker_redis.spark.protocol.columns import ANCHORS, SHARE, TRACKING
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.worker.export import ExportStep


@dataclass(frozen=True)
class Origin:
    """Where executors reach the acker.

    Attributes:
        url: of the server.
        acker: of the driver.
    """

    url: str | None = field(repr=False)  # may hold a password
    acker: Acker


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
    """As `Tracker.export`."""
    if outputs.output == "whole":
        raise BadConfigError(
            'export: with output="whole" there are no exports: a message would be done only when other programs are done with '
            "its rows, and the output has to wait for that. Write the output to a file or table that they read"
        )
    arguments.function(
        write, "export", "a function of the DataFrameWriter, such as lambda writer: writer.parquet(path)"
    )
    anchor_codec.check(encoding)
    given = [found for found in tracked.schema.fields if found.name not in TRACKING]
    arguments.column_names([*(found.name for found in given), column], "export")
    equation = proof.equation_of(tracked, "export" if name is None else name)
    node = proof.begin("export", name, [equation.node])
    if outputs.wait or origin is None:
        outputs.call_dry(write, tracked.withColumn(column, F.lit(None)), outputs.writes(node.name, any_mode=True))
        outputs.kept(proof, tracked, node, equation)
        return
    url = check_url(proof.session, origin.url, origin.acker)
    meter = proof.meter(node)
    prefix = f"{proof.key}:{node.name}"
    left = [StructField(found.name, found.dataType, True, found.metadata) for found in given]
    output = [*left, StructField(ANCHORS, ArrayType(LongType())), StructField(SHARE, LongType())]
    sent = in_python(
        tracked,
        lambda names: ExportStep(url, origin.acker.config, prefix, node.name, names),
        StructType(output),
    )
    rows = metrics.passing(sent, meter).withColumn(ANCHORS, anchor_codec.packed(encoding, ANCHORS)).drop(SHARE)
    with proof.describing(node):
        write(rows.withColumnRenamed(ANCHORS, column).write)
    proof.prove(node, meter, equation, written=True)
