"""Tasks of bolts: they execute tuples one by one."""

import itertools
import logging
from collections.abc import Callable

from acker_redis.storm.components.batching import BatchingBolt, TicklessBatchingBolt
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.windowed import WindowedBolt
from acker_redis.storm.core.collectors import BoltCollector
from acker_redis.storm.core.hooks import HookList
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.definition import settings
from acker_redis.storm.local.clock import Timers

log = logging.getLogger("acker_redis.storm")


class BoltTask:
    """Task of a bolt.

    Attributes:
        component: the bolt. A fresh copy takes its place after an exception with `exit_on_exception`.
        collector: collector of the task.
        hooks: hooks of the task.
    """

    def __init__(
        self, component: Bolt, collector: BoltCollector, hooks: HookList, fresh: Callable[["BoltTask"], Bolt]
    ) -> None:
        self.component = component
        self.collector = collector
        self.hooks = hooks
        self._fresh = fresh

    def execute(self, tup: Tuple) -> None:
        """Execute a tuple."""
        collector = self.collector
        collector.begin_tuple(tup)
        goes_on = self.component._acker_execute(tup)  # noqa: SLF001
        collector.end_tuple(tup)
        if not goes_on:
            self.replace()

    def flush(self) -> None:
        """Process what the bolt holds."""
        self.collector.begin_call()
        if not self.component._acker_flush():  # noqa: SLF001
            self.replace()

    def fire_windows(self, now_ms: int) -> None:
        """Fire the windows that are due at a time, in milliseconds."""
        self.collector.begin_call()
        if isinstance(self.component, WindowedBolt) and not self.component._acker_on_time(now_ms):  # noqa: SLF001
            self.replace()

    def set_timers(self, timers: Timers, tick: Callable[[float], object], *, has_inputs: bool) -> None:
        """Set the timers of ticks, batches and windows."""
        bolt, name = self.component, self.collector.context.component
        tick_secs = self._tick_secs
        if not has_inputs and tick_secs is None:
            log.warning("bolt executes nothing, it has neither inputs nor ticks component=%r", name)
        if tick_secs is not None:
            timers.every(tick_secs, lambda: tick(tick_secs))
        if isinstance(bolt, TicklessBatchingBolt):
            timers.every(bolt.secs_between_batches, self.flush)
        elif isinstance(bolt, BatchingBolt) and tick_secs is None and bolt.batch_size is None:
            log.warning("batches never processed, neither ticks nor batch_size are set component=%r", name)
        if isinstance(bolt, WindowedBolt) and bolt._acker_spec.period_ms is not None:  # noqa: SLF001
            self._set_window_timer(timers, bolt._acker_now_ms(), bolt._acker_spec.period_ms)  # noqa: SLF001

    def _set_window_timer(self, timers: Timers, begin_ms: int, period_ms: int) -> None:
        """Fire windows at each period. Those that were missed have the time at which they were due."""
        numbers = itertools.count(1)
        timers.every(period_ms / 1000, lambda: self.fire_windows(begin_ms + next(numbers) * period_ms))

    @property
    def _tick_secs(self) -> float | None:
        secs: float | None = self.collector.context.conf.get(settings.TICK_SECS)
        return secs

    @property
    def has_windows(self) -> bool:
        """True if the bolt processes windows, which a flush ends early."""
        return isinstance(self.component, WindowedBolt)

    @property
    def is_never_flushed(self) -> bool:
        """True if no time brings the bolt to process the last tuples that it holds."""
        bolt = self.component
        if isinstance(bolt, WindowedBolt):
            return not bolt._acker_spec.ends_by_time  # noqa: SLF001
        is_timed = isinstance(bolt, TicklessBatchingBolt) or self._tick_secs is not None
        return isinstance(bolt, BatchingBolt) and not is_timed

    def replace(self) -> None:
        """Put a fresh copy in the place of the bolt."""
        self.component._acker_abandon()  # noqa: SLF001
        self.component = self._fresh(self)
