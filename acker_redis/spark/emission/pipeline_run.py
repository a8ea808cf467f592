"""Run a pipeline over messages and prove its sinks. Neither a server nor a ledger takes part."""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from acker_redis.spark.emission.corrupt_records import fail_corrupt_records, has_corrupt_records
from acker_redis.spark.emission.roots import salts, shares_of
from acker_redis.spark.operators import tracking
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import shares
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.tracker import Tracker
from acker_redis.spout.in_flight import Emission

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Function with the operators and sinks of a pipeline, called per emission with a tracker and the tracked messages."""


class PipelineRun:
    """One run of a pipeline over the messages of an emission. `release` it in any case.

    Attributes:
        tag: tag of its jobs.
        proof: proof of its sinks.
        outputs: what its sinks write.
    """

    def __init__(
        self,
        spark: SparkSession,
        emission: Emission,
        app: str,
        run_id: str,
        outputs: Outputs,
        *,
        repeat: int = 0,
        name_component: Callable[[str], object] = lambda name: None,
        mismatched: set[str] | None = None,
    ) -> None:
        """Prepare a run. Nothing is computed yet.

        Args:
            spark: session of the messages.
            emission: the messages, whose number and roots decide the shares.
            app: name of the app.
            run_id: id of the run.
            outputs: what its sinks may write.
            repeat: number of earlier runs with the same emission, whose shares differ.
            name_component: function of an operator's name to its number in the ledger.
            mismatched: see `Proof`.
        """
        self._emission, self._run_id = emission, run_id
        self._salts = salts(app, run_id, emission.number, repeat)
        key, self.tag = names(app, run_id, emission.number)
        self._key = f"{key}.{repeat}" if repeat else key
        own = shares_of(self._salts[1], emission)
        self.proof = Proof(
            spark, self._key, shares.total(own), len(own), self.tag, name_component,
            set() if mismatched is None else mismatched,
        )  # fmt: skip
        self.outputs = outputs

    def prove(
        self,
        pipeline: Pipeline,
        messages: DataFrame,
        id_column: str,
        *,
        batch_id: int | None = None,
        shown_id: tuple[str, ...] | None = None,
        origin: Origin | None = None,
        meter: Callable[[DataFrame, str, Proof], DataFrame] | None = None,
    ) -> None:
        """Call the pipeline with tracked messages, and check that its sinks cover them.

        Args:
            pipeline: the function.
            messages: rows of the messages.
            id_column: name of the message id column.
            batch_id: number of the micro-batch, for the tracker.
            shown_id: columns that identify a message for the pipeline, which doesn't see `id_column` then. None: it sees that.
            origin: where exports send their roots; None: nowhere, as nothing is written.
            meter: function that meters the tracked messages, given its column of ids and the proof.

        Raises:
            UnprovenEmissionError: Spark ran tasks twice, or doesn't tell whether it did.
            InexactPipelineError: rows were dropped or copied behind the tracker's back, or there is no sink.
            Exception: the pipeline raised, or a job failed.
        """
        tracker = Tracker(
            self._run_id, self._emission.number, batch_id,
            _proof=self.proof, _origin=origin, _outputs=self.outputs, _id_columns=shown_id or (id_column,),
        )  # fmt: skip
        equation = Equation(self._key, self.proof.add_operator("spout", "spout", []).name)
        tracked = tracking.tracked(messages, id_column, self._salts, equation)
        if meter is not None:
            tracked = meter(tracked, id_column, self.proof)
        if has_corrupt_records(messages):
            tracked = fail_corrupt_records(self.proof, tracked)
        try:
            pipeline(tracker, tracked if shown_id is None else tracked.drop(id_column))
        finally:
            self.proof.wait_for_actions()
        self.proof.check_covered()

    def release(self) -> None:
        """Let go of what Spark keeps for this run."""
        self.outputs.release()
        self.proof.forget()


def names(app: str, run_id: str, number: int) -> tuple[str, str]:
    """Return the key of an emission, and the tag of its jobs."""
    key = f"{app}:{run_id}:{number}"
    return key, f"acker:{key}".replace(",", "_")
