"""Spout executors: they deliver outcomes first, then call `next_tuple` while the bound allows it (Storm: SpoutExecutor)."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.components.source import Source
from acker_redis.storm.components.spout import ReliableSpout, Spout
from acker_redis.storm.core.collectors import Emission, SpoutCollector
from acker_redis.storm.core.hooks import HookList, SpoutAckInfo, SpoutFailInfo
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.local.pending import History, Message, PendingMap

TIMEOUT, LOST = "timeout", "lost"
"""Reasons of fails that no component caused."""


class Fed(NamedTuple):
    """Message that `feed` gave to a spout."""

    values: Any
    tup_id: Any
    stream: str | None
    direct_task: int | None


class Outcome(NamedTuple):
    """Outcome that waits for its executor."""

    message: Message
    is_acked: bool
    reason: str


@dataclass(slots=True)
class Replay:
    """Message that is due again."""

    emission: Emission
    history: History


class Ends(Protocol):
    """Place that hears how messages end."""

    def message_acked(self, message: Message) -> None:
        """Hear of an ack, before the spout does."""

    def message_failed(self, message: Message, reason: str) -> None:
        """Hear of a fail, before the spout does."""

    def message_rejected(self, message: Message, reason: str) -> None:
        """Decide about a failed message of a reliable spout, after the spout heard of it."""

    def message_done(self, message: Message) -> None:
        """Finish a message that was acked, after the spout heard of it."""


class SpoutTask:
    """Task of a spout."""

    def __init__(self, component: Spout, collector: SpoutCollector, hooks: HookList, metrics: ComponentMetrics) -> None:
        self.component = component
        self.collector = collector
        self.hooks = hooks
        self.metrics = metrics
        self.due: deque[Replay] = deque()
        self.history: History | None = None
        """Past of the message that is being replayed, which its next init takes."""
        self._fail = component._acker_fail_call()  # noqa: SLF001

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.collector.context.component

    @property
    def policy(self) -> RetryPolicy | None:
        """Policy of a reliable spout, which may have set it in `initialize`; None for other spouts."""
        return self.component._acker_policy() if isinstance(self.component, ReliableSpout) else None  # noqa: SLF001

    @property
    def source(self) -> Source:
        """Source of the spout."""
        return self.component._acker_source  # noqa: SLF001

    def wants(self, emission: Emission, history: History) -> bool:
        """Return True if a message that failed may be replayed. A letter's message always may."""
        return bool(history.letters) or self.source.is_wanted(emission.tup_id)

    def next_call(self, fed: deque[Fed] | None) -> None:
        """Replay a message that is due, or emit a fed one, or call `next_tuple`."""
        self.collector.begin_call()
        if self.due:
            replay = self.due.popleft()
            self.history = replay.history
            emission = replay.emission
            Spout.emit(self.component, emission.values, emission.tup_id, emission.stream, emission.direct_task)
        elif fed is None:
            self.component.next_tuple()
        elif fed:
            message = fed.popleft()
            direct: dict[str, Any] = {} if message.direct_task is None else {"direct_task": message.direct_task}
            self.component.emit(message.values, tup_id=message.tup_id, stream=message.stream, **direct)

    def ack(self, tup_id: Any, stream: str, latency_ms: float | None) -> None:
        """Call the spout's `ack`."""
        self.collector.begin_call()
        self.metrics.acked[stream] += 1
        if latency_ms is not None:
            self.metrics.complete_latency[stream].add(latency_ms)
        self.component.ack(tup_id)
        for hear in self.hooks.spout_ack:
            hear(SpoutAckInfo(tup_id, self.collector.context.task_id, latency_ms))

    def fail(self, message: Message, reason: str, latency_ms: float) -> None:
        """Call the spout's `fail`."""
        self.collector.begin_call()
        counter = self.metrics.timed_out if reason == TIMEOUT and message.reason is None else self.metrics.failed
        counter[message.emission.stream] += 1
        self._fail(message.emission.tup_id, reason)
        task = self.collector.context.task_id
        for hear in self.hooks.spout_fail:
            hear(SpoutFailInfo(message.emission.tup_id, task, latency_ms, reason, message.last_component))


class SpoutExecutor:
    """Tasks of a spout that share a thread and a bound on pending messages.

    Attributes:
        tasks: the tasks.
        pending: pending messages of all tasks.
        inbox: outcomes that wait for the next round.
        fed: messages that `feed` gave to the component; None if it was never fed.
        is_idle: True once a round emitted nothing, until something happens.
    """

    def __init__(
        self, tasks: list[SpoutTask], max_pending: int | None, ends: Ends, now_secs: Callable[[], float]
    ) -> None:
        self.tasks = tasks
        self.pending = PendingMap()
        self.inbox: list[Outcome] = []
        self.fed: deque[Fed] | None = None
        self.is_idle = False
        self._bound = max_pending * len(tasks) if max_pending else None
        self._ends = ends
        self._now_secs = now_secs

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.tasks[0].name

    def may_emit(self) -> bool:
        """Return True if `next_tuple` may be called: the pending messages are below the bound."""
        return self._bound is None or len(self.pending) < self._bound

    def deliver(self) -> int:
        """Deliver the outcomes in the inbox. Returns their number."""
        inbox, self.inbox = self.inbox, []
        for number, outcome in enumerate(inbox):
            try:
                if self.pending.remove(outcome.message.root) is not None:
                    self.end(outcome.message, is_acked=outcome.is_acked, reason=outcome.reason)
            except BaseException:
                self.inbox = inbox[number + 1 :] + self.inbox
                raise
        if inbox:
            self.is_idle = False
        return len(inbox)

    def end(self, message: Message, *, is_acked: bool, reason: str) -> None:
        """Tell the spout how a message ended. It isn't pending any more."""
        task = message.task
        latency_ms = (self._now_secs() - message.emitted_secs) * 1000
        if is_acked:
            self._ends.message_acked(message)
            task.ack(message.emission.tup_id, message.emission.stream, latency_ms)
            self._ends.message_done(message)
            return
        self._ends.message_failed(message, reason)
        task.fail(message, reason, latency_ms)
        if task.policy is not None:
            self._ends.message_rejected(message, reason)

    def call_tasks(self) -> bool:
        """Call each task once. Returns True if something was emitted."""
        before = [task.collector.emits for task in self.tasks]
        for task in self.tasks:
            task.next_call(self.fed)
        self.is_idle = before == [task.collector.emits for task in self.tasks]
        return not self.is_idle
