"""State of a spout's messages: waiting, in flight, or done. The caller does all I/O and provides the time."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from acker_redis.errors import AckerError
from acker_redis.ledger.outcomes.outcome import OutcomeBatch
from acker_redis.model import blocks
from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.model.roots import root_ids
from acker_redis.spout.emission_marks import AsideMark, BackMark, FailureMark, Marks, OutageMark, PassedMark, PoisonMark
from acker_redis.spout.in_flight import Attempts, Emission, InFlight, Mask, Sent, in_order, merged
from acker_redis.spout.outage_table import OutageTable
from acker_redis.spout.poison_search import PARTS
from acker_redis.spout.retry import LOST_LIMIT, RetryPolicy, Verdict
from acker_redis.spout.waiting import FAILED_JOBS, Waiting
from acker_redis.spout.withdrawn import Withdrawn
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.outages import Outage, SetAside

Cause: TypeAlias = tuple[str, str | None]
"""Reason of an attempt that did not succeed, as in dead letters, and the last component that touched it."""

_NO_CAUSE: Cause = ("", None)
LOST: Cause = ("lost", None)

_HELD = -1
"""Value of `Attempts.max_group` for held messages: the next emission has all of them, once nothing else waits."""

_ASIDE = -2
"""Value of `Attempts.max_group` for messages that are set aside for the first operator if they fail. Lower: for the others."""

_MOST_CAUSES = 10_000
"""Largest number of distinct causes. Further causes are stored as no cause."""

P = ParamSpec("P")
T = TypeVar("T")


def _moves(
    method: Callable[Concatenate["SpoutState", P], T],
) -> Callable[Concatenate["SpoutState", P], T]:
    """Hold the lock while a method moves messages between queues, so no other thread sees them missing."""

    @wraps(method)
    def alone(self: "SpoutState", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._moving:
            return method(self, *args, **kwargs)

    return alone


@dataclass
class SpoutCounts:
    """Counters of a spout. Every emitted attempt ends as exactly one of acked, failed, timed_out, lost or released.

    Released attempts were processed before an output that is written as a whole could be written. See `Marks.hold`.
    Attempts of withdrawn messages count as withdrawn instead. See `Spout.withdraw`.
    """

    emitted: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    late: int = 0
    released: int = 0
    withdrawn: int = 0


class LetterLog(Protocol):
    """Decides whether messages are dead, which others may deny."""

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Decide that messages are dead, and store the letters of those that are."""

    def accepted(self, message_ids: Int64Array) -> Int64Array:
        """Return which of these messages aren't dead, because their output counts."""

    def judge(self, letters: Sequence[DeadLetter]) -> tuple[set[str], set[str]]:
        """Return the entry ids of letters that nobody needs any more, and those of letters that something else decided."""

    def reopen(self, letters: Sequence[DeadLetter]) -> set[int]:
        """Decide that messages of letters run again. Return their ids."""


class SpoutState:
    """Track the messages of one source in one run.

    Every message moves from waiting to in flight, and from there back or to done. A message is done if it was acked, or if
    it is exhausted and its letter is stored. One thread uses the object. Other threads may call the methods that say so.

    Attributes:
        counts: counters so far.
        dead_letters: letters of exhausted messages, by message id.
        letters: dead letters that aren't stored yet.
        letter_log: what decides whether messages are dead, before their letters are stored; None: nothing else does.
        sent: results of followed emissions, by emission number.
        poison_search: messages of emissions whose jobs failed.
        marks: marks that emissions put on their roots. They are applied before outcomes.
        retry_changes: counter that increases whenever a message starts to wait for another attempt, or is emitted for it.
        gone_spout_ids: spout ids of earlier runs in the lane, whose outcomes no spout waits for.
        unread: True if the first emission has messages whose ids the source can't tell yet. See `begin_unread`.
        one_by_one: True if the output is written as a whole. An emission then starts only while nothing is in flight, and
            held messages are emitted alone.
        stops_if_broken: True if no message becomes a dead letter by failed jobs before another message was acked. Such
            messages are set aside after their last attempt, and if no others are left, the run ends with the error. With
            False such messages become dead letters, and with None, too, but a run without a successful emission then
            raises the error of its last job.
        aside_errors: operator for which messages were set aside -> error of a run that ends for it.
        outages: messages that wait for the end of an outage.
        causes: (reason, last component) of attempts that did not succeed, indexed by `Attempts.cause_numbers`. The first
            is `_NO_CAUSE`.
    """

    def __init__(
        self,
        app: str,
        run_id: str,
        retry: RetryPolicy,
        keep_letters: int | None = None,
        epoch_secs: float = 0.0,
        *,
        goes_on: bool = False,
    ) -> None:
        """Start without messages.

        `keep_letters` and `goes_on` are as for `Spout`. `now + epoch_secs` is the time since 1970.
        """
        self.counts = SpoutCounts()
        self.causes: list[Cause] = [_NO_CAUSE]
        self.dead_letters: dict[int, DeadLetter] = {}
        self.letters: list[DeadLetter] = []
        self.letter_log: LetterLog | None = None
        self.sent: dict[int, Sent] = {}
        self._waiting = Waiting(goes_on=goes_on)
        self.poison_search = self._waiting.poison_search
        self.marks = Marks()
        self.outages = OutageTable()
        self.retry_changes = 0
        self.gone_spout_ids: set[int] = set()
        self.unread = False
        self.one_by_one = False
        self.stops_if_broken: bool | None = None
        self.aside_errors: dict[str, AckerError] = {}
        self._app, self._run_id, self._retry, self._keep_letters = app, run_id, retry, keep_letters
        self._goes_on = goes_on
        self._epoch_secs = epoch_secs
        self._cause_numbers = {_NO_CAUSE: 0}
        self._in_flight: list[InFlight] = []
        self._withdrawn = Withdrawn()
        self._done: list[Int64Array] = []
        self._next_number = 0
        self._moving = threading.Lock()

    @property
    def pending(self) -> int:
        """Number of messages in flight."""
        return sum(part.count for part in self._in_flight)

    @property
    def emissions(self) -> int:
        """Number of emissions so far."""
        return self._next_number

    @property
    def done(self) -> bool:
        """Return True if every message is done and the source was notified of it."""
        waits = self.unread or not self._waiting.is_empty
        return not (waits or self._in_flight or self.letters or self._done)

    def add(self, message_ids: Int64Array) -> None:
        """Add messages to emit. Their ids must be distinct among messages that aren't done."""
        self._waiting.add_fresh(message_ids)

    @property
    def fresh(self) -> int:
        """Number of messages that were not emitted yet."""
        return self._waiting.fresh

    @property
    def left(self) -> int:
        """Number of messages that are neither acked nor exhausted."""
        return self._waiting.count + self.pending

    def fresh_ids(self) -> Int64Array:
        """Return the ids of messages that were not emitted yet."""
        return self._waiting.fresh_ids()

    def left_ids(self) -> Int64Array:
        """Return the ids of messages that are neither acked nor exhausted."""
        waiting, _ = self._waiting.attempts()
        return np.concatenate([self.fresh_ids(), self.in_flight(), waiting.message_ids])

    def in_flight(self) -> Int64Array:
        """Return the ids of messages in flight."""
        return np.concatenate(
            [np.array([], np.int64), *(part.attempts.message_ids[part.open] for part in self._in_flight)]
        )

    @_moves
    def attempts_left(self, now: float) -> tuple[Attempts, FloatArray]:
        """Return the attempts that another spout would emit in place of this one, and their delays in seconds from now.

        A waiting message is returned with its next emission. A message in flight is returned with the emission after the
        current one, which is due now and doesn't count the current one. Messages that were not emitted yet are left out.
        Any thread may call this.
        """
        waiting, due = self._waiting.attempts()
        flying = Attempts.concatenate(
            [Attempts.first(np.array([], np.int64)), *(part.attempts[part.open] for part in self._in_flight)]
        )
        retries = flying.retries(np.ones(len(flying), np.bool_), np.zeros(len(flying), np.bool_))
        delays = np.concatenate([np.maximum(0.0, due - now), np.zeros(len(retries))])
        return Attempts.concatenate([waiting, retries]), delays

    @_moves
    def causes_of(self, message_ids: Int64Array) -> dict[int, Cause]:
        """Return reason and last component of messages' last attempts. Those that had none are left out."""
        waiting, _ = self._waiting.attempts()
        found: dict[int, Cause] = {}
        for attempts in (waiting, *(part.attempts[part.open] for part in self._in_flight)):
            for row in np.flatnonzero(np.isin(attempts.message_ids, message_ids) & (attempts.previous > 0)).tolist():
                found[int(attempts.message_ids[row])] = self.causes[attempts.cause_numbers[row]]
        return found

    @_moves
    def resume(self, attempts: Attempts, causes: list[Cause], delays: FloatArray, now: float) -> None:
        """Resume the attempts and causes of another spout, as its `attempts_left` returned them."""
        numbers = np.array([self._cause_number(cause) for cause in causes], np.int16)[attempts.cause_numbers]
        self._wait(replace(attempts, cause_numbers=numbers), now + delays, np.zeros(len(attempts), np.bool_))

    @_moves
    def lasting_outages(self) -> list[Outage]:
        """Return the outages that keep a run from its end; none if other work is left.

        Each message that is left has failed for `RetryPolicy.outage_secs`, or has waited with those that have, and no row
        of another message has got through where it failed.
        """
        table, limit = self.outages, self._retry.outage_secs
        if self._goes_on or not len(table) or self.pending or self.unread or self._waiting.fresh:
            return []
        if table.rows.last_secs.max() - table.rows.since_secs.min() < limit:
            return []
        waiting = self._waiting.retried()
        rows = table.rows.rows_of(waiting.message_ids)
        if not len(rows) or (rows < 0).any():
            return []
        left = table.rows[rows]
        if not left.failures.all() or table.has_evidence()[rows].any():
            return []
        outages = table.outages()
        return outages if all(outage.last_secs - outage.since_secs >= limit for outage in outages) else []

    @property
    def aside(self) -> str | None:
        """Cause for which all messages that are left were set aside; None: others are left, or none at all."""
        return None if self.pending or self.unread else self._waiting.aside

    def set_aside(self) -> list[SetAside]:
        """Return the operators for which messages are set aside. Thread-safe."""
        return [
            SetAside(cause, count, since + self._epoch_secs, str(self.aside_errors[cause]))
            for cause, count, since in self._waiting.aside_counts()
            if cause in self.aside_errors
        ]

    @property
    def may_dead_letter(self) -> bool:
        """Return True if each message that is left is to blame for its failures by an outage, and so ends as a dead letter."""
        rows = self.outages.rows.rows_of(self.left_ids())
        return bool((rows >= 0).all() and self.outages.has_evidence()[rows].all())

    def empty_emission(self) -> Emission:
        """Return an emission without messages, with a new number."""
        none = np.array([], np.int64)
        self._next_number += 1
        return Emission(self._next_number - 1, none, none, none)

    @_moves
    def next_emission(self, now: float, max_pending: int | None, only_due_by: float | None = None) -> Emission | None:
        """Start an emission with replays that are due and fresh messages, as many as there is room for.

        In turn, it has messages of an emission whose job failed instead, or a single one of them.

        Args:
            now: current time, as `time.monotonic`.
            max_pending: limit on messages in flight, these included.
            only_due_by: time by which replays must have been due. None means now. Messages that are searched for poison and
                aren't alone yet are emitted anyway.
        """
        if self.unread:
            return replace(self.empty_emission(), is_unread=True)
        if self.one_by_one and self.pending:
            return None
        room = None if max_pending is None else max(0, max_pending - self.pending)
        due_by = now if only_due_by is None else min(now, only_due_by)
        replays, attempts = self._waiting.take(now, room, due_by, self._next_number)
        if len(attempts) == 0:
            return None
        self._next_number += 1
        self.counts.replayed += replays
        self.retry_changes += replays > 0
        return self._begin(self._next_number - 1, attempts, now)

    @_moves
    def begin_unread(self, number: int, message_ids: Int64Array, now: float) -> Emission:
        """Return the emission with this number, of all messages, whose ids became known while it ran.

        The state is no longer `unread` then. The emission's own thread may call this.

        Args:
            number: number of the emission.
            message_ids: ids of all messages.
            now: time at which the emission began, as `time.monotonic`.
        """
        emission = self._begin(number, Attempts.first(in_order(np.array(message_ids, np.int64))), now)
        if number in self.sent:
            self.follow(emission)
        self.unread = False  # last: until they are in flight, the spout's thread must not see the state as done
        return emission

    def _begin(self, number: int, attempts: Attempts, now: float) -> Emission:
        attempts = replace(
            attempts, numbers=np.full(len(attempts), number), max_group=np.zeros(len(attempts), np.int32),
            first_secs=np.where(attempts.first_secs == 0, np.uint32(now + self._epoch_secs), attempts.first_secs),
        )  # fmt: skip
        roots = root_ids(self._app, self._run_id, attempts.message_ids, number)
        if len(roots):
            self._in_flight = merged([*self._in_flight, InFlight(roots, attempts)])
        self.counts.emitted += len(roots)
        return Emission(number, _read_only(attempts.message_ids), _read_only(attempts.previous), _read_only(roots))

    def follow(self, emission: Emission) -> None:
        """Record in `sent` how its roots end, until `take_finished` returns it."""
        self.sent[emission.number] = Sent(emission)

    def has_failed_job(self, number: int) -> bool:
        """Return True if the job of a followed emission failed, so that it is searched for poison."""
        return self.sent[number].job_failed

    def take_finished(self) -> list[Sent]:
        """Return ended emissions whose roots all have an outcome, and stop following them."""
        finished = [sent for sent in self.sent.values() if sent.ended and not sent.left]
        for sent in finished:
            del self.sent[sent.emission.number]
        return finished

    @_moves
    def is_whole(self, emission: Emission) -> bool:
        """Return True if a running emission has all messages that are left. Any thread may call this."""
        return self._has_all(emission)

    @_moves
    def accept(self, emission: Emission) -> bool:
        """Return True, and exempt the emission's roots, if it `is_whole`. Any thread may call this."""
        if not self._has_all(emission):
            return False
        for part in self._in_flight:
            part.attempts.exempt[part.attempts.numbers == emission.number] = True
        return True

    def _has_all(self, emission: Emission) -> bool:
        open_now = sum(int((part.open & (part.attempts.numbers == emission.number)).sum()) for part in self._in_flight)
        return open_now == self.left == len(emission.roots)

    def exempt_emission(self, number: int) -> None:
        """Exempt all roots of an emission. Its losses have a known cause, too."""
        self.sent[number].exempt = True
        for part in self._all_in_flight:
            part.attempts.exempt[part.attempts.numbers == number] = True

    def ignore_losses(self) -> None:
        """Exempt the losses of all followed emissions, because an event on a server explains them."""
        for sent in self.sent.values():
            sent.exempt = True

    def waiting(self, under_way: Emission | None) -> list[Int64Array]:
        """Return the roots in flight, also of withdrawn messages, without those of the emission under way."""
        left_out = -1 if under_way is None else under_way.number
        return [part.roots[part.open & (part.attempts.numbers != left_out)] for part in self._all_in_flight]

    def look_up(self, roots: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the indexes of those roots that are in flight, their message ids, and their attempts, from 1."""
        places, messages, attempts = [], [], []
        for part in self._all_in_flight:
            rows = part.rows_of(roots)
            places.append(np.flatnonzero(rows >= 0))
            messages.append(part.attempts.message_ids[rows[rows >= 0]])
            attempts.append(part.attempts.previous[rows[rows >= 0]] + 1)
        none = [np.array([], np.int64)]
        return np.concatenate(none + places), np.concatenate(none + messages), np.concatenate(none + attempts)

    @_moves
    def apply_outcomes(self, batches: list[OutcomeBatch], now: float) -> None:
        """Apply outcomes. Outcomes of roots that aren't in flight are counted as late."""
        self.apply_marks()
        acks = [batch.roots for batch in batches if batch.kind == "ack"]
        fails = [batch for batch in batches if batch.kind == "fail"]
        acked = blocks.distinct(np.concatenate([np.array([], np.int64), *acks]).view(np.uint64)).view(np.int64)
        failed, of_fail = _distinct([batch.roots for batch in fails])
        known = 0
        for part in self._in_flight:
            rows = part.rows_of(acked)
            rows = rows[rows >= 0]
            if len(rows):
                part.close_rows(rows)
                self._note(part.attempts.numbers[rows], "acked")
                self._done.append(part.attempts.message_ids[rows])
                self.counts.acked += len(rows)
                self._end_outages(part.attempts.message_ids[rows])
            known += len(rows)
            rows = part.rows_of(failed)
            if (hits := rows >= 0).any():
                part.close_rows(rows[hits])
                attempts = part.attempts[rows[hits]]
                self._note(attempts.numbers, "settled")
                held = attempts.max_group == _HELD
                self._hold(attempts[held], now)
                self._fail(failed[hits][~held], attempts[~held], fails, of_fail[hits][~held], now)
                known += int(hits.sum())
        if self._has_come_through:
            self._waiting.bring_back(FAILED_JOBS)
        known += self._withdrawn.close(np.concatenate([acked, failed]))
        self.counts.late += sum(len(batch.roots) for batch in batches) - known
        self._drop_finished()

    @_moves
    def lose(self, roots: Int64Array, now: float) -> None:
        """Replay messages whose roots are missing from the ledger and have no outcome there."""
        self.apply_marks()
        for part in self._in_flight:
            rows = part.rows_of(roots)
            self._lose(part, rows[rows >= 0], now)
        self._withdrawn.close(roots)
        self._drop_finished()

    @_moves
    def lose_all(self, now: float) -> None:
        """Replay all messages in flight, because the ledger lost everything. This counts towards no limit."""
        self.apply_marks()
        for part in self._in_flight:
            self._lose(part, np.flatnonzero(part.open), now, exempt=True)
        self._withdrawn = Withdrawn()
        self._drop_finished()

    @_moves
    def exhaust(self, message_ids: Int64Array) -> None:
        """See `Spout.exhaust`."""
        for part in self._in_flight:
            rows = np.flatnonzero(part.open & np.isin(part.attempts.message_ids, message_ids))
            part.close_rows(rows)
            attempts = part.attempts[rows]
            self.counts.lost += len(rows)
            self._note(attempts.numbers, "settled")
            self._exhaust_lost(attempts)
        self._drop_finished()

    @_moves
    def withdraw(self, message_ids: Int64Array) -> None:
        """See `Spout.withdraw`."""
        self._waiting.remove(message_ids)
        self._end_outages(message_ids)
        for part in self._in_flight:
            rows = np.flatnonzero(part.open & np.isin(part.attempts.message_ids, message_ids))
            self._note(part.attempts.numbers[rows], "settled")
            self._withdrawn.take(part, rows)
            self.counts.withdrawn += len(rows)
        gone = set(message_ids.tolist())
        dropped = [letter for letter in self.letters if letter.message_id in gone]
        self.counts.dead_lettered -= len(dropped)
        self.reopen(letter.message_id for letter in dropped)
        self.letters = [letter for letter in self.letters if letter.message_id not in gone]
        self._drop_finished()

    @_moves
    def adopt(self, message_ids: Int64Array) -> Int64Array:
        """See `Spout.adopt`."""
        part = self._withdrawn.adopt(message_ids)
        if part is None:
            return message_ids[:0]
        numbers, counts = np.unique(part.attempts.numbers, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number in self.sent:
                self.sent[number].left += count
        self.counts.withdrawn -= part.count
        self._in_flight = merged([*self._in_flight, part])
        return part.attempts.message_ids

    @property
    def _all_in_flight(self) -> list[InFlight]:
        return [*self._in_flight, *self._withdrawn.parts]

    @property
    def pending_notifications(self) -> Int64Array:
        """Ids of done messages that the source was not notified of yet."""
        return np.concatenate([np.array([], np.int64), *self._done])

    def notified(self) -> None:
        """Note that the source was notified of all `pending_notifications`."""
        self._done = []

    def letters_kept(self) -> None:
        """Note that all `letters` are stored, so their messages are done."""
        self._done.append(np.array([letter.message_id for letter in self.letters], np.int64))
        self.letters = []

    def letters_refused(self, message_ids: Int64Array) -> None:
        """Forget letters that aren't stored yet, because their messages' output counts. They count as acked."""
        refused = set(message_ids.tolist())
        self.counts.dead_lettered -= len(refused)
        self.counts.acked += len(refused)
        for message in refused:
            self.dead_letters.pop(message, None)

    def apply_marks(self) -> None:
        """Apply `marks` to attempts in flight."""
        for mark in self.marks.collect():
            if isinstance(mark, PoisonMark):
                self._break_up(mark)
                continue
            if isinstance(mark, FailureMark):
                if (sent := self.sent.get(mark.number)) is not None:
                    sent.failures.append((mark.roots, mark.reason, mark.component))
                continue
            if isinstance(mark, PassedMark):
                self.outages.note_passed(mark.operator, mark.number, mark.message)
                continue
            if isinstance(mark, OutageMark):
                for part in self._all_in_flight:
                    rows = part.rows_of(np.asarray(mark.roots))
                    self.outages.mark(part.attempts.message_ids[rows[rows >= 0]], mark.operator)
                continue
            if isinstance(mark, BackMark):
                self._waiting.bring_back(mark.operator)
                continue
            if isinstance(mark, AsideMark):
                self.aside_errors[mark.operator] = mark.error
                number = _ASIDE - list(self.aside_errors).index(mark.operator)
                for part in self._all_in_flight:
                    rows = part.rows_of(np.asarray(mark.roots))
                    part.attempts.max_group[rows[rows >= 0]] = number
                continue
            if mark.kind == "held":
                self._waiting.held_until = mark.held_until
            for part in self._all_in_flight:
                rows = part.rows_of(np.asarray(mark.roots))
                rows = rows[rows >= 0]
                if mark.kind == "non_retryable":
                    part.attempts.non_retryable[rows] = True
                    continue
                part.attempts.exempt[rows] = True
                if mark.kind == "held":
                    part.attempts.max_group[rows] = _HELD

    def _break_up(self, mark: PoisonMark) -> None:
        emission = mark.emission
        if (sent := self.sent.get(emission.number)) is not None:
            sent.exempt = sent.job_failed = True
        counts = self.poison_search.job_failed(emission.message_ids, by_outage=mark.by_outage)
        for part in self._all_in_flight:
            rows = np.flatnonzero(part.attempts.numbers == emission.number)
            part.attempts.max_group[rows] = -(-len(emission.roots) // PARTS)
            part.attempts.exempt[rows] |= not counts
            if mark.waits_for is not None:
                message_ids = part.attempts.message_ids[rows[part.open[rows]]]
                if counts:
                    self.outages.mark(message_ids, mark.waits_for)
                else:
                    self._note_outage(message_ids, mark.waits_for, mark.error, emission.number, mark.at)

    def _wait(self, attempts: Attempts, due: FloatArray, searched: Mask) -> None:
        self.retry_changes += len(attempts) > 0
        self._waiting.add(attempts, due, searched)

    def _fail(
        self,
        roots: Int64Array,
        attempts: Attempts,
        fails: list[OutcomeBatch],
        of_fail: npt.NDArray[np.intp],
        now: float,
    ) -> None:
        timed_out = np.array([batch.reason == "timeout" for batch in fails])[of_fail]
        self.counts.timed_out += int(timed_out.sum())
        self.counts.failed += int((~timed_out).sum())
        fails, of_fail = self._with_reasons(roots, attempts, fails, of_fail, timed_out)
        numbers = np.array(
            [self._cause_number((batch.reason or "failed", batch.last_component)) for batch in fails], np.int16
        )
        # In an emission that isn't proven, a timeout is not the message's fault. But some would never end otherwise.
        unproven = [number for number, sent in self.sent.items() if not sent.proven]
        explained = [number for number in unproven if self.sent[number].is_in_outage]
        overtaken = timed_out & np.isin(attempts.numbers, unproven) & ~attempts.exempt
        counted = overtaken & ~np.isin(attempts.numbers, explained)
        overtaken &= ~counted | (attempts.overtaken < LOST_LIMIT)
        attempts = replace(
            attempts,
            cause_numbers=numbers[of_fail],
            exempt=attempts.exempt | overtaken,
            overtaken=attempts.overtaken + (overtaken & counted).astype(np.int16),
        )
        is_aside = attempts.max_group <= _ASIDE
        for number in np.unique(attempts.max_group[is_aside]).tolist():
            of = attempts[attempts.max_group == number]
            self._set_aside(
                replace(of, max_group=np.zeros(len(of), np.int32)), list(self.aside_errors)[_ASIDE - number], now
            )
        attempts, of_fail, timed_out = attempts[~is_aside], of_fail[~is_aside], timed_out[~is_aside]
        operators = self.outages.take_marks(attempts.message_ids)
        is_timeout = np.array([batch.reason == "timeout" for batch in fails])[of_fail]
        operators[is_timeout | attempts.exempt | attempts.non_retryable] = -1
        # It got to another place, so its time at the one that was unreachable is over. These failures are counted anyway.
        self._end_outages(attempts.message_ids[(operators < 0) & ~is_timeout & ~attempts.exempt])
        policies = [self._retry.policy_for(batch.reason or "failed", batch.detail) for batch in fails]
        different = {id(policy): policy for policy in policies}.values()
        for policy in different:
            rows = slice(None) if len(different) == 1 else np.array([other is policy for other in policies])[of_fail]
            judged, of_judged, of_outage = attempts[rows], of_fail[rows], operators[rows]
            is_out = of_outage >= 0
            if is_out.any():
                self._fail_by_outage(policy, judged[is_out], fails, of_judged[is_out], of_outage[is_out], now)
                judged, of_judged = judged[~is_out], of_judged[~is_out]
            verdict = policy.after_failure(judged)
            if (aside := verdict.exhausted & self._is_doubtful_job(judged)).any():
                self._set_aside(judged[aside], FAILED_JOBS, now)
                judged, of_judged = judged[~aside], of_judged[~aside]
                verdict = policy.after_failure(judged)
            self._emit_again(verdict, now)
            self._exhaust_failed(judged, verdict, fails, of_judged)

    @property
    def _has_come_through(self) -> bool:
        """True if a message was acked, or was processed and waits for an output that is written as a whole."""
        return self.counts.acked + self.counts.released > 0

    def _is_doubtful_job(self, attempts: Attempts) -> Mask:
        """Return whether attempts failed with their job, although no message has come through that shows another to be bad."""
        if not self.stops_if_broken or self._has_come_through:
            return np.zeros(len(attempts), np.bool_)
        failed_jobs = [number for number, sent in self.sent.items() if sent.job_failed]
        return np.isin(attempts.numbers, failed_jobs)

    def _set_aside(self, attempts: Attempts, cause: str, now: float) -> None:
        """Keep attempts that don't count until others show that their messages are to blame."""
        retries = attempts.retries(np.ones(len(attempts), np.bool_), np.zeros(len(attempts), np.bool_))
        self.retry_changes += 1
        self._waiting.set_aside(retries, cause, now)

    def _with_reasons(
        self,
        roots: Int64Array,
        attempts: Attempts,
        fails: list[OutcomeBatch],
        of_fail: npt.NDArray[np.intp],
        timed_out: Mask,
    ) -> tuple[list[OutcomeBatch], npt.NDArray[np.intp]]:
        """Replace timeouts of roots that were about to fail by their failures. The server hung before it got these."""
        fails, of_fail = list(fails), of_fail.copy()
        for number in np.unique(attempts.numbers[timed_out]).tolist():
            if (sent := self.sent.get(number)) is None or not sent.failures:
                continue
            rows = np.flatnonzero(timed_out & (attempts.numbers == number))
            has_reason, entries = sent.reasons_of(roots[rows])
            distinct, which = np.unique(entries, return_inverse=True)
            of_fail[rows[has_reason]] = len(fails) + which
            for entry in distinct.tolist():
                _, reason, component = sent.failures[entry]
                fails.append(fails[0]._replace(reason="failed", detail=reason, last_component=component))
        return fails, of_fail

    def _fail_by_outage(
        self,
        policy: RetryPolicy,
        judged: Attempts,
        fails: list[OutcomeBatch],
        of_judged: npt.NDArray[np.intp],
        operators: npt.NDArray[np.int16],
        now: float,
    ) -> None:
        """Emit messages again that failed because something was unreachable, except those that are to blame."""
        table = self.outages
        rows = table.fail(judged.message_ids, operators, judged.numbers, now + self._epoch_secs)
        for batch, operator in np.unique(np.stack([of_judged, operators], axis=1), axis=0).tolist():
            table.errors[operator] = fails[batch].detail or ""
        failures = table.rows.failures[rows].astype(np.int64)
        waited_secs = table.rows.last_secs[rows] - table.rows.since_secs[rows]
        is_over = (waited_secs >= policy.outage_secs) & (failures >= policy.max_attempts)
        exhausted = is_over & table.has_evidence()[rows] if is_over.any() else is_over
        verdict = policy.after_outage(judged, failures, exhausted)
        self._wait(verdict.retries, now + verdict.delays_secs, np.zeros(len(verdict.retries), np.bool_))
        self._exhaust_failed(judged, verdict, fails, of_judged)

    def _note_outage(self, message_ids: Int64Array, operator: str, error: str, number: int, now: float) -> None:
        """Note that a job failed because something was unreachable. One of these messages may be to blame."""
        table = self.outages
        of_operator = table.operator_number(operator)
        table.errors[of_operator] = error
        rows = table.rows.rows_of(message_ids)
        of_another = np.zeros(len(rows), np.bool_)
        of_another[rows >= 0] = table.rows.operators[rows[rows >= 0]] != of_operator
        message_ids = message_ids[~of_another]
        operators = np.full(len(message_ids), of_operator, np.int16)
        table.fail(message_ids, operators, np.full(len(message_ids), number), now + self._epoch_secs, counts=False)

    def _end_outages(self, message_ids: Int64Array) -> None:
        self.outages.take_marks(message_ids)
        self.outages.remove(message_ids)

    def _exhaust_failed(
        self, judged: Attempts, verdict: Verdict, fails: list[OutcomeBatch], of_judged: npt.NDArray[np.intp]
    ) -> None:
        self._end_outages(judged.message_ids[verdict.exhausted])
        for row in np.flatnonzero(verdict.exhausted).tolist():
            batch, message, count = fails[of_judged[row]], int(judged.message_ids[row]), int(verdict.failures[row])
            reason = batch.reason or "failed"
            letter = DeadLetter(message, self._run_id, count, reason, batch.last_component, batch.detail)
            self._exhaust(letter._replace(first_secs=int(judged.first_secs[row])))

    def _hold(self, attempts: Attempts, now: float) -> None:
        """Hold attempts until nothing else waits."""
        if len(attempts):
            self.counts.released += len(attempts)
            retries = attempts.retries(np.ones(len(attempts), np.bool_), np.zeros(len(attempts), np.bool_))
            self.retry_changes += 1
            self._waiting.hold(retries, now)

    def _lose(self, part: InFlight, rows: Int64Array, now: float, *, exempt: bool = False) -> None:
        part.close_rows(rows)
        attempts = part.attempts[rows]
        self.outages.take_marks(attempts.message_ids)
        self.counts.lost += len(rows)
        explained = [number for number, sent in self.sent.items() if sent.exempt]
        counted = ~(attempts.exempt | np.isin(attempts.numbers, explained) | exempt)
        self._note(attempts.numbers[~counted], "settled")
        self._note(attempts.numbers[counted], "lost")
        causes = np.full(len(attempts), self._cause_number(LOST))
        verdict = self._retry.after_loss(replace(attempts, cause_numbers=causes), counted)
        self._emit_again(verdict, now)
        self._exhaust_lost(attempts[verdict.exhausted])

    def _emit_again(self, verdict: Verdict, now: float) -> None:
        searched = verdict.exempt & (verdict.retries.max_group > 0)
        self._wait(verdict.retries, now + np.where(searched, 0.0, verdict.delays_secs), searched)

    def _exhaust_lost(self, attempts: Attempts) -> None:
        self._end_outages(attempts.message_ids)
        columns = (attempts.message_ids.tolist(), attempts.previous.tolist(), attempts.first_secs.tolist())
        for message, attempt, first_secs in zip(*columns, strict=True):
            self._exhaust(DeadLetter(message, self._run_id, attempt + 1, "lost", first_secs=first_secs))

    def _cause_number(self, cause: Cause) -> int:
        if len(self.causes) == _MOST_CAUSES:
            return self._cause_numbers.get(cause, 0)
        number = self._cause_numbers.setdefault(cause, len(self.causes))
        if number == len(self.causes):
            self.causes.append(cause)
        return number

    def reopen(self, message_ids: Iterable[int]) -> None:
        """Forget the dead letters of messages that are emitted again."""
        for message in message_ids:
            self.dead_letters.pop(message, None)

    def _exhaust(self, letter: DeadLetter) -> None:
        self.dead_letters.pop(letter.message_id, None)
        self.dead_letters[letter.message_id] = letter
        if self._keep_letters is not None and len(self.dead_letters) > self._keep_letters:
            del self.dead_letters[next(iter(self.dead_letters))]
        self.letters.append(letter)
        self.counts.dead_lettered += 1

    def _note(self, numbers: Int64Array, outcome: Literal["acked", "settled", "lost"]) -> None:
        if not len(numbers) or not self.sent:
            return
        if (numbers == numbers[0]).all():  # most often
            by_number: Iterable[tuple[int, int]] = [(numbers[0], len(numbers))]
        else:
            by_number = zip(*np.unique(numbers, return_counts=True), strict=True)
        for number, count in by_number:
            if (sent := self.sent.get(int(number))) is not None:
                sent.note(int(count), outcome)

    def _drop_finished(self) -> None:
        self._in_flight = [part for part in self._in_flight if part.count]


def _read_only(column: Int64Array) -> Int64Array:
    """Return a read-only view."""
    view = column.view()
    view.flags.writeable = False
    return view


def _distinct(parts: list[Int64Array]) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """Return the distinct values of several arrays, and per value the index of the first array that has it."""
    if not parts:
        return np.array([], np.int64), np.array([], np.intp)
    values, first = np.unique(np.concatenate(parts), return_index=True)
    return values, np.repeat(np.arange(len(parts)), [len(part) for part in parts])[first]
