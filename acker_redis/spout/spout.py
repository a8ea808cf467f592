"""The spout: emits messages, processes their outcomes, and replays those that failed or were lost.

In Storm this is SpoutExecutor's pending map and the spout itself. Each replay uses a fresh root, so a late update of an old
attempt can't touch the new one. After its last attempt a message becomes a dead letter, never an ack.

This module talks to the server and the source. `state` tracks the messages, `retry` decides when to replay them, and `loop`
emits and polls until every message is done.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.errors import (
    BadConfigError,
    InvalidTopologyError,
    LedgerLostError,
    ServerUnavailableError,
    StoppedError,
)
from acker_redis.ledger.outcomes.outcome import OutcomeBatch
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_bound
from acker_redis.model.interrupts import interrupt_behind
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spout.dead_letter_replay import DeadLetterReplay, ReplayLoader
from acker_redis.spout.emission_marks import Marks
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.state import SpoutCounts, SpoutState
from acker_redis.store.dead_letter import FROM_PAYLOAD, FROM_RUN, FROM_SOURCE, DeadLetter

__all__ = ["Spout", "SpoutCounts"]

log = logging.getLogger("acker_redis.spout")

_MANY_LETTERS, _MANY_LETTERS_SHARE = 20, 0.05
"""Number of dead letters, and their share of a run's messages so far, above which the log has a warning."""


@dataclass
class Spout:
    """Track the messages of one source during one run.

    Call `next_emission`, turn its roots into tuples, and call `poll` often, until `done` is True. `run_spout` does all of
    this for you.

    Guarantee: a message counts as acked only after one of its roots completed. Each message ends as acked or dead-lettered.
    Not guaranteed: exactly-once processing. A replay repeats the work, so make sinks idempotent per message.

    All state lives in this process. A `Spout` consumes the outcomes of its lane. Outcomes for its own spout id whose roots
    it doesn't know are confirmed and counted as `late`.

    Attributes:
        acker: source of the outcomes.
        run_id: id of this run of the program; must be unique.
        spout_id: owner of the roots. Spouts of an app that run at the same time need different ids.
        retry: policy that decides when a message is replayed.
        max_spout_pending: limit on messages in flight, at least 1. None means no limit (Storm: topology.max.spout.pending).
        payload: function that returns the payloads of messages that become dead letters, with None for an unknown id. A
            payload is stored with its letter if it has at most MAX_PAYLOAD_BYTES. None stores the message id only.
        place: function that returns where the messages are in their source, as JSON, for letters (`DeadLetter.place`).
        on_done: callback with the ids of messages that were acked or dead-lettered, before their outcomes are confirmed.
        on_letters: callback with the dead letters that were written, before `on_done`.
        is_exact: predicate that is true if a letter's payload reproduces the message exactly. Otherwise no replay from the
            payload is promised. None means that every payload is exact.
        replay: loader for messages of dead letters that were requested for replay. See `dead_letter_replay.ReplayLoader`.
            None means that this spout replays no letters.
        replays_from: origin of the messages that `replay` loads: the letter's `payload`, or the `source`, for any letter or
            only for letters of this `run`.
        keep_letters: number of most recent letters kept in `dead_letters`. None keeps all.
        goes_on: True if messages may be added at any time, as from a stream. Messages whose emissions fail while nothing
            succeeds then wait for others. A spout that has all its messages ends instead.
        state: messages that wait for an emission, are in flight, or are done.
        identify: function that returns the message id of a letter in this run, or None if another spout has to replay it.
            None: ids mean the same in all runs.
        listener: callback of all spouts in this process, called with outcomes before they are applied. See `ops.tracing`.
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
    place: Callable[[list[int]], list[str | None]] | None = None
    identify: Callable[[DeadLetter], int | None] | None = None
    listener: ClassVar["Callable[[Spout, list[OutcomeBatch]], object] | None"] = None
    state: SpoutState = field(init=False, repr=False)
    _replaying: DeadLetterReplay | None = field(init=False, repr=False)
    _letters_warned_about: int = field(default=0, init=False, repr=False)

    def __init_subclass__(cls) -> None:
        """Refuse a spout of a topology, whose base class has the same name.

        Raises:
            InvalidTopologyError: the class has `next_tuple` or `outputs`.
        """
        if "next_tuple" in vars(cls) or "outputs" in vars(cls):
            raise InvalidTopologyError(
                f"{cls.__name__} is a spout of a topology, but derives from acker_redis.Spout, which tracks a source. Derive "
                "it from acker_redis.storm.Spout."
            )

    def __post_init__(self) -> None:
        """Check the settings; start without messages.

        Raises:
            BadConfigError: if max_spout_pending is invalid.
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
            self._replaying = DeadLetterReplay(
                client, self.acker.config.app, self.spout_id, self.replay, only_run, self.identify
            )

    @property
    def marks(self) -> Marks:
        """Marks on roots in flight that change how their messages are retried. See `Marks`."""
        return self.state.marks

    @property
    def counts(self) -> SpoutCounts:
        """Counters of this spout so far."""
        return self.state.counts

    @property
    def dead_letters(self) -> dict[int, DeadLetter]:
        """Dead letters by message id.

        Each is also in the app's dead-letter stream before its message's last outcome is confirmed.
        """
        return self.state.dead_letters

    @property
    def pending(self) -> int:
        """Messages in flight."""
        return self.state.pending

    @property
    def done(self) -> bool:
        """Return True if every message was acked or dead-lettered."""
        return self.state.done

    def add(self, message_ids: Int64Array) -> None:
        """Add messages to emit. Their ids must be distinct among messages that aren't done.

        >>> spout.add(np.array([7, 8]))
        """
        self.state.add(message_ids)

    def next_emission(self, most: int | None = None, only_due_by: float | None = None) -> Emission | None:
        """Return the messages to emit now, or None.

        The emission has replays that are due and fresh messages, as far as max_spout_pending leaves room.

        Args:
            most: further limit on messages in flight. `run_spout` passes the room that the app's limit leaves.
            only_due_by: time by which replays must have been due, as `time.monotonic`. None means now.

        >>> spout.add(np.array([7, 8]))
        >>> spout.next_emission().message_ids.tolist()
        [7, 8]
        """
        bounds = [bound for bound in (most, self.max_spout_pending) if bound is not None]
        return self.state.next_emission(time.monotonic(), min(bounds, default=None), only_due_by)

    def exhaust(self, message_ids: Int64Array) -> None:
        """Dead-letter messages in flight as lost, because the source can't return them again.

        The next `poll` writes the letters.

        >>> spout.add(np.array([7, 8]))
        >>> spout.exhaust(spout.next_emission().message_ids)
        >>> sorted(spout.dead_letters)
        [7, 8]
        """
        self.state.exhaust(message_ids)

    def withdraw(self, message_ids: Int64Array) -> None:
        """Give up messages that now belong to another spout.

        They are neither emitted again nor dead-lettered, and their outcomes are ignored. Messages that aren't known here
        are ignored.

        >>> spout.add(np.array([7, 8]))
        >>> emission = spout.next_emission()
        >>> spout.withdraw(np.array([7]))
        >>> spout.pending, spout.counts.withdrawn
        (1, 1)
        """
        self.state.withdraw(message_ids)

    def adopt(self, message_ids: Int64Array) -> Int64Array:
        """Take back withdrawn messages that are still in flight. Returns their ids.

        Add the others. Those that are in flight would be processed twice.

        >>> spout.add(np.array([7, 8]))
        >>> emission = spout.next_emission()
        >>> spout.withdraw(np.array([7, 8]))
        >>> spout.adopt(np.array([7, 9])).tolist(), spout.pending
        ([7], 1)
        """
        return self.state.adopt(message_ids)

    def poll(self, max_outcomes: int = 10_000, block_ms: int = 0) -> int:
        """Receive, apply, and confirm outcomes; return their number.

        If the ledger was lost, recover it and replay everything in flight.

        Raises:
            BadConfigError: if a spout with another spout id shares the lane.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> acker.init_many(roots, np.zeros_like(roots), spout_id=0).applied
        2
        >>> spout.poll(), spout.done
        (2, True)
        """
        return self._poll(max_outcomes, block_ms)

    def claim_replays(self) -> None:
        """Claim dead letters that were requested for replay, and emit their messages.

        `run_spout` calls this once a second.

        >>> spout.claim_replays()
        """
        if self._replaying is None:
            return
        if claimed := self._replaying.claim(self.state.left_ids, self.state.letter_log):
            self.state.reopen(claimed)
            self.add(np.array(claimed, np.int64))

    def take_over_replays(self, spout_ids: Iterable[int]) -> None:
        """Take over requested replays of spouts that don't run, if `identify` knows their messages.

        >>> spout.take_over_replays([1])
        """
        if self._replaying is not None:
            self._replaying.take_over(spout_ids)

    @property
    def replaying(self) -> list[int]:
        """Messages of dead letters that this spout claimed for replay and that aren't done."""
        return [] if self._replaying is None else self._replaying.under_way

    def reconcile(self, under_way: Emission | None = None) -> int:
        """Replay messages whose roots are missing from the ledger; return the number of lost roots.

        Inits get lost in a failed job, or in a failover that loses writes. Roots of the emission `under_way` are left out,
        because they may not be in the ledger yet.

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
        """Lane that carries this spout's outcomes."""
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
                # A full server accepts no dead letter. Confirming acks frees memory.
                self.acker.confirm_batches([batch for batch in own if batch.kind == "ack"])
                raise
            self.acker.confirm_batches(own)
        except LedgerLostError:
            self._recover()
            return 0
        self._refuse_others(batches)
        return sum(len(batch.roots) for batch in batches)

    def _recover(self) -> None:
        log.warning("ledger lost, replaying all messages in flight app=%r", self.acker.config.app)
        self.acker.reopen()
        self.state.lose_all(time.monotonic())
        self._notify()

    def _refuse_others(self, batches: list[OutcomeBatch]) -> None:
        lane = self.lane
        others = {batch.spout_id for batch in batches} - {self.spout_id} - self.state.gone_spout_ids
        if others:
            raise BadConfigError(
                f"spout_id {self.spout_id} received outcomes of spout_id {min(others)}. Both use lane {lane} of app "
                f"{self.acker.config.app!r}, so they consume each other's outcomes. The other spout's outcomes were not "
                "confirmed. Configure more lanes than the highest spout_id, or use one app per program. If that program is "
                "gone, drop its outcomes with "
                f"acker.confirm(acker.poll(consumer='spout-{self.spout_id}', lane={lane}))."
            )

    def _notify(self) -> None:
        """Report done messages to the source and store dead letters. After an error the next call does the rest."""
        self._notify_done()
        if self.state.letters:
            letters = self._with_places(self._with_payloads(self.state.letters))
            unwritten = self.state.one_by_one  # the output is a whole
            letters = [
                letter._replace(spout_id=self.spout_id, replay=self._replays_from(letter), unwritten=unwritten)
                for letter in letters
            ]
            self._store(letters)
            self.state.letters_kept()
            self._notify_done()
            self._warn_about_many(letters[-1])

    def _store(self, letters: list[DeadLetter]) -> None:
        letter_log = self.state.letter_log
        if letter_log is not None:
            letter_log.bury(letters)
            ids = np.array([letter.message_id for letter in letters], np.int64)
            self.state.letters_refused(letter_log.accepted(ids))
            return
        entry_ids = self.acker.dead_letters.add(letters)
        if self.on_letters is not None:
            self.on_letters(
                [letter._replace(entry_id=entry_id) for letter, entry_id in zip(letters, entry_ids, strict=True)]
            )

    def _warn_about_many(self, last: DeadLetter) -> None:
        """Log that many messages are dead letters, and again each time their number has doubled."""
        counts = self.state.counts
        count, messages = counts.dead_lettered, counts.dead_lettered + counts.acked + self.state.left
        if count < max(_MANY_LETTERS, 2 * self._letters_warned_about) or count <= _MANY_LETTERS_SHARE * messages:
            return
        self._letters_warned_about = count
        log.warning(
            "many messages are dead letters app=%r run_id=%s dead_letters=%d messages=%d last_component=%s last_detail=%s",
            self.acker.config.app, self.run_id, count, messages, last.last_component, last.detail,
        )  # fmt: skip

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

    def _with_places(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        if self.place is None:
            return letters
        places = self.place([letter.message_id for letter in letters])
        known = self.state.dead_letters
        for letter, place in zip(letters, places, strict=True):
            if letter.message_id in known:
                known[letter.message_id] = known[letter.message_id]._replace(place=place)
        return [letter._replace(place=place) for letter, place in zip(letters, places, strict=True)]

    def _with_payloads(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """Add payloads to letters. Only log an error of the source: a letter without its message is better than none."""
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
            log.exception(
                "payloads unreadable, storing dead letters without them app=%r letters=%d",
                self.acker.config.app,
                len(letters),
            )
            return letters
