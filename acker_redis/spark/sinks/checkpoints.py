"""Checkpoints: an action that proves what there is so far, so that the meters before it are not needed any more."""

from dataclasses import replace

from pyspark.sql import DataFrame

from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import with_form
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol.shares import MASK


def checkpoint(proof: Proof, tracked: DataFrame, name: str | None, *, is_local: bool) -> DataFrame:
    """As `Tracker.checkpoint`, or `Tracker.local_checkpoint`."""
    kind = "local_checkpoint" if is_local else "checkpoint"
    form = proof.form_of(tracked, kind if name is None else name)
    node = proof.add(kind, name, [form.node])
    meter = proof.meter(node)
    metered = metrics.passing(tracked, meter)
    with proof.describing(node):
        rows = metered.localCheckpoint() if is_local else metered.checkpoint()
    residue = proof.prove(node, meter, form, written=False, final=False)
    known = (form.known + residue) & MASK
    return with_form(rows, replace(form.at(node.name), residues={}, known=known))
