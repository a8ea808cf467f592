"""Replays of reliable spouts: retries by their policy, dead letters after the last one, and replays of letters on request."""

import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadTupleError
from acker_redis.model import keys
from acker_redis.spout.dead_letter_replay import MOST_AT_ONCE
from acker_redis.spout.retry import LOST_LIMIT, RetryPolicy
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.storm.local import letters
from acker_redis.storm.local.clock import Timers
from acker_redis.storm.local.pending import History, Message
from acker_redis.storm.local.spouts import LOST, Replay, SpoutExecutor, SpoutTask
from acker_redis.storm.local.updates import Updates

log = logging.getLogger("acker_redis.storm")


class Run(Protocol):
    """What the replays need of their run."""

    acker: Acker
    run_id: str
    timers: Timers
    updates: Updates
    spout_tasks: dict[int, SpoutTask]

    def now_secs(self) -> float:
        """Return the time of the run's clock, in seconds."""

    def executor_of(self, task: SpoutTask) -> SpoutExecutor:
        """Return the executor of a task."""

    def completed(self, letters: list[tuple[DeadLetter, Message]]) -> list[tuple[DeadLetter, Message]]:
        """Add to dead letters what isn't in this process."""

    def message_buried(self, message: Message) -> None:
        """Finish a message whose dead letter was written."""


class Replays:
    """Decides about failed messages of reliable spouts, and claims dead letters that were requested.

    Attributes:
        waiting: number of messages that wait for their next attempt.
        dead_letters: number of dead letters written by the run.
    """

    def __init__(self, run: Run, rng: random.Random | None) -> None:
        self.waiting = 0
        self.dead_letters = 0
        self._run = run
        self._rng = rng or random.Random()  # noqa: S311  # delays, not secrets
        self._unwritten: list[tuple[DeadLetter, Message]] = []
        self._finished: list[str] = []
        self._under_way: set[str] = set()

    def decide(self, message: Message, reason: str) -> None:
        """Replay a message after its delay, or dead-letter it."""
        task: SpoutTask = message.task
        if not task.wants(message.emission, message.history):
            return
        policy = (task.policy or RetryPolicy()).policy_for("failed" if message.reason else reason, message.reason)
        history, delay_secs = message.history, 0.0
        if reason == LOST and message.reason is None:
            history = replace(history, losses=history.losses + 1)
            exhausted = history.losses >= LOST_LIMIT
        else:
            history = replace(history, failures=history.failures + 1)
            exhausted = history.failures >= policy.max_attempts or not message.retry
            delay_secs = self._delay_secs(policy, history.failures)
        message.history = history
        if exhausted:
            attempts = history.failures + history.losses
            letter = letters.letter_of(message, self._run.run_id, self._run.updates.spout_id, attempts, reason)
            self._unwritten.append((letter, message))
            return
        task.source.failed(message.emission.tup_id, letters.kind_of(message, reason), message.last_component)
        self.waiting += 1
        again = Replay(message.emission, history)
        if delay_secs <= 0:
            self._emit_again(task, again)
        else:
            self._run.timers.at(self._run.now_secs() + delay_secs, lambda: self._emit_again(task, again))

    def write(self) -> None:
        """Write the dead letters of exhausted messages, and delete the letters of finished replays.

        Raises:
            AckerError: the server refuses them. They are kept for the next call.
        """
        if self._unwritten:
            self._write_letters()
        if self._finished:
            entry_ids = list(self._finished)
            self._run.acker.dead_letters.delete(entry_ids)
            self._forget(entry_ids)
            self._under_way.difference_update(entry_ids)
            self._finished = []

    def _write_letters(self) -> None:
        pairs, self._unwritten = self._unwritten, []
        pairs = self._run.completed(pairs)
        try:
            entry_ids = self._run.acker.dead_letters.add([letter for letter, _ in pairs])
        except BaseException:
            self._unwritten = pairs + self._unwritten
            raise
        self.dead_letters += len(pairs)
        for entry_id, (letter, message) in zip(entry_ids, pairs, strict=True):
            log.warning(
                "message dead-lettered spout=%r tup_id=%s attempts=%d reason=%r", message.task.name,
                letters.shown(message.emission.tup_id), letter.attempts, letter.detail or letter.reason,
            )  # fmt: skip
            message.task.source.buried(message.emission.tup_id, letter._replace(entry_id=entry_id))
            self._run.message_buried(message)
            if message.history.letters:
                self.finish(message.history.letters)

    @property
    def unwritten(self) -> int:
        """Number of dead letters that wait to be written or deleted."""
        return len(self._unwritten) + len(self._finished)

    def claim(self) -> int:
        """Claim letters whose replay was requested, and let their spouts emit them. Returns their number."""
        client, app = app_of(self._run.acker).client, self._run.acker.config.app
        key = keys.replays(app, self._run.updates.spout_id)
        (requested,) = client.pipeline([("ZRANGE", key, 0, MOST_AT_ONCE - 1)])
        fresh = [entry_id for entry_id in map(bytes.decode, requested) if entry_id not in self._under_way]
        if not fresh or len(self._under_way) >= MOST_AT_ONCE:
            return 0
        refused, claimed = [], 0
        for entry_id, letter in zip(fresh, self._run.acker.dead_letters.get(fresh), strict=True):
            kept = letters.decode(letter.payload) if letter is not None and letter.payload is not None else None
            task = None if kept is None else self._task_for(kept)
            if letter is None or kept is None or task is None:
                refused.append(entry_id)
                if letter is not None:
                    log.warning(
                        "dead letter not replayed, no reliable spout of this topology can emit its message, request it again "
                        "once one can entry_id=%s spout=%r", entry_id, None if kept is None else kept.spout,
                    )  # fmt: skip
                continue
            self._under_way.add(entry_id)
            self.waiting += 1
            claimed += 1
            history = History(first_secs=float(letter.first_secs or 0), letters=[entry_id])
            self._emit_again(task, Replay(kept.emission, history))
        self._forget(refused)
        return claimed

    def finish(self, entry_ids: Iterable[str]) -> None:
        """Let the next `write` delete the letters of a message that was acked, or has a new letter."""
        self._finished += entry_ids

    def _forget(self, entry_ids: Iterable[str]) -> None:
        listed = list(entry_ids)
        if listed:
            key = keys.replays(self._run.acker.config.app, self._run.updates.spout_id)
            app_of(self._run.acker).client.pipeline([("ZREM", key, *listed)])

    def _task_for(self, kept: letters.Kept) -> SpoutTask | None:
        """Find a task that can emit the message. The topology may have changed since."""
        tasks = [task for task in self._run.spout_tasks.values() if task.name == kept.spout and task.policy is not None]
        if not tasks:
            return None
        task = min(tasks, key=lambda task: len(task.due))
        try:
            task.collector.check(kept.emission.values, kept.emission.stream, kept.emission.direct_task)
        except BadTupleError:
            return None
        return task

    def _emit_again(self, task: SpoutTask, again: Replay) -> None:
        if not task.wants(again.emission, again.history):
            self.waiting -= 1
            return
        task.due.append(again)
        self._run.executor_of(task).is_idle = False

    def _delay_secs(self, policy: RetryPolicy, failures: int) -> float:
        (delay,) = replace(policy, jitter=0.0).delay_secs(np.array([failures])).tolist()
        return float(delay) * (1 + policy.jitter * self._rng.uniform(-1, 1))
