"""Fixtures of the tests of topologies."""

import pytest


@pytest.fixture
def whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of `run_local` isn't cut short on a busy machine: it calls spouts up to their bound, and drains all tuples."""
    monkeypatch.setattr("acker_redis.storm.local.service._CALLS_SECS", 60.0)
    monkeypatch.setattr("acker_redis.storm.local.service._TUPLES_SECS", 60.0)
