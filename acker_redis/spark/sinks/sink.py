"""One sink over a frame: an action that must be proven.

It is proven at once or, if sinks wait, once its rows are kept.
"""

from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql import DataFrame

from acker_redis.spark.proof import metrics
from acker_redis.spark.proof.equation import Equation, with_equation
from acker_redis.spark.proof.proof import Node, Proof
from acker_redis.spark.sinks.output_modes import Outputs


@dataclass(frozen=True)
class Sink:
    """A sink of an emission.

    Attributes:
        proof: proof of the emission.
        outputs: sinks of the emission.
        node: the action.
        rows: rows that it consumes.
        equation: expected sum of these rows.
    """

    proof: Proof
    outputs: Outputs
    node: Node
    rows: DataFrame
    equation: Equation

    @classmethod
    def add(cls, proof: Proof, outputs: Outputs, kind: str, name: str | None, tracked: DataFrame) -> Self:
        """Add a sink to an emission."""
        equation = proof.equation_of(tracked, kind if name is None else name)
        return cls(proof, outputs, proof.add_action(kind, name, [equation.node]), tracked, equation)

    def with_kept_rows(self) -> Self:
        """Compute and prove the rows now.

        Returns the sink over the kept rows, which `Outputs.release` drops.
        """
        meter = self.proof.add_meter(self.node)
        with self.proof.job_description(self.node):
            rows = self.outputs.keep_checkpoint(metrics.meter_all(self.rows, meter).localCheckpoint())
        removed = self.proof.prove(self.node, meter, self.equation, written=False)
        equation = self.equation.behind_checkpoint(removed)
        if self.outputs.only_checked:
            self.outputs.counts[self.node.name] = rows.count()
        return replace(self, rows=with_equation(rows, equation), equation=equation)
