"""Waiting for a server: how long, how often, and what is said of it."""

import logging

import pytest
from redis.backoff import NoBackoff

from acker_redis import ConnectionLostError, InexactPipelineError, OperatorBrokenError, OutageError
from acker_redis.outages import OUTAGE_TRIES, Backoff, Outages, describes_outage, is_outage


def test_pauses_stay_below_the_cap_however_long_an_outage_is() -> None:
    backoff = Backoff(base=0.5, cap=5.0)
    assert all(0 <= backoff.compute(failures) <= 5.0 for failures in (*range(1, 100), 1_023, 1_024, 10**9))
    assert max(backoff.compute(10**9) for _ in range(100)) == 5.0
    assert max(backoff.compute(1) for _ in range(100)) <= 1.0


def test_gone_server_is_tried_to_the_limit_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("acker_redis.outages.Backoff", lambda **options: NoBackoff())
    tries: list[int] = []

    def gone() -> None:
        tries.append(1)
        raise ConnectionLostError("gone")

    outages = Outages(logging.getLogger("acker_redis.spout"))
    with pytest.raises(ConnectionLostError):
        outages.wait_for(gone)
    assert (len(tries), outages.seen) == (OUTAGE_TRIES, True)
    assert caplog.text.count("waiting for the server: error=gone") == 1


class InvalidTimeoutError(ValueError):
    """As a user may call a mistake."""


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(), TimeoutError(), OSError(28, "No space left on device"), OutageError("the store"),
        RuntimeError("HTTP 503: Service Unavailable"), RuntimeError("FATAL: the database system is starting up"),
        type("OperationalError", (Exception,), {})("connection to server failed: Connection refused"),
        type("ReadTimeout", (Exception,), {})(), RuntimeError("status code 429"),
        type("SparkConnectGrpcException", (Exception,), {})("<_InactiveRpcError: StatusCode.UNAVAILABLE, failed to connect>"),
    ],
)  # fmt: skip
def test_errors_of_unreachable_services_are_outages(error: Exception) -> None:
    assert is_outage(error)
    assert isinstance(error, (OutageError, ConnectionError, TimeoutError)) or describes_outage(
        f"{type(error).__name__}: {error}"
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("invalid literal for int(): 'GET /x: request timed out'"), KeyError("timed out"), InvalidTimeoutError("no"),
        InexactPipelineError("Filter (status <> 'timed out')"), OperatorBrokenError("20 failed: connection refused"),
        FileNotFoundError("orders.csv"), RuntimeError("500 orders"), NameError("connection reset"),
        type("SparkConnectGrpcException", (Exception,), {})("[PATH_ALREADY_EXISTS]"),
    ],
)  # fmt: skip
def test_program_errors_that_mention_timeouts_are_no_outages(error: Exception) -> None:
    assert not is_outage(error)
    if type(error) in (ValueError, KeyError):
        assert not describes_outage(f"{type(error).__name__}: {error}")
