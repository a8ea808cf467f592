"""Local run of a topology, for tests: simulated time, and an order that a seed draws."""

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from acker_redis.acker import Acker
from acker_redis.errors import AckerError, BadConfigError
from acker_redis.model import ids
from acker_redis.storm.components.spout import ReliableSpout, Spout
from acker_redis.storm.core.event_log import Event
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.observer import FailedTree
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.mermaid import draw
from acker_redis.storm.definition.streams import DEFAULT
from acker_redis.storm.local.clock import SimulatedClock
from acker_redis.storm.local.engine import Engine
from acker_redis.storm.local.pending import timeout_secs
from acker_redis.storm.local.spouts import Fed
from acker_redis.testing.fake import fake_acker

log = logging.getLogger("acker_redis.storm")

MAX_EVENTS = 1_000_000
"""Number of events after which `settle` takes a topology for one that never settles."""

_EXCHANGE_SHARE = 16
"""Each event is an exchange with the ledger with a chance of one in this number, or in the number of exchanges since `settle`
began, if that is more. An exchange takes as long as hundreds of other events, so long runs have a smaller share of them."""

_ROUNDING_SECS = 1e-9
"""Error of a sum of steps: ten times 0.1 s is a second, although the floats add up to less."""


class LocalRun:
    """Run of a topology in this process, which moves only as far as you say.

    Enter it with `with`. It interprets Storm's semantics: one queue per pair of tasks, and a scheduler that draws the next
    event from a seed. Any order that Storm allows can be drawn, and one seed always gives one order. The ledger is real.

    An exception in a spout leaves the call that ran into it, and ends the run.

    >>> with WordCount.local() as run:
    ...     run.feed("lines", ["a b a"], tup_id=1)
    ...     run.settle()
    ...     sorted(map(tuple, run.emitted("count"))), run.acked("lines")
    ([('a', 1), ('a', 2), ('b', 1)], [1])
    """

    def __init__(
        self,
        graph: Graph,
        *,
        seed: int,
        active: bool,
        acker: Acker | None,
        on_start: Callable[["LocalRun"], object],
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise BadConfigError(
                f"seed={seed!r} is not an integer, so the order could not be repeated. Pass one, such as 7."
            )
        if acker is not None:
            timeout_secs(graph, acker)  # refuses one that is longer than the app's
        self._graph = graph
        self._seed = seed
        self._starts_active = active
        self._given = acker
        self._on_start = on_start
        self._clock = SimulatedClock()
        self._rng = random.Random(seed)  # noqa: S311  # an order, not a secret
        self._entered: Engine | None = None
        self._error: Exception | None = None
        self._is_over = False
        self._exchanges = 0

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise AckerError("This local run was entered before. Call local() again for another run.")
        acker = self._given if self._given is not None else _fake(self._graph)
        engine = Engine(
            self._graph, acker, run_id=f"local-{self._seed}", choice_key=f"local-{self._seed}",
            spout_id=spout_id_of(self._graph), clock=self._clock, rng=self._rng, is_recording=True,
        )  # fmt: skip
        self._entered = engine
        self._on_start(self)
        self._renew_and_rotate()
        if self._starts_active:
            try:
                engine.activate()
            except BaseException as exc:
                self.__exit__(type(exc), exc, exc.__traceback__)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        self._is_over = True
        try:
            try:
                try:
                    engine.deactivate()
                finally:
                    engine.close(is_orderly=error is None)
            except Exception:
                if error is None:
                    raise
                log.debug("component not closed after an error", exc_info=True)
            if self._given is not None:
                engine.abandon()
                engine.exchange()
        finally:
            if self._given is None:
                engine.acker.close()

    # -- moving the run

    def feed(
        self,
        spout: str,
        values: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = DEFAULT,
        direct_task: int | None = None,
    ) -> None:
        """Let a spout emit a message at its next call. From now on its own `next_tuple` isn't called.

        The bound on pending messages and a deactivated topology hold it back, as they do the spout's own messages.

        Args:
            spout: name of the spout.
            values: values of the message.
            tup_id: id of the message, of any type. None: it isn't tracked.
            stream: stream of the spout.
            direct_task: task that receives the tuple of a direct stream.

        Raises:
            InvalidTopologyError: there is no such spout.
            BadTupleError: the spout has no such stream, the number of values is wrong, or a direct stream and the task don't
                fit.

        >>> run.feed("lines", ["a b a"], tup_id=1)
        """
        executors = self._moving().spout_executors(spout)
        task = executors[0].tasks[0]
        task.collector.check(values, stream, direct_task)
        if tup_id is None and isinstance(task.component, ReliableSpout):
            Spout.emit(task.component, values, None, stream, direct_task)  # it raises
        self._engine.fed(spout).append(Fed(list(values), tup_id, stream, direct_task))
        for executor in executors:
            executor.is_idle = False

    def settle(self) -> None:
        """Work until no queue has anything and each spout has once emitted nothing. Time stands still.

        Raises:
            AckerError: it isn't settled after a million events.

        >>> run.settle()
        """
        engine = self._moving()
        engine.wake()
        self._exchanges = 0
        with self._ending():
            for _ in range(MAX_EVENTS):
                if not self._step():
                    return
        raise AckerError(
            f"The topology is not settled after {MAX_EVENTS} events. A spout that always emits needs "
            "topology.max.spout.pending or feed(), and a cycle of bolts needs an end."
        )

    def advance(self, secs: float) -> None:
        """Move the time, and settle after each tick and timeout on the way, those at its end included.

        Raises:
            AckerError: it is not a duration, or as for `settle`.

        >>> run.advance(60)
        """
        if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 <= secs < math.inf:
            raise AckerError(f"secs={secs!r} is not a duration. Use a number of seconds, 0 or more.")
        self.settle()
        end, timers = self._clock.secs + secs, self._engine.timers
        while (due := timers.next_secs()) is not None and due <= end + _ROUNDING_SECS:
            self._clock.secs = due
            with self._ending():
                timers.fire()
            self.settle()
        if self._clock.secs < end:
            self._clock.secs = end
            self.settle()

    def activate(self) -> None:
        """Activate the topology: spouts emit again.

        >>> run.activate()
        """
        engine = self._moving()
        with self._ending():
            engine.activate()

    def deactivate(self) -> None:
        """Deactivate the topology: spouts emit nothing. Bolts, ticks, outcomes and timeouts go on.

        >>> run.deactivate()
        """
        engine = self._moving()
        with self._ending():
            engine.deactivate()

    def debug(self, component: str | None = None, *, percent: float = 100.0) -> None:
        """Log the emits of a component, or of all, in `events` (Storm: debug with samplingPercentage). 0 ends it.

        Raises:
            InvalidTopologyError: there is no such component.
            BadConfigError: `percent` is not a number from 0 to 100.

        >>> run.debug("split", percent=10)
        """
        if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
            raise BadConfigError(f"percent={percent!r} is not a share of the emits. Use a number from 0 to 100.")
        names = self._graph.components if component is None else [self._engine.component(component).name]
        for name in names:
            self._engine.observer.events.debug(name, percent)

    # -- looking at it

    def emitted(self, component: str, stream: str = DEFAULT) -> list[Any]:
        """Return the values that a component emitted, in order, as namedtuples.

        >>> run.emitted("split", "empty")
        []
        """
        known = self._engine.component(component)
        if stream != DEFAULT:
            known.stream(stream)  # refuses an unknown one
        return list(self._engine.observer.emitted.get((component, stream), ()))

    def executed(self, component: str) -> list[Any]:
        """Return the values that a bolt executed, in order, as namedtuples. Ticks aren't among them.

        >>> [values.line for values in run.executed("split")]
        ['held']
        """
        return list(self._engine.observer.executed.get(self._engine.component(component).name, ()))

    def acked(self, spout: str) -> list[Any]:
        """Return the ids of acked messages, in order of delivery.

        >>> run.acked("lines")
        []
        """
        self._engine.spout_executors(spout)
        return [tup_id for name, tup_id in self._engine.acked if name == spout]

    def failed(self, spout: str) -> list[tuple[Any, str]]:
        """Return the ids and reasons of failed and timed-out messages, in order of delivery.

        >>> run.failed("lines")
        []
        """
        self._engine.spout_executors(spout)
        return [(tup_id, reason) for name, tup_id, reason in self._engine.failed if name == spout]

    def pending(self, spout: str) -> list[Any]:
        """Return the ids of pending messages, in order of emission.

        >>> run.pending("lines")
        [1]
        """
        messages = [message for executor in self._engine.spout_executors(spout) for message in executor.pending]
        return [message.emission.tup_id for message in sorted(messages, key=lambda message: message.number)]

    def tasks(self, component: str) -> list[Any]:
        """Return the objects of a component's tasks, by task index.

        >>> len(run.tasks("split"))
        2
        """
        return self._engine.instances(component)

    @property
    def events(self) -> list[Event]:
        """Event log: emits of the components that are debugged, by `debug` or by `topology.debug`."""
        return list(self._engine.observer.events)

    @property
    def metrics(self) -> dict[str, ComponentMetrics]:
        """Metrics by component."""
        return self._engine.observer.metrics

    @property
    def failed_trees(self) -> list[FailedTree]:
        """Trees that failed or timed out, with their reason and last component, in order of delivery."""
        return list(self._engine.failed_trees)

    @property
    def now_secs(self) -> float:
        """Time of the run, in seconds since its begin."""
        return self._clock.secs

    def describe(self) -> str:
        """Draw the topology with its counts, in Mermaid.

        >>> run.describe().splitlines()[0]
        'flowchart LR'
        """
        return draw(self._graph, self._engine.observer.metrics)

    def __repr__(self) -> str:
        return f"<LocalRun of {self._graph.name!r}, seed {self._seed}, at {self._clock.secs:g} s>"

    @property
    def _engine(self) -> Engine:
        if self._entered is None:
            raise AckerError("This local run was not entered. Use it as `with Topology.local() as run:`.")
        return self._entered

    def _moving(self) -> Engine:
        engine = self._engine
        if self._error is not None:
            raise AckerError(f"The run ended with {self._error!r}. Enter another one.") from self._error
        if self._is_over:
            raise AckerError("The run is over, because its `with` block ended. Enter another one.")
        return engine

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the run by an exception of a spout."""
        try:
            yield
        except Exception as exc:
            self._error = exc
            raise

    # -- the scheduler

    def _step(self) -> bool:
        """Do one event, drawn among those that are possible. Returns False if there is none."""
        engine = self._engine
        executors, pairs = engine.runnable(), len(engine.queues.pairs)
        count = pairs + len(executors)
        is_dirty = not engine.updates.is_empty or engine.replays.unwritten
        if is_dirty and (not count or self._rng.random() * max(_EXCHANGE_SHARE, self._exchanges) < 1):
            self._exchanges += 1
            engine.replays.write()
            engine.exchange()
            return True
        if not count:
            return False
        drawn = self._rng.randrange(count)
        if drawn < pairs:
            engine.execute(drawn)
        else:
            engine.run_round(executors[drawn - pairs])
        return True

    def _renew_and_rotate(self) -> None:
        """Move the ledger's time with the run's. The pending map decides timeouts, so its roots stay in the ledger."""
        engine = self._engine
        admin, is_given = engine.acker.admin, self._given is not None

        def rotate() -> None:
            roots = engine.pending_roots()
            if not roots and not is_given:
                return
            engine.updates.renew(roots)
            while admin.rotate(force=True).draining:
                pass
            engine.receive()

        if engine.is_tracking:
            engine.timers.every(engine.acker.config.tick_ms / 1000, rotate)
        if is_given:
            engine.timers.every(1.0, engine.replays.claim)


def spout_id_of(graph: Graph) -> int:
    """Derive the spout_id of a topology from its name, so that a later run replays its dead letters."""
    return ids.derive("topology", graph.name) & 0xFFFFFFFF


def _fake(graph: Graph) -> Acker:
    secs = graph.config.get(settings.MESSAGE_TIMEOUT_SECS, settings.DEFAULT_TIMEOUT_SECS)
    return fake_acker(app="local", shards=1, message_timeout_secs=float(secs))
