"""The spout's side: emits messages, takes their outcomes, and emits again those that failed or got lost.

Storm keeps this in SpoutExecutor's pending map and in the spout itself. A failed message is emitted again under a fresh
root, so a late update of an old attempt can't touch the new one. After its last attempt it is a dead letter, never an ack.
`state` holds what a spout knows, `retry` says when a message is emitted again; here it talks to server and source. `loop`
emits and polls until all is done.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError, LedgerLostError, ServerUnavailableError, StoppedError
from acker_redis.ledger.outcomes.decoding import OutcomeBatch
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_bound
from acker_redis.model.interrupts import interrupt_behind
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spout.dead_letter_replay import DeadLetterReplay, ReplayLoader
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.marks import Marks
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.state import SpoutCounts, SpoutState
from acker_redis.store.dead_letter import FROM_PAYLOAD, FROM_RUN, FROM_SOURCE, DeadLetter

__all__ = ["Spout", "SpoutCounts"]

log = logging.getLogger("acker_redis.spout")


@dataclass
class Spout:
    """Tracks the messages of one source in one run.

    The caller emits (`next_emission`, then makes tuples of it, wherever), and calls `poll` often; `done` says whether every
    message was acked or is a dead letter. `run_spout` does all of that.

    Guarantee: a message is counted acked only when a root of it completed; each ends as acked or dead-lettered. Not
    guaranteed: that a message was processed once; a replay does its work again, so sinks have to be idempotent by message.
    Everything is kept in this process. A `Spout` takes the outcomes of its lane; those of its own spout id whose roots it
    does not know, it confirms and counts as `late`.

    Attributes:
        acker: where outcomes come from.
        run_id: unique per run of the program.
        spout_id: owns the roots; spouts of an app that run at the same time have different ones.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight, 1 or more; None: no bound (Storm: topology.max.spout.pending).
        payload: gives the payloads of message ids that become dead letters, None for an unknown id; kept with the letter, if
            it has at most MAX_PAYLOAD_BYTES. None: a letter has the message id only.
        on_done: called with the ids of messages that were acked or became dead letters, before their outcomes are confirmed.
        on_letters: called with dead letters that were written, before `on_done`.
        is_exact: whether a letter's payload gives its message as it was; else no replay from the payload is promised. None:
            every payload does.
        replay: loads the messages of dead letters that were requested for replay; see `dead_letter_replay.ReplayLoader`.
            None: this spout replays none.
        replays_from: where `replay` gets messages: from the letter's `payload`, or from the `source`, for any letter or for
            those of this `run`.
        keep_letters: `dead_letters` has the last so many; None: all.
        goes_on: whether further messages may be added at any time, as from a stream. Then messages whose
            emissions fail while nothing succeeds wait for others; a spout that has all its messages ends.
        state: which messages are to be emitted, in flight, done.
        listener: of all spouts of the process: called with outcomes before they are acted on; see
            `ops.tracing`.
    """

    acker: Acker
    run_id: str
    spout_id: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_spout_pending: int | None = None
    payload: Callable[[list[int]], list[bytes | None]] | None = None
    on_done: Callable[[Int64Array], object] | None = None
    keep_letters: int | None = None
    on_letters: Callable[[list[DeadLetter]], object] | None = None
    replay: ReplayLoader | None = None
    is_exact: Callable[[DeadLetter], bool] | None = None
    replays_from: str = FROM_PAYLOAD
    goes_on: bool = False
    listener: ClassVar["Callable[[Spout, list[OutcomeBatch]], object] | None"] = None
    state: SpoutState = field(init=False, repr=False)
    _replaying: DeadLetterReplay | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start without messages.

        Raises:
            BadConfigError: max_spout_pending is no bound.
        """
        check_bound("max_spout_pending", self.max_spout_pending)
        epoch_secs = time.time() - time.monotonic()
        self.state = SpoutState(
            self.acker.config.app, self.run_id, self.retry, self.keep_letters, epoch_secs, goes_on=self.goes_on
        )
        only_run = self.run_id if self.replays_from == FROM_RUN else None
        if self.replay is None:
            self._replaying = None
        else:
            client = app_of(self.acker).client
            self._replaying = DeadLetterReplay(client, self.acker.config.app, self.spout_id, self.replay, only_run)

    @property
    def marks(self) -> Marks:
        """Notes about roots in flight that decide how their messages go on: see `Marks`."""
        return self.state.marks

    @property
    def counts(self) -> SpoutCounts:
        """Counts of what happened so far."""
        return self.state.counts

    @property
    def dead_letters(self) -> dict[int, DeadLetter]:
        """Message id -> its letter; in the app's dead-letter stream, too, before its last outcome is confirmed."""
        return self.state.dead_letters

    @property
    def pending(self) -> int:
        """Messages in flight."""
        return self.state.pending

    @property
    def done(self) -> bool:
        """Whether every message given was acked or is a dead letter."""
        return self.state.done

    def add(self, message_ids: Int64Array) -> None:
        """Give messages to emit; their ids must be distinct among those that are not done.

        >>> spout.add(np.array([7, 8]))
        """
        self.state.add(message_ids)

    def next_emission(self, most: int | None = None, only_due_by: float | None = None) -> Emission | None:
        """Messages to emit now: replays that are due, and fresh ones, as many as max_spout_pending leaves room for.

        Args:
            most: no more than this are in flight then; `run_spout` gives what the app's limit leaves.
            only_due_by: replays go out only if they were due by then (`time.monotonic`); None: now.

        >>> spout.add(np.array([7, 8]))
        >>> spout.next_emission().message_ids.tolist()
        [7, 8]
        """
        bounds = [bound for bound in (most, self.max_spout_pending) if bound is not None]
        return self.state.next_emission(time.monotonic(), min(bounds, default=None), only_due_by)

    def exhaust(self, message_ids: Int64Array) -> None:
        """Dead-letter messages in flight, as lost: their source can't give them again.

        The letters are written by the next `poll`.

        >>> spout.add(np.array([7, 8]))
        >>> spout.exhaust(spout.next_emission().message_ids)
        >>> sorted(spout.dead_letters)
        [7, 8]
        """
        self.state.exhaust(message_ids)

    def poll(self, max_outcomes: int = 10_000, block_ms: int = 0) -> int:
        """Take outcomes, act on them, confirm them; returns how many there were.

        A lost ledger is recovered, and everything in flight emitted again.

        Raises:
            BadConfigError: a spout with another spout id shares the lane.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> acker.init_many(roots, np.zeros_like(roots), spout_id=0).applied
        2
        >>> spout.poll(), spout.done
        (2, True)
        """
        return self._poll(max_outcomes, block_ms)

    def claim_replays(self) -> None:
        """Emit the messages of dead letters that were requested for replay; `run_spout` does so once a second.

        >>> spout.claim_replays()
        """
        if self._replaying is not None and (claimed := self._replaying.claim(self.state.left_ids)):
            self.state.reopen(claimed)
            self.add(np.array(claimed, np.int64))

    @property
    def replaying(self) -> list[int]:
        """Messages of dead letters whose replay was claimed, and that are not done."""
        return [] if self._replaying is None else self._replaying.under_way

    def reconcile(self, under_way: Emission | None = None) -> int:
        """Emit messages again whose roots the ledger lacks: the init was lost (a failed job, a failover that lost writes).

        Roots of an emission `under_way` may not be there yet, and are left out. Returns how many roots were lost.

        >>> spout.add(np.array([7, 8]))
        >>> emission = spout.next_emission()  # and nothing of it gets to the ledger
        >>> spout.reconcile()
        2
        """
        before = self.counts.lost
        try:
            for waiting in self.state.waiting(under_way):
                in_ledger = self.acker.inspect_many(waiting) if len(waiting) else []
                unknown = waiting[[root is None or root.state != "owned" for root in in_ledger]]
                # Roots that settled have their outcome written: it is in a stream, or in a reply that was lost.
                while len(unknown) and self._poll(again=True):
                    pass
                self.state.lose(unknown, time.monotonic())
        except LedgerLostError:
            self._recover()
        self._notify()
        return self.counts.lost - before

    @property
    def lane(self) -> int:
        """The lane that its outcomes come in."""
        return self.spout_id % self.acker.config.lanes

    def _poll(self, max_outcomes: int = 10_000, block_ms: int = 0, *, again: bool = False) -> int:
        try:
            batches = self.acker.poll_batches(
                max_outcomes, block_ms, consumer=f"spout-{self.spout_id}", lane=self.lane, again=again
            )
            known_ids = {self.spout_id, *self.state.gone_spout_ids}
            own = [batch for batch in batches if batch.spout_id in known_ids]
            if Spout.listener is not None:
                Spout.listener(self, own)
            self.state.apply_outcomes(own, time.monotonic())
            try:
                self._notify()
            except ServerUnavailableError:
                # A server that is full takes no dead letter, and confirming acks makes room.
                self.acker.confirm_batches([batch for batch in own if batch.kind == "ack"])
                raise
            self.acker.confirm_batches(own)
        except LedgerLostError:
            self._recover()
            return 0
        self._refuse_others(batches)
        return sum(len(batch.roots) for batch in batches)

    def _recover(self) -> None:
        log.warning("the ledger lost its data: everything in flight is emitted again")
        self.acker.recover()
        self.state.lose_all(time.monotonic())
        self._notify()

    def _refuse_others(self, batches: list[OutcomeBatch]) -> None:
        lane = self.lane
        others = {batch.spout_id for batch in batches} - {self.spout_id} - self.state.gone_spout_ids
        if others:
            raise BadConfigError(
                f"outcomes of spout_id {min(others)} came to the spout with spout_id {self.spout_id}: both use lane {lane} of "
                f"app {self.acker.config.app!r}, and would take each other's outcomes. Give the app more lanes than its "
                "highest spout_id, or each program an app of its own. The other's outcomes were not confirmed. If they are "
                "left over from a program that is gone, drop them: "
                f"acker.confirm(acker.poll(consumer='spout-{self.spout_id}', lane={lane}))"
            )

    def _notify(self) -> None:
        """Notify the source of messages that are done, and keep dead letters. After an error the next call does the rest."""
        self._notify_done()
        if self.state.letters:
            letters = self._with_payloads(self.state.letters)
            letters = [letter._replace(spout_id=self.spout_id, replay=self._replays_from(letter)) for letter in letters]
            entry_ids = self.acker.dead_letters.add(letters)
            if self.on_letters is not None:
                self.on_letters(
                    [letter._replace(entry_id=entry_id) for letter, entry_id in zip(letters, entry_ids, strict=True)]
                )
            self.state.letters_kept()
            self._notify_done()

    def _replays_from(self, letter: DeadLetter) -> str | None:
        is_kept = self.replays_from in (FROM_SOURCE, FROM_RUN) or (
            letter.payload is not None and (self.is_exact is None or self.is_exact(letter))
        )
        return self.replays_from if self.replay is not None and is_kept else None

    def _notify_done(self) -> None:
        done = self.state.pending_notifications
        if len(done) and self._replaying is not None:
            self._replaying.done(done)
        if len(done) and self.on_done is not None:
            self.on_done(done)
        self.state.notified()

    def _with_payloads(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """A letter without its message is better than none, so an error of the source is only logged."""
        if self.payload is None:
            return letters
        try:
            payloads = self.payload([letter.message_id for letter in letters])
            return [
                letter._replace(payload=None if payload is None or len(payload) > MAX_PAYLOAD_BYTES else payload)
                for letter, payload in zip(letters, payloads, strict=True)
            ]
        except (ServerUnavailableError, StoppedError):
            raise
        except Exception as exc:
            if (interrupt := interrupt_behind(exc)) is not None:
                raise interrupt from None
            log.exception("dead letters are kept without their messages, which could not be read")
            return letters
