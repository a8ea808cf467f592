"""The sink that calls a function of each partition in Python workers."""

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark import checks
from acker_redis.spark.operators.map_in_arrow import map_in_arrow
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol.columns import FAILURE, OUT, ROOTS, ROWS, SHARE
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_writes import refuse_unstaged
from acker_redis.spark.worker.failures import NoRetry, OnError
from acker_redis.spark.worker.partitions import PartitionsStep, Prepare, Write

_CONSUMED = StructType(
    [*(StructField(column, LongType()) for column in (SHARE, ROWS, OUT)), StructField(FAILURE, StringType())]
)


def write_partitions(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    write: Write,
    on_error: OnError,
    no_retry: NoRetry,
    kind: str,
    name: str | None,
) -> int:
    """Implement `Tracker.write_partitions`."""
    refuse_unstaged(outputs.output, "write_partitions")
    checks.check_on_error(on_error, "write_partitions")
    outputs.refuse_on_error(on_error, "write_partitions")
    checks.check_function(write, "write_partitions", "a function of record batches and the partition's number", count=2)
    checks.check_no_retry(no_retry, "write_partitions")
    if no_retry and on_error == "raise":
        raise PipelineError(
            "write_partitions: no_retry is for failed rows, but on_error='raise' fails none. Pass on_error='fail', too."
        )
    sink = Sink.add(proof, outputs, kind, name, tracked)
    if not outputs.waits:
        return consume(sink, write, on_error, no_retry)()
    sink = sink.with_kept_rows()
    sink.finish()
    outputs.write_later(sink.node.name, consume(sink, write, on_error, no_retry))
    return sink.count


def consume(
    sink: Sink,
    write: Write,
    on_error: OnError,
    no_retry: NoRetry = (),
    *,
    only_refused: bool = False,
    prepare: Prepare | None = None,
) -> Callable[[], int]:
    """Return the action, to be called now or later. It runs the function as it is now.

    Args:
        sink: the sink, whose rows the function gets.
        write: the function.
        on_error: effect of an exception in it; see `PartitionsStep`.
        no_retry: exceptions that a retry can't help.
        only_refused: see `PartitionsStep`.
        prepare: see `PartitionsStep`.
    """
    proof, node, equation = sink.proof, sink.node, sink.equation
    meter, failed = proof.add_meter(node), proof.add_meter(node, meters.read_removed_in_python)
    max_bytes = proof.max_failure_bytes
    rows = sink.rows if on_error == "fail" else sink.rows.drop(ROOTS)
    consumed = map_in_arrow(
        rows,
        lambda columns: PartitionsStep(node.name, write, on_error, max_bytes, no_retry, columns, only_refused, prepare),
        _CONSUMED,
    )
    metered = meters.meter_all(meters.meter_removed_in_python(consumed, failed, ROWS, stays=ROWS), meter, ROWS)

    def run() -> int:
        with proof.jobs_of(node):
            counts = metered.select(ROWS).toArrow().column(0).to_pylist()
        # Failed rows have reached the sink, too, so they are part of the sum, not removed from it.
        proof.prove(node, meter, replace(equation, removed={**equation.removed, failed: 0}), written=False)
        return sum(counts)

    return run
