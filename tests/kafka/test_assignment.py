"""Where partitions begin if the group's commits are gone: members that come back know some of them, and lose no record."""

import logging
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from acker_redis.kafka import assignment
from acker_redis.kafka.assignment import Owned, Starts
from acker_redis.kafka.client import confluent
from acker_redis.kafka.commit_metadata import CommitMetadata, decode
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import Topic

TOPIC_ID = "A" * 22
LOW, HIGH = 5, 90
SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class Group:
    """The brokers: commits of the group, and a topic of three partitions. Also the client of each member."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, int], tuple[int, str]] = {}

    def committed(self, wanted: list[Any], timeout: float) -> list[Any]:
        nothing = confluent().OFFSET_INVALID, ""
        return [
            confluent().TopicPartition(at.topic, at.partition, *self.commits.get((at.topic, at.partition), nothing))
            for at in wanted
        ]

    def commit(self, offsets: list[Any], *, asynchronous: bool) -> list[Any]:
        self.commits |= {(at.topic, at.partition): (at.offset, at.metadata or "") for at in offsets}
        return offsets

    def get_watermark_offsets(self, at: Any, timeout: float, *, cached: bool) -> tuple[int, int]:
        return LOW, HIGH

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Nothing is fetched."""

    def offsets(self) -> dict[int, int]:
        return {number: offset for (_, number), (offset, _) in sorted(self.commits.items())}


def starts_of(start: Literal["earliest", "latest"], known_id: str | None) -> Starts:
    topics = Mock(describe=lambda names, **_: dict.fromkeys(names, Topic(TOPIC_ID, 3)))
    return Starts(SETTINGS, topics, start, Mock(), lambda topic: known_id)


def begin(starts: Starts, group: Group, *numbers: int) -> dict[int, int]:
    """Assign partitions. Returns the offsets at which they begin."""
    return {
        owned.number: owned.progress.next for owned in starts.begins(group, [("orders", number) for number in numbers])
    }


def went(starts: Starts, number: int, until: int) -> None:
    """A member that was cut off loses a partition in which it was done with the records before an offset."""
    starts.note_withdrawn(Owned("orders", number, TOPIC_ID, PartitionProgress(until), 0))


@pytest.mark.parametrize(
    ("start", "known_id", "expected"),
    [("earliest", None, LOW), ("latest", None, HIGH), ("latest", TOPIC_ID, LOW), ("latest", "B" * 22, LOW)],
)
def test_topic_that_drivers_have_read_never_begins_at_its_end(
    start: Literal["earliest", "latest"], known_id: str | None, expected: int
) -> None:
    """Another driver may be out as well, whose partitions have records that nobody read."""
    group = Group()
    assert begin(starts_of(start, known_id), group, 0) == {0: expected}
    assert group.offsets() == {0: expected, 1: expected, 2: expected}


def test_log_says_that_commits_were_deleted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "acker_redis.kafka"):
        begin(starts_of("latest", TOPIC_ID), Group(), 0)
    assert "commits of the group were deleted, beginning at the first records topic=orders" in caplog.text


def test_driver_that_returns_later_goes_on_where_it_was_and_not_at_the_start_of_another() -> None:
    group, first, second = Group(), starts_of("latest", TOPIC_ID), starts_of("latest", TOPIC_ID)
    went(first, 0, 30)
    went(second, 1, 40)
    assert begin(first, group, 0) == {0: 30}
    assert group.offsets() == {0: 30, 1: LOW, 2: LOW}
    assert begin(second, group, 1, 2) == {1: 40, 2: LOW}
    assert group.offsets() == {0: 30, 1: 40, 2: LOW}
    found = {number: decode(text, offset) for (_, number), (offset, text) in group.commits.items()}
    assert {number: text and text.is_start for number, text in found.items()} == {0: False, 1: False, 2: True}


def test_driver_believes_commits_of_members_that_went_on_without_it() -> None:
    group, out = Group(), starts_of("earliest", TOPIC_ID)
    went(out, 0, 30)
    begin(starts_of("earliest", None), group, 0)
    group.commits["orders", 0] = Owned("orders", 0, TOPIC_ID, PartitionProgress(60), 0).commit()
    assert begin(out, group, 0) == {0: 60}
    group.commits["orders", 0] = (20, "set by a tool")
    assert begin(out, group, 0) == {0: 20}


def test_start_says_that_it_is_one() -> None:
    owned = Owned("orders", 0, TOPIC_ID, PartitionProgress(7), 0)
    owned.is_start = True
    assert decode(owned.commit()[1], 7) == CommitMetadata(TOPIC_ID, -1, [], is_start=True)
    owned.is_start = False
    assert decode(owned.commit()[1], 7) == CommitMetadata(TOPIC_ID, -1, [], is_start=False)


@pytest.mark.parametrize("is_lost", [False, True])
def test_driver_forgets_partitions_that_it_hands_over_and_not_those_that_it_loses(is_lost: bool) -> None:  # noqa: FBT001
    """What it knew of them would be old when the group is deleted much later."""
    group, member = Group(), GroupMember(SETTINGS, ["orders"], "earliest", Mock(), 1.0, lambda topic: TOPIC_ID)
    member._starts._topics = Mock(describe=lambda names, **_: dict.fromkeys(names, Topic(TOPIC_ID, 3)))
    member._consumer = group
    member._owned = {("orders", n): Owned("orders", n, TOPIC_ID, PartitionProgress(30), 0) for n in range(2)}
    gone = [confluent().TopicPartition("orders", 1)]
    (member._lose if is_lost else member._revoke)(group, gone)
    assert member._owned.keys() == {("orders", 0)}
    assert group.offsets() == ({} if is_lost else {1: 30})
    group.commits.clear()
    assert begin(member._starts, group, 0, 1) == {0: LOW, 1: 30 if is_lost else LOW}


def test_driver_that_cannot_commit_what_it_hands_over_remembers_it() -> None:
    group, member = Group(), GroupMember(SETTINGS, ["orders"], "earliest", Mock(), 1.0)
    member._owned = {("orders", 0): Owned("orders", 0, TOPIC_ID, PartitionProgress(30), 0)}
    error = confluent().KafkaException(confluent().KafkaError(confluent().KafkaError._TRANSPORT))
    away = Mock(commit=Mock(side_effect=error))
    member._revoke(away, [confluent().TopicPartition("orders", 0)])
    member._starts._topics = Mock(describe=lambda names, **_: dict.fromkeys(names, Topic(TOPIC_ID, 3)))
    assert begin(member._starts, group, 0) == {0: 30}


def test_partition_that_was_lost_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    group, starts = Group(), starts_of("earliest", TOPIC_ID)
    went(starts, 0, 30)
    monkeypatch.setattr(assignment, "_NOTED_SECS", -1.0)
    assert begin(starts, group, 0) == {0: LOW}
