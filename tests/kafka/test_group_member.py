"""The member of a group, on a real broker and without Spark: assignments, commits, lost ranges, topics made again."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from acker_redis import AckerError
from acker_redis.kafka import group_member
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.commit_metadata import encode
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.record_reader import Place, RecordReader
from acker_redis.testing import wait_until
from tests.support.kafka import Broker, again, broker

pytestmark = pytest.mark.server


class Driver:
    """A member, and what became of its records. One thread uses it.

    Attributes:
        read: records as (partition, value), in order.
        events: what the listener was told of.
        ids: topic -> its id, as drivers note it: those that a test puts there, and those of topics that were made again.
    """

    def __init__(
        self,
        node: Broker,
        topics: list[str],
        group: str,
        start: str = "earliest",
        known_id: Callable[[str], str | None] | None = None,
        unread: str | None = None,
        **kafka: object,
    ) -> None:
        self.node, self.group = node, group
        self.ids: dict[str, str] = {}
        self.read: list[tuple[int, str]] = []
        self.open: list[tuple[Owned, int]] = []
        self.events: list[tuple[Any, ...]] = []
        settings = {
            "bootstrap.servers": node.address,
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
            **kafka,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        client = consumer_settings({**given, "topic.metadata.refresh.interval.ms": 500}, group, unread)
        self.member = GroupMember(client, topics, start, self, 0.0, known_id or self.ids.get)  # type: ignore[arg-type]

    def withdrawn(self, owned: Owned) -> None:
        self.events.append(("withdrawn", owned.number, owned.progress.open))
        self.open = [(other, offset) for other, offset in self.open if other is not owned]

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        self.events.append(("lost", owned.number, begin, end))
        is_cut_off = begin not in owned.progress.open  # by an election, and other records may stand there
        assert is_cut_off or owned.progress.until() <= begin
        owned.progress.done(begin)

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        self.events.append(("recreated", topic))
        self.ids[topic] = new_id

    def step(self, count: int = 100, *, keeps: Callable[[str], bool] = lambda value: False) -> None:
        """Read, and be done at once with all records but some."""
        for owned, record in self.member.read(count, 0.1):
            value = record.value().decode()
            self.read.append((owned.number, value))
            if keeps(value):
                self.open.append((owned, record.offset()))
            else:
                owned.progress.done(record.offset())
        self.member.commit()

    def until(self, condition: Callable[[], object], what: str, **options: Any) -> None:
        def stepped() -> bool:
            self.step(**options)
            return bool(condition())

        wait_until(stepped, what, timeout_secs=90)

    def until_read(self, number: int, **options: Any) -> list[str]:
        """Go on until so many records were read; their values, sorted."""
        self.until(lambda: len(self.read) >= number, f"{number} records are read", **options)
        return sorted((value for _, value in self.read), key=int)

    def until_lag(self, topic: str, lag: int, **options: Any) -> None:
        self.until(lambda: self.node.lag(self.group, topic) == lag, f"the lag is {lag}", **options)


@contextmanager
def driving(node: Broker, topic: str, group: str, **options: Any) -> Iterator[Driver]:
    driver = Driver(node, [topic], group, **options)
    try:
        yield driver
    finally:
        driver.member.close()


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def numbered(count: int, partitions: int, begin: int = 0) -> list[dict[str, Any]]:
    return [{"value": str(n), "partition": n % partitions} for n in range(begin, begin + count)]


def texts(*numbers: int) -> list[str]:
    return [str(n) for n in numbers]


def delete(node: Broker, group: str) -> None:
    """Delete a group, once it has no member."""
    from confluent_kafka import KafkaException

    admin = node.admin()

    def is_deleted() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(60)
        except KafkaException as exc:
            if exc.args[0].name() != "NON_EMPTY_GROUP":
                raise
            return False
        return True

    wait_until(is_deleted, "the group has no member, and is deleted", timeout_secs=120)


def test_restart_goes_on_beyond_the_gap(node: Broker, group: str) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(1000, 2))
    with driving(node, topic, group) as first:
        assert first.until_read(1000, keeps=lambda value: value in ("10", "501")) == texts(*range(1000))
    assert {number: at.offset for number, at in node.committed(group, topic).items()} == {0: 5, 1: 250}
    node.produce(topic, numbered(4, 2, 1000))
    with driving(node, topic, group) as second:
        assert second.until_read(6) == texts(10, 501, 1000, 1001, 1002, 1003)
        second.until_lag(topic, 0)
        assert len(second.read) == 6


def test_unread_runs_survive_a_restart_in_between(node: Broker, group: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(100, 1))
    with driving(node, topic, group) as first:
        first.until_read(100, keeps=lambda value: value == "0")
    with driving(node, topic, group) as second:
        second.until(lambda: second.read, "the open record is read", count=1, keeps=lambda value: True)
    with driving(node, topic, group) as third:
        assert third.until_read(1) == texts(0)
        third.until_lag(topic, 0)
        assert len(third.read) == 1


@pytest.mark.parametrize(("start", "expected"), [("earliest", [0, 1, 2, 3]), ("latest", [2, 3])])
def test_start_is_committed_before_anything_is_read(node: Broker, group: str, start: str, expected: list[int]) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(2, 2))
    with driving(node, topic, group, start=start) as first:
        first.until(lambda: first.member.owned, "partitions are assigned", count=0)
        begins = {0: 0, 1: 0} if start == "earliest" else {0: 1, 1: 1}
        assert {number: at.offset for number, at in node.committed(group, topic).items()} == begins
        first.member._consumer.close()  # without a commit, as in a crash
        first.member._consumer = None
    node.produce(topic, numbered(2, 2, 2))
    with driving(node, topic, group, start=start) as second:
        assert second.until_read(len(expected)) == texts(*expected)


def test_added_partition_begins_at_its_first_record(node: Broker, group: str) -> None:
    from confluent_kafka.cimpl import NewPartitions

    topic = node.topic()
    with driving(node, topic, group, start="latest") as driver:
        driver.until(lambda: driver.member.owned, "partitions are assigned")
        admin = node.admin()
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        wait_until(lambda: len(node.ends(topic)) == 2, "the partition is there")
        node.produce(topic, [{"value": "7", "partition": 1}])
        assert driver.until_read(1) == texts(7)


def test_records_that_retention_deleted_are_a_lost_range(node: Broker, group: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(100, 1))
    with driving(node, topic, group) as first:
        first.until_read(100, keeps=lambda value: value in ("5", "40"))
        first.until(lambda: node.committed(group, topic)[0].offset == 5, "the commit is there")
        node.delete_records(topic, 0, 60)
        node.produce(topic, numbered(2, 1, 100))
        first.until_read(102)  # what is in memory isn't lost
        assert first.events == []
    with driving(node, topic, group) as second:
        second.until_lag(topic, 0)
        assert second.read == []
        assert second.events == [("lost", 0, 5, 6), ("lost", 0, 40, 41)]


@pytest.mark.parametrize("count", [3, 30])
def test_topic_made_again_while_nobody_runs_is_read_from_its_beginning(node: Broker, group: str, count: int) -> None:
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    with driving(node, topic, group) as first:
        first.until_read(10)
        first.until_lag(topic, 0)
    again(node, topic)
    node.produce(topic, numbered(count, 1, 100))
    with driving(node, topic, group) as second:
        assert second.until_read(count) == texts(*range(100, 100 + count))


@pytest.mark.parametrize("count", [3, 30])
def test_topic_made_again_while_it_is_read_is_noticed(node: Broker, group: str, count: int) -> None:
    """By a look at its id, or by the client, which gives up a partition if it sees that there is no topic meanwhile."""
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    with driving(node, topic, group) as driver:
        driver.until_read(10, keeps=lambda value: value == "3")
        driver.ids[topic] = driver.member.owned[0].topic_id
        again(node, topic)
        node.produce(topic, numbered(count, 1, 100))
        again_read = {(0, str(n)) for n in range(100, 100 + count)}
        # Until the look at its id, the client may read the new topic from the old one's position.
        driver.until(lambda: again_read <= set(driver.read[-count:]), "the new topic is read from its beginning")
        assert driver.events == [("withdrawn", 0, [3]), ("recreated", topic)]
        driver.until_lag(topic, 0)


def test_commit_of_another_topic_id_is_void(node: Broker, group: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    node.commit(group, topic, {0: (7, encode("A" * 22, 7, 0, [(8, 10)]))})
    with driving(node, topic, group) as driver:
        assert driver.until_read(10) == texts(*range(10))
        assert driver.events == [("recreated", topic)]


@pytest.mark.parametrize("text", ["", "by hand", "acker1 ", "acker1 {id} 0 !!!!", "acker1 {id} 0 AAAA", "x" * 4000])
def test_commit_of_another_program_is_believed_without_runs(node: Broker, group: str, text: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    with driving(node, topic, group) as first:
        first.until(lambda: first.member.owned, "partitions are assigned", count=0)
        topic_id = first.member.owned[0].topic_id
    node.commit(group, topic, {0: (7, text.replace("{id}", topic_id))})
    with driving(node, topic, group) as driver:
        assert driver.until_read(3) == texts(7, 8, 9)
        assert driver.events == []


def test_members_share_partitions_and_the_next_owner_goes_on_beyond_the_gap(node: Broker, group: str) -> None:
    topic = node.topic(partitions=4)
    node.produce(topic, numbered(400, 4))
    with driving(node, topic, group) as first, driving(node, topic, group) as second:
        keeps: dict[str, Any] = {"keeps": lambda value: int(value) in (4, 5, 6, 7)}
        first.until_read(400, **keeps)

        def shared() -> bool:
            first.step(**keeps)
            second.step(**keeps)
            return len(first.member.owned) == len(second.member.owned) == 2

        wait_until(shared, "the partitions are shared", timeout_secs=90)

        def is_read() -> bool:
            first.step(**keeps)
            second.step(**keeps)
            return len(second.read) == 2

        wait_until(is_read, "the new owner has the open records", timeout_secs=90)
        assert {event[0] for event in first.events} == {"withdrawn"}
        moved = {event[1] for event in first.events}
        assert {number for number, _ in second.read} == moved
        assert sorted(int(value) for _, value in second.read) == sorted(4 + number for number in moved)
        second.member.close()
        for owned, offset in first.open:
            owned.progress.done(offset)
        first.until_read(402)
        first.until_lag(topic, 0)


def test_partition_that_left_a_full_member_is_read_when_it_is_back(node: Broker, group: str) -> None:
    """The client keeps a partition paused that was paused when it left, and there is room again when it comes back."""
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(10, 2))
    with driving(node, topic, group) as first, driving(node, topic, group) as second:
        first.until(lambda: len(first.member.owned) == 2, "both partitions are assigned", count=0)

        def shared() -> bool:
            first.step(count=0)
            second.step(count=0)
            return len(first.member.owned) == len(second.member.owned) == 1

        wait_until(shared, "the partitions are shared", timeout_secs=90)
        first.until_read(5)
        second.member.close()
        assert first.until_read(10) == texts(*range(10))


def test_only_committed_transactions_are_read_and_the_lag_ends_behind_their_markers(node: Broker, group: str) -> None:
    from confluent_kafka import Producer

    topic = node.topic()
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": group, "log_level": 0})
    producer.init_transactions(60)
    for begin, is_committed in ((0, True), (10, False), (20, True)):
        producer.begin_transaction()
        for n in range(begin, begin + 5):
            producer.produce(topic, str(n))
        producer.flush(60)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(60)
    with driving(node, topic, group) as driver:
        assert driver.until_read(10) == texts(*range(5), *range(20, 25))
        driver.until_lag(topic, 0)


def test_full_member_keeps_its_membership_and_reads_on_later(node: Broker) -> None:
    """If this process itself stands still for as long as the interval, that shows nothing, and another member tries."""
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    limits = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}

    def is_tried() -> bool:
        steps = [time.monotonic()]
        with driving(node, topic, f"group-{uuid.uuid4().hex[:8]}", **limits) as driver:

            def until_read(number: int, least_secs: float, **options: Any) -> list[str]:
                end = time.monotonic() + least_secs

                def is_over() -> bool:
                    steps.append(time.monotonic())
                    return steps[-1] > end and len(driver.read) >= number

                driver.until(is_over, f"{number} records are read", **options)
                return sorted(value for _, value in driver.read)

            read = until_read(3, 0.0, count=3), until_read(3, 8.0, count=0), until_read(10, 0.0)
            if max(later - earlier for earlier, later in pairwise(steps)) > 3:
                return False
            assert (len(read[0]), read[1], read[2]) == (3, read[0], texts(*range(10)))
            assert driver.events == []
        return True

    wait_until(is_tried, "a member was tried without a pause", timeout_secs=240)


def test_deleted_group_gets_its_commit_again(node: Broker, group: str) -> None:
    topic = node.topic()
    node.produce(topic, numbered(10, 1))
    with driving(node, topic, group) as first:
        first.until_read(10)
    delete(node, group)
    with driving(node, topic, group) as second:
        assert second.until_read(10) == texts(*range(10))
        second.until_lag(topic, 0)


def test_missing_topic_is_named_and_read_once_it_is_there(node: Broker, group: str, caplog: Any) -> None:
    name = f"later-{uuid.uuid4().hex[:8]}"
    with caplog.at_level(logging.WARNING), driving(node, name, group) as driver:
        driver.until(lambda: name in caplog.text, "the log names the topic")
        node.topic(name)
        node.produce(name, numbered(3, 1))
        assert driver.until_read(3) == texts(0, 1, 2)


@pytest.mark.parametrize("again_secs", [0.5, 3600.0])
def test_an_unchanged_offset_is_committed_again_after_a_day(
    node: Broker, group: str, monkeypatch: pytest.MonkeyPatch, again_secs: float
) -> None:
    """Brokers forget old ones. Here a day is half a second, or more than the test."""
    monkeypatch.setattr(group_member, "_AGAIN_SECS", again_secs)
    topic = node.topic()
    node.produce(topic, numbered(3, 1))
    with driving(node, topic, group) as driver:
        driver.until_read(3)
        driver.until_lag(topic, 0)
        (owned,) = driver.member.owned
        driver.until(lambda: owned.committed == owned.commit(), "the answer has come")
        times = {owned.committed_at}

        def steps() -> bool:
            times.add(owned.committed_at)
            steps_done.append(None)
            return len(times) > 2 or (again_secs > 1 and len(steps_done) > 20)

        steps_done: list[None] = []
        driver.until(steps, "it is committed again, or twenty steps pass")
        assert len(times) == (3 if again_secs < 1 else 1)


def test_a_topic_that_is_deleted_and_not_made_again_is_named(node: Broker, group: str, caplog: Any) -> None:
    topic = node.topic()
    node.produce(topic, numbered(3, 1))
    with caplog.at_level(logging.WARNING), driving(node, topic, group) as driver:
        driver.until_read(3)
        admin = node.admin()
        admin.delete_topics([topic])[topic].result(60)
        driver.until(lambda: f"topic={topic}" in caplog.text, "the log names the topic")
    assert "topic deleted" in caplog.text and "topic not found" not in caplog.text


def test_pattern_leaves_out_the_topic_of_the_letters(node: Broker, group: str) -> None:
    """Else letters would be read, fail, and be written again without an end."""
    prefix = f"many-{uuid.uuid4().hex[:8]}"
    for name in (prefix, f"{prefix}.dlq", f"{prefix}-dlq"):
        node.topic(name)
        node.produce(name, numbered(2, 1))
    with driving(node, f"^{prefix}", group, unread=f"{prefix}.dlq") as driver:
        driver.until_read(4)
        assert {owned.topic for owned in driver.member.owned} == {prefix, f"{prefix}-dlq"}


@pytest.mark.parametrize("kafka", [{}, {"group.protocol": "consumer"}])
def test_pattern_of_a_group_that_the_broker_matches_leaves_it_out_too(node: Broker, group: str, kafka: Any) -> None:
    prefix = f"many-{uuid.uuid4().hex[:8]}"
    for name in (prefix, f"{prefix}.dlq"):
        node.topic(name)
        node.produce(name, numbered(2, 1))
    given = {"session.timeout.ms": None, "heartbeat.interval.ms": None} if kafka else {}
    with driving(node, f"^{prefix}", group, unread=f"{prefix}.dlq", **given, **kafka) as driver:
        driver.until_read(2)
        assert {owned.topic for owned in driver.member.owned} == {prefix}


def test_pattern_finds_new_topics(node: Broker, group: str) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    node.topic(f"{prefix}-a")
    node.topic("other" + prefix)
    with driving(node, f"^{prefix}", group) as driver:
        driver.until(lambda: driver.member.owned, "the first topic is there")
        node.topic(f"{prefix}-b")
        for name in (f"{prefix}-a", f"{prefix}-b", "other" + prefix):
            node.produce(name, numbered(1, 1))
        driver.until_read(2)
        assert {owned.topic for owned in driver.member.owned} == {f"{prefix}-a", f"{prefix}-b"}


def test_refused_login_ends_the_membership_without_showing_secrets(node: Broker, group: str, caplog: Any) -> None:
    secret = "pa55word-of-billing"
    sasl = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "billing", "sasl.password": secret,
    }  # fmt: skip
    with caplog.at_level(logging.DEBUG), driving(node, "t", group, **sasl) as driver:
        with pytest.raises(AckerError, match="_AUTHENTICATION") as raised:
            driver.until(lambda: False, "the broker refuses")
        assert secret not in f"{caplog.text} {driver.member!r} {raised.value!r}"


def test_single_records_are_found_and_gone_ones_left_out(node: Broker, group: str) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(3000, 2))
    node.delete_records(topic, 1, 10)
    with driving(node, topic, group) as driver:
        driver.until(lambda: driver.member.owned, "partitions are assigned", count=0)
        topic_id = driver.member.owned[0].topic_id
    there = [Place(topic, topic_id, 0, offset) for offset in (0, 1, 2, 7, 1400, 1499)] + [Place(topic, topic_id, 1, 10)]
    gone = [
        Place(topic, topic_id, 0, 1500), Place(topic, topic_id, 0, 9000), Place(topic, topic_id, 1, 9),
        Place(topic, topic_id, 7, 0), Place(topic, "A" * 22, 0, 3), Place("not-there", topic_id, 0, 3),
    ]  # fmt: skip
    reader = RecordReader(consumer_settings({"bootstrap.servers": node.address}, group))
    found: list[dict[Place, Any]] = []

    def is_read() -> bool:
        if (read := reader.read([*there, *gone])) is not None:
            found.append(read)
        return bool(found)

    wait_until(is_read, "the records are read", timeout_secs=90)
    values = {place: record.value().decode() for place, record in found[0].items()}
    assert values == {place: str(2 * place.offset + place.partition) for place in there}


def test_protocol_of_kafka_4_serves_restarts_and_rebalances(node: Broker, group: str) -> None:
    topic = node.topic(partitions=2)
    node.produce(topic, numbered(100, 2))
    new = {"group.protocol": "consumer", "session.timeout.ms": None, "heartbeat.interval.ms": None}
    keeps: dict[str, Any] = {"keeps": lambda value: int(value) < 2}
    with driving(node, topic, group, **new) as first, driving(node, topic, group, **new) as second:
        first.until_read(100, **keeps)

        def is_shared() -> bool:
            for one in (first, second):
                one.step(**keeps)
            return len(first.member.owned) == len(second.member.owned) == len(second.read) == 1

        wait_until(is_shared, "the new owner has the open record of its partition", timeout_secs=90)
    with driving(node, topic, group, **new) as third:
        assert third.until_read(2) == texts(0, 1)
        third.until_lag(topic, 0)


@pytest.mark.chaos
def test_member_leaves_while_the_brokers_are_away_and_rejoins_when_they_are_back(group: str) -> None:
    with broker() as mortal:
        topic = mortal.topic()
        mortal.produce(topic, numbered(10, 1))
        with driving(mortal, topic, group, **{"session.timeout.ms": 6000}) as first:
            first.until_read(10)
            first.until_lag(topic, 0)
            mortal.kill()
            for _ in range(20):
                first.step()
            mortal.start()
            mortal.produce(topic, numbered(10, 1, 10))
            assert first.until_read(20) == texts(*range(20))
            first.until_lag(topic, 0)
            mortal.kill()
