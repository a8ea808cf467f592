"""Output that is a whole: written by an emission of all messages that are left, in which nothing failed; others only try."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from pyspark.sql import SparkSession

from acker_redis.errors import NotAcceptedError, NotProvenError, OutageError, ServerUnavailableError
from acker_redis.spark.emission.roots import EmissionRoots
from acker_redis.spark.proof.blame import Blame, blame_of, line_of
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.runtime.worker_errors import acker_error_in
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout

log = logging.getLogger("acker_redis.spark")

EXTRA_EMISSIONS = 2
"""Emissions that may be refused beyond the attempts of a message: one finds those that fail, one is spare."""


@dataclass
class WholeOutput:
    """Write the output of one run once, when nothing failed.

    Attributes:
        spout: of the run.
        written: whether the output was written. Emissions after that are of messages whose acks got lost: they only ack.
        refused: emissions of all messages that were left, which were not accepted; outages are not among them.
        begun: whether a sink has begun to write.
    """

    spout: Spout
    written: bool = False
    refused: int = 0
    begun: bool = False

    @property
    def limit(self) -> int:
        """Number of refused emissions after which the run ends with an error."""
        retry = self.spout.retry
        return max(policy.max_attempts for policy in (retry, *retry.by_reason.values())) + EXTRA_EMISSIONS

    @property
    def delay_secs(self) -> float:
        """Wait before the next emission of all messages."""
        return float(self.spout.retry.delay_secs(np.array([max(1, self.refused)]))[0])

    @contextmanager
    def trying(self, emission: Emission, spark: SparkSession, tag: str) -> Iterator[bool]:
        """Run an emission; gives whether its output may be written. One that breaks is refused.

        Raises:
            NotAcceptedError: too many were.
        """
        is_whole = self.spout.state.is_whole(emission)
        try:
            yield is_whole
        except (ServerUnavailableError, NotAcceptedError):
            raise
        except Exception as exc:
            if is_whole and blame_of(exc, spark, tag) in (Blame.ROWS, Blame.PIPELINE):
                self._refuse(line_of(exc))
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
    ) -> OutageError | None:
        """Write, and ack the messages; or fail those that failed, and hold the others back, as long as not all came through.

        Returns:
            What kept a sink from writing and has to be waited for, if anything did.

        Raises:
            NotAcceptedError: too many emissions were refused.
        """
        if failed or not is_whole or not self.spout.state.accept(emission):
            if is_whole:
                self._refuse(_cause_of(failed))
            roots.release(failed)
            return None
        try:
            self.begun = True
            outputs.write()
        except Exception as exc:
            # Nobody is searched: what is written is made of all messages.
            blame = blame_of(exc, proof.session, proof.job_tag)
            if not (blame.in_a_job or isinstance(acker_error_in(exc), NotProvenError)):
                raise
            cause = line_of(exc)
            if blame is Blame.OUTAGE_IN_A_JOB:
                roots.release([])
                return OutageError(cause)
            self._refuse(cause)
            log.warning("the output could not be written, which is tried again: %s", cause)
            roots.release([], self.delay_secs)
            return None
        self.written = True
        roots.complete([])
        return None

    def check_some_left(self) -> None:
        """Refuse to write nothing because each message is a dead letter; without any message it is fine.

        Raises:
            NotAcceptedError: each is one. A mistake such as a wrong schema must not replace the output by nothing.
        """
        if lost := self.spout.counts.dead_lettered:
            raise NotAcceptedError(
                f"every one of the {lost:,} messages is a dead letter, so the output would be empty. Nothing was written, and "
                "what an earlier run wrote stays. Look at the dead letters, correct their cause, and run it again"
            )

    def _refuse(self, cause: str) -> None:
        self.refused += 1
        if self.refused >= self.limit:
            state = (
                "Sinks that come first in the pipeline may have been written; run it again, so that all are"
                if self.begun
                else "Nothing was written"
            )
            raise NotAcceptedError(
                f"the output could not be written as a whole: in {self.refused} emissions of all messages that were left, "
                f"something failed each time, at last: {cause}. Nothing was acked. {state}. Look for what fails now and then"
            )


def _cause_of(failed: Sequence[Failure]) -> str:
    if not failed:
        return "messages were lost or timed out while it ran"
    return f"{failed[0].component!r}: {next(iter(failed[0].reasons)).text}"
