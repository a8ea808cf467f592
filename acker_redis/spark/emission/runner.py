"""Run one emission: track its messages, run the pipeline over them, and close their roots."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import app_of
from acker_redis.errors import (
    AckerError,
    BadBatchError,
    BadConfigError,
    InexactPipelineError,
    JobFailedError,
    OutageError,
    OutputNotWrittenError,
    PipelineError,
    ServerUnavailableError,
    StoppedError,
    UnprovenEmissionError,
)
from acker_redis.model.arrays import Int64Array
from acker_redis.outages import is_outage
from acker_redis.spark.emission.corrupt_records import fail_corrupt_records, has_corrupt_records
from acker_redis.spark.emission.late_messages import LateMessages
from acker_redis.spark.emission.operator_health import OperatorHealth, Verdict, with_retries
from acker_redis.spark.emission.outages import mark_outages, without_outages
from acker_redis.spark.emission.roots import EmissionRoots, counts_of, salts, shares_of
from acker_redis.spark.emission.whole_output import WholeOutput
from acker_redis.spark.operators import tracking
from acker_redis.spark.proof.blame import Blame, blame_of, forget, line_of, outage_of, sink_of
from acker_redis.spark.proof.equation import Equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import shares
from acker_redis.spark.runtime.jobs import counted, ended_after, running
from acker_redis.spark.runtime.sessions import activate
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.tracker import Tracker
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.outage_table import ANY_OPERATOR
from acker_redis.spout.spout import Spout

log = logging.getLogger("acker_redis.spark")

MISTAKES = (PipelineError, BadBatchError, BadConfigError, InexactPipelineError, OutputNotWrittenError)
"""Errors that no retry can fix."""

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Function with the operators and sinks of a pipeline, called per emission with a tracker and the tracked messages."""


class MessageSource(Protocol):
    """Provide the messages of emissions."""

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, and the emission without messages that are gone."""

    def keep_messages(self, emission: Emission) -> None:
        """Store the emission's messages if replays need them; called while their roots are initialised."""


class UnreadSource(MessageSource, Protocol):
    """Provide all messages of a source, whose ids aren't known."""

    def all_messages(self) -> DataFrame:
        """Return the rows of all messages."""

    def read_all_ids(self) -> Int64Array:
        """Read the ids of all messages."""


@dataclass(frozen=True)
class EmissionRunner:
    """Run the emissions of one spout.

    Attributes:
        spout: spout of the run.
        pipeline: function that runs once per emission.
        id_column: name of the message id column.
        health: which operators of the run work.
        url: URL of the acker's server for executors.
        timeout_secs: time limit for the jobs of an emission, in seconds; None: no limit.
        whole_output: output that is written as a whole; None: output is written by message.
        shown_id: columns that identify a message for the pipeline, which doesn't see `id_column` then. None: it sees that.
    """

    spout: Spout
    pipeline: Pipeline
    id_column: str
    health: OperatorHealth
    url: str | None = field(repr=False)  # may hold a password
    timeout_secs: float | None = None
    whole_output: WholeOutput | None = None
    shown_id: tuple[str, ...] | None = None
    _mismatched: set[str] = field(default_factory=set, init=False)

    def run_unread(self, emission: Emission, source: UnreadSource, spark: SparkSession) -> None:
        """Run an emission of all messages of a source, whose ids become known meanwhile. The session is a classic one.

        Raises:
            StoppedError: the run is ending, so nobody waits for these messages. Nothing was read.
            Exception: as `run`, or the ids can't be read.
        """
        if not self.spout.state.unread:
            raise StoppedError("The run ended before its first emission had begun.")
        activate(spark)
        key, tag = self._key_of(emission)
        salt = salts(self.spout.acker.config.app, self.spout.run_id, emission.number)[1]
        late = LateMessages(
            self.spout, emission, salt, source.read_all_ids, self.health.expect, spark, tag, self.timeout_secs
        )
        self._run_blaming(late, source, source.all_messages(), key, tag, None)

    def run(self, emission: Emission, source: MessageSource, spark: SparkSession, batch_id: int | None = None) -> None:
        """Run one emission.

        Raises:
            Exception: the emission failed. Its roots were failed, unless the server is unavailable.
        """
        spout = self.spout
        activate(spark)
        key, tag = self._key_of(emission)
        try:
            with own_errors():
                messages, emission = source.messages_of(emission)
        except Exception as exc:
            spout.marks.exempt(emission.roots)
            error = _error_for_spout(exc, blame_of(exc, spark, tag))
            if error is exc:
                raise
            raise error from exc
        own = shares_of(salts(spout.acker.config.app, spout.run_id, emission.number)[1], emission)
        self._run_blaming(EmissionRoots(spout, emission, own), source, messages, key, tag, batch_id)

    def _key_of(self, emission: Emission) -> tuple[str, str]:
        """Return the key of an emission, and the tag of its jobs."""
        key = f"{self.spout.acker.config.app}:{self.spout.run_id}:{emission.number}"
        return key, f"acker:{key}".replace(",", "_")

    def _run_blaming(
        self,
        roots: EmissionRoots | LateMessages,
        source: MessageSource,
        messages: DataFrame,
        key: str,
        tag: str,
        batch_id: int | None,
    ) -> None:
        """Run an emission, and raise its error as the spout gets it."""
        blame: list[Blame] = []
        try:
            verdict = self._run(roots, source, messages, key, tag, batch_id, blame)
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
        under_way: EmissionRoots | LateMessages,
        source: MessageSource,
        messages: DataFrame,
        key: str,
        tag: str,
        batch_id: int | None,
        blame: list[Blame],
    ) -> Verdict:
        spout, spark = self.spout, messages.sparkSession
        tries: list[_Try] = []
        try:
            # The spout waits for the end of an outage, and ends the run after a mistake.
            with (
                running(spark, tag),
                counted(spark, counts_of(spout)) if isinstance(under_way, EmissionRoots) else nullcontext(),
                under_way,
                _blaming(spout, under_way, spark, tag, blame),
                own_errors(),
                ended_after(spark, tag, self.timeout_secs),
                nullcontext(False)
                if self.whole_output is None
                else self.whole_output.trying(under_way.emission, spark, tag) as is_whole,
            ):
                if self.whole_output is not None and self.whole_output.written:
                    self.whole_output.acknowledge(under_way.roots)
                    return Verdict(under_way.emission.roots[:0])
                source.keep_messages(under_way.emission)
                proof, outputs = self._prove(under_way, messages, key, tag, batch_id, tries)
                emission, roots = under_way.emission, under_way.roots
                self._mismatched.clear()
                failed = proof.failures()
                at_fault = without_outages(failed, spout.retry)
                verdict = self.health.judge(
                    emission, at_fault, proof.processed, is_last=not spout.state.fresh, has_written=proof.has_written
                )
                spout.marks.exempt(verdict.exempt)
                for operator in verdict.working:
                    spout.marks.bring_back(operator)
                for branch in verdict.branches:
                    spout.marks.set_aside(branch.roots, branch.operator, branch.error)
                mark_outages(spout.marks, emission, failed, at_fault, proof.processed)
                failed = with_retries(failed, verdict.exempt)
                proof.check_none_late()
                if self.whole_output is None:
                    roots.complete(failed)
                elif (
                    error := self.whole_output.complete(
                        emission, outputs, failed, roots, proof, is_whole=is_whole, counts=bool(at_fault) or not failed
                    )
                ) is not None:
                    return verdict._replace(broken=error)
                return verdict
        finally:
            for proof, outputs in tries:
                outputs.release()
                proof.forget()
            forget(tag)

    def _prove(
        self,
        under_way: EmissionRoots | LateMessages,
        messages: DataFrame,
        key: str,
        tag: str,
        batch_id: int | None,
        tries: "list[_Try]",
    ) -> "_Try":
        """Run the pipeline until its sinks are proven.

        Where Spark doesn't tell whether it ran a task twice, a wrong sum is tried once more with the same messages. Their
        shares differ then, so that the same fault has another sum. Rows that were exported can't be taken back, so then the
        spout emits the messages again.
        """
        spout, app, emission = self.spout, self.spout.acker.config.app, under_way.emission
        name_component = app_of(spout.acker).ledger.component_number
        while True:
            repeat = len(tries)
            of_try = salts(app, spout.run_id, emission.number, repeat)
            own = shares_of(of_try[1], emission)
            key_of_try = f"{key}.{repeat}" if repeat else key
            proof = Proof(
                messages.sparkSession, key_of_try, shares.total(own), len(own), tag, name_component, self._mismatched
            )
            outputs = Outputs("by_message" if self.whole_output is None else "whole")
            tries.append(_Try(proof, outputs))
            origin = Origin(self.url, spout.acker, lambda: under_way.roots.initialise())
            tracker = Tracker(
                spout.run_id, emission.number, batch_id,
                _proof=proof, _origin=origin, _outputs=outputs,
                _id_columns=self.shown_id or (self.id_column,),
            )  # fmt: skip
            equation = Equation(key_of_try, proof.add_operator("spout", "spout", []).name)
            tracked = tracking.tracked(messages, self.id_column, of_try, equation)
            if isinstance(under_way, LateMessages):
                tracked = under_way.metered(tracked, self.id_column, proof)
            if has_corrupt_records(messages):
                tracked = fail_corrupt_records(proof, tracked)
            try:
                try:
                    self.pipeline(tracker, tracked if self.shown_id is None else tracked.drop(self.id_column))
                finally:
                    proof.wait_for_actions()
                proof.check_covered()
            except UnprovenEmissionError as exc:
                if repeat or not proof.may_repeat:
                    raise
                log.warning("not proven, will run the pipeline once more run_id=%s error=%s", spout.run_id, exc)
            else:
                return tries[-1]


class _Try(NamedTuple):
    """One run of the pipeline over the messages of an emission."""

    proof: Proof
    outputs: Outputs


@contextmanager
def _blaming(
    spout: Spout, under_way: EmissionRoots | LateMessages, spark: SparkSession, tag: str, blame: list[Blame]
) -> Iterator[None]:
    """Find the cause of a broken emission before its roots fail. It is no attempt unless a message may be to blame."""
    try:
        yield
    except Exception as exc:
        cause = blame_of(exc, spark, tag)
        emission = under_way.known_emission()
        blame.append(cause)
        if len(emission.roots) and blame[0].in_a_job:
            by_outage = blame[0] is Blame.OUTAGE_IN_A_JOB
            outage = outage_of(exc) if by_outage else None
            waits = outage is not None and spout.retry.waits_for(outage.text)
            waits_for = (sink_of(exc) or ANY_OPERATOR) if waits else None
            spout.marks.search_for_poison(emission, by_outage=by_outage, waits_for=waits_for)
        else:
            spout.marks.exempt(emission.roots)
        raise


def _error_for_spout(error: Exception, blame: Blame) -> Exception:
    """Convert an error into the one that the spout gets, shortened to one line if that is enough."""
    if isinstance(error, (ServerUnavailableError, UnprovenEmissionError, *MISTAKES)):
        return error
    if blame is Blame.PIPELINE:
        gone = "Spark's JVM exited or its context was stopped. Waiting can't fix that. Restart the program."
        return AckerError(f"{gone} Spark's error: {line_of(error)}") if is_outage(error) else error
    kind = JobFailedError if blame is Blame.ROWS else OutageError
    return kind(line_of(error))
