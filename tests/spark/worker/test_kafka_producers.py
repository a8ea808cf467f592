"""Producers that a worker keeps: what their connections said earlier, and their lines in the log."""

import logging
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from acker_redis.kafka import client
from acker_redis.kafka.client import ClientLog
from acker_redis.spark.worker import kafka_producers
from acker_redis.spark.worker.kafka_producers import WorkerProducer
from acker_redis.testing import wait_until

SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has kept no producer, no line was passed on, and a minute is long."""
    monkeypatch.setattr(kafka_producers, "_kept", OrderedDict())
    monkeypatch.setattr(ClientLog, "_said", {})
    monkeypatch.setattr(client, "_SAID_SECS", 1e9)


class Client:
    """A client whose connections say something, of which it tells while it is polled."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.waiting: list[str] = []

    def poll(self, timeout_secs: float) -> None:
        waiting, self.waiting = self.waiting, []
        for words in waiting:
            self.settings["error_cb"](SimpleNamespace(str=lambda words=words: words))

    def __len__(self) -> int:
        return 0  # no record waits


def test_what_connections_said_between_two_tasks_is_not_about_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later outage would be explained by it."""
    monkeypatch.setattr(kafka_producers, "confluent", lambda: SimpleNamespace(Producer=Client))
    first = WorkerProducer.take(SETTINGS)
    first.client.waiting += ["broker 1 is away"]
    first.client.poll(0)
    assert first.words == "broker 1 is away"
    first.leave(SETTINGS)
    first.client.waiting += ["broker 2 is away"]
    second = WorkerProducer.take(SETTINGS)
    assert second is first
    assert second.words == ""
    second.client.poll(0)
    assert second.words == "", "it was told before the task"
    second.client.waiting += ["broker 3 is away"]
    second.client.poll(0)
    assert second.words == "broker 3 is away"


def test_lines_of_producers_go_to_the_log_and_not_to_stderr(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens on this port. A task that is repeated makes its producer again, which says the same."""
    clients: set[str] = set()
    passed_on = ClientLog.log

    def noted(own: ClientLog, level: int, form: str, kind: str, name: str, line: str) -> None:
        passed_on(own, level, form, kind, name, line)
        clients.update([name] if kind == "FAIL" else [])

    monkeypatch.setattr(ClientLog, "log", noted)
    producers = [WorkerProducer(SETTINGS) for _ in range(2)]

    def all_said() -> bool:
        for producer in producers:
            producer.client.poll(0)
        return len(clients) == 2

    with caplog.at_level(logging.WARNING, "acker_redis.kafka"):
        wait_until(all_said, "both say that nobody is there", timeout_secs=90)
    (said,) = [record.getMessage() for record in caplog.records if "kind=FAIL" in record.getMessage()]
    assert "127.0.0.1:1" in said
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("has_broker", [False, True])
def test_python_is_called_for_records_that_were_not_acknowledged_and_only_for_those(has_broker: bool) -> None:  # noqa: FBT001
    """The client counts a record until its report was taken. So a record without a call was acknowledged at 0."""
    called: list[tuple[int, str]] = []

    def note(number: int, error: Any, _: object) -> None:
        called.append((number, error.name()))

    client = WorkerProducer(SETTINGS | ({"test.mock.num.brokers": 1} if has_broker else {})).client
    for number in range(3):
        client.produce("items", b"x", on_delivery=partial(note, number))
    if not has_broker:
        client.purge()
    wait_until(lambda: not client.flush(1), "each report was taken", timeout_secs=90)
    assert len(client) == 0
    assert called == ([] if has_broker else [(number, "_PURGE_QUEUE") for number in range(3)])
