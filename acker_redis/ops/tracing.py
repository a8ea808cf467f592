"""OpenTelemetry spans for roots that failed, timed out, or were slow. Off until you call `instrument`.

Needs the extra `otel`, and an SDK that exports spans. A span starts when its root starts and ends with its outcome, by
the server's clock. Ids are attributes of spans, never labels of metrics.
"""

from collections.abc import Sequence

import numpy as np
from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, Tracer, TracerProvider, get_tracer

from acker_redis.errors import BadConfigError
from acker_redis.ledger.outcomes.outcome import OutcomeBatch, times_of
from acker_redis.spout.spout import Spout

MOST = 100
"""Largest number of spans per poll for roots with the same end, the oldest first. A span takes 50 to 100 µs."""

_NS_PER_MS = 1_000_000


def instrument(*, slow_secs: float | None = None, tracer_provider: TracerProvider | None = None) -> None:
    """Create a span for each root that fails or times out, in all spouts of this process.

    A spout creates the span when it receives the outcome. Attributes are `acker.app`, `acker.run`, `acker.outcome` (`acked`,
    `failed` or `timed_out`), `acker.component` (the last one, for roots that were not acked), `acker.attempt` (from 1),
    `acker.root` (16 hexadecimal digits) and `acker.message_id`. The fail's text is the status.

    If many roots have the same end, a poll creates `MOST` spans. `acker.more` of the last span is the number of roots
    without one. Roots that the spout doesn't know, such as those of an earlier run, have no spans.

    Args:
        slow_secs: age above which acked roots have spans, too, in seconds. None means no spans for acked roots.
        tracer_provider: provider of the tracer. None means OpenTelemetry's global one.

    Raises:
        BadConfigError: if slow_secs is negative or not a number.
    """
    if slow_secs is not None and not slow_secs >= 0:
        raise BadConfigError(f"slow_secs={slow_secs} is invalid. Use 0 or more seconds, or None for no acked roots.")
    tracer = get_tracer("acker_redis", tracer_provider=tracer_provider)
    slow_ms = None if slow_secs is None else slow_secs * 1000
    Spout.listener = lambda spout, batches: _listen(tracer, slow_ms, spout, batches)


def _listen(tracer: Tracer, slow_ms: float | None, spout: Spout, batches: Sequence[OutcomeBatch]) -> None:
    alike: dict[tuple[str | None, ...], list[OutcomeBatch]] = {}  # whatever their texts are
    for batch in batches:
        if batch.kind == "fail" or slow_ms is not None:
            alike.setdefault((batch.kind, batch.reason, batch.last_component), []).append(batch)
    for together in alike.values():
        _make_spans(tracer, slow_ms if together[0].kind == "ack" else None, spout, together)


def _make_spans(tracer: Tracer, above_ms: float | None, spout: Spout, batches: Sequence[OutcomeBatch]) -> None:
    first, times = batches[0], [times_of(batch) for batch in batches]
    ended_ms, ages_ms = (np.concatenate(part) for part in zip(*times, strict=True))
    roots, rows = np.unique(np.concatenate([batch.roots for batch in batches]), return_index=True)
    of_batch = np.repeat(np.arange(len(batches)), [len(batch.roots) for batch in batches])
    if above_ms is not None:
        is_slow = ages_ms[rows] > above_ms
        roots, rows = roots[is_slow], rows[is_slow]
    places, messages, attempts = spout.state.look_up(roots)
    roots, rows = roots[places], rows[places]
    outcome = "acked" if first.kind == "ack" else "timed_out" if first.reason == "timeout" else "failed"
    shared = {"acker.app": spout.acker.config.app, "acker.run": spout.run_id, "acker.outcome": outcome}
    if first.last_component is not None:
        shared["acker.component"] = first.last_component
    for count, place in enumerate(np.argsort(-ages_ms[rows], kind="stable")[:MOST].tolist(), 1):
        row = rows[place]
        end_ms, age_ms = int(ended_ms[row]), int(ages_ms[row])
        own: dict[str, str | int] = {
            **shared,
            "acker.root": f"{int(roots[place]) & (1 << 64) - 1:016x}",
            "acker.message_id": int(messages[place]),
            "acker.attempt": int(attempts[place]),
        }
        if count == MOST < len(roots):
            own["acker.more"] = len(roots) - MOST
        started_ns = (end_ms - age_ms) * _NS_PER_MS
        span = tracer.start_span(f"acker {outcome}", Context(), attributes=own, start_time=started_ns)
        if first.kind == "fail":
            span.set_status(Status(StatusCode.ERROR, batches[of_batch[row]].detail))
        span.end(end_ms * _NS_PER_MS)
