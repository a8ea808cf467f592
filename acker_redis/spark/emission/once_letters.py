"""Dead letters of a run whose publish log decides which messages are dead."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

import numpy as np

from acker_redis.acker import app_of
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import Mask, MessageNames
from acker_redis.publishing.records import Dead
from acker_redis.spark.emission.run_log import RunLog
from acker_redis.store import decided_letters
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.decided_letters import Decision

log = logging.getLogger("acker_redis.spark")


@dataclass
class OnceLetters:
    """Decide which messages are dead, and keep the letters in Redis as the log says.

    Attributes:
        run: log of the run.
    """

    run: RunLog
    _old: dict[tuple[str, int], list[str]] = field(default_factory=dict, init=False)
    _decisions: dict[str, Decision] = field(default_factory=dict, init=False)

    def reopen_dead(self, message_ids: Int64Array) -> None:
        """Decide that those of some messages that are dead run again.

        Raises:
            FencedError: a newer run decides now. None runs again.
        """
        names = self.run.names_of(message_ids)
        by = self.run.publish_log.state.dead_by(names)
        self.run.wait_for(partial(self.run.publish_log.reopen, self.run.spout.run_id, names, by))

    def find_old(self) -> None:
        """Find the letters of messages that run again, and delete those that earlier runs should have deleted.

        Raises:
            AckerError: the server can't be reached.
        """
        state, app = self.run.publish_log.state, app_of(self.run.spout.acker)
        if not state.newest_reopened:
            return  # then no letter ever was an old one, and nothing is read
        letters = list(decided_letters.find(app.client, self.run.spout.acker.config.app, state.log_id))
        names, by = _named([decision for _, decision in letters])
        is_old = state.dead_by(names) != by
        is_open = is_old & ~self.run.publish_log.is_done(names)
        self.run.spout.acker.dead_letters.delete(entry_id for entry_id, _ in compress(letters, is_old & ~is_open))
        for entry_id, decision in compress(letters, is_open):
            self._old.setdefault((decision.partition, decision.number), []).append(entry_id)

    def delete_old(self, message_ids: Int64Array) -> None:
        """Delete the letters of messages that ran again, and were acked or have a new letter.

        Raises:
            AckerError: the server can't. Call it again.
        """
        if not self._old:
            return
        names = self.run.names_of(message_ids)
        partitions = [names.partitions[index] for index in names.partition_of.tolist()]
        done = self._old.keys() & zip(partitions, names.numbers.tolist(), strict=True)
        self.run.spout.acker.dead_letters.delete(entry_id for name in done for entry_id in self._old[name])
        for name in done:
            del self._old[name]

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Decide that messages are dead, and store their letters.

        Messages that were accepted are no dead letters: their rows are in the tables.

        Raises:
            FencedError: a newer run decides now. No letter was stored.
            AckerError: the server can't store them. Call it again.
        """
        names = self.run.names_of(np.array([letter.message_id for letter in letters], np.int64))
        partitions = tuple(names.partitions[index] for index in names.partition_of.tolist())
        dead = Dead(self.run.spout.run_id, partitions, tuple(names.numbers.tolist()), tuple(letters))
        self.run.wait_for(lambda: self.run.publish_log.bury(dead))
        self.store()

    def accepted(self, message_ids: Int64Array) -> Int64Array:
        """Return which of these messages are accepted."""
        return message_ids[self.run.publish_log.is_accepted(self.run.names_of(message_ids))]

    def judge(self, letters: Sequence[DeadLetter]) -> tuple[set[str], set[str]]:
        """Return the entry ids of letters that nobody needs any more, and those of letters that this log hasn't decided.

        Raises:
            FencedError: a newer run decides now.
            AckerError: the server can't be read.
        """
        app, entry_ids = app_of(self.run.spout.acker), [letter.entry_id for letter in letters]
        found = zip(
            entry_ids, decided_letters.decisions(app.client, self.run.spout.acker.config.app, entry_ids), strict=True
        )
        log_id = self.run.publish_log.state.log_id
        own = {entry_id: decision for entry_id, decision in found if decision is not None and decision.log == log_id}
        self._decisions = own
        outdated = self.run.wait_for(partial(self.run.publish_log.outdated, *_named(list(own.values()))))
        return {*compress(own, outdated)}, {*entry_ids} - own.keys()

    def reopen(self, letters: Sequence[DeadLetter]) -> set[int]:
        """Decide that messages of letters that were judged run again. Return their ids.

        Raises:
            FencedError: a newer run decides now. None runs again.
        """
        decisions = [self._decisions[letter.entry_id] for letter in letters]
        decide = partial(self.run.publish_log.reopen, self.run.spout.run_id, *_named(decisions))
        runs_again = self.run.wait_for(decide)
        under_way = set(self.run.spout.replaying)
        # A new dictionary, because another thread may read the one before.
        self.run.reopened = {message: name for message, name in self.run.reopened.items() if message in under_way} | {
            letter.message_id: (decision.partition, decision.number)
            for letter, decision in compress(zip(letters, decisions, strict=True), runs_again)
        }
        return {letter.message_id for letter in compress(letters, runs_again)}

    def store(self) -> None:
        """Store the letters of messages that are dead, if nobody has.

        Raises:
            AckerError: the server can't.
        """
        to_store = self.run.publish_log.state.to_store
        if to_store:
            self.restore()  # before a newer record tells the server that it has them
        for number, dead in sorted(to_store.items()):
            self._store_of(number, dead, dead.letters)
            self.run.publish_log.stored(number)

    def _store_of(self, number: int, dead: Dead, letters: Sequence[DeadLetter | None]) -> None:
        """Store the letters of a record, or those of them that are needed."""
        log_id, app = self.run.publish_log.state.log_id, app_of(self.run.spout.acker)
        decisions = [Decision(log_id, number, *name) for name in zip(dead.partitions, dead.numbers, strict=True)]
        decided_letters.add(app.client, self.run.spout.acker.config.app, list(zip(letters, decisions, strict=True)))

    def restore(self, *, with_open: bool = False) -> None:
        """Store letters again that the server has lost, as far as the log has them. A snapshot of the log has none.

        Args:
            with_open: whether to store those of messages that run again, too: nothing else brings these back if none of them
                is under way.

        Raises:
            AckerError: the server can't be reached.
        """
        state, app, name = self.run.publish_log.state, app_of(self.run.spout.acker), self.run.spout.acker.config.app
        known = decided_letters.newest(app.client, name, state.log_id)
        if known >= state.newest_stored:
            return
        records = {
            number: dead
            for number, dead in self.run.wait_for(partial(self.run.publish_log.buried, known)).items()
            if number not in state.to_store
        }
        restored = 0
        for number, is_needed in self._needed(records, with_open=with_open):
            letters = [
                letter if needed else None for letter, needed in zip(records[number].letters, is_needed, strict=True)
            ]
            self._store_of(number, records[number], letters)
            restored += int(is_needed.sum())
        decided_letters.note(app.client, name, state.log_id, state.newest_stored)  # its own record may be gone
        numbers = [by for dead in state.dead.values() for by in dead.values()]
        lost = sum(known < by <= state.newest_stored and by not in records for by in numbers)
        log.warning(
            "the server has lost dead letters app=%s log=%s restored=%d not_in_the_log_any_more=%d", name, self.run.location,
            restored, lost,
        )  # fmt: skip

    def _needed(self, records: Mapping[int, Dead], *, with_open: bool) -> list[tuple[int, Mask]]:
        """Return which letters of records stand for their messages, in the order of the records."""
        found, later = list[tuple[int, Mask]](), set[tuple[str, int]]()
        for number, dead in sorted(records.items(), reverse=True):
            places = list(zip(dead.partitions, dead.numbers, strict=True))
            names = MessageNames.of_places(places)
            is_needed = self.run.publish_log.state.dead_by(names) == number
            if with_open:
                is_needed |= ~self.run.publish_log.is_done(names) & np.array([place not in later for place in places])
            found.append((number, is_needed))
            later.update(places)
        return found[::-1]


def _named(decisions: Sequence[Decision]) -> tuple[MessageNames, Int64Array]:
    """Return the messages of some letters, and the numbers of the records that made them letters."""
    names = MessageNames.of_places([(decision.partition, decision.number) for decision in decisions])
    return names, np.array([decision.record for decision in decisions], np.int64)
