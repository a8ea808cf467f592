"""What a spout knows of its messages: which are to be emitted, in flight, done. No I/O and no clock: both are the caller's."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from acker_redis.ledger.outcomes.decoding import OutcomeBatch
from acker_redis.model import blocks
from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.spout.in_flight import Emission, InFlight, Replays, Sent, Tries, in_order, merged, root_ids
from acker_redis.spout.poison_search import PARTS, Isolation
from acker_redis.spout.retry import RetryPolicy, Verdict
from acker_redis.store.dead_letter import DeadLetter

Cause: TypeAlias = tuple[str, str | None]
"""Why an attempt did not succeed, as a dead letter says it, and the last stage that touched it."""

NO_CAUSE: Cause = ("", None)
LOST: Cause = ("lost", None)

_HELD = -1
"""As `Tries.most`: the next one goes out with all that are held, once nothing else waits."""

_MOST_CAUSES = 10_000
"""More are not told apart."""

P = ParamSpec("P")
T = TypeVar("T")


def _moves(
    method: Callable[Concatenate["SpoutState", P], T],
) -> Callable[Concatenate["SpoutState", P], T]:
    """Messages are neither waiting nor in flight for a moment, at which no other thread looks."""

    @wraps(method)
    def alone(self: "SpoutState", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._moving:
            return method(self, *args, **kwargs)

    return alone


@dataclass
class SpoutCounts:
    """What a spout has seen so far; every emitted attempt ends as exactly one of acked, failed, timed_out, lost or released.

    Released are those that came through while the output, which is a whole, could not be written yet; see `Spout.hold`.
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


class SpoutState:
    """The messages of one source in one run.

    Every message goes from waiting to in flight, and from there back or to done: acked, or given up, which is done once its
    letter is kept. One thread works with it; others may call what says so.

    Attributes:
        counts: what happened so far.
        dead_letters: message id -> letter of each message that was given up.
        letters: those that are not kept yet.
        sent: emission number -> what became of it, of emissions that are followed.
        isolation: messages of emissions that broke as a whole.
        only_due_by: what waits for another attempt goes out only if it was due by then (`time.monotonic`); None: now. What
            broke as a whole, and is not alone yet, goes out anyway.
        gone_tasks: of runs before this one in the lane, whose outcomes nobody waits for.
        one_by_one: whether an emission begins only when nothing is in flight, and messages that are held with no others: the
            output of the messages is a whole.
        causes: (reason, last stage) of attempts that did not succeed, which `Tries.why` counts in; the first is none.
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
        """No messages yet; `keep_letters` and `goes_on` are as for `Spout`, `epoch_secs` makes a `now` the time since 1970."""
        self.counts = SpoutCounts()
        self.causes: list[Cause] = [NO_CAUSE]
        self.dead_letters: dict[int, DeadLetter] = {}
        self.letters: list[DeadLetter] = []
        self.sent: dict[int, Sent] = {}
        self.isolation = Isolation(goes_on=goes_on)
        self.only_due_by: float | None = None
        self.gone_tasks: set[int] = set()
        self.one_by_one = False
        self._app, self._run_id, self._retry, self._keep_letters = app, run_id, retry, keep_letters
        self._epoch_secs = epoch_secs
        self._cause_numbers = {NO_CAUSE: 0}
        self._fresh: deque[Int64Array] = deque()
        self._replays, self._held = Replays(), Replays()
        self._held_until = float("-inf")
        self._in_flight: list[InFlight] = []
        self._done: list[Int64Array] = []
        self._marks: deque[tuple[Literal["excused", "final", "held"], Int64Array] | tuple[Emission, bool]] = deque()
        self._next_number = self._turn = 0
        self._moving = threading.Lock()

    @property
    def pending(self) -> int:
        """Messages in flight."""
        return sum(part.count for part in self._in_flight)

    @property
    def emissions(self) -> int:
        """Emissions made so far."""
        return self._next_number

    @property
    def done(self) -> bool:
        """Whether every message is done, and that was said."""
        waits = self._fresh or self._replays or self._held or self.isolation
        return not (waits or self._in_flight or self.letters or self._done)

    def add(self, message_ids: Int64Array) -> None:
        """Messages to emit; their ids must be distinct among those that are not done."""
        self._fresh.append(np.array(message_ids, np.int64))  # a copy: they stay here until they are done

    @property
    def fresh(self) -> int:
        """Messages that were not emitted yet."""
        return sum(len(part) for part in self._fresh)

    @property
    def left(self) -> int:
        """Messages that are neither acked nor given up."""
        return self.fresh + self.pending + len(self._replays) + len(self._held) + len(self.isolation)

    def fresh_ids(self) -> Int64Array:
        """Messages that were not emitted yet."""
        return np.concatenate([np.array([], np.int64), *self._fresh])

    def left_ids(self) -> Int64Array:
        """Messages that are neither acked nor given up."""
        waiting, _ = self._waiting()
        return np.concatenate([self.fresh_ids(), self.in_flight(), waiting.message_ids])

    def in_flight(self) -> Int64Array:
        """Messages in flight."""
        return np.concatenate(
            [np.array([], np.int64), *(part.tries.message_ids[part.open] for part in self._in_flight)]
        )

    @_moves
    def tries_left(self, now: float) -> tuple[Tries, FloatArray]:
        """What another spout would have to emit in place of this one, and in how many seconds from now.

        What waits for its next emission comes as that; what is in flight as one after it, which is due, as if this one were
        not counted. Messages that were not emitted yet are left out. Any thread may call this.
        """
        waiting, due = self._waiting()
        flying = Tries.concatenate(
            [Tries.first(np.array([], np.int64)), *(part.tries[part.open] for part in self._in_flight)]
        )
        again = flying.again(np.ones(len(flying), np.bool_), np.zeros(len(flying), np.bool_))
        delays = np.concatenate([np.maximum(0.0, due - now), np.zeros(len(again))])
        return Tries.concatenate([waiting, again]), delays

    @_moves
    def resume(self, tries: Tries, causes: list[Cause], delays: FloatArray, now: float) -> None:
        """Go on with what another spout had left, as `tries_left` gave it, and with its causes."""
        why = np.array([self._cause_number(cause) for cause in causes], np.int16)[tries.why]
        self._wait(replace(tries, why=why), now + delays, np.zeros(len(tries), np.bool_))

    def skip_number(self) -> int:
        """The number of an emission without messages."""
        self._next_number += 1
        return self._next_number - 1

    @_moves
    def next_emission(self, now: float, max_pending: int | None) -> Emission | None:
        """Replays that are due, and fresh messages, as many as there is room for; they are in flight from now on.

        Or some of an emission that broke, in its turn, or one of them alone.
        """
        if self.one_by_one and self.pending:
            return None
        room = None if max_pending is None else max(0, max_pending - self.pending)
        replays, tries = self._take(now, room)
        if len(tries) == 0:
            return None
        number = self._next_number
        tries = replace(
            tries, numbers=np.full(len(tries), number), most=np.zeros(len(tries), np.int32),
            first_secs=np.where(tries.first_secs == 0, np.uint32(now + self._epoch_secs), tries.first_secs),
        )  # fmt: skip
        roots = root_ids(self._app, self._run_id, tries.message_ids, number)
        self._next_number += 1
        self._in_flight = merged([*self._in_flight, InFlight(roots, tries)])
        self.counts.replayed += replays
        self.counts.emitted += len(roots)
        return Emission(number, *map(_read_only, (tries.message_ids, tries.attempts, roots)))

    def follow(self, emission: Emission) -> None:
        """Keep in `sent` what becomes of it, until `take_finished` gives it back."""
        self.sent[emission.number] = Sent(emission)

    def has_broken(self, number: int) -> bool:
        """Whether an emission that is followed broke as a whole, as `isolate` said."""
        return self.sent[number].broke

    def take_finished(self) -> list[Sent]:
        """Emissions that have ended and have no root left without outcome; they are not followed any more."""
        finished = [sent for sent in self.sent.values() if sent.ended and not sent.left]
        for sent in finished:
            del self.sent[sent.emission.number]
        return finished

    def excuse(self, roots: Int64Array) -> None:
        """See `Spout.excuse`. Any thread may call this."""
        self._marks.append(("excused", roots))

    def no_retry(self, roots: Int64Array) -> None:
        """See `Spout.no_retry`. Any thread may call this."""
        self._marks.append(("final", roots))

    def isolate(self, emission: Emission, *, by_outage: bool = False) -> None:
        """See `Spout.isolate`. Any thread may call this."""
        self._marks.append((emission, by_outage))

    def hold(self, roots: Int64Array, until: float = float("-inf")) -> None:
        """See `Spout.hold`. Any thread may call this."""
        self._held_until = until
        self._marks.append(("held", roots))

    @_moves
    def is_whole(self, emission: Emission) -> bool:
        """Whether an emission under way has all messages that are left. Any thread may call this."""
        return self._has_all(emission)

    @_moves
    def accept(self, emission: Emission) -> bool:
        """As `is_whole`; if so, what becomes of its roots from now on is excused. Any thread may call this."""
        if not self._has_all(emission):
            return False
        for part in self._in_flight:
            part.tries.excused[part.tries.numbers == emission.number] = True
        return True

    def _has_all(self, emission: Emission) -> bool:
        open_now = sum(int((part.open & (part.tries.numbers == emission.number)).sum()) for part in self._in_flight)
        return open_now == self.left == len(emission.roots)

    def excuse_emission(self, number: int) -> None:
        """As `excuse`, for all roots of an emission; losses of it have an excuse, too."""
        self.sent[number].excused = True
        for part in self._in_flight:
            part.tries.excused[part.tries.numbers == number] = True

    def excuse_losses(self) -> None:
        """Something happened to a server, which explains what gets lost of the emissions that are followed now."""
        for sent in self.sent.values():
            sent.excused = True

    def waiting(self, under_way: Emission | None) -> list[Int64Array]:
        """Roots in flight, in a few arrays, without those of an emission under way."""
        left_out = -1 if under_way is None else under_way.number
        return [part.roots[part.open & (part.tries.numbers != left_out)] for part in self._in_flight]

    def find(self, roots: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Of those that are in flight: their places among these roots, their messages, and which attempt each is, from 1."""
        places, messages, attempts = [], [], []
        for part in self._in_flight:
            rows = part.find(roots)
            places.append(np.flatnonzero(rows >= 0))
            messages.append(part.tries.message_ids[rows[rows >= 0]])
            attempts.append(part.tries.attempts[rows[rows >= 0]] + 1)
        none = [np.array([], np.int64)]
        return np.concatenate(none + places), np.concatenate(none + messages), np.concatenate(none + attempts)

    @_moves
    def settle(self, packed: list[OutcomeBatch], now: float) -> None:
        """Act on outcomes; those of roots that are not in flight are counted as late."""
        self.apply_marks()
        acks = [one.roots for one in packed if one.kind == "ack"]
        fails = [one for one in packed if one.kind == "fail"]
        acked = blocks.distinct(np.concatenate([np.array([], np.int64), *acks]).view(np.uint64)).view(np.int64)
        failed, of_fail = _distinct([one.roots for one in fails])
        known = 0
        for part in self._in_flight:
            rows = part.find(acked)
            rows = rows[rows >= 0]
            if len(rows):
                part.close(rows)
                self._note(part.tries.numbers[rows], "acked")
                self._done.append(part.tries.message_ids[rows])
                self.counts.acked += len(rows)
            known += len(rows)
            rows = part.find(failed)
            if (hits := rows >= 0).any():
                part.close(rows[hits])
                tries = part.tries[rows[hits]]
                self._note(tries.numbers, "settled")
                held = tries.most == _HELD
                self._hold(tries[held], now)
                self._fail(tries[~held], fails, of_fail[hits][~held], now)
                known += int(hits.sum())
        self.counts.late += sum(len(one.roots) for one in packed) - known
        self._drop_finished()

    @_moves
    def lose(self, roots: Int64Array, now: float) -> None:
        """The ledger doesn't know these roots, and has written no outcome of them: emit their messages again."""
        self.apply_marks()
        for part in self._in_flight:
            rows = part.find(roots)
            self._lose(part, rows[rows >= 0], now)
        self._drop_finished()

    @_moves
    def lose_all(self, now: float) -> None:
        """The ledger lost everything: emit all that is in flight again. Nobody's fault, so it counts to no limit."""
        self.apply_marks()
        for part in self._in_flight:
            self._lose(part, np.flatnonzero(part.open), now, excused=True)
        self._drop_finished()

    @_moves
    def give_up(self, message_ids: Int64Array) -> None:
        """See `Spout.give_up`."""
        for part in self._in_flight:
            rows = np.flatnonzero(part.open & np.isin(part.tries.message_ids, message_ids))
            part.close(rows)
            tries = part.tries[rows]
            self.counts.lost += len(rows)
            self._note(tries.numbers, "settled")
            self._give_up_lost(tries)
        self._drop_finished()

    @property
    def unsaid(self) -> Int64Array:
        """Messages that are done and of which that was not said yet."""
        return np.concatenate([np.array([], np.int64), *self._done])

    def said(self) -> None:
        """It was said of all `unsaid`."""
        self._done = []

    def letters_kept(self) -> None:
        """All `letters` are kept: their messages are done."""
        self._done.append(np.array([letter.message_id for letter in self.letters], np.int64))
        self.letters = []

    def _take_fresh(self, room: int | None) -> Int64Array:
        parts = [np.array([], np.int64)]
        while self._fresh and room != 0:
            messages = self._fresh.popleft()
            if room is not None and len(messages) > room:
                self._fresh.appendleft(messages[room:])
                messages = messages[:room]
            parts.append(messages)
            room = None if room is None else room - len(messages)
        return in_order(np.concatenate(parts))  # so that those of a block stand together

    def apply_marks(self) -> None:
        """Take note of what `excuse`, `no_retry` and `isolate` were told."""
        while self._marks:
            what, given = self._marks.popleft()
            if isinstance(what, Emission):
                self._break_up(what, by_outage=bool(given))
                continue
            for part in self._in_flight:
                rows = part.find(np.asarray(given))
                rows = rows[rows >= 0]
                getattr(part.tries, "excused" if what == "held" else what)[rows] = True
                if what == "held":
                    part.tries.most[rows] = _HELD

    def _break_up(self, emission: Emission, *, by_outage: bool) -> None:
        if (sent := self.sent.get(emission.number)) is not None:
            sent.excused = sent.broke = True
        counts = self.isolation.broke(emission.message_ids, by_outage=by_outage)
        for part in self._in_flight:
            rows = np.flatnonzero(part.tries.numbers == emission.number)
            part.tries.most[rows] = -(-len(emission.roots) // PARTS)
            part.tries.excused[rows] |= not counts

    def _take(self, now: float, room: int | None) -> tuple[int, Tries]:
        """What is to be emitted now, and how many of these are replays."""
        by = now if self.only_due_by is None else min(now, self.only_due_by)
        isolation = self.isolation
        for turn in range(3):
            first = 0 if isolation.is_stuck else 1 if isolation.in_doubt else self._turn  # stuck: only others can tell
            kind = (turn + first) % 3
            if kind == 0:
                replays = self._replays.take(by, room if room is None else room - self._kept_for_fresh(room))
                fresh = Tries.first(self._take_fresh(None if room is None else room - len(replays)))
                found, count = Tries.concatenate([replays, fresh]), len(replays)
                isolation.under_way = "others"
            else:
                found = isolation.take_searched(now, room) if kind == 1 else isolation.take_known(by, room)
                count = len(found)
            if len(found):
                self._turn = kind + 1
                return count, found
        if not (self._fresh or self._replays or self.isolation):
            # All at once, whatever room there is: a part of them could not be written.
            held = self._held.take(now, None)
            if len(held):
                isolation.under_way = "others"
            return len(held), held
        return 0, Tries.first(np.array([], np.int64))

    def _kept_for_fresh(self, room: int) -> int:
        """Half of the room: replays that fail again and again hold up nobody."""
        return min(self.fresh, room // 2 if room > 1 else self._next_number % 2 * room)

    def _waiting(self) -> tuple[Tries, FloatArray]:
        found = [self._replays.all(), self._held.all(), self.isolation.all()]
        return Tries.concatenate([tries for tries, _ in found]), np.concatenate([due for _, due in found])

    def _wait(self, tries: Tries, due: FloatArray, searched: npt.NDArray[np.bool_]) -> None:
        """Emit them again when they are due; `searched` says which of those that may not go with all others are not known."""
        apart = tries.most > 0
        if not apart.any():
            self._replays.add(tries, due)
            return
        self._replays.add(tries[~apart], due[~apart])
        searched = searched | (tries.most > 1)
        for rows, counted in ((apart & searched, False), (apart & ~searched, True)):
            if rows.any():
                self.isolation.add(tries[rows], due[rows], counted)

    def _fail(self, tries: Tries, fails: list[OutcomeBatch], of_fail: npt.NDArray[np.intp], now: float) -> None:
        timed_out = np.array([one.reason == "timeout" for one in fails])[of_fail]
        self.counts.timed_out += int(timed_out.sum())
        self.counts.failed += int((~timed_out).sum())
        numbers = np.array([self._cause_number((one.reason or "failed", one.last_stage)) for one in fails], np.int16)
        # Of an emission that is not proven nobody else has a part: if its work took too long, that was not the message.
        unproven = [number for number, sent in self.sent.items() if not sent.proven]
        excused = tries.excused | (timed_out & np.isin(tries.numbers, unproven))
        tries = replace(tries, why=numbers[of_fail], excused=excused)
        policies = [self._retry.of(one.reason or "failed", one.detail) for one in fails]
        different = {id(one): one for one in policies}.values()
        for policy in different:
            rows = slice(None) if len(different) == 1 else np.array([one is policy for one in policies])[of_fail]
            judged, of_judged = tries[rows], of_fail[rows]
            verdict = policy.after_failure(judged)
            self._emit_again(verdict, now)
            for row in np.flatnonzero(verdict.spent).tolist():
                one, message, count = fails[of_judged[row]], int(judged.message_ids[row]), int(verdict.failures[row])
                why = one.reason or "failed"
                letter = DeadLetter(message, self._run_id, count, why, one.last_stage, one.detail)
                self._give_up(letter._replace(first_secs=int(judged.first_secs[row])))

    def _hold(self, tries: Tries, now: float) -> None:
        """They wait until nothing else does."""
        if len(tries):
            self.counts.released += len(tries)
            again = tries.again(np.ones(len(tries), np.bool_), np.zeros(len(tries), np.bool_))
            due = np.full(len(tries), max(now, self._held_until))
            self._held.add(replace(again, most=np.zeros(len(tries), np.int32)), due)

    def _lose(self, part: InFlight, rows: Int64Array, now: float, *, excused: bool = False) -> None:
        part.close(rows)
        tries = part.tries[rows]
        self.counts.lost += len(rows)
        with_excuse = [number for number, sent in self.sent.items() if sent.excused]
        counted = ~(tries.excused | np.isin(tries.numbers, with_excuse) | excused)
        self._note(tries.numbers[~counted], "settled")
        self._note(tries.numbers[counted], "lost")
        verdict = self._retry.after_loss(replace(tries, why=np.full(len(tries), self._cause_number(LOST))), counted)
        self._emit_again(verdict, now)
        self._give_up_lost(tries[verdict.spent])

    def _emit_again(self, verdict: Verdict, now: float) -> None:
        searched = verdict.excused & (verdict.again.most > 0)
        self._wait(verdict.again, now + np.where(searched, 0.0, verdict.delays_secs), searched)

    def _give_up_lost(self, tries: Tries) -> None:
        columns = (tries.message_ids.tolist(), tries.attempts.tolist(), tries.first_secs.tolist())
        for message, attempt, first_secs in zip(*columns, strict=True):
            self._give_up(DeadLetter(message, self._run_id, attempt + 1, "lost", first_secs=first_secs))

    def _cause_number(self, cause: Cause) -> int:
        if len(self.causes) == _MOST_CAUSES:
            return self._cause_numbers.get(cause, 0)
        number = self._cause_numbers.setdefault(cause, len(self.causes))
        if number == len(self.causes):
            self.causes.append(cause)
        return number

    def take_back(self, message_ids: Iterable[int]) -> None:
        """These are no dead letters any more: they are emitted again."""
        for message in message_ids:
            self.dead_letters.pop(message, None)

    def _give_up(self, letter: DeadLetter) -> None:
        self.dead_letters.pop(letter.message_id, None)
        self.dead_letters[letter.message_id] = letter
        if self._keep_letters is not None and len(self.dead_letters) > self._keep_letters:
            del self.dead_letters[next(iter(self.dead_letters))]
        self.letters.append(letter)
        self.counts.dead_lettered += 1

    def _note(self, numbers: Int64Array, what: Literal["acked", "settled", "lost"]) -> None:
        if not len(numbers) or not self.sent:
            return
        if (numbers == numbers[0]).all():  # most often
            found: Iterable[tuple[int, int]] = [(numbers[0], len(numbers))]
        else:
            found = zip(*np.unique(numbers, return_counts=True), strict=True)
        for number, count in found:
            if (sent := self.sent.get(int(number))) is not None:
                sent.note(int(count), what)

    def _drop_finished(self) -> None:
        self._in_flight = [part for part in self._in_flight if part.count]


def _read_only(column: Int64Array) -> Int64Array:
    """The same numbers, which a program can't change for this module."""
    view = column.view()
    view.flags.writeable = False
    return view


def _distinct(parts: list[Int64Array]) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """The distinct values of several arrays, and for each the number of the first array that has it."""
    if not parts:
        return np.array([], np.int64), np.array([], np.intp)
    values, first = np.unique(np.concatenate(parts), return_index=True)
    return values, np.repeat(np.arange(len(parts)), [len(part) for part in parts])[first]
