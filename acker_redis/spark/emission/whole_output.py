"""Output written as a whole, by an emission of all remaining messages in which nothing failed."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from pyspark.sql import SparkSession

from acker_redis.acker import app_of
from acker_redis.errors import (
    AckerError,
    OutageError,
    OutputNotWrittenError,
    ServerUnavailableError,
    UnprovenEmissionError,
)
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.proof.blame import Blame, blame_of, is_mistake, line_of
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.runtime.worker_errors import acker_error_in
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout

log = logging.getLogger("acker_redis.spark")

DEFAULT_SHARE = 0.5
"""Share of messages that may be dead letters if the user sets no limit. More is a mistake in the program or its input."""

EXTRA_EMISSIONS = 2
"""Emissions that may be refused beyond a message's attempts: one finds the failing messages, one is spare."""


@dataclass
class WholeOutput:
    """Write the output of one run once, in an emission in which nothing failed.

    Attributes:
        spout: spout of the run.
        messages: number of messages of the source.
        max_dead_letters: largest number of dead letters, or as a float their share of all messages. None: `DEFAULT_SHARE`.
        written: whether the output was written. Later emissions have messages whose acks were lost, and only ack them.
        refused: number of emissions of all remaining messages that were refused, without outages.
        begun: sinks that have started to write -> their texts.
        replaced: those of them that have written all their rows, in this emission or an earlier one.
    """

    spout: Spout
    messages: int
    max_dead_letters: float | None = None
    written: bool = False
    refused: int = 0
    begun: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Number of refused emissions that ends the run with an error."""
        retry = self.spout.retry
        return max(policy.max_attempts for policy in (retry, *retry.by_reason.values())) + EXTRA_EMISSIONS

    @property
    def delay_secs(self) -> float:
        """Delay before the next emission of all messages, in seconds."""
        return float(self.spout.retry.delay_secs(np.array([max(1, self.refused)]))[0])

    @contextmanager
    def trying(self, emission: Emission, spark: SparkSession, tag: str) -> Iterator[bool]:
        """Wrap an emission. Yields whether its output may be written; counts it as refused if it breaks.

        Raises:
            OutputNotWrittenError: too many emissions were refused.
        """
        is_whole = self.spout.state.is_whole(emission)
        try:
            yield is_whole
        except (ServerUnavailableError, OutputNotWrittenError):
            raise
        except Exception as exc:
            blame = blame_of(exc, spark, tag)
            if is_whole and blame in (Blame.ROWS, Blame.PIPELINE):
                self._refuse(line_of(exc))
                if blame is Blame.PIPELINE and self.replaced and not is_mistake(exc, spark):
                    raise OutageError(line_of(exc)) from exc  # else outputs of two runs would be left beside each other
            raise

    def complete(
        self,
        emission: Emission,
        outputs: Outputs,
        failed: Sequence[Failure],
        roots: EmissionRoots,
        proof: Proof,
        *,
        is_whole: bool,
        counts: bool,
    ) -> OutageError | None:
        """Write the output and ack the messages if all succeeded; else fail the failed ones and hold the others back.

        `counts` is False if rows failed by outages alone. The emission is then not counted as refused.

        Returns:
            The outage that kept a sink from writing, which the run waits for; None if there was none.

        Raises:
            OutputNotWrittenError: too many emissions were refused.
        """
        if failed or not is_whole or not self.spout.state.accept(emission):
            if is_whole and counts:
                self._refuse(_cause_of(failed))
            roots.release(failed)
            return None
        writing = ""
        try:
            outputs.check()
            for sink in outputs.late:
                writing = sink.name
                self.begun[writing] = sink.text
                sink.write()
                self.replaced[writing] = sink.text
        except Exception as exc:
            # No search for a poison message: the output is made of all messages.
            blame = blame_of(exc, proof.session, proof.job_tag)
            is_retried = blame.in_a_job or isinstance(acker_error_in(exc), UnprovenEmissionError)
            if blame is Blame.PIPELINE and self.begun.keys() - {writing}:
                # Outputs of two runs would be left beside each other.
                is_retried |= not is_mistake(exc, proof.session)
            if not is_retried:
                raise
            cause = line_of(exc)
            if blame is Blame.OUTAGE_IN_A_JOB:
                roots.release([])
                return OutageError(cause)
            self._refuse(cause)
            log.warning("could not write the output, will retry run_id=%s error=%s", self.spout.run_id, cause)
            roots.release([], self.delay_secs)
            return None
        self.written = True
        self.acknowledge(roots)
        return None

    def acknowledge(self, roots: EmissionRoots) -> None:
        """Ack messages that the output has. Its letters are part of it now, and replace those of runs that wrote none.

        Raises:
            AckerError: as `EmissionRoots.complete`.
        """
        spout = self.spout
        removed = app_of(spout.acker).output_written(spout.run_id, spout.spout_id)
        if removed:
            log.info("removed dead letters of earlier runs without output run_id=%s letters=%d", spout.run_id, removed)
        roots.complete([])

    def check_dead_letters(self) -> None:
        """Check that not too many messages are dead letters, once all outcomes of an emission have arrived.

        Call it after each poll, so that it comes before the next emission. Letters are stored then.

        A mistake such as a wrong schema, or a broken input, must not replace the output with a few rows.

        Raises:
            OutputNotWrittenError: every message is a dead letter, or more than `max_dead_letters`.
        """
        dead, share = self.spout.counts.dead_lettered, self.max_dead_letters
        if not dead or self.written or self.spout.pending:
            return
        advice = f"{self._state} Inspect the dead letters, fix their cause, and run again"
        if dead == self.messages:
            raise OutputNotWrittenError(
                f"All {dead:,} messages are dead letters, so the output would be empty. {advice}."
            )
        setting = "the default of max_dead_letters, half of them," if share is None else f"max_dead_letters={share}"
        share = DEFAULT_SHARE if share is None else share
        # a float times a number may be just below an integer
        most = share if isinstance(share, int) else math.floor(Fraction(str(float(share))) * self.messages)
        if dead > most:
            raise OutputNotWrittenError(
                f"{dead:,} of {self.messages:,} messages are dead letters, but {setting} accepts {most:,}, so "
                f"the output would lack too many rows. {advice}, or set max_dead_letters to accept them."
            )

    @contextmanager
    def naming_sinks(self) -> Iterator[None]:
        """Add the sinks that have written to an error that ends the run and doesn't name them."""
        try:
            yield
        except BaseException as exc:
            if self.begun and not self.written and self._state not in str(exc):
                if isinstance(exc, AckerError):
                    exc.args = (f"{str(exc).removesuffix('.')}. {self._state}",)
                else:
                    exc.add_note(self._state)
            raise

    @property
    def _state(self) -> str:
        """Sentences about what the run has written."""
        if not self.begun:
            return "Nothing was written, and output of an earlier run was kept."
        incomplete = [text for name, text in self.begun.items() if name not in self.replaced]
        return (
            (f"Already replaced in this run: {', '.join(self.replaced.values())}. " if self.replaced else "")
            + (f"Possibly incomplete: {', '.join(incomplete)}. " if incomplete else "")
            + "Run it again to write all sinks."
        )

    def _refuse(self, cause: str) -> None:
        self.refused += 1
        if self.refused >= self.limit:
            raise OutputNotWrittenError(
                f"The output could not be written as a whole, because each of {self.refused} emissions of all remaining "
                f"messages failed. Nothing was acked. {self._state} Repair the last cause first. It was: {cause}"
            )


def _cause_of(failed: Sequence[Failure]) -> str:
    if not failed:
        return "messages were lost or timed out while the emission ran"
    return f"{next(iter(failed[0].reasons)).text} (in {failed[0].component!r})"
