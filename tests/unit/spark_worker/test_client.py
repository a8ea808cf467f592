"""A worker's acker."""

from typing import Any

import pytest

from acker_redis import Acker, AckerConfig, AckerError
from acker_redis.errors import ConnectionLostError
from acker_redis.spark.worker import client
from acker_redis.spark.worker.client import acker_of_worker, partition_id

A, B = AckerConfig("a"), AckerConfig("b")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(client, "_ackers", {})

    def connect(*args: Any) -> object:
        calls.append(args)
        return object()

    monkeypatch.setattr(Acker, "connect", connect)
    return calls


def test_a_process_connects_once_per_server_and_app(made: list[Any]) -> None:
    first = acker_of_worker("redis://x", A)
    assert acker_of_worker("redis://x", AckerConfig("a")) is first
    others = [acker_of_worker("redis://x", B), acker_of_worker("redis://y", A)]
    assert first not in others
    assert made == [("redis://x", A), ("redis://x", B), ("redis://y", A)]


def test_a_server_that_executors_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, config: AckerConfig) -> None:
        raise ConnectionLostError("nobody answers")

    monkeypatch.setattr(client, "_ackers", {})
    monkeypatch.setattr(Acker, "connect", refuse)
    with pytest.raises(ConnectionLostError, match=r"worker of Spark: nobody answers\. .*`executor_url`"):
        acker_of_worker("redis://x", A)
    assert client._ackers == {}


def test_there_is_no_partition_outside_tasks() -> None:
    with pytest.raises(AckerError, match="inside Spark tasks only"):
        partition_id()
