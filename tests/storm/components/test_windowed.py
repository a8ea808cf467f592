"""Windowed bolts in a run: anchors, acks, exceptions, event times, settings."""

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm import (
    FeederSpout,
    Grouping,
    RowFailedError,
    Spout,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
    TupleWindow,
    WindowedBolt,
)
from acker_redis.testing import fake_acker
from tests.storm.parts import SEEDS, Do, Upto, chain, holding, sink

SEC = timedelta(seconds=1)
THIRTY = {"topology.message.timeout.secs": 30}


class Lists(WindowedBolt):
    """Emits the values of each window as a text. A window with the value `bad` raises."""

    outputs = ["v"]
    bad: Any = None

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        self.seen: list[TupleWindow] = []

    def process_window(self, window: TupleWindow) -> None:
        self.seen.append(window)
        values = [tup.values.v for tup in window.tuples]
        self.emit([values])
        if self.bad in values:
            raise ValueError("bad")


def lists(window: Any = None, slide: Any = None, **own: Any) -> type[Lists]:
    return type("Lists", (Lists,), {"window": window, "slide": slide, **own})


def texts(run: Any, component: str = "a") -> list[Any]:
    return [values[0] for values in run.emitted(component)]


@pytest.mark.parametrize("seed", SEEDS)
def test_emits_of_a_window_are_anchored_to_all_of_its_tuples(seed: int) -> None:
    with chain(lists(3, 3), holding(), spout=Upto(6), config=THIRTY).local(seed=seed) as run:
        run.settle()
        assert run.acked("spout") == []
        first, second = run.tasks("b")[0].held
        run.tasks("b")[0].fail(first, "no")
        run.tasks("b")[0].ack(second)
        run.settle()
        ids = [[f"m{value}" for value in values] for values in texts(run)]
        assert sorted(run.failed("spout")) == [(tup_id, "no") for tup_id in sorted(ids[0])]
        assert sorted(run.acked("spout")) == sorted(ids[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tuple_is_acked_once_its_last_window_has_fired_and_not_before(seed: int) -> None:
    with chain(lists(4 * SEC, 2 * SEC), sink(), config=THIRTY).local(seed=seed) as run:
        run.feed("spout", [1], tup_id=1)
        run.advance(1)
        run.feed("spout", [2], tup_id=2)
        run.advance(1)
        assert (texts(run), run.acked("spout")) == ([[1, 2]], [])
        run.feed("spout", [3], tup_id=3)
        run.advance(1.9)
        assert run.acked("spout") == []
        run.advance(0.1)
        assert texts(run)[1:] == [[1, 2, 3]] and sorted(run.acked("spout")) == [1, 2]
        run.advance(2)
        assert texts(run)[2:] == [[3]] and sorted(run.acked("spout")) == [1, 2, 3]
        run.advance(60)
        assert len(texts(run)) == 3 and run.failed("spout") == []
        starts = [(window.start, window.end) for window in run.tasks("a")[0].seen]
        assert starts == [(-2001, 1999), (-1, 3999), (1999, 5999)]


def test_slide_is_one_tuple_unless_it_is_set() -> None:
    with chain(lists(2), spout=Upto(3), config=THIRTY).local() as run:
        run.settle()
        assert texts(run) == [[1], [1, 2], [2, 3]]


def test_windows_by_time_go_on_while_the_topology_is_deactivated() -> None:
    with chain(lists(SEC, SEC), config=THIRTY).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.deactivate()
        run.advance(1)
        assert (texts(run), run.acked("spout")) == ([[1]], [1])


def test_each_task_has_windows_of_its_own() -> None:
    class Split(Topology):
        config = THIRTY
        spout = FeederSpout(["v"]).spec()
        a = lists(2, 2).spec(inputs={spout: Grouping.fields("v")}, par=2)

    with Split.local() as run:
        for number, value in enumerate([0, 1, 0, 1]):
            run.feed("spout", [value], tup_id=number)
        run.settle()
        assert sorted(texts(run)) == [[0, 0], [1, 1]] and len(run.acked("spout")) == 4


def test_an_exception_fails_the_tuples_of_the_window_and_they_leave_it() -> None:
    with chain(lists(3, 1, bad=2), sink(), config=THIRTY).local() as run:
        for value in (1, 2, 3, 4):
            run.feed("spout", [value], tup_id=value)
            run.settle()
        assert run.tasks("a")[0].seen[2].expired[0].values == (1,)
        assert texts(run) == [[1], [1, 2], [3], [3, 4]]
        assert sorted(run.failed("spout")) == [(1, "ValueError: bad"), (2, "ValueError: bad")]
        assert run.acked("spout") == [] and run.pending("spout") == [3, 4]


def test_an_exception_without_auto_fail_leaves_the_tuples_to_their_timeout() -> None:
    with chain(lists(2, 2, bad=1, auto_fail=False), spout=Upto(4), config=THIRTY).local() as run:
        run.settle()
        assert sorted(run.acked("spout")) == ["m3", "m4"] and run.pending("spout") == ["m1", "m2"]
        run.advance(60)
        assert sorted(run.failed("spout")) == [("m1", "timeout"), ("m2", "timeout")]


def test_a_replaced_task_fails_what_it_holds_and_goes_on_with_fresh_windows() -> None:
    bolt = lists(3, 2, bad=2, exit_on_exception=True)
    with chain(bolt, config=THIRTY).local() as run:
        for value in (1, 2, 3, 4, 5):
            run.feed("spout", [value], tup_id=value)
            run.settle()
        assert texts(run) == [[1, 2], [3, 4]]
        assert sorted(run.failed("spout")) == [(1, "ValueError: bad"), (2, "ValueError: bad")]
        assert run.acked("spout") == [3] and run.pending("spout") == [4, 5]


def test_a_replaced_task_fails_tuples_that_were_in_no_window_yet() -> None:
    class Fragile(Lists):
        window, slide = 2, 3
        exit_on_exception = True

        def process_window(self, window: TupleWindow) -> None:
            raise KeyError("broken")

    with chain(Fragile, spout=Upto(3), config=THIRTY).local() as run:
        run.settle()
        assert len(run.failed("spout")) + len(run.acked("spout")) == 3 and run.pending("spout") == []
        assert len(run.acked("spout")) == 1


def test_row_failed_error_fails_the_window_with_its_text_and_one_tuple_can_fail_alone() -> None:
    class Picky(WindowedBolt):
        window = slide = 2

        def process_window(self, window: TupleWindow) -> None:
            first, second = window.tuples
            if first.values.v == 1:
                self.fail(second, "only this one")
            else:
                raise RowFailedError("both")

    with chain(Picky, config=THIRTY).local() as run:
        for value in (1, 2, 3, 4):
            run.feed("spout", [value], tup_id=value)
            run.settle()
        assert run.acked("spout") == [1]
        assert sorted(run.failed("spout")) == [(2, "only this one"), (3, "both"), (4, "both")]


def test_without_auto_ack_the_bolt_acks_itself() -> None:
    """As late as in Storm, here."""

    class Late(Lists):
        window = slide = 2
        auto_ack = False

        def process_window(self, window: TupleWindow) -> None:
            super().process_window(window)
            for tup in window.expired:
                self.ack(tup)

    with chain(Late, spout=Upto(5), config=THIRTY).local() as run:
        run.settle()
        assert sorted(run.acked("spout")) == ["m1", "m2"] and texts(run) == [[1, 2], [3, 4]]


def test_unanchored_emits_leave_the_messages_alone() -> None:
    with chain(lists(2, 2, auto_anchor=False), holding(), spout=Upto(2), config=THIRTY).local() as run:
        run.settle()
        assert len(run.acked("spout")) == 2 and len(run.tasks("b")[0].held) == 1


def test_ticks_of_a_windowed_bolt_are_in_no_window() -> None:
    class Ticked(Lists):
        window = slide = 2
        config = {"topology.tick.tuple.freq.secs": 1}

        def process_tick(self, tup: Tuple) -> None:
            self.report_metric("ticks", 1)

    with chain(Ticked, spout=Upto(1), config=THIRTY).local() as run:
        run.advance(5)
        assert texts(run) == [] and run.metrics["a"].custom["ticks"].count == 5


# -- event times


def timed(*bolts: Any, **own: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v", "ts"]))
    own = {"window": 10 * SEC, "slide": 10 * SEC, "timestamp_field": "ts"} | own
    outputs = {"outputs": [Stream(["v"]), Stream(["late_tuple"], name="late")]}
    builder.set_bolt("a", type("Timed", (Lists,), own | outputs)).shuffle_grouping("spout")
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt).shuffle_grouping("a", "late")
    return builder.create_topology(config={"topology.message.timeout.secs": 60})


def test_windows_by_event_time_fire_at_watermarks() -> None:
    with timed(lag=5 * SEC).local() as run:
        for value, ms in [(1, 3_000), (2, 12_000), (3, 9_000), (4, 14_999)]:
            run.feed("spout", [value, ms], tup_id=value)
            run.settle()
        run.advance(1)
        assert texts(run) == []
        run.feed("spout", [5, 15_000], tup_id=5)
        run.settle()
        assert texts(run) == []  # the watermark comes each second
        run.advance(1)
        assert texts(run) == [[1, 3]] and sorted(run.acked("spout")) == [1, 3]
        (window,) = run.tasks("a")[0].seen
        assert (window.start, window.end) == (0, 10_000)


@pytest.mark.parametrize("with_stream", [False, True])
def test_late_tuples_go_to_their_stream_or_to_the_log_and_are_acked(
    caplog: pytest.LogCaptureFixture, with_stream: bool
) -> None:
    late = Do(lambda bolt, tup: bolt.held.append(tup))
    with timed(late, late_stream="late" if with_stream else None).local() as run:
        run.feed("spout", [1, 30_000], tup_id=1)
        run.advance(1)
        with caplog.at_level(logging.INFO, "acker_redis.storm"):
            run.feed("spout", [2, 5_000], tup_id=2)
            run.settle()
        logged = [record.getMessage() for record in caplog.records if "late tuple" in record.getMessage()]
        if not with_stream:
            assert len(logged) == 1 and run.acked("spout") == [1, 2]
            return
        (held,) = run.tasks("b0")[0].held
        assert held.values.late_tuple.values == (2, 5_000) and held.values.late_tuple.component == "spout"
        assert logged == [] and run.acked("spout") == [1]  # the late one is anchored
        with pytest.raises(BadTupleError, match="a copy of the tuple"):
            run.tasks("b0")[0].ack(held.values.late_tuple)
        run.tasks("b0")[0].ack(held)
        run.settle()
        assert run.acked("spout") == [1, 2]


def test_times_are_datetimes_with_a_zone_or_milliseconds() -> None:
    with timed().local() as run:
        times = [
            datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), 4_000, datetime(1970, 1, 1, 2, 0, 5, tzinfo=timezone(2 * 3600 * SEC))
        ]  # fmt: skip
        bad = ["5000", 5.0, None, True, datetime(1970, 1, 1, 0, 0, 6)]  # noqa: DTZ001
        for number, value in enumerate([*times, *bad, 20_000]):
            run.feed("spout", [number, value], tup_id=number)
            run.settle()
        run.advance(1)
        assert texts(run) == [[0, 1, 2], [8]]
        assert [tup_id for tup_id, _ in run.failed("spout")] == [3, 4, 5, 6, 7]
        assert run.failed("spout")[0][1].startswith("ts='5000' is no time. Use a datetime with a time zone")


# -- definition and start


@pytest.mark.parametrize(
    ("own", "config", "why"),
    [
        ({}, {}, "has no window, so nothing"),
        ({"window": 0}, {}, "window=0 of component 'a' is invalid. Use a number of tuples, or a timedelta"),
        ({"window": 2.5}, {}, "window=2.5"),
        ({"window": True}, {}, "window=True"),
        ({"window": 2, "slide": timedelta(0)}, {}, "slide="),
        ({"window": 2, "lag": -SEC}, {}, "lag="),
        ({"window": 2, "lag": SEC}, {}, "has no effect without timestamp_field"),
        ({"window": 20 * SEC, "slide": 10 * SEC}, {}, "are 30 s together, and the message timeout is 30 s"),
        ({"window": 5 * SEC, "slide": 5 * SEC}, {"topology.message.timeout.secs": 10}, "are 10 s together"),
        ({"window": 2, "timestamp_field": "tz"}, {}, "the field 'tz', which stream 'default' of 'spout' lacks"),
        ({"window": 2, "late_stream": "late"}, {}, "needs timestamp_field, and a stream with one field"),
        ({"window": 2, "timestamp_field": "v", "late_stream": "late"}, {}, "needs timestamp_field"),
    ],
)
def test_impossible_windows_are_refused_when_the_topology_is_made(
    own: dict[str, Any], config: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        chain(type("Lists", (Lists,), own), config=config)
    assert why in str(refused.value)


def test_a_windowed_bolt_without_process_window_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match=r"has no process_window\(\)"):
        chain(type("Empty", (WindowedBolt,), {"window": 2}))


def test_windows_longer_than_the_timeout_are_refused_at_the_start() -> None:
    class Grows(Lists):
        window = 2

        def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
            self.seen = []
            self.window = 40 * SEC  # type: ignore[assignment]

    topology = chain(lists(5 * SEC, 5 * SEC))
    with pytest.raises(InvalidTopologyError, match="10 s together"):
        topology.local({"topology.message.timeout.secs": 10})
    with pytest.raises(InvalidTopologyError, match="10 s together"):
        topology.run_local(fake_acker(message_timeout_secs=8))
    with pytest.raises(InvalidTopologyError, match="40 s together"), chain(Grows(), config=THIRTY).local():
        ...


@pytest.mark.parametrize("config", [{"topology.enable.message.timeouts": False}, {"topology.acker.executors": 0}])
def test_windows_may_be_long_where_nothing_times_out(config: dict[str, Any]) -> None:
    with chain(lists(60 * SEC, 60 * SEC), config=config).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.advance(60)
        assert texts(run) == [[1]]


def test_storm_s_settings_set_the_windows_of_a_component() -> None:
    """Those of the component win over the class, and the class over the topology."""
    prefix = "topology.bolts.window."
    own = {prefix + "length.count": 2, prefix + "sliding.interval.count": 2}
    general = {prefix + "length.count": 3, prefix + "sliding.interval.count": 3} | THIRTY
    for bolt_config, window, expected in [
        (own, 4, [[1, 2], [3, 4]]), (None, None, [[1, 2, 3]]), (None, 4, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]])
    ]:  # fmt: skip
        builder = TopologyBuilder()
        builder.set_spout("spout", Upto(4))
        slide = 1 if window else None
        builder.set_bolt("a", lists(window, slide), config=bolt_config).shuffle_grouping("spout")
        with builder.create_topology(config=general).local() as run:
            run.settle()
            assert texts(run) == expected


def test_storm_s_settings_of_event_times_are_honoured() -> None:
    config = {
        "topology.bolts.window.length.duration.ms": 10_000,
        "topology.bolts.window.sliding.interval.duration.ms": 10_000,
        "topology.bolts.tuple.timestamp.max.lag.ms": 2_000,
        "topology.bolts.watermark.event.interval.ms": 250,
        "topology.bolts.late.tuple.stream": "late",
    }
    with timed(holding(), window=None, slide=None, config=config).local() as run:
        run.feed("spout", [1, 9_000], tup_id=1)
        run.feed("spout", [2, 12_000], tup_id=2)
        run.advance(0.2)
        assert texts(run) == []
        run.advance(0.05)
        assert texts(run) == [[1]]
        run.feed("spout", [3, 9_000], tup_id=3)
        run.settle()
        assert len(run.emitted("a", "late")) == 1


# -- the end of a service


def test_the_end_of_a_run_fires_a_last_window_with_what_is_left() -> None:
    result = chain(lists(3, 3), sink(), spout=Upto(7), config=THIRTY).run_local(fake_acker())
    assert (result.acked, result.failed, result.unfinished) == (7, 0, 0)
    assert result.metrics["a"].emitted == {"default": 3}


@pytest.mark.usefixtures("whole_rounds")
def test_the_end_of_a_run_waits_for_windows_by_time() -> None:
    """One round has all tuples, so that none comes behind the end of the window on a busy machine."""
    bolt = lists(timedelta(milliseconds=300), timedelta(milliseconds=300))
    result = chain(bolt, sink(), spout=Upto(7), config=THIRTY).run_local(fake_acker())
    assert (result.acked, result.unfinished) == (7, 0) and result.metrics["a"].emitted == {"default": 1}


def test_windows_that_were_missed_fire_with_their_own_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stands still for a second. Each window has the tuples of its time, not those of all."""
    passed = 0.0
    monkeypatch.setattr("acker_redis.storm.local.service.real_clock", lambda: passed)

    class Stalls(Upto):
        def next_tuple(self) -> None:
            nonlocal passed
            super().next_tuple()
            passed += 1.05 if self.n == 2 else 0.01

    bolt = lists(timedelta(milliseconds=400), timedelta(milliseconds=200))
    result = chain(bolt, sink(), spout=Stalls(2), config=THIRTY).run_local(fake_acker())
    assert result.acked == 2 and result.metrics["a"].emitted == {"default": 2}, "not one of each that was missed"


def test_the_end_of_a_run_fires_the_windows_of_event_times() -> None:
    class Clock(Spout):
        outputs = ["v", "ts"]

        def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
            self.left = [1_000, 2_000, 11_000, 12_000, 35_000]

        def next_tuple(self) -> None:
            if self.left:
                ms = self.left.pop(0)
                self.emit([ms, ms], tup_id=ms)

    bolt = lists(10 * SEC, 10 * SEC, timestamp_field="ts", lag=2 * SEC)
    result = chain(bolt, sink(), spout=Clock(), config=THIRTY).run_local(fake_acker())
    assert (result.acked, result.unfinished) == (5, 0) and result.metrics["a"].emitted == {"default": 3}


def test_a_stopped_run_fires_a_last_window_before_it_ends() -> None:
    stop = threading.Event()

    class Stops(Upto):
        def next_tuple(self) -> None:
            super().next_tuple()
            if self.n == self.most:
                stop.set()

    bolt = lists(20 * SEC, 5 * SEC)
    result = chain(bolt, sink(), spout=Stops(5), config=THIRTY).run_local(fake_acker(), stop=stop)
    assert (result.acked, result.unfinished) == (5, 0) and result.metrics["a"].emitted == {"default": 1}
    assert result.duration_secs < 20


@pytest.mark.parametrize("window", [3, 20 * SEC])
def test_untracked_tuples_are_in_a_last_window_too(window: Any) -> None:
    class Untracked(Upto):
        def next_tuple(self) -> None:
            if self.n < self.most:
                self.n += 1
                self.emit([self.n])

    bolt = lists(window, 3 if window == 3 else 5 * SEC)
    result = chain(bolt, lists(2, 2), spout=Untracked(4), config=THIRTY).run_local(fake_acker())
    assert result.metrics["a"].emitted == {"default": 2 if window == 3 else 1}
    assert result.metrics["b"].emitted == {"default": 1}
