"""Kafka by Spark's own source: a sink that is refused before it connects, keys in the same partitions as its, and streams.
Values in Avro, which Spark decodes by another jar."""

import json
import os
from typing import Any

from pyspark.sql import DataFrame

from acker_redis import PipelineError
from acker_redis.spark import Tracker
from tests.docs.test_readme import blocks
from tests.support.kafka import Broker
from tests.support.spark.cases import MakeCase
from tests.support.targets import N, Scenario, check_refused
from tests.support.targets.kafka_streams import STREAMS

GUIDE = "docs/guides/kafka.md"


def defined_by(name: str) -> dict[str, Any]:
    """What the block of the guide that contains a text defines."""
    (block,) = [block for block in blocks("python", GUIDE) if name in block]
    program: dict[str, Any] = {"Tracker": Tracker, "DataFrame": DataFrame}
    exec(block, program)
    return program


SETTINGS: dict[str, str] = {"spark.driver.extraJavaOptions": str(defined_by("AVRO_LIMITS = ")["AVRO_LIMITS"])}


def refused(make: MakeCase) -> None:
    run = make(n=N)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "items"}

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows.selectExpr("cast(id AS string) AS value", "_share", "_roots"),
            lambda writer: writer.format("kafka").options(**options).mode("append").save(),
        )

    text = run.refused(write, PipelineError)
    assert "'kafka'" in text and "tracker.write_kafka" in text and "write_partitions" in text, text


def refused_by_its_class(make: MakeCase) -> None:
    """A client of Spark Connect doesn't know this name, and tries the source with no rows."""
    address, topic, _ = os.environ["ACKER_TESTS_KAFKA"].split()
    source, options = "org.apache.spark.sql.kafka010.KafkaSourceProvider", {"kafka.bootstrap.servers": address}
    run = make(n=N)

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows.selectExpr("cast(id AS string) AS value", "_share", "_roots"),
            lambda writer: writer.format(source).options(**options, topic=topic).mode("append").save(),
        )

    text = run.refused(write, PipelineError)
    assert f"doesn't report which rows the source '{source}' writes" in text, text
    assert run.spark.read.format("kafka").options(**options, subscribe=topic).load().count() == 0


def written_by_the_newer_interface(make: MakeCase) -> None:
    """Once the session's list of older sources lacks Kafka, Spark reports its rows."""
    address, topic, _ = os.environ["ACKER_TESTS_KAFKA"].split()
    options, listed = {"kafka.bootstrap.servers": address}, "spark.sql.sources.useV1SourceList"
    run = make(n=N)
    before = run.spark.conf.get(listed)
    read = run.spark.read.format("kafka").options(**options, subscribe=topic).load

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write(
            rows.selectExpr("concat('v2 ', id) AS value", "_share", "_roots"),
            lambda writer: writer.format("kafka").options(**options, topic=topic).mode("append").save(),
        )

    run.spark.conf.set(listed, "avro,csv,json,orc,parquet,text")
    try:
        run.complete(write)
    finally:
        run.spark.conf.set(listed, before)
    found = [row[0] for row in read().selectExpr("cast(value AS string)").where("value LIKE 'v2 %'").collect()]
    assert sorted(found) == sorted(f"v2 {number}" for number in range(N))


def rows_dropped_before(make: MakeCase) -> None:
    """Rows that Spark's own `where` has dropped before the sink end the run, and nothing is acked."""
    address = os.environ["ACKER_TESTS_KAFKA"].split()[0]
    topic = Broker.at(address).topic()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        values = rows.selectExpr("cast(id AS string) AS value", "_share", "_roots")
        tracker.write_kafka(values, topic=topic, kafka={"bootstrap.servers": address})

    check_refused(make(n=N), write)


HUGE = 2**31 - 100
"""Length that Java could allocate. It is more than the memory of the tests' driver."""


def same_partitions(make: MakeCase) -> None:
    """ACKER_TESTS_KAFKA names a broker, and two topics of seven partitions each."""
    address, by_spark, by_us = os.environ["ACKER_TESTS_KAFKA"].split()
    run = make(n=N)
    columns = "if(id = 0, '', concat('key ', id * 7919, if(id % 3 = 0, 'é', ''))) AS key", "cast(id AS string) AS value"
    kafka = run.messages.selectExpr(*columns).write.format("kafka")
    kafka.options(**{"kafka.bootstrap.servers": address, "topic": by_spark}).save()

    def write(tracker: Tracker, rows: DataFrame) -> None:
        tracker.write_kafka(
            rows.selectExpr(*columns, "_share", "_roots"), topic=by_us, kafka={"bootstrap.servers": address}
        )

    run.complete(write)
    found = []
    for topic in (by_spark, by_us):
        read = run.spark.read.format("kafka").options(**{"kafka.bootstrap.servers": address, "subscribe": topic}).load()
        found.append(sorted(map(tuple, read.selectExpr("cast(key AS string)", "partition").collect())))
    assert len(found[0]) == N
    assert found[0] == found[1]


def in_avro(number: int, text: str, length: int | None = None, more: bytes = b"\0\0") -> bytes:
    """A record of a long, a string, bytes and a list, as a schema registry's serializer writes it.

    The string claims a length of its own if one is given. The last two are empty unless their encoding is given.
    """
    claimed = len(text) if length is None else length
    return b"\0" + (7).to_bytes(4, "big") + long_of(number) + long_of(claimed) + text.encode() + more


def long_of(value: int) -> bytes:
    left, found = value << 1, b""
    while left > 127:
        found, left = found + bytes([left & 127 | 128]), left >> 7
    return found + bytes([left])


def avro_of_a_registry_fails_alone_if_it_is_damaged(make: MakeCase) -> None:
    """The function of kafka.md. Values that claim huge lengths are not allocated."""
    run = make(n=N)
    program = defined_by("def from_registry")
    types = {"order": "long", "items": "string", "note": "bytes", "tags": {"type": "array", "items": "long"}}
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    sound = {number: in_avro(1000 * number, f"tea {number}") for number in range(N)}
    bad = {
        3: b"{}",
        5: b"\1" + sound[5][1:],
        7: sound[7][:-1],
        8: sound[8][:5],
        11: b"",
        13: b"\0",
        15: in_avro(15, "tea", HUGE),
        16: in_avro(16, "tea", more=long_of(HUGE) + b"\0"),
        17: sound[17][:5] + b"\xff" * 12,
        18: in_avro(18, "tea", more=b"\0" + long_of(HUGE)),
    }
    given = {**sound, **bad}
    values = "".join(f" WHEN {number} THEN X'{value.hex()}'" for number, value in given.items())

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        records = messages.selectExpr(f"CASE id{values} END AS value", "id", "_share", "_roots")
        orders = program["from_registry"](tracker, records, schema)
        tracker.write(
            orders.selectExpr("o.order", "o.items", "_share", "_roots"),
            lambda writer: writer.mode("append").parquet(run.out),
        )

    ended = run.done(pipeline)
    assert ended.letters.keys() == bad.keys(), ended.letters
    details = {number: letter.detail for number, letter in ended.letters.items()}
    assert details == {number: "not of the registry" if number in (3, 5, 11) else "no order" for number in bad}, details
    written = sorted(tuple(row) for row in run.spark.read.parquet(run.out).collect())
    assert written == [(1000 * number, f"tea {number}") for number in range(N) if number not in bad], written


SCENARIOS: tuple[Scenario, ...] = (
    refused,
    refused_by_its_class,
    same_partitions,
    rows_dropped_before,
    written_by_the_newer_interface,
    avro_of_a_registry_fails_alone_if_it_is_damaged,
    *STREAMS,
)
