"""Tasks of bolts in a Python worker. Each is initialised once per process, and its attributes are a cache that may vanish."""

import logging
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from acker_redis.errors import AckerError, InvalidTopologyError, PipelineError
from acker_redis.outages import is_outage
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.holding import HoldingBolt
from acker_redis.storm.components.instances import make_instance
from acker_redis.storm.components.stateful import StatefulBolt
from acker_redis.storm.components.windowed import WindowedBolt, begin_windows
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.event_log import EventLog
from acker_redis.storm.core.hooks import HookList, make_hook
from acker_redis.storm.core.observer import Observer
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.definition import settings
from acker_redis.storm.local.bolts import BoltTask
from acker_redis.storm.state.held import Moment
from acker_redis.storm.state.holdings import KeptStates
from acker_redis.storm.state.mapping import KEPT_BYTES, TaskState
from acker_redis.storm.turns.attributes import Attributes
from acker_redis.storm.turns.collectors import Emits, RowBoltCollector
from acker_redis.storm.turns.plan import Plan

log = logging.getLogger("acker_redis.storm")


class WorkerTask:
    """Task of a bolt in this process.

    Attributes:
        component: the bolt.
        states: what the task keeps over turns.
        collector: collector of the turn. Its mistake ends the run.
    """

    collector: RowBoltCollector

    def __init__(self, plan: Plan, run_id: str, task_id: int) -> None:
        graph = plan.graph
        self._maker = graph.components[graph.component_of[task_id]]
        self._graph, self._run_id = graph, run_id
        self._hooks = HookList()
        conf = {**graph.config, **self._maker.config}
        conf.setdefault(settings.NAME, graph.name)
        self._context = TopologyContext(graph, task_id, conf, self._hooks)
        self.component: Bolt = make_instance(self._maker)
        self.states = KeptStates(graph, task_id)
        self._timeout_secs = plan.timeout_secs
        self._now_ms = 0
        self._task: BoltTask | None = None
        self._is_initialised = False
        self._is_uncommitted = False  # what `initialize` wrote into the state, in the last execution
        self._attributes: Attributes | None = None

    @property
    def state(self) -> TaskState | None:
        """State of the bolt; None if it has none."""
        return self.states.own

    def begin_turn(self, transport: Any, emits: Emits, observer: Observer, moment: Moment) -> None:
        """Begin a turn. The first one initialises the bolt. The states have begun.

        Raises:
            PipelineError: the bolt's `initialize` raised.
        """
        collector = RowBoltCollector(
            self._graph, self._context, transport, observer, self._hooks, run=self._run_id, turn=moment.turn
        )
        collector.send_to(emits)
        self.collector = collector
        self._observer = observer
        self._task = BoltTask(self.component, collector, self._hooks, self._fresh)
        self._bind(self.component)
        self._now_ms = moment.ms
        self.states.held.begin(moment, collector)
        if not self._is_initialised:
            self._initialize()
        elif self._is_uncommitted and self.state is not None and not self.state.is_continued:
            with self._initialising():  # what it wrote into the state is gone
                self._fresh(self._task)
        self._is_uncommitted = self.state is not None and self.state.is_changed
        if self.states.holdings is not None:
            self.states.holdings.begin(self._holding(), moment)

    @property
    def name(self) -> str:
        """Name of the component."""
        return self._context.component

    def executed(self, tups: Iterator[Tuple], *, are_ticks: bool) -> Iterator[Tuple]:
        """Execute tuples one by one. Yields each after its execution."""
        assert self._task is not None  # noqa: S101  # begin_turn was called
        return self.collector.executed(self._task, tups, are_ticks=are_ticks)

    def end_turn(self) -> int | None:
        """End a turn. Returns the number of tuples that the bolt holds for batches or windows; None if it has neither.

        Raises:
            InvalidTopologyError: the bolt's attributes changed, and it doesn't say `cache = True`. Or it replaced its state.
        """
        assert self._task is not None  # noqa: S101  # begin_turn was called
        self.component = self._task.component
        holds = None if self.states.holdings is None else self.states.holdings.end(self._holding())
        if isinstance(self.component, StatefulBolt) and self.component.state is not self.states.own:
            raise InvalidTopologyError(
                f"The bolt {self.name!r} assigned to self.state, and only that mapping is kept. Call its "
                "methods, such as clear() and update()."
            )
        if self._attributes is not None and (changed := self._attributes.changed()) is not None:
            raise InvalidTopologyError(
                f"The attribute {changed!r} of the bolt {self.name!r} changed after initialize(), and "
                "Spark may lose a bolt's attributes at any time. Derive from StatefulBolt, and keep it in self.state. If "
                "the attribute is a cache that may vanish, set cache = True in the class."
            )
        return holds

    # -- calls that are no tuples

    def on_time(self, begin_ms: int, period_ms: float, first: int, last: int) -> None:
        """Process the batches, or the windows that have ended.

        Args:
            begin_ms: begin of the run, in milliseconds since 1970.
            period_ms: time between two calls.
            first: number of the first call that is due.
            last: number of the last one. Those between them were missed.
        """
        assert self._task is not None  # noqa: S101  # begin_turn was called
        if not isinstance(self._task.component, WindowedBolt):
            self._task.flush()
            return
        for number in range(first, last + 1):
            self._task.fire_windows(begin_ms + round(number * period_ms))
            if not self._holding()._acker_held_tuples():  # noqa: SLF001  # the other windows are empty
                break

    def flush(self) -> None:
        """Process all that the bolt holds."""
        assert self._task is not None  # noqa: S101  # as above
        self._task.flush()

    def release(self, reason: str) -> int:
        """Fail all tuples that the bolt holds. Returns their number."""
        assert self._task is not None  # noqa: S101  # as above
        collector, component, own = self.collector, self._task.component, self.states.own
        collector.begin_call()
        count = component._acker_fail_held(reason) if isinstance(component, HoldingBolt) else 0  # noqa: SLF001
        for _ in () if own is None else own.values():  # reading them opens their tuples
            pass
        for tup in list(collector.open_tuples.values()):
            collector.fail(tup, reason)
            count += 1
        return count

    def _holding(self) -> HoldingBolt:
        component = self.component if self._task is None else self._task.component
        assert isinstance(component, HoldingBolt)  # noqa: S101  # only these have holdings
        return component

    def forget(self) -> None:
        """Drop copies of what the task keeps. The next execution reads what it needs."""
        self.states.forget()
        if isinstance(self.component, HoldingBolt) and self._is_initialised:
            self.component._acker_let_go()  # noqa: SLF001

    def close(self) -> None:
        """Clean up, as far as that is possible."""
        if self._is_initialised:
            self._hooks.clean_up()
            self.component.close()

    def _bind(self, component: Bolt) -> None:
        component._acker_bind(self.collector, self._context, self._observer.metrics[self._context.component])  # noqa: SLF001
        if isinstance(component, StatefulBolt) and self.states.own is not None:
            component.state = self.states.own

    def _begin_windows(self, component: Bolt) -> None:
        begin_windows(component, self._graph, self._timeout_secs, lambda: self._now_ms)

    def _initialize(self) -> None:
        component, conf = self.component, self._context.conf
        with self._initialising():
            for hook in conf.get(settings.AUTO_TASK_HOOKS) or ():
                self._hooks.add(make_hook(hook), conf, self._context)
            self._hooks.keep()
            component.initialize(conf, self._context)
            self._begin_windows(component)
        self._is_initialised = True
        self._attributes = Attributes(component)

    @contextmanager
    def _initialising(self) -> Iterator[None]:
        try:
            yield
        except AckerError:
            raise
        except Exception as exc:
            if is_outage(exc):
                raise
            raise PipelineError(
                f"initialize() of the bolt {self._context.component!r} raised {type(exc).__name__}: {exc}. No tuple can be "
                "processed without it. Correct it, and run again."
            ) from exc

    def _fresh(self, task: BoltTask) -> Bolt:
        made: Bolt = make_instance(self._maker)
        self._bind(made)
        task.component = self.component = made
        self._hooks.drop()
        made.initialize(self._context.conf, self._context)
        self._begin_windows(made)
        self._attributes = Attributes(made)
        return made


class TaskSet:
    """Tasks of one run in this process.

    Attributes:
        plan: plan of the run.
    """

    def __init__(self, plan: Plan, run_id: str) -> None:
        self.plan = plan
        self._run_id = run_id
        self._tasks: dict[int, WorkerTask] = {}

    def task(self, task_id: int) -> WorkerTask:
        """Return a task, which is made at its first use."""
        task = self._tasks.pop(task_id, None) or WorkerTask(self.plan, self._run_id, task_id)
        self._tasks[task_id] = task  # the last one used is the last one
        return task

    def forget_states(self, used: Collection[int]) -> None:
        """Drop copies of the state of other tasks than those in use, the oldest first, where all copies are too large.

        Spark runs a task in any worker. Without this, each one would keep the state of all tasks in time.
        """
        total = sum(task.states.kept_bytes for task in self._tasks.values())
        for task_id, task in self._tasks.items():
            if total <= KEPT_BYTES:
                return
            if task_id not in used:
                total -= task.states.kept_bytes
                task.forget()

    def observer(self, secs: float, debug: dict[str, float]) -> Observer:
        """Make the observer of one task of Spark in one turn."""
        events = EventLog(random.Random(secs))  # noqa: S311  # a sample, not a secret
        for component, percent in debug.items():
            events.debug(component, percent)
        return Observer(self.plan.graph.components, events, lambda: secs, is_recording=False)

    def close(self) -> None:
        """Clean up all tasks, as far as that is possible. A turn of another run is under way, so nothing is raised."""
        for task in self._tasks.values():
            try:
                task.close()
            except Exception:
                log.warning("component not closed component=%r", task.name, exc_info=True)
