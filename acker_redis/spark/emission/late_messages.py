"""The messages of an emission that begins before their ids are known.

The job that processes them tells which there are, if its plan has read all of the source and the ids are a range. Otherwise
they are read, at the latest when something needs them. From then on all goes on as if they had been read first.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import app_of
from acker_redis.errors import AckerError, ServerUnavailableError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.roots import EmissionRoots, counts_of, shares_of_ids
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.late_ids import LateIds, Messages
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import shares
from acker_redis.spark.runtime.jobs import counted, reading_ids, untagged
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sql import quoted
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.store.run_ends import End

log = logging.getLogger("acker_redis.spark")


class LateMessages:
    """Context manager like `EmissionRoots`, of roots that become known meanwhile.

    Attributes:
        emission: emission, without messages until they are known.
    """

    def __init__(
        self,
        spout: Spout,
        emission: Emission,
        salt: str,
        read_ids: Callable[[], Int64Array],
        expect: Callable[[int], object],
        spark: SparkSession,
        tag: str,
        timeout_secs: float | None = None,
    ) -> None:
        """Begin without messages.

        Args:
            spout: spout of the run.
            emission: the emission, without messages.
            salt: salt of the shares.
            read_ids: function that reads the ids with a job.
            expect: function that is called with the number of messages, once it is known.
            spark: session of the emission.
            tag: tag of the emission's jobs, which the job that reads ids doesn't get.
            timeout_secs: time limit of the job that reads ids, in seconds; None: no limit.
        """
        self.emission = emission
        self._spout, self._salt, self._read_ids, self._expect = spout, salt, read_ids, expect
        self._spark, self._tag, self._timeout_secs = spark, tag, timeout_secs
        self._begun_at = time.monotonic()
        self._known = ExitStack()
        self._learning = threading.RLock()  # sinks may run in several threads
        self._roots: EmissionRoots | None = None
        self._error: AckerError | None = None

    def __enter__(self) -> Self:
        """Show the emission on the dashboard, without a count, until its messages are known."""
        self._show(End(*self._run, "begun", emission=self.emission.number, job=self._tag))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do what `EmissionRoots` does, if there are roots."""
        if self._roots is None:
            self._show(End(*self._run, "begun"))
        self._known.__exit__(kind, error, trace)

    def metered(self, tracked: DataFrame, id_column: str, proof: Proof) -> DataFrame:
        """Meter tracked messages, and let a proof learn from that which there are."""
        meter = proof.add_source_meter()
        proof.late_ids = LateIds(meter, self.read, self.try_range)
        return meters.meter_source(tracked, meter, f"cast({quoted(id_column)} AS bigint)")

    @property
    def roots(self) -> EmissionRoots:
        """Roots of the emission. Reads the ids if they aren't known."""
        if self._roots is None:
            self.read()
        return self._roots  # type: ignore[return-value]  # reading sets it

    def known_emission(self) -> Emission:
        """Return the emission with its messages. Read them if they aren't known, unless the run ends.

        Raises:
            PipelineError: as for `RunMessages.read_ids`.
            Exception: the source can't be read.
        """
        if self._roots is None and self._spout.state.unread:
            if self._error is not None:
                raise self._error
            self.read()
        return self.emission

    def read(self) -> Messages:
        """Read the ids with a job of its own.

        Raises:
            PipelineError: as for `RunMessages.read_ids`.
            AckerError: the job took longer than the time limit.
            Exception: the source can't be read.
        """
        with self._learning:
            if self._roots is None:
                app, run_id = self._spout.acker.config.app, self._spout.run_id
                try:
                    with (
                        own_errors(),
                        untagged(self._spark, self._tag),
                        reading_ids(self._spark, f"{app}:{run_id}", self._timeout_secs),
                    ):
                        ids = self._read_ids()
                except AckerError as exc:
                    self._error = exc
                    raise
                self._know(ids)
            return self._messages()

    def try_range(self, least: int, greatest: int, total: int) -> Messages | None:
        """Take the ids from least to greatest, if the sum of their shares is `total`."""
        with self._learning:
            if self._roots is None:
                ids = np.arange(least, greatest + 1)
                own = shares_of_ids(self._salt, ids)
                if shares.total(own) != total:
                    return None
                self._know(ids, own)
            return self._messages()

    @property
    def _run(self) -> tuple[str, int]:
        return self._spout.run_id, self._spout.spout_id

    def _show(self, run: End) -> None:
        """Show the state of the run on the dashboard. The emission doesn't depend on that."""
        try:
            app_of(self._spout.acker).note_end(run, lane=self._spout.lane)
        except ServerUnavailableError as exc:
            log.debug("could not show an emission run_id=%s error=%s", self._spout.run_id, exc)

    def _messages(self) -> Messages:
        return Messages(shares.total(self._own), len(self._own))

    def _know(self, ids: Int64Array, from_job: Int64Array | None = None) -> None:
        """Begin the emission of these messages. `from_job` has their shares, in order, if the job told the ids."""
        self.emission = self._spout.state.begin_unread(self.emission.number, ids, self._begun_at)
        self._own = shares_of_ids(self._salt, self.emission.message_ids) if from_job is None else from_job
        self._known.enter_context(counted(self._spark, counts_of(self._spout)))
        roots = EmissionRoots(
            self._spout, self.emission, self._own, begun_at=self._begun_at, known_from_job=from_job is not None
        )
        self._roots = self._known.enter_context(roots)
        self._show(End(*self._run, "begun"))
        self._expect(len(ids))
