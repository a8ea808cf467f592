"""The sink of Kafka: the broker acknowledges each record, refuses some alone, or is away and harms nobody."""

import logging
import sys
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from acker_redis import BadConfigError, OutageError, PipelineError, RowsRefusedError
from acker_redis.kafka.client import confluent
from acker_redis.kafka.producer import producer_settings
from acker_redis.spark import Tracker, check_pipeline
from acker_redis.spark.worker import kafka_producers
from acker_redis.spark.worker.kafka import KafkaWrite
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until
from tests.docs.test_readme import blocks
from tests.support.kafka import Broker, broker, brokers, values
from tests.support.spark.cases import MakeCase

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)
NO_HEADERS = "array<struct<key string, value binary>>"


def writing(node: Broker, *columns: str, **options: Any) -> Callable[[Tracker, DataFrame], None]:
    """One record per message, into Kafka."""
    kafka = {"bootstrap.servers": node.address, "log_level": 0, **options.pop("kafka", {})}

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write_kafka(messages.selectExpr(*columns, "_share", "_roots"), kafka=kafka, **options)

    return pipeline


def texts(ids: Any) -> list[str]:
    return sorted(map(str, ids))


def test_records_arrive_unchanged(case: MakeCase, node: Broker) -> None:
    topic = node.topic(partitions=3)
    run = case(n=60)
    write = writing(
        node,
        "if(id % 3 = 0, null, concat('key ', id, ' é')) AS key",
        "CASE WHEN id % 5 = 0 THEN null WHEN id % 5 = 1 THEN X'' ELSE encode(cast(id AS string), 'UTF-8') END AS value",
        f"CASE WHEN id % 4 = 0 THEN cast(null AS {NO_HEADERS}) WHEN id % 4 = 1 THEN cast(array() AS {NO_HEADERS}) "
        "ELSE transform(sequence(1, 300), i -> struct(concat('name', i % 7) AS key, "
        "if(i % 9 = 0, null, encode(concat(id, '-', i), 'UTF-8')) AS value)) END AS headers",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "'elsewhere' AS topic",  # a source's own columns don't route the record
        "7000 AS partition",
        topic=topic,
    )
    run.complete(write)
    found = {message.timestamp()[1] - 1700000000000: message for message in node.read(topic)}
    assert sorted(found) == list(range(60))
    for id, message in found.items():
        assert message.key() == (None if id % 3 == 0 else f"key {id} é".encode())
        assert message.value() == (None if id % 5 == 0 else b"" if id % 5 == 1 else str(id).encode())
        many = [(f"name{i % 7}", None if i % 9 == 0 else f"{id}-{i}".encode()) for i in range(1, 301)]
        assert (message.headers() or []) == (many if id % 4 > 1 else [])


@pytest.mark.parametrize("size", [5_000, 2_000_000], ids=["by_the_broker", "by_the_client"])
def test_oversized_record_fails_alone_with_the_words_of_kafka(case: MakeCase, node: Broker, size: int) -> None:
    topic = node.topic(max_message_bytes="4000")
    run = case(n=200)
    ended = run.done(writing(node, f"if(id = 77, repeat('x', {size}), cast(id AS string)) AS value", topic=topic))
    assert values(node.read(topic)) == texts(set(range(200)) - {77})  # each one once
    assert ended.acked == set(range(200)) - {77}
    assert ended.letters.keys() == {77}
    assert "Message size too large" in str(ended.letters[77].detail)
    assert ended.letters[77].last_component == "write_kafka"
    assert ended.emissions == 1, "a larger record stays too large"


def test_record_without_key_is_refused_by_a_compacted_topic(case: MakeCase, node: Broker) -> None:
    topic = node.topic(cleanup_policy="compact")
    ended = case(n=200).done(
        writing(node, "if(id = 5, null, cast(id AS string)) AS key", "cast(id AS string) AS value", topic=topic)
    )
    assert ended.letters.keys() == {5}
    assert "failed to validate record" in str(ended.letters[5].detail), ended.reasons
    assert values(node.read(topic)) == texts(set(range(200)) - {5})


def test_record_with_own_topic_is_refused_alone(case: MakeCase, node: Broker) -> None:
    first, second = node.topic(), node.topic()
    write = writing(
        node,
        "CASE WHEN id = 3 THEN null WHEN id = 4 THEN 'not-there' WHEN id = 5 THEN repeat('x', 600) WHEN id = 6 THEN 'a b/c' "
        f"WHEN id = 7 THEN '' WHEN id % 2 = 0 THEN '{first}' ELSE '{second}' END AS topic",
        "cast(id AS string) AS value",
        kafka={"delivery.timeout.ms": 20_000},
    )
    ended = case(n=100).done(write, retry=ONCE)
    assert ended.letters.keys() == {3, 4, 5, 6, 7}, ended.reasons
    assert "topic is null" in str(ended.letters[3].detail)
    assert "unknown topic" in str(ended.letters[4].detail).lower()
    assert values(node.read(first)) == texts(set(range(0, 100, 2)) - {4, 6})
    assert values(node.read(second)) == texts(set(range(1, 100, 2)) - {3, 5, 7})


def test_partition_routes_only_when_asked(case: MakeCase, node: Broker) -> None:
    topic = node.topic(partitions=3)
    columns = "CASE id WHEN 7 THEN 3 WHEN 8 THEN -1 ELSE id % 3 END AS partition", "cast(id AS string) AS value"
    ended = case(n=100).done(writing(node, *columns, topic=topic, use_partition=True), retry=ONCE)
    assert ended.letters.keys() == {7, 8}
    assert "partition" in str(ended.letters[7].detail).lower()
    found = node.read(topic)
    assert len(found) == 98
    assert all(int(message.value()) % 3 == message.partition() for message in found)


@pytest.mark.usefixtures("one_attempt")
def test_missing_topic_is_nobodys_attempt(case: MakeCase, node: Broker) -> None:
    name = f"later-{uuid.uuid4().hex}"
    emissions: list[int] = []
    write = writing(
        node,
        "cast(id AS string) AS value",
        topic=name,
        kafka={"delivery.timeout.ms": 3000},
    )

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        if len(emissions) == 2:
            node.topic(name)
        write(tracker, messages)

    ended = case(n=50).done(pipeline, retry=ONCE)
    assert ended.letters == {}
    assert len(emissions) >= 2
    assert set(values(node.read(name))) == set(texts(range(50)))


def stop_at(path: str, batch: Any) -> Any:
    """In a worker: wait at message 150 until the broker is gone. Batches have 100 rows, so some were sent."""
    folder = Path(path)
    for row in batch.to_pylist():
        if row["id"] == 150 and not (folder / "gone").exists():
            (folder / "reached").touch()
            wait_until((folder / "gone").exists, "the broker is gone", timeout_secs=120)
    return batch


def step(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield stop_at(path, batch)


@pytest.mark.chaos
@pytest.mark.parametrize("count", [1, 3], ids=["the_only_one", "two_of_three"])
def test_broker_killed_during_a_write_counts_against_nobody(case: MakeCase, tmp_path: Path, count: int) -> None:
    """Of three, one goes on. It leads partitions, but a record needs two copies."""
    with brokers(count) as nodes:
        check_killed(case, tmp_path, nodes, nodes[-2:])


def check_killed(case: MakeCase, tmp_path: Path, nodes: list[Broker], mortal: list[Broker]) -> None:
    """Kill nodes during the first emission, and start them again before the third."""
    topic = nodes[0].topic(partitions=2 * len(nodes), min_insync_replicas=str(min(2, len(nodes))))
    emissions: list[int] = []
    servers = ",".join(node.address for node in nodes)
    kafka = {"bootstrap.servers": servers, "log_level": 0, "delivery.timeout.ms": 3000}

    def kill() -> None:
        wait_until((tmp_path / "reached").exists, "the write has begun", timeout_secs=240)
        for node in mortal:
            node.kill()
        (tmp_path / "gone").touch()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        if len(emissions) == 3:
            for node in mortal:
                node.start(wait=False)
            for node in mortal:
                node.wait()
        held = messages.mapInArrow(partial(step, str(tmp_path)), messages.schema)
        tracker.write_kafka(
            held.selectExpr("cast(id AS string) AS value", "_share", "_roots"), topic=topic, kafka=kafka
        )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        ended = case(n=400, partitions=1).done(pipeline, retry=ONCE)
    finally:
        killer.join()
    assert ended.letters == {}
    assert ended.acked == set(range(400))
    assert len(emissions) >= 3
    assert set(values(nodes[0].read(topic))) == set(texts(range(400)))


@pytest.mark.parametrize(
    "setting",
    [
        {"acks": 0},
        {"acks": "1"},
        {"request.required.acks": 1},
        {"enable.idempotence": False},
        {"partitioner": "random"},
        {"transactional.id": "mine"},
        {"on_delivery": print},
        {"delivery.report.only.error": True},
        {"default.topic.config": {"acks": 0}},
        {"test.mock.num.brokers": 1},
        {"message.timeout.ms": 0},
        {"retries": 0},
        {"no.such.setting": "x"},
        {"bootstrap.servers": ""},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_setting_that_weakens_the_proof_is_refused_before_a_row_is_written(
    case: MakeCase, node: Broker, setting: dict[str, Any]
) -> None:
    topic = node.topic()
    text = case(n=3).refused(
        writing(node, "cast(id AS string) AS value", topic=topic, kafka={"sasl.password": "pa55word", **setting}),
        BadConfigError,
    )
    assert next(iter(setting)) in text
    assert "pa55word" not in text
    assert node.read(topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (["id"], {"topic": "t"}, "'value'"),
        (["id AS value"], {"topic": "t"}, "string or binary"),
        (["'x' AS value"], {}, "pass topic="),
        (["'x' AS value"], {"topic": ""}, "topic=''"),
        (["'x' AS value"], {"topic": "t", "use_partition": True}, "'partition'"),
        (["'x' AS value", "array('a') AS headers"], {"topic": "t"}, "struct<key string"),
        (["'x' AS value", "'now' AS timestamp"], {"topic": "t"}, "milliseconds"),
    ],
)
def test_columns_are_checked_before_a_row_is_written(
    case: MakeCase, node: Broker, columns: list[str], options: dict[str, Any], expected: str
) -> None:
    assert expected in case(n=3).refused(writing(node, *columns, **options), PipelineError)


@pytest.mark.parametrize("group", [{}, {"group": "g"}], ids=["write_kafka", "export_kafka"])
@pytest.mark.parametrize(
    ("columns", "expected"), [((), "has no column _share, so it isn't tracked"), (("_share",), "_roots is missing")]
)
def test_rows_that_lost_the_columns_of_the_tracker_are_refused(
    case: MakeCase, group: dict[str, str], columns: tuple[str, ...], expected: str
) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        write: Any = tracker.export_kafka if group else tracker.write_kafka
        records = messages.selectExpr("cast(id AS string) AS value", *columns)
        write(records, topic="t", kafka={"bootstrap.servers": "127.0.0.1:1"}, **group)

    assert expected in case(n=3).refused(pipeline, PipelineError)


def test_whole_output_is_refused_and_a_check_writes_nothing(case: MakeCase, node: Broker) -> None:
    topic = node.topic()
    run, write = case(n=3), writing(node, "cast(id AS string) AS value", topic=topic)
    assert "whole" in run.refused(write, PipelineError, output="whole")
    check_pipeline(run.messages, write, ids="id")
    assert node.read(topic) == []


def test_secrets_show_nowhere(node: Broker, caplog: pytest.LogCaptureFixture) -> None:
    secret = "pa55word-of-billing"
    settings = {
        "bootstrap.servers": node.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "billing",
        "sasl.password": secret,
        "delivery.timeout.ms": 1500,
        "enable.idempotence": True,
        "log_level": 0,
    }
    write = KafkaWrite("write_kafka", "orders", settings)
    with caplog.at_level(logging.DEBUG), pytest.raises(OutageError) as raised:
        write(iter([pa.RecordBatch.from_pylist([{"value": b"x"}])]), 0)
    assert secret not in f"{raised.value} {raised.value!r} {write!r} {write} {caplog.text}"
    assert "'orders'" in str(raised.value)


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The producers that this process makes as a worker."""
    producers: list[Any] = []
    kafka = confluent()

    def producer(settings: Any) -> Any:
        producers.append(kafka.Producer(settings))
        return producers[-1]

    monkeypatch.setattr(kafka_producers, "confluent", lambda: SimpleNamespace(Producer=producer))
    monkeypatch.setattr(kafka_producers, "_kept", OrderedDict())
    return producers


def write_one(node: Broker, topic: str, value: bytes, **settings: object) -> None:
    write = KafkaWrite("write_kafka", topic, producer_settings({**node.client, **settings}))
    write(iter([pa.RecordBatch.from_pylist([{"value": value}])]), 0)


def test_worker_keeps_its_producer_for_the_next_task(node: Broker, producers: list[Any]) -> None:
    first, second = node.topic(), node.topic()
    for topic in (first, second, first):
        write_one(node, topic, b"x")
    assert len(producers) == 1
    write_one(node, first, b"x", **{"linger.ms": 1})
    assert len(producers) == 2, "another one has other settings"
    for n in range(6):
        write_one(node, first, b"x", **{"linger.ms": 10 + n})
    assert len(kafka_producers._kept) == 4
    assert (values(node.read(first)), values(node.read(second))) == (["x"] * 9, ["x"])


def test_worker_drops_a_producer_whose_record_was_not_acknowledged(node: Broker, producers: list[Any]) -> None:
    topic = node.topic(max_message_bytes="1000")
    with pytest.raises(RowsRefusedError):
        write_one(node, topic, b"x" * 2000)
    assert len(producers) == 2, "the second one sends suspects by themselves"
    write_one(node, topic, b"y")
    assert len(producers) == 3
    kept = dict(kafka_producers._kept)
    with pytest.raises(OutageError):
        write_one(node, "not-there", b"x", **{"delivery.timeout.ms": 1500})
    assert (len(producers), kafka_producers._kept) == (4, kept)
    assert values(node.read(topic)) == ["y"]


def test_producer_that_does_not_know_a_new_partition_is_not_kept(node: Broker, producers: list[Any]) -> None:
    from confluent_kafka.cimpl import NewPartitions

    topic = node.topic()
    settings = producer_settings(node.client)
    write_one(node, topic, b"first")
    admin = node.admin()  # what it was asked ends with it
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    rows = [pa.RecordBatch.from_pylist([{"value": b"second", "partition": 1}])]

    def is_written() -> bool:
        with suppress(RowsRefusedError):
            KafkaWrite("write_kafka", topic, settings)(iter(rows), 0)
            return True
        return False

    wait_until(is_written, "a new producer knows the partition", timeout_secs=60)
    assert sorted(values(node.read(topic))) == ["first", "second"]


def test_kept_producer_writes_to_a_topic_that_was_made_again(node: Broker, producers: list[Any]) -> None:
    topic = node.topic()
    for n in range(3):
        write_one(node, topic, b"%d" % n)
    admin = node.admin()
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone", timeout_secs=60)
    node.topic(topic)
    for n in range(3, 6):
        write_one(node, topic, b"%d" % n)
    assert sorted(values(node.read(topic))) == ["3", "4", "5"]


@pytest.mark.chaos
def test_kept_producer_outlives_its_broker(producers: list[Any]) -> None:
    with broker() as mortal:
        topic = mortal.topic()
        write_one(mortal, topic, b"before")
        mortal.kill()
        mortal.start()
        write_one(mortal, topic, b"after")
        assert len(producers) == 1
        assert sorted(values(mortal.read(topic))) == ["after", "before"]


def test_missing_client_names_the_package(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr("cast(id AS string) AS value", "_share", "_roots")
        tracker.write_kafka(rows, topic="t", kafka={"bootstrap.servers": "127.0.0.1:1"})

    assert "pip install '/path/to/acker-redis[kafka]'" in case(n=3).refused(pipeline, PipelineError)


def test_program_of_the_docs_runs(case: MakeCase, node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of kafka.md."""
    monkeypatch.setenv("KAFKA_SERVERS", node.address)
    node.topic("items", partitions=2)
    program: dict[str, Any] = {}
    exec("\n".join(blocks("python", "docs/guides/kafka.md")), program)
    run = case()
    orders = run.spark.createDataFrame([(1, "tea,milk"), (2, "bread")], "order bigint, items string")
    run.complete(program["to_topic"], orders, ids="order")
    found = sorted((message.key(), message.value().decode(), message.headers()) for message in node.read("items"))
    assert [(key, value) for key, value, _ in found] == [
        (b"1", '{"order":1,"item":"milk"}'),
        (b"1", '{"order":1,"item":"tea"}'),
        (b"2", '{"order":2,"item":"bread"}'),
    ]
    assert all(headers == [("source", b"orders")] for *_, headers in found)


def test_two_sinks_get_every_row(case: MakeCase, node: Broker) -> None:
    first, second = node.topic(), node.topic()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        twice = tracker.explode(messages, "transform(array(0, 1), i -> struct(concat(id, '-', i) AS value))")
        for topic in (first, second):
            tracker.write_kafka(twice, topic=topic, kafka={"bootstrap.servers": node.address})

    case(n=50).complete(pipeline)
    expected = Counter(f"{id}-{child}" for id in range(50) for child in range(2))
    assert Counter(values(node.read(first))) == Counter(values(node.read(second))) == expected
