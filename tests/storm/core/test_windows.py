"""Windows: which tuples they have, when they fire, and when a tuple leaves."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from acker_redis.storm.core.tuples import State, Tuple
from acker_redis.storm.core.windows import ArrivalWindows, EventWindows, Extent, TupleWindow, WindowSpec

N1, N2, N3, N5 = (Extent(count) for count in (1, 2, 3, 5))
MS10, MS20, MS40 = (Extent(None, ms) for ms in (10, 20, 40))


class Seen:
    """Windows that fired, and tuples that were released, in order. Windows in `broken` raise."""

    def __init__(self, *broken: int) -> None:
        self.windows: list[TupleWindow] = []
        self.released: list[int] = []
        self.log: list[tuple[str, list[int]]] = []
        self.broken = broken

    def fire(self, window: TupleWindow) -> bool:
        self.windows.append(window)
        self.log.append(("window", values(window.tuples)))
        return len(self.windows) - 1 not in self.broken

    def release(self, tups: Sequence[Tuple]) -> None:
        self.released += values(tups)
        self.log.append(("released", values(tups)))

    @property
    def rows(self) -> list[tuple[list[int], list[int], list[int]]]:
        return [(values(w.tuples), values(w.new), values(w.expired)) for w in self.windows]


def values(tups: Sequence[Tuple]) -> list[int]:
    return [tup.values[0] for tup in tups]


def tup(value: int) -> Tuple:
    return Tuple(f"1:{value}", "spout", "default", 1, (value,))


def arrivals(length: Extent, slide: Extent, seen: Seen) -> ArrivalWindows:
    return ArrivalWindows(WindowSpec(length, slide), seen.fire, seen.release)


def events(length: Extent, slide: Extent, seen: Seen, lag_ms: int = 0, streams: Sequence[str] = ("s",)) -> EventWindows:
    return EventWindows(WindowSpec(length, slide, "ts", lag_ms), seen.fire, seen.release, streams)


def test_tumbling_windows_by_number_release_their_tuples_at_once() -> None:
    seen = Seen()
    windows = arrivals(N2, N2, seen)
    for value in range(1, 6):
        windows.add(tup(value), value)
    assert seen.log == [
        ("window", [1, 2]), ("released", [1, 2]), ("window", [3, 4]), ("released", [3, 4])
    ]  # fmt: skip
    assert seen.rows[1] == ([3, 4], [3, 4], [1, 2])
    assert values(windows.tuples()) == [5]


def test_windows_of_one_tuple_are_those_that_hold_none_behind_a_call() -> None:
    of_one = []
    for length, slide in product((N1, N2, MS10), repeat=2):
        windows, held = arrivals(length, slide, Seen()), 0
        for value in range(1, 6):
            windows.add(tup(value), value)
            held += len(windows.tuples())
        assert WindowSpec(length, slide).is_of_one == (held == 0)
        assert not WindowSpec(length, slide, "ts").is_of_one, "tuples wait for a watermark"
        of_one += [(length, slide)] if held == 0 else []
    assert of_one == [(N1, N1)]


def test_sliding_windows_by_number_begin_with_what_is_there() -> None:
    seen = Seen()
    windows = arrivals(N3, N2, seen)
    for value in range(1, 8):
        windows.add(tup(value), value)
    assert seen.rows == [
        ([1, 2], [1, 2], []), ([2, 3, 4], [3, 4], [1]), ([4, 5, 6], [5, 6], [2, 3])
    ]  # fmt: skip
    assert seen.released == [1, 2, 3, 4, 5]


def test_tuples_between_windows_are_in_none_and_are_released() -> None:
    seen = Seen()
    windows = arrivals(N2, N3, seen)
    for value in range(1, 7):
        windows.add(tup(value), value)
    assert seen.rows == [([2, 3], [2, 3], [1]), ([5, 6], [5, 6], [2, 3, 4])]
    assert seen.released == [1, 2, 3, 4, 5, 6]


def test_windows_by_time_have_half_open_times() -> None:
    seen = Seen()
    windows = arrivals(MS20, MS20, seen)
    for ms in (0, 10, 19, 20, 39, 40):
        if ms and ms % 20 == 0:
            windows.on_time(ms)
        windows.add(tup(ms), ms)
    windows.on_time(60)
    assert [values(w.tuples) for w in seen.windows] == [[0, 10, 19], [20, 39], [40]]
    assert [(w.start, w.end) for w in seen.windows] == [(-1, 19), (19, 39), (39, 59)]
    assert seen.released == [0, 10, 19, 20, 39, 40]


def test_a_late_timer_loses_no_tuple() -> None:
    seen = Seen()
    windows = arrivals(MS10, MS10, seen)
    windows.on_time(10)
    windows.add(tup(12), 12)
    windows.add(tup(24), 24)
    windows.on_time(27)
    windows.add(tup(28), 28)
    windows.on_time(30)
    assert [values(w.tuples) for w in seen.windows] == [[12, 24], [28]]


@pytest.mark.parametrize("first", [40, 47])
def test_windows_with_time_between_them_have_none_of_it_in_the_first(first: int) -> None:
    """Whether its timer is late or not."""
    seen = Seen()
    windows = arrivals(MS10, MS40, seen)
    for ms in (1, 29, first - 10, first - 1):
        windows.add(tup(ms), ms)
    windows.on_time(first)
    for ms in (first + 1, 79):
        windows.add(tup(ms), ms)
    windows.on_time(80)
    windows.finish(80)
    assert [values(w.tuples) for w in seen.windows] == [[first - 10, first - 1], [79]]
    assert seen.released == [1, 29, first - 10, first - 1, first + 1, 79]


def test_empty_windows_dont_fire_and_expired_tuples_are_listed_in_the_next_that_does() -> None:
    seen = Seen()
    windows = arrivals(MS10, MS10, seen)
    windows.add(tup(1), 1)
    for ms in (10, 20, 30):
        windows.on_time(ms)
    windows.add(tup(31), 31)
    windows.on_time(40)
    assert seen.rows == [([1], [1], []), ([31], [31], [1])]


def test_a_window_by_number_that_slides_by_time_repeats_until_newer_tuples_arrive() -> None:
    seen = Seen()
    windows = arrivals(N2, MS10, seen)
    for value in (1, 2, 3):
        windows.add(tup(value), value)
    assert seen.released == [1]
    windows.on_time(10)
    windows.on_time(20)
    assert seen.rows == [([2, 3], [2, 3], [1]), ([2, 3], [], [])]
    assert seen.released == [1]


def test_a_window_by_time_that_slides_by_number_releases_when_the_time_is_over() -> None:
    seen = Seen()
    windows = arrivals(MS20, N1, seen)
    for ms in (0, 15, 25):
        windows.add(tup(ms), ms)
    assert [values(w.tuples) for w in seen.windows] == [[0], [0, 15], [15, 25]]
    assert seen.released == [0]
    windows.on_time(35)
    assert seen.released == [0, 15]


def test_watermarks_fire_the_windows_of_storm_s_own_example() -> None:
    """docs/Windowing.md: length 20 s, slide 10 s, lag 5 s. Times are seconds since 6:00."""
    seen = Seen()
    windows = events(Extent(None, 20_000), Extent(None, 10_000), seen, 5_000)

    def arrive(*secs: int) -> None:
        for at in secs:
            assert windows.add(tup(at), at * 1000, "s")
        windows.on_time(0)

    later = 2 * 3600
    arrive(3, 5, 7, 18, 26, 36)
    assert [(w.end // 1000, values(w.tuples)) for w in seen.windows] == [
        (10, [3, 5, 7]), (20, [3, 5, 7, 18]), (30, [18, 26])
    ]  # fmt: skip
    arrive(later + 25, later + 26, later + 27, later + 39)
    assert [(w.end // 1000, values(w.tuples)) for w in seen.windows[3:]] == [
        (40, [26, 36]), (50, [36]), (later + 30, [later + 25, later + 26, later + 27])
    ]  # fmt: skip


def test_the_watermark_waits_for_each_stream_and_takes_the_least() -> None:
    seen = Seen()
    windows = events(MS10, MS10, seen, streams=("s", "t"))
    windows.add(tup(1), 1, "s")
    windows.add(tup(95), 95, "s")
    windows.on_time(0)
    assert seen.windows == []
    windows.add(tup(12), 12, "t")
    windows.on_time(0)
    assert [values(w.tuples) for w in seen.windows] == [[1]]


def test_tuples_behind_the_watermark_are_late() -> None:
    seen = Seen()
    windows = events(MS10, MS10, seen, 5)
    assert windows.add(tup(1), 20, "s")
    windows.on_time(0)
    assert windows.add(tup(2), 15, "s")
    assert not windows.add(tup(3), 14, "s")


def test_a_tuple_at_the_end_of_a_window_that_has_fired_is_late_and_not_lost() -> None:
    """In Storm, it expires without a window."""
    seen = Seen()
    windows = events(MS10, MS10, seen)
    windows.add(tup(1), 10, "s")
    windows.on_time(0)
    assert [values(w.tuples) for w in seen.windows] == [[1]]
    assert not windows.add(tup(2), 10, "s")
    sliding = events(MS20, MS10, seen)
    sliding.add(tup(3), 10, "s")
    sliding.on_time(0)
    assert sliding.add(tup(4), 10, "s")  # the next window has it


def test_event_times_with_slides_by_number_wait_for_the_watermark() -> None:
    seen = Seen()
    windows = events(N3, N2, seen)
    for value in (1, 2, 3, 4, 5):
        windows.add(tup(value), value, "s")
    windows.on_time(0)
    assert seen.rows == [([1, 2], [1, 2], []), ([2, 3, 4], [3, 4], [1])]
    assert [w.end for w in seen.windows] == [2, 4] and windows.tuples()[-1].values == (5,)


@pytest.mark.parametrize("slide", [N2, MS10])
def test_times_before_1970_have_windows(slide: Extent) -> None:
    seen = Seen()
    windows = events(MS20, slide, seen)
    for ms in (-95, -93, -70):
        assert windows.add(tup(ms), ms, "s")
    windows.on_time(0)
    assert values(seen.windows[0].tuples) == [-95, -93]


def test_the_end_fires_a_window_with_what_no_window_had() -> None:
    seen = Seen()
    windows = arrivals(N3, N2, seen)
    for value in (1, 2, 3):
        windows.add(tup(value), value)
    windows.finish(9)
    assert seen.rows[1:] == [([2, 3], [3], [1])] and seen.released == [1, 2, 3]
    windows.finish(10)
    assert len(seen.windows) == 2


def test_tuples_of_a_window_that_raised_leave_and_are_not_released() -> None:
    seen = Seen(0)
    windows = arrivals(N3, N1, seen)
    for value in (1, 2, 3):
        windows.add(tup(value), value)
    assert seen.rows == [([1], [1], []), ([2], [2], [1]), ([2, 3], [3], [])]
    windows.finish(9)
    assert seen.released == [2, 3]


def test_tuples_that_the_bolt_settles_itself_leave() -> None:
    seen = Seen()
    windows = arrivals(N3, N1, seen)
    first = tup(1)
    windows.add(first, 1)
    first.state = State.ACKED
    windows.add(tup(2), 2)
    assert seen.rows == [([1], [1], []), ([2], [2], [1])]


def test_nothing_fires_or_is_released_after_a_stop() -> None:
    seen = Seen()
    windows = arrivals(N2, N1, seen)
    windows.add(tup(1), 1)
    windows.stop()
    windows.add(tup(2), 2)
    windows.finish(3)
    assert len(seen.windows) == 1 and seen.released == []
    assert values(windows.tuples()) == [1, 2]


LENGTHS = [N2, N5, MS10, MS20, MS40]
SLIDES = [N1, N3, MS10, MS20]


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("slide", SLIDES)
@pytest.mark.parametrize("length", LENGTHS)
def test_each_tuple_is_released_once_and_no_later_window_has_it(length: Extent, slide: Extent, by_event: bool) -> None:
    for seed in range(20):
        seen, accepted = drawn(length, slide, by_event=by_event, rng=random.Random(seed))
        assert sorted(seen.released) == sorted(accepted)
        gone: set[int] = set()
        for kind, of in seen.log:
            if kind == "released":
                gone |= set(of)
            else:
                assert not gone & set(of)


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("slide", SLIDES)
@pytest.mark.parametrize("length", LENGTHS)
def test_new_and_expired_tuples_lead_from_window_to_window(length: Extent, slide: Extent, by_event: bool) -> None:
    for seed in range(20):
        seen, _ = drawn(length, slide, by_event=by_event, rng=random.Random(seed))
        now: set[int] = set()
        for of, new, expired in seen.rows:
            now = (now - set(expired)) | set(new)
            assert now == set(of) and len(of) <= (length.count or len(of))


@pytest.mark.parametrize("slide", [MS10, MS20])
@pytest.mark.parametrize("length", [MS10, MS20, MS40])
def test_windows_of_event_times_are_all_aligned_times_that_have_tuples(length: Extent, slide: Extent) -> None:
    for seed in range(20):
        seen, accepted = drawn(length, slide, by_event=True, rng=random.Random(seed))
        last = seen.windows[-1].end if seen.windows else 0
        expected: list[Any] = []
        for end in range(0, last + 1, slide.ms):
            inside = [value for value in accepted if end - length.ms < ms_of(value) <= end]
            if inside:
                expected.append((end, sorted(inside)))
        assert [(w.end, sorted(values(w.tuples))) for w in seen.windows] == expected


def ms_of(value: int) -> int:
    """The event time of a drawn tuple, which is never the end of a window."""
    return value // 1000


def drawn(length: Extent, slide: Extent, *, by_event: bool, rng: random.Random) -> tuple[Seen, list[int]]:
    """Tuples at random times, and calls of `on_time` at their times. Returns the values that weren't late, in order, too."""
    seen, accepted, now = Seen(), [], 0
    arrival, event = arrivals(length, slide, seen), events(length, slide, seen, rng.choice([0, 7]))
    period = slide.ms or 5
    for number in range(40):
        due = (now // period + 1) * period
        now += rng.choice([0, 1, 3, 8, 30])
        while due <= now:
            (event if by_event else arrival).on_time(due)
            due += period
        value = (now // 10 * 10 + rng.choice([1, 3, 7])) * 1000 + number
        if not by_event:
            arrival.add(tup(value), now)
            accepted.append(value)
        elif event.add(tup(value), ms_of(value), "s"):
            accepted.append(value)
    (event if by_event else arrival).finish(now)
    return seen, accepted
