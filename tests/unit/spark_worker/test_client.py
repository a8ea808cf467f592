"""A worker's acker."""

from typing import Any

import pytest

from acker_redis import Acker, AckerConfig, AckerError
from acker_redis.client import Client
from acker_redis.errors import ConnectionLostError, LedgerLostError
from acker_redis.spark.worker import client
from acker_redis.spark.worker.client import acker_of_worker, partition_id, while_lost
from acker_redis.testing import fake_acker

A, B = AckerConfig("a"), AckerConfig("b")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(client, "_ackers", {})

    def attach(*args: Any) -> object:
        calls.append(args)
        return object()

    monkeypatch.setattr(Acker, "attach", attach)
    return calls


def test_a_process_connects_once_per_server_and_app(made: list[Any]) -> None:
    first = acker_of_worker("redis://x", A)
    assert acker_of_worker("redis://x", AckerConfig("a")) is first
    others = [acker_of_worker("redis://x", B), acker_of_worker("redis://y", A)]
    assert first not in others
    assert made == [("redis://x", "a"), ("redis://x", "b"), ("redis://y", "a")]


def test_a_server_that_executors_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, app: str) -> None:
        raise ConnectionLostError("nobody answers")

    monkeypatch.setattr(client, "_ackers", {})
    monkeypatch.setattr(Acker, "attach", refuse)
    with pytest.raises(ConnectionLostError, match=r"worker of Spark: nobody answers\. .*`executor_url`"):
        acker_of_worker("redis://x", A)
    assert client._ackers == {}


def test_it_waits_until_the_driver_has_made_anew_what_was_lost() -> None:
    driver = fake_acker()
    worker = Acker(Client(driver._client.redis), driver.config, create=False)
    driver._client.redis.flushall()
    tries: list[int] = []

    def recover() -> list[int]:
        tries.append(len(tries))
        if len(tries) == 2:
            driver.recover()
        return worker.recover()

    assert while_lost(recover) == []
    assert len(tries) == 2
    worker.ack(1, 1)
    assert driver.inspect(1) is not None
    driver.close()


def test_what_stays_lost_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LOST_BASE_SECS", 0.0)
    driver = fake_acker()
    worker = Acker(Client(driver._client.redis), driver.config, create=False)
    driver._client.redis.flushall()
    with pytest.raises(LedgerLostError):
        while_lost(worker.recover)
    driver.close()


def test_there_is_no_partition_outside_tasks() -> None:
    with pytest.raises(AckerError, match="inside Spark tasks only"):
        partition_id()
