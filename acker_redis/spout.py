"""The spout's side: which messages are in flight, what became of them, what to emit again.

Storm keeps this in SpoutExecutor's pending map and in the spout itself. A failed message is emitted again under a fresh
root, so a late update of an old attempt can't touch the new one. After its last attempt it is a dead letter, never an ack.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from acker_redis.acker import Acker
from acker_redis.dead_letters import DeadLetter
from acker_redis.emitter import Emitted, Emitter, raise_error
from acker_redis.errors import (
    BadConfigError,
    LedgerLostError,
    NotExactError,
    ServerUnavailableError,
)
from acker_redis.model import MAX_PAYLOAD_BYTES, PackedOutcomes
from acker_redis.outages import Outages
from acker_redis.pending import Emission, InFlight, Int64Array, Replays, Sent, Tries, merged, root_ids
from acker_redis.retry import RetryPolicy
from acker_redis.watch import Watch

log = logging.getLogger("acker_redis.spout")

LOST_AFTER_TIMEOUTS = 4
"""`run` asks the ledger for what is in flight after so many message timeouts without any outcome."""

LOST_LIMIT = 10
"""A message whose root got lost so often is a dead letter: it is given to `emit` and never initialised."""

POLL_MS = 100


@dataclass
class SpoutCounts:
    """What a spout has seen so far; every emitted attempt ends as exactly one of acked, failed, timed_out or lost."""

    emitted: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    late: int = 0


@dataclass
class Spout:
    """Tracks the messages of one source in one run.

    The caller emits (`next_emission`, then makes tuples of it, wherever), and calls `poll` often; `done` tells when every
    message was acked or is a dead letter.

    Guarantee: a message is counted acked only when a root of it completed; each ends as acked or dead-lettered. Not
    guaranteed: that a message was processed once; a replay does its work again, so sinks have to be idempotent by message.
    Everything is kept in this process. A `Spout` takes the outcomes of its task's lane; those of its task that it does not
    know, it confirms and counts as `late`.

    Attributes:
        acker: where outcomes come from.
        run_id: unique per run of the program.
        task: owner of the roots.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight; None: no bound (Storm: topology.max.spout.pending).
        dead_letters: message id -> its letter. They are written to the app's dead-letter stream, too, before their last
            outcome is confirmed.
        payload: gives the payload of message ids that are given up, None for one it does not have; to be kept with the
            letter, if it has at most MAX_PAYLOAD_BYTES. None: a letter has the message id only.
        on_done: called with the ids of messages that were acked or became dead letters, before their outcomes are confirmed.
    """

    acker: Acker
    run_id: str
    task: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_spout_pending: int | None = None
    counts: SpoutCounts = field(default_factory=SpoutCounts)
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    payload: Callable[[list[int]], list[bytes | None]] | None = None
    on_done: Callable[[Int64Array], object] | None = None
    _fresh: deque[Int64Array] = field(default_factory=deque)
    _replays: Replays = field(default_factory=Replays)
    _given_up: list[DeadLetter] = field(default_factory=list)
    _acked: list[Int64Array] = field(default_factory=list)
    _in_flight: list[InFlight] = field(default_factory=list)
    _next_number: int = 0
    _sent: list[Sent] = field(default_factory=list)
    _vanished: bool = False

    def add(self, message_ids: Int64Array) -> None:
        """Give messages to emit; their ids must be distinct over the run."""
        self._fresh.append(np.ascontiguousarray(message_ids, np.int64))

    @property
    def pending(self) -> int:
        """Messages in flight."""
        return sum(part.count for part in self._in_flight)

    @property
    def done(self) -> bool:
        """Whether every message given was acked or is a dead letter."""
        return not (self._fresh or self._replays or self._in_flight or self._given_up or self._acked)

    def next_emission(self) -> Emission | None:
        """Messages to emit now: replays that are due, then fresh ones, as many as max_spout_pending leaves room for."""
        room = None if self.max_spout_pending is None else max(0, self.max_spout_pending - self.pending)
        replays = self._replays.take(time.monotonic(), room)
        tries = Tries.concatenate(
            [replays, Tries.first(self._take_fresh(None if room is None else room - len(replays)))]
        )
        if len(tries) == 0:
            return None
        roots = root_ids(self.acker.config.app, self.run_id, tries.message_ids, tries.attempts)
        emission = Emission(self._next_number, tries.message_ids, tries.attempts, roots)
        self._next_number += 1
        self._in_flight = merged([*self._in_flight, InFlight(roots, tries)])
        self.counts.replayed += len(replays)
        self.counts.emitted += len(roots)
        return emission

    def _take_fresh(self, room: int | None) -> Int64Array:
        parts = [np.array([], np.int64)]
        while self._fresh and room != 0:
            messages = self._fresh.popleft()
            if room is not None and len(messages) > room:
                self._fresh.appendleft(messages[room:])
                messages = messages[:room]
            parts.append(messages)
            room = None if room is None else room - len(messages)
        return np.concatenate(parts)

    def poll(self, max_outcomes: int = 10_000, block_ms: int = 0) -> int:
        """Take outcomes, act on them, confirm them; returns how many there were.

        A lost ledger is recovered, and everything in flight emitted again.

        Raises:
            BadConfigError: another task's spout shares this one's lane.
        """
        return self._poll(max_outcomes, block_ms)

    def _poll(self, max_outcomes: int = 10_000, block_ms: int = 0, *, again: bool = False) -> int:
        lane = self.task % self.acker.config.lanes
        try:
            packed = self.acker.poll_packed(
                max_outcomes, block_ms, consumer=f"spout-{self.task}", lane=lane, again=again
            )
            mine = [one for one in packed if one.task == self.task]
            self._settle(mine)
            try:
                self._tell()
            except (
                ServerUnavailableError
            ):  # a server that is full takes no dead letter, and has to get rid of what was acked
                self.acker.confirm_packed([one for one in mine if one.kind == "ack"])
                raise
            self.acker.confirm_packed(mine)
        except LedgerLostError:
            self._recover()
            return 0
        self._refuse_others(packed, lane)
        return sum(len(one.roots) for one in packed)

    def _recover(self) -> None:
        log.warning("the ledger lost its data: everything in flight is emitted again")
        self.acker.recover()
        for part in self._in_flight:
            self._lose(part, np.flatnonzero(part.open))
        self._drop_finished()
        self._tell()

    def run(self, emit: Callable[[Emission], object], progress: Callable[[bool], object] | None = None) -> SpoutCounts:
        """Emit, poll, replay and reconcile until every message was acked or is a dead letter.

        Args:
            emit: makes tuples of an emission and waits until they went out (runs the Spark job). Called in a thread of its
                own, one emission at a time, while outcomes are taken here. If it raises, its messages are found by
                `reconcile` or time out, and are replayed; after three in a row the error is raised, and at once
                if it is one of ours that trying again can't change, or if nothing is left to do but this.
            progress: called several times a second; told whether an emission is under way.

        A server that is gone, full, busy or a replica is waited for, several minutes long; emissions that it broke off don't
        count as failed. What it lost (a restart, a failover) is looked for as soon as the server is another one, or knows of
        fewer pending roots than it should.

        Raises:
            AckerError: `emit` failed again and again, or as `poll`.
        """
        quiet_secs = LOST_AFTER_TIMEOUTS * self.acker.config.message_timeout_secs
        quiet_since = time.monotonic()
        outages = Outages(log)
        watch = Watch(self.acker)
        ask_now = excused = False
        self._sent = []
        with Emitter(emit) as emitter:
            while not self.done:
                ended = emitter.collect()
                if ended is not None:
                    ask_now = ask_now or ended.failed
                    self._take_note(ended)
                if emitter.is_free and (emission := self.next_emission()) is not None:
                    self._sent.append(Sent(emission))
                    emitter.start(emission)
                taken = outages.wait_for(lambda: self._poll(block_ms=POLL_MS))
                if taken or emitter.emission is not None:
                    quiet_since = time.monotonic()
                idle_for = None if taken or emitter.emission is not None else self.pending
                missing = outages.wait_for(partial(watch.something_is_missing, idle_for, self._next_number))
                ask_now = ask_now or missing or outages.seen
                if not taken and (ask_now or time.monotonic() - quiet_since > quiet_secs):
                    outages.wait_for(lambda: self._reconcile(emitter.emission))
                    excused = excused or outages.seen or watch.replaced
                    ask_now, outages.seen, watch.replaced, quiet_since = False, False, False, time.monotonic()
                excused = self._look_at_sent(excused)
                if progress is not None:
                    progress(emitter.emission is not None)
        return self.counts

    def _take_note(self, ended: Emitted) -> None:
        for sent in self._sent:
            if sent.emission is ended.emission:
                sent.ended, sent.error = not ended.by_outage, None if ended.by_outage else ended.error
        if ended.by_outage:  # what an outage broke off is not the messages' fault
            for part in self._in_flight:
                rows = part.find(ended.emission.roots)
                part.tries.excused[rows[rows >= 0]] = True

    def _look_at_sent(self, excused: bool) -> bool:
        """Raise what waiting can't change: an error that no replay will show again, and messages that never become roots.

        Args:
            excused: a server was away or replaced, which explains what got lost. Returned as it is to be next time.
        """
        finished = [sent for sent in self._sent if sent.ended and not sent.left]
        for sent in finished:
            count = len(sent.emission.roots)
            if sent.error is not None and sent.acked == count:
                raise_error(sent.error)
            vanished = sent.error is None and sent.lost == count and not excused
            if vanished and self._vanished:
                raise NotExactError(
                    f"none of the {count} messages of an emission became a root, and of those before neither: read again, "
                    "they have other ids or are gone (monotonically_increasing_id, uuid, rand, the time; a source that "
                    "changed), or only a part of the rows is read (limit, take). Take ids from the data, persist() or write "
                    "the messages before the run"
                )
            self._vanished = vanished and not sent.emission.attempts.any()  # one message of many may be lost for good
        self._sent = [sent for sent in self._sent if sent not in finished]
        return excused and bool(self._sent)

    def give_up(self, message_ids: Int64Array) -> None:
        """Dead-letter messages in flight, as lost: their source can't give them again, so they were not made tuples.

        The letters are written by the next `poll`.
        """
        for part in self._in_flight:
            rows = np.flatnonzero(part.open & np.isin(part.tries.message_ids, message_ids))
            self.counts.lost += len(rows)
            self._give_up_lost(part.close(rows))
        self._drop_finished()

    def reconcile(self) -> int:
        """Emit again what the ledger doesn't know: the init was lost (a failed job, a failover that lost writes).

        Call this only while nothing is being emitted.
        """
        return self._reconcile(None)

    def _reconcile(self, under_way: Emission | None) -> int:
        """As `reconcile`, but for an emission that is under way."""
        before = self.counts.lost
        try:
            for part in self._in_flight:
                waiting = part.sorted_roots[part.open]
                if under_way is not None:
                    waiting = np.setdiff1d(waiting, under_way.roots)
                records = self.acker.inspect_many(waiting) if len(waiting) else []
                unknown = waiting[[record is None or record.state != "owned" for record in records]]
                # Those that settled have their outcome written: it is in a stream, or in a reply that was lost.
                while len(unknown) and self._poll(again=True):
                    pass
                self._lose(part, np.flatnonzero(np.isin(part.sorted_roots, unknown) & part.open))
        except LedgerLostError:
            self._recover()
        self._drop_finished()
        self._tell()
        return self.counts.lost - before

    def _refuse_others(self, packed: list[PackedOutcomes], lane: int) -> None:
        others = {one.task for one in packed} - {self.task}
        if others:
            raise BadConfigError(
                f"outcomes of task {min(others)} came to the spout of task {self.task}: both use lane {lane} of app "
                f"{self.acker.config.app!r}, and would take each other's outcomes. Give the app more lanes than its highest "
                "task number, or each program an app of its own. Theirs were not confirmed. If they are left over from a "
                f"program that is gone, drop them: acker.confirm(acker.poll(consumer='spout-{self.task}', lane={lane}))"
            )

    def _settle(self, packed: list[PackedOutcomes]) -> None:
        acks = [one.roots for one in packed if one.kind == "ack"]
        fails = [one for one in packed if one.kind == "fail"]
        acked = np.unique(np.concatenate(acks)) if acks else np.array([], np.int64)
        failed, of_fail = _distinct([one.roots for one in fails])
        known = 0
        for part in self._in_flight:
            rows = part.find(acked)
            rows = rows[rows >= 0]
            if len(rows):
                self._note(part.sorted_roots[rows], "acked")
                self._acked.append(part.close(rows).message_ids)
                self.counts.acked += len(rows)
            known += len(rows)
            rows = part.find(failed)
            if (hits := rows >= 0).any():
                self._note(part.sorted_roots[rows[hits]], "failed")
                self._fail(part.close(rows[hits]), fails, of_fail[hits])
                known += int(hits.sum())
        self.counts.late += sum(len(one.roots) for one in packed) - known
        self._drop_finished()

    def _fail(self, tries: Tries, fails: list[PackedOutcomes], of_fail: npt.NDArray[np.intp]) -> None:
        timed_out = np.array([one.reason == "timeout" for one in fails])[of_fail]
        self.counts.timed_out += int(timed_out.sum())
        self.counts.failed += int((~timed_out).sum())
        uncounted = timed_out & tries.excused
        failures = tries.attempts + 1 - tries.losses - uncounted
        spent = failures >= self.retry.max_attempts
        again = ~spent
        due = time.monotonic() + self.retry.delay_secs(failures[again])
        self._replays.add(tries[again].again(uncounted[again]), due)
        for message, count, i in zip(
            tries.message_ids[spent].tolist(), failures[spent].tolist(), of_fail[spent].tolist(), strict=True
        ):
            one = fails[i]
            self._give_up(DeadLetter(message, self.run_id, count, one.reason or "failed", one.last_stage, one.detail))

    def _note(self, roots: Int64Array, what: Literal["acked", "failed", "lost"]) -> None:
        for sent in self._sent:
            sent.note(roots, what)

    def _lose(self, part: InFlight, rows: Int64Array) -> None:
        self._note(part.sorted_roots[rows], "lost")
        tries = part.close(rows)
        self.counts.lost += len(rows)
        spent = (tries.losses + 1 >= LOST_LIMIT) & ~tries.excused
        again = tries[~spent]
        again = again.again(np.ones(len(again), np.bool_))
        self._replays.add(again, np.full(len(again), time.monotonic()))
        self._give_up_lost(tries[spent])

    def _give_up_lost(self, tries: Tries) -> None:
        for message, attempt in zip(tries.message_ids.tolist(), tries.attempts.tolist(), strict=True):
            self._give_up(DeadLetter(message, self.run_id, attempt + 1, "lost"))

    def _give_up(self, letter: DeadLetter) -> None:
        self.dead_letters[letter.message_id] = letter
        self.counts.dead_lettered += 1
        self._given_up.append(letter)

    def _tell(self) -> None:
        """Say what is done, and keep the dead letters. What is left of this after an error is done at the next call."""
        self._tell_done()
        if self._given_up:
            letters = self._with_payloads(self._given_up)
            self.acker.dead_letters.add(letters)
            self._acked.append(np.array([letter.message_id for letter in letters], np.int64))
            self._given_up = []
            self._tell_done()

    def _tell_done(self) -> None:
        if self._acked and self.on_done is not None:
            self.on_done(np.concatenate(self._acked))
        self._acked = []

    def _with_payloads(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """A letter without its message is better than none, so whatever goes wrong with the source is only logged."""
        if self.payload is None:
            return letters
        try:
            payloads = self.payload([letter.message_id for letter in letters])
            return [
                letter._replace(payload=one if one is None or len(one) <= MAX_PAYLOAD_BYTES else None)
                for letter, one in zip(letters, payloads, strict=True)
            ]
        except ServerUnavailableError:
            raise
        except Exception:
            log.exception("dead letters are kept without their messages, which could not be read")
            return letters

    def _drop_finished(self) -> None:
        self._in_flight = [part for part in self._in_flight if part.count]


def _distinct(parts: list[Int64Array]) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """The distinct values of several arrays, and for each the number of the first array that has it."""
    if not parts:
        return np.array([], np.int64), np.array([], np.intp)
    values, first = np.unique(np.concatenate(parts), return_index=True)
    return values, np.repeat(np.arange(len(parts)), [len(part) for part in parts])[first]
