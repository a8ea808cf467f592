"""One sink over a frame: an action that must be proven.

It is proven when it has run or, if its rows are kept, before that.
"""

from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql import DataFrame

from acker_redis.spark.proof import meters
from acker_redis.spark.proof.equation import Equation, with_equation
from acker_redis.spark.proof.proof import Node, Proof
from acker_redis.spark.sinks.outputs import Outputs


@dataclass(frozen=True)
class Sink:
    """A sink of an emission.

    Attributes:
        proof: proof of the emission.
        outputs: sinks of the emission.
        node: the action.
        rows: rows that it consumes.
        equation: expected sum of these rows.
        count: number of kept rows; 0 if they aren't kept.
    """

    proof: Proof
    outputs: Outputs
    node: Node
    rows: DataFrame
    equation: Equation
    count: int = 0

    @classmethod
    def add(cls, proof: Proof, outputs: Outputs, kind: str, name: str | None, tracked: DataFrame) -> Self:
        """Add a sink to an emission.

        Raises:
            PipelineError: it reads what another sink writes.
        """
        equation = proof.equation_of(tracked, kind if name is None else name)
        node = proof.add_action(kind, name, [equation.node])
        outputs.add_sink(node.name, tracked)
        return cls(proof, outputs, node, tracked, equation)

    def with_kept_rows(self) -> Self:
        """Compute the rows now, keep them, and prove what was kept.

        Spark computes a block again that it has lost before all were kept, so the rows are read back for the proof. From then
        on a lost block is an error.

        Returns the sink over the kept rows, which `Outputs.release` drops. `finish` is still to be called.
        """
        self.outputs.check_read(self.node.name, self.rows)
        meter = self.proof.add_meter(self.node)
        with self.proof.jobs_of(self.node):
            kept = self.outputs.keep_checkpoint(meters.meter_all(self.rows, meter).localCheckpoint())
            equation = self.equation.behind_checkpoint(self._prove(meter, self.equation))
            meter = self.proof.add_meter(self.node)
            count = meters.meter_all(kept, meter).count()
        self._prove(meter, equation)
        return replace(self, rows=with_equation(kept, equation), equation=equation, count=count)

    def with_cached_rows(self) -> Self:
        """Let Spark cache the rows when the next action computes them. `Outputs.release` drops them."""
        # Its plan is one of its own, so no other frame is read from the cache.
        own = meters.mark(self.rows, self.proof.add_meter(self.node, of_cache=True))
        return replace(self, rows=self.outputs.keep_cached(own.persist()))

    def behind(self, removed: int) -> Self:
        """Derive the sink over the same rows, once they are proven. `removed` is the result of `Proof.prove`."""
        return replace(self, equation=self.equation.behind_checkpoint(removed))

    def finish(self) -> None:
        """Declare the kept rows done, or checked."""
        if self.outputs.only_checked:
            self.outputs.counts[self.node.name] = self.count
        self.proof.finish(self.node, self.count)

    def _prove(self, meter: str, equation: Equation) -> int:
        return self.proof.prove(self.node, meter, equation, written=False, final=False)
