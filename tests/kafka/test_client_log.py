"""Lines of Kafka's clients: they go to the log, one of each client and kind per minute, and none to stderr."""

import logging
from collections import Counter
from typing import Any

import pytest

from acker_redis.kafka import client, group_member
from acker_redis.kafka.client import ClientLog
from acker_redis.kafka.group_member import GroupMember
from acker_redis.testing import wait_until
from tests.kafka.test_group_member import driving
from tests.support.kafka import Broker

FORM = "%s [%s] %s"


@pytest.fixture(autouse=True)
def _said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was passed on yet, and a minute is long."""
    monkeypatch.setattr(ClientLog, "_said", {})
    monkeypatch.setattr(client, "_SAID_SECS", 1e9)
    monkeypatch.setattr(group_member, "_SAID_SECS", 1e9)


def test_first_line_of_a_kind_is_passed_on_by_each_client_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = ClientLog({"sasl.password": "pa55word"}), ClientLog({})
    with caplog.at_level(logging.DEBUG, "acker_redis.kafka"):
        for number in range(3):
            first.log(40, FORM, "FAIL", "consumer-1", f"broker {number}: pa55word")
        for number in range(2):
            second.log(40, FORM, "FAIL", f"producer-{number}", "broker 0")
        ClientLog({"group.id": "other"}).log(40, FORM, "FAIL", "consumer-2", "broker 9")
        ClientLog({"sasl.password": "pa55word"}).log(40, FORM, "FAIL", "consumer-3", "broker 4")
        second.log(30, FORM, "SESSTMOUT", "producer-1", "session timed out")
        for number in range(2):
            second.log(10, FORM, "CGRP", "producer-1", f"debug {number}")
        monkeypatch.setattr(client, "_SAID_SECS", 0.0)
        second.log(40, FORM, "FAIL", "producer-1", "broker 1")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (40, "client reports kind=FAIL client=consumer-1 line=broker 0: ***"),
        (40, "client reports kind=FAIL client=producer-0 line=broker 0"),
        (40, "client reports kind=FAIL client=consumer-2 line=broker 9"),
        (30, "client reports kind=SESSTMOUT client=producer-1 line=session timed out"),
        (10, "client reports kind=CGRP client=producer-1 line=debug 0"),
        (10, "client reports kind=CGRP client=producer-1 line=debug 1"),
        (40, "client reports kind=FAIL client=producer-1 line=broker 1"),
    ]


def test_a_callback_of_the_user_hears_of_errors_beside_the_librarys_own(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    away = Broker.at("127.0.0.1:1")
    with (
        caplog.at_level(logging.WARNING, "acker_redis.kafka"),
        driving(away, "t", "g", error_cb=heard.append) as driver,
    ):
        driver.until(lambda: heard, "the user's callback is called")
    assert "brokers not answering" in caplog.text


def test_member_of_brokers_that_are_away_logs_one_line_of_a_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens on these ports. `None` leaves the client's own level of its log."""
    lines: Counter[str] = Counter()
    passed_on, complain = ClientLog.log, GroupMember._complain
    errors: list[Any] = []

    def counted(own: ClientLog, level: int, form: str, kind: str, name: str, line: str) -> None:
        lines[f"{kind} {'admin' if 'producer' in name else 'member'}"] += 1
        passed_on(own, level, form, kind, name, line)

    def noted(own: GroupMember, error: Any) -> None:
        errors.append(error)
        complain(own, error)

    monkeypatch.setattr(ClientLog, "log", counted)
    monkeypatch.setattr(GroupMember, "_complain", noted)
    away = Broker.at("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    with caplog.at_level(logging.WARNING, "acker_redis.kafka"), driving(away, "t", "billing", log_level=None) as driver:
        driver.until(lambda: lines["FAIL member"] > 20 and len(errors) > 20, "the client repeats itself")

        def admin_repeats() -> bool:
            driver.member.topics.admin.poll(0)
            return lines["FAIL admin"] > 3

        wait_until(admin_repeats, "the other client repeats itself", timeout_secs=90)
    said = Counter(record.getMessage().partition(" error=")[0].partition(" client=")[0] for record in caplog.records)
    assert said.pop("client reports kind=FAIL") == 2, "one of the member, and one of its client for topics"
    assert said.pop("brokers not answering") <= len({error.code() for error in errors})
    assert said == Counter()
    assert capfd.readouterr().err == ""
