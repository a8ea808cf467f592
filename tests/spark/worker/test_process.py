"""A worker's acker."""

import gc
from typing import Any

import pyarrow as pa
import pytest

from acker_redis import Acker, AckerConfig, AckerError
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.errors import ConnectionLostError, LedgerLostError
from acker_redis.spark.worker import export, partitions, process
from acker_redis.spark.worker.arrow_function import FlatMapStep
from acker_redis.spark.worker.export import ExportStep
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spark.worker.partitions import PartitionsStep
from acker_redis.spark.worker.process import acker_of_worker, partition_id, while_lost
from acker_redis.testing import fake_acker

A, B = AckerConfig("a"), AckerConfig("b")


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(process, "_ackers", {})

    def open_existing(*args: Any) -> object:
        calls.append(args)
        return object()

    monkeypatch.setattr(Acker, "open_existing", open_existing)
    return calls


def test_a_process_connects_once_per_server_and_app(connected: list[Any]) -> None:
    first = acker_of_worker("redis://x", A)
    assert acker_of_worker("redis://x", AckerConfig("a")) is first
    others = [acker_of_worker("redis://x", B), acker_of_worker("redis://y", A)]
    assert first not in others
    assert connected == [("redis://x", "a"), ("redis://x", "b"), ("redis://y", "a")]


def test_server_unreachable_from_worker_error_names_executor_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, app: str) -> None:
        raise ConnectionLostError("nobody answers")

    monkeypatch.setattr(process, "_ackers", {})
    monkeypatch.setattr(Acker, "open_existing", refuse)
    with pytest.raises(ConnectionLostError, match=r"worker of Spark .*executor_url\. .*nobody answers"):
        acker_of_worker("redis://x", A)
    assert process._ackers == {}


def test_worker_waits_until_driver_recovered_the_lost_ledger() -> None:
    driver = fake_acker()
    worker = Acker(Client(app_of(driver).client.redis), driver.config, create=False)
    app_of(driver).client.redis.flushall()
    tries: list[int] = []

    def reopen() -> list[int]:
        tries.append(len(tries))
        if len(tries) == 2:
            driver.reopen()
        return worker.reopen()

    assert while_lost(reopen) == []
    assert len(tries) == 2
    worker.ack(1, 1)
    assert driver.inspect(1) is not None
    driver.close()


def test_ledger_that_stays_lost_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOST_BASE_SECS", 0.0)
    driver = fake_acker()
    worker = Acker(Client(app_of(driver).client.redis), driver.config, create=False)
    app_of(driver).client.redis.flushall()
    with pytest.raises(LedgerLostError):
        while_lost(worker.reopen)
    driver.close()


def test_partition_id_outside_spark_tasks_raises() -> None:
    with pytest.raises(AckerError, match="No Spark task is running"):
        partition_id()


STEPS: list[Any] = [
    FlatMapStep("s", lambda batch: pytest.fail("there is no batch"), pa.schema([]), 1),
    PartitionsStep("s", lambda batches, partition: None, "raise", 1),
    ExportStep("redis://unused", A, "run", "s"),
    KeepStep("redis://unused", A, "run", 1),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_imports_of_worker_are_frozen_once_for_garbage_collector(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "acker_of_worker", lambda url, config: None)
    monkeypatch.setattr(export, "partition_id", lambda: 0)
    monkeypatch.setattr(partitions, "partition_id", lambda: 0)
    gc.unfreeze()
    process.keep_imports.cache_clear()
    list(step(iter([])))
    imported = gc.get_freeze_count()
    assert imported > 10_000
    made_later: list[list[int]] = [[] for _ in range(1000)]
    list(step(iter([])))
    assert gc.get_freeze_count() <= imported, f"{len(made_later)} more"
