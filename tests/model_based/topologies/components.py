"""Spouts and bolts of random topologies. They tell the oracle what they do, and behave as their plans say."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from acker_redis.storm import (
    BatchingBolt,
    Bolt,
    EmitInfo,
    ReliableSpout,
    RowFailedError,
    Spout,
    StatefulBolt,
    Stream,
    TaskHook,
    Tuple,
)
from tests.model_based.topologies.oracle import Copy, Oracle, Wrong
from tests.model_based.topologies.plan import BoltPlan, Grouping, Plan, SpoutPlan

FIELDS = ["serial", "key", "depth"]
DRAWN = "drawn"
"""Text of errors that bolts draw."""

KEYS = ("a", "b", "c", "d", "e")


@dataclass
class World:
    """What the components of one run share."""

    plan: Plan
    oracle: Oracle
    serials: Any = field(default_factory=lambda: itertools.count(1))
    sent: int = 0
    tasks: dict[str, list[int]] = field(default_factory=dict)
    """Task ids of each component, as `initialize` learns them."""
    ids: dict[int, Any] = field(default_factory=dict)
    """The id of each message, by serial."""
    messages: int = 0
    """Messages of reliable spouts."""
    acked: int = 0
    """Of these."""
    letters_before: int = 0
    """Dead letters of earlier runs over the same acker."""
    batching: dict[int, "Batches"] = field(default_factory=dict)
    """The batching bolt of each task, which a fresh one may replace."""

    disturb: Callable[[], object] = int
    """Called for each tuple that a bolt receives."""

    def may_emit(self) -> bool:
        return self.sent < self.plan.budget

    def subscribers(self, source: str, stream: str) -> list[tuple[str, Grouping]]:
        return [
            (bolt.name, one.grouping)
            for bolt in self.plan.bolts
            for one in bolt.inputs
            if (one.source, one.stream) == (source, stream)
        ]

    def check_targets(self, source: str, stream: str, key: str, targets: list[int]) -> None:
        """The tasks that an emit returned are those of its groupings."""
        left = sorted(targets)
        for name, grouping in self.subscribers(source, stream):
            tasks = self.tasks[name]
            mine = [task for task in targets if task in tasks]
            for task in mine:
                left.remove(task)
            allowed: dict[str, list[list[int]]] = {
                "all": [tasks],
                "global": [tasks[:1]],
                "fields": [[tasks[java_hash(key) % len(tasks)]]],
                "custom": [chosen(tasks, key)],
            }
            allowed["direct"] = [[], *([task] for task in tasks)]
            expected = allowed.get(grouping, [[task] for task in tasks])
            if sorted(mine) not in [sorted(one) for one in expected]:
                raise Wrong(f"{grouping} grouping of {key!r} to {name} with tasks {tasks} chose {mine}")
        if left:
            raise Wrong(f"an emit on {source}/{stream} went to tasks {left}, which don't subscribe to it")


def java_hash(key: str) -> int:
    """Java's hash of a list with this text of one letter: 31 + the letter."""
    return 31 + ord(key)


def chosen(tasks: Sequence[int], key: str) -> list[int]:
    """A custom grouping: no task, one, or one named twice with its neighbour."""
    first = ord(key) % len(tasks)
    return [[], [tasks[first]], [tasks[first], tasks[first], tasks[(first + 1) % len(tasks)]]][ord(key) % 3]


class Chooses:
    """`chosen`, in the form of a custom grouping."""

    def prepare(self, context: Any, stream: Any, tasks: Sequence[int]) -> None:
        self.tasks = list(tasks)

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return chosen(self.tasks, values[1])


class Probe:
    """One task that draws its behaviour from the plan's seed."""

    world: ClassVar[World]

    def begin(self, context: Any) -> None:
        self.task = context.task_id
        self.chance = random.Random(f"{self.world.plan.seed} {self.task}")
        for task, component in context["task->component"].items():
            known = self.world.tasks.setdefault(component, [])
            if int(task) not in known:
                known.append(int(task))
                known.sort()

    def route(self) -> tuple[str, int | None]:
        """A stream, and for the direct one a task that may subscribe to it or not."""
        stream = self.chance.choice(("default", "default", "left", "dir"))
        if stream != "dir":
            return stream, None
        bolts = [task for bolt in self.world.plan.bolts for task in self.world.tasks[bolt.name]]
        return stream, self.chance.choice(bolts)

    def targets(self, component: str, stream: str, to: int | None, key: str, returned: list[int] | None) -> list[int]:
        if to is not None:
            heard = {task for name, _ in self.world.subscribers(component, stream) for task in self.world.tasks[name]}
            return [to] if to in heard else []
        assert returned is not None
        self.world.check_targets(component, stream, key, returned)
        return returned


STREAMS = [Stream(fields=FIELDS), Stream(fields=FIELDS, name="left"), Stream(fields=FIELDS, name="dir", direct=True)]


class ProbeSpout(Probe, Spout):
    outputs = STREAMS
    mine: ClassVar[SpoutPlan]

    def initialize(self, conf: Any, context: Any) -> None:
        self.begin(context)
        self.left = self.mine.messages
        self.replays: dict[str, int] = {}
        self.add_task_hook(Emits(self))

    def next_tuple(self) -> None:
        for _ in range(min(self.left, self.mine.burst)):
            self.left -= 1
            self.send(self._new_id())

    def _new_id(self) -> Any:
        if self.chance.random() < self.mine.untracked and self.mine.attempts is None:
            return None
        if self.chance.random() < self.mine.same_id:
            return "same"
        number = self.left
        return self.chance.choice((number, f"m{number}", ["list", number], ("tuple", number), {"n": number}))

    def send(self, tup_id: Any) -> None:
        serial, key, (stream, to) = next(self.world.serials), self.chance.choice(KEYS), self.route()
        self.world.ids[serial] = tup_id
        self.world.messages += tup_id is not None and self.mine.attempts is not None
        self.emit([serial, key, 0], tup_id=tup_id, stream=stream, direct_task=to)

    def ack(self, tup_id: Any) -> None:
        self.world.oracle.spout_acked(self.task, tup_id)
        self.world.acked += self.mine.attempts is not None
        if self.left and self.chance.random() < self.mine.emits_in_ack:
            self.left -= 1
            self.send(self._new_id())

    def fail(self, tup_id: Any, reason: str) -> None:
        self.world.oracle.spout_failed(self.task, tup_id, reason)
        tried = self.replays[repr(tup_id)] = self.replays.get(repr(tup_id), 0) + 1
        if tried <= self.mine.replays and self.mine.attempts is None:
            self.send(tup_id)


class ReliableProbeSpout(ProbeSpout, ReliableSpout):
    """The product replays its messages, under their id and values."""


class Emits(TaskHook):
    """Tells the oracle of a spout's emits, replays among them."""

    def __init__(self, spout: ProbeSpout) -> None:
        self.spout = spout

    def emit(self, info: EmitInfo) -> None:
        if info.stream.startswith("__"):
            return
        spout, (serial, key, _) = self.spout, info.values
        spout.world.check_targets(spout.component_name, info.stream, key, list(info.out_tasks))
        spout.world.oracle.spout_emitted(spout.task, serial, spout.world.ids[serial], list(info.out_tasks))


class ProbeBolt(Probe):
    """Behaviour that all kinds share. `copies` has the oracle's copy of each tuple of this task."""

    mine: ClassVar[BoltPlan]

    def initialize(self, conf: Any, context: Any) -> None:
        self.begin(context)
        self.copies: dict[Any, Copy] = {}
        self.held: list[Tuple] = []

    def take(self, tup: Tuple) -> Copy:
        oracle = self.world.oracle
        self.world.disturb()
        copy = self.copies[tup.id] = oracle.received(self.task, tup.task, tup.values.serial, tup.id)
        return copy

    def send(self, expected: list[Tuple], depth: int, **options: Any) -> None:
        """Emit one tuple, anchored to these: as `options` say, or by the product's own rules."""
        world = self.world
        serial, key, (stream, to) = next(world.serials), self.chance.choice(KEYS), self.route()
        world.sent += 1
        returned = self.emit(  # type: ignore[attr-defined]
            [serial, key, depth], stream=stream, direct_task=to, need_task_ids=to is None, **options
        )
        targets = self.targets(self.component_name, stream, to, key, returned)  # type: ignore[attr-defined]
        world.oracle.bolt_emitted(self.task, serial, [self.copies[tup.id] for tup in expected], targets)

    def children(self, tups: list[Tuple], *, by_hand: bool) -> None:
        """Emit for these tuples, anchored to all of them, to some of them, or to none."""
        depth = max(tup.values.depth for tup in tups) + 1
        for _ in range(self.chance.randint(0, self.mine.emits)):
            if depth >= self.world.plan.depth or not self.world.may_emit():
                return
            if self.chance.random() < self.mine.free:
                self.send([], depth, anchors=[])
            elif by_hand:
                some = self.chance.choices(tups, k=self.chance.randint(1, len(tups) + 1))  # one may come twice
                self.send(some, depth, anchors=[self.chance.choice((tup, tup.id)) for tup in some])
            else:
                self.send(tups, depth)

    def fails_now(self) -> bool:
        return self.chance.random() < self.mine.fails

    def error(self) -> Exception:
        return self.chance.choice((RowFailedError(DRAWN), RowFailedError(DRAWN, retry=False), ValueError(DRAWN)))


@contextmanager
def guarded() -> Iterator[None]:
    """Let drawn errors pass. Others are those of the test or the product."""
    try:
        yield
    except Exception as error:
        if str(error) == DRAWN:
            raise
        raise Wrong(repr(error)) from error


class AutoBolt(ProbeBolt, Bolt):
    """Anchors, acks and fails by itself."""

    outputs = STREAMS

    @guarded()
    def process(self, tup: Tuple) -> None:
        copy = self.take(tup)
        self.children([tup], by_hand=False)
        if self.fails_now():
            self.world.oracle.failed(copy)
            raise self.error()
        self.world.oracle.acked(copy)


class ManualBolt(ProbeBolt, Bolt):
    """Settles by hand: at once, or together with those that it held. What it forgets times out."""

    outputs = STREAMS
    auto_anchor = False
    auto_ack = False
    auto_fail = False

    @guarded()
    def process(self, tup: Tuple) -> None:
        self.take(tup)
        held = self.keep(tup)
        if self.mine.kind == "ticking" or len(held) < (self.mine.holds if self.mine.kind != "manual" else 1):
            return
        self.settle(held)
        held.clear()
        self.kept(held)

    def keep(self, tup: Tuple) -> list[Tuple]:
        self.held.append(tup)
        return self.held

    def kept(self, held: list[Tuple]) -> None:
        """A change of the list itself is enough."""

    @guarded()
    def process_tick(self, tup: Tuple) -> None:
        """Renew one, emit for all of them, and settle some: the others stay anchors of later ticks."""
        if not self.held:
            return
        renewed = self.chance.choice(self.held)
        self.reset_timeout(renewed)
        self.world.oracle.renewed(self.copies[renewed.id])
        self.children(self.held, by_hand=True)
        done = self.held[: self.chance.randint(0, len(self.held))]
        self.held = self.held[len(done) :]
        if done:
            self.settle(done)

    def settle(self, tups: list[Tuple]) -> None:
        self.children(tups, by_hand=True)
        for tup in self.chance.sample(tups, len(tups)):
            copy, by = self.copies[tup.id], self.chance.choice((tup, tup.id))
            if self.chance.random() < self.mine.forgets:
                continue
            if self.fails_now():
                self.world.oracle.failed(copy)
                self.fail(by, "drawn")
                if self.chance.random() < 0.3:
                    self.ack(by)  # no effect
            else:
                self.world.oracle.acked(copy)
                self.ack(by)
                if self.chance.random() < 0.3:
                    self.fail(by)  # no effect


class StatefulHolder(ManualBolt, StatefulBolt):
    """Holds its tuples in its state."""

    outputs = STREAMS

    def keep(self, tup: Tuple) -> list[Tuple]:
        held: list[Tuple] = self.state.setdefault("held", [])
        held.append(tup)
        self.state["held"] = held
        return held

    def kept(self, held: list[Tuple]) -> None:
        self.state["held"] = held


class Batches(ProbeBolt, BatchingBolt):
    """Batches by key: by number, or at ticks."""

    outputs = STREAMS

    def initialize(self, conf: Any, context: Any) -> None:
        super().initialize(conf, context)
        before = self.world.batching.get(self.task)
        if before is not None:
            self.world.oracle.abandoned(before.copies.values())
        self.world.batching[self.task] = self

    @guarded()
    def group_key(self, tup: Tuple) -> Any:
        self.take(tup)
        return tup.values.key

    @guarded()
    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        copies = [self.copies[tup.id] for tup in tups]
        if len({tup.values.key for tup in tups} | {key}) != 1:
            raise Wrong(f"the batch of {key!r} has other keys")
        self.children(list(tups), by_hand=False)
        if self.fails_now():
            for copy in copies:
                self.world.oracle.failed(copy)
            raise self.error()
        for copy in copies:
            self.world.oracle.acked(copy)


CLASSES: dict[str, type[Bolt]] = {
    "auto": AutoBolt,
    "manual": ManualBolt,
    "holder": ManualBolt,
    "ticking": ManualBolt,
    "stateful": StatefulHolder,
    "batching": Batches,
}
