"""Faults around the member of a group, on a real broker: compaction, transactions, strangers, zombies, deletion."""

import json
import logging
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from acker_redis.errors import OutageError
from acker_redis.testing import wait_until
from tests.kafka.test_group_member import delete, driving, numbered, texts
from tests.support.kafka import Broker

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def test_compaction_beyond_an_open_record_repeats_that_record_only(node: Broker, group: str) -> None:
    topic = node.topic(
        cleanup_policy="compact", segment_ms="100", max_compaction_lag_ms="200", min_cleanable_dirty_ratio="0.01"
    )
    records = [{"key": "alone" if n == 5 else str(n % 7), "value": str(n)} for n in range(300)]
    node.produce(topic, records)
    with driving(node, topic, group) as first:
        first.until_read(300, keeps=lambda value: value == "5")
        first.until(lambda: node.committed(group, topic)[0].offset == 5, "the commit is there")
    node.produce(topic, [{"key": "last", "value": "300"}])  # the segment before it can be compacted

    def is_compacted() -> bool:
        node.produce(topic, [{"key": "last", "value": "300"}])
        return len(node.read(topic)) < 150

    wait_until(is_compacted, "records are compacted away", timeout_secs=120)
    with driving(node, topic, group) as second:
        second.until_lag(topic, 0)
        read = {value for _, value in second.read}
        assert (read, second.events) == ({"5", "300"}, [])
        assert [value for _, value in second.read].count("5") == 1


def test_open_transaction_holds_back_its_partition_alone(node: Broker, group: str) -> None:
    from confluent_kafka import Producer

    topic = node.topic(partitions=2)
    producer = Producer({**node.client, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    for n in range(5):
        producer.produce(topic, str(n), partition=0)
    assert producer.flush(60) == 0
    node.produce(topic, [{"value": str(n), "partition": 0 if n < 10 else 1} for n in range(5, 15)])
    with driving(node, topic, group) as driver:
        assert driver.until_read(5) == texts(*range(10, 15))
        driver.until(lambda: node.committed(group, topic)[1].offset == 5, "the other partition is committed")
        assert (len(driver.read), node.committed(group, topic)[0].offset) == (5, 0)
        producer.commit_transaction(60)
        assert driver.until_read(15) == texts(*range(15))
        driver.until_lag(topic, 0)


def test_stranger_in_the_group_takes_partitions_and_commits_but_loses_no_record(node: Broker, group: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = node.topic(partitions=2)
    node.produce(topic, numbered(40, 2))
    stranger = Consumer({
        **node.client, "group.id": group, "partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False,
        "session.timeout.ms": 60_000, "heartbeat.interval.ms": 300,
    })  # fmt: skip
    with driving(node, topic, group) as driver:
        driver.until_read(40, keeps=lambda value: value in ("6", "7"))
        stranger.subscribe([topic])

        def has_one() -> bool:
            stranger.poll(0.1)
            return len(driver.member.owned) == len(stranger.assignment()) == 1

        driver.until(has_one, "the stranger has a partition")
        (taken,) = stranger.assignment()
        both = [TopicPartition(topic, number, 1) for number in range(2)]  # the broker doesn't ask who owns them
        stranger.commit(offsets=both, asynchronous=False)
        assert {number: at.offset for number, at in node.committed(group, topic).items()} == {0: 1, 1: 1}
        stranger.close()
        driver.until(
            lambda: len(driver.member.owned) == 2, "the partition is back", keeps=lambda value: value in ("6", "7")
        )
        driver.until(lambda: len(driver.read) >= 40 + 19, "the partition is read from the stranger's commit")
        again = [value for number, value in driver.read[40:] if number == taken.partition]
        assert again == texts(*range(2 + taken.partition, 40, 2))
        for owned, offset in driver.open:
            owned.progress.done(offset)
        driver.until_lag(topic, 0)


def test_commit_behind_the_end_is_a_lost_range(node: Broker, group: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    node.commit(group, topic, {0: (1000, "by hand")})
    with driving(node, topic, group) as driver:
        driver.until(lambda: driver.events, "it is noticed")
        assert driver.events[0] == ("lost", 0, 10, 1000)
        node.produce(topic, numbered(3, 1, 10))
        assert driver.until_read(3) == texts(10, 11, 12)
        driver.until_lag(topic, 0)


@pytest.mark.parametrize("is_out_by", ["outage", pytest.param("standing_still", marks=pytest.mark.chaos)])
def test_group_that_is_deleted_while_its_member_is_out_gets_its_commits_again(
    node: Broker, group: str, is_out_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka refuses to delete a group with members. With `start="latest"`, records from meanwhile would be skipped."""
    topic = node.topic(partitions=2)
    keeps: dict[str, Any] = {"keeps": lambda value: value == "6"}
    limits = {} if is_out_by == "outage" else {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
    with driving(node, topic, group, start="latest", **limits) as driver:
        driver.until(lambda: len(driver.member.owned) == 2, "partitions are assigned")
        node.produce(topic, numbered(40, 2))
        driver.until_read(40, **keeps)

        def offsets() -> dict[int, int]:
            return {number: at.offset for number, at in node.committed(group, topic).items()}

        driver.until(lambda: offsets() == {0: 3, 1: 20}, "all but one record are committed", **keeps)
        if is_out_by == "outage":
            driver.member._give_up(OutageError("The brokers were away."))
        delete(node, group)
        assert offsets() == {}
        node.produce(topic, numbered(10, 2, 40))
        with caplog.at_level(logging.WARNING):
            driver.until(lambda: len(driver.read) >= 51, "the records from meanwhile are read", **keeps)
        assert sorted(int(value) for _, value in driver.read[40:]) == [6, *range(40, 50)]
        assert "commits of the group were deleted, repeating them" in caplog.text
        ((owned, offset),) = driver.open
        owned.progress.done(offset)
        driver.until_lag(topic, 0)


def test_group_with_a_working_member_is_not_deleted_and_loses_no_commit(node: Broker, group: str) -> None:
    from confluent_kafka import KafkaException

    topic = node.topic(partitions=2)
    node.produce(topic, numbered(40, 2))
    with driving(node, topic, group) as driver:
        driver.until_read(40, keeps=lambda value: value == "6")
        driver.until_lag(topic, 17)
        admin = node.admin()
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(60)
        assert {number: at.offset for number, at in node.committed(group, topic).items()} == {0: 3, 1: 20}
        node.produce(topic, numbered(10, 2, 40))
        assert driver.until_read(50) == texts(*range(50))
        ((owned, offset),) = driver.open
        owned.progress.done(offset)
        driver.until_lag(topic, 0)
        assert (len(driver.read), driver.events) == (50, [])


def test_group_that_is_deleted_while_nobody_runs_begins_at_the_first_records_and_the_log_says_so(
    node: Broker, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = node.topic()
    node.produce(topic, numbered(4, 1))
    with driving(node, topic, group) as first:
        first.until_read(4)
        topic_id = first.member.owned[0].topic_id
        first.until_lag(topic, 0)
    delete(node, group)
    known: dict[str, Any] = {"start": "latest", "known_id": lambda topic: topic_id}
    with caplog.at_level(logging.WARNING), driving(node, topic, group, **known) as second:
        assert second.until_read(4) == texts(*range(4))
    assert "commits of the group were deleted, beginning at the first records" in caplog.text


@pytest.mark.chaos
def test_member_that_stands_still_for_longer_than_its_session_commits_nothing(
    node: Broker, group: str, tmp_path: Path
) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(40, 2))
    command = [sys.executable, "-m", "tests.support.jobs.kafka_member_job", node.address, topic, group]
    zombie = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zombie.stdin is not None and zombie.stdout is not None
    try:
        assert zombie.stdout.readline() == "40 read\n"  # they are done there, and not committed
        zombie.send_signal(signal.SIGSTOP)
        with driving(node, topic, group) as driver:
            assert driver.until_read(40) == texts(*range(40))
            node.produce(topic, numbered(20, 2, 40))
            driver.until_lag(topic, 0)
            zombie.send_signal(signal.SIGCONT)
            zombie.stdin.write("commit\n")
            zombie.stdin.flush()
            driver.until(lambda: len(driver.member.owned) == 1, "the zombie is a member again")
            driver.until_lag(topic, 0)
        said, _ = zombie.communicate("end\n", timeout=90)
    finally:
        zombie.kill()
        zombie.wait()
    found = json.loads(said)
    assert found == {"withdrawn": [0, 1], "read": 40}
    assert node.lag(group, topic) == 0
