"""Windows over the tuples of one task: when one fires, and which tuples it has (Storm: WindowManager and its policies).

A tuple leaves when no later window can have it, which is known as soon as its last window has fired. Storm notices it at the
next window.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from acker_redis.storm.core.tuples import State, Tuple


@dataclass(frozen=True)
class TupleWindow:
    """Window of tuples that `process_window` receives (Storm: TupleWindow).

    Attributes:
        tuples: tuples of the window, in the order of their arrival.
        new: those of them that no earlier window had.
        expired: tuples that left since the last window, in no order.
        start: time before the window's first moment, in milliseconds; None if its length is a number of tuples.
        end: last moment of the window, in milliseconds. Without `timestamp_field` it is a time by the clock of the run.
    """

    tuples: list[Tuple]
    new: list[Tuple]
    expired: list[Tuple]
    start: int | None
    end: int


@dataclass(frozen=True)
class Extent:
    """Length of a window, or its slide: a number of tuples, or a time.

    Attributes:
        count: number of tuples; None: it is a time.
        ms: time, in milliseconds; 0 if it is a number.
    """

    count: int | None
    ms: int = 0


@dataclass(frozen=True)
class WindowSpec:
    """Checked windows of a bolt.

    Attributes:
        length: length of a window.
        slide: distance between two windows.
        timestamp_field: field of the event time; None: tuples have the time of their arrival.
        lag_ms: how much later than a later one a tuple may arrive, in milliseconds.
        late_stream: stream of tuples that arrive later than that.
        watermark_ms: interval of the watermarks, in milliseconds.
    """

    length: Extent
    slide: Extent
    timestamp_field: str | None = None
    lag_ms: int = 0
    late_stream: str | None = None
    watermark_ms: int = 0

    @property
    def period_ms(self) -> int | None:
        """Interval at which `on_time` has to be called, in milliseconds; None if it need not be."""
        if self.timestamp_field is not None:
            return self.watermark_ms
        if self.slide.count is None:
            return self.slide.ms
        return None if self.length.count is not None else max(1, self.length.ms // 4)

    @property
    def is_of_one(self) -> bool:
        """True if each tuple is a window at once, so that none waits for another."""
        return self.timestamp_field is None and self.length.count == self.slide.count == 1

    @property
    def ends_by_time(self) -> bool:
        """True if time alone brings each tuple to its last window."""
        return self.timestamp_field is None and self.slide.count is None and self.length.count is None


class _Held:
    """Tuple that a window may have."""

    __slots__ = ("is_counted", "is_new", "ms", "tup")

    def __init__(self, tup: Tuple, ms: int) -> None:
        self.tup = tup
        self.ms = ms
        self.is_new = True
        self.is_counted = False


Place: TypeAlias = tuple[int, bool, bool] | None
"""Place of a tuple: its time, whether it is new and whether it is counted. None: it left, and the next window tells so."""


class Windows:
    """Tuples of a task, and the part of their windows that doesn't depend on the kind of time."""

    _marks: ClassVar[tuple[str, ...]] = ()
    """Attributes that say how far the windows have come."""

    def __init__(
        self,
        spec: WindowSpec,
        fire: Callable[[TupleWindow], bool],
        release: Callable[[Sequence[Tuple]], object],
    ) -> None:
        """Begin without tuples.

        Args:
            spec: the windows.
            fire: call that processes a window. It returns False if the window's tuples must leave.
            release: call for tuples that no later window has.
        """
        self._spec = spec
        self._fire, self._release = fire, release
        self._held: list[_Held] = []
        self._left: list[Tuple] = []
        self._is_stopped = False

    def tuples(self) -> list[Tuple]:
        """List the tuples that are held."""
        return [held.tup for held in self._held]

    def places(self) -> Iterator[tuple[Tuple, Place]]:
        """Yield each tuple that is held, and those that left since the last window, with their places."""
        for held in self._held:
            yield held.tup, (held.ms, held.is_new, held.is_counted)
        for tup in self._left:
            yield tup, None

    @property
    def progress(self) -> tuple[Any, ...]:
        """How far the windows have come."""
        return tuple(getattr(self, name) for name in self._marks)

    def resume(self, progress: tuple[Any, ...], places: Iterable[tuple[Tuple, Place]]) -> None:
        """Go on where other windows of the same bolt have come to.

        Args:
            progress: their progress.
            places: their tuples, in order.
        """
        for name, value in zip(self._marks, progress, strict=True):
            setattr(self, name, value)
        for tup, place in places:
            if place is None:
                self._left.append(tup)
                continue
            held = _Held(tup, place[0])
            _, held.is_new, held.is_counted = place
            self._held.append(held)

    def stop(self) -> None:
        """Fire no further window, and release nothing, because the task goes on with another object."""
        self._is_stopped = True

    def _trigger(self, end: int, of: list[_Held], floor: int | None) -> bool:
        """Fire the window at a time, with the last of some tuples, or those after the floor. Returns False if it is empty."""
        if self._is_stopped:
            return False
        of = self._without_settled(of)
        count = self._spec.length.count
        if count is None:
            inside = [held for held in of if floor is None or held.ms > floor]
            self._leave([held for held in of if floor is not None and held.ms <= floor])
        else:
            inside = of[-count:]
            self._leave(of[:-count])
        if not inside:
            return False
        start = end - self._spec.length.ms if count is None else None
        new = [held.tup for held in inside if held.is_new]
        expired, self._left = self._left, []
        for held in inside:
            held.is_new = False
        if not self._fire(TupleWindow([held.tup for held in inside], new, expired, start, end)):
            self._drop(inside)
        self._without_settled(inside)
        return True

    def _leave(self, out: list[_Held]) -> None:
        """Release tuples that no later window has."""
        if out and not self._is_stopped:
            self._drop(out)
            self._release([held.tup for held in out])

    def _drop(self, out: list[_Held]) -> None:
        """Remove tuples."""
        self._left += [held.tup for held in out]
        if self._held[: len(out)] == out:
            del self._held[: len(out)]
        else:
            gone = set(out)
            self._held = [held for held in self._held if held not in gone]

    def _without_settled(self, of: list[_Held]) -> list[_Held]:
        """Drop those of some tuples that the bolt has acked or failed itself. Returns the others."""
        settled = [held for held in of if held.tup.state is not State.PENDING]
        if not settled:
            return of
        self._drop(settled)
        gone = set(settled)
        return [held for held in of if held not in gone]


class ArrivalWindows(Windows):
    """Windows by the time at which tuples arrive, or by their number."""

    _marks = ("_since", "_floor")

    _since = 0
    """Number of tuples since the last window."""

    _floor: int | None = None
    """Tuples up to this time are in no later window."""

    def add(self, tup: Tuple, now_ms: int) -> None:
        """Add a tuple that arrived, and fire the window that it completes."""
        self._held.append(_Held(tup, now_ms))
        length, slide = self._spec.length.count, self._spec.slide.count
        if slide is None:
            if length is not None:
                self._leave(self._held[:-length])
            return
        self._since += 1
        if self._since >= slide:
            self._since = 0
            self._trigger(now_ms, self._held[:], now_ms - self._spec.length.ms)
            if length is not None:
                self._leave(self._held[: max(0, len(self._held) + slide - length)])

    def on_time(self, now_ms: int) -> None:
        """Fire a window if the slide is a time. Otherwise release tuples whose time is over."""
        length, slide = self._spec.length, self._spec.slide
        if slide.count is not None:
            self._leave([held for held in self._held if held.ms <= now_ms - length.ms])
            return
        end = now_ms - 1  # tuples of this millisecond may still arrive
        if length.count is not None:
            self._trigger(end, self._held[:], None)
            return
        if self._floor is None and slide.ms > length.ms:
            self._floor = end - length.ms  # without windows before, nothing else keeps out tuples between two windows
        self._trigger(end, self._until(end), self._floor)
        self._floor = end + slide.ms - length.ms
        self._leave([held for held in self._until(end) if held.ms <= end + slide.ms - length.ms])

    def finish(self, now_ms: int) -> None:
        """Fire a last window, if there is a tuple that no window had, and release all."""
        if any(held.is_new for held in self._held):
            is_by_time = self._spec.slide.count is None
            self._trigger(now_ms, self._held[:], self._floor if is_by_time else now_ms - self._spec.length.ms)
        self._since = 0
        self._leave(self._held[:])

    def _until(self, end: int) -> list[_Held]:
        return [held for held in self._held if held.ms <= end]


class EventWindows(Windows):
    """Windows by a time that tuples carry. Watermarks say how far it has come."""

    _marks = ("_times", "_watermark", "_next_end", "_fired_end")

    def __init__(
        self,
        spec: WindowSpec,
        fire: Callable[[TupleWindow], bool],
        release: Callable[[Sequence[Tuple]], object],
        streams: Iterable[Hashable],
    ) -> None:
        """Begin without tuples.

        Args:
            spec: the windows.
            fire: as for `Windows`.
            release: as for `Windows`.
            streams: streams that the watermark waits for.
        """
        super().__init__(spec, fire, release)
        self._latest: dict[Hashable, int | None] = dict.fromkeys(streams)
        self._watermark: int | None = None
        self._next_end: int | None = None
        self._fired_end: int | None = None

    @property
    def _times(self) -> tuple[tuple[Hashable, int | None], ...]:
        return tuple(self._latest.items())

    @_times.setter
    def _times(self, times: tuple[tuple[Hashable, int | None], ...]) -> None:
        self._latest |= dict(times)

    def add(self, tup: Tuple, ms: int, stream: Hashable) -> bool:
        """Add a tuple of a time and stream. Returns False if it is late: no window can have it any more."""
        latest = self._latest.get(stream)
        self._latest[stream] = ms if latest is None else max(ms, latest)
        if self._is_late(ms):
            return False
        self._held.append(_Held(tup, ms))
        return True

    def _is_late(self, ms: int) -> bool:
        if self._watermark is not None and ms < self._watermark:
            return True
        if self._fired_end is None or self._next_end is None or self._spec.length.count is not None:
            return False
        return ms <= self._fired_end and ms <= self._next_end - self._spec.length.ms

    def on_time(self, now_ms: int) -> None:  # noqa: ARG002  # the tuples carry the time
        """Move the watermark: the least of the streams' latest times, without the lag. Fire the windows that it passed."""
        known = [ms for ms in self._latest.values() if ms is not None]
        if not known or len(known) < len(self._latest):
            return
        watermark = min(known) - self._spec.lag_ms
        if self._watermark is None or watermark > self._watermark:
            self._advance(watermark)
            self._watermark = watermark

    def finish(self, now_ms: int) -> None:  # noqa: ARG002  # as above
        """Fire windows until each tuple was in one, and release all. Tuples of an earlier time are late from then on."""
        if not self._held:
            return
        latest = max(held.ms for held in self._held)
        slide = self._spec.slide
        self._advance(latest if slide.count is not None else _aligned(latest, slide.ms))
        if slide.count is not None and (rest := [held for held in self._held if not held.is_counted]):
            self._fire_counted(rest)
        self._watermark = latest if self._watermark is None else max(latest, self._watermark)
        self._leave(self._held[:])

    def _advance(self, watermark: int) -> None:
        if self._spec.slide.count is None:
            self._slide_by_time(watermark)
        else:
            self._slide_by_count(watermark, self._spec.slide.count)

    def _slide_by_time(self, watermark: int) -> None:
        slide_ms, length = self._spec.slide.ms, self._spec.length
        end = self._next_end if self._next_end is not None else self._end_after(None, watermark)
        while end is not None and end <= watermark and not self._is_stopped:
            of = [held for held in self._held if held.ms <= end]
            if self._trigger(end, of, end - length.ms):
                self._fired_end = end
                end += slide_ms
                if length.count is None:
                    floor = min(end - length.ms, self._fired_end)
                    self._leave([held for held in self._held if held.ms <= floor])
            else:
                later = self._end_after(end, watermark)
                if later is None:
                    break
                end = later
        self._next_end = end

    def _end_after(self, after: int | None, watermark: int) -> int | None:
        """Return the end of the first window with a tuple up to the watermark, after a time; None if there is no tuple."""
        times = [held.ms for held in self._held if (after is None or held.ms > after) and held.ms <= watermark]
        return _aligned(min(times), self._spec.slide.ms) if times else None

    def _slide_by_count(self, watermark: int, slide: int) -> None:
        waiting = [held for held in self._held if not held.is_counted and held.ms <= watermark]
        for at in range(0, len(waiting) - slide + 1, slide):
            self._fire_counted(waiting[at : at + slide])
        length = self._spec.length
        if length.count is None:
            rest = [held.ms for held in self._held if not held.is_counted and held.ms <= watermark]
            floor = max(rest, default=watermark) - length.ms  # the next window doesn't end before
            self._leave([held for held in self._held if held.is_counted and held.ms <= floor])

    def _fire_counted(self, more: list[_Held]) -> None:
        """Count tuples, and fire the window that they complete."""
        for held in more:
            held.is_counted = True
        length, slide = self._spec.length, self._spec.slide.count or 0
        counted = [held for held in self._held if held.is_counted]
        end = max(held.ms for held in counted)
        self._trigger(end, counted, end - length.ms)
        if length.count is not None:
            counted = [held for held in self._held if held.is_counted]
            self._leave(counted[: max(0, len(counted) + slide - length.count)])


def _aligned(ms: int, slide_ms: int) -> int:
    """Return the first multiple of the slide that isn't before a time."""
    return -(-ms // slide_ms) * slide_ms
