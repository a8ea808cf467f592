"""Streams of Spark's own source of Kafka, whose completed offsets are committed to a consumer group."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from pyspark.sql import DataFrame

from acker_redis import RetryPolicy
from acker_redis.acker import app_of
from acker_redis.kafka.commit_metadata import decode
from acker_redis.spark import Once, TrackedBatches, Tracker
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.testing import wait_until
from tests.support.kafka import Broker
from tests.support.spark.cases import Case, MakeCase
from tests.support.targets import classic_only

TWICE = RetryPolicy(max_attempts=2, first_delay_secs=0)


class Stream:
    """A stream of topics in a group of its own.

    Attributes:
        node: the broker.
        group: name of the group.
    """

    def __init__(self, make: MakeCase, *topics: str) -> None:
        self.case: Case = make()
        self.node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
        self.group, self.topics = f"group-{uuid.uuid4().hex[:8]}", topics
        self.folder = Path(self.case.folder)

    def handler(self, *, is_mended: bool = False, **options: Any) -> TrackedBatches:
        """Write the places of records. Those that begin with `poison` fail, until the pipeline is mended."""
        out = str(self.folder / "out")

        def pipeline(tracker: Tracker, records: DataFrame) -> None:
            bad = "false" if is_mended else "startswith(string(value), 'poison')"
            sound = tracker.fail_where(records, bad, "poison")
            rows = sound.selectExpr("topic", "partition", "offset", "_share", "_roots")
            tracker.write(rows, lambda writer: writer.mode("append").parquet(out))

        # Nothing goes out by itself between micro-batches.
        given: dict[str, Any] = {
            "kafka_group": self.group,
            "kafka": {"bootstrap.servers": self.node.address},
            **options,
        }
        return TrackedBatches(
            pipeline, acker=self.case.acker, parking_location=str(self.folder / "parked"), retry=TWICE, batch_wait_secs=600,
            checkpoint_location=str(self.folder / "checkpoint"), **given,
        )  # fmt: skip

    def start(self, handler: Callable[..., Any], **trigger: Any) -> Any:
        options = {"kafka.bootstrap.servers": self.node.address, "subscribe": ",".join(self.topics)}
        stream = self.case.spark.readStream.format("kafka").options(
            **options, startingOffsets="earliest", failOnDataLoss="false"
        )
        return (
            stream.load().writeStream.foreachBatch(handler)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**(trigger or {"availableNow": True})).start()
        )  # fmt: skip

    def run(self, **options: Any) -> TrackedBatches:
        """Run until all records were read. Returns the closed handler."""
        with self.handler(**options) as handler:
            self.start(handler).awaitTermination()
        return handler

    def committed(self, topic: str) -> dict[int, tuple[int, list[tuple[int, int]]]]:
        """Committed offset and runs beyond it, by partition."""
        found = {}
        for number, at in self.node.committed(self.group, topic).items():
            text = decode(at.metadata, at.offset)
            found[number] = at.offset, text.runs if text is not None else []
        return found

    def written(self) -> list[tuple[str, int, int]]:
        """Places of the records that were written, in order."""
        rows = self.case.spark.read.parquet(str(self.folder / "out")).collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)

    def progress(self) -> dict[str, Any]:
        return KafkaProgress(app_of(self.case.acker).client, self.case.acker.config.app, self.group).read()


def numbered(count: int, *, poison: tuple[int, ...] = (), partition: int = 0) -> list[dict[str, Any]]:
    return [{"value": f"poison-{n}" if n in poison else str(n), "partition": partition} for n in range(count)]


def group_gets_completed_offsets(make: MakeCase) -> None:
    """Equal offsets of two topics are different messages. A marker at the end of a transaction holds nothing back."""
    node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
    first, second = node.topic(partitions=2), node.topic()
    node.produce(first, numbered(30, poison=(3, 5)) + numbered(30, partition=1))
    transactions(node, second, 30)
    stream = Stream(make, first, second)
    handler = stream.run()
    assert len(stream.written()) == 88
    assert stream.committed(first) == {0: (3, [(4, 5), (6, 30)]), 1: (30, [])}, stream.committed(first)
    assert stream.committed(second) == {0: (31, [])}, stream.committed(second)
    status = handler.status()
    assert status.parked == {("failed", "fail_where"): 2}
    assert status.commit_problem is None
    assert status.completed_offsets == {f"{first}/0": 3, f"{first}/1": 30, f"{second}/0": 30}
    shown = stream.progress()[f"{first}/0"]
    wanted = {
        "committed": 3, "end": 30, "open": 2, "oldest_open": 3, "oldest_reason": "failed", "oldest_component": "fail_where",
        "done_beyond": 25,
    }  # fmt: skip
    assert {name: shown[name] for name in wanted} == wanted, shown
    with stream.handler() as handler:
        assert handler.drain(60).parked == {}
    assert stream.committed(first)[0] == (30, [])
    places = [json.loads(letter.place or "") for letter in stream.case.acker.dead_letters.read()]
    assert sorted((place["topic"], place["partition"], place["offset"]) for place in places) == [
        (first, 0, 3),
        (first, 0, 5),
    ]
    assert len(stream.written()) == 88


def each_record_is_written_once(make: MakeCase) -> None:
    """Offsets name the records of a stream for ever, so the log needs no name of data.

    A query without its checkpoint begins at the earliest offset, and writes what is new.
    """
    classic_only(make(n=1))
    node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
    topic = node.topic(partitions=2)
    stream, count = Stream(make, topic), 0
    for _ in range(3):
        node.produce(topic, numbered(20, poison=(3,)) + numbered(20, partition=1))
        count += 20
        with stream.handler(once=Once(str(stream.folder / "log")), kafka_group=None, kafka=None) as handler:
            stream.start(handler, availableNow=True).awaitTermination()
            assert handler.drain(120).parked == {}
        bad = {offset for offset in range(count) if offset % 20 == 3}
        assert stream.written() == [
            (topic, partition, offset)
            for partition in range(2)
            for offset in range(count)
            if partition or offset not in bad
        ]
        letters = [letter.message_id for letter in stream.case.acker.dead_letters.read()]
        assert len(letters) == len(set(letters)) == len(bad), letters
        for folder in ("checkpoint", "parked"):
            shutil.rmtree(stream.folder / folder)


def transactions(node: Broker, topic: str, count: int) -> None:
    """Records of a transaction, whose marker takes an offset, too."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": node.address, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, value=str(number))
    producer.commit_transaction(60)


def lost_range_has_a_letter(make: MakeCase) -> None:
    classic_only(make(n=1))
    node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
    topic = node.topic()
    node.produce(topic, numbered(20))
    stream = Stream(make, topic)
    stream.run()
    node.produce(topic, numbered(20))
    node.delete_records(topic, 0, 30)
    stream.run()
    (letter,) = stream.case.acker.dead_letters.read()
    place = json.loads(letter.place or "")
    assert (letter.reason, place["topic"], place["offset"], place["until"]) == ("lost", topic, 20, 30), letter
    assert stream.committed(topic) == {0: (40, [])}
    assert [offset for *_, offset in stream.written()] == [*range(20), *range(30, 40)]


def recreated_topic_ends_the_query(make: MakeCase) -> None:
    """Spark alone would skip the first twenty records of the new one."""
    classic_only(make(n=1))
    node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
    topic = node.topic()
    node.produce(topic, numbered(20, poison=(4,)))
    stream = Stream(make, topic)
    stream.run()
    admin = node.admin()  # what it was asked ends with it
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone", timeout_secs=60)
    node.topic(topic)
    wait_until(lambda: stream.committed(topic) == {}, "its commits went with it", timeout_secs=60)
    node.produce(topic, numbered(50))
    try:
        stream.run()
    except Exception as exc:
        assert f"Topic '{topic}' was deleted and created again" in str(exc), exc
    else:
        raise AssertionError("the new topic was taken for the old one")
    assert len(stream.written()) == 19
    with stream.handler(is_mended=True) as handler:
        assert handler.drain(60).parked == {}
    assert len(stream.written()) == 20
    assert stream.committed(topic) == {}


def foreign_member_stops_nothing(make: MakeCase) -> None:
    classic_only(make(n=1))
    node = Broker.at(os.environ["ACKER_TESTS_KAFKA"].split()[0])
    topic = node.topic()
    stream = Stream(make, topic)
    foreign = Consumer({"bootstrap.servers": node.address, "group.id": stream.group, "enable.auto.commit": False})
    foreign.subscribe([topic])

    def is_member() -> bool:
        foreign.poll(0.1)
        return bool(foreign.assignment())

    wait_until(is_member, "the other program is a member", timeout_secs=60)
    node.produce(topic, numbered(20))
    with stream.handler() as handler:
        query = stream.start(handler, processingTime="0 seconds")
        try:
            wait_until(lambda: handler.status().commit_problem is not None, "the commit is refused", timeout_secs=120)
            assert "another program is a member of the group" in str(handler.status().commit_problem)
            assert handler.status().counts.acked == 20
            assert stream.committed(topic) == {}
            foreign.close()
            wait_until(lambda: stream.committed(topic) == {0: (20, [])}, "the commit is repeated", timeout_secs=60)
            wait_until(lambda: handler.status().commit_problem is None, "the status knows", timeout_secs=60)
        finally:
            query.stop()


STREAMS = (
    group_gets_completed_offsets,
    each_record_is_written_once,
    lost_range_has_a_letter,
    recreated_topic_ends_the_query,
    foreign_member_stops_nothing,
)
