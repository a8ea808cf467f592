"""What executors find by the URL they are given, and how it is told."""

from typing import Any

import pytest

from acker_redis import AckerConfig, AckerError, AuthenticationError, BadConfigError, ServerBusyError
from acker_redis.acker import app_of
from acker_redis.spark.runtime import executor_check
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.testing import fake_acker


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for a session whose workers run in this process, so that nothing is sent through Spark."""
    monkeypatch.setattr(executor_check, "_runs_here", lambda session: True)
    monkeypatch.setattr(executor_check, "_checked", set())
    return object()


def found(monkeypatch: pytest.MonkeyPatch, answer: bytes | AckerError | None) -> list[str]:
    """What is found from now on; gives the URLs that were asked for."""
    asked: list[str] = []

    def generation_at(url: str, config: AckerConfig) -> bytes | None:
        asked.append(url)
        if isinstance(answer, AckerError):
            raise answer
        return answer

    monkeypatch.setattr(executor_check, "generation_at", generation_at)
    return asked


def test_server_outage_is_not_reported_as_wrong_executor_url(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ServerBusyError("a script runs"))
    with pytest.raises(ServerBusyError, match=r"unavailable to Spark's workers\. .*executor_url\. .*a script runs"):
        check_url(session, "redis://x", fake_acker())


@pytest.mark.parametrize("refusal", [BadConfigError("no Redis URL"), AuthenticationError("wrong password")])
def test_permanent_refusal_is_reported_as_wrong_executor_url(
    session: Any, monkeypatch: pytest.MonkeyPatch, refusal: AckerError
) -> None:
    found(monkeypatch, refusal)
    with pytest.raises(BadConfigError, match=f"executor_url doesn't work for Spark's workers.*{refusal}"):
        check_url(session, "redis://x", fake_acker())


@pytest.mark.parametrize("generation", [None, b"another"])
def test_server_without_app_is_reported_as_wrong_executor_url(
    session: Any, monkeypatch: pytest.MonkeyPatch, generation: bytes | None
) -> None:
    found(monkeypatch, generation)
    with pytest.raises(BadConfigError, match="another server or database"):
        check_url(session, "redis://x", fake_acker())


def test_executor_url_is_checked_once(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_acker() as acker:
        asked = found(monkeypatch, app_of(acker).shards.generations[0])
        assert [check_url(session, "redis://x", acker) for _ in range(2)] == ["redis://x"] * 2
    assert asked == ["redis://x"]
