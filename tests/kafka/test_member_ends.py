"""The end of a membership: it doesn't wait for brokers that are away, and says what wasn't committed."""

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from acker_redis.errors import AckerError, OutageError
from acker_redis.kafka import group_member
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import Topic
from acker_redis.testing import wait_until


class Client:
    """A client whose brokers answer a commit once the test lets them.

    Attributes:
        may_answer: set it to let them answer.
        may_close: clear it to have `close` wait.
        error: code of their answer; None: the commit succeeds.
        is_closed: whether the group was left, which may not happen within a commit.
    """

    def __init__(self) -> None:
        self.may_answer, self.may_close = threading.Event(), threading.Event()
        self.may_close.set()
        self.error: int | None = None
        self.is_closed = self.is_committing = False

    def commit(self, offsets: list[Any], *, asynchronous: bool) -> list[Any]:
        self.is_committing = True
        self.may_answer.wait(300)
        self.is_committing = False
        if self.error is not None:
            raise confluent().KafkaException(confluent().KafkaError(self.error))
        return offsets

    def get_watermark_offsets(self, at: Any, *, cached: bool) -> tuple[int, int]:
        """No call returns within another one."""
        if self.is_committing:
            self.may_answer.wait(300)
        return 0, 12

    def close(self) -> None:
        assert not self.is_committing
        self.may_close.wait(300)
        self.is_closed = True


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.may_answer.set()
    client.may_close.set()


def member_of(client: Client) -> tuple[GroupMember, Mock]:
    """A member that has done ten records, of which seven are committed."""
    listener = Mock()
    member = GroupMember({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, ["orders"], "earliest", listener, 1.0)
    owned = Owned("orders", 3, "A" * 22, PartitionProgress(10), 0)
    owned.committed = (7, "")
    member._consumer, member._owned = client, {("orders", 3): owned}
    listener.withdrawn.side_effect = member.end_of  # as of its last progress
    return member, listener


def test_end_does_not_wait_for_brokers_that_are_away(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_member, "_CLOSE_SECS", 0.05)
    member, listener = member_of(client)
    ending = threading.Thread(target=member.close, daemon=True)
    with caplog.at_level(logging.WARNING, "acker_redis.kafka"):
        ending.start()
        wait_until(lambda: not ending.is_alive(), "the membership has ended", timeout_secs=60)
    wait_until(lambda: client.is_committing, "the commit goes on", timeout_secs=60)
    assert (client.is_closed, member.owned) == (False, [])
    listener.withdrawn.assert_called_once()
    (record,) = caplog.records
    assert "not committed" in record.message
    assert "{'orders/3': '10, committed 7'}" in record.message
    client.may_answer.set()
    wait_until(lambda: client.is_closed, "the group is left once the client is free", timeout_secs=60)


def test_end_leaves_the_group_after_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_member, "_CLOSE_SECS", 60.0)
    member, listener = member_of(client)
    (owned,) = member.owned
    client.may_answer.set()
    member.close()
    assert client.is_closed
    assert owned.committed == owned.commit()
    listener.withdrawn.assert_called_once_with(owned)
    assert caplog.records == []
    member.close()


def test_refused_last_commit_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_member, "_CLOSE_SECS", 60.0)
    member, _ = member_of(client)
    client.error = confluent().KafkaError.GROUP_AUTHORIZATION_FAILED
    client.may_answer.set()
    member.close()
    assert client.is_closed
    assert "{'orders/3': '10'}" in caplog.records[-1].message


def test_answer_about_an_earlier_topic_does_not_concern_the_one_that_was_assigned_since(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made again, and the partition went and came back, before the member looked at the answer."""
    member, listener = member_of(client)
    old, new = Topic("A" * 22, 1), Topic("B" * 22, 1)
    monkeypatch.setattr(member.topics, "answers", lambda asked: {"orders": old})
    member._asked = {"orders": Mock(done=lambda: True)}
    begun = Owned("orders", 3, new.topic_id, PartitionProgress(0), 0)
    monkeypatch.setattr(member._starts, "begins", lambda consumer, keys: [begun])
    member._lose(Mock(), [Mock(topic="orders", partition=3)])
    member._assign(Mock(), [Mock(topic="orders", partition=3)])
    member._look_at_topics()
    listener.recreated.assert_not_called()
    assert member.owned == [begun]


def test_outage_ends_a_membership_without_waiting_and_the_next_one_begins_after_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, listener = member_of(client)
    (owned,) = member.owned
    client.may_close.clear()
    joined = Mock()
    monkeypatch.setattr(group_member, "confluent", lambda: joined)
    member._give_up(OutageError("The brokers are away."))
    listener.withdrawn.assert_called_once_with(owned)
    monkeypatch.setattr(member, "_join_at", float("-inf"))
    assert (client.is_closed, member.read(1, 0.01)) == (False, [])
    joined.Consumer.assert_not_called()
    member.close()
    client.may_close.set()
    wait_until(lambda: member._join(0.1), "the member joins again", timeout_secs=60)
    assert client.is_closed
    joined.Consumer.assert_called_once()


class Joining:
    """A client that joins, and whose `close` never returns while the test runs.

    Attributes:
        settings: its settings, among them callbacks.
        callbacks: those of rebalances.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.callbacks: dict[str, Any] = {}
        self.committed: list[Any] = []
        self.may_close = threading.Event()

    def subscribe(self, names: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def commit(self, offsets: list[Any], *, asynchronous: bool) -> list[Any]:
        self.committed += offsets
        return offsets

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Nothing is fetched."""

    def close(self) -> None:
        self.may_close.wait(300)


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Joining]]:
    """The clients that a member makes."""
    driver: list[Joining] = []
    kafka = confluent()

    def consumer(settings: dict[str, Any]) -> Joining:
        driver.append(Joining(settings))
        return driver[-1]

    names = {name: getattr(kafka, name) for name in ("KafkaException", "KafkaError", "TopicPartition")}
    monkeypatch.setattr(group_member, "confluent", lambda: SimpleNamespace(Consumer=consumer, **names))
    yield driver
    for client in driver:
        client.may_close.set()


def test_client_that_never_closes_holds_up_no_membership_and_meets_nothing_of_the_next_one(
    joining: list[Joining], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Mock()
    member = GroupMember({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, ["orders"], "earliest", listener, 1.0)
    assert member._join(0.0)
    member._give_up(OutageError("The brokers are away."))
    monkeypatch.setattr(member, "_join_at", float("-inf"))
    assert (member._join(0.0), len(joining)) == (False, 1)
    monkeypatch.setattr(group_member, "_LEAVE_SECS", 0.0)
    with caplog.at_level(logging.WARNING, "acker_redis.kafka"):
        assert member._join(0.0)
    assert "client not closed yet, joining with another one" in caplog.text
    first, second = joining
    owned = Owned("orders", 3, "A" * 22, PartitionProgress(10), 0)
    member._owned["orders", 3] = owned

    kafka = confluent()
    at = kafka.TopicPartition("orders", 3, 7)
    denied = kafka.KafkaError(kafka.KafkaError._AUTHENTICATION)
    for name in ("on_assign", "on_revoke", "on_lost"):
        first.callbacks[name](first, [at])
    first.settings["on_commit"](None, [at])
    first.settings["error_cb"](denied)
    member._raise_kept()
    assert (member.owned, owned.committed, first.committed) == ([owned], None, [])
    listener.withdrawn.assert_not_called()

    second.settings["error_cb"](denied)
    with pytest.raises(AckerError, match="refuses"):
        member._raise_kept()
    second.callbacks["on_revoke"](second, [at])
    assert (member.owned, [one.offset for one in second.committed]) == ([], [10])
    listener.withdrawn.assert_called_once_with(owned)
