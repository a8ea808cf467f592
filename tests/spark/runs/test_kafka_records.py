"""Drivers of a group that crash, join and leave at random, on a real broker and without Spark, with an oracle."""

import json
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from acker_redis import Acker, AckerError, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.errors import ServerUnavailableError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.commit_metadata import decode
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.letter_topic import LetterTopic
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.record_ids import RecordIds
from acker_redis.kafka.record_reader import RecordReader
from acker_redis.spark.runs import kafka_records
from acker_redis.spark.runs.kafka_imports import KafkaImports
from acker_redis.spark.runs.kafka_records import KafkaRecords
from acker_redis.spark.runs.options import KafkaPolicies
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.spout import Spout
from acker_redis.store import kafka_progress
from acker_redis.store.dead_letter import FROM_SOURCE
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.testing import fake_acker, wait_until
from tests.support.kafka import Broker, again

pytestmark = pytest.mark.server

Place = tuple[int, int]


class Driver:
    """A driver whose jobs are calls of the ledger. They write first, and ack then, as a pipeline does."""

    def __init__(
        self,
        node: Broker,
        acker: Acker,
        lane: int,
        topics: list[str],
        group: str,
        sink: dict[Place, int],
        *,
        on_lost: Literal["letter", "raise"] = "letter",
        on_recreated: Literal["raise", "restart"] = "restart",
        start: Literal["earliest", "latest"] = "earliest",
        letters: str | None = None,
        max_bytes: int = 2**20,
        imports: bool = False,
    ) -> None:
        self.acker, self.sink = acker, sink
        settings = {
            "bootstrap.servers": node.address, "session.timeout.ms": 60_000, "heartbeat.interval.ms": 300, "log_level": 0,
        }  # fmt: skip
        client = consumer_settings(settings, group)
        policies = KafkaPolicies(on_lost, on_recreated, start, group, 0, max_bytes)
        progress = KafkaProgress(app_of(acker).client, acker.config.app, group)
        topic = None if letters is None else LetterTopic(settings, letters)
        imported = KafkaImports(acker, group, topics) if imports else None
        self.records = KafkaRecords(None, policies, progress, RecordReader(client), topic, imported)  # type: ignore[arg-type]
        self.spout = Spout(
            acker, uuid.uuid4().hex, lane, RetryPolicy(max_attempts=2, first_delay_secs=0), place=self.records.places,
            on_letters=self.records.written, on_done=self.records.done, goes_on=True, replay=self.records.load_replays,
            replays_from=FROM_SOURCE, identify=self.records.identify,
        )  # fmt: skip
        self.member = GroupMember(client, topics, start, self.records, 0.0, self.records.known_id)
        self.records.spout, self.records.member = self.spout, self.member
        self.running: list[tuple[int, Place, bool]] = []
        self.holds = False  # whether jobs go on

    def step(self, luck: random.Random) -> None:
        self.records.read(max(0, 60 - self.spout.state.left), 0.0)
        if (emission := self.spout.next_emission()) is not None:
            self.acker.init_many(emission.roots, np.ones(len(emission.roots), np.uint64), self.spout.spout_id)
            for root, message in zip(emission.roots.tolist(), emission.message_ids.tolist(), strict=True):
                found = self.records._find(message)
                assert found is not None
                owned, record = found
                self.running.append((root, (owned.number, record.offset()), is_poison(record)))
        luck.shuffle(self.running)
        for _ in range(0 if self.holds else luck.randrange(20)):
            if self.running:
                self.end(*self.running.pop())
        self.spout.poll()
        self.records.secure()
        self.member.commit()

    def end(self, root: int, place: Place, is_poison: bool) -> None:  # noqa: FBT001
        if is_poison:
            self.acker.fail_many([root])
        else:
            self.sink[place] = self.sink.get(place, 0) + 1
            self.acker.ack_many([root], [1])

    def crash(self) -> None:
        """Leave without a commit. The broker hears of it, so that the test needn't wait for its session."""
        consumer, self.member._consumer = self.member._consumer, None
        if consumer is not None:
            self.member._owned.clear()
            consumer.close()


def is_poison(record: Any) -> bool:
    return bool((record.value() or b"").startswith(b"poison"))


def check(node: Broker, group: str, topic: str, acker: Acker, sink: dict[Place, int]) -> None:
    """Whatever is committed was written, or has a letter."""
    commits = node.committed(group, topic)
    places = [json.loads(letter.place or "") for letter in acker.dead_letters.read(10_000)]
    accounted = {*sink, *((place["partition"], place["offset"]) for place in places)}
    for number, at in commits.items():
        found = decode(at.metadata, at.offset)
        for begin, end in [(0, at.offset), *(found.runs if found else [])]:
            missing = {(number, offset) for offset in range(begin, end)} - accounted
            assert not missing, f"committed {at.offset}, {at.metadata}: neither written nor a letter: {missing}"


@pytest.mark.parametrize(
    ("seed", "most"),
    [(1, 3), *(pytest.param(seed, 12, marks=pytest.mark.chaos) for seed in range(2, 6))],
)
def test_no_record_is_committed_before_it_is_done(node: Broker, seed: int, most: int) -> None:
    luck = random.Random(seed)
    topic, group = node.topic(partitions=4), f"group-{uuid.uuid4().hex[:8]}"
    values = ["poison" if luck.random() < 0.05 else "fine" for _ in range(800)]
    node.produce(topic, [{"value": value, "partition": n % 4} for n, value in enumerate(values)])
    acker = fake_acker(lanes=2)
    sink: dict[Place, int] = {}
    drivers: dict[int, Driver] = {}
    events = 0

    def step() -> bool:
        nonlocal events
        for lane in (0, 1):
            if lane not in drivers:
                drivers[lane] = Driver(node, acker, lane, [topic], group, sink)
            driving = drivers[lane]
            driving.step(luck)
            if events < most and driving.member.owned and luck.random() < 0.05:
                events += 1
                if luck.random() < 0.5:
                    driving.crash()
                else:
                    driving.member.close()
                del drivers[lane]
        if luck.random() < 0.3:
            check(node, group, topic, acker, sink)
        return events == most and node.lag(group, topic) == 0

    try:
        wait_until(step, "everything is committed", timeout_secs=180)
        check(node, group, topic, acker, sink)
    finally:
        for driving in drivers.values():
            driving.crash()
    places = [json.loads(letter.place or "") for letter in acker.dead_letters.read(10_000)]
    letters = {(place["partition"], place["offset"]) for place in places}
    poison = {(n % 4, n // 4) for n, value in enumerate(values) if value == "poison"}
    assert letters == poison
    assert set(sink) == {(n % 4, n // 4) for n in range(800)} - poison


@contextmanager
def driving(node: Broker, acker: Acker, *topics: str, **options: Any) -> Iterator[Driver]:
    driver = Driver(node, acker, 0, list(topics), "g-" + topics[-1], {}, **options)
    try:
        yield driver
    finally:
        driver.member.close()


def until(driver: Driver, condition: Callable[[], bool], what: str) -> None:
    luck = random.Random(1)

    def stepped() -> bool:
        driver.step(luck)
        return condition()

    wait_until(stepped, what, timeout_secs=90)


def produce(node: Broker, topic: str, count: int, *poison: int) -> None:
    values = ["poison" if n in poison else "fine" for n in range(count)]
    node.produce(topic, [{"value": value, "key": str(n), "headers": [("h", b"1")]} for n, value in enumerate(values)])


def places(acker: Acker) -> list[dict[str, Any]]:
    return [json.loads(letter.place or "") for letter in acker.dead_letters.read()]


class Record(NamedTuple):
    """A record as the client returns it."""

    at: int
    kind: int = 1
    words: bytes | None = None
    pairs: list[tuple[str, bytes | None]] | None = None

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.at + 1

    def key(self) -> bytes | None:
        return self.words

    def value(self) -> bytes | None:
        return self.words

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.pairs


def test_rows_of_an_emission_are_its_records_that_were_not_withdrawn() -> None:
    spark, policies, ids = Mock(), KafkaPolicies("letter", "raise", "earliest", "group", 0, 2**20), RecordIds()
    spark.createDataFrame = lambda data, *_: data
    records = KafkaRecords(spark, policies, Mock(), Mock(), None)
    first, other = (
        Owned("orders", number, f"id of {number}", PartitionProgress(0), ids.first_of("orders", number))
        for number in (7, 2)
    )
    records._entries = {
        first.first_id + 3: (first, Record(3, words=b"three", pairs=[("h", None)])),
        other.first_id + 3: (other, Record(3, kind=0)),
        first.first_id + 5: (first, Record(5, words=b"")),
    }
    here = [other.first_id + 3, first.first_id + 5, first.first_id + 3]
    gone = [first.first_id + 4, other.first_id + 9]
    emitted = np.array([gone[0], *here[:2], gone[1], here[2]], np.int64)
    emission = Emission(1, emitted, np.zeros(5, np.int64), emitted + 100)
    messages_of: Any = records.messages_of
    rows, left = messages_of(emission)
    assert left.message_ids.tolist() == here and left.roots.tolist() == [one + 100 for one in here]
    assert rows.drop_columns(["timestamp"]).to_pylist() == [
        {"_acker_record": message_id, "topic": "orders", "topic_id": f"id of {number}", "partition": number}
        | {"offset": offset, "key": words, "value": words, "headers": pairs}
        for message_id, number, offset, words, pairs in zip(
            here, [2, 7, 7], [3, 5, 3], [None, b"", b"three"], [None, None, [{"key": "h", "value": None}]], strict=True
        )
    ]
    times = rows.column("timestamp").to_pylist()
    assert [time if time is None else time.timestamp() for time in times] == [None, 0.006, 0.004]
    records._replayed[gone[0]] = first, Record(4, words=b"replayed")
    rows, left = messages_of(emission)
    assert (left.message_ids.tolist(), rows.num_rows) == ([gone[0], *here], 4)
    assert rows.column("value").to_pylist()[0] == b"replayed"
    rows, left = messages_of(emission.only(np.array([False, False, False, True, False])))
    assert (left.message_ids.tolist(), rows) == ([], [])


def test_lost_range_has_a_letter_or_ends_the_run(node: Broker) -> None:
    topic, acker = node.topic(), fake_acker()
    produce(node, topic, 50)
    with driving(node, acker, topic) as first:
        until(first, lambda: len(first.sink) == 50, "all are written")
    produce(node, topic, 50)
    node.delete_records(topic, 0, 80)
    with driving(node, acker, topic, on_lost="raise") as second, pytest.raises(AckerError, match="Records 50 to 79"):
        until(second, lambda: False, "it ends")
    assert (node.lag(f"g-{topic}", topic), places(acker)) == (50, [])
    with driving(node, acker, topic) as third:
        until(third, lambda: node.lag(f"g-{topic}", topic) == 0, "all are committed")
    (place,) = places(acker)
    assert (place["topic"], place["partition"], place["offset"], place["until"]) == (topic, 0, 50, 80)
    assert sorted(third.sink) == [(0, offset) for offset in range(80, 100)]


def test_dead_letters_are_in_their_topic_before_offsets_pass_them(node: Broker) -> None:
    topic, letters, acker = node.topic(), node.topic(), fake_acker()
    produce(node, topic, 20, 4, 5)
    with driving(node, acker, topic, letters=letters) as driver:
        until(driver, lambda: node.lag(f"g-{topic}", topic) == 0, "all are committed")
    found = node.read(letters)
    assert sorted((message.key(), message.value()) for message in found) == [(b"4", b"poison"), (b"5", b"poison")]
    for message in found:
        headers = dict(message.headers())
        assert (headers["h"], headers["__connect.errors.topic"]) == (b"1", topic.encode())
        assert (headers["__connect.errors.offset"], headers["acker-attempts"]) == (message.key(), b"2")
    assert len(places(acker)) == 2


def test_dead_letter_is_replayed_from_its_topic_by_another_run(node: Broker) -> None:
    """The second run meets another topic first, so that its message ids differ."""
    topic, other, acker = node.topic(), node.topic(), fake_acker()
    produce(node, topic, 20, 9)
    with driving(node, acker, topic) as first:
        until(first, lambda: node.lag(f"g-{topic}", topic) == 0, "all are committed")
    assert acker.dead_letters.replay() == 1
    produce(node, other, 20)
    with driving(node, acker, other, topic) as second:
        until(second, lambda: len(second.member.owned) == 2, "both topics are assigned")
        second.end = lambda root, place, is_poison: Driver.end(second, root, place, False)  # type: ignore[method-assign]

        def is_replayed() -> bool:
            second.spout.claim_replays()
            return acker.dead_letters.count() == 0 and sum(second.sink.values()) == 21

        until(second, is_replayed, "the letter is gone")
    assert (second.sink[0, 9], acker.dead_letters.replaying()) == (2, 0)


def test_progress_names_the_oldest_record_and_leaves_out_deleted_topics(
    node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_progress, "_LOOK_SECS", 0.2)
    monkeypatch.setattr(kafka_progress, "_SILENT_SECS", 1.0)
    monkeypatch.setattr(kafka_records, "_PUBLISH_SECS", 0.1)
    other, topic, acker = node.topic(), node.topic(), fake_acker()
    produce(node, topic, 20, 9)
    produce(node, other, 5)
    progress = KafkaProgress(app_of(acker).client, acker.config.app, f"g-{topic}")
    failed: list[int] = []
    with driving(node, acker, other, topic) as driver:

        def end(root: int, place: Place, is_poison: bool) -> None:  # noqa: FBT001
            """The second attempt of what is poison hangs."""
            if not is_poison:
                driver.acker.ack_many([root], [1])
            elif not failed:
                failed.append(root)
                driver.acker.fail_many([root], reason="broken", component="parse")

        driver.end = end  # type: ignore[method-assign]
        wanted = {
            "earliest": 0, "end": 20, "committed": 9, "open": 1, "done_beyond": 10, "oldest_open": 9,
            "oldest_reason": "failed", "oldest_component": "parse",
        }  # fmt: skip

        def shown() -> dict[str, Any]:
            driver.records.publish()
            return progress.read()

        def is_shown() -> bool:
            values = shown()
            return f"{other}/0" in values and wanted.items() <= values.get(f"{topic}/0", {}).items()

        until(driver, is_shown, "the open record is shown")
        admin = node.admin()  # what it was asked ends with it
        admin.delete_topics([other])[other].result(60)
        until(driver, lambda: shown().keys() == {f"{topic}/0"}, "the deleted topic is gone")
        assert driver.records.known_id(other) is not None, "another topic of its name would be taken for it"
        driver.records.has_ended = True
    ended = progress.read()[f"{topic}/0"]
    assert (ended["ended"], ended["committed"], ended["end"]) == (True, 9, 20)


def test_a_server_that_is_away_delays_the_end_once_and_not_by_partition() -> None:
    progress = Mock(write=Mock(side_effect=ServerUnavailableError("away")))
    policies = KafkaPolicies("letter", "raise", "earliest", "g", 0, 2**20)
    records = KafkaRecords(Mock(), policies, progress, Mock(), None)
    records.spout = Mock(spout_id=0, run_id="run")
    records.member = Mock(earliest_of=Mock(return_value=0), end_of=Mock(return_value=0))
    records.has_ended = True
    for number in range(3):
        records.withdrawn(Owned("t", number, "id", PartitionProgress(0), 0))
    assert progress.write.call_count == 1


@pytest.mark.parametrize("is_repaired", [True, False])
def test_letter_that_isnt_safe_yet_can_be_replayed(
    node: Broker, monkeypatch: pytest.MonkeyPatch, is_repaired: bool
) -> None:
    look = KafkaProgress.look_at_letters
    topic, acker = node.topic(), fake_acker()
    produce(node, topic, 20, 9)
    with driving(node, acker, topic) as driver:
        with monkeypatch.context() as uncopied:
            uncopied.setattr(KafkaProgress, "look_at_letters", lambda *given: look(*given)._replace(is_copied=False))
            uncopied.setattr("acker_redis.store.kafka_letters._SECURE_SECS", 0.0)
            until(driver, lambda: acker.dead_letters.count() == 1 and len(driver.sink) == 19, "the letter is written")
            (old,) = acker.dead_letters.read()
            progress = driver.member.owned[0].progress
            assert progress.until() == 9
            acker.dead_letters.replay()
            if is_repaired:
                driver.end = lambda root, place, is_poison: Driver.end(driver, root, place, False)  # type: ignore[method-assign]

            def is_replayed() -> bool:
                driver.spout.claim_replays()
                return [letter.entry_id for letter in acker.dead_letters.read()] not in ([], [old.entry_id]) or (
                    driver.sink.get((0, 9), 0) == 1 and not driver.spout.replaying and not acker.dead_letters.count()
                )

            until(driver, is_replayed, "the replay has ended")
            for _ in range(5):  # looks at letters
                driver.step(random.Random(1))
            assert [acker.dead_letters.count(), progress.until()] == ([0, 20] if is_repaired else [1, 9])
        until(driver, lambda: progress.until() == 20, "the offset passes the record")
        assert acker.dead_letters.count() == (0 if is_repaired else 1)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_topic_made_again_while_nobody_ran_is_noticed(node: Broker, start: Literal["earliest", "latest"]) -> None:
    topic, acker = node.topic(), fake_acker()
    produce(node, topic, 20)
    with driving(node, acker, topic) as first:

        def is_published() -> bool:
            first.records.publish()
            return len(first.sink) == 20 and bool(first.member.owned) and first.records.known_id(topic) is not None

        until(first, is_published, "all are written")
    again(node, topic)
    produce(node, topic, 5)
    with driving(node, acker, topic, on_recreated="raise", start=start) as second:
        with pytest.raises(AckerError, match="was deleted and created again"):
            until(second, lambda: False, "it ends")
        assert second.sink == {}
    assert node.committed(f"g-{topic}", topic) == {}
    with driving(node, acker, topic, on_recreated="restart", start=start) as third:
        until(third, lambda: len(third.sink) == 5 and node.lag(f"g-{topic}", topic) == 0, "the new one is read")
    assert sorted(third.sink) == [(0, offset) for offset in range(5)]


def test_partition_that_leaves_and_returns_during_a_job_is_done_once(node: Broker) -> None:
    topic, acker = node.topic(partitions=4), fake_acker(lanes=2)
    node.produce(topic, [{"value": "fine", "partition": n % 4} for n in range(40)])
    group = f"g-{topic}"
    with driving(node, acker, topic) as driver:
        driver.holds = True
        until(driver, lambda: len(driver.running) == 40, "all are in jobs")
        other = Driver(node, acker, 1, [topic], group, {})

        def is_shared() -> bool:
            other.records.read(0, 0.0)
            return len(other.member.owned) == len(driver.member.owned) == 2

        until(driver, is_shared, "another driver has two of the partitions")
        other.member.close()
        until(driver, lambda: len(driver.member.owned) == 4, "they are back")
        until(
            driver, lambda: all(len(owned.progress.open) == 10 for owned in driver.member.owned), "they are read again"
        )
        assert (driver.spout.state.left, len(driver.running)) == (40, 40)
        driver.holds = False
        until(driver, lambda: node.lag(group, topic) == 0, "all are committed")
    assert driver.sink == {(n % 4, n // 4): 1 for n in range(40)}
    assert acker.dead_letters.count() == 0


def test_largest_record_becomes_a_dead_letter(node: Broker) -> None:
    """Its topic takes it, but the letter has more headers. Beside it are a tombstone and a record without a key."""
    topic, letters, acker = node.topic(), node.topic(), fake_acker()
    headers: list[tuple[str, bytes | None]] = [("name", b"%d" % n if n % 7 else None) for n in range(300)]
    large = {"message.max.bytes": 2_000_000}
    value = b"poison" + b"x" * 1_040_000
    node.produce(topic, [{"key": "large", "value": value, "headers": headers}], **large)
    node.produce(topic, [{"key": "gone", "value": None}, {"value": "poison", "headers": headers}])
    with driving(node, acker, topic, letters=letters, max_bytes=100) as driver:
        until(driver, lambda: node.lag(f"g-{topic}", topic) == 0, "all are committed")
    assert driver.sink == {(0, 1): 1}
    found = {message.key(): message for message in node.read(letters)}
    assert found.keys() == {b"large", None}
    assert (found[b"large"].value(), found[None].value()) == (None, b"poison")
    for message in found.values():
        assert message.headers()[:300] == headers
    assert dict(found[b"large"].headers())["acker-value"] == b"left out"
    assert sorted(place["offset"] for place in places(acker)) == [0, 2]


def test_limit_of_bytes_holds_back_records(node: Broker) -> None:
    topic, acker = node.topic(), fake_acker()
    node.produce(topic, [{"value": "x" * 1000} for _ in range(60)])
    with driving(node, acker, topic, max_bytes=8000) as driver:
        driver.holds = True
        until(driver, lambda: driver.records._budget.room() == 0, "no more fit")
        held = driver.spout.state.left
        assert 1 < held <= 8
        for _ in range(20):
            driver.step(random.Random(1))
            assert driver.spout.state.left == held
        driver.holds = False

        def is_done() -> bool:
            assert driver.spout.state.left <= 8
            return len(driver.sink) == 60

        until(driver, is_done, "all are written")
    assert node.lag(f"g-{topic}", topic) == 0
