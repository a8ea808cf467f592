"""Spans of roots that failed, timed out or took long, as OpenTelemetry's SDK gets them."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from acker_redis import Acker, BadConfigError, RetryPolicy, Spout, run_spout
from acker_redis.ops import tracing
from acker_redis.spout.in_flight import Emission
from acker_redis.testing import wait_until
from tests.docs.test_readme import blocks, run_program

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    yield InMemorySpanExporter()
    Spout.listener = None


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def secs(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return float(span.end_time - span.start_time) / 1e9


def one_of_each(acker: Acker, retry: RetryPolicy) -> Spout:
    """Message 1 is acked, 2 fails at its first attempt, 3 times out at its first one."""
    spout = Spout(acker, "run", retry=retry)
    spout.add(np.array([1, 2, 3]))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        columns = emission.message_ids, emission.attempts, emission.roots
        for message, attempt, root in zip(*map(np.ndarray.tolist, columns), strict=True):
            if message == 1 or attempt:
                acker.ack(root, 7)
            elif message == 2:
                acker.fail(root, reason="no such customer", component="parse")
            else:
                acker.ack(root, 3, component="join")
                for _ in range(acker.config.num_buckets):
                    acker.admin.rotate(force=True)

    run_spout(spout, emit)
    return spout


def test_each_failed_or_timed_out_attempt_emits_a_span(
    real_url: str, connect: Callable[..., Acker], exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing.instrument(tracer_provider=provider)
    acker = connect(app="orders", shards=2)
    first_ms = acker.dead_letters.now_ms()
    spout = one_of_each(acker, RetryPolicy(max_attempts=2, first_delay_secs=0.01))
    assert (spout.counts.acked, spout.counts.failed, spout.counts.timed_out) == (3, 1, 1)
    failed, timed_out = sorted(exporter.get_finished_spans(), key=lambda span: span.name)
    assert (failed.name, timed_out.name) == ("acker failed", "acker timed_out")
    shared = {"acker.app": "orders", "acker.run": "run", "acker.attempt": 1}
    root = attributes(failed).pop("acker.root")
    assert attributes(failed) == {
        **shared, "acker.outcome": "failed", "acker.component": "parse", "acker.message_id": 2, "acker.root": root,
    }  # fmt: skip
    assert len(root) == 16 and (failed.status.is_ok, failed.status.description) == (False, "no such customer")
    assert attributes(timed_out)["acker.message_id"] == 3
    assert attributes(timed_out)["acker.component"] == "join"
    last_ms = acker.dead_letters.now_ms()
    for span in (failed, timed_out):
        assert span.parent is None
        assert span.start_time is not None and span.end_time is not None
        assert first_ms <= span.start_time / 1e6 <= span.end_time / 1e6 <= last_ms


def test_acked_roots_emit_spans_only_when_slow(
    url: str, connect: Callable[..., Acker], exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing.instrument(slow_secs=0.2, tracer_provider=provider)
    acker = connect(app="orders", shards=1)
    spout = Spout(acker, "run")
    spout.add(np.arange(64))
    emission = spout.next_emission()
    assert emission is not None
    acker.init_many(emission.roots[:40], np.zeros(40, np.int64), 0)  # done at once, however busy the machine is
    acker.init_many(emission.roots[40:], emission.roots[40:], 0)
    begun_ms = acker.dead_letters.now_ms()  # by the server's clock, as ages are
    wait_until(lambda: acker.dead_letters.now_ms() - begun_ms > 250, "the roots are old")
    acker.ack_many(emission.roots[40:], emission.roots[40:])
    while not spout.done:
        spout.poll()
    spans = exporter.get_finished_spans()
    assert {attributes(span)["acker.message_id"] for span in spans} == set(range(40, 64))
    assert {span.name for span in spans} == {"acker acked"}
    assert all(0.2 < secs(span) < 300 and span.status.is_unset for span in spans)


def test_identical_outcomes_emit_at_most_a_hundred_spans(
    url: str, connect: Callable[..., Acker], exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing.instrument(slow_secs=0, tracer_provider=provider)
    acker = connect(app="orders", shards=4)
    spout = Spout(acker, "run", retry=ONCE)
    spout.add(np.arange(1000))
    emission = spout.next_emission()
    assert emission is not None
    acker.init_many(emission.roots, emission.roots, 0)
    acker.fail_many(emission.roots[:400])
    for root in emission.roots[400:550].tolist():
        acker.fail(root, reason=f"no such customer: {root}")
    acker.fail_many(emission.roots[550:560], component="parse")
    spout.poll()
    spans = exporter.get_finished_spans()
    assert Counter(attributes(span).get("acker.component") for span in spans) == {None: tracing.MOST, "parse": 10}
    assert [attributes(span)["acker.more"] for span in spans if "acker.more" in attributes(span)] == [450]


def test_outcomes_of_another_run_emit_no_spans(
    url: str, connect: Callable[..., Acker], exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing.instrument(slow_secs=0, tracer_provider=provider)
    acker = connect(app="orders", shards=1)
    acker.init_many([5, 6], [1, 1], 0)
    acker.fail_many([5, 6])
    spout = Spout(acker, "run")
    assert (spout.poll(), spout.counts.late) == (2, 2)
    assert not exporter.get_finished_spans()


def test_on_call_docs_tracing_example_runs(url: str, tmp_path: Path) -> None:
    (block,) = blocks("python", "docs/operate/on-call.md")
    assert run_program(block, url, tmp_path).split()[:2] == ["acker", "failed"]


@pytest.mark.parametrize("secs", [-1.0, float("nan")])
def test_invalid_slow_secs_is_refused(secs: float) -> None:
    with pytest.raises(BadConfigError, match="Use 0 or more seconds"):
        tracing.instrument(slow_secs=secs)
    assert Spout.listener is None
