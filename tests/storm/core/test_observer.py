"""Metrics, the event log, and the reasons of failed trees."""

from typing import Any

import pytest

from acker_redis.errors import BadConfigError
from tests.storm.parts import Do, Upto, chain, holding, passing, sink


def test_metrics_are_exact_per_component_and_stream() -> None:
    def call(bolt: Do, tup: object) -> None:
        bolt.fail(tup) if tup.values.v == 2 else None if tup.values.v == 3 else bolt.ack(tup)  # type: ignore[attr-defined, arg-type]

    topology = chain(passing(), Do(call), spout=Upto(310), config={"topology.message.timeout.secs": 1})
    with topology.local() as run:
        run.settle()
        run.advance(2)
        spout, a, b = (run.metrics[name] for name in ("spout", "a", "b"))
        assert spout.emitted == spout.transferred == {"default": 310}
        assert (spout.acked, spout.failed, spout.timed_out) == ({"default": 308}, {"default": 1}, {"default": 1})
        assert a.executed == a.acked == {"spout:default": 310} and a.emitted == {"default": 310}
        assert (b.acked, b.failed) == ({"a:default": 308}, {"a:default": 1})
        assert a.execute_latency["spout:default"].count == 310
        assert a.process_latency["spout:default"].mean_ms is not None
        assert spout.complete_latency["default"].mean_ms == 0  # time stood still


def test_process_latency_of_a_held_tuple_counts_from_its_own_execution() -> None:
    held = holding()
    with chain(held, spout=Upto(2)).local() as run:
        run.settle()
        bolt = run.tasks("a")[0]
        bolt.held[0].began -= 60
        bolt.ack(bolt.held[0])
        assert (run.metrics["a"].process_latency["spout:default"].mean_ms or 0) >= 60_000


def test_a_tuple_for_nobody_is_emitted_and_not_transferred() -> None:
    with chain(passing(), spout=Upto(3)).local() as run:
        run.settle()
        assert run.metrics["a"].emitted == {"default": 3} and run.metrics["a"].transferred["default"] == 0


def test_failed_trees_have_reason_and_last_component() -> None:
    def call(bolt: Do, tup: object) -> None:
        if tup.values.v == 1:  # type: ignore[attr-defined]
            bolt.fail(tup, "no such customer")  # type: ignore[arg-type]

    with chain(passing(), Do(call), spout=Upto(2), config={"topology.message.timeout.secs": 1}).local() as run:
        run.settle()
        run.advance(2)
        assert [tree[2:] for tree in run.failed_trees] == [("m1", "no such customer", "b"), ("m2", "timeout", "a")]


def test_event_log_is_off_until_it_is_switched_on() -> None:
    with chain(passing(), sink(), spout=Upto(2)).local() as run:
        run.settle()
        assert run.events == []
    with chain(passing(), sink(), spout=Upto(2)).local(conf={"topology.debug": True}) as run:
        run.settle()
        assert sorted((event.component, event.tup_id, tuple(event.values)) for event in run.events if event.tup_id) == [
            ("spout", "m1", (1,)),
            ("spout", "m2", (2,)),
        ]
        assert sum(event.component == "a" for event in run.events) == 2
    with chain(sink(), spout=Upto(2)).local(conf={"topology.debug": True, "topology.eventlogger.executors": 0}) as run:
        run.settle()
        assert run.events == []


def test_event_log_samples() -> None:
    with chain(passing(), spout=Upto(300)).local() as run:
        run.debug("a", percent=50)
        run.settle()
        assert 100 < len(run.events) < 200 and {event.component for event in run.events} == {"a"}
        run.debug(percent=0)


@pytest.mark.parametrize("percent", ["10", None, True, -1, 101, float("nan")])
def test_percent_that_is_none_is_refused_and_changes_nothing(percent: Any) -> None:
    with chain(passing(), spout=Upto(3)).local() as run:
        with pytest.raises(BadConfigError, match="is not a share of the emits"):
            run.debug("a", percent=percent)
        run.settle()
        assert run.events == [] and len(run.acked("spout")) == 3


def test_values_that_have_no_sum_are_counted() -> None:
    def call(bolt: Do, tup: object) -> None:
        for value in (10**400, 0.5):
            bolt.report_metric("sizes", value)
        bolt.ack(tup)  # type: ignore[arg-type]

    with chain(Do(call), spout=Upto(2)).local() as run:
        run.settle()
        sizes = run.metrics["a"].custom["sizes"]
        assert (sizes.count, sizes.last, sizes.total) == (4, 0.5, None) and run.failed("spout") == []
