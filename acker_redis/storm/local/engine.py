"""Engine: tasks, the queues between them, and the ledger. A runner drives it step by step."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from acker_redis.acker import Acker
from acker_redis.errors import InvalidTopologyError, ServerRefusesWritesError
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.component import Component as ComponentObject
from acker_redis.storm.components.component import check_attributes
from acker_redis.storm.components.dataframe import is_dataframe_spout
from acker_redis.storm.components.instances import make_instance
from acker_redis.storm.components.spout import FeederSpout
from acker_redis.storm.components.stateful import StatefulBolt
from acker_redis.storm.components.windowed import begin_windows
from acker_redis.storm.core.collectors import BoltCollector, Emission, SpoutCollector
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.event_log import EventLog
from acker_redis.storm.core.hooks import HookList, make_hook
from acker_redis.storm.core.observer import FailedTree, Observer
from acker_redis.storm.core.tuples import SYSTEM_TASK, Tuple, values_type
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component, Graph
from acker_redis.storm.definition.streams import SYSTEM, TICK, TICK_STREAM
from acker_redis.storm.local.bolts import BoltTask
from acker_redis.storm.local.clock import Timers, millis_of
from acker_redis.storm.local.pending import History, Message, timeout_secs
from acker_redis.storm.local.queues import Queues
from acker_redis.storm.local.replays import Replays
from acker_redis.storm.local.spouts import LOST, TIMEOUT, Fed, Outcome, SpoutExecutor, SpoutTask
from acker_redis.storm.local.updates import Updates, Verdict

log = logging.getLogger("acker_redis.storm")

_TICK_VALUES = values_type(TICK_STREAM)


class Engine:
    """Tasks of one run. It carries tuples from task to task, and updates to the ledger.

    Attributes:
        is_tracking: False without acker executors.
        is_active: False while the topology is deactivated.
        is_open: True once the tasks were initialised.
        executors: executors of spouts.
        observer: metrics and records.
        timers: ticks, timeouts and other calls that are due at a time.
        queues: tuples on their way from task to task.
        send: call that puts a tuple into the queue of two tasks: `queues.put`, without a detour.
    """

    def __init__(
        self,
        graph: Graph,
        acker: Acker,
        *,
        run_id: str,
        choice_key: str,
        spout_id: int,
        clock: Callable[[], float],
        rng: random.Random | None,
        is_recording: bool,
    ) -> None:
        self.graph = graph
        self.acker = acker
        self.run_id = run_id
        self.is_tracking = graph.config.get(settings.ACKER_EXECUTORS) != 0
        self.is_active = False
        self.is_open = False
        self._initialized: list[SpoutTask | BoltTask] = []
        self.timers = Timers(clock, rng)
        self.updates = Updates(acker, spout_id)
        self.now_secs = clock
        self._now_ms = millis_of(clock)
        self._rng = rng
        self._choice_key = choice_key
        self.timeout_secs = timeout_secs(graph, acker)
        events = EventLog(rng or random.Random())  # noqa: S311  # a sample, not a secret
        self.observer = Observer(graph.components, events, clock, is_recording=is_recording)
        self.failed_trees: deque[FailedTree] = deque(maxlen=None if is_recording else 1000)
        self.acked: list[tuple[str, Any]] = []
        self.failed: list[tuple[str, Any, str]] = []
        self._is_recording = is_recording
        self._replays = Replays(self, rng)
        self._roots: dict[int, tuple[SpoutExecutor, Message]] = {}
        self.queues = Queues()
        self.send = self.queues.put
        self._numbers = 0
        self._ticks = 0
        self.spout_tasks: dict[int, SpoutTask] = {}
        self.bolt_tasks: dict[int, BoltTask] = {}
        self.executors: list[SpoutExecutor] = []
        self._executor_of: dict[int, SpoutExecutor] = {}
        for component in graph.components.values():
            self._make_tasks(component)
        self._debug_by_settings()

    # -- tasks

    def _make_tasks(self, component: Component) -> None:
        metrics = self.observer.metrics[component.name]
        conf = {**self.graph.config, **component.config}
        conf.setdefault(settings.NAME, self.graph.name)
        for task_id in component.task_ids:
            hooks = HookList()
            context = TopologyContext(self.graph, task_id, conf, hooks)
            if component.kind == "spout":
                emits = self._spout_collector(context, hooks)
                self.spout_tasks[task_id] = SpoutTask(self._instance(component, emits), emits, hooks, metrics)
            else:
                collector = BoltCollector(self.graph, context, self, self.observer, hooks, run=self._choice_key)
                bolt = self._instance(component, collector)
                if isinstance(bolt, StatefulBolt):
                    bolt.state = {}
                self.bolt_tasks[task_id] = BoltTask(bolt, collector, hooks, self._fresh)
        if component.kind == "spout":
            bound = conf.get(settings.MAX_SPOUT_PENDING)
            is_feeder = isinstance(self.spout_tasks[component.task_ids[0]].component, FeederSpout)
            fed: deque[Fed] | None = deque() if is_feeder else None
            for task_ids in component.executor_tasks():
                tasks = [self.spout_tasks[task_id] for task_id in task_ids]
                executor = SpoutExecutor(tasks, bound, self, self.now_secs)
                executor.fed = fed
                self.executors.append(executor)
                self._executor_of |= dict.fromkeys(task_ids, executor)

    def _spout_collector(self, context: TopologyContext, hooks: HookList) -> SpoutCollector:
        if is_dataframe_spout(self.graph.components[context.component].maker):
            raise InvalidTopologyError(
                f"The spout {context.component!r} emits rows of a DataFrame, which stay in Spark, but this run is in one "
                "process. Use Topology.run, or replace the spout for a test."
            )
        return SpoutCollector(self.graph, context, self, self.observer, hooks, run=self._choice_key)

    def _fresh(self, task: BoltTask) -> Bolt:
        """Make an initialised copy of a bolt in place of one that failed."""
        old, context = task.component, task.collector.context
        made: Bolt = self._instance(self.graph.components[context.component], task.collector)
        if isinstance(old, StatefulBolt) and isinstance(made, StatefulBolt):
            made.state = old.state
        task.component = made
        task.hooks.drop()
        made.initialize(context.conf, context)
        begin_windows(made, self.graph, self.timeout_secs, self._now_ms)
        return made

    def _instance(self, component: Component, collector: SpoutCollector | BoltCollector) -> Any:
        """Make the object of one task, and attach it to its collector."""
        made = make_instance(component)
        made._acker_bind(collector, collector.context, self.observer.metrics[component.name])  # noqa: SLF001
        return made

    def tasks(self) -> list[SpoutTask | BoltTask]:
        """List all tasks, in drawn order."""
        tasks: list[SpoutTask | BoltTask] = [*self.spout_tasks.values(), *self.bolt_tasks.values()]
        if self._rng is not None:
            self._rng.shuffle(tasks)
        return tasks

    def activate(self) -> None:
        """Activate the topology. The first time, initialise the tasks."""
        if self.is_active:
            return
        if not self.is_open:
            self.is_open = True
            for task in self.tasks():
                self._initialize(task)
                self._initialized.append(task)
            self._set_timers()
        self.is_active = True
        for spout in self.spout_tasks.values():
            spout.collector.begin_call()
            spout.component.activate()
        self.wake()

    def deactivate(self) -> None:
        """Deactivate the topology: spouts emit nothing, and all else goes on."""
        if not self.is_active:
            return
        self.is_active = False
        for spout in self.spout_tasks.values():
            spout.collector.begin_call()
            spout.component.deactivate()

    def close(self, *, is_orderly: bool = True) -> None:
        """Close all tasks that were initialised, each after its hooks. `is_orderly` is False if an error ends the run."""
        if not self.is_open:
            return
        self.is_open = False
        first: Exception | None = None
        for task in self._initialized:
            calls: list[Callable[[], object]] = [task.hooks.clean_up, task.component.close]
            if isinstance(task, SpoutTask):
                calls.append(partial(task.source.close, is_orderly=is_orderly))
            for call in calls:
                try:
                    call()
                except Exception as exc:  # of the user's code; the others are closed all the same
                    log.debug("component not closed component=%r", task.collector.context.component, exc_info=True)
                    first = first or exc
        if first is not None:
            raise first

    def _initialize(self, task: SpoutTask | BoltTask) -> None:
        component: ComponentObject = task.component
        context = task.collector.context
        for hook in context.conf.get(settings.AUTO_TASK_HOOKS) or ():
            task.hooks.add(make_hook(hook), context.conf, context)
        task.hooks.keep()
        task.collector.emit_startup()
        task.collector.begin_call()
        component.initialize(context.conf, context)
        check_attributes(context.component, component)
        if isinstance(task, SpoutTask):
            task.component._acker_open_source(self.acker, self.run_id, self.updates.spout_id)  # noqa: SLF001
        else:
            begin_windows(task.component, self.graph, self.timeout_secs, self._now_ms)

    def _set_timers(self) -> None:
        self.timers.every(2 * self.timeout_secs, self._sweep)
        if self.is_tracking and self.graph.config.get(settings.ENABLE_TIMEOUTS, True):
            for executor in self.executors:
                self.timers.every(self.timeout_secs, partial(self._time_out, executor))
        for task_id, task in self.bolt_tasks.items():
            component = self.graph.components[task.collector.context.component]
            task.set_timers(self.timers, partial(self._tick, task_id), has_inputs=bool(component.inputs))

    def _sweep(self) -> None:
        for task in self.bolt_tasks.values():
            task.collector.sweep(self._roots.__contains__)

    def _tick(self, task_id: int, tick_secs: float) -> None:
        self._ticks += 1
        values = _TICK_VALUES._make([tick_secs])
        self.send(SYSTEM_TASK, task_id, Tuple(f"{SYSTEM_TASK}:{self._ticks}", SYSTEM, TICK, SYSTEM_TASK, values))

    def _time_out(self, executor: SpoutExecutor) -> None:
        expired = executor.pending.rotate()
        if self._rng is not None:
            self._rng.shuffle(expired)
        self._look_up(expired)
        for message in expired:
            if self._roots.pop(message.root, None) is not None:  # else its outcome is here, and comes too late
                self.updates.fail(message.root, message.reason or TIMEOUT, message.settled_by)
        for message in expired:
            executor.end(message, is_acked=False, reason=message.reason or TIMEOUT)
        executor.is_idle = False

    def _look_up(self, expired: list[Message]) -> None:
        """Find out which components updated messages that timed out last. Here it is known."""

    # -- queues

    def execute(self, place: int) -> None:
        """Execute the first tuple of a pair, by the pair's place in `queues.pairs`."""
        target, tup = self.queues.take(place)
        self.bolt_tasks[target].execute(tup)

    def drain(self, deadline: float) -> int:
        """Execute tuples until none is left or the time is up. Returns their number."""
        return self.queues.drain(self.bolt_tasks, deadline)

    # -- spouts

    def runnable(self) -> list[SpoutExecutor]:
        """List the executors that have outcomes to deliver, or may call `next_tuple` and did not emit nothing just now."""
        active = self.is_active
        return [
            executor
            for executor in self.executors
            if executor.inbox or (active and not executor.is_idle and executor.may_emit())
        ]

    def run_round(self, executor: SpoutExecutor) -> bool:
        """Deliver outcomes, then call `next_tuple` if the bound allows it. Returns True if something was emitted."""
        executor.deliver()
        if self.is_active and executor.may_emit():
            return executor.call_tasks()
        return False

    def wake(self) -> None:
        """Let every spout be called again."""
        for executor in self.executors:
            executor.is_idle = False

    # -- roots: the calls of collectors

    def new_root(self) -> int:
        """Draw a root that the app has never had."""
        return self.updates.new_root()

    def init(self, task: int, root: int, val: int, emission: Emission) -> None:
        """Note a message as pending, and init its root."""
        spout, executor = self.spout_tasks[task], self._executor_of[task]
        history, spout.history = spout.history, None
        if history is None:
            history = History(first_secs=time.time())
        else:
            self._replays.waiting -= 1
        self._numbers += 1
        message = Message(root, spout, emission, self._numbers, self.now_secs(), history)
        executor.pending.put(message)
        self._roots[root] = (executor, message)
        self.updates.init(root, val)

    def ack_untracked(self, task: int, emission: Emission) -> None:
        """Call the spout's ack inside of its emit, because nothing is tracked."""
        spout = self.spout_tasks[task]
        if self._is_recording:
            self.acked.append((spout.name, emission.tup_id))
        history, spout.history = spout.history, None
        spout.ack(emission.tup_id, emission.stream, None)
        spout.source.done(emission.tup_id)
        if history is not None:
            self._replays.waiting -= 1
            self._replays.finish(history.letters)

    def ack(self, edges: dict[int, int], component: str) -> None:
        """XOR a value into each root that is pending. All others are done."""
        for root, val in edges.items():
            held = self._roots.get(root)
            if held is not None:
                if held[1].reason is None:
                    held[1].settled_by = component
                self.updates.ack(root, val, component)

    def fail(self, root: int, reason: str, component: str, *, retry: bool, is_expected: bool) -> None:  # noqa: ARG002
        """Fail a root that is pending."""
        held = self._roots.get(root)
        if held is not None:
            message = held[1]
            if message.reason is None:
                message.settled_by = component
                message.reason = reason
                message.retry = retry
            self.updates.fail(root, reason, component)

    def reset_timeout(self, root: int) -> None:
        """Restart the timeout of a root that is pending."""
        held = self._roots.get(root)
        if held is not None:
            held[0].pending.reset(root)
            self.updates.reset_timeout(root)

    # -- outcomes

    def exchange(self) -> int:
        """Send the collected updates, and put the outcomes that are there into the inboxes. Returns their number."""
        refused = None
        try:
            self.updates.send()
        except ServerRefusesWritesError as exc:  # outcomes make room
            refused = exc
        count = self.receive()
        if refused is not None:
            raise refused
        return count

    def receive(self) -> int:
        """Put the outcomes that are there into the inboxes, in drawn order. Returns their number."""
        found: list[tuple[SpoutExecutor, Outcome]] = []
        for verdict in self.updates.poll():
            held = self._roots.pop(verdict.root, None)
            if held is not None:
                executor, message = held
                self._note_verdict(message, verdict)
                reason = "" if verdict.is_acked else message.reason or verdict.reason or "failed"
                found.append((executor, Outcome(message, verdict.is_acked, reason)))
        if self._rng is not None:
            found.sort(key=lambda item: item[1].message.number)
            self._rng.shuffle(found)
        for executor, outcome in found:
            executor.inbox.append(outcome)
        return len(found)

    def _note_verdict(self, message: Message, verdict: Verdict) -> None:
        """Learn how a message ended. Here it is known."""

    def lose(self) -> None:
        """Fail all pending messages, because the ledger was lost."""
        self.updates.forget()
        for executor in self.executors:
            waiting = {outcome.message.root for outcome in executor.inbox}
            for message in list(executor.pending):
                if message.root not in waiting:
                    self._roots.pop(message.root, None)
                    executor.inbox.append(Outcome(message, False, LOST))

    def abandon(self) -> list[Message]:
        """Forget all pending messages, and fail their roots, because the run ends."""
        left = [message for executor in self.executors for message in executor.pending.clear()]
        for message in left:
            self._roots.pop(message.root, None)
            self.updates.fail(message.root, "the run ended", message.settled_by)
        return left

    def pending_roots(self) -> list[int]:
        """List the roots that have no outcome yet."""
        return list(self._roots)

    @property
    def pending_roots_count(self) -> int:
        """Number of roots that have no outcome yet."""
        return len(self._roots)

    # -- ends of messages: the calls of executors

    def message_acked(self, message: Message) -> None:
        """Record an ack."""
        if self._is_recording:
            self.acked.append((message.task.name, message.emission.tup_id))

    def message_done(self, message: Message) -> None:
        """Finish a message that was acked."""
        message.task.source.done(message.emission.tup_id)
        if message.history.letters:
            self._replays.finish(message.history.letters)

    def message_buried(self, message: Message) -> None:
        """Finish a message whose dead letter was written. Here nobody waits for it."""

    def message_failed(self, message: Message, reason: str) -> None:
        """Record a fail."""
        task: SpoutTask = message.task
        tup_id = message.emission.tup_id
        self.failed_trees.append(
            FailedTree(task.name, task.collector.context.task_id, tup_id, reason, message.last_component)
        )
        if self._is_recording:
            self.failed.append((task.name, tup_id, reason))

    def message_rejected(self, message: Message, reason: str) -> None:
        """Replay a message, or dead-letter it."""
        self._replays.decide(message, reason)

    def completed(self, letters: list[tuple[DeadLetter, Message]]) -> list[tuple[DeadLetter, Message]]:
        """Add to dead letters what isn't in this process. Here all of it is."""
        return letters

    @property
    def replays(self) -> Replays:
        """Replays of reliable spouts."""
        return self._replays

    def executor_of(self, task: SpoutTask) -> SpoutExecutor:
        """Return the executor of a task."""
        return self._executor_of[task.collector.context.task_id]

    def fed(self, spout: str) -> deque[Fed]:
        """Return the messages that a spout is fed, which replace its own from now on."""
        executors = self.spout_executors(spout)
        fed = executors[0].fed
        if fed is None:
            fed = deque()
            for executor in executors:
                executor.fed = fed
        return fed

    # -- seeing

    def by_level(self) -> list[BoltTask]:
        """List the tasks of bolts, upstream first, as far as there is no cycle."""
        components = self.graph.components
        levels = dict.fromkeys(components, 0)
        for _ in components:
            for component in components.values():
                sources = (levels[subscription.source] for subscription in component.inputs)
                levels[component.name] = min(1 + max(sources, default=-1), len(components))
        return sorted(self.bolt_tasks.values(), key=lambda task: levels[task.collector.context.component])

    def component(self, name: str) -> Component:
        """Return a component by name; see `Graph.component`."""
        return self.graph.component(name)

    def spout_executors(self, name: str) -> list[SpoutExecutor]:
        """Return the executors of a spout.

        Raises:
            InvalidTopologyError: there is no such spout.
        """
        if self.graph.component(name).kind != "spout":
            raise InvalidTopologyError(f"Component {name!r} is a bolt. Name a spout.")
        return [executor for executor in self.executors if executor.name == name]

    def instances(self, name: str) -> list[Any]:
        """Return the objects of a component's tasks, by task index."""
        tasks: Mapping[int, SpoutTask | BoltTask] = {**self.spout_tasks, **self.bolt_tasks}
        return [tasks[task_id].component for task_id in self.graph.component(name).task_ids]

    def _debug_by_settings(self) -> None:
        if self.graph.config.get(settings.EVENTLOGGER_EXECUTORS) == 0:
            return
        for component in self.graph.components.values():
            if component.config.get(settings.DEBUG, self.graph.config.get(settings.DEBUG)):
                self.observer.events.debug(component.name, 100)
