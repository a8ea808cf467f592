"""Pauses between emissions: none after the first that fails, then longer and longer ones, and none after a success."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from acker_redis import AckerError
from acker_redis.spout import emission_thread
from acker_redis.spout.emission_thread import EmissionThread

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Moved by hand; pauses are as long as they may become, not drawn."""
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(emission_thread, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("redis.backoff.random.random", lambda: 1.0)
    yield clock


def pause_after(in_a_row: int, clock: SimpleNamespace) -> float:
    """Seconds in steps of a tenth until the next emission may begin."""
    emitter = EmissionThread(lambda _: None, 600.0, goes_on=False)
    clock.now = NOW
    emitter.job_failed(OSError("disk full"), in_a_row)
    while not emitter.is_free:
        clock.now += 0.1
    emitter.succeeded()
    emitter.stop()
    return float(clock.now - NOW)


def test_pauses_after_broken_emissions_grow_up_to_a_bound(clock: SimpleNamespace) -> None:
    pauses = [pause_after(in_a_row, clock) for in_a_row in (1, 2, 3, 4, 20, 2000)]
    assert pauses == pytest.approx([0, 0.2, 0.4, 0.8, 5, 5], abs=0.11)


def test_last_error_is_raised_at_end_if_no_emission_succeeded() -> None:
    emitter = EmissionThread(lambda _: None, 600.0, goes_on=False)
    emitter.job_failed(OSError("disk full"), 1)
    with pytest.raises(AckerError, match="disk full"):
        emitter.stop()
    emitter.stop(KeyboardInterrupt())  # that is what the run ends with
    emitter = EmissionThread(lambda _: None, 600.0, goes_on=False)
    emitter.succeeded()
    emitter.job_failed(OSError("disk full"), 1)
    emitter.stop()
