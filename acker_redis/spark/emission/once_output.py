"""Output once: the rows of an emission are staged, accepted by the publish log, and published, before anything is acked."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from acker_redis.errors import AckerError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.files import (
    short_name,
)
from acker_redis.publishing.messages import Mask
from acker_redis.publishing.records import Accepted, Owner
from acker_redis.spark.emission.once_letters import OnceLetters
from acker_redis.spark.emission.once_tables import OnceTables
from acker_redis.spark.emission.roots import EmissionRoots, salts, shares_of
from acker_redis.spark.emission.run_log import RunLog
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission

log = logging.getLogger("acker_redis.spark")


class NoteDecides(Protocol):
    """Function that learns that an emission puts its record. From then on, no row of it is to blame for an error."""

    def __call__(self, *, begins: bool) -> None:
        """Note that the record is put, or, if it doesn't begin, that it wasn't."""


@dataclass
class OnceOutput:
    """Decide by a publish log which messages' rows belong into the tables of one run, and put them there.

    Attributes:
        run: log of the run.
        letters: its dead letters.
        tables: its tables and stages.
        owner: what the log belongs to.
        accepted_before: number of messages whose rows earlier runs have published.
        dead_before: number of messages that earlier runs made dead letters.
    """

    run: RunLog
    letters: OnceLetters
    tables: OnceTables
    owner: Owner
    accepted_before: int = field(default=0, init=False)
    dead_before: int = field(default=0, init=False)
    _begun: int = field(default=0, init=False)

    def begin(self) -> None:
        """Begin a run, or go on with it: from now on no other one can decide anything. Complete what others decided.

        The run holds its lane, so that it fences no run that works.

        Raises:
            BadConfigError: the log belongs to something else.
            DamagedDataError: the log can't be read.
            LogLostError: a table has rows that the log doesn't know.
            FilesNotMovedError: staged files are gone, or stand where they shouldn't.
            AckerError: the server can't store letters.
        """
        self._begun += 1
        location, publish_log = self.run.location, self.run.publish_log
        run = f"{self.run.spout.run_id}.{self._begun}"
        self.run.wait_for(lambda: publish_log.begin(run, self.owner, short_name(location), self.tables.check_known))
        self.tables.begin()
        self.letters.restore(with_open=self._begun == 1)
        self.letters.store()

    @property
    def has_published_all(self) -> bool:
        """True if every row that was accepted is in its table."""
        return not self.run.publish_log.state.to_publish

    @property
    def knows_none(self) -> bool:
        """True if the log has done no message."""
        state = self.run.publish_log.state
        return not state.newest_accepted and not state.dead

    def not_done(self, message_ids: Int64Array) -> Int64Array:
        """Leave out the messages that earlier runs have done, and count them."""
        names = self.run.names_of(message_ids)
        is_accepted, is_done = self.run.publish_log.is_accepted(names), self.run.publish_log.is_done(names)
        self.accepted_before, self.dead_before = int(is_accepted.sum()), int((is_done & ~is_accepted).sum())
        return message_ids[~is_done]

    def ack_done(self, emission: Emission) -> Emission:
        """Ack the messages of an emission that the log has done, and return it without them.

        Such a message was accepted, and its root timed out, was lost or was failed before the ack.

        Raises:
            AckerError: as `EmissionRoots.complete`.
        """
        is_done = self.run.publish_log.is_done(self.run.names_of(emission.message_ids))
        if not is_done.any():
            return emission
        if not self.tables.publish_known():  # an earlier emission may have ended behind its record
            return emission  # the pipeline runs with these messages, and `complete` acks them without their rows
        done = emission.only(is_done)
        self.run.spout.marks.exempt(done.roots)
        spout = self.run.spout
        salt = salts(spout.acker.config.app, spout.run_id, emission.number)[1]
        with EmissionRoots(spout, done, shares_of(salt, done), part="done") as roots:
            roots.complete([])
        return emission.only(~is_done)

    def complete(
        self,
        emission: Emission,
        outputs: Outputs,
        failed: Sequence[Failure],
        roots: EmissionRoots,
        note_decides: NoteDecides,
    ) -> None:
        """Accept the messages that haven't failed, publish their rows, and close the roots.

        Args:
            emission: the emission.
            outputs: its sinks.
            failed: its failures.
            roots: its roots.
            note_decides: function that is called before a record is put.

        Raises:
            FencedError: a newer run decides now. Nothing was acked.
            InexactPipelineError: as `EmissionRoots.complete`.
            PipelineError: rows of a sink don't belong to one message each.
            UnprovenEmissionError: a stage has other rows than it should.
            Exception: a job failed.
        """
        bad = _roots_of(failed)
        is_good = ~np.isin(emission.roots, bad)
        are_known = not any(failure.rootless or failure.unreported for failure in failed)
        if are_known and len(bad) == np.count_nonzero(~is_good):  # else `complete` refuses, or fails all
            self._accept(emission, is_good, outputs, note_decides)
            self.tables.publish()
        roots.complete(failed)
        self.run.wait_for(self.run.publish_log.compact)

    def finish(self) -> None:
        """Say that every message of the source is done, if it has one. A folder may be filled later."""
        self.tables.publish()
        if self.run.spout.counts.emitted or self.accepted_before or self.dead_before:
            self.run.wait_for(self.run.publish_log.finish)
        else:
            self.note_published()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish behind a run. If it ends with an error, say at least what is published."""
        try:
            yield
        except BaseException:
            self.note_published()
            raise
        self.finish()

    def note_published(self) -> None:
        """Say in the log what is published, if it doesn't yet.

        Else the next start looks for the files, which the user may have compacted by then.
        """
        try:
            self.run.publish_log.note_published()
        except (AckerError, OSError) as exc:
            log.warning("could not note what is published log=%s error=%s", self.run.location, exc)

    def _accept(self, emission: Emission, is_good: Mask, outputs: Outputs, note_decides: NoteDecides) -> None:
        """Stage the rows of messages, and decide that they belong into the tables. Then the log has done all of them.

        What is staged stays until it is published: as long as it isn't known whether a record exists, it may have the files.
        """
        names = self.run.names_of(emission.message_ids)
        self.tables.check_sinks(outputs.staging)
        while (accepts := is_good & ~self.run.publish_log.is_done(names)).any():
            left_out = emission.roots[~accepts]
            staged = tuple(self.tables.staged(emission, sink, left_out) for sink in outputs.staging)
            self.run.spout.marks.exempt(emission.roots[accepts])
            accepted = Accepted(self.run.spout.run_id, emission.number, names.only(accepts).ranges(), staged)
            note_decides(begins=True)
            if self.run.wait_for(partial(self.run.publish_log.accept, accepted)) is None:
                note_decides(begins=False)


def _roots_of(failed: Sequence[Failure]) -> Int64Array:
    packed = [np.frombuffer(packed, np.int64) for failure in failed for packed in failure.reasons.values()]
    return np.unique(np.concatenate([np.array([], np.int64), *packed]))
