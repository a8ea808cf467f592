"""Output once: the rows of an emission are staged, accepted by the publish log, and published, before anything is acked."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, count
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from acker_redis.acker import app_of
from acker_redis.errors import AckerError, BadConfigError, LogLostError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.disk import make_folder, sync, sync_tree
from acker_redis.publishing.files import (
    LocalFiles,
    check_partitions,
    check_rename,
    files_below,
    local_folder,
    short_name,
)
from acker_redis.publishing.messages import Mask, MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Accepted, Dead, Owner, Staged
from acker_redis.spark.emission.outages import patiently
from acker_redis.spark.emission.roots import EmissionRoots, salts, shares_of
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.sinks.staged_writes import Staging
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.store import decided_letters
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.decided_letters import Decision

log = logging.getLogger("acker_redis.spark")

_T = TypeVar("_T")

STAGE = "stage"
"""Folder beside the records of a log, where rows wait."""


class NoteDecides(Protocol):
    """Function that learns that an emission puts its record. From then on, no row of it is to blame for an error."""

    def __call__(self, *, begins: bool) -> None:
        """Note that the record is put, or, if it doesn't begin, that it wasn't."""


@dataclass
class OnceOutput:
    """Decide by a publish log which messages' rows belong into the tables of one run, and put them there.

    Attributes:
        spout: spout of the run.
        publish_log: the log.
        location: folder of the log, which has the stages, too.
        tables: folder in which Spark looks for tables with a relative path.
        names: function of message ids to the lasting names of messages of the source.
        owner: what the log belongs to.
        outage_secs: time that an outage of the log or a table is waited for, in seconds.
        files: what moves staged files into tables, once a run has begun.
        accepted_before: number of messages whose rows earlier runs have published.
        dead_before: number of messages that earlier runs made dead letters.
    """

    spout: Spout
    publish_log: PublishLog
    location: Path
    tables: Path
    names: Callable[[Int64Array], MessageNames]
    owner: Owner
    outage_secs: float
    files: LocalFiles = field(init=False)
    accepted_before: int = field(default=0, init=False)
    dead_before: int = field(default=0, init=False)
    _begun: int = field(default=0, init=False)
    _numbers: Iterator[int] = field(default_factory=count, init=False)
    _targets: dict[str, Path] = field(default_factory=dict, init=False)
    _old_letters: dict[tuple[str, int], list[str]] = field(default_factory=dict, init=False)
    _decisions: dict[str, Decision] = field(default_factory=dict, init=False)
    _reopened: dict[int, tuple[str, int]] = field(default_factory=dict, init=False)

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
        run = f"{self.spout.run_id}.{self._begun}"
        self._wait_for(lambda: self.publish_log.begin(run, self.owner, short_name(self.location)))
        self.files = LocalFiles(self.publish_log.state.name)
        for target in self.publish_log.state.sinks.values():
            self._check_log(Path(target))
        self._publish()
        self._restore_letters(with_open=self._begun == 1)
        self.store_letters()
        for stage in self._stages.glob("[0-9]*"):
            if int(stage.name) < self.publish_log.state.epoch:
                shutil.rmtree(stage, ignore_errors=True)

    def not_done(self, message_ids: Int64Array) -> Int64Array:
        """Leave out the messages that earlier runs have done, and count them."""
        names = self._names_of(message_ids)
        is_accepted, is_done = self.publish_log.is_accepted(names), self.publish_log.is_done(names)
        self.accepted_before, self.dead_before = int(is_accepted.sum()), int((is_done & ~is_accepted).sum())
        return message_ids[~is_done]

    def reopen_dead(self, message_ids: Int64Array) -> None:
        """Decide that those of some messages that are dead run again.

        Raises:
            FencedError: a newer run decides now. None runs again.
        """
        names = self._names_of(message_ids)
        by = self.publish_log.state.dead_by(names)
        self._wait_for(partial(self.publish_log.reopen, self.spout.run_id, names, by))

    def find_old_letters(self) -> None:
        """Find the letters of messages that run again, and delete those that earlier runs should have deleted.

        Raises:
            AckerError: the server can't be reached.
        """
        state, app = self.publish_log.state, app_of(self.spout.acker)
        if not state.newest_reopened:
            return  # then no letter ever was an old one, and nothing is read
        letters = list(decided_letters.find(app.client, self.spout.acker.config.app, state.log_id))
        names, by = _named([decision for _, decision in letters])
        is_old = state.dead_by(names) != by
        is_open = is_old & ~self.publish_log.is_done(names)
        self.spout.acker.dead_letters.delete(entry_id for entry_id, _ in compress(letters, is_old & ~is_open))
        for entry_id, decision in compress(letters, is_open):
            self._old_letters.setdefault((decision.partition, decision.number), []).append(entry_id)

    def delete_old_letters(self, message_ids: Int64Array) -> None:
        """Delete the letters of messages that ran again, and were acked or have a new letter.

        Raises:
            AckerError: the server can't. Call it again.
        """
        if not self._old_letters:
            return
        names = self._names_of(message_ids)
        partitions = [names.partitions[index] for index in names.partition_of.tolist()]
        done = self._old_letters.keys() & zip(partitions, names.numbers.tolist(), strict=True)
        self.spout.acker.dead_letters.delete(entry_id for name in done for entry_id in self._old_letters[name])
        for name in done:
            del self._old_letters[name]

    def ack_done(self, emission: Emission) -> Emission:
        """Ack the messages of an emission that the log has done, and return it without them.

        Such a message was accepted, and its root timed out, was lost or was failed before the ack.

        Raises:
            AckerError: as `EmissionRoots.complete`.
        """
        is_done = self.publish_log.is_done(self._names_of(emission.message_ids))
        if not is_done.any():
            return emission
        self._publish()  # an earlier emission may have ended behind its record
        done = emission.only(is_done)
        self.spout.marks.exempt(done.roots)
        spout = self.spout
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
            self._publish()
        roots.complete(failed)
        self._wait_for(self.publish_log.compact)

    def outputs_of(self, emission: Emission) -> Outputs:
        """Return the sinks of an emission, which write into stages."""
        return Outputs("once", new_stage=partial(self._new_stage, emission))

    def _new_stage(self, emission: Emission, sink: str, target: str) -> Path:
        """Check the folder of a table, and return a stage for it."""
        self._target_of(sink, target)
        return self._new_folder(emission)

    def drop_stages(self, emission: Emission) -> None:
        """Remove the stages of an emission that has ended. A stage stays that a record may have."""
        if not self.publish_log.may_need(folder := self._folder_of(emission)):
            shutil.rmtree(folder, ignore_errors=True)

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Decide that messages are dead, and store their letters.

        Messages that were accepted are no dead letters: their rows are in the tables.

        Raises:
            FencedError: a newer run decides now. No letter was stored.
            AckerError: the server can't store them. Call it again.
        """
        names = self._names_of(np.array([letter.message_id for letter in letters], np.int64))
        partitions = tuple(names.partitions[index] for index in names.partition_of.tolist())
        dead = Dead(self.spout.run_id, partitions, tuple(names.numbers.tolist()), tuple(letters))
        self._wait_for(lambda: self.publish_log.bury(dead))
        self.store_letters()

    def accepted(self, message_ids: Int64Array) -> Int64Array:
        """Return which of these messages are accepted."""
        return message_ids[self.publish_log.is_accepted(self._names_of(message_ids))]

    def judge(self, letters: Sequence[DeadLetter]) -> tuple[set[str], set[str]]:
        """Return the entry ids of letters that nobody needs any more, and those of letters that this log hasn't decided.

        Raises:
            FencedError: a newer run decides now.
            AckerError: the server can't be read.
        """
        app, entry_ids = app_of(self.spout.acker), [letter.entry_id for letter in letters]
        found = zip(
            entry_ids, decided_letters.decisions(app.client, self.spout.acker.config.app, entry_ids), strict=True
        )
        log_id = self.publish_log.state.log_id
        own = {entry_id: decision for entry_id, decision in found if decision is not None and decision.log == log_id}
        self._decisions = own
        outdated = self._wait_for(partial(self.publish_log.outdated, *_named(list(own.values()))))
        return {*compress(own, outdated)}, {*entry_ids} - own.keys()

    def reopen(self, letters: Sequence[DeadLetter]) -> set[int]:
        """Decide that messages of letters that were judged run again. Return their ids.

        Raises:
            FencedError: a newer run decides now. None runs again.
        """
        decisions = [self._decisions[letter.entry_id] for letter in letters]
        decide = partial(self.publish_log.reopen, self.spout.run_id, *_named(decisions))
        runs_again = self._wait_for(decide)
        under_way = set(self.spout.replaying)
        # A new dictionary, because another thread may read the one before.
        self._reopened = {message: name for message, name in self._reopened.items() if message in under_way} | {
            letter.message_id: (decision.partition, decision.number)
            for letter, decision in compress(zip(letters, decisions, strict=True), runs_again)
        }
        return {letter.message_id for letter in compress(letters, runs_again)}

    def store_letters(self) -> None:
        """Store the letters of messages that are dead, if nobody has.

        Raises:
            AckerError: the server can't.
        """
        to_store = self.publish_log.state.to_store
        if to_store:
            self._restore_letters()  # before a newer record tells the server that it has them
        for number, dead in sorted(to_store.items()):
            self._store(number, dead, dead.letters)
            self.publish_log.stored(number)

    def _store(self, number: int, dead: Dead, letters: Sequence[DeadLetter | None]) -> None:
        """Store the letters of a record, or those of them that are needed."""
        log_id, app = self.publish_log.state.log_id, app_of(self.spout.acker)
        decisions = [Decision(log_id, number, *name) for name in zip(dead.partitions, dead.numbers, strict=True)]
        decided_letters.add(app.client, self.spout.acker.config.app, list(zip(letters, decisions, strict=True)))

    def _restore_letters(self, *, with_open: bool = False) -> None:
        """Store letters again that the server has lost, as far as the log has them. A snapshot of the log has none.

        Args:
            with_open: whether to store those of messages that run again, too: nothing else brings these back if none of them
                is under way.

        Raises:
            AckerError: the server can't be reached.
        """
        state, app, name = self.publish_log.state, app_of(self.spout.acker), self.spout.acker.config.app
        known = decided_letters.newest(app.client, name, state.log_id)
        if known >= state.newest_stored:
            return
        records = {
            number: dead
            for number, dead in self._wait_for(partial(self.publish_log.buried, known)).items()
            if number not in state.to_store
        }
        restored = 0
        for number, is_needed in self._needed_letters(records, with_open=with_open):
            letters = [
                letter if needed else None for letter, needed in zip(records[number].letters, is_needed, strict=True)
            ]
            self._store(number, records[number], letters)
            restored += int(is_needed.sum())
        decided_letters.note(app.client, name, state.log_id, state.newest_stored)  # its own record may be gone
        numbers = [by for dead in state.dead.values() for by in dead.values()]
        lost = sum(known < by <= state.newest_stored and by not in records for by in numbers)
        log.warning(
            "the server has lost dead letters app=%s log=%s restored=%d not_in_the_log_any_more=%d", name, self.location,
            restored, lost,
        )  # fmt: skip

    def _needed_letters(self, records: Mapping[int, Dead], *, with_open: bool) -> list[tuple[int, Mask]]:
        """Return which letters of records stand for their messages, in the order of the records."""
        found, later = list[tuple[int, Mask]](), set[tuple[str, int]]()
        for number, dead in sorted(records.items(), reverse=True):
            places = list(zip(dead.partitions, dead.numbers, strict=True))
            names = MessageNames.of_places(places)
            is_needed = self.publish_log.state.dead_by(names) == number
            if with_open:
                is_needed |= ~self.publish_log.is_done(names) & np.array([place not in later for place in places])
            found.append((number, is_needed))
            later.update(places)
        return found[::-1]

    def finish(self) -> None:
        """Say that every message of the source is done, if it has one. A folder may be filled later."""
        self._publish()
        if self.spout.counts.emitted or self.accepted_before or self.dead_before:
            self._wait_for(self.publish_log.finish)
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
            self.publish_log.note_published()
        except (AckerError, OSError) as exc:
            log.warning("could not note what is published log=%s error=%s", self.location, exc)

    def _names_of(self, message_ids: Int64Array) -> MessageNames:
        """Return the lasting names of messages: those of the source, and those that letters have brought back."""
        reopened = self._reopened
        is_back = np.isin(message_ids, list(reopened))
        if not is_back.any():
            return self.names(message_ids)
        back = MessageNames.of_places([reopened[message] for message in message_ids[is_back].tolist()])
        return self.names(message_ids[~is_back]).joined(back, is_back)

    @property
    def _stages(self) -> Path:
        return self.location / STAGE

    def _folder_of(self, emission: Emission) -> Path:
        return self._stages / str(self.publish_log.state.epoch) / str(emission.number)

    def _new_folder(self, emission: Emission) -> Path:
        """Return a folder for a stage, which doesn't exist yet. Its parent does."""
        make_folder(parent := self._folder_of(emission))
        return parent / str(next(self._numbers))

    def _accept(self, emission: Emission, is_good: Mask, outputs: Outputs, note_decides: NoteDecides) -> None:
        """Stage the rows of messages, and decide that they belong into the tables. Then the log has done all of them.

        What is staged stays until it is published: as long as it isn't known whether a record exists, it may have the files.
        """
        names = self._names_of(emission.message_ids)
        self._check_sinks(outputs.staging)
        while (accepts := is_good & ~self.publish_log.is_done(names)).any():
            left_out = emission.roots[~accepts]
            staged = tuple(self._staged(emission, sink, left_out) for sink in outputs.staging)
            self.spout.marks.exempt(emission.roots[accepts])
            accepted = Accepted(self.spout.run_id, emission.number, names.only(accepts).ranges(), staged)
            note_decides(begins=True)
            if self._wait_for(partial(self.publish_log.accept, accepted)) is None:
                note_decides(begins=False)

    def _staged(self, emission: Emission, sink: Staging, left_out: Int64Array) -> Staged:
        """Stage the rows of a sink, except those of messages with some roots, and put them on the disk."""
        target, folder = self._target_of(sink.name, sink.target), self._new_folder(emission)
        staged = sink.stage(folder, left_out) if len(left_out) else sink.all_rows
        folder = staged.folder
        example = next(files_below(target), None)
        if example is not None and staged.files:
            check_partitions(sink.name, target, example.relative_to(target), Path(staged.files[0]))
        # An empty file is only good for showing the columns of a table that has no other.
        files = staged.files if staged.rows or example is None else ()
        if files:  # on the disk before the record is, which may be all that a loss of power leaves
            sync_tree(folder, files)
            sync(folder.parent)
        return Staged(sink.name, "files", str(target), str(folder), files, staged.rows)

    def _check_sinks(self, sinks: Sequence[Staging]) -> None:
        """Check that the sinks are those of the messages that were accepted before.

        A stream has no end of its data, so it may have others from a start on. All that was accepted before is published.

        Raises:
            BadConfigError: they aren't.
        """
        state, now = self.publish_log.state, {sink.name: str(self._target_of(sink.name, sink.target)) for sink in sinks}
        before = {} if self.spout.goes_on and state.newest_accepted < state.epoch else state.sinks
        if before and before != now:
            changed = sorted(dict(before.items() ^ now.items()))
            until = "until the next start" if self.spout.goes_on else "until all of the data is done, or other data="
            raise BadConfigError(
                f"{', '.join(map(repr, changed))}: these sinks are new, missing, or have another folder than those of the "
                f"messages that the log {self.location} has accepted. So tables would lack messages. Use the same sinks "
                f"and folders {until}."
            )

    def _target_of(self, sink: str, folder: str) -> Path:
        """Return the folder of a sink, which was checked once."""
        if folder not in self._targets:
            target = local_folder(folder, f"{sink!r}: the table", self.tables)
            real, log = target.resolve(), self.location.resolve()
            if real.is_relative_to(log) or log.is_relative_to(real):
                raise BadConfigError(
                    f"{sink!r}: the table {target} and the publish log {self.location} are in each other. Readers of the "
                    "table would read what is staged. Choose another folder for the log."
                )
            self._check_log(target)
            self._wait_for(partial(check_rename, self._stages, target))
            self._targets[folder] = target
        return self._targets[folder]

    def _check_log(self, target: Path) -> None:
        """Check that a table has no rows that the log doesn't know.

        Raises:
            LogLostError: it has.
        """
        newest, known = self.files.newest_number(str(target)), self.publish_log.state.newest_accepted
        if newest > known:
            raise LogLostError(
                f"The table {target} has files of record {newest} of the publish log, whose newest record with rows is "
                f"{known}. So the log was lost or set back, and rows would be written twice. Restore the log in "
                f"{self.location}."
            )

    def _publish(self) -> None:
        """Publish what is accepted, up to the first error.

        Raises:
            FilesNotMovedError: staged files are gone, or stand where they shouldn't.
            AckerError: rows can't be published. The error names the record and the sink.
        """
        at: list[object] = [0, ""]

        def publish(number: int, staged: Staged) -> None:
            at[:] = number, staged.name
            self.files.publish(number, staged)

        try:
            patiently(lambda: self.publish_log.publish(publish), self.outage_secs, "table")
        except AckerError:
            raise
        except Exception as exc:
            raise AckerError(
                f"Rows of record {at[0]} of the publish log {self.location} can't be moved into the table of the sink "
                f"{at[1]!r}: {line_of(exc)}. They are accepted, so they must get there before anything else does, and nothing "
                "more was acked. Repair the cause, and run again. The next run moves them."
            ) from None  # its cause would be taken for an outage or for the fault of a row

    def _wait_for(self, call: Callable[[], _T]) -> _T:
        """Call a function of the log or a table, again after an outage.

        Raises:
            AckerError: the outage lasts.
        """
        try:
            return patiently(call, self.outage_secs, "publish log or table")
        except OSError as exc:
            raise AckerError(
                f"The publish log {self.location} or a table can't be reached: {exc}. So it isn't known which rows count, "
                "and nothing more was acked. Repair the file system, and run again. The next run completes what was accepted."
            ) from None  # its cause would be taken for an outage, and waited for once more


def _named(decisions: Sequence[Decision]) -> tuple[MessageNames, Int64Array]:
    """Return the messages of some letters, and the numbers of the records that made them letters."""
    names = MessageNames.of_places([(decision.partition, decision.number) for decision in decisions])
    return names, np.array([decision.record for decision in decisions], np.int64)


def _roots_of(failed: Sequence[Failure]) -> Int64Array:
    packed = [np.frombuffer(packed, np.int64) for failure in failed for packed in failure.reasons.values()]
    return np.unique(np.concatenate([np.array([], np.int64), *packed]))
