"""Commits on a real broker, also by a program that is no member: what Kafka's own tool shows, and what is refused."""

import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest

from acker_redis.kafka import group_commits, log_ends
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent
from acker_redis.kafka.commit_metadata import decode
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_commits import GroupCommits
from acker_redis.kafka.log_ends import LogEnds
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import Topics
from acker_redis.testing import wait_until
from tests.kafka.test_group_member import driving, numbered
from tests.support.kafka import Broker, broker

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with broker(**{"offset.metadata.max.bytes": 200}) as started:
        yield started


@pytest.fixture
def commits(node: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCommits]:
    """Commits that wait for an answer, however busy the broker is."""
    monkeypatch.setattr(group_commits, "_WAIT_SECS", 60.0)
    monkeypatch.setattr(group_commits, "_SESSION_MS", 60_000)
    group = f"group-{uuid.uuid4().hex[:8]}"
    node.wait_for_coordinator(group)
    commits = GroupCommits(consumer_settings({"bootstrap.servers": node.address}, group), group)
    yield commits
    commits.close()


def owned_of(node: Broker, topic: str, end: int, *opened: int, number: int = 0) -> Owned:
    topic_id = Topics({"bootstrap.servers": node.address}).describe([topic], max_wait_secs=60)[topic].topic_id
    owned = Owned(topic, number, topic_id, PartitionProgress(0), 0)
    owned.progress.replace_open(opened, end)
    return owned


def test_tool_of_kafka_shows_the_same_lag(node: Broker, commits: GroupCommits) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, [{"value": str(n), "partition": n % 2} for n in range(80)])
    commits.commit([owned_of(node, topic, 40, 7, 9), owned_of(node, topic, 40, number=1)])
    assert commits.problem is None
    found = {
        number: (at.offset, decode(at.metadata, at.offset))
        for number, at in node.committed(commits._group, topic).items()
    }
    assert {number: offset for number, (offset, _) in found.items()} == {0: 7, 1: 40}
    assert found[0][1] is not None
    assert found[0][1].runs == [(8, 9), (10, 40)]
    rows = [line.split() for line in node.describe_group(commits._group).splitlines() if topic in line]
    assert sorted(row[2:6] for row in rows) == [["0", "7", "40", "33"], ["1", "40", "40", "0"]]


def test_unchanged_offsets_are_committed_once(node: Broker, commits: GroupCommits) -> None:
    topic = node.topic()
    node.produce(topic, [{"value": "x"}] * 4)
    owned = owned_of(node, topic, 2)
    commits.commit([owned])
    first = owned.committed_at
    commits.commit([owned])
    assert owned.committed_at == first
    owned.progress.replace_open([], 4)
    commits.commit([owned])
    assert owned.committed is not None
    assert owned.committed[0] == 4


def test_offsets_of_a_group_that_is_deleted_are_committed_again(node: Broker, commits: GroupCommits) -> None:
    """The group has no member, so Kafka lets anybody delete it while the stream runs."""
    topic, group = node.topic(partitions=2), commits._group
    node.produce(topic, [{"value": str(n), "partition": n % 2} for n in range(8)])
    both = [owned_of(node, topic, 2, number=number) for number in range(2)]
    commits.commit(both)
    admin = node.admin()  # what it was asked ends with it
    admin.delete_consumer_groups([group])[group].result(60)
    assert node.committed(group, topic) == {}
    for owned in both:
        owned.committed_at -= 61
    commits.commit(both)
    assert {number: at.offset for number, at in node.committed(group, topic).items()} == {0: 2, 1: 2}


def test_member_leaves_out_runs_until_the_broker_takes_a_commit(node: Broker) -> None:
    topic, group = node.topic(), f"group-{uuid.uuid4().hex[:8]}"
    node.produce(topic, numbered(1000, 1))
    with driving(node, topic, group) as driver:
        driver.until_read(1000, keeps=lambda value: int(value) % 3 == 0)
        driver.until(lambda: driver.member.refused_commits, "the broker refuses a commit")
        driver.until(lambda: decode_runs(node, group, topic), "a commit has some runs")
        for owned, offset in driver.open[:400]:
            owned.progress.done(offset)
        driver.until(lambda: node.committed(group, topic)[0].offset >= 999, "the commit moves")


def decode_runs(node: Broker, group: str, topic: str) -> list[tuple[int, int]]:
    at = node.committed(group, topic)[0]
    found = decode(at.metadata, at.offset)
    return [] if found is None else found.runs


def test_too_long_metadata_is_shortened_until_the_broker_takes_it(node: Broker, commits: GroupCommits) -> None:
    topic = node.topic()
    node.produce(topic, [{"value": "x"}] * 2000)
    commits.commit([owned_of(node, topic, 2000, *range(0, 2000, 2))])
    assert commits.problem is None
    (at,) = node.committed(commits._group, topic).values()
    assert at.offset == 0
    assert decode(at.metadata, 0) is not None
    assert 100 < len(at.metadata) <= 200


def test_member_of_the_group_is_logged_and_later_commits_succeed(
    node: Broker, commits: GroupCommits, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer

    topic = node.topic()
    node.produce(topic, [{"value": "x"}] * 5)
    foreign = Consumer({"bootstrap.servers": node.address, "group.id": commits._group, "enable.auto.commit": False})
    foreign.subscribe([topic])

    def is_member() -> bool:
        foreign.poll(0.1)
        return bool(foreign.assignment())

    wait_until(is_member, "the other program is a member", timeout_secs=60)
    owned = owned_of(node, topic, 5)
    with caplog.at_level(logging.ERROR, "acker_redis.kafka"):
        commits.commit([owned])
        commits.commit([owned])
    assert commits.problem is not None
    assert "another program is a member of the group" in commits.problem
    assert (commits.refused, len(caplog.records)) == (2, 1)
    assert node.committed(commits._group, topic) == {}
    foreign.close()

    def is_committed() -> bool:
        commits.commit([owned])
        return commits.problem is None

    wait_until(is_committed, "the commit succeeds", timeout_secs=60)
    assert node.committed(commits._group, topic)[0].offset == 5


def test_ends_of_partitions_follow_writes_and_deletions(node: Broker) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, [{"value": "x", "partition": 1}] * 9)
    ends = LogEnds(Topics({"bootstrap.servers": node.address}))
    assert ends.end(topic, 1) is None
    partitions = [(topic, 0), (topic, 1), ("nowhere", 0)]

    def shows(earliest: int, end: int) -> bool:
        ends.look(partitions)
        return (ends.earliest(topic, 1), ends.end(topic, 1)) == (earliest, end)

    wait_until(lambda: shows(0, 9), "the ends are known", timeout_secs=60)
    assert (ends.end(topic, 0), ends.end("nowhere", 0)) == (0, None)
    node.delete_records(topic, 1, 4)
    wait_until(lambda: shows(4, 9), "the deletion is known", timeout_secs=60)
    assert ends.read_earliest(partitions) == {(topic, 0): 0, (topic, 1): 4}


def test_ends_are_asked_for_again_after_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage makes `Topics` connect anew while a question about ends is open. Nobody listens at the port."""
    monkeypatch.setattr(log_ends, "ASK_SECS", 1.0)
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"})
    ends = LogEnds(topics)
    ends.look([("t", 0)])
    open_questions = ends._asked
    failed: Future[Any] = Future()
    failed.set_exception(confluent().KafkaException(confluent().KafkaError(confluent().KafkaError._TIMED_OUT)))
    with pytest.raises(confluent().KafkaException):
        topics.answers({"t": failed})

    def are_over() -> bool:
        ends.look([("t", 0)])
        return ends._asked is not open_questions

    wait_until(are_over, "the open questions have ended", timeout_secs=60)


def test_brokers_that_are_away_delay_a_commit_once() -> None:
    """The settings name a port where nobody listens."""
    commits = GroupCommits(consumer_settings({"bootstrap.servers": "127.0.0.1:1"}, "group"), "group")
    owned = Owned("t", 0, "A" * 22, PartitionProgress(0), 0)
    owned.progress.replace_open([], 4)
    commits.commit([owned])
    assert commits.problem == "the brokers don't answer"
    commits.commit([owned])  # it isn't sent again before the first one has an answer
    assert commits.refused == 0
    commits.close()


@pytest.mark.parametrize(
    ("error", "connects"),
    [
        ("_TIMED_OUT", True),
        ("_TRANSPORT", True),
        ("TOPIC_AUTHORIZATION_FAILED", False),
        ("_UNKNOWN_TOPIC", False),
    ],
)
def test_only_an_outage_makes_another_client(error: str, *, connects: bool) -> None:
    """A broker that refuses a question refuses it again, and each client costs threads and connections."""
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"})
    before = topics.admin
    failed: Future[Any] = Future()
    failed.set_exception(confluent().KafkaException(confluent().KafkaError(getattr(confluent().KafkaError, error))))
    with nullcontext() if error == "_UNKNOWN_TOPIC" else pytest.raises(confluent().KafkaException):
        topics.answers({"t": failed})
    assert (topics.admin is not before) == connects
