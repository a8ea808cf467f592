"""Run one emission: track its messages, run the pipeline over them, and close their roots."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol

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
from acker_redis.spark.emission.late_messages import LateMessages
from acker_redis.spark.emission.once_output import OnceOutput
from acker_redis.spark.emission.operator_health import OperatorHealth, Verdict, with_retries
from acker_redis.spark.emission.outages import mark_outages, without_outages
from acker_redis.spark.emission.pipeline_run import Pipeline, PipelineRun, names
from acker_redis.spark.emission.roots import EmissionRoots, counts_of, salts, shares_of
from acker_redis.spark.emission.whole_output import WholeOutput
from acker_redis.spark.proof.blame import Blame, blame_of, forget, line_of, outage_of, place_of, sink_of
from acker_redis.spark.proof.numbered_files import NumberedFiles
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.runtime.interrupts import Cancellation
from acker_redis.spark.runtime.jobs import JobLimit, counted, ended_after, running
from acker_redis.spark.runtime.sessions import activate
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.replaced_sources import WrittenTables
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.outage_table import ANY_OPERATOR
from acker_redis.spout.spout import Spout

log = logging.getLogger("acker_redis.spark")

MISTAKES = (PipelineError, BadBatchError, BadConfigError, InexactPipelineError, OutputNotWrittenError)
"""Errors that no retry can fix."""


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
        once_output: output of which a publish log has each message's rows once; None: sinks write themselves.
        shown_id: columns that identify a message for the pipeline, which doesn't see `id_column` then. None: it sees that.
        tables: what the sinks read and write, if they don't write as a whole.
        files: files of the messages, if the ids number rows in their order.
        cancellation: what ends the jobs of the emission that runs.
    """

    spout: Spout
    pipeline: Pipeline
    id_column: str
    health: OperatorHealth
    url: str | None = field(repr=False)  # may hold a password
    timeout_secs: float | None = None
    whole_output: WholeOutput | None = None
    shown_id: tuple[str, ...] | None = None
    once_output: OnceOutput | None = None
    tables: WrittenTables = field(default_factory=WrittenTables)
    files: NumberedFiles | None = None
    cancellation: Cancellation = field(default_factory=Cancellation, init=False)
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
        tag, salt = self._tag_and_salt_of(emission)
        late = LateMessages(
            self.spout, emission, salt, source.read_all_ids, self.health.expect, spark, tag, self.timeout_secs
        )
        self._run(late, source, source.all_messages(), tag)

    def run(self, emission: Emission, source: MessageSource, spark: SparkSession, batch_id: int | None = None) -> None:
        """Run one emission.

        Raises:
            Exception: the emission failed. Its roots were failed, unless the server is unavailable.
        """
        activate(spark)
        tag, salt = self._tag_and_salt_of(emission)
        if self.once_output is not None and len(emission.roots):
            emission = self.once_output.ack_done(emission)
            if not len(emission.roots):
                return
        try:
            with own_errors():
                messages, emission = source.messages_of(emission)
        except Exception as exc:
            self.spout.marks.exempt(emission.roots)
            _raise_for_spout(exc, blame_of(exc, spark, tag))
        self._run(EmissionRoots(self.spout, emission, shares_of(salt, emission)), source, messages, tag, batch_id)

    def _tag_and_salt_of(self, emission: Emission) -> tuple[str, str]:
        """Return the tag of an emission's jobs, and the salt of its shares."""
        app, run_id = self.spout.acker.config.app, self.spout.run_id
        return names(app, run_id, emission.number)[1], salts(app, run_id, emission.number)[1]

    def _run(
        self,
        under_way: EmissionRoots | LateMessages,
        source: MessageSource,
        messages: DataFrame,
        tag: str,
        batch_id: int | None = None,
    ) -> None:
        spark, breakage = messages.sparkSession, _Breakage(self.spout, under_way)
        # The spout waits for the end of an outage, and ends the run after a mistake.
        with (
            breakage.raised_for_spout(),
            ExitStack() as releasing,
            running(spark, tag),
            self.cancellation.of(spark, tag),
            counted(spark, counts_of(self.spout)) if isinstance(under_way, EmissionRoots) else nullcontext(),
            under_way,
            breakage.marked(spark, tag),
            own_errors(),
            ended_after(spark, tag, self.timeout_secs) as limit,
        ):
            breakage.limit = limit
            releasing.callback(forget, tag)
            if self.once_output is not None:
                releasing.callback(self.once_output.tables.drop_stages, under_way.emission)
            verdict = self._process(under_way, source, messages, tag, batch_id, releasing, breakage)
        if verdict.broken is not None:
            raise verdict.broken

    def _process(
        self,
        under_way: EmissionRoots | LateMessages,
        source: MessageSource,
        messages: DataFrame,
        tag: str,
        batch_id: int | None,
        releasing: ExitStack,
        breakage: "_Breakage",
    ) -> Verdict:
        """Run the pipeline, and close the emission's roots or write its output."""
        whole = self.whole_output
        trying = nullcontext(False) if whole is None else whole.trying(under_way.emission, messages.sparkSession, tag)
        with trying as is_whole:
            if whole is not None and whole.written:
                whole.acknowledge(under_way.roots)
                return Verdict(under_way.emission.roots[:0])
            source.keep_messages(under_way.emission)
            run = self._prove(under_way, messages, batch_id, releasing)
            if run.outputs.tables is not None:
                self.tables.add_compared(run.outputs.tables)
            if self.files is not None:
                self.files.check()
            emission, roots = under_way.emission, under_way.roots
            verdict, failed, counts = self._judge(emission, run.proof)
            if self.once_output is not None:
                self.once_output.complete(emission, run.outputs, failed, roots, breakage.note_decides)
                return verdict
            if whole is None:
                roots.complete(failed)
                return verdict
            error = whole.complete(emission, run.outputs, failed, roots, run.proof, is_whole=is_whole, counts=counts)
            return verdict if error is None else verdict._replace(broken=error)

    def _prove(
        self,
        under_way: EmissionRoots | LateMessages,
        messages: DataFrame,
        batch_id: int | None,
        releasing: ExitStack,
    ) -> PipelineRun:
        """Run the pipeline until its sinks are proven.

        Where Spark doesn't tell whether it ran a task twice, a wrong sum is tried once more with the same messages. Their
        shares differ then, so that the same fault has another sum. Rows that were exported can't be taken back, so then the
        spout emits the messages again.
        """
        emission, spark = under_way.emission, messages.sparkSession
        run = self._pipeline_run(emission, spark, releasing)
        try:
            self._prove_run(run, under_way, messages, batch_id)
        except UnprovenEmissionError as exc:
            if not run.proof.may_repeat:
                raise
            log.warning("not proven, will run the pipeline once more run_id=%s error=%s", self.spout.run_id, exc)
        else:
            self._mismatched.clear()
            return run
        again = self._pipeline_run(emission, spark, releasing, repeat=1)
        self._prove_run(again, under_way, messages, batch_id)
        self._mismatched.clear()
        return again

    def _pipeline_run(
        self, emission: Emission, spark: SparkSession, releasing: ExitStack, repeat: int = 0
    ) -> PipelineRun:
        spout = self.spout
        run = PipelineRun(
            spark, emission, spout.acker.config.app, spout.run_id,
            self._outputs_of(emission),
            repeat=repeat, name_component=app_of(spout.acker).ledger.component_number, mismatched=self._mismatched,
        )  # fmt: skip
        releasing.callback(run.release)
        return run

    def _outputs_of(self, emission: Emission) -> Outputs:
        if self.once_output is not None:
            return replace(self.once_output.tables.outputs_of(emission), tables=self.tables.of_emission())
        return Outputs(tables=self.tables.of_emission()) if self.whole_output is None else Outputs("whole")

    def _prove_run(
        self, run: PipelineRun, under_way: EmissionRoots | LateMessages, messages: DataFrame, batch_id: int | None
    ) -> None:
        run.prove(
            self.pipeline, messages, self.id_column,
            batch_id=batch_id, shown_id=self.shown_id,
            origin=Origin(self.url, self.spout.acker, lambda: under_way.roots.initialise()),
            meter=under_way.metered if isinstance(under_way, LateMessages) else None,
        )  # fmt: skip

    def _judge(self, emission: Emission, proof: Proof) -> tuple[Verdict, list[Failure], bool]:
        """Tell the spout which failures are the fault of an operator or an outage.

        Returns:
            The verdict, all failures, and whether the emission counts: rows failed by other causes than outages, or none did.
        """
        marks, failed = self.spout.marks, proof.failures()
        at_fault = without_outages(failed, self.spout.retry)
        verdict = self.health.judge(
            emission, at_fault, proof.processed, is_last=not self.spout.state.fresh, has_written=proof.has_written
        )
        marks.exempt(verdict.exempt)
        for operator in verdict.working:
            marks.bring_back(operator)
        for branch in verdict.branches:
            marks.set_aside(branch.roots, branch.operator, branch.error)
        mark_outages(marks, emission, failed, at_fault, proof.processed)
        proof.check_none_late()
        return verdict, with_retries(failed, verdict.exempt), bool(at_fault) or not failed


class _Breakage:
    """Why an emission broke. It is found before its roots fail, and decides which error the spout gets at the end.

    Attributes:
        limit: time limit of the emission's jobs; None: it hasn't begun.
    """

    def __init__(self, spout: Spout, under_way: EmissionRoots | LateMessages) -> None:
        self._spout, self._under_way = spout, under_way
        self._blame: Blame | None = None
        self._is_decided = False
        self.limit: JobLimit | None = None

    def note_decides(self, *, begins: bool) -> None:
        """Note that a record is put, so that no row is to blame for what follows, and no job is cancelled any more.

        Args:
            begins: False if no record was put after all.
        """
        self._is_decided = begins
        if self.limit is not None:
            (self.limit.end if begins else self.limit.begin)()

    @contextmanager
    def marked(self, spark: SparkSession, tag: str) -> Iterator[None]:
        """Mark the emission's messages if it breaks. It is no attempt unless a message may be to blame."""
        try:
            yield
        except Exception as exc:
            marks, emission = self._spout.marks, self._under_way.known_emission()
            if self._is_decided:
                marks.exempt(emission.roots)
                raise
            self._blame = blame = blame_of(exc, spark, tag)
            if len(emission.roots) and blame.in_a_job:
                by_outage = blame is Blame.OUTAGE_IN_A_JOB
                outage = outage_of(exc) if by_outage else None
                waits = outage is not None and self._spout.retry.waits_for(outage.text)
                waits_for = (sink_of(exc) or ANY_OPERATOR) if waits else None
                marks.search_for_poison(emission, by_outage=by_outage, waits_for=waits_for, error=line_of(exc))
            else:
                marks.exempt(emission.roots)
            raise

    @contextmanager
    def raised_for_spout(self) -> Iterator[None]:
        """Raise the error that the spout gets, also if Spark's end breaks what follows."""
        try:
            yield
        except Exception as exc:
            if self._blame is None:
                raise
            _raise_for_spout(exc, self._blame)


def _raise_for_spout(error: Exception, blame: Blame) -> NoReturn:
    raised = _error_for_spout(error, blame)
    if raised is error:
        raise error
    raise raised from error


def _error_for_spout(error: Exception, blame: Blame) -> Exception:
    """Convert an error into the one that the spout gets, shortened to one line if that is enough."""
    if isinstance(error, (ServerUnavailableError, UnprovenEmissionError, *MISTAKES)):
        return error
    if blame is Blame.PIPELINE:
        gone = "Spark's JVM exited or its context was stopped. Waiting can't fix that. Restart the program."
        return AckerError(f"{gone} Spark's error: {line_of(error)}") if is_outage(error) else error
    place = place_of(error)
    text = line_of(error) if place is None else f"{line_of(error)} (in {place!r})"
    return JobFailedError(text) if blame is Blame.ROWS else OutageError(text, place=place or "")
