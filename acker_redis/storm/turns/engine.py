"""Engine of a run on Spark: spouts in the driver, whose emits become the rows of the next turn."""

import logging
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from acker_redis.acker import Acker
from acker_redis.errors import AckerError
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.turns import Claim
from acker_redis.storm.components.spout import Spout
from acker_redis.storm.core.collectors import Emission, SpoutCollector
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.hooks import HookList
from acker_redis.storm.core.tuples import values_type
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component
from acker_redis.storm.local.clock import real_clock
from acker_redis.storm.local.engine import Engine
from acker_redis.storm.local.pending import History, Message
from acker_redis.storm.local.spouts import TIMEOUT, SpoutTask
from acker_redis.storm.local.updates import Verdict
from acker_redis.storm.turns.collectors import Emits, RowSpoutCollector
from acker_redis.storm.turns.frames import FrameCollector, FrameSource, TurnRows
from acker_redis.storm.turns.job import TurnReport
from acker_redis.storm.turns.plan import Plan

log = logging.getLogger("acker_redis.storm")

_LOOKED_UP = 1000
"""Maximum number of timed-out messages whose last component is read from the ledger at once."""


class Emitted(NamedTuple):
    """Emit of a spout, which may go out again.

    Attributes:
        task: task of the spout.
        emission: id, stream and values. Without an id, the emit isn't tracked.
        history: past of the message; None if the emit isn't tracked.
    """

    task: SpoutTask
    emission: Emission
    history: History | None


class TurnEngine(Engine):
    """Spouts of one run. Their emits become rows, and their messages belong to the next turn.

    Attributes:
        emits: rows of the next turn.
        messages: tracked messages of the next turn.
        untracked: emits of the next turn that aren't tracked.
    """

    def __init__(
        self, plan: Plan, acker: Acker, sources: Mapping[str, FrameSource], *, run_id: str, spout_id: int
    ) -> None:
        self.emits = Emits(plan)
        self._sources = sources
        self.messages: list[Message] = []
        self.untracked: list[Emitted] = []
        self._rotates_at = 0.0
        self._begins: deque[tuple[int, int]] = deque()
        super().__init__(
            plan.graph, acker, run_id=run_id, choice_key=run_id, spout_id=spout_id, clock=real_clock, rng=None,
            is_recording=False,
        )  # fmt: skip

    def _make_tasks(self, component: Component) -> None:
        if component.kind == "spout":
            super()._make_tasks(component)

    def _spout_collector(self, context: TopologyContext, hooks: HookList) -> SpoutCollector:
        source = self._sources.get(context.component)
        if source is not None:
            made = FrameCollector(self.graph, context, self, self.observer, hooks, run=self._choice_key)
            made.source = source
            return made
        collector = RowSpoutCollector(self.graph, context, self, self.observer, hooks, run=self._choice_key)
        collector.send_to(self.emits)
        return collector

    def _set_timers(self) -> None:
        self._rotates_at = self.now_secs() + self.timeout_secs

    # -- calls of collectors

    def init(self, task: int, root: int, val: int, emission: Emission) -> None:
        """Note a message as pending and as part of the next turn, and init its root."""
        super().init(task, root, val, emission)
        message = self._roots[root][1]
        message.history.number = message.history.number or message.number
        self.messages.append(message)

    def note_untracked(self, task: int, emission: Emission) -> None:
        """Note an emit that isn't tracked as part of the next turn."""
        self.untracked.append(Emitted(self.spout_tasks[task], emission, None))

    # -- turns

    @property
    def is_empty(self) -> bool:
        """True if the next turn has no tuples."""
        return not (len(self.emits.rows) or any(map(len, self._sources.values())))

    @property
    def is_last(self) -> bool:
        """True if no further message can arrive before those of the turn have an outcome."""
        return all(executor.is_idle or not executor.may_emit() for executor in self.executors)

    def begin_turn(self, turn: int) -> int:
        """Begin a turn. Returns the number of the first turn of which a message may be pending."""
        if self.messages:
            self._begins.append((self.messages[0].number, turn))
        oldest = next(iter(self._roots.values()), None)  # roots are in the order of their emits
        if oldest is None:
            self._begins.clear()
        while len(self._begins) > 1 and oldest is not None and self._begins[1][0] <= oldest[1].number:
            self._begins.popleft()
        return self._begins[0][1] if self._begins else turn

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970."""
        return self._now_ms()

    def take_frames(self) -> list[TurnRows]:
        """Take the rows of DataFrames of the next turn."""
        return [source.take() for source in self._sources.values() if len(source)]

    def check_frames(self, report: TurnReport, frames: Sequence[TurnRows]) -> None:
        """Check that a turn has read each row of its DataFrames once.

        Raises:
            InexactPipelineError: it has not.
        """
        for of in frames:
            self._sources[self.graph.component_of[of.task]].check_read(report.read(of.task), of.expected)

    def take_in(self, report: TurnReport, turn: int) -> None:
        """Take in what the tasks of a turn report beside outcomes."""
        for root in report.resets():
            self.reset_timeout(root)
        for component, metrics in report.metrics():
            self.observer.metrics[component].merge(metrics)
        for stream, count in report.written.items():
            sink = self.graph.component_of[self.emits.plan.sinks[stream]]
            self.observer.metrics[sink].executed[f"{stream.component}:{stream.stream}"] += count
        for event in report.events():
            fields = self.graph.components[event.component].streams[event.stream]
            self.observer.events.keep(event._replace(values=values_type(fields)._make(event.values)))
        for of in report.bins:
            if of.claim in (Claim.OTHER, Claim.CLOSED):
                log.warning(
                    "updates not sent, tasks ran twice with different results, their messages time out run_id=%r turn=%d "
                    "bin=%d roots=%d",
                    self.run_id, turn, of.number, of.roots,
                )  # fmt: skip

    def emit_again(self, emitted: Iterable[Emitted]) -> None:
        """Emit once more, each message under a new root."""
        for task, emission, history in emitted:
            task.collector.begin_call()
            task.history = history
            Spout.emit(task.component, emission.values, emission.tup_id, emission.stream, emission.direct_task)

    def end_turn(self) -> None:
        """End a turn: the timeouts of its messages start now."""
        for message in self.messages:
            self.executor_of(message.task).pending.reset(message.root)
        self.messages, self.untracked = [], []

    def withdraw(self, but: Container[int] = ()) -> list[Emitted]:
        """Take the messages of the turn back, so that their roots end without an outcome for the spout.

        Args:
            but: roots of messages that stay pending.
        """
        taken = self.take_back([message for message in self.messages if message.root not in but])
        again = [*taken, *self.untracked]
        self.messages, self.untracked = [], []
        return again

    def take_back(self, messages: Sequence[Message]) -> list[Emitted]:
        """Take messages back that have no outcome yet. Fails their roots."""
        taken = []
        for message in messages:
            if self._roots.pop(message.root, None) is None:
                continue
            self.executor_of(message.task).pending.remove(message.root)
            self.updates.fail(message.root, "withdrawn, to be emitted again", None)
            self.replays.waiting += 1
            taken.append(Emitted(message.task, message.emission, message.history))
        return taken

    def refuse(self, refused: Mapping[int, tuple[str, str]]) -> None:
        """Fail messages whose tuples a bolt can't keep, and try none of them again.

        Args:
            refused: root -> bolt, and the reason.
        """
        for root, (bolt, reason) in refused.items():
            self.fail(root, reason, bolt, retry=False, is_expected=False)

    def message_of(self, root: int) -> Message | None:
        """Return the pending message with this root."""
        held = self._roots.get(root)
        return None if held is None else held[1]

    def fail_withdrawn(self, emitted: Emitted, reason: str) -> None:
        """Fail a message that was withdrawn: it broke a turn alone."""
        task, emission, history = emitted
        if history is None:
            log.warning("untracked tuple dropped, its job failed spout=%r reason=%r", task.name, reason)
            return
        self.replays.waiting -= 1
        history.is_alone = True
        message = Message(0, task, emission, history.number, self.now_secs(), history, reason=reason)
        self.executor_of(task).end(message, is_acked=False, reason=reason)

    def completed(self, letters: list[tuple[DeadLetter, Message]]) -> list[tuple[DeadLetter, Message]]:
        """Add rows to the dead letters of DataFrames."""
        for name, source in self._sources.items():
            own = [place for place, (_, message) in enumerate(letters) if message.task.name == name]
            if own and source.keeps_rows:
                payloads = [letters[place][0].payload or b"{}" for place in own]
                whole = source.with_rows(payloads, [letters[place][1].emission.values[0] for place in own])
                for place, payload in zip(own, whole, strict=True):
                    letters[place] = (letters[place][0]._replace(payload=payload), letters[place][1])
        return letters

    # -- ends of messages

    def message_done(self, message: Message) -> None:
        """Finish a message that was acked."""
        super().message_done(message)
        self._note_done(message)

    def message_buried(self, message: Message) -> None:
        """Finish a message whose dead letter was written."""
        self._note_done(message)

    def _note_done(self, message: Message) -> None:
        source = self._sources.get(message.task.name)
        if source is not None:
            source.note_done(message.emission.values[0])

    def settle_frames(self) -> int:
        """Do what is due at the sources of rows between two turns. Returns how much it did."""
        did = 0
        for source in self._sources.values():
            did += source.settle()
            if source.is_live:
                self._executor_of[source.task].is_idle = False
        return did

    @property
    def was_stopped(self) -> bool:
        """True if the run shall end, because a source of rows was stopped."""
        return any(source.was_stopped for source in self._sources.values())

    # -- timeouts and outcomes

    def time_out_if_due(self, exempt: Iterable[int] = ()) -> bool:
        """Rotate the pending maps if it is time. A job that took longer delays the rotation, and adds none.

        Args:
            exempt: roots of messages that may not time out now.
        """
        if not self.is_tracking or self.now_secs() < self._rotates_at:
            return False
        self._rotates_at = self.now_secs() + self.timeout_secs
        for executor, message in map(self._roots.__getitem__, self._roots.keys() & exempt):
            executor.pending.reset(message.root)
        if self.graph.config.get(settings.ENABLE_TIMEOUTS, True):
            for executor in self.executors:
                self._time_out(executor)
        return True

    def _look_up(self, expired: list[Message]) -> None:
        if not expired:
            return
        asked = expired[:_LOOKED_UP]
        try:
            found: Sequence[Any] = self.acker.inspect_many([message.root for message in asked])
        except AckerError as exc:  # the next exchange meets it, too
            log.debug("last components unknown error=%s", exc)
            return
        for message, root in zip(asked, found, strict=True):
            if root is not None and message.settled_by is None:
                message.settled_by = root.last_component

    def _note_verdict(self, message: Message, verdict: Verdict) -> None:
        if not verdict.is_acked:
            message.settled_by = verdict.last_component or message.settled_by
            if message.reason is None and verdict.reason != TIMEOUT:
                message.reason = verdict.reason
