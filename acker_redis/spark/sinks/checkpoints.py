"""Checkpoints: an action that proves what there is so far, so that the meters before it are not needed any more."""

from dataclasses import replace

from pyspark.sql import DataFrame

from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import with_equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol.shares import MASK


def checkpoint(proof: Proof, tracked: DataFrame, name: str | None, *, is_local: bool) -> DataFrame:
    """As `Tracker.checkpoint`, or `Tracker.local_checkpoint`."""
    kind = "local_checkpoint" if is_local else "checkpoint"
    equation = proof.equation_of(tracked, kind if name is None else name)
    node = proof.add(kind, name, [equation.node])
    meter = proof.meter(node)
    metered = metrics.passing(tracked, meter)
    with proof.describing(node):
        rows = metered.localCheckpoint() if is_local else metered.checkpoint()
    residue = proof.prove(node, meter, equation, written=False, final=False)
    known = (equation.known + residue) & MASK
    return with_equation(rows, replace(equation.at(node.name), residues={}, known=known))
