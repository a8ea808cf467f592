"""Sinks of a turn: the rows of a stream, written and proven before anything is acked."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from acker_redis.errors import AckerError, PipelineError
from acker_redis.outages import is_outage
from acker_redis.spark.checks import arrow_schema
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.proof.equation import Equation, with_equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK, total
from acker_redis.spark.runtime.frames import map_in_arrow, read_rows, select
from acker_redis.spark.sinks import writers
from acker_redis.spark.sinks.guarded_writers import guarded_writer
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.partitions import write_partitions
from acker_redis.storm.turns.checks import SinkSpec
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.rows import BIN
from acker_redis.storm.turns.steps import CONTENT, DecodeStep, content_of_rows

_SHARE_OF_ROW = f"xxhash64(frm, seq, data) & {MASK}L"
"""SQL for the share of a row. Emitter and sequence are its own. Its tuples split it."""

CONTENT_OF_ROW = f"xxhash64(`to`, frm, seq, data, edges) AS {CONTENT}"
"""SQL for all that a row contains."""

_TRACKING = [StructField(SHARE, LongType()), StructField(ROOTS, ArrayType(LongType()))]


class Total(NamedTuple):
    """Tuples of a sink.

    Attributes:
        shares: sum of their shares.
        rows: number of tuples.
    """

    shares: int
    rows: int


class KeptRows(NamedTuple):
    """Rows of sinks and bins that a turn keeps.

    Attributes:
        totals: task of a sink -> its tuples.
        contents: partition -> sum of what its rows contain, modulo 2**64.
    """

    totals: Mapping[int, Total]
    contents: Mapping[int, int]


def keep(kept: DataFrame, plan: Plan) -> KeptRows:
    """Keep the rows of a turn by this first action over them, and sum them up.

    The sums need no exchange, because a row carries many tuples.
    """
    tasks = [*plan.sinks.values(), BIN]
    own = kept.where(f"`to` IN ({', '.join(map(str, tasks))})")
    columns = ("`to`", "size", f"{_SHARE_OF_ROW} AS share", CONTENT_OF_ROW, "spark_partition_id() AS part")
    to, size, share, content, part = (
        np.asarray(column.to_numpy()) for column in read_rows(select(own, *columns)).columns
    )
    return KeptRows(
        {
            int(task): Total(total(share[to == task].astype(np.int64)), int(size[to == task].sum()))
            for task in np.unique(to[to != BIN])
        },
        {int(one): content_of_rows(content[part == one]) for one in np.unique(part)},
    )


def check_writes(sink: SinkSpec, spark: SparkSession) -> None:
    """Call the function of a sink with a writer that writes nothing, before the run begins.

    Raises:
        PipelineError: the function raises, or sets a mode that isn't allowed.
        InexactPipelineError: it calls no method that writes.
    """
    if sink.of_partition:
        return
    rows, outputs = spark.createDataFrame([], sink.schema), Outputs()
    try:
        outputs.call_dry(sink.write, partial(guarded_writer, rows), outputs.allowed_writes(sink.text))
    except AckerError:
        raise
    except Exception as exc:
        if is_outage(exc):  # the first turn waits for its end
            return
        raise PipelineError(
            f"{sink.text!r}: its function raises {line_of(exc)}. Nothing was emitted. Correct it. It is called with a writer "
            "that writes nothing before the run begins, and then once in each turn that has tuples for it."
        ) from exc


def write(
    kept: DataFrame,
    plan: Plan,
    sinks: Sequence[SinkSpec],
    of: Mapping[int, Total],
    spark: SparkSession,
    key: str,
    tag: str,
) -> None:
    """Write the kept rows of each sink, and prove that they were written.

    Raises:
        UnprovenEmissionError: Spark may have lost or repeated rows.
        InexactPipelineError: a sink did.
    """
    for sink in sinks:
        task = plan.sinks[sink.stream]
        found = of.get(task)
        if found is not None:
            _write(kept.where(f"`to` = {task}"), sink, found, spark, f"{key}:{task}", tag)


def _write(rows: DataFrame, sink: SinkSpec, of: Total, spark: SparkSession, key: str, tag: str) -> None:
    proof = Proof(spark, key, of.shares, of.rows, tag, lambda name: None)
    outputs = Outputs()
    try:
        node = proof.add_operator("levels of a turn", "levels", [])
        schema = StructType([*sink.schema.fields, *_TRACKING])
        step = DecodeStep(arrow_schema(schema), SHARE)
        shared = select(rows, "data", f"{_SHARE_OF_ROW} AS {SHARE}")
        decoded = map_in_arrow(shared, step, schema, "data", SHARE)
        tracked = with_equation(decoded, Equation(key, node.name, roots_node=node.name))
        if sink.of_partition:
            write_partitions(proof, outputs, tracked, sink.write, "raise", (), "write_partitions", sink.text)
        else:
            writers.write(proof, outputs, tracked, sink.write, "raise", sink.text, allow_overwrite=False)
        proof.check_covered()
    finally:
        outputs.release()
        proof.forget()
