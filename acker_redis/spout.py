"""The spout's side: emits messages, takes what became of them, emits again what failed or got lost.

Storm keeps this in SpoutExecutor's pending map and in the spout itself. A failed message is emitted again under a fresh
root, so a late update of an old attempt can't touch the new one. After its last attempt it is a dead letter, never an ack.
What a spout knows is in `spout_state`, when a message is emitted again in `retry`; here is what it says to server and source.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

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
from acker_redis.pending import Emission, Int64Array
from acker_redis.retry import RetryPolicy
from acker_redis.spout_state import SpoutCounts, SpoutState
from acker_redis.watch import Watch

__all__ = ["Spout", "SpoutCounts"]

log = logging.getLogger("acker_redis.spout")

LOST_AFTER_TIMEOUTS = 4
"""`run` asks the ledger for what is in flight after so many message timeouts without any outcome."""

POLL_MS = 100


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
        payload: gives the payload of message ids that are given up, None for one it does not have; to be kept with the
            letter, if it has at most MAX_PAYLOAD_BYTES. None: a letter has the message id only.
        on_done: called with the ids of messages that were acked or became dead letters, before their outcomes are confirmed.
    """

    acker: Acker
    run_id: str
    task: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_spout_pending: int | None = None
    payload: Callable[[list[int]], list[bytes | None]] | None = None
    on_done: Callable[[Int64Array], object] | None = None
    _state: SpoutState = field(init=False, repr=False)
    _vanished: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        """No messages yet."""
        self._state = SpoutState(self.acker.config.app, self.run_id, self.retry)

    @property
    def counts(self) -> SpoutCounts:
        """What happened so far."""
        return self._state.counts

    @property
    def dead_letters(self) -> dict[int, DeadLetter]:
        """Message id -> its letter; in the app's dead-letter stream, too, before its last outcome is confirmed."""
        return self._state.dead_letters

    @property
    def pending(self) -> int:
        """Messages in flight."""
        return self._state.pending

    @property
    def done(self) -> bool:
        """Whether every message given was acked or is a dead letter."""
        return self._state.done

    def add(self, message_ids: Int64Array) -> None:
        """Give messages to emit; their ids must be distinct over the run.

        >>> spout.add(np.array([7, 8]))
        """
        self._state.add(message_ids)

    def next_emission(self) -> Emission | None:
        """Messages to emit now: replays that are due, then fresh ones, as many as max_spout_pending leaves room for.

        >>> spout.add(np.array([7, 8]))
        >>> spout.next_emission().message_ids.tolist()
        [7, 8]
        """
        return self._state.next_emission(time.monotonic(), self.max_spout_pending)

    def excuse(self, roots: Int64Array) -> None:
        """What becomes of these roots is not their messages' fault: the work on them was broken off.

        If one fails, times out or gets lost, that doesn't count as an attempt of its message. Roots that are not in flight
        are left out. Any thread may call this, as `emit` does; before it fails the roots, or their outcomes may be first.

        >>> spout.add(np.array([7, 8]))
        >>> spout.excuse(spout.next_emission().roots)
        """
        self._state.excuse(roots)

    def no_retry(self, roots: Int64Array) -> None:
        """Emit no message again whose root among these fails or times out: it is a dead letter then, whatever `retry` says.

        Roots that are not in flight are left out. Any thread may call this; before it fails the roots, or their outcomes may
        be first.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.no_retry(roots[:1])
        """
        self._state.no_retry(roots)

    def give_up(self, message_ids: Int64Array) -> None:
        """Dead-letter messages in flight, as lost: their source can't give them again, so they were not made tuples.

        The letters are written by the next `poll`.

        >>> spout.add(np.array([7, 8]))
        >>> spout.give_up(spout.next_emission().message_ids)
        >>> sorted(spout.dead_letters)
        [7, 8]
        """
        self._state.give_up(message_ids)

    def poll(self, max_outcomes: int = 10_000, block_ms: int = 0) -> int:
        """Take outcomes, act on them, confirm them; returns how many there were.

        A lost ledger is recovered, and everything in flight emitted again.

        Raises:
            BadConfigError: another task's spout shares this one's lane.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> acker.init_many(roots, np.zeros_like(roots), task=0).applied
        2
        >>> spout.poll(), spout.done
        (2, True)
        """
        return self._poll(max_outcomes, block_ms)

    def reconcile(self) -> int:
        """Emit again what the ledger doesn't know: the init was lost (a failed job, a failover that lost writes).

        Call this only while nothing is being emitted. Returns how many there were.

        >>> spout.add(np.array([7, 8]))
        >>> emission = spout.next_emission()  # and nothing of it gets to the ledger
        >>> spout.reconcile()
        2
        """
        return self._reconcile(None)

    def run(self, emit: Callable[[Emission], object], progress: Callable[[bool], object] | None = None) -> SpoutCounts:
        """Emit, poll, replay and reconcile until every message was acked or is a dead letter.

        Args:
            emit: makes tuples of an emission and waits until they went out (runs the Spark job). Called in a thread of its
                own, one emission at a time, while outcomes are taken here. If it raises, its messages are found by
                `reconcile` or time out, and are replayed; after three in a row the error is raised, and at once
                if it is one of ours that trying again can't change, or if nothing is left to do but this.
            progress: called several times a second; told whether an emission is under way.

        A server that is gone, full, busy or a replica is waited for, for 40 tries (three to twelve minutes); emissions that it
        broke off don't count as failed. What it lost (a restart, a failover) is looked for as soon as the server is another
        one, or knows of fewer pending roots than it should.

        Raises:
            AckerError: `emit` failed again and again, or as `poll`.

        >>> spout.add(np.array([7, 8]))
        >>> spout.run(lambda emission: acker.init_many(emission.roots, np.zeros_like(emission.roots), task=0)).acked
        2
        """
        quiet_secs = LOST_AFTER_TIMEOUTS * self.acker.config.message_timeout_secs
        quiet_since = time.monotonic()
        outages = Outages(log)
        watch = Watch(self.acker, self._lane)
        ask_now = False
        self._state.sent.clear()
        with Emitter(emit) as emitter:
            while not self.done:
                ended = emitter.collect()
                if ended is not None:
                    ask_now = ask_now or ended.failed
                    self._take_note(ended)
                if emitter.is_free and (emission := self.next_emission()) is not None:
                    self._state.follow(emission)
                    emitter.start(emission)
                taken = outages.wait_for(lambda: self._poll(block_ms=POLL_MS))
                if taken or emitter.emission is not None:
                    quiet_since = time.monotonic()
                idle_for = None if taken or emitter.emission is not None else self.pending
                missing = outages.wait_for(partial(watch.something_is_missing, idle_for, self._state.emissions))
                ask_now = ask_now or missing or outages.seen
                if not taken and (ask_now or time.monotonic() - quiet_since > quiet_secs):
                    if outages.seen or watch.replaced:
                        self._state.excuse_losses()
                    outages.wait_for(lambda: self._reconcile(emitter.emission))
                    ask_now, outages.seen, watch.replaced, quiet_since = False, False, False, time.monotonic()
                self._look_at_sent()
                if progress is not None:
                    progress(emitter.emission is not None)
        return self.counts

    @property
    def _lane(self) -> int:
        return self.task % self.acker.config.lanes

    def _poll(self, max_outcomes: int = 10_000, block_ms: int = 0, *, again: bool = False) -> int:
        try:
            packed = self.acker.poll_packed(
                max_outcomes, block_ms, consumer=f"spout-{self.task}", lane=self._lane, again=again
            )
            mine = [one for one in packed if one.task == self.task]
            self._state.settle(mine, time.monotonic())
            try:
                self._tell()
            except ServerUnavailableError:
                # A server that is full takes no dead letter, and has to get rid of what was acked.
                self.acker.confirm_packed([one for one in mine if one.kind == "ack"])
                raise
            self.acker.confirm_packed(mine)
        except LedgerLostError:
            self._recover()
            return 0
        self._refuse_others(packed)
        return sum(len(one.roots) for one in packed)

    def _recover(self) -> None:
        log.warning("the ledger lost its data: everything in flight is emitted again")
        self.acker.recover()
        self._state.lose_all(time.monotonic())
        self._tell()

    def _reconcile(self, under_way: Emission | None) -> int:
        """As `reconcile`, but for an emission that is under way."""
        before = self.counts.lost
        try:
            for waiting in self._state.waiting(under_way):
                records = self.acker.inspect_many(waiting) if len(waiting) else []
                unknown = waiting[[record is None or record.state != "owned" for record in records]]
                # Those that settled have their outcome written: it is in a stream, or in a reply that was lost.
                while len(unknown) and self._poll(again=True):
                    pass
                self._state.lose(unknown, time.monotonic())
        except LedgerLostError:
            self._recover()
        self._tell()
        return self.counts.lost - before

    def _take_note(self, ended: Emitted) -> None:
        number = ended.emission.number
        sent = self._state.sent[number]
        sent.ended, sent.error = True, None if ended.by_outage else ended.error
        if ended.by_outage:  # what an outage broke off is not the messages' fault
            self._state.excuse_emission(number)

    def _look_at_sent(self) -> None:
        """Raise what waiting can't change: an error that no replay will show again, and messages that never become roots."""
        for sent in self._state.take_finished():
            count = len(sent.emission.roots)
            if sent.error is not None and sent.acked == count:
                raise_error(sent.error)
            vanished = sent.error is None and sent.lost == count
            if vanished and self._vanished:
                raise NotExactError(
                    f"none of the {count} messages of an emission became a root, and of those before neither: read again, "
                    "they have other ids or are gone (monotonically_increasing_id, uuid, rand, the time; a source that "
                    "changed), or only a part of the rows is read (limit, take). Take ids from the data, persist() or write "
                    "the messages before the run"
                )
            self._vanished = vanished and not sent.emission.attempts.any()  # one message of many may be lost for good

    def _refuse_others(self, packed: list[PackedOutcomes]) -> None:
        lane = self._lane
        others = {one.task for one in packed} - {self.task}
        if others:
            raise BadConfigError(
                f"outcomes of task {min(others)} came to the spout of task {self.task}: both use lane {lane} of app "
                f"{self.acker.config.app!r}, and would take each other's outcomes. Give the app more lanes than its highest "
                "task number, or each program an app of its own. Theirs were not confirmed. If they are left over from a "
                f"program that is gone, drop them: acker.confirm(acker.poll(consumer='spout-{self.task}', lane={lane}))"
            )

    def _tell(self) -> None:
        """Say what is done, and keep the dead letters. What is left of this after an error is done at the next call."""
        self._tell_done()
        if self._state.letters:
            self.acker.dead_letters.add(self._with_payloads(self._state.letters))
            self._state.letters_kept()
            self._tell_done()

    def _tell_done(self) -> None:
        done = self._state.unsaid
        if len(done) and self.on_done is not None:
            self.on_done(done)
        self._state.said()

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
