"""Checkpoints: actions that prove the rows so far.

The earlier meters are no longer needed after them.
"""

from pyspark.sql import DataFrame

from acker_redis.spark.proof import meters
from acker_redis.spark.proof.equation import with_equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.sinks.outputs import Outputs


def checkpoint(proof: Proof, outputs: Outputs, tracked: DataFrame, name: str | None, *, is_local: bool) -> DataFrame:
    """Implement `Tracker.checkpoint` and `Tracker.local_checkpoint`."""
    kind = "local_checkpoint" if is_local else "checkpoint"
    equation = proof.equation_of(tracked, kind if name is None else name)
    node = proof.add_operator(kind, name, [equation.node])
    outputs.check_read(node.name, tracked)
    meter = proof.add_meter(node)
    metered = meters.meter_all(tracked, meter)
    with proof.jobs_of(node):
        rows = metered.localCheckpoint() if is_local else metered.checkpoint()
    removed = proof.prove(node, meter, equation, written=False, final=False)
    return with_equation(rows, equation.at(node.name).behind_checkpoint(removed))
