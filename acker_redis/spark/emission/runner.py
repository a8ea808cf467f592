"""Run one emission: track its messages, run the pipeline over them, and close their roots."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import app_of
from acker_redis.client.backoff import is_outage
from acker_redis.errors import (
    AckerError,
    BadBatchError,
    BadConfigError,
    JobFailedError,
    NotAcceptedError,
    NotExactError,
    NotProvenError,
    OutageError,
    PipelineError,
    ServerUnavailableError,
)
from acker_redis.spark.emission.corrupt_records import fail_corrupt_records, has_corrupt_records
from acker_redis.spark.emission.evidence import OperatorEvidence, Verdict
from acker_redis.spark.emission.messages import as_json
from acker_redis.spark.emission.roots import EmissionRoots, salts, shares_of
from acker_redis.spark.emission.whole_output import WholeOutput
from acker_redis.spark.operators import tracking
from acker_redis.spark.proof.blame import Blame, blame_of, forget, line_of
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import shares
from acker_redis.spark.runtime.jobs import counted, ended_after, running
from acker_redis.spark.runtime.jvm import java_class
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.tracker import Tracker
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout

MISTAKES = (PipelineError, BadBatchError, BadConfigError, NotExactError, NotAcceptedError)
"""Errors that no retry can fix."""

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Function with the operators and sinks of a pipeline, called per emission with a tracker and the tracked messages."""


class MessageSource(Protocol):
    """Provide the messages of emissions."""

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, and the emission without messages that are gone."""

    def keep_messages(self, emission: Emission) -> None:
        """Store the emission's messages if replays need them; called while their roots are initialised."""


@dataclass(frozen=True)
class EmissionRunner:
    """Run the emissions of one spout.

    Attributes:
        spout: spout of the run.
        pipeline: function that runs once per emission.
        id_column: name of the message id column.
        evidence: evidence of which operators of the run work.
        url: URL of the acker's server for executors.
        timeout_secs: time limit for the jobs of an emission, in seconds; None: no limit.
        whole_output: output that is written as a whole; None: output is written by message.
        dead_letter_bytes: longest payload of an unreadable message, which arrives with its failure, in bytes.
        failed_payloads: dict that receives these payloads by message id; None: they are dropped.
    """

    spout: Spout
    pipeline: Pipeline
    id_column: str
    evidence: OperatorEvidence
    url: str | None = field(repr=False)  # may hold a password
    timeout_secs: float | None = None
    whole_output: WholeOutput | None = None
    dead_letter_bytes: int = 0
    failed_payloads: dict[int, bytes] | None = None

    def run(self, emission: Emission, source: MessageSource, spark: SparkSession, batch_id: int | None = None) -> None:
        """Run one emission.

        Raises:
            Exception: the emission failed. Its roots were failed, unless the server is unavailable.
        """
        spout = self.spout
        app = spout.acker.config.app
        _activate(spark)
        key = f"{app}:{spout.run_id}:{emission.number}"
        tag = f"acker:{key}".replace(",", "_")
        try:
            with own_errors():
                messages, emission = source.messages_of(emission)
        except Exception as exc:
            spout.marks.exempt(emission.roots)
            error = _error_for_spout(exc, blame_of(exc, spark, tag))
            if error is exc:
                raise
            raise error from exc
        blame: list[Blame] = []
        try:
            verdict = self._run(emission, source, messages, key, tag, batch_id, blame)
        except Exception as exc:
            if not blame:
                raise
            error = _error_for_spout(exc, blame[0])
            if error is exc:
                raise
            raise error from exc
        if verdict.broken is not None:
            raise verdict.broken

    def _run(
        self,
        emission: Emission,
        source: MessageSource,
        messages: DataFrame,
        key: str,
        tag: str,
        batch_id: int | None,
        blame: list[Blame],
    ) -> Verdict:
        spout, spark = self.spout, messages.sparkSession
        acker, app = spout.acker, spout.acker.config.app
        of_emission = salts(app, spout.run_id, emission.number)
        own = shares_of(of_emission[1], emission)
        proof = Proof(spark, key, shares.total(own), len(own), tag, app_of(acker).ledger.component_number)
        outputs = Outputs("by_message" if self.whole_output is None else "whole")
        tracker = Tracker(
            spout.run_id, emission.number, batch_id,
            _proof=proof, _origin=Origin(self.url, acker), _id_column=self.id_column, _outputs=outputs,
        )  # fmt: skip
        try:
            # The spout waits for the end of an outage, and ends the run after a mistake.
            with (
                running(spark, tag),
                counted(spark, {"pending": spout.pending, "left": spout.state.left, **asdict(spout.counts)}),
                EmissionRoots(spout, emission, own) as roots,
                _blaming(spout, emission, spark, tag, blame),
                own_errors(),
                ended_after(spark, tag, self.timeout_secs),
                nullcontext(False)
                if self.whole_output is None
                else self.whole_output.trying(emission, spark, tag) as is_whole,
            ):
                if self.whole_output is not None and self.whole_output.written:
                    roots.complete([])  # the output has these messages
                    return Verdict(emission.roots[:0])
                source.keep_messages(emission)
                equation = Equation(key, proof.add_operator("spout", "spout", []).name)
                tracked = tracking.tracked(messages, self.id_column, of_emission, equation)
                if has_corrupt_records(messages):
                    is_wanted = bool(self.dead_letter_bytes) and self.failed_payloads is not None
                    payload = as_json(self.dead_letter_bytes, messages.columns) if is_wanted else None
                    tracked = fail_corrupt_records(tracker, tracked, payload)
                self.pipeline(tracker, tracked)
                proof.check_covered()
                failed = proof.failures()
                self._take_payloads(emission, failed)
                verdict = self.evidence.judge(emission, failed, proof.processed, is_last=not spout.state.fresh)
                spout.marks.exempt(verdict.exempt)
                if self.whole_output is None:
                    roots.complete(failed)
                elif (
                    error := self.whole_output.complete(emission, outputs, failed, roots, proof, is_whole=is_whole)
                ) is not None:
                    return verdict._replace(broken=error)
                return verdict
        finally:
            outputs.release()
            proof.forget()
            forget(tag)

    def _take_payloads(self, emission: Emission, failed: Sequence[Failure]) -> None:
        if self.failed_payloads is None:
            return
        by_root = {root: payload for failure in failed for root, payload in failure.payloads.items()}
        if by_root:
            own = np.isin(emission.roots.view(np.int64), np.array(list(by_root), np.int64))
            roots, ids = emission.roots.view(np.int64)[own].tolist(), emission.message_ids[own].tolist()
            self.failed_payloads.update((message, by_root[root]) for message, root in zip(ids, roots, strict=True))


@contextmanager
def _blaming(spout: Spout, emission: Emission, spark: SparkSession, tag: str, blame: list[Blame]) -> Iterator[None]:
    """Find the cause of a broken emission before its roots fail. It is no attempt unless a message may be to blame."""
    try:
        yield
    except Exception as exc:
        blame.append(blame_of(exc, spark, tag))
        if len(emission.roots) and blame[0].in_a_job:
            spout.marks.search_for_poison(emission, by_outage=blame[0] is Blame.OUTAGE_IN_A_JOB)
        else:
            spout.marks.exempt(emission.roots)
        raise


def _error_for_spout(error: Exception, blame: Blame) -> Exception:
    """Convert an error into the one that the spout gets, shortened to one line if that is enough."""
    if isinstance(error, (ServerUnavailableError, NotProvenError, *MISTAKES)):
        return error
    if blame is Blame.PIPELINE:
        gone = "Spark's JVM exited or its context was stopped. Waiting can't fix that. Restart the program."
        return AckerError(f"{gone} Spark's error: {line_of(error)}") if is_outage(error) else error
    kind = JobFailedError if blame is Blame.ROWS else OutageError
    return kind(line_of(error))


def _activate(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread. Spark looks there for Python data sources."""
    java = getattr(spark, "_jsparkSession", None)
    if java is not None:  # else Spark Connect
        java_class(spark.sparkContext, "org.apache.spark.sql.classic.SparkSession").setActiveSession(java)
