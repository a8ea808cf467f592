"""Bolts that process windows of tuples: by number or by time, sliding or tumbling."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from acker_redis.errors import InvalidTopologyError, RowFailedError
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.component import Rule
from acker_redis.storm.components.holding import HoldingBolt
from acker_redis.storm.core.tuples import State, Tuple
from acker_redis.storm.core.windows import ArrivalWindows, EventWindows, Extent, TupleWindow, WindowSpec
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component, Graph

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DEFAULT_WATERMARK_MS = 1000
"""Interval of watermarks of a bolt that sets none, as in Storm."""


def _is_time(value: object) -> bool:
    return isinstance(value, timedelta) and value >= _MS


def _is_extent(value: object) -> bool:
    return value is None or _is_time(value) or settings.is_count(value)


class WindowedBolt(HoldingBolt):
    """Bolt that processes windows of tuples (Storm: BaseWindowedBolt).

    At each `slide`, `process_window` gets the last `window` of tuples. Emits are anchored to all tuples of the window. A tuple
    is acked when its last window was processed. (Storm acks it one window later.) An exception fails the tuples of the
    window, and they leave it. A tuple that you ack or fail yourself leaves it, too.

    Windows by time end at each `slide` after `initialize`, and an empty one isn't processed. With `timestamp_field`, tuples
    have the time of that field, windows end at multiples of `slide`, and watermarks decide when. A watermark is the least of
    the input streams' latest times, less `lag`. A tuple behind the watermark is late: it is in no window, and is acked.

    A window of a number of tuples holds its last ones until others come, so choose a number that arrives well within the
    message timeout. At the end of a run, a last window has the tuples that are left.

    Attributes:
        window: length of a window, a number of tuples or a timedelta.
        slide: distance between two windows, a number of tuples or a timedelta. None means 1 tuple. Set it to `window` for
            windows that don't overlap. The times of `window`, `slide` and `lag` together are below the message timeout.
        timestamp_field: field with the time of a tuple, a datetime with a time zone, or milliseconds since 1970. None means
            that tuples have the time at which they arrive.
        lag: how much later than a later tuple a tuple may arrive.
        late_stream: stream that late tuples are emitted to. Declare it with one field, whose value is the `Tuple`. None
            means that they are logged.

    >>> class Mean(WindowedBolt):
    ...     outputs = ["mean"]
    ...     window, slide = 100, 10  # the last 100 tuples, after each 10; or two timedeltas
    ...     def process_window(self, window):
    ...         self.emit([sum(tup.values.v for tup in window.tuples) / len(window.tuples)])
    """

    window: int | timedelta | None = None
    slide: int | timedelta | None = None
    timestamp_field: str | None = None
    lag: timedelta = timedelta(0)
    late_stream: str | None = None

    _acker_needs: ClassVar[tuple[str, ...]] = ("process_window",)
    _acker_rules: ClassVar[Mapping[str, Rule]] = {
        "window": Rule(_is_extent, "a number of tuples, or a timedelta of a millisecond or more"),
        "slide": Rule(_is_extent, "a number of tuples, or a timedelta of a millisecond or more"),
        "timestamp_field": Rule(lambda value: value is None or isinstance(value, str), "the name of a field, or None"),
        "lag": Rule(lambda value: isinstance(value, timedelta) and value >= timedelta(0), "a timedelta of 0 or more"),
        "late_stream": Rule(lambda value: value is None or isinstance(value, str), "the name of a stream, or None"),
    }
    _acker_windows: ArrivalWindows | EventWindows | None = None
    _acker_spec: WindowSpec
    _acker_places: Mapping[tuple[str, str], int]
    _acker_now_ms: Callable[[], int]

    def process_window(self, window: TupleWindow) -> None:
        """Process a window of tuples."""
        raise NotImplementedError(f"{type(self).__name__} has no process_window(). Define it.")

    def process(self, tup: Tuple) -> None:
        """Add a tuple to the windows. Override `process_window` instead."""
        windows = self._acker_windowing()
        if isinstance(windows, ArrivalWindows):
            windows.add(tup, self._acker_now_ms())
        elif not windows.add(tup, self._acker_time_of(tup), (tup.component, tup.stream)):
            self._acker_note_late(tup)

    def _acker_note_late(self, tup: Tuple) -> None:
        if self._acker_spec.late_stream is None:
            self._acker_logger.info("late tuple in no window task_id=%d tup=%r", self._acker_place.task_id, tup)
        else:
            self.emit([copy(tup)], stream=self._acker_spec.late_stream, anchors=[tup])
        self._acker_ack([tup])

    def _acker_time_of(self, tup: Tuple) -> int:
        """Return the time of a tuple, in milliseconds since 1970."""
        value = tup.values[self._acker_places[tup.component, tup.stream]]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, datetime) and value.tzinfo is not None:
            return (value - _EPOCH) // _MS
        raise RowFailedError(
            f"{self._acker_spec.timestamp_field}={value!r:.100} is no time. Use a datetime with a time zone, or milliseconds "
            "since 1970 as an integer."
        )

    # -- calls of the run

    def _acker_begin_windows(
        self, spec: WindowSpec, places: Mapping[tuple[str, str], int], now_ms: Callable[[], int]
    ) -> None:
        """Set the windows of this task, the place of the time in the values of each input stream, and the clock."""
        self._acker_spec, self._acker_places, self._acker_now_ms = spec, places, now_ms

    def _acker_windowing(self) -> ArrivalWindows | EventWindows:
        if self._acker_windows is None:
            if self._acker_spec.timestamp_field is None:
                self._acker_windows = ArrivalWindows(self._acker_spec, self._acker_fire, self._acker_ack)
            else:
                self._acker_windows = EventWindows(
                    self._acker_spec, self._acker_fire, self._acker_ack, self._acker_places
                )
        return self._acker_windows

    def _acker_fire(self, window: TupleWindow) -> bool:
        with self._acker_processing(window.tuples, acks=False) as done:
            self.process_window(window)
        if not done.is_whole:
            self._acker_is_whole = False
            self._acker_windowing().stop()
        return not done.has_failed

    def _acker_ack(self, tups: Sequence[Tuple]) -> None:
        for tup in tups:
            if self.auto_ack and tup.state is State.PENDING:
                self._acker_collector.ack(tup)

    def _acker_on_time(self, now_ms: int) -> bool:
        """Fire the windows that are due at a time. Returns False if the task has to go on with a fresh copy."""
        self._acker_is_whole = True
        self._acker_windowing().on_time(now_ms)
        return self._acker_is_whole

    def _acker_flush(self) -> bool:
        self._acker_is_whole = True
        self._acker_windowing().finish(self._acker_now_ms())
        return self._acker_is_whole

    def _acker_held_tuples(self) -> list[Tuple]:
        return self._acker_windowing().tuples()

    def _acker_let_go(self) -> list[Tuple]:
        held, self._acker_windows = self._acker_held_tuples(), None
        return held

    def _acker_held_places(self) -> Iterator[tuple[Tuple, Any]]:
        return self._acker_windowing().places()

    def _acker_held_progress(self) -> Any:
        return self._acker_windowing().progress

    def _acker_resume_held(self, progress: Any, places: Iterable[tuple[Tuple, Any]]) -> None:
        self._acker_windows = None
        if progress is not None:
            self._acker_windowing().resume(progress, places)


def check_windows(graph: Graph) -> None:
    """Check the windowed bolts of a topology.

    Raises:
        InvalidTopologyError: a bolt has no window, or needs more time than the message timeout, or a stream lacks a field.
    """
    timeout_secs = graph.config.get(settings.MESSAGE_TIMEOUT_SECS) or settings.DEFAULT_TIMEOUT_SECS
    for component in graph.bolts:
        maker = component.maker
        if isinstance(maker, WindowedBolt) or (isinstance(maker, type) and issubclass(maker, WindowedBolt)):
            _checked_spec(graph, component, maker, timeout_secs)


def period_secs(graph: Graph, component: Component) -> float | None:
    """Return the time between two calls of a bolt for its windows, in seconds. None: it needs none, or has no windows."""
    maker = component.maker
    if not issubclass(maker if isinstance(maker, type) else type(maker), WindowedBolt):
        return None
    period_ms = _spec(graph, component, maker).period_ms
    return None if period_ms is None else period_ms / 1000


def ends_by_time(graph: Graph, component: Component) -> bool:
    """Return True if time alone brings each tuple of a windowed bolt to its last window."""
    return _spec(graph, component, component.maker).ends_by_time


def is_of_one(graph: Graph, component: Component) -> bool:
    """Return True if each tuple of a windowed bolt is a window at once, so that none waits for another."""
    return _spec(graph, component, component.maker).is_of_one


def begin_windows(bolt: Bolt, graph: Graph, timeout_secs: float, now_ms: Callable[[], int]) -> None:
    """Begin the windows of a task, if its bolt is a windowed one.

    Raises:
        InvalidTopologyError: as for `check_windows`.
    """
    if isinstance(bolt, WindowedBolt):
        component = graph.components[bolt._acker_place.component]  # noqa: SLF001  # of the classes here
        spec = _checked_spec(graph, component, bolt, timeout_secs)
        bolt._acker_begin_windows(spec, _places(graph, component, spec), now_ms)  # noqa: SLF001


def _checked_spec(
    graph: Graph, component: Component, bolt: WindowedBolt | type[WindowedBolt], timeout_secs: float
) -> WindowSpec:
    spec = _spec(graph, component, bolt)
    ms = spec.length.ms + spec.slide.ms + spec.lag_ms
    has_timeouts = graph.config.get(settings.ENABLE_TIMEOUTS, True) and graph.config.get(settings.ACKER_EXECUTORS) != 0
    if has_timeouts and ms >= timeout_secs * 1000:
        raise InvalidTopologyError(
            f"The times of window, slide and lag of the bolt {component.name!r} are {ms / 1000:g} s together, and the message "
            f"timeout is {timeout_secs:g} s. Messages would time out before their last window. Shorten the windows, or raise "
            f"{settings.MESSAGE_TIMEOUT_SECS}."
        )
    if bolt.lag and spec.timestamp_field is None:
        raise InvalidTopologyError(
            f"lag={bolt.lag!r} of the bolt {component.name!r} has no effect without timestamp_field, because tuples have the "
            "time at which they arrive. Set timestamp_field, or omit lag."
        )
    _places(graph, component, spec)
    late = component.streams.get(spec.late_stream) if spec.late_stream is not None else None
    if spec.late_stream is not None and (late is None or len(late.fields) != 1 or spec.timestamp_field is None):
        raise InvalidTopologyError(
            f"late_stream={spec.late_stream!r} of the bolt {component.name!r} needs timestamp_field, and a stream with one "
            f'field. Declare Stream(["late_tuple"], name={spec.late_stream!r}) in its outputs.'
        )
    return spec


def _places(graph: Graph, component: Component, spec: WindowSpec) -> dict[tuple[str, str], int]:
    """Return the place of the time in the values of each input stream."""
    if spec.timestamp_field is None:
        return {}
    places = {}
    for subscription in component.inputs:
        fields = graph.components[subscription.source].streams[subscription.stream].fields
        if spec.timestamp_field not in fields:
            raise InvalidTopologyError(
                f"The bolt {component.name!r} takes the time of tuples from the field {spec.timestamp_field!r}, which stream "
                f"{subscription.stream!r} of {subscription.source!r} lacks. "
                f"{settings.nearest(spec.timestamp_field, fields, 'field')}"
            )
        places[subscription.source, subscription.stream] = fields.index(spec.timestamp_field)
    return places


def _spec(graph: Graph, component: Component, bolt: WindowedBolt | type[WindowedBolt]) -> WindowSpec:
    """Combine the settings of the component, the attributes of the bolt and the settings of the topology, in this order."""
    own, general = component.config, graph.config
    length = (
        _by_settings(own, settings.WINDOW_COUNT, settings.WINDOW_MS)
        or _extent(bolt.window)
        or _by_settings(general, settings.WINDOW_COUNT, settings.WINDOW_MS)
    )
    if length is None:
        raise InvalidTopologyError(
            f"The bolt {component.name!r} has no window, so nothing would ever be processed. Set window in its class to a "
            "number of tuples or a timedelta."
        )
    slide = (
        _by_settings(own, settings.SLIDE_COUNT, settings.SLIDE_MS)
        or _extent(bolt.slide)
        or _by_settings(general, settings.SLIDE_COUNT, settings.SLIDE_MS)
    )
    lag_ms = own.get(settings.LAG_MS, bolt.lag // _MS or general.get(settings.LAG_MS))
    merged = {**general, **own}
    return WindowSpec(
        length=length,
        slide=slide or Extent(1),
        timestamp_field=bolt.timestamp_field,
        lag_ms=lag_ms or 0,
        late_stream=own.get(settings.LATE_STREAM, bolt.late_stream) or general.get(settings.LATE_STREAM),
        watermark_ms=merged.get(settings.WATERMARK_MS) or DEFAULT_WATERMARK_MS,
    )


def _by_settings(config: Mapping[str, Any], count: str, ms: str) -> Extent | None:
    if config.get(count) is not None:
        return Extent(config[count])
    return None if config.get(ms) is None else Extent(None, config[ms])


def _extent(value: int | timedelta | None) -> Extent | None:
    if value is None:
        return None
    return Extent(None, value // _MS) if isinstance(value, timedelta) else Extent(value)
